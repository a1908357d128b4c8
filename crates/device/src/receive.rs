//! From the port to the packet engines: batches of packets, each to its queue pair.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oarlock_port::Batch;
use oarlock_port::fault::DeviceFault;
use oarlock_transport::QpType;
use oarlock_wire::{AddressVector, Opcode, Packet, Qpn, Time};

use crate::endpoint::Core;
use crate::faults::Struck;
use crate::groups::Group;
use crate::locks::{lock, read, try_lock};
use crate::qp::{QpInner, QpShared};
use crate::qpn::slot_of;
use crate::transport::QpMemory;

#[derive(Default)]
pub(crate) struct Receiver {
    batch: Batch,
    touched: Vec<Arc<QpShared>>,
}

impl Core {
    /// Takes what has arrived, if no other thread does; called by those who poll.
    pub(crate) fn progress_inline(self: &Arc<Self>) {
        if let Some(mut receiver) = try_lock(&self.receiver) {
            self.polls.fetch_add(1, Ordering::Relaxed);
            self.receive(&mut receiver);
        }
    }

    /// Takes what has arrived; waits for another thread that is at it. For the engine.
    pub(crate) fn progress(self: &Arc<Self>) {
        let mut receiver = lock(&self.receiver);
        self.receive(&mut receiver);
    }

    fn receive(self: &Arc<Self>, receiver: &mut Receiver) {
        for _ in 0..MAX_BATCHES {
            let received = match read(&self.port).as_ref() {
                Some(port) => port.recv(&mut receiver.batch),
                None => return,
            };
            match received {
                Ok(0) => return,
                Ok(_) => self.handle_batch(receiver),
                Err(error) => {
                    self.counters.receive_failed.add(1);
                    tracing::debug!(%error, "cannot receive");
                    return;
                }
            }
        }
    }

    fn handle_batch(self: &Arc<Self>, receiver: &mut Receiver) {
        let now = self.now();
        let Receiver { batch, touched } = receiver;
        let slot = read(&self.port).as_ref().map(|port| port.slot());
        // Runs of one queue pair are the rule.
        let mut last: Option<Arc<QpShared>> = None;
        let mut strikes = batch.strikes();
        for (i, (from, bytes)) in batch.iter().enumerate() {
            let fault = strikes.at(i);
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
                    self.handle_multicast(now, &from, &packet, fault, touched);
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
            self.handle_packet(now, &from, &packet, qp, fault, touched);
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
        now: Time,
        from: &AddressVector,
        packet: &Packet<'_>,
        mut fault: Option<DeviceFault>,
        touched: &mut Vec<Arc<QpShared>>,
    ) {
        let Some(members) = self.groups.members(Group::of(from)) else {
            self.counters.no_such_group.add(1);
            return;
        };
        for qp in members.iter() {
            self.handle_packet(now, from, packet, qp, fault, touched);
            // What strikes the host strikes once.
            fault = fault.filter(|fault| {
                !matches!(
                    fault,
                    DeviceFault::DeviceRemoval | DeviceFault::AddressChange
                )
            });
        }
    }

    #[inline]
    fn handle_packet(
        self: &Arc<Self>,
        now: Time,
        from: &AddressVector,
        packet: &Packet<'_>,
        qp: &Arc<QpShared>,
        fault: Option<DeviceFault>,
        touched: &mut Vec<Arc<QpShared>>,
    ) {
        if let Some(fault) = fault
            && self.strike(fault, from, qp) == Struck::Lost
        {
            return;
        }
        let mut inner = qp.lock();
        if qp.is_destroyed() {
            self.counters.no_such_qp.add(1);
            return;
        }
        let QpInner {
            transport, held, ..
        } = &mut *inner;
        let mut memory = QpMemory::new(qp, &self.counters, held);
        transport.handle_packet(now, from, packet, &mut memory);
        if !inner.touched {
            inner.touched = true;
            touched.push(Arc::clone(qp));
        }
    }
}

/// Batches that one call takes before it looks at something else.
const MAX_BATCHES: usize = 16;
