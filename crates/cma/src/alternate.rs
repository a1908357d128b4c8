//! Alternate paths: loaded on a live connection with LAP and APR, or offered in a connection request. The RDMA CM has no
//! event for any of this; [`Query::alternate`](crate::Query::alternate) tells.

use crate::connect::refused;
use crate::{AlternatePaths, Cma, Counter, Error, Id, QpType};
use oarlock_cm::{AlternatePathParams, ConnId, Failover};
use oarlock_wire::{AlternatePath, Apr, AprStatus, Gid, Lap, Req, Time};

/// The alternate path of a connection: one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alternate {
    /// The path; local is this side's end.
    pub path: AlternatePath,
    /// What became of it.
    pub state: AlternateState,
}

/// What became of an alternate path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AlternateState {
    /// It came with the peer's connection request, which is not accepted yet.
    Offered,
    /// The peer is asked to load it.
    Asked,
    /// Both sides have it.
    Loaded,
    /// One side refused it: the peer ours, or we the one of its connection request.
    Refused(AprStatus),
    /// The peer never answered, or asked for another path at the same time.
    Unanswered,
}

impl Cma {
    /// Asks the peer of a connection to load an alternate path: sends a LAP. No event follows; what becomes of it shows in
    /// [`Query::alternate`](crate::Query::alternate), and the connection lives on in any case.
    ///
    /// # Errors
    /// `NotConnected` for UD; `NoConnection`, `ConnectionState` unless established; `AlternatePathPending`; `PathSource` if
    /// the path's local GID is none of this host.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, LAP and APR.
    pub fn load_alternate_path(
        &mut self,
        now: Time,
        id: Id,
        path: AlternatePath,
    ) -> Result<(), Error> {
        let call = "load_alternate_path";
        let (ident, cm) = self.connection_of(call, id)?;
        if ident.qp_type == QpType::UD {
            return Err(Error::NotConnected { call });
        }
        if !self.is_own(
            path.local_gid,
            path_scope(ident.path.map(|path| path.av.scope_id)),
        ) {
            return Err(Error::PathSource {
                gid: path.local_gid,
            });
        }
        let params = AlternatePathParams {
            response_timeout: ident.options.cm_response_timeout(&self.config),
            ..AlternatePathParams::new(path)
        };
        self.cm
            .load_alternate_path(now, cm, params)
            .map_err(|source| refused(call, source))?;
        self.exposed_mut(id)?.alternate = Some(Alternate {
            path,
            state: AlternateState::Asked,
        });
        self.pump(now);
        Ok(())
    }

    /// The peer wants to load a path.
    pub(crate) fn on_lap(&mut self, now: Time, cm: ConnId, lap: &Lap) {
        let id = self.by_connection.get(&cm).copied();
        let path = reversed(&lap.alternate);
        let status = self.judge_alternate(id, &path);
        let answered = self.cm.answer_alternate_path(now, cm, status, &[], &[]);
        debug_assert!(answered.is_ok(), "the LAP has just arrived: {answered:?}");
        if status != AprStatus::SUCCESS {
            self.counters.count(Counter::AlternatePathsRefused);
            return;
        }
        self.counters.count(Counter::AlternatePathsLoaded);
        if let Some(ident) = id.and_then(|id| self.ids.get_mut(id.into())) {
            ident.alternate = Some(Alternate {
                path,
                state: AlternateState::Loaded,
            });
        }
    }

    /// The peer answered our LAP; `None` if it never will.
    pub(crate) fn on_apr(&mut self, cm: ConnId, apr: Option<&Apr>) {
        let id = self.by_connection.get(&cm).copied();
        let asked = id
            .and_then(|id| self.ids.get_mut(id.into())?.alternate.as_mut())
            .filter(|alternate| alternate.state == AlternateState::Asked);
        let Some(alternate) = asked else {
            self.counters.count(Counter::EventsDroppedState);
            return;
        };
        alternate.state = match apr.map(|apr| apr.status) {
            Some(AprStatus::SUCCESS) => AlternateState::Loaded,
            Some(status) => AlternateState::Refused(status),
            None => AlternateState::Unanswered,
        };
    }

    /// The path that a connection request offers beside its primary one.
    pub(crate) fn offered_alternate(req: &Req) -> Option<Alternate> {
        (!req.alternate.is_absent()).then(|| Alternate {
            path: reversed(&req.alternate),
            state: AlternateState::Offered,
        })
    }

    /// What accepting a request says about the path that it offers; `None` if it offers none.
    pub(crate) fn answer_offer(&self, id: Id) -> Option<(Failover, AlternateState)> {
        let ident = self.ids.get(id.into())?;
        let offered = ident
            .alternate
            .filter(|alternate| alternate.state == AlternateState::Offered)?;
        Some(match self.judge_alternate(Some(id), &offered.path) {
            AprStatus::SUCCESS => (Failover::Accepted, AlternateState::Loaded),
            AprStatus::UNSUPPORTED => (
                Failover::NotSupported,
                AlternateState::Refused(AprStatus::UNSUPPORTED),
            ),
            status => (Failover::Rejected, AlternateState::Refused(status)),
        })
    }

    fn judge_alternate(&self, id: Option<Id>, path: &AlternatePath) -> AprStatus {
        if self.config.alternate_paths == AlternatePaths::Refuse {
            return AprStatus::UNSUPPORTED;
        }
        let primary = id
            .and_then(|id| self.ids.get(id.into())?.path)
            .map(|path| path.av);
        if !self.is_own(path.local_gid, path_scope(primary.map(|av| av.scope_id))) {
            return AprStatus::INVALID_GID;
        }
        let current = primary.map(|av| (av.local, av.remote));
        if current == Some((path.local_gid, path.remote_gid)) {
            return AprStatus::IS_CURRENT;
        }
        AprStatus::SUCCESS
    }

    /// Whether a GID belongs to a device of this host.
    fn is_own(&self, gid: Gid, scope_id: u32) -> bool {
        self.devices
            .by_address(gid.to_ip(), scope_id, scope_id)
            .is_some()
    }
}

/// The interface of a path's link-local addresses: that of the primary path, as the messages name none.
fn path_scope(primary: Option<u32>) -> u32 {
    primary.unwrap_or(0)
}

/// A path as the other side sees it.
const fn reversed(path: &AlternatePath) -> AlternatePath {
    AlternatePath {
        local_lid: path.remote_lid,
        remote_lid: path.local_lid,
        local_gid: path.remote_gid,
        remote_gid: path.local_gid,
        ..*path
    }
}
