//! Asynchronous events: what happens to queue pairs, completion queues and the device by itself.

use oarlock_wire::Qpn;

use crate::cq::CqId;

/// Something that no call of the program caused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The peer sent an invalid request; the queue pair went to the error state.
    #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
    QpRequestError(Qpn),
    /// A queue pair went to the error state by the device's fault, not the peer's.
    #[doc(alias = "IBV_EVENT_QP_FATAL")]
    QpFatal(Qpn),
    /// The peer's first request arrived, so the peer is connected, although its RTU may be lost.
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    CommEst(Qpn),
    /// A completion queue was full when a completion came. Its queue pairs are in the error state.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CqOverrun(CqId),
    /// The host service is gone, and with it our slot: every queue pair is in the error state.
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    DeviceFatal,
}

impl AsyncEvent {
    /// The queue pair it is about.
    pub fn qpn(&self) -> Option<Qpn> {
        match *self {
            Self::QpRequestError(qpn) | Self::QpFatal(qpn) | Self::CommEst(qpn) => Some(qpn),
            Self::CqOverrun(_) | Self::DeviceFatal => None,
        }
    }
}
