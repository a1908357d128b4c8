//! What goes out: operations in an order that a seed makes, as many at once as the queue takes, each compared when it is done.

use super::Moved;
use super::direction::{CONSTANT_NUMBER, MAX_LEN, PLACES, SENDS, fill, is_right, layout, take};
use super::receive::Said;
use crate::failure::Failure;
use oarlock_rdmacm::Connection;
use oarlock_verbs::{Buffer, Completion, RemoteAddress, SendRequest};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What an outstanding request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    WriteWithImm,
    /// Into a scratch place, where the READ that follows finds it.
    Write,
    ReadBack {
        number: u64,
    },
    /// From the memory that never changes, from this byte on.
    Read {
        first: usize,
    },
    FetchAdd {
        before: u64,
    },
    CompareSwap {
        before: u64,
    },
    Last,
    /// Its acknowledgement may be lost, and the other side gone.
    Finished,
}

pub(super) struct Sender {
    connection: Arc<Connection>,
    there: RemoteAddress,
    random: u64,
    /// Messages that take a receive.
    messages: u64,
    writes: u64,
    fetch_adds: u64,
    compare_swaps: u64,
    outstanding: VecDeque<Op>,
    spare: Vec<Buffer>,
    words: Vec<Buffer>,
    moved: Moved,
}

impl Sender {
    pub(super) fn new(connection: Arc<Connection>, there: RemoteAddress, seed: u64) -> Self {
        Self {
            connection,
            there,
            random: seed,
            messages: 0,
            writes: 0,
            fetch_adds: 0,
            compare_swaps: 0,
            outstanding: VecDeque::new(),
            spare: Vec::new(),
            words: Vec::new(),
            moved: Moved::default(),
        }
    }

    /// Until `is_over`; then says how much it was, and waits until all of it is done. A side that does not end the connection
    /// then says that nothing of it is under way any more, for the other one to wait for.
    pub(super) fn run(mut self, is_over: impl Fn() -> bool, ends: bool) -> Result<Moved, Failure> {
        while !is_over() {
            // A WRITE and the READ of it are two.
            while self.outstanding.len() + 2 <= SENDS as usize {
                self.begin()?;
            }
            self.wait()?;
        }
        let said = Said {
            messages: self.messages,
            fetch_adds: self.fetch_adds,
            compare_swaps: self.compare_swaps,
        };
        while self.outstanding.len() >= SENDS as usize {
            self.wait()?;
        }
        let last = said.emit();
        let mut buffer = take(&mut self.spare, &self.connection, last.len())?;
        buffer.copy_from_slice(&last);
        self.post(Op::Last, SendRequest::new(0, buffer).imm(Said::IMM))?;
        while !self.outstanding.is_empty() {
            self.wait()?;
        }
        if !ends {
            let finished = SendRequest::inline(0, &[]).imm(Said::FINISHED);
            self.post(Op::Finished, finished)?;
            while !self.outstanding.is_empty() {
                self.wait()?;
            }
        }
        Ok(self.moved)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        let len = 1 + self.dice() as usize % MAX_LEN;
        match self.dice() % 6 {
            0 => {
                let number = self.messages;
                self.messages += 1;
                let buffer = self.message(number, len)?;
                self.moved.sends += 1;
                self.post(Op::Send, SendRequest::new(0, buffer).imm(number as u32))
            }
            1 => {
                let number = self.messages;
                self.messages += 1;
                let buffer = self.message(number, len)?;
                let place = layout::PLACED + number % PLACES * MAX_LEN as u64;
                self.moved.writes_with_imm += 1;
                let to = self.at(place);
                self.post(
                    Op::WriteWithImm,
                    SendRequest::write_imm(0, buffer, to, number as u32),
                )
            }
            2 => {
                self.writes += 1;
                let number = self.writes << 32;
                let buffer = self.message(number, len)?;
                let place = self.writes % layout::SCRATCHES * MAX_LEN as u64;
                let to = self.at(layout::SCRATCH + place);
                self.moved.writes += 1;
                self.post(Op::Write, SendRequest::write(0, buffer, to))?;
                let back = take(&mut self.spare, &self.connection, len)?;
                self.moved.reads += 1;
                let op = Op::ReadBack { number };
                self.post(op, SendRequest::read(0, back, to))
            }
            3 => {
                let first = self.dice() as usize % MAX_LEN;
                let into = take(&mut self.spare, &self.connection, len)?;
                let from = self.at(layout::CONSTANT + first as u64);
                self.moved.reads += 1;
                self.post(Op::Read { first }, SendRequest::read(0, into, from))
            }
            4 => {
                let before = self.fetch_adds;
                self.fetch_adds += 1;
                let word = self.word()?;
                let at = self.at(layout::COUNTER);
                self.moved.atomics += 1;
                let op = Op::FetchAdd { before };
                self.post(op, SendRequest::fetch_add(0, word, at, 1))
            }
            _ => {
                let before = self.compare_swaps;
                self.compare_swaps += 1;
                let word = self.word()?;
                let at = self.at(layout::SWAPPED);
                self.moved.atomics += 1;
                let request = SendRequest::compare_swap(0, word, at, before, before + 1);
                self.post(Op::CompareSwap { before }, request)
            }
        }
    }

    fn post(&mut self, op: Op, request: SendRequest<'_>) -> Result<(), Failure> {
        self.connection.queue_pair.post_send(request)?;
        self.outstanding.push_back(op);
        Ok(())
    }

    fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress {
            addr: self.there.addr.wrapping_add(offset),
            ..self.there
        }
    }

    fn message(&mut self, number: u64, len: usize) -> Result<Buffer, Failure> {
        let mut buffer = take(&mut self.spare, &self.connection, len)?;
        fill(number, 0, &mut buffer);
        self.moved.bytes += len as u64;
        Ok(buffer)
    }

    fn word(&mut self) -> Result<Buffer, Failure> {
        match self.words.pop() {
            Some(word) => Ok(word),
            None => Ok(Buffer::new(&self.connection.pd, size_of::<u64>())?),
        }
    }

    fn wait(&mut self) -> Result<(), Failure> {
        let mut completed = Vec::new();
        let limit = Some(PATIENCE);
        if self.connection.send_cq.wait(&mut completed, limit)? == 0 {
            return Err(Failure::Stalled {
                seconds: PATIENCE.as_secs(),
                awaited: "completions",
                missing: self.outstanding.len(),
                total: self.outstanding.len(),
                hint: "",
            });
        }
        for completion in completed {
            self.complete(completion)?;
        }
        Ok(())
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Failure> {
        let is_finished = self.outstanding.front() == Some(&Op::Finished);
        if !completion.status.is_success() && !is_finished {
            return Err(Failure::Completion {
                connection: 0,
                operation: "a request",
                status: format!("{} ({})", completion.status, completion.vendor_err),
                hint: "",
            });
        }
        let Some(op) = self.outstanding.pop_front() else {
            return Err(Failure::Result(
                "a request completed that was not outstanding".to_owned(),
            ));
        };
        for buffer in completion.buffers {
            let right = match op {
                Op::Send | Op::WriteWithImm | Op::Write | Op::Last | Op::Finished => true,
                Op::ReadBack { number } => is_right(number, 0, &buffer),
                Op::Read { first } => is_right(CONSTANT_NUMBER, first, &buffer),
                Op::FetchAdd { before } | Op::CompareSwap { before } => {
                    buffer[..] == before.to_ne_bytes()
                }
            };
            self.moved.mismatches += u64::from(!right);
            match op {
                Op::FetchAdd { .. } | Op::CompareSwap { .. } => self.words.push(buffer),
                _ => self.spare.push(buffer),
            }
        }
        Ok(())
    }

    /// A number that follows from the seed (xorshift64*).
    fn dice(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        // Zero would stay zero.
        self.random |= u64::from(self.random == 0);
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }
}

/// At a loss of some percent a request may be repeated several times, and the others wait behind it.
const PATIENCE: Duration = Duration::from_secs(60);
