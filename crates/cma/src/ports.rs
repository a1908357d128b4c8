//! Port tables: who has bound which port, and who may share it.
//!
//! "Any" in these rules is an unspecified address and also a loopback address, as in the kernel, so that 127.0.0.1:p
//! conflicts with every other owner of port p.

use crate::device::is_any_or_loopback;
use crate::{Error, Id};
use oarlock_wire::PortSpace;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// What an owner of a port holds, or what a caller wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) address: SocketAddr,
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) reuse_addr: bool,
    pub(crate) af_only: bool,
}

/// The ports of every port space. The owners' addresses change while they are resolved, so a table holds handles only.
#[derive(Debug)]
pub(crate) struct Ports {
    owners: BTreeMap<(PortSpace, u16), Vec<Id>>,
    last_ephemeral: Option<u16>,
    random: u64,
}

impl Ports {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            owners: BTreeMap::new(),
            last_ephemeral: None,
            random: seed,
        }
    }

    /// Binds `id` to the port of the claim, or to a free one if that is 0. `claim_of` tells what an owner holds.
    pub(crate) fn bind(
        &mut self,
        id: Id,
        port_space: PortSpace,
        claim: &Claim,
        ephemeral: &RangeInclusive<u16>,
        privileged: bool,
        claim_of: impl Fn(Id) -> Option<Claim>,
    ) -> Result<u16, Error> {
        let port = match claim.address.port() {
            0 => self.find_ephemeral(port_space, claim, ephemeral, claim_of)?,
            port if port < FIRST_UNPRIVILEGED && !privileged => {
                return Err(Error::PrivilegedPort { port });
            }
            port => {
                self.check(id, port_space, claim, claim.reuse_addr, claim_of)?;
                port
            }
        };
        self.owners.entry((port_space, port)).or_default().push(id);
        Ok(port)
    }

    /// Whether the claim is compatible with every other owner of its port.
    pub(crate) fn check(
        &self,
        id: Id,
        port_space: PortSpace,
        claim: &Claim,
        reuse: bool,
        claim_of: impl Fn(Id) -> Option<Claim>,
    ) -> Result<(), Error> {
        let owners = self.owners.get(&(port_space, claim.address.port()));
        let others = owners.into_iter().flatten().filter(|owner| **owner != id);
        others
            .filter_map(|owner| claim_of(*owner))
            .try_for_each(|other| compatible(claim, &other, reuse))
    }

    pub(crate) fn release(&mut self, id: Id, port_space: PortSpace, port: u16) {
        let key = (port_space, port);
        let Some(owners) = self.owners.get_mut(&key) else {
            return;
        };
        owners.retain(|owner| *owner != id);
        if owners.is_empty() {
            self.owners.remove(&key);
        }
    }

    /// The ports in use with the number of their owners, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PortSpace, u16, usize)> {
        self.owners
            .iter()
            .map(|((port_space, port), owners)| (*port_space, *port, owners.len()))
    }

    fn find_ephemeral(
        &mut self,
        port_space: PortSpace,
        claim: &Claim,
        range: &RangeInclusive<u16>,
        claim_of: impl Fn(Id) -> Option<Claim>,
    ) -> Result<u16, Error> {
        let (first, last) = (*range.start(), *range.end());
        let exhausted = Error::NoEphemeralPort { first, last };
        let Some(count) = last
            .checked_sub(first)
            .map(|distance| u32::from(distance) + 1)
        else {
            return Err(exhausted);
        };
        let start = self.random_below(count);
        let candidates = (0..count).map(|step| (start + step) % count);
        for port in candidates.filter_map(|offset| u16::try_from(u32::from(first) + offset).ok()) {
            if port == 0 || (self.last_ephemeral == Some(port) && count > 1) {
                continue;
            }
            let owners = self
                .owners
                .get(&(port_space, port))
                .map_or(&[][..], Vec::as_slice);
            if owners
                .iter()
                .filter_map(|owner| claim_of(*owner))
                .all(|other| may_share_ephemeral(claim, &other))
            {
                self.last_ephemeral = Some(port);
                return Ok(port);
            }
        }
        Err(exhausted)
    }

    /// A step of splitmix64. Ports are no secret: they stand in every request.
    fn random_below(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let high = (bits ^ (bits >> 31)) >> 32;
        u32::try_from((high * u64::from(bound)) >> 32).unwrap_or(0)
    }
}

fn compatible(wanted: &Claim, other: &Claim, reuse: bool) -> Result<(), Error> {
    let (wanted_ip, other_ip) = (wanted.address.ip(), other.address.ip());
    if reuse && other.reuse_addr {
        return Ok(());
    }
    if wanted.af_only && other.af_only && wanted_ip.is_ipv4() != other_ip.is_ipv4() {
        return Ok(());
    }
    if is_any_or_loopback(wanted_ip) || is_any_or_loopback(other_ip) {
        return Err(Error::PortCovered {
            wanted: wanted.address,
            bound: other.address,
        });
    }
    if same_address(&wanted.address, &other.address) {
        return Err(Error::PortInUse {
            wanted: wanted.address,
        });
    }
    Ok(())
}

/// Two owners may share an ephemeral port if the pairs of addresses tell their connections apart.
fn may_share_ephemeral(wanted: &Claim, other: &Claim) -> bool {
    let port = |claim: &Claim| {
        claim
            .destination
            .map(|to| to.port())
            .filter(|port| *port != 0)
    };
    let differ = |a: Option<IpAddr>, b: Option<IpAddr>| {
        let specific = |ip: &IpAddr| !is_any_or_loopback(*ip);
        matches!((a.filter(specific), b.filter(specific)), (Some(a), Some(b)) if a != b)
    };
    let source = |claim: &Claim| Some(claim.address.ip());
    let destination = |claim: &Claim| claim.destination.map(|to| to.ip());
    matches!((port(wanted), port(other)), (Some(a), Some(b)) if a != b)
        || differ(source(wanted), source(other))
        || differ(destination(wanted), destination(other))
}

/// Whether two addresses are equal, the interface of link-local ones included; ports do not matter.
fn same_address(a: &SocketAddr, b: &SocketAddr) -> bool {
    match (a, b) {
        (SocketAddr::V6(a), SocketAddr::V6(b)) if a.ip().is_unicast_link_local() => {
            a.ip() == b.ip() && a.scope_id() == b.scope_id()
        }
        _ => a.ip() == b.ip(),
    }
}

const FIRST_UNPRIVILEGED: u16 = 1024;

#[cfg(test)]
mod tests;
