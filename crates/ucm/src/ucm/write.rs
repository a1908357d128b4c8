//! What every request goes through: the checks of the kernel in the kernel's order, and batches.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use oarlock_cma::{EventKind, Query as State, State as IdState};
use oarlock_wire::Time;

use super::numbers::Entry;
use super::{FileId, Owner, Ucm};
use crate::Failure;
use crate::abi::{self, Command, CreateIdResp, EventResp, HEADER_LEN, Header};
use crate::proto::{MAX_RESPONSE, WriteBatch, WriteItem, WriteReply};

/// One request on its way through its command.
pub(super) struct Request<'a> {
    pub(super) now: Time,
    pub(super) file: FileId,
    pub(super) command: Command,
    /// What follows the header.
    pub(super) body: &'a [u8],
    /// How much of it the header counts.
    pub(super) in_len: usize,
    /// The caller's room for the answer.
    pub(super) out_len: usize,
    /// What travels beside the structure.
    pub(super) inline: &'a [u8],
    pub(super) response: &'a mut Vec<u8>,
}

impl Request<'_> {
    /// The structure. As the kernel does, this looks at what was written, not at the length in the header.
    pub(super) fn structure<T: FromBytes>(&self) -> Result<T, Failure> {
        abi::read(self.body).ok_or(Failure::RequestEnds {
            command: self.command,
            given: self.body.len(),
            needed: size_of::<T>(),
        })
    }

    /// The structure of a command that has grown: `in` says how much of it there is.
    pub(super) fn grown_structure<T: FromBytes + IntoBytes>(
        &self,
        least: usize,
    ) -> Result<T, Failure> {
        if self.in_len < least {
            return Err(Failure::ShortRequest {
                command: self.command,
                given: self.in_len,
                needed: least,
            });
        }
        Ok(abi::read_grown(&self.body[..self.in_len]))
    }

    /// Whether the caller has room for an answer of `least` bytes.
    pub(super) fn room(&self, least: usize) -> Result<(), Failure> {
        if self.out_len < least {
            return Err(Failure::NoRoom {
                command: self.command,
                given: self.out_len,
                needed: least,
            });
        }
        Ok(())
    }

    /// Gives the answer, or as much of it as the caller has room for.
    pub(super) fn answer<T: IntoBytes + Immutable>(&mut self, answer: &T) {
        let bytes = answer.as_bytes();
        self.response
            .extend_from_slice(&bytes[..bytes.len().min(self.out_len)]);
    }
}

impl Ucm {
    /// Carries out one request, as `write(2)` on the kernel's file does.
    ///
    /// `request` is the header and the structure; the pointers in it are not looked at. `inline` is what they would point
    /// to: the value of an option, and for MIGRATE_ID the old channel's number (8 bytes, little endian). The answer's
    /// bytes are put into `response`, which is emptied first.
    ///
    /// GET_EVENT never waits: an empty channel answers `EAGAIN`.
    ///
    /// # Errors
    /// As the kernel gives them; see [`Failure::errno`].
    pub fn write(
        &mut self,
        now: Time,
        file: FileId,
        request: &[u8],
        inline: &[u8],
        response: &mut Vec<u8>,
    ) -> Result<usize, Failure> {
        response.clear();
        self.counters.requests += 1;
        let result = self.checked(now, file, request, inline, response);
        if result.is_err() {
            self.counters.requests_refused += 1;
            response.clear();
        }
        result.map(|()| request.len())
    }

    fn checked(
        &mut self,
        now: Time,
        file: FileId,
        request: &[u8],
        inline: &[u8],
        response: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        if !self.files.contains_key(&file) {
            return Err(Failure::UnknownFile);
        }
        let header: Header = abi::read(request).ok_or(Failure::NoHeader {
            given: request.len(),
        })?;
        let command = Command(header.cmd);
        if command.info().is_none() {
            return Err(Failure::UnknownCommand { number: header.cmd });
        }
        let body = &request[HEADER_LEN..];
        let (in_len, out_len) = (usize::from(header.in_len), usize::from(header.out_len));
        if in_len > body.len() {
            return Err(Failure::BodyLength {
                command,
                says: in_len,
                given: body.len(),
            });
        }
        self.dispatch(Request {
            now,
            file,
            command,
            body,
            in_len,
            out_len,
            inline,
            response,
        })
    }

    fn dispatch(&mut self, request: Request<'_>) -> Result<(), Failure> {
        match request.command {
            Command::CREATE_ID => self.create_id(request),
            Command::DESTROY_ID => self.destroy_id(request),
            Command::BIND_IP => self.bind_ip(&request),
            Command::BIND => self.bind(&request),
            Command::RESOLVE_IP => self.resolve_ip(&request),
            Command::RESOLVE_ADDR => self.resolve_addr(&request),
            Command::RESOLVE_ROUTE => self.resolve_route(&request),
            Command::SET_OPTION => self.set_option(&request),
            Command::QUERY_ROUTE => self.query_route(request),
            Command::QUERY => self.query(request),
            Command::CONNECT => self.connect(&request),
            Command::LISTEN => self.listen(&request),
            Command::ACCEPT => self.accept(&request),
            Command::REJECT => self.reject(&request),
            Command::DISCONNECT => self.disconnect(&request),
            Command::INIT_QP_ATTR => self.init_qp_attr(request),
            Command::NOTIFY => self.notify(&request),
            Command::GET_EVENT => self.get_event(request),
            Command::MIGRATE_ID => self.migrate_id(request),
            Command::JOIN_IP_MCAST => self.join_ip_mcast(request),
            Command::JOIN_MCAST => self.join_mcast(request),
            Command::LEAVE_MCAST => self.leave_mcast(request),
            Command::RESOLVE_IB_SERVICE => self.resolve_ib_service(&request),
            Command::WRITE_CM_EVENT => self.write_cm_event(&request),
            Command::GET_OPTION => Err(Failure::NoGetOption),
            Command(number) => Err(Failure::UnknownCommand { number }),
        }
    }

    /// The identifier that a request means (`_ucma_find_context`): known, and on this file.
    pub(super) fn find(
        &self,
        command: Command,
        file: FileId,
        number: u32,
    ) -> Result<Entry, Failure> {
        let entry = self
            .numbers
            .get(number)
            .ok_or(Failure::UnknownId { command, number })?;
        if entry.file != file {
            return Err(Failure::OtherFile { command, number });
        }
        Ok(*entry)
    }

    /// As [`find`](Self::find), and its device has not gone (`ucma_get_ctx`).
    pub(super) fn working(
        &self,
        command: Command,
        file: FileId,
        number: u32,
    ) -> Result<(Entry, State), Failure> {
        let entry = self.find(command, file, number)?;
        let state = self.cma.query(entry.id)?;
        if state.state == IdState::DeviceRemoval {
            return Err(Failure::DeviceRemoved { command, number });
        }
        Ok((entry, state))
    }

    /// As [`working`](Self::working), and it is bound to a device (`ucma_get_ctx_dev`).
    pub(super) fn with_device(
        &self,
        command: Command,
        file: FileId,
        number: u32,
    ) -> Result<(Entry, State), Failure> {
        let (entry, state) = self.working(command, file, number)?;
        if state.device.is_none() {
            return Err(Failure::NoDevice {
                command,
                number,
                state: state.state,
            });
        }
        Ok((entry, state))
    }

    /// Carries out a batch for its owner, in order, one answer for each request.
    ///
    /// A file of another owner is answered like one that is not open. What the client says about acknowledged events is
    /// noted for identifiers that are its own.
    pub fn write_batch(&mut self, now: Time, owner: Owner, batch: WriteBatch) -> Vec<WriteReply> {
        for acknowledged in &batch.acknowledged {
            let files = &self.files;
            let is_own = |entry: &&mut Entry| {
                files
                    .get(&entry.file)
                    .is_some_and(|file| file.owner == owner)
            };
            if let Some(entry) = self.numbers.get_mut(acknowledged.id).filter(is_own) {
                entry.acknowledged = acknowledged.events;
            }
        }
        let mut named: Vec<Option<u32>> = Vec::with_capacity(batch.items.len());
        let mut replies = Vec::with_capacity(batch.items.len());
        let mut failed = None;
        for (index, item) in batch.items.into_iter().enumerate() {
            let mut response = Vec::new();
            let result = match failed {
                Some(failed) => Err(Failure::NotTried { failed }),
                None => self.write_item(now, owner, item, &named, &mut response),
            };
            named.push(result.as_ref().ok().copied().flatten());
            if result.is_err() && batch.stop_on_error && failed.is_none() {
                failed = Some(index);
            }
            replies.push(match result {
                Ok(_) => WriteReply {
                    errno: 0,
                    sentence: String::new(),
                    response,
                },
                Err(failure) => WriteReply {
                    errno: failure.errno().0,
                    sentence: failure.to_string(),
                    response: Vec::new(),
                },
            });
        }
        replies
    }

    /// One request of a batch; the number of the identifier that its answer names for later ones, if it names one.
    fn write_item(
        &mut self,
        now: Time,
        owner: Owner,
        mut item: WriteItem,
        named: &[Option<u32>],
        response: &mut Vec<u8>,
    ) -> Result<Option<u32>, Failure> {
        let file = FileId(item.channel);
        if self.owner(file) != Some(owner) {
            return Err(Failure::UnknownFile);
        }
        if let Some(from) = item.id_from {
            let number = named
                .get(usize::from(from))
                .copied()
                .flatten()
                .ok_or(Failure::NothingNamed { from })?;
            put_id(&mut item.request, number);
        }
        cap_room(&mut item.request);
        self.write(now, file, &item.request, &item.inline, response)?;
        let command = abi::read::<Header>(&item.request).map(|header| Command(header.cmd));
        Ok(match command {
            Some(Command::CREATE_ID) => abi::read(response).map(|made: CreateIdResp| made.id),
            Some(Command::GET_EVENT) => id_of_event(&abi::read_grown(response)),
            _ => None,
        })
    }
}

/// The identifier of an event after which its device or its queue pair's attributes are known.
fn id_of_event(event: &EventResp) -> Option<u32> {
    let kinds = [
        EventKind::ADDR_RESOLVED,
        EventKind::CONNECT_REQUEST,
        EventKind::CONNECT_RESPONSE,
    ];
    kinds.contains(&EventKind(event.event)).then_some(event.id)
}

/// Puts an identifier's number into a request that has a place for one.
fn put_id(request: &mut [u8], number: u32) {
    let Some(header) = abi::read::<Header>(request) else {
        return;
    };
    let Some(offset) = Command(header.cmd).id_offset() else {
        return;
    };
    if let Some(place) = request.get_mut(HEADER_LEN + offset..HEADER_LEN + offset + 4) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
}

/// An answer in a batch is bounded, whatever room the request offers.
fn cap_room(request: &mut [u8]) {
    let place = std::mem::offset_of!(Header, out_len);
    if let Some([low, high]) = request.get_mut(place..place + 2) {
        let room = u16::from_ne_bytes([*low, *high]).min(MAX_RESPONSE as u16);
        [*low, *high] = room.to_ne_bytes();
    }
}
