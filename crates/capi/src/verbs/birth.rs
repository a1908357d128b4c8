//! In which process an object was made: a forked child has a copy of it, and no use for it.

use oarlock_port::fork;

use crate::errno::{Refused, Result};

/// The process that an object was made in.
#[derive(Clone, Copy)]
pub(crate) struct Birth(u32);

impl Birth {
    pub(crate) fn here() -> Self {
        Self(fork::generation())
    }

    /// # Errors
    /// `EPERM`: this is a forked child of that process. Locks of the object may be held for ever here.
    pub(crate) fn check(self) -> Result<()> {
        if self.0 == fork::generation() {
            return Ok(());
        }
        Err(Refused::new(
            libc::EPERM,
            "the object belongs to the parent of this forked process",
        ))
    }
}
