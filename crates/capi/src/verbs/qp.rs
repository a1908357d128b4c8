//! Queue pairs.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};

use oarlock_device as device;
use oarlock_device::QpInit;
use oarlock_transport::{QpState, QpType};
use oarlock_wire::{Gid, Qpn};

use super::birth::Birth;
use super::context::Context;
use super::cq::Cq;
use super::pd::{Pd, Use};
use super::qp_attr;
use super::qp_ex::{self, Batch};
use super::srq::Srq;
use super::work::{self, Reader};
use super::xrc::Xrcd;
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// A queue pair. Every one is an extended one, as far as its memory goes.
#[repr(C)]
pub(crate) struct Qp {
    abi: UnsafeCell<ibv_qp_ex>,
    pub(crate) inner: device::Qp,
    pub(crate) context: Arc<Context>,
    pub(super) reader: Reader,
    pub(super) cap: ibv_qp_cap,
    pub(super) sq_sig_all: bool,
    /// Requests between start and completion of a round, if it was made for such.
    pub(super) batch: Option<Batch>,
    /// The multicast groups it is attached to.
    pub(super) groups: Mutex<Vec<Gid>>,
    pub(super) birth: Birth,
    _uses: Vec<Use>,
}

// SAFETY: the public part is C's and reached by pointer only; a batch belongs to who has its turn.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

/// The objects that a queue pair is made of, as C knows them.
struct Parts {
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    xrcd: *mut ibv_xrcd,
}

/// What a queue pair is created with.
struct Init {
    parts: Parts,
    qp_context: *mut c_void,
    qp_type: QpType,
    cap: ibv_qp_cap,
    sq_sig_all: bool,
    has_batch: bool,
}

impl Qp {
    /// # Errors
    /// `EINVAL`: an object is missing, or a limit of the device is broken. `EOPNOTSUPP`: a type of queue pair that it has not.
    ///
    /// # Safety
    /// The objects are null or what C got of this library.
    unsafe fn create(context: Arc<Context>, init: &Init) -> Result<*mut ibv_qp> {
        context.birth.check()?;
        // SAFETY: the caller's promise.
        let (objects, uses) = unsafe { Objects::of(&context, init)? };
        let cap = init.cap;
        let inner = device::Qp::new(
            &objects.pd,
            &objects.send_cq,
            &objects.recv_cq,
            QpInit {
                qp_type: init.qp_type,
                max_send_wr: cap.max_send_wr,
                max_recv_wr: cap.max_recv_wr,
                max_send_sge: cap.max_send_sge,
                max_recv_sge: cap.max_recv_sge,
                max_inline_data: cap.max_inline_data,
                sq_sig_all: init.sq_sig_all,
                srq: objects.srq,
                xrc_domain: objects.xrc_domain,
                user: None,
            },
        )?;
        let batch = init.has_batch.then(|| Batch::new(cap.max_send_wr));
        Ok(Self::place(context, inner, init, batch, uses))
    }

    /// Gives a queue pair to C.
    fn place(
        context: Arc<Context>,
        inner: device::Qp,
        init: &Init,
        batch: Option<Batch>,
        uses: Vec<Use>,
    ) -> *mut ibv_qp {
        let qpn = inner.qpn();
        let mut public = if batch.is_some() {
            qp_ex::functions()
        } else {
            // SAFETY: every field is an integer, a pointer or an optional function, for which zero is a value.
            unsafe { std::mem::zeroed() }
        };
        public.qp_base = ibv_qp {
            context: context.as_ptr(),
            qp_context: init.qp_context,
            pd: init.parts.pd,
            send_cq: init.parts.send_cq,
            recv_cq: init.parts.recv_cq,
            srq: init.parts.srq,
            handle: qpn.get(),
            qp_num: qpn.get(),
            state: inner.state() as ibv_qp_state,
            qp_type: init.qp_type as ibv_qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let qp = Box::into_raw(Box::new(Self {
            abi: UnsafeCell::new(public),
            inner,
            context,
            reader: Reader {
                qp_type: init.qp_type,
                max_inline_data: init.cap.max_inline_data,
            },
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
            batch,
            groups: Mutex::default(),
            birth: Birth::here(),
            _uses: uses,
        }));
        // SAFETY: just made.
        unsafe { &*qp }.context.qps.enter(qpn, qp.cast());
        qp.cast()
    }

    /// The queue pair that C knows as `qp`.
    ///
    /// # Safety
    /// `qp` is what C got of this library, and not destroyed.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field, and begins as an `ibv_qp`.
        unsafe { &*qp.cast::<Self>() }
    }

    pub(super) const fn public(&self) -> *mut ibv_qp_ex {
        self.abi.get()
    }

    /// # Errors
    /// `EBUSY`: it is attached to multicast groups.
    fn check_detached(&self) -> Result<()> {
        match self.lock_groups().len() {
            0 => Ok(()),
            count => Err(Refused::new(
                libc::EBUSY,
                format!("the queue pair is attached to {count} multicast groups"),
            )),
        }
    }
}

/// The device's objects.
struct Objects {
    pd: device::Pd,
    send_cq: Arc<device::Cq>,
    recv_cq: Arc<device::Cq>,
    srq: Option<Arc<device::Srq>>,
    xrc_domain: Option<device::XrcDomain>,
}

impl Objects {
    /// # Errors
    /// `EINVAL`: what the type of queue pair needs and was not given.
    ///
    /// # Safety
    /// As [`Qp::create`].
    unsafe fn of(context: &Context, init: &Init) -> Result<(Self, Vec<Use>)> {
        let parts = &init.parts;
        let missing = |what| {
            let sentence = format!("{} queue pairs need {what}", init.qp_type);
            Err(Refused::new(libc::EINVAL, sentence))
        };
        let mut uses = Vec::new();
        if init.qp_type == QpType::XrcTarget {
            if parts.xrcd.is_null() {
                return missing("an XRC domain");
            }
            // SAFETY: the caller's promise.
            let xrcd = unsafe { Xrcd::of(parts.xrcd) };
            uses.push(xrcd.enter());
            // It completes nothing itself, and reaches memory by the domains of its shared receive queues.
            let unused = Arc::new(device::Cq::new(&context.device, 1, None, 0)?);
            let objects = Self {
                pd: device::Pd::new(&context.device),
                send_cq: Arc::clone(&unused),
                recv_cq: unused,
                srq: None,
                xrc_domain: Some(xrcd.inner.clone()),
            };
            return Ok((objects, uses));
        }
        if parts.pd.is_null() {
            return missing("a protection domain");
        }
        if parts.send_cq.is_null() {
            return missing("a completion queue for sends");
        }
        let recv_cq = match init.qp_type {
            // Nothing is received.
            QpType::XrcInitiator => parts.send_cq,
            _ if parts.recv_cq.is_null() => return missing("a completion queue for receives"),
            _ => parts.recv_cq,
        };
        // SAFETY: the caller's promise.
        let (pd, send_cq, recv_cq) =
            unsafe { (Pd::of(parts.pd), Cq::of(parts.send_cq), Cq::of(recv_cq)) };
        uses.extend([pd.enter(), send_cq.enter(), recv_cq.enter()]);
        let srq = if parts.srq.is_null() {
            None
        } else {
            // SAFETY: the caller's promise.
            let srq = unsafe { Srq::of(parts.srq) };
            uses.push(srq.enter());
            Some(Arc::clone(&srq.inner))
        };
        let objects = Self {
            pd: pd.inner.clone(),
            send_cq: Arc::clone(&send_cq.inner),
            recv_cq: Arc::clone(&recv_cq.inner),
            srq,
            xrc_domain: None,
        };
        Ok((objects, uses))
    }
}

/// # Errors
/// `EOPNOTSUPP`: a type that the device has not.
fn qp_type_of(number: ibv_qp_type) -> Result<QpType> {
    Ok(match number {
        IBV_QPT_RC => QpType::Rc,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_UD => QpType::Ud,
        IBV_QPT_XRC_SEND => QpType::XrcInitiator,
        IBV_QPT_XRC_RECV => QpType::XrcTarget,
        other => {
            let sentence = format!("queue pairs of type {other} do not exist on this device");
            return Err(Refused::new(libc::EOPNOTSUPP, sentence));
        }
    })
}

/// `ibv_create_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the program's promise.
    let attr = unsafe { &*qp_init_attr };
    let created = qp_type_of(attr.qp_type).and_then(|qp_type| {
        let init = Init {
            parts: Parts {
                pd,
                send_cq: attr.send_cq,
                recv_cq: attr.recv_cq,
                srq: attr.srq,
                xrcd: ptr::null_mut(),
            },
            qp_context: attr.qp_context,
            qp_type,
            cap: granted(attr.cap),
            sq_sig_all: attr.sq_sig_all != 0,
            has_batch: false,
        };
        // SAFETY: the program's promise.
        let qp = unsafe { Qp::create(Context::share((*pd).context), &init) }?;
        // SAFETY: as above; the other sizes are what was asked for.
        unsafe { (*qp_init_attr).cap = init.cap };
        Ok(qp)
    });
    errno::object("ibv_create_qp", created)
}

/// `ibv_create_qp_ex(3)`.
pub(super) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the program's promise.
    let created = unsafe { init_of(&*qp_init_attr_ex) }.and_then(|init| {
        // SAFETY: as above.
        let qp = unsafe { Qp::create(Context::share(context), &init) }?;
        // SAFETY: as above; the other sizes are what was asked for.
        unsafe { (*qp_init_attr_ex).cap = init.cap };
        Ok(qp)
    });
    errno::object("ibv_create_qp_ex", created)
}

/// What a queue pair gets that asks for `cap`. A program that asks for no inline data and posts some works on every other
/// device, where a send queue entry has room for as much as its scatter/gather list takes (Linux `rxe_qp.c`).
fn granted(cap: ibv_qp_cap) -> ibv_qp_cap {
    let list = cap.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32);
    let room = list.min(device::DeviceLimits::default().max_inline_data);
    ibv_qp_cap {
        max_inline_data: cap.max_inline_data.max(room),
        ..cap
    }
}

/// # Errors
/// `EOPNOTSUPP`: what the device has not. `EINVAL`: no protection domain.
fn init_of(attr: &ibv_qp_init_attr_ex) -> Result<Init> {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let not_supported = |what: &str, bits: u64| {
        Err(Refused::new(
            libc::EOPNOTSUPP,
            format!("{what} {bits:#x} of a queue pair"),
        ))
    };
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !KNOWN != 0 {
        return not_supported("attributes", (attr.comp_mask & !KNOWN).into());
    }
    if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0 {
        return not_supported("flags", attr.create_flags.into());
    }
    let qp_type = qp_type_of(attr.qp_type)?;
    let has_batch = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    if has_batch {
        let extra = attr.send_ops_flags & !qp_ex::operations(qp_type);
        if extra != 0 {
            return not_supported("operations", extra);
        }
    }
    let given = |bit| has(bit) && qp_type == QpType::XrcTarget;
    Ok(Init {
        parts: Parts {
            pd: if has(IBV_QP_INIT_ATTR_PD) {
                attr.pd
            } else {
                ptr::null_mut()
            },
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            xrcd: if given(IBV_QP_INIT_ATTR_XRCD) {
                attr.xrcd
            } else {
                ptr::null_mut()
            },
        },
        qp_context: attr.qp_context,
        qp_type,
        cap: granted(attr.cap),
        sq_sig_all: attr.sq_sig_all != 0,
        has_batch,
    })
}

/// `ibv_open_qp(3)`: one more handle of an XRC target.
pub(super) unsafe extern "C" fn open(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: the program's promise.
    let opened = unsafe { open_target(Context::share(context), &*attr) };
    errno::object("ibv_open_qp", opened)
}

/// # Safety
/// The domain is null or what C got of this library.
unsafe fn open_target(context: Arc<Context>, attr: &ibv_qp_open_attr) -> Result<*mut ibv_qp> {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    context.birth.check()?;
    if attr.comp_mask & NEEDED != NEEDED
        || attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED
        || attr.qp_type != IBV_QPT_XRC_RECV
        || attr.xrcd.is_null()
    {
        return Err(Refused::new(
            libc::EINVAL,
            "an XRC target is opened by its number, type and domain",
        ));
    }
    let qpn = Qpn::new(attr.qp_num).ok_or_else(|| {
        Refused::new(
            libc::EINVAL,
            format!("queue pair number {:#x} has more than 24 bits", attr.qp_num),
        )
    })?;
    // SAFETY: the caller's promise.
    let xrcd = unsafe { Xrcd::of(attr.xrcd) };
    let inner = xrcd.inner.open_target(qpn)?;
    let init = Init {
        parts: Parts {
            pd: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            xrcd: attr.xrcd,
        },
        qp_context: if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            attr.qp_context
        } else {
            ptr::null_mut()
        },
        qp_type: QpType::XrcTarget,
        cap: ibv_qp_cap::NONE,
        sq_sig_all: false,
        has_batch: false,
    };
    Ok(Qp::place(context, inner, &init, None, vec![xrcd.enter()]))
}

/// `ibv_destroy_qp(3)`: blocks until every asynchronous event of it has been acknowledged.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the program's promise.
    let pair = unsafe { Qp::of(qp) };
    let result = pair.birth.check().and_then(|()| pair.check_detached());
    if result.is_ok() {
        pair.context.qps.leave(&pair.inner.qpn(), qp);
        // SAFETY: the program's last use of it.
        let pair = unsafe { Box::from_raw(qp.cast::<Qp>()) };
        let Qp { inner, _uses, .. } = *pair;
        // As the drivers of network cards do: the program may have freed already what the requests are about.
        inner.destroy();
    }
    errno::positive("ibv_destroy_qp", result)
}

/// `ibv_modify_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    // SAFETY: the program's promise.
    let (pair, attr) = unsafe { (Qp::of(qp), &*attr) };
    let mask = attr_mask.cast_unsigned();
    let modified = qp_attr::from_c(&pair.context, attr, mask).and_then(|attr| {
        pair.inner.modify(&attr)?;
        if mask & IBV_QP_STATE != 0 && attr.state == QpState::Reset {
            // As the drivers of network cards do: what waits to be polled is of the pair's earlier life.
            pair.inner.forget_completions();
        }
        Ok(())
    });
    if modified.is_ok() && mask & IBV_QP_STATE != 0 {
        // SAFETY: the field is this library's to change.
        unsafe { (*qp).state = attr.qp_state };
    }
    errno::positive("ibv_modify_qp", modified)
}

/// `ibv_query_qp(3)`: everything, whatever is asked for.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program's promise.
    let pair = unsafe { Qp::of(qp) };
    let result = pair.birth.check().map(|()| {
        let now = pair.inner.query();
        // SAFETY: the two are the program's to be filled, the state is this library's to change; the public fields are there.
        unsafe {
            attr.write(qp_attr::to_c(&pair.context, &now, pair.cap));
            (*qp).state = (*attr).qp_state;
            init_attr.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: pair.cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: pair.sq_sig_all.into(),
            });
        }
    });
    errno::positive("ibv_query_qp", result)
}

/// `ibv_query_qp_data_in_order(3)`: no operation promises it, since the system may copy a packet's bytes in any order.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

/// `ibv_qp_to_qp_ex(3)`: null for one that was not made for it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program's promise.
    match unsafe { Qp::of(qp) } {
        pair if pair.batch.is_some() => pair.public(),
        _ => ptr::null_mut(),
    }
}

/// `ibv_post_send(3)`.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program's promise.
    let pair = unsafe { Qp::of(qp) };
    // SAFETY: as above.
    let posted = unsafe { work::post_send(&pair.inner, pair.reader, wr) };
    // SAFETY: as above.
    unsafe { told("ibv_post_send", posted, bad_wr) }
}

/// `ibv_post_recv(3)`.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program's promise.
    let posted = unsafe { work::post_recv(&Qp::of(qp).inner, wr) };
    // SAFETY: as above.
    unsafe { told("ibv_post_recv", posted, bad_wr) }
}

/// Answers a call that posts a list.
///
/// # Safety
/// `bad_wr` can be written.
pub(super) unsafe fn told<W>(
    call: &'static str,
    posted: std::result::Result<(), work::Bad<W>>,
    bad_wr: *mut *mut W,
) -> c_int {
    let result = posted.map_err(|(bad, refused)| {
        // SAFETY: the caller's promise.
        unsafe { bad_wr.write(bad) };
        refused
    });
    errno::positive(call, result)
}
