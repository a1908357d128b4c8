//! What only the inside can show: that traffic allocates nothing.

use oarlock_wire::{AddressVector, Gid, IbTimeout, RetryCount};

use super::*;
use crate::memory::{MemoryError, Sge};
use crate::packet::MAX_PACKET_LEN;
use crate::work::SendData;

/// Takes everything, gives zeros.
struct Void;

impl Memory for Void {
    fn scatter(&mut self, _: &[Sge], _: u64, _: &[u8]) -> Result<(), MemoryError> {
        Ok(())
    }

    fn gather(&mut self, _: &[Sge], _: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        out.fill(0);
        Ok(())
    }
}

const DEPTH: u32 = 4;

fn address(host: u8) -> Gid {
    Gid([host; 16])
}

fn ready(own: u8, peer: u8) -> Rc {
    let number = |host: u8| Qpn::truncate(host.into());
    let mut rc = Rc::new(RcConfig {
        qpn: number(own),
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        ..RcConfig::default()
    });
    let attr = QpAttr {
        av: AddressVector::new(address(own), address(peer)),
        dest_qpn: number(peer),
        min_rnr_timer: 1,
        timeout: IbTimeout::MAX,
        rnr_retry: RetryCount::MAX,
        ..QpAttr::default()
    };
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    for step in states.windows(2) {
        let transition = QpType::Rc.transition(step[0], step[1]).unwrap();
        rc.modify(&QpAttr {
            mask: transition.required | AttrMask::STATE,
            state: step[1],
            ..attr
        })
        .unwrap();
    }
    rc
}

/// Everything that `from` has to say goes to `to`.
fn carry(now: Time, from: &mut Rc, to: &mut Rc) {
    let mut out = [0; MAX_PACKET_LEN];
    while let Some(transmit) = from.poll_transmit(now, &mut Void, &mut out) {
        to.handle_datagram(
            now,
            &transmit.av.reversed(),
            &out[..transmit.len],
            &mut Void,
        );
    }
}

#[test]
fn traffic_leaves_every_queue_at_its_first_capacity() {
    let mut a = ready(1, 2);
    let mut b = ready(2, 1);
    let capacities = |rc: &Rc| {
        (
            rc.completions.capacity(),
            rc.responder.capacity(),
            rc.events.capacity(),
        )
    };
    let before = (capacities(&a), capacities(&b));
    let mut now = Time::ZERO;
    let (mut sent, mut received) = (0, 0);
    let sge = [Sge {
        addr: 0,
        len: 5000,
        ..Sge::default()
    }];
    while received < 500 {
        while a
            .post_send(&SendWr {
                data: SendData::Sges(&sge),
                ..SendWr::default()
            })
            .is_ok()
        {
            sent += 1;
        }
        // The receiver is ready only every other time, so that RNR NAKs and repetitions take part.
        carry(now, &mut a, &mut b);
        carry(now, &mut b, &mut a);
        while b
            .post_recv(&RecvWr {
                wr_id: 0,
                sges: &sge,
            })
            .is_ok()
        {}
        now = a.poll_timeout().unwrap_or(now);
        a.handle_timeout(now);
        carry(now, &mut a, &mut b);
        carry(now, &mut b, &mut a);
        while a.poll_completion().is_some() {}
        received += std::iter::from_fn(|| b.poll_completion()).count();
    }
    assert!(sent >= received);
    assert!(b.counters.get(Counter::RnrNaksSent) > 0);
    assert_eq!((capacities(&a), capacities(&b)), before);
}
