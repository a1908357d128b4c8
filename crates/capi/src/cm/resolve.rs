//! Binding, and resolving addresses and routes.

use std::ffi::c_int;

use oarlock_ucm::abi::{Bind, Command, IbPathRecData, ResolveAddr, SockaddrStorage};
use oarlock_ucm::client::{self, Addresses, Paths};
use zerocopy::FromZeros;

use super::id::Id;
use super::{address, call, devices, sync};
use crate::abi::*;
use crate::errno::{self, Result};

/// Shows the addresses that the service knows in the public part.
pub(super) fn show_addresses(id: &Id, known: &Addresses) {
    let route = id.abi();
    // SAFETY: the public part is valid as long as the identifier is; a storage is the largest member of each union.
    unsafe {
        if let Some(local) = known.local {
            let place = (&raw mut (*route).route.addr.source).cast();
            address::write(&SockaddrStorage::from(local), place);
        }
        if let Some(remote) = known.remote {
            let place = (&raw mut (*route).route.addr.destination).cast();
            address::write(&SockaddrStorage::from(remote), place);
        }
    }
}

/// Asks the service for addresses and device.
///
/// # Errors
/// The kernel's; the device cannot be opened.
pub(super) fn ask_addresses(id: &Id) -> Result<()> {
    let known = id.call(client::query_addr(id.number()))?;
    id.learn_addresses(&known)
}

/// Asks the service for GIDs.
///
/// # Errors
/// The kernel's.
pub(super) fn ask_gids(id: &Id) -> Result<()> {
    let known = id.call(client::query_gid(id.number()))?;
    id.learn_gids(&known);
    Ok(())
}

/// Asks the service for the path.
///
/// # Errors
/// The kernel's.
pub(super) fn ask_paths(id: &Id) -> Result<()> {
    let known = id.call(client::query_path(id.number()))?;
    id.learn_paths(records(&known));
    Ok(())
}

/// Path records as C reads them.
pub(super) fn records(paths: &Paths) -> Vec<ibv_sa_path_rec> {
    paths.0.iter().map(record).collect()
}

fn record(path: &IbPathRecData) -> ibv_sa_path_rec {
    let label_and_hops = u32::from_be_bytes(path.flow_label_hop_limit);
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: path.dgid },
        sgid: ibv_gid { raw: path.sgid },
        dlid: u16::from_ne_bytes(path.dlid),
        slid: u16::from_ne_bytes(path.slid),
        raw_traffic: 0,
        flow_label: (label_and_hops >> 8).to_be(),
        hop_limit: label_and_hops as u8,
        traffic_class: path.traffic_class,
        reversible: (path.reversible_numb_path >> 7).into(),
        numb_path: 1,
        pkey: u16::from_ne_bytes(path.pkey),
        sl: path.qos_class_sl[1] & 0xF,
        mtu_selector: EXACTLY,
        mtu: path.mtu & SIX_BITS,
        rate_selector: EXACTLY,
        rate: path.rate & SIX_BITS,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life_time & SIX_BITS,
        preference: path.flags as u8,
    }
}

/// Binds an identifier to a local address.
///
/// # Safety
/// `id` is null or an identifier of this library; `addr` is null or points to an address of its family's size.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_bind_addr(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: the caller's promise.
    errno::minus_one("rdma_bind_addr", unsafe { bind(id, addr) })
}

unsafe fn bind(id: *mut rdma_cm_id, addr: *const libc::sockaddr) -> Result<()> {
    // SAFETY: the caller's promise.
    let (id, addr) = unsafe { (Id::of(id)?, address::read(addr)?) };
    devices::check_local(id.process(), &addr)?;
    let body = Bind {
        id: id.number().0,
        addr_size: addr.abi_size(),
        reserved: 0,
        addr,
    };
    write(id, Command::BIND, &body, &[])?;
    ask_addresses(id)?;
    ask_gids(id)
}

/// Carries out a command made of C's own bytes.
///
/// # Errors
/// The kernel's.
pub(super) fn write<T: zerocopy::IntoBytes + zerocopy::Immutable>(
    id: &Id,
    command: Command,
    body: &T,
    inline: &[u8],
) -> Result<()> {
    let channel = id.bound();
    call::write(channel.host(), channel.token(), command, body, inline)
}

/// Finds the device and the source address for a destination; ADDR_RESOLVED or ADDR_ERROR follows.
///
/// # Safety
/// `id` is null or an identifier of this library; each address is null or of its family's size.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut libc::sockaddr,
    dst_addr: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let begun = begin_resolve_addr(id, src_addr, dst_addr, timeout_ms);
        sync::finish("rdma_resolve_addr", id, begun)
    }
}

unsafe extern "C" fn begin_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *const libc::sockaddr,
    dst_addr: *const libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    errno::minus_one("rdma_resolve_addr", unsafe {
        resolve_addr(id, src_addr, dst_addr, timeout_ms)
    })
}

unsafe fn resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *const libc::sockaddr,
    dst_addr: *const libc::sockaddr,
    timeout_ms: c_int,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (id, dst_addr) = unsafe { (Id::of(id)?, address::read(dst_addr)?) };
    let src_addr = if src_addr.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { address::read(src_addr) }?)
    };
    // What is bound keeps its device. Where another way leads is seen when it is resolved.
    if id.device().is_none() {
        devices::check_way(id.process(), src_addr.as_ref(), &dst_addr)?;
    }
    let body = ResolveAddr {
        id: id.number().0,
        // The kernel takes the same bits for an unsigned number.
        timeout_ms: timeout_ms.cast_unsigned(),
        src_size: src_addr.as_ref().map_or(0, SockaddrStorage::abi_size),
        dst_size: dst_addr.abi_size(),
        reserved: 0,
        src_addr: src_addr.unwrap_or_else(SockaddrStorage::new_zeroed),
        dst_addr,
    };
    write(id, Command::RESOLVE_ADDR, &body, &[])?;
    // SAFETY: the public part is valid as long as the identifier is.
    unsafe {
        let place = (&raw mut (*id.abi()).route.addr.destination).cast();
        address::write(&dst_addr, place);
    }
    Ok(())
}

/// Finds the way to the destination; ROUTE_RESOLVED or ROUTE_ERROR follows.
///
/// # Safety
/// `id` is null or an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_resolve_route(
    id: *mut rdma_cm_id,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let begun = begin_resolve_route(id, timeout_ms);
        sync::finish("rdma_resolve_route", id, begun)
    }
}

unsafe extern "C" fn begin_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let resolved = unsafe { Id::of(id) }.and_then(|id| {
        let timeout_ms = timeout_ms.cast_unsigned();
        id.call(client::resolve_route(id.number(), timeout_ms))
    });
    errno::minus_one("rdma_resolve_route", resolved)
}

/// "Exactly": the selector of path record fields (IBA Vol. 1 ch. 15, PathRecord).
const EXACTLY: u8 = 2;
/// What a field leaves beside its selector.
const SIX_BITS: u8 = 0x3F;
