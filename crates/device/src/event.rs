//! Asynchronous events: what happens to queue pairs, queues, the port and the device by itself.

use core::fmt;

use oarlock_wire::{Gid, Qpn};

use crate::cq::CqId;

/// Names a shared receive queue within its context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SrqId(u64);

impl SrqId {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Something that no call of the program caused.
///
/// An event that is queued already, and has not been read, is not queued twice: it moves to the end. So the queue of a
/// program that never reads it is bounded by the objects that it has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue was full when a completion came. Its queue pairs are in the error state.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CqOverrun(CqId),
    /// A queue pair went to the error state by a fault on this side, not the peer's.
    #[doc(alias = "IBV_EVENT_QP_FATAL")]
    QpFatal(Qpn),
    /// The peer sent an invalid request; the queue pair went to the error state.
    #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
    QpRequestError(Qpn),
    /// The peer asked for memory that it may not access so; the queue pair went to the error state.
    #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
    QpAccessError(Qpn),
    /// The peer's first request arrived, so the peer is connected, although its RTU may be lost.
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    CommEst(Qpn),
    /// All sends that were outstanding when the queue pair went to the drained state have completed.
    #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
    SqDrained(Qpn),
    /// A queue pair in the error state takes no more buffers out of its shared receive queue, and has completed those that
    /// it had: it can be destroyed, and the queue used by others.
    #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
    LastWqeReached(Qpn),
    /// A shared receive queue holds fewer buffers than its limit. The limit is disarmed.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    SrqLimitReached(SrqId),
    /// The port carries packets (again): the network interface is up.
    #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
    PortActive(u8),
    /// The port carries no packets: the network interface is down. Queue pairs retry until their limits.
    #[doc(alias = "IBV_EVENT_PORT_ERR")]
    PortError(u8),
    /// The table of the port's addresses has changed.
    #[doc(alias = "IBV_EVENT_GID_CHANGE")]
    GidChange(u8),
    /// The device has been removed: every queue pair of this context is in the error state.
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    DeviceRemoved,
    /// The host service is gone, and with it our slot: every queue pair is in the error state.
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    DeviceFatal,
}

impl AsyncEvent {
    /// The queue pair it is about.
    pub fn qpn(&self) -> Option<Qpn> {
        match *self {
            Self::QpFatal(qpn)
            | Self::QpRequestError(qpn)
            | Self::QpAccessError(qpn)
            | Self::CommEst(qpn)
            | Self::SqDrained(qpn)
            | Self::LastWqeReached(qpn) => Some(qpn),
            Self::CqOverrun(_)
            | Self::SrqLimitReached(_)
            | Self::PortActive(_)
            | Self::PortError(_)
            | Self::GidChange(_)
            | Self::DeviceRemoved
            | Self::DeviceFatal => None,
        }
    }

    /// The completion queue it is about.
    pub fn cq_id(&self) -> Option<CqId> {
        match *self {
            Self::CqOverrun(cq) => Some(cq),
            _ => None,
        }
    }

    /// The shared receive queue it is about.
    pub fn srq_id(&self) -> Option<SrqId> {
        match *self {
            Self::SrqLimitReached(srq) => Some(srq),
            _ => None,
        }
    }

    /// The port it is about.
    pub fn port_num(&self) -> Option<u8> {
        match *self {
            Self::PortActive(port) | Self::PortError(port) | Self::GidChange(port) => Some(port),
            _ => None,
        }
    }

    /// What kind of event it is, with number and name of the C interface.
    pub fn kind(&self) -> &'static EventKind {
        let number = match self {
            Self::CqOverrun(_) => 0,
            Self::QpFatal(_) => 1,
            Self::QpRequestError(_) => 2,
            Self::QpAccessError(_) => 3,
            Self::CommEst(_) => 4,
            Self::SqDrained(_) => 5,
            Self::DeviceRemoved | Self::DeviceFatal => 8,
            Self::PortActive(_) => 9,
            Self::PortError(_) => 10,
            Self::SrqLimitReached(_) => 15,
            Self::LastWqeReached(_) => 16,
            Self::GidChange(_) => 18,
        };
        &EVENT_KINDS[number]
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::DeviceRemoved => "device removed",
            Self::DeviceFatal => "host service gone",
            _ => self.kind().sentence,
        };
        match self.qpn() {
            Some(qpn) => write!(f, "queue pair {:#08x}: {name}", qpn.get()),
            None => f.write_str(name),
        }
    }
}

/// A kind of asynchronous event that the C interface names (`enum ibv_event_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EventKind {
    /// Its number there.
    pub number: u32,
    /// Its name there.
    pub name: &'static str,
    /// What it says.
    pub sentence: &'static str,
    /// Why this device never raises it; `None` if it does.
    pub never_because: Option<&'static str>,
}

impl EventKind {
    const fn raised(number: u32, name: &'static str, sentence: &'static str) -> Self {
        Self {
            number,
            name,
            sentence,
            never_because: None,
        }
    }

    const fn never(
        number: u32,
        name: &'static str,
        sentence: &'static str,
        because: &'static str,
    ) -> Self {
        Self {
            number,
            name,
            sentence,
            never_because: Some(because),
        }
    }
}

/// Every kind of asynchronous event that there is, in the order of its numbers.
pub const EVENT_KINDS: [EventKind; 20] = [
    EventKind::raised(0, "IBV_EVENT_CQ_ERR", "completion queue overrun"),
    EventKind::raised(1, "IBV_EVENT_QP_FATAL", "fatal error on this side"),
    EventKind::raised(2, "IBV_EVENT_QP_REQ_ERR", "invalid request by the peer"),
    EventKind::raised(
        3,
        "IBV_EVENT_QP_ACCESS_ERR",
        "access to memory that the peer may not have",
    ),
    EventKind::raised(4, "IBV_EVENT_COMM_EST", "communication established"),
    EventKind::raised(5, "IBV_EVENT_SQ_DRAINED", "send queue drained"),
    EventKind::never(6, "IBV_EVENT_PATH_MIG", "path migrated", NO_ALTERNATE_PATH),
    EventKind::never(
        7,
        "IBV_EVENT_PATH_MIG_ERR",
        "path migration failed",
        NO_ALTERNATE_PATH,
    ),
    EventKind::raised(8, "IBV_EVENT_DEVICE_FATAL", "device fatal"),
    EventKind::raised(9, "IBV_EVENT_PORT_ACTIVE", "port active"),
    EventKind::raised(10, "IBV_EVENT_PORT_ERR", "port error"),
    EventKind::never(
        11,
        "IBV_EVENT_LID_CHANGE",
        "LID changed",
        "a port on Ethernet has no LID",
    ),
    EventKind::never(
        12,
        "IBV_EVENT_PKEY_CHANGE",
        "partition table changed",
        "a port on Ethernet has one partition key, 0xffff, for ever",
    ),
    EventKind::never(
        13,
        "IBV_EVENT_SM_CHANGE",
        "subnet manager changed",
        "Ethernet has no subnet manager",
    ),
    EventKind::never(
        14,
        "IBV_EVENT_SRQ_ERR",
        "shared receive queue failed",
        "a shared receive queue in memory of the library cannot fail; a buffer that cannot be written fails the queue pair",
    ),
    EventKind::raised(
        15,
        "IBV_EVENT_SRQ_LIMIT_REACHED",
        "shared receive queue below its limit",
    ),
    EventKind::raised(
        16,
        "IBV_EVENT_QP_LAST_WQE_REACHED",
        "last receive of a shared queue taken",
    ),
    EventKind::never(
        17,
        "IBV_EVENT_CLIENT_REREGISTER",
        "subnet manager asks for new registrations",
        "Ethernet has no subnet manager",
    ),
    EventKind::raised(18, "IBV_EVENT_GID_CHANGE", "address table changed"),
    EventKind::never(
        19,
        "IBV_EVENT_WQ_FATAL",
        "work queue failed",
        "there are no work queues without a queue pair",
    ),
];

const NO_ALTERNATE_PATH: &str =
    "alternate paths are refused: the path of a soft device is the operating system's affair";

/// What the host service says of a device that this process has open.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceChange {
    /// The interface carries packets.
    PortActive,
    /// The interface is down.
    PortError,
    /// The addresses of the port, in the order of their indices, from now on.
    Gids(Vec<Gid>),
    /// The device is gone.
    Removed,
    /// A device is there again in the place of one that was gone: new queue pairs can be made. Those of before stay in the
    /// error state.
    Returned,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_in_the_order_of_their_numbers_and_each_event_has_its_own() {
        for (number, kind) in EVENT_KINDS.iter().enumerate() {
            assert_eq!(kind.number as usize, number, "{}", kind.name);
        }
        let qpn = Qpn::truncate(0x12);
        let events = [
            AsyncEvent::CqOverrun(CqId::new(1)),
            AsyncEvent::QpFatal(qpn),
            AsyncEvent::QpRequestError(qpn),
            AsyncEvent::QpAccessError(qpn),
            AsyncEvent::CommEst(qpn),
            AsyncEvent::SqDrained(qpn),
            AsyncEvent::DeviceRemoved,
            AsyncEvent::DeviceFatal,
            AsyncEvent::PortActive(1),
            AsyncEvent::PortError(1),
            AsyncEvent::SrqLimitReached(SrqId::new(1)),
            AsyncEvent::LastWqeReached(qpn),
            AsyncEvent::GidChange(1),
        ];
        let mut raised: Vec<_> = events.iter().map(|event| event.kind().number).collect();
        raised.dedup();
        let expected = EVENT_KINDS
            .iter()
            .filter(|kind| kind.never_because.is_none());
        let expected: Vec<_> = expected.map(|kind| kind.number).collect();
        assert_eq!(raised, expected);
        // Each is about one thing at most.
        for event in events {
            let about = [
                event.qpn().is_some(),
                event.cq_id().is_some(),
                event.srq_id().is_some(),
                event.port_num().is_some(),
            ];
            let count = about.iter().filter(|is| **is).count();
            let of_device = matches!(event, AsyncEvent::DeviceRemoved | AsyncEvent::DeviceFatal);
            assert_eq!(count, usize::from(!of_device), "{event}");
        }
    }
}
