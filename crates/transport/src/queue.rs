//! The two work queues: rings of work queue entries with their scatter/gather lists beside them.
//!
//! Every array is allocated when the queue pair is made. Entries are named by a serial number that only grows; the slot is
//! the serial number modulo the depth, so that a serial number kept elsewhere (the requester's cursor) never points at the
//! wrong entry.

use oarlock_wire::Psn;

use crate::error::Error;
use crate::memory::Sge;
use crate::work::{RecvWr, SendData, SendOp, SendWr};

/// A send-queue entry. Its PSNs are fixed when it is posted: a repetition must use the same ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// Length of the message.
    pub(crate) length: u32,
    pub(crate) first_psn: Psn,
    /// How many PSNs the request takes: its packets, or, for a READ, the packets of the response.
    pub(crate) psns: u32,
    is_inline: bool,
    sge_count: u32,
}

impl SendWqe {
    /// The PSN after the last of this request.
    pub(crate) const fn end_psn(&self) -> Psn {
        self.first_psn.add(self.psns)
    }
}

/// Where a send-queue entry's bytes are.
pub(crate) enum Source<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

#[derive(Debug)]
pub(crate) struct SendQueue {
    wqes: Box<[SendWqe]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    max_sge: u32,
    max_inline: u32,
    head: u64,
    tail: u64,
    /// Entries in the ring and completions not yet polled.
    outstanding: u32,
}

impl SendQueue {
    pub(crate) fn new(depth: u32, max_sge: u32, max_inline: u32) -> Self {
        let empty = SendWqe {
            wr_id: 0,
            op: SendOp::Send,
            signaled: false,
            solicited: false,
            length: 0,
            first_psn: Psn::default(),
            psns: 0,
            is_inline: false,
            sge_count: 0,
        };
        Self {
            wqes: vec![empty; depth as usize].into(),
            sges: vec![Sge::default(); depth as usize * max_sge as usize].into(),
            inline: vec![0; depth as usize * max_inline as usize].into(),
            max_sge,
            max_inline,
            head: 0,
            tail: 0,
            outstanding: 0,
        }
    }

    /// Serial number of the oldest entry; equals [`tail`](Self::tail) when there is none.
    pub(crate) const fn head(&self) -> u64 {
        self.head
    }

    /// Serial number of the next entry to be posted.
    pub(crate) const fn tail(&self) -> u64 {
        self.tail
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    fn slot(&self, serial: u64) -> usize {
        (serial % self.wqes.len() as u64) as usize
    }

    pub(crate) fn get(&self, serial: u64) -> &SendWqe {
        debug_assert!(
            (self.head..self.tail).contains(&serial),
            "{serial} outside {}..{}",
            self.head,
            self.tail
        );
        &self.wqes[self.slot(serial)]
    }

    pub(crate) fn source(&self, serial: u64) -> Source<'_> {
        let wqe = self.get(serial);
        let slot = self.slot(serial);
        if wqe.is_inline {
            let start = slot * self.max_inline as usize;
            Source::Inline(&self.inline[start..start + wqe.length as usize])
        } else {
            let start = slot * self.max_sge as usize;
            Source::Sges(&self.sges[start..start + wqe.sge_count as usize])
        }
    }

    /// The length of the message, or the limit that the request breaks.
    pub(crate) fn check(&self, wr: &SendWr<'_>, max_message: u32) -> Result<u32, Error> {
        if self.outstanding as usize == self.wqes.len() {
            return Err(Error::QueueFull {
                queue: "send",
                depth: self.outstanding,
            });
        }
        let length = match wr.data {
            SendData::Inline(bytes) if bytes.len() > self.max_inline as usize => {
                return Err(Error::InlineTooLong {
                    given: bytes.len(),
                    max: self.max_inline,
                });
            }
            SendData::Inline(bytes) => bytes.len() as u64,
            SendData::Sges(sges) => {
                check_sges(sges, self.max_sge)?;
                total_len(sges)
            }
        };
        match u32::try_from(length) {
            Ok(length) if length <= max_message => Ok(length),
            _ => Err(Error::MessageTooLong {
                given: length,
                max: max_message,
            }),
        }
    }

    /// Appends a request that [`check`](Self::check) has let pass.
    pub(crate) fn push(
        &mut self,
        wr: &SendWr<'_>,
        signaled: bool,
        length: u32,
        first_psn: Psn,
        psns: u32,
    ) {
        let slot = self.slot(self.tail);
        let (is_inline, sge_count) = match wr.data {
            SendData::Inline(bytes) => {
                let start = slot * self.max_inline as usize;
                self.inline[start..start + bytes.len()].copy_from_slice(bytes);
                (true, 0)
            }
            SendData::Sges(sges) => {
                let start = slot * self.max_sge as usize;
                self.sges[start..start + sges.len()].copy_from_slice(sges);
                (false, sges.len() as u32)
            }
        };
        self.wqes[slot] = SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            signaled,
            solicited: wr.solicited,
            length,
            first_psn,
            psns,
            is_inline,
            sge_count,
        };
        self.tail += 1;
        self.outstanding += 1;
    }

    /// Takes the oldest entry out. Its place stays taken until [`retire`](Self::retire).
    pub(crate) fn pop(&mut self) -> Option<SendWqe> {
        if self.is_empty() {
            return None;
        }
        let wqe = *self.get(self.head);
        self.head += 1;
        Some(wqe)
    }

    /// Counts a request that goes straight to its completion.
    pub(crate) const fn reserve(&mut self) {
        self.outstanding += 1;
    }

    /// Frees the place of a request whose end the program knows of.
    pub(crate) const fn retire(&mut self) {
        self.outstanding -= 1;
    }

    pub(crate) fn clear(&mut self) {
        self.head = 0;
        self.tail = 0;
        self.outstanding = 0;
    }
}

/// A receive-queue entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    /// Bytes that the buffers take.
    pub(crate) capacity: u64,
    sge_count: u32,
}

#[derive(Debug)]
pub(crate) struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    sges: Box<[Sge]>,
    max_sge: u32,
    head: u64,
    tail: u64,
    outstanding: u32,
}

impl RecvQueue {
    pub(crate) fn new(depth: u32, max_sge: u32) -> Self {
        Self {
            wqes: vec![RecvWqe::default(); depth as usize].into(),
            sges: vec![Sge::default(); depth as usize * max_sge as usize].into(),
            max_sge,
            head: 0,
            tail: 0,
            outstanding: 0,
        }
    }

    fn slot(&self, serial: u64) -> usize {
        (serial % self.wqes.len() as u64) as usize
    }

    /// Whether `wr` may be posted.
    pub(crate) fn check(&self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if self.outstanding as usize == self.wqes.len() {
            return Err(Error::QueueFull {
                queue: "receive",
                depth: self.outstanding,
            });
        }
        check_sges(wr.sges, self.max_sge)
    }

    /// Appends a request that [`check`](Self::check) has let pass.
    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) {
        let slot = self.slot(self.tail);
        let start = slot * self.max_sge as usize;
        self.sges[start..start + wr.sges.len()].copy_from_slice(wr.sges);
        self.wqes[slot] = RecvWqe {
            wr_id: wr.wr_id,
            capacity: total_len(wr.sges),
            sge_count: wr.sges.len() as u32,
        };
        self.tail += 1;
        self.outstanding += 1;
    }

    /// The oldest entry with its buffers.
    pub(crate) fn front(&self) -> Option<(RecvWqe, &[Sge])> {
        if self.head == self.tail {
            return None;
        }
        let slot = self.slot(self.head);
        let wqe = self.wqes[slot];
        let start = slot * self.max_sge as usize;
        Some((wqe, &self.sges[start..start + wqe.sge_count as usize]))
    }

    /// Takes the oldest entry out. Its place stays taken until [`retire`](Self::retire).
    pub(crate) fn pop(&mut self) -> Option<RecvWqe> {
        let (wqe, _) = self.front()?;
        self.head += 1;
        Some(wqe)
    }

    /// Counts a request that goes straight to its completion.
    pub(crate) const fn reserve(&mut self) {
        self.outstanding += 1;
    }

    /// Frees the place of a request whose end the program knows of.
    pub(crate) const fn retire(&mut self) {
        self.outstanding -= 1;
    }

    pub(crate) fn clear(&mut self) {
        self.head = 0;
        self.tail = 0;
        self.outstanding = 0;
    }
}

fn check_sges(sges: &[Sge], max: u32) -> Result<(), Error> {
    if sges.len() > max as usize {
        return Err(Error::TooManySges {
            given: sges.len(),
            max,
        });
    }
    Ok(())
}

fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}
