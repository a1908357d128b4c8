//! `rdma_create_ep`, `rdma_get_request` and what belongs to them: synchronous identifiers made of an answer of
//! `rdma_getaddrinfo`.
//!
//! Calls that wait own nothing meanwhile, see [`super::sync`].

use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::addrinfo::Resolution;
use super::channel;
use super::channel::Wait;
use super::event::{self, Next, Step};
use super::id::{Id, rdma_destroy_id};
use super::option::rdma_set_option;
use super::qp::{self, Made};
use super::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::{srq, sync};
use crate::abi::*;
use crate::errno::{self, Errno, Refused, Result};

/// What the calls of this module and its neighbours keep in an identifier.
#[derive(Default)]
pub(crate) struct Kept {
    pub(super) made: Made,
    pub(super) addrinfo: Resolution,
    template: Mutex<Template>,
}

/// What the queue pairs of a listener's children are made of, if the library makes them.
#[derive(Default)]
struct Template(Option<ibv_qp_init_attr>);

// SAFETY: pointers to objects of the program, which any thread may use.
unsafe impl Send for Template {}

impl Kept {
    fn template(&self) -> MutexGuard<'_, Template> {
        self.template.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a synchronous identifier of the first entry of `res`: a passive one is bound, and its children get queue pairs made of
/// `qp_init_attr`; an active one has its address and route resolved and gets its queue pair now. Without `qp_init_attr` there
/// are none.
///
/// # Safety
/// `id` is null or valid for writing; `res` is null or an answer of `rdma_getaddrinfo`; `pd` is null or a protection domain;
/// `qp_init_attr` is null or valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let made = begin(id, res);
        if made.is_null() {
            return -1;
        }
        let is_passive = (*res).ai_flags.cast_unsigned() & RAI_PASSIVE != 0;
        let result = if is_passive {
            passive(made, res, pd, qp_init_attr)
        } else {
            active(made, res, pd, qp_init_attr)
        };
        if result == 0 {
            *id = made;
        } else {
            give_up(made);
        }
        result
    }
}

/// The identifier, as yet without an address; null and `errno`.
///
/// # Safety
/// As [`rdma_create_ep`].
unsafe extern "C" fn begin(
    place: *mut *mut rdma_cm_id,
    res: *const rdma_addrinfo,
) -> *mut rdma_cm_id {
    // SAFETY: the caller's promise.
    let made = match unsafe { res.as_ref() } {
        Some(res) if !place.is_null() => {
            // Numbers below zero are none of either.
            let ps = res.ai_port_space.cast_unsigned();
            Id::create(None, ptr::null_mut(), ps, res.ai_qp_type.cast_unsigned())
        }
        _ => {
            let sentence =
                "an answer of rdma_getaddrinfo and a place for the identifier are needed";
            Err(Refused::new(libc::EINVAL, sentence))
        }
    };
    errno::object("rdma_create_ep", made.map(|id| id.abi()))
}

/// # Safety
/// As [`rdma_create_ep`]; `id` was just made.
unsafe extern "C" fn passive(
    id: *mut rdma_cm_id,
    res: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *const ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let bound = unsafe { rdma_bind_addr(id, (*res).ai_src_addr) };
    if bound != 0 {
        return bound;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if !pd.is_null() {
            (*id).pd = pd;
        }
        let kept = Id::of(id).map(|id| {
            id.kept.template().0 = qp_init_attr.as_ref().map(|attr| ibv_qp_init_attr {
                qp_type: (*res).ai_qp_type.cast_unsigned(),
                ..*attr
            });
        });
        errno::minus_one("rdma_create_ep", kept)
    }
}

/// # Safety
/// As [`rdma_create_ep`]; `id` was just made.
unsafe extern "C-unwind" fn active(
    id: *mut rdma_cm_id,
    res: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let source = if (*res).ai_src_len == 0 {
            ptr::null_mut()
        } else {
            (*res).ai_src_addr
        };
        let resolved = rdma_resolve_addr(id, source, (*res).ai_dst_addr, RESOLVE_TIMEOUT_MS);
        if resolved != 0 {
            return resolved;
        }
        let routed = if (*res).ai_route_len == 0 {
            rdma_resolve_route(id, RESOLVE_TIMEOUT_MS)
        } else {
            let (level, name) = (
                RDMA_OPTION_IB.cast_signed(),
                RDMA_OPTION_IB_PATH.cast_signed(),
            );
            let set = rdma_set_option(id, level, name, (*res).ai_route, (*res).ai_route_len);
            sync::finish("rdma_create_ep", id, set)
        };
        if routed != 0 {
            return routed;
        }
        equip(id, res, pd, qp_init_attr)
    }
}

/// The last part of an active endpoint: its queue pair, and what goes before its private data.
///
/// # Safety
/// As [`rdma_create_ep`].
unsafe extern "C" fn equip(
    id: *mut rdma_cm_id,
    res: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let equipped = unsafe { Id::of(id) }.and_then(|id| {
        // SAFETY: the caller's promise.
        unsafe {
            if !qp_init_attr.is_null() {
                (*qp_init_attr).qp_type = (*res).ai_qp_type.cast_unsigned();
                qp::create_plain(id, pd, qp_init_attr)?;
            }
            if (*res).ai_connect_len > 0 {
                let prefix = (*res).ai_connect.cast::<u8>().cast_const();
                let prefix = std::slice::from_raw_parts(prefix, (*res).ai_connect_len);
                id.terms().connect_prefix = prefix.to_vec();
            }
        }
        Ok(())
    });
    errno::minus_one("rdma_create_ep", equipped)
}

/// Destroys what was begun; `errno` stays what it was.
///
/// # Safety
/// `id` was just made, and the program has not seen it.
unsafe extern "C" fn give_up(id: *mut rdma_cm_id) {
    let why = io::Error::last_os_error().raw_os_error();
    // SAFETY: the caller's promise.
    unsafe { rdma_destroy_ep(id) };
    errno::set(Errno(why.unwrap_or(libc::EINVAL)));
}

/// Destroys an identifier with its queue pair and its shared receive queue.
///
/// # Safety
/// `id` is null, or an identifier of this library that is used no more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    if let Ok(held) = unsafe { Id::of(id) } {
        // SAFETY: the public part is valid as long as the identifier is.
        let (has_qp, has_srq) = unsafe { (!(*id).qp.is_null(), !(*id).srq.is_null()) };
        if has_qp {
            qp::destroy(held);
        }
        if has_srq {
            srq::destroy(held);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { rdma_destroy_id(id) };
}

/// Waits for the next connection request of a synchronous listener. The new identifier is synchronous, too, has a queue pair
/// if the listener was made with attributes for one, and has the request in `id->event`.
///
/// # Safety
/// `listen` is null or an identifier of this library; `id` is null or valid for writing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    let mut is_announced = false;
    loop {
        // SAFETY: the caller's promise.
        let step = unsafe { request_step(listen, id, is_announced) };
        let Step::Wait(wait) = step else {
            return step.answer();
        };
        if !channel::wait_for_byte("rdma_get_request", wait) {
            return -1;
        }
        is_announced = true;
    }
}

/// One look for a request, from which nothing unwinds.
///
/// # Safety
/// As [`rdma_get_request`].
unsafe extern "C" fn request_step(
    listen: *mut rdma_cm_id,
    place: *mut *mut rdma_cm_id,
    is_announced: bool,
) -> Step {
    // SAFETY: the caller's promise.
    let looked = unsafe { Id::of(listen) }.and_then(|listen| {
        if place.is_null() {
            return Err(Refused::new(libc::EINVAL, "no place for the identifier"));
        }
        look(listen, is_announced)
    });
    match looked {
        Ok(Look::Wait(wait)) => Step::Wait(wait),
        Ok(Look::Child(child)) => {
            // SAFETY: the caller's promise.
            unsafe { *place = child };
            Step::Answer(0)
        }
        Err(refused) => Step::Answer(errno::minus_one("rdma_get_request", Err(refused))),
    }
}

enum Look {
    Wait(Wait),
    Child(*mut rdma_cm_id),
}

fn look(listen: &Id, is_announced: bool) -> Result<Look> {
    if !listen.is_sync() {
        let sentence = format!("{listen} has an event channel, where its requests are reported");
        return Err(Refused::new(libc::EINVAL, sentence));
    }
    if !is_announced {
        event::release_kept(listen);
    }
    let channel = Arc::clone(&listen.bound());
    match event::next(&channel, is_announced)? {
        Next::Wait(wait) => Ok(Look::Wait(wait)),
        Next::Event(event) => match take(listen, event) {
            Ok(child) => Ok(Look::Child(child)),
            Err(refused) => {
                sync::keep(listen, event);
                Err(refused)
            }
        },
    }
}

/// The identifier of a request.
///
/// # Errors
/// Another event; a queue pair that cannot be made: the request is rejected then.
fn take(listen: &Id, event: *mut rdma_cm_event) -> Result<*mut rdma_cm_id> {
    sync::outcome(event)?;
    // SAFETY: the event was fetched by the library and is not acknowledged.
    let (kind, child) = unsafe { ((*event).event, (*event).id) };
    if kind != RDMA_CM_EVENT_CONNECT_REQUEST {
        let sentence = format!("{}: no connection request", super::names::of_event(kind));
        return Err(Refused::new(libc::EINVAL, sentence));
    }
    // SAFETY: the event names an identifier that nobody else knows.
    let held = unsafe { Id::of(child) }?;
    let template = listen.kept.template().0;
    if let Some(mut attr) = template {
        // SAFETY: the public part is valid as long as the identifier is.
        let pd = unsafe { (*listen.abi()).pd };
        // SAFETY: the program gave the attributes for this, with what they name.
        unsafe { qp::create_plain(held, pd, &raw mut attr) }.inspect_err(|_| {
            // The program has no way to it: its end tells the peer.
            // SAFETY: as above.
            unsafe {
                (*event).id = ptr::null_mut();
                rdma_destroy_id(child);
            }
        })?;
    }
    sync::keep(held, event);
    // SAFETY: the event was fetched by the library and is not acknowledged.
    unsafe { event::count_kept(event) };
    Ok(child)
}

/// How long an endpoint waits for an address, and for a route.
const RESOLVE_TIMEOUT_MS: c_int = 2000;
