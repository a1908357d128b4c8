//! The list of devices.

use std::cell::UnsafeCell;
use std::env;
use std::ffi::{OsStr, OsString, c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use oarlock_device::DeviceInfo;
use oarlock_port::fork::PerProcess;
use oarlock_wire::Guid;

use super::context::Context;
use super::sysfs;
use crate::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device};
use crate::errno::{self, Refused, Result};
use crate::process::{self, Process};

/// A device as C sees it. One that C has once been told of keeps its address while this library is loaded: programs compare.
#[repr(C)]
pub(crate) struct Device {
    abi: UnsafeCell<ibv_device>,
    pub(crate) name: String,
    pub(crate) guid: Guid,
    pub(crate) index: u32,
}

// SAFETY: the public part is C's and reached by pointer only.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Every device that was ever listed, the newest first. They are never freed, and there is no lock that a fork could leave
/// locked for the child.
static KNOWN: AtomicPtr<Known> = AtomicPtr::new(ptr::null_mut());

struct Known {
    device: Arc<Device>,
    older: *const Self,
}

impl Device {
    fn new(info: &DeviceInfo) -> Self {
        let (index, root) = (info.index, sysfs::root());
        let public = ibv_device {
            // SAFETY: two optional functions, which no header calls.
            _ops: unsafe { std::mem::zeroed() },
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            name: text(&info.name),
            dev_name: text(&format!("uverbs{index}")),
            dev_path: text(&format!("{root}/class/infiniband_verbs/uverbs{index}")),
            ibdev_path: text(&format!("{root}/class/infiniband/{}", info.name)),
        };
        Self {
            abi: UnsafeCell::new(public),
            name: info.name.clone(),
            guid: info.guid,
            index,
        }
    }

    /// The one object for the device `info`.
    pub(crate) fn known(info: &DeviceInfo) -> Arc<Self> {
        let mut new: *mut Known = ptr::null_mut();
        loop {
            let newest = KNOWN.load(Ordering::Acquire);
            let mut at: *const Known = newest;
            // SAFETY: null, or a leaked box of below.
            while let Some(known) = unsafe { at.as_ref() } {
                let device = &known.device;
                if device.name == info.name
                    && device.guid == info.guid
                    && device.index == info.index
                {
                    if !new.is_null() {
                        // SAFETY: it was made below, and nobody else has seen it.
                        drop(unsafe { Box::from_raw(new) });
                    }
                    return Arc::clone(device);
                }
                at = known.older;
            }
            if new.is_null() {
                new = Box::into_raw(Box::new(Known {
                    device: Arc::new(Self::new(info)),
                    older: newest,
                }));
            }
            // SAFETY: nobody else has seen it yet.
            unsafe { (*new).older = newest };
            if KNOWN
                .compare_exchange(newest, new, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                // SAFETY: as above; from now on it is only read.
                return Arc::clone(unsafe { &(*new).device });
            }
        }
    }

    /// The device that C knows as `device`.
    ///
    /// # Safety
    /// `device` is what C got of this library.
    pub(crate) unsafe fn of<'a>(device: *mut ibv_device) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*device.cast::<Self>() }
    }

    /// What C knows the device by.
    pub(crate) fn as_ptr(&self) -> *mut ibv_device {
        self.abi.get()
    }

    /// Opens the device on the host of this process.
    ///
    /// # Errors
    /// `ENODEV`: it is gone.
    pub(crate) fn open(&self) -> Result<Arc<Context>> {
        let process = process::current()?;
        // Before the question, so that no change comes between.
        process.endpoint.watch()?;
        let (info, is_active) = self.info(&process)?;
        Context::open(&process, Self::known(&info), info, is_active)
    }

    /// What the host says of the device now, and whether its port carries packets.
    ///
    /// # Errors
    /// `ENODEV`: it is gone.
    pub(crate) fn info(&self, process: &Process) -> Result<(DeviceInfo, bool)> {
        let devices = oarlock_verbs::on_host::devices(&process.host)?;
        let same =
            |(info, _): &(DeviceInfo, bool)| info.name == self.name && info.guid == self.guid;
        devices
            .into_iter()
            .find(same)
            .ok_or_else(|| Refused::new(libc::ENODEV, format!("device {} is gone", self.name)))
    }
}

/// The devices of this host, in its order, as far as this program is shown them.
pub(crate) fn list(process: &Process) -> Result<Vec<(Arc<Device>, DeviceInfo, bool)>> {
    let devices = oarlock_verbs::on_host::devices(&process.host)?;
    let shown = devices.into_iter().filter(|(info, _)| is_shown(info));
    let known = |(info, is_active): (DeviceInfo, bool)| (Device::known(&info), info, is_active);
    Ok(shown.map(known).collect())
}

/// The devices of this host that this program is not shown.
pub(crate) fn hidden(process: &Process) -> Result<Vec<DeviceInfo>> {
    if only().is_none() {
        return Ok(Vec::new());
    }
    let devices = oarlock_verbs::on_host::devices(&process.host)?;
    let infos = devices.into_iter().map(|(info, _)| info);
    Ok(infos.filter(|info| !is_shown(info)).collect())
}

fn is_shown(info: &DeviceInfo) -> bool {
    only().is_none_or(|name| *name == *info.name)
}

/// The one device that the program is shown, if `OARLOCK_DEVICE` was set at the first call; else it is shown all of them.
fn only() -> Option<&'static OsStr> {
    static ONLY: PerProcess<Option<OsString>> = PerProcess::new(|parents| match parents {
        Some(parents) => parents.clone(),
        None => env::var_os(VARIABLE).filter(|name| !name.is_empty()),
    });
    ONLY.get().as_deref()
}

/// The list that a program asks for. One that is empty because no device has the name is told of.
fn shown() -> Result<Vec<Arc<Device>>> {
    let process = process::current()?;
    let devices = list(&process)?;
    if let Some(name) = only()
        && devices.is_empty()
    {
        let names: Vec<_> = hidden(&process)?
            .into_iter()
            .map(|info| info.name)
            .collect();
        tracing::error!(
            "{VARIABLE}={}: there is no such device on this host ({})",
            name.display(),
            names.join(", ")
        );
    }
    Ok(devices.into_iter().map(|(device, ..)| device).collect())
}

/// `ibv_get_device_list`: the devices of this host, in its order; null with `errno` if there is no host to be had.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    let listed = shown().map(|devices| {
        sysfs::serve();
        let pointers = devices.iter().map(|device| device.as_ptr());
        let list: Box<[_]> = pointers.chain([ptr::null_mut()]).collect();
        (devices.len(), Box::into_raw(list).cast())
    });
    if !num.is_null() {
        let count = listed.as_ref().map_or(0, |(count, _)| *count);
        // SAFETY: the caller's promise.
        unsafe { num.write(c_int::try_from(count).unwrap_or(c_int::MAX)) };
    }
    errno::object("ibv_get_device_list", listed.map(|(_, list)| list))
}

/// `ibv_free_device_list`: the list; the devices stay.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let mut len = 1;
    // SAFETY: the caller's promise: it is a list of `ibv_get_device_list`, which ends with a null pointer.
    unsafe {
        while !(*list.add(len - 1)).is_null() {
            len += 1;
        }
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)));
    }
}

/// `ibv_get_device_name`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller's promise. No reference is made to what is C's.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid`: in the order of the network.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { Device::of(device) }.guid.get().to_be()
}

/// `ibv_get_device_index`: the device's number on this host.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the caller's promise.
    let index = unsafe { Device::of(device) }.index;
    c_int::try_from(index).unwrap_or(-1)
}

/// A text in a field of C: cut where it is too long, with a zero at its end.
fn text<const LEN: usize>(text: &str) -> [c_char; LEN] {
    let mut field = [0; LEN];
    for (to, from) in field[..LEN - 1].iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
    field
}

/// Names the only device that programs find.
const VARIABLE: &str = "OARLOCK_DEVICE";
