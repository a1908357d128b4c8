//! Two Linux kernels talk; we read every word and must be able to say each one back.
//!
//! The judging functions return faults instead of asserting, so that planted faults can show that they find them.

use crate::hand_read;
use crate::support::{FIXTURES, Frame, frames};
use oarlock_wire::icrc::{check_ipv4_unknown_id, icrc_ipv4, icrc_ipv6};
use oarlock_wire::{
    Bth, CmMessage, IpCmHeader, MAD_LEN, Opcode, Packet, PortSpace, Psn, Qpn, ROCE_PORT, WireError,
};
use std::collections::BTreeMap;
use std::net::IpAddr;

pub(crate) type Mad = [u8; MAD_LEN];
/// What is judged: reading a MAD, and writing it again.
pub(crate) type Codec<'a> = &'a dyn Fn(&Mad) -> Result<(CmMessage, Mad), WireError>;

pub(crate) fn our_codec(mad: &Mad) -> Result<(CmMessage, Mad), WireError> {
    let (header, message) = CmMessage::parse(mad)?;
    let mut again = [0xA5; MAD_LEN];
    message.emit(header.transaction_id, &mut again);
    Ok((message, again))
}

/// Faults in how `codec` reads and writes the MADs of `frames`, and how many messages of each name it read.
pub(crate) fn judge_messages(
    frames: &[Frame],
    codec: Codec<'_>,
) -> (Vec<String>, BTreeMap<&'static str, usize>) {
    let mut faults = Vec::new();
    let mut counts = BTreeMap::new();
    for (index, mad) in frames
        .iter()
        .enumerate()
        .filter_map(|(index, frame)| Some((index, frame.mad()?)))
    {
        match codec(mad) {
            Ok((message, again)) => {
                *counts.entry(message.name()).or_default() += 1;
                let (read, wanted) = (
                    hand_read::from_message(&message),
                    hand_read::from_bytes(mad),
                );
                assert_eq!(
                    read.len(),
                    wanted.len(),
                    "both lists name the fields of a {}",
                    message.name()
                );
                for (read, wanted) in read
                    .iter()
                    .zip(&wanted)
                    .filter(|(read, wanted)| read != wanted)
                {
                    faults.push(format!(
                        "frame {index}: {} read {read:x?}, stands {wanted:x?}",
                        message.name()
                    ));
                }
                if let Some(byte) = (0..MAD_LEN).find(|&byte| again[byte] != mad[byte]) {
                    faults.push(format!(
                        "frame {index}: {} written differs at byte {byte}",
                        message.name()
                    ));
                }
            }
            Err(error) => faults.push(format!("frame {index}: {error}")),
        }
    }
    (faults, counts)
}

/// Frames whose ICRC is not what we compute, or whose identification we do not recover from it.
pub(crate) fn judge_icrcs(frames: &[Frame]) -> Vec<usize> {
    let is_wrong = |frame: &Frame| {
        let (port, id) = (frame.source_port, frame.identification);
        let transport = [frame.transport.as_slice()];
        let (source, destination) = match (frame.source, frame.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (source, destination),
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                return icrc_ipv6(source, destination, port, ROCE_PORT, &transport) != frame.icrc;
            }
            _ => panic!("addresses of one family"),
        };
        let computed = icrc_ipv4(
            source,
            destination,
            port,
            ROCE_PORT,
            id,
            frame.flags_and_fragment,
            &transport,
        );
        let recovered =
            check_ipv4_unknown_id(source, destination, port, ROCE_PORT, &transport, frame.icrc);
        computed != frame.icrc || recovered != Some(id)
    };
    (0..frames.len())
        .filter(|&index| is_wrong(&frames[index]))
        .collect()
}

#[test]
fn every_message_between_two_kernels_is_read_and_written_as_it_stands() {
    let (faults, counts) = judge_messages(&frames("wire-cm-mads.pcap"), &our_codec);
    assert_eq!(faults, [""; 0]);
    let wanted = [
        ("DREP", 208),
        ("DREQ", 208),
        ("REP", 208),
        ("REQ", 208),
        ("RTU", 208),
        ("SIDR_REP", 1),
        ("SIDR_REQ", 1),
    ];
    assert_eq!(counts, BTreeMap::from(wanted));

    let (faults, counts) = judge_messages(&frames("wire-rping.pcap"), &our_codec);
    assert_eq!(faults, [""; 0]);
    assert_eq!(
        counts,
        BTreeMap::from([("DREP", 1), ("DREQ", 1), ("REP", 2), ("REQ", 2), ("RTU", 2)])
    );
}

#[test]
fn every_icrc_between_two_kernels_is_right() {
    let counted = FIXTURES.map(|name| {
        let frames = frames(name);
        assert_eq!(judge_icrcs(&frames), [0; 0], "{name}");
        frames.len()
    });
    assert_eq!(counted, [1042, 13, 13, 130, 24]);
}

/// R-PAR-1: the private data of a request begins with the IP CM header, the rest is the application's.
#[test]
fn every_request_names_the_addresses_it_travels_between() {
    let mut seen = 0;
    for frame in FIXTURES.into_iter().flat_map(frames) {
        let Some(Ok((_, CmMessage::Req(req)))) = frame.mad().map(CmMessage::parse) else {
            continue;
        };
        let header = req.private_data.as_bytes().first_chunk().expect("36 of 92");
        let header = IpCmHeader::parse(header).expect("an IP CM header");
        assert_eq!(header.source, frame.source);
        assert_eq!(header.destination, frame.destination);
        assert_eq!(
            (
                req.primary.local_gid.to_ip(),
                req.primary.remote_gid.to_ip()
            ),
            (header.source, header.destination)
        );
        assert_eq!(req.service_id.port_space(), Some(PortSpace::TCP));
        assert!(matches!(req.service_id.port(), Some(7174 | 7471 | 18515)));
        assert!(req.alternate.is_absent());
        let mut again = [0xA5; IpCmHeader::LEN];
        header.emit(&mut again);
        assert_eq!(again, req.private_data.as_bytes()[..IpCmHeader::LEN]);
        seen += 1;
    }
    assert_eq!(seen, 212);
}

/// The PSN of the first request each way is the starting PSN that the receiving side gave in its own REQ or REP. Returns the
/// faults, and how many ways were judged.
fn judge_first_psns(frames: &[Frame], codec: Codec<'_>) -> (Vec<String>, usize) {
    let mut awaited: BTreeMap<Endpoint, Psn> = BTreeMap::new();
    let mut faults = Vec::new();
    let mut judged = 0;
    for frame in frames {
        if let Some(mad) = frame.mad() {
            match codec(mad) {
                Ok((CmMessage::Req(req), _)) => {
                    _ = awaited.insert((frame.source, req.local_qpn.get()), req.starting_psn)
                }
                Ok((CmMessage::Rep(rep), _)) => {
                    _ = awaited.insert((frame.source, rep.local_qpn.get()), rep.starting_psn)
                }
                _ => {}
            }
            continue;
        }
        let bth = Bth::parse(frame.transport.first_chunk().expect("a BTH"));
        if bth.opcode.is_response() || bth.dest_qpn == Qpn::QP1 {
            continue;
        }
        if let Some(psn) = awaited.remove(&(frame.destination, bth.dest_qpn.get())) {
            judged += 1;
            if psn != bth.psn {
                faults.push(format!(
                    "{} begins with {}, {psn} was agreed",
                    bth.opcode, bth.psn
                ));
            }
        }
    }
    (faults, judged)
}

/// A queue pair of one of the two hosts.
type Endpoint = (IpAddr, u32);

#[test]
fn data_begins_with_the_psn_that_was_agreed() {
    let (faults, judged) = judge_first_psns(&frames("wire-rping.pcap"), &our_codec);
    assert_eq!(faults, [""; 0]);
    // Both ways of the first connection, one of the second, where the capture ends.
    assert_eq!(judged, 3);
}

/// rping: CM, SEND, and the RDMA READs and WRITEs by which the server fetches and returns the data.
#[test]
fn every_packet_is_read_and_written_as_it_stands() {
    let mut by_opcode = BTreeMap::new();
    for frame in frames("wire-rping.pcap") {
        let packet = Packet::parse(&frame.transport).expect("a packet");
        let mut again = [0xA5; 1500];
        let len = packet
            .emit(&mut again)
            .expect("what was parsed can be emitted");
        assert_eq!(again[..len], frame.transport, "{packet}");
        let one_sided = matches!(frame.transport[0], 0x0A | 0x0C);
        assert_eq!(packet.reth.is_some(), one_sided, "{packet}");
        *by_opcode.entry(packet.bth.opcode.to_string()).or_insert(0) += 1;
    }
    let counted = |name: &str| by_opcode[name];
    assert_eq!(by_opcode.values().sum::<usize>(), 130);
    let [writes, requests, responses] = [
        "RC_RDMA_WRITE_ONLY",
        "RC_RDMA_READ_REQUEST",
        "RC_RDMA_READ_RESPONSE_ONLY",
    ]
    .map(counted);
    assert_eq!((writes, requests, responses), (10, 10, 10));
}

/// What a kernel asks for it gets: the response has the PSN of the request and as many bytes as its RETH says.
#[test]
fn a_kernel_answers_a_read_with_the_length_and_psn_of_its_request() {
    let frames = frames("wire-rping.pcap");
    let mut asked = BTreeMap::new();
    let mut answered = 0;
    for frame in &frames {
        let packet = Packet::parse(&frame.transport).expect("a packet");
        match packet.bth.opcode {
            Opcode::RC_RDMA_READ_REQUEST => {
                let reth = packet.reth.expect("a RETH");
                assert!(reth.addr > 0 && reth.rkey.0 > 0, "{packet}");
                asked.insert((frame.destination, packet.bth.psn.get()), reth.len);
            }
            Opcode::RC_RDMA_READ_RESPONSE_ONLY => {
                let len = asked.remove(&(frame.source, packet.bth.psn.get()));
                assert_eq!(len.map(|len| len as usize), Some(packet.payload.len()));
                assert!(packet.aeth.is_some());
                answered += 1;
            }
            _ => {}
        }
    }
    assert_eq!((answered, asked.len()), (10, 0));
}

// The judges judged: a fault planted on purpose is reported.

#[test]
fn the_judge_reports_swapped_psn_bytes() {
    let swap = |psn: Psn| Psn::truncate(psn.get().swap_bytes() >> 8);
    let codec = |mad: &Mad| {
        let (mut message, again) = our_codec(mad)?;
        match &mut message {
            CmMessage::Req(req) => req.starting_psn = swap(req.starting_psn),
            CmMessage::Rep(rep) => rep.starting_psn = swap(rep.starting_psn),
            _ => {}
        }
        Ok((message, again))
    };
    let frames = frames("wire-rping.pcap");
    let (faults, _) = judge_messages(&frames, &codec);
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert!(faults.iter().all(|fault| fault.contains("starting_psn")));
    assert_eq!(judge_first_psns(&frames, &codec).0.len(), 3);
}

#[test]
fn the_judge_reports_swapped_depths() {
    let codec = |mad: &Mad| {
        let mut swapped = *mad;
        match mad[17] {
            0x10 => swapped.swap(24 + 35, 24 + 39),
            0x13 => swapped.swap(24 + 24, 24 + 25),
            _ => {}
        }
        our_codec(&swapped)
    };
    let mut frames = frames("wire-rping.pcap");
    // The recorded depths are equal on both sides, so a swap would not show: make them differ first.
    for frame in &mut frames {
        match frame.mad().map(|mad| mad[17]) {
            Some(0x10) => frame.transport[20 + 24 + 35] = 9,
            Some(0x13) => frame.transport[20 + 24 + 24] = 9,
            _ => {}
        }
    }
    assert_eq!(judge_messages(&frames, &our_codec).0, [""; 0]);
    let (faults, _) = judge_messages(&frames, &codec);
    let of = |name: &str| faults.iter().filter(|fault| fault.contains(name)).count();
    assert_eq!(
        (
            of("responder_resources"),
            of("initiator_depth"),
            of("differs at byte")
        ),
        (4, 4, 4),
        "{faults:?}"
    );
}

#[test]
fn the_judge_reports_a_byte_written_wrong() {
    let codec = |mad: &Mad| {
        let (message, mut again) = our_codec(mad)?;
        again[255] ^= 1;
        Ok((message, again))
    };
    assert_eq!(
        judge_messages(&frames("wire-rping.pcap"), &codec).0.len(),
        8
    );
}

#[test]
fn the_judge_reports_each_flipped_icrc_bit() {
    let good = frames("wire-rping.pcap");
    for bit in 0..32 {
        let mut frames = good.clone();
        frames[7].icrc ^= 1 << bit;
        assert_eq!(judge_icrcs(&frames), [7], "bit {bit}");
    }
}
