//! Memory windows.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use oarlock_device::{Window, WindowBind, WindowType};
use oarlock_wire::LKey;

use super::context::Context;
use super::mr::rights_of_window;
use super::pd::{Pd, Use};
use super::qp::Qp;
use crate::abi::{
    IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_SEND_SIGNALED, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd,
    ibv_qp,
};
use crate::errno::{self, Refused, Result};

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    abi: UnsafeCell<ibv_mw>,
    pub(crate) inner: Window,
    context: Arc<Context>,
    _in_pd: Use,
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

/// `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller's promise.
    let made = allocate(unsafe { Pd::of(pd) }, pd, type_);
    errno::object("ibv_alloc_mw", made.map(|mw| Box::into_raw(mw).cast()))
}

fn allocate(pd: &Pd, pd_ptr: *mut ibv_pd, type_: ibv_mw_type) -> Result<Box<Mw>> {
    let window_type = match type_ {
        IBV_MW_TYPE_1 => WindowType::One,
        IBV_MW_TYPE_2 => WindowType::Two,
        other => {
            return Err(Refused::new(
                libc::EINVAL,
                format!("there are no windows of type {other}"),
            ));
        }
    };
    pd.context.birth.check()?;
    let inner = Window::new(&pd.inner, window_type)?;
    let public = ibv_mw {
        context: pd.context.as_ptr(),
        pd: pd_ptr,
        rkey: inner.rkey().0,
        handle: pd.context.next_handle(),
        type_,
    };
    Ok(Box::new(Mw {
        abi: UnsafeCell::new(public),
        inner,
        context: Arc::clone(&pd.context),
        _in_pd: pd.enter(),
    }))
}

/// `ibv_dealloc_mw`: also of a window that is bound.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's promise.
    let here = unsafe { Mw::of(mw) }.context.birth.check();
    let freed = here.map(|()| {
        // SAFETY: `alloc_mw` made it of a box, and the program does not use it any more.
        let mw = unsafe { Box::from_raw(mw.cast::<Mw>()) };
        let Mw { inner, .. } = *mw;
        inner.deallocate();
    });
    errno::positive("ibv_dealloc_mw", freed)
}

/// `ibv_bind_mw`: a window of type 1, whose key is a new one when this returns.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller's promise.
    let bound = unsafe { bind(Qp::of(qp), Mw::of(mw), &*mw_bind) };
    let told = bound.map(|rkey| {
        // SAFETY: the public part is there, and reached by pointer only.
        unsafe { (*mw).rkey = rkey };
    });
    errno::positive("ibv_bind_mw", told)
}

/// # Safety
/// The region of `mw_bind` is null or what C got of this library.
unsafe fn bind(qp: &Qp, mw: &Mw, mw_bind: &ibv_mw_bind) -> Result<u32> {
    let info = &mw_bind.bind_info;
    let region = if info.mr.is_null() {
        if info.length != 0 {
            return Err(Refused::new(libc::EINVAL, "a window is bound to a region"));
        }
        LKey(0)
    } else {
        // SAFETY: the caller's promise.
        LKey(unsafe { (*info.mr).lkey })
    };
    let bind = WindowBind {
        wr_id: mw_bind.wr_id,
        signaled: mw_bind.send_flags & IBV_SEND_SIGNALED != 0,
        region,
        addr: info.addr,
        len: info.length,
        access: rights_of_window(info.mw_access_flags),
    };
    Ok(qp.inner.bind_window(&mw.inner, &bind)?.0)
}
