//! From the port to the packet engines: batches of packets, each to its queue pair.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oarlock_port::fault::DeviceFault;
use oarlock_port::{Batch, Port};
use oarlock_transport::QpType;
use oarlock_wire::base::Operation;
use oarlock_wire::{AddressVector, Opcode, Packet, Qpn, Time};

use crate::endpoint::Core;
use crate::faults::Struck;
use crate::groups::Group;
use crate::locks::{lock, read, try_lock};
use crate::mr::{Incoming, Probe, Ways};
use crate::qp::{QpInner, QpShared};
use crate::qpn::slot_of;
use crate::transport::QpMemory;

#[derive(Default)]
pub(crate) struct Receiver {
    batch: Batch,
    touched: Vec<Arc<QpShared>>,
    incoming: Incoming,
    /// Of the batch in hand.
    probe: Probe,
}

/// What a packet of the batch meets.
struct Arrival<'a> {
    now: Time,
    from: &'a AddressVector,
    packet: &'a Packet<'a>,
    /// Packets that follow it, the next of the same message in their order.
    following: &'a [Packet<'a>],
    fault: Option<DeviceFault>,
    probe: &'a Probe,
}

impl Core {
    /// Takes what has arrived, if no other thread does; called by those who poll.
    pub(crate) fn progress_inline(self: &Arc<Self>) {
        if let Some(mut receiver) = try_lock(&self.receiver) {
            self.polls.fetch_add(1, Ordering::Relaxed);
            self.receive(&mut receiver);
        }
    }

    /// As [`progress_inline`](Self::progress_inline), but takes one datagram or burst: for whoever waits for a single packet, and
    /// not until nothing comes any more.
    pub(crate) fn progress_once(self: &Arc<Self>) {
        if let Some(mut receiver) = try_lock(&self.receiver) {
            self.polls.fetch_add(1, Ordering::Relaxed);
            self.receive_batch(&mut receiver, Port::recv_one);
        }
    }

    /// Takes what has arrived; waits for another thread that is at it. For the engine. Whether there was something.
    pub(crate) fn progress(self: &Arc<Self>) -> bool {
        let mut receiver = lock(&self.receiver);
        self.receive(&mut receiver)
    }

    /// As [`progress`](Self::progress), for the engine, when nobody else has received.
    pub(crate) fn progress_on_engine(self: &Arc<Self>) -> bool {
        let before = self.placed_writes();
        let has_received = self.progress();
        if self.placed_writes() != before {
            self.lingering().engine_placed();
        }
        has_received
    }

    /// Whether a thread is taking packets at this moment.
    pub(crate) fn is_receiving(&self) -> bool {
        try_lock(&self.receiver).is_none()
    }

    /// Whether there was something.
    fn receive(self: &Arc<Self>, receiver: &mut Receiver) -> bool {
        (0..MAX_BATCHES)
            .take_while(|_| self.receive_batch(receiver, Port::recv))
            .count()
            > 0
    }

    /// Whether there was one.
    fn receive_batch(
        self: &Arc<Self>,
        receiver: &mut Receiver,
        recv: impl FnOnce(&Port, &mut Batch) -> io::Result<usize>,
    ) -> bool {
        let received = match read(&self.port).as_ref() {
            Some(port) => recv(port, &mut receiver.batch),
            None => return false,
        };
        match received {
            Ok(0) => false,
            Ok(_) => {
                self.handle_batch(receiver);
                true
            }
            Err(error) => {
                self.counters.receive_failed.add(1);
                tracing::debug!(%error, "cannot receive");
                false
            }
        }
    }

    fn handle_batch(self: &Arc<Self>, receiver: &mut Receiver) {
        let now = self.now();
        let Receiver {
            batch,
            touched,
            incoming,
            probe,
        } = receiver;
        probe.renew();
        let slot = read(&self.port).as_ref().map(|port| port.slot());
        // Runs of one queue pair are the rule.
        let mut last: Option<Arc<QpShared>> = None;
        let mut strikes = batch.strikes();
        let mut following = Vec::new();
        let mut place = 0;
        while let Some((from, bytes)) = batch.get(place) {
            let fault = strikes.at(place);
            place += 1;
            let Ok((packet, is_reserved)) = Packet::parse_or_base(bytes) else {
                self.counters.malformed.add(1);
                continue;
            };
            if packet.bth.opcode == Opcode::CNP {
                self.counters.congestion_notifications.add(1);
                continue;
            }
            let qpn = packet.bth.dest_qpn;
            if last.as_ref().is_none_or(|qp| qp.qpn() != qpn) {
                if qpn == Qpn::MULTICAST {
                    let arrival = Arrival {
                        now,
                        from: &from,
                        packet: &packet,
                        following: &[],
                        fault,
                        probe,
                    };
                    self.handle_multicast(&arrival, incoming, touched);
                    continue;
                }
                if Some(slot_of(qpn)) != slot {
                    self.counters.foreign_slot.add(1);
                    continue;
                }
                last = self.qps.get(qpn);
            }
            let Some(qp) = &last else {
                self.counters.no_such_qp.add(1);
                continue;
            };
            if is_reserved && !matches!(qp.qp_type(), QpType::Rc | QpType::XrcTarget) {
                self.counters.malformed.add(1);
                continue;
            }
            // A connected queue pair knows its peer's address and its own.
            if qp.qp_type() == QpType::Ud && !qp.is_at(&from) {
                self.counters.wrong_interface.add(1);
                continue;
            }
            // Faults strike one packet at a time.
            if fault.is_none() && strikes.is_empty() {
                collect_following(batch, place, (&from, &packet), &mut following);
            }
            place += following.len();
            let arrival = Arrival {
                now,
                from: &from,
                packet: &packet,
                following: &following,
                fault,
                probe,
            };
            self.handle_packet(&arrival, qp, incoming, touched);
            following.clear();
        }
        drop(last);
        for qp in touched.drain(..) {
            let overruns = {
                let mut inner = qp.lock();
                self.drive(&qp, &mut inner)
            };
            self.fail_overrun(overruns);
        }
    }

    /// Each attached queue pair gets the packet.
    fn handle_multicast(
        self: &Arc<Self>,
        arrival: &Arrival<'_>,
        incoming: &mut Incoming,
        touched: &mut Vec<Arc<QpShared>>,
    ) {
        let Some(members) = self.groups.members(Group::of(arrival.from)) else {
            self.counters.no_such_group.add(1);
            return;
        };
        let mut fault = arrival.fault;
        for qp in members.iter() {
            let arrival = Arrival { fault, ..*arrival };
            self.handle_packet(&arrival, qp, incoming, touched);
            // What strikes the host strikes once.
            fault = fault.filter(|fault| {
                !matches!(
                    fault,
                    DeviceFault::DeviceRemoval | DeviceFault::AddressChange
                )
            });
        }
    }

    /// Gives a packet, and those that follow it, to a queue pair.
    #[inline]
    fn handle_packet(
        self: &Arc<Self>,
        arrival: &Arrival<'_>,
        qp: &Arc<QpShared>,
        incoming: &mut Incoming,
        touched: &mut Vec<Arc<QpShared>>,
    ) {
        let Arrival {
            now,
            from,
            packet,
            following,
            fault,
            probe,
        } = *arrival;
        if let Some(fault) = fault
            && self.strike(fault, from, qp) == Struck::Lost
        {
            return;
        }
        let mut inner = qp.lock();
        if qp.is_destroyed() {
            self.counters.no_such_qp.add(1 + following.len() as u64);
            return;
        }
        let QpInner {
            transport, held, ..
        } = &mut *inner;
        let ways = Ways {
            incoming: Some(incoming),
            outgoing: None,
        };
        let mut memory = QpMemory::new(qp, &self.counters, held, probe, ways);
        memory.go_on(following);
        transport.handle_packet(now, from, packet, &mut memory);
        // Nobody else has the queue pair in between: each finds what the one before it has left.
        let mut rest = following;
        while let Some((packet, behind)) = rest.split_first() {
            memory.go_on(behind);
            transport.handle_packet(now, from, packet, &mut memory);
            rest = behind;
        }
        drop(memory);
        if !inner.touched {
            inner.touched = true;
            touched.push(Arc::clone(qp));
        }
    }
}

/// Puts the packets of the batch that follow `first`, from this place on, into `following`: those that are the next of its
/// message, one after the other, come by the same path, and have the lengths of such packets.
fn collect_following<'a>(
    batch: &'a Batch,
    first_place: usize,
    (from, first): (&AddressVector, &Packet<'_>),
    following: &mut Vec<Packet<'a>>,
) {
    let opcode = first.bth.opcode;
    let is_placed = matches!(
        opcode.operation(),
        Operation::Send | Operation::RdmaWrite | Operation::RdmaReadResponse
    );
    if !is_placed || opcode.position().is_end() {
        return;
    }
    let full = first.payload.len();
    let mut psn = first.bth.psn;
    for place in first_place..first_place + MAX_FOLLOWING {
        let Some((address, bytes)) = batch.get(place) else {
            return;
        };
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        psn = psn.next();
        let next = packet.bth;
        let (position, len) = (next.opcode.position(), packet.payload.len());
        let has_its_length = if position.is_end() {
            (1..=full).contains(&len)
        } else {
            len == full
        };
        // A WRITE's end with immediate is placed only when a receive waits, which is not known here.
        let waits = opcode.operation() == Operation::RdmaWrite && next.opcode.has_immediate();
        let is_next = next.opcode.transport() == opcode.transport()
            && next.opcode.operation() == opcode.operation()
            && !position.is_start()
            && has_its_length
            && !waits
            && (next.psn, next.dest_qpn, next.pkey) == (psn, first.bth.dest_qpn, first.bth.pkey)
            && packet.xrceth == first.xrceth
            && address == *from;
        if !is_next {
            return;
        }
        following.push(packet);
        if position.is_end() {
            return;
        }
    }
}

/// Batches that one call takes before it looks at something else.
const MAX_BATCHES: usize = 16;
/// No burst has more packets.
const MAX_FOLLOWING: usize = 63;
