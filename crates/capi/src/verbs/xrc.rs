//! XRC domains.

use std::cell::UnsafeCell;
use std::sync::Arc;

use oarlock_device::XrcDomain;

use super::context::Context;
use super::pd::Users;
use crate::abi::ibv_xrcd;

/// A handle of an XRC domain.
#[repr(C)]
pub(crate) struct Xrcd {
    abi: UnsafeCell<ibv_xrcd>,
    pub(crate) inner: XrcDomain,
    context: Arc<Context>,
    users: Users,
}

impl Xrcd {
    /// The domain that C knows as `xrcd`.
    ///
    /// # Safety
    /// `xrcd` is what C got of this library, and not closed.
    pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*xrcd.cast::<Self>() }
    }

    /// For a shared receive queue or target of the domain: see [`Pd::enter`](super::pd::Pd::enter).
    pub(crate) fn enter(&self) -> super::pd::Use {
        self.users.enter()
    }
}
