//! Memory events, our extension of libibverbs: `dist/include/oarlock/memory_events.h`, oarlock_create_memory_channel(3).
//!
//! What watches memory is crate `memwatch`, and the device asks it before it follows a key. Here is what C holds:
//!
//! ```text
//!  channel.rs      one channel for each context, which has the regions; reading, settling
//!  region.rs       regions of a channel: struct ibv_mr as ever, with a watch
//!  capability.rs   what can be seen
//! ```
//!
//! Calls wait for the kernel's events to be read, never for the program; no thread is cancelled in them. In a forked child
//! they are refused with `EPERM`, as those on every object of its parent.

mod capability;
mod channel;
mod region;

pub(crate) use channel::Slot;
pub(crate) use region::Watch;

use crate::errno::{Refused, Result};

/// # Errors
/// `EINVAL`: the pointer is null.
fn given<T>(pointer: *mut T, what: &str) -> Result<*mut T> {
    if pointer.is_null() {
        return Err(Refused::new(libc::EINVAL, format!("no {what} is given")));
    }
    Ok(pointer)
}
