//! What this process has once: its connection to the host service, and the endpoint that all contexts share.

use std::sync::{Arc, Mutex, PoisonError};

use oarlock_device::Endpoint;
use oarlock_hostd::Host;
use oarlock_port::fork;

use crate::errno::Result;

/// The host of this process, and its endpoint.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) host: Host,
    pub(crate) endpoint: Arc<Endpoint>,
    fork_generation: u32,
}

static CURRENT: Mutex<Option<Process>> = Mutex::new(None);

/// The host of this process: joins the service of the network namespace, or starts it, at the first call. A forked child
/// gets one of its own, and so does a process whose service has died; what was made before belongs to the old one.
///
/// # Errors
/// As [`Host::open`].
pub(crate) fn current() -> Result<Process> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(process) = &*current
        && process.fork_generation == fork::generation()
        && !process.host.is_gone()
    {
        return Ok(process.clone());
    }
    let host = Host::open()?;
    let endpoint = oarlock_verbs::on_host::endpoint(&host)?;
    let process = Process {
        host,
        endpoint,
        fork_generation: fork::generation(),
    };
    *current = Some(process.clone());
    Ok(process)
}
