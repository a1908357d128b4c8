//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use oarlock_device as device;
use oarlock_device::{SrqInit, SrqXrc};

use super::birth::Birth;
use super::context::Context;
use super::cq::Cq;
use super::pd::{Pd, Use, Users};
use super::qp::told;
use super::work;
use super::xrc::Xrcd;
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    abi: UnsafeCell<ibv_srq>,
    pub(crate) inner: Arc<device::Srq>,
    context: Arc<Context>,
    /// Queue pairs that take buffers of it.
    users: Users,
    birth: Birth,
    _uses: Vec<Use>,
}

// SAFETY: the public part is C's and reached by pointer only; everything else is `Send` and `Sync` by itself.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// # Errors
    /// `EINVAL`: a limit of the device is broken. `ENOMEM`: as many exist as it has.
    fn create(
        pd: &Pd,
        srq_context: *mut c_void,
        attr: &ibv_srq_attr,
        xrc: Option<SrqXrc>,
        mut uses: Vec<Use>,
    ) -> Result<*mut ibv_srq> {
        pd.context.birth.check()?;
        let inner = device::Srq::new(
            &pd.inner,
            SrqInit {
                max_wr: attr.max_wr,
                max_sge: attr.max_sge,
                xrc,
                user: None,
            },
        )?;
        let id = inner.id();
        let public = ibv_srq {
            context: pd.context.as_ptr(),
            srq_context,
            pd: pd.as_ptr(),
            handle: inner.number().map_or(0, |number| number.get()),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        uses.push(pd.enter());
        let srq = Box::into_raw(Box::new(Self {
            abi: UnsafeCell::new(public),
            inner: Arc::new(inner),
            context: Arc::clone(&pd.context),
            users: Users::default(),
            birth: Birth::here(),
            _uses: uses,
        }));
        // SAFETY: just made.
        unsafe { &*srq }.context.srqs.enter(id, srq.cast());
        Ok(srq.cast())
    }

    /// The queue that C knows as `srq`.
    ///
    /// # Safety
    /// `srq` is what C got of this library, and not destroyed.
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*srq.cast::<Self>() }
    }

    /// For a queue pair that takes buffers of it: keep it until that is destroyed.
    pub(super) fn enter(&self) -> Use {
        self.users.enter()
    }

    fn modify(&self, attr: &ibv_srq_attr, mask: u32) -> Result<()> {
        self.birth.check()?;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            let sentence = format!("attributes {mask:#x} of a shared receive queue");
            return Err(Refused::new(libc::EINVAL, sentence));
        }
        // The depth first, so that a limit that fits the new one does.
        if mask & IBV_SRQ_MAX_WR != 0 {
            self.inner.resize(attr.max_wr)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            self.inner.set_limit(attr.srq_limit)?;
        }
        Ok(())
    }
}

/// `ibv_create_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    srq_init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the program's promise. The sizes are what was asked for, so that `attr` stays as it is.
    let (pd, init) = unsafe { (Pd::of(pd), &*srq_init_attr) };
    let created = Srq::create(pd, init.srq_context, &init.attr, None, Vec::new());
    errno::object("ibv_create_srq", created)
}

/// `ibv_create_srq_ex(3)`.
pub(super) unsafe extern "C" fn create_ex(
    _context: *mut ibv_context,
    srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the program's promise.
    let created = unsafe { create_of(&*srq_init_attr_ex) };
    errno::object("ibv_create_srq_ex", created)
}

/// # Safety
/// The objects are null or what C got of this library.
unsafe fn create_of(attr: &ibv_srq_init_attr_ex) -> Result<*mut ibv_srq> {
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED || has(IBV_SRQ_INIT_ATTR_TM) {
        return Err(Refused::new(
            libc::EOPNOTSUPP,
            format!("attributes {:#x} of a shared receive queue", attr.comp_mask),
        ));
    }
    if !has(IBV_SRQ_INIT_ATTR_PD) || attr.pd.is_null() {
        let sentence = "a shared receive queue needs a protection domain";
        return Err(Refused::new(libc::EINVAL, sentence));
    }
    // SAFETY: the caller's promise.
    let pd = unsafe { Pd::of(attr.pd) };
    let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) {
        attr.srq_type
    } else {
        IBV_SRQT_BASIC
    };
    let (xrc, uses) = match srq_type {
        IBV_SRQT_BASIC => (None, Vec::new()),
        IBV_SRQT_XRC => {
            let is_whole = has(IBV_SRQ_INIT_ATTR_XRCD) && has(IBV_SRQ_INIT_ATTR_CQ);
            if !is_whole || attr.xrcd.is_null() || attr.cq.is_null() {
                return Err(Refused::new(
                    libc::EINVAL,
                    "a shared receive queue of XRC needs a domain and a completion queue",
                ));
            }
            // SAFETY: the caller's promise.
            let (xrcd, cq) = unsafe { (Xrcd::of(attr.xrcd), Cq::of(attr.cq)) };
            let xrc = SrqXrc {
                domain: xrcd.inner.clone(),
                cq: Arc::clone(&cq.inner),
            };
            (Some(xrc), vec![xrcd.enter(), cq.enter()])
        }
        other => {
            return Err(Refused::new(
                libc::EOPNOTSUPP,
                format!("shared receive queues of type {other} do not exist on this device"),
            ));
        }
    };
    Srq::create(pd, attr.srq_context, &attr.attr, xrc, uses)
}

/// `ibv_modify_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
    srq_attr_mask: c_int,
) -> c_int {
    // SAFETY: the program's promise.
    let (srq, attr) = unsafe { (Srq::of(srq), &*srq_attr) };
    errno::positive(
        "ibv_modify_srq",
        srq.modify(attr, srq_attr_mask.cast_unsigned()),
    )
}

/// `ibv_query_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
) -> c_int {
    // SAFETY: the program's promise.
    let srq = unsafe { Srq::of(srq) };
    let result = srq.birth.check().map(|()| {
        let now = srq.inner.query();
        // SAFETY: it is the program's to be filled.
        unsafe {
            srq_attr.write(ibv_srq_attr {
                max_wr: now.max_wr,
                max_sge: now.max_sge,
                srq_limit: now.limit,
            });
        }
    });
    errno::positive("ibv_query_srq", result)
}

/// `ibv_destroy_srq(3)`: blocks until every asynchronous event of it has been acknowledged.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the program's promise.
    let queue = unsafe { Srq::of(srq) };
    let result = queue
        .birth
        .check()
        .and_then(|()| queue.users.check_unused("shared receive queue"));
    if result.is_ok() {
        queue.context.srqs.leave(&queue.inner.id(), srq);
        // SAFETY: the program's last use of it.
        drop(unsafe { Box::from_raw(srq.cast::<Srq>()) });
    }
    errno::positive("ibv_destroy_srq", result)
}

/// `ibv_get_srq_num(3)`.
pub(super) unsafe extern "C" fn number(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    // SAFETY: the program's promise.
    let number = unsafe { Srq::of(srq) }.inner.number();
    let result = number
        .ok_or_else(|| {
            let sentence = "only a shared receive queue of XRC has a number";
            Refused::new(libc::EOPNOTSUPP, sentence)
        })
        .map(|number| {
            // SAFETY: it is the program's to be filled.
            unsafe { srq_num.write(number.get()) };
        });
    errno::positive("ibv_get_srq_num", result)
}

/// `ibv_post_srq_recv(3)`.
pub(super) unsafe extern "C" fn post_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program's promise.
    let posted = unsafe { work::post_srq_recv(&Srq::of(srq).inner, recv_wr) };
    // SAFETY: as above.
    unsafe { told("ibv_post_srq_recv", posted, bad_recv_wr) }
}
