//! For libraries that build on `oarlock-device` themselves, as the C libraries do: what of this process a host's devices
//! share.

use std::sync::Arc;

use oarlock_device::{DeviceInfo, Endpoint};
use oarlock_hostd::Host;

use crate::error::Error;

/// The endpoint of this process on `host`: its slot of the RoCEv2 port, its queue pair numbers, its engine thread. Contexts
/// of this crate ([`Context::open`](crate::Context::open)) share it with whoever else asks.
///
/// # Errors
/// `Device`: no descriptor left.
///
/// # Blocking
/// Never; the slot is taken with the first queue pair.
pub fn endpoint(host: &Host) -> Result<Arc<Endpoint>, Error> {
    crate::host::endpoint(host)
}

/// The devices of `host`, in its order, each with whether its port carries packets now.
///
/// # Errors
/// `Host`: the service does not answer.
///
/// # Blocking
/// For the answer of the host service.
pub fn devices(host: &Host) -> Result<Vec<(DeviceInfo, bool)>, Error> {
    crate::host::devices_with_state(host)
}
