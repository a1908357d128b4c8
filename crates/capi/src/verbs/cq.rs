//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use oarlock_device as device;
use oarlock_device::Notify;

use super::birth::Birth;
use super::comp_channel::CompChannel;
use super::context::Context;
use super::cq_ex::{self, Polling};
use super::pd::{Use, Users};
use super::work;
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// A completion queue. Every one is an extended one, as far as its memory goes.
#[repr(C)]
pub(crate) struct Cq {
    abi: UnsafeCell<ibv_cq_ex>,
    pub(crate) inner: Arc<device::Cq>,
    pub(crate) context: Arc<Context>,
    pub(super) polling: Polling,
    /// Queue pairs and shared receive queues that complete here.
    users: Users,
    _channel: Option<Use>,
    birth: Birth,
}

// SAFETY: the public part is C's and reached by pointer only; what is being polled belongs to who has its turn.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// What a queue is created with.
pub(super) struct Init {
    pub(super) cqe: u32,
    pub(super) cq_context: *mut c_void,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) comp_vector: u32,
}

impl Cq {
    /// # Errors
    /// `EINVAL`: no room, more than the device has, or a vector that there is not.
    ///
    /// # Safety
    /// The channel is null or what C got of this library, of the same context.
    pub(super) unsafe fn create(context: Arc<Context>, init: &Init) -> Result<*mut ibv_cq_ex> {
        context.birth.check()?;
        if init.comp_vector != 0 {
            return Err(Refused::new(
                libc::EINVAL,
                format!("completion vector {}: there is one, 0", init.comp_vector),
            ));
        }
        let (channel, in_channel) = if init.channel.is_null() {
            (None, None)
        } else {
            // SAFETY: the caller's promise.
            let channel = unsafe { CompChannel::of(init.channel) };
            (Some(channel.inner()), Some(channel.enter()))
        };
        // Events name the queue by the address it will have.
        let place = Box::<Self>::new_uninit();
        let cookie = place.as_ptr().expose_provenance() as u64;
        let inner = device::Cq::new(&context.device, init.cqe, channel, cookie)?;
        let id = inner.id();
        let mut public = cq_ex::functions();
        public.context = context.as_ptr();
        public.channel = init.channel;
        public.cq_context = init.cq_context;
        public.cqe = init.cqe.cast_signed();
        public.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        public.cond = libc::PTHREAD_COND_INITIALIZER;
        let cq = Box::write(
            place,
            Self {
                abi: UnsafeCell::new(public),
                inner: Arc::new(inner),
                context,
                polling: Polling::default(),
                users: Users::default(),
                _channel: in_channel,
                birth: Birth::here(),
            },
        );
        let cq: *mut Self = Box::into_raw(cq);
        // SAFETY: just made.
        unsafe { &*cq }.context.cqs.enter(id, cq.cast());
        Ok(cq.cast())
    }

    /// The queue that C knows as `cq`.
    ///
    /// # Safety
    /// `cq` is what C got of this library, and not destroyed.
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field, and begins as an `ibv_cq`.
        unsafe { &*cq.cast::<Self>() }
    }

    /// The queue that an event is about.
    pub(super) fn of_cookie(cookie: u64) -> *mut ibv_cq {
        ptr::with_exposed_provenance_mut(cookie as usize)
    }

    pub(super) const fn public(&self) -> *mut ibv_cq_ex {
        self.abi.get()
    }

    /// For a queue pair or shared receive queue that completes here: keep it until that is destroyed.
    pub(crate) fn enter(&self) -> Use {
        self.users.enter()
    }

    /// # Errors
    /// `EPERM`: see [`Birth::check`].
    pub(super) fn check_process(&self) -> Result<()> {
        self.birth.check()
    }

    fn moderate(&self, attr: &ibv_modify_cq_attr) -> Result<()> {
        self.birth.check()?;
        if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
            return Err(Refused::new(
                libc::EINVAL,
                format!("attributes {:#x} of a completion queue", attr.attr_mask),
            ));
        }
        // A queue without a channel has no events to gather.
        if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 && self.inner.channel().is_some() {
            let period = Duration::from_micros(attr.moderate.cq_period.into());
            self.inner.moderate(attr.moderate.cq_count, period)?;
        }
        Ok(())
    }
}

/// `ibv_create_cq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let init = Init {
        // Too few is too many: beyond what any device has.
        cqe: cqe.cast_unsigned(),
        cq_context,
        channel,
        comp_vector: comp_vector.cast_unsigned(),
    };
    // SAFETY: the program's promise.
    let created = unsafe { Cq::create(Context::share(context), &init) };
    errno::object("ibv_create_cq", created.map(|cq| cq.cast::<ibv_cq>()))
}

/// `ibv_resize_cq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the program's promise.
    let cq = unsafe { Cq::of(cq) };
    let resize = || {
        cq.birth.check()?;
        cq.inner.resize(cqe.cast_unsigned())?;
        // SAFETY: the field is this library's to change.
        unsafe { (*cq.public()).cqe = cqe };
        Ok(())
    };
    errno::positive("ibv_resize_cq", resize())
}

/// `ibv_destroy_cq(3)`: blocks until every event of the queue has been acknowledged.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the program's promise.
    let queue = unsafe { Cq::of(cq) };
    let result = queue
        .birth
        .check()
        .and_then(|()| queue.users.check_unused("completion queue"));
    if result.is_ok() {
        queue.inner.close();
        queue.context.cqs.leave(&queue.inner.id(), cq);
        queue.inner.wait_acknowledged(None);
        // SAFETY: the program's last use of it.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
    }
    errno::positive("ibv_destroy_cq", result)
}

/// `ibv_poll_cq(3)`.
pub(super) unsafe extern "C" fn poll(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the program's promise.
    let cq = unsafe { Cq::of(cq) };
    let wanted = usize::try_from(count).unwrap_or(0);
    if wanted == 0 {
        return 0;
    }
    if cq.birth.check().is_err() {
        return -1;
    }
    // SAFETY: the program's promise; what is in there needs not be initialized.
    let out = unsafe { slice::from_raw_parts_mut(wc.cast::<MaybeUninit<ibv_wc>>(), wanted) };
    // Most polls find nothing, or ask for one: less is to be prepared then.
    match cq.inner.poll_one() {
        Ok(Some(cqe)) => out[0].write(work::wc_of(&cqe)),
        Ok(None) => return 0,
        Err(_) => return -1,
    };
    let mut done = 1;
    while done < wanted {
        let Some(cqe) = cq.inner.take_one() else {
            break;
        };
        out[done].write(work::wc_of(&cqe));
        done += 1;
    }
    done as c_int
}

/// `ibv_req_notify_cq(3)`.
pub(super) unsafe extern "C" fn req_notify(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program's promise.
    let cq = unsafe { Cq::of(cq) };
    let notify = if solicited_only == 0 {
        Notify::Any
    } else {
        Notify::Solicited
    };
    let arm = || {
        cq.birth.check()?;
        // Without a channel nobody can be told, which is no error.
        if cq.inner.channel().is_some() {
            cq.inner.req_notify(notify)?;
        }
        Ok(())
    };
    errno::positive("ibv_req_notify_cq", arm())
}

/// `ibv_modify_cq(3)`.
pub(super) unsafe extern "C" fn modify(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the program's promise.
    let (cq, attr) = unsafe { (Cq::of(cq), &*attr) };
    errno::positive("ibv_modify_cq", cq.moderate(attr))
}
