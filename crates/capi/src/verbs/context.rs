//! Contexts: an opened device as C sees it.

use std::mem::offset_of;
use std::sync::Arc;

use oarlock_device as device;

use crate::abi::{ibv_context, verbs_context};

/// An opened device. C holds a pointer to the `ibv_context` at the end of `abi`; what stands before that is reached from it
/// by the headers' inline functions.
#[repr(C)]
pub(crate) struct Context {
    abi: verbs_context,
    pub(crate) device: Arc<device::Context>,
}

impl Context {
    /// # Safety
    /// `context` is what C got of this library, and not closed.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        let start = context
            .cast::<u8>()
            .wrapping_sub(offset_of!(verbs_context, context));
        // SAFETY: the caller's promise: it lies within a `Context`, whose first field ends with it.
        unsafe { &*start.cast::<Self>() }
    }
}
