//! Devices, contexts and asynchronous events.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use oarlock_device as device;
use oarlock_hostd::Host;
use oarlock_port::pcap::Capture;
use oarlock_wire::{Gid, Time};

use crate::error::Error;
use crate::host;
use crate::memory::channel;
use crate::pd::ProtectionDomain;

pub use device::{
    AsyncEvent, AtomicCapability, Capabilities, DeviceInfo, DeviceLimits, EVENT_KINDS, Endpoint,
    EventKind, STATISTICS, Statistic,
};

/// An opened device.
///
/// Clones are the same context, and so is what [`open`](Self::open) gives for the same device of
/// the same host while one of them lives.
#[doc(alias = "ibv_context")]
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    device: Arc<device::Context>,
    /// As the device knows it: a [`ProtectionDomain`] here would hold the context that holds it.
    default_pd: OnceLock<device::Pd>,
    /// Of memory events; it holds the context.
    memory_channel: Mutex<Weak<channel::Inner>>,
    /// Who knows what addresses the device has now; none on an endpoint of one's own.
    host: Option<Host>,
}

impl Inner {
    /// What the host has said of the device.
    pub(crate) fn learn(&self, device: &DeviceInfo, is_active: bool) {
        self.device.set_gids(&device.gids);
        self.device.set_port_active(is_active);
    }
}

impl Context {
    /// Opens device `index` of `host`.
    ///
    /// All contexts of a process on one host share one slot of the RoCEv2 port; it is taken with
    /// the first queue pair.
    ///
    /// A device that has gone is not opened, though contexts of it may live; one that is back, or has other addresses, is
    /// the same context, with the [addresses](Self::gids) of now.
    ///
    /// # Errors
    /// `NoSuchDevice`, naming those there are. `Host`: the service does not answer.
    ///
    /// # Blocking
    /// For the answer of the host service.
    #[doc(alias = "ibv_open_device")]
    pub fn open(host: &Host, index: u32) -> Result<Self, Error> {
        host::open(host, index)
    }

    /// The context of device `index` that this process has open on `host`, if any. The service is not asked whether the
    /// device is still there.
    ///
    /// # Blocking
    /// Never.
    #[must_use]
    pub fn opened(host: &Host, index: u32) -> Option<Self> {
        host::opened(host, index)
    }

    /// The devices of `host`, in its order.
    ///
    /// # Errors
    /// `Host`: the service does not answer.
    #[doc(alias = "ibv_get_device_list")]
    pub fn devices(host: &Host) -> Result<Vec<DeviceInfo>, Error> {
        host::devices(host)
    }

    /// Opens a device on an endpoint of one's own, without a host service: for tests on an
    /// in-memory wire.
    ///
    /// # Errors
    /// `Device`: no descriptor left.
    pub fn on_endpoint(device: DeviceInfo, endpoint: &Arc<Endpoint>) -> Result<Self, Error> {
        Self::new(device, endpoint, None)
    }

    pub(crate) fn new(
        device: DeviceInfo,
        endpoint: &Arc<Endpoint>,
        host: Option<Host>,
    ) -> Result<Self, Error> {
        let device = device::Context::open(device, endpoint)?;
        Ok(Self {
            inner: Arc::new(Inner {
                device,
                default_pd: OnceLock::new(),
                memory_channel: Mutex::default(),
                host,
            }),
        })
    }

    /// The device's own addresses, in the order of their indices, as they were last heard of: when the device was
    /// [opened](Self::open), by whomever in this process, at the last [`refresh`](Self::refresh), or with
    /// [`AsyncEvent::GidChange`].
    #[doc(alias = "ibv_query_gid")]
    #[must_use]
    pub fn gids(&self) -> Arc<[Gid]> {
        self.inner.device.gids()
    }

    /// Whether the port carries packets, as far as is known: see [`AsyncEvent::PortActive`] and
    /// [`AsyncEvent::PortError`].
    #[doc(alias = "ibv_query_port")]
    pub fn is_port_active(&self) -> bool {
        self.inner.device.is_port_active()
    }

    /// Whether the device has been removed.
    pub fn is_removed(&self) -> bool {
        self.inner.device.is_removed()
    }

    /// The device's clock, in nanoseconds from an arbitrary start: that of
    /// [`Completion::timestamp`](crate::Completion::timestamp).
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn now(&self) -> Time {
        self.inner.device.now()
    }

    /// What the wall clock, as it is set now, showed at `time` of the device's clock.
    pub fn wall_clock(&self, time: Time) -> SystemTime {
        self.inner.device.wall_clock(time)
    }

    /// What the queue pairs of this device have done in this process, those that are gone included, under the names that
    /// `rdma statistic` uses; [`STATISTICS`] says what each means. The numbers only grow.
    ///
    /// # Blocking
    /// For the rest of a packet that a queue pair has in hand.
    pub fn statistics(&self) -> Vec<(&'static str, u64)> {
        self.inner.device.statistics()
    }

    /// Asks for the device's addresses and the state of its port again. On an [endpoint of one's own](Self::on_endpoint) nothing changes.
    ///
    /// # Errors
    /// As for [`open`](Self::open): `NoSuchDevice` when it has gone.
    ///
    /// # Blocking
    /// For the answer of the host service.
    pub fn refresh(&self) -> Result<(), Error> {
        if let Some(host) = &self.inner.host {
            let (device, is_active) = host::find(host, self.device().index)?;
            self.inner.learn(&device, is_active);
        }
        Ok(())
    }

    /// The device's description, as it was when the device was opened.
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_port")]
    pub fn device(&self) -> &DeviceInfo {
        self.inner.device.device()
    }

    /// The protection domain that all users of this context share.
    pub fn default_pd(&self) -> ProtectionDomain {
        let new = || device::Pd::new(&self.inner.device);
        let pd = self.inner.default_pd.get_or_init(new);
        ProtectionDomain::from_device(self, pd.clone())
    }

    /// What happens by itself.
    pub fn async_events(&self) -> AsyncEvents {
        AsyncEvents {
            context: self.clone(),
        }
    }

    /// Counters of the endpoint, by name.
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.inner.device.endpoint().counters()
    }

    /// How many memory regions are registered: those of which a [`Buffer`](crate::Buffer) exists,
    /// in the program's hands or a queue pair's.
    pub fn region_count(&self) -> usize {
        self.inner.device.region_count()
    }

    /// From now on writes every data packet of this process on this host, as on the wire, to
    /// `capture`, or stops doing so.
    pub fn capture(&self, capture: Option<Capture>) {
        self.inner.device.endpoint().capture(capture);
    }

    /// Whether the host service is gone.
    pub fn is_device_fatal(&self) -> bool {
        self.inner.device.endpoint().is_gone()
    }

    pub(crate) fn device_context(&self) -> &Arc<device::Context> {
        &self.inner.device
    }

    pub(crate) fn memory_channel(&self) -> &Mutex<Weak<channel::Inner>> {
        &self.inner.memory_channel
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self { inner }
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device().name)
            .finish_non_exhaustive()
    }
}

/// The asynchronous events of a context, behind a descriptor that is readable while any is queued.
///
/// Each event is given once, to whoever asks first.
#[derive(Clone, Debug)]
pub struct AsyncEvents {
    context: Context,
}

impl AsyncEvents {
    /// The next event, if one is queued.
    #[doc(alias = "ibv_get_async_event")]
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.context.inner.device.try_async_event()
    }

    /// The next event; `None` when `timeout` has passed.
    ///
    /// # Errors
    /// `Device`: the program has made the descriptor non-blocking and nothing is queued.
    ///
    /// # Blocking
    /// Until there is an event, or for `timeout`.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, Error> {
        Ok(self.context.inner.device.async_event(timeout)?)
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.inner.device.async_fd()
    }
}
