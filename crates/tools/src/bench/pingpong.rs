//! One message after the other, over queue pairs: each side sends when the other's message is there. The time that counts is half of
//! the way there and back.

use super::control::{Control, Message, PATIENCE, foreign};
use super::lanes::{Lane, Lanes, Woken, succeeded};
use super::meter::{Meter, cpu_time};
use super::pattern;
use super::plan::Plan;
use super::report::{Active, Passive};
use crate::failure::Failure;
use crate::report::micros;
use crate::signals::Ending;
use oarlock_verbs::{Buffer, Completion, SendRequest};
use std::time::{Duration, Instant};

/// What the two directions are told apart by in the contents.
pub(super) const THERE: u32 = 0;
pub(super) const BACK: u32 = 1;

/// One side's queue pair, and what it has got.
struct Side<'a> {
    plan: &'a Plan,
    lanes: &'a mut Lanes,
    /// Of the messages that arrive.
    direction: u32,
    received: u64,
    mismatches: u64,
    completions: Vec<Completion>,
}

/// What a wait for the next message came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// With its number.
    Message(u64),
    /// The other side has said something on the side, or gone.
    News,
    /// A datagram may have been lost.
    Late,
}

impl<'a> Side<'a> {
    fn new(plan: &'a Plan, lanes: &'a mut Lanes, direction: u32) -> Result<Self, Failure> {
        // One that is under way, and one whose completion is still to come.
        let spare = lanes.buffers(SENDS, plan.size as usize)?;
        lanes.lanes[0].spare = spare;
        Ok(Self {
            plan,
            lanes,
            direction,
            received: 0,
            mismatches: 0,
            completions: Vec::new(),
        })
    }

    fn lane(&mut self) -> &mut Lane {
        &mut self.lanes.lanes[0]
    }

    /// Sends message `number` in the other direction.
    fn send(&mut self, number: u64, control: &Control) -> Result<(), Failure> {
        let mut buffer = self.spare(control)?;
        if self.plan.check {
            pattern::fill(self.direction ^ 1, number, 0, &mut buffer);
        }
        let lane = self.lane();
        let request = lane.addressed(SendRequest::new(0, buffer));
        Ok(lane.queue_pair.post_send(request)?)
    }

    /// A buffer to send from: there is one as soon as the message before the last has been acknowledged.
    fn spare(&mut self, control: &Control) -> Result<Buffer, Failure> {
        loop {
            if let Some(buffer) = self.lane().spare.pop() {
                return Ok(buffer);
            }
            let limit = Instant::now() + PATIENCE;
            let mut completions = std::mem::take(&mut self.completions);
            let woken = self
                .lanes
                .waiter
                .next(&mut completions, control, Some(limit));
            self.completions = completions;
            if woken? != Woken::Completions {
                return Err(super::gone());
            }
            self.take_all(None)?;
        }
    }

    /// Waits for a message, which should be `number`.
    fn receive(&mut self, number: u64, control: &Control, limit: Instant) -> Result<Next, Failure> {
        loop {
            let mut completions = std::mem::take(&mut self.completions);
            let woken = self
                .lanes
                .waiter
                .next(&mut completions, control, Some(limit));
            self.completions = completions;
            let woken = woken?;
            if let Some(number) = self.take_all(Some(number))? {
                return Ok(Next::Message(number));
            }
            match woken {
                Woken::Completions => {}
                Woken::News => return Ok(Next::News),
                Woken::Late => return Ok(Next::Late),
            }
        }
    }

    /// The number of the last message there is.
    fn take_all(&mut self, expected: Option<u64>) -> Result<Option<u64>, Failure> {
        let mut last = None;
        for completion in std::mem::take(&mut self.completions) {
            let completion = succeeded(completion)?;
            if completion.is_send {
                self.lane().spare.extend(completion.buffers);
                continue;
            }
            let size = self.plan.size as usize;
            let message = completion.message().filter(|message| message.len() == size);
            let right = match (message, expected) {
                (Some(_), Some(number)) if !self.plan.check => {
                    last = Some(number);
                    true
                }
                (Some(message), Some(expected)) => {
                    let number = if self.plan.may_lose() {
                        pattern::number_of(self.direction, 0, message, expected)
                    } else {
                        expected
                    };
                    last = Some(number);
                    pattern::is_right(self.direction, number, 0, message)
                }
                // Nothing was to come.
                _ => false,
            };
            self.received += 1;
            self.mismatches += u64::from(!right);
            for buffer in completion.buffers {
                self.lane().queue_pair.post_recv(0, buffer)?;
            }
        }
        Ok(last)
    }
}

/// The side that begins.
pub(super) fn ping(
    plan: &Plan,
    lanes: &mut Lanes,
    control: &Control,
    ending: &Ending,
) -> Result<(Active, Vec<u64>), Failure> {
    let mut meter = Meter::start(plan.seconds);
    let mut side = Side::new(plan, lanes, BACK)?;
    let mut number = 0;
    while !meter.is_over() {
        let sent = Instant::now();
        side.send(number, control)?;
        number += 1;
        let limit = sent
            + if plan.may_lose() {
                LOST_AFTER
            } else {
                PATIENCE
            };
        loop {
            match side.receive(number - 1, control, limit)? {
                // The answer to one that was given up.
                Next::Message(late) if late < number - 1 => continue,
                Next::Message(_) => meter.count(Some(sent.elapsed() / 2)),
                // The other side waits for a message, and gets the next.
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
    control: &mut Control,
    ending: &Ending,
) -> Result<Passive, Failure> {
    let mut side = Side::new(plan, lanes, THERE)?;
    let (started, cpu) = (Instant::now(), cpu_time());
    let mut number = 0;
    loop {
        match side.receive(number, control, Instant::now() + LOOK_EVERY)? {
            Next::Message(arrived) => {
                side.send(arrived, control)?;
                number = arrived.wrapping_add(1);
            }
            Next::News => break,
            Next::Late => {}
        }
        if ending.is_asked() {
            return Err(super::asked_to_end());
        }
    }
    let cpu = cpu_time().saturating_sub(cpu);
    let Message::Done { .. } = control.hear(PATIENCE)? else {
        return Err(foreign());
    };
    Ok(Passive {
        received: side.received,
        mismatches: side.mismatches,
        lost: 0,
        elapsed_us: micros(started.elapsed()),
        cpu_us: micros(cpu),
        retransmits: side.lanes.retransmits(),
    })
}

const SENDS: u32 = 2;
/// A datagram that is not answered after so long is lost, or its answer is.
const LOST_AFTER: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(500);
