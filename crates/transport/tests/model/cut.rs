//! The reference: requests carried out one by one, packet by packet, until the memory is what it is.

use std::ops::Range;

use oarlock_transport::{AtomicOp, SendOp, Sge};

use crate::judge::{Judge, SendEnd, check_received, same};
use crate::memory::{BASE, after};
use crate::plan::{Flaw, Kill, Op, RECV, REMOTE, Recv};
use crate::world::Verdict;

/// Where the executed requests end: the first that was not executed, or not wholly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) op: usize,
}

/// What READs and atomics have brought back: of which request, which packet, where, and what.
pub(crate) type Results = Vec<(usize, usize, Vec<(usize, Vec<u8>)>)>;

impl Judge<'_> {
    /// Carries requests out one by one, and packet by packet, until the memory is what it is.
    pub(crate) fn find_cut(
        &self,
        end: &SendEnd,
        received: &[(u32, usize)],
    ) -> Result<(Cut, Results), String> {
        let (own, peer) = (self.side, 1 - self.side);
        let actual = &self.world.rams[peer].bytes;
        let mut remote = self.world.initial[peer].clone();
        // As if every result had come back: what a fenced request sends.
        let mut local = self.world.initial[own].clone();
        let mut results = Results::new();
        let mut consumed: Vec<(u32, usize)> = received.iter().map(|(q, _)| (*q, 0)).collect();
        let was_reset = self.responder.killed == Some(Kill::Reset);
        let agrees = |remote: &[u8], consumed: &[(u32, usize)]| {
            let counted = consumed
                .iter()
                .zip(received)
                .all(|((_, model), (_, seen))| model == seen || was_reset && model > seen);
            counted && same(remote, actual, &REMOTE) && same(remote, actual, &RECV)
        };
        let mut found = None;
        for index in 0..=self.dir.ops.len() {
            let may_end = index >= end.done;
            if may_end && agrees(&remote, &consumed) {
                found = Some(Cut { op: index });
            }
            let Some(op) = self.dir.ops.get(index) else {
                break;
            };
            let flaw = self.flaw(index);
            if index < end.done && flaw.is_some() {
                return Err(format!("{flaw:?}, and it succeeds: {op:?}"));
            }
            // The peer knows nothing of where its answer goes, and fetches what a READ wants when it answers.
            let flaw = match flaw {
                Some(Flaw::BadResult) => None,
                Some(Flaw::Unmapped) if op.is_read() => None,
                flaw => flaw,
            };
            let place = consumed.iter().position(|(queue, _)| *queue == op.queue);
            let recv = place.and_then(|place| {
                let (queue, count) = consumed[place];
                self.dir.recvs.get(&queue)?.get(count)
            });
            let waits = op.consumes() && recv.is_none() && flaw != Some(Flaw::NoSuchQueue);
            if waits && index < end.done {
                return Err(format!("no buffer was posted for {op:?}"));
            }
            let packets = op.len.div_ceil(self.mtu()).max(1);
            let fetches_nothing = self.flaw(index) == Some(Flaw::Unmapped) && op.is_read();
            let effective = match effective_packets(op, flaw, packets) {
                _ if fetches_nothing => 0,
                // A WRITE with immediate needs its buffer with its last packet, a SEND with its first.
                count if waits && op.is_write() => count.min(packets - 1),
                _ if waits => 0,
                count => count,
            };
            let data = self.data(op, &local);
            for packet in 0..effective {
                self.execute(op, index, packet, recv, &data, &mut remote, &mut results)?;
                let is_partial = packet + 1 < packets || flaw.is_some();
                if may_end && is_partial && agrees(&remote, &consumed) {
                    found = Some(Cut { op: index });
                }
            }
            if flaw.is_some() || waits {
                break;
            }
            for (of, _, pieces) in &results {
                for (at, bytes) in pieces.iter().filter(|_| *of == index) {
                    local[*at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
            if op.consumes()
                && let Some(place) = place
            {
                self.check_receive(op, recv, consumed[place].1)?;
                consumed[place].1 += 1;
            }
        }
        found.map(|cut| (cut, results)).ok_or_else(|| {
            let first = |range: &Range<usize>| {
                range.clone().find(|at| remote[*at] != actual[*at])
            };
            format!(
                "no cut from {} of {} on explains the peer's memory (differs at {:?}, {:?}) and {received:?} receives (model {consumed:?})",
                end.done,
                self.dir.ops.len(),
                first(&REMOTE),
                first(&RECV)
            )
        })
    }

    /// The bytes that a request carries.
    fn data(&self, op: &Op, local: &[u8]) -> Vec<u8> {
        match &op.inline {
            Some(bytes) => bytes.clone(),
            None if op.brings() || op.flaw == Some(Flaw::BadSource) && op.sges.is_empty() => {
                Vec::new()
            }
            None => op
                .stretches()
                .flat_map(|stretch| local[stretch].to_vec())
                .collect(),
        }
    }

    /// The effect of one packet of a request.
    #[expect(clippy::too_many_arguments, reason = "one call")]
    fn execute(
        &self,
        op: &Op,
        index: usize,
        packet: usize,
        recv: Option<&Recv>,
        data: &[u8],
        remote: &mut [u8],
        results: &mut Results,
    ) -> Verdict {
        let mtu = self.mtu();
        let part = packet * mtu..((packet + 1) * mtu).min(op.len);
        match op.op {
            SendOp::Write(_) | SendOp::WriteWithImm(..) => {
                let to = op.remote + part.start..op.remote + part.end;
                remote[to].copy_from_slice(&data[part]);
            }
            SendOp::Read(_) => {
                let bytes = &remote[op.remote + part.start..op.remote + part.end];
                let pieces = pieces(&op.sges, &part);
                let pieces = pieces.into_iter().map(|(at, from)| {
                    let from = from.start - part.start..from.end - part.start;
                    (at, bytes[from].to_vec())
                });
                results.push((index, packet, pieces.collect()));
            }
            SendOp::CompareSwap { compare, swap, .. } => {
                let operation = AtomicOp::CompareSwap { compare, swap };
                atomic(op, index, operation, remote, results);
            }
            SendOp::FetchAdd { add, .. } => {
                atomic(op, index, AtomicOp::FetchAdd { add }, remote, results);
            }
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_) => {
                let Some(recv) = recv else {
                    return Err("a SEND without a buffer".to_owned());
                };
                if part.end <= recv.capacity {
                    for (at, from) in pieces(&recv.sges, &part) {
                        remote[at..at + from.len()].copy_from_slice(&data[from]);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A receive that succeeded says what the request said.
    fn check_receive(&self, op: &Op, recv: Option<&Recv>, count: usize) -> Verdict {
        let Some(recv) = recv else { return Ok(()) };
        let seen = self
            .dir
            .recv_wcs
            .iter()
            .find(|wc| wc.wr_id == recv.wr_id && wc.status.is_success());
        match seen {
            Some(wc) => check_received(op, wc, 0, self.world.setup.kind.queues().len() > 1)
                .map_err(|wrong| format!("receive {count}: {wrong}")),
            None => Ok(()),
        }
    }
}

/// Packets of a flawed request that may have an effect.
fn effective_packets(op: &Op, flaw: Option<Flaw>, packets: usize) -> usize {
    match flaw {
        // A long READ is asked for in pieces, each looked at by itself.
        Some(Flaw::OutOfBounds) if op.is_read() => packets,
        None | Some(Flaw::BadSource | Flaw::TooLong | Flaw::BadBuffer | Flaw::BadInvalidation) => {
            packets
        }
        Some(_) => 0,
    }
}

fn atomic(op: &Op, index: usize, operation: AtomicOp, remote: &mut [u8], results: &mut Results) {
    let word = &mut remote[op.remote..op.remote + 8];
    let before: [u8; 8] = (&*word).try_into().expect("8 bytes");
    let value = after(u64::from_ne_bytes(before), operation);
    word.copy_from_slice(&value.to_ne_bytes());
    let pieces = pieces(&op.sges, &(0..8));
    let pieces = pieces
        .into_iter()
        .map(|(at, from)| (at, before[from].to_vec()));
    results.push((index, 0, pieces.collect()));
}

/// Where the bytes `part` of a message lie, by a scatter/gather list.
pub(crate) fn pieces(sges: &[Sge], part: &Range<usize>) -> Vec<(usize, Range<usize>)> {
    let mut pieces = Vec::new();
    let mut first = 0;
    for sge in sges {
        let end = first + sge.len as usize;
        let (from, to) = (part.start.max(first), part.end.min(end));
        if from < to {
            pieces.push(((sge.addr - BASE) as usize + from - first, from..to));
        }
        first = end;
    }
    pieces
}
