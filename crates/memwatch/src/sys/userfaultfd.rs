//! userfaultfd: Linux `include/uapi/linux/userfaultfd.h`.

use std::mem::ManuallyDrop;
use std::ops::{BitAnd, BitOr, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::io::{DupFlags, dup3};
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use super::fork::epoch;

/// A set of UFFD_FEATURE bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features(u64);

impl Features {
    pub(crate) const NONE: Self = Self(0);
    /// Write-protect mode exists (5.7).
    pub(crate) const WRITE_PROTECT: Self = Self(1 << 0);
    /// UFFD_FEATURE_EVENT_REMAP, EVENT_REMOVE and EVENT_UNMAP (4.11).
    pub(crate) const EVENTS: Self = Self(1 << 2 | 1 << 3 | 1 << 6);
    /// Write-protect mode for shared memory and huge pages (5.19).
    pub(crate) const WRITE_PROTECT_SHARED: Self = Self(1 << 12);
    /// Asynchronous write-protect mode, which takes every kind of mapping (6.7).
    pub(crate) const WRITE_PROTECT_ASYNC: Self = Self(1 << 15);

    pub(crate) fn has(self, other: Self) -> bool {
        self & other == other
    }
}

impl BitOr for Features {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Features {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// `struct uffd_msg`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Message {
    event: u8,
    reserved1: u8,
    reserved2: u16,
    reserved3: u32,
    arg: [u64; 3],
}

const _: () = assert!(size_of::<Message>() == 32);

/// What a [`Message`] reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Remap { from: usize, len: usize },
    Remove { start: usize, end: usize },
    Unmap { start: usize, end: usize },
    Other,
}

impl Message {
    pub(crate) fn report(&self) -> Report {
        let [a, b, c] = self.arg.map(|word| word as usize);
        match self.event {
            EVENT_REMAP => Report::Remap { from: a, len: c },
            EVENT_REMOVE => Report::Remove { start: a, end: b },
            EVENT_UNMAP => Report::Unmap { start: a, end: b },
            _ => Report::Other,
        }
    }
}

/// A userfaultfd that only watches: nothing is ever protected, so no thread ever faults into it.
#[derive(Debug)]
pub(crate) struct Userfaultfd {
    /// Closed by drop.
    fd: ManuallyDrop<OwnedFd>,
    /// That of the process that opened it.
    epoch: u64,
}

impl Userfaultfd {
    /// What the kernel offers.
    pub(crate) fn offered() -> Result<Features, Errno> {
        Self::unconfigured()?.handshake(Features::NONE)
    }

    /// Opens a descriptor with these features. It does not block, and closes on exec.
    pub(crate) fn open(features: Features) -> Result<Self, Errno> {
        let this = Self::unconfigured()?;
        this.handshake(features)?;
        Ok(this)
    }

    fn unconfigured() -> Result<Self, Errno> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let user_mode_only = UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: what the descriptor can do to memory is done by this type alone, which protects and fills nothing.
        let fd = match unsafe { userfaultfd(flags | user_mode_only) } {
            // Before Linux 5.11 the flag is not known, and not needed.
            // SAFETY: as above.
            Err(Errno::INVAL) => unsafe { userfaultfd(flags) }?,
            other => other?,
        };
        Ok(Self {
            fd: ManuallyDrop::new(fd),
            epoch: epoch(),
        })
    }

    /// Closes the userfaultfd, which ends every watch and lets every caller go, and has its number mean `other` from now on: all that
    /// this type asks of that is refused.
    pub(crate) fn replace_with(&self, other: impl AsFd) {
        // SAFETY: the descriptor of that number is ours, and drop is left to us.
        let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(self.fd.as_raw_fd()) });
        // Both are descriptors of ours; it can only be interrupted by a signal before it has begun.
        while dup3(&other, &mut fd, DupFlags::CLOEXEC) == Err(Errno::INTR) {}
    }

    fn handshake(&self, features: Features) -> Result<Features, Errno> {
        let mut api = Api {
            api: API,
            features: features.0,
            ioctls: 0,
        };
        self.ioctl::<UFFDIO_API, _>(&mut api)?;
        Ok(Features(api.features))
    }

    /// Watches the mappings of a range of whole pages. Parts of it that are not mapped are skipped.
    pub(crate) fn register(&self, range: &Range<usize>) -> Result<(), Errno> {
        let mut register = Register {
            range: Extent::of(range),
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        self.ioctl::<UFFDIO_REGISTER, _>(&mut register)
    }

    /// Ends the watch of a range of whole pages.
    pub(crate) fn unregister(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.ioctl::<UFFDIO_UNREGISTER, _>(&mut Extent::of(range))
    }

    /// Whether a change of a watched mapping has begun whose event is not read, or whose caller has not woken up since.
    ///
    /// The kernel looks at its count of changes before it looks at the argument, which asks for nothing.
    ///
    /// # Errors
    /// What no userfaultfd says: a sandbox refuses the call by now, or the descriptor was closed behind our back. Nothing is known then.
    #[inline]
    pub(crate) fn is_changing(&self) -> Result<bool, Errno> {
        let mut nothing = WriteProtect {
            range: Extent { start: 0, len: 0 },
            mode: 0,
        };
        match self.ioctl::<UFFDIO_WRITEPROTECT, _>(&mut nothing) {
            Err(Errno::INVAL) => Ok(false),
            Err(Errno::AGAIN) => Ok(true),
            Err(other) => Err(other),
            // A kernel that has nothing against asking for nothing.
            Ok(_) => Ok(false),
        }
    }

    /// Reads events, without waiting; returns how many. None is left if it is 0.
    ///
    /// # Errors
    /// What read(2) says, except EAGAIN and EINTR.
    pub(crate) fn read(&self, into: &mut [Message]) -> Result<usize, Errno> {
        loop {
            // SAFETY: the slice is memory of ours for its whole length, and a Message may have any bits.
            let bytes = unsafe {
                std::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), size_of_val(into))
            };
            match rustix::io::read(&*self.fd, bytes) {
                Ok(n) => return Ok(n / size_of::<Message>()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(other) => return Err(other),
            }
        }
    }

    #[inline]
    fn ioctl<const REQUEST: Opcode, T>(&self, arg: &mut T) -> Result<(), Errno> {
        // SAFETY: `arg` is of the type that the request is defined for: the only callers are above.
        let updater = unsafe { Updater::<REQUEST, T>::new(arg) };
        // SAFETY: as above, and it lives through the call.
        unsafe { ioctl(&*self.fd, updater) }
    }
}

impl Drop for Userfaultfd {
    fn drop(&mut self) {
        // In a child that the C library forked it is closed already, and the number may mean something else.
        if self.epoch == epoch() {
            // SAFETY: not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `struct uffdio_range`.
#[repr(C)]
struct Extent {
    start: u64,
    len: u64,
}

impl Extent {
    fn of(range: &Range<usize>) -> Self {
        Self {
            start: range.start as u64,
            len: range.len() as u64,
        }
    }
}

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Extent,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    range: Extent,
    mode: u64,
}

const API: u64 = 0xAA;
const TYPE: u8 = 0xAA;
const USER_MODE_ONLY: u32 = 1;
const REGISTER_MODE_WP: u64 = 1 << 1;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const UFFDIO_API: Opcode = iowr::<Api>(TYPE, 0x3F);
const UFFDIO_REGISTER: Opcode = iowr::<Register>(TYPE, 0x00);
/// An `_IOR`, although the kernel reads from it.
const UFFDIO_UNREGISTER: Opcode = request::<Extent>(2, TYPE, 0x01);
const UFFDIO_WRITEPROTECT: Opcode = iowr::<WriteProtect>(TYPE, 0x06);

pub(super) const fn iowr<T>(kind: u8, number: u8) -> Opcode {
    request::<T>(3, kind, number)
}

/// Linux `include/uapi/asm-generic/ioctl.h`: direction, size, type, number.
const fn request<T>(direction: u32, kind: u8, number: u8) -> Opcode {
    (direction << 30 | (size_of::<T>() as u32) << 16 | (kind as u32) << 8 | number as u32) as Opcode
}
