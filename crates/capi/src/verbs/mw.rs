//! Memory windows.

use std::cell::UnsafeCell;
use std::sync::Arc;

use oarlock_device::Window;

use super::context::Context;
use super::pd::Use;
use crate::abi::ibv_mw;

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    abi: UnsafeCell<ibv_mw>,
    pub(crate) inner: Window,
    context: Arc<Context>,
    in_pd: Use,
}

impl Mw {
    /// The window that C knows as `mw`.
    ///
    /// # Safety
    /// `mw` is what C got of this library, and not deallocated.
    pub(crate) unsafe fn of<'a>(mw: *mut ibv_mw) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*mw.cast::<Self>() }
    }
}
