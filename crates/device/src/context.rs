//! An opened device: its description, its tables of memory regions, its events.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, SystemTime};

use oarlock_transport::Counters;
use oarlock_wire::{Gid, Guid, Mtu, Time};

use crate::cq::CqShared;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::event::{AsyncEvent, DeviceChange, SrqId};
use crate::locks::{lock, read, write};
use crate::mr::RegionTable;
use crate::queue::EventQueue;

mod limits;
mod statistics;

pub(crate) use limits::MAX_QP;
pub use limits::{AtomicCapability, Capabilities, DeviceLimits};
pub use statistics::{STATISTICS, Statistic};

/// What a device is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Number of the device on this host.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its globally unique id.
    pub guid: Guid,
    /// Number of its only port.
    pub port_num: u8,
    /// Index of the network interface.
    pub ifindex: u32,
    /// Whether that is a loopback interface.
    pub is_loopback: bool,
    /// MTU of the interface, in bytes.
    pub netdev_mtu: u32,
    /// The GID table: the addresses of the interface, in order.
    pub gids: Vec<Gid>,
    /// What it can do.
    pub limits: DeviceLimits,
}

impl DeviceInfo {
    /// The largest path MTU that the interface carries; the smallest there is for an interface
    /// that carries none.
    pub fn max_path_mtu(&self) -> Mtu {
        Mtu::largest_for_link(self.netdev_mtu).unwrap_or(Mtu::MTU_256)
    }
}

/// An opened device.
pub struct Context {
    device: DeviceInfo,
    endpoint: Arc<Endpoint>,
    regions: Arc<RegionTable>,
    events: EventQueue<AsyncEvent>,
    pds: AtomicU32,
    next_cq: AtomicU64,
    next_srq: AtomicU64,
    /// The GID table as it was last heard of.
    gids: RwLock<Arc<[Gid]>>,
    port_active: AtomicBool,
    /// How often the port went down.
    downs: AtomicU64,
    removed: AtomicBool,
    /// Sum of the counters of queue pairs that are gone. Locked before any queue pair.
    gone: Mutex<Counters>,
    cqs: Mutex<Cqs>,
}

/// The completion queues of a context.
#[derive(Default)]
struct Cqs {
    /// Those that have a handle.
    open: usize,
    /// Whom to wake when the service is gone.
    all: Vec<Weak<CqShared>>,
}

impl Context {
    /// Opens `device` on the endpoint of this process.
    ///
    /// Takes no slot of the port: the first queue pair does.
    ///
    /// # Errors
    /// `System`: no descriptor left.
    #[doc(alias = "ibv_open_device")]
    pub fn open(device: DeviceInfo, endpoint: &Arc<Endpoint>) -> Result<Arc<Self>, Error> {
        let context = Arc::new(Self {
            gids: RwLock::new(Arc::from(&device.gids[..])),
            device,
            endpoint: Arc::clone(endpoint),
            regions: Arc::new(RegionTable::new()),
            events: EventQueue::new()?,
            pds: AtomicU32::new(0),
            next_cq: AtomicU64::new(0),
            next_srq: AtomicU64::new(0),
            port_active: AtomicBool::new(true),
            downs: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            gone: Mutex::default(),
            cqs: Mutex::default(),
        });
        endpoint.core().enter_context(&context);
        Ok(context)
    }

    /// The device's description, as it was when the device was opened.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// The endpoint its packets go through.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The addresses of the port, in the order of their indices: those of [`DeviceInfo::gids`] until the host service told of
    /// others ([`AsyncEvent::GidChange`]) or [`set_gids`](Self::set_gids) did.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self) -> Arc<[Gid]> {
        Arc::clone(&read(&self.gids))
    }

    /// Replaces the table of addresses, without an event.
    pub fn set_gids(&self, gids: &[Gid]) {
        *write(&self.gids) = gids.into();
    }

    /// Whether the port carries packets, as far as the host service has told; true without one.
    pub fn is_port_active(&self) -> bool {
        self.port_active.load(Ordering::Acquire)
    }

    /// Says whether the port carries packets, without an event.
    pub fn set_port_active(&self, active: bool) {
        self.port_active.store(active, Ordering::Release);
    }

    /// Whether the device has been removed ([`AsyncEvent::DeviceRemoved`]).
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// The device's clock: nanoseconds since the endpoint was made, on the system's monotonic clock. The timestamps of
    /// completions ([`Cqe::timestamp`](crate::Cqe::timestamp)) are of this clock.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn now(&self) -> Time {
        self.endpoint.core().now()
    }

    /// What the system's wall clock, as it is set now, showed at `time` of the device's clock. Two calls for the same
    /// time differ by as much as passes between two looks at a clock, well below a microsecond on an idle processor.
    pub fn wall_clock(&self, time: Time) -> SystemTime {
        let (now, wall) = (self.now(), SystemTime::now());
        if time > now {
            wall + (time - now)
        } else {
            wall - (now - time)
        }
    }

    /// What the queue pairs of this device have done, those that are gone included, as names and numbers that only grow;
    /// [`STATISTICS`] says what each means. Looks at every queue pair, one after the other.
    ///
    /// # Blocking
    /// For the rest of a packet that a queue pair has in hand.
    pub fn statistics(&self) -> Vec<(&'static str, u64)> {
        let core = self.endpoint.core();
        let sum = {
            // A queue pair that goes meanwhile waits here.
            let gone = lock(&self.gone);
            let mut sum = gone.clone();
            for qp in core.qps().all() {
                if std::ptr::eq(Arc::as_ptr(qp.pd().context()), self) {
                    sum.add(qp.lock().transport.counters());
                }
            }
            sum
        };
        let unsent = core.counters().send_failed.get() + core.counters().send_without_port.get();
        self.figures(&sum, unsent)
    }

    fn figures(&self, sum: &Counters, unsent: u64) -> Vec<(&'static str, u64)> {
        let downs = self.downs.load(Ordering::Relaxed);
        STATISTICS
            .iter()
            .map(|figure| (figure.name, figure.value(sum, unsent, downs)))
            .collect()
    }

    /// How many memory regions are registered.
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// The next asynchronous event, if one is queued.
    #[doc(alias = "ibv_get_async_event")]
    pub fn try_async_event(&self) -> Option<AsyncEvent> {
        self.events.try_pop()
    }

    /// The next asynchronous event; `None` when `timeout` has passed.
    ///
    /// # Errors
    /// `WouldBlock`: the program has made the descriptor non-blocking and nothing is queued.
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, Error> {
        self.events.pop_wait(timeout)
    }

    /// The next asynchronous event, for who has read(2) 8 bytes from [`async_fd`](Self::async_fd) and so waited for it as the
    /// program has set it up (`O_NONBLOCK`, `SA_RESTART`); `None` if the event has gone in between: read again. `taken` sees
    /// the event before any other thread can find it gone, as who destroys an object and then waits for its
    /// acknowledgements must; it calls nothing of the device.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_get_async_event")]
    pub fn take_async_event(&self, taken: impl FnOnce(&AsyncEvent)) -> Option<AsyncEvent> {
        self.events.take_counted(taken)
    }

    /// Readable while asynchronous events are queued.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    pub(crate) fn enter_cq(&self, cq: &Arc<CqShared>) -> Result<(), Error> {
        let mut cqs = lock(&self.cqs);
        let max = self.device.limits.max_cq;
        if cqs.open >= max as usize {
            return Err(Error::OutOfRange {
                parameter: "number of completion queues",
                given: cqs.open as u64 + 1,
                min: 0,
                max: max.into(),
            });
        }
        cqs.open += 1;
        // Pruned when it would grow, so that entering is cheap on average.
        if cqs.all.len() == cqs.all.capacity() {
            cqs.all.retain(|cq| cq.strong_count() > 0);
        }
        cqs.all.push(Arc::downgrade(cq));
        Ok(())
    }

    pub(crate) fn cq_closed(&self) {
        lock(&self.cqs).open -= 1;
    }

    /// The service is gone: tells whoever waits.
    pub(crate) fn device_fatal(&self) {
        self.raise(AsyncEvent::DeviceFatal);
        let cqs = lock(&self.cqs);
        let cqs: Vec<_> = cqs.all.iter().filter_map(Weak::upgrade).collect();
        for cq in cqs {
            cq.wake_waiters();
        }
    }

    /// The host service says that something of the device has changed. Queue pairs are not touched here.
    pub(crate) fn changed(&self, change: &DeviceChange) {
        let port = self.device.port_num;
        match change {
            DeviceChange::PortActive => {
                self.port_active.store(true, Ordering::Release);
                self.raise(AsyncEvent::PortActive(port));
            }
            DeviceChange::PortError => {
                self.port_active.store(false, Ordering::Release);
                self.downs.fetch_add(1, Ordering::Relaxed);
                self.raise(AsyncEvent::PortError(port));
            }
            DeviceChange::Gids(gids) => {
                self.set_gids(gids);
                self.raise(AsyncEvent::GidChange(port));
            }
            DeviceChange::Removed => {
                self.port_active.store(false, Ordering::Release);
                self.removed.store(true, Ordering::Release);
                self.raise(AsyncEvent::DeviceRemoved);
            }
            DeviceChange::Returned => {
                self.removed.store(false, Ordering::Release);
                self.port_active.store(true, Ordering::Release);
                self.raise(AsyncEvent::PortActive(port));
            }
        }
    }

    /// Takes a queue pair out of the tables by `remove`, which returns its last counters: whoever sums up meanwhile
    /// finds them here or there, and once.
    pub(crate) fn retire(&self, remove: impl FnOnce() -> Counters) {
        let mut gone = lock(&self.gone);
        let counters = remove();
        gone.add(&counters);
    }

    /// Their object is gone.
    pub(crate) fn forget_events(&self, is_of: impl Fn(&AsyncEvent) -> bool) {
        self.events.retain(|event| !is_of(event));
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.events.push_or_move(event);
    }

    pub(crate) fn regions(&self) -> &Arc<RegionTable> {
        &self.regions
    }

    pub(crate) fn next_pd(&self) -> u32 {
        self.pds.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_cq(&self) -> u64 {
        self.next_cq.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_srq(&self) -> SrqId {
        SrqId::new(self.next_srq.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.endpoint.core().is_forked() {
            return;
        }
        // A queue pair holds its context, so all are gone. What could not be sent is a figure of the endpoint, and is told
        // by the contexts that are open.
        let figures = self.figures(&lock(&self.gone), 0);
        let core = self.endpoint.core();
        core.keep_statistics(self.device.index, figures);
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device.name)
            .finish_non_exhaustive()
    }
}
