//! What a registration of the program's memory is called, and pieces of it in work requests.

use std::slice;

use oarlock_device as device;
use oarlock_transport::{RemoteAddress, Sge};
use oarlock_wire::{LKey, RKey};

use crate::buffer::Access;

/// What a registration of the program's memory is called: where it is, its keys, and pieces of it for work requests.
///
/// The names stay when the registration goes. Whoever uses them then is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registered {
    addr: usize,
    len: usize,
    access: Access,
    key: u32,
}

impl Registered {
    pub(super) fn of(region: &device::Region) -> Self {
        Self {
            // Both were `usize` when it was registered.
            addr: region.addr() as usize,
            len: region.len() as usize,
            access: region.access(),
            key: region.lkey().0,
        }
    }

    /// Address of the first byte, for the program and for peers.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What the device and peers may do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The local key.
    pub fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    /// The key by which peers name the memory.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// What a peer needs to reach the byte at `offset`: tell it by any means. Nothing is checked here; a peer that leaves
    /// the memory is refused.
    pub fn at(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            addr: self.addr.wrapping_add(offset) as u64,
            rkey: self.rkey(),
        }
    }

    /// The `len` bytes at address `addr`, for a work request. Whether they lie in the registration is checked when they are
    /// used: then the request ends with a local protection error.
    pub fn element(&self, addr: usize, len: u32) -> Element {
        Element(Sge {
            addr: addr as u64,
            len,
            lkey: self.lkey(),
        })
    }
}

/// A piece of the program's memory in a work request: a scatter/gather element.
///
/// Other than a [`Buffer`](crate::Buffer) it is a name and owns nothing: nothing is kept alive by a request that has it, and
/// the program can look at the bytes all the while, as whoever registered the memory has promised to do with care. Its registration
/// is looked up each time that bytes are copied; once that is gone, or the memory, the request ends with a local protection error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_sge")]
pub struct Element(pub(super) Sge);

impl Element {
    /// Address of the first byte.
    pub fn addr(&self) -> usize {
        self.0.addr as usize
    }

    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.0.len
    }

    /// Whether it is of no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The key of its registration.
    pub fn lkey(&self) -> LKey {
        self.0.lkey
    }
}

/// The elements of one work request. Made of one, a `Vec` or an array.
#[derive(Clone, Debug)]
pub struct Elements(Repr);

#[derive(Clone, Debug)]
enum Repr {
    /// The common case needs no allocation.
    One(Sge),
    Many(Vec<Sge>),
}

impl Elements {
    pub(crate) fn sges(&self) -> &[Sge] {
        match &self.0 {
            Repr::One(sge) => slice::from_ref(sge),
            Repr::Many(sges) => sges,
        }
    }
}

impl From<Element> for Elements {
    fn from(element: Element) -> Self {
        Self(Repr::One(element.0))
    }
}

impl From<Vec<Element>> for Elements {
    fn from(elements: Vec<Element>) -> Self {
        elements.into_iter().collect()
    }
}

impl<const N: usize> From<[Element; N]> for Elements {
    fn from(elements: [Element; N]) -> Self {
        elements.into_iter().collect()
    }
}

impl FromIterator<Element> for Elements {
    fn from_iter<I: IntoIterator<Item = Element>>(elements: I) -> Self {
        Self(Repr::Many(elements.into_iter().map(|one| one.0).collect()))
    }
}
