//! Our requester and responder in the place of a Linux kernel's, in a recorded exchange.
//!
//! `wire-rping.pcap` is one `rping` between two kernels with soft RoCE: REQ, REP, RTU, then SEND, READ and WRITE, then DREQ
//! and DREP. The side that sent the REQ only SENDs, so that its requests and their acknowledgements can be replayed by
//! themselves; then each side is replayed whole, with everything it answers. A judge returns what differs; each is shown once
//! to find a planted difference.

use std::net::Ipv4Addr;

use oarlock_transport::{
    MAX_PACKET_LEN, QpAttr, QpState, Rc, RcConfig, RecvWr, SendData, SendWr, WcStatus,
};
use oarlock_wire::base::{Operation, TransportClass};
use oarlock_wire::{
    AddressVector, Bth, CmMessage, Gid, Mtu, Opcode, Packet, Psn, Qpn, Rep, Req, Time,
};

use crate::memory::VecMemory;
use crate::pair::{Setup, to_state};
use crate::pcap::{self, Recorded};
use crate::replay;

#[derive(Clone)]
struct Exchange {
    active: Ipv4Addr,
    passive: Ipv4Addr,
    req: Box<Req>,
    rep: Box<Rep>,
    /// RC packets of this connection, in order.
    packets: Vec<Recorded>,
}

pub(crate) fn bth(packet: &Recorded) -> Bth {
    Bth::parse(packet.bytes.first_chunk().expect("a BTH"))
}

/// The first connection of the capture.
fn exchange() -> Exchange {
    let all = pcap::read("wire-rping.pcap");
    let mut req = None;
    let mut rep = None;
    let mut packets = Vec::new();
    for recorded in all {
        if bth(&recorded).opcode.transport() == TransportClass::Rc {
            packets.push(recorded);
            continue;
        }
        let Ok(packet) = Packet::parse(&recorded.bytes) else {
            continue;
        };
        let Ok(mad) = packet.payload.try_into() else {
            continue;
        };
        match CmMessage::parse(mad) {
            Ok((_, CmMessage::Req(message))) if req.is_none() => {
                req = Some((recorded.source, recorded.destination, message));
            }
            Ok((_, CmMessage::Rep(message))) if rep.is_none() => rep = Some(message),
            _ => {}
        }
    }
    let (active, passive, req) = req.expect("a REQ");
    let rep = rep.expect("a REP");
    // The second connection has other queue pairs.
    let qpns = [(passive, rep.local_qpn), (active, req.local_qpn)];
    packets.retain(|packet| qpns.contains(&(packet.destination, bth(packet).dest_qpn)));
    Exchange {
        active,
        passive,
        req: Box::new(req),
        rep: Box::new(rep),
        packets,
    }
}

impl Exchange {
    fn av(&self, local: Ipv4Addr, remote: Ipv4Addr) -> AddressVector {
        AddressVector::new(Gid::from_ip(local.into()), Gid::from_ip(remote.into()))
    }

    /// Our queue pair in the place of the passive side's. Its responder expects the PSN that its own REP announced.
    fn passive_rc(&self) -> Rc {
        let av = self.av(self.passive, self.active);
        rc(
            av,
            self.rep.local_qpn,
            self.req.local_qpn,
            self.rep.starting_psn,
            self.req.starting_psn,
            self.req.path_mtu,
        )
    }

    /// Our queue pair in the place of the active side's. Its requester starts at the PSN that the REP announced.
    fn active_rc(&self) -> Rc {
        let av = self.av(self.active, self.passive);
        rc(
            av,
            self.req.local_qpn,
            self.rep.local_qpn,
            self.req.starting_psn,
            self.rep.starting_psn,
            self.req.path_mtu,
        )
    }

    /// What our queue pair does in the place of one side: what it sends, what is wrong about what it takes, and what that side
    /// sent.
    fn replay(&self, side: Ipv4Addr) -> (Vec<Vec<u8>>, Vec<String>, Vec<&Recorded>) {
        let (rc, peer) = if side == self.passive {
            (self.passive_rc(), self.active)
        } else {
            (self.active_rc(), self.passive)
        };
        let (ours, wrong) = replay::run(rc, self.av(side, peer), side, &self.packets);
        let packets = self.packets.iter();
        (
            ours,
            wrong,
            packets.filter(|packet| packet.source == side).collect(),
        )
    }

    fn requests_to(&self, destination: Ipv4Addr) -> Vec<&Recorded> {
        let packets = self.packets.iter();
        packets
            .filter(|p| p.destination == destination && !bth(p).opcode.is_response())
            .collect()
    }

    fn acks_from(&self, source: Ipv4Addr) -> Vec<&Recorded> {
        let packets = self.packets.iter();
        packets
            .filter(|p| p.source == source && bth(p).opcode == Opcode::RC_ACKNOWLEDGE)
            .collect()
    }
}

fn rc(av: AddressVector, qpn: Qpn, dest_qpn: Qpn, rq_psn: Psn, sq_psn: Psn, path_mtu: Mtu) -> Rc {
    let attr = QpAttr {
        av,
        dest_qpn,
        rq_psn,
        sq_psn,
        path_mtu,
        ..Setup::default().attr(0)
    };
    let mut rc = Rc::new(RcConfig {
        qpn,
        ..RcConfig::default()
    });
    to_state(&mut rc, &attr, QpState::Rts);
    rc
}

/// What differs between two sequences of packets, field by field.
fn differences(ours: &[Vec<u8>], recorded: &[&Recorded]) -> Vec<String> {
    let mut found = Vec::new();
    if ours.len() != recorded.len() {
        found.push(format!(
            "{} packets, recorded {}",
            ours.len(),
            recorded.len()
        ));
    }
    for (n, (ours, recorded)) in ours.iter().zip(recorded).enumerate() {
        let (Ok(a), Ok(b)) = (Packet::parse(ours), Packet::parse(&recorded.bytes)) else {
            found.push(format!("packet {n} cannot be parsed"));
            continue;
        };
        let mut compare = |field: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
            let (a, b) = (format!("{a:?}"), format!("{b:?}"));
            if a != b {
                found.push(format!("packet {n}: {field} {a}, recorded {b}"));
            }
        };
        compare("opcode", &a.bth.opcode, &b.bth.opcode);
        compare("PSN", &a.bth.psn, &b.bth.psn);
        compare("destination QP", &a.bth.dest_qpn, &b.bth.dest_qpn);
        compare(
            "acknowledge request",
            &a.bth.ack_request,
            &b.bth.ack_request,
        );
        compare("BTH", &a.bth, &b.bth);
        compare("AETH", &a.aeth, &b.aeth);
        compare("ImmDt", &a.immdt, &b.immdt);
        compare("payload", &a.payload, &b.payload);
        compare("bytes", ours, &recorded.bytes);
    }
    found
}

/// Gives the recorded requests to `rc`; returns what it answers.
fn answers(mut rc: Rc, from: AddressVector, requests: &[&Recorded]) -> Vec<Vec<u8>> {
    let mut memory = VecMemory::new(1 << 16);
    let mut answers = Vec::new();
    let mut out = [0; MAX_PACKET_LEN];
    for request in requests {
        let sge = memory.alloc(256);
        rc.post_recv(&RecvWr {
            wr_id: 1,
            sges: &[sge],
        })
        .unwrap();
        rc.handle_datagram(Time::ZERO, &from, &request.bytes, &mut memory);
        while let Some(transmit) = rc.poll_transmit(Time::ZERO, &mut memory, &mut out) {
            answers.push(out[..transmit.len].to_vec());
        }
        while let Some(completion) = rc.poll_completion() {
            if completion.status.is_success() {
                let payload = Packet::parse(&request.bytes).expect("a SEND").payload;
                assert_eq!(memory.load(sge, completion.byte_len as usize), payload);
            }
        }
    }
    answers
}

/// Posts the recorded messages on `rc` and gives it the recorded answers; returns what it sends, and how its sends end.
fn requests(
    mut rc: Rc,
    from: AddressVector,
    messages: &[&Recorded],
    acks: &[&Recorded],
) -> (Vec<Vec<u8>>, Vec<WcStatus>) {
    let mut memory = VecMemory::new(1 << 16);
    let mut sent = Vec::new();
    let mut statuses = Vec::new();
    let mut out = [0; MAX_PACKET_LEN];
    for (message, ack) in messages.iter().zip(acks) {
        let packet = Packet::parse(&message.bytes).expect("a SEND");
        let sge = memory.store(packet.payload);
        let wr = SendWr {
            data: SendData::Sges(&[sge]),
            solicited: packet.bth.solicited,
            ..SendWr::default()
        };
        rc.post_send(&wr).unwrap();
        while let Some(transmit) = rc.poll_transmit(Time::ZERO, &mut memory, &mut out) {
            sent.push(out[..transmit.len].to_vec());
        }
        rc.handle_datagram(Time::ZERO, &from, &ack.bytes, &mut memory);
        statuses.extend(
            std::iter::from_fn(|| rc.poll_completion()).map(|completion| completion.status),
        );
    }
    (sent, statuses)
}

/// The first data packet each way, or what is wrong about it.
fn first_psns(exchange: &Exchange) -> Vec<String> {
    let mut wrong = Vec::new();
    let expected = [
        (
            "to the passive side",
            exchange.passive,
            exchange.rep.starting_psn,
        ),
        (
            "to the active side",
            exchange.active,
            exchange.req.starting_psn,
        ),
    ];
    for (way, destination, starting_psn) in expected {
        let first = bth(exchange.requests_to(destination)[0]).psn;
        if first != starting_psn {
            wrong.push(format!(
                "first data PSN {way} is {first}, announced {starting_psn}"
            ));
        }
    }
    wrong
}

#[test]
fn the_first_data_psn_each_way_is_the_one_its_receiver_announced() {
    assert_eq!(first_psns(&exchange()), [""; 0]);
}

#[test]
fn the_judge_of_first_psns_finds_swapped_ones() {
    let mut exchange = exchange();
    std::mem::swap(
        &mut exchange.req.starting_psn,
        &mut exchange.rep.starting_psn,
    );
    assert_eq!(first_psns(&exchange).len(), 2);
}

#[test]
fn our_responder_acknowledges_as_the_kernel_did() {
    let exchange = exchange();
    let recorded = exchange.requests_to(exchange.passive);
    assert!(
        recorded.len() >= 10
            && recorded
                .iter()
                .all(|p| bth(p).opcode.operation() == Operation::Send)
    );
    let from = exchange.av(exchange.passive, exchange.active);
    let ours = answers(exchange.passive_rc(), from, &recorded);
    assert_eq!(
        differences(&ours, &exchange.acks_from(exchange.passive)),
        [""; 0]
    );
}

#[test]
fn our_requester_sends_as_the_kernel_did() {
    let exchange = exchange();
    let from = exchange.av(exchange.active, exchange.passive);
    let recorded = exchange.requests_to(exchange.passive);
    let acks = exchange.acks_from(exchange.passive);
    let (ours, statuses) = requests(exchange.active_rc(), from, &recorded, &acks);
    assert_eq!(differences(&ours, &recorded), [""; 0]);
    assert_eq!(statuses, vec![WcStatus::SUCCESS; recorded.len()]);
}

#[test]
fn our_requester_sends_each_of_the_passive_kernels_sends() {
    // Between them stand READs and WRITEs, so each is judged by itself.
    let exchange = exchange();
    let from = exchange.av(exchange.passive, exchange.active);
    let sends: Vec<_> = exchange
        .requests_to(exchange.active)
        .into_iter()
        .filter(|p| bth(p).opcode.operation() == Operation::Send)
        .collect();
    assert!(sends.len() >= 10);
    for send in sends {
        let psn = bth(send).psn;
        let ack = exchange
            .acks_from(exchange.active)
            .into_iter()
            .find(|ack| bth(ack).psn == psn);
        let ack = ack.expect("every SEND was acknowledged");
        let (qpn, dest_qpn) = (exchange.rep.local_qpn, exchange.req.local_qpn);
        let rc = rc(
            from,
            qpn,
            dest_qpn,
            exchange.rep.starting_psn,
            psn,
            exchange.req.path_mtu,
        );
        let (ours, statuses) = requests(rc, from, &[send], &[ack]);
        assert_eq!(differences(&ours, &[send]), [""; 0]);
        assert_eq!(statuses, [WcStatus::SUCCESS]);
    }
}

/// SENDs and their ACKs, READs asked for and answered, WRITEs sent and acknowledged: byte for byte.
#[test]
fn our_queue_pair_does_all_that_each_kernel_did() {
    let exchange = exchange();
    for side in [exchange.active, exchange.passive] {
        let (ours, wrong, recorded) = exchange.replay(side);
        assert_eq!(differences(&ours, &recorded), [""; 0]);
        assert_eq!(wrong, [""; 0]);
    }
    let of = |side: Ipv4Addr, opcode| {
        let packets = exchange.packets.iter();
        packets
            .filter(|p| p.source == side && bth(p).opcode == opcode)
            .count()
    };
    assert!(of(exchange.passive, Opcode::RC_RDMA_READ_REQUEST) >= 5);
    assert!(of(exchange.passive, Opcode::RC_RDMA_WRITE_ONLY) >= 5);
    assert!(of(exchange.active, Opcode::RC_RDMA_READ_RESPONSE_ONLY) >= 5);
}

#[test]
fn the_judge_of_whole_sides_finds_one_changed_bit_in_any_kind_of_packet() {
    let good = exchange();
    for side in [good.active, good.passive] {
        let (ours, _, recorded) = good.replay(side);
        let mut judged = std::collections::BTreeSet::new();
        for (n, packet) in recorded.iter().enumerate() {
            if !judged.insert(bth(packet).opcode.0) {
                continue;
            }
            for byte in 0..packet.bytes.len() {
                let mut changed = (*packet).clone();
                changed.bytes[byte] ^= 1;
                let mut recorded = recorded.clone();
                recorded[n] = &changed;
                assert!(
                    !differences(&ours, &recorded).is_empty(),
                    "packet {n}, byte {byte}"
                );
            }
        }
        assert!(judged.len() >= 3, "{judged:?}");
    }
}

/// What the peer asks for decides what is answered: another PSN or length in a request is another answer.
#[test]
fn the_judge_of_whole_sides_finds_another_request_of_the_peer() {
    let good = exchange();
    let read = |p: &&mut Recorded| bth(p).opcode == Opcode::RC_RDMA_READ_REQUEST;
    for byte in [Bth::LEN - 1, Bth::LEN + 15] {
        let mut changed = good.clone();
        let packet = changed.packets.iter_mut().find(read).expect("a READ");
        packet.bytes[byte] ^= 1;
        let (ours, ..) = changed.replay(good.active);
        let (.., recorded) = good.replay(good.active);
        assert!(!differences(&ours, &recorded).is_empty(), "byte {byte}");
    }
}

#[test]
fn the_judges_find_swapped_starting_psns() {
    let mut exchange = exchange();
    std::mem::swap(
        &mut exchange.req.starting_psn,
        &mut exchange.rep.starting_psn,
    );
    let recorded = exchange.requests_to(exchange.passive);
    let acks = exchange.acks_from(exchange.passive);
    let ours = answers(
        exchange.passive_rc(),
        exchange.av(exchange.passive, exchange.active),
        &recorded,
    );
    assert!(!differences(&ours, &acks).is_empty());
    let from = exchange.av(exchange.active, exchange.passive);
    let (ours, statuses) = requests(exchange.active_rc(), from, &recorded, &acks);
    assert!(
        differences(&ours, &recorded)
            .iter()
            .any(|line| line.contains("PSN"))
    );
    assert_eq!(statuses, []);
}

#[test]
fn the_judge_finds_one_changed_bit_in_any_header_byte() {
    let exchange = exchange();
    let from = exchange.av(exchange.passive, exchange.active);
    let ours = answers(
        exchange.passive_rc(),
        from,
        &exchange.requests_to(exchange.passive),
    );
    let acks = exchange.acks_from(exchange.passive);
    for byte in 0..acks[3].bytes.len() {
        let mut changed = acks[3].clone();
        changed.bytes[byte] ^= 1;
        let mut acks = acks.clone();
        acks[3] = &changed;
        assert!(!differences(&ours, &acks).is_empty(), "byte {byte}");
    }
}

#[test]
fn the_judge_finds_a_lost_request() {
    let exchange = exchange();
    let mut requests = exchange.requests_to(exchange.passive);
    requests.remove(2);
    let ours = answers(
        exchange.passive_rc(),
        exchange.av(exchange.passive, exchange.active),
        &requests,
    );
    let found = differences(&ours, &exchange.acks_from(exchange.passive));
    assert!(found.iter().any(|line| line.contains("AETH")), "{found:?}");
}
