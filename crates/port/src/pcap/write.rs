//! The writer: one `write` per record on a file opened for appending, so that several processes can share one file.

use super::{FILE_HEADER_LEN, MAGIC_MICROS, RECORD_HEADER_LEN, SNAPLEN, block, linktype};
use crate::frame::{Flow, IpFields};
use crate::sys;
use rustix::fs::{FileType, FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// A capture file of link type RAW. Clones write to the same file.
///
/// Every write is one system call with whole records to a file opened for appending; so the records of several threads
/// and processes stand one after another, whole. Writing ends no program, not even at its limit of file sizes.
#[derive(Clone)]
pub struct Capture {
    file: Arc<File>,
    format: Format,
    all_received: bool,
    /// A packet could not be written, and what comes behind it would not be read.
    ended: Arc<AtomicBool>,
    /// Nobody looks at it: it tells by being closed.
    _lease: Option<Arc<OwnedFd>>,
    on_failure: Option<OnFailure>,
}

type OnFailure = Arc<dyn Fn(&io::Error) + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Classic,
    /// pcapng, with the number of the interface that stands in the file for whoever writes.
    Ng(u32),
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
        let status = make_appending(&file)?;
        if status.st_size == 0 {
            begin_file(&file, lock_attempts)?;
        }
        Ok(Self::classic(file))
    }

    fn classic(file: File) -> Self {
        Self {
            file: Arc::new(file),
            format: Format::Classic,
            all_received: false,
            ended: Arc::default(),
            _lease: None,
            on_failure: None,
        }
    }

    /// Writes pcapng, as the interface with this number in the file's last section, which a [`Section`](super::Section) has
    /// made. Never waits.
    ///
    /// A capture of this kind ends with the first packet that cannot be written, since what comes behind half a packet could not be
    /// read.
    ///
    /// # Errors
    /// `InvalidInput`: not a regular file, so that writing to it might block or go elsewhere; not open for writing.
    pub fn of_interface(fd: OwnedFd, interface: u32) -> io::Result<Self> {
        let file = File::from(fd);
        make_appending(&file)?;
        Ok(Self {
            format: Format::Ng(interface),
            ..Self::classic(file)
        })
    }

    /// Keeps a descriptor open for as long as there is the capture or a clone of it: its other end tells when nobody writes
    /// any more.
    #[must_use]
    pub fn with_lease(mut self, lease: OwnedFd) -> Self {
        self._lease = Some(Arc::new(lease));
        self
    }

    /// Records every received packet, also those that a program of this host has sent, which are left to their sender else.
    #[must_use]
    pub fn with_all_received(mut self) -> Self {
        self.all_received = true;
        self
    }

    /// Calls `tell` when the capture ends because a packet could not be written. It is called where packets are sent and received,
    /// and must neither block nor send any.
    #[must_use]
    pub fn on_failure(mut self, tell: impl Fn(&io::Error) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Arc::new(tell));
        self
    }

    pub(super) fn wants_all_received(&self) -> bool {
        self.all_received
    }

    /// A packet could not be written; whether the capture ends by that.
    pub(super) fn ends_by(&self, error: &io::Error) -> bool {
        if self.format == Format::Classic {
            return false;
        }
        let ended_before = self.ended.swap(true, Ordering::Relaxed);
        if let (false, Some(tell)) = (ended_before, &self.on_failure) {
            tell(error);
        }
        true
    }

    /// Whether a packet could not be written, so that no more are.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Appends one IP packet, given in pieces, as one that was sent.
    ///
    /// # Errors
    /// What the file system says; a record that was written in part only.
    pub fn write_packet(&self, time: SystemTime, pieces: &[&[u8]]) -> io::Result<()> {
        if let Format::Ng(interface) = self.format {
            let mut record = Vec::new();
            block::packet(&mut record, interface, time, false, &pieces.concat());
            return write_whole(&self.file, &record);
        }
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

    /// Appends datagrams (BTH to ICRC) of one flow with the IP identifications from that of `ip` on.
    pub(crate) fn write_datagrams<'a>(
        &self,
        time: SystemTime,
        flow: &Flow,
        ip: IpFields,
        is_inbound: bool,
        datagrams: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        let mut records = Vec::new();
        let mut packet = Vec::new();
        for (i, datagram) in datagrams.enumerate() {
            packet.clear();
            let ip = IpFields {
                identification: ip.identification.wrapping_add(i as u16),
                ..ip
            };
            flow.emit(ip, datagram, &mut packet)?;
            match self.format {
                Format::Classic => self.write_packet(time, &[&packet])?,
                Format::Ng(interface) => {
                    block::packet(&mut records, interface, time, is_inbound, &packet);
                }
            }
        }
        if records.is_empty() {
            return Ok(());
        }
        write_whole(&self.file, &records)
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("file", &self.file)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Sees to it that a file is one that a capture may go to, and that what is written goes to its end.
pub(super) fn make_appending(file: &File) -> io::Result<rustix::fs::Stat> {
    let refused = |sentence| Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    let status = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return refused("a capture must go to a regular file");
    }
    let flags = rustix::fs::fcntl_getfl(file)?;
    if flags & OFlags::RWMODE == OFlags::RDONLY {
        return refused("a capture's file must be open for writing");
    }
    if !flags.contains(OFlags::APPEND) {
        rustix::fs::fcntl_setfl(file, flags | OFlags::APPEND)?;
    }
    Ok(status)
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
pub(super) fn write_whole(file: &File, bytes: &[u8]) -> io::Result<()> {
    loop {
        match sys::file::write_without_signal(file, bytes) {
            Ok(n) if n == bytes.len() => return Ok(()),
            Ok(_) => return Err(why_in_part(file)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Why a write took only a part, which the system says at the next one only.
fn why_in_part(file: &File) -> io::Error {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let len = file.metadata().map_or(0, |file| file.len());
    if limit.is_some_and(|limit| len >= limit) {
        return Errno::FBIG.into();
    }
    io::Error::new(
        io::ErrorKind::WriteZero,
        "a capture record was written in part",
    )
}

const LOCK_ATTEMPTS: u32 = 20;
