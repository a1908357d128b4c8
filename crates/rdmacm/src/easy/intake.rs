//! What a listener has under way: requests become connections, each at its own pace.
//!
//! Connections in the making stay on the listener's channel, so that a peer that does not confirm holds up nobody else.
//! Whoever has fetched an event of the channel holds the intake meanwhile: what happens to a connection is handled in the
//! order in which it was reported, and everything after the establishment is reported to the connection itself.

use super::{Connection, ConnectionOptions};
use crate::channel::EventChannel;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::identifier::Identifier;
use oarlock_verbs::{CompletionQueue, Context};
use std::collections::{BTreeMap, VecDeque};

/// Connections that one listener may have in the making.
pub(super) const MAX_IN_THE_MAKING: usize = 4096;

/// Events that are handled before others have a turn.
const TURN: usize = 16;

/// What looking through the channel's events found.
pub(crate) enum Found<T> {
    This(T),
    /// Nothing, and no event is queued.
    Nothing,
    /// Nothing, and more events may be queued.
    LookAgain,
}

pub(crate) struct Intake<W: Ways> {
    ways: W,
    /// Accepted, and not confirmed by the peer; by the identifier's uid, so the oldest first.
    in_the_making: BTreeMap<u64, Connection>,
    at_most: usize,
    /// Established while nobody was waiting for a connection.
    ready: VecDeque<W::Settled>,
    turned_away: u64,
}

/// What differs between a listener that blocks and one that does not.
pub(crate) trait Ways {
    /// A connection as it is handed out.
    type Settled;
    /// Makes a completion queue.
    fn new_cq(&self, device: &Context, size: u32) -> Result<CompletionQueue>;
    /// Moves a new connection to where it will be used. No event of it is unacknowledged.
    fn settle(&self, connection: Connection) -> Result<Self::Settled>;
}

impl<W: Ways> Intake<W> {
    pub(crate) fn new(ways: W) -> Self {
        Self::with_room(ways, MAX_IN_THE_MAKING)
    }

    fn with_room(ways: W, at_most: usize) -> Self {
        Self {
            ways,
            in_the_making: BTreeMap::new(),
            at_most,
            ready: VecDeque::new(),
            turned_away: 0,
        }
    }

    /// The next established connection, if the channel's events make one.
    pub(crate) fn accept(
        &mut self,
        channel: &EventChannel,
        options: &ConnectionOptions,
    ) -> Result<Found<W::Settled>> {
        for _ in 0..TURN {
            if let Some(connection) = self.take_ready() {
                return Ok(Found::This(connection));
            }
            let Some(event) = channel.try_event()? else {
                return Ok(Found::Nothing);
            };
            if let Some(child) = self.handle(event)? {
                self.begin(child, options)?;
            }
        }
        Ok(Found::LookAgain)
    }

    /// The next request, if the channel has one; connections that become established meanwhile are kept.
    pub(crate) fn request(&mut self, channel: &EventChannel) -> Result<Found<Identifier>> {
        for _ in 0..TURN {
            let Some(event) = channel.try_event()? else {
                return Ok(Found::Nothing);
            };
            if let Some(child) = self.handle(event)? {
                return Ok(Found::This(child));
            }
        }
        Ok(Found::LookAgain)
    }

    /// A connection that became established while nobody was looking for one.
    pub(crate) fn take_ready(&mut self) -> Option<W::Settled> {
        self.ready.pop_front()
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn turned_away(&self) -> u64 {
        self.turned_away
    }

    /// The identifier of a request, if that is what the event tells.
    fn handle(&mut self, event: Event) -> Result<Option<Identifier>> {
        match event {
            Event::ConnectRequest { id, .. } => return Ok(Some(id)),
            Event::Established { id, receipt, .. } => {
                if let Some(connection) = self.in_the_making.remove(&id.0.uid) {
                    // Moving it waits for its events.
                    drop(receipt);
                    self.ready.push_back(self.ways.settle(connection)?);
                }
            }
            Event::DeviceRemoval { id, .. } => {
                if !id.0.is_passive {
                    return Err(Error::DeviceRemoved { call: "accept" });
                }
                self.in_the_making.remove(&id.0.uid);
            }
            // The peer has given up.
            Event::Rejected { id, .. }
            | Event::Unreachable { id, .. }
            | Event::ConnectError { id, .. }
            | Event::Disconnected { id, .. } => {
                self.in_the_making.remove(&id.0.uid);
            }
            // Nothing that a listener or a connection in the making would act upon.
            _ => {}
        }
        Ok(None)
    }

    fn begin(&mut self, child: Identifier, options: &ConnectionOptions) -> Result<()> {
        if self.in_the_making.len() >= self.at_most {
            // Who means it confirms soon. If the newest had to go, peers that never do would keep everybody out for as long as
            // the answers to them are repeated, which is minutes. Dropping it rejects it.
            self.in_the_making.pop_first();
            self.turned_away += 1;
        }
        let new_cq = |device: &Context, size| self.ways.new_cq(device, size);
        let accepted =
            Connection::prepare("accept", child, options, new_cq).and_then(|connection| {
                connection.id.accept(options.conn_param())?;
                Ok(connection)
            });
        match accepted {
            Ok(connection) => {
                self.in_the_making.insert(connection.id.0.uid, connection);
                Ok(())
            }
            // What the service says about a request it has brought: the peer has given up.
            Err(Error::Refused { errno, .. }) if errno != libc::ENOMEM => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::easy::Connector;
    use crate::{ConnParam, Host, PortSpace, Qpn};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(300);

    struct Plain;

    impl Ways for Plain {
        type Settled = Connection;

        fn new_cq(&self, device: &Context, size: u32) -> Result<CompletionQueue> {
            crate::easy::connection::plain_cq(device, size)
        }

        fn settle(&self, connection: Connection) -> Result<Connection> {
            connection.id.move_to_own_channel("accept")?;
            Ok(connection)
        }
    }

    /// Any number of peers that ask and do not confirm keep nobody out: the oldest of them goes.
    #[test]
    fn peers_that_do_not_confirm_make_room_for_those_that_do() {
        const ROOM: usize = 3;
        let host = Host::private().unwrap();
        let (channel, theirs) = (
            EventChannel::new(&host).unwrap(),
            EventChannel::new(&host).unwrap(),
        );
        let listener = Identifier::new(&channel, PortSpace::TCP).unwrap();
        listener.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().unwrap();
        let next = || theirs.get_event_timeout(LONG).unwrap().expect("an event");
        let silent: Vec<_> = (1..=2 * ROOM as u32)
            .map(|number| {
                let id = Identifier::new(&theirs, PortSpace::TCP).unwrap();
                id.resolve_addr(None, address, LONG).unwrap();
                assert!(matches!(next(), Event::AddressResolved { .. }));
                id.resolve_route(LONG).unwrap();
                assert!(matches!(next(), Event::RouteResolved { .. }));
                // With a queue pair of the program's own the confirmation is the program's.
                let own = ConnParam::default().external_queue_pair(Qpn::truncate(number), false);
                id.connect(&own).unwrap();
                id
            })
            .collect();
        let mut intake = Intake::with_room(Plain, ROOM);
        let options = ConnectionOptions::new();
        while intake.turned_away() < ROOM as u64 {
            assert!(!matches!(
                intake.accept(&channel, &options).unwrap(),
                Found::This(_)
            ));
        }
        let connecting = {
            let host = host.clone();
            std::thread::spawn(move || Connector::new(&host).connect(address))
        };
        let accepted = loop {
            if let Found::This(connection) = intake.accept(&channel, &options).unwrap() {
                break connection;
            }
        };
        let connected = connecting.join().unwrap().unwrap();
        assert_eq!(
            accepted.id.peer_addr().unwrap(),
            connected.id.local_addr().unwrap()
        );
        assert_eq!(intake.turned_away(), ROOM as u64 + 1);
        // The oldest were told.
        let mut rejected = Vec::new();
        while rejected.len() <= ROOM {
            if let Event::Rejected { id, .. } = next() {
                rejected.push(id);
            }
        }
        assert_eq!(rejected, silent[..=ROOM]);
    }
}
