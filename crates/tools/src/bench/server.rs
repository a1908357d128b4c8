//! The responding side over queue pairs: takes what arrives and compares it, or lets its memory be used and compares that.

use super::control::{Control, Message, PATIENCE, foreign};
use super::lanes::{Lanes, Woken, succeeded};
use super::meter::cpu_time;
use super::pattern;
use super::plan::{Op, Plan};
use super::remote::Memory;
use super::report::Passive;
use crate::failure::Failure;
use crate::report::micros;
use crate::signals::Ending;
use oarlock_verbs::Completion;
use std::time::{Duration, Instant};

/// Counts what arrives.
struct Server<'a> {
    plan: &'a Plan,
    lanes: &'a mut Lanes,
    /// The number that the next message of each queue pair should have.
    next: Vec<u64>,
    counted: Passive,
    /// When the first message came, and the processor time until then.
    first: Option<(Instant, Duration)>,
    last: Option<Instant>,
}

/// Serves until the client says that it is done.
pub(super) fn run(
    plan: &Plan,
    lanes: &mut Lanes,
    memory: &[Memory],
    control: &mut Control,
    ending: &Ending,
) -> Result<Passive, Failure> {
    let started = (Instant::now(), cpu_time());
    let mut server = Server {
        plan,
        next: vec![0; lanes.lanes.len()],
        lanes,
        counted: Passive::default(),
        first: None,
        last: None,
    };
    server.serve(control, ending)?;
    let Message::Done { posted } = control.hear(PATIENCE)? else {
        return Err(foreign());
    };
    if posted.len() != server.next.len() {
        return Err(foreign());
    }
    if plan.op == Op::Send {
        server.take_rest(posted.iter().sum(), control)?;
    }
    let (_, cpu) = server.first.unwrap_or(started);
    server.counted.cpu_us = micros(cpu_time().saturating_sub(cpu));
    if let (Some((first, _)), Some(last)) = (server.first, server.last) {
        server.counted.elapsed_us = micros(last - first);
    }
    if plan.check {
        for (at, (memory, posted)) in memory.iter().zip(&posted).enumerate() {
            let found = memory.compare(plan, at as u32, *posted)?;
            server.counted.mismatches += found.mismatches;
            server.counted.lost += found.lost;
        }
    }
    server.counted.retransmits = server.lanes.retransmits();
    Ok(server.counted)
}

impl Server<'_> {
    /// Until the client says something.
    fn serve(&mut self, control: &Control, ending: &Ending) -> Result<(), Failure> {
        let mut completions = Vec::new();
        loop {
            let limit = Instant::now() + LOOK_EVERY;
            let woken = self
                .lanes
                .waiter
                .next(&mut completions, control, Some(limit))?;
            self.take_all(&mut completions)?;
            if woken == Woken::News {
                return Ok(());
            }
            if ending.is_asked() {
                return Err(super::asked_to_end());
            }
        }
    }

    /// What is still to come: of a reliable service all that was sent, else what comes within a while.
    fn take_rest(&mut self, posted: u64, control: &Control) -> Result<(), Failure> {
        let mut completions = Vec::new();
        while self.counted.received < posted {
            let limit = Instant::now()
                + if self.plan.may_lose() {
                    GRACE
                } else {
                    PATIENCE
                };
            let woken = self
                .lanes
                .waiter
                .next(&mut completions, control, Some(limit))?;
            self.take_all(&mut completions)?;
            match woken {
                Woken::Completions => {}
                Woken::News => return Err(super::gone()),
                Woken::Late => break,
            }
        }
        Ok(())
    }

    fn take_all(&mut self, completions: &mut Vec<Completion>) -> Result<(), Failure> {
        if completions.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        if self.first.is_none() {
            self.first = Some((now, cpu_time()));
        }
        self.last = Some(now);
        for completion in completions.drain(..) {
            self.take(succeeded(completion)?)?;
        }
        Ok(())
    }

    fn take(&mut self, completion: Completion) -> Result<(), Failure> {
        let at = completion.wr_id as usize;
        self.counted.received += 1;
        let next = &mut self.next[at];
        match completion.message() {
            Some(message) => {
                let number = if self.plan.may_lose() {
                    pattern::number_of(at as u32, 0, message, *next)
                } else {
                    *next
                };
                // Neither service repeats or overtakes on its own, and over a loopback or one cable nothing does; a network
                // may, and then a message that is whole and its own is right.
                let right = message.len() == self.plan.size as usize
                    && (!self.plan.check || pattern::is_right(at as u32, number, 0, message));
                self.counted.mismatches += u64::from(!right);
                // The number in wrong bytes is none.
                *next = if right {
                    (*next).max(number.wrapping_add(1))
                } else {
                    next.wrapping_add(1)
                };
            }
            None => self.counted.mismatches += 1,
        }
        for buffer in completion.buffers {
            self.lanes.lanes[at]
                .queue_pair
                .post_recv(at as u64, buffer)?;
        }
        Ok(())
    }
}

/// How long datagrams that were sent may take.
const GRACE: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(500);
