//! The structure of every answer.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{ConnParam, Ece, IbUserPathRec, SockaddrIn6, SockaddrStorage, UdParam, layout, read};

/// The answer to CREATE_ID and to the multicast joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateIdResp {
    /// The identifier's number. 0 is a valid one.
    pub id: u32,
}
layout!(CreateIdResp, 4, { id: 0 });

/// The answer to DESTROY_ID and LEAVE_MCAST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyIdResp {
    /// How many events were delivered over the identifier's life.
    pub events_reported: u32,
}
layout!(DestroyIdResp, 4, { events_reported: 0 });

/// The answer to MIGRATE_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MigrateIdResp {
    /// How many events were delivered over the identifier's life so far.
    pub events_reported: u32,
}
layout!(MigrateIdResp, 4, { events_reported: 0 });

/// The answer to QUERY_ROUTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryRouteResp {
    /// The device, big endian; 0 without one.
    pub node_guid: [u8; 8],
    /// Primary and alternate path.
    pub ib_route: [IbUserPathRec; 2],
    /// The local address.
    pub src_addr: SockaddrIn6,
    /// The remote address.
    pub dst_addr: SockaddrIn6,
    /// How many of `ib_route` count.
    pub num_paths: u32,
    /// The device's port.
    pub port_num: u8,
    /// Unused.
    pub reserved: [u8; 3],
    /// The device's index; ambiguous without a device, look at `node_guid`.
    pub ibdev_index: u32,
    /// Unused.
    pub reserved1: u32,
}
layout!(QueryRouteResp, 208, {
    node_guid: 0, ib_route: 8, src_addr: 136, dst_addr: 164, num_paths: 192, port_num: 196, reserved: 197,
    ibdev_index: 200, reserved1: 204,
});

/// The answer to QUERY with options ADDR and GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryAddrResp {
    /// The device, big endian; 0 without one.
    pub node_guid: [u8; 8],
    /// The device's port.
    pub port_num: u8,
    /// Unused.
    pub reserved: u8,
    /// The partition key, big endian.
    pub pkey: [u8; 2],
    /// The used size of `src_addr`.
    pub src_size: u16,
    /// The used size of `dst_addr`.
    pub dst_size: u16,
    /// The local address.
    pub src_addr: SockaddrStorage,
    /// The remote address.
    pub dst_addr: SockaddrStorage,
    /// The device's index; ambiguous without a device, look at `node_guid`.
    pub ibdev_index: u32,
    /// Unused.
    pub reserved1: u32,
}
layout!(QueryAddrResp, 280, {
    node_guid: 0, port_num: 8, reserved: 9, pkey: 10, src_size: 12, dst_size: 14, src_addr: 16, dst_addr: 144,
    ibdev_index: 272, reserved1: 276,
});

/// The start of the answer to QUERY with option PATH; `num_paths` [`IbPathRecData`](super::IbPathRecData) follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryPathResp {
    /// How many paths there are; fewer follow when the caller has less room.
    pub num_paths: u32,
    /// Unused.
    pub reserved: u32,
}
layout!(QueryPathResp, 8, { num_paths: 0, reserved: 4 });

/// The answer to GET_EVENT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EventResp {
    /// The caller's own value for the identifier; of the listener in a connection request.
    pub uid: u64,
    /// The identifier; the new one in a connection request.
    pub id: u32,
    /// The event's number.
    pub event: u32,
    /// 0, a negative errno, or a positive code of the transport.
    pub status: i32,
    /// A [`ConnParam`] or a [`UdParam`].
    pub param: [u8; 304],
    /// Unused.
    pub reserved: u32,
    /// Enhanced connection establishment; absent for older callers.
    pub ece: Ece,
}
layout!(EventResp, 336, { uid: 0, id: 8, event: 12, status: 16, param: 20, reserved: 324, ece: 328 });

impl EventResp {
    /// The smallest answer that callers without ECE have room for.
    pub const MIN_LEN: usize = 324;

    /// The parameters of a connection event.
    #[must_use]
    pub fn conn(&self) -> ConnParam {
        read(&self.param).expect("the union is larger than each member")
    }

    /// The parameters of a datagram event.
    #[must_use]
    pub fn ud(&self) -> UdParam {
        read(&self.param).expect("the union is as large as its largest member")
    }
}
