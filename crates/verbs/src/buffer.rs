//! Buffers: pieces of registered memory that have one owner at a time.
#![allow(
    unsafe_code,
    reason = "the one place where registered memory becomes a slice; the argument is `Buffer`'s"
)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use oarlock_device as device;
use oarlock_transport::Sge;
use oarlock_wire::{LKey, RKey};

use crate::error::Error;
use crate::pd::ProtectionDomain;

pub use device::Access;

/// A registered piece of memory, zeroed, and not yet divided.
///
/// The memory belongs to the region, and the region lives as long as any [`Buffer`] of it, be it
/// in the program's hands or with a queue pair. Then it is deregistered and freed.
#[derive(Debug)]
pub struct MemoryRegion {
    region: Arc<device::Region>,
}

impl MemoryRegion {
    /// Allocates and registers `len` bytes.
    ///
    /// # Errors
    /// `RemoteRights`: peers cannot have a right to a [`Buffer`], whose owner has slices of it; see
    /// [`RemoteMemory`](crate::RemoteMemory). `Device`: no bytes asked for, no memory, or too many regions.
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(pd: &ProtectionDomain, len: usize, access: Access) -> Result<Self, Error> {
        let remote = access & OF_PEERS;
        if !remote.is_empty() {
            return Err(Error::RemoteRights { rights: remote });
        }
        let region = pd.device().allocate(len, access)?;
        Ok(Self {
            region: Arc::new(region),
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        length_of(&self.region)
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The local key.
    pub fn lkey(&self) -> LKey {
        self.region.lkey()
    }

    /// The remote key.
    pub fn rkey(&self) -> RKey {
        self.region.rkey()
    }

    /// The whole region as one buffer.
    pub fn into_buffer(self) -> Buffer {
        Buffer::whole(self.region)
    }

    /// The region in buffers of `len` bytes, in order; the last is shorter if it does not come
    /// out even.
    ///
    /// # Panics
    /// If `len` is zero.
    pub fn into_buffers(self, len: usize) -> Vec<Buffer> {
        assert!(len > 0, "buffers of no bytes");
        let mut rest = self.into_buffer();
        let mut buffers = Vec::with_capacity(rest.len().div_ceil(len));
        while rest.capacity() > len {
            let next = rest.split_off(len);
            buffers.push(std::mem::replace(&mut rest, next));
        }
        buffers.push(rest);
        buffers
    }
}

/// A piece of a registered region, and the only way to its bytes.
///
/// A `Buffer` is not `Clone`; pieces of one region never overlap. Whoever owns it can read and
/// write the bytes; posting it to a queue pair gives it away, and it comes back in the
/// [`Completion`](crate::Completion). So no safe program looks at memory that the device is
/// writing, whatever it drops, forgets or sends to other threads.
///
/// Dropping a buffer gives the memory back once all pieces of its region are gone.
#[derive(Debug)]
pub struct Buffer {
    region: Arc<device::Region>,
    start: usize,
    capacity: usize,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` zeroed bytes in a region of its own, which the device may write.
    ///
    /// # Errors
    /// As [`MemoryRegion::new`].
    pub fn new(pd: &ProtectionDomain, len: usize) -> Result<Self, Error> {
        Ok(MemoryRegion::new(pd, len, Access::LOCAL_WRITE)?.into_buffer())
    }

    /// Bytes that the piece has, whatever [`set_len`](Self::set_len) says.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// From now on the buffer is its first `len` bytes: so many are sent, or received at most.
    /// The others are kept, with what is in them, and come back with a larger length.
    ///
    /// # Panics
    /// If `len` is more than the [`capacity`](Self::capacity).
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity,
            "length {len} of a buffer of {} bytes",
            self.capacity
        );
        self.len = len;
    }

    /// Splits the piece at byte `at`: this one keeps the bytes before, the result has the rest.
    /// Both have their whole length.
    ///
    /// # Panics
    /// If `at` is more than the [`capacity`](Self::capacity).
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(
            at <= self.capacity,
            "split at {at} of a buffer of {} bytes",
            self.capacity
        );
        let rest = self.capacity - at;
        self.capacity = at;
        self.len = at;
        Self {
            region: Arc::clone(&self.region),
            start: self.start + at,
            capacity: rest,
            len: rest,
        }
    }

    /// Undoes [`split_off`](Self::split_off): one buffer of `self` and `next`, at its whole length.
    ///
    /// # Errors
    /// Both, unchanged, if `next` does not begin where `self` ends.
    pub fn join(mut self, next: Self) -> Result<Self, (Self, Self)> {
        if Arc::ptr_eq(&self.region, &next.region) && self.start + self.capacity == next.start {
            self.capacity += next.capacity;
            self.len = self.capacity;
            Ok(self)
        } else {
            Err((self, next))
        }
    }

    /// The element that names these bytes to the device.
    pub(crate) fn sge(&self) -> Result<Sge, Error> {
        let len = u32::try_from(self.len).map_err(|_| Error::BufferTooLong {
            given: self.len,
            max: u32::MAX,
        })?;
        Ok(self.region.sge(self.start as u64, len))
    }

    /// All of a region that peers have no right to, and of which there is no other piece.
    pub(crate) fn whole(region: Arc<device::Region>) -> Self {
        let len = length_of(&region);
        Self {
            region,
            start: 0,
            capacity: len,
            len,
        }
    }

    /// The region, if this is the only piece of it, and all of it.
    pub(crate) fn into_region(self) -> Result<device::Region, (Self, Error)> {
        if self.capacity != length_of(&self.region) {
            return Err((self, Error::SharedRegion));
        }
        let len = self.len;
        Arc::try_unwrap(self.region).map_err(|region| {
            let mut buffer = Self::whole(region);
            buffer.len = len;
            (buffer, Error::SharedRegion)
        })
    }

    /// Whether the region is of this protection domain's context is the device's to check; what is
    /// checked here is that the memory is the library's own.
    fn first_byte(&self) -> NonNull<u8> {
        let start = self
            .region
            .as_ptr()
            .expect("buffers are only made of regions that the library allocated");
        // SAFETY: `start + capacity` is within the region (true when made, kept by `split_off` and
        // `join`), and the region's memory is one allocation.
        unsafe { start.add(self.start) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are in the region's allocation, which `self.region` keeps alive, and
        // initialised, since it was zeroed. Nobody writes them while the slice lives: pieces of a
        // region do not overlap (`split_off`), this piece is borrowed, no peer has a right to the region
        // (`MemoryRegion::new`, `RemoteMemory::into_buffer`), and the device writes only
        // bytes that a posted work request names. A work request that names these bytes owns the
        // `Buffer` (`QueuePair::post_recv` and `post_send` take it by value and keep it until the
        // device has forgotten the request), and then nobody can borrow it.
        unsafe { slice::from_raw_parts(self.first_byte().as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; and as this piece is borrowed exclusively, nobody else reads it:
        // the device reads only for posted sends, which own their buffers too.
        unsafe { slice::from_raw_parts_mut(self.first_byte().as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

fn length_of(region: &device::Region) -> usize {
    // The region was allocated by this process, so its length was a `usize` once.
    region.len() as usize
}

/// What a peer could use to get at the bytes of a region without a work request that names them.
pub(crate) const OF_PEERS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// The buffers of one work request.
///
/// Made of one buffer, a `Vec` or an array, and used as a slice.
#[derive(Debug, Default)]
pub struct Buffers(Repr);

#[derive(Debug, Default)]
enum Repr {
    #[default]
    None,
    /// The common case needs no allocation.
    One(Buffer),
    Many(Vec<Buffer>),
}

impl Buffers {
    /// No buffer.
    pub const fn new() -> Self {
        Self(Repr::None)
    }

    /// Takes the last buffer out.
    pub fn pop(&mut self) -> Option<Buffer> {
        match std::mem::take(&mut self.0) {
            Repr::None => None,
            Repr::One(buffer) => Some(buffer),
            Repr::Many(mut buffers) => {
                let last = buffers.pop();
                self.0 = Repr::Many(buffers);
                last
            }
        }
    }

    /// Adds a buffer at the end.
    pub fn push(&mut self, buffer: Buffer) {
        self.0 = match std::mem::take(&mut self.0) {
            Repr::None => Repr::One(buffer),
            Repr::One(first) => Repr::Many(vec![first, buffer]),
            Repr::Many(mut buffers) => {
                buffers.push(buffer);
                Repr::Many(buffers)
            }
        };
    }

    /// Adds all of `more` at the end.
    pub(crate) fn append(&mut self, more: Self) {
        match (&self.0, more.0) {
            (_, Repr::None) => {}
            (Repr::None, more) => self.0 = more,
            (_, Repr::One(buffer)) => self.push(buffer),
            (_, Repr::Many(buffers)) => {
                for buffer in buffers {
                    self.push(buffer);
                }
            }
        }
    }
}

impl Deref for Buffers {
    type Target = [Buffer];

    fn deref(&self) -> &[Buffer] {
        match &self.0 {
            Repr::None => &[],
            Repr::One(buffer) => slice::from_ref(buffer),
            Repr::Many(buffers) => buffers,
        }
    }
}

impl DerefMut for Buffers {
    fn deref_mut(&mut self) -> &mut [Buffer] {
        match &mut self.0 {
            Repr::None => &mut [],
            Repr::One(buffer) => slice::from_mut(buffer),
            Repr::Many(buffers) => buffers,
        }
    }
}

impl From<Buffer> for Buffers {
    fn from(buffer: Buffer) -> Self {
        Self(Repr::One(buffer))
    }
}

impl From<Vec<Buffer>> for Buffers {
    fn from(buffers: Vec<Buffer>) -> Self {
        Self(Repr::Many(buffers))
    }
}

impl<const N: usize> From<[Buffer; N]> for Buffers {
    fn from(buffers: [Buffer; N]) -> Self {
        buffers.into_iter().collect()
    }
}

impl FromIterator<Buffer> for Buffers {
    fn from_iter<I: IntoIterator<Item = Buffer>>(buffers: I) -> Self {
        let mut all = Self::new();
        for buffer in buffers {
            all.push(buffer);
        }
        all
    }
}

impl IntoIterator for Buffers {
    type Item = Buffer;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Buffer>, std::vec::IntoIter<Buffer>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self.0 {
            Repr::None => (None, Vec::new()),
            Repr::One(buffer) => (Some(buffer), Vec::new()),
            Repr::Many(buffers) => (None, buffers),
        };
        one.into_iter().chain(many)
    }
}
