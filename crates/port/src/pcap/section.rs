//! A section of a pcapng file, for whoever gives the interfaces in it their numbers.

use super::block;
use super::write::{make_appending, write_whole};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The last section of a pcapng file. Only its maker adds interfaces, so that their places are known; packets are added by
/// everybody who has been told the number of one ([`Capture::of_interface`](super::Capture::of_interface)).
///
/// While there is a section nobody else on this system can begin one in the same file, unless the file system knows no locks.
#[derive(Debug)]
pub struct Section {
    /// What came, to hand on.
    file: File,
    /// Opened by us alone, so that the lock ends with us, whoever else holds what came.
    own: Option<File>,
    identity: (u64, u64),
    interfaces: u32,
}

impl Section {
    /// Begins a section at the end of a file, which is empty or pcapng and open for reading and writing. Never waits.
    ///
    /// # Errors
    /// `InvalidInput`: not a regular file; not open for writing; not pcapng. `WouldBlock`: somebody else writes a section there.
    pub fn begin(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        let status = make_appending(&file)?;
        let own = reopen(&file);
        if let Some(own) = &own
            && flock(own, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "another host service writes to this file",
            ));
        }
        if status.st_size > 0 {
            let mut kind = [0; 4];
            let n = rustix::io::pread(&file, &mut kind, 0)?;
            if n < kind.len() || u32::from_ne_bytes(kind) != block::SECTION {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the file is neither empty nor a pcapng file",
                ));
            }
        }
        write_whole(&file, &block::section())?;
        Ok(Self {
            file,
            own,
            identity: (status.st_dev, status.st_ino),
            interfaces: 0,
        })
    }

    /// Device and inode of the file, which tell whether another descriptor is of the same.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Adds an interface; gives its number.
    ///
    /// # Errors
    /// What the file system says.
    pub fn add(&mut self, name: &str, description: &str) -> io::Result<u32> {
        write_whole(&self.file, &block::interface(name, description))?;
        let number = self.interfaces;
        self.interfaces += 1;
        Ok(number)
    }

    /// A copy of the descriptor that came.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Whether the file is locked against others that would begin a section.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.own.is_some()
    }
}

/// The same file, opened once more; none where there is no /proc, or it may not be opened.
fn reopen(file: &File) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // Never blocks: it is a regular file.
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    Some(File::from(fd))
}
