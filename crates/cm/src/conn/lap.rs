//! LAP and APR: the load of an alternate path on a live connection (IBA Vol. 1 ch. 12, LAP and APR).
//!
//! ```text
//!     load_alternate_path()   LAP_SENT   --- LAP -->   LAP_RCVD   Event::LapReceived
//!                                                                 answer_alternate_path()
//!     Event::AprReceived      LAP_IDLE   <-- APR ---   LAP_IDLE
//! ```
//!
//! All of this happens beside ESTABLISHED, which neither a refusal nor a silent peer ends. One exchange at a time: when the
//! LAPs of both sides cross, that of the side which sent the REQ goes first.

use oarlock_wire::Time;
use oarlock_wire::cm::{Apr, Ari, Lap, MessageKind, Mra, PrivateData};
use oarlock_wire::mad::MAD_LEN;
use oarlock_wire::units::{AprStatus, IbTimeout, TransactionId};

use super::active::be_patient;
use super::{Cx, Outcome, Peer, Resend, Role, State, cm_wait, teardown, wrong_state};
use crate::{AlternatePathParams, DropReason, Error, Event, LapState, MessageName};

/// Where the exchange stands.
pub(crate) enum Alternate {
    /// Nothing is going on. The last LAP that we answered is kept: our APR may be lost.
    Idle { answered: Option<Box<Answered>> },
    /// A LAP of ours is out.
    LapSent { request: Resend },
    /// The peer has our LAP and asks for patience.
    MraLapRcvd { request: Resend },
    /// The caller decides on a LAP.
    LapRcvd { received: Box<Received> },
    /// As `LapRcvd`, and a duplicate LAP is answered with an MRA.
    MraLapSent {
        received: Box<Received>,
        service_timeout: IbTimeout,
    },
}

/// A LAP of the peer.
#[derive(PartialEq, Eq)]
pub(crate) struct Received {
    transaction_id: TransactionId,
    lap: Lap,
}

/// A LAP of the peer, and our answer.
pub(crate) struct Answered {
    received: Received,
    apr: [u8; MAD_LEN],
}

impl Alternate {
    /// What a connection begins with.
    pub(crate) const NONE: Self = Self::Idle { answered: None };

    pub(crate) fn name(&self) -> LapState {
        match self {
            Self::Idle { .. } => LapState::Idle,
            Self::LapSent { .. } => LapState::LapSent,
            Self::MraLapRcvd { .. } => LapState::MraLapRcvd,
            Self::LapRcvd { .. } => LapState::LapRcvd,
            Self::MraLapSent { .. } => LapState::MraLapSent,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match self {
            Self::LapSent { request } | Self::MraLapRcvd { request } => Some(request.reply_by()),
            Self::Idle { .. } | Self::LapRcvd { .. } | Self::MraLapSent { .. } => None,
        }
    }
}

/// Runs `f` on what is going on about the alternate path, if the connection is established.
fn in_established<R>(
    state: State,
    cx: &mut Cx<'_>,
    f: impl FnOnce(&Peer, Alternate, &mut Cx<'_>) -> (Alternate, R),
) -> Result<(State, R), State> {
    match state {
        State::Established {
            peer,
            rtu_data,
            alternate,
        } => {
            let (alternate, result) = f(&peer, alternate, cx);
            let state = State::Established {
                peer,
                rtu_data,
                alternate,
            };
            Ok((state, result))
        }
        other => Err(other),
    }
}

/// As `in_established`, for a call.
fn call(
    state: State,
    call: &'static str,
    cx: &mut Cx<'_>,
    f: impl FnOnce(&Peer, Alternate, &mut Cx<'_>) -> (Alternate, Result<(), Error>),
) -> Outcome {
    in_established(state, cx, f).unwrap_or_else(|other| wrong_state(other, call))
}

/// As `in_established`, for a message.
fn message(
    state: State,
    name: MessageName,
    cx: &mut Cx<'_>,
    f: impl FnOnce(&Peer, Alternate, &mut Cx<'_>) -> Alternate,
) -> State {
    match in_established(state, cx, |peer, alternate, cx| {
        (f(peer, alternate, cx), ())
    }) {
        Ok((state, ())) => state,
        Err(other) => {
            cx.drop_unexpected(name);
            other
        }
    }
}

fn wrong_lap_state(alternate: Alternate, call: &'static str) -> (Alternate, Result<(), Error>) {
    let error = Error::WrongLapState {
        call,
        state: alternate.name(),
    };
    (alternate, Err(error))
}

/// The caller loads a path: sends the LAP.
pub(crate) fn load(
    state: State,
    params: &AlternatePathParams,
    private_data: PrivateData<168>,
    cx: &mut Cx<'_>,
) -> Outcome {
    const CALL: &str = "load_alternate_path";
    call(state, CALL, cx, |peer, alternate, cx| {
        if !matches!(alternate, Alternate::Idle { .. }) {
            return wrong_lap_state(alternate, CALL);
        }
        let lap = Lap {
            local_comm_id: cx.base.local_comm_id,
            remote_comm_id: peer.comm_id,
            remote_qpn: peer.qpn,
            remote_cm_response_timeout: params.response_timeout,
            alternate: params.path,
            private_data,
        };
        let wait = cx.config.lap_wait.unwrap_or_else(|| {
            2 * cm_wait(cx.base.packet_life_time) + cm_wait(params.response_timeout)
        });
        cx.base.laps_sent = cx.base.laps_sent.wrapping_add(1);
        let request = cx.send_and_wait(lap_tid(cx), lap, wait, cx.base.max_cm_retries);
        (Alternate::LapSent { request }, Ok(()))
    })
}

/// The transaction of our last LAP. The second half of our transaction ids names the connection, the first is arbitrary.
fn lap_tid(cx: &Cx<'_>) -> TransactionId {
    let sequence = u64::from(cx.base.laps_sent) << 32;
    TransactionId(cx.base.own_tid.0.wrapping_add(sequence))
}

/// The peer wants to load a path.
pub(crate) fn on_lap(
    state: State,
    lap: Box<Lap>,
    transaction_id: TransactionId,
    cx: &mut Cx<'_>,
) -> State {
    let name = MessageName::Lap;
    message(state, name, cx, |peer, alternate, cx| {
        if lap.remote_qpn != cx.base.local_qpn {
            // Deviation: Linux does not compare them.
            cx.out.drop_message(name, DropReason::QpnMismatch);
            cx.send(transaction_id, refusal(&lap, AprStatus::INVALID_QPN));
            return alternate;
        }
        let lap = Box::new(Received {
            transaction_id,
            lap: *lap,
        });
        match alternate {
            Alternate::Idle {
                answered: Some(answered),
            } if answered.received == *lap => {
                cx.out.counters.count_duplicate(name);
                cx.out.send_mad(cx.base.av, MessageName::Apr, answered.apr);
                Alternate::Idle {
                    answered: Some(answered),
                }
            }
            Alternate::Idle { .. } => receive(lap, cx),
            Alternate::LapSent { .. } | Alternate::MraLapRcvd { .. }
                if cx.base.role == Role::Passive =>
            {
                cx.out.event(Event::LapError { id: cx.id() });
                receive(lap, cx)
            }
            Alternate::LapSent { .. } | Alternate::MraLapRcvd { .. } => {
                cx.out.drop_message(name, DropReason::CrossedLap);
                alternate
            }
            Alternate::MraLapSent {
                received,
                service_timeout,
            } if received == lap => {
                cx.out.counters.count_duplicate(name);
                send_mra(peer, transaction_id, service_timeout, cx);
                Alternate::MraLapSent {
                    received,
                    service_timeout,
                }
            }
            Alternate::LapRcvd { received } if received == lap => {
                cx.out.drop_duplicate(name);
                Alternate::LapRcvd { received }
            }
            // Another one while the caller still decides on the first.
            other => {
                cx.drop_unexpected(name);
                other
            }
        }
    })
}

fn receive(received: Box<Received>, cx: &mut Cx<'_>) -> Alternate {
    cx.out.event(Event::LapReceived {
        id: cx.id(),
        lap: Box::new(received.lap.clone()),
    });
    Alternate::LapRcvd { received }
}

/// The APR with `status` and nothing else that answers `lap`, with the comm ids that the LAP gives both sides.
pub(crate) fn refusal(lap: &Lap, status: AprStatus) -> Apr {
    Apr {
        local_comm_id: lap.remote_comm_id,
        remote_comm_id: lap.local_comm_id,
        status,
        ..Apr::default()
    }
}

/// The caller answers a LAP: sends the APR.
pub(crate) fn answer(
    state: State,
    status: AprStatus,
    additional_info: Ari,
    private_data: PrivateData<148>,
    cx: &mut Cx<'_>,
) -> Outcome {
    const CALL: &str = "answer_alternate_path";
    call(state, CALL, cx, |_, alternate, cx| match alternate {
        Alternate::LapRcvd { received } | Alternate::MraLapSent { received, .. } => {
            let apr = Apr {
                additional_info,
                private_data,
                ..refusal(&received.lap, status)
            };
            let (name, apr) = crate::output::compose(received.transaction_id, &apr.into());
            cx.out.send_mad(cx.base.av, name, apr);
            let answered = Box::new(Answered {
                received: *received,
                apr,
            });
            let idle = Alternate::Idle {
                answered: Some(answered),
            };
            (idle, Ok(()))
        }
        other => wrong_lap_state(other, CALL),
    })
}

/// The peer answers our LAP.
pub(crate) fn on_apr(
    state: State,
    apr: Box<Apr>,
    transaction_id: TransactionId,
    cx: &mut Cx<'_>,
) -> State {
    let name = MessageName::Apr;
    message(state, name, cx, |_, alternate, cx| match alternate {
        // A late one, which answers an earlier LAP, says nothing about this one.
        Alternate::LapSent { .. } | Alternate::MraLapRcvd { .. }
            if transaction_id == lap_tid(cx) =>
        {
            cx.out.event(Event::AprReceived { id: cx.id(), apr });
            Alternate::NONE
        }
        other => {
            cx.drop_unexpected(name);
            other
        }
    })
}

/// Prepares an MRA for a duplicate LAP.
pub(crate) fn prepare_mra(
    state: State,
    service_timeout: IbTimeout,
    name: &'static str,
    cx: &mut Cx<'_>,
) -> Outcome {
    call(state, name, cx, |_, alternate, _| match alternate {
        Alternate::LapRcvd { received } => (
            Alternate::MraLapSent {
                received,
                service_timeout,
            },
            Ok(()),
        ),
        other => wrong_lap_state(other, name),
    })
}

fn send_mra(
    peer: &Peer,
    transaction_id: TransactionId,
    service_timeout: IbTimeout,
    cx: &mut Cx<'_>,
) {
    let mra = teardown::mra(peer, MessageKind::OTHER, service_timeout, cx);
    cx.send(transaction_id, mra);
}

/// The peer has our LAP and asks for patience.
pub(crate) fn on_mra(state: State, mra: Box<Mra>, cx: &mut Cx<'_>) -> State {
    let name = MessageName::Mra;
    message(state, name, cx, |_, alternate, cx| match alternate {
        Alternate::LapSent { mut request } => {
            be_patient(&mut request, mra, cx);
            Alternate::MraLapRcvd { request }
        }
        Alternate::MraLapRcvd { request } => {
            cx.out.drop_duplicate(name);
            Alternate::MraLapRcvd { request }
        }
        other => {
            cx.drop_unexpected(name);
            other
        }
    })
}

/// The wait for an APR is over: the LAP again, or the end of the exchange.
pub(crate) fn on_reply_timeout(state: State, cx: &mut Cx<'_>) -> State {
    in_established(state, cx, |_, mut alternate, cx| {
        if let Alternate::LapSent { request } | Alternate::MraLapRcvd { request } = &mut alternate
            && !request.send_again(cx)
        {
            cx.out.event(Event::LapError { id: cx.id() });
            alternate = Alternate::NONE;
        }
        (alternate, ())
    })
    .map_or_else(|other| other, |(state, ())| state)
}
