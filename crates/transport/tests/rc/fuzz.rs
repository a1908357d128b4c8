//! Nothing that arrives makes a queue pair panic, complete what was not posted, or speak without end.

use oarlock_sim::{Rng, for_each_seed};
use oarlock_transport::{MAX_PACKET_LEN, QpAttr, QpState, RcConfig, RecvWr, SendData, SendWr};
use oarlock_wire::{AddressVector, Bth, Mtu, Opcode, PKey, Psn, Qpn, Time};

use crate::memory::VecMemory;
use crate::pair::{A, Setup, gid, qpn, to_state};

/// A packet that passes the first checks more often than not: right addresses, a PSN near one that matters, any opcode.
fn plausible(rng: &mut Rng, near: [Psn; 2]) -> Vec<u8> {
    let opcodes = [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x11, 0x11, 0x11];
    let opcode = if rng.chance(0.97) {
        opcodes[rng.index(opcodes.len())]
    } else {
        rng.below(256) as u8
    };
    let base = near[rng.index(2)];
    let psn = if rng.chance(0.7) {
        base.add(rng.below(4) as u32)
    } else {
        base.sub(rng.below(5) as u32)
    };
    let bth = Bth {
        solicited: rng.chance(0.5),
        ack_request: rng.chance(0.5),
        pad: if rng.chance(0.9) {
            0
        } else {
            rng.below(4) as u8
        },
        pkey: if rng.chance(0.99) {
            PKey::DEFAULT
        } else {
            PKey(rng.next_u64() as u16)
        },
        ..Bth::new(
            Opcode(opcode),
            if rng.chance(0.99) {
                qpn(0x11)
            } else {
                Qpn::truncate(rng.next_u64() as u32)
            },
            psn,
        )
    };
    let mut header = [0; Bth::LEN];
    bth.emit(&mut header);
    let mut bytes = header.to_vec();
    let mut body = vec![0; [0, 1, 4, 8, 64, 256, 256, 256, 257, 300][rng.index(10)]];
    rng.fill(&mut body);
    if opcode == 0x11 && rng.chance(0.9) {
        let syndromes = [
            0x1F, 0x1F, 0x1F, 0x1F, 0x20, 0x2C, 0x60, 0x60, 0x61, 0x63, 0x45,
        ];
        body = vec![syndromes[rng.index(syndromes.len())], 0, 0, 0];
    }
    bytes.extend(body);
    bytes
}

struct Fuzzed {
    posted: [u64; 2],
    completed: [u64; 2],
}

fn storm(seed: u64) {
    let mut rng = Rng::new(seed);
    let config = RcConfig {
        max_send_wr: 8,
        max_recv_wr: 8,
        window: 1 + rng.below(8) as u32,
        ..RcConfig::default()
    };
    let setup = Setup {
        mtu: Mtu::MTU_256,
        psn_a: 0xFF_FFFA,
        psn_b: 0xFF_FFFE,
        config,
        ..Setup::default()
    };
    let mut rc = setup.rc(A);
    let mut memory = VecMemory::new(4096);
    let sge = memory.alloc(700);
    let from = AddressVector::new(gid(1), gid(2));
    let mut now = Time::ZERO;
    let mut out = [0; MAX_PACKET_LEN];
    let mut counts = Fuzzed {
        posted: [0; 2],
        completed: [0; 2],
    };
    for _ in 0..600 {
        match rng.below(20) {
            0 => {
                let state = [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Rts][rng.index(4)];
                if rc.state() == QpState::Reset {
                    to_state(&mut rc, &setup.attr(A), state);
                } else if rc.state() == QpState::Error || rng.chance(0.02) {
                    rc.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
                    counts = Fuzzed {
                        posted: [0; 2],
                        completed: [0; 2],
                    };
                }
            }
            1..=3 => {
                let sges = [sge];
                let data = if rng.chance(0.5) {
                    SendData::Sges(&sges)
                } else {
                    SendData::Inline(b"inline")
                };
                let wr = SendWr {
                    data,
                    ..SendWr::default()
                };
                counts.posted[0] += u64::from(rc.post_send(&wr).is_ok());
            }
            4..=6 => {
                let wr = RecvWr {
                    wr_id: 0,
                    sges: &[sge],
                };
                counts.posted[1] += u64::from(rc.post_recv(&wr).is_ok());
            }
            7 => {
                now = rc.poll_timeout().unwrap_or(now).max(now);
                rc.handle_timeout(now);
            }
            8 => {
                let mut bytes = vec![0; rng.index(400)];
                rng.fill(&mut bytes);
                rc.handle_datagram(now, &from, &bytes, &mut memory);
            }
            _ => {
                let query = rc.query();
                let bytes = plausible(&mut rng, [query.rq_psn, query.sq_psn.sub(3)]);
                rc.handle_datagram(now, &from, &bytes, &mut memory);
            }
        }
        if rng.chance(0.7) {
            let mut packets = 0;
            while rc.poll_transmit(now, &mut memory, &mut out).is_some() {
                packets += 1;
                assert!(packets <= 16 + 8, "speaks without end");
            }
            while let Some(completion) = rc.poll_completion() {
                counts.completed[usize::from(!completion.is_send)] += 1;
            }
            while rc.poll_event().is_some() {}
        }
        for queue in 0..2 {
            assert!(
                counts.completed[queue] <= counts.posted[queue],
                "completes what was not posted"
            );
        }
    }
    if rc.state() != QpState::Reset {
        rc.modify(&QpAttr::to_state(QpState::Error)).unwrap();
        while rc.poll_transmit(now, &mut memory, &mut out).is_some() {}
        while let Some(completion) = rc.poll_completion() {
            counts.completed[usize::from(!completion.is_send)] += 1;
        }
        assert_eq!(
            counts.completed, counts.posted,
            "every request completes once"
        );
    }
}

#[test]
fn random_and_forged_packets_change_no_promise() {
    for_each_seed(1500, storm);
}
