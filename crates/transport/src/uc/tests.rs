//! What only the inside can show: that traffic allocates nothing, and where the longest message ends.

use oarlock_wire::RKey;

use super::*;
use crate::attr::AccessFlags;
use crate::memory::{MemoryError, RemoteAccess, Sge, SharedReceive};
use crate::packet::MAX_PACKET_LEN;
use crate::srq::HeldReceive;
use crate::work::{RemoteAddress, SendData, SendOp};

/// Takes everything, gives zeros, and for every third message a shared buffer.
#[derive(Default)]
struct Void {
    asked: usize,
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

    fn take_shared_receive(
        &mut self,
        _: Option<oarlock_wire::Srqn>,
        into: &mut HeldReceive,
    ) -> SharedReceive {
        self.asked += 1;
        if !self.asked.is_multiple_of(3) {
            return SharedReceive::Empty;
        }
        into.sges.clear();
        into.sges.resize(4, ROOM);
        SharedReceive::Taken
    }
}

const ROOM: Sge = Sge {
    addr: 0,
    len: 1000,
    lkey: oarlock_wire::LKey(1),
};

fn ready(own: u8, peer: u8, shared_receives: bool) -> Uc {
    let number = |host: u8| Qpn::truncate(host.into());
    let address = |host| oarlock_wire::Gid::from_ip([10, 0, 0, host].into());
    let mut uc = Uc::new(UcConfig {
        qpn: number(own),
        max_send_wr: 4,
        max_recv_wr: 4,
        shared_receives,
        pace: Duration::ZERO,
        ..UcConfig::default()
    });
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    for step in states.windows(2) {
        let transition = QpType::Uc.transition(step[0], step[1]).unwrap();
        uc.modify(&QpAttr {
            mask: transition.required | AttrMask::STATE,
            state: step[1],
            access: AccessFlags::REMOTE_WRITE,
            av: AddressVector::new(address(own), address(peer)),
            dest_qpn: number(peer),
            ..QpAttr::default()
        })
        .unwrap();
    }
    uc
}

#[test]
fn traffic_leaves_every_queue_at_its_first_capacity() {
    for shared in [false, true] {
        let (mut a, mut b) = (ready(1, 2, false), ready(2, 1, shared));
        let capacities = |uc: &Uc| {
            [
                uc.common.completions.capacity(),
                uc.common.events.capacity(),
            ]
        };
        let before = [capacities(&a), capacities(&b)];
        let mut memory = Void::default();
        let (mut received, mut out) = (0, [0; MAX_PACKET_LEN]);
        for round in 0..200 {
            let op = match round % 3 {
                0 => SendOp::Send,
                1 => SendOp::SendWithImm(1),
                _ => SendOp::WriteWithImm(RemoteAddress::default(), 1),
            };
            while a
                .post_send(&SendWr {
                    op,
                    data: SendData::Sges(&[ROOM; 3]),
                    signaled: round % 4 > 0,
                    ..SendWr::default()
                })
                .is_ok()
            {}
            // Every other time nobody is ready.
            while !shared
                && round % 2 == 0
                && b.post_recv(&RecvWr {
                    wr_id: 0,
                    sges: &[ROOM; 4],
                })
                .is_ok()
            {}
            let mut packets = 0;
            while let Some(transmit) = a.poll_transmit(Time::ZERO, &mut memory, &mut out) {
                packets += 1;
                // Now and then one is lost.
                if packets % 7 != round % 50 {
                    let bytes = &out[..transmit.len];
                    let from = transmit.av.reversed();
                    b.handle_datagram(Time::ZERO, &from, bytes, &mut memory);
                }
            }
            for uc in [&mut a, &mut b] {
                while let Some(completion) = uc.poll_completion() {
                    received += usize::from(!completion.is_send);
                }
                while uc.poll_event().is_some() {}
            }
        }
        assert!(received > 100, "{received}");
        assert_eq!([capacities(&a), capacities(&b)], before);
    }
}

/// IBA Vol. 1 ch. 9 "Message size": 2^31 bytes, whatever the buffer takes.
#[test]
fn a_message_ends_at_two_gibibytes() {
    use oarlock_wire::base::TransportClass;
    use oarlock_wire::{Bth, Opcode, PacketHeader};

    let huge = [Sge {
        len: u32::MAX,
        ..ROOM
    }];
    for (placed, payload, is_taken) in [((1 << 31) - 4, 4, true), ((1 << 31) - 4, 5, false)] {
        let mut uc = ready(1, 2, false);
        uc.post_recv(&RecvWr {
            wr_id: 1,
            sges: &huge,
        })
        .unwrap();
        uc.responder.progress = responder::Progress::Send { placed };
        let opcode = Opcode::RC_SEND_LAST.of(TransportClass::Uc);
        let bth = Bth::new(opcode, uc.qpn(), uc.responder.expected);
        let packet = PacketHeader::new(bth).packet(&[1; 8][..payload]);
        let from = uc.query().av;
        uc.handle_packet(Time::ZERO, &from, &packet, &mut Void::default());
        let completion = uc.poll_completion();
        assert_eq!(completion.map(|c| c.byte_len), is_taken.then_some(1 << 31));
        let refused = uc.counters().get(Counter::DroppedInvalidRequest);
        assert_eq!(refused, u64::from(!is_taken));
    }
}
