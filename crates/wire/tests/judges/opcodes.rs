//! Every opcode of RC, UC, XRC and UD, and CNP, from a list of its own: IBA Vol. 1 ch. 9 (operation code field) and Annexes A14
//! (XRC) and A17 (RoCEv2), typed anew, with packets put together by hand, byte by byte.

use crate::icrc_program;
use crate::support::{Order, Random, V6_DESTINATION, V6_SOURCE, bare, ip_packet, write_pcap};
use oarlock_wire::icrc::icrc_ipv6;
use oarlock_wire::packet::{MAX_HEADER_LEN, padding};
use oarlock_wire::pretty::AnyPacket;
use oarlock_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, Opcode, PKey, Packet, PacketHeader, Psn,
    QKey, Qpn, RKey, ROCE_PORT, Reth, Srqn, Syndrome, WireErrorKind, XrcEth,
};
use std::net::IpAddr;

/// An extended header, in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Header {
    Deth,
    XrcEth,
    Reth,
    AtomicEth,
    Aeth,
    AtomicAckEth,
    ImmDt,
    Ieth,
}

impl Header {
    /// Name in errors, and length.
    const fn facts(self) -> (&'static str, usize) {
        match self {
            Self::Deth => ("DETH", 8),
            Self::XrcEth => ("XRCETH", 4),
            Self::Reth => ("RETH", 16),
            Self::AtomicEth => ("AtomicETH", 28),
            Self::Aeth => ("AETH", 4),
            Self::AtomicAckEth => ("AtomicAckETH", 8),
            Self::ImmDt => ("ImmDt", 4),
            Self::Ieth => ("IETH", 4),
        }
    }
}

use Header as H;

/// Reliable connections: code, name, headers, whether a payload follows.
const RC: [(u8, &str, &[Header], bool); 23] = [
    (0x00, "SEND_FIRST", &[], true),
    (0x01, "SEND_MIDDLE", &[], true),
    (0x02, "SEND_LAST", &[], true),
    (0x03, "SEND_LAST_IMM", &[H::ImmDt], true),
    (0x04, "SEND_ONLY", &[], true),
    (0x05, "SEND_ONLY_IMM", &[H::ImmDt], true),
    (0x06, "RDMA_WRITE_FIRST", &[H::Reth], true),
    (0x07, "RDMA_WRITE_MIDDLE", &[], true),
    (0x08, "RDMA_WRITE_LAST", &[], true),
    (0x09, "RDMA_WRITE_LAST_IMM", &[H::ImmDt], true),
    (0x0A, "RDMA_WRITE_ONLY", &[H::Reth], true),
    (0x0B, "RDMA_WRITE_ONLY_IMM", &[H::Reth, H::ImmDt], true),
    (0x0C, "RDMA_READ_REQUEST", &[H::Reth], false),
    (0x0D, "RDMA_READ_RESPONSE_FIRST", &[H::Aeth], true),
    (0x0E, "RDMA_READ_RESPONSE_MIDDLE", &[], true),
    (0x0F, "RDMA_READ_RESPONSE_LAST", &[H::Aeth], true),
    (0x10, "RDMA_READ_RESPONSE_ONLY", &[H::Aeth], true),
    (0x11, "ACKNOWLEDGE", &[H::Aeth], false),
    (
        0x12,
        "ATOMIC_ACKNOWLEDGE",
        &[H::Aeth, H::AtomicAckEth],
        false,
    ),
    (0x13, "COMPARE_SWAP", &[H::AtomicEth], false),
    (0x14, "FETCH_ADD", &[H::AtomicEth], false),
    (0x16, "SEND_LAST_INVALIDATE", &[H::Ieth], true),
    (0x17, "SEND_ONLY_INVALIDATE", &[H::Ieth], true),
];

/// An opcode of the list.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) code: u8,
    pub(crate) name: String,
    pub(crate) headers: Vec<Header>,
    pub(crate) has_payload: bool,
}

/// All of them: 23 of RC, the same of XRC, 12 of UC, 2 of UD, and CNP.
pub(crate) fn listed() -> Vec<Listed> {
    let mut all = Vec::new();
    let mut list = |code, name: String, headers: Vec<Header>, has_payload| {
        all.push(Listed {
            code,
            name,
            headers,
            has_payload,
        });
    };
    for (code, name, headers, has_payload) in RC {
        list(code, format!("RC_{name}"), headers.to_vec(), has_payload);
        let mut with_srq = headers.to_vec();
        if !(0x0D..=0x12).contains(&code) {
            with_srq.insert(0, H::XrcEth);
        }
        list(0xA0 | code, format!("XRC_{name}"), with_srq, has_payload);
        if code <= 0x0B {
            list(0x20 | code, format!("UC_{name}"), headers.to_vec(), true);
        }
        if matches!(code, 4 | 5) {
            let mut datagram = headers.to_vec();
            datagram.insert(0, H::Deth);
            list(0x60 | code, format!("UD_{name}"), datagram, true);
        }
    }
    list(0x81, "CNP".to_owned(), vec![], true);
    assert_eq!(all.len(), 23 + 23 + 12 + 2 + 1);
    all
}

/// A packet and what was put into it.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) listed: Listed,
    /// All but the ICRC.
    pub(crate) bytes: Vec<u8>,
    pub(crate) header: PacketHeader,
    pub(crate) payload: Vec<u8>,
}

/// A packet of random values in each field, written down by hand; with noise in the reserved bits if `reserved`.
pub(crate) fn make(listed: &Listed, random: &mut Random, reserved: bool) -> Made {
    let noise = |random: &mut Random| {
        if reserved {
            random.next().to_le_bytes()[0]
        } else {
            0
        }
    };
    let mut payload = vec![
        0;
        if listed.has_payload {
            random.below(70)
        } else {
            0
        }
    ];
    random.fill(&mut payload);
    if listed.code == 0x81 {
        // Annex A17: 16 reserved bytes.
        payload = vec![0; 16];
    }
    let pad = padding(payload.len());
    let [qpn, psn, wide] = [(); 3].map(|()| random.next());
    let pkey = PKey(0x8000 | wide as u16);
    let flags = random.next().to_le_bytes()[0] & 0xC0;
    let congestion = random.next().to_le_bytes()[0] & 0xC0;
    let ack = random.next().to_le_bytes()[0] & 0x80;
    let low = |value: u64| value.to_be_bytes()[5..].to_vec();

    let mut bytes = vec![listed.code, flags | (pad as u8) << 4];
    bytes.extend(pkey.0.to_be_bytes());
    bytes.push(congestion | noise(random) & 0x3F);
    bytes.extend(low(qpn));
    bytes.push(ack | noise(random) & 0x7F);
    bytes.extend(low(psn));
    let mut header = PacketHeader::new(Bth {
        opcode: Opcode(listed.code),
        solicited: flags & 0x80 != 0,
        migrated: flags & 0x40 != 0,
        pad: pad as u8,
        version: 0,
        pkey,
        fecn: congestion & 0x80 != 0,
        becn: congestion & 0x40 != 0,
        dest_qpn: Qpn::truncate(qpn as u32),
        ack_request: ack != 0,
        psn: Psn::truncate(psn as u32),
    });
    for kind in &listed.headers {
        let [first, second, third] = [(); 3].map(|()| random.next());
        let key = random.next() as u32;
        match kind {
            H::Deth => {
                bytes.extend(key.to_be_bytes());
                bytes.push(noise(random));
                bytes.extend(low(first));
                header.deth = Some(Deth {
                    qkey: QKey(key),
                    src_qpn: Qpn::truncate(first as u32),
                });
            }
            H::XrcEth => {
                bytes.push(noise(random));
                bytes.extend(low(first));
                let srqn = Srqn::truncate(first as u32);
                header.xrceth = Some(XrcEth { srqn });
            }
            H::Reth => {
                bytes.extend(first.to_be_bytes());
                bytes.extend(key.to_be_bytes());
                bytes.extend((second as u32).to_be_bytes());
                header.reth = Some(Reth {
                    addr: first,
                    rkey: RKey(key),
                    len: second as u32,
                });
            }
            H::AtomicEth => {
                bytes.extend(first.to_be_bytes());
                bytes.extend(key.to_be_bytes());
                bytes.extend(second.to_be_bytes());
                bytes.extend(third.to_be_bytes());
                header.atomic_eth = Some(AtomicEth {
                    addr: first,
                    rkey: RKey(key),
                    swap_add: second,
                    compare: third,
                });
            }
            H::Aeth => {
                // Positive, RNR or negative; the other two kinds are reserved.
                let syndrome = first.to_le_bytes()[0] & 0x1F | [0x00, 0x20, 0x60][random.below(3)];
                bytes.push(syndrome);
                bytes.extend(low(second));
                header.aeth = Some(Aeth {
                    syndrome: Syndrome::from_bits(syndrome),
                    msn: second as u32 & 0xFF_FFFF,
                });
            }
            H::AtomicAckEth => {
                bytes.extend(first.to_be_bytes());
                header.atomic_ack_eth = Some(AtomicAckEth { original: first });
            }
            H::ImmDt => {
                bytes.extend(key.to_be_bytes());
                header.immdt = Some(ImmDt(key));
            }
            H::Ieth => {
                bytes.extend(key.to_be_bytes());
                header.ieth = Some(Ieth(RKey(key)));
            }
        }
    }
    bytes.extend(&payload);
    bytes.resize(bytes.len() + pad, 0);
    Made {
        listed: listed.clone(),
        bytes,
        header,
        payload,
    }
}

/// Twenty packets of each opcode.
fn all(reserved: bool) -> Vec<Made> {
    let mut random = Random::seeded();
    let mut all = Vec::new();
    for listed in listed() {
        all.extend((0..20).map(|_| make(&listed, &mut random, reserved)));
    }
    all
}

#[test]
fn packets_of_every_opcode_are_read_and_written_as_the_hand_writes_them() {
    for made in all(false) {
        let packet = Packet::parse(&made.bytes).expect("a packet");
        assert_eq!(packet.header(), made.header, "{}", made.listed.name);
        assert_eq!(packet.payload, made.payload, "{}", made.listed.name);
        let mut again = [0xA5; 200];
        let len = packet.emit(&mut again).expect("there is room");
        assert_eq!(again[..len], made.bytes, "{packet}");
        assert_eq!(again[len], 0xA5, "nothing is written past the end");
        let header_len = made.header.len();
        let padded = made.payload.len() + padding(made.payload.len());
        assert_eq!(header_len, len - padded, "{packet}");
        assert!(header_len <= MAX_HEADER_LEN);
    }
}

#[test]
fn no_header_is_longer_than_the_longest() {
    let longest = all(false).iter().map(|made| made.header.len()).max();
    assert_eq!(longest, Some(MAX_HEADER_LEN));
}

#[test]
fn reserved_bits_are_ignored_and_written_as_zero() {
    let mut differed = 0;
    for made in all(true) {
        let packet = Packet::parse(&made.bytes).expect("a packet");
        assert_eq!(packet.header(), made.header, "{}", made.listed.name);
        let mut again = [0; 200];
        let len = packet.emit(&mut again).expect("there is room");
        let reparsed = Packet::parse(&again[..len]).expect("what was emitted can be parsed");
        assert_eq!(reparsed, packet);
        assert_eq!((again[4] & 0x3F, again[8] & 0x7F), (0, 0));
        differed += usize::from(again[..len] != made.bytes);
    }
    assert!(differed > 1000, "{differed} of 1220");
}

#[test]
fn a_packet_cut_off_names_the_header_that_is_not_whole() {
    for made in all(false) {
        for len in 0..made.header.len() {
            let error = Packet::parse(&made.bytes[..len]).expect_err("cut off");
            let mut wanted = ("BTH", 12);
            for kind in &made.listed.headers {
                if len >= wanted.1 {
                    let (name, header_len) = kind.facts();
                    wanted = (name, wanted.1 + header_len);
                }
            }
            let (given, needed) = (len, wanted.1);
            assert_eq!(
                error.message, wanted.0,
                "{len} bytes of {}",
                made.listed.name
            );
            assert_eq!(error.kind, WireErrorKind::Truncated { given, needed });
        }
        // From there on only the padding can be missing.
        let pad = padding(made.payload.len());
        let headers_only = Packet::parse(&made.bytes[..made.header.len()]);
        assert_eq!(headers_only.is_err(), pad > 0, "{}", made.listed.name);
    }
}

#[test]
fn too_little_room_is_an_error_with_both_lengths_and_no_panic() {
    for made in all(false) {
        let needed = made.header.len();
        for given in 0..needed {
            let error = made
                .header
                .emit(0, &mut [0; 60][..given])
                .expect_err("no room");
            assert_eq!(error.kind, WireErrorKind::NoRoom { given, needed });
        }
        assert_eq!(made.header.emit(0, &mut [0; 60][..needed]), Ok(needed));
    }
}

/// Adds or takes away each header in turn: only the set of the opcode is emitted.
#[test]
fn any_other_set_of_headers_is_refused() {
    let full = PacketHeader {
        deth: Some(Deth {
            qkey: QKey(1),
            src_qpn: Qpn::QP1,
        }),
        xrceth: Some(XrcEth {
            srqn: Srqn::default(),
        }),
        reth: Some(Reth {
            addr: 0,
            rkey: RKey(0),
            len: 0,
        }),
        atomic_eth: Some(AtomicEth {
            addr: 0,
            rkey: RKey(0),
            swap_add: 0,
            compare: 0,
        }),
        aeth: Some(Aeth {
            syndrome: Syndrome::ACK,
            msn: 0,
        }),
        atomic_ack_eth: Some(AtomicAckEth { original: 0 }),
        immdt: Some(ImmDt(0)),
        ieth: Some(Ieth(RKey(0))),
        ..PacketHeader::new(Bth::new(Opcode::CNP, Qpn::QP1, Psn::default()))
    };
    fn flip<T>(of: Option<T>, full: Option<T>) -> Option<T> {
        if of.is_some() { None } else { full }
    }
    let flips: [fn(&mut PacketHeader, &PacketHeader); 8] = [
        |h, full| h.deth = flip(h.deth, full.deth),
        |h, full| h.xrceth = flip(h.xrceth, full.xrceth),
        |h, full| h.reth = flip(h.reth, full.reth),
        |h, full| h.atomic_eth = flip(h.atomic_eth, full.atomic_eth),
        |h, full| h.aeth = flip(h.aeth, full.aeth),
        |h, full| h.atomic_ack_eth = flip(h.atomic_ack_eth, full.atomic_ack_eth),
        |h, full| h.immdt = flip(h.immdt, full.immdt),
        |h, full| h.ieth = flip(h.ieth, full.ieth),
    ];
    let mut random = Random::seeded();
    for listed in listed() {
        let made = make(&listed, &mut random, false);
        for flip in flips {
            let mut header = made.header;
            flip(&mut header, &full);
            let error = header.emit(0, &mut [0; 200]).expect_err(&listed.name);
            assert_eq!(error.kind, WireErrorKind::HeaderSet(listed.code));
        }
    }
}

#[test]
fn every_other_opcode_is_refused_by_its_number() {
    let known: Vec<_> = listed().iter().map(|listed| listed.code).collect();
    let mut refused = 0;
    for code in 0..=u8::MAX {
        let mut bytes = [0; 80];
        bytes[0] = code;
        match Packet::parse(&bytes) {
            Ok(_) => assert!(known.contains(&code), "{code:#04x}"),
            Err(error) => {
                assert_eq!(error.kind, WireErrorKind::UnsupportedOpcode(code));
                assert_eq!((error.message, error.field), ("BTH", "opcode"));
                let header = PacketHeader::new(Bth::new(Opcode(code), Qpn::QP1, Psn::default()));
                assert_eq!(header.emit(0, &mut [0; 80]), Err(error));
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 256 - known.len());
}

#[test]
fn every_opcode_prints_the_name_of_the_list() {
    let mut random = Random::seeded();
    for listed in listed() {
        assert_eq!(Opcode(listed.code).to_string(), listed.name);
        let made = make(&listed, &mut random, false);
        let line = AnyPacket(&made.bytes).to_string();
        let start = format!("{} qpn={}", listed.name, made.header.bth.dest_qpn);
        assert!(line.starts_with(&start), "{line}");
        assert!(!line.contains('('), "{line} has no error");
    }
}

/// Every field of every header can be read off the line.
#[test]
fn the_line_of_a_packet_shows_every_field_of_its_headers() {
    for made in all(false) {
        let line = AnyPacket(&made.bytes).to_string();
        let header = &made.header;
        let mut wanted = vec![format!("psn={}", header.bth.psn)];
        if let Some(deth) = header.deth {
            wanted.push(format!("src_qpn={}", deth.src_qpn));
        }
        if let Some(xrceth) = header.xrceth {
            wanted.push(format!("srqn={:#08x}", xrceth.srqn.get()));
        }
        if let Some(reth) = header.reth {
            wanted.push(format!("addr={:#018x}", reth.addr));
            wanted.push(format!("rkey={:#010x}", reth.rkey.0));
            wanted.push(format!("dma_len={}", reth.len));
        }
        if let Some(atomic_eth) = header.atomic_eth {
            wanted.push(format!("addr={:#018x}", atomic_eth.addr));
            wanted.push(format!("rkey={:#010x}", atomic_eth.rkey.0));
            if made.listed.code & 0x1F == 0x13 {
                wanted.push(format!("compare={:#018x}", atomic_eth.compare));
                wanted.push(format!("swap={:#018x}", atomic_eth.swap_add));
            } else {
                wanted.push(format!("add={:#018x}", atomic_eth.swap_add));
            }
        }
        if let Some(aeth) = header.aeth {
            wanted.push(format!("syndrome=\"{}\" msn={}", aeth.syndrome, aeth.msn));
        }
        if let Some(ack) = header.atomic_ack_eth {
            wanted.push(format!("original={:#018x}", ack.original));
        }
        if let Some(immdt) = header.immdt {
            wanted.push(format!("imm={:#010x}", immdt.0));
        }
        if let Some(ieth) = header.ieth {
            wanted.push(format!("invalidate={:#010x}", ieth.0.0));
        }
        if made.listed.has_payload {
            wanted.push(format!("len={}", made.payload.len()));
        }
        let line = format!("{line} ");
        for field in wanted {
            assert!(line.contains(&format!(" {field} ")), "{field} in {line}");
        }
    }
}

/// A capture that holds every opcode: the ICRC program finds every ICRC right, and one corrupted packet turns it red.
#[test]
fn the_icrc_program_finds_every_opcode_right_and_one_corrupted_packet_red() {
    let mut random = Random::seeded();
    let mut packets: Vec<_> = listed()
        .iter()
        .map(|listed| in_an_ip_packet(&make(listed, &mut random, false).bytes))
        .collect();
    let count = packets.len();
    for (name, broken) in [("every-opcode", None), ("every-opcode-broken", Some(17))] {
        if let Some(broken) = broken {
            let byte = packets[broken].len() - 5;
            packets[broken][byte] ^= 1;
        }
        let pcap = write_pcap(&format!("{name}.pcap"), Order::Little, 101, bare, &packets);
        let Some(verdict) = icrc_program::judge(&pcap) else {
            return;
        };
        let bad = usize::from(broken.is_some());
        let wanted = format!("icrc ok={} bad={bad} other=0", count - bad);
        assert_eq!(verdict, (wanted, Some(bad as i32)), "{name}");
    }
}

/// An IPv6 packet that carries a transport packet, with its ICRC.
pub(crate) fn in_an_ip_packet(transport: &[u8]) -> Vec<u8> {
    let icrc = icrc_ipv6(V6_SOURCE, V6_DESTINATION, 0xC000, ROCE_PORT, &[transport]);
    let [source, destination] = [V6_SOURCE, V6_DESTINATION].map(IpAddr::from);
    ip_packet(source, destination, 0xC000, 0, transport, icrc)
}
