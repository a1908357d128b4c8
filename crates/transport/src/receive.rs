//! The receive buffers of one queue pair: its own queue, or those it takes out of a shared one.

use oarlock_wire::Srqn;

use crate::error::Error;
use crate::memory::{Memory, MemoryError, SharedReceive};
use crate::queue::{RecvQueue, total_len};
use crate::srq::HeldReceive;
use crate::work::RecvWr;

/// Where messages go. At most one buffer is *current*: the oldest of the own queue, or the one that is held.
#[derive(Debug)]
pub(crate) struct Buffers {
    own: RecvQueue,
    is_shared: bool,
    held: HeldReceive,
    is_held: bool,
}

impl Buffers {
    pub(crate) fn new(depth: u32, max_sge: u32, is_shared: bool) -> Self {
        let depth = if is_shared { 0 } else { depth };
        Self {
            own: RecvQueue::new(depth, max_sge),
            is_shared,
            held: HeldReceive::default(),
            is_held: false,
        }
    }

    /// The buffers come from a shared receive queue.
    pub(crate) const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// How many requests the own queue takes.
    pub(crate) const fn depth(&self) -> usize {
        self.own.depth()
    }

    /// Whether `wr` may be posted.
    pub(crate) fn check(&self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if self.is_shared {
            return Err(Error::NoReceiveQueue {
                reason: "its buffers come from a shared receive queue",
            });
        }
        self.own.check(wr)
    }

    /// Appends a request that [`check`](Self::check) has let pass.
    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) {
        self.own.push(wr);
    }

    /// Counts a request that goes straight to its completion.
    pub(crate) const fn reserve(&mut self) {
        self.own.reserve();
    }

    /// Sees to it that there is a current buffer, and gives its capacity; `None` if there is none to be had.
    pub(crate) fn take(&mut self, memory: &mut dyn Memory) -> Option<u64> {
        let _ = self.ready(None, memory);
        self.capacity()
    }

    /// Sees to it that there is a current buffer; of XRC it comes from the queue with that number. A buffer that is held
    /// already stays.
    pub(crate) fn ready(&mut self, srqn: Option<Srqn>, memory: &mut dyn Memory) -> SharedReceive {
        if !self.is_shared {
            return if self.own.is_empty() {
                SharedReceive::Empty
            } else {
                SharedReceive::Taken
            };
        }
        if self.is_held {
            return SharedReceive::Taken;
        }
        let taken = memory.take_shared_receive(srqn, &mut self.held);
        self.is_held = taken == SharedReceive::Taken;
        taken
    }

    /// Buffers of the own queue that wait, that of a message in progress included.
    pub(crate) const fn len(&self) -> u32 {
        self.own.len()
    }

    /// The number of the shared queue that the last buffer was taken from, if it has one.
    pub(crate) const fn srqn(&self) -> Option<Srqn> {
        self.held.srqn
    }

    #[cfg(test)]
    pub(crate) fn held_capacity(&self) -> usize {
        self.held.sges.capacity()
    }

    /// What the current buffer takes.
    pub(crate) fn capacity(&self) -> Option<u64> {
        if self.is_shared {
            self.is_held.then(|| total_len(&self.held.sges))
        } else {
            self.own.front().map(|(wqe, _)| wqe.capacity)
        }
    }

    /// Places bytes into the current buffer.
    pub(crate) fn place(
        &self,
        memory: &mut dyn Memory,
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        self.place_if_it_fits(memory, offset, data)
            .unwrap_or(Ok(()))
    }

    /// Places bytes into the current buffer; `None` if there is none, or it takes fewer.
    #[inline]
    pub(crate) fn place_if_it_fits(
        &self,
        memory: &mut dyn Memory,
        offset: u64,
        data: &[u8],
    ) -> Option<Result<(), MemoryError>> {
        if self.is_shared {
            return self.place_held(memory, offset, data);
        }
        let (wqe, sges) = self.own.front()?;
        if offset + data.len() as u64 > wqe.capacity {
            return None;
        }
        Some(if data.is_empty() {
            Ok(())
        } else {
            memory.scatter(sges, offset, data)
        })
    }

    fn place_held(
        &self,
        memory: &mut dyn Memory,
        offset: u64,
        data: &[u8],
    ) -> Option<Result<(), MemoryError>> {
        if offset + data.len() as u64 > self.capacity()? {
            return None;
        }
        Some(if data.is_empty() {
            Ok(())
        } else {
            memory.scatter_held(&self.held, offset, data)
        })
    }

    /// The current buffer is done with; gives its `wr_id`. Of a shared queue only what is held is ever given.
    pub(crate) fn finish(&mut self) -> Option<u64> {
        if self.is_shared {
            core::mem::take(&mut self.is_held).then_some(self.held.wr_id)
        } else {
            self.own.pop().map(|wqe| wqe.wr_id)
        }
    }

    /// The program knows of the end of a buffer: its place is free again.
    pub(crate) const fn retire(&mut self) {
        if !self.is_shared {
            self.own.retire();
        }
    }

    pub(crate) const fn clear(&mut self) {
        self.own.clear();
        self.is_held = false;
    }
}
