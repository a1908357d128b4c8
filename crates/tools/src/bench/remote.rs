//! Memory that the other side works on: offered by the responder, used by the requester, and compared on either side.

use super::control::{End, LaneEnd, foreign};
use super::lanes::Lanes;
use super::pattern;
use super::plan::{Atomic, Op, Plan, Transport};
use crate::failure::Failure;
use oarlock_verbs::{AccessFlags, Buffer, RemoteAddress, RemoteMemory, SendRequest};
use oarlock_wire::RKey;

/// Memory for one queue pair of the other side.
#[derive(Debug)]
pub(super) struct Memory(RemoteMemory);

/// What a comparison of memory found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) mismatches: u64,
    /// Messages that never came, or not whole, where the service may lose them.
    pub(super) lost: u64,
}

/// Makes the memory that the operation works on, and names it.
pub(super) fn offer(plan: &Plan, lanes: &Lanes, end: &mut End) -> Result<Vec<Memory>, Failure> {
    let size = u64::from(plan.size);
    let (len, access) = match plan.op {
        Op::Send => return Ok(Vec::new()),
        Op::Write => (
            u64::from(plan.window) * size,
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
        ),
        Op::Read => (size + READ_PLACES * WORD, AccessFlags::REMOTE_READ),
        Op::Atomic => (WORD, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC),
    };
    let mut memory = Vec::new();
    for (at, lane) in end.lanes.iter_mut().enumerate() {
        let offered = Memory::new(lanes, len as usize, access)?;
        if plan.op == Op::Read {
            offered.fill(at as u32, len as usize)?;
        }
        offered.name(lane);
        memory.push(offered);
    }
    Ok(memory)
}

impl Memory {
    pub(super) fn new(lanes: &Lanes, len: usize, access: AccessFlags) -> Result<Self, Failure> {
        Ok(Self(RemoteMemory::new(&lanes.pd, len, access)?))
    }

    pub(super) fn name(&self, lane: &mut LaneEnd) {
        lane.addr = self.0.addr();
        lane.rkey = self.0.rkey().0;
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Failure> {
        Ok(self.0.read_at(offset, out)?)
    }

    fn fill(&self, lane: u32, len: usize) -> Result<(), Failure> {
        let mut piece = vec![0; PIECE.min(len)];
        for offset in (0..len).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(len - offset)];
            pattern::fill(lane, 0, (offset / WORD as usize) as u64, piece);
            self.0.write_at(offset as u64, piece)?;
        }
        Ok(())
    }

    /// Compares with what `posted` messages must have left behind.
    pub(super) fn compare(&self, plan: &Plan, lane: u32, posted: u64) -> Result<Found, Failure> {
        let mut found = Found::default();
        match plan.op {
            Op::Send | Op::Read => {}
            Op::Atomic => found.mismatches = u64::from(self.0.load_u64(0)? != posted),
            Op::Write => {
                let window = u64::from(plan.window);
                for slot in 0..window.min(posted) {
                    // The last message that went there.
                    let number = slot + (posted - 1 - slot) / window * window;
                    let state = self.state_of(plan, lane, slot, number)?;
                    found.mismatches += u64::from(state == State::Wrong);
                    found.lost += u64::from(state == State::Older);
                }
            }
        }
        Ok(found)
    }

    /// What the slot holds in place of a message, if it does not hold that.
    fn state_of(&self, plan: &Plan, lane: u32, slot: u64, number: u64) -> Result<State, Failure> {
        let len = plan.size as usize;
        let start = slot * u64::from(plan.size);
        let mut piece = vec![0; PIECE.min(len)];
        let mut state = State::Right;
        for offset in (0..len).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(len - offset)];
            self.0.read_at(start + offset as u64, piece)?;
            let first = (offset / WORD as usize) as u64;
            if pattern::is_right(lane, number, first, piece) {
                continue;
            }
            if plan.transport == Transport::Rc {
                return Ok(State::Wrong);
            }
            for (at, packet) in piece.chunks(PACKET).enumerate() {
                let first = first + (at * PACKET) as u64 / WORD;
                match of_packet(plan, lane, slot, number, first, packet) {
                    State::Wrong => return Ok(State::Wrong),
                    State::Older => state = State::Older,
                    State::Right => {}
                }
            }
        }
        Ok(state)
    }
}

/// What a slot of memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Right,
    /// Parts of earlier messages, or nothing yet: a message was lost, or a part of it.
    Older,
    Wrong,
}

/// Of an unreliable service: a packet lies in memory whole, of the last message or of an earlier one for the same place.
fn of_packet(plan: &Plan, lane: u32, slot: u64, number: u64, first: u64, packet: &[u8]) -> State {
    let found = pattern::number_of(lane, first, packet, number);
    if packet.iter().all(|byte| *byte == 0) {
        State::Older
    } else if found > number
        || found % u64::from(plan.window) != slot
        || !pattern::is_right(lane, found, first, packet)
    {
        State::Wrong
    } else if found == number {
        State::Right
    } else {
        State::Older
    }
}

/// The other side's memory for one queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    addr: u64,
    rkey: RKey,
}

impl Target {
    pub(super) fn new(end: &LaneEnd) -> Self {
        Self {
            addr: end.addr,
            rkey: RKey(end.rkey),
        }
    }

    pub(super) fn at(self, offset: u64) -> RemoteAddress {
        RemoteAddress {
            addr: self.addr.wrapping_add(offset),
            rkey: self.rkey,
        }
    }
}

/// The memory that the other side has named; none where the operation needs none.
pub(super) fn targets(plan: &Plan, end: &End) -> Result<Vec<Target>, Failure> {
    if end.lanes.len() != plan.qps as usize {
        return Err(foreign());
    }
    Ok(match plan.op {
        Op::Send => Vec::new(),
        Op::Write | Op::Read | Op::Atomic => end.lanes.iter().map(Target::new).collect(),
    })
}

/// How a queue pair works on the other side's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    op: Op,
    atomic: Atomic,
    size: u64,
    window: u64,
    target: Target,
}

impl Remote {
    pub(super) fn new(plan: &Plan, target: Target) -> Self {
        Self {
            op: plan.op,
            atomic: plan.atomic,
            size: plan.size.into(),
            window: plan.window.into(),
            target,
        }
    }

    /// Request `number`, which works from or into `buffer`.
    pub(super) fn request(self, wr_id: u64, number: u64, buffer: Buffer) -> SendRequest<'static> {
        match self.op {
            Op::Send => SendRequest::new(wr_id, buffer),
            Op::Write => {
                let slot = number % self.window * self.size;
                SendRequest::write(wr_id, buffer, self.target.at(slot))
            }
            Op::Read => {
                let place = number % READ_PLACES * WORD;
                SendRequest::read(wr_id, buffer, self.target.at(place))
            }
            Op::Atomic => match self.atomic {
                Atomic::Fadd => SendRequest::fetch_add(wr_id, buffer, self.target.at(0), 1),
                Atomic::Cswap => {
                    let target = self.target.at(0);
                    SendRequest::compare_swap(wr_id, buffer, target, number, number + 1)
                }
            },
        }
    }

    /// Whether what came back with request `number` is what should have.
    pub(super) fn is_right(self, lane: u32, number: u64, buffer: &[u8]) -> bool {
        match self.op {
            Op::Send | Op::Write => true,
            Op::Read => pattern::is_right(lane, 0, number % READ_PLACES, buffer),
            // Requests of a queue are executed in order, so each finds what the one before has left.
            Op::Atomic => buffer == number.to_ne_bytes(),
        }
    }
}

/// READs begin at so many places in turn, so that a buffer never gets twice in a row what it has already: a prime number of
/// words, which no usual window divides.
const READ_PLACES: u64 = 509;
const WORD: u64 = 8;
/// Bytes that are compared at a time.
const PIECE: usize = 64 << 10;
/// The smallest path MTU: packets are multiples of it.
const PACKET: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::tests::plan;

    /// An unreliable WRITE may leave an older message in its place, whole or in part, and nothing else.
    #[test]
    fn a_lost_packet_is_told_from_a_wrong_one() {
        let plan = Plan {
            transport: Transport::Uc,
            window: 4,
            ..plan(Op::Write)
        };
        let packet_of = |number| {
            let mut packet = vec![0; PACKET];
            pattern::fill(3, number, 32, &mut packet);
            packet
        };
        let state = |packet: &[u8]| of_packet(&plan, 3, 1, 41, 32, packet);
        assert_eq!(state(&packet_of(41)), State::Right);
        assert_eq!(state(&packet_of(37)), State::Older);
        assert_eq!(state(&[0; PACKET]), State::Older);
        assert_eq!(state(&packet_of(40)), State::Wrong, "of another slot");
        assert_eq!(state(&packet_of(45)), State::Wrong, "of the future");
        let mut torn = packet_of(41);
        torn[100..].copy_from_slice(&packet_of(37)[100..]);
        assert_eq!(state(&torn), State::Wrong);
    }
}
