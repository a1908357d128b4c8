//! Memory regions.

use std::cell::UnsafeCell;
use std::sync::{Arc, Mutex};

use oarlock_device::Region;

use super::context::Context;
use super::pd::Use;
use crate::abi::ibv_mr;

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    abi: UnsafeCell<ibv_mr>,
    pub(crate) inner: Mutex<Region>,
    context: Arc<Context>,
    in_pd: Use,
}

impl Mr {
    /// The region that C knows as `mr`.
    ///
    /// # Safety
    /// `mr` is what C got of this library, and not deregistered.
    pub(crate) unsafe fn of<'a>(mr: *mut ibv_mr) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*mr.cast::<Self>() }
    }
}
