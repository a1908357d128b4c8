//! Asynchronous events.
//!
//! A program may cancel a thread that waits for one (`pthread_cancel`), which unwinds its stack from the system call on. So
//! waiting owns nothing, and everything else is in functions that are no cancellation points.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;

use oarlock_device::AsyncEvent;

use super::context::Context;
use crate::abi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event, ibv_async_event_element,
    ibv_context,
};
use crate::errno::{self, Refused};

/// `ibv_get_async_event`: waits as read(2) of `async_fd` does: `EAGAIN` if the program has made that non-blocking, `EINTR`
/// after a signal whose handler does not restart calls.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    let fd = unsafe { descriptor(context) };
    if fd < 0 {
        return -1;
    }
    loop {
        let mut count = 0_u64;
        // SAFETY: `count` has room for 8 bytes.
        let got = unsafe { read(fd, (&raw mut count).cast(), size_of::<u64>()) };
        if got < 0 {
            told_why();
            return -1;
        }
        // SAFETY: as above.
        if unsafe { take(context, event) } {
            return 0;
        }
    }
}

/// # Safety
/// As [`Context::of`].
unsafe extern "C" fn descriptor(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::of(context) };
    match context.birth.check() {
        Ok(()) => context.async_fd(),
        Err(refused) => errno::minus_one(CALL, Err(refused)),
    }
}

extern "C" fn told_why() {
    let error = io::Error::last_os_error();
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    errno::minus_one(CALL, Err(Refused::new(errno, error.to_string())));
}

/// Takes the event whose count has been read; false if it has gone with its object.
///
/// # Safety
/// As [`Context::of`]; `event` has room.
unsafe extern "C" fn take(context: *mut ibv_context, event: *mut ibv_async_event) -> bool {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::of(context) };
    match context.take_async_event() {
        Some(taken) => {
            // SAFETY: the caller's promise.
            unsafe { event.write(taken) };
            true
        }
        None => false,
    }
}

impl Context {
    /// The next event as C sees it; `None` if nothing is queued, or only what is about an object that is gone.
    fn take_async_event(&self) -> Option<ibv_async_event> {
        let element = Cell::new(None);
        // Seen by whoever destroys the object, who waits for the acknowledgement then.
        let event = self
            .device
            .take_async_event(|event| element.set(self.element_of(event)))?;
        let event_type = event.kind().number;
        let element = element.take()?;
        Some(ibv_async_event {
            element,
            event_type,
        })
    }

    /// What an event is about, which has one more event to be acknowledged; `None` if it is gone.
    fn element_of(&self, event: &AsyncEvent) -> Option<ibv_async_event_element> {
        if let Some(qpn) = event.qpn() {
            let qp = self.qps.deliver(&qpn)?;
            return Some(ibv_async_event_element { qp });
        }
        if let Some(cq) = event.cq_id() {
            let cq = self.cqs.deliver(&cq)?;
            return Some(ibv_async_event_element { cq });
        }
        if let Some(srq) = event.srq_id() {
            let srq = self.srqs.deliver(&srq)?;
            return Some(ibv_async_event_element { srq });
        }
        let port_num = event.port_num().map_or(0, c_int::from);
        // The whole element is written: C programs may look at the wider pointer.
        let mut element = ibv_async_event_element {
            qp: ptr::null_mut(),
        };
        element.port_num = port_num;
        Some(element)
    }
}

/// `ibv_ack_async_event`: what destroying the object of the event waits for.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's promise: the event was delivered, so the object of its type is there until it is acknowledged,
    // and with it the context.
    unsafe {
        let element = (*event).element;
        match (*event).event_type {
            IBV_EVENT_CQ_ERR => {
                let cq = element.cq;
                Context::of((*cq).context).cqs.acknowledge(cq);
            }
            IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = element.qp;
                Context::of((*qp).context).qps.acknowledge(qp);
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = element.srq;
                Context::of((*srq).context).srqs.acknowledge(srq);
            }
            // About a port or the whole device: nobody waits.
            _ => {}
        }
    }
}

const CALL: &str = "ibv_get_async_event";

// Declared here because the one of crate `libc` says that nothing unwinds from it.
unsafe extern "C-unwind" {
    fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize;
}
