//! XRC domains.

use oarlock_device as device;
use oarlock_wire::Qpn;

use crate::context::Context;
use crate::error::Error;
use crate::qp::QueuePair;

/// An XRC domain: its targets take receives of its shared receive queues, and of no others. Clones are the same domain;
/// it exists while a clone, a shared receive queue or a target of it does.
///
/// One connection to a process serves all its shared receive queues: each message of an initiator
/// ([`QpType::XrcInitiator`](crate::QpType::XrcInitiator)) names the one that it is for
/// ([`SendRequest::srqn`](crate::SendRequest::srqn)).
#[doc(alias = "ibv_xrcd")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XrcDomain {
    context: Context,
    device: device::XrcDomain,
}

impl XrcDomain {
    /// Opens a domain of its own. It belongs to this process: a domain that a file names, for several processes, does not
    /// exist, since targets receive in the process that made them.
    ///
    /// # Errors
    /// `Device`: too many domains.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open(context: &Context) -> Result<Self, Error> {
        Ok(Self {
            device: device::XrcDomain::open(context.device_context(), None)?,
            context: context.clone(),
        })
    }

    /// Another handle of a target of this domain: it exists until the last one is dropped.
    ///
    /// # Errors
    /// `Device`: no target of this domain has the number.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, qpn: Qpn) -> Result<QueuePair, Error> {
        Ok(QueuePair::from_target(self, self.device.open_target(qpn)?))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn device(&self) -> &device::XrcDomain {
        &self.device
    }
}
