//! Events as they come out of a channel.

use super::{Answer, BadAnswer, IdNumber, JoinNumber, structure};
use crate::abi::{ConnParam, Ece, EventResp, UdParam, UverbsAhAttr};

/// An event, as it came out of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The caller's own value for the identifier; of the listener in a connection request.
    pub uid: u64,
    /// The identifier; the new one in a connection request. In multicast events the number is that of the join, see
    /// [`join`](Self::join).
    pub id: IdNumber,
    /// The event's number.
    pub kind: u32,
    /// 0, a negative errno, or a positive code of the transport.
    pub status: i32,
    /// The connection parameters, in the receiver's view.
    ///
    /// The ABI does not say which of three things an event carries: these, the datagram parameters ([`ud`](Self::ud)) where
    /// the identifier is for datagrams, or a number ([`arg`](Self::arg)) in USER and INTERNAL.
    pub param: EventParam,
    /// The options of enhanced connection establishment that the peer's message carried; zero if it carried none.
    pub ece: Ece,
    union: Box<[u8; 304]>,
}

impl Event {
    /// The datagram parameters: of events of UD identifiers, and of joins. For others the answer has no meaning.
    #[must_use]
    pub fn ud(&self) -> UdEventParam {
        let param: UdParam = structure(&self.union[..]).expect("the union has room for it");
        let len = usize::from(param.private_data_len);
        UdEventParam {
            private_data: (len > 0).then(|| param.private_data[..len].to_vec()),
            qp_num: param.qp_num,
            qkey: param.qkey,
            ah_attr: param.ah_attr,
        }
    }

    /// The join that a multicast event is about. For other events the answer has no meaning.
    #[must_use]
    pub const fn join(&self) -> JoinNumber {
        JoinNumber(self.id.0)
    }

    /// The number given to [`write_cm_event`](super::write_cm_event). For other events than USER and INTERNAL the answer has no meaning.
    #[must_use]
    pub fn arg(&self) -> u64 {
        structure(&self.union[..]).map_or(0, u64::from_ne_bytes)
    }
}

/// The datagram parameters of an event: how the peer, or a multicast group, is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdEventParam {
    /// The whole private data field of the message, zero padded; `None` where the event comes from no message.
    pub private_data: Option<Vec<u8>>,
    /// The remote queue pair; 0xFFFFFF for a group, 0 where the peer has named none.
    pub qp_num: u32,
    /// The queue key to send with.
    pub qkey: u32,
    /// What an address handle is made of.
    pub ah_attr: UverbsAhAttr,
}

/// The connection parameters of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventParam {
    /// The whole private data field of the message, zero padded; `None` where the message has none.
    pub private_data: Option<Vec<u8>>,
    /// Reads and atomics that the remote side may issue.
    pub responder_resources: u8,
    /// Reads and atomics that the remote side accepts.
    pub initiator_depth: u8,
    /// Whether the remote side has end-to-end flow control.
    pub flow_control: bool,
    /// Retries; in connection requests only.
    pub retry_count: u8,
    /// Retries after receiver-not-ready.
    pub rnr_retry_count: u8,
    /// Whether the remote side uses a shared receive queue.
    pub srq: bool,
    /// The remote queue pair.
    pub qp_num: u32,
}

impl From<&ConnParam> for EventParam {
    fn from(param: &ConnParam) -> Self {
        Self {
            private_data: (param.private_data_len > 0).then(|| param.private_data().to_vec()),
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq != 0,
            qp_num: param.qp_num,
        }
    }
}

impl Answer for Event {
    const ROOM: u16 = 336;
    fn decode(bytes: &[u8]) -> Result<Self, BadAnswer> {
        let event: EventResp = structure(bytes)?;
        Ok(Self {
            uid: event.uid,
            id: IdNumber(event.id),
            kind: event.event,
            status: event.status,
            param: EventParam::from(&event.conn()),
            ece: event.ece,
            union: Box::new(event.param),
        })
    }
}
