//! Multicast groups: which queue pairs of this process are attached to which.
//!
//! The process is a member of a group, on its own slot of the port, while at least one of its queue pairs is attached.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use oarlock_port::Port;
use oarlock_wire::{AddressVector, Gid};

use crate::error::Error;
use crate::locks::{read, write};
use crate::qp::QpShared;

/// The attachments of an endpoint. A member list is never empty, and replaced as a whole, so that a packet is delivered
/// without the lock.
pub(crate) struct Groups {
    members: RwLock<HashMap<Group, Members>>,
}

/// A group on an interface: one address on two interfaces is two groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Group {
    pub(crate) gid: Gid,
    pub(crate) ifindex: u32,
}

pub(crate) type Members = Arc<[Arc<QpShared>]>;

impl Group {
    /// The group that a packet was sent to.
    pub(crate) fn of(from: &AddressVector) -> Self {
        Self {
            gid: from.local,
            ifindex: from.scope_id,
        }
    }
}

impl Groups {
    pub(crate) fn new() -> Self {
        Self {
            members: RwLock::default(),
        }
    }

    /// Attaches `qp`; nothing happens if it is attached already.
    pub(crate) fn attach(
        &self,
        port: &Port,
        group: Group,
        qp: &Arc<QpShared>,
    ) -> Result<(), Error> {
        let limits = qp.pd().context().device().limits;
        let mut groups = write(&self.members);
        let count = groups.len() as u64;
        if let Some(members) = groups.get_mut(&group) {
            if !holds(members, qp) {
                let attached = members.len() as u64 + 1;
                let max = limits.max_mcast_qp_attach;
                check_limit("queue pairs attached to one multicast group", attached, max)?;
                *members = members.iter().chain([qp]).map(Arc::clone).collect();
            }
            return Ok(());
        }
        check_limit("multicast groups", count + 1, limits.max_mcast_grp)?;
        let address = group.gid.to_ip();
        port.join_group(address, group.ifindex).map_err(|source| {
            // Of IPv4 and of IPv6 groups, in this order.
            if matches!(source.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) {
                Error::TooManyGroups { group: address }
            } else {
                Error::CannotJoin {
                    group: address,
                    source,
                }
            }
        })?;
        groups.insert(group, [Arc::clone(qp)].into());
        Ok(())
    }

    /// Detaches `qp`; false if it is not attached. Without a port (the service is gone) no membership is left to end.
    pub(crate) fn detach(&self, port: Option<&Port>, group: Group, qp: &QpShared) -> bool {
        let mut groups = write(&self.members);
        let Some(members) = groups.get_mut(&group) else {
            return false;
        };
        if !holds(members, qp) {
            return false;
        }
        let others = members.iter().filter(|member| !is(member, qp));
        let left: Members = others.map(Arc::clone).collect();
        let before = if left.is_empty() {
            leave(port, group);
            groups.remove(&group)
        } else {
            Some(std::mem::replace(members, left))
        };
        drop(groups);
        // Outside the lock: it may hold the last reference to a queue pair.
        drop(before);
        true
    }

    /// Detaches `qp` from whatever it is attached to.
    pub(crate) fn forget(&self, port: Option<&Port>, qp: &QpShared) {
        let attached: Vec<_> = read(&self.members)
            .iter()
            .filter(|(_, members)| holds(members, qp))
            .map(|(group, _)| *group)
            .collect();
        for group in attached {
            self.detach(port, group, qp);
        }
    }

    /// The queue pairs attached to a group.
    pub(crate) fn members(&self, group: Group) -> Option<Members> {
        read(&self.members).get(&group).map(Arc::clone)
    }
}

fn check_limit(parameter: &'static str, given: u64, max: u32) -> Result<(), Error> {
    let (min, max) = (0, max.into());
    if given <= max {
        return Ok(());
    }
    Err(Error::OutOfRange {
        parameter,
        given,
        min,
        max,
    })
}

fn leave(port: Option<&Port>, group: Group) {
    if let Some(port) = port
        && let Err(error) = port.leave_group(group.gid.to_ip(), group.ifindex)
    {
        // The interface is gone, and the membership with it.
        tracing::debug!(%error, group = %group.gid, "cannot leave");
    }
}

fn holds(members: &Members, qp: &QpShared) -> bool {
    members.iter().any(|member| is(member, qp))
}

fn is(member: &Arc<QpShared>, qp: &QpShared) -> bool {
    std::ptr::eq(Arc::as_ptr(member), qp)
}
