// Two contexts on one in-memory wire, without a host service, and a connection by hand.

use std::error::Error as StdError;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use oarlock_device::PortSource;
use oarlock_port::{Faults, MemWire, Port};
use oarlock_verbs::{
    AttrMask, Context, DeviceInfo, DeviceLimits, Endpoint, QpAttr, QpState, QueuePair,
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

/// Takes both queue pairs to RTS.
pub fn connect(a: &QueuePair, b: &QueuePair) {
    for (qp, peer) in [(a, b), (b, a)] {
        let gid = |qp: &QueuePair| qp.pd().context().device().gids[0];
        let all = QpAttr {
            pkey: PKey::DEFAULT,
            port_num: 1,
            av: AddressVector::new(gid(qp), gid(peer)),
            path_mtu: Mtu::MTU_1024,
            dest_qpn: peer.qpn(),
            rq_psn: Psn::truncate(peer.qpn().get()),
            sq_psn: Psn::truncate(qp.qpn().get()),
            min_rnr_timer: 1,
            // 268 ms, eight times: a peer whose threads wait for a busy machine is not taken for dead.
            timeout: IbTimeout::truncate(16),
            retry_count: RetryCount::truncate(7),
            rnr_retry: RetryCount::truncate(7),
            ..QpAttr::default()
        };
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let rtr = AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let rts = AttrMask::SQ_PSN
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            let mask = mask | AttrMask::STATE;
            qp.modify(&QpAttr { mask, state, ..all }).unwrap();
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
