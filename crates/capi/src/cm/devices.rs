//! The contexts that identifiers share: one for each device, opened when the first identifier is bound to it, and open as long
//! as this library is loaded.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_device::DeviceInfo;
use oarlock_port::fork::PerProcess;
use oarlock_ucm::abi::SockaddrStorage;
use oarlock_ucm::client::DeviceRef;
use oarlock_wire::Gid;

use super::qp;
use crate::abi::*;
use crate::errno::{self, Refused, Result};
use crate::process::{self, Process};
use crate::verbs::context::Context;
use crate::verbs::device::{self, Device, ibv_free_device_list, ibv_get_device_list};
use crate::verbs::pd::{ibv_alloc_pd, ibv_dealloc_pd};

/// A device as the identifiers of this process share it.
struct Shared {
    /// The host it is of: a forked child, and a process whose service died, have another.
    host: u64,
    device: Arc<Device>,
    context: *mut ibv_context,
    responder_resources: u8,
    initiator_depth: u8,
    lent: Mutex<Lent>,
}

// SAFETY: a context may be used from any thread, and this one is never closed.
unsafe impl Send for Shared {}
// SAFETY: as above; what changes is behind a lock.
unsafe impl Sync for Shared {}

/// What identifiers use that bring nothing of their own.
struct Lent {
    identifiers: usize,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
}

static SHARED: PerProcess<Mutex<Vec<Arc<Shared>>>> = PerProcess::new(|_| Mutex::default());

/// An identifier's part in its device: the context, and the protection domain of all identifiers that bring none. Dropping
/// it gives the part back; with the last one the protection domain and the XRC domain go, unless something of the program
/// is still in them.
pub(crate) struct Bound {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    /// The device's `max_qp_rd_atom`.
    pub(crate) responder_resources: u8,
    /// The device's `max_qp_init_rd_atom`.
    pub(crate) initiator_depth: u8,
    shared: Arc<Shared>,
}

// SAFETY: the pointers are those of a context and a domain, which may be used from any thread.
unsafe impl Send for Bound {}
// SAFETY: as above.
unsafe impl Sync for Bound {}

/// Refuses to bind to an address that only devices have which this program is not shown: it has no device then. Unspecified
/// and loopback addresses bind to none.
///
/// # Errors
/// `ENODEV`: as said.
pub(super) fn check_local(process: &Process, address: &SockaddrStorage) -> Result<()> {
    // What is no address is the service's to refuse.
    let Some((ip, scope)) = ip_of(address).filter(|(ip, _)| !is_any_or_loopback(*ip)) else {
        return Ok(());
    };
    let owns = |info: &DeviceInfo| {
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        info.gids.contains(&Gid::from_ip(ip)) && (!is_link_local || info.ifindex == scope)
    };
    let hidden = device::hidden(process)?;
    let Some(owner) = hidden.iter().find(|info| owns(info)) else {
        return Ok(());
    };
    let shown = device::list(process)?;
    if shown.iter().any(|(_, info, _)| owns(info)) {
        return Ok(());
    }
    Err(not_shown(&format!(
        "{ip} is an address of device {}",
        owner.name
    )))
}

/// As [`check_local`] of the source of a way; without one, refuses the way to a loopback address if it leads through a device
/// that this program is not shown.
///
/// # Errors
/// `ENODEV`: as said.
pub(super) fn check_way(
    process: &Process,
    source: Option<&SockaddrStorage>,
    destination: &SockaddrStorage,
) -> Result<()> {
    let binds_to_none = |address| ip_of(address).is_none_or(|(ip, _)| is_any_or_loopback(ip));
    if let Some(source) = source.filter(|source| !binds_to_none(source)) {
        return check_local(process, source);
    }
    if ip_of(destination).is_none_or(|(ip, _)| !is_any_or_loopback(ip)) {
        return Ok(());
    }
    let hidden = device::hidden(process)?;
    match hidden.iter().find(|info| info.is_loopback) {
        Some(info) => Err(not_shown(&format!(
            "loopback addresses are device {}'s",
            info.name
        ))),
        None => Ok(()),
    }
}

fn not_shown(whose: &str) -> Refused {
    let sentence = format!("{whose}, which this program is not shown (OARLOCK_DEVICE)");
    Refused::new(libc::ENODEV, sentence)
}

fn ip_of(address: &SockaddrStorage) -> Option<(IpAddr, u32)> {
    match address.to_addr().ok()? {
        SocketAddr::V4(v4) => Some(((*v4.ip()).into(), 0)),
        SocketAddr::V6(v6) => Some(((*v6.ip()).into(), v6.scope_id())),
    }
}

fn is_any_or_loopback(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback()
}

/// The part of one more identifier in `device`.
///
/// # Errors
/// `ENODEV`: the host has no such device any more, or does not show it to this program; what opening it says.
pub(crate) fn bind(process: &Process, device: &DeviceRef) -> Result<Bound> {
    let shared = find(process, device)?;
    let mut lent = shared.lock();
    if lent.pd.is_null() {
        // SAFETY: the context is open, and stays so.
        lent.pd = unsafe { ibv_alloc_pd(shared.context) };
        if lent.pd.is_null() {
            return Err(qp::last("the protection domain of identifiers"));
        }
    }
    lent.identifiers += 1;
    let pd = lent.pd;
    drop(lent);
    Ok(Bound {
        verbs: shared.context,
        pd,
        responder_resources: shared.responder_resources,
        initiator_depth: shared.initiator_depth,
        shared,
    })
}

fn find(process: &Process, wanted: &DeviceRef) -> Result<Arc<Shared>> {
    let mut all = lock();
    let is_it = |shared: &&Arc<Shared>| {
        let device = &shared.device;
        shared.host == process.host.id()
            && device.index == wanted.index
            && device.guid.0 == wanted.guid
    };
    if let Some(shared) = all.iter().find(is_it) {
        return Ok(Arc::clone(shared));
    }
    let listed = device::list(process)?;
    let is_it = |(device, ..): &(Arc<Device>, DeviceInfo, bool)| {
        device.index == wanted.index && device.guid.0 == wanted.guid
    };
    let Some((device, info, is_active)) = listed.into_iter().find(is_it) else {
        let sentence = format!(
            "device {} (GUID {:#018x}) is not shown to this program",
            wanted.index, wanted.guid
        );
        return Err(Refused::new(libc::ENODEV, sentence));
    };
    let shared = Shared::open(process, device, info, is_active)?;
    all.push(Arc::clone(&shared));
    Ok(shared)
}

impl Shared {
    fn open(
        process: &Process,
        device: Arc<Device>,
        info: DeviceInfo,
        is_active: bool,
    ) -> Result<Arc<Self>> {
        let limits = info.limits;
        let context = Context::open(process, Arc::clone(&device), info, is_active)?;
        Ok(Arc::new(Self {
            host: process.host.id(),
            device,
            context: context.into_ptr(),
            responder_resources: limits.max_qp_rd_atom,
            initiator_depth: limits.max_qp_init_rd_atom,
            lent: Mutex::new(Lent {
                identifiers: 0,
                pd: ptr::null_mut(),
                xrcd: ptr::null_mut(),
            }),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bound {
    /// The XRC domain of all identifiers of the device that bring none: it has no file.
    ///
    /// # Errors
    /// As `ibv_open_xrcd`.
    pub(crate) fn xrcd(&self) -> Result<*mut ibv_xrcd> {
        let mut lent = self.shared.lock();
        if lent.xrcd.is_null() {
            let mut attr = ibv_xrcd_init_attr {
                comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: the context is open, and stays so.
            lent.xrcd = unsafe { qp::open_xrcd(self.verbs, &raw mut attr) };
            if lent.xrcd.is_null() {
                return Err(qp::last("the XRC domain of identifiers"));
            }
        }
        Ok(lent.xrcd)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let mut lent = self.shared.lock();
        lent.identifiers -= 1;
        if lent.identifiers > 0 {
            return;
        }
        // What the program still has in a domain keeps it busy; the domain then stays for identifiers to come.
        // SAFETY: the domain was opened above and nobody closed it.
        if !lent.xrcd.is_null() && unsafe { qp::close_xrcd(lent.xrcd) } == 0 {
            lent.xrcd = ptr::null_mut();
        }
        // SAFETY: as above.
        if unsafe { ibv_dealloc_pd(lent.pd) } == 0 {
            lent.pd = ptr::null_mut();
        }
    }
}

/// The devices of this host, opened, in its order: an array that ends with null. `num_devices` may be null.
///
/// # Safety
/// `num_devices` is null or valid for writing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let devices = contexts();
    let count = devices.as_ref().map_or(0, Vec::len);
    if !num_devices.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *num_devices = c_int::try_from(count).unwrap_or(c_int::MAX) };
    }
    errno::object(
        "rdma_get_devices",
        devices.and_then(|devices| array(&devices)),
    )
}

/// Those that libibverbs lists for this program.
fn contexts() -> Result<Vec<*mut ibv_context>> {
    let process = process::current()?;
    let mut count = 0;
    // SAFETY: a place for the count.
    let list = unsafe { ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return Err(qp::last("the list of devices"));
    }
    let mut contexts = Vec::new();
    for place in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has so many devices of this library.
        let device = unsafe { Device::of(*list.add(place)) };
        let wanted = DeviceRef {
            guid: device.guid.0,
            index: device.index,
            port: 1,
            pkey: 0,
        };
        // One that cannot be opened does not hide the others.
        match find(&process, &wanted) {
            Ok(shared) => contexts.push(shared.context),
            Err(refused) => tracing::warn!("rdma_get_devices: {}: {refused}", device.name),
        }
    }
    // SAFETY: the list of above; its devices stay.
    unsafe { ibv_free_device_list(list) };
    if count == 0 {
        return Err(Refused::new(libc::ENODEV, "there is no device"));
    }
    Ok(contexts)
}

/// An array for C, which `free` frees, with null at its end.
fn array(contexts: &[*mut ibv_context]) -> Result<*mut *mut ibv_context> {
    // SAFETY: zero is null in every place.
    let array = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) };
    let array = array.cast::<*mut ibv_context>();
    if array.is_null() {
        return Err(Refused::new(
            libc::ENOMEM,
            "no memory for the list of devices",
        ));
    }
    // SAFETY: it has a place for each, and one more.
    unsafe { ptr::copy_nonoverlapping(contexts.as_ptr(), array, contexts.len()) };
    Ok(array)
}

/// Frees the array. The devices stay open.
///
/// # Safety
/// `list` is null, or an answer of [`rdma_get_devices`] that was not freed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(list.cast()) };
}

fn lock() -> MutexGuard<'static, Vec<Arc<Shared>>> {
    SHARED.get().lock().unwrap_or_else(PoisonError::into_inner)
}
