//! Connecting, accepting, rejecting, disconnecting, and what they do to the queue pair.

use crate::error::{Error, Result};
use crate::identifier::{Awaited, Identifier, Shared};
use crate::param::{
    ConnParam, MAX_ACCEPT_PRIVATE_DATA, MAX_CONNECT_PRIVATE_DATA,
    MAX_DATAGRAM_CONNECT_PRIVATE_DATA, MAX_DATAGRAM_REPLY_PRIVATE_DATA, MAX_REJECT_PRIVATE_DATA,
};
use crate::queue_pair::Recipes;
use oarlock_ucm::abi::{self, notify_event};
use oarlock_ucm::client::{self, Param};
use oarlock_verbs::QpType;
use oarlock_wire::{Ece, RejReason};

impl Identifier {
    /// Asks the peer for a connection. Followed by [`Event::Established`](crate::Event::Established) (the queue pair is
    /// then in state RTS), [`Rejected`](crate::Event::Rejected), [`Unreachable`](crate::Event::Unreachable) or
    /// [`ConnectError`](crate::Event::ConnectError); without a queue pair of its own by
    /// [`ConnectResponse`](crate::Event::ConnectResponse).
    ///
    /// With datagrams it asks for the queue pair of the service there; only the private data of `param` counts. Followed
    /// by [`Event::Established`](crate::Event::Established) with what the peer is addressed with, by `Unreachable`, or, if
    /// the peer's Q_Key is another, by [`AddressError`](crate::Event::AddressError).
    ///
    /// # Errors
    /// [`Error::NoQueuePair`]: none, and none in the parameters. [`Error::MoreThanDevice`]: `responder_resources` or
    /// `initiator_depth` beyond the device's limit. [`Error::PrivateDataTooLong`]: more than
    /// [`MAX_CONNECT_PRIVATE_DATA`] bytes (datagrams: [`MAX_DATAGRAM_CONNECT_PRIVATE_DATA`]). [`Error::Refused`] with `EINVAL` before the route is resolved. A synchronous
    /// identifier also [`Error::Rejected`], [`Error::Unreachable`], [`Error::ConnectFailed`], [`Error::TimedOut`].
    ///
    /// # Blocking
    /// One round trip to the host service; a synchronous identifier waits for the outcome.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, REQ; Annex A11 for the private data.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, param: &ConnParam) -> Result<()> {
        let _waiting = self.0.waiting();
        self.start_connect(param)?;
        self.wait_if_synchronous(Awaited::Established)
    }

    pub(crate) fn start_connect(&self, param: &ConnParam) -> Result<()> {
        const CALL: &str = "connect";
        let limit = self
            .0
            .limit(MAX_CONNECT_PRIVATE_DATA, MAX_DATAGRAM_CONNECT_PRIVATE_DATA);
        check_private_data(CALL, param, limit)?;
        let command = if self.is_datagram() {
            Param {
                private_data: param.private_data.clone(),
                ece: abi_ece(param.ece),
                ..Param::default()
            }
        } else {
            let limits = self.0.read_limits(CALL)?;
            Param {
                responder_resources: at_most_device(
                    CALL,
                    "responder_resources",
                    param.responder_resources,
                    limits.responder_resources,
                )?,
                initiator_depth: at_most_device(
                    CALL,
                    "initiator_depth",
                    param.initiator_depth,
                    limits.initiator_depth,
                )?,
                ..self.0.common_param(CALL, param)?
            }
        };
        let command = client::connect(self.0.number, &command)
            .map_err(|_| private_data_too_long(CALL, param.private_data.len(), limit))?;
        self.0.ask(CALL, command)
    }

    /// Accepts a connection request, on the identifier that its event brought. The queue pair is brought to RTS first.
    /// Followed by [`Event::Established`](crate::Event::Established).
    ///
    /// With datagrams it names the service's queue pair to the peer: the identifier's own, or more often, since one serves
    /// all peers, an [external](ConnParam::external_queue_pair) one. Nothing follows. The answer is given again as long as
    /// the identifier lives.
    ///
    /// Values left open become the smaller of what the request offers and what the device can.
    ///
    /// # Errors
    /// [`Error::MoreThanOffered`] and [`Error::MoreThanDevice`] for the two resource counts;
    /// [`Error::PrivateDataTooLong`]: more than [`MAX_ACCEPT_PRIVATE_DATA`] bytes; [`Error::NoQueuePair`];
    /// [`Error::Verbs`] from the queue pair; [`Error::Refused`] when the request is not pending any more. After a failure of
    /// the last two kinds the queue pair is in state Error.
    ///
    /// # Blocking
    /// One or two round trips; a synchronous identifier waits until the connection is established.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, REP.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, param: &ConnParam) -> Result<()> {
        const CALL: &str = "accept";
        let shared = &*self.0;
        let limit = shared.limit(MAX_ACCEPT_PRIVATE_DATA, MAX_DATAGRAM_REPLY_PRIVATE_DATA);
        check_private_data(CALL, param, limit)?;
        if self.is_datagram() {
            let command = shared.common_param(CALL, param)?;
            let command = client::accept(shared.number, shared.uid, &command)
                .map_err(|_| private_data_too_long(CALL, param.private_data.len(), limit))?;
            // Nobody ever says whether the peer got the answer.
            return shared.ask(CALL, command);
        }
        let limits = shared.read_limits(CALL)?;
        let (offered_resources, offered_depth) =
            shared.offered.map_or((u8::MAX, u8::MAX), |offer| {
                (offer.responder_resources, offer.initiator_depth)
            });
        let command = Param {
            responder_resources: at_most_offered(
                "responder_resources",
                param.responder_resources,
                offered_resources,
                limits.responder_resources,
            )?,
            initiator_depth: at_most_offered(
                "initiator_depth",
                param.initiator_depth,
                offered_depth,
                limits.initiator_depth,
            )?,
            ..shared.common_param(CALL, param)?
        };
        let (responder_resources, initiator_depth) =
            (command.responder_resources, command.initiator_depth);
        let command = client::accept(shared.number, shared.uid, &command)
            .map_err(|_| private_data_too_long(CALL, param.private_data.len(), limit))?;
        let _waiting = shared.waiting();
        let accepted = shared
            .ready_passive(CALL, responder_resources, initiator_depth)
            .and_then(|()| shared.ask(CALL, command));
        if let Err(error) = accepted {
            shared.stop_queue_pair();
            return Err(error);
        }
        shared.note_accepted();
        self.wait_if_synchronous(Awaited::Established)
    }

    /// Refuses a connection request; the identifier can only be dropped afterwards.
    ///
    /// # Errors
    /// [`Error::ReasonNotForPrograms`] for reasons other than [`RejReason::CONSUMER_DEFINED`] and
    /// [`RejReason::VENDOR_OPTION_NOT_SUPPORTED`]; [`Error::PrivateDataTooLong`]: more than [`MAX_REJECT_PRIVATE_DATA`]
    /// bytes; [`Error::Refused`] with `EINVAL` when there is no request to refuse.
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, REJ.
    #[doc(alias = "rdma_reject")]
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject(&self, reason: RejReason, private_data: &[u8]) -> Result<()> {
        const CALL: &str = "reject";
        let code = u8::try_from(reason.0)
            .ok()
            .filter(|_| {
                [
                    RejReason::CONSUMER_DEFINED,
                    RejReason::VENDOR_OPTION_NOT_SUPPORTED,
                ]
                .contains(&reason)
            })
            .ok_or(Error::ReasonNotForPrograms(reason))?;
        let limit = self
            .0
            .limit(MAX_REJECT_PRIVATE_DATA, MAX_DATAGRAM_REPLY_PRIVATE_DATA);
        let too_long = || private_data_too_long(CALL, private_data.len(), limit);
        if private_data.len() > limit {
            return Err(too_long());
        }
        let command = client::reject(self.0.number, code, private_data).map_err(|_| too_long())?;
        self.0.ask(CALL, command)
    }

    /// Completes a connection after [`Event::ConnectResponse`](crate::Event::ConnectResponse), for identifiers whose queue pair
    /// is the program's: call it when that is in state RTS.
    ///
    /// # Errors
    /// [`Error::QueuePairExists`]: with a queue pair of its own the identifier does this itself. [`Error::Refused`] with
    /// `EINVAL` when no reply of the peer waits for it.
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, RTU.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<()> {
        const CALL: &str = "establish";
        if self.0.has_queue_pair() {
            return Err(Error::QueuePairExists { call: CALL });
        }
        self.0.ask(CALL, client::establish(self.0.number))
    }

    /// Ends the connection, or answers the peer who ended it. The queue pair goes to state Error first: what is posted
    /// completes as flushed. The first of both calls is followed by [`Event::Disconnected`](crate::Event::Disconnected), later
    /// by [`TimewaitExit`](crate::Event::TimewaitExit).
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL` on an identifier that never tried to connect.
    ///
    /// # Blocking
    /// One round trip; a synchronous identifier waits until the connection is down. It does not while another thread waits
    /// in a call of the identifier: there is one event, and it ends that call ([`Error::DisconnectedEarly`], or as what
    /// [`next_event`](Self::next_event) gives). Nor for an end of which no event comes: that of a connection whose end was
    /// reported, of a request that was not accepted, of datagrams.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, DREQ and DREP.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        const CALL: &str = "disconnect";
        self.0.stop_queue_pair();
        self.0.ask(CALL, client::disconnect(self.0.number))?;
        if self.0.is_waited_on() || !self.0.awaits_end() {
            return Ok(());
        }
        let _waiting = self.0.waiting();
        self.wait_if_synchronous(Awaited::Disconnected)
    }

    /// Reports that the peer's first data arrived before its RTU did: that data proves the connection established. A
    /// queue pair made by [`create_qp`](Self::create_qp) reports this by itself.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL` without a connection in the making.
    ///
    /// # Blocking
    /// One round trip.
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&self) -> Result<()> {
        let command = client::notify(self.0.number, notify_event::COMM_EST);
        self.0.ask("notify_established", command)
    }
}

/// The device's limits of outstanding reads and atomics.
pub(crate) struct ReadLimits {
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

impl Shared {
    /// The limit for the identifier's kind.
    fn limit(&self, connected: usize, datagram: usize) -> usize {
        if self.qp_type == QpType::Ud {
            datagram
        } else {
            connected
        }
    }

    /// What CONNECT and ACCEPT say alike; the two resource counts are left at zero.
    fn common_param(&self, call: &'static str, param: &ConnParam) -> Result<Param> {
        let (qpn, srq) = match (self.lock_queue_pair().as_ref(), param.external_queue_pair) {
            (Some(own), _) => (own.qpn(), own.srq().is_some()),
            (None, Some(external)) => (external.qpn, external.srq),
            (None, None) => return Err(Error::NoQueuePair { call }),
        };
        Ok(Param {
            private_data: param.private_data.clone(),
            flow_control: param.flow_control,
            retry_count: param.retry_count.get(),
            rnr_retry_count: param.rnr_retry_count.get(),
            srq,
            qp_num: qpn.get(),
            ece: abi_ece(param.ece),
            ..Param::default()
        })
    }

    /// Active side, the peer's reply is here: queue pair to RTR and RTS, then RTU.
    pub(crate) fn complete_connect(&self, recipes: &Recipes) -> Result<()> {
        const CALL: &str = "connect";
        let done = self
            .ready_active(CALL, recipes)
            .and_then(|()| self.ask(CALL, client::establish(self.number)));
        if done.is_err() {
            self.stop_queue_pair();
        }
        done
    }
}

fn abi_ece(ece: Ece) -> abi::Ece {
    abi::Ece {
        vendor_id: ece.vendor_id,
        attr_mod: ece.options,
    }
}

fn check_private_data(call: &'static str, param: &ConnParam, max: usize) -> Result<()> {
    let given = param.private_data.len();
    if given > max {
        return Err(private_data_too_long(call, given, max));
    }
    Ok(())
}

fn private_data_too_long(call: &'static str, given: usize, max: usize) -> Error {
    Error::PrivateDataTooLong { call, given, max }
}

fn at_most_device(
    call: &'static str,
    name: &'static str,
    given: Option<u8>,
    max: u8,
) -> Result<u8> {
    match given {
        None => Ok(max),
        Some(given) if given > max => Err(Error::MoreThanDevice {
            call,
            name,
            given,
            max,
        }),
        Some(given) => Ok(given),
    }
}

fn at_most_offered(name: &'static str, given: Option<u8>, offered: u8, max: u8) -> Result<u8> {
    match given {
        None => Ok(offered.min(max)),
        Some(given) if given > offered => Err(Error::MoreThanOffered {
            name,
            given,
            offered,
        }),
        Some(given) => at_most_device("accept", name, Some(given), max),
    }
}
