//! Pages of our own, and questions about pages of the program.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::ioctl::Opcode;
use rustix::mm::{
    Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, msync, munmap,
};

/// The size of a page in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: asks for a constant; no memory is passed. Linux always answers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Whether every page of a range of whole pages belongs to some mapping.
pub(crate) fn is_mapped(range: &Range<usize>) -> bool {
    let start = std::ptr::without_provenance_mut(range.start);
    // SAFETY: MS_ASYNC writes nothing (Linux, msync(2)); it walks the mappings and fails with ENOMEM where there is none.
    unsafe { msync(start, range.len(), MsyncFlags::ASYNC) }.is_ok()
}

/// Opens a file of /proc/self for reading. Not through the C library, where a thread could be cancelled at this point.
pub(crate) fn open_own(name: &str) -> Result<OwnedFd, Errno> {
    let own = open("/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    openat(own, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// The mapping that covers an address, or the next one above it: PROCMAP_QUERY (Linux 6.11).
///
/// # Errors
/// ENOENT: there is none. ENOTTY: an older kernel.
pub(crate) fn mapping_at(address: usize) -> Result<Range<usize>, Errno> {
    let maps = open_own("maps")?;
    let mut query = MappingQuery {
        size: size_of::<MappingQuery>() as u64,
        flags: COVERING_OR_NEXT,
        address: address as u64,
        ..MappingQuery::default()
    };
    // SAFETY: the structure is the one that the request is defined for, says its size, asks for no strings, and lives through the
    // call.
    match unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) } {
        0 => Ok(query.start as usize..query.end as usize),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// `struct procmap_query` of Linux `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct MappingQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    about: [u64; 4],
    device: [u32; 2],
    string_sizes: [u32; 2],
    strings: [u64; 2],
}

const _: () = assert!(size_of::<MappingQuery>() == 104);
const COVERING_OR_NEXT: u64 = 0x10;
const PROCMAP_QUERY: Opcode = super::userfaultfd::iowr::<MappingQuery>(b'f', 17);

/// Counters in private memory that a forked child receives as zeros, however it was forked.
#[derive(Debug)]
pub(crate) struct WipedPages {
    words: Mapping,
    count: usize,
}

impl WipedPages {
    /// At least `count` counters, all 0. Memory is taken as they are used.
    pub(crate) fn new(count: usize) -> Result<Self, Errno> {
        let len = (count * size_of::<AtomicU64>()).next_multiple_of(page_size());
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE) }?;
        let words = Mapping::of(start, len)?;
        // SAFETY: the range is the mapping just made, and its content is ours to lose in a child.
        unsafe { madvise(start, len, Advice::LinuxWipeOnFork) }?;
        Ok(Self { words, count })
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, has room for `count` words, is initialised (zeros), lives as long as self, and is
        // accessed by nothing but atomics.
        unsafe { std::slice::from_raw_parts(self.words.start.as_ptr().cast(), self.count) }
    }
}

/// The first word of a shared mapping of a file: a counter seen by every process that maps it.
#[derive(Debug)]
pub(crate) struct SharedPage {
    page: Mapping,
}

impl SharedPage {
    /// Maps the first page of a file, which must not become shorter.
    pub(crate) fn map(file: BorrowedFd<'_>, writable: bool) -> Result<Self, Errno> {
        let prot = match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let len = page_size();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) }?;
        Ok(Self {
            page: Mapping::of(start, len)?,
        })
    }

    /// The counter. Storing to it needs a page that was mapped as writable.
    pub(crate) fn word(&self) -> &AtomicU64 {
        // SAFETY: page-aligned, initialised, alive as long as self; other processes access it by atomics, too.
        unsafe { self.page.start.cast().as_ref() }
    }
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is reached by atomics only, and unmapped once, by the owner.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(start: *mut std::ffi::c_void, len: usize) -> Result<Self, Errno> {
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone; whoever borrowed from it is gone.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours is unmapped as a whole");
    }
}
