//! What waits to be polled, and the counters that go with it.

use std::collections::VecDeque;

use oarlock_wire::cm::CmMessage;
use oarlock_wire::mad::MAD_LEN;
use oarlock_wire::units::{AddressVector, TransactionId};

use crate::{Counters, DropReason, Event, MessageName, Transmit};

#[derive(Default)]
pub(crate) struct Output {
    pub(crate) transmits: VecDeque<Transmit>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
}

impl Output {
    /// Sends a message that is not repeated.
    pub(crate) fn send(
        &mut self,
        av: AddressVector,
        transaction_id: TransactionId,
        message: impl Into<CmMessage>,
    ) {
        let (name, mad) = compose(transaction_id, &message.into());
        self.send_mad(av, name, mad);
    }

    /// Sends a datagram that was composed before.
    pub(crate) fn send_mad(&mut self, av: AddressVector, name: MessageName, mad: [u8; MAD_LEN]) {
        self.counters.count_sent(name);
        self.transmits.push_back(Transmit { av, mad });
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn drop_message(&mut self, name: MessageName, reason: DropReason) {
        self.counters.count_dropped(name, reason);
    }

    /// Drops a message that came before.
    pub(crate) fn drop_duplicate(&mut self, name: MessageName) {
        self.counters.count_duplicate(name);
        self.counters.count_dropped(name, DropReason::Duplicate);
    }
}

/// The name of a message; `None` for one that `wire` knows and this crate does not.
pub(crate) fn name(message: &CmMessage) -> Option<MessageName> {
    Some(match message {
        CmMessage::Req(_) => MessageName::Req,
        CmMessage::Mra(_) => MessageName::Mra,
        CmMessage::Rej(_) => MessageName::Rej,
        CmMessage::Rep(_) => MessageName::Rep,
        CmMessage::Rtu(_) => MessageName::Rtu,
        CmMessage::Dreq(_) => MessageName::Dreq,
        CmMessage::Drep(_) => MessageName::Drep,
        CmMessage::SidrReq(_) => MessageName::SidrReq,
        CmMessage::SidrRep(_) => MessageName::SidrRep,
        CmMessage::Lap(_) => MessageName::Lap,
        CmMessage::Apr(_) => MessageName::Apr,
        _ => return None,
    })
}

/// The datagram of a message of ours, and its name.
pub(crate) fn compose(
    transaction_id: TransactionId,
    message: &CmMessage,
) -> (MessageName, [u8; MAD_LEN]) {
    let name = name(message).expect("handlers compose only the messages they know");
    let mut mad = [0; MAD_LEN];
    message.emit(transaction_id, &mut mad);
    (name, mad)
}
