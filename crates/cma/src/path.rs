//! Paths that the caller gives.

use crate::{Cma, Error, EventKind, Id, Path, State};
use oarlock_wire::{AddressVector, Mtu, PKey, ServiceId, Time};

impl Cma {
    /// Gives an identifier its path, instead of [`resolve_route`](Self::resolve_route): ROUTE_RESOLVED is queued.
    ///
    /// It replaces the path, not what the address lookup found: the device stays. What the path leaves open is filled in: a
    /// hop limit of 0 becomes that of the route, a scope of 0 that of the address, a service ID of 0 that of the destination.
    /// The kernel takes any path and fails later; what cannot work is refused here.
    ///
    /// # Errors
    /// `NoDevice`, `WrongState`; `PathSource` (its local GID is none of the device), `PathPKey`, `PathServiceId`, `PathMtu`
    /// (none, or larger than the link's); `ChannelFull`.
    #[doc(alias = "RDMA_OPTION_IB_PATH")]
    pub fn set_path(&mut self, now: Time, id: Id, path: Path) -> Result<(), Error> {
        let call = "set_path";
        let ident = self.working(call, id)?;
        let state = ident.state;
        let device = self.device_of(call, ident)?;
        let (State::AddrResolved, Some(resolution), Some(remote)) =
            (state, ident.resolution, ident.remote)
        else {
            return Err(Error::WrongState {
                call,
                state,
                wanted: "ADDR_RESOLVED",
            });
        };
        if device.sgid_index(path.av.local).is_none() {
            return Err(Error::PathSource { gid: path.av.local });
        }
        if path.pkey.0 | FULL_MEMBER != PKey::DEFAULT.0 {
            return Err(Error::PathPKey { pkey: path.pkey });
        }
        let own = ServiceId::for_port(ident.port_space, remote.port());
        if path.service_id != own && path.service_id != ServiceId(0) {
            return Err(Error::PathServiceId {
                given: path.service_id,
                own,
            });
        }
        let largest = Mtu::largest_for_link(resolution.link_mtu).ok_or(Error::LinkTooSmall {
            mtu: resolution.link_mtu,
        })?;
        if path.mtu.bytes().is_none() || path.mtu > largest {
            return Err(Error::PathMtu {
                given: path.mtu,
                largest,
            });
        }
        self.check_room(id, 1)?;
        let or = |given, otherwise| if given == 0 { otherwise } else { given };
        let path = Path {
            av: AddressVector {
                hop_limit: or(path.av.hop_limit, resolution.av.hop_limit),
                scope_id: if path.av.scope_id == 0 {
                    resolution.av.scope_id
                } else {
                    path.av.scope_id
                },
                ..path.av
            },
            service_id: own,
            ..path
        };
        let ident = self.exposed_mut(id)?;
        ident.path = Some(path);
        ident.state = State::RouteResolved;
        self.report(id, EventKind::ROUTE_RESOLVED, 0);
        self.pump(now);
        Ok(())
    }
}

/// The bit that tells a full member's partition key from a limited member's.
const FULL_MEMBER: u16 = 0x8000;
