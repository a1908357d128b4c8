//! One connection: its states and what each input does to them, split by role.

use oarlock_wire::Time;
use oarlock_wire::cm::CmMessage;
use oarlock_wire::units::{AddressVector, CommId, Guid, IbTimeout, Qpn, TransactionId};
use std::time::Duration;

use crate::output::Output;
use crate::random::Random;
use crate::{Config, ConnId, DropReason, Error, MessageName};

pub(crate) mod active;
pub(crate) mod lap;
pub(crate) mod passive;
mod resend;
pub(crate) mod sidr;
mod state;
pub(crate) mod teardown;
pub(crate) mod timewait;

pub(crate) use resend::Resend;
pub(crate) use state::{Attempt, State};
pub use state::{LapState, StateName};
pub use timewait::ack_timeout;

/// A connection in the table of [`Cm`](crate::Cm).
pub(crate) struct Conn {
    pub(crate) base: Base,
    pub(crate) state: State,
    /// The peer under which the index finds this connection; follows from the state.
    pub(crate) indexed: Option<Peer>,
    /// The request id under which the index finds this resolution; follows from the state.
    pub(crate) indexed_request: Option<CommId>,
    /// The deadline that the timer table knows; follows from the state.
    pub(crate) armed: Option<Time>,
}

impl Conn {
    pub(crate) fn new(base: Base, state: State) -> Self {
        Self {
            base,
            state,
            indexed: None,
            indexed_request: None,
            armed: None,
        }
    }
}

/// What a connection has from its first message to its last.
pub(crate) struct Base {
    pub(crate) id: ConnId,
    pub(crate) role: Role,
    pub(crate) local_comm_id: CommId,
    pub(crate) local_qpn: Qpn,
    /// Whether the connection is one of XRC: its passive side has an EE context number instead of a queue pair number.
    pub(crate) is_xrc: bool,
    pub(crate) av: AddressVector,
    /// The transaction of the exchange that establishes the connection: the REQ's.
    pub(crate) req_tid: TransactionId,
    /// The transaction of exchanges that we start.
    pub(crate) own_tid: TransactionId,
    /// How long to wait for an answer.
    pub(crate) response_wait: Duration,
    /// How often to repeat a message that is not answered.
    pub(crate) max_cm_retries: u8,
    /// The packet life time of the path; of use to the active side only.
    pub(crate) packet_life_time: IbTimeout,
    /// How long the peer may take to acknowledge a packet; the time in TIMEWAIT follows from it.
    pub(crate) ack_timeout: IbTimeout,
    /// Whether the REQ that we received names an alternate path.
    pub(crate) alternate_offered: bool,
    /// How many LAPs we sent; each is a transaction of its own.
    pub(crate) laps_sent: u32,
}

impl Base {
    /// What a resolution has. It has no queue pair, no TIMEWAIT and no second exchange, and repeats nothing unless it asks.
    pub(crate) fn of_resolution(
        id: ConnId,
        role: Role,
        local_comm_id: CommId,
        av: AddressVector,
        transaction_id: TransactionId,
        response_wait: Duration,
    ) -> Self {
        Self {
            id,
            role,
            local_comm_id,
            local_qpn: Qpn::QP0,
            is_xrc: false,
            av,
            req_tid: transaction_id,
            own_tid: transaction_id,
            response_wait,
            max_cm_retries: 0,
            packet_life_time: IbTimeout::default(),
            ack_timeout: IbTimeout::default(),
            alternate_offered: false,
            laps_sent: 0,
        }
    }
}

/// Which side of which exchange we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Active,
    Passive,
    /// We resolve a service ID of the peer.
    Resolver,
    /// The peer resolves a service ID of ours.
    Resolved,
}

impl Role {
    pub(crate) fn is_connection(self) -> bool {
        matches!(self, Self::Active | Self::Passive)
    }
}

/// Who is on the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(crate) comm_id: CommId,
    pub(crate) ca_guid: Guid,
    pub(crate) qpn: Qpn,
}

/// What a handler works with besides the state.
pub(crate) struct Cx<'a> {
    pub(crate) now: Time,
    pub(crate) config: &'a Config,
    pub(crate) base: &'a mut Base,
    pub(crate) random: &'a mut Random,
    pub(crate) out: &'a mut Output,
}

impl Cx<'_> {
    pub(crate) fn id(&self) -> ConnId {
        self.base.id
    }

    /// Sends a message that is not repeated.
    pub(crate) fn send(&mut self, transaction_id: TransactionId, message: impl Into<CmMessage>) {
        self.out.send(self.base.av, transaction_id, message);
    }

    /// Sends a message that is repeated until it is answered, `retries` times at most.
    pub(crate) fn send_and_wait(
        &mut self,
        transaction_id: TransactionId,
        message: impl Into<CmMessage>,
        wait: Duration,
        retries: u8,
    ) -> Resend {
        let (name, mad) = crate::output::compose(transaction_id, &message.into());
        let mad = Box::new(mad);
        self.out.send_mad(self.base.av, name, *mad);
        Resend::new(mad, name, wait, retries, self)
    }

    /// A time that differs from `wait` by chance, as far as the configuration says.
    pub(crate) fn spread(&mut self, wait: Duration) -> Duration {
        let percent = u32::from(self.config.retry_spread.min(100));
        if percent == 0 {
            return wait;
        }
        // As far as a `Time` reaches; so no product below overflows.
        let wait = wait.min(Duration::from_nanos(u64::MAX));
        let most = wait / 100 * percent;
        let chance = u128::from(self.random.secret_u32());
        let later = (2 * most.as_nanos() * chance) >> 32;
        wait - most + Duration::from_nanos(u64::try_from(later).unwrap_or(u64::MAX))
    }

    /// Drops a message that has no meaning in this state.
    pub(crate) fn drop_unexpected(&mut self, name: MessageName) {
        self.out.drop_message(name, DropReason::UnexpectedInState);
    }

    /// A wait that a peer chose, within the configured bound.
    pub(crate) fn bounded(&self, wait: Duration) -> Duration {
        self.config
            .longest_wait
            .map_or(wait, |longest| wait.min(longest))
    }
}

/// What a call does to a state: the next state, and what the caller is told.
pub(crate) type Outcome = (State, Result<(), Error>);

/// The answer to a call that the state does not allow.
pub(crate) fn wrong_state(state: State, call: &'static str) -> Outcome {
    let error = Error::WrongState {
        call,
        state: state.name(),
    };
    (state, Err(error))
}

/// A time as the CM of Linux counts it: 2^(n-8) milliseconds.
pub(crate) fn cm_wait(timeout: IbTimeout) -> Duration {
    Duration::from_millis(timeout.kernel_millis())
}
