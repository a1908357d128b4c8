//! An opened device: its description, its tables of memory regions, its events.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use oarlock_wire::{Gid, Guid, IbTimeout, Mtu, Qpn};

use crate::cq::CqShared;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::event::AsyncEvent;
use crate::locks::lock;
use crate::mr::RegionTable;
use crate::queue::EventQueue;

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

/// Limits of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceLimits {
    /// Queue pairs of this process.
    pub max_qp: u32,
    /// Outstanding requests of one queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of one request.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
    /// Completions that one completion queue holds.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Outstanding reads and atomics as responder.
    pub max_qp_rd_atom: u8,
    /// Outstanding reads and atomics as requester.
    pub max_qp_init_rd_atom: u8,
    /// How long an acknowledgement takes at most.
    pub local_ca_ack_delay: IbTimeout,
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self {
            max_qp: MAX_QP,
            max_qp_wr: 16_384,
            max_sge: 32,
            max_inline_data: 1024,
            max_cqe: 1 << 20,
            max_mr: crate::mr::MAX_REGIONS as u32,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            local_ca_ack_delay: IbTimeout::truncate(15),
        }
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
    /// Whom to wake when the service is gone.
    cqs: Mutex<Vec<Weak<CqShared>>>,
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
            device,
            endpoint: Arc::clone(endpoint),
            regions: Arc::new(RegionTable::new()),
            events: EventQueue::new()?,
            pds: AtomicU32::new(0),
            next_cq: AtomicU64::new(0),
            cqs: Mutex::default(),
        });
        endpoint.core().enter_context(&context);
        Ok(context)
    }

    /// The device's description.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// The endpoint its packets go through.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
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

    /// Readable while asynchronous events are queued.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    pub(crate) fn enter_cq(&self, cq: &Arc<CqShared>) {
        let mut cqs = lock(&self.cqs);
        // Pruned when it would grow, so that entering is cheap on average.
        if cqs.len() == cqs.capacity() {
            cqs.retain(|cq| cq.strong_count() > 0);
        }
        cqs.push(Arc::downgrade(cq));
    }

    /// The service is gone: tells whoever waits.
    pub(crate) fn device_fatal(&self) {
        self.raise(AsyncEvent::DeviceFatal);
        let cqs: Vec<_> = lock(&self.cqs).iter().filter_map(Weak::upgrade).collect();
        for cq in cqs {
            cq.wake_waiters();
        }
    }

    pub(crate) fn forget_events_of(&self, qpn: Qpn) {
        self.events.retain(|event| event.qpn() != Some(qpn));
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.events.push(event);
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
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device.name)
            .finish_non_exhaustive()
    }
}

/// As many as the lower 16 bits of a queue pair number can tell apart, less a reserve so that a
/// number is not used again soon.
pub(crate) const MAX_QP: u32 = 32_768;
