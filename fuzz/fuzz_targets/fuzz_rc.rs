//! A reliable queue pair of any kind (RC, XRC initiator, XRC target; own or shared receives) under any packets, work requests and
//! clock: nothing panics, memory is reached only as it was asked for, every packet sent can be parsed, and after the error state
//! every work request has completed exactly once.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use oarlock_transport::{
    AccessFlags, AtomicOp, AttrMask, BindWindow, Completion, Error, HeldReceive, Memory,
    MemoryError, PacketBuf, QpAttr, QpState, Rc, RcConfig, RcKind, RecvWr, RemoteAccess,
    RemoteAddress, SendData, SendOp, SendWr, Sge, SharedReceive,
};
use oarlock_wire::base::TransportClass;
use oarlock_wire::units::{AddressVector, Gid, IbTimeout, Mtu, Psn, Qpn, RKey, RetryCount, Srqn};
use oarlock_wire::{Opcode, Packet, Time};

const OWN: u32 = 0x0001_0011;
const SRQN: u32 = 5;
/// Peers reach so many bytes from 0 on, with an even key.
const OFFERED: u64 = 1 << 16;

/// Memory that counts what it gave away.
#[derive(Default)]
struct Bytes {
    fails: bool,
    /// Buffers of the shared receive queue that were taken.
    taken: u64,
    waiting: u64,
    atomics: u64,
}

impl Bytes {
    fn local(&self, sges: &[Sge], offset: u64, len: usize) -> Result<(), MemoryError> {
        let all: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
        assert!(offset + len as u64 <= all, "the engine leaves the buffers");
        assert!(len <= 256, "more than a packet");
        self.answer(())
    }

    fn answer<T>(&self, value: T) -> Result<T, MemoryError> {
        if self.fails {
            Err(MemoryError::Unmapped { addr: 0, len: 1 })
        } else {
            Ok(value)
        }
    }

    fn remote(&self, rkey: RKey, addr: u64, len: u64) -> Result<(), MemoryError> {
        if rkey.0 & 1 == 1 {
            return Err(MemoryError::InvalidRemoteKey(rkey));
        }
        match addr.checked_add(len) {
            Some(end) if end <= OFFERED => Ok(()),
            _ => Err(MemoryError::OutOfBounds { addr, len }),
        }
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
        _access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        assert!(len > 0, "the key of nothing is not looked at");
        self.remote(rkey, addr, len)
    }

    fn write_remote(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        assert!(data.len() <= 256, "more than a packet");
        self.remote(rkey, addr, data.len() as u64)?;
        self.answer(())
    }

    fn read_remote(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        assert!(out.len() <= 256, "more than a packet");
        out.fill(0xa5);
        self.remote(rkey, addr, out.len() as u64)?;
        self.answer(())
    }

    fn atomic(&mut self, rkey: RKey, addr: u64, _op: AtomicOp) -> Result<u64, MemoryError> {
        assert!(addr.is_multiple_of(8));
        self.remote(rkey, addr, 8)?;
        self.answer(())?;
        self.atomics += 1;
        Ok(self.atomics)
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        self.remote(rkey, 0, 0)
    }

    fn bind(&mut self, bind: &BindWindow) -> Result<(), MemoryError> {
        self.remote(bind.window, 0, 0)
    }

    fn select_shared(&mut self, srqn: Srqn) -> bool {
        srqn.get() == SRQN
    }

    fn take_shared_receive(&mut self, srqn: Option<Srqn>, into: &mut HeldReceive) -> SharedReceive {
        if srqn.is_some_and(|srqn| srqn.get() != SRQN) {
            return SharedReceive::NoSuchQueue;
        }
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

fn connect(rc: &mut Rc, attr: &QpAttr) {
    use AttrMask as M;
    let kind = rc.config().kind;
    let mut rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    if kind != RcKind::XrcInitiator {
        rtr |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    }
    let mut rts = M::SQ_PSN | M::TIMEOUT;
    if kind != RcKind::XrcTarget {
        rts |= M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    }
    let init = M::ACCESS_FLAGS | M::PKEY_INDEX | M::PORT;
    for (state, mask) in [
        (QpState::Init, init),
        (QpState::Rtr, rtr),
        (QpState::Rts, rts),
    ] {
        rc.modify(&QpAttr {
            state,
            mask: mask | M::STATE,
            ..*attr
        })
        .expect("a recipe that holds");
    }
}

/// A work request of the kind that two bytes choose.
fn operation(kind: u8, value: u8) -> SendOp {
    let remote = RemoteAddress {
        addr: u64::from(value) * 8,
        rkey: RKey(u32::from(value >> 7)),
    };
    match kind % 10 {
        0 => SendOp::Send,
        1 => SendOp::SendWithImm(7),
        2 => SendOp::SendWithInvalidate(RKey(2)),
        3 => SendOp::Write(remote),
        4 => SendOp::WriteWithImm(remote, 9),
        5 => SendOp::Read(remote),
        6 => SendOp::CompareSwap {
            remote,
            compare: 1,
            swap: 2,
        },
        7 => SendOp::FetchAdd { remote, add: 1 },
        8 => SendOp::LocalInvalidate(remote.rkey),
        _ => SendOp::BindWindow(BindWindow {
            window: remote.rkey,
            rkey: remote.rkey,
            region: oarlock_wire::LKey(1),
            addr: 0,
            len: 8,
            access: AccessFlags::REMOTE_READ,
        }),
    }
}

/// Most packets are addressed well, of an opcode that exists, and near the expected PSNs: so the checks behind are reached.
fn address(packet: &mut [u8], class: TransportClass) {
    if packet.len() < 12 || packet[1] & 1 != 0 {
        return;
    }
    packet[0] = Opcode(packet[0] % 0x18).of(class).0;
    packet[1] &= 0xf0;
    packet[2..4].copy_from_slice(&[0xff, 0xff]);
    packet[5..8].copy_from_slice(&OWN.to_be_bytes()[1..]);
    let is_response = (0x0d..=0x12).contains(&(packet[0] & 0x1f));
    let near = if is_response { 0xff_fff0 } else { 0xff_fffe };
    let psn = (near + u32::from(packet[11] & 15)) & 0xff_ffff;
    packet[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    let has_srq = class == TransportClass::Xrc && !is_response;
    if has_srq && packet.len() >= 16 && packet[12] & 3 != 0 {
        packet[12..16].copy_from_slice(&SRQN.to_be_bytes());
    }
    // An address and a key that mostly fit: RETH and AtomicETH begin with both.
    let at = if has_srq { 16 } else { 12 };
    if matches!(packet[0] & 0x1f, 0x06 | 0x0a..=0x0c | 0x13 | 0x14)
        && packet.len() >= at + 16
        && packet[at] & 3 != 0
    {
        packet[at..at + 6].fill(0);
        packet[at + 7] &= 0xf8;
        packet[at + 11] &= 0xfe;
        packet[at + 12..at + 14].fill(0);
    }
}

/// The rules of a completion; gives 1.
fn check(completion: &Completion) -> u64 {
    let failed = !completion.status.is_success();
    assert_eq!(failed, completion.vendor_err.0 != 0, "{completion:?}");
    1
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let gid = |n| Gid::from_ip(std::net::IpAddr::from([10, 0, 0, n]));
    let (kind, class) = match first % 4 {
        0 | 1 => (RcKind::Rc, TransportClass::Rc),
        2 => (RcKind::XrcInitiator, TransportClass::Xrc),
        _ => (RcKind::XrcTarget, TransportClass::Xrc),
    };
    let is_shared = first & 4 != 0;
    let mut rc = Rc::new(RcConfig {
        kind,
        qpn: Qpn::truncate(OWN),
        max_send_wr: 16,
        max_recv_wr: 16,
        sq_sig_all: true,
        shared_receives: is_shared,
        flow_control: first & 8 != 0,
        window: 1 + u32::from(first >> 4),
        read_window: 1 + u32::from(first >> 3),
        ..RcConfig::default()
    });
    let attr = QpAttr {
        av: AddressVector::new(gid(1), gid(2)),
        access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC,
        path_mtu: Mtu::MTU_256,
        dest_qpn: Qpn::truncate(0x0002_0022),
        rq_psn: Psn::truncate(0xff_fffe),
        sq_psn: Psn::truncate(0xff_fff0),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        timeout: IbTimeout::truncate(14),
        retry_count: RetryCount::truncate(3),
        rnr_retry: RetryCount::truncate(3),
        ..QpAttr::default()
    };
    connect(&mut rc, &attr);
    let mut memory = Bytes::default();
    let mut out: PacketBuf = [0; size_of::<PacketBuf>()];
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
                posted += u64::from(rc.post_recv(&wr).is_ok());
            }
            1 | 2 => {
                let (&value, tail) = rest.split_first().unwrap_or((&0, rest));
                rest = tail;
                let operation = operation(op >> 3, value);
                let is_atomic = matches!(
                    operation,
                    SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
                );
                let is_local = matches!(
                    operation,
                    SendOp::LocalInvalidate(_) | SendOp::BindWindow(_)
                );
                let length = if is_atomic { 8 } else { u32::from(value) * 16 };
                let sge = [Sge {
                    len: length,
                    ..sge[0]
                }];
                let wr = SendWr {
                    wr_id: posted,
                    op: operation,
                    data: SendData::Sges(if is_local { &[] } else { &sge }),
                    fence: op & 0x80 != 0,
                    xrc_srqn: (kind == RcKind::XrcInitiator && !is_local)
                        .then(|| Srqn::truncate(SRQN)),
                    ..SendWr::default()
                };
                match rc.post_send(&wr) {
                    Ok(()) => posted += 1,
                    Err(Error::QueueFull { .. } | Error::WrongState { .. }) => {}
                    Err(other) => assert_eq!(kind, RcKind::XrcTarget, "{other}"),
                }
            }
            3 => {
                now = now + Duration::from_millis(u64::from(op));
                rc.handle_timeout(now);
            }
            4 if op & 0xf0 == 0xf0 => memory.fails ^= true,
            4 if op & 0x80 == 0 && kind != RcKind::XrcTarget => {
                // Whatever is refused changes nothing.
                let state = if op & 0x40 == 0 {
                    QpState::Sqd
                } else {
                    QpState::Rts
                };
                let before = rc.state();
                if rc.modify(&QpAttr::to_state(state)).is_err() {
                    assert_eq!(rc.state(), before);
                }
            }
            _ => {
                let (len, tail) = rest
                    .split_first()
                    .map_or((0, rest), |(&n, t)| (usize::from(n) * 2, t));
                let (packet, tail) = tail.split_at(len.min(tail.len()));
                rest = tail;
                let mut packet = packet.to_vec();
                address(&mut packet, class);
                rc.handle_datagram(now, &from, &packet, &mut memory);
            }
        }
        for _ in 0..256 {
            let Some(sent) = rc.poll_transmit(now, &mut memory, &mut out) else {
                break;
            };
            let packet = Packet::parse(&out[..sent.len]).expect("what we send can be parsed");
            assert_eq!(packet.bth.opcode.transport(), class);
            assert!(packet.payload.len() <= 256);
        }
        while let Some(completion) = rc.poll_completion() {
            completed += check(&completion);
        }
        while rc.poll_event().is_some() {}
    }
    rc.modify(&QpAttr::to_state(QpState::Error))
        .expect("allowed from any state");
    // At most so many READs wait, each of at most the memory that is offered.
    let mut last = 0;
    while rc.poll_transmit(now, &mut memory, &mut out).is_some() {
        last += 1;
        assert!(last < 100_000, "an error state that never falls silent");
    }
    while let Some(completion) = rc.poll_completion() {
        completed += check(&completion);
    }
    assert_eq!(
        completed,
        posted + memory.taken,
        "each work request completes exactly once"
    );
});
