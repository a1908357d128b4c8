//! Signals, without unsafe code.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};

/// Lets a write beyond the limit of a file's size (`ulimit -f`) fail with an error, which names what could not be written,
/// where the signal would end the program without a word.
pub(crate) fn outlive_file_size_limit() -> io::Result<()> {
    // Whether it came does not matter: each write tells by itself.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Becomes readable when the program is asked to end, by SIGINT or SIGTERM, which from then on do nothing else.
#[derive(Debug)]
pub(crate) struct Ending {
    told: UnixStream,
    asked: Arc<AtomicBool>,
}

impl Ending {
    pub(crate) fn register() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let (told, teller) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            // First what is looked at, then what wakes.
            signal_hook::flag::register(signal, Arc::clone(&asked))?;
            signal_hook::low_level::pipe::register(signal, teller.try_clone()?)?;
        }
        Ok(Self { told, asked })
    }

    /// Whether it was asked.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl AsFd for Ending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

#[cfg(test)]
impl Ending {
    /// One that no signal touches, and what asks for the end in place of a signal.
    pub(crate) fn by_hand() -> (Self, impl Fn()) {
        let asked = Arc::new(AtomicBool::new(false));
        let (told, teller) = UnixStream::pair().expect("a pair of sockets");
        let flag = Arc::clone(&asked);
        let ask = move || {
            flag.store(true, Ordering::Relaxed);
            io::Write::write_all(&mut &teller, b"x").expect("it listens");
        };
        (Self { told, asked }, ask)
    }
}
