//! Work requests that the device has not finished, and the buffers they own.
//!
//! The device knows a request by its number in the order of its queue; here is what the program
//! called it and gave with it. The device holds this table (as the queue pair's `user`) at least as
//! long as one of its threads can touch memory for the queue pair, so that buffers of a queue pair
//! that is dropped live until then, and exactly until then. Receives of a shared receive queue
//! complete in any order, so that queue has a table of its own kind, as its `user`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::buffer::{Buffer, Buffers};

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

    /// The buffers of the last `count` requests, oldest first.
    pub(crate) fn last(&self, count: usize) -> impl Iterator<Item = &[Buffer]> {
        let start = self.entries.len() - count;
        self.entries
            .range(start..)
            .map(|entry| entry.as_ref().map_or(&[][..], |entry| &entry.buffers))
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

/// Receives of a shared receive queue; a number is a place here.
#[derive(Debug, Default)]
pub(crate) struct SharedReceives(Mutex<Receives>);

#[derive(Debug, Default)]
pub(crate) struct Receives {
    entries: Vec<Option<Entry>>,
    /// Places of no receive.
    free: Vec<usize>,
}

impl SharedReceives {
    /// Comes before the locks of the device; it takes none of them.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Receives> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn complete(&self, number: u64) -> Done {
        let (wr_id, buffers) = self.lock().take(number);
        Done {
            wr_id,
            buffers,
            earlier: Buffers::new(),
        }
    }
}

impl Receives {
    /// Enters a receive; returns its number.
    pub(crate) fn enter(&mut self, wr_id: u64, buffers: Buffers) -> u64 {
        let entry = Some(Entry { wr_id, buffers });
        match self.free.pop() {
            Some(place) => {
                self.entries[place] = entry;
                place as u64
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u64 - 1
            }
        }
    }

    pub(crate) fn buffers(&self, number: u64) -> &[Buffer] {
        let entry = usize::try_from(number)
            .ok()
            .and_then(|place| self.entries.get(place)?.as_ref());
        entry.map_or(&[], |entry| &entry.buffers)
    }

    /// Takes a receive out: its name and its buffers.
    pub(crate) fn take(&mut self, number: u64) -> (u64, Buffers) {
        let place = usize::try_from(number).ok();
        let entry = place.and_then(|place| self.entries.get_mut(place)?.take());
        match (place, entry) {
            (Some(place), Some(entry)) => {
                self.free.push(place);
                (entry.wr_id, entry.buffers)
            }
            _ => Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_receives_complete_in_any_order_and_their_places_are_used_again() {
        let table = SharedReceives::default();
        let numbers: Vec<_> = (10..13)
            .map(|wr_id| table.lock().enter(wr_id, Buffers::new()))
            .collect();
        assert_eq!(table.complete(numbers[2]).wr_id, 12);
        assert_eq!(table.complete(numbers[0]).wr_id, 10);
        let again: Vec<_> = (20..22)
            .map(|wr_id| table.lock().enter(wr_id, Buffers::new()))
            .collect();
        assert!(!again.contains(&numbers[1]), "that one is outstanding");
        assert_eq!(table.lock().entries.len(), 3);
        assert_eq!(table.complete(numbers[1]).wr_id, 11);
        assert_eq!(table.complete(again[1]).wr_id, 21);
        assert_eq!(table.complete(again[0]).wr_id, 20);
    }

    #[test]
    fn a_list_that_is_refused_leaves_the_queue_as_it_was() {
        let mut queue = WorkQueue::default();
        let first = queue.enter(1, Buffers::new(), false);
        let second = queue.enter(2, Buffers::new(), false);
        queue.enter(3, Buffers::new(), true);
        assert_eq!(queue.last(2).count(), 2);
        queue.withdraw();
        queue.withdraw();
        // The number is given again, and the unsignaled request before is still known.
        assert_eq!(queue.enter(4, Buffers::new(), true), second);
        assert_eq!(queue.unsignaled, [first]);
        assert_eq!(queue.complete(second).wr_id, 4);
        assert!(queue.entries.is_empty() && queue.unsignaled.is_empty());
    }
}
