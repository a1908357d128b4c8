//! How the engine reaches the memory of work requests.

use oarlock_wire::LKey;

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

/// Registered memory, as the engine sees it.
///
/// Both calls treat the elements of `sges` as one contiguous message and start `offset` bytes into it; the engine never
/// asks for bytes beyond the sum of the lengths. Keys, bounds and access rights are checked by the implementation on every
/// call: a region may vanish between two packets of a message.
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
}

/// Why a scatter or gather failed. The engine treats every kind as a local protection error.
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
    /// The range is no longer mapped by the program.
    #[error("{len} bytes at {addr:#x} are not mapped")]
    Unmapped {
        /// Start of the range.
        addr: u64,
        /// Its length.
        len: u64,
    },
}
