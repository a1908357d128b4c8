//! Any packets and work requests, in any order: nothing panics, each accepted request completes once and in the order of its
//! queue, and what a receive gets is a message that was sent to it.

use std::collections::VecDeque;

use oarlock_sim::{Rng, for_each_seed};
use oarlock_transport::{
    AttrMask, Counter, Error, QpAttr, QpState, RecvWr, SendData, SendWr, Sge, UdConfig,
    UdDestination, WcStatus,
};
use oarlock_wire::{AddressVector, Grh, Mtu, Qpn};

use crate::support::{Host, KEY, RTS, Sent, attr, gid, group, qpn, to_state};

const HOSTS: usize = 3;

/// What is outstanding at one host.
#[derive(Default)]
struct Outstanding {
    /// Numbers of sends, and whether they complete when they succeed.
    sends: VecDeque<(u64, bool)>,
    /// Numbers of receives with their buffers.
    receives: VecDeque<(u64, Sge)>,
    delivered: usize,
}

struct World {
    rng: Rng,
    hosts: Vec<Host>,
    outstanding: Vec<Outstanding>,
    /// Packets on their way.
    network: Vec<Sent>,
    /// Every message that was sent; a message is unlike all others, or empty.
    messages: Vec<Vec<u8>>,
    numbers: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let host = |n: usize| {
            let config = UdConfig {
                qpn: qpn(n as u32 + 1),
                max_send_wr: 4,
                max_recv_wr: 4,
                mtu: Mtu::MTU_256,
                ..UdConfig::default()
            };
            Host::with(config, QpState::Rts)
        };
        Self {
            rng: Rng::new(seed),
            hosts: (0..HOSTS).map(host).collect(),
            outstanding: (0..HOSTS).map(|_| Outstanding::default()).collect(),
            network: Vec::new(),
            messages: Vec::new(),
            numbers: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn step(&mut self) {
        let n = self.rng.index(HOSTS);
        match self.rng.below(10) {
            0..=2 => self.send(n),
            3..=5 => self.receive(n),
            6..=8 => self.deliver(),
            _ => self.recover(n),
        }
        self.drain(n);
    }

    fn send(&mut self, n: usize) {
        let number = self.number();
        let len = self.rng.index(260);
        let message: Vec<u8> = (0..len).map(|i| (number as usize + i * 3) as u8).collect();
        let to_group = self.rng.chance(0.3);
        let peer = self.rng.index(HOSTS) as u8 + 1;
        let to = UdDestination {
            av: AddressVector::new(gid(n as u8 + 1), if to_group { group() } else { gid(peer) }),
            remote_qpn: if to_group {
                Qpn::MULTICAST
            } else {
                qpn(peer.into())
            },
            remote_qkey: KEY,
        };
        let signaled = self.rng.chance(0.8);
        let host = &mut self.hosts[n];
        let sge = host.memory.store(&message);
        if self.rng.chance(0.05) {
            host.memory.vanish(sge);
        }
        let posted = host.ud.post_send(&SendWr {
            wr_id: number,
            data: SendData::Sges(&[sge]),
            signaled,
            ud: Some(to),
            ..SendWr::default()
        });
        match posted {
            Ok(()) => {
                self.outstanding[n].sends.push_back((number, signaled));
                self.messages.push(message);
            }
            Err(Error::DatagramTooLong { given, .. }) => assert!(given > 256 && len > 256),
            Err(Error::QueueFull { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn receive(&mut self, n: usize) {
        let number = self.number();
        let room = if self.rng.chance(0.95) {
            Grh::LEN + 256
        } else {
            self.rng.index(300)
        };
        let host = &mut self.hosts[n];
        let sge = host.memory.alloc(room);
        let wr = RecvWr {
            wr_id: number,
            sges: &[sge],
        };
        match host.ud.post_recv(&wr) {
            Ok(()) => self.outstanding[n].receives.push_back((number, sge)),
            Err(error) => assert!(matches!(error, Error::QueueFull { .. }), "{error}"),
        }
    }

    /// One packet arrives, or is lost, or comes twice, or is damaged.
    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let at = self.rng.index(self.network.len());
        let mut packet = if self.rng.chance(0.2) {
            self.network[at].clone()
        } else {
            self.network.swap_remove(at)
        };
        if self.rng.chance(0.1) {
            return;
        }
        if self.rng.chance(0.1) {
            // P_Key, numbers and keys. Opcode and padding stay: they say how long the message is.
            let byte = 2 + self.rng.index(18);
            packet.bytes[byte] ^= 1 << self.rng.below(8);
        }
        for n in 0..HOSTS {
            if packet.av.remote == group() || packet.av.remote == gid(n as u8 + 1) {
                self.hosts[n].take(&packet);
                self.drain(n);
            }
        }
    }

    /// A queue pair whose sends have failed goes on; one in error starts again.
    fn recover(&mut self, n: usize) {
        let ud = &mut self.hosts[n].ud;
        match ud.state() {
            QpState::Sqe => {
                let mask = AttrMask::STATE;
                ud.modify(&QpAttr {
                    mask,
                    state: QpState::Rts,
                    ..QpAttr::default()
                })
                .expect("SQE leads to RTS");
            }
            QpState::Error => {
                assert!(self.outstanding[n].receives.is_empty(), "all flushed");
                ud.modify(&QpAttr::to_state(QpState::Reset)).expect("any");
                to_state(ud, &attr(), QpState::Rts);
            }
            QpState::Rts => {
                let mask = RTS - AttrMask::SQ_PSN;
                let again = QpAttr {
                    mask,
                    state: QpState::Rts,
                    ..attr()
                };
                ud.modify(&again).expect("RTS to RTS");
            }
            other => panic!("{other}"),
        }
    }

    fn drain(&mut self, n: usize) {
        let sent = self.hosts[n].sent();
        self.network.extend(sent);
        for completion in self.hosts[n].completions() {
            let outstanding = &mut self.outstanding[n];
            let success = completion.status == WcStatus::SUCCESS;
            if completion.is_send {
                // Unsignalled ones before it succeeded in silence.
                loop {
                    let (number, signaled) = outstanding.sends.pop_front().expect("posted");
                    if number == completion.wr_id {
                        assert!(signaled || !success);
                        break;
                    }
                    assert!(!signaled, "{number} was passed over");
                }
                continue;
            }
            let (number, sge) = outstanding.receives.pop_front().expect("posted");
            assert_eq!(completion.wr_id, number);
            if success {
                outstanding.delivered += 1;
                let all = self.hosts[n].memory.load(sge, completion.byte_len as usize);
                let message = &all[Grh::LEN..];
                assert!(self.messages.iter().any(|sent| sent == message));
            }
        }
    }

    fn finish(mut self) -> usize {
        let mut delivered = 0;
        for n in 0..HOSTS {
            self.drain(n);
            let ud = &mut self.hosts[n].ud;
            ud.modify(&QpAttr::to_state(QpState::Error)).expect("any");
            self.drain(n);
            assert!(self.outstanding[n].receives.is_empty());
            assert!(
                self.outstanding[n]
                    .sends
                    .iter()
                    .all(|(_, signaled)| !signaled)
            );
            let received = self.hosts[n].count(Counter::DatagramsReceived);
            assert_eq!(received as usize, self.outstanding[n].delivered);
            delivered += self.outstanding[n].delivered;
        }
        delivered
    }
}

#[test]
fn every_request_completes_once_and_receives_hold_what_was_sent() {
    let mut delivered = 0;
    for_each_seed(150, |seed| {
        let mut world = World::new(seed);
        for _ in 0..300 {
            world.step();
        }
        delivered += world.finish();
    });
    assert!(delivered > 0);
}
