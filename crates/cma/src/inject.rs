//! Events that the user puts into a channel.

use crate::{Cma, Counter, Error, Event, EventKind, EventParam, Id};
use oarlock_wire::{Ece, Time};

impl Cma {
    /// Queues a USER or INTERNAL event on an identifier's channel, with a status and a number of the caller's choice. It is
    /// an event like any other: it is counted, moves with the identifier and goes with it.
    ///
    /// # Errors
    /// `UnknownId`, `DeviceRemoved`, `NotInjectable`, `ChannelFull`.
    #[doc(alias = "rdma_write_cm_event")]
    pub fn inject_event(
        &mut self,
        now: Time,
        id: Id,
        kind: EventKind,
        status: i32,
        arg: u64,
    ) -> Result<(), Error> {
        let context = self.working("inject_event", id)?.context;
        if kind != EventKind::USER && kind != EventKind::INTERNAL {
            return Err(Error::NotInjectable { kind });
        }
        self.check_room(id, 1)?;
        let event = Event {
            id,
            listen_id: None,
            context,
            kind,
            status,
            param: EventParam::User(arg),
            ece: Ece::default(),
            multicast: None,
        };
        self.enqueue(id, event);
        self.counters.count(Counter::EventsInjected);
        self.pump(now);
        Ok(())
    }
}
