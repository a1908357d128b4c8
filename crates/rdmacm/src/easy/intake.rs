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
use oarlock_wire::RejReason;
use std::collections::{HashMap, VecDeque};

/// Connections that one listener may have in the making.
pub(super) const MAX_IN_THE_MAKING: usize = 1024;

#[derive(Default)]
pub(crate) struct Intake {
    /// Accepted, and not confirmed by the peer; by the identifier's uid.
    in_the_making: HashMap<u64, Connection>,
    /// Established while nobody was waiting for a connection.
    ready: VecDeque<Connection>,
    turned_away: u64,
}

/// What differs between a listener that blocks and one that does not.
pub(crate) trait Ways {
    /// Makes a completion queue.
    fn new_cq(&self, device: &Context, size: u32) -> Result<CompletionQueue, oarlock_verbs::Error>;
    /// Moves a new connection to where it will be used.
    fn settle(&self, id: &Identifier) -> Result<()>;
}

impl Intake {
    /// The next established connection, if the channel's events make one.
    pub(crate) fn accept(
        &mut self,
        channel: &EventChannel,
        options: &ConnectionOptions,
        ways: &impl Ways,
    ) -> Result<Option<Connection>> {
        loop {
            if let Some(connection) = self.ready.pop_front() {
                return Ok(Some(connection));
            }
            let Some(event) = channel.try_event()? else {
                return Ok(None);
            };
            if let Some(child) = self.handle(event, ways)? {
                self.begin(child, options, ways)?;
            }
        }
    }

    /// Refuses the next request, if the channel has one; connections that become established meanwhile are kept.
    pub(crate) fn reject(
        &mut self,
        channel: &EventChannel,
        private_data: &[u8],
        ways: &impl Ways,
    ) -> Result<Option<()>> {
        while let Some(event) = channel.try_event()? {
            if let Some(child) = self.handle(event, ways)? {
                child.reject(RejReason::CONSUMER_DEFINED, private_data)?;
                return Ok(Some(()));
            }
        }
        Ok(None)
    }

    pub(crate) fn turned_away(&self) -> u64 {
        self.turned_away
    }

    /// The identifier of a request, if that is what the event tells.
    fn handle(&mut self, event: Event, ways: &impl Ways) -> Result<Option<Identifier>> {
        match event {
            Event::ConnectRequest { id, .. } => return Ok(Some(id)),
            Event::Established { id, receipt, .. } => {
                if let Some(connection) = self.in_the_making.remove(&id.0.uid) {
                    // Moving it waits for its events.
                    drop(receipt);
                    ways.settle(&id)?;
                    self.ready.push_back(connection);
                }
            }
            Event::DeviceRemoval { id, .. } => {
                if id.0.offered.is_none() {
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

    fn begin(
        &mut self,
        child: Identifier,
        options: &ConnectionOptions,
        ways: &impl Ways,
    ) -> Result<()> {
        if self.in_the_making.len() >= MAX_IN_THE_MAKING {
            self.turned_away += 1;
            // Dropping it rejects the request.
            return Ok(());
        }
        let new_cq = |device: &Context, size| ways.new_cq(device, size);
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
