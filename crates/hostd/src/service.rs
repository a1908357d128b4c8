//! The host service: what `oarlock host` runs, and the in-process modes of [`Host`](crate::Host).
//!
//! One thread, one epoll instance. A turn of the loop takes what is ready (requests, datagrams, deaths, news of
//! interfaces), hands it to the dispatcher ([`oarlock_ucm::Ucm`]), and drains what comes out of it: route lookups,
//! management datagrams, wake-up bytes.
//!
//! ```text
//!   admission.rs who may connect
//!   clients.rs   who is connected, their requests and answers
//!   pipe.rs      one socket pair per event channel
//!   qp1.rs       management datagrams: packets, checks, pacing, the short cut within the host
//!   network.rs   the real port or an in-memory host: slots, routes
//!   devices.rs   one soft device per interface
//!   changes.rs   what has changed between two looks at them
//!   feed.rs      telling programs of that
//!   faults.rs    faults on purpose
//!   statistics.rs  counters of devices over all programs
//!   ebb.rs       when memory goes back to the system
//! ```

mod admission;
mod captures;
mod changes;
mod clients;
mod devices;
mod ebb;
mod event_loop;
mod faults;
mod feed;
mod identity;
mod network;
mod pipe;
mod qp1;
mod requests;
mod statistics;

pub use crate::log::{LOG_FILE_VARIABLE, LogFile};

use crate::address::{start_listening, take_name};
use crate::{Error, sys};
use event_loop::{End, Service};
use network::Network;
use oarlock_port::{MemHost, SlotsError, UdpSlots};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a service behaves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServiceConfig {
    /// Identifiers, ports, timers. The CA's GUID is the service's own choice.
    pub cma: oarlock_cma::Config,
    /// Programs that may be connected at a time.
    pub max_clients: usize,
    /// How long [`run`] stays without a program; `None`: until it is told to end.
    pub grace: Option<Duration>,
    /// How long to wait for UDP port 4791 when programs of an earlier service still hold it.
    pub port_wait: Duration,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            cma: oarlock_cma::Config::default(),
            max_clients: 4096,
            grace: None,
            port_wait: Duration::from_secs(3),
        }
    }
}

/// Runs the host service of this network namespace in this thread until SIGTERM, SIGINT or SIGHUP, a program's request
/// to end, or the end of the grace period without programs. `ready` is called once programs can connect.
///
/// The three signals are blocked in the calling thread, and should be in all others of the process.
///
/// # Errors
/// A service runs already; the port is taken; too few descriptors; the loopback interface is down.
pub fn run(config: ServiceConfig, ready: impl FnOnce()) -> Result<(), Error> {
    let signals = sys::termination_signals().map_err(Error::system("receive signals"))?;
    let end = config.grace.map_or(End::Told, End::Idle);
    let (mut service, listener) = on_port(config, end)?;
    service.add_signals(signals)?;
    service.add_listener(listener)?;
    ready();
    service.run();
    Ok(())
}

/// A service that runs in a thread of this process. Dropping it does not wait for the thread, which ends with its
/// client.
#[derive(Debug)]
pub(crate) struct ServiceThread {
    thread: JoinHandle<()>,
}

impl ServiceThread {
    fn start(mut service: Service) -> Result<Self, Error> {
        let thread = std::thread::Builder::new()
            .name("oarlock-host".to_owned())
            .spawn(move || {
                sys::block_signals();
                service.run();
            })
            .map_err(Error::system("start the host service's thread"))?;
        Ok(Self { thread })
    }

    pub(crate) fn join(self) {
        // A panic there has ended the connections, which is all that there is to know.
        let _ = self.thread.join();
    }
}

/// Starts a service on an in-memory host; gives the connection of its only client.
pub(crate) fn spawn_private(
    host: MemHost,
    config: ServiceConfig,
) -> Result<(ServiceThread, OwnedFd), Error> {
    let network = Network::memory(host)?;
    spawn(Service::new(config, network, End::WithFirstClient)?)
}

/// Starts the service of this network namespace in a thread; gives the connection of its first client.
pub(crate) fn spawn_on_port(config: ServiceConfig) -> Result<(ServiceThread, OwnedFd), Error> {
    let (mut service, listener) = on_port(config, End::WithFirstClient)?;
    service.add_listener(listener)?;
    spawn(service)
}

fn spawn(mut service: Service) -> Result<(ServiceThread, OwnedFd), Error> {
    let (theirs, ours) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(Error::errno("make a socket pair"))?;
    service.add_client(ours).map_err(|(_, error)| error)?;
    Ok((ServiceThread::start(service)?, theirs))
}

/// Takes the lock, then the port.
fn on_port(config: ServiceConfig, end: End) -> Result<(Service, OwnedFd), Error> {
    let name = take_name()?;
    let slots = open_slots(config.port_wait)?;
    let service = Service::new(config, Network::udp(slots)?, end)?;
    start_listening(&name)?;
    Ok((service, name))
}

/// Programs of a service that died let go of the port as soon as they notice: wait for them, but not for others.
fn open_slots(wait: Duration) -> Result<UdpSlots, Error> {
    let deadline = Instant::now() + wait;
    loop {
        match UdpSlots::open() {
            Err(SlotsError::PortTaken { owner })
                if Instant::now() < deadline
                    && !matches!(owner, oarlock_port::PortOwner::KernelSoftRoce { .. }) =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result.map_err(Error::from),
        }
    }
}
