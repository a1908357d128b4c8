//! Work requests and receive buffers, chosen at random, some of them wrong on purpose.

use std::ops::Range;

use oarlock_sim::Rng;
use oarlock_transport::{AccessFlags, BindWindow, RemoteAddress, SendOp, Sge};
use oarlock_wire::{LKey, RKey};

use crate::memory::BASE;
use crate::plan::{
    Flaw, HOLE, Keys, Kind, Op, RECV, REMOTE, RESULT, Recv, SOURCE, Setup, WORDS, Win, WinState,
};

/// Chooses the work requests of one side.
#[derive(Debug)]
pub(crate) struct Director {
    pub(crate) side: usize,
    next_id: u64,
    /// READs and atomics since the last fence: what they read there, and where their results go.
    unfenced: Vec<(Range<usize>, Vec<Range<usize>>)>,
    /// UC: each WRITE has memory of its own.
    next_write: usize,
    stale: Option<u32>,
    next_low: u32,
}

impl Director {
    pub(crate) fn new(side: usize, first_id: u64) -> Self {
        Self {
            side,
            next_id: first_id,
            unfenced: Vec::new(),
            next_write: WORDS * 8,
            stale: None,
            next_low: 1,
        }
    }

    /// The next work request. `own` and `peer` are the keys and windows of both hosts; `is_quiet`: nothing of the peer is on
    /// its way.
    pub(crate) fn next(
        &mut self,
        rng: &mut Rng,
        setup: &Setup,
        (own, own_windows): (&Keys, &mut [Win]),
        (peer, peer_windows): (&Keys, &mut [Win]),
        is_quiet: bool,
    ) -> Op {
        let kind = setup.kind;
        let flawed = rng.chance(setup.flaws);
        self.next_id += 1;
        let mut op = Op {
            wr_id: self.next_id,
            op: SendOp::Send,
            sges: Vec::new(),
            inline: None,
            len: 0,
            signaled: rng.chance(0.7),
            solicited: false,
            fence: kind.is_reliable() && rng.chance(0.1),
            queue: kind.queues()[rng.index(kind.queues().len())],
            flaw: None,
            remote: 0,
        };
        let choices: &[usize] = if kind.is_reliable() {
            &[0, 0, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 8, 8, 9, 9]
        } else if kind.is_uc() {
            &[0, 1, 3, 3, 4, 8, 9]
        } else {
            &[0, 1]
        };
        let choice = choices[rng.index(choices.len())];
        match choice {
            1 => op.op = SendOp::SendWithImm(rng.next_u64() as u32),
            2 => self.send_with_invalidate(&mut op, peer_windows, peer, flawed),
            3 | 4 => self.write(rng, setup, &mut op, choice == 4, peer, peer_windows, flawed),
            5 => self.read(rng, setup, &mut op, peer, peer_windows, flawed),
            6 | 7 => self.atomic(rng, setup, &mut op, choice == 6, peer, peer_windows, flawed),
            8 => self.bind(rng, &mut op, own, own_windows, is_quiet, flawed),
            9 => self.local_invalidate(&mut op, own, own_windows, is_quiet, flawed),
            _ => {}
        }
        if op.is_send() {
            op.len = length(rng, setup);
        }
        if op.consumes() {
            op.solicited = rng.chance(0.4);
        }
        self.local(rng, setup, &mut op, own, flawed);
        if flawed && op.flaw.is_none() && !op.is_local() {
            if kind == Kind::Xrc && op.consumes() {
                op.queue = 77;
                op.flaw = Some(Flaw::NoSuchQueue);
            } else if kind.is_ud() {
                op.flaw = Some(Flaw::WrongQkey);
            }
        }
        self.note_order(&mut op);
        op
    }

    /// What is written where an earlier READ may still be reading, or read where its result may still arrive, waits for it.
    fn note_order(&mut self, op: &mut Op) {
        let target = op.remote..op.remote + op.len;
        let touches = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        let writes = op.is_write() || op.is_atomic();
        let hazard = self.unfenced.iter().any(|(remote, results)| {
            writes && touches(remote, &target)
                || !op.brings()
                    && op
                        .stretches()
                        .any(|from| results.iter().any(|to| touches(&from, to)))
        });
        let invalidates = matches!(op.op, SendOp::SendWithInvalidate(_));
        if hazard || invalidates && !self.unfenced.is_empty() {
            op.fence = true;
        }
        // Local operations fence by themselves.
        if op.fence || op.is_local() {
            self.unfenced.clear();
        }
        if op.brings() {
            self.unfenced.push((target, op.stretches().collect()));
        }
    }

    /// The bytes of this side: where they come from, or where they go.
    fn local(&self, rng: &mut Rng, setup: &Setup, op: &mut Op, own: &Keys, flawed: bool) {
        if op.is_local() {
            return;
        }
        let likely = if op.brings() { 0.9 } else { 0.5 };
        let wants_flaw = flawed && op.flaw.is_none() && op.len > 0 && rng.chance(likely);
        if !op.brings() && op.len <= 64 && rng.chance(0.4) && !wants_flaw {
            let mut bytes = vec![0; op.len];
            rng.fill(&mut bytes);
            op.inline = Some(bytes);
            return;
        }
        let arena = if op.brings() || setup.kind.is_reliable() && rng.chance(0.2) {
            RESULT
        } else {
            SOURCE
        };
        let pieces = if op.brings() && op.len == 0 {
            1
        } else {
            1 + rng.index(4)
        };
        let mut at = arena.start + rng.index(arena.len() - op.len - 64);
        let mut left = op.len;
        for piece in 0..pieces {
            let take = if piece + 1 == pieces {
                left
            } else {
                rng.index(left + 1)
            };
            op.sges.push(Sge {
                addr: BASE + at as u64,
                len: take as u32,
                lkey: LKey(own.local),
            });
            at += take + rng.index(16);
            left -= take;
        }
        if wants_flaw {
            let index = (0..op.sges.len())
                .rev()
                .find(|index| op.sges[*index].len > 0)
                .expect("a message of some bytes");
            let result = op.brings();
            op.sges[index].lkey = match rng.below(2) {
                0 if result => LKey(own.constant),
                0 => LKey(own.full),
                _ => LKey(0xBAD),
            };
            op.flaw = Some(if result {
                Flaw::BadResult
            } else {
                Flaw::BadSource
            });
        }
    }

    fn send_with_invalidate(
        &mut self,
        op: &mut Op,
        windows: &mut [Win],
        peer: &Keys,
        flawed: bool,
    ) {
        let bound = windows
            .iter_mut()
            .find(|win| win.is_type_2 && matches!(win.state, WinState::Bound { .. }));
        match bound {
            Some(win) if !flawed => {
                win.state = WinState::Closing;
                self.stale = Some(win.key);
                op.op = SendOp::SendWithInvalidate(RKey(win.key));
            }
            _ if flawed => {
                op.op = SendOp::SendWithInvalidate(RKey(self.stale.unwrap_or(peer.full)));
                op.flaw = Some(Flaw::BadInvalidation);
            }
            _ => {}
        }
    }

    /// A range of the peer's memory, and a key for it.
    fn target(
        &mut self,
        rng: &mut Rng,
        setup: &Setup,
        (op, len, right): (&mut Op, usize, AccessFlags),
        peer: &Keys,
        windows: &[Win],
        flawed: bool,
    ) -> RemoteAddress {
        let atomic = right == AccessFlags::REMOTE_ATOMIC;
        let granted = setup.access[1 - self.side].contains(right);
        if !granted {
            op.flaw = Some(Flaw::NotGranted);
        }
        let may_fail = flawed && granted && len > 0 && rng.chance(0.65);
        let start = if atomic {
            8 * rng.index(WORDS)
        } else if setup.kind.is_uc() {
            self.next_write
        } else {
            rng.index(REMOTE.len() - len + 1)
        };
        op.len = len;
        op.remote = REMOTE.start + start;
        let address = |start: usize, key: u32| RemoteAddress {
            addr: peer.iova + start as u64,
            rkey: RKey(key),
        };
        if may_fail {
            let other = match right {
                AccessFlags::REMOTE_WRITE => peer.read_only,
                AccessFlags::REMOTE_READ => peer.write_only,
                _ => peer.private,
            };
            let outside = if atomic {
                REMOTE.len()
            } else {
                REMOTE.len() - len + 1
            };
            let choice = if self.stale.is_some() && rng.chance(0.6) {
                4
            } else {
                rng.below(6)
            };
            let (flaw, at) = match (choice, self.stale) {
                (0, _) => (Flaw::UnknownKey, address(start, 0xDEAD_BEEF)),
                (1, _) => (Flaw::OutOfBounds, address(outside, peer.full)),
                (2, _) if len <= HOLE.len() => (Flaw::Unmapped, address(0, peer.hole)),
                (3, _) => (Flaw::NoRight, address(start, peer.private)),
                (4.., Some(key)) => (Flaw::StaleKey, address(start, key)),
                _ => (Flaw::NoRight, address(start, other)),
            };
            if flaw == Flaw::OutOfBounds {
                op.remote = REMOTE.start + outside;
            }
            op.flaw = Some(flaw);
            return at;
        }
        // Through a window, if one fits.
        for win in windows {
            let WinState::Bound {
                start: first,
                len: size,
                access,
            } = win.state
            else {
                continue;
            };
            if !rng.chance(0.6) || size < len {
                continue;
            }
            let room = size - len;
            let within = if atomic {
                // The first whole word of the window that is one of the words.
                let word = first.div_ceil(8) * 8;
                if word + 8 > WORDS * 8 || word + 8 > first + size {
                    continue;
                }
                word - first
            } else if setup.kind.is_uc() {
                if start < first || start + len > first + size {
                    continue;
                }
                start - first
            } else {
                rng.index(room + 1)
            };
            let mut addr = if access.contains(AccessFlags::ZERO_BASED) {
                within as u64
            } else {
                peer.iova + (first + within) as u64
            };
            if atomic && !addr.is_multiple_of(8) {
                continue;
            }
            op.remote = REMOTE.start + first + within;
            if !access.contains(right) {
                if !(flawed && granted && len > 0) {
                    op.remote = REMOTE.start + start;
                    continue;
                }
                op.flaw = Some(Flaw::NoRight);
            } else if flawed && granted && !atomic && len > 1 && size + 1 < REMOTE.len() - first {
                // One byte too far.
                addr += (room - within + 1) as u64;
                op.remote += room - within + 1;
                op.flaw = Some(Flaw::OutOfBounds);
            }
            let rkey = RKey(win.key);
            return RemoteAddress { addr, rkey };
        }
        let key = match right {
            AccessFlags::REMOTE_WRITE if rng.chance(0.2) => peer.write_only,
            AccessFlags::REMOTE_READ if rng.chance(0.2) => peer.read_only,
            _ => peer.full,
        };
        address(start, key)
    }

    #[expect(clippy::too_many_arguments, reason = "one call, from `next`")]
    fn write(
        &mut self,
        rng: &mut Rng,
        setup: &Setup,
        op: &mut Op,
        with_imm: bool,
        peer: &Keys,
        windows: &[Win],
        flawed: bool,
    ) {
        let len = length(rng, setup);
        if setup.kind.is_uc() && self.next_write + len > REMOTE.len() {
            return;
        }
        let right = AccessFlags::REMOTE_WRITE;
        let at = self.target(rng, setup, (op, len, right), peer, windows, flawed);
        if setup.kind.is_uc() {
            self.next_write += len;
        }
        op.op = if with_imm {
            SendOp::WriteWithImm(at, rng.next_u64() as u32)
        } else {
            SendOp::Write(at)
        };
    }

    fn read(
        &mut self,
        rng: &mut Rng,
        setup: &Setup,
        op: &mut Op,
        peer: &Keys,
        windows: &[Win],
        flawed: bool,
    ) {
        let len = length(rng, setup);
        let right = AccessFlags::REMOTE_READ;
        op.op = SendOp::Read(self.target(rng, setup, (op, len, right), peer, windows, flawed));
    }

    #[expect(clippy::too_many_arguments, reason = "one call, from `next`")]
    fn atomic(
        &mut self,
        rng: &mut Rng,
        setup: &Setup,
        op: &mut Op,
        swaps: bool,
        peer: &Keys,
        windows: &[Win],
        flawed: bool,
    ) {
        let right = AccessFlags::REMOTE_ATOMIC;
        let remote = self.target(rng, setup, (op, 8, right), peer, windows, flawed);
        // Few values, so that comparisons now and then hold.
        op.op = if swaps {
            SendOp::CompareSwap {
                remote,
                compare: rng.below(3),
                swap: rng.below(3),
            }
        } else {
            SendOp::FetchAdd {
                remote,
                add: [1, 1, 2, u64::MAX, 1 << 60][rng.index(5)],
            }
        };
    }

    fn bind(
        &mut self,
        rng: &mut Rng,
        op: &mut Op,
        own: &Keys,
        windows: &mut [Win],
        is_quiet: bool,
        flawed: bool,
    ) {
        use AccessFlags as F;
        let index = rng.index(windows.len());
        let win = &mut windows[index];
        let rebinds = !win.is_type_2 && is_quiet && matches!(win.state, WinState::Bound { .. });
        if win.state != WinState::Free && !rebinds {
            return;
        }
        let len = 1 + rng.index(REMOTE.len());
        let start = rng.index(REMOTE.len() - len + 1) / 8 * 8;
        let rights = F::REMOTE_WRITE | F::REMOTE_READ | F::REMOTE_ATOMIC;
        let mut access = F::from_bits_retain(rng.next_u64() as u32 & rights.bits());
        if rng.chance(0.5) {
            access = rights;
        }
        if win.is_type_2 && rng.chance(0.5) {
            access |= F::ZERO_BASED;
        }
        self.next_low += 1;
        let rkey = if win.is_type_2 {
            win.key & !0xFF | self.next_low & 0xFF
        } else {
            0xF000_0000 | self.next_low << 8 | self.side as u32
        };
        let mut bind = BindWindow {
            window: RKey(win.key),
            rkey: RKey(rkey),
            region: LKey(own.full),
            addr: own.iova + start as u64,
            len: len as u64,
            access,
        };
        if flawed {
            match rng.below(4) {
                0 => bind.region = LKey(own.read_only),
                1 => bind.region = LKey(0xBAD),
                2 => bind.addr = own.iova + (REMOTE.len() - len + 1) as u64,
                _ => bind.window = RKey(0x0BAD_0000),
            }
            op.flaw = Some(Flaw::BadBinding);
        } else {
            win.key = rkey;
            win.state = WinState::Busy;
        }
        op.signaled = true;
        op.op = SendOp::BindWindow(bind);
    }

    fn local_invalidate(
        &self,
        op: &mut Op,
        own: &Keys,
        windows: &mut [Win],
        is_quiet: bool,
        flawed: bool,
    ) {
        if flawed {
            let type_1 = windows.iter().find(|win| !win.is_type_2);
            let key = type_1.map_or(own.full, |win| win.key);
            op.op = SendOp::LocalInvalidate(RKey(key));
            op.flaw = Some(Flaw::BadLocalInvalidation);
            return;
        }
        let bound = windows
            .iter_mut()
            .find(|win| win.is_type_2 && matches!(win.state, WinState::Bound { .. }));
        if let Some(win) = bound
            && is_quiet
        {
            win.state = WinState::Busy;
            op.signaled = true;
            op.op = SendOp::LocalInvalidate(RKey(win.key));
        }
    }

    /// The owner has taken the key of a window away.
    pub(crate) const fn outdate(&mut self, key: u32) {
        self.stale = Some(key);
    }
}

/// Lengths: short, about whole packets, any.
fn length(rng: &mut Rng, setup: &Setup) -> usize {
    let (mtu, longest) = (setup.mtu_bytes(), setup.longest());
    let len = match rng.below(4) {
        0 => rng.index(65),
        1 => (mtu * rng.index(4) + rng.index(3)).saturating_sub(1),
        _ => rng.index(longest + 1),
    };
    len.min(longest)
}

/// Chooses the receive buffers of one side.
#[derive(Debug)]
pub(crate) struct Buffers {
    next_id: u64,
    next: usize,
}

impl Buffers {
    pub(crate) const fn new(first_id: u64) -> Self {
        Self {
            next_id: first_id,
            next: RECV.start,
        }
    }

    /// What the next buffer follows from.
    pub(crate) const fn position(&self) -> (u64, usize) {
        (self.next_id, self.next)
    }

    /// As if the buffers since then had not been chosen.
    pub(crate) const fn back_to(&mut self, (next_id, next): (u64, usize)) {
        (self.next_id, self.next) = (next_id, next);
    }

    /// The next buffer: usually for any message, now and then too small, or not writable. `None` when the memory is used up.
    pub(crate) fn next(&mut self, rng: &mut Rng, setup: &Setup, own: &Keys) -> Option<Recv> {
        let grh = if setup.kind.is_ud() { 40 } else { 0 };
        let is_small = rng.chance(setup.flaws);
        let capacity = if is_small {
            rng.index(setup.longest() + grh + 1)
        } else {
            setup.longest() + grh + rng.index(40)
        };
        if self.next + capacity + 64 > RECV.end {
            return None;
        }
        self.next_id += 1;
        let pieces = 1 + rng.index(4);
        let mut sges = Vec::new();
        let mut left = capacity;
        for piece in 0..pieces {
            let take = if piece + 1 == pieces {
                left
            } else {
                rng.index(left + 1)
            };
            sges.push(Sge {
                addr: BASE + self.next as u64,
                len: take as u32,
                lkey: LKey(own.local),
            });
            self.next += take + rng.index(16);
            left -= take;
        }
        let is_bad = rng.chance(setup.flaws / 2.0) && capacity > 0;
        if is_bad {
            // Where the first byte goes.
            let first = sges.iter_mut().find(|sge| sge.len > 0);
            first.expect("a byte").lkey = LKey(own.constant);
        }
        Some(Recv {
            wr_id: self.next_id,
            sges,
            capacity,
            is_bad,
        })
    }
}
