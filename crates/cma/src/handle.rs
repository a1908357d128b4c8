//! Handles: names of identifiers and channels that stay wrong once what they named is gone.

use core::fmt;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            index: u32,
            generation: u32,
        }

        impl $name {
            /// The place in the table; used again after the object has gone.
            #[must_use]
            pub const fn index(self) -> u32 {
                self.index
            }

            /// Which of the objects that had this place.
            #[must_use]
            pub const fn generation(self) -> u32 {
                self.generation
            }
        }

        impl From<Key> for $name {
            fn from(key: Key) -> Self {
                Self { index: key.index, generation: key.generation }
            }
        }

        impl From<$name> for Key {
            fn from(handle: $name) -> Self {
                Self { index: handle.index, generation: handle.generation }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({}.{})"), self.index, self.generation)
            }
        }
    };
}

handle! {
    /// An identifier. A handle of a destroyed identifier names nothing, also when its place is used again.
    Id
}

handle! {
    /// An event channel.
    ChannelId
}

handle! {
    /// A membership of an identifier in a multicast group: one call of [`join_multicast`](crate::Cma::join_multicast).
    McId
}

/// The untyped form of a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// A table whose keys are used only once.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    /// Apart, so that an empty place takes no room: the table never gets shorter.
    value: Option<Box<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The caller keeps `len` below `u32::MAX`: every table has a configured bound far below that.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(Box::new(value));
            return Key {
                index,
                generation: slot.generation,
            };
        }
        let index =
            u32::try_from(self.slots.len()).expect("tables are bounded far below 2^32 entries");
        self.slots.push(Slot {
            generation: 1,
            value: Some(Box::new(value)),
        });
        Key {
            index,
            generation: 1,
        }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation {
            slot.value.as_deref()
        } else {
            None
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation {
            slot.value.as_deref_mut()
        } else {
            None
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        self.len -= 1;
        // A place whose generations are used up is left empty for good: a handle never comes to life again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(key.index);
        }
        Some(*value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let value = slot.value.as_deref()?;
            let index = u32::try_from(index).ok()?;
            Some((
                Key {
                    index,
                    generation: slot.generation,
                },
                value,
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_under_another_generation() {
        let mut table = Table::new();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b');
        assert_eq!((first.index, table.len()), (second.index, 1));
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&'b'));
    }
}
