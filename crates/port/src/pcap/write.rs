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
        Self::append_to(file.into())
    }

    /// Appends to the file at `path`, which is created if need be.
    ///
    /// # Errors
    /// What the file system says.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::append_to(File::options().create(true).append(true).open(path)?.into())
    }

    /// Appends to an open file; writes the file header if it is empty.
    ///
    /// # Errors
    /// `InvalidInput`: not a regular file, so that writing to it might block or go elsewhere.
    pub fn append_to(fd: OwnedFd) -> io::Result<Self> {
        let status = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a capture must go to a regular file",
            ));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        if !flags.contains(OFlags::APPEND) {
            rustix::fs::fcntl_setfl(&fd, flags | OFlags::APPEND)?;
        }
        let file = File::from(fd);
        // Two processes that start with one empty file must not both write the header. Somebody who holds the lock for
        // longer than that takes must not hold us up.
        for _ in 0..LOCK_ATTEMPTS {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(1)),
                result => {
                    result?;
                    break;
                }
            }
        }
        let result = write_header(&file);
        flock(&file, FlockOperation::Unlock)?;
        result?;
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
