//! Signals, without unsafe code.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};

/// Lets a write beyond the limit of a file's size (`ulimit -f`) fail with an error, which names what could not be written,
/// where the signal would end the program without a word.
pub(crate) fn outlive_file_size_limit() -> io::Result<()> {
    // Whether it came does not matter: each write tells by itself.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Becomes readable when the program is asked to end, by SIGINT or SIGTERM, which from then on do nothing else.
#[derive(Debug)]
pub(crate) struct Ending(UnixStream);

impl Ending {
    pub(crate) fn register() -> io::Result<Self> {
        let (told, teller) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, teller.try_clone()?)?;
        }
        Ok(Self(told))
    }
}

impl AsFd for Ending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
