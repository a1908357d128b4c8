//! Synchronous identifiers: calls that wait for the event that answers them.

use crate::channel::Channel;
use crate::datagram::UdParam;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::identifier::{Awaited, Identifier};
use crate::multicast::Multicast;
use crate::param::ConnParam;
use std::sync::Arc;

impl Identifier {
    /// The next event of a synchronous identifier that no call has waited for: a connection request, the end of a
    /// connection. Ends with [`Error::TimedOut`] at the [deadline](Self::set_deadline).
    ///
    /// # Errors
    /// [`Error::NotSynchronous`], also when it becomes so meanwhile; [`Error::ServiceGone`]; [`Error::TimedOut`].
    ///
    /// # Blocking
    /// Until an event comes.
    pub fn next_event(&self) -> Result<Event> {
        const CALL: &str = "next_event";
        let channel = self
            .private_channel()
            .ok_or(Error::NotSynchronous { call: CALL })?;
        let _waiting = self.0.waiting();
        self.next_on(&channel, CALL, "an event")
    }

    /// The next connection request of a synchronous listener; the new identifier is synchronous, too.
    ///
    /// # Errors
    /// [`Error::NotSynchronous`]; [`Error::ServiceGone`]; [`Error::TimedOut`] at the [deadline](Self::set_deadline).
    ///
    /// # Blocking
    /// Until a request comes.
    #[doc(alias = "rdma_get_request")]
    pub fn get_request(&self) -> Result<Self> {
        const CALL: &str = "get_request";
        let channel = self
            .private_channel()
            .ok_or(Error::NotSynchronous { call: CALL })?;
        loop {
            match self.next_on(&channel, CALL, "a connection request")? {
                Event::ConnectRequest { id, .. } => return Ok(id),
                Event::DeviceRemoval { .. } => return Err(Error::DeviceRemoved { call: CALL }),
                // A listener has no other event that matters.
                _ => {}
            }
        }
    }

    /// Asks for the datagram service at the resolved destination, and waits for the answer: what the peer is addressed
    /// with. `private_data` goes along; what comes back is [`peer_private_data`](Self::peer_private_data).
    ///
    /// # Errors
    /// [`Error::NotSynchronous`]; [`Error::NotDatagram`]; [`Error::ServiceRefused`]; [`Error::Unreachable`];
    /// [`Error::QKeyMismatch`]; else as [`connect`](Self::connect).
    ///
    /// # Blocking
    /// Until the peer has answered, the retries are used up, or the [deadline](Self::set_deadline).
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, SIDR_REQ and SIDR_REP.
    #[doc(alias = "rdma_connect")]
    pub fn resolve_peer(&self, private_data: &[u8]) -> Result<UdParam> {
        const CALL: &str = "resolve_peer";
        let channel = self
            .private_channel()
            .ok_or(Error::NotSynchronous { call: CALL })?;
        self.ask_for_peer(CALL, private_data)?;
        loop {
            let event = self.next_on(&channel, CALL, PEER)?;
            if let Some(outcome) = peer_of(event) {
                return outcome;
            }
        }
    }

    /// Sends the SIDR_REQ.
    pub(crate) fn ask_for_peer(&self, call: &'static str, private_data: &[u8]) -> Result<()> {
        if !self.is_datagram() {
            return Err(Error::NotDatagram { call });
        }
        self.start_connect(&ConnParam::default().private_data(private_data))
    }

    /// Waits for the outcome of a join.
    pub(crate) fn wait_joined(&self, channel: &Arc<Channel>, multicast: &Multicast) -> Result<()> {
        loop {
            let event = self.next_on(channel, "join_multicast", "the multicast group")?;
            if let Some(outcome) = multicast.outcome(event) {
                return outcome;
            }
        }
    }

    /// The channel of a synchronous identifier.
    pub(crate) fn private_channel(&self) -> Option<Arc<Channel>> {
        let bound = self.0.bound();
        (bound.private_to == Some(self.0.uid)).then(|| Arc::clone(&bound))
    }

    /// Waits for the next event.
    fn next_on(
        &self,
        channel: &Arc<Channel>,
        call: &'static str,
        awaited: &'static str,
    ) -> Result<Event> {
        let event = self.wait_on(channel, call, awaited, || channel.try_event(), || None)?;
        // A new connection starts on its listener's channel, which here is the listener's alone.
        if let Event::ConnectRequest { id, .. } = &event {
            id.move_to_own_channel(call)?;
        }
        Ok(event)
    }

    fn wait_on<T>(
        &self,
        channel: &Channel,
        call: &'static str,
        awaited: &'static str,
        look: impl FnMut() -> Result<Option<T>>,
        check: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        match channel.wait_in_turn(self.deadline(), look, check) {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(Error::TimedOut {
                peer: self.0.peer(),
                awaited,
            }),
            // Destroying the identifier ends its waits, and a migration those on the channel that it leaves.
            Err(Error::ServiceGone) if self.0.is_closed() => Err(Error::Closed { call }),
            Err(Error::ServiceGone) if self.0.bound().serial != channel.serial => {
                Err(Error::NotSynchronous { call })
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for the outcome of what was just started, unless the identifier reports to an event channel.
    pub(crate) fn wait_if_synchronous(&self, awaited: Awaited) -> Result<()> {
        let Some(channel) = self.private_channel() else {
            return Ok(());
        };
        // Another call may have taken the event of the end.
        let check = || self.0.has_ended().then(|| awaited.outcome_of_end(self));
        let look = || {
            while let Some(event) = channel.try_event()? {
                if let Some(outcome) = awaited.outcome(event) {
                    return Ok(Some(outcome));
                }
            }
            Ok(check())
        };
        self.wait_on(&channel, awaited.call(), awaited.name(), look, check)?
    }
}

/// What is awaited after a SIDR_REQ.
const PEER: &str = "the answer of the datagram service";

/// What an event means for whoever waits for the answer of a datagram service; `None`: nothing, wait on.
pub(crate) fn peer_of(event: Event) -> Option<Result<UdParam>> {
    if let Event::Established { ud: Some(ud), .. } = &event {
        return Some(Ok(*ud));
    }
    match Awaited::Established.outcome(event)? {
        Ok(()) => None,
        Err(error) => Some(Err(error)),
    }
}

impl Awaited {
    pub(crate) fn call(self) -> &'static str {
        match self {
            Self::AddressResolved => "resolve_addr",
            Self::RouteResolved => "resolve_route",
            Self::Established => "connect",
            Self::Disconnected => "disconnect",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::AddressResolved => "address resolution",
            Self::RouteResolved => "route resolution",
            Self::Established => "the connection",
            Self::Disconnected => "the disconnection",
        }
    }

    /// What it means for the waiting call that another call has taken the event of the end.
    pub(crate) fn outcome_of_end(self, id: &Identifier) -> Result<()> {
        match self {
            Self::Disconnected => Ok(()),
            _ => Err(Error::DisconnectedEarly {
                peer: id.0.peer(),
                awaited: self.name(),
            }),
        }
    }

    /// What the event means for the waiting call; `None`: nothing, wait on.
    pub(crate) fn outcome(self, event: Event) -> Option<Result<()>> {
        let got = event.name();
        // With datagrams: what the peer answered does not fit.
        if let (Self::Established, Event::AddressError { id, .. }) = (self, &event) {
            return Some(Err(Error::QKeyMismatch { peer: id.0.peer() }));
        }
        if let Some(error) = event.error() {
            return Some(Err(error));
        }
        match (self, event) {
            (Self::AddressResolved, Event::AddressResolved { .. })
            | (Self::RouteResolved, Event::RouteResolved { .. })
            | (Self::Established, Event::Established { .. } | Event::ConnectResponse { .. })
            | (Self::Disconnected, Event::Disconnected { .. } | Event::TimewaitExit { .. }) => {
                Some(Ok(()))
            }
            (_, Event::Disconnected { id, .. } | Event::TimewaitExit { id, .. }) => {
                Some(self.outcome_of_end(&id))
            }
            (_, Event::DeviceRemoval { .. }) => {
                Some(Err(Error::DeviceRemoved { call: self.call() }))
            }
            // The interface's address changed; the connection tells by itself whether it survives. An event of the program's
            // own woke whoever waits, which is not this call.
            (_, Event::AddressChange { .. } | Event::User { .. }) => None,
            // Waiting for the end: the establishment was not fetched yet.
            (Self::Disconnected, Event::Established { .. }) => None,
            (_, event) => Some(Err(Error::UnexpectedEvent {
                peer: event.id().0.peer(),
                awaited: self.name(),
                got,
            })),
        }
    }
}
