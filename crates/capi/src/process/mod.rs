//! What this process has once: its connection to the host service, the endpoint that all contexts share, its log.

#[cfg(not(test))]
mod library;
pub(crate) mod log;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_device::Endpoint;
use oarlock_hostd::Host;
use oarlock_port::fork::PerProcess;

use crate::errno::Result;

/// The host of this process, and its endpoint.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) host: Host,
    pub(crate) endpoint: Arc<Endpoint>,
}

impl Process {
    fn new(host: Host) -> Result<Self> {
        let endpoint = oarlock_verbs::on_host::endpoint(&host)?;
        Ok(Self { host, endpoint })
    }
}

/// The host of this process: joins the service of the network namespace, or starts it, at the first call. A forked child
/// gets one of its own, and so does a process whose service has died; what was made before belongs to the old one.
///
/// # Errors
/// As [`Host::open`]. `ENODEV`: this is the second copy of the library in the process.
pub(crate) fn current() -> Result<Process> {
    log::start();
    let mut current = CURRENT.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(process) = &*current
        && !process.host.is_gone()
    {
        return Ok(process.clone());
    }
    let process = open_host().and_then(Process::new).inspect_err(|refused| {
        // Without a host nothing works, and programs say no more than that there is no device. Once is enough.
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Ordering::Relaxed) {
            tracing::error!("no devices: {refused}");
        }
    })?;
    *current = Some(process.clone());
    Ok(process)
}

#[cfg(not(test))]
fn open_host() -> Result<Host> {
    library::only_copy()?;
    library::tell_of_others();
    Ok(match library::service_program() {
        Some(program) => Host::open_starting(&program)?,
        None => Host::open()?,
    })
}

/// The unit tests of this crate share a host of their own, on an in-memory wire, with the addresses 127.0.0.1 and ::1.
#[cfg(test)]
fn open_host() -> Result<Host> {
    Ok(Host::private()?)
}

/// A forked child begins with none: what its parent has is the parent's, and another thread of the parent may hold the lock.
static CURRENT: PerProcess<Mutex<Option<Process>>> = PerProcess::new(|_| Mutex::default());
