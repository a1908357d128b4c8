//! The generation page: one counter that says whether anything happened, for this and other processes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;

use crate::error::Error;
use crate::sys::{SharedPage, page_size};

/// A view of a Watcher's generation, in any process that was given its descriptor
/// ([`Watcher::generation_page`](crate::Watcher::generation_page)).
///
/// In C: `mmap(NULL, page size, PROT_READ, MAP_SHARED, fd, 0)`; the counter is the 64-bit word at offset 0, in host order.
#[derive(Debug)]
pub struct GenerationPage {
    page: SharedPage,
}

impl GenerationPage {
    /// Maps the page.
    ///
    /// # Errors
    /// [`Error::NotAGenerationPage`]: the descriptor is not a memory file of one page that is sealed against shrinking.
    /// [`Error::System`]: it cannot be mapped.
    pub fn map(fd: impl AsFd) -> Result<Self, Error> {
        let seals = fcntl_get_seals(fd.as_fd()).map_err(|_| Error::NotAGenerationPage)?;
        let size = rustix::fs::fstat(fd.as_fd()).map_err(|e| Error::system("fstat", e))?;
        // Without the seal, whoever has the file could make a load of the counter fault.
        if !seals.contains(SealFlags::SHRINK) || size.st_size as usize != page_size() {
            return Err(Error::NotAGenerationPage);
        }
        let page = SharedPage::map(fd.as_fd(), false).map_err(|e| Error::system("mmap", e))?;
        Ok(Self { page })
    }

    /// The generation. Equal to that of the last [`Event::Last`](crate::Event::Last): no event is unread.
    ///
    /// What was written before the generation grew is seen by whoever sees it.
    pub fn get(&self) -> u64 {
        self.page.word().load(Ordering::Acquire)
    }
}

/// The end that counts.
#[derive(Debug)]
pub(crate) struct Generation {
    page: SharedPage,
    file: OwnedFd,
}

impl Generation {
    pub(crate) fn new() -> Result<Self, Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("memory generation", flags)
            .map_err(|e| Error::system("memfd_create", e))?;
        ftruncate(&file, page_size() as u64).map_err(|e| Error::system("ftruncate", e))?;
        let page = SharedPage::map(file.as_fd(), true).map_err(|e| Error::system("mmap", e))?;
        let size = SealFlags::SHRINK | SealFlags::GROW;
        match fcntl_add_seals(&file, size | SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
            // FUTURE_WRITE came with Linux 5.1, before the modes that we use; a sandbox may still be in the way.
            Err(Errno::INVAL) => fcntl_add_seals(&file, size | SealFlags::SEAL),
            other => other,
        }
        .map_err(|e| Error::system("fcntl", e))?;
        Ok(Self { page, file })
    }

    pub(crate) fn get(&self) -> u64 {
        self.page.word().load(Ordering::Acquire)
    }

    /// Publishes what was marked before.
    pub(crate) fn grow(&self) {
        self.page.word().fetch_add(1, Ordering::Release);
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
