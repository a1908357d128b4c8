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
use std::collections::{HashMap, VecDeque};

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
    /// Accepted, and not confirmed by the peer; by the identifier's uid.
    in_the_making: HashMap<u64, Connection>,
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
        Self {
            ways,
            in_the_making: HashMap::new(),
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
            if let Some(connection) = self.ready.pop_front() {
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
        if self.in_the_making.len() >= MAX_IN_THE_MAKING {
            self.turned_away += 1;
            // Dropping it rejects the request.
            return Ok(());
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
