//! One WRITE after the other: each side writes into the other's memory when the other's bytes are in its own. Polling, a side looks at
//! the last byte, which becomes visible last; sleeping, it waits for the immediate value of the message.

use super::control::{Control, End, Message, PATIENCE, foreign};
use super::lanes::{Lanes, Woken, succeeded};
use super::meter::{Meter, cpu_time};
use super::pattern;
use super::pingpong::{BACK, THERE};
use super::plan::{Mode, Plan};
use super::remote::{Memory, Target};
use super::report::{Active, Passive};
use crate::failure::Failure;
use crate::report::micros;
use crate::signals::Ending;
use oarlock_verbs::{AccessFlags, Buffers, Completion, SendRequest};
use std::time::{Duration, Instant};

/// One side's memory, and what has come into it.
struct Side<'a> {
    plan: &'a Plan,
    lanes: &'a mut Lanes,
    memory: Memory,
    target: Target,
    /// Of the messages that arrive.
    direction: u32,
    /// The number of the last one.
    last: u64,
    received: u64,
    mismatches: u64,
    completions: Vec<Completion>,
    seen: Vec<u8>,
    /// The immediate value that has come, if one has.
    imm: Option<u32>,
}

/// What a wait came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// With its number.
    Message(u64),
    News,
    Late,
}

/// The memory of one side, named for the other.
pub(super) fn offer(plan: &Plan, lanes: &Lanes, end: &mut End) -> Result<Memory, Failure> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let memory = Memory::new(lanes, plan.size as usize, access)?;
    let lane = end.lanes.first_mut().ok_or_else(foreign)?;
    memory.name(lane);
    if plan.mode == Mode::Event {
        for _ in 0..plan.receives() {
            lanes.lanes[0].queue_pair.post_recv(0, Buffers::new())?;
        }
    }
    Ok(memory)
}

impl<'a> Side<'a> {
    fn new(
        plan: &'a Plan,
        lanes: &'a mut Lanes,
        memory: Memory,
        theirs: &End,
        direction: u32,
    ) -> Result<Self, Failure> {
        let target = Target::new(theirs.lanes.first().ok_or_else(foreign)?);
        let spare = lanes.buffers(SENDS, plan.size as usize)?;
        lanes.lanes[0].spare = spare;
        Ok(Self {
            plan,
            lanes,
            memory,
            target,
            direction,
            last: 0,
            received: 0,
            mismatches: 0,
            completions: Vec::new(),
            seen: vec![0; plan.size as usize],
            imm: None,
        })
    }

    /// Writes message `number`, from 1, into the other side's memory.
    fn write(&mut self, number: u64, control: &Control) -> Result<(), Failure> {
        let limit = Instant::now() + PATIENCE;
        let mut buffer = loop {
            if let Some(buffer) = self.lanes.lanes[0].spare.pop() {
                break buffer;
            }
            match self.turn(control, limit)? {
                Woken::Completions => {}
                Woken::News => return Err(super::gone()),
                Woken::Late => return Err(super::silent(PATIENCE)),
            }
        };
        if self.plan.check {
            pattern::fill(self.direction ^ 1, number, 0, &mut buffer);
        }
        if let Some(last) = buffer.last_mut() {
            *last = number as u8;
        }
        let target = self.target.at(0);
        let request = match self.plan.mode {
            Mode::Poll => SendRequest::write(0, buffer, target),
            Mode::Event => SendRequest::write_imm(0, buffer, target, number as u32),
        };
        Ok(self.lanes.lanes[0].queue_pair.post_send(request)?)
    }

    /// Waits for the message after the last one.
    fn next(&mut self, control: &Control, limit: Instant) -> Result<Next, Failure> {
        loop {
            let arrived = match self.plan.mode {
                Mode::Poll => self.look(control, limit)?,
                Mode::Event => match self.imm.take() {
                    Some(imm) => Next::Message(self.last + u64::from(ahead(self.last, imm))),
                    None => match self.turn(control, limit)? {
                        Woken::Completions => continue,
                        Woken::News => Next::News,
                        Woken::Late => Next::Late,
                    },
                },
            };
            if let Next::Message(number) = arrived {
                self.last = number;
                self.received += 1;
                self.compare(number)?;
            }
            return Ok(arrived);
        }
    }

    /// Looks at the last byte until it changes.
    fn look(&mut self, control: &Control, limit: Instant) -> Result<Next, Failure> {
        let last = u64::from(self.plan.size) - 1;
        let mut byte = [0];
        loop {
            for _ in 0..TURNS {
                self.memory.read(last, &mut byte)?;
                let ahead = byte[0].wrapping_sub(self.last as u8);
                if ahead != 0 {
                    return Ok(Next::Message(self.last + u64::from(ahead)));
                }
                // What arrives is received by whoever polls.
                self.lanes.waiter.cq.poll(&mut self.completions)?;
                self.take_all()?;
            }
            if control.has_news()? {
                return Ok(Next::News);
            }
            if Instant::now() >= limit {
                return Ok(Next::Late);
            }
        }
    }

    fn compare(&mut self, number: u64) -> Result<(), Failure> {
        if self.plan.check {
            let mut seen = std::mem::take(&mut self.seen);
            self.memory.read(0, &mut seen)?;
            let (last, rest) = seen.split_last().ok_or_else(foreign)?;
            let right = *last == number as u8 && pattern::is_right(self.direction, number, 0, rest);
            self.mismatches += u64::from(!right);
            self.seen = seen;
        }
        Ok(())
    }

    fn turn(&mut self, control: &Control, limit: Instant) -> Result<Woken, Failure> {
        let woken = self
            .lanes
            .waiter
            .next(&mut self.completions, control, Some(limit))?;
        self.take_all()?;
        Ok(woken)
    }

    fn take_all(&mut self) -> Result<(), Failure> {
        for completion in std::mem::take(&mut self.completions) {
            let completion = succeeded(completion)?;
            let lane = &mut self.lanes.lanes[0];
            if completion.is_send {
                lane.spare.extend(completion.buffers);
            } else {
                self.imm = completion.imm;
                lane.queue_pair.post_recv(0, Buffers::new())?;
            }
        }
        Ok(())
    }
}

/// How much further an immediate value is than a number.
fn ahead(last: u64, imm: u32) -> u32 {
    imm.wrapping_sub(last as u32)
}

/// The side that begins.
pub(super) fn ping(
    plan: &Plan,
    lanes: &mut Lanes,
    memory: Memory,
    theirs: &End,
    control: &Control,
    ending: &Ending,
) -> Result<(Active, Vec<u64>), Failure> {
    let mut meter = Meter::start(plan.seconds);
    let mut side = Side::new(plan, lanes, memory, theirs, BACK)?;
    let mut number = 0;
    while !meter.is_over() {
        number += 1;
        let sent = Instant::now();
        side.write(number, control)?;
        let limit = sent
            + if plan.may_lose() {
                LOST_AFTER
            } else {
                PATIENCE
            };
        loop {
            match side.next(control, limit)? {
                // The answer to one that was given up.
                Next::Message(late) if late != number => continue,
                Next::Message(_) => meter.count(Some(sent.elapsed() / 2)),
                Next::Late if plan.may_lose() => {}
                Next::Late => return Err(super::silent(PATIENCE)),
                Next::News => return Err(super::gone()),
            }
            break;
        }
        meter.tick(Instant::now());
        if ending.is_asked() {
            return Err(super::asked_to_end());
        }
    }
    let active = Active {
        measured: meter.measured(),
        sent: number,
        mismatches: side.mismatches,
        retransmits: side.lanes.retransmits(),
    };
    Ok((active, vec![number]))
}

/// The side that answers.
pub(super) fn pong(
    plan: &Plan,
    lanes: &mut Lanes,
    memory: Memory,
    theirs: &End,
    control: &mut Control,
    ending: &Ending,
) -> Result<Passive, Failure> {
    let mut side = Side::new(plan, lanes, memory, theirs, THERE)?;
    let (started, cpu) = (Instant::now(), cpu_time());
    loop {
        match side.next(control, Instant::now() + LOOK_EVERY)? {
            Next::Message(number) => side.write(number, control)?,
            Next::News => break,
            Next::Late => {}
        }
        if ending.is_asked() {
            return Err(super::asked_to_end());
        }
    }
    let cpu = cpu_time().saturating_sub(cpu);
    let Message::Done { posted } = control.hear(PATIENCE)? else {
        return Err(foreign());
    };
    Ok(Passive {
        received: side.received,
        mismatches: side.mismatches,
        lost: posted.iter().sum::<u64>().saturating_sub(side.received),
        elapsed_us: micros(started.elapsed()),
        cpu_us: micros(cpu),
        retransmits: side.lanes.retransmits(),
    })
}

const SENDS: u32 = 2;
const TURNS: u32 = 256;
/// A message of an unreliable connection that is not answered after so long is lost, or its answer is.
const LOST_AFTER: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(500);
