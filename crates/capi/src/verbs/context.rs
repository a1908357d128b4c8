//! Contexts: an opened device as C sees it.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

use oarlock_device as device;
use oarlock_device::{CqId, DeviceInfo, SrqId};
use oarlock_wire::Qpn;

use super::acks::Registry;
use super::device::Device;
use crate::abi::{ibv_context, ibv_cq, ibv_qp, ibv_srq, verbs_context};
use crate::errno::Result;
use crate::process::Process;

/// An opened device. C holds a pointer to the `ibv_context` at the end of `abi`; what stands before that is reached from it
/// by the headers' inline functions.
///
/// Whoever keeps the `Arc` keeps the memory: every object of the context does, so that closing a context whose objects are
/// still there leaves none of them dangling.
#[repr(C)]
pub(crate) struct Context {
    abi: UnsafeCell<verbs_context>,
    pub(crate) device: Arc<device::Context>,
    /// What C knows the device by.
    pub(crate) opened: Arc<Device>,
    /// Whom asynchronous events are about.
    pub(crate) qps: Registry<Qpn, ibv_qp>,
    pub(crate) cqs: Registry<CqId, ibv_cq>,
    pub(crate) srqs: Registry<SrqId, ibv_srq>,
}

// SAFETY: the public part is C's and reached by pointer only; everything else is `Send` and `Sync` by itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device `info` of `process`, whose port carries packets now if `is_active`.
    pub(crate) fn open(
        process: &Process,
        opened: Arc<Device>,
        info: DeviceInfo,
        is_active: bool,
    ) -> Result<Arc<Self>> {
        let device = device::Context::open(info, &process.endpoint)?;
        device.set_port_active(is_active);
        let async_fd = device.async_fd().as_raw_fd();
        let context = Arc::new(Self {
            abi: UnsafeCell::new(tables()),
            device,
            opened,
            qps: Registry::default(),
            cqs: Registry::default(),
            srqs: Registry::default(),
        });
        // SAFETY: nobody else knows the context yet.
        let public = unsafe { &mut (*context.abi.get()).context };
        public.device = context.opened.as_ptr();
        public.async_fd = async_fd;
        Ok(context)
    }

    /// The context that C knows as `context`.
    ///
    /// # Safety
    /// `context` is what C got of this library, and not closed.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: the caller's promise.
        unsafe { &*Self::start(context) }
    }

    /// As [`of`](Self::of), for what keeps the context.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn share(context: *mut ibv_context) -> Arc<Self> {
        // SAFETY: the caller's promise: the pointer is that of an `Arc`, whose count it has not given back.
        let held = ManuallyDrop::new(unsafe { Arc::from_raw(Self::start(context)) });
        Arc::clone(&held)
    }

    /// What C knows the context by.
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        let start = ptr::from_ref(self).cast_mut();
        // SAFETY: the first field ends with the `ibv_context`. No reference is made.
        unsafe { &raw mut (*(*start).abi.get()).context }
    }

    /// Gives C a count of its own, which [`from_ptr`](Self::from_ptr) takes back.
    pub(crate) fn into_ptr(self: Arc<Self>) -> *mut ibv_context {
        // SAFETY: the pointer is that of an `Arc`, which lies whole in memory.
        unsafe { (*Arc::into_raw(self)).as_ptr() }
    }

    /// Takes the count of [`into_ptr`](Self::into_ptr) back.
    ///
    /// # Safety
    /// As [`of`](Self::of); C does not use `context` any more.
    pub(crate) unsafe fn from_ptr(context: *mut ibv_context) -> Arc<Self> {
        // SAFETY: the caller's promise.
        unsafe { Arc::from_raw(Self::start(context)) }
    }

    fn start(context: *mut ibv_context) -> *const Self {
        let offset = offset_of!(Self, abi) + offset_of!(verbs_context, context);
        context.cast::<u8>().wrapping_sub(offset).cast()
    }
}

/// The tables of functions that the headers' inline functions call. What is null there is told as `EOPNOTSUPP` by them.
fn tables() -> verbs_context {
    // SAFETY: every field is an integer, a pointer or an optional function, for which zero is a value.
    let mut tables: verbs_context = unsafe { std::mem::zeroed() };
    tables.sz = size_of::<verbs_context>();
    tables.context.abi_compat = ABI_IS_EXTENDED;
    tables.context.cmd_fd = -1;
    tables.context.num_comp_vectors = 1;
    tables.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    tables
}

/// `__VERBS_ABI_IS_EXTENDED` of the header: there is a `verbs_context` around the `ibv_context`.
const ABI_IS_EXTENDED: *mut c_void = ptr::without_provenance_mut(usize::MAX);
