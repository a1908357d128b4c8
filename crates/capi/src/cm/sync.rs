//! Synchronous identifiers: the call waits for its event.
//!
//! Calls that may wait come in two parts. The first carries the command out and owns what it likes; the second waits and
//! owns nothing, since a program may cancel the waiting thread (`pthread_cancel`), which unwinds it.

use std::ffi::c_int;
use std::sync::Arc;

use super::channel::{self, Wait};
use super::event::{self, Next, Step};
use super::id::Id;
use super::names;
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// The second part: waits for the event of a synchronous identifier, if the first part succeeded.
///
/// # Safety
/// `id` is what the first part was called with.
pub(crate) unsafe fn finish(call: &'static str, id: *mut rdma_cm_id, begun: c_int) -> c_int {
    if begun != 0 {
        return begun;
    }
    let mut is_announced = false;
    loop {
        // SAFETY: the caller's promise.
        let step = unsafe { complete_step(call, id, is_announced) };
        let Step::Wait(wait) = step else {
            return step.answer();
        };
        if !channel::wait_for_byte(call, wait) {
            return -1;
        }
        is_announced = true;
    }
}

/// One look for the event, from which nothing unwinds.
#[allow(
    improper_ctypes_definitions,
    reason = "both sides are Rust: the ABI is there because nothing unwinds from it"
)]
unsafe extern "C" fn complete_step(
    call: &'static str,
    id: *mut rdma_cm_id,
    is_announced: bool,
) -> Step {
    // SAFETY: the caller's promise.
    let looked = unsafe { Id::of(id) }.and_then(|id| look(id, is_announced));
    match looked {
        Ok(Some(wait)) => Step::Wait(wait),
        Ok(None) => Step::Answer(0),
        Err(refused) => Step::Answer(errno::minus_one(call, Err(refused))),
    }
}

/// Looks for the event of a synchronous identifier: what to wait on, or nothing when the call is done.
fn look(id: &Id, is_announced: bool) -> Result<Option<Wait>> {
    if !id.is_sync() {
        return Ok(None);
    }
    if !is_announced {
        event::release_kept(id);
    }
    let channel = Arc::clone(&id.bound());
    match event::next(&channel, is_announced)? {
        Next::Wait(wait) => Ok(Some(wait)),
        Next::Event(event) => {
            keep(id, event);
            outcome(event)?;
            Ok(None)
        }
    }
}

/// Makes an event the identifier's `id->event`, until the next call on it.
pub(crate) fn keep(id: &Id, event: *mut rdma_cm_event) {
    event::release_kept(id);
    // SAFETY: the public part is valid as long as the identifier is.
    unsafe { (*id.abi()).event = event };
}

/// What an event says about the call that waited for it.
///
/// # Errors
/// `ECONNREFUSED`: rejected. Else the status of the event, whatever its sign.
pub(crate) fn outcome(event: *mut rdma_cm_event) -> Result<()> {
    // SAFETY: the event was fetched by the library and is not acknowledged.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    if status == 0 {
        return Ok(());
    }
    let errno = if kind == RDMA_CM_EVENT_REJECTED {
        libc::ECONNREFUSED
    } else {
        status.abs()
    };
    let name = names::of_event(kind);
    Err(Refused::new(errno, format!("{name}, status {status}")))
}
