//! Address handles.

use std::cell::UnsafeCell;
use std::sync::Arc;

use oarlock_wire::AddressVector;

use super::context::Context;
use super::pd::Use;
use crate::abi::{ibv_ah, ibv_ah_attr};
use crate::errno::Result;

/// Where datagrams go.
#[repr(C)]
pub(crate) struct AddressHandle {
    abi: UnsafeCell<ibv_ah>,
    vector: AddressVector,
    context: Arc<Context>,
    in_pd: Use,
}

impl AddressHandle {
    /// The handle that C knows as `ah`.
    ///
    /// # Safety
    /// `ah` is what C got of this library, and not destroyed.
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*ah.cast::<Self>() }
    }

    /// The path.
    pub(crate) fn vector(&self) -> AddressVector {
        self.vector
    }
}

/// The path that `attr` means on the port of `context`.
///
/// Flow label, service level, static rate and source path bits are not carried by packets of an ordinary socket, and not
/// needed for their delivery: they are left out.
///
/// # Errors
/// `EINVAL`: no global route, no such port, no such address of the port, or one of the other IP version.
pub(crate) fn vector_of(context: &Context, attr: &ibv_ah_attr) -> Result<AddressVector> {
    let _ = (context, attr);
    todo!()
}
