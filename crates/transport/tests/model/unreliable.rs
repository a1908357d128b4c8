//! What a life of a UC or UD pair may have come to. A message arrives or it does not; the reference follows what was seen, and
//! demands that it could have been so.
//!
//! - A request succeeds unless something of its own side is wrong.
//! - A receive that succeeds holds a message that was sent, bit by bit; over UC the messages arrive in order, each at most once.
//! - A WRITE has placed its first packets, as many as there may be, and nothing else; with the completion of its immediate value,
//!   all of them.
//! - When the network is perfect and buffers wait, everything arrives.

use oarlock_transport::{Completion, WcStatus};
use oarlock_wire::Grh;

use crate::cut::pieces;
use crate::engine::{Engine, gid};
use crate::judge::{check_received, check_success};
use crate::plan::{Flaw, Kill, Op, RECV, REMOTE, Recv};
use crate::world::{Direction, Verdict, World};

/// How a request ended at its own side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Sent,
    /// It failed, or was flushed: some of its packets may have been sent.
    Stopped,
    /// The queue pair was reset: nobody is told.
    Forgotten,
}

/// What `side` asked for; gives the flaws that have shown.
pub(crate) fn judge(world: &World<'_>, side: usize) -> Result<Vec<Flaw>, String> {
    let dir = &world.dirs[side];
    let mut flaws = Vec::new();
    let ends = send_ends(world, side, &mut flaws)?;
    let arrived = receives(world, side, &ends, &mut flaws)?;
    writes(world, side, &ends, &arrived, &mut flaws)?;
    let is_strict = world.setup.is_perfect() && world.setup.flaws == 0.0 && world.is_clean;
    if is_strict && !dir.starved {
        let missing = dir
            .ops
            .iter()
            .zip(&arrived)
            .find(|(op, arrived)| op.consumes() && !**arrived && op.flaw.is_none());
        if let Some((op, _)) = missing {
            return Err(format!("over a perfect network it never arrives: {op:?}"));
        }
    }
    for (op, arrived) in dir.ops.iter().zip(&arrived) {
        if op.flaw == Some(Flaw::WrongQkey) && !arrived {
            flaws.push(Flaw::WrongQkey);
        }
    }
    Ok(flaws)
}

/// The statuses of the requests, each in its turn.
fn send_ends(world: &World<'_>, side: usize, flaws: &mut Vec<Flaw>) -> Result<Vec<End>, String> {
    let dir = &world.dirs[side];
    let endpoint = &world.links[0][side];
    let all_signaled = match &endpoint.engine {
        Engine::Uc(uc) => uc.config().sq_sig_all,
        Engine::Ud(ud) => ud.config().sq_sig_all,
        Engine::Rc(_) => false,
    };
    let mut ends = Vec::new();
    let mut has_failed = false;
    let silent = |op: &Op| {
        if op.signaled || all_signaled || local_failure(op).is_some() {
            Err(format!("no completion of {op:?}"))
        } else {
            Ok(End::Sent)
        }
    };
    for wc in &dir.send_wcs {
        let index = dir.ops[ends.len()..]
            .iter()
            .position(|op| op.wr_id == wc.wr_id)
            .ok_or_else(|| format!("a completion out of nowhere or out of order: {wc:?}"))?
            + ends.len();
        for op in &dir.ops[ends.len()..index] {
            ends.push(silent(op)?);
        }
        let op = &dir.ops[index];
        let failure = local_failure(op);
        if wc.status.is_success() {
            if failure.is_some() {
                return Err(format!("{failure:?} was to be expected: {op:?}"));
            }
            if !op.signaled && !all_signaled {
                return Err(format!("a completion that was not asked for: {op:?}"));
            }
            check_success(op, wc)?;
            ends.push(End::Sent);
            continue;
        }
        let is_flush = wc.status == WcStatus::WR_FLUSH_ERR;
        if is_flush {
            if !has_failed && world.is_clean {
                return Err(format!("flushed without a reason: {op:?}"));
            }
        } else if failure != Some(wc.status) {
            return Err(format!("{} instead of {failure:?}: {op:?}", wc.status));
        } else {
            flaws.extend(op.flaw);
        }
        has_failed = true;
        ends.push(End::Stopped);
    }
    let was_reset = endpoint.killed == Some(Kill::Reset);
    for op in &dir.ops[ends.len()..] {
        let end = if was_reset {
            Ok(End::Forgotten)
        } else {
            silent(op)
        };
        ends.push(end?);
    }
    Ok(ends)
}

/// How a request fails at its own side.
const fn local_failure(op: &Op) -> Option<WcStatus> {
    match op.flaw {
        Some(Flaw::BadSource) => Some(WcStatus::LOC_PROT_ERR),
        Some(Flaw::BadBinding | Flaw::BadLocalInvalidation) => Some(WcStatus::MW_BIND_ERR),
        _ => None,
    }
}

/// The bytes of a message.
fn data(world: &World<'_>, side: usize, op: &Op) -> Vec<u8> {
    match &op.inline {
        Some(bytes) => bytes.clone(),
        None => op
            .stretches()
            .flat_map(|stretch| world.initial[side][stretch].to_vec())
            .collect(),
    }
}

/// Matches the receives with the messages; gives which have arrived.
fn receives(
    world: &World<'_>,
    side: usize,
    ends: &[End],
    flaws: &mut Vec<Flaw>,
) -> Result<Vec<bool>, String> {
    let dir = &world.dirs[side];
    let kind = world.setup.kind;
    let memory = &world.rams[1 - side].bytes;
    let none = Vec::new();
    let recvs = dir.recvs.get(&kind.queues()[0]).unwrap_or(&none);
    let ids: Vec<_> = dir.recv_wcs.iter().map(|wc| wc.wr_id).collect();
    let posted: Vec<_> = recvs.iter().map(|recv| recv.wr_id).collect();
    if posted.get(..ids.len()) != Some(&ids[..]) {
        return Err(format!(
            "receives complete as {ids:?}, posted as {posted:?}"
        ));
    }
    let was_reset = world.links[0][1 - side].killed == Some(Kill::Reset);
    if !kind.is_shared() && !was_reset && ids.len() != posted.len() {
        return Err(format!(
            "{} of {} receives complete",
            ids.len(),
            posted.len()
        ));
    }
    let mut arrived = vec![false; dir.ops.len()];
    let mut next = 0;
    let mut has_failed = false;
    for (wc, recv) in dir.recv_wcs.iter().zip(recvs) {
        if !wc.status.is_success() {
            check_failure(world, wc, recv, &mut has_failed, flaws)?;
            continue;
        }
        if has_failed {
            return Err("a receive succeeds in the error state".to_owned());
        }
        let grh = if kind.is_ud() { 40 } else { 0 };
        let length = wc.byte_len as usize;
        let mut seen = vec![0; length];
        for (at, from) in pieces(&recv.sges, &(0..length)) {
            let len = from.len();
            seen[from].copy_from_slice(&memory[at..at + len]);
        }
        let may_repeat = world.setup.network.duplication > 0.0 && kind.is_ud();
        let start = if kind.is_ud() { 0 } else { next };
        let is_written = |op: &Op| !op.is_send();
        let found = (start..dir.ops.len()).find(|index| {
            let op = &dir.ops[*index];
            let fits = op.consumes()
                && ends[*index] != End::Stopped
                && (op.flaw.is_none())
                && (!arrived[*index] || may_repeat)
                && check_received(op, wc, grh, false).is_ok();
            fits && (is_written(op) || seen.get(grh..) == Some(&data(world, side, op)[..]))
        });
        let Some(index) = found else {
            return Err(format!("a message that nobody sent: {wc:?} {seen:02x?}"));
        };
        if recv.is_bad && dir.ops[index].is_send() && length > 0 {
            return Err(format!("{recv:?} cannot be written"));
        }
        check_datagram(world, side, wc, &seen)?;
        arrived[index] = true;
        next = index + 1;
    }
    untouched_between(world, side, recvs)?;
    Ok(arrived)
}

fn check_datagram(world: &World<'_>, side: usize, wc: &Completion, seen: &[u8]) -> Verdict {
    if !world.setup.kind.is_ud() {
        return Ok(());
    }
    let grh = seen
        .first_chunk()
        .and_then(|bytes| Grh::parse(bytes).ok())
        .ok_or("a datagram without a GRH")?;
    let addresses = (grh.source, grh.destination);
    if addresses != (gid(side).to_ip(), gid(1 - side).to_ip()) {
        return Err(format!("a GRH of another path: {grh:?}"));
    }
    if wc.src_qp.get() as usize != 0x10 + side {
        return Err(format!("a datagram of queue pair {}", wc.src_qp));
    }
    Ok(())
}

fn check_failure(
    world: &World<'_>,
    wc: &Completion,
    recv: &Recv,
    has_failed: &mut bool,
    flaws: &mut Vec<Flaw>,
) -> Verdict {
    let kind = world.setup.kind;
    let is_legitimate = match wc.status {
        WcStatus::WR_FLUSH_ERR => {
            *has_failed = true;
            true
        }
        WcStatus::LOC_PROT_ERR => {
            *has_failed = true;
            flaws.push(Flaw::BadBuffer);
            recv.is_bad
        }
        WcStatus::LOC_LEN_ERR => {
            flaws.push(Flaw::TooLong);
            kind.is_shared()
        }
        // A message that was never finished: its end was lost, its sender failed, or its peer is gone.
        WcStatus::REM_INV_REQ_ERR => {
            kind.is_shared()
                && kind.is_uc()
                && (!world.setup.is_perfect() || world.setup.flaws > 0.0)
        }
        _ => false,
    };
    if is_legitimate {
        Ok(())
    } else {
        Err(format!("a receive fails with {}: {recv:?}", wc.status))
    }
}

/// Nothing lies between the buffers. In those that hold no message there may be the beginning of one.
fn untouched_between(world: &World<'_>, side: usize, recvs: &[Recv]) -> Verdict {
    let (actual, initial) = (&world.rams[1 - side].bytes, &world.initial[1 - side]);
    let mut model = initial[RECV].to_vec();
    for recv in recvs {
        let all = 0..recv.capacity;
        for (at, from) in pieces(&recv.sges, &all) {
            let at = at - RECV.start;
            let from_memory = &actual[RECV.start + at..RECV.start + at + from.len()];
            model[at..at + from.len()].copy_from_slice(from_memory);
        }
    }
    if model == actual[RECV] {
        Ok(())
    } else {
        Err("something was placed between the receive buffers".to_owned())
    }
}

/// Each WRITE has memory of its own: the first packets of it are there, and the rest is as before.
fn writes(
    world: &World<'_>,
    side: usize,
    ends: &[End],
    arrived: &[bool],
    flaws: &mut Vec<Flaw>,
) -> Verdict {
    let dir: &Direction = &world.dirs[side];
    let actual = &world.rams[1 - side].bytes;
    let mut model = world.initial[1 - side].clone();
    let mtu = world.setup.mtu_bytes();
    let is_strict = world.setup.is_perfect() && world.is_clean;
    for (index, op) in dir.ops.iter().enumerate() {
        if !op.is_write() {
            continue;
        }
        if !matches!(op.flaw, None | Some(Flaw::BadSource)) {
            // Nothing of it is placed, as the last comparison shows.
            flaws.extend(op.flaw);
            continue;
        }
        let range = op.remote..op.remote + op.len;
        let must_be_whole = arrived[index]
            || is_strict
                && op.flaw.is_none()
                && ends[index] == End::Sent
                && matches!(op.op, oarlock_transport::SendOp::Write(_));
        let bytes = data(world, side, op);
        let packets = op.len.div_ceil(mtu);
        let fewest = if must_be_whole { packets } else { 0 };
        let found = (fewest..=packets).find(|count| {
            let (placed, rest) = bytes.split_at((count * mtu).min(op.len));
            let (new, old) = actual[range.clone()].split_at(placed.len());
            let before = &world.initial[1 - side][range.clone()];
            debug_assert_eq!(old.len(), rest.len());
            new == placed && *old == before[placed.len()..]
        });
        let Some(count) = found else {
            return Err(format!("neither whole nor in part: {op:?}"));
        };
        let len = (count * mtu).min(op.len);
        model[op.remote..op.remote + len].copy_from_slice(&bytes[..len]);
    }
    if model[REMOTE] == actual[REMOTE] {
        Ok(())
    } else {
        Err("memory that no WRITE was for has changed".to_owned())
    }
}
