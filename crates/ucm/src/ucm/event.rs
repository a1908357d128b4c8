//! The commands of an event channel: GET_EVENT and MIGRATE_ID.

use zerocopy::{FromZeros, IntoBytes};

use oarlock_cma::{ConnEventParam, Event, EventKind, EventParam};

use super::write::Request;
use super::{FileId, Ucm};
use crate::Failure;
use crate::abi::{
    self, ConnParam, Ece, EventResp, GetEvent, MAX_PRIVATE_DATA, MigrateId, MigrateIdResp,
};

impl Ucm {
    pub(super) fn get_event(&mut self, mut request: Request<'_>) -> Result<(), Failure> {
        request.room(EventResp::MIN_LEN)?;
        let _pointer: GetEvent = request.structure()?;
        let channel = self
            .files
            .get(&request.file)
            .ok_or(Failure::UnknownFile)?
            .channel;
        let event = self.cma.next_event(channel).ok_or(Failure::NoEvent)?;
        let number = self.number_of(request.file, &event);
        request.answer(&event_resp(number, &event));
        Ok(())
    }

    /// The number of an event's identifier. The child of a connection request gets its own now, on the file that took
    /// the request.
    fn number_of(&mut self, file: FileId, event: &Event) -> u32 {
        if let Some(number) = self.numbers.of(event.id) {
            return number;
        }
        debug_assert_eq!(
            event.kind,
            EventKind::CONNECT_REQUEST,
            "every other identifier was made by CREATE_ID"
        );
        let number = self.numbers.add(event.id, file);
        if let Some(file) = self.files.get_mut(&file) {
            file.numbers.insert(number);
        }
        number
    }

    pub(super) fn migrate_id(&mut self, mut request: Request<'_>) -> Result<(), Failure> {
        request.room(size_of::<MigrateIdResp>())?;
        let body: MigrateId = request.structure()?;
        let to = request.file;
        let from = self.old_file(to, request.inline)?;
        let (entry, _) = self.working(request.command, from, body.id)?;
        let channel = self.files.get(&to).ok_or(Failure::UnknownFile)?.channel;
        let events_reported = self.cma.migrate_id(entry.id, channel)?;
        if let Some(moved) = self.numbers.get_mut(body.id) {
            moved.file = to;
        }
        if let Some(from) = self.files.get_mut(&from) {
            from.numbers.remove(&body.id);
        }
        if let Some(to) = self.files.get_mut(&to) {
            to.numbers.insert(body.id);
        }
        request.answer(&MigrateIdResp { events_reported });
        Ok(())
    }

    /// The old channel of a migration: one of the same owner, as a process can name its own descriptors only.
    fn old_file(&self, new: FileId, inline: &[u8]) -> Result<FileId, Failure> {
        let token: [u8; 8] = inline.try_into().map_err(|_| Failure::UnknownOldChannel)?;
        let old = FileId(u64::from_le_bytes(token));
        match (self.owner(old), self.owner(new)) {
            (Some(old_owner), Some(new_owner)) if old_owner == new_owner => Ok(old),
            _ => Err(Failure::UnknownOldChannel),
        }
    }
}

fn event_resp(number: u32, event: &Event) -> EventResp {
    let mut resp = EventResp {
        uid: event.context,
        id: number,
        event: event.kind.0,
        status: event.status,
        param: [0; 304],
        reserved: 0,
        ece: Ece::default(),
    };
    if let EventParam::Conn(param) = &event.param {
        let param = conn_param(param);
        resp.param[..size_of::<ConnParam>()].copy_from_slice(param.as_bytes());
        debug_assert!(abi::read::<ConnParam>(&resp.param) == Some(param));
    }
    resp
}

fn conn_param(param: &ConnEventParam) -> ConnParam {
    let mut resp = ConnParam {
        qp_num: param.qpn.get(),
        srq: param.srq.into(),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count.get(),
        rnr_retry_count: param.rnr_retry_count.get(),
        ..ConnParam::new_zeroed()
    };
    if let Some(data) = &param.private_data {
        // The largest field of a message has 224 bytes; the smaller of the two bounds is a matter of types here.
        let data = &data.as_bytes()[..data.as_bytes().len().min(MAX_PRIVATE_DATA - 1)];
        resp.private_data[..data.len()].copy_from_slice(data);
        resp.private_data_len = u8::try_from(data.len()).expect("cut to 255");
    }
    resp
}
