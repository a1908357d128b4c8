//! A datagram queue pair under any packets, work requests, keys and changes of state: nothing panics, memory is never left, what a
//! receive gets fits it and begins with the GRH, and each work request completes exactly once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use oarlock_transport::{
    AttrMask, Counter, Memory, MemoryError, PacketBuf, QpAttr, QpState, RecvWr, SendData, SendOp,
    SendWr, Sge, Ud, UdConfig, UdDestination, WcStatus,
};
use oarlock_wire::units::{AddressVector, Gid, Mtu, Psn, QKey, Qpn};
use oarlock_wire::{Grh, Packet};

const KEY: QKey = QKey(0x0111_1111);
const OWN: u32 = 0x0001_0011;

/// Where bytes may be placed and taken from, and whether that works at the moment.
struct Bytes {
    works: bool,
    placed: u64,
}

impl Bytes {
    fn check(&self, sges: &[Sge], offset: u64, len: usize) -> Result<(), MemoryError> {
        let all: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
        assert!(offset + len as u64 <= all, "the engine leaves the buffers");
        if self.works {
            Ok(())
        } else {
            Err(MemoryError::Unmapped { addr: 0, len: 1 })
        }
    }
}

impl Memory for Bytes {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.check(sges, offset, data.len())?;
        if offset == 0 {
            let grh = data.try_into().map(Grh::parse).expect("first the GRH");
            assert!(grh.is_ok(), "a GRH can be read");
        }
        self.placed = offset + data.len() as u64;
        Ok(())
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.check(sges, offset, out.len())?;
        out.fill(0x5a);
        Ok(())
    }
}

fn walk(ud: &mut Ud) {
    let attr = QpAttr {
        qkey: KEY,
        sq_psn: Psn::truncate(0xff_fffe),
        ..QpAttr::default()
    };
    let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    for (state, mask) in [
        (QpState::Init, init),
        (QpState::Rtr, AttrMask::empty()),
        (QpState::Rts, AttrMask::SQ_PSN),
    ] {
        let mask = mask | AttrMask::STATE;
        ud.modify(&QpAttr {
            state,
            mask,
            ..attr
        })
        .expect("a recipe that holds");
    }
}

/// Polls what has completed; gives the number.
fn poll(ud: &mut Ud, memory: &Bytes) -> u64 {
    let mut completed = 0;
    while let Some(completion) = ud.poll_completion() {
        completed += 1;
        if !completion.is_send && completion.status == WcStatus::SUCCESS {
            assert!(completion.has_grh);
            assert_eq!(u64::from(completion.byte_len), memory.placed);
        }
    }
    completed
}

fuzz_target!(|data: &[u8]| {
    let gid = |n| Gid::from_ip(std::net::IpAddr::from([10, 0, 0, n]));
    let group = Gid::from_ip(std::net::IpAddr::from([239, 1, 2, 3]));
    let mut ud = Ud::new(UdConfig {
        qpn: Qpn::truncate(OWN),
        max_send_wr: 8,
        max_recv_wr: 8,
        sq_sig_all: true,
        mtu: Mtu::MTU_256,
        ..UdConfig::default()
    });
    walk(&mut ud);
    let mut memory = Bytes {
        works: true,
        placed: 0,
    };
    let mut out: PacketBuf = [0; size_of::<PacketBuf>()];
    let (mut posted, mut completed, mut sent) = (0u64, 0u64, 0u64);
    let mut rest = data;
    while let Some((&op, tail)) = rest.split_first() {
        rest = tail;
        let sge = [Sge {
            addr: 0,
            len: u32::from(op) * 2,
            ..Sge::default()
        }];
        memory.works = true;
        match op % 8 {
            0 | 1 => {
                let wr = RecvWr {
                    wr_id: posted,
                    sges: &sge,
                };
                posted += u64::from(ud.post_recv(&wr).is_ok());
            }
            2 => {
                let to_group = op & 0x80 != 0;
                memory.works = op & 0x78 != 0x78;
                let wr = SendWr {
                    wr_id: posted,
                    op: SendOp::SendWithImm(7),
                    data: SendData::Sges(&sge),
                    ud: Some(UdDestination {
                        av: AddressVector::new(gid(1), if to_group { group } else { gid(2) }),
                        remote_qpn: if op & 0x40 != 0 {
                            Qpn::MULTICAST
                        } else {
                            Qpn::QP1
                        },
                        remote_qkey: QKey(u32::from(op) << 24),
                    }),
                    ..SendWr::default()
                };
                posted += u64::from(ud.post_send(&wr).is_ok());
            }
            3 => {
                // Attributes towards any state; whatever is refused changes nothing.
                let before = (ud.state(), ud.query());
                let states = [
                    QpState::Init,
                    QpState::Rtr,
                    QpState::Rts,
                    QpState::Sqd,
                    QpState::Sqe,
                    QpState::Error,
                ];
                let more = match op >> 6 {
                    0 => AttrMask::empty(),
                    1 => AttrMask::QKEY,
                    2 => AttrMask::SQ_PSN,
                    _ => AttrMask::from_bits_retain(u32::from(op) << 13),
                };
                let attr = QpAttr {
                    mask: AttrMask::STATE | more,
                    state: states[usize::from(op >> 3) % states.len()],
                    qkey: KEY,
                    ..QpAttr::default()
                };
                if ud.modify(&attr).is_err() {
                    assert_eq!(before, (ud.state(), ud.query()));
                }
            }
            4 if ud.state() == QpState::Error => {
                completed += poll(&mut ud, &memory);
                assert_eq!(completed, posted, "everything is flushed");
                ud.modify(&QpAttr::to_state(QpState::Reset))
                    .expect("allowed from any state");
                walk(&mut ud);
            }
            _ => {
                let (len, tail) = rest
                    .split_first()
                    .map_or((0, rest), |(&n, t)| (usize::from(n) * 2, t));
                let (packet, tail) = tail.split_at(len.min(tail.len()));
                rest = tail;
                let mut packet = packet.to_vec();
                memory.works = op & 0xf8 != 0xf8;
                let to_group = op & 0x08 != 0;
                // Most packets have the right numbers and keys, so that the checks behind are reached.
                if packet.len() >= 20 && packet[1] & 1 == 0 {
                    packet[0] = 0x64 | (packet[0] & 1);
                    packet[1] &= 0xf0;
                    packet[2..4].copy_from_slice(&[0xff, 0xff]);
                    let dest = if to_group { Qpn::MULTICAST.get() } else { OWN };
                    packet[5..8].copy_from_slice(&dest.to_be_bytes()[1..]);
                    packet[12..16].copy_from_slice(&KEY.get().to_be_bytes());
                }
                let from = AddressVector::new(if to_group { group } else { gid(1) }, gid(2));
                let received = ud.counters().get(Counter::DatagramsReceived);
                ud.handle_datagram(&from, &packet, &mut memory);
                if ud.counters().get(Counter::DatagramsReceived) > received {
                    let packet = Packet::parse(&packet).expect("what was received is a packet");
                    assert_eq!(memory.placed, (Grh::LEN + packet.payload.len()) as u64);
                }
                completed += poll(&mut ud, &memory);
            }
        }
        while let Some(transmit) = ud.poll_transmit(&mut memory, &mut out) {
            sent += 1;
            let packet = Packet::parse(&out[..transmit.len]).expect("what we send can be parsed");
            assert!(packet.payload.len() <= 256);
            assert_eq!(packet.deth.map(|deth| deth.src_qpn.get()), Some(OWN));
            assert_eq!(
                packet.bth.dest_qpn == Qpn::MULTICAST,
                transmit.av.remote == group
            );
        }
        completed += poll(&mut ud, &memory);
    }
    assert_eq!(ud.counters().get(Counter::DatagramsSent), sent);
    ud.modify(&QpAttr::to_state(QpState::Error))
        .expect("allowed from any state");
    assert!(ud.poll_transmit(&mut memory, &mut out).is_none());
    completed += poll(&mut ud, &memory);
    assert_eq!(
        completed, posted,
        "each work request completes exactly once"
    );
});
