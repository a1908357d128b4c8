//! Contexts: an opened device as C sees it.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oarlock_device as device;
use oarlock_device::{CqId, DeviceInfo, Endpoint, SrqId};
use oarlock_wire::Qpn;

use super::acks::Registry;
use super::birth::Birth;
use super::device::Device;
use super::xrc::Files;
use super::{cq, cq_ex, mr, mw, pd, qp, query, srq, xrc};
use crate::abi::{
    ibv_context, ibv_context_ops, ibv_cq, ibv_device, ibv_qp, ibv_srq, verbs_context,
};
use crate::errno::{self, Result};
use crate::memory::Slot;
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
    /// The XRC domains of files.
    pub(super) xrc_files: Files,
    /// The memory channel, if there is one.
    pub(crate) memory: Slot,
    pub(crate) birth: Birth,
    /// The number of the next object that shows one to the program.
    handles: AtomicU32,
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
        Self::on(&process.endpoint, opened, info, is_active)
    }

    fn on(
        endpoint: &Arc<Endpoint>,
        opened: Arc<Device>,
        info: DeviceInfo,
        is_active: bool,
    ) -> Result<Arc<Self>> {
        // Events come also to who has no queue pair.
        endpoint.watch()?;
        let device = device::Context::open(info, endpoint)?;
        device.set_port_active(is_active);
        let context = Arc::new(Self {
            abi: UnsafeCell::new(tables()),
            device,
            opened,
            qps: Registry::default(),
            cqs: Registry::default(),
            srqs: Registry::default(),
            xrc_files: Files::default(),
            memory: Slot::default(),
            birth: Birth::here(),
            handles: AtomicU32::new(0),
        });
        // SAFETY: nobody else knows the context yet.
        let public = unsafe { &mut (*context.abi.get()).context };
        public.device = context.opened.as_ptr();
        public.async_fd = context.async_fd();
        Ok(context)
    }

    /// The descriptor that is readable while asynchronous events are queued.
    pub(super) fn async_fd(&self) -> c_int {
        self.device.async_fd().as_raw_fd()
    }

    /// A number for an object that shows one to the program: nothing follows from it.
    pub(crate) fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed)
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

/// `ibv_open_device`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the caller's promise.
    let opened = unsafe { Device::of(device) }.open();
    errno::object("ibv_open_device", opened.map(Context::into_ptr))
}

/// `ibv_close_device`: whatever of the context is still there stays until it is destroyed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller's promise.
    let closed = unsafe { Context::of(context) }.birth.check().map(|()| {
        // SAFETY: as above; it is the program's last use of it.
        drop(unsafe { Context::from_ptr(context) });
    });
    errno::minus_one("ibv_close_device", closed)
}

/// The tables of functions that the headers' inline functions call. What is null there is told as `EOPNOTSUPP` by them:
/// flows, counters, device memory, work queues without a queue pair, tag matching, rate limits, null regions.
fn tables() -> verbs_context {
    // SAFETY: every field is an integer, a pointer or an optional function, for which zero is a value.
    let none: verbs_context = unsafe { std::mem::zeroed() };
    let ops = ibv_context_ops {
        _compat_query_device: Some(query::ibv_query_device),
        _compat_query_port: Some(query::ibv_query_port),
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        poll_cq: Some(cq::poll),
        req_notify_cq: Some(cq::req_notify),
        post_srq_recv: Some(srq::post_recv),
        post_send: Some(qp::post_send),
        post_recv: Some(qp::post_recv),
        ..none.context.ops
    };
    verbs_context {
        query_port: Some(query::query_port),
        advise_mr: Some(mr::advise_mr),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: Some(cq::modify),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq_ex::create),
        query_device_ex: Some(query::query_device_ex),
        open_qp: Some(qp::open),
        create_qp_ex: Some(qp::create_ex),
        get_srq_num: Some(srq::number),
        create_srq_ex: Some(srq::create_ex),
        open_xrcd: Some(xrc::ibv_open_xrcd),
        close_xrcd: Some(xrc::ibv_close_xrcd),
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            ops,
            cmd_fd: -1,
            num_comp_vectors: 1,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: ABI_IS_EXTENDED,
            ..none.context
        },
        ..none
    }
}

/// `__VERBS_ABI_IS_EXTENDED` of the header: there is a `verbs_context` around the `ibv_context`.
const ABI_IS_EXTENDED: *mut c_void = ptr::without_provenance_mut(usize::MAX);
