//! What an engine reaches outside of its queue pair: registered memory, and shared receive queues.

use oarlock_wire::{LKey, RKey, Srqn};

use crate::srq::HeldReceive;
use crate::work::BindWindow;

/// One element of a scatter/gather list: a range of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes; 0 is allowed and names no memory.
    pub len: u32,
    /// Local key of the region the range lies in.
    pub lkey: LKey,
}

/// What an operation of the peer does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the specification's three kinds")]
pub enum RemoteAccess {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Compare-and-swap, fetch-and-add.
    Atomic,
}

/// An atomic operation on 8 bytes, in the byte order of the host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the specification's two")]
pub enum AtomicOp {
    /// Stores `swap` if the value is `compare`.
    CompareSwap {
        /// What the value is compared with.
        compare: u64,
        /// What is stored then.
        swap: u64,
    },
    /// Adds, modulo 2^64.
    FetchAdd {
        /// What is added.
        add: u64,
    },
}

impl AtomicOp {
    /// The value afterwards, from the one before.
    #[must_use]
    pub const fn apply(self, before: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } => {
                if before == compare {
                    swap
                } else {
                    before
                }
            }
            Self::FetchAdd { add } => before.wrapping_add(add),
        }
    }
}

/// Whether a shared receive queue gave a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_enums, reason = "closed by nature")]
pub enum SharedReceive {
    /// The oldest one is now held.
    Taken,
    /// None is posted: the receiver is not ready.
    Empty,
    /// There is no such queue, or not for this queue pair.
    NoSuchQueue,
}

/// Registered memory and shared receive queues, as one queue pair sees them.
///
/// `scatter` and `gather` treat the elements of `sges` as one contiguous message and start `offset` bytes into it; the
/// engine never asks for bytes beyond the sum of the lengths. The other calls serve the peer's operations, and name memory
/// by a remote key. Keys, bounds and access rights are checked by the implementation on every call: a region may vanish
/// between two packets of a message. Calls that an implementation leaves out answer as if nothing were offered to peers.
pub trait Memory {
    /// Copies `data` into the buffers, from byte `offset` of the message on.
    ///
    /// # Errors
    /// The memory may not be written. What was placed before the failing byte is unspecified.
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError>;

    /// Fills `out` from the buffers, from byte `offset` of the message on.
    ///
    /// # Errors
    /// The memory may not be read.
    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError>;

    /// The next call that copies will be followed by others for the same message, or the same READ, which go on where it ends
    /// and want up to `more` bytes together, if nothing comes in between. An implementation to which copies are dear may copy
    /// them with it; each is still asked for, and what cannot be copied then is an error then. Left out, it says nothing.
    fn announce(&mut self, _more: u64) {}

    /// Whether the peer may access `len` bytes at `addr` so. Asked with the first packet of an operation for all of its
    /// bytes (never for none); the copies that follow check again.
    ///
    /// # Errors
    /// Key, bounds or right do not fit; for atomics also an address that is not a multiple of 8.
    fn check_remote(
        &mut self,
        rkey: RKey,
        _addr: u64,
        _len: u64,
        _access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        Err(MemoryError::InvalidRemoteKey(rkey))
    }

    /// Places bytes of the peer's RDMA WRITE. Within one call lower addresses become visible no later than higher ones.
    ///
    /// # Errors
    /// As [`check_remote`](Self::check_remote), or the memory is not mapped. What was placed before is unspecified.
    fn write_remote(&mut self, rkey: RKey, _addr: u64, _data: &[u8]) -> Result<(), MemoryError> {
        Err(MemoryError::InvalidRemoteKey(rkey))
    }

    /// Fetches bytes for the peer's RDMA READ.
    ///
    /// # Errors
    /// As [`write_remote`](Self::write_remote).
    fn read_remote(&mut self, rkey: RKey, _addr: u64, _out: &mut [u8]) -> Result<(), MemoryError> {
        Err(MemoryError::InvalidRemoteKey(rkey))
    }

    /// Executes the peer's atomic operation and gives the value before it. Atomic against every other atomic operation of
    /// the device.
    ///
    /// # Errors
    /// As [`check_remote`](Self::check_remote), or the memory is not mapped; then nothing was changed.
    fn atomic(&mut self, rkey: RKey, _addr: u64, _op: AtomicOp) -> Result<u64, MemoryError> {
        Err(MemoryError::InvalidRemoteKey(rkey))
    }

    /// Takes a key away at the wish of the peer (SEND with invalidate) or of the program (local invalidate): when this
    /// returns, the key works no more and nothing is being placed through it.
    ///
    /// # Errors
    /// No window of this queue pair has the key, or it names what cannot be invalidated so.
    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        Err(MemoryError::InvalidRemoteKey(rkey))
    }

    /// Binds a memory window.
    ///
    /// # Errors
    /// The rule of the binding that is broken; the window is as before.
    fn bind(&mut self, bind: &BindWindow) -> Result<(), MemoryError> {
        Err(MemoryError::InvalidRemoteKey(bind.window))
    }

    /// As [`scatter`](Self::scatter), into a buffer of a shared receive queue, whose protection domain is the queue's own.
    ///
    /// # Errors
    /// As there.
    fn scatter_held(
        &mut self,
        held: &HeldReceive,
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        self.scatter(&held.sges, offset, data)
    }

    /// Names the shared receive queue that a request to an XRC target is for: what the following calls of this request
    /// reach by a remote key lies in the queue's protection domain (IBA Vol. 1 Annex A14). Called with each request packet,
    /// and again before memory is read for a READ that is answered later. False: the domain of the queue pair has no such
    /// queue, and the request is refused.
    fn select_shared(&mut self, _srqn: Srqn) -> bool {
        false
    }

    /// Takes the oldest buffer of a shared receive queue: the one of the queue pair, or for XRC the one that the packet
    /// names.
    fn take_shared_receive(
        &mut self,
        _srqn: Option<Srqn>,
        _into: &mut HeldReceive,
    ) -> SharedReceive {
        SharedReceive::NoSuchQueue
    }
}

/// Why memory could not be reached. For local memory every kind is a local protection error; for the peer's operations
/// it is a remote access error, and [`Unmapped`](Self::Unmapped) a remote operational error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No region has this key, or it belongs to another protection domain.
    #[error("no memory region with lkey {0}")]
    InvalidKey(LKey),
    /// The range leaves the region.
    #[error("range of {len} bytes at {addr:#x} leaves its memory region")]
    OutOfBounds {
        /// Start of the range.
        addr: u64,
        /// Its length.
        len: u64,
    },
    /// The region may not be written by the device.
    #[error("memory region with lkey {0} is not writable")]
    NotWritable(LKey),
    /// No region or window that the peer may use has this key: it is unknown, taken away, of another protection domain, or
    /// of a window bound to another queue pair.
    #[error("no memory with rkey {0}")]
    InvalidRemoteKey(RKey),
    /// The region or window does not allow the peer this.
    #[error("memory with rkey {rkey} allows the peer no {access:?}")]
    RemoteAccessDenied {
        /// The key.
        rkey: RKey,
        /// What the peer wanted.
        access: RemoteAccess,
    },
    /// The address of an atomic operation is not a multiple of 8.
    #[error("atomic operation at {addr:#x}, which is no multiple of 8")]
    Misaligned {
        /// The address.
        addr: u64,
    },
    /// A binding that its region, window or queue pair does not allow.
    #[error("window cannot be bound: {0}")]
    BindRefused(&'static str),
    /// The key names memory that cannot be invalidated by a work request: a region, or a window of type 1.
    #[error("key {0} is not that of a type 2 window")]
    NotInvalidatable(RKey),
    /// The range is no longer mapped by the program.
    #[error("{len} bytes at {addr:#x} are not mapped")]
    Unmapped {
        /// Start of the range.
        addr: u64,
        /// Its length.
        len: u64,
    },
}
