//! Why a call failed, grouped by who must act.

use crate::hint;
use crate::param::PaddedData;
use oarlock_verbs::{QpType, VendorError, WcStatus};
use oarlock_wire::{RejReason, SidrStatus};
use std::net::{IpAddr, SocketAddr};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service refused the command: the sentence names the state or the rule.
    #[error("{call}: {sentence} ({})", errno_name(*.errno))]
    Refused {
        /// The call, by its name in this crate.
        call: &'static str,
        /// The errno a C program would get, positive.
        errno: i32,
        /// What was wrong, by the service.
        sentence: String,
    },
    /// The host service or the connection to it is gone; every identifier and queue pair of this process is lost.
    #[error(
        "device fatal: the host service is gone; every identifier and queue pair of this process is lost"
    )]
    ServiceGone,
    /// The service could not be asked, or not be understood.
    #[error("{call}: {source}")]
    Host {
        /// The call, by its name in this crate.
        call: &'static str,
        /// What the client of the service found.
        source: oarlock_hostd::Error,
    },
    /// The service's answer could not be decoded.
    #[error("{call}: the service answered {got} bytes that this library does not understand")]
    Answer {
        /// The call, by its name in this crate.
        call: &'static str,
        /// The length of the answer.
        got: usize,
    },
    /// A verbs call failed on the identifier's queue pair.
    #[error("{call}: {source}")]
    Verbs {
        /// The call, by its name in this crate.
        call: &'static str,
        /// What verbs said.
        source: oarlock_verbs::Error,
    },
    /// A work request of one of the [`Connection`](crate::Connection)'s calls failed. The queue pair is in state Error then.
    #[error("{call}{}: {status} ({rule})", hint::with(*.peer))]
    WorkFailed {
        /// The call, by its name in this crate.
        call: &'static str,
        /// The address of the peer, as far as it is known.
        peer: Option<SocketAddr>,
        /// How it ended.
        status: WcStatus,
        /// Which rule was broken.
        rule: VendorError,
    },
    /// The descriptor of an event channel could not be read or waited on.
    #[error("event channel: {0}")]
    Channel(#[source] std::io::Error),

    /// The peer answered REJ.
    #[error("connection rejected{}: {reason}{}", hint::by(*.peer), hint::rejected(*.reason, *.peer))]
    Rejected {
        /// Who was asked, or asked.
        peer: Option<SocketAddr>,
        /// Why.
        reason: RejReason,
        /// The whole private data field of the REJ.
        private_data: Option<PaddedData>,
    },
    /// No answer from the peer.
    #[error("no answer{} ({}){}", hint::from(*.peer), errno_name(-*.status), hint::unreachable(*.status))]
    Unreachable {
        /// Who was asked.
        peer: Option<SocketAddr>,
        /// Negative errno.
        status: i32,
    },
    /// The peer has no datagram service for us: its SIDR_REP says so.
    #[error("datagram service refused{}: {status}{}", hint::by(*.peer), hint::service_refused(*.status, *.peer))]
    ServiceRefused {
        /// Who was asked.
        peer: Option<SocketAddr>,
        /// Why.
        status: SidrStatus,
        /// The whole private data field of the SIDR_REP.
        private_data: Option<PaddedData>,
    },
    /// The peer's datagram service has another Q_Key than this identifier, so that neither could receive from the other.
    #[error("the datagram service{} uses another Q_Key than this identifier", hint::at(*.peer))]
    QKeyMismatch {
        /// Who was asked.
        peer: Option<SocketAddr>,
    },
    /// A multicast group was not joined.
    #[error("multicast group {group} not joined: {}", sentence_or_errno(.sentence.as_deref(), -*.status))]
    JoinFailed {
        /// The group.
        group: IpAddr,
        /// Negative errno.
        status: i32,
        /// What failed, where this library knows.
        sentence: Option<String>,
    },
    /// An address did not resolve.
    #[error("the way{} was not found: address resolution failed ({})", hint::to(*.destination), errno_name(-*.status))]
    AddressResolution {
        /// What was to be resolved.
        destination: Option<SocketAddr>,
        /// Negative errno.
        status: i32,
    },
    /// A route did not resolve.
    #[error("the path{} was not found: route resolution failed ({})", hint::to(*.destination), errno_name(-*.status))]
    RouteResolution {
        /// Where the route was to lead.
        destination: Option<SocketAddr>,
        /// Negative errno.
        status: i32,
    },
    /// Establishing the connection failed on this side.
    #[error("connecting{} failed: {}", hint::to(*.peer), sentence_or_errno(.sentence.as_deref(), -*.status))]
    ConnectFailed {
        /// Who was asked, or asked.
        peer: Option<SocketAddr>,
        /// Negative errno.
        status: i32,
        /// What failed, where this library knows.
        sentence: Option<String>,
    },
    /// The connection ended while something else was awaited.
    #[error("disconnected{} while waiting for {awaited}", hint::by(*.peer))]
    DisconnectedEarly {
        /// The other side.
        peer: Option<SocketAddr>,
        /// What was awaited.
        awaited: &'static str,
    },
    /// An event arrived that does not answer the call.
    #[error("event {got} arrived while waiting for {awaited}{}", hint::with(*.peer))]
    UnexpectedEvent {
        /// The other side.
        peer: Option<SocketAddr>,
        /// What was awaited.
        awaited: &'static str,
        /// The event's name.
        got: &'static str,
    },
    /// The deadline passed. What was under way goes on.
    #[error("the deadline passed while waiting for {awaited}{}", hint::with(*.peer))]
    TimedOut {
        /// The other side, where there is one.
        peer: Option<SocketAddr>,
        /// What was awaited.
        awaited: &'static str,
    },
    /// The identifier's device is gone, and with it everything but destroying the identifier.
    #[error("{call}: the identifier's device is gone; drop the identifier and begin anew")]
    DeviceRemoved {
        /// The call, by its name in this crate.
        call: &'static str,
    },

    /// No tokio runtime to register with.
    #[cfg(feature = "tokio")]
    #[error("{call}: there is no tokio runtime here; call it inside of one")]
    NoRuntime {
        /// The call, by its name in this crate.
        call: &'static str,
    },
    /// The tokio runtime on which the events of this host were read has ended.
    #[cfg(feature = "tokio")]
    #[error("the tokio runtime that read this host's events has ended")]
    RuntimeGone,

    /// The identifier was closed before.
    #[error("{call}: the identifier is closed")]
    Closed {
        /// The call, by its name in this crate.
        call: &'static str,
    },
    /// The group was left before.
    #[error("leave: the group was left before")]
    AlreadyLeft,
    /// The call waits until the identifier's events are acknowledged, and the calling thread itself holds some of them:
    /// it would wait for itself.
    #[error(
        "{call}: the calling thread holds {} of this identifier ({}){}",
        hint::events(.events.len()), .events.join(", "), hint::held(*.done)
    )]
    EventHeldByCaller {
        /// The call, by its name in this crate.
        call: &'static str,
        /// The names of the events.
        events: Vec<&'static str>,
        /// What has happened all the same: "been destroyed"; `None`: nothing has changed.
        done: Option<&'static str>,
    },
    /// The identifier's deadline passed while somebody held events of it. It has moved, or is destroyed, all the same;
    /// what was missing, a later `migrate` or `close` waits for.
    #[error(
        "{call}: {} of this identifier not acknowledged by the deadline ({}); the identifier has {done} all the same",
        hint::events(.events.len()), .events.join(", ")
    )]
    Unacknowledged {
        /// The call, by its name in this crate.
        call: &'static str,
        /// The names of the events.
        events: Vec<&'static str>,
        /// What has happened: "moved", "been destroyed".
        done: &'static str,
    },
    /// Two objects of different hosts.
    #[error("{call}: the event channel belongs to another host than the identifier")]
    OtherHost {
        /// The call, by its name in this crate.
        call: &'static str,
    },
    /// The identifier already is what the call would make it.
    #[error("migrate_to_none: the identifier is synchronous already")]
    AlreadySynchronous,
    /// The call needs a synchronous identifier.
    #[error(
        "{call}: the identifier reports to an event channel; only a synchronous identifier can be asked"
    )]
    NotSynchronous {
        /// The call, by its name in this crate.
        call: &'static str,
    },
    /// The call is for datagrams, and the identifier for connections.
    #[error("{call}: the identifier is for connections; datagrams have port spaces UDP and IPOIB")]
    NotDatagram {
        /// The call, by its name in this crate.
        call: &'static str,
    },
    /// No device yet.
    #[error(
        "{call}: the identifier has no device yet; resolve an address, or bind to an address that is neither a wildcard nor loopback"
    )]
    NoDevice {
        /// The call, by its name in this crate.
        call: &'static str,
    },
    /// No queue pair yet, and no external one in the parameters.
    #[error("{call}: the identifier has no queue pair; create_qp first or name an external one")]
    NoQueuePair {
        /// The call, by its name in this crate.
        call: &'static str,
    },
    /// There is a queue pair already.
    #[error("{call}: the identifier has a queue pair already")]
    QueuePairExists {
        /// The call, by its name in this crate.
        call: &'static str,
    },
    /// The protection domain or completion queue is of another device than the identifier.
    #[error(
        "create_qp: the protection domain is of device {given}, the identifier is bound to {bound}"
    )]
    OtherDevice {
        /// The protection domain's device.
        given: String,
        /// The identifier's device.
        bound: String,
    },
    /// The identifier is for queue pairs of another type.
    #[error("{call}: a queue pair of type {given:?}, the identifier is for {wanted:?}")]
    OtherQpType {
        /// The call, by its name in this crate.
        call: &'static str,
        /// The type of the queue pair.
        given: QpType,
        /// The identifier's type.
        wanted: QpType,
    },
    /// A resource count is more than the device allows.
    #[error("{call}: {name} is {given}, the device allows {max}")]
    MoreThanDevice {
        /// The call, by its name in this crate.
        call: &'static str,
        /// `responder_resources` or `initiator_depth`.
        name: &'static str,
        /// What was asked for.
        given: u8,
        /// The device's limit.
        max: u8,
    },
    /// A resource count is more than the connection request offers.
    #[error("accept: {name} is {given}, the connection request offers {offered}")]
    MoreThanOffered {
        /// `responder_resources` or `initiator_depth`.
        name: &'static str,
        /// What was asked for.
        given: u8,
        /// What the request says.
        offered: u8,
    },
    /// Private data beyond the message's field.
    #[error("{call}: {given} bytes of private data, the message carries at most {max}")]
    PrivateDataTooLong {
        /// The call, by its name in this crate.
        call: &'static str,
        /// What was given.
        given: usize,
        /// What fits.
        max: usize,
    },
    /// A datagram is one packet.
    #[error("send_to: a message of {given} bytes, a datagram carries at most {max}")]
    MessageTooLong {
        /// What was given.
        given: usize,
        /// What fits.
        max: usize,
    },
    /// A receive did not bring a datagram; the queue pair is in state Error.
    #[error("receive: the queue pair has failed: {status}")]
    ReceiveFailed {
        /// How it ended.
        status: WcStatus,
    },
    /// Only consumer reasons may be given to `reject`.
    #[error(
        "reject: reason {0} is the protocol's own; a program may say 28 (consumer defined) or 35 (vendor option)"
    )]
    ReasonNotForPrograms(RejReason),
    /// A duration that does not fit the command.
    #[error("{call}: the timeout of {given:?} is not between 1 ms and {max:?}")]
    TimeoutOutOfRange {
        /// The call, by its name in this crate.
        call: &'static str,
        /// What was given.
        given: std::time::Duration,
        /// The largest the command can carry.
        max: std::time::Duration,
    },
}

impl Error {
    /// The errno that the C library would give for this error, positive.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused { errno, .. } => *errno,
            Self::ServiceGone => libc::EIO,
            Self::Host { .. } | Self::Answer { .. } => libc::EPROTO,
            Self::Verbs { source, .. } => verbs_errno(source),
            Self::Channel(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Self::Rejected { .. } => libc::ECONNREFUSED,
            Self::Unreachable { status, .. }
            | Self::AddressResolution { status, .. }
            | Self::RouteResolution { status, .. }
            | Self::ConnectFailed { status, .. } => status.wrapping_abs(),
            Self::DisconnectedEarly { .. } => libc::ECONNRESET,
            Self::UnexpectedEvent { .. } => libc::EPROTO,
            Self::TimedOut { .. } | Self::Unacknowledged { .. } => libc::ETIMEDOUT,
            Self::DeviceRemoved { .. } => libc::ENODEV,
            Self::MessageTooLong { .. } => libc::EMSGSIZE,
            Self::ReceiveFailed { .. } | Self::WorkFailed { .. } => libc::EIO,
            Self::ServiceRefused { .. } => libc::ECONNREFUSED,
            Self::JoinFailed { status, .. } => status.wrapping_abs(),
            Self::Closed { .. } | Self::AlreadyLeft => libc::ENOENT,
            #[cfg(feature = "tokio")]
            Self::NoRuntime { .. } => libc::EINVAL,
            #[cfg(feature = "tokio")]
            Self::RuntimeGone => libc::EPIPE,
            Self::EventHeldByCaller { .. } => libc::EDEADLK,
            Self::OtherHost { .. }
            | Self::AlreadySynchronous
            | Self::NotSynchronous { .. }
            | Self::NoDevice { .. }
            | Self::NoQueuePair { .. }
            | Self::QueuePairExists { .. }
            | Self::OtherDevice { .. }
            | Self::OtherQpType { .. }
            | Self::NotDatagram { .. }
            | Self::QKeyMismatch { .. }
            | Self::MoreThanDevice { .. }
            | Self::MoreThanOffered { .. }
            | Self::PrivateDataTooLong { .. }
            | Self::ReasonNotForPrograms(_)
            | Self::TimeoutOutOfRange { .. } => libc::EINVAL,
        }
    }

    /// Whether the host service is lost and with it everything this process had there.
    #[must_use]
    pub fn is_device_fatal(&self) -> bool {
        match self {
            Self::ServiceGone => true,
            Self::Host { source, .. } => source.is_gone(),
            Self::Verbs { source, .. } => match source {
                oarlock_verbs::Error::Host(host) => host.is_gone(),
                other => other.is_device_fatal(),
            },
            _ => false,
        }
    }
}

/// The system's text for an errno.
pub(crate) fn errno_name(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

fn sentence_or_errno(sentence: Option<&str>, errno: i32) -> String {
    sentence.map_or_else(|| errno_name(errno).to_string(), str::to_owned)
}

/// What the calls of libibverbs give for such an error.
fn verbs_errno(error: &oarlock_verbs::Error) -> i32 {
    use oarlock_verbs::{DeviceError, Error};
    match error {
        Error::NoSuchDevice { .. } => libc::ENODEV,
        Error::Host(_) | Error::Device(DeviceError::DeviceFatal) => libc::EIO,
        Error::Device(
            DeviceError::OutOfMemory { .. }
            | DeviceError::TooManyRegions { .. }
            | DeviceError::TooManyWindows { .. }
            | DeviceError::TooManyQueuePairs { .. },
        ) => libc::ENOMEM,
        Error::Device(DeviceError::NotMapped { .. }) => libc::EFAULT,
        Error::Device(DeviceError::System { source, .. }) => {
            source.raw_os_error().unwrap_or(libc::EIO)
        }
        _ => libc::EINVAL,
    }
}
