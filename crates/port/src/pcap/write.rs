//! The writer: one `write` per record on a file opened for appending, so that several processes can share one file.

use super::{FILE_HEADER_LEN, MAGIC_MICROS, RECORD_HEADER_LEN, SNAPLEN, linktype};
use crate::frame::{Flow, IpFields};
use rustix::fs::{FileType, FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A capture file of link type RAW. Clones write to the same file.
///
/// Every record is one `write` to a file opened for appending; so the records of several threads and processes stand
/// one after another, whole.
#[derive(Debug, Clone)]
pub struct Capture {
    file: Arc<File>,
}

impl Capture {
    /// Creates or empties the file at `path`.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        file.set_len(0)?;
        Self::begin(file, LOCK_ATTEMPTS)
    }

    /// Appends to the file at `path`, which is created if need be.
    ///
    /// # Errors
    /// What the file system says.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Self::begin(file, LOCK_ATTEMPTS)
    }

    /// Appends to an open file, as somebody else may have handed it over; writes the file header if it is empty. Never
    /// waits, whoever else has the file open.
    ///
    /// # Errors
    /// `InvalidInput`: not a regular file, so that writing to it might block or go elsewhere; not open for writing.
    /// `WouldBlock`: an empty file that somebody else holds locked.
    pub fn append_to(fd: OwnedFd) -> io::Result<Self> {
        Self::begin(File::from(fd), 1)
    }

    fn begin(file: File, lock_attempts: u32) -> io::Result<Self> {
        let refused = |sentence| Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
        let status = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return refused("a capture must go to a regular file");
        }
        let flags = rustix::fs::fcntl_getfl(&file)?;
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            return refused("a capture's file must be open for writing");
        }
        if !flags.contains(OFlags::APPEND) {
            rustix::fs::fcntl_setfl(&file, flags | OFlags::APPEND)?;
        }
        if status.st_size == 0 {
            begin_file(&file, lock_attempts)?;
        }
        Ok(Self {
            file: Arc::new(file),
        })
    }

    /// Appends one IP packet, given in pieces.
    ///
    /// # Errors
    /// What the file system says; a record that was written in part only.
    pub fn write_packet(&self, time: SystemTime, pieces: &[&[u8]]) -> io::Result<()> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut record = Vec::with_capacity(RECORD_HEADER_LEN + len);
        let since = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        record.extend_from_slice(&(since.as_secs() as u32).to_ne_bytes());
        record.extend_from_slice(&since.subsec_micros().to_ne_bytes());
        let len = u32::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        record.extend_from_slice(&len.to_ne_bytes());
        record.extend_from_slice(&len.to_ne_bytes());
        for piece in pieces {
            record.extend_from_slice(piece);
        }
        write_whole(&self.file, &record)
    }

    pub(crate) fn write_datagram(
        &self,
        flow: &Flow,
        ip: IpFields,
        pieces: &[&[u8]],
    ) -> io::Result<()> {
        let mut packet =
            Vec::with_capacity(64 + pieces.iter().map(|piece| piece.len()).sum::<usize>());
        match pieces {
            [datagram] => flow.emit(ip, datagram, &mut packet)?,
            pieces => flow.emit(ip, &pieces.concat(), &mut packet)?,
        }
        self.write_packet(SystemTime::now(), &[&packet])
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Writes the header of an empty file. Two processes that start with one file must not both write it, so whoever has the
/// lock does.
fn begin_file(file: &File, lock_attempts: u32) -> io::Result<()> {
    let mut attempts_left = lock_attempts;
    loop {
        attempts_left = attempts_left.saturating_sub(1);
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if attempts_left > 0 => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "the capture's file is empty, and somebody else holds it locked",
                ));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    let result = write_header(file);
    flock(file, FlockOperation::Unlock)?;
    result
}

fn write_header(file: &File) -> io::Result<()> {
    if file.metadata()?.len() > 0 {
        return Ok(());
    }
    let mut header = Vec::with_capacity(FILE_HEADER_LEN);
    header.extend_from_slice(&MAGIC_MICROS.to_ne_bytes());
    header.extend_from_slice(&2u16.to_ne_bytes());
    header.extend_from_slice(&4u16.to_ne_bytes());
    header.extend_from_slice(&[0; 8]);
    header.extend_from_slice(&SNAPLEN.to_ne_bytes());
    header.extend_from_slice(&linktype::RAW.to_ne_bytes());
    write_whole(file, &header)
}

/// One system call: the rest after a short write would not be adjacent.
fn write_whole(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    loop {
        match file.write(bytes) {
            Ok(n) if n == bytes.len() => return Ok(()),
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::WriteZero,
                    "a capture record was written in part",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

const LOCK_ATTEMPTS: u32 = 20;
