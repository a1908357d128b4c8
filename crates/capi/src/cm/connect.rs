//! Listening, connecting, accepting, rejecting, disconnecting.

use std::ffi::{c_int, c_void};

use oarlock_ucm::abi::Ece;
use oarlock_ucm::client::{self, Param};

use super::id::Id;
use super::{qp, resolve, sync};
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// What C gave to rdma_connect or rdma_accept, copied.
#[derive(Default)]
struct Given {
    private_data: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: bool,
    qp_num: u32,
}

/// As many as the device can, or as were asked for.
const OPEN: u8 = RDMA_MAX_RESP_RES as u8;
const _: () = assert!(RDMA_MAX_RESP_RES == RDMA_MAX_INIT_DEPTH && OPEN as u32 == RDMA_MAX_RESP_RES);
/// Retries when nothing is said: as many as the field can say (IBA Vol. 1 ch. 12, REQ).
const RETRIES: u8 = 7;

impl Given {
    /// # Safety
    /// `param` is null or valid, and so is what it points to.
    unsafe fn read(param: *const rdma_conn_param) -> Option<Self> {
        if param.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let param = unsafe { *param };
        Some(Self {
            // SAFETY: as above.
            private_data: unsafe { bytes(param.private_data, param.private_data_len) },
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq != 0,
            qp_num: param.qp_num,
        })
    }
}

/// # Safety
/// `data` is null or valid for reading `len` bytes.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// The device's limits, zero where there is no device yet: the service refuses such an identifier by itself.
#[derive(Clone, Copy, Default)]
struct Limits {
    responder_resources: u8,
    initiator_depth: u8,
}

fn limits(id: &Id) -> Limits {
    id.device()
        .as_ref()
        .map_or_else(Limits::default, |bound| Limits {
            responder_resources: bound.responder_resources,
            initiator_depth: bound.initiator_depth,
        })
}

/// What the library checks for itself, and only for port space TCP.
fn check(id: &Id, given: Option<&Given>) -> Result<()> {
    // SAFETY: the public part is valid as long as the identifier is.
    if unsafe { (*id.abi()).ps } != RDMA_PS_TCP {
        return Ok(());
    }
    let Some(given) = given else {
        return if id.has_qp() {
            Ok(())
        } else {
            Err(Refused::new(
                libc::EINVAL,
                "without a queue pair the parameters must say its number",
            ))
        };
    };
    if id.device().is_none() {
        return Err(Refused::new(
            libc::EINVAL,
            "the identifier is bound to no device yet",
        ));
    }
    let limits = limits(id);
    let too_many = |what: &str, given: u8, limit: u8| {
        let sentence = format!("{what} of {given} is more than the device's {limit}");
        Err(Refused::new(libc::EINVAL, sentence))
    };
    if given.responder_resources != OPEN && given.responder_resources > limits.responder_resources {
        return too_many(
            "responder_resources",
            given.responder_resources,
            limits.responder_resources,
        );
    }
    if given.initiator_depth != OPEN && given.initiator_depth > limits.initiator_depth {
        return too_many(
            "initiator_depth",
            given.initiator_depth,
            limits.initiator_depth,
        );
    }
    Ok(())
}

/// The parameters of the message.
fn param(id: &Id, given: Option<Given>) -> Result<Param> {
    let is_default = given.is_none();
    let given = given.unwrap_or_default();
    let (qp_num, srq) = qp::told(id).unwrap_or((given.qp_num, given.srq));
    let terms = id.terms();
    let mut private_data = terms.connect_prefix.clone();
    private_data.extend_from_slice(&given.private_data);
    if private_data.len() > usize::from(u8::MAX) {
        let sentence = format!("{} bytes of private data", private_data.len());
        return Err(Refused::new(libc::EINVAL, sentence));
    }
    let retries = |given| if is_default { RETRIES } else { given };
    Ok(Param {
        private_data,
        responder_resources: terms.responder_resources,
        initiator_depth: terms.initiator_depth,
        flow_control: given.flow_control,
        retry_count: retries(given.retry_count),
        rnr_retry_count: retries(given.rnr_retry_count),
        srq,
        qp_num,
        ece: Ece {
            vendor_id: terms.local_ece.vendor_id,
            attr_mod: terms.local_ece.attr_mod,
        },
    })
}

fn too_long(length: impl ToString) -> Refused {
    Refused::new(libc::EINVAL, length.to_string())
}

/// Asks the peer for a connection, or for its datagram service.
///
/// # Safety
/// `id` is null or an identifier of this library; `conn_param` is null or valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let begun = begin_connect(id, conn_param);
        sync::finish("rdma_connect", id, begun)
    }
}

unsafe extern "C" fn begin_connect(id: *mut rdma_cm_id, given: *const rdma_conn_param) -> c_int {
    // SAFETY: the caller's promise.
    let begun = unsafe { Id::of(id).and_then(|id| connect(id, Given::read(given))) };
    errno::minus_one("rdma_connect", begun)
}

fn connect(id: &Id, given: Option<Given>) -> Result<()> {
    check(id, given.as_ref())?;
    let limits = limits(id);
    let asked = |asked: Option<u8>, limit| asked.filter(|asked| *asked != OPEN).unwrap_or(limit);
    let mut terms = id.terms();
    terms.responder_resources = asked(
        given.as_ref().map(|given| given.responder_resources),
        limits.responder_resources,
    );
    terms.initiator_depth = asked(
        given.as_ref().map(|given| given.initiator_depth),
        limits.initiator_depth,
    );
    drop(terms);
    let param = param(id, given)?;
    id.call(client::connect(id.number(), &param).map_err(too_long)?)?;
    id.terms().connect_prefix.clear();
    Ok(())
}

/// Waits for connection requests; a backlog of 0 or less is the largest there is.
///
/// # Safety
/// `id` is null or an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let listening = unsafe { Id::of(id) }.and_then(|id| {
        id.call(client::listen(id.number(), backlog))?;
        // The port may have been chosen only now.
        resolve::ask_addresses(id)
    });
    errno::minus_one("rdma_listen", listening)
}

/// Accepts a request, on the identifier that came with it.
///
/// # Safety
/// `id` is null or an identifier of this library; `conn_param` is null or valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_accept(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let begun = begin_accept(id, conn_param);
        if begun != 0 || is_datagram(id) {
            return begun;
        }
        sync::finish("rdma_accept", id, begun)
    }
}

unsafe extern "C" fn is_datagram(id: *mut rdma_cm_id) -> bool {
    // SAFETY: the caller's promise.
    unsafe { Id::of(id) }.is_ok_and(Id::is_datagram)
}

unsafe extern "C" fn begin_accept(id: *mut rdma_cm_id, given: *const rdma_conn_param) -> c_int {
    // SAFETY: the caller's promise.
    let begun = unsafe { Id::of(id).and_then(|id| accept(id, Given::read(given))) };
    errno::minus_one("rdma_accept", begun)
}

fn accept(id: &Id, given: Option<Given>) -> Result<()> {
    check(id, given.as_ref())?;
    let limits = limits(id);
    let agreed = |given: Option<u8>, asked: u8, limit: u8| {
        given
            .filter(|given| *given != OPEN)
            .unwrap_or_else(|| asked.min(limit))
    };
    let mut terms = id.terms();
    terms.responder_resources = agreed(
        given.as_ref().map(|given| given.responder_resources),
        terms.responder_resources,
        limits.responder_resources,
    );
    terms.initiator_depth = agreed(
        given.as_ref().map(|given| given.initiator_depth),
        terms.initiator_depth,
        limits.initiator_depth,
    );
    let (responder_resources, initiator_depth) = (terms.responder_resources, terms.initiator_depth);
    // Nothing else is locked while the queue pair is.
    drop(terms);
    if !id.is_datagram() {
        qp::to_rtr_rts(id, responder_resources, initiator_depth)?;
    }
    let param = param(id, given)?;
    let command = client::accept(id.number(), id.uid(), &param).map_err(too_long)?;
    id.call(command).inspect_err(|_| stop(id))?;
    Ok(())
}

fn stop(id: &Id) {
    if let Err(refused) = qp::to_error(id) {
        tracing::debug!("the queue pair of {id} is not stopped: {refused}");
    }
}

/// The active side's part after a response: the queue pair gets ready, then the peer is told.
///
/// # Errors
/// Whatever fails; the queue pair is in the error state then.
pub(super) fn complete_active(id: &Id) -> Result<()> {
    let ready =
        qp::to_rtr_rts(id, OPEN, OPEN).and_then(|()| id.call(client::establish(id.number())));
    ready.inspect_err(|_| stop(id))
}

/// Completes a connection whose queue pair is the program's own, after CONNECT_RESPONSE.
///
/// # Safety
/// `id` is null or an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    let established = unsafe { Id::of(id) }.and_then(|id| {
        if id.has_qp() {
            return Err(Refused::new(
                libc::EINVAL,
                "a connection whose queue pair is the identifier's completes by itself",
            ));
        }
        complete_active(id)
    });
    errno::minus_one("rdma_establish", established)
}

/// Refuses a request, on the identifier that came with it.
///
/// # Safety
/// `id` is null or an identifier of this library; `private_data` is null or valid for `private_data_len` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    let rejected = unsafe { reject(id, CONSUMER_DEFINED, private_data, private_data_len) };
    errno::minus_one("rdma_reject", rejected)
}

/// Refuses a request because of its options of enhanced connection establishment.
///
/// # Safety
/// As [`rdma_reject`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    let rejected = unsafe { reject(id, VENDOR_OPTION, private_data, private_data_len) };
    errno::minus_one("rdma_reject_ece", rejected)
}

unsafe fn reject(id: *mut rdma_cm_id, reason: u8, data: *const c_void, len: u8) -> Result<()> {
    // SAFETY: the caller's promise.
    let (id, data) = unsafe { (Id::of(id)?, bytes(data, len)) };
    id.call(client::reject(id.number(), reason, &data).map_err(too_long)?)
}

/// Ends a connection: the queue pair stops, the peer is told, DISCONNECTED follows.
///
/// # Safety
/// `id` is null or an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let begun = begin_disconnect(id);
        sync::finish("rdma_disconnect", id, begun)
    }
}

unsafe extern "C" fn begin_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    let begun = unsafe { Id::of(id) }.and_then(|id| {
        if id.device().is_none() {
            return Err(Refused::new(
                libc::EINVAL,
                "the identifier is bound to no device, and connected to nobody",
            ));
        }
        qp::to_error(id)?;
        id.call(client::disconnect(id.number()))
    });
    errno::minus_one("rdma_disconnect", begun)
}

/// Reasons of a REJ (IBA Vol. 1 ch. 12, REJ).
const CONSUMER_DEFINED: u8 = 28;
const VENDOR_OPTION: u8 = 35;
