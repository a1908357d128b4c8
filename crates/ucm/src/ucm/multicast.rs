//! Multicast joins, and events of the program's own: JOIN_IP_MCAST, JOIN_MCAST, LEAVE_MCAST, WRITE_CM_EVENT,
//! RESOLVE_IB_SERVICE.
//!
//! A join has a number of its own, in a space of its own, and is on the file of its identifier, wherever that moves.

use std::net::SocketAddr;

use oarlock_cma::{EventKind, JoinKind, State};

use super::Ucm;
use super::numbers::Join;
use super::setup::{check_narrow, check_size, narrow, wide};
use super::write::Request;
use crate::Failure;
use crate::abi::{
    self, CreateIdResp, DestroyIdResp, JoinIpMcast, JoinMcast, LeaveMcast, ResolveIbService,
    WriteCmEvent, join_flag,
};

impl Ucm {
    pub(super) fn join_ip_mcast(&mut self, request: Request<'_>) -> Result<(), Failure> {
        request.room(size_of::<CreateIdResp>())?;
        let body: JoinIpMcast = request.structure()?;
        check_narrow(request.command, "group's", &body.addr)?;
        self.with_device(request.command, request.file, body.id)?;
        let group = narrow(request.command, &body.addr)?;
        self.join(request, body.id, body.uid, group, JoinKind::FullMember)
    }

    pub(super) fn join_mcast(&mut self, request: Request<'_>) -> Result<(), Failure> {
        request.room(size_of::<CreateIdResp>())?;
        let body: JoinMcast = request.structure()?;
        check_size(request.command, "group's", body.addr_size, &body.addr)?;
        let kind = match body.join_flags {
            join_flag::FULL_MEMBER => JoinKind::FullMember,
            join_flag::SEND_ONLY_FULL_MEMBER => JoinKind::SendOnlyFullMember,
            given => {
                return Err(Failure::JoinFlags {
                    command: request.command,
                    given,
                });
            }
        };
        self.with_device(request.command, request.file, body.id)?;
        let group = wide(request.command, &body.addr)?;
        self.join(request, body.id, body.uid, group, kind)
    }

    fn join(
        &mut self,
        mut request: Request<'_>,
        id: u32,
        uid: u64,
        group: SocketAddr,
        kind: JoinKind,
    ) -> Result<(), Failure> {
        let (entry, _) = self.working(request.command, request.file, id)?;
        let multicast = self
            .cma
            .join_multicast(request.now, entry.id, group, kind, uid)?;
        let number = self.joins.add(Join { multicast, id });
        request.answer(&CreateIdResp { id: number });
        Ok(())
    }

    pub(super) fn leave_mcast(&mut self, mut request: Request<'_>) -> Result<(), Failure> {
        request.room(size_of::<DestroyIdResp>())?;
        let body: LeaveMcast = request.structure()?;
        let number = body.id;
        let join = *self
            .joins
            .get(number)
            .ok_or(Failure::UnknownJoin { number })?;
        let file = self.numbers.get(join.id).map(|entry| entry.file);
        if file != Some(request.file) {
            return Err(Failure::OtherFilesJoin { number });
        }
        let events_reported = self.cma.leave_multicast(request.now, join.multicast)?;
        self.joins.remove(number);
        request.answer(&DestroyIdResp { events_reported });
        Ok(())
    }

    pub(super) fn write_cm_event(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: WriteCmEvent = request.structure()?;
        let kind = EventKind(body.event);
        if kind != EventKind::USER && kind != EventKind::INTERNAL {
            return Err(Failure::ForeignEvent { given: body.event });
        }
        let (entry, _) = self.working(request.command, request.file, body.id)?;
        let arg = abi::read(&body.param).map_or(0, u64::from_ne_bytes);
        let status = body.status.cast_signed();
        Ok(self
            .cma
            .inject_event(request.now, entry.id, kind, status, arg)?)
    }

    /// A kernel finds service records on InfiniBand links only; on RoCE it checks the state and says that it cannot.
    pub(super) fn resolve_ib_service(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: ResolveIbService = request.structure()?;
        let (_, known) = self.working(request.command, request.file, body.id)?;
        if known.state != State::AddrResolved {
            return Err(Failure::ServiceState {
                number: body.id,
                state: known.state,
            });
        }
        Err(Failure::NoServiceRecords)
    }
}
