//! What comes back of READs and atomics: data into the scatter/gather list of the request.
//!
//! Results are taken in the order of their PSNs, so that the request that a result is for is the oldest of the queue: what is
//! older is acknowledged by the result itself, and if older data are missing, they are lost.
//!
//! | Result | Then |
//! |---|---|
//! | PSN done with before | dropped: a repetition |
//! | PSN behind missing data | the data are lost ([`retry`](super::retry)) |
//! | for a request of another kind, in a wrong order of first, middle and last, or without ACK syndrome | [`WcStatus::BAD_RESP_ERR`] |
//! | of another length than asked for | [`WcStatus::BAD_RESP_ERR`] |
//! | cannot be placed | [`WcStatus::LOC_PROT_ERR`] |
//! | the last of its request | the request completes |
//!
//! A piece that was asked for again in its middle begins with *first* there; what the first request brought may still be on
//! its way, and says *middle*: both are right.
//!
//! IBA Vol. 1 ch. 9 "RDMA READ responses", "Requester: response format", "Bad response".

use oarlock_wire::{Packet, Syndrome, Time};

use super::Rc;
use super::opcodes::{Meaning, Service};
use crate::completion::WcStatus;
use crate::counters::Counter;
use crate::memory::{Memory, MemoryError, Sge};
use crate::queue::Source;
use crate::vendor::VendorError;
use crate::work::SendOp;

impl Rc {
    pub(super) fn on_result(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        meaning: Meaning,
        memory: &mut dyn Memory,
    ) {
        let Some(older) = self.place(packet, Counter::DroppedStaleResponse) else {
            return;
        };
        if !self.acknowledge(now, older) {
            return self.on_implied_loss();
        }
        // Completing what is older may have failed the next.
        if !self.may_go_on() || self.sq.is_empty() {
            return;
        }
        let taken = match (&self.sq.get(self.sq.head()).op, meaning.service) {
            (SendOp::Read(_), Service::ReadResponse) => self.check_data(packet, meaning),
            (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, Service::AtomicAcknowledge) => {
                self.check_atomic(packet)
            }
            _ => Err(VendorError::RESPONSE_UNEXPECTED),
        };
        let offset = match taken {
            Ok(offset) => offset,
            Err(rule) => {
                self.counters.count(Counter::BadResponses);
                return self.fail_oldest(WcStatus::BAD_RESP_ERR, rule);
            }
        };
        let result = packet.atomic_ack_eth.map(|eth| eth.original.to_ne_bytes());
        let data = result.as_ref().map_or(packet.payload, |bytes| bytes);
        if let Err(error) = scatter(&self.sq.source(self.sq.head()), memory, offset, data) {
            return self.fail_oldest(WcStatus::LOC_PROT_ERR, error.into());
        }
        if let Some(aeth) = packet.aeth
            && let Syndrome::Ack { credits } = aeth.syndrome
        {
            self.take_credits(aeth.msn, credits);
        }
        self.counters.count(if result.is_some() {
            Counter::AtomicResponsesReceived
        } else {
            Counter::ReadResponsesReceived
        });
        self.on_placed(now, packet);
    }

    /// Whether the packet is the data of a READ that come next; gives their place.
    fn check_data(&self, packet: &Packet<'_>, meaning: Meaning) -> Result<u64, VendorError> {
        let wqe = self.sq.get(self.sq.head());
        let psn = packet.bth.psn;
        let index = psn.distance_from(wqe.way.psns.first);
        let begins_piece = index.is_multiple_of(self.config.piece());
        let begins_rightly = if meaning.is_first {
            begins_piece || self.requester.asked_from == Some(psn)
        } else {
            !begins_piece
        };
        // Only a middle packet has no AETH.
        let is_positive = is_positive(packet) || !(meaning.is_first || meaning.is_last);
        if !begins_rightly || meaning.is_last != self.ends_piece(index) || !is_positive {
            return Err(VendorError::RESPONSE_UNEXPECTED);
        }
        let offset = u64::from(index) * u64::from(self.mtu);
        let length = (u64::from(wqe.length) - offset).min(u64::from(self.mtu));
        if packet.payload.len() as u64 != length {
            return Err(VendorError::RESPONSE_LENGTH);
        }
        Ok(offset)
    }

    fn check_atomic(&self, packet: &Packet<'_>) -> Result<u64, VendorError> {
        if packet.atomic_ack_eth.is_none() || !is_positive(packet) {
            return Err(VendorError::RESPONSE_UNEXPECTED);
        }
        if !packet.payload.is_empty() {
            return Err(VendorError::RESPONSE_LENGTH);
        }
        Ok(0)
    }

    /// Whether this packet of the oldest request is the last of a piece.
    fn ends_piece(&self, index: u32) -> bool {
        let count = self.sq.get(self.sq.head()).way.psns.count;
        index + 1 == count || (index + 1).is_multiple_of(self.config.piece())
    }

    /// The oldest PSN in flight has brought its data.
    fn on_placed(&mut self, now: Time, packet: &Packet<'_>) {
        let psns = self.sq.get(self.sq.head()).way.psns;
        let index = packet.bth.psn.distance_from(psns.first);
        // What was to be asked for again is not on its way, although it has just come.
        if self.requester.in_flight.len() > 0 {
            self.requester.results_awaited -= 1;
            if self.ends_piece(index) {
                self.requester.reads_outstanding -= 1;
            }
        }
        if index + 1 == psns.count
            && let Some(wqe) = self.sq.pop()
        {
            self.complete_send(&wqe);
        }
        self.progress(now, 1);
    }
}

/// Whether the response says that all is well.
const fn is_positive(packet: &Packet<'_>) -> bool {
    match packet.aeth {
        Some(aeth) => matches!(aeth.syndrome, Syndrome::Ack { .. }),
        None => false,
    }
}

fn scatter(
    to: &Source<'_>,
    memory: &mut dyn Memory,
    offset: u64,
    data: &[u8],
) -> Result<(), MemoryError> {
    let sges: &[Sge] = match to {
        Source::Sges(sges) => sges,
        // Such a request is refused when it is posted.
        Source::Inline(_) => &[],
    };
    if data.is_empty() {
        return Ok(());
    }
    memory.scatter(sges, offset, data)
}
