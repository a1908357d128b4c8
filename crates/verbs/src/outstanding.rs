//! Work requests that the device has not finished, and the buffers they own.
//!
//! The device knows a request by its number in the order of its queue; here is what the program
//! called it and gave with it. The device holds this table (as the queue pair's `user`) at least as
//! long as one of its threads can touch memory for the queue pair, so that buffers of a queue pair
//! that is dropped live until then, and exactly until then.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::buffer::Buffers;

/// Both queues of a queue pair.
///
/// A queue stays locked from the entry here until the device has the request: the order here is
/// that of the device. So these locks come before those of the device; it takes none of them.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    send: Mutex<WorkQueue>,
    recv: Mutex<WorkQueue>,
}

/// One queue of work requests, numbered in the order of posting.
#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    /// `None`: completed, but an earlier one is not.
    entries: VecDeque<Option<Entry>>,
    /// Number of the first entry.
    first: u64,
    /// Numbers of the unsignaled ones, ascending.
    unsignaled: VecDeque<u64>,
}

#[derive(Debug)]
struct Entry {
    wr_id: u64,
    buffers: Buffers,
}

/// What a completion gives back.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    pub(crate) buffers: Buffers,
    pub(crate) earlier: Buffers,
}

impl Outstanding {
    pub(crate) fn send(&self) -> MutexGuard<'_, WorkQueue> {
        self.send.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn recv(&self) -> MutexGuard<'_, WorkQueue> {
        self.recv.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn complete(&self, is_send: bool, number: u64) -> Done {
        if is_send {
            self.send().complete(number)
        } else {
            self.recv().complete(number)
        }
    }
}

impl WorkQueue {
    /// Enters a request; returns its number.
    pub(crate) fn enter(&mut self, wr_id: u64, buffers: Buffers, signaled: bool) -> u64 {
        let number = self.first + self.entries.len() as u64;
        self.entries.push_back(Some(Entry { wr_id, buffers }));
        if !signaled {
            self.unsignaled.push_back(number);
        }
        number
    }

    /// The buffers of the request that was entered last.
    pub(crate) fn last(&self) -> &[crate::Buffer] {
        match self.entries.back() {
            Some(Some(entry)) => &entry.buffers,
            _ => &[],
        }
    }

    /// Takes back the request that was entered last: the device has refused it.
    pub(crate) fn withdraw(&mut self) -> Buffers {
        let number = self.first + self.entries.len() as u64;
        if self
            .unsignaled
            .back()
            .is_some_and(|last| last + 1 == number)
        {
            self.unsignaled.pop_back();
        }
        let withdrawn = self.entries.pop_back().flatten();
        withdrawn.map(|entry| entry.buffers).unwrap_or_default()
    }

    /// The request with this number has completed. Whoever polls on several threads may see
    /// completions out of order, so only unsignaled ones are taken along.
    fn complete(&mut self, number: u64) -> Done {
        let mut earlier = Buffers::new();
        while let Some(&unsignaled) = self.unsignaled.front()
            && unsignaled <= number
        {
            self.unsignaled.pop_front();
            // The request itself is unsignaled if it failed.
            if unsignaled != number
                && let Some(entry) = self.take(unsignaled)
            {
                earlier.append(entry.buffers);
            }
        }
        let entry = self.take(number);
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
        let (wr_id, buffers) = entry.map_or_else(Default::default, |e| (e.wr_id, e.buffers));
        Done {
            wr_id,
            buffers,
            earlier,
        }
    }

    /// Forgets all requests and gives back what they own. Numbers go on, so that a completion
    /// from before meets none of a later request.
    pub(crate) fn clear(&mut self) -> Vec<Buffers> {
        self.first += self.entries.len() as u64;
        self.unsignaled.clear();
        let entries = self.entries.drain(..).flatten();
        entries.map(|entry| entry.buffers).collect()
    }

    fn take(&mut self, number: u64) -> Option<Entry> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(index)?.take()
    }
}
