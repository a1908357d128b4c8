// Two contexts on one in-memory wire, without a host service, and a connection by hand.

use std::error::Error as StdError;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use oarlock_device::PortSource;
use oarlock_port::{Faults, MemWire, Port};
use oarlock_verbs::{
    Access, AttrMask, CompletionQueue, Context, DeviceInfo, DeviceLimits, Endpoint, QpAttr,
    QpInitAttr, QpState, QueuePair,
};
use oarlock_wire::{AddressVector, Gid, Guid, IbTimeout, Mtu, PKey, Psn, RetryCount};

struct OnePort(Mutex<Option<Port>>);

impl PortSource for OnePort {
    fn take_port(&self) -> Result<Port, Box<dyn StdError + Send + Sync>> {
        self.0.lock().unwrap().take().ok_or_else(|| "taken".into())
    }

    fn gone_fd(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn port_closed(&self, _slot: u8) {}
}

/// Two contexts that reach each other.
pub fn contexts() -> (Context, Context) {
    contexts_with(Faults::default())
}

/// The same with faults.
pub fn contexts_with(faults: Faults) -> (Context, Context) {
    let wire = MemWire::with_faults(faults);
    let context = |last: u8| {
        let host = wire.add_host(&[[10, 0, 0, last].into()]).unwrap();
        let port = Port::Mem(host.open(last).unwrap());
        let endpoint = Endpoint::new(Box::new(OnePort(Mutex::new(Some(port))))).unwrap();
        let device = DeviceInfo {
            index: 0,
            name: format!("mem{last}"),
            guid: Guid(last.into()),
            port_num: 1,
            ifindex: 1,
            is_loopback: false,
            netdev_mtu: 1500,
            gids: vec![Gid::from_ip([10, 0, 0, last].into())],
            limits: DeviceLimits::default(),
        };
        Context::on_endpoint(device, &endpoint).unwrap()
    };
    (context(1), context(2))
}

/// Everything that a peer can be allowed.
pub fn all_rights() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::MW_BIND
}

/// Two queue pairs that are connected, each with its completion queue.
pub fn connected(attr: QpInitAttr) -> ((QueuePair, CompletionQueue), (QueuePair, CompletionQueue)) {
    let (a, b) = contexts();
    let end = |context: &Context| {
        let cq = CompletionQueue::new(context, 256).unwrap();
        let qp = QueuePair::create(&context.default_pd(), &cq, &cq, attr).unwrap();
        (qp, cq)
    };
    let (a, b) = (end(&a), end(&b));
    connect(&a.0, &b.0);
    (a, b)
}

/// Takes both queue pairs as far as their types go: to RTS, an XRC target to RTR.
pub fn connect(a: &QueuePair, b: &QueuePair) {
    connect_with(a, b, |_| {});
}

/// The same, with the attributes that `change` leaves.
pub fn connect_with(a: &QueuePair, b: &QueuePair, change: impl Fn(&mut QpAttr)) {
    for (qp, peer) in [(a, b), (b, a)] {
        let gid = |qp: &QueuePair| qp.context().device().gids[0];
        let mut all = QpAttr {
            pkey: PKey::DEFAULT,
            port_num: 1,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            av: AddressVector::new(gid(qp), gid(peer)),
            path_mtu: Mtu::MTU_1024,
            dest_qpn: peer.qpn(),
            rq_psn: Psn::truncate(peer.qpn().get()),
            sq_psn: Psn::truncate(qp.qpn().get()),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            // 268 ms, eight times: a peer whose threads wait for a busy machine is not taken for dead.
            timeout: IbTimeout::truncate(16),
            retry_count: RetryCount::truncate(7),
            rnr_retry: RetryCount::truncate(7),
            ..QpAttr::default()
        };
        change(&mut all);
        let mut from = QpState::Reset;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let step = qp.qp_type().transition(from, state).unwrap();
            let mask = step.required | AttrMask::STATE;
            qp.modify(&QpAttr { mask, state, ..all }).unwrap();
            from = state;
        }
    }
}

/// From Reset to Init: enough to post receives.
pub fn init() -> QpAttr {
    QpAttr {
        mask: AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        state: QpState::Init,
        ..QpAttr::default()
    }
}
