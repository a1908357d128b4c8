//! One side of a case: a device, and a channel to the other side.

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oarlock_device::{
    Access, AsyncEvent, Context, Cq, Cqe, DeviceChange, Endpoint, Pd, PortSource, Region,
};
use oarlock_port::fault::{Faults, PortFaults};
use oarlock_port::pcap::Capture;
use oarlock_port::{MEM_IFINDEX, Port};
use oarlock_transport::Completion;
use oarlock_wire::Gid;
use rustix::event::{EventfdFlags, eventfd};

use crate::support::control::Control;
use crate::support::{Side, device, eventually};

/// What a peer may have.
pub(crate) const EVERYTHING: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// One side of a case.
pub(crate) struct End {
    pub(crate) side: Side,
    pub(crate) here: Gid,
    pub(crate) there: Gid,
    is_first: bool,
    /// Where it is until the device takes it.
    port: Arc<Mutex<Option<Port>>>,
    faults: PortFaults,
    changes: Arc<Changes>,
    control: Control,
}

/// What a service would tell.
struct Changes {
    told: OwnedFd,
    queue: Mutex<Vec<(u32, DeviceChange)>>,
}

/// Gives the port, and tells of changes.
struct Host {
    port: Arc<Mutex<Option<Port>>>,
    changes: Arc<Changes>,
}

impl PortSource for Host {
    fn take_port(&self) -> Result<Port, Box<dyn StdError + Send + Sync>> {
        let port = self.port.lock().expect("lock").take();
        port.ok_or_else(|| "the slot is taken".into())
    }

    fn gone_fd(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn changes_fd(&self) -> io::Result<Option<OwnedFd>> {
        self.changes.told.try_clone().map(Some)
    }

    fn take_changes(&self) -> Vec<(u32, DeviceChange)> {
        let mut queue = self.changes.queue.lock().expect("lock");
        // Nothing to read if what it told of was taken before.
        let _ = rustix::io::read(&self.changes.told, &mut [0; 8]);
        std::mem::take(&mut queue)
    }

    fn port_closed(&self, _slot: u8) {}
}

impl Deref for End {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl DerefMut for End {
    fn deref_mut(&mut self) -> &mut Control {
        &mut self.control
    }
}

impl End {
    pub(crate) fn new(
        port: Port,
        (here, there): (IpAddr, IpAddr),
        control: UnixStream,
        is_first: bool,
    ) -> Self {
        let here = Gid::from_ip(here);
        let faults = port.faults();
        let port = Arc::new(Mutex::new(Some(port)));
        let changes = Arc::new(Changes {
            told: eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor"),
            queue: Mutex::default(),
        });
        let host = Host {
            port: Arc::clone(&port),
            changes: Arc::clone(&changes),
        };
        let endpoint = Endpoint::new(Box::new(host)).expect("endpoint");
        if let Some(file) = std::env::var_os(PCAP_VARIABLE) {
            endpoint.capture(Some(Capture::append(file).expect("a file for packets")));
        }
        let info = oarlock_device::DeviceInfo {
            netdev_mtu: 9000,
            ifindex: MEM_IFINDEX,
            ..device("semantics", here)
        };
        let context = Context::open(info, &endpoint).expect("context");
        let cq = Arc::new(Cq::new(&context, 4096, None, 0).expect("cq"));
        let side = Side {
            pd: Pd::new(&context),
            cq,
            gid: here,
            context,
        };
        Self {
            side,
            here,
            there: Gid::from_ip(there),
            is_first,
            port,
            faults,
            changes,
            control: Control::new(control, PATIENCE),
        }
    }

    /// Which of the two it is.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Zeroed memory.
    pub(crate) fn region(&self, len: usize, access: Access) -> Region {
        self.side.pd.allocate(len, access).expect("region")
    }

    /// Memory with these bytes, for sends.
    pub(crate) fn filled(&self, bytes: &[u8]) -> Region {
        let region = self.region(bytes.len(), Access::LOCAL_WRITE);
        region.copy_in(0, bytes).expect("as long");
        region
    }

    /// The next completion, however it ended.
    pub(crate) fn next(&self) -> Completion {
        self.next_cqe().completion
    }

    pub(crate) fn next_cqe(&self) -> Cqe {
        self.side.collect_any(1).remove(0)
    }

    /// So many completions, however they ended.
    pub(crate) fn nexts(&self, count: usize) -> Vec<Completion> {
        let all = self.side.collect_any(count);
        all.into_iter().map(|cqe| cqe.completion).collect()
    }

    /// No completion waits. For a moment when none may.
    pub(crate) fn nothing(&self) {
        if let Some(cqe) = self.side.cq.poll_one().expect("poll") {
            panic!("unexpected: {:?}", cqe.completion);
        }
    }

    /// Waits for this event, passing over others.
    pub(crate) fn event(&self, expected: AsyncEvent) {
        eventually(&format!("the event {expected}"), || {
            self.events().contains(&expected)
        });
    }

    /// The events that wait.
    pub(crate) fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.side.context.try_async_event()).collect()
    }

    /// Lets the network misbehave at this side, from now on. The queue pair's port must be open: make a queue pair first.
    pub(crate) fn strike(&self, rules: &str) -> Arc<Faults> {
        let faults = Arc::new(Faults::new(rules.parse().expect("rules")));
        let there = self.faults.inject(Some(Arc::clone(&faults)));
        assert!(there.expect("inject"), "the port is open");
        faults
    }

    /// The network behaves again.
    pub(crate) fn heal(&self) {
        assert!(self.faults.inject(None).expect("inject"));
    }

    /// What the service tells this process.
    pub(crate) fn change(&self, change: DeviceChange) {
        self.changes.queue.lock().expect("lock").push((0, change));
        rustix::io::write(&self.changes.told, &1_u64.to_ne_bytes()).expect("tell");
    }

    /// The port itself, for a side that has no queue pair and sends what no queue pair of ours would.
    pub(crate) fn take_port(&self) -> Port {
        let port = self.port.lock().expect("lock").take();
        port.expect("no queue pair was made")
    }
}

/// The bytes of a region that no request names now.
pub(crate) fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.copy_out(0, &mut bytes).expect("all of it");
    bytes
}

const PATIENCE: Duration = Duration::from_secs(300);
const PCAP_VARIABLE: &str = "OARLOCK_SEMANTICS_PCAP";
