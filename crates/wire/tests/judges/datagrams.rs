//! Two Linux kernels resolve services, send datagrams to each other and to groups, and put each other off; we read every word.

use crate::capture::{judge_icrcs, judge_messages, our_codec};
use crate::support::{Frame, ethernet_frames, frames};
use oarlock_wire::{
    AddressVector, CmMessage, FlowLabel, Gid, Grh, IbTimeout, IpCmHeader, MessageKind, PKey,
    Packet, PortSpace, QKey, Qpn, ServiceId, SidrRep, SidrReq, SidrStatus,
};
use std::collections::BTreeMap;
use std::net::IpAddr;

fn message(frame: &Frame) -> Option<CmMessage> {
    let message = CmMessage::parse(frame.mad()?).expect("a CM message");
    Some(message.1)
}

/// The datagrams to queue pairs other than QP1, read and written again.
fn data(frames: &[Frame]) -> Vec<(&Frame, Packet<'_>)> {
    let data = frames.iter().filter(|frame| frame.mad().is_none());
    data.map(|frame| {
        let packet = Packet::parse(&frame.transport).expect("a packet");
        let mut again = [0xA5; 1500];
        let len = packet
            .emit(&mut again)
            .expect("what was parsed can be emitted");
        assert_eq!(again[..len], frame.transport, "{packet}");
        (frame, packet)
    })
    .collect()
}

/// The path by which a frame came, seen by its receiver.
fn path(frame: &Frame) -> AddressVector {
    AddressVector {
        traffic_class: frame.traffic_class,
        hop_limit: frame.hop_limit,
        flow_label: FlowLabel::default(),
        ..AddressVector::new(frame.destination.into(), frame.source.into())
    }
}

/// The answers of one kernel by request ID, each beside what was asked and the frames that carried both.
fn resolutions(frames: &[Frame]) -> Vec<(&Frame, SidrReq, &Frame, SidrRep)> {
    let mut asked = BTreeMap::new();
    let mut resolutions = Vec::new();
    for frame in frames {
        match message(frame) {
            Some(CmMessage::SidrReq(req)) => {
                assert!(asked.insert(req.request_id, (frame, req)).is_none());
            }
            Some(CmMessage::SidrRep(rep)) => {
                let (asking, req) = asked.remove(&rep.request_id).expect("what was asked");
                assert_eq!(
                    (asking.source, asking.destination),
                    (frame.destination, frame.source)
                );
                resolutions.push((asking, req, frame, rep));
            }
            _ => {}
        }
    }
    assert_eq!(asked.len(), 0, "every request is answered");
    resolutions
}

#[test]
fn every_message_of_the_datagram_programs_is_read_and_written_as_it_stands() {
    for (name, wanted) in [
        (
            "wire-udaddy.pcap",
            [("SIDR_REP", 5), ("SIDR_REQ", 5)].as_slice(),
        ),
        (
            "wire-mra.pcap",
            &[
                ("DREP", 1),
                ("DREQ", 1),
                ("MRA", 2),
                ("REP", 2),
                ("REQ", 2),
                ("RTU", 1),
            ],
        ),
        ("wire-mckey.pcap", &[]),
    ] {
        let frames = frames(name);
        let (faults, counts) = judge_messages(&frames, &our_codec);
        assert_eq!(faults, [""; 0], "{name}");
        assert_eq!(counts, wanted.iter().copied().collect(), "{name}");
        assert_eq!(judge_icrcs(&frames), [0; 0], "{name}");
    }
}

#[test]
fn a_service_is_resolved_to_a_queue_pair_and_its_key_over_ipv4_and_ipv6() {
    let frames = frames("wire-udaddy.pcap");
    let resolutions = resolutions(&frames);
    let service_id = ServiceId::for_port(PortSpace::UDP, 7174);
    assert_eq!(service_id, ServiceId(0x0111_1C06));
    for (asking, req, _, rep) in &resolutions {
        assert_eq!(
            (req.partition_key, req.service_id),
            (PKey::DEFAULT, service_id)
        );
        let (header, given) = req
            .private_data
            .as_bytes()
            .split_first_chunk()
            .expect("36 of 216");
        let header = IpCmHeader::parse(header).expect("an IP CM header");
        assert_eq!(
            (header.source, header.destination),
            (asking.source, asking.destination)
        );
        assert!(
            given.iter().all(|&byte| byte == 0),
            "udaddy gives no private data"
        );
        assert_eq!(rep.service_id, service_id);
        assert!(rep.additional_info.is_empty() && rep.ece.is_none() && rep.private_data.is_zero());
    }
    let answers: Vec<_> = resolutions
        .iter()
        .map(|(asking, _, _, rep)| (asking.source.is_ipv6(), rep.status, rep.qpn.get(), rep.qkey))
        .collect();
    let granted = |is_v6, qpn| (is_v6, SidrStatus::SUCCESS, qpn, QKey::RDMA_UDP);
    let refused = (false, SidrStatus::UNSUPPORTED, 0, QKey(0));
    assert_eq!(
        answers,
        [
            granted(false, 0x11),
            granted(true, 0x12),
            refused,
            granted(false, 0x19),
            granted(false, 0x1A)
        ]
    );
}

#[test]
fn datagrams_go_to_the_queue_pair_and_with_the_key_that_the_sidr_rep_named() {
    let frames = frames("wire-udaddy.pcap");
    let passive: BTreeMap<IpAddr, Vec<Qpn>> =
        resolutions(&frames)
            .iter()
            .fold(BTreeMap::new(), |mut all, (_, _, answer, rep)| {
                all.entry(answer.source)
                    .or_insert_with(Vec::new)
                    .push(rep.qpn);
                all
            });
    let (mut forth, mut back) = (0, 0);
    for (frame, packet) in data(&frames) {
        let deth = packet.deth.expect("a UD packet");
        assert_eq!(
            (deth.qkey, packet.bth.pkey),
            (QKey::RDMA_UDP, PKey::DEFAULT)
        );
        // udaddy says its queue pair in the immediate data as well.
        assert_eq!(packet.immdt.map(|immdt| immdt.0), Some(deth.src_qpn.get()));
        assert!(!packet.bth.ack_request);
        match passive.get(&frame.destination) {
            Some(qpns) => {
                assert!(qpns.contains(&packet.bth.dest_qpn), "{packet}");
                forth += 1;
            }
            None => {
                assert!(passive[&frame.source].contains(&deth.src_qpn), "{packet}");
                back += 1;
            }
        }
    }
    assert_eq!((forth, back), (7, 7));
}

/// `udaddy` answers from the buffer into which the kernel had put the last request, GRH included: so the kernel's GRH is on the
/// wire, and the header of the packet it stands for as well.
#[test]
fn the_grh_that_the_kernel_hands_its_receiver_is_the_ip_header() {
    let frames = frames("wire-udaddy.pcap");
    let mut judged = BTreeMap::new();
    let data = data(&frames);
    for (index, (answer, packet)) in data.iter().enumerate() {
        let Some((bytes, _)) = packet.payload.split_first_chunk::<{ Grh::LEN }>() else {
            continue;
        };
        let Ok(grh) = Grh::parse(bytes) else {
            continue;
        };
        let (request, _) = data[..index]
            .iter()
            .rev()
            .find(|(frame, _)| frame.destination == answer.source)
            .expect("an answer answers");
        let (unused, header) = bytes.split_at(Grh::LEN - request.ip_header.len());
        assert!(unused.iter().all(|&byte| byte == 0));
        let of = Grh::of(&path(request), request.transport.len());
        assert_eq!(grh, of);
        if grh.source.is_ipv6() {
            assert_eq!(header, request.ip_header);
            assert_eq!(of.to_bytes(), *bytes);
        } else {
            // All but identification and checksum, which covers it.
            let ours = of.to_bytes();
            for kept in [0..24, 26..30, 32..40] {
                assert_eq!(ours[kept.clone()], bytes[kept]);
            }
            assert_eq!(header[4..6], request.identification.to_be_bytes());
        }
        *judged.entry(grh.source.is_ipv6()).or_insert(0) += 1;
    }
    assert_eq!(judged, BTreeMap::from([(false, 4), (true, 3)]));
}

/// Group membership reports among the frames: sender, group, and whether it joins (IGMPv3, RFC 3376: one record each).
fn memberships(name: &str) -> Vec<(IpAddr, IpAddr, bool)> {
    let v4 = |bytes: &[u8]| IpAddr::from(<[u8; 4]>::try_from(bytes).expect("4 bytes"));
    let mut reports = Vec::new();
    for frame in ethernet_frames(name) {
        let ip = &frame[14..];
        let igmp = match (&frame[12..14], ip[9]) {
            ([0x08, 0x00], 2) => &ip[usize::from(ip[0] & 0xF) * 4..],
            _ => continue,
        };
        assert_eq!((igmp[0], &igmp[6..8]), (0x22, [0, 1].as_slice()));
        let joins = match igmp[8] {
            // Change to "exclude nobody", and to "include nobody".
            4 => true,
            3 => false,
            other => panic!("record type {other}"),
        };
        reports.push((v4(&ip[12..16]), v4(&igmp[12..16]), joins));
    }
    reports
}

#[test]
fn a_datagram_to_a_group_goes_to_qp_ffffff_at_the_address_of_the_group() {
    let frames = frames("wire-mckey.pcap");
    let mut sent = BTreeMap::new();
    for (frame, packet) in data(&frames) {
        let group = Gid::from_ip(frame.destination);
        assert!(group.is_multicast());
        let IpAddr::V4(address) = frame.destination else {
            panic!("IPv4 is all that the kernel joins");
        };
        let [_, b, c, d] = address.octets();
        assert_eq!(frame.link_destination, [0x01, 0x00, 0x5E, b & 0x7F, c, d]);
        assert_eq!(
            (packet.bth.dest_qpn, packet.bth.pkey),
            (Qpn::MULTICAST, PKey::DEFAULT)
        );
        let deth = packet.deth.expect("a UD packet");
        assert_eq!(deth.qkey, QKey::RDMA_UDP);
        assert_eq!(packet.immdt.map(|immdt| immdt.0), Some(deth.src_qpn.get()));
        assert_eq!(frame.traffic_class, 0);
        let (payload_len, count) = sent
            .entry((frame.source, d))
            .or_insert((packet.payload.len(), 0));
        assert_eq!(*payload_len, packet.payload.len());
        *count += 1;
    }
    let [first, second] =
        ["10.98.0.1", "10.98.0.2"].map(|ip| ip.parse::<IpAddr>().expect("an address"));
    let wanted = [
        ((first, 4), (101, 3)),
        ((second, 3), (100, 3)),
        ((second, 5), (100, 3)),
        ((second, 6), (100, 4)),
    ];
    assert_eq!(sent, BTreeMap::from(wanted));
}

/// A send-only member of 239.1.2.5 joins nothing, every other member joins once and leaves once (the kernel says each
/// twice, as IGMP does), also where two identifiers of one host are members of 239.1.2.6.
#[test]
fn a_full_member_joins_and_a_send_only_member_does_not() {
    let mut said = BTreeMap::new();
    for report in memberships("wire-mckey.pcap") {
        *said.entry(report).or_insert(0) += 1;
    }
    let mut wanted = BTreeMap::new();
    for (host, groups) in [
        ("10.98.0.1", [3, 4, 5, 6].as_slice()),
        ("10.98.0.2", &[3, 4, 6]),
    ] {
        for group in groups {
            for joins in [true, false] {
                let host = host.parse::<IpAddr>().expect("an address");
                wanted.insert((host, IpAddr::from([239, 1, 2, *group]), joins), 2);
            }
        }
    }
    assert_eq!(said, wanted);
}

#[test]
fn the_kernel_puts_a_second_req_and_a_second_rep_off_with_an_mra() {
    let frames = frames("wire-mra.pcap");
    let messages: Vec<_> = frames.iter().filter_map(message).collect();
    let names: Vec<_> = messages.iter().map(CmMessage::name).collect();
    assert_eq!(
        names,
        [
            "REQ", "REQ", "MRA", "REP", "REP", "MRA", "RTU", "DREQ", "DREP"
        ]
    );
    let mras: Vec<_> = messages
        .iter()
        .filter_map(|message| match message {
            CmMessage::Mra(mra) => Some(mra),
            _ => None,
        })
        .collect();
    let (Some(CmMessage::Req(req)), Some(CmMessage::Rep(rep))) =
        (messages.first(), messages.get(3))
    else {
        panic!("a REQ and a REP");
    };
    let (active, passive) = (req.local_comm_id, rep.local_comm_id);
    let ids = mras
        .iter()
        .map(|mra| (mra.local_comm_id, mra.remote_comm_id));
    assert_eq!(
        ids.collect::<Vec<_>>(),
        [(passive, active), (active, passive)]
    );
    let kinds = mras.iter().map(|mra| (mra.message, mra.service_timeout));
    let service_timeout = IbTimeout::truncate(24);
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [
            (MessageKind::REQ, service_timeout),
            (MessageKind::REP, service_timeout)
        ]
    );
    assert!(mras.iter().all(|mra| mra.private_data.is_zero()));
}
