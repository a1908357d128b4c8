//! The two work queues: rings of work queue entries with their scatter/gather lists beside them.
//!
//! Every array is allocated when the queue pair is made. Entries are named by a serial number that only grows; the slot is
//! the serial number modulo the depth, so that a serial number kept elsewhere (the requester's cursor) never points at the
//! wrong entry.

use oarlock_wire::Psn;

use crate::error::Error;
use crate::memory::{Memory, MemoryError, Sge};
use crate::work::{RecvWr, SendData, SendOp, SendWr};

/// A send-queue entry; `way` is what the transport service needs to know beside the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe<W> {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// Length of the message.
    pub(crate) length: u32,
    pub(crate) way: W,
    is_inline: bool,
    sge_count: u32,
}

/// RC: the PSNs of a request, fixed when it is posted: a repetition must use the same ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PsnRange {
    pub(crate) first: Psn,
    /// How many PSNs the request takes: its packets, or, for a READ, the packets of the response.
    pub(crate) count: u32,
}

impl PsnRange {
    /// The PSN after the last of this request.
    pub(crate) const fn end(&self) -> Psn {
        self.first.add(self.count)
    }
}

/// Where a send-queue entry's bytes are.
pub(crate) enum Source<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

impl Source<'_> {
    /// Copies bytes of the message, from `offset` on, to `out`.
    pub(crate) fn read(
        &self,
        memory: &mut dyn Memory,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), MemoryError> {
        match self {
            _ if out.is_empty() => Ok(()),
            Self::Sges(sges) => memory.gather(sges, offset, out),
            Self::Inline(bytes) => {
                out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
                Ok(())
            }
        }
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

/// A ring of entries.
#[derive(Debug)]
pub(crate) struct WorkQueue<W> {
    /// `send` or `receive`, for errors.
    name: &'static str,
    wqes: Box<[W]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    max_sge: u32,
    max_inline: u32,
    head: u64,
    tail: u64,
    /// Entries in the ring and completions not yet polled.
    outstanding: u32,
}

pub(crate) type SendQueue<W> = WorkQueue<SendWqe<W>>;
pub(crate) type RecvQueue = WorkQueue<RecvWqe>;

impl<W: Copy> WorkQueue<W> {
    fn of(empty: W, name: &'static str, depth: u32, max_sge: u32, max_inline: u32) -> Self {
        Self {
            name,
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

    /// How many requests it takes.
    pub(crate) const fn depth(&self) -> usize {
        self.wqes.len()
    }

    /// How many entries wait.
    pub(crate) const fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    fn slot(&self, serial: u64) -> usize {
        (serial % self.wqes.len() as u64) as usize
    }

    pub(crate) fn get(&self, serial: u64) -> &W {
        debug_assert!(
            (self.head..self.tail).contains(&serial),
            "{serial} outside {}..{}",
            self.head,
            self.tail
        );
        &self.wqes[self.slot(serial)]
    }

    fn check_depth(&self) -> Result<(), Error> {
        self.check_room(0)
    }

    /// Whether there is a place behind `ahead` requests that are to be posted before.
    fn check_room(&self, ahead: usize) -> Result<(), Error> {
        if self.outstanding as usize + ahead >= self.wqes.len() {
            return Err(Error::QueueFull {
                queue: self.name,
                depth: self.wqes.len() as u32,
            });
        }
        Ok(())
    }

    /// Where the scatter/gather list of an entry begins.
    fn first_sge(&self, serial: u64) -> usize {
        self.slot(serial) * self.max_sge as usize
    }

    fn sges(&self, serial: u64, count: u32) -> &[Sge] {
        self.sges_at(self.slot(serial), count)
    }

    fn sges_at(&self, slot: usize, count: u32) -> &[Sge] {
        &self.sges[slot * self.max_sge as usize..][..count as usize]
    }

    /// Keeps the scatter/gather list of the entry that is about to be appended; gives its length.
    fn put_sges(&mut self, sges: &[Sge]) -> u32 {
        let first = self.first_sge(self.tail);
        self.sges[first..][..sges.len()].copy_from_slice(sges);
        sges.len() as u32
    }

    fn append(&mut self, wqe: W) {
        let slot = self.slot(self.tail);
        self.wqes[slot] = wqe;
        self.tail += 1;
        self.outstanding += 1;
    }

    /// Takes the oldest entry out. Its place stays taken until [`retire`](Self::retire).
    pub(crate) fn pop(&mut self) -> Option<W> {
        if self.is_empty() {
            return None;
        }
        let wqe = *self.get(self.head);
        self.head += 1;
        Some(wqe)
    }

    /// Whether every request that was posted has come to an end that the program can know of.
    pub(crate) const fn is_done(&self) -> bool {
        self.outstanding == 0
    }

    /// Counts a request that goes straight to its completion.
    pub(crate) const fn reserve(&mut self) {
        self.outstanding += 1;
    }

    /// Frees the place of a request whose end the program knows of.
    pub(crate) const fn retire(&mut self) {
        self.outstanding -= 1;
    }

    pub(crate) const fn clear(&mut self) {
        self.head = 0;
        self.tail = 0;
        self.outstanding = 0;
    }
}

impl<W: Copy> SendQueue<W> {
    /// `nowhere` fills the entries that are not used.
    pub(crate) fn new(depth: u32, max_sge: u32, max_inline: u32, nowhere: W) -> Self {
        let empty = SendWqe {
            wr_id: 0,
            op: SendOp::Send,
            signaled: false,
            solicited: false,
            length: 0,
            way: nowhere,
            is_inline: false,
            sge_count: 0,
        };
        Self::of(empty, "send", depth, max_sge, max_inline)
    }

    pub(crate) fn source(&self, serial: u64) -> Source<'_> {
        self.entry(serial).1
    }

    /// An entry, and where its bytes are.
    pub(crate) fn entry(&self, serial: u64) -> (&SendWqe<W>, Source<'_>) {
        let slot = self.slot(serial);
        let wqe = &self.wqes[slot];
        let source = if wqe.is_inline {
            let first = slot * self.max_inline as usize;
            Source::Inline(&self.inline[first..][..wqe.length as usize])
        } else {
            Source::Sges(self.sges_at(slot, wqe.sge_count))
        };
        (wqe, source)
    }

    /// The length of the message, or the limit that the request breaks. Of the length itself nothing is demanded.
    pub(crate) fn check(&self, wr: &SendWr<'_>) -> Result<u64, Error> {
        self.check_depth()?;
        Ok(match wr.data {
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
        })
    }

    /// Whether all of these requests may be posted, one after the other; `check` looks at each by itself.
    pub(crate) fn check_list<T>(
        &self,
        wrs: &[SendWr<'_>],
        check: impl Fn(&SendWr<'_>) -> Result<T, Error>,
    ) -> Result<(), (usize, Error)> {
        for (index, wr) in wrs.iter().enumerate() {
            let fits = check(wr).and_then(|_| self.check_room(index));
            fits.map_err(|error| (index, error))?;
        }
        Ok(())
    }

    /// Appends a request that [`check`](Self::check) has let pass.
    pub(crate) fn push(&mut self, wr: &SendWr<'_>, signaled: bool, length: u32, way: W) {
        let (is_inline, sge_count) = match wr.data {
            SendData::Inline(bytes) => {
                let first = self.slot(self.tail) * self.max_inline as usize;
                self.inline[first..][..bytes.len()].copy_from_slice(bytes);
                (true, 0)
            }
            SendData::Sges(sges) => (false, self.put_sges(sges)),
        };
        self.append(SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            signaled,
            solicited: wr.solicited,
            length,
            way,
            is_inline,
            sge_count,
        });
    }
}

impl RecvQueue {
    pub(crate) fn new(depth: u32, max_sge: u32) -> Self {
        Self::named("receive", depth, max_sge)
    }

    pub(crate) fn named(name: &'static str, depth: u32, max_sge: u32) -> Self {
        Self::of(RecvWqe::default(), name, depth, max_sge, 0)
    }

    /// Appends what `other` holds; there is room for it.
    pub(crate) fn append_all(&mut self, other: &Self) {
        for serial in other.head..other.tail {
            let wqe = *other.get(serial);
            let sge_count = self.put_sges(other.sges(serial, wqe.sge_count));
            self.append(RecvWqe { sge_count, ..wqe });
        }
    }

    /// Whether `wr` may be posted.
    pub(crate) fn check(&self, wr: &RecvWr<'_>) -> Result<(), Error> {
        self.check_depth()?;
        check_sges(wr.sges, self.max_sge)
    }

    /// Appends a request that [`check`](Self::check) has let pass.
    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) {
        let sge_count = self.put_sges(wr.sges);
        self.append(RecvWqe {
            wr_id: wr.wr_id,
            capacity: total_len(wr.sges),
            sge_count,
        });
    }

    /// The oldest entry with its buffers.
    pub(crate) fn front(&self) -> Option<(RecvWqe, &[Sge])> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot(self.head);
        let wqe = self.wqes[slot];
        Some((wqe, self.sges_at(slot, wqe.sge_count)))
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

pub(crate) fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}
