//! The queue pair of an identifier, and the completion queues that are made for it.
//!
//! What the program brings it keeps: its completion queues are not put into the identifier's fields, and are not destroyed with
//! the queue pair. What it puts into those fields itself is the identifier's from then on, as in rdma-core.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::offset_of;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use oarlock_ucm::abi::{Ece, UverbsQpAttr};
use oarlock_ucm::client;

use super::id::Id;
use super::{address, multicast};
use crate::abi::*;
use crate::errno::{self, Refused, Result};
use crate::verbs::comp_channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::verbs::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::verbs::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};

/// What a call of libibverbs has just refused; its own sentence is in the log.
pub(super) fn last(what: &str) -> Refused {
    let errno = io::Error::last_os_error().raw_os_error();
    Refused::new(
        errno.unwrap_or(libc::EINVAL),
        format!("{what} could not be made"),
    )
}

/// The functions that stand before a context.
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn extended(context: *mut ibv_context) -> verbs_context {
    let start = context
        .cast::<u8>()
        .wrapping_sub(offset_of!(verbs_context, context));
    // SAFETY: every context of this library is the last field of one.
    unsafe { ptr::read(start.cast::<verbs_context>()) }
}

/// `ibv_open_xrcd` of the headers.
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the caller's promise.
    match unsafe { extended(context) }.open_xrcd {
        // SAFETY: as above.
        Some(open) => unsafe { open(context, attr) },
        None => ptr::null_mut(),
    }
}

/// `ibv_close_xrcd` of the headers.
///
/// # Safety
/// `xrcd` is open.
pub(super) unsafe fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller's promise.
    let close = unsafe { extended((*xrcd).context) }.close_xrcd;
    // SAFETY: as above.
    close.map_or(libc::EOPNOTSUPP, |close| unsafe { close(xrcd) })
}

/// The completion queues and channels that were made for an identifier and are in its fields.
#[derive(Default)]
pub(super) struct Made(Mutex<Queues>);

struct Queues {
    send: Queue,
    recv: Queue,
}

#[derive(Clone, Copy)]
struct Queue {
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
}

// SAFETY: pointers to objects of the program, which any thread may use; they are only compared here.
unsafe impl Send for Queues {}

impl Default for Queues {
    fn default() -> Self {
        Self {
            send: Queue::NONE,
            recv: Queue::NONE,
        }
    }
}

impl Queue {
    const NONE: Self = Self {
        channel: ptr::null_mut(),
        cq: ptr::null_mut(),
    };

    /// A completion queue of `size` entries, whose context is the identifier, on a channel of its own.
    fn make(verbs: *mut ibv_context, size: u32, context: *mut c_void) -> Result<Self> {
        // SAFETY: the context is open.
        let channel = unsafe { ibv_create_comp_channel(verbs) };
        if channel.is_null() {
            return Err(last("the completion channel of an identifier"));
        }
        // The header's call takes an `int`; more than that is more than any device has.
        let cqe = c_int::try_from(size).unwrap_or(c_int::MAX);
        // SAFETY: as above.
        let cq = unsafe { ibv_create_cq(verbs, cqe, context, channel, 0) };
        if cq.is_null() {
            let refused = last("the completion queue of an identifier");
            // SAFETY: nobody else has it.
            unsafe { ibv_destroy_comp_channel(channel) };
            return Err(refused);
        }
        Ok(Self { channel, cq })
    }

    /// # Safety
    /// Neither is used any more.
    unsafe fn destroy(self) {
        if !self.cq.is_null() {
            // SAFETY: the caller's promise.
            unsafe { ibv_destroy_cq(self.cq) };
        }
        if !self.channel.is_null() {
            // SAFETY: the caller's promise.
            unsafe { ibv_destroy_comp_channel(self.channel) };
        }
    }
}

impl Made {
    /// Makes completion queues for what has a size, and puts them into the identifier's fields; all or none.
    pub(super) fn make(&self, id: &Id, send_size: u32, recv_size: u32) -> Result<()> {
        let public = id.abi();
        // SAFETY: the public part is valid as long as the identifier is.
        let verbs = unsafe { (*public).verbs };
        let make = |size| match size {
            0 => Ok(Queue::NONE),
            size => Queue::make(verbs, size, public.cast()),
        };
        let recv = make(recv_size)?;
        let send = make(send_size).inspect_err(|_| {
            // SAFETY: nobody else has them.
            unsafe { recv.destroy() };
        })?;
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as above; only these fields are written.
        unsafe {
            if recv_size > 0 {
                (*public).recv_cq_channel = recv.channel;
                (*public).recv_cq = recv.cq;
                made.recv = recv;
            }
            if send_size > 0 {
                (*public).send_cq_channel = send.channel;
                (*public).send_cq = send.cq;
                made.send = send;
            }
        }
        Ok(())
    }

    /// Destroys the completion queues in the identifier's fields, except those of an XRC shared receive queue that is there.
    pub(super) fn destroy(&self, id: &Id) {
        let public = id.abi();
        // SAFETY: the public part is valid as long as the identifier is.
        let fields = unsafe { ptr::read(public) };
        if fields.qp_type == IBV_QPT_XRC_RECV && !fields.srq.is_null() {
            return;
        }
        let made = {
            let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *made)
        };
        // What the program has put beside an empty `recv_cq` stays its own.
        let is_whole = !fields.recv_cq.is_null();
        let mut send = Queue {
            channel: fields.send_cq_channel,
            cq: fields.send_cq,
        };
        if send.cq == fields.recv_cq || !(is_whole || send.cq == made.send.cq) {
            send.cq = ptr::null_mut();
        }
        let has_channel = !fields.recv_cq_channel.is_null();
        if send.channel == fields.recv_cq_channel
            || !(has_channel || send.channel == made.send.channel)
        {
            send.channel = ptr::null_mut();
        }
        let recv = Queue {
            channel: fields.recv_cq_channel,
            cq: fields.recv_cq,
        };
        // SAFETY: as above.
        unsafe {
            (*public).recv_cq = ptr::null_mut();
            (*public).recv_cq_channel = ptr::null_mut();
            if is_whole || !send.cq.is_null() {
                (*public).send_cq = ptr::null_mut();
            }
            if has_channel || !send.channel.is_null() {
                (*public).send_cq_channel = ptr::null_mut();
            }
        }
        // Queues before channels: one channel may serve both.
        // SAFETY: the queue pair is gone, and the program has given them up with it.
        unsafe {
            for cq in [recv.cq, send.cq] {
                Queue { cq, ..Queue::NONE }.destroy();
            }
            for channel in [recv.channel, send.channel] {
                Queue {
                    channel,
                    ..Queue::NONE
                }
                .destroy();
            }
        }
    }
}

/// Makes the identifier's queue pair and moves it as far as it goes without a peer. Completion queues that `qp_init_attr` does
/// not name are made, each with a channel; it then names them.
///
/// # Safety
/// `id` is null or an identifier of this library; `pd` is null or a protection domain; `qp_init_attr` is null or valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let created = unsafe { Id::of(id) }.and_then(|id| {
        if qp_init_attr.is_null() {
            return Err(no_attributes());
        }
        // SAFETY: the caller's promise.
        unsafe { create_plain(id, pd, qp_init_attr) }
    });
    errno::minus_one("rdma_create_qp", created)
}

/// # Safety
/// As [`rdma_create_qp`].
pub(super) unsafe fn create_plain(
    id: &Id,
    pd: *mut ibv_pd,
    given: *mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: zero is a value of every field.
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    // SAFETY: the longer structure begins as the shorter one.
    unsafe { ptr::copy_nonoverlapping(given, (&raw mut attr).cast(), 1) };
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    // SAFETY: the caller's promise.
    let created = unsafe { create(id, &mut attr) };
    // SAFETY: as above.
    unsafe { ptr::copy_nonoverlapping((&raw const attr).cast(), given, 1) };
    created
}

/// As [`rdma_create_qp`], with everything that `ibv_create_qp_ex` takes.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the caller's promise.
    let created = unsafe { Id::of(id) }.and_then(|id| {
        // SAFETY: the caller's promise.
        let attr = unsafe { qp_init_attr.as_mut() }.ok_or_else(no_attributes)?;
        // SAFETY: the caller's promise.
        unsafe { create(id, attr) }
    });
    errno::minus_one("rdma_create_qp_ex", created)
}

fn no_attributes() -> Refused {
    Refused::new(libc::EINVAL, "no attributes are given")
}

/// # Safety
/// What `attr` names is what C says.
unsafe fn create(id: &Id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let public = id.abi();
    // SAFETY: the public part is valid as long as the identifier is.
    let fields = unsafe { ptr::read(public) };
    if !fields.qp.is_null() {
        return Err(Refused::new(
            libc::EINVAL,
            format!("{id} has a queue pair already"),
        ));
    }
    if fields.verbs.is_null() {
        return Err(no_device(id));
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = fields.pd;
    // SAFETY: the caller's promise.
    } else if unsafe { (*attr.pd).context } != fields.verbs {
        let sentence = format!("the protection domain is not of the device of {id}");
        return Err(Refused::new(libc::EINVAL, sentence));
    }
    let differ =
        |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
    if differ(fields.recv_cq, attr.recv_cq) || differ(fields.send_cq, attr.send_cq) {
        let sentence = format!("{id} has another completion queue already");
        return Err(Refused::new(libc::EINVAL, sentence));
    }
    if fields.qp_type == IBV_QPT_XRC_RECV
        && (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null())
    {
        attr.xrcd = xrcd(id)?;
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    let size = |given: *mut ibv_cq, own: *mut ibv_cq, wanted: u32| {
        if given.is_null() && own.is_null() {
            wanted
        } else {
            0
        }
    };
    let send_size = size(attr.send_cq, fields.send_cq, attr.cap.max_send_wr);
    let recv_size = size(attr.recv_cq, fields.recv_cq, attr.cap.max_recv_wr);
    id.kept.made.make(id, send_size, recv_size)?;
    // SAFETY: as above.
    let fields = unsafe { ptr::read(public) };
    let or = |given: *mut ibv_cq, own: *mut ibv_cq| if given.is_null() { own } else { given };
    attr.send_cq = or(attr.send_cq, fields.send_cq);
    attr.recv_cq = or(attr.recv_cq, fields.recv_cq);
    if attr.srq.is_null() {
        attr.srq = fields.srq;
    }
    // SAFETY: the caller's promise.
    let created = unsafe { create_moved(id, fields.verbs, attr) };
    match created {
        Ok(qp) => {
            let _turn = id.qp_turn();
            // SAFETY: as above.
            unsafe {
                (*public).pd = (*qp).pd;
                (*public).qp = qp;
            }
            Ok(())
        }
        Err(refused) => {
            id.kept.made.destroy(id);
            Err(refused)
        }
    }
}

/// The XRC domain of an identifier that brings none.
pub(super) fn xrcd(id: &Id) -> Result<*mut ibv_xrcd> {
    id.device().as_ref().ok_or_else(|| no_device(id))?.xrcd()
}

pub(super) fn no_device(id: &Id) -> Refused {
    let sentence =
        format!("{id} is bound to no device: resolve an address, or bind to one that a device has");
    Refused::new(libc::EINVAL, sentence)
}

/// Makes a queue pair and moves it; nothing is left of it where that fails.
///
/// # Safety
/// What `attr` names is what C says.
unsafe fn create_moved(
    id: &Id,
    verbs: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp> {
    // As the header's `ibv_create_qp_ex`.
    let qp = if attr.comp_mask == IBV_QP_INIT_ATTR_PD {
        // SAFETY: the caller's promise; the longer structure begins as the shorter one.
        unsafe { ibv_create_qp(attr.pd, ptr::from_mut(attr).cast()) }
    } else {
        // SAFETY: the context is open.
        match unsafe { extended(verbs) }.create_qp_ex {
            // SAFETY: the caller's promise.
            Some(create) => unsafe { create(verbs, attr) },
            None => {
                return Err(Refused::new(
                    libc::EOPNOTSUPP,
                    "the device has no such queue pairs",
                ));
            }
        }
    };
    if qp.is_null() {
        return Err(last("the queue pair"));
    }
    begin(id, qp).map(|()| qp).inspect_err(|_| {
        // SAFETY: nobody else has it.
        unsafe { ibv_destroy_qp(qp) };
    })
}

/// What needs no peer.
fn begin(id: &Id, qp: *mut ibv_qp) -> Result<()> {
    // The options of enhanced connection establishment are the queue pair's now, and the soft device has none.
    id.terms().local_ece = Ece::default();
    let (mut attr, mask) = recipe(id, IBV_QPS_INIT)?;
    modify(qp, &mut attr, mask)?;
    if id.is_datagram() {
        attr.qp_state = IBV_QPS_RTR;
        modify(qp, &mut attr, IBV_QP_STATE)?;
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = 0;
        modify(qp, &mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN)?;
    }
    Ok(())
}

/// What leads to a state, as the service says.
fn recipe(id: &Id, state: ibv_qp_state) -> Result<(ibv_qp_attr, c_int)> {
    let given = id.call(client::init_qp_attr(id.number(), state))?;
    Ok((attributes(&given), given.qp_attr_mask.cast_signed()))
}

fn attributes(given: &UverbsQpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: given.qp_state,
        cur_qp_state: given.cur_qp_state,
        path_mtu: given.path_mtu,
        path_mig_state: given.path_mig_state,
        qkey: given.qkey,
        rq_psn: given.rq_psn,
        sq_psn: given.sq_psn,
        dest_qp_num: given.dest_qp_num,
        qp_access_flags: given.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: given.max_send_wr,
            max_recv_wr: given.max_recv_wr,
            max_send_sge: given.max_send_sge,
            max_recv_sge: given.max_recv_sge,
            max_inline_data: given.max_inline_data,
        },
        ah_attr: address::ah_attr(&given.ah_attr),
        alt_ah_attr: address::ah_attr(&given.alt_ah_attr),
        pkey_index: given.pkey_index,
        alt_pkey_index: given.alt_pkey_index,
        en_sqd_async_notify: given.en_sqd_async_notify,
        sq_draining: given.sq_draining,
        max_rd_atomic: given.max_rd_atomic,
        max_dest_rd_atomic: given.max_dest_rd_atomic,
        min_rnr_timer: given.min_rnr_timer,
        port_num: given.port_num,
        timeout: given.timeout,
        retry_cnt: given.retry_cnt,
        rnr_retry: given.rnr_retry,
        alt_port_num: given.alt_port_num,
        alt_timeout: given.alt_timeout,
        rate_limit: 0,
    }
}

fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: impl Into<i64>) -> Result<()> {
    let mask = c_int::try_from(mask.into()).unwrap_or(0);
    // SAFETY: a queue pair that is not destroyed meanwhile: it is ours alone, or its turn is held.
    match unsafe { ibv_modify_qp(qp, attr, mask) } {
        0 => Ok(()),
        errno => {
            let sentence = format!("the queue pair does not go to state {}", attr.qp_state);
            Err(Refused::new(errno, sentence))
        }
    }
}

/// Moves the identifier's queue pair, if it has one, to where it sends and receives. 255 stands for what was agreed with the
/// peer.
///
/// # Errors
/// As INIT_QP_ATTR and `ibv_modify_qp`.
pub(super) fn to_rtr_rts(id: &Id, responder_resources: u8, initiator_depth: u8) -> Result<()> {
    let _turn = id.qp_turn();
    let qp = of(id);
    if qp.is_null() {
        return Ok(());
    }
    // Once more: only now is it known what the peer may do.
    let (mut attr, mask) = recipe(id, IBV_QPS_INIT)?;
    modify(qp, &mut attr, mask)?;
    let (mut attr, mask) = recipe(id, IBV_QPS_RTR)?;
    if u32::from(responder_resources) != RDMA_MAX_RESP_RES {
        attr.max_dest_rd_atomic = responder_resources;
    }
    modify(qp, &mut attr, mask)?;
    let (mut attr, mask) = recipe(id, IBV_QPS_RTS)?;
    if u32::from(initiator_depth) != RDMA_MAX_INIT_DEPTH {
        attr.max_rd_atomic = initiator_depth;
    }
    modify(qp, &mut attr, mask)
}

/// Moves the identifier's queue pair, if it has one, to where it does nothing any more.
///
/// # Errors
/// As `ibv_modify_qp`.
pub(super) fn to_error(id: &Id) -> Result<()> {
    let _turn = id.qp_turn();
    let qp = of(id);
    if qp.is_null() {
        return Ok(());
    }
    // SAFETY: zero is a value of every field.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = IBV_QPS_ERR;
    modify(qp, &mut attr, IBV_QP_STATE)
}

fn of(id: &Id) -> *mut ibv_qp {
    // SAFETY: the public part is valid as long as the identifier is.
    unsafe { (*id.abi()).qp }
}

/// What the peer is told of the identifier's queue pair, if it has one: its number, and whether it has a shared receive queue.
pub(super) fn told(id: &Id) -> Option<(u32, bool)> {
    let _turn = id.qp_turn();
    // SAFETY: null, or a queue pair that is not destroyed meanwhile; no reference is kept.
    let qp = unsafe { of(id).as_ref() }?;
    Some((qp.qp_num, !qp.srq.is_null()))
}

/// Destroys the identifier's queue pair and the completion queues that were made for it. Waits for what of them was not
/// acknowledged.
///
/// # Safety
/// `id` is null or an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    match unsafe { Id::of(id) } {
        Ok(id) => destroy(id),
        Err(refused) => tracing::warn!("rdma_destroy_qp: {refused}"),
    }
}

pub(super) fn destroy(id: &Id) {
    let qp = {
        let _turn = id.qp_turn();
        // SAFETY: the public part is valid as long as the identifier is.
        unsafe { ptr::replace(&raw mut (*id.abi()).qp, ptr::null_mut()) }
    };
    if !qp.is_null() {
        multicast::detach_all(id, qp);
    }
    // Not in its turn: this waits until events of the queue pair are acknowledged.
    // SAFETY: from here on nobody finds it in the identifier.
    if !qp.is_null() && unsafe { ibv_destroy_qp(qp) } != 0 {
        tracing::warn!("rdma_destroy_qp: the queue pair of {id} is still there");
    }
    id.kept.made.destroy(id);
}

/// Gives the attributes that lead a queue pair of the identifier to the state in `qp_attr`, and which of them count: for
/// queue pairs that the program moves itself.
///
/// # Safety
/// `id` is null or an identifier of this library; `qp_attr` and `qp_attr_mask` are null or valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let given = unsafe { Id::of(id) }.and_then(|id| {
        if qp_attr.is_null() || qp_attr_mask.is_null() {
            return Err(no_attributes());
        }
        // SAFETY: the caller's promise; the program may have set this field alone.
        let state = unsafe { ptr::read(&raw const (*qp_attr).qp_state) };
        let (attr, mask) = recipe(id, state)?;
        // SAFETY: the caller's promise.
        unsafe {
            ptr::write(qp_attr, attr);
            ptr::write(qp_attr_mask, mask);
        }
        Ok(())
    });
    errno::minus_one("rdma_init_qp_attr", given)
}

/// Says which options of enhanced connection establishment go with the next message of an identifier whose queue pair is the
/// program's own.
///
/// # Safety
/// `id` is null or an identifier of this library; `ece` is null or valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_local_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    // SAFETY: the caller's promise.
    let set = unsafe { external(id, ece) }.and_then(|(id, ece)| {
        if ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(Refused::new(
                libc::EINVAL,
                "a vendor is needed, and no bit of comp_mask is known",
            ));
        }
        id.terms().local_ece = Ece {
            vendor_id: ece.vendor_id,
            attr_mod: ece.options,
        };
        Ok(())
    });
    errno::minus_one("rdma_set_local_ece", set)
}

/// Gives the options that the peer's last message carried, zero for none.
///
/// # Safety
/// As [`rdma_set_local_ece`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    // SAFETY: the caller's promise.
    let got = unsafe { external(id, ece) }.map(|(id, ece)| {
        let remote = id.terms().remote_ece;
        *ece = ibv_ece {
            vendor_id: remote.vendor_id,
            options: remote.attr_mod,
            comp_mask: 0,
        };
    });
    errno::minus_one("rdma_get_remote_ece", got)
}

/// # Safety
/// As [`rdma_set_local_ece`].
unsafe fn external<'a>(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> Result<(&'a Id, &'a mut ibv_ece)> {
    // SAFETY: the caller's promise.
    let id = unsafe { Id::of(id) }?;
    if id.has_qp() {
        let sentence = format!("{id} has a queue pair, which agrees on its options itself");
        return Err(Refused::new(libc::EINVAL, sentence));
    }
    // SAFETY: the caller's promise.
    let ece = unsafe { ece.as_mut() };
    Ok((
        id,
        ece.ok_or_else(|| Refused::new(libc::EINVAL, "no options are given"))?,
    ))
}
