//! What only the inside can show: that traffic allocates nothing.

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

fn ready(number: u8) -> Ud {
    let mut ud = Ud::new(UdConfig {
        qpn: Qpn::truncate(number.into()),
        max_send_wr: 4,
        max_recv_wr: 4,
        ..UdConfig::default()
    });
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    for step in states.windows(2) {
        let transition = QpType::Ud.transition(step[0], step[1]).unwrap();
        ud.modify(&QpAttr {
            mask: transition.required | AttrMask::STATE,
            state: step[1],
            ..QpAttr::default()
        })
        .unwrap();
    }
    ud
}

#[test]
fn traffic_leaves_every_queue_at_its_first_capacity() {
    let (mut a, mut b) = (ready(1), ready(2));
    let before = [
        a.common.completions.capacity(),
        b.common.completions.capacity(),
    ];
    let sge = [Sge {
        addr: 0,
        len: 1000,
        ..Sge::default()
    }];
    let room = [Sge {
        len: 1040,
        ..sge[0]
    }];
    let to = UdDestination {
        av: AddressVector::new(Gid([1; 16]), Gid([2; 16])),
        remote_qpn: b.qpn(),
        remote_qkey: QKey::default(),
    };
    let (mut received, mut out) = (0, [0; MAX_PACKET_LEN]);
    for round in 0..200 {
        while a
            .post_send(&SendWr {
                data: SendData::Sges(&sge),
                signaled: round % 3 > 0,
                ud: Some(to),
                ..SendWr::default()
            })
            .is_ok()
        {}
        // Every other time nobody is ready.
        while round % 2 == 0
            && b.post_recv(&RecvWr {
                wr_id: 0,
                sges: &room,
            })
            .is_ok()
        {}
        while let Some(transmit) = a.poll_transmit(&mut Void, &mut out) {
            b.handle_datagram(&transmit.av.reversed(), &out[..transmit.len], &mut Void);
        }
        while a.poll_completion().is_some() {}
        received += std::iter::from_fn(|| b.poll_completion()).count();
    }
    assert_eq!(received, 400);
    assert_eq!(b.counters().get(Counter::DroppedReceiverNotReady), 400);
    assert_eq!(
        [
            a.common.completions.capacity(),
            b.common.completions.capacity()
        ],
        before
    );
}
