//! Completion channels.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use oarlock_device as device;

use super::birth::Birth;
use super::context::Context;
use super::cq::Cq;
use super::pd::{Use, Users};
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::errno::{self, Result};

/// A completion channel.
#[repr(C)]
pub(crate) struct CompChannel {
    abi: UnsafeCell<ibv_comp_channel>,
    inner: Arc<device::CompChannel>,
    _context: Arc<Context>,
    cqs: Users,
    birth: Birth,
}

impl CompChannel {
    fn create(context: Arc<Context>) -> Result<Box<Self>> {
        context.birth.check()?;
        let inner = device::CompChannel::new(&context.device)?;
        let public = ibv_comp_channel {
            context: context.as_ptr(),
            fd: inner.as_fd().as_raw_fd(),
            // Ours counts for itself.
            refcnt: 0,
        };
        Ok(Box::new(Self {
            abi: UnsafeCell::new(public),
            inner,
            _context: context,
            cqs: Users::default(),
            birth: Birth::here(),
        }))
    }

    /// The channel that C knows as `channel`.
    ///
    /// # Safety
    /// `channel` is what C got of this library, and not destroyed.
    pub(super) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*channel.cast::<Self>() }
    }

    pub(super) const fn inner(&self) -> &Arc<device::CompChannel> {
        &self.inner
    }

    /// For a completion queue that reports here.
    pub(super) fn enter(&self) -> Use {
        self.cqs.enter()
    }
}

/// `ibv_create_comp_channel(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the program's promise.
    let created = CompChannel::create(unsafe { Context::share(context) });
    errno::object(
        "ibv_create_comp_channel",
        created.map(|channel| Box::into_raw(channel).cast()),
    )
}

/// `ibv_destroy_comp_channel(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the program's promise.
    let unused = unsafe { CompChannel::of(channel) };
    let in_process = unused.birth.check();
    let result = in_process.and_then(|()| unused.cqs.check_unused("completion channel"));
    if result.is_ok() {
        // SAFETY: as above; it is the program's last use of it.
        drop(unsafe { Box::from_raw(channel.cast::<CompChannel>()) });
    }
    errno::positive("ibv_destroy_comp_channel", result)
}

/// `ibv_get_cq_event(3)`: waits as read(2) of the channel's descriptor does.
///
/// A program may cancel a thread that waits here (`pthread_cancel`), which unwinds its stack from the system call on: so
/// waiting owns nothing, and everything else is in functions that are no cancellation points.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the program's promise, here and below.
    let fd = unsafe { descriptor(channel) };
    if fd < 0 {
        return -1;
    }
    loop {
        let mut count = 0_u64;
        // SAFETY: `count` has room for 8 bytes. `errno` is as the program expects it where nothing is read.
        let got = unsafe { read(fd, (&raw mut count).cast(), size_of::<u64>()) };
        if got < 0 {
            return -1;
        }
        // SAFETY: as above.
        if unsafe { take(channel, cq, cq_context) } {
            return 0;
        }
    }
}

/// # Safety
/// As [`CompChannel::of`].
unsafe extern "C" fn descriptor(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's promise.
    let channel = unsafe { CompChannel::of(channel) };
    match channel.birth.check() {
        Ok(()) => channel.inner.as_fd().as_raw_fd(),
        Err(refused) => errno::minus_one("ibv_get_cq_event", Err(refused)),
    }
}

/// Takes the event whose count has been read; false if it has gone with its queue.
///
/// # Safety
/// As [`CompChannel::of`]; `cq` and `cq_context` have room.
unsafe extern "C" fn take(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> bool {
    // SAFETY: the caller's promise.
    let Some(event) = unsafe { CompChannel::of(channel) }.inner.take_event() else {
        return false;
    };
    let about = Cq::of_cookie(event.into_cookie());
    // SAFETY: the queue is there until the program has acknowledged the event; there is room.
    unsafe {
        cq.write(about);
        cq_context.write((*about).cq_context);
    }
    true
}

// Declared here because the one of crate `libc` says that nothing unwinds from it.
unsafe extern "C-unwind" {
    fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize;
}

/// `ibv_ack_cq_events(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: the program's promise.
    unsafe { Cq::of(cq) }.inner.acknowledge(nevents.into());
}
