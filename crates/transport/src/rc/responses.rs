//! Responses that wait to be sent, in the order of the requests that they answer.
//!
//! Consecutive ACKs are merged into the latest; a NAK keeps its place among them, and so do the data of READs and the results
//! of atomics: an acknowledgement that overtook them would say that they are lost. The data of one READ are many packets: each is
//! read from memory when it is built, and between two of them a request of this side may leave.

use std::collections::VecDeque;

use oarlock_wire::{Aeth, AtomicAckEth, Bth, NakCode, Opcode, Psn, RKey, Srqn, Syndrome};

use super::Rc;
use super::headers::Headers;
use super::responder::Refusal;
use crate::counters::Counter;
use crate::memory::{Memory, MemoryError};
use crate::packet::PacketBuf;

/// ACKs and NAKs that may wait beside what READs and atomics need. ACKs are merged, so that more than one waits only when gaps
/// and packets alternate.
const SPARE: usize = 16;

#[derive(Clone, Copy, Debug)]
enum Response {
    Acknowledge(Acknowledge),
    Atomic(Acknowledge, u64, bool),
    Read(ReadJob),
}

#[derive(Clone, Copy, Debug)]
struct Acknowledge {
    psn: Psn,
    syndrome: Syndrome,
    msn: u32,
}

/// The response of a READ, as far as it is still to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadJob {
    /// PSN of the next packet.
    pub(super) psn: Psn,
    /// The PSN after the last packet.
    pub(super) end: Psn,
    pub(super) msn: u32,
    /// Where the next byte comes from.
    pub(super) addr: u64,
    pub(super) rkey: RKey,
    /// Bytes still to be sent.
    pub(super) left: u32,
    /// Nothing was sent yet.
    pub(super) is_first: bool,
    /// The request had been answered before.
    pub(super) is_repetition: bool,
    /// XRC: the queue that the request named.
    pub(super) srqn: Option<Srqn>,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Responses {
    queue: VecDeque<Response>,
    /// How many may wait.
    limit: usize,
    /// ACKs and NAKs among them.
    acknowledges: usize,
    /// READs and atomics among them, without repetitions.
    outstanding: usize,
    /// Repetitions of READs among them.
    repetitions: usize,
    /// The last packet sent was data of a READ.
    data_was_sent: bool,
}

impl Responses {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::with_capacity(SPARE),
            limit: SPARE,
            acknowledges: 0,
            outstanding: 0,
            repetitions: 0,
            data_was_sent: false,
        }
    }

    /// Makes room for so many READs and atomics at once.
    pub(super) fn settle(&mut self, count: usize) {
        self.limit = SPARE + 2 * count;
        self.queue
            .reserve_exact(self.limit.saturating_sub(self.queue.len()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= self.limit
    }

    /// Whether an ACK or NAK waits, and not for the data of a READ.
    pub(super) fn has_acknowledge(&self) -> bool {
        let waits = || {
            let mut before_data = self
                .queue
                .iter()
                .take_while(|response| !matches!(response, Response::Read(_)));
            before_data.any(|response| matches!(response, Response::Acknowledge(_)))
        };
        self.acknowledges > 0 && waits()
    }

    pub(super) const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Whether it is a request's turn: data come next and came last.
    pub(super) fn gives_way(&self) -> bool {
        self.data_was_sent && matches!(self.queue.front(), Some(Response::Read(_)))
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Appends the response of a READ. The caller has seen that there is room.
    pub(super) fn push_read(&mut self, job: ReadJob) {
        self.outstanding += 1;
        self.queue.push_back(Response::Read(job));
    }

    /// Starts a READ from the place of `job` once more: in its old place, if it is still waiting or under way, else at the end.
    /// False if that would be more than `limit` repetitions, or there is no room.
    pub(super) fn repeat_read(&mut self, job: ReadJob, limit: usize) -> bool {
        let mut reads = self.queue.iter_mut().filter_map(|response| match response {
            Response::Read(read) => Some(read),
            _ => None,
        });
        if let Some(waiting) = reads.find(|read| read.end == job.end) {
            // Interop: kernel soft RoCE expects "first" where it asked from, even if that is in the middle of what is under
            // way.
            *waiting = ReadJob {
                is_repetition: waiting.is_repetition,
                ..job
            };
            return true;
        }
        if self.repetitions >= limit || self.is_full() {
            return false;
        }
        self.repetitions += 1;
        self.queue.push_back(Response::Read(job));
        true
    }

    /// Drops the data of READs and all that would have to wait for them: the program has ended the connection.
    pub(super) fn drop_reads(&mut self) {
        let first = self
            .queue
            .iter()
            .position(|response| matches!(response, Response::Read(_)));
        while first.is_some_and(|first| self.queue.len() > first) {
            if let Some(dropped) = self.queue.pop_back() {
                self.forget(&dropped);
            }
        }
    }

    fn clear(&mut self) {
        while let Some(dropped) = self.queue.pop_back() {
            self.forget(&dropped);
        }
    }

    /// The response has left the queue.
    const fn forget(&mut self, response: &Response) {
        match response {
            Response::Acknowledge(_) => self.acknowledges -= 1,
            Response::Atomic(_, _, false) => self.outstanding -= 1,
            Response::Atomic(_, _, true) => {}
            Response::Read(job) if job.is_repetition => self.repetitions -= 1,
            Response::Read(_) => self.outstanding -= 1,
        }
    }

    /// Answers so in place of the response that was to be sent next.
    fn replace_front(&mut self, acknowledge: Acknowledge) {
        let _ = self.pop();
        self.acknowledges += 1;
        self.queue.push_front(Response::Acknowledge(acknowledge));
    }

    fn pop(&mut self) -> Option<Response> {
        let response = self.queue.pop_front()?;
        self.forget(&response);
        Some(response)
    }

    /// A request has been sent.
    pub(super) const fn note_request(&mut self) {
        self.data_was_sent = false;
    }
}

impl Rc {
    /// Everything before the expected PSN is done.
    pub(super) fn respond_ack(&mut self) {
        self.respond(self.responder.expected.sub(1), self.ack_syndrome());
    }

    pub(super) fn respond(&mut self, psn: Psn, syndrome: Syndrome) {
        let acknowledge = Acknowledge {
            psn,
            syndrome,
            msn: self.responder.msn,
        };
        let responses = &mut self.responder.responses;
        if let Some(Response::Acknowledge(last)) = responses.queue.back_mut()
            && is_ack(last.syndrome)
            && is_ack(syndrome)
        {
            self.counters.count(Counter::AcksDeferred);
            if !psn.is_before(last.psn) {
                *last = acknowledge;
            }
        } else if responses.is_full() {
            self.counters.count(Counter::ResponsesSuppressed);
        } else {
            responses.acknowledges += 1;
            responses
                .queue
                .push_back(Response::Acknowledge(acknowledge));
        }
    }

    pub(super) fn respond_atomic(&mut self, psn: Psn, original: u64, is_repetition: bool) {
        let acknowledge = Acknowledge {
            psn,
            syndrome: self.ack_syndrome(),
            msn: self.responder.msn,
        };
        let responses = &mut self.responder.responses;
        if responses.is_full() {
            return self.counters.count(Counter::ResponsesSuppressed);
        }
        responses.outstanding += usize::from(!is_repetition);
        responses
            .queue
            .push_back(Response::Atomic(acknowledge, original, is_repetition));
    }

    /// Writes the next response, if one waits.
    pub(super) fn next_response(
        &mut self,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<usize> {
        let responses = &mut self.responder.responses;
        if let Some(&Response::Read(job)) = responses.queue.front() {
            match self.read_response(&job, memory, out) {
                Ok(len) => return Some(len),
                Err(error) => self.fail_read(&job, error),
            }
        }
        self.responder.responses.data_was_sent = false;
        match self.responder.responses.pop()? {
            Response::Acknowledge(acknowledge) => {
                self.count_acknowledge(acknowledge.syndrome);
                let bth = self.response_bth(Opcode::RC_ACKNOWLEDGE, acknowledge.psn);
                let mut headers = Headers::of(bth, 0, out);
                headers.put(|out| acknowledge.aeth().emit(out));
                Some(headers.finish())
            }
            Response::Atomic(acknowledge, original, _) => {
                self.counters.count(Counter::AtomicResponsesSent);
                let bth = self.response_bth(Opcode::RC_ATOMIC_ACKNOWLEDGE, acknowledge.psn);
                let mut headers = Headers::of(bth, 0, out);
                headers.put(|out| acknowledge.aeth().emit(out));
                headers.put(|out| AtomicAckEth { original }.emit(out));
                Some(headers.finish())
            }
            // Was sent above, or has failed and is gone.
            Response::Read(_) => None,
        }
    }

    /// One packet of the READ at the front of the queue.
    fn read_response(
        &mut self,
        job: &ReadJob,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Result<usize, MemoryError> {
        let payload_len = job.left.min(self.mtu);
        let is_last = job.left == payload_len;
        let opcode = match (job.is_first, is_last) {
            (true, true) => Opcode::RC_RDMA_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_RDMA_READ_RESPONSE_FIRST,
            (false, false) => Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
            (false, true) => Opcode::RC_RDMA_READ_RESPONSE_LAST,
        };
        let payload_len = payload_len as usize;
        let bth = self.response_bth(opcode, job.psn);
        let mut headers = Headers::of(bth, payload_len, out);
        if job.is_first || is_last {
            let aeth = Aeth {
                syndrome: self.ack_syndrome(),
                msn: job.msn,
            };
            headers.put(|out| aeth.emit(out));
        }
        if payload_len > 0 {
            if let Some(srqn) = job.srqn
                && !memory.select_shared(srqn)
            {
                return Err(MemoryError::InvalidRemoteKey(job.rkey));
            }
            memory.announce((job.left as usize - payload_len) as u64);
            memory.read_remote(job.rkey, job.addr, headers.payload())?;
        }
        let len = headers.finish();
        self.counters.count(Counter::ReadResponsesSent);
        let responses = &mut self.responder.responses;
        responses.data_was_sent = true;
        if is_last {
            let _ = responses.pop();
        } else if let Some(Response::Read(next)) = responses.queue.front_mut() {
            next.psn = job.psn.next();
            next.addr = job.addr.wrapping_add(payload_len as u64);
            next.left = job.left - payload_len as u32;
            next.is_first = false;
        }
        Ok(len)
    }

    /// Memory that was to be read is not there any more: the peer is told in place of the data, and the connection ends. Not so
    /// for a repetition: it may have been under way since before the peer gave its key back, and be answered to nobody.
    fn fail_read(&mut self, job: &ReadJob, error: MemoryError) {
        let Refusal::Fatal(fatal) = Refusal::remote_memory(error, None) else {
            return;
        };
        let nak = Syndrome::Nak(fatal.nak);
        if job.is_repetition {
            let nak = Acknowledge {
                psn: job.psn,
                syndrome: nak,
                msn: self.responder.msn,
            };
            self.responder.responses.replace_front(nak);
        } else {
            self.responder.responses.clear();
            self.respond(job.psn, nak);
            self.end(&fatal);
        }
    }

    fn count_acknowledge(&mut self, syndrome: Syndrome) {
        let counter = match syndrome {
            Syndrome::Ack { .. } => Counter::AcksSent,
            Syndrome::RnrNak(_) => Counter::RnrNaksSent,
            Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => Counter::SequenceNaksSent,
            _ => Counter::FatalNaksSent,
        };
        self.counters.count(counter);
        let code = match syndrome {
            Syndrome::Nak(NakCode::INVALID_REQUEST) => Counter::InvalidRequestNaksSent,
            Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR) => Counter::RemoteAccessNaksSent,
            Syndrome::Nak(NakCode::REMOTE_OPERATIONAL_ERROR) => Counter::RemoteOperationalNaksSent,
            _ => return,
        };
        self.counters.count(code);
    }

    fn response_bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        let opcode = opcode.of(self.config.kind.class());
        Bth {
            pkey: self.attr.pkey,
            ..Bth::new(opcode, self.attr.dest_qpn, psn)
        }
    }
}

impl Acknowledge {
    const fn aeth(&self) -> Aeth {
        Aeth {
            syndrome: self.syndrome,
            msn: self.msn,
        }
    }
}

const fn is_ack(syndrome: Syndrome) -> bool {
    matches!(syndrome, Syndrome::Ack { .. })
}
