//! An unreliable-connected queue pair under any packets, work requests, clock and changes of state: nothing panics, memory is
//! reached only as it was asked for, and each work request completes exactly once.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use oarlock_transport::{
    AccessFlags, AttrMask, BindWindow, Error, HeldReceive, Memory, MemoryError, PacketBuf, QpAttr,
    QpState, RecvWr, RemoteAccess, RemoteAddress, SendData, SendOp, SendWr, Sge, SharedReceive, Uc,
    UcConfig,
};
use oarlock_wire::base::TransportClass;
use oarlock_wire::units::{AddressVector, Gid, Mtu, Psn, Qpn, RKey, Srqn};
use oarlock_wire::{LKey, Opcode, Packet, Time};

const OWN: u32 = 0x0001_0011;
/// Peers reach so many bytes from 0 on, with an even key.
const OFFERED: u64 = 1 << 16;

#[derive(Default)]
struct Bytes {
    fails: bool,
    taken: u64,
    waiting: u64,
    /// The range that was allowed to be written last.
    allowed: (u64, u64),
}

impl Bytes {
    fn local(&self, sges: &[Sge], offset: u64, len: usize) -> Result<(), MemoryError> {
        let all: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
        assert!(offset + len as u64 <= all, "the engine leaves the buffers");
        assert!(len <= 256, "more than a packet");
        if self.fails {
            return Err(MemoryError::Unmapped { addr: 0, len: 1 });
        }
        Ok(())
    }
}

impl Memory for Bytes {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.local(sges, offset, data.len())
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        out.fill(0x5a);
        self.local(sges, offset, out.len())
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        assert!(len > 0, "the key of nothing is not looked at");
        assert_eq!(access, RemoteAccess::Write);
        match addr.checked_add(len) {
            Some(end) if end <= OFFERED && rkey.0 & 1 == 0 => {
                self.allowed = (addr, end);
                Ok(())
            }
            _ => Err(MemoryError::InvalidRemoteKey(rkey)),
        }
    }

    fn write_remote(&mut self, _rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        let (start, end) = self.allowed;
        assert!(
            addr >= start && addr + data.len() as u64 <= end,
            "more is written than was checked"
        );
        if self.fails {
            return Err(MemoryError::Unmapped { addr, len: 1 });
        }
        Ok(())
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        if self.fails {
            return Err(MemoryError::NotInvalidatable(rkey));
        }
        Ok(())
    }

    fn bind(&mut self, bind: &BindWindow) -> Result<(), MemoryError> {
        self.invalidate(bind.window)
    }

    fn take_shared_receive(
        &mut self,
        _srqn: Option<Srqn>,
        into: &mut HeldReceive,
    ) -> SharedReceive {
        if self.waiting == 0 {
            return SharedReceive::Empty;
        }
        self.waiting -= 1;
        self.taken += 1;
        into.sges.clear();
        into.sges.push(Sge {
            len: 700,
            ..Sge::default()
        });
        SharedReceive::Taken
    }
}

fn connect(uc: &mut Uc) {
    use AttrMask as M;
    let gid = |n| Gid::from_ip(std::net::IpAddr::from([10, 0, 0, n]));
    let attr = QpAttr {
        av: AddressVector::new(gid(1), gid(2)),
        access: AccessFlags::REMOTE_WRITE,
        path_mtu: Mtu::MTU_256,
        dest_qpn: Qpn::truncate(0x0002_0022),
        rq_psn: Psn::truncate(0xff_fffe),
        sq_psn: Psn::truncate(0xff_fff0),
        ..QpAttr::default()
    };
    for (state, mask) in [
        (QpState::Init, M::ACCESS_FLAGS | M::PKEY_INDEX | M::PORT),
        (QpState::Rtr, M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN),
        (QpState::Rts, M::SQ_PSN),
    ] {
        uc.modify(&QpAttr {
            state,
            mask: mask | M::STATE,
            ..attr
        })
        .expect("a recipe that holds");
    }
}

fn operation(kind: u8, value: u8) -> SendOp {
    let remote = RemoteAddress {
        addr: u64::from(value),
        rkey: RKey(2),
    };
    match kind % 6 {
        0 => SendOp::Send,
        1 => SendOp::SendWithImm(7),
        2 => SendOp::Write(remote),
        3 => SendOp::WriteWithImm(remote, 9),
        4 => SendOp::LocalInvalidate(RKey(2)),
        _ => SendOp::BindWindow(BindWindow {
            window: RKey(2),
            rkey: RKey(2),
            region: LKey(1),
            addr: 0,
            len: 8,
            access: AccessFlags::REMOTE_WRITE,
        }),
    }
}

/// Most packets are addressed well and near the expected PSNs, so that the checks behind are reached.
fn address(packet: &mut [u8]) {
    if packet.len() < 12 || packet[1] & 1 != 0 {
        return;
    }
    packet[0] = Opcode(packet[0] % 12).of(TransportClass::Uc).0;
    packet[1] &= 0xf0;
    packet[2..4].copy_from_slice(&[0xff, 0xff]);
    packet[5..8].copy_from_slice(&OWN.to_be_bytes()[1..]);
    let psn = (0xff_fffe + u32::from(packet[11] & 15)) & 0xff_ffff;
    packet[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    if matches!(packet[0] & 0x1f, 0x06 | 0x0a | 0x0b) && packet.len() >= 28 && packet[12] & 3 != 0 {
        packet[12..18].fill(0);
        packet[23] &= 0xfe;
        packet[24..26].fill(0);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let mut uc = Uc::new(UcConfig {
        qpn: Qpn::truncate(OWN),
        max_send_wr: 8,
        max_recv_wr: 8,
        sq_sig_all: true,
        shared_receives: first & 1 != 0,
        burst: 1 + u32::from(first >> 4),
        ..UcConfig::default()
    });
    connect(&mut uc);
    let mut memory = Bytes::default();
    let mut out: PacketBuf = [0; size_of::<PacketBuf>()];
    let gid = |n| Gid::from_ip(std::net::IpAddr::from([10, 0, 0, n]));
    let from = AddressVector::new(gid(1), gid(2));
    let (mut now, mut posted, mut completed) = (Time::ZERO, 0u64, 0u64);
    let mut rest = data;
    while let Some((&op, tail)) = rest.split_first() {
        rest = tail;
        let sge = [Sge {
            addr: 0,
            len: u32::from(op) * 8,
            ..Sge::default()
        }];
        match op % 8 {
            0 => {
                memory.waiting += 1;
                let wr = RecvWr {
                    wr_id: posted,
                    sges: &sge,
                };
                posted += u64::from(uc.post_recv(&wr).is_ok());
            }
            1 => {
                let (&value, tail) = rest.split_first().unwrap_or((&0, rest));
                rest = tail;
                let operation = operation(op >> 3, value);
                let is_local = matches!(
                    operation,
                    SendOp::LocalInvalidate(_) | SendOp::BindWindow(_)
                );
                let wr = SendWr {
                    wr_id: posted,
                    op: operation,
                    data: SendData::Sges(if is_local { &[] } else { &sge }),
                    ..SendWr::default()
                };
                match uc.post_send(&wr) {
                    Ok(()) => posted += 1,
                    Err(Error::QueueFull { .. } | Error::WrongState { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            2 => {
                now = now + Duration::from_micros(u64::from(op));
                uc.handle_timeout(now);
            }
            3 if op & 0xe0 == 0xe0 => memory.fails ^= true,
            3 if op & 0x80 == 0 => {
                let states = [QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Error];
                let before = uc.state();
                let attr = QpAttr::to_state(states[usize::from(op >> 4) % states.len()]);
                if uc.modify(&attr).is_err() {
                    assert_eq!(uc.state(), before);
                }
            }
            3 if uc.state() == QpState::Error => {
                while uc.poll_completion().is_some() {
                    completed += 1;
                }
                assert_eq!(completed, posted + memory.taken, "everything is flushed");
                uc.modify(&QpAttr::to_state(QpState::Reset))
                    .expect("allowed from any state");
                connect(&mut uc);
            }
            _ => {
                let (len, tail) = rest
                    .split_first()
                    .map_or((0, rest), |(&n, t)| (usize::from(n) * 2, t));
                let (packet, tail) = tail.split_at(len.min(tail.len()));
                rest = tail;
                let mut packet = packet.to_vec();
                address(&mut packet);
                uc.handle_datagram(now, &from, &packet, &mut memory);
            }
        }
        while let Some(sent) = uc.poll_transmit(now, &mut memory, &mut out) {
            let packet = Packet::parse(&out[..sent.len]).expect("what we send can be parsed");
            assert_eq!(packet.bth.opcode.transport(), TransportClass::Uc);
            assert!(packet.payload.len() <= 256);
            assert!(!packet.bth.ack_request, "nobody acknowledges");
        }
        while let Some(completion) = uc.poll_completion() {
            completed += 1;
            let failed = !completion.status.is_success();
            assert_eq!(failed, completion.vendor_err.0 != 0, "{completion:?}");
        }
        while uc.poll_event().is_some() {}
    }
    uc.modify(&QpAttr::to_state(QpState::Error))
        .expect("allowed from any state");
    assert!(uc.poll_transmit(now, &mut memory, &mut out).is_none());
    while uc.poll_completion().is_some() {
        completed += 1;
    }
    assert_eq!(
        completed,
        posted + memory.taken,
        "each work request completes exactly once"
    );
});
