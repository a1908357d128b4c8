//! What a run does: the setup of a pair, the memory of its hosts, and what a work request is.

use std::ops::Range;
use std::time::Duration;

use oarlock_sim::{NetworkConfig, Rng};
use oarlock_transport::{AccessFlags, SendOp, Sge};
use oarlock_wire::Mtu;

use crate::memory::{BASE, Ram};

/// The kinds of pairs; `*Shared` take receive buffers of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Rc,
    RcShared,
    Xrc,
    Uc,
    UcShared,
    Ud,
    UdShared,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Rc,
        Self::RcShared,
        Self::Xrc,
        Self::Uc,
        Self::UcShared,
        Self::Ud,
        Self::UdShared,
    ];

    pub(crate) const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::RcShared | Self::Xrc)
    }

    pub(crate) const fn is_uc(self) -> bool {
        matches!(self, Self::Uc | Self::UcShared)
    }

    pub(crate) const fn is_ud(self) -> bool {
        matches!(self, Self::Ud | Self::UdShared)
    }

    pub(crate) const fn is_shared(self) -> bool {
        !matches!(self, Self::Rc | Self::Uc | Self::Ud)
    }

    /// The shared receive queues of a host; 0 stands for the queue pair's own queue.
    pub(crate) const fn queues(self) -> &'static [u32] {
        match self {
            Self::Xrc => &[5, 9],
            Self::RcShared | Self::UcShared | Self::UdShared => &[1],
            _ => &[0],
        }
    }

    /// The pair of queue pairs by which host `side` sends.
    pub(crate) const fn link(self, side: usize) -> usize {
        if matches!(self, Self::Xrc) { side } else { 0 }
    }
}

/// What happens to a queue pair out of the blue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kill {
    Error,
    Reset,
}

/// One life of a pair, from connection to connection.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) mtu: Mtu,
    /// First PSN of each side's requests.
    pub(crate) psns: [u32; 2],
    pub(crate) timeout: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd: [u8; 2],
    pub(crate) max_dest_rd: [u8; 2],
    /// What each side's queue pair grants its peer.
    pub(crate) access: [AccessFlags; 2],
    pub(crate) network: NetworkConfig,
    /// Probability that a packet is damaged, which a receiver drops by its ICRC.
    pub(crate) corruption: f64,
    /// A response is mangled, once.
    pub(crate) mangles: bool,
    /// A fault rule asks for RNR NAKs.
    pub(crate) refuses: bool,
    /// Receives are posted late.
    pub(crate) late: bool,
    /// Probability that a work request is wrong.
    pub(crate) flaws: f64,
    /// Work requests of each side.
    pub(crate) count: [usize; 2],
    pub(crate) kill: Option<(usize, usize, Kill)>,
    /// The path is cut for a while at this step.
    pub(crate) cut: Option<usize>,
    /// Probability per step that a send queue is drained.
    pub(crate) drains: f64,
}

impl Setup {
    pub(crate) fn random(rng: &mut Rng, kind: Kind) -> Self {
        let mtu = Mtu(1 + rng.below(5) as u8);
        let near_wrap = |rng: &mut Rng| (0xFF_FFE0 + rng.below(64) as u32) & 0xFF_FFFF;
        let is_perfect = rng.chance(0.4);
        let faults = |rng: &mut Rng| {
            if is_perfect || rng.chance(0.3) {
                0.0
            } else {
                0.02
            }
        };
        let delay = Duration::from_micros(5)..=Duration::from_micros(5 + rng.below(40));
        let reads = |rng: &mut Rng| {
            if rng.chance(0.1) {
                0
            } else {
                1 + rng.below(16) as u8
            }
        };
        let (max_rd, mut max_dest_rd) = ([reads(rng), reads(rng)], [16, 16]);
        if rng.chance(0.5) {
            // What a connection manager agrees on.
            max_dest_rd = [max_rd[1], max_rd[0]];
        } else if rng.chance(0.1) {
            max_dest_rd = [1 + rng.below(2) as u8; 2];
        }
        let all = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        let access = |rng: &mut Rng| {
            if rng.chance(0.9) {
                all
            } else {
                AccessFlags::from_bits_retain(all.bits() & rng.next_u64() as u32)
            }
        };
        Self {
            kind,
            mtu,
            psns: [near_wrap(rng), near_wrap(rng)],
            timeout: 10 + rng.below(5) as u8,
            retry: if rng.chance(0.5) {
                7
            } else {
                rng.below(8) as u8
            },
            rnr_retry: if rng.chance(0.6) {
                7
            } else {
                rng.below(7) as u8
            },
            min_rnr_timer: 1 + rng.below(20) as u8,
            max_rd,
            max_dest_rd,
            access: [access(rng), access(rng)],
            network: NetworkConfig {
                loss: faults(rng),
                duplication: faults(rng),
                reorder: faults(rng),
                delay,
                extra_delay: Duration::from_micros(1)..=Duration::from_millis(2),
            },
            corruption: faults(rng) / 2.0,
            mangles: rng.chance(0.05),
            refuses: rng.chance(0.1),
            late: rng.chance(0.3),
            flaws: if rng.chance(0.5) { 0.0 } else { 0.06 },
            count: [2 + rng.index(20), 2 + rng.index(20)],
            kill: rng.chance(0.15).then(|| {
                let kill = if rng.chance(0.5) {
                    Kill::Error
                } else {
                    Kill::Reset
                };
                (rng.index(60), rng.index(2), kill)
            }),
            cut: rng.chance(0.05).then(|| rng.index(60)),
            drains: if rng.chance(0.2) { 0.1 } else { 0.0 },
        }
    }

    pub(crate) fn mtu_bytes(&self) -> usize {
        usize::from(self.mtu.bytes().expect("an MTU"))
    }

    /// Whether every packet arrives, once and in order.
    pub(crate) fn is_perfect(&self) -> bool {
        let network = &self.network;
        network.loss + network.duplication + network.reorder + self.corruption == 0.0
            && self.cut.is_none()
    }

    /// The longest message.
    pub(crate) fn longest(&self) -> usize {
        if self.kind.is_ud() {
            self.mtu_bytes()
        } else {
            (5 * self.mtu_bytes()).min(9000)
        }
    }
}

/// Memory of a host: what its peer reaches, a hole in it, what it sends from, where results go, where messages arrive.
pub(crate) const REMOTE: Range<usize> = 0..20_000;
pub(crate) const HOLE: Range<usize> = 20_000..24_000;
pub(crate) const SOURCE: Range<usize> = 24_000..34_000;
pub(crate) const RESULT: Range<usize> = 34_000..52_000;
pub(crate) const RECV: Range<usize> = 52_000..400_000;
/// The words of atomic operations, at the beginning of what the peer reaches.
pub(crate) const WORDS: usize = 8;

/// Regions of a host, by key; all but the last are the memory that its peer reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) full: u32,
    pub(crate) read_only: u32,
    pub(crate) write_only: u32,
    pub(crate) private: u32,
    pub(crate) hole: u32,
    pub(crate) local: u32,
    /// May be read by the device, not written.
    pub(crate) constant: u32,
    /// Where the regions begin, as the peer counts.
    pub(crate) iova: u64,
}

impl Keys {
    pub(crate) fn register(ram: &mut Ram, iova: u64) -> Self {
        use AccessFlags as F;
        let rights = F::REMOTE_WRITE | F::REMOTE_READ | F::REMOTE_ATOMIC;
        let mut remote = |access| ram.register(REMOTE.start, REMOTE.len(), iova, access);
        let full = remote(F::LOCAL_WRITE | rights | F::MW_BIND);
        let read_only = remote(F::REMOTE_READ);
        let write_only = remote(F::LOCAL_WRITE | F::REMOTE_WRITE);
        let private = remote(F::LOCAL_WRITE);
        let hole = ram.register(HOLE.start, HOLE.len(), iova, F::LOCAL_WRITE | rights);
        ram.unmap(hole);
        let all = 0..RECV.end;
        Self {
            full,
            read_only,
            write_only,
            private,
            hole,
            local: ram.register(all.start, all.len(), BASE, F::LOCAL_WRITE),
            constant: ram.register(all.start, all.len(), BASE, F::empty()),
            iova,
        }
    }
}

/// What is known of a window of a host, by its owner and its peer.
#[derive(Clone, Debug)]
pub(crate) struct Win {
    pub(crate) is_type_2: bool,
    pub(crate) key: u32,
    pub(crate) state: WinState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WinState {
    Free,
    /// A request of its owner that concerns it is outstanding.
    Busy,
    /// Range within the peer's reach, rights, and whether addresses count from 0.
    Bound {
        start: usize,
        len: usize,
        access: AccessFlags,
    },
    /// The peer has sent the message that takes its key away.
    Closing,
}

/// Why a work request must fail, or be dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Flaw {
    UnknownKey,
    StaleKey,
    NoRight,
    OutOfBounds,
    Unmapped,
    /// The peer's queue pair does not grant the operation.
    NotGranted,
    BadSource,
    BadResult,
    BadInvalidation,
    BadBinding,
    BadLocalInvalidation,
    NoSuchQueue,
    WrongQkey,
    /// The message is longer than the buffer that it meets.
    TooLong,
    /// The buffer that it meets cannot be written.
    BadBuffer,
}

/// A send-queue request, and what the reference must know of it.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) sges: Vec<Sge>,
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) len: usize,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    /// Where the message goes: a shared receive queue, or 0 for the peer's own queue.
    pub(crate) queue: u32,
    pub(crate) flaw: Option<Flaw>,
    /// Index of the first byte in the peer's memory.
    pub(crate) remote: usize,
}

impl Op {
    pub(crate) fn consumes(&self) -> bool {
        self.is_send() || matches!(self.op, SendOp::WriteWithImm(..))
    }

    pub(crate) fn is_send(&self) -> bool {
        matches!(
            self.op,
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_)
        )
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self.op, SendOp::Write(_) | SendOp::WriteWithImm(..))
    }

    pub(crate) fn is_atomic(&self) -> bool {
        matches!(
            self.op,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        )
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.op, SendOp::LocalInvalidate(_) | SendOp::BindWindow(_))
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read(_))
    }

    pub(crate) fn brings(&self) -> bool {
        self.is_atomic() || self.is_read()
    }

    pub(crate) const fn imm(&self) -> Option<u32> {
        match self.op {
            SendOp::SendWithImm(imm) | SendOp::WriteWithImm(_, imm) => Some(imm),
            _ => None,
        }
    }

    /// Where the bytes of the message are in the sender's memory.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.sges.iter().map(|sge| {
            let start = (sge.addr - BASE) as usize;
            start..start + sge.len as usize
        })
    }
}

/// A receive-queue request.
#[derive(Clone, Debug)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<Sge>,
    /// Bytes that it takes.
    pub(crate) capacity: usize,
    /// It cannot be written.
    pub(crate) is_bad: bool,
}
