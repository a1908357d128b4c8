//! The structure of every request.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{MAX_PRIVATE_DATA, SockaddrIn6, SockaddrStorage, UverbsAhAttr, layout};

/// CREATE_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateId {
    /// The caller's own value, which comes back in every event of the identifier.
    pub uid: u64,
    /// Where the kernel would put the answer.
    pub response: u64,
    /// Port space: 0x0002, 0x0106, 0x0111 or 0x013F.
    pub ps: u16,
    /// Queue pair type of the verbs; used with port space IB only.
    pub qp_type: u8,
    /// Unused.
    pub reserved: [u8; 5],
}
layout!(CreateId, 24, { uid: 0, response: 8, ps: 16, qp_type: 18, reserved: 19 });

/// DESTROY_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyId {
    /// Where the kernel would put the answer.
    pub response: u64,
    /// The identifier.
    pub id: u32,
    /// Unused.
    pub reserved: u32,
}
layout!(DestroyId, 16, { response: 0, id: 8, reserved: 12 });

/// BIND_IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BindIp {
    /// Unused.
    pub response: u64,
    /// The address.
    pub addr: SockaddrIn6,
    /// The identifier.
    pub id: u32,
}
layout!(BindIp, 40, { response: 0, addr: 8, id: 36 });

/// BIND.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bind {
    /// The identifier.
    pub id: u32,
    /// The size of `addr` that is used; must be that of its family.
    pub addr_size: u16,
    /// Must be zero.
    pub reserved: u16,
    /// The address.
    pub addr: SockaddrStorage,
}
layout!(Bind, 136, { id: 0, addr_size: 4, reserved: 6, addr: 8 });

/// RESOLVE_IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResolveIp {
    /// The source, or family 0 for none.
    pub src_addr: SockaddrIn6,
    /// The destination.
    pub dst_addr: SockaddrIn6,
    /// The identifier.
    pub id: u32,
    /// How long to wait.
    pub timeout_ms: u32,
}
layout!(ResolveIp, 64, { src_addr: 0, dst_addr: 28, id: 56, timeout_ms: 60 });

/// RESOLVE_ADDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResolveAddr {
    /// The identifier.
    pub id: u32,
    /// How long to wait.
    pub timeout_ms: u32,
    /// The used size of `src_addr`; 0 for no source.
    pub src_size: u16,
    /// The used size of `dst_addr`.
    pub dst_size: u16,
    /// Must be zero.
    pub reserved: u32,
    /// The source.
    pub src_addr: SockaddrStorage,
    /// The destination.
    pub dst_addr: SockaddrStorage,
}
layout!(ResolveAddr, 272, {
    id: 0, timeout_ms: 4, src_size: 8, dst_size: 10, reserved: 12, src_addr: 16, dst_addr: 144,
});

/// RESOLVE_ROUTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResolveRoute {
    /// The identifier.
    pub id: u32,
    /// How long to wait; 0 is an error.
    pub timeout_ms: u32,
}
layout!(ResolveRoute, 8, { id: 0, timeout_ms: 4 });

/// QUERY_ROUTE and QUERY.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Query {
    /// Where the kernel would put the answer.
    pub response: u64,
    /// The identifier.
    pub id: u32,
    /// What to read, see [`query_option`]; ignored by QUERY_ROUTE.
    pub option: u32,
}
layout!(Query, 16, { response: 0, id: 8, option: 12 });

/// The values of [`Query::option`].
pub mod query_option {
    /// Addresses as they were given.
    pub const ADDR: u32 = 0;
    /// Path records.
    pub const PATH: u32 = 1;
    /// Addresses in their GID form.
    pub const GID: u32 = 2;
    /// Service records (Linux 6.17).
    pub const IB_SERVICE: u32 = 3;
}

/// Connection parameters in CONNECT, ACCEPT and connection events (`struct rdma_ucm_conn_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConnParam {
    /// The queue pair's number; the low 24 bits count.
    pub qp_num: u32,
    /// Used with AF_IB addresses only.
    pub qkey: u32,
    /// Private data; `private_data_len` bytes of it count.
    pub private_data: [u8; MAX_PRIVATE_DATA],
    /// The used length of `private_data`.
    pub private_data_len: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub srq: u8,
    /// Reads and atomics accepted from the remote side.
    pub responder_resources: u8,
    /// Reads and atomics issued to the remote side.
    pub initiator_depth: u8,
    /// Whether end-to-end flow control is available.
    pub flow_control: u8,
    /// Retries, 3 bits.
    pub retry_count: u8,
    /// Retries after receiver-not-ready, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the structure holds anything.
    pub valid: u8,
}
layout!(ConnParam, 272, {
    qp_num: 0, qkey: 4, private_data: 8, private_data_len: 264, srq: 265, responder_resources: 266,
    initiator_depth: 267, flow_control: 268, retry_count: 269, rnr_retry_count: 270, valid: 271,
});

/// Datagram parameters of UD events (`struct rdma_ucm_ud_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UdParam {
    /// The remote queue pair.
    pub qp_num: u32,
    /// The remote queue key.
    pub qkey: u32,
    /// How to reach it.
    pub ah_attr: UverbsAhAttr,
    /// Private data.
    pub private_data: [u8; MAX_PRIVATE_DATA],
    /// The used length of `private_data`.
    pub private_data_len: u8,
    /// Unused.
    pub reserved: [u8; 7],
}
layout!(UdParam, 304, { qp_num: 0, qkey: 4, ah_attr: 8, private_data: 40, private_data_len: 296, reserved: 297 });

/// Enhanced connection establishment options (`struct rdma_ucm_ece`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Ece {
    /// The vendor that defines the options.
    pub vendor_id: u32,
    /// The options.
    pub attr_mod: u32,
}
layout!(Ece, 8, { vendor_id: 0, attr_mod: 4 });

/// CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Connect {
    /// The parameters; must be valid.
    pub conn_param: ConnParam,
    /// The identifier.
    pub id: u32,
    /// Unused.
    pub reserved: u32,
    /// Enhanced connection establishment; absent in older requests.
    pub ece: Ece,
}
layout!(Connect, 288, { conn_param: 0, id: 272, reserved: 276, ece: 280 });

/// LISTEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Listen {
    /// The identifier.
    pub id: u32,
    /// How many requests may wait in the channel; 0 or less, or too many: the maximum.
    pub backlog: i32,
}
layout!(Listen, 8, { id: 0, backlog: 4 });

/// ACCEPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Accept {
    /// The caller's own value for the new identifier.
    pub uid: u64,
    /// The parameters; valid on the passive side, not valid to complete an active connection.
    pub conn_param: ConnParam,
    /// The identifier.
    pub id: u32,
    /// Unused.
    pub reserved: u32,
    /// Enhanced connection establishment; absent in older requests.
    pub ece: Ece,
}
layout!(Accept, 296, { uid: 0, conn_param: 8, id: 280, reserved: 284, ece: 288 });

/// REJECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reject {
    /// The identifier.
    pub id: u32,
    /// The used length of `private_data`.
    pub private_data_len: u8,
    /// 0 or 28: consumer defined; 35: vendor option not supported.
    pub reason: u8,
    /// Unused.
    pub reserved: [u8; 2],
    /// Private data.
    pub private_data: [u8; MAX_PRIVATE_DATA],
}
layout!(Reject, 264, { id: 0, private_data_len: 4, reason: 5, reserved: 6, private_data: 8 });

/// DISCONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Disconnect {
    /// The identifier.
    pub id: u32,
}
layout!(Disconnect, 4, { id: 0 });

/// INIT_QP_ATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitQpAttr {
    /// Where the kernel would put the answer.
    pub response: u64,
    /// The identifier.
    pub id: u32,
    /// The state that the attributes lead to, see [`qp_state`](super::qp_state).
    pub qp_state: u32,
}
layout!(InitQpAttr, 16, { response: 0, id: 8, qp_state: 12 });

/// GET_EVENT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetEvent {
    /// Where the kernel would put the answer.
    pub response: u64,
}
layout!(GetEvent, 8, { response: 0 });

/// SET_OPTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetOption {
    /// Where the kernel would find the value; ours travels beside the structure.
    pub optval: u64,
    /// The identifier.
    pub id: u32,
    /// See [`option_level`].
    pub level: u32,
    /// See [`option_id`] and [`option_ib`].
    pub optname: u32,
    /// The length of the value.
    pub optlen: u32,
}
layout!(SetOption, 24, { optval: 0, id: 8, level: 12, optname: 16, optlen: 20 });

/// The values of [`SetOption::level`].
pub mod option_level {
    /// Options of the identifier.
    pub const ID: u32 = 0;
    /// Options of the InfiniBand transport.
    pub const IB: u32 = 1;
    /// Options that a kernel does not have: the letters `oarl`, a number that no kernel will come to by counting.
    pub const OARLOCK: u32 = 0x6F61_726C;
}

/// Option names at level [`option_level::ID`].
pub mod option_id {
    /// Type of service, 1 byte.
    pub const TOS: u32 = 0;
    /// Share an address that another identifier shares too, 4 bytes.
    pub const REUSEADDR: u32 = 1;
    /// Only the address family given, 4 bytes.
    pub const AFONLY: u32 = 2;
    /// Acknowledgement timeout of the queue pair, 1 byte: 4.096 us * 2^n.
    pub const ACK_TIMEOUT: u32 = 3;
}

/// Option names at level [`option_level::OARLOCK`].
pub mod option_oarlock {
    /// RNR timer that the local queue pair asks of its peer, 1 byte: the 5-bit code.
    pub const MIN_RNR_TIMER: u32 = 0;
    /// How long the peer's connection manager may take for an answer, 1 byte: 4.096 us * 2^n.
    pub const CM_RESPONSE_TIMEOUT: u32 = 1;
    /// How often a message of the connection manager is sent again, 1 byte: at most 15.
    pub const MAX_CM_RETRIES: u32 = 2;
    /// How long CONNECT may take altogether, 4 bytes: milliseconds, 0 for no such limit.
    pub const CONNECT_DEADLINE: u32 = 3;
}

/// Option names at level [`option_level::IB`].
pub mod option_ib {
    /// Path records for the connection, a multiple of 72 bytes: [`IbPathRecData`](crate::abi::IbPathRecData).
    pub const PATH: u32 = 1;
}

/// NOTIFY.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Notify {
    /// The identifier.
    pub id: u32,
    /// See [`notify_event`].
    pub event: u32,
}
layout!(Notify, 8, { id: 0, event: 4 });

/// The values of [`Notify::event`] that are known, numbered as the verbs number asynchronous events.
pub mod notify_event {
    /// The first message arrived before the connection was established.
    pub const COMM_EST: u32 = 4;
    /// The alternate path is in use.
    pub const PATH_MIG: u32 = 6;
}

/// MIGRATE_ID, written on the channel that the identifier moves to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MigrateId {
    /// Where the kernel would put the answer.
    pub response: u64,
    /// The identifier.
    pub id: u32,
    /// The old channel's descriptor; over a socket the old channel's token travels beside the structure.
    pub fd: u32,
}
layout!(MigrateId, 16, { response: 0, id: 8, fd: 12 });

/// JOIN_IP_MCAST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JoinIpMcast {
    /// Where the kernel would put the answer.
    pub response: u64,
    /// The caller's own value.
    pub uid: u64,
    /// The group.
    pub addr: SockaddrIn6,
    /// The identifier.
    pub id: u32,
}
layout!(JoinIpMcast, 48, { response: 0, uid: 8, addr: 16, id: 44 });

/// LEAVE_MCAST; the same shape as [`DestroyId`], with the number of the join.
pub type LeaveMcast = DestroyId;

/// JOIN_MCAST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JoinMcast {
    /// Where the kernel would put the answer.
    pub response: u64,
    /// The caller's own value.
    pub uid: u64,
    /// The identifier.
    pub id: u32,
    /// The used size of `addr`.
    pub addr_size: u16,
    /// See [`join_flag`].
    pub join_flags: u16,
    /// The group.
    pub addr: SockaddrStorage,
}
layout!(JoinMcast, 152, { response: 0, uid: 8, id: 16, addr_size: 20, join_flags: 22, addr: 24 });

/// The values of [`JoinMcast::join_flags`].
pub mod join_flag {
    /// To receive and to send.
    pub const FULL_MEMBER: u16 = 0;
    /// To send only: the interface does not join the group.
    pub const SEND_ONLY_FULL_MEMBER: u16 = 1;
}

/// A service record to resolve (`struct rdma_ucm_ib_service`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IbService {
    /// The service's number, big endian.
    pub service_id: [u8; 8],
    /// The service's name.
    pub service_name: [u8; 64],
    /// 1: by number, 2: by name.
    pub flags: u32,
    /// Unused.
    pub reserved: u32,
}
layout!(IbService, 80, { service_id: 0, service_name: 8, flags: 72, reserved: 76 });

/// RESOLVE_IB_SERVICE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResolveIbService {
    /// The identifier.
    pub id: u32,
    /// Unused.
    pub reserved: u32,
    /// What to look for.
    pub ibs: IbService,
}
layout!(ResolveIbService, 88, { id: 0, reserved: 4, ibs: 8 });

/// WRITE_CM_EVENT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteCmEvent {
    /// The identifier.
    pub id: u32,
    /// Unused.
    pub reserved: u32,
    /// The event's number.
    pub event: u32,
    /// The event's status.
    pub status: u32,
    /// The event's parameters: a [`ConnParam`], a [`UdParam`] or 8 bytes of the caller's own.
    pub param: [u8; 304],
}
layout!(WriteCmEvent, 320, { id: 0, reserved: 4, event: 8, status: 12, param: 16 });

impl Default for ConnParam {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

impl ConnParam {
    /// The private data that counts.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data[..usize::from(self.private_data_len)]
    }

    /// Puts private data in; what does not fit in 255 bytes is the caller's error.
    ///
    /// # Errors
    /// `data` is longer than the length field can say.
    pub fn set_private_data(&mut self, data: &[u8]) -> Result<(), PrivateDataLength> {
        let len = u8::try_from(data.len()).map_err(|_| PrivateDataLength { given: data.len() })?;
        self.private_data = [0; MAX_PRIVATE_DATA];
        self.private_data[..data.len()].copy_from_slice(data);
        self.private_data_len = len;
        Ok(())
    }
}

/// More private data than the ABI's length field can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("private data of {given} bytes; the request has room for 255")]
pub struct PrivateDataLength {
    /// How many bytes were given.
    pub given: usize,
}
