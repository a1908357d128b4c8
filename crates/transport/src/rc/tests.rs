//! What only the inside can show: that traffic allocates nothing.

use oarlock_wire::{AddressVector, Gid, IbTimeout, RKey, RetryCount, Srqn};

use super::*;
use crate::attr::{AccessFlags, QpType};
use crate::memory::{AtomicOp, MemoryError, RemoteAccess, Sge, SharedReceive};
use crate::packet::MAX_PACKET_LEN;
use crate::srq::HeldReceive;
use crate::work::{RecvWr, RemoteAddress, SendData, SendWr};

/// Takes everything, gives zeros; the shared receive queue has a buffer every third time it is asked.
#[derive(Default)]
struct Void {
    asked: u32,
}

impl Memory for Void {
    fn scatter(&mut self, _: &[Sge], _: u64, _: &[u8]) -> Result<(), MemoryError> {
        Ok(())
    }

    fn gather(&mut self, _: &[Sge], _: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        out.fill(0);
        Ok(())
    }

    fn check_remote(
        &mut self,
        _: RKey,
        _: u64,
        _: u64,
        _: RemoteAccess,
    ) -> Result<(), MemoryError> {
        Ok(())
    }

    fn write_remote(&mut self, _: RKey, _: u64, _: &[u8]) -> Result<(), MemoryError> {
        Ok(())
    }

    fn read_remote(&mut self, _: RKey, _: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        out.fill(0);
        Ok(())
    }

    fn atomic(&mut self, _: RKey, _: u64, _: AtomicOp) -> Result<u64, MemoryError> {
        Ok(0)
    }

    fn invalidate(&mut self, _: RKey) -> Result<(), MemoryError> {
        Ok(())
    }

    fn take_shared_receive(&mut self, _: Option<Srqn>, into: &mut HeldReceive) -> SharedReceive {
        self.asked += 1;
        if !self.asked.is_multiple_of(3) {
            return SharedReceive::Empty;
        }
        into.sges.clear();
        into.sges.push(Sge {
            len: 5000,
            ..Sge::default()
        });
        SharedReceive::Taken
    }
}

const DEPTH: u32 = 4;

fn address(host: u8) -> Gid {
    Gid([host; 16])
}

fn ready(own: u8, peer: u8, shared_receives: bool) -> Rc {
    let number = |host: u8| Qpn::truncate(host.into());
    let mut rc = Rc::new(RcConfig {
        qpn: number(own),
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        read_window: 4,
        flow_control: true,
        shared_receives,
        ..RcConfig::default()
    });
    let attr = QpAttr {
        av: AddressVector::new(address(own), address(peer)),
        access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC,
        dest_qpn: number(peer),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: IbTimeout::MAX,
        retry_count: RetryCount::MAX,
        rnr_retry: RetryCount::MAX,
        ..QpAttr::default()
    };
    let path = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    for step in path.windows(2) {
        let transition = QpType::Rc.transition(step[0], step[1]).unwrap();
        let mask = transition.required | AttrMask::STATE;
        rc.modify(&QpAttr {
            mask,
            state: step[1],
            ..attr
        })
        .unwrap();
    }
    rc
}

/// Everything that `from` has to say goes to `to`, but for one packet in 16.
fn carry(now: Time, from: &mut Rc, to: &mut Rc, memory: &mut Void, packets: &mut u32) {
    let mut out = [0; MAX_PACKET_LEN];
    while let Some(transmit) = from.poll_transmit(now, memory, &mut out) {
        *packets += 1;
        if packets.wrapping_mul(0x9E37_79B9) >> 28 != 0 {
            let bytes = &out[..transmit.len];
            to.handle_datagram(now, &transmit.av.reversed(), bytes, memory);
        }
    }
}

/// One request of every kind, over and over.
fn request(number: usize, sges: &[Sge]) -> SendWr<'_> {
    let remote = RemoteAddress::default();
    let op = match number % 8 {
        0 => SendOp::Send,
        1 => SendOp::Write(remote),
        2 => SendOp::WriteWithImm(remote, 1),
        3 => SendOp::Read(remote),
        4 => SendOp::SendWithInvalidate(RKey(0)),
        5 => SendOp::LocalInvalidate(RKey(0)),
        6 => SendOp::FetchAdd { remote, add: 1 },
        _ => SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 1,
        },
    };
    let (words, data) = sges.split_at(1);
    SendWr {
        op,
        data: SendData::Sges(match number % 8 {
            5 => &[],
            6 | 7 => words,
            _ => data,
        }),
        ..SendWr::default()
    }
}

fn traffic_leaves_capacities(shared_receives: bool) {
    let mut a = ready(1, 2, false);
    let mut b = ready(2, 1, shared_receives);
    let mut memory = Void::default();
    let (mut now, mut packets, mut sent, mut completed) = (Time::ZERO, 0, 0, 0);
    let sge = |len| Sge {
        len,
        ..Sge::default()
    };
    let sges = [sge(8), sge(5000)];
    let mut capacities = Vec::new();
    while completed < 500 {
        while a.post_send(&request(sent, &sges)).is_ok() {
            sent += 1;
        }
        // The receiver is ready only every other time, so that RNR NAKs and repetitions take part.
        carry(now, &mut a, &mut b, &mut memory, &mut packets);
        carry(now, &mut b, &mut a, &mut memory, &mut packets);
        while b
            .post_recv(&RecvWr {
                wr_id: 0,
                sges: &sges[1..],
            })
            .is_ok()
        {}
        now = a.poll_timeout().unwrap_or(now);
        a.handle_timeout(now);
        carry(now, &mut a, &mut b, &mut memory, &mut packets);
        carry(now, &mut b, &mut a, &mut memory, &mut packets);
        for completion in std::iter::from_fn(|| a.poll_completion()) {
            assert!(completion.status.is_success(), "{completion:?}");
            completed += 1;
        }
        while b.poll_completion().is_some() {}
        // A buffer of a shared queue is kept in a list that grows once.
        if completed >= 20 {
            capacities.push([&a, &b].map(|rc| {
                (
                    rc.completions.capacity(),
                    rc.events.capacity(),
                    rc.responder.capacity(),
                    rc.rq.held_capacity(),
                )
            }));
        }
    }
    assert!(b.counters.get(Counter::RnrNaksSent) > 0);
    assert!(b.counters.get(Counter::DuplicateReads) > 0);
    assert!(b.counters.get(Counter::DuplicateAtomics) > 0);
    assert!(a.counters.get(Counter::ImpliedNaks) > 0);
    capacities.dedup();
    assert_eq!(capacities.len(), 1, "{capacities:?}");
}

#[test]
fn traffic_leaves_every_queue_at_its_first_capacity() {
    traffic_leaves_capacities(false);
}

#[test]
fn traffic_into_shared_receives_leaves_every_queue_at_its_first_capacity() {
    traffic_leaves_capacities(true);
}

#[test]
fn a_limit_that_grows_in_sqd_makes_room_at_once() {
    let mut rc = ready(1, 2, false);
    let before = rc.responder.capacity();
    rc.modify(&QpAttr::to_state(QpState::Sqd)).unwrap();
    rc.modify(&QpAttr {
        mask: AttrMask::MAX_DEST_RD_ATOMIC,
        max_dest_rd_atomic: 64,
        ..QpAttr::default()
    })
    .unwrap();
    let after = rc.responder.capacity();
    assert!(after.0 >= before.0 + 2 * 60 && after.1 >= 64, "{after:?}");
}
