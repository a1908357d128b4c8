//! PAGEMAP_SCAN: what the kernel says of pages (Linux 6.7, `include/uapi/linux/fs.h`).

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::ioctl::Opcode;

/// Pages that are alike.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<Scan>() == 96 && size_of::<PageRegion>() == 24);

/// What a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    /// In a mapping that a userfaultfd watches in the asynchronous mode.
    pub(crate) is_watched: bool,
    /// A guard page; never, if the kernel does not tell.
    pub(crate) is_guard: bool,
    /// In the page table, or in swap space.
    pub(crate) is_present: bool,
}

/// Visits the mapped pages of a range of whole pages, from low to high, in runs that are alike. Says whether guard pages are told apart
/// (Linux 6.15).
///
/// # Errors
/// ENOTTY: Linux before 6.7.
pub(crate) fn scan(
    pagemap: BorrowedFd<'_>,
    range: &Range<usize>,
    mut visit: impl FnMut(Range<usize>, Page),
) -> Result<bool, Errno> {
    let mut found = [PageRegion::default(); AT_ONCE];
    let mut return_mask = WATCHED | PRESENT | SWAPPED | GUARD;
    let mut start = range.start as u64;
    while start < range.end as u64 {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end: range.end as u64,
            vec: found.as_mut_ptr().expose_provenance() as u64,
            vec_len: AT_ONCE as u64,
            return_mask,
            ..Scan::default()
        };
        // SAFETY: the structure is the one that the request is defined for, says its size, and lives through the call; the vector that
        // it names has room for as many elements as it says, which may have any bits.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
        if count < 0 {
            match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::INTR) => {}
                Some(Errno::INVAL) if return_mask & GUARD != 0 => return_mask &= !GUARD,
                other => return Err(other.unwrap_or(Errno::IO)),
            }
            continue;
        }
        for run in &found[..count as usize] {
            let has = |category| run.categories & category != 0;
            let page = Page {
                is_watched: has(WATCHED),
                is_guard: has(GUARD),
                is_present: has(PRESENT | SWAPPED),
            };
            visit(run.start as usize..run.end as usize, page);
        }
        if scan.walk_end <= start {
            return Err(Errno::IO);
        }
        start = scan.walk_end;
    }
    Ok(return_mask & GUARD != 0)
}

const WATCHED: u64 = 1 << 0;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const GUARD: u64 = 1 << 8;
const PAGEMAP_SCAN: Opcode = super::userfaultfd::iowr::<Scan>(b'f', 16);
/// Runs that are asked for in one call.
const AT_ONCE: usize = 32;
