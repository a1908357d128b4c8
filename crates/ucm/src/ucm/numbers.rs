//! The number space of identifiers: global, the lowest free number first, from 0 on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use oarlock_cma::Id;

use super::FileId;

/// What a number stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) id: Id,
    /// The file whose channel the identifier is on.
    pub(super) file: FileId,
    /// Events that the client says it has acknowledged.
    pub(super) acknowledged: u32,
}

/// The numbers in use, both ways.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    entries: Vec<Option<Entry>>,
    free: BinaryHeap<Reverse<u32>>,
    by_id: BTreeMap<Id, u32>,
}

impl Numbers {
    pub(super) fn add(&mut self, id: Id, file: FileId) -> u32 {
        let entry = Some(Entry {
            id,
            file,
            acknowledged: 0,
        });
        let number = match self.free.pop() {
            Some(Reverse(number)) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1)
                    .expect("identifiers are bounded far below 2^32")
            }
        };
        self.by_id.insert(id, number);
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Entry> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn of(&self, id: Id) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.by_id.remove(&entry.id);
        self.free.push(Reverse(number));
        Some(entry)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The numbers from `first` on, in order.
    pub(super) fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &Entry)> {
        let entries = self.entries.iter().zip(0_u32..).skip(first as usize);
        entries.filter_map(|(entry, number)| Some((number, entry.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use oarlock_cma::{Cma, Config, PortSpace, QpType, Seed};

    use super::*;

    #[test]
    fn the_lowest_free_number_comes_first() {
        let mut cma = Cma::new(Config::default(), Seed([0; 32]));
        let channel = cma.create_channel().expect("the first channel");
        let mut make = || {
            cma.create_id(channel, PortSpace::TCP, QpType::RC, 0)
                .expect("room")
        };
        let mut numbers = Numbers::default();
        let ids: Vec<Id> = (0..4).map(|_| make()).collect();
        for (wanted, &id) in ids.iter().enumerate() {
            assert_eq!(numbers.add(id, FileId(1)) as usize, wanted);
        }
        for number in [3, 1] {
            assert_eq!(
                numbers.remove(number).map(|entry| entry.id),
                Some(ids[number as usize])
            );
            assert!(numbers.remove(number).is_none() && numbers.get(number).is_none());
        }
        assert_eq!(
            (numbers.of(ids[1]), numbers.of(ids[2]), numbers.len()),
            (None, Some(2), 2)
        );
        assert_eq!([(); 3].map(|()| numbers.add(make(), FileId(1))), [1, 3, 4]);
        assert_eq!(
            numbers
                .iter_from(2)
                .map(|(number, _)| number)
                .collect::<Vec<_>>(),
            [2, 3, 4]
        );
    }
}
