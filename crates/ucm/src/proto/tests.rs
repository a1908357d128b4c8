//! Both ends, one version apart, and with broken bytes between them.

use super::*;

fn requests() -> Vec<Request> {
    vec![
        Request::Hello {
            pid: 4711,
            name: "cmatose".into(),
        },
        Request::OpenChannel,
        Request::CloseChannel { token: u64::MAX },
        Request::Write(WriteBatch {
            stop_on_error: true,
            items: vec![
                WriteItem {
                    channel: 3,
                    request: vec![1, 2, 3],
                    inline: vec![],
                    id_from: None,
                },
                WriteItem {
                    channel: 3,
                    request: vec![4; MAX_REQUEST],
                    inline: vec![7; MAX_INLINE],
                    id_from: Some(0),
                },
            ],
            acknowledged: vec![Acknowledged { id: 0, events: 9 }],
        }),
        Request::TakeSlot,
        Request::ReturnSlot { slot: 3 },
        Request::Devices { first: 2 },
        Request::Ps { after: None },
        Request::Ps { after: Some(5) },
        Request::Trace,
        Request::Stop,
        Request::WatchDevices,
        Request::InjectFaults(InjectFaults::None),
        Request::InjectFaults(InjectFaults::Rules("drop:opcode=cm".into())),
        Request::InjectFaults(InjectFaults::Replay("# oarlock fault record 1\n".into())),
        Request::FailDevice {
            fault: DeviceFault::Removal,
            address: "192.0.2.1".parse().expect("an address"),
        },
        Request::FailDevice {
            fault: DeviceFault::AddressChange,
            address: "fd00::1".parse().expect("an address"),
        },
        Request::ShareStatistics,
        Request::Statistics { after: None },
        Request::Statistics { after: Some(3) },
        Request::Capture(CaptureScope::Host),
        Request::Capture(CaptureScope::Client),
        Request::EndCapture,
        Request::JoinCapture,
        Request::CaptureFailed {
            scope: CaptureScope::Host,
            errno: 28,
        },
    ]
}

fn device() -> DeviceInfo {
    DeviceInfo {
        index: 1,
        name: "oarlock_lo".into(),
        guid: 0x0200_0000_0000_0001,
        port_num: 1,
        ifindex: 1,
        interface: "lo".into(),
        is_loopback: true,
        netdev_mtu: 65536,
        path_mtu: 5,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 16,
        local_ca_ack_delay: 15,
        addresses: vec![
            "127.0.0.1".parse().expect("an address"),
            "::1".parse().expect("an address"),
        ],
        port_active: false,
    }
}

fn changes() -> Vec<DeviceChange> {
    let kinds = [
        DeviceChangeKind::PortError,
        DeviceChangeKind::PortActive,
        DeviceChangeKind::Addresses(device().addresses),
        DeviceChangeKind::Removed,
        DeviceChangeKind::Returned,
    ];
    (0..)
        .zip(kinds)
        .map(|(device, kind)| DeviceChange { device, kind })
        .collect()
}

fn id(number: u32) -> IdInfo {
    IdInfo {
        id: number,
        pid: 12,
        ps: 0x106,
        state: "CONNECT".into(),
        local: Some("127.0.0.1:7471".parse().expect("an address")),
        remote: Some("[fe80::1%3]:40000".parse().expect("an address")),
        qpn: Some(0x0001_0002),
        channel: 77,
        queued: 1,
        unacked: 2,
        backlog: Some(BacklogInfo {
            used: 3,
            limit: 8,
            overflows: 1 << 40,
        }),
        groups: vec!["224.1.1.1".parse().expect("an address")],
    }
}

fn replies() -> Vec<Reply> {
    let host = HostInfo {
        pid: 1,
        uid: 1000,
        clients: vec![ClientInfo {
            pid: 12,
            name: "demo".into(),
            slot: Some(1),
            own_pid: 2,
        }],
        slots: vec![1],
        ports: vec![PortInfo {
            ps: 0x106,
            port: 7471,
        }],
        port_count: 1,
        counters: vec![("req_sent".into(), 100)],
    };
    vec![
        Reply::Refused(Refusal {
            code: RefusalCode::LIMIT,
            sentence: "all 254 slots are taken".into(),
        }),
        Reply::Hello(Hello {
            pid: 1,
            uid: 1000,
            client: 3,
        }),
        Reply::Opened { token: 9 },
        Reply::Written(vec![
            WriteReply {
                errno: 0,
                sentence: String::new(),
                response: vec![0, 0, 0, 0],
            },
            WriteReply {
                errno: 22,
                sentence: "state IDLE".into(),
                response: vec![],
            },
        ]),
        Reply::Slot {
            slot: 254,
            forward: 0x0123_4567_89AB_CDEF,
        },
        Reply::Devices(DevicePage {
            devices: vec![device(), device()],
            next: Some(2),
        }),
        Reply::Ps(IdPage {
            host: Some(host),
            ids: vec![id(0), id(1)],
            more: true,
        }),
        Reply::Done,
        Reply::Statistics(StatisticsPage {
            devices: vec![DeviceCounters {
                device: 1,
                counters: vec![("sent_pkts".into(), 1 << 33), ("rcvd_pkts".into(), 0)],
            }],
            more: true,
        }),
        Reply::Changes(changes()),
        Reply::Capture(CaptureNews {
            generation: 7,
            interface: Some(3),
        }),
        Reply::Capture(CaptureNews::default()),
        Reply::CaptureState(CaptureState::default()),
        Reply::CaptureState(CaptureState {
            programs: 2,
            missed: 1,
            failure: Some(CaptureFailure {
                pid: 77,
                name: "rping".into(),
                errno: 28,
            }),
        }),
    ]
}

fn decode(message: &[u8]) -> Result<Request, Refusal> {
    let (header, body) = Header::read(message).map_err(Refusal::malformed)?;
    header.check()?;
    Request::decode(&header, body)
}

#[test]
fn every_message_survives_the_socket() {
    for request in requests() {
        let message = request.encode(0xDEAD_BEEF);
        let (header, _) = Header::read(&message).expect("a header");
        assert_eq!(header.sequence, 0xDEAD_BEEF);
        assert_eq!(decode(&message), Ok(request));
    }
    for reply in replies() {
        let (header, decoded) = Reply::decode(&reply.encode(7)).expect("a reply");
        assert_eq!((header.sequence, decoded), (7, reply));
    }
}

#[test]
fn every_truncation_is_named_and_none_panics() {
    for message in requests()
        .iter()
        .map(|r| r.encode(1))
        .chain(replies().iter().map(|r| r.encode(1)))
    {
        let (header, body) = Header::read(&message).expect("a header");
        for len in 0..body.len() {
            let cut = frame(header.version, header.kind, header.sequence, &body[..len]);
            if header.kind < 0x8000 {
                let refusal = decode(&cut).expect_err("a shorter body lacks a field");
                assert_eq!(refusal.code, RefusalCode::MALFORMED, "{refusal}");
            } else {
                Reply::decode(&cut).expect_err("a shorter body lacks a field");
            }
        }
        for len in 0..HEADER_LEN {
            assert!(Header::read(&message[..len]).is_err());
        }
        Header::read(&message[..message.len() - 1]).expect_err("length");
    }
}

#[test]
fn every_flipped_bit_is_survived() {
    for message in requests()
        .iter()
        .map(|r| r.encode(1))
        .chain(replies().iter().map(|r| r.encode(1)))
    {
        for bit in 0..message.len().min(512) * 8 {
            let mut broken = message.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            let _ = decode(&broken);
            let _ = Reply::decode(&broken);
        }
    }
}

#[test]
fn counts_are_checked_before_anything_is_allocated() {
    // A batch that says it has four thousand million requests, in nine bytes.
    let mut body = vec![0];
    body.extend_from_slice(&u32::MAX.to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    let (header, _) = Header::read(&Request::Write(WriteBatch::default()).encode(1))
        .map(|(h, _)| (h, ()))
        .expect("ok");
    let refusal = Request::decode(&header, &body).expect_err("too many");
    assert_eq!(refusal.code, RefusalCode::MALFORMED);
    assert!(
        refusal
            .sentence
            .contains("number of requests holds 4294967295"),
        "{refusal}"
    );

    let too_many = WriteBatch {
        items: vec![WriteItem::default(); MAX_BATCH + 1],
        ..WriteBatch::default()
    };
    let refusal = decode(&Request::Write(too_many).encode(1)).expect_err("too many");
    assert!(refusal.sentence.contains("at most 64"), "{refusal}");

    let long = WriteItem {
        request: vec![0; MAX_REQUEST + 1],
        ..WriteItem::default()
    };
    let long = WriteBatch {
        items: vec![long],
        ..WriteBatch::default()
    };
    let refusal = decode(&Request::Write(long).encode(1)).expect_err("too long");
    assert!(
        refusal
            .sentence
            .contains("request holds 1025; at most 1024"),
        "{refusal}"
    );
    assert!(matches!(
        Header::read(&vec![0; MAX_MESSAGE + 1]),
        Err(Malformed::TooLong { .. })
    ));
}

#[test]
fn a_request_can_name_only_an_earlier_one() {
    let item = WriteItem {
        id_from: Some(0),
        ..WriteItem::default()
    };
    let batch = WriteBatch {
        items: vec![item],
        ..WriteBatch::default()
    };
    assert_eq!(
        decode(&Request::Write(batch).encode(1)).map_err(|r| r.code),
        Err(RefusalCode::MALFORMED)
    );
}

/// A program that is one minor version ahead.
#[test]
fn a_newer_program_is_served_as_far_as_we_know_it() {
    let newer = Version {
        minor: VERSION.minor + 1,
        ..VERSION
    };
    for request in requests() {
        let message = request.encode_as(newer, 5);
        let (header, body) = Header::read(&message).expect("a header");
        let grown = frame(
            newer,
            header.kind,
            5,
            &[body, b"a field of tomorrow"].concat(),
        );
        assert_eq!(
            decode(&grown),
            Ok(request),
            "fields that were appended are skipped"
        );
    }
    let refusal = decode(&frame(newer, 999, 5, b"anything")).expect_err("unknown");
    assert_eq!(refusal.code, RefusalCode::UNKNOWN_REQUEST);
    assert_eq!(
        refusal.sentence,
        "this service, version 1.3, does not know request 999 of version 1.4"
    );
}

#[test]
fn a_newer_service_is_understood_as_far_as_we_know_it() {
    let newer = Version {
        minor: VERSION.minor + 1,
        ..VERSION
    };
    for reply in replies() {
        let message = reply.encode_as(newer, 5);
        let (header, body) = Header::read(&message).expect("a header");
        let grown = frame(
            newer,
            header.kind,
            5,
            &[body, b"a field of tomorrow"].concat(),
        );
        assert_eq!(Reply::decode(&grown).map(|(_, reply)| reply), Ok(reply));
    }
    assert_eq!(
        Reply::decode(&frame(newer, 0x8FFF, 5, b"")).map(|(_, reply)| reply),
        Err(Malformed::UnknownReply { kind: 0x8FFF })
    );
}

#[test]
fn the_same_version_has_no_bytes_to_spare() {
    for request in requests() {
        let message = request.encode(5);
        let (header, body) = Header::read(&message).expect("a header");
        let refusal = decode(&frame(VERSION, header.kind, 5, &[body, b"x"].concat()))
            .expect_err("one too many");
        assert_eq!(refusal.code, RefusalCode::MALFORMED);
    }
}

#[test]
fn another_major_version_is_refused_with_a_sentence_that_it_can_read() {
    let other = Version {
        major: VERSION.major + 1,
        minor: 0,
    };
    let message = Request::TakeSlot.encode_as(other, 31);
    let (header, _) = Header::read(&message).expect("the header is the same in every version");
    let refusal = header.check().expect_err("major versions differ");
    assert_eq!(refusal.code, RefusalCode::VERSION);
    assert_eq!(
        refusal.sentence,
        "this service speaks version 1.3 of the messages, the program speaks 2.0; use the same release for both"
    );
    // The refusal itself crosses the border of major versions, both ways.
    let reply = Reply::Refused(refusal.clone()).encode_as(other, header.sequence);
    let (header, reply) = Reply::decode(&reply).expect("readable");
    assert_eq!((header.sequence, reply), (31, Reply::Refused(refusal)));
    // Another reply of another major version is not guessed at.
    let (_, reply) = Reply::decode(
        &Reply::Slot {
            slot: 1,
            forward: 0,
        }
        .encode_as(other, 31),
    )
    .expect("readable");
    assert!(matches!(
        reply,
        Reply::Refused(Refusal {
            code: RefusalCode::VERSION,
            ..
        })
    ));
}

#[test]
fn foreign_bytes_are_told_from_ours() {
    assert_eq!(
        Header::read(b"GET / HTTP/1.1\r\n\r\n").map(|_| ()),
        Err(Malformed::NotOurs)
    );
    assert_eq!(
        Header::read(b"").map(|_| ()),
        Err(Malformed::Truncated { field: "magic" })
    );
}

/// What version 1.1 added to identifiers stands behind everything that version 1.0 knows.
#[test]
fn a_page_of_version_1_0_has_no_backlogs_and_no_groups() {
    let info = IdInfo {
        backlog: None,
        groups: Vec::new(),
        ..id(3)
    };
    let page = Reply::Ps(IdPage::fill(None, [info]));
    let body = page.encode(5)[HEADER_LEN..].to_vec();
    let added = 1 + 4;
    let old = Version { major: 1, minor: 0 };
    let message = frame(old, 0x8007, 5, &body[..body.len() - added]);
    assert_eq!(Reply::decode(&message).expect("readable").1, page);
    let message = frame(old, 0x8007, 5, &body);
    assert_eq!(
        Reply::decode(&message),
        Err(Malformed::Trailing { left: added })
    );
}

/// What version 1.2 added to devices stands behind everything that version 1.1 knows.
#[test]
fn a_device_of_version_1_1_has_an_active_port() {
    let message = Reply::Devices(DevicePage::fill(&[device(), device()], 0)).encode(5);
    let body = &message[HEADER_LEN..];
    let old = Version { major: 1, minor: 1 };
    let (_, reply) =
        Reply::decode(&frame(old, 0x8006, 5, &body[..body.len() - 2])).expect("readable");
    let Reply::Devices(page) = reply else {
        panic!("devices")
    };
    assert!(page.devices.iter().all(|device| device.port_active));
    assert_eq!(
        Reply::decode(&frame(old, 0x8006, 5, body)),
        Err(Malformed::Trailing { left: 2 })
    );
}

#[test]
fn rules_of_faults_have_a_bound() {
    let rules = |len| Request::InjectFaults(InjectFaults::Rules("x".repeat(len)));
    assert!(decode(&rules(MAX_RULES_TEXT).encode(1)).is_ok());
    let refusal = decode(&rules(MAX_RULES_TEXT + 1).encode(1)).expect_err("too long");
    assert!(refusal.sentence.contains("fault rules holds"), "{refusal}");
}

#[test]
fn long_lists_go_in_pages() {
    let all: Vec<IdInfo> = (0..5000).map(id).collect();
    let mut seen = Vec::new();
    loop {
        let rest = all
            .iter()
            .filter(|info| seen.last().is_none_or(|&last| info.id > last))
            .cloned();
        let message = Reply::Ps(IdPage::fill(None, rest)).encode(1);
        assert!(message.len() <= MAX_MESSAGE);
        let Ok((_, Reply::Ps(page))) = Reply::decode(&message) else {
            panic!("not a page")
        };
        assert!(!page.ids.is_empty(), "a page brings something");
        seen.extend(page.ids.iter().map(|info| info.id));
        if !page.more {
            break;
        }
    }
    assert!(seen.iter().copied().eq(0..5000));

    let all: Vec<DeviceInfo> = (0..1000)
        .map(|index| DeviceInfo { index, ..device() })
        .collect();
    let (mut first, mut count) = (Some(0), 0);
    while let Some(from) = first {
        let page = DevicePage::fill(&all, from);
        assert_eq!(page.devices.first().map(|device| device.index), Some(from));
        count += page.devices.len();
        first = page.next;
    }
    assert_eq!(count, 1000);
}

#[test]
fn the_largest_reply_fits_in_a_message() {
    let answer = WriteReply {
        errno: 22,
        sentence: "s".repeat(MAX_SENTENCE),
        response: vec![1; MAX_RESPONSE],
    };
    assert!(Reply::Written(vec![answer; MAX_BATCH]).encode(1).len() <= MAX_MESSAGE);
    let host = HostInfo {
        clients: vec![
            ClientInfo {
                pid: 1,
                name: "n".repeat(MAX_NAME),
                slot: Some(1),
                own_pid: 1,
            };
            2000
        ],
        slots: vec![1; 300],
        ports: vec![PortInfo { ps: 1, port: 1 }; 9000],
        counters: vec![("c".repeat(MAX_NAME), 1); 5000],
        ..HostInfo::default()
    };
    let many = || std::iter::repeat_n(id(1), 100_000);
    for host in [None, Some(host)] {
        let page = IdPage::fill(host, many());
        assert!(page.more && page.ids.len() > 100);
        assert!(Reply::Ps(page).encode(1).len() <= MAX_MESSAGE);
    }
}

#[test]
fn long_sentences_are_cut_at_a_character() {
    let refusal = Refusal {
        code: RefusalCode::SYSTEM,
        sentence: "ä".repeat(MAX_SENTENCE),
    };
    let (_, reply) = Reply::decode(&Reply::Refused(refusal).encode(1)).expect("readable");
    let Reply::Refused(refusal) = reply else {
        panic!("a refusal")
    };
    assert_eq!(refusal.sentence, "ä".repeat(MAX_SENTENCE / 2));
}
