use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use oarlock_port::{MemWire, Port};
use oarlock_transport::{AttrMask, Counter, QpAttr, SendData, SendWr};
use oarlock_wire::{
    AddressVector, Aeth, Bth, Gid, Guid, IbTimeout, Mtu, NakCode, Opcode, PKey, PacketHeader, Psn,
    Qpn, RetryCount, RnrTimer, Syndrome,
};

use super::*;
use crate::context::{DeviceInfo, DeviceLimits};
use crate::cq::Cq;
use crate::pd::Pd;
use crate::qp::{Qp, QpInit};

struct Slot(Mutex<Option<Port>>);

impl PortSource for Slot {
    fn take_port(&self) -> Result<Port, Box<dyn StdError + Send + Sync>> {
        lock(&self.0).take().ok_or_else(|| "taken".into())
    }

    fn gone_fd(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn port_closed(&self, _slot: u8) {}
}

fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 0, 0, last].into())
}

/// A queue pair in RTS that waits for ever for acknowledgements of [`PEER`].
fn ready(pd: &Pd, cq: &Arc<Cq>) -> Qp {
    use AttrMask as M;
    let qp = Qp::new(pd, cq, cq, QpInit::default()).expect("qp");
    let attr = QpAttr {
        pkey: PKey::DEFAULT,
        port_num: 1,
        av: AddressVector::new(gid(1), gid(2)),
        path_mtu: Mtu::MTU_1024,
        dest_qpn: PEER,
        timeout: IbTimeout::truncate(31),
        retry_count: RetryCount::truncate(7),
        rnr_retry: RetryCount::truncate(7),
        ..QpAttr::default()
    };
    let responds = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let retries = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    for (state, mask) in [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | responds,
        ),
        (QpState::Rts, M::SQ_PSN | retries),
    ] {
        let mask = mask | M::STATE;
        qp.modify(&QpAttr {
            mask,
            state,
            ..attr
        })
        .expect("modify");
    }
    qp
}

const PEER: Qpn = Qpn::truncate(0x07_0001);

/// A peer that answers "not ready" again and again, and lets hundreds of deadlines come and go before that of the
/// acknowledgement, which is hours away: the times that are entered do not pile up behind each other.
#[test]
fn deadlines_that_come_early_leave_nothing_behind() {
    let wire = MemWire::new();
    let host = |last: u8| wire.add_host(&[[10, 0, 0, last].into()]).expect("host");
    let port = Port::Mem(host(1).open(3).expect("slot"));
    let peer = Port::Mem(host(2).open(7).expect("slot"));
    let endpoint = Endpoint::new(Box::new(Slot(Mutex::new(Some(port))))).expect("endpoint");
    let device = DeviceInfo {
        index: 0,
        name: "mem0".to_owned(),
        guid: Guid(1),
        port_num: 1,
        ifindex: 1,
        is_loopback: false,
        netdev_mtu: 1500,
        gids: vec![gid(1)],
        limits: DeviceLimits::default(),
    };
    let context = Context::open(device, &endpoint).expect("context");
    let cq = Arc::new(Cq::new(&context, 16, None, 0).expect("cq"));
    let qp = ready(&Pd::new(&context), &cq);
    let request = SendWr {
        data: SendData::Sges(&[]),
        ..SendWr::default()
    };
    qp.post_send(&request).expect("post_send");

    let aeth = Aeth {
        // 0.01 ms, the shortest.
        syndrome: Syndrome::RnrNak(RnrTimer::truncate(1)),
        msn: 0,
    };
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, qp.qpn(), Psn::default());
    let header = PacketHeader::new(bth).with_aeth(aeth);
    let mut nak = [0; 64];
    let len = header.emit_packet(&[], &mut nak).expect("a packet");
    let end = Instant::now() + Duration::from_secs(300);
    while qp.counters().get(Counter::RnrNaksReceived) < 300 {
        assert!(Instant::now() < end, "refusals do not come");
        let av = AddressVector::new(gid(2), gid(1));
        peer.send(&av, &nak[..len]).expect("send");
        std::thread::yield_now();
    }
    let waiting = endpoint.core().timers().len();
    assert!(waiting <= 4, "{waiting} deadlines of one queue pair");

    // What ends it is not waited for either.
    let fatal = Aeth {
        syndrome: Syndrome::Nak(NakCode::INVALID_REQUEST),
        msn: 0,
    };
    let header = PacketHeader::new(bth).with_aeth(fatal);
    let len = header.emit_packet(&[], &mut nak).expect("a packet");
    while qp.state() != QpState::Error {
        assert!(Instant::now() < end, "the end does not come");
        let av = AddressVector::new(gid(2), gid(1));
        peer.send(&av, &nak[..len]).expect("send");
        std::thread::yield_now();
    }
    assert!(endpoint.core().timers().len() <= 4);
}
