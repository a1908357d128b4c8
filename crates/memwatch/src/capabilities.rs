//! What a Watcher can and cannot see.

use rustix::io::Errno;

use crate::error::{Error, Reason};
use crate::promise::{Mapping, Operation, Promise, promise};
use crate::sys::{Features, Userfaultfd};

/// Which memory the kernel lets us watch, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Private anonymous memory (Linux 5.7).
    Anonymous,
    /// Also shared memory, memory files and huge pages (Linux 5.19).
    Shared,
    /// Every mapping, except shared mappings of files that were opened for reading only (Linux 6.7).
    Full,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Full, Self::Shared, Self::Anonymous];

    pub(crate) fn features(self) -> Features {
        let anonymous = Features::EVENTS | Features::WRITE_PROTECT;
        match self {
            Self::Anonymous => anonymous,
            Self::Shared => anonymous | Features::WRITE_PROTECT_SHARED,
            Self::Full => {
                anonymous | Features::WRITE_PROTECT_SHARED | Features::WRITE_PROTECT_ASYNC
            }
        }
    }
}

/// What a Watcher can and cannot see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    mode: Mode,
}

impl Capabilities {
    /// What a Watcher can see in a mode, on whatever kernel.
    pub fn of(mode: Mode) -> Self {
        Self { mode }
    }

    /// What a Watcher would be able to see in this process, without making one.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: nothing.
    pub fn probe() -> Result<Self, Error> {
        Self::up_to(Mode::Full)
    }

    pub(crate) fn up_to(best: Mode) -> Result<Self, Error> {
        let offered = Userfaultfd::offered().map_err(unavailable)?;
        Mode::ALL
            .into_iter()
            .find(|mode| *mode <= best && offered.has(mode.features()))
            .map(|mode| Self { mode })
            .ok_or(Error::Unavailable {
                reason: Reason::TooOld,
                errno: Errno::INVAL.raw_os_error(),
            })
    }

    /// Which mappings can be watched.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether [`Watcher::settle`](crate::Watcher::settle) closes the window between a change and its event.
    ///
    /// Before Linux 5.16 the kernel's count of changes under way was a single bit, so that the end of one change could hide
    /// another. True from [`Mode::Shared`] on.
    pub fn is_strict(&self) -> bool {
        self.mode >= Mode::Shared
    }

    /// What becomes of a region in `mapping` when the program does `operation` to it.
    pub fn promise(&self, operation: Operation, mapping: Mapping) -> Promise {
        promise(self.mode, operation, mapping)
    }
}

pub(crate) fn unavailable(errno: Errno) -> Error {
    let reason = match errno {
        Errno::NOSYS => Reason::NotBuilt,
        Errno::PERM | Errno::ACCESS => Reason::NotPermitted,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Reason::NoResources,
        _ => Reason::TooOld,
    };
    Error::Unavailable {
        reason,
        errno: errno.raw_os_error(),
    }
}
