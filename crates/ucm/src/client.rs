//! Requests built from typed values, and answers read back, for the side that writes them.
//!
//! Each function returns a [`Call`]: the bytes of one `write(2)`, what travels beside them, and the type of the answer.
//! The service sends the answer's bytes back and [`Call::decode`] reads them.
//!
//! ```
//! use oarlock_ucm::client;
//!
//! let call = client::create_id(0x1234, 0x0106, 2);
//! assert_eq!(call.request().len(), 8 + 24);
//! let number = call.decode(&[5, 0, 0, 0]).expect("four bytes are an identifier's number");
//! assert_eq!(number, client::IdNumber(5));
//! ```

mod event;

pub use event::{Event, EventParam, UdEventParam};

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use oarlock_wire::{IbTimeout, RnrTimer};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use crate::abi::{
    self, Accept, Bind, Command, ConnParam, Connect, CreateId, DestroyId, Disconnect, Ece,
    GetEvent, Header, IbPathRecData, InitQpAttr, JoinMcast, LeaveMcast, Listen, MAX_PRIVATE_DATA,
    MigrateId, Notify, PrivateDataLength, Query, QueryAddrResp, QueryPathResp, Reject, ResolveAddr,
    ResolveRoute, SetOption, SockaddrStorage, UverbsQpAttr, WriteCmEvent, option_ib, option_id,
    option_level, option_oarlock, query_option,
};
use crate::proto::WriteItem;

/// One request and the type of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<A> {
    request: Vec<u8>,
    inline: Vec<u8>,
    answer: PhantomData<fn() -> A>,
}

/// What an answer can be read as.
pub trait Answer: Sized {
    /// How many bytes the request offers room for.
    const ROOM: u16;

    /// Reads the answer.
    ///
    /// # Errors
    /// The bytes are too few, or say something that no service of ours sends.
    fn decode(bytes: &[u8]) -> Result<Self, BadAnswer>;
}

/// An answer that does not fit its command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadAnswer {
    /// Too few bytes.
    #[error("the answer has {given} bytes where {needed} were expected")]
    TooShort {
        /// How many arrived.
        given: usize,
        /// How many the command's answer has.
        needed: usize,
    },
    /// An address of a family that the request did not ask for.
    #[error("the answer holds an address that cannot be used: {0}")]
    Address(abi::UnusableAddress),
}

impl<A: Answer> Call<A> {
    fn new<T: IntoBytes + Immutable>(command: Command, body: &T) -> Self {
        Self::with_room(command, body, A::ROOM)
    }

    fn with_room<T: IntoBytes + Immutable>(command: Command, body: &T, room: u16) -> Self {
        let body = body.as_bytes();
        let in_len =
            u16::try_from(body.len()).expect("no structure of the ABI is larger than 320 bytes");
        let header = Header {
            cmd: command.0,
            in_len,
            out_len: room,
        };
        Self {
            request: [header.as_bytes(), body].concat(),
            inline: Vec::new(),
            answer: PhantomData,
        }
    }

    fn beside(mut self, inline: &[u8]) -> Self {
        self.inline = inline.to_vec();
        self
    }

    /// The bytes of the request: header and structure.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// What travels beside the structure: an option's value, or the old channel's token.
    #[must_use]
    pub fn inline(&self) -> &[u8] {
        &self.inline
    }

    /// Both parts, for a batch.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, Vec<u8>) {
        (self.request, self.inline)
    }

    /// The request as an item of a message to the service, for the channel with this token.
    #[must_use]
    pub fn into_item(self, channel: u64) -> WriteItem {
        WriteItem {
            channel,
            request: self.request,
            inline: self.inline,
            id_from: None,
        }
    }

    /// Reads the answer to this call.
    ///
    /// # Errors
    /// The bytes are not an answer to it.
    pub fn decode(&self, answer: &[u8]) -> Result<A, BadAnswer> {
        A::decode(answer)
    }
}

fn structure<T: zerocopy::FromBytes>(bytes: &[u8]) -> Result<T, BadAnswer> {
    abi::read(bytes).ok_or(BadAnswer::TooShort {
        given: bytes.len(),
        needed: size_of::<T>(),
    })
}

/// An identifier's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdNumber(pub u32);

/// The number of a multicast join; another number space than that of identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JoinNumber(pub u32);

/// How many events were delivered over an identifier's, or a join's, life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventsReported(pub u32);

impl Answer for () {
    const ROOM: u16 = 0;
    fn decode(_: &[u8]) -> Result<Self, BadAnswer> {
        Ok(())
    }
}

impl Answer for IdNumber {
    const ROOM: u16 = 4;
    fn decode(bytes: &[u8]) -> Result<Self, BadAnswer> {
        structure::<abi::CreateIdResp>(bytes).map(|resp| Self(resp.id))
    }
}

impl Answer for JoinNumber {
    const ROOM: u16 = 4;
    fn decode(bytes: &[u8]) -> Result<Self, BadAnswer> {
        structure::<abi::CreateIdResp>(bytes).map(|resp| Self(resp.id))
    }
}

impl Answer for EventsReported {
    const ROOM: u16 = 4;
    fn decode(bytes: &[u8]) -> Result<Self, BadAnswer> {
        structure::<abi::DestroyIdResp>(bytes).map(|resp| Self(resp.events_reported))
    }
}

impl Answer for UverbsQpAttr {
    const ROOM: u16 = 144;
    fn decode(bytes: &[u8]) -> Result<Self, BadAnswer> {
        structure(bytes)
    }
}

/// The answer to [`query_addr`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The local address, once there is one.
    pub local: Option<SocketAddr>,
    /// The remote address, once there is one.
    pub remote: Option<SocketAddr>,
    /// The device, once the identifier is bound to one.
    pub device: Option<DeviceRef>,
}

/// The device that an identifier is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRef {
    /// Its GUID; never 0.
    pub guid: u64,
    /// Its index.
    pub index: u32,
    /// Its port.
    pub port: u8,
    /// The partition key: 0 on RoCE, except for loopback destinations, as in Linux.
    pub pkey: u16,
}

fn optional_address(size: u16, addr: &SockaddrStorage) -> Result<Option<SocketAddr>, BadAnswer> {
    if size == 0 {
        Ok(None)
    } else {
        addr.to_addr().map(Some).map_err(BadAnswer::Address)
    }
}

fn device_of(answer: &QueryAddrResp) -> Option<DeviceRef> {
    let guid = u64::from_be_bytes(answer.node_guid);
    // Index 0 is a valid device; only the GUID tells that there is none.
    (guid != 0).then(|| DeviceRef {
        guid,
        index: answer.ibdev_index,
        port: answer.port_num,
        pkey: u16::from_be_bytes(answer.pkey),
    })
}

impl Answer for Addresses {
    const ROOM: u16 = 280;
    fn decode(bytes: &[u8]) -> Result<Self, BadAnswer> {
        let answer: QueryAddrResp = structure(bytes)?;
        Ok(Self {
            local: optional_address(answer.src_size, &answer.src_addr)?,
            remote: optional_address(answer.dst_size, &answer.dst_addr)?,
            device: device_of(&answer),
        })
    }
}

/// The answer to [`query_gid`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gids {
    /// The local GID, all zeros before it is known.
    pub local: [u8; 16],
    /// The remote GID, all zeros before it is known.
    pub remote: [u8; 16],
    /// The device, once the identifier is bound to one.
    pub device: Option<DeviceRef>,
}

impl Answer for Gids {
    const ROOM: u16 = 280;
    fn decode(bytes: &[u8]) -> Result<Self, BadAnswer> {
        let answer: QueryAddrResp = structure(bytes)?;
        let gid = |addr: &SockaddrStorage| addr.to_ib().map_or([0; 16], |ib| ib.addr);
        Ok(Self {
            local: gid(&answer.src_addr),
            remote: gid(&answer.dst_addr),
            device: device_of(&answer),
        })
    }
}

/// The answer to [`query_path`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths(pub Vec<IbPathRecData>);

impl Answer for Paths {
    const ROOM: u16 = (size_of::<QueryPathResp>() + 2 * size_of::<IbPathRecData>()) as u16;
    fn decode(bytes: &[u8]) -> Result<Self, BadAnswer> {
        structure::<QueryPathResp>(bytes)?;
        let records = &bytes[size_of::<QueryPathResp>()..];
        Ok(Self(
            records
                .chunks_exact(size_of::<IbPathRecData>())
                .filter_map(abi::read)
                .collect(),
        ))
    }
}

/// Connection parameters for [`connect`] and [`accept`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Param {
    /// Private data for the remote side.
    pub private_data: Vec<u8>,
    /// Reads and atomics accepted from the remote side.
    pub responder_resources: u8,
    /// Reads and atomics issued to the remote side.
    pub initiator_depth: u8,
    /// Whether end-to-end flow control is available.
    pub flow_control: bool,
    /// Retries, 3 bits; ignored when accepting.
    pub retry_count: u8,
    /// Retries after receiver-not-ready, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub srq: bool,
    /// The local queue pair.
    pub qp_num: u32,
    /// Options of enhanced connection establishment, in [`connect`] of a connected identifier and in [`accept`]; a vendor
    /// id has 24 bits. Zero for none.
    pub ece: Ece,
}

impl Param {
    fn encode(&self) -> Result<ConnParam, PrivateDataLength> {
        let mut param = ConnParam {
            qp_num: self.qp_num,
            srq: self.srq.into(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            valid: 1,
            ..ConnParam::new_zeroed()
        };
        param.set_private_data(&self.private_data)?;
        Ok(param)
    }
}

/// CREATE_ID: makes an identifier with the caller's own value `uid`.
#[must_use]
pub fn create_id(uid: u64, port_space: u16, qp_type: u8) -> Call<IdNumber> {
    let body = CreateId {
        uid,
        response: 0,
        ps: port_space,
        qp_type,
        reserved: [0; 5],
    };
    Call::new(Command::CREATE_ID, &body)
}

/// DESTROY_ID.
#[must_use]
pub fn destroy_id(id: IdNumber) -> Call<EventsReported> {
    Call::new(
        Command::DESTROY_ID,
        &DestroyId {
            response: 0,
            id: id.0,
            reserved: 0,
        },
    )
}

/// BIND.
#[must_use]
pub fn bind(id: IdNumber, addr: SocketAddr) -> Call<()> {
    let addr = SockaddrStorage::from(addr);
    Call::new(
        Command::BIND,
        &Bind {
            id: id.0,
            addr_size: addr.abi_size(),
            reserved: 0,
            addr,
        },
    )
}

/// RESOLVE_ADDR: finds the device and the source for a destination.
#[must_use]
pub fn resolve_addr(
    id: IdNumber,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    timeout_ms: u32,
) -> Call<()> {
    let src_addr = source.map_or_else(SockaddrStorage::new_zeroed, SockaddrStorage::from);
    let dst_addr = SockaddrStorage::from(destination);
    let body = ResolveAddr {
        id: id.0,
        timeout_ms,
        src_size: src_addr.abi_size(),
        dst_size: dst_addr.abi_size(),
        reserved: 0,
        src_addr,
        dst_addr,
    };
    Call::new(Command::RESOLVE_ADDR, &body)
}

/// RESOLVE_ROUTE.
#[must_use]
pub fn resolve_route(id: IdNumber, timeout_ms: u32) -> Call<()> {
    Call::new(
        Command::RESOLVE_ROUTE,
        &ResolveRoute {
            id: id.0,
            timeout_ms,
        },
    )
}

/// QUERY, option ADDR.
#[must_use]
pub fn query_addr(id: IdNumber) -> Call<Addresses> {
    Call::new(
        Command::QUERY,
        &Query {
            response: 0,
            id: id.0,
            option: query_option::ADDR,
        },
    )
}

/// QUERY, option GID.
#[must_use]
pub fn query_gid(id: IdNumber) -> Call<Gids> {
    Call::new(
        Command::QUERY,
        &Query {
            response: 0,
            id: id.0,
            option: query_option::GID,
        },
    )
}

/// QUERY, option PATH.
#[must_use]
pub fn query_path(id: IdNumber) -> Call<Paths> {
    Call::new(
        Command::QUERY,
        &Query {
            response: 0,
            id: id.0,
            option: query_option::PATH,
        },
    )
}

/// CONNECT.
///
/// # Errors
/// The private data is longer than the request can say; what the transport carries is checked by the service.
pub fn connect(id: IdNumber, param: &Param) -> Result<Call<()>, PrivateDataLength> {
    let body = Connect {
        conn_param: param.encode()?,
        id: id.0,
        reserved: 0,
        ece: param.ece,
    };
    Ok(Call::new(Command::CONNECT, &body))
}

/// LISTEN.
#[must_use]
pub fn listen(id: IdNumber, backlog: i32) -> Call<()> {
    Call::new(Command::LISTEN, &Listen { id: id.0, backlog })
}

/// ACCEPT on the passive side; the identifier's own value becomes `uid`.
///
/// # Errors
/// As [`connect`].
pub fn accept(id: IdNumber, uid: u64, param: &Param) -> Result<Call<()>, PrivateDataLength> {
    let body = Accept {
        uid,
        conn_param: param.encode()?,
        id: id.0,
        reserved: 0,
        ece: param.ece,
    };
    Ok(Call::new(Command::ACCEPT, &body))
}

/// ACCEPT on the active side: completes the connection after a CONNECT_RESPONSE.
#[must_use]
pub fn establish(id: IdNumber) -> Call<()> {
    Call::new(
        Command::ACCEPT,
        &Accept {
            id: id.0,
            ..Accept::new_zeroed()
        },
    )
}

/// REJECT; reason 0 means consumer defined.
///
/// # Errors
/// The private data is longer than the request can say.
pub fn reject(id: IdNumber, reason: u8, data: &[u8]) -> Result<Call<()>, PrivateDataLength> {
    let private_data_len =
        u8::try_from(data.len()).map_err(|_| PrivateDataLength { given: data.len() })?;
    let mut private_data = [0; MAX_PRIVATE_DATA];
    private_data[..data.len()].copy_from_slice(data);
    let body = Reject {
        id: id.0,
        private_data_len,
        reason,
        reserved: [0; 2],
        private_data,
    };
    Ok(Call::new(Command::REJECT, &body))
}

/// DISCONNECT.
#[must_use]
pub fn disconnect(id: IdNumber) -> Call<()> {
    Call::new(Command::DISCONNECT, &Disconnect { id: id.0 })
}

/// INIT_QP_ATTR: the attributes that lead to a state, see [`abi::qp_state`].
#[must_use]
pub fn init_qp_attr(id: IdNumber, qp_state: u32) -> Call<UverbsQpAttr> {
    Call::new(
        Command::INIT_QP_ATTR,
        &InitQpAttr {
            response: 0,
            id: id.0,
            qp_state,
        },
    )
}

/// GET_EVENT. Never blocks: an empty channel answers `EAGAIN`.
#[must_use]
pub fn get_event() -> Call<Event> {
    Call::new(Command::GET_EVENT, &GetEvent { response: 0 })
}

fn set_option(id: IdNumber, level: u32, optname: u32, value: &[u8]) -> Call<()> {
    let optlen = u32::try_from(value.len()).expect("no option has as many as 2^32 bytes");
    let body = SetOption {
        optval: 0,
        id: id.0,
        level,
        optname,
        optlen,
    };
    Call::new(Command::SET_OPTION, &body).beside(value)
}

/// SET_OPTION, type of service.
#[must_use]
pub fn set_tos(id: IdNumber, tos: u8) -> Call<()> {
    set_option(id, option_level::ID, option_id::TOS, &[tos])
}

/// SET_OPTION, share an address.
#[must_use]
pub fn set_reuseaddr(id: IdNumber, on: bool) -> Call<()> {
    set_option(
        id,
        option_level::ID,
        option_id::REUSEADDR,
        &i32::from(on).to_ne_bytes(),
    )
}

/// SET_OPTION, only the address family given.
#[must_use]
pub fn set_afonly(id: IdNumber, on: bool) -> Call<()> {
    set_option(
        id,
        option_level::ID,
        option_id::AFONLY,
        &i32::from(on).to_ne_bytes(),
    )
}

/// SET_OPTION, acknowledgement timeout, encoded (4.096 us * 2^n).
#[must_use]
pub fn set_ack_timeout(id: IdNumber, timeout: u8) -> Call<()> {
    set_option(id, option_level::ID, option_id::ACK_TIMEOUT, &[timeout])
}

/// SET_OPTION, RNR timer that the local queue pair asks of its peer. A kernel does not know this option.
#[must_use]
pub fn set_min_rnr_timer(id: IdNumber, timer: RnrTimer) -> Call<()> {
    set_own_option(id, option_oarlock::MIN_RNR_TIMER, &[timer.get()])
}

/// SET_OPTION, how long the peer's connection manager may take for an answer. A kernel does not know this option.
#[must_use]
pub fn set_cm_response_timeout(id: IdNumber, timeout: IbTimeout) -> Call<()> {
    set_own_option(id, option_oarlock::CM_RESPONSE_TIMEOUT, &[timeout.get()])
}

/// SET_OPTION, how often a message of the connection manager is sent again. A kernel does not know this option.
#[must_use]
pub fn set_max_cm_retries(id: IdNumber, retries: u8) -> Call<()> {
    set_own_option(id, option_oarlock::MAX_CM_RETRIES, &[retries])
}

/// SET_OPTION, how long CONNECT may take altogether, at least 1 ms; rounded up to whole milliseconds. A kernel does not
/// know this option.
#[must_use]
pub fn set_connect_deadline(id: IdNumber, deadline: Option<Duration>) -> Call<()> {
    let millis = deadline.map_or(0, |deadline| deadline.as_nanos().div_ceil(1_000_000).max(1));
    let millis = u32::try_from(millis).unwrap_or(u32::MAX);
    set_own_option(id, option_oarlock::CONNECT_DEADLINE, &millis.to_ne_bytes())
}

/// SET_OPTION, the path, instead of RESOLVE_ROUTE; ROUTE_RESOLVED follows. Of several records the first with flags
/// [`PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL`](abi::PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL) is used. More than 113 do not fit
/// in one request to the service.
#[must_use]
pub fn set_path(id: IdNumber, records: &[IbPathRecData]) -> Call<()> {
    set_option(id, option_level::IB, option_ib::PATH, records.as_bytes())
}

fn set_own_option(id: IdNumber, optname: u32, value: &[u8]) -> Call<()> {
    set_option(id, option_level::OARLOCK, optname, value)
}

/// NOTIFY, see [`abi::notify_event`].
#[must_use]
pub fn notify(id: IdNumber, event: u32) -> Call<()> {
    Call::new(Command::NOTIFY, &Notify { id: id.0, event })
}

/// JOIN_MCAST: `uid` comes back in the join's events; see [`abi::join_flag`] for the flags.
#[must_use]
pub fn join_multicast(
    id: IdNumber,
    uid: u64,
    group: SocketAddr,
    join_flags: u16,
) -> Call<JoinNumber> {
    let addr = SockaddrStorage::from(group);
    let body = JoinMcast {
        response: 0,
        uid,
        id: id.0,
        addr_size: addr.abi_size(),
        join_flags,
        addr,
    };
    Call::new(Command::JOIN_MCAST, &body)
}

/// LEAVE_MCAST.
#[must_use]
pub fn leave_multicast(join: JoinNumber) -> Call<EventsReported> {
    let body = LeaveMcast {
        response: 0,
        id: join.0,
        reserved: 0,
    };
    Call::new(Command::LEAVE_MCAST, &body)
}

/// WRITE_CM_EVENT: puts an event of kind USER (18) or INTERNAL (19) into the identifier's channel.
#[must_use]
pub fn write_cm_event(id: IdNumber, event: u32, status: i32, arg: u64) -> Call<()> {
    let mut body = WriteCmEvent {
        id: id.0,
        event,
        status: status.cast_unsigned(),
        ..WriteCmEvent::new_zeroed()
    };
    body.param[..8].copy_from_slice(&arg.to_ne_bytes());
    Call::new(Command::WRITE_CM_EVENT, &body)
}

/// MIGRATE_ID: written on the new channel, names the old one by its token.
#[must_use]
pub fn migrate_id(id: IdNumber, old_channel: u64) -> Call<EventsReported> {
    Call::new(
        Command::MIGRATE_ID,
        &MigrateId {
            response: 0,
            id: id.0,
            fd: 0,
        },
    )
    .beside(&old_channel.to_le_bytes())
}
