//! Memory windows.

use std::sync::Arc;

use oarlock_device as device;
use oarlock_wire::RKey;

use crate::error::Error;
use crate::pd::ProtectionDomain;

pub use device::{Bound, WindowType};

/// A memory window: a key for a part of a [`RemoteMemory`](crate::RemoteMemory) that has the right
/// [`Access::MW_BIND`](crate::Access::MW_BIND), given to peers and taken away by work requests, without registering
/// anything anew.
///
/// | | type 1 | type 2 |
/// |---|---|---|
/// | bound by | [`QueuePair::bind_window`](crate::QueuePair::bind_window) | [`SendRequest::bind`](crate::SendRequest::bind) |
/// | key | the device chooses a new one | the program chooses its low 8 bits |
/// | works for | every queue pair of the domain | the one that bound it |
/// | taken away by | binding it elsewhere, or to no bytes | [`local_invalidate`](crate::SendRequest::local_invalidate), or the peer's [`send_invalidate`](crate::SendRequest::send_invalidate) |
///
/// Clones are the same window. When the last one is dropped the key works no more.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow {
    device: Arc<device::Window>,
    pd: ProtectionDomain,
}

impl MemoryWindow {
    /// A window that is bound to nothing.
    ///
    /// # Errors
    /// `Device`: too many windows.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn new(pd: &ProtectionDomain, window_type: WindowType) -> Result<Self, Error> {
        Ok(Self {
            device: Arc::new(device::Window::new(pd.device(), window_type)?),
            pd: pd.clone(),
        })
    }

    /// The key it has now; it works while the window is bound.
    pub fn rkey(&self) -> RKey {
        self.device.rkey()
    }

    /// The present key with the next value in its low 8 bits: what a window of type 2 is usually bound with, so that peers
    /// who know the key of the binding before do not reach this one.
    #[doc(alias = "ibv_inc_rkey")]
    pub fn next_key(&self) -> RKey {
        let RKey(key) = self.rkey();
        RKey(key & !0xff | key.wrapping_add(1) & 0xff)
    }

    /// Its type.
    pub fn window_type(&self) -> WindowType {
        self.device.window_type()
    }

    /// What it is bound to; `None` if it is free. A binding takes effect when its request is executed.
    pub fn bound(&self) -> Option<Bound> {
        self.device.bound()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(crate) fn device(&self) -> &device::Window {
        &self.device
    }
}
