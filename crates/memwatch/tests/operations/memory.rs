//! Memory of every kind, at a place with room around it.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_int, c_void};
use oarlock_memwatch::Mapping;

pub(crate) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const HUGE_PAGE: usize = 2 << 20;

/// Turns what a system call returned into a result.
pub(crate) fn check(returned: i64) -> io::Result<i64> {
    match returned {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Pages of one kind, each filled with its number plus one, inside a range of addresses that is ours.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) mapping: Mapping,
    pub(crate) base: usize,
    pub(crate) page: usize,
    pub(crate) pages: usize,
    pub(crate) file: Option<OwnedFd>,
    /// Free addresses, `2 * len` of them.
    pub(crate) far: usize,
    arena: Range<usize>,
}

impl Memory {
    /// # Errors
    /// Why this machine has none.
    pub(crate) fn new(mapping: Mapping) -> io::Result<Self> {
        let huge = mapping == Mapping::HugeTlb;
        let (page, pages) = if huge { (HUGE_PAGE, 4) } else { (4096, 16) };
        let len = page * pages;
        let room = 6 * len + HUGE_PAGE;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arena = map(0, room, libc::PROT_NONE, private | libc::MAP_NORESERVE, -1)?;
        let mut this = Self {
            mapping,
            base: arena.next_multiple_of(HUGE_PAGE) + len,
            page,
            pages,
            file: None,
            far: arena.next_multiple_of(HUGE_PAGE) + 3 * len,
            arena: arena..arena + room,
        };
        let fixed = libc::MAP_FIXED;
        match mapping {
            Mapping::Anonymous => drop(map(this.base, len, READ_WRITE, private | fixed, -1)?),
            Mapping::Stack => {
                let flags = private | fixed | libc::MAP_GROWSDOWN | libc::MAP_STACK;
                map(this.base, len, READ_WRITE, flags, -1)?;
            }
            Mapping::SharedAnonymous => {
                let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | fixed;
                map(this.base, len, READ_WRITE, flags, -1)?;
            }
            Mapping::HugeTlb => {
                map(
                    this.base,
                    len,
                    READ_WRITE,
                    private | fixed | libc::MAP_HUGETLB,
                    -1,
                )?;
            }
            Mapping::MemfdShared | Mapping::MemfdPrivate => {
                // SAFETY: the name is a C string; the descriptor is new and ours.
                let fd = unsafe {
                    let fd = libc::memfd_create(c"watched".as_ptr(), libc::MFD_CLOEXEC);
                    OwnedFd::from_raw_fd(check(fd.into())? as RawFd)
                };
                this.map_file(File::from(fd), mapping == Mapping::MemfdShared)?;
            }
            Mapping::FileShared | Mapping::FilePrivate => {
                let file = disk_file()?;
                this.map_file(file, mapping == Mapping::FileShared)?;
            }
            Mapping::Heap => this.base = grow_heap(len)?,
            Mapping::SystemV => {
                attach_new_segment(this.base, len)?;
            }
            other => {
                return Err(io::Error::other(format!(
                    "no way to make memory of {other}"
                )));
            }
        }
        for number in 0..pages {
            // SAFETY: the page is mapped, writable and ours.
            unsafe {
                ptr::write_bytes(
                    (this.base + number * page) as *mut u8,
                    number as u8 + 1,
                    page,
                )
            };
        }
        Ok(this)
    }

    fn map_file(&mut self, mut file: File, shared: bool) -> io::Result<()> {
        for number in 0..self.pages {
            file.write_all(&vec![number as u8 + 1; self.page])?;
        }
        let kind = if shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        map(
            self.base,
            self.len(),
            READ_WRITE,
            kind | libc::MAP_FIXED,
            file.as_raw_fd(),
        )?;
        self.file = Some(file.into());
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.page * self.pages
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// The address of a page.
    pub(crate) fn at(&self, page: usize) -> usize {
        self.base + page * self.page
    }

    /// Whether every page can still be reached and has its contents, whatever its protection.
    pub(crate) fn is_unchanged(&self) -> bool {
        use std::os::unix::fs::FileExt;
        let own = File::open("/proc/self/mem").expect("this process may read its memory");
        let mut byte = [0];
        (0..self.pages).all(|page| {
            own.read_exact_at(&mut byte, self.at(page) as u64).is_ok() && byte[0] == page as u8 + 1
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the addresses are ours. Where a segment or a sealed mapping is in the way nothing is unmapped, and nothing needs it.
        unsafe { libc::munmap(self.arena.start as *mut c_void, self.arena.len()) };
    }
}

/// mmap.
pub(crate) fn map(
    at: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: RawFd,
) -> io::Result<usize> {
    // SAFETY: only addresses that tests have taken for themselves are replaced.
    let start = unsafe { libc::mmap(at as *mut c_void, len, prot, flags, fd, 0) };
    check(start as i64).map(|start| start as usize)
}

/// Attaches a new System V segment, replacing what is mapped there, and marks it for removal.
pub(crate) fn attach_new_segment(at: usize, len: usize) -> io::Result<usize> {
    // SAFETY: the addresses are ours; the segment is new, and nobody else knows it.
    unsafe {
        let id =
            check(libc::shmget(libc::IPC_PRIVATE, len, libc::IPC_CREAT | 0o600).into())? as c_int;
        let attached = check(libc::shmat(id, at as *const c_void, libc::SHM_REMAP) as i64);
        libc::shmctl(id, libc::IPC_RMID, ptr::null_mut());
        attached.map(|start| start as usize)
    }
}

/// A nameless file on a disk, not in memory.
fn disk_file() -> io::Result<File> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let folder = option_env!("CARGO_TARGET_TMPDIR").unwrap_or("/var/tmp");
    let folder = [folder, "/var/tmp"]
        .into_iter()
        .find(|folder| {
            std::ffi::CString::new(*folder).is_ok_and(|path| {
                // SAFETY: a C string, and a structure of ours that zeros are valid for.
                unsafe {
                    let mut about: libc::statfs = std::mem::zeroed();
                    libc::access(path.as_ptr(), libc::W_OK) == 0
                        && libc::statfs(path.as_ptr(), &mut about) == 0
                        && about.f_type as i64 != TMPFS_MAGIC
                }
            })
        })
        .ok_or_else(|| io::Error::other("no folder on a disk can be written to"))?;
    let path = std::path::Path::new(folder).join(format!("watched.{}", std::process::id()));
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// Pages at the end of the heap.
fn grow_heap(len: usize) -> io::Result<usize> {
    // SAFETY: sbrk only adds memory here; the allocator copes with a heap that others grow.
    unsafe {
        let end = libc::sbrk(0) as usize;
        let start = end.next_multiple_of(4096);
        let before = check(libc::sbrk((start - end + len) as isize) as i64)? as usize;
        match before == end {
            true => Ok(start),
            false => Err(io::Error::other("another thread grew the heap")),
        }
    }
}
