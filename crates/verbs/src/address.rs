//! Address handles: where datagrams go.

use oarlock_wire::{AddressVector, FlowLabel, Gid, Grh};

use crate::cq::Completion;
use crate::error::{AddressError, Error};
use crate::pd::ProtectionDomain;

/// What an address handle is made of.
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressHandleAttr {
    /// Where to: another device's address, or a multicast group.
    pub remote: Gid,
    /// Which of the device's own addresses ([`Context::gids`](crate::Context::gids)) it is sent from, from 0.
    pub sgid_index: u8,
    /// The port; a device has one, number 1.
    pub port_num: u8,
    /// The hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
    /// The traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// The flow label: 0, since an ordinary user cannot put another into packets.
    pub flow_label: FlowLabel,
    /// The service level: 0, since packets over IP have none; see [`traffic_class`](Self::traffic_class).
    pub service_level: u8,
}

impl Default for AddressHandleAttr {
    /// From the first address of port 1 to nowhere yet, with a hop limit of 64.
    fn default() -> Self {
        Self {
            remote: Gid::UNSPECIFIED,
            sgid_index: 0,
            port_num: 1,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: FlowLabel::default(),
            service_level: 0,
        }
    }
}

/// Where datagrams go, checked once: a destination address and how to reach it from a device.
///
/// Cheap to copy, and tied to no queue pair; [`SendRequest::to`](crate::SendRequest::to) takes it.
#[doc(alias = "ibv_ah")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressHandle {
    av: AddressVector,
}

impl AddressHandle {
    /// A handle for datagrams of the device that `pd` belongs to.
    ///
    /// # Errors
    /// `Address`: no destination, no such own address or port, an own address of the other IP version than the
    /// destination, or a flow label or service level, which would not reach the wire.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_create_ah")]
    pub fn new(pd: &ProtectionDomain, attr: AddressHandleAttr) -> Result<Self, Error> {
        let device = pd.context().device();
        if attr.port_num != device.port_num {
            return Err(AddressError::NoSuchPort {
                given: attr.port_num,
                port: device.port_num,
            }
            .into());
        }
        let gids = pd.context().gids();
        let local = gids.get(usize::from(attr.sgid_index));
        let local = local.ok_or(AddressError::NoSuchIndex {
            index: attr.sgid_index,
            count: gids.len(),
        })?;
        let flow_label = attr.flow_label.get();
        not_carried("flow label", flow_label, "it takes a privileged socket")?;
        let service_level = attr.service_level.into();
        not_carried("service level", service_level, "packets over IP have none")?;
        Self::along(
            pd,
            AddressVector {
                traffic_class: attr.traffic_class,
                hop_limit: attr.hop_limit,
                ..AddressVector::new(*local, attr.remote)
            },
        )
    }

    /// A handle for a path that is known as a whole, as the events of a connection manager give it. Its flow label and
    /// service level are kept for who asks ([`address_vector`](Self::address_vector)), and do not reach the wire.
    ///
    /// # Errors
    /// `Address`: no destination or own address, the two of different IP versions, a service level above 15, or the path
    /// leaves by another interface than the device's.
    ///
    /// # Blocking
    /// Never.
    pub fn along(pd: &ProtectionDomain, av: AddressVector) -> Result<Self, Error> {
        let device = pd.context().device();
        if av.remote.is_unspecified() || av.local.is_unspecified() {
            return Err(AddressError::Unspecified.into());
        }
        if av.local.to_ip().is_ipv4() != av.remote.to_ip().is_ipv4() {
            return Err(AddressError::MixedVersions {
                local: av.local,
                remote: av.remote,
            }
            .into());
        }
        if av.service_level > MAX_SERVICE_LEVEL {
            return Err(AddressError::ServiceLevel {
                given: av.service_level,
                max: MAX_SERVICE_LEVEL,
            }
            .into());
        }
        if av.scope_id != 0 && av.scope_id != device.ifindex {
            return Err(AddressError::OtherInterface {
                given: av.scope_id,
                device: device.ifindex,
            }
            .into());
        }
        // The same address is on every interface, and another place on each.
        let is_scoped = av.remote.is_link_local() || av.remote.is_multicast();
        let scope_id = if is_scoped { device.ifindex } else { 0 };
        Ok(Self {
            av: AddressVector { scope_id, ..av },
        })
    }

    /// A handle for the answer to a received datagram: to its sender, from the address it was sent to, or for a message
    /// to a group, from an address of the device.
    ///
    /// # Errors
    /// `Address`: the completion is not that of a received datagram whose header is in its first buffer; the device
    /// has no address of the sender's IP version.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_create_ah_from_wc")]
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn reply_to(pd: &ProtectionDomain, received: &Completion) -> Result<Self, Error> {
        let grh = received.grh().ok_or(AddressError::NoHeader)?;
        let (remote, asked) = (Gid::from_ip(grh.source), Gid::from_ip(grh.destination));
        let local = if asked.is_multicast() {
            own_address(pd, &grh)?
        } else {
            asked
        };
        Self::along(
            pd,
            AddressVector {
                traffic_class: grh.traffic_class,
                flow_label: grh.flow_label,
                service_level: received.service_level,
                ..AddressVector::new(local, remote)
            },
        )
    }

    /// The path, whole.
    pub fn address_vector(&self) -> AddressVector {
        self.av
    }
}

/// Refuses a value that would be accepted without effect.
fn not_carried(field: &'static str, given: u32, reason: &'static str) -> Result<(), Error> {
    if given == 0 {
        return Ok(());
    }
    Err(AddressError::NotCarried {
        field,
        given,
        reason,
    }
    .into())
}

/// The first address of the device that can talk to the sender.
fn own_address(pd: &ProtectionDomain, grh: &Grh) -> Result<Gid, Error> {
    let gids = pd.context().gids();
    let fits = |gid: &&Gid| {
        gid.to_ip().is_ipv4() == grh.source.is_ipv4()
            && gid.is_link_local() == Gid::from_ip(grh.source).is_link_local()
    };
    let found = gids.iter().find(fits).copied();
    let none = AddressError::NoOwnAddress { remote: grh.source };
    Ok(found.ok_or(none)?)
}

const MAX_SERVICE_LEVEL: u8 = 15;
