//! Two devices on one in-memory wire, without a host service.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod armed;
pub(crate) mod control;
pub(crate) mod ends;

use std::error::Error as StdError;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oarlock_device::{
    Access, Context, Cq, Cqe, DeviceChange, DeviceInfo, DeviceLimits, Endpoint, Pd, PortSource, Qp,
    QpInit, Region,
};
use oarlock_port::{DeviceStatistics, Faults, MemHost, MemWire, Port};
use oarlock_transport::{
    AttrMask, QpAttr, QpState, QpType, RecvWr, SendData, SendWr, Sge, UdDestination,
};
use oarlock_wire::{AddressVector, Gid, Guid, IbTimeout, Mtu, PKey, Psn, QKey, Qpn, RetryCount};
use rustix::event::{EventfdFlags, eventfd};

/// Gives one slot of a host; `gone` plays the service.
pub(crate) struct Source {
    port: Mutex<Option<Port>>,
    gone: Option<OwnedFd>,
    changes: Option<Changes>,
    published: Option<Published>,
    pub(crate) closed: Arc<Mutex<Vec<u8>>>,
}

/// What was published last.
pub(crate) type Published = Arc<Mutex<Vec<DeviceStatistics>>>;

/// Plays the service that tells of changes.
#[derive(Clone)]
pub(crate) struct Changes {
    told: Arc<OwnedFd>,
    queue: Arc<Mutex<Vec<(u32, DeviceChange)>>>,
}

impl Changes {
    pub(crate) fn new() -> Self {
        let told = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
        Self {
            told: Arc::new(told),
            queue: Arc::default(),
        }
    }

    pub(crate) fn tell(&self, device: u32, change: DeviceChange) {
        self.queue.lock().expect("lock").push((device, change));
        rustix::io::write(&self.told, &1_u64.to_ne_bytes()).expect("tell");
    }
}

impl Source {
    pub(crate) fn new(port: Port) -> Self {
        Self {
            port: Mutex::new(Some(port)),
            gone: None,
            changes: None,
            published: None,
            closed: Arc::default(),
        }
    }

    pub(crate) fn with_changes(self, changes: &Changes) -> Self {
        Self {
            changes: Some(changes.clone()),
            ..self
        }
    }

    pub(crate) fn publishing(self, published: &Published) -> Self {
        Self {
            published: Some(Arc::clone(published)),
            ..self
        }
    }

    pub(crate) fn with_service(self, gone: OwnedFd) -> Self {
        Self {
            gone: Some(gone),
            ..self
        }
    }
}

impl PortSource for Source {
    fn take_port(&self) -> Result<Port, Box<dyn StdError + Send + Sync>> {
        let port = self.port.lock().expect("lock").take();
        port.ok_or_else(|| "the slot is taken".into())
    }

    fn gone_fd(&self) -> io::Result<Option<OwnedFd>> {
        self.gone.as_ref().map(OwnedFd::try_clone).transpose()
    }

    fn changes_fd(&self) -> io::Result<Option<OwnedFd>> {
        let told = self
            .changes
            .as_ref()
            .map(|changes| changes.told.try_clone());
        told.transpose()
    }

    fn take_changes(&self) -> Vec<(u32, DeviceChange)> {
        let changes = self.changes.as_ref().expect("a descriptor was given");
        let mut queue = changes.queue.lock().expect("lock");
        // Nothing to read if what it told of was taken before.
        let _ = rustix::io::read(&changes.told, &mut [0; 8]);
        std::mem::take(&mut queue)
    }

    fn statistics_interval(&self) -> Option<Duration> {
        self.published.is_some().then_some(Duration::from_millis(5))
    }

    fn publish_statistics(&self, statistics: &[DeviceStatistics]) {
        let published = self.published.as_ref().expect("asked for");
        *published.lock().expect("lock") = statistics.to_vec();
    }

    fn port_closed(&self, slot: u8) {
        self.closed.lock().expect("lock").push(slot);
    }
}

/// A device with everything that a queue pair needs.
pub(crate) struct Side {
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Pd,
    pub(crate) cq: Arc<Cq>,
    pub(crate) gid: Gid,
}

impl Side {
    pub(crate) fn new(source: Source, gid: Gid) -> Self {
        Self::with_device(source, device("mem0", gid))
    }

    pub(crate) fn with_device(source: Source, device: DeviceInfo) -> Self {
        let gid = device.gids[0];
        let endpoint = Endpoint::new(Box::new(source)).expect("endpoint");
        let context = Context::open(device, &endpoint).expect("context");
        let cq = Arc::new(Cq::new(&context, 1024, None, 0).expect("cq"));
        Self {
            pd: Pd::new(&context),
            context,
            cq,
            gid,
        }
    }

    /// Another device on the endpoint of this one.
    pub(crate) fn second_device(&self, device: DeviceInfo) -> Self {
        let gid = device.gids[0];
        let context = Context::open(device, self.context.endpoint()).expect("context");
        let cq = Arc::new(Cq::new(&context, 1024, None, 0).expect("cq"));
        Self {
            pd: Pd::new(&context),
            context,
            cq,
            gid,
        }
    }

    pub(crate) fn qp(&self, init: QpInit) -> Qp {
        Qp::new(&self.pd, &self.cq, &self.cq, init).expect("qp")
    }

    /// Polls until `count` completions are there, all of success.
    pub(crate) fn collect(&self, count: usize) -> Vec<Cqe> {
        collect(&self.cq, count)
    }

    /// Polls until `count` completions are there, however they ended.
    pub(crate) fn collect_any(&self, count: usize) -> Vec<Cqe> {
        collect_any(&self.cq, count)
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.context.endpoint().counters();
        let found = counters.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

pub(crate) fn collect(cq: &Cq, count: usize) -> Vec<Cqe> {
    let all = collect_any(cq, count);
    for Cqe { completion, .. } in &all {
        let (wr_id, status) = (completion.wr_id, completion.status);
        assert!(status.is_success(), "request {wr_id}: {status}");
    }
    all
}

fn collect_any(cq: &Cq, count: usize) -> Vec<Cqe> {
    let mut all = Vec::new();
    let end = Instant::now() + PATIENCE;
    while all.len() < count {
        let mut some = [const { None }; 8];
        let wanted = some.len().min(count - all.len());
        let taken = cq.poll(&mut some[..wanted]).expect("poll");
        all.extend(some.into_iter().flatten());
        if taken == 0 {
            // A wake-up that gets lost fails here.
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} completions", all.len());
            cq.wait(Some(left)).expect("wait");
        }
    }
    all
}

/// Runs `done` until it is true.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 0, 0, last].into())
}

pub(crate) fn device(name: &str, gid: Gid) -> DeviceInfo {
    DeviceInfo {
        index: 0,
        name: name.to_owned(),
        guid: Guid(1),
        port_num: 1,
        ifindex: 1,
        is_loopback: false,
        netdev_mtu: 1500,
        gids: vec![gid],
        limits: DeviceLimits::default(),
    }
}

pub(crate) fn host(wire: &MemWire, last: u8) -> MemHost {
    wire.add_host(&[[10, 0, 0, last].into()]).expect("host")
}

/// Two devices on one wire.
pub(crate) fn pair_with(faults: Faults) -> (Side, Side) {
    let wire = MemWire::with_faults(faults);
    let side = |last: u8, slot: u8| {
        let port = host(&wire, last).open(slot).expect("slot");
        Side::new(Source::new(Port::Mem(port)), gid(last))
    };
    (side(1, 3), side(2, 7))
}

pub(crate) fn pair() -> (Side, Side) {
    pair_with(Faults::default())
}

/// Attributes of the way from Init to RTS.
pub(crate) struct Path {
    pub(crate) local: Gid,
    pub(crate) remote: Gid,
    pub(crate) timeout: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) rnr_retry: u8,
}

impl Path {
    pub(crate) fn between(a: &Side, b: &Side) -> Self {
        Self {
            local: a.gid,
            remote: b.gid,
            // A second, eight times: a peer whose threads wait for a busy machine is not taken for dead.
            timeout: 18,
            rnr_timer: 1,
            rnr_retry: 7,
        }
    }
}

pub(crate) fn to_init(qp: &Qp) {
    qp.modify(&QpAttr {
        mask: AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        state: QpState::Init,
        pkey: PKey::DEFAULT,
        port_num: 1,
        ..QpAttr::default()
    })
    .expect("init");
}

pub(crate) fn to_rtr(qp: &Qp, peer: &Qp, path: &Path) {
    qp.modify(&QpAttr {
        mask: AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER,
        state: QpState::Rtr,
        av: AddressVector::new(path.local, path.remote),
        path_mtu: Mtu::MTU_1024,
        dest_qpn: peer.qpn(),
        rq_psn: Psn::truncate(peer.qpn().get()),
        min_rnr_timer: path.rnr_timer,
        ..QpAttr::default()
    })
    .expect("rtr");
}

pub(crate) fn to_rts(qp: &Qp, path: &Path) {
    qp.modify(&QpAttr {
        mask: AttrMask::STATE
            | AttrMask::SQ_PSN
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC,
        state: QpState::Rts,
        sq_psn: Psn::truncate(qp.qpn().get()),
        timeout: IbTimeout::truncate(path.timeout),
        retry_count: RetryCount::truncate(7),
        rnr_retry: RetryCount::truncate(path.rnr_retry),
        ..QpAttr::default()
    })
    .expect("rts");
}

/// Connects two queue pairs by hand.
pub(crate) fn connect(a: (&Side, &Qp), b: (&Side, &Qp)) {
    connect_waiting(a, b, Path::between(a.0, b.0).timeout);
}

/// As [`connect`], with this local ACK timeout.
fn connect_waiting(a: (&Side, &Qp), b: (&Side, &Qp), timeout: u8) {
    for ((side, qp), (peer_side, peer)) in [(a, b), (b, a)] {
        let path = Path {
            timeout,
            ..Path::between(side, peer_side)
        };
        to_init(qp);
        to_rtr(qp, peer, &path);
        to_rts(qp, &path);
    }
}

/// Two connected queue pairs.
pub(crate) fn connected(a: &Side, b: &Side) -> (Qp, Qp) {
    let (qa, qb) = (a.qp(QpInit::default()), b.qp(QpInit::default()));
    connect((a, &qa), (b, &qb));
    (qa, qb)
}

/// Two connected queue pairs that take silence for death after 8 times 4 ms: for tests whose peer is silent.
pub(crate) fn connected_impatient(a: &Side, b: &Side) -> (Qp, Qp) {
    let (qa, qb) = (a.qp(QpInit::default()), b.qp(QpInit::default()));
    connect_waiting((a, &qa), (b, &qb), 10);
    (qa, qb)
}

/// Two connected queue pairs for a network with losses: 8 times 134 ms.
pub(crate) fn connected_lossy(a: &Side, b: &Side) -> (Qp, Qp) {
    let (qa, qb) = (a.qp(QpInit::default()), b.qp(QpInit::default()));
    connect_waiting((a, &qa), (b, &qb), 15);
    (qa, qb)
}

/// The key of every datagram queue pair here.
pub(crate) const KEY: QKey = QKey(0x0111_1111);

/// A datagram queue pair in state Init.
pub(crate) fn ud_init(side: &Side) -> Qp {
    let qp = side.qp(QpInit {
        qp_type: QpType::Ud,
        ..QpInit::default()
    });
    qp.modify(&QpAttr {
        mask: AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
        state: QpState::Init,
        qkey: KEY,
        ..QpAttr::default()
    })
    .expect("init");
    qp
}

/// A datagram queue pair in state RTS.
pub(crate) fn ud_ready(side: &Side) -> Qp {
    let qp = ud_init(side);
    qp.modify(&QpAttr::to_state(QpState::Rtr)).expect("rtr");
    qp.modify(&QpAttr {
        mask: AttrMask::STATE | AttrMask::SQ_PSN,
        state: QpState::Rts,
        ..QpAttr::default()
    })
    .expect("rts");
    qp
}

/// The way to a queue pair.
pub(crate) fn ud_to(from: &Side, to: &Side, qp: &Qp) -> UdDestination {
    UdDestination {
        av: AddressVector::new(from.gid, to.gid),
        remote_qpn: qp.qpn(),
        remote_qkey: KEY,
    }
}

pub(crate) fn group(last: u8) -> Gid {
    Gid::from_ip([239, 0, 0, last].into())
}

/// The way to a group, by the device's interface.
pub(crate) fn to_group(from: &Side, group: Gid) -> UdDestination {
    UdDestination {
        av: AddressVector {
            scope_id: from.context.device().ifindex,
            ..AddressVector::new(from.gid, group)
        },
        remote_qpn: Qpn::MULTICAST,
        remote_qkey: KEY,
    }
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 7 + seed * 31 + (i >> 8)) as u8)
        .collect()
}

/// A region with a copy of `bytes` in it.
pub(crate) fn filled(side: &Side, bytes: &[u8]) -> Region {
    let region = side
        .pd
        .allocate(bytes.len(), Access::LOCAL_WRITE)
        .expect("region");
    write_to(&region, bytes);
    region
}

pub(crate) fn write_to(region: &Region, bytes: &[u8]) {
    let start = region.as_ptr().expect("own memory");
    // SAFETY: the region has `bytes.len()` bytes, and no work request names them yet.
    unsafe {
        start
            .as_ptr()
            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
    };
}

pub(crate) fn content(region: &Region) -> Vec<u8> {
    let start = region.as_ptr().expect("own memory");
    // SAFETY: the region's bytes are initialised, and its work request has completed.
    unsafe { std::slice::from_raw_parts(start.as_ptr(), region.len() as usize) }.to_vec()
}

pub(crate) fn send(qp: &Qp, wr_id: u64, sges: &[Sge]) {
    qp.post_send(&SendWr {
        wr_id,
        data: SendData::Sges(sges),
        ..SendWr::default()
    })
    .expect("post_send");
}

pub(crate) fn recv(qp: &Qp, wr_id: u64, sges: &[Sge]) {
    qp.post_recv(&RecvWr { wr_id, sges }).expect("post_recv");
}

pub(crate) fn whole(region: &Region) -> Sge {
    region.sge(0, region.len() as u32)
}

const PATIENCE: Duration = Duration::from_secs(300);
