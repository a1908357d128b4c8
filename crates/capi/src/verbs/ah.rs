//! Address handles.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Arc;

use oarlock_wire::{AddressVector, Gid, Grh};

use super::context::Context;
use super::neighbour;
use super::pd::{Pd, Use};
use crate::abi::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd,
    ibv_wc,
};
use crate::errno::{self, Refused, Result};

/// Where datagrams go.
#[repr(C)]
pub(crate) struct AddressHandle {
    abi: UnsafeCell<ibv_ah>,
    vector: AddressVector,
    context: Arc<Context>,
    _in_pd: Use,
}

impl AddressHandle {
    /// The handle that C knows as `ah`.
    ///
    /// # Safety
    /// `ah` is what C got of this library, and not destroyed.
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*ah.cast::<Self>() }
    }

    /// The path.
    pub(crate) fn vector(&self) -> AddressVector {
        self.vector
    }
}

/// The path that `attr` means on the port of `context`.
///
/// Flow label, service level, static rate and source path bits are left out: packets of an ordinary socket do not carry the
/// first two, and delivery needs none of them. The hop limit of a path to one peer is the route's, as the kernel has it for
/// RoCEv2 (`ib_resolve_unicast_gid_dmac` of Linux drivers/infiniband/core/verbs.c): programs put 0 or 1 there.
///
/// # Errors
/// `EINVAL`: no global route, no such port, or an address of the other IP version. `ENODATA`: the port has no address of that
/// index.
pub(crate) fn vector_of(context: &Context, attr: &ibv_ah_attr) -> Result<AddressVector> {
    let device = context.device.device();
    if attr.is_global == 0 {
        return Err(invalid("a RoCE port needs a global route (is_global)"));
    }
    if attr.port_num != device.port_num {
        return Err(invalid(format!("the device has no port {}", attr.port_num)));
    }
    let route = &attr.grh;
    let gids = context.device.gids();
    let local = gids.get(usize::from(route.sgid_index)).ok_or_else(|| {
        let (index, count) = (route.sgid_index, gids.len());
        let sentence = format!("no address has index {index}: the port has {count}");
        Refused::new(libc::ENODATA, sentence)
    })?;
    let remote = gid_of(&route.dgid);
    if remote.is_unspecified() {
        return Err(invalid("no destination is given"));
    }
    if local.to_ip().is_ipv4() != remote.to_ip().is_ipv4() {
        return Err(invalid(format!(
            "{remote} cannot be reached from {local} (sgid_index {})",
            route.sgid_index
        )));
    }
    let path = AddressVector::new(*local, remote);
    let is_scoped = remote.is_link_local() || remote.is_multicast();
    Ok(AddressVector {
        scope_id: if is_scoped { device.ifindex } else { 0 },
        traffic_class: route.traffic_class,
        // Packets to a group leave the host, though not the link, also with 0.
        hop_limit: if remote.is_multicast() {
            route.hop_limit.max(1)
        } else {
            path.hop_limit
        },
        ..path
    })
}

/// The bytes of a GID.
pub(crate) fn gid_of(gid: &ibv_gid) -> Gid {
    // SAFETY: each half of the union is 16 bytes, all of them are there, and any bytes are a value.
    Gid(unsafe { gid.raw })
}

/// `ibv_create_ah`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: the caller's promise.
    let made = unsafe { create(Pd::of(pd), pd, &*attr) };
    errno::object("ibv_create_ah", made.map(|ah| Box::into_raw(ah).cast()))
}

fn create(pd: &Pd, pd_ptr: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<Box<AddressHandle>> {
    pd.context.birth.check()?;
    let vector = vector_of(&pd.context, attr)?;
    let public = ibv_ah {
        context: pd.context.as_ptr(),
        pd: pd_ptr,
        handle: pd.context.next_handle(),
    };
    Ok(Box::new(AddressHandle {
        abi: UnsafeCell::new(public),
        vector,
        context: Arc::clone(&pd.context),
        _in_pd: pd.enter(),
    }))
}

/// `ibv_destroy_ah`: requests that were posted with it are not affected.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller's promise.
    let in_process = unsafe { AddressHandle::of(ah) }.context.birth.check();
    let freed = in_process.map(|()| {
        // SAFETY: `ibv_create_ah` made it of a box, and the program does not use it any more.
        drop(unsafe { Box::from_raw(ah.cast::<AddressHandle>()) });
    });
    errno::positive("ibv_destroy_ah", freed)
}

/// `ibv_init_ah_from_wc`: what an answer to a received datagram needs; -1 with `errno` if it was not received from one peer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let answer = unsafe { answer_to(Context::of(context), port_num, &*wc, grh) };
    let told = answer.map(|attr| {
        // SAFETY: the caller's promise.
        unsafe { ah_attr.write(attr) };
    });
    errno::minus_one("ibv_init_ah_from_wc", told)
}

/// `ibv_create_ah_from_wc`: a handle for the answer to a received datagram.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    // SAFETY: the caller's promise.
    let made = unsafe {
        let domain = Pd::of(pd);
        answer_to(&domain.context, port_num, &*wc, grh).and_then(|attr| create(domain, pd, &attr))
    };
    errno::object(
        "ibv_create_ah_from_wc",
        made.map(|ah| Box::into_raw(ah).cast()),
    )
}

/// # Safety
/// `grh` points to 40 bytes if the completion says that there is a header.
unsafe fn answer_to(
    context: &Context,
    port_num: u8,
    wc: &ibv_wc,
    grh: *mut ibv_grh,
) -> Result<ibv_ah_attr> {
    let mut attr = ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: [0; 16] },
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
        },
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        static_rate: 0,
        is_global: 0,
        port_num,
    };
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    // SAFETY: the caller's promise. The bytes are in a receive buffer, which need not be aligned.
    let bytes = unsafe { grh.cast::<[u8; Grh::LEN]>().read_unaligned() };
    let header = Grh::parse(&bytes)
        .map_err(|error| Refused::new(libc::EPROTONOSUPPORT, error.to_string()))?;
    let asked = Gid::from_ip(header.destination);
    if asked.is_multicast() {
        return Err(invalid(format!(
            "a datagram to group {asked} does not tell which address to answer from"
        )));
    }
    let gids = context.device.gids();
    let index = gids.iter().position(|gid| *gid == asked);
    let index = index.and_then(|index| u8::try_from(index).ok());
    attr.is_global = 1;
    attr.grh = ibv_global_route {
        dgid: ibv_gid {
            raw: Gid::from_ip(header.source).0,
        },
        flow_label: header.flow_label.get(),
        sgid_index: index
            .ok_or_else(|| invalid(format!("the port does not have address {asked}")))?,
        hop_limit: header.hop_limit,
        traffic_class: header.traffic_class,
    };
    Ok(attr)
}

/// `ibv_resolve_eth_l2_from_gid`: the hardware address that packets along a path go to. The packets of this device are the
/// operating system's, which resolves addresses by itself: this is for programs that want to know.
///
/// 0, or a negative error number. No path has a VLAN tag of its own: that is the interface's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut [u8; 6],
    vid: *mut u16,
) -> c_int {
    // SAFETY: the caller's promise.
    let resolved = unsafe { hardware_address(Context::of(context), &*attr) };
    let told = resolved.map(|mac| {
        // SAFETY: the caller's promise.
        unsafe {
            eth_mac.write(mac);
            vid.write(NO_VLAN);
        }
    });
    -errno::positive("ibv_resolve_eth_l2_from_gid", told)
}

fn hardware_address(context: &Context, attr: &ibv_ah_attr) -> Result<[u8; 6]> {
    let path = vector_of(context, attr)?;
    match path.remote.to_ip() {
        // RFC 1112, 6.4; RFC 2464, 7: the group's last bits behind a fixed prefix.
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            Ok([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(group) if group.is_multicast() => {
            let [.., a, b, c, d] = group.octets();
            Ok([0x33, 0x33, a, b, c, d])
        }
        peer => neighbour::resolve(peer, path.local.to_ip(), context.device.device().ifindex),
    }
}

fn invalid(sentence: impl Into<String>) -> Refused {
    Refused::new(libc::EINVAL, sentence)
}

/// What stands for "no tag" in a VLAN identifier.
const NO_VLAN: u16 = 0xffff;
