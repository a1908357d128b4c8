//! The requesting side over queue pairs: keeps as many work requests outstanding as the window allows.

use super::control::Control;
use super::lanes::{LANE_SHIFT, Lanes, Woken, succeeded};
use super::meter::Meter;
use super::pattern;
use super::plan::{Op, Plan};
use super::remote::{Remote, Target};
use super::report::Active;
use crate::failure::Failure;
use crate::signals::Ending;
use oarlock_verbs::{Buffer, Completion, SendRequest};
use std::collections::VecDeque;
use std::time::Instant;

/// Where a queue pair has got to.
#[derive(Debug, Default)]
struct Progress {
    posted: u64,
    completed: u64,
    /// When each outstanding request was posted, oldest first.
    posted_at: VecDeque<Instant>,
}

struct Client<'a> {
    plan: &'a Plan,
    lanes: &'a mut Lanes,
    remote: Vec<Remote>,
    progress: Vec<Progress>,
    meter: Meter,
    mismatches: u64,
}

/// Requests until the time is up, and waits for what is outstanding.
pub(super) fn run(
    plan: &Plan,
    lanes: &mut Lanes,
    targets: &[Target],
    control: &Control,
    ending: &Ending,
) -> Result<(Active, Vec<u64>), Failure> {
    for at in 0..lanes.lanes.len() {
        lanes.lanes[at].spare = lanes.buffers(plan.window, plan.size as usize)?;
    }
    let mut client = Client {
        plan,
        remote: targets
            .iter()
            .map(|target| Remote::new(plan, *target))
            .collect(),
        progress: lanes.lanes.iter().map(|_| Progress::default()).collect(),
        lanes,
        meter: Meter::start(plan.seconds),
        mismatches: 0,
    };
    client.run(control, ending)?;
    let posted: Vec<u64> = client.progress.iter().map(|lane| lane.posted).collect();
    let active = Active {
        measured: client.meter.measured(),
        sent: posted.iter().sum(),
        mismatches: client.mismatches,
        retransmits: client.lanes.retransmits(),
    };
    Ok((active, posted))
}

impl Client<'_> {
    fn run(&mut self, control: &Control, ending: &Ending) -> Result<(), Failure> {
        let mut completions = Vec::new();
        loop {
            if !self.meter.is_over() {
                self.post()?;
            } else if self.progress.iter().all(|lane| lane.posted_at.is_empty()) {
                return Ok(());
            }
            let until = (!self.meter.is_over()).then(|| self.meter.closes());
            let woken = self.lanes.waiter.next(&mut completions, control, until)?;
            let now = Instant::now();
            for completion in completions.drain(..) {
                self.complete(succeeded(completion)?, now)?;
            }
            self.meter.tick(now);
            if woken == Woken::News {
                return Err(super::gone());
            }
            if ending.is_asked() {
                return Err(super::asked_to_end());
            }
        }
    }

    /// Posts what the window allows.
    fn post(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        for at in 0..self.progress.len() {
            while let Some(buffer) = self.lanes.lanes[at].spare.pop() {
                let number = self.progress[at].posted;
                let lane = &self.lanes.lanes[at];
                let request = self.request(at, number, buffer);
                lane.queue_pair.post_send(lane.addressed(request))?;
                let progress = &mut self.progress[at];
                progress.posted += 1;
                progress.posted_at.push_back(now);
            }
        }
        Ok(())
    }

    fn request(&self, at: usize, number: u64, mut buffer: Buffer) -> SendRequest<'static> {
        let wr_id = (at as u64) << LANE_SHIFT | number;
        if self.plan.check && matches!(self.plan.op, Op::Send | Op::Write) {
            pattern::fill(at as u32, number, 0, &mut buffer);
        }
        match self.remote.get(at) {
            None => SendRequest::new(wr_id, buffer),
            Some(remote) => remote.request(wr_id, number, buffer),
        }
    }

    fn complete(&mut self, completion: Completion, now: Instant) -> Result<(), Failure> {
        let at = (completion.wr_id >> LANE_SHIFT) as usize;
        let number = completion.wr_id & ((1 << LANE_SHIFT) - 1);
        let progress = &mut self.progress[at];
        let time = progress
            .posted_at
            .pop_front()
            .map(|posted| now.saturating_duration_since(posted));
        // Requests of a queue complete in the order in which they were posted.
        self.mismatches += u64::from(number != progress.completed);
        progress.completed += 1;
        self.meter.count(time);
        for buffer in completion.buffers {
            if self.plan.check
                && let Some(remote) = self.remote.get(at)
                && !remote.is_right(at as u32, number, &buffer)
            {
                self.mismatches += 1;
            }
            self.lanes.lanes[at].spare.push(buffer);
        }
        Ok(())
    }
}
