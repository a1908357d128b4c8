//! The shared receive queue of an identifier.

use std::ffi::c_int;
use std::ptr;

use super::id::Id;
use super::qp;
use crate::abi::*;
use crate::errno::{self, Refused, Result};
use crate::verbs::srq::{ibv_create_srq, ibv_destroy_srq};

/// Makes a shared receive queue in the identifier: an XRC one for the receiving side of XRC, whose completion queue is made,
/// too.
///
/// # Safety
/// `id` is null or an identifier of this library; `pd` is null or a protection domain; `attr` is null or valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let created = unsafe { Id::of(id) }.and_then(|id| {
        if attr.is_null() {
            return Err(no_attributes());
        }
        // SAFETY: zero is a value of every field.
        let mut given: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
        // SAFETY: the longer structure begins as the shorter one.
        unsafe { ptr::copy_nonoverlapping(attr, (&raw mut given).cast(), 1) };
        given.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        given.srq_type = if id.qp_type() == IBV_QPT_XRC_RECV {
            IBV_SRQT_XRC
        } else {
            IBV_SRQT_BASIC
        };
        given.pd = pd;
        // SAFETY: the caller's promise.
        let created = unsafe { create(id, &mut given) };
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping((&raw const given).cast(), attr, 1) };
        created
    });
    errno::minus_one("rdma_create_srq", created)
}

/// As [`rdma_create_srq`], with everything that `ibv_create_srq_ex` takes.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the caller's promise.
    let created = unsafe { Id::of(id) }.and_then(|id| {
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_mut() }.ok_or_else(no_attributes)?;
        // SAFETY: the caller's promise.
        unsafe { create(id, attr) }
    });
    errno::minus_one("rdma_create_srq_ex", created)
}

fn no_attributes() -> Refused {
    Refused::new(libc::EINVAL, "no attributes are given")
}

/// # Safety
/// What `attr` names is what C says.
unsafe fn create(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    let public = id.abi();
    // SAFETY: the public part is valid as long as the identifier is.
    let (verbs, pd) = unsafe { ((*public).verbs, (*public).pd) };
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Refused::new(libc::EINVAL, "the attributes say no type"));
    }
    if verbs.is_null() {
        return Err(qp::no_device(id));
    }
    let lacks = |bit: ibv_srq_init_attr_mask, is_null: bool, mask: u32| mask & bit == 0 || is_null;
    if lacks(IBV_SRQ_INIT_ATTR_PD, attr.pd.is_null(), attr.comp_mask) {
        attr.pd = pd;
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    let mut is_cq_made = false;
    if attr.srq_type == IBV_SRQT_XRC {
        if lacks(IBV_SRQ_INIT_ATTR_XRCD, attr.xrcd.is_null(), attr.comp_mask) {
            attr.xrcd = qp::xrcd(id)?;
        }
        if lacks(IBV_SRQ_INIT_ATTR_CQ, attr.cq.is_null(), attr.comp_mask) {
            id.kept.made.make(id, 0, attr.attr.max_wr)?;
            is_cq_made = true;
            // SAFETY: as above.
            attr.cq = unsafe { (*public).recv_cq };
        }
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    }
    // As the header's `ibv_create_srq_ex`.
    let is_plain = attr.comp_mask & !(IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE) == 0
        && attr.srq_type == IBV_SRQT_BASIC;
    let srq = if is_plain {
        // SAFETY: the caller's promise; the longer structure begins as the shorter one.
        unsafe { ibv_create_srq(attr.pd, ptr::from_mut(attr).cast()) }
    } else {
        // SAFETY: the context is open.
        match unsafe { qp::extended(verbs) }.create_srq_ex {
            // SAFETY: the caller's promise.
            Some(create) => unsafe { create(verbs, attr) },
            None => ptr::null_mut(),
        }
    };
    if srq.is_null() {
        let refused = qp::last("the shared receive queue");
        if is_cq_made {
            id.kept.made.destroy(id);
        }
        return Err(refused);
    }
    // SAFETY: as above.
    unsafe {
        if pd.is_null() {
            (*public).pd = attr.pd;
        }
        (*public).srq = srq;
    }
    Ok(())
}

/// Destroys the identifier's shared receive queue and the completion queue that was made for it.
///
/// # Safety
/// `id` is null or an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    match unsafe { Id::of(id) } {
        Ok(id) => destroy(id),
        Err(refused) => tracing::warn!("rdma_destroy_srq: {refused}"),
    }
}

pub(super) fn destroy(id: &Id) {
    // SAFETY: the public part is valid as long as the identifier is.
    let srq = unsafe { ptr::replace(&raw mut (*id.abi()).srq, ptr::null_mut()) };
    // SAFETY: the program has given it up.
    if !srq.is_null() && unsafe { ibv_destroy_srq(srq) } != 0 {
        tracing::warn!("rdma_destroy_srq: the shared receive queue of {id} is still there");
    }
    id.kept.made.destroy(id);
}
