//! Number spaces: global, the lowest free number first, from 0 on. Identifiers have one, multicast joins another.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use oarlock_cma::{Id, McId};

use super::FileId;

/// What an identifier's number stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) id: Id,
    /// The file whose channel the identifier is on.
    pub(super) file: FileId,
    /// Events that the client says it has acknowledged.
    pub(super) acknowledged: u32,
}

/// What a join's number stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) multicast: McId,
    /// The number of the identifier that joined. It can be destroyed only together with its joins.
    pub(super) id: u32,
}

/// What a number can stand for: something that its owner knows by a key.
pub(super) trait Numbered {
    type Key: Copy + Ord;

    fn key(&self) -> Self::Key;
}

impl Numbered for Entry {
    type Key = Id;

    fn key(&self) -> Id {
        self.id
    }
}

impl Numbered for Join {
    type Key = McId;

    fn key(&self) -> McId {
        self.multicast
    }
}

/// The numbers in use, both ways.
#[derive(Debug)]
pub(super) struct Numbers<E: Numbered> {
    entries: Vec<Option<E>>,
    free: BinaryHeap<Reverse<u32>>,
    by_key: BTreeMap<E::Key, u32>,
}

impl<E: Numbered> Numbers<E> {
    pub(super) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: BinaryHeap::new(),
            by_key: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, entry: E) -> u32 {
        let key = entry.key();
        let number = match self.free.pop() {
            Some(Reverse(number)) => {
                self.entries[number as usize] = Some(entry);
                number
            }
            None => {
                self.entries.push(Some(entry));
                u32::try_from(self.entries.len() - 1)
                    .expect("identifiers and joins are bounded far below 2^32")
            }
        };
        self.by_key.insert(key, number);
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&E> {
        self.entries.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut E> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn of(&self, key: E::Key) -> Option<u32> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<E> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.by_key.remove(&entry.key());
        self.free.push(Reverse(number));
        Some(entry)
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The numbers from `first` on, in order.
    pub(super) fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &E)> {
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
        let entry = |id| Entry {
            id,
            file: FileId(1),
            acknowledged: 0,
        };
        let mut numbers = Numbers::new();
        let ids: Vec<Id> = (0..4).map(|_| make()).collect();
        for (wanted, &id) in ids.iter().enumerate() {
            assert_eq!(numbers.add(entry(id)) as usize, wanted);
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
        assert_eq!([(); 3].map(|()| numbers.add(entry(make()))), [1, 3, 4]);
        assert_eq!(
            numbers
                .iter_from(2)
                .map(|(number, _)| number)
                .collect::<Vec<_>>(),
            [2, 3, 4]
        );
    }
}
