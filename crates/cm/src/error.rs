//! What the caller did wrong, or which limit was reached.

use oarlock_wire::cm::{AriTooLong, PrivateDataTooLong};
use oarlock_wire::units::ServiceId;
use thiserror::Error;

use crate::{ConnId, LapState, StateName};

/// Why a call was refused. A refused call has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection's state does not allow the call.
    #[error("{call} is not possible in state {state}")]
    WrongState {
        /// The call.
        call: &'static str,
        /// The state the connection is in.
        state: StateName,
    },
    /// The connection is established, but what is going on about its alternate path does not allow the call.
    #[error("{call} is not possible in state ESTABLISHED with {state}")]
    WrongLapState {
        /// The call.
        call: &'static str,
        /// Where the exchange about an alternate path stands.
        state: LapState,
    },
    /// The connection was destroyed, or the id comes from another `Cm`.
    #[error("{0} does not exist any more")]
    UnknownId(ConnId),
    /// More private data than the message carries.
    #[error("private data of {given} bytes, the message carries {max}")]
    PrivateDataTooLong {
        /// Bytes that were given.
        given: usize,
        /// Bytes that the message carries.
        max: usize,
    },
    /// More additional information than a REJ, SIDR_REP or APR carries.
    #[error("additional information of {given} bytes, the message carries {max}")]
    AdditionalInfoTooLong {
        /// Bytes that were given.
        given: usize,
        /// Bytes that the message carries.
        max: usize,
    },
    /// The count of CM retries is a 4-bit field.
    #[error("{given} CM retries, a request can ask for {max} at most")]
    TooManyRetries {
        /// What was given.
        given: u8,
        /// The largest value the field holds.
        max: u8,
    },
    /// Somebody listens on the service ID already.
    #[error("{0} is listened on already")]
    ServiceIdInUse(ServiceId),
    /// The limit of connections is reached; it is a matter of configuration.
    #[error("{max} connections exist already, which is the limit")]
    TooManyConnections {
        /// The limit.
        max: usize,
    },
}

impl From<PrivateDataTooLong> for Error {
    fn from(PrivateDataTooLong { given, max }: PrivateDataTooLong) -> Self {
        Self::PrivateDataTooLong { given, max }
    }
}

impl From<AriTooLong> for Error {
    fn from(AriTooLong { given }: AriTooLong) -> Self {
        Self::AdditionalInfoTooLong {
            given,
            max: oarlock_wire::cm::Ari::MAX_LEN,
        }
    }
}
