//! What unreliable datagrams are addressed with.

use crate::error::{Error, Result};
use oarlock_ucm::client::UdEventParam;
use oarlock_verbs::{AddressHandle, AddressHandleAttr, ProtectionDomain};
use oarlock_wire::{FlowLabel, Gid, QKey, Qpn};

/// How a peer, or a multicast group, is reached with datagrams: what an event of a UD identifier says.
///
/// ```
/// # use oarlock_rdmacm::UdParam;
/// # use oarlock_verbs::{ProtectionDomain, QueuePair, SendRequest};
/// fn greet(queue_pair: &QueuePair, peer: &UdParam) -> Result<(), Box<dyn std::error::Error>> {
///     let handle = peer.address_handle(queue_pair.pd())?;
///     queue_pair.post_send(SendRequest::inline(1, b"hello").to(&handle, peer.qpn, peer.qkey))?;
///     Ok(())
/// }
/// ```
#[doc(alias = "rdma_ud_param")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdParam {
    /// What an address handle is made of.
    #[doc(alias = "ah_attr")]
    pub address: AddressHandleAttr,
    /// The queue pair to send to; [`Qpn::MULTICAST`] for a group. 0 in a connection request: the peer has named none.
    pub qpn: Qpn,
    /// The Q_Key to send with. 0 in a connection request.
    pub qkey: QKey,
}

impl UdParam {
    pub(crate) fn new(event: &UdEventParam) -> Self {
        let attr = &event.ah_attr;
        Self {
            address: AddressHandleAttr {
                remote: Gid(attr.dgid),
                sgid_index: attr.sgid_index,
                port_num: attr.port_num,
                hop_limit: attr.hop_limit,
                traffic_class: attr.traffic_class,
                flow_label: FlowLabel::truncate(attr.flow_label),
                service_level: attr.sl,
            },
            qpn: Qpn::truncate(event.qp_num),
            qkey: QKey(event.qkey),
        }
    }

    /// An address handle for datagrams to there.
    ///
    /// # Errors
    /// [`Error::Verbs`]: the domain is of another device than the identifier whose event this is of.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, pd: &ProtectionDomain) -> Result<AddressHandle> {
        // The path may have these two, and they do not reach the wire.
        let address = AddressHandleAttr {
            flow_label: FlowLabel::default(),
            service_level: 0,
            ..self.address
        };
        AddressHandle::new(pd, address).map_err(|source| Error::Verbs {
            call: "address_handle",
            source,
        })
    }
}
