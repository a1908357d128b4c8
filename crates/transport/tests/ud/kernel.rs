//! Our queue pairs in the place of a Linux kernel's, in recorded exchanges of `udaddy` and `mckey`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use oarlock_transport::{
    MAX_PACKET_LEN, QpAttr, QpState, RecvWr, SendData, SendOp, SendWr, Ud, UdConfig, UdDestination,
    WcStatus,
};
use oarlock_wire::{AddressVector, Gid, Grh, ImmDt, Packet, Psn, QKey, Qpn};

use crate::memory::VecMemory;
use crate::pcap::{self, Recorded};
use crate::support::to_state;

/// The datagrams of programs, without those of connection management.
fn data(name: &str) -> Vec<Recorded> {
    let mut all = pcap::read(name);
    all.retain(|recorded| parse(recorded).bth.dest_qpn != Qpn::QP1);
    all
}

fn parse(recorded: &Recorded) -> Packet<'_> {
    Packet::parse(&recorded.bytes).expect("a packet")
}

fn gid(ip: Ipv4Addr) -> Gid {
    Gid::from_ip(ip.into())
}

/// A queue pair as the RDMA CM makes it, which has sent datagrams before.
fn ready(qpn: Qpn, sq_psn: Psn) -> Ud {
    let mut ud = Ud::new(UdConfig {
        qpn,
        ..UdConfig::default()
    });
    let attr = QpAttr {
        qkey: QKey::RDMA_UDP,
        sq_psn,
        ..QpAttr::default()
    };
    to_state(&mut ud, &attr, QpState::Rts);
    ud
}

/// What a queue pair of ours sends in the place of each recorded sender, in the order of the recording.
fn sent_again(recorded: &[Recorded]) -> Vec<Vec<u8>> {
    let mut senders = BTreeMap::new();
    let mut memory = VecMemory::new(1 << 16);
    let mut out = [0; MAX_PACKET_LEN];
    let mut sent = Vec::new();
    for packet in recorded {
        let parsed = parse(packet);
        let deth = parsed.deth.expect("a DETH");
        let name = (packet.source, deth.src_qpn.get());
        let ud = senders
            .entry(name)
            .or_insert_with(|| ready(deth.src_qpn, parsed.bth.psn));
        let sge = memory.store(parsed.payload);
        ud.post_send(&SendWr {
            op: match parsed.immdt {
                Some(ImmDt(imm)) => SendOp::SendWithImm(imm),
                None => SendOp::Send,
            },
            data: SendData::Sges(&[sge]),
            solicited: parsed.bth.solicited,
            ud: Some(UdDestination {
                av: AddressVector::new(gid(packet.source), gid(packet.destination)),
                remote_qpn: parsed.bth.dest_qpn,
                remote_qkey: deth.qkey,
            }),
            ..SendWr::default()
        })
        .expect("what a kernel sends may be posted");
        let transmit = ud.poll_transmit(&mut memory, &mut out).expect("a packet");
        assert_eq!(transmit.av.remote, gid(packet.destination));
        sent.push(out[..transmit.len].to_vec());
    }
    sent
}

#[test]
fn what_we_send_is_bit_by_bit_what_the_kernel_sent() {
    for (name, count) in [("wire-udaddy.pcap", 8), ("wire-mckey.pcap", 13)] {
        let recorded = data(name);
        assert_eq!(recorded.len(), count, "{name}");
        let ours = sent_again(&recorded);
        for (ours, recorded) in ours.iter().zip(&recorded) {
            let same = *ours == recorded.bytes;
            assert!(same, "{name}: {}", parse(recorded));
        }
    }
}

/// Gives a recorded datagram to a fresh receiver of ours; its buffer afterwards, as far as it was written.
fn received(recorded: &Recorded) -> Vec<u8> {
    let packet = parse(recorded);
    let to_group = recorded.destination.is_multicast();
    let qpn = if to_group {
        Qpn::truncate(0x77)
    } else {
        packet.bth.dest_qpn
    };
    let mut ud = ready(qpn, Psn::default());
    let mut memory = VecMemory::new(1 << 16);
    let sge = memory.alloc(2000);
    ud.post_recv(&RecvWr {
        wr_id: 1,
        sges: &[sge],
    })
    .expect("RTS");
    let from = AddressVector {
        traffic_class: recorded.traffic_class,
        hop_limit: recorded.hop_limit,
        ..AddressVector::new(gid(recorded.destination), gid(recorded.source))
    };
    ud.handle_datagram(&from, &recorded.bytes, &mut memory);
    let completion = ud.poll_completion().expect("a completion");
    assert_eq!(completion.status, WcStatus::SUCCESS);
    assert_eq!(completion.src_qp, packet.deth.expect("a DETH").src_qpn);
    assert_eq!(completion.imm, packet.immdt.map(|immdt| immdt.0));
    memory.load(sge, completion.byte_len as usize)
}

#[test]
fn what_the_kernel_sent_is_received_behind_its_grh() {
    for name in ["wire-udaddy.pcap", "wire-mckey.pcap"] {
        for recorded in data(name) {
            let buffer = received(&recorded);
            assert_eq!(buffer[Grh::LEN..], *parse(&recorded).payload);
            let grh = buffer.first_chunk().map(Grh::parse).expect("40 bytes");
            let grh = grh.expect("a GRH");
            assert_eq!(grh.source, recorded.source);
            assert_eq!(grh.destination, recorded.destination);
        }
    }
}

/// `udaddy` answers from the buffer it received into, so its answers show what the kernel had put there.
#[test]
fn our_buffer_looks_like_the_kernels() {
    let recorded = data("wire-udaddy.pcap");
    let mut compared = 0;
    for (n, answer) in recorded.iter().enumerate() {
        let kernels = parse(answer).payload;
        let Some(request) = recorded[..n].iter().rev().find(|request| {
            request.destination == answer.source
                && parse(request).bth.dest_qpn == parse(answer).deth.expect("a DETH").src_qpn
        }) else {
            continue;
        };
        if kernels
            .first_chunk()
            .map(Grh::parse)
            .is_none_or(|grh| grh.is_err())
        {
            continue;
        }
        let ours = received(request);
        // All but the identification, which a receiver of UDP cannot see, and the checksum, which covers it.
        for kept in [0..24, 26..30, 32..kernels.len()] {
            assert_eq!(ours[kept.clone()], kernels[kept.clone()], "{kept:?}");
        }
        compared += 1;
    }
    assert_eq!(compared, 4);
}
