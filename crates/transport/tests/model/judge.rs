//! What one life of a pair must have come to: the reference model, and the comparison.
//!
//! A reliable connection executes the requests of a queue in order, each once. So there is one *cut*: all requests before it are
//! executed, none behind it is, and of the one at it some of its packets are. Every request that has succeeded lies before the
//! cut. The memory of the peer, and the receives that it has completed, must be those of one of the cuts that remain; and what the
//! READs and atomics before it have brought back must be what the memory held when they were executed.

use std::ops::Range;

use oarlock_transport::{
    Completion, QpEvent, QpState, RcKind, SendOp, VendorError, WcOpcode, WcStatus,
};

use crate::cut::{Cut, Results};
use crate::engine::Engine;
use crate::memory::BASE;
use crate::plan::{Flaw, HOLE, Kill, Op, RESULT, Recv, SOURCE};
use crate::world::{Direction, Endpoint, Verdict, World};

/// The whole verdict over one life.
pub(crate) fn judge(world: &mut World<'_>) -> Verdict {
    for side in 0..2 {
        let verdict = if world.setup.kind.is_reliable() {
            Judge::new(world, side).judge()
        } else {
            crate::unreliable::judge(world, side)
        };
        let flaws = verdict.map_err(|wrong| {
            let names = ["A", "B"];
            format!("{} > {}: {wrong}", names[side], names[1 - side])
        })?;
        for flaw in flaws {
            world.tally.flaw(flaw);
        }
    }
    for wc in world
        .dirs
        .iter()
        .flat_map(|dir| dir.send_wcs.iter().chain(&dir.recv_wcs))
    {
        let says_why = wc.vendor_err != VendorError::NONE;
        if wc.status.is_success() == says_why || !wc.status.is_success() && !wc.solicited {
            return Err(format!("{wc:?}"));
        }
    }
    if !world.is_clean && !has_root_cause(world) {
        return Err("a life ends without a reason".to_owned());
    }
    for side in 0..2 {
        let (ram, initial) = (&world.rams[side].bytes, &world.initial[side]);
        for (name, range) in [("hole", HOLE), ("source", SOURCE)] {
            if ram[range.clone()] != initial[range] {
                return Err(format!("the {name} of side {side} has changed"));
            }
        }
    }
    Ok(())
}

/// Something that ends a life: what was done to a queue pair, or a request that failed of itself.
fn has_root_cause(world: &World<'_>) -> bool {
    let mut endpoints = world.links.iter().flatten();
    let is_cause = |wc: &Completion| !wc.status.is_success() && wc.status != WcStatus::WR_FLUSH_ERR;
    endpoints.any(|e| e.killed.is_some() || e.events.iter().any(|event| is_failure(*event)))
        || world.dirs.iter().any(|dir| {
            let mut wcs = dir.send_wcs.iter().chain(&dir.recv_wcs);
            wcs.any(is_cause)
        })
}

/// The end of a send queue, by its completions.
pub(crate) struct SendEnd {
    /// Requests that have succeeded, seen or implied.
    pub(crate) done: usize,
    /// The first that failed, and how.
    failed: Option<(usize, WcStatus)>,
}

/// Judge of what `side` asked for over a reliable connection.
pub(crate) struct Judge<'a> {
    pub(crate) world: &'a World<'a>,
    pub(crate) side: usize,
    pub(crate) dir: &'a Direction,
    requester: &'a Endpoint,
    pub(crate) responder: &'a Endpoint,
}

impl<'a> Judge<'a> {
    fn new(world: &'a World<'a>, side: usize) -> Self {
        let link = &world.links[world.setup.kind.link(side)];
        Self {
            world,
            side,
            dir: &world.dirs[side],
            requester: &link[side],
            responder: &link[1 - side],
        }
    }

    fn judge(&self) -> Result<Vec<Flaw>, String> {
        let end = self.send_end()?;
        let consumed = self.received()?;
        let (cut, results) = self.find_cut(&end, &consumed)?;
        self.check_results(&end, &cut, &results)?;
        self.check_cause(&end)?;
        let flaws = self.flaws(&end, &cut);
        self.check_receive_failures(&flaws)?;
        self.check_events(&flaws)?;
        let failed = end.failed.and_then(|(index, status)| {
            (status != WcStatus::WR_FLUSH_ERR)
                .then(|| self.flaw(index))
                .flatten()
        });
        Ok(failed.into_iter().collect())
    }

    /// The completions of the send queue: each request once, in order; after a failure nothing succeeds.
    fn send_end(&self) -> Result<SendEnd, String> {
        let ops = &self.dir.ops;
        let all_signaled = match &self.requester.engine {
            Engine::Rc(rc) => rc.config().sq_sig_all,
            _ => false,
        };
        let mut end = SendEnd {
            done: 0,
            failed: None,
        };
        let mut next = 0;
        for wc in &self.dir.send_wcs {
            let index = (next..ops.len())
                .find(|index| ops[*index].wr_id == wc.wr_id)
                .ok_or_else(|| format!("a completion out of nowhere or out of order: {wc:?}"))?;
            let silent = &ops[next..index];
            if end.failed.is_some() && !silent.is_empty() {
                return Err(format!("no completion of {:?}", silent[0]));
            }
            if let Some(op) = silent.iter().find(|op| op.signaled || all_signaled) {
                return Err(format!("no completion of {op:?}"));
            }
            let op = &ops[index];
            next = index + 1;
            if wc.status.is_success() {
                if end.failed.is_some() {
                    return Err(format!("success after a failure: {op:?}"));
                }
                if !op.signaled && !all_signaled {
                    return Err(format!("a completion that was not asked for: {op:?}"));
                }
                check_success(op, wc)?;
                end.done = next;
            } else if end.failed.is_none() {
                // Everything before it has succeeded, in silence if it was not signalled.
                end.done = index;
                end.failed = Some((index, wc.status));
            } else if wc.status != WcStatus::WR_FLUSH_ERR {
                return Err(format!("{} after a failure: {op:?}", wc.status));
            }
        }
        let was_reset = self.requester.killed == Some(Kill::Reset);
        let rest = &ops[next..];
        if let Some(op) = rest
            .iter()
            .find(|op| !was_reset && (end.failed.is_some() || op.signaled || all_signaled))
        {
            return Err(format!("no completion of {op:?}"));
        }
        if !was_reset && end.failed.is_none() {
            end.done = ops.len();
        }
        if self.world.is_clean && end.failed.is_some() {
            return Err(format!("{:?} in a life without failure", end.failed));
        }
        Ok(end)
    }

    /// The receives that succeeded, by queue: how many. They must be the first of their queue.
    fn received(&self) -> Result<Vec<(u32, usize)>, String> {
        let mut received = Vec::new();
        for queue in self.world.setup.kind.queues() {
            let none = Vec::new();
            let recvs = self.dir.recvs.get(queue).unwrap_or(&none);
            let wcs = self.wcs_of(recvs);
            let ids: Vec<_> = wcs.iter().map(|wc| wc.wr_id).collect();
            let posted: Vec<_> = recvs.iter().map(|recv| recv.wr_id).collect();
            if posted.get(..ids.len()) != Some(&ids[..]) {
                return Err(format!(
                    "receives complete as {ids:?}, posted as {posted:?}"
                ));
            }
            let good = wcs.iter().take_while(|wc| wc.status.is_success()).count();
            if wcs[good..].iter().any(|wc| wc.status.is_success()) {
                return Err("a receive succeeds after one that failed".to_owned());
            }
            let all_end = *queue == 0 && self.responder.killed != Some(Kill::Reset);
            if all_end && wcs.len() != recvs.len() {
                return Err(format!(
                    "{} of {} receives complete",
                    wcs.len(),
                    recvs.len()
                ));
            }
            if *queue != 0 && wcs.len() > good + 1 {
                return Err("more than one buffer of a shared queue fails".to_owned());
            }
            received.push((*queue, good));
        }
        let known: usize = self
            .dir
            .recvs
            .values()
            .map(|recvs| self.wcs_of(recvs).len())
            .sum();
        if known != self.dir.recv_wcs.len() {
            return Err("a receive that nobody posted".to_owned());
        }
        Ok(received)
    }

    fn wcs_of(&self, recvs: &[Recv]) -> Vec<&'a Completion> {
        let of = |wc: &&Completion| recvs.iter().any(|recv| recv.wr_id == wc.wr_id);
        self.dir.recv_wcs.iter().filter(of).collect()
    }

    /// Why request `index` cannot succeed: chosen so, or by the buffer that it meets.
    pub(crate) fn flaw(&self, index: usize) -> Option<Flaw> {
        let chosen = self.dir.ops[index].flaw;
        if chosen == Some(Flaw::BadInvalidation) {
            // Found when the message has been placed.
            self.flaw_of_buffer(index).or(chosen)
        } else {
            chosen.or_else(|| self.flaw_of_buffer(index))
        }
    }

    fn flaw_of_buffer(&self, index: usize) -> Option<Flaw> {
        let op = &self.dir.ops[index];
        if !op.is_send() || op.len == 0 {
            return None;
        }
        let before = self.dir.ops[..index]
            .iter()
            .filter(|other| other.consumes() && other.queue == op.queue)
            .count();
        let recv = self.dir.recvs.get(&op.queue)?.get(before)?;
        // A packet that does not fit is not placed at all.
        let first = op.len.min(self.mtu());
        if recv.is_bad && first <= recv.capacity {
            Some(Flaw::BadBuffer)
        } else {
            (recv.capacity < op.len).then_some(Flaw::TooLong)
        }
    }

    /// Everything that may have gone wrong among the requests that were begun and have not succeeded.
    fn flaws(&self, end: &SendEnd, cut: &Cut) -> Vec<Flaw> {
        (end.done..self.dir.ops.len().min(cut.op + 1))
            .flat_map(|index| [self.dir.ops[index].flaw, self.flaw_of_buffer(index)])
            .flatten()
            .collect()
    }

    pub(crate) fn mtu(&self) -> usize {
        self.world.setup.mtu_bytes()
    }

    /// What came back: all that the requests which succeeded wanted, and a beginning of the rest.
    fn check_results(&self, end: &SendEnd, cut: &Cut, results: &Results) -> Verdict {
        let actual = &self.world.rams[self.side].bytes;
        let mut model = self.world.initial[self.side].clone();
        let mut found = same(&model, actual, &RESULT)
            && results
                .first()
                .is_none_or(|(index, _, _)| *index >= end.done);
        let mut rest = results.iter().peekable();
        let unread =
            (end.done..self.dir.ops.len()).find(|index| self.flaw(*index) == Some(Flaw::Unmapped));
        while let Some((index, _, pieces)) = rest.next() {
            let is_bad = self.flaw(*index) == Some(Flaw::BadResult);
            let is_behind = *index > cut.op || unread.is_some_and(|unread| *index > unread);
            if is_behind || is_bad && self.is_unwritable(*index, pieces) {
                break;
            }
            for (at, bytes) in pieces {
                model[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            let is_enough = rest.peek().is_none_or(|(next, _, _)| *next >= end.done);
            found |= is_enough && same(&model, actual, &RESULT);
        }
        if found {
            Ok(())
        } else {
            let differs = RESULT.clone().find(|at| model[*at] != actual[*at]);
            Err(format!(
                "results of READs and atomics are wrong (at {differs:?})"
            ))
        }
    }

    /// Whether one of the pieces lies where the device may not write.
    fn is_unwritable(&self, index: usize, pieces: &[(usize, Vec<u8>)]) -> bool {
        let good = self.world.keys[self.side].local;
        let sges = &self.dir.ops[index].sges;
        let mut bad = sges.iter().filter(|sge| sge.lkey.0 != good).map(|sge| {
            let start = (sge.addr - BASE) as usize;
            start..start + sge.len as usize
        });
        bad.any(|range| {
            let mut pieces = pieces.iter().filter(|(_, bytes)| !bytes.is_empty());
            pieces.any(|(at, _)| range.contains(at))
        })
    }

    /// A failure has a reason.
    fn check_cause(&self, end: &SendEnd) -> Verdict {
        let Some((index, status)) = end.failed else {
            return Ok(());
        };
        let setup = &self.world.setup;
        let flaw = self.flaw(index);
        let peer_is_dead = self.responder.had_failed;
        let is_outnumbered = setup.max_rd[self.side] > setup.max_dest_rd[1 - self.side];
        let op = &self.dir.ops[index];
        let is_legitimate = match status {
            WcStatus::RETRY_EXC_ERR => {
                // A responder keeps as many results of atomics as it said, and has none to repeat beyond.
                let may_give_up = setup.retry < 7 || setup.cut.is_some() || is_outnumbered;
                peer_is_dead || !setup.is_perfect() && may_give_up
            }
            WcStatus::RNR_RETRY_EXC_ERR => {
                setup.rnr_retry < 7 && (self.dir.starved || self.responder.has_refused)
            }
            WcStatus::BAD_RESP_ERR => self.requester.was_mangled,
            WcStatus::WR_FLUSH_ERR => {
                self.requester.killed == Some(Kill::Error)
                    || self.requester_was_refused_as_responder()
                    || !self.world.is_clean
            }
            WcStatus::REM_INV_REQ_ERR if is_outnumbered && op.brings() => true,
            other => [op.flaw, self.flaw_of_buffer(index)]
                .into_iter()
                .flatten()
                .any(|flaw| status_of(flaw, op) == Some(other)),
        };
        if is_legitimate {
            Ok(())
        } else {
            Err(format!("{status} without a reason ({flaw:?}): {op:?}"))
        }
    }

    fn requester_was_refused_as_responder(&self) -> bool {
        self.requester.events.iter().any(|event| is_failure(*event))
    }

    /// The receive that failed other than by a flush was the one of the request at the cut, and for its reason.
    fn check_receive_failures(&self, flaws: &[Flaw]) -> Verdict {
        for wc in &self.dir.recv_wcs {
            let allowed = match wc.status {
                WcStatus::SUCCESS | WcStatus::WR_FLUSH_ERR => true,
                WcStatus::LOC_LEN_ERR => flaws.contains(&Flaw::TooLong),
                WcStatus::LOC_PROT_ERR => flaws.contains(&Flaw::BadBuffer),
                WcStatus::REM_INV_REQ_ERR => flaws.contains(&Flaw::BadInvalidation),
                WcStatus::LOC_ACCESS_ERR => flaws.iter().any(|flaw| is_access(*flaw)),
                _ => false,
            };
            if !allowed {
                return Err(format!("a receive fails with {} for {flaws:?}", wc.status));
            }
        }
        Ok(())
    }

    /// The responder has raised the event that the flaw at the cut asks for, or none.
    fn check_events(&self, flaws: &[Flaw]) -> Verdict {
        let setup = &self.world.setup;
        let is_outnumbered = setup.max_rd[self.side] > setup.max_dest_rd[1 - self.side];
        let own_kind = match &self.responder.engine {
            Engine::Rc(rc) => rc.config().kind,
            _ => RcKind::Rc,
        };
        for event in &self.responder.events {
            let allowed = match event {
                QpEvent::AccessError => {
                    let mut flaws = flaws.iter();
                    flaws.any(|flaw| is_access(*flaw) || *flaw == Flaw::BadInvalidation)
                }
                QpEvent::RequestError => {
                    let mut flaws = flaws.iter();
                    is_outnumbered
                        || flaws.any(|flaw| matches!(flaw, Flaw::NotGranted | Flaw::NoSuchQueue))
                }
                QpEvent::Fatal => flaws.contains(&Flaw::Unmapped),
                QpEvent::LastWqeReached => {
                    self.world.setup.kind.is_shared() && own_kind != RcKind::XrcInitiator
                }
                QpEvent::CommEst | QpEvent::SqDrained => true,
                _ => false,
            };
            if !allowed {
                return Err(format!("{event:?} for {flaws:?}"));
            }
        }
        let last = self
            .responder
            .events
            .iter()
            .filter(|event| **event == QpEvent::LastWqeReached)
            .count();
        let is_shared = self.world.setup.kind.is_shared();
        let ended = self.responder.engine.state() == QpState::Error;
        if is_shared && ended && last != 1 {
            return Err(format!("the last buffer is reached {last} times"));
        }
        Ok(())
    }
}

/// Events that end a queue pair.
const fn is_failure(event: QpEvent) -> bool {
    matches!(
        event,
        QpEvent::RequestError | QpEvent::AccessError | QpEvent::Fatal
    )
}

/// The peer's memory may not be accessed so, or is not there.
const fn is_access(flaw: Flaw) -> bool {
    matches!(
        flaw,
        Flaw::UnknownKey | Flaw::StaleKey | Flaw::NoRight | Flaw::OutOfBounds | Flaw::Unmapped
    )
}

/// How the requester is told.
fn status_of(flaw: Flaw, op: &Op) -> Option<WcStatus> {
    match flaw {
        Flaw::UnknownKey
        | Flaw::StaleKey
        | Flaw::NoRight
        | Flaw::OutOfBounds
        | Flaw::BadInvalidation => Some(WcStatus::REM_ACCESS_ERR),
        Flaw::Unmapped | Flaw::BadBuffer => Some(WcStatus::REM_OP_ERR),
        Flaw::NotGranted | Flaw::NoSuchQueue | Flaw::TooLong => Some(WcStatus::REM_INV_REQ_ERR),
        Flaw::BadSource | Flaw::BadResult => Some(WcStatus::LOC_PROT_ERR),
        Flaw::BadBinding | Flaw::BadLocalInvalidation if op.is_local() => {
            Some(WcStatus::MW_BIND_ERR)
        }
        _ => None,
    }
}

/// Whether both memories agree there.
pub(crate) fn same(left: &[u8], right: &[u8], range: &Range<usize>) -> bool {
    left[range.clone()] == right[range.clone()]
}

/// The completion of a request that succeeded.
pub(crate) fn check_success(op: &Op, wc: &Completion) -> Verdict {
    if wc.byte_len as usize != op.len || wc.opcode != op.op.wc_opcode() {
        return Err(format!("{wc:?} of {op:?}"));
    }
    Ok(())
}

/// The completion of a receive, of which `grh` bytes are no payload.
pub(crate) fn check_received(op: &Op, wc: &Completion, grh: usize, is_xrc: bool) -> Verdict {
    let opcode = if op.is_send() {
        WcOpcode::RECV
    } else {
        WcOpcode::RECV_RDMA_WITH_IMM
    };
    let invalidated = match op.op {
        SendOp::SendWithInvalidate(key) => Some(key),
        _ => None,
    };
    let holds = wc.byte_len as usize == op.len + grh
        && wc.opcode == opcode
        && wc.imm == op.imm()
        && wc.solicited == op.solicited
        && wc.invalidated == invalidated
        && wc.has_grh == (grh > 0)
        && wc.srqn.map(|srqn| srqn.get()) == is_xrc.then_some(op.queue);
    if holds {
        Ok(())
    } else {
        Err(format!("{wc:?} of {op:?}"))
    }
}
