//! The commands of an event channel: GET_EVENT and MIGRATE_ID.

use zerocopy::IntoBytes;

use oarlock_cma::{
    ConnEventParam, Event, EventKind, EventParam, ReceivedPrivateData, UdEventParam,
};

use super::numbers::Entry;
use super::write::Request;
use super::{FileId, Ucm};
use crate::Failure;
use crate::abi::{
    ConnParam, Ece, EventResp, GetEvent, MAX_PRIVATE_DATA, MigrateId, MigrateIdResp, UdParam,
    UverbsAhAttr,
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

    /// The number of an event's identifier, of a multicast event's join. The child of a connection request gets its own now, on the file that took
    /// the request.
    fn number_of(&mut self, file: FileId, event: &Event) -> u32 {
        if let Some(number) = event.multicast.and_then(|join| self.joins.of(join)) {
            return number;
        }
        if let Some(number) = self.numbers.of(event.id) {
            return number;
        }
        debug_assert_eq!(
            event.kind,
            EventKind::CONNECT_REQUEST,
            "every other identifier was made by CREATE_ID"
        );
        let number = self.numbers.add(Entry {
            id: event.id,
            file,
            acknowledged: 0,
        });
        if let Some(file) = self.files.get_mut(&file) {
            file.numbers.insert(number);
        }
        number
    }

    pub(super) fn migrate_id(&mut self, request: Request<'_>) -> Result<(), Failure> {
        // The one command that does not ask for room.
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
        request
            .response
            .extend_from_slice(MigrateIdResp { events_reported }.as_bytes());
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
        ece: Ece {
            vendor_id: event.ece.vendor_id,
            attr_mod: event.ece.options,
        },
    };
    match &event.param {
        EventParam::Conn(param) => fill(&mut resp, conn_param(param).as_bytes()),
        EventParam::Ud(param) => fill(&mut resp, ud_param(param).as_bytes()),
        EventParam::User(arg) => fill(&mut resp, &arg.to_ne_bytes()),
        _ => {}
    }
    resp
}

/// Puts a member of the union in.
fn fill(resp: &mut EventResp, member: &[u8]) {
    resp.param[..member.len()].copy_from_slice(member);
}

fn conn_param(param: &ConnEventParam) -> ConnParam {
    let (private_data, private_data_len) = private_data(param.private_data.as_ref());
    ConnParam {
        qp_num: param.qpn.get(),
        qkey: 0,
        private_data,
        private_data_len,
        srq: param.srq.into(),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count.get(),
        rnr_retry_count: param.rnr_retry_count.get(),
        valid: 0,
    }
}

fn ud_param(param: &UdEventParam) -> UdParam {
    let (private_data, private_data_len) = private_data(param.private_data.as_ref());
    UdParam {
        qp_num: param.qpn.get(),
        qkey: param.qkey.0,
        ah_attr: UverbsAhAttr::new(&param.av, param.sgid_index, param.port_num),
        private_data,
        private_data_len,
        reserved: [0; 7],
    }
}

/// A field of a message in the area of an event, and its length.
fn private_data(field: Option<&ReceivedPrivateData>) -> ([u8; MAX_PRIVATE_DATA], u8) {
    let mut area = [0; MAX_PRIVATE_DATA];
    let field = field.map_or(&[][..], ReceivedPrivateData::as_bytes);
    // The largest field of a message has 224 bytes; the smaller of the two bounds is a matter of types here.
    let len = u8::try_from(field.len()).unwrap_or(u8::MAX);
    let field = &field[..usize::from(len)];
    area[..field.len()].copy_from_slice(field);
    (area, len)
}
