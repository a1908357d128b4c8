//! The rdma_ucm ABI, version 4: what one `write(2)` on `/dev/infiniband/rdma_cm` carries.
//!
//! A request is an 8-byte [`Header`] and the structure of its command; the answer is another structure. All fields are in
//! host byte order unless their name or documentation says big endian. Sizes and offsets are those of Linux
//! `include/uapi/rdma/rdma_user_cm.h` and are asserted when this crate is compiled; `tests/layout.rs` asks a C compiler too.
//!
//! ```text
//!   0        4     6     8
//!   +--------+-----+-----+------------------------------+
//!   |  cmd   | in  | out | structure of `in` bytes ...  |
//!   +--------+-----+-----+------------------------------+
//! ```
//!
//! The pointers of the ABI (`response`, `optval`) are carried and ignored: over a socket, answers and option values travel
//! beside the structure.

mod path;
mod qp_attr;
mod request;
mod response;
mod sockaddr;

pub use path::{IbPathRecData, IbUserPathRec, PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL};
pub use qp_attr::{BadQpAttr, UverbsAhAttr, UverbsQpAttr, qp_attr_mask, qp_state};
pub use request::*;
pub use response::*;
pub use sockaddr::{
    AF_IB, AF_INET, AF_INET6, SockaddrIb, SockaddrIn6, SockaddrStorage, UnusableAddress,
};

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of the ABI spoken here.
pub const ABI_VERSION: u32 = 4;

/// The size of the private data area in requests and events (`RDMA_MAX_PRIVATE_DATA`).
pub const MAX_PRIVATE_DATA: usize = 256;

/// The size of [`Header`].
pub const HEADER_LEN: usize = size_of::<Header>();

/// Asserts the size of a structure and the offsets of its fields when the crate is compiled.
macro_rules! layout {
    ($name:ident, $size:literal, { $($field:ident: $offset:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}
pub(crate) use layout;

/// What every request begins with (`struct rdma_ucm_cmd_hdr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// The command's number, see [`Command`].
    pub cmd: u32,
    /// How many bytes of structure follow.
    pub in_len: u16,
    /// How many bytes the caller has room for in the answer.
    pub out_len: u16,
}
layout!(Header, 8, { cmd: 0, in_len: 4, out_len: 6 });

/// The number of a command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Command(pub u32);

/// One line of the command table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandInfo {
    /// The command.
    pub command: Command,
    /// The kernel header's name without its prefix `RDMA_USER_CM_CMD_`.
    pub name: &'static str,
    /// The size of the request structure, without the header.
    pub request: usize,
    /// The smallest request accepted: older callers send less where the structure has grown.
    pub request_min: usize,
    /// The size of the answer; 0 where there is none. QUERY's depends on its option.
    pub response: usize,
    /// Whether the command needs an identifier that is bound to a device.
    pub needs_device: bool,
}

impl Command {
    /// Makes an identifier.
    pub const CREATE_ID: Self = Self(0);
    /// Destroys an identifier.
    pub const DESTROY_ID: Self = Self(1);
    /// Binds to an IPv4 or IPv6 address (old form).
    pub const BIND_IP: Self = Self(2);
    /// Resolves an IPv4 or IPv6 address (old form).
    pub const RESOLVE_IP: Self = Self(3);
    /// Resolves a route.
    pub const RESOLVE_ROUTE: Self = Self(4);
    /// Reads addresses and paths (old form).
    pub const QUERY_ROUTE: Self = Self(5);
    /// Connects.
    pub const CONNECT: Self = Self(6);
    /// Listens.
    pub const LISTEN: Self = Self(7);
    /// Accepts a request, or completes an active connection.
    pub const ACCEPT: Self = Self(8);
    /// Rejects a request.
    pub const REJECT: Self = Self(9);
    /// Disconnects.
    pub const DISCONNECT: Self = Self(10);
    /// Asks for queue pair attributes.
    pub const INIT_QP_ATTR: Self = Self(11);
    /// Takes the next event.
    pub const GET_EVENT: Self = Self(12);
    /// Never existed behind its number: every kernel answers `ENOSYS`, and so does the dispatcher.
    pub const GET_OPTION: Self = Self(13);
    /// Sets an option.
    pub const SET_OPTION: Self = Self(14);
    /// Reports an event of the queue pair.
    pub const NOTIFY: Self = Self(15);
    /// Joins a multicast group (old form).
    pub const JOIN_IP_MCAST: Self = Self(16);
    /// Leaves a multicast group.
    pub const LEAVE_MCAST: Self = Self(17);
    /// Moves an identifier to the channel that the request is written on.
    pub const MIGRATE_ID: Self = Self(18);
    /// Reads addresses, GIDs or paths.
    pub const QUERY: Self = Self(19);
    /// Binds to an address.
    pub const BIND: Self = Self(20);
    /// Resolves an address.
    pub const RESOLVE_ADDR: Self = Self(21);
    /// Joins a multicast group.
    pub const JOIN_MCAST: Self = Self(22);
    /// Resolves an InfiniBand service record (Linux 6.17).
    pub const RESOLVE_IB_SERVICE: Self = Self(23);
    /// Puts an event of the caller's own into a channel (Linux 6.17).
    pub const WRITE_CM_EVENT: Self = Self(24);

    /// The line of this command in [`COMMANDS`], if the number is known.
    #[must_use]
    pub fn info(self) -> Option<&'static CommandInfo> {
        COMMANDS.get(usize::try_from(self.0).ok()?)
    }

    /// Where an identifier's number stands in the request's structure; `None` where there is none, as in CREATE_ID, and in
    /// LEAVE_MCAST, which names a join.
    #[must_use]
    pub const fn id_offset(self) -> Option<usize> {
        Some(match self {
            Self::DESTROY_ID => std::mem::offset_of!(DestroyId, id),
            Self::BIND_IP => std::mem::offset_of!(BindIp, id),
            Self::RESOLVE_IP => std::mem::offset_of!(ResolveIp, id),
            Self::RESOLVE_ROUTE => std::mem::offset_of!(ResolveRoute, id),
            Self::QUERY_ROUTE | Self::QUERY => std::mem::offset_of!(Query, id),
            Self::CONNECT => std::mem::offset_of!(Connect, id),
            Self::LISTEN => std::mem::offset_of!(Listen, id),
            Self::ACCEPT => std::mem::offset_of!(Accept, id),
            Self::REJECT => std::mem::offset_of!(Reject, id),
            Self::DISCONNECT => std::mem::offset_of!(Disconnect, id),
            Self::INIT_QP_ATTR => std::mem::offset_of!(InitQpAttr, id),
            Self::SET_OPTION => std::mem::offset_of!(SetOption, id),
            Self::NOTIFY => std::mem::offset_of!(Notify, id),
            Self::JOIN_IP_MCAST => std::mem::offset_of!(JoinIpMcast, id),
            Self::MIGRATE_ID => std::mem::offset_of!(MigrateId, id),
            Self::BIND => std::mem::offset_of!(Bind, id),
            Self::RESOLVE_ADDR => std::mem::offset_of!(ResolveAddr, id),
            Self::JOIN_MCAST => std::mem::offset_of!(JoinMcast, id),
            Self::RESOLVE_IB_SERVICE => std::mem::offset_of!(ResolveIbService, id),
            Self::WRITE_CM_EVENT => std::mem::offset_of!(WriteCmEvent, id),
            _ => return None,
        })
    }

    /// The name, `CREATE_ID`; `None` for an unknown number.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.info().map(|info| info.name)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "command {}", self.0),
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const fn line(
    command: Command,
    name: &'static str,
    request: usize,
    request_min: usize,
    response: usize,
    needs_device: bool,
) -> CommandInfo {
    CommandInfo {
        command,
        name,
        request,
        request_min,
        response,
        needs_device,
    }
}

/// Every command, at the index of its number.
pub const COMMANDS: [CommandInfo; 25] = [
    line(Command::CREATE_ID, "CREATE_ID", 24, 24, 4, false),
    line(Command::DESTROY_ID, "DESTROY_ID", 16, 16, 4, false),
    line(Command::BIND_IP, "BIND_IP", 40, 40, 0, false),
    line(Command::RESOLVE_IP, "RESOLVE_IP", 64, 64, 0, false),
    line(Command::RESOLVE_ROUTE, "RESOLVE_ROUTE", 8, 8, 0, true),
    line(Command::QUERY_ROUTE, "QUERY_ROUTE", 16, 16, 208, false),
    line(Command::CONNECT, "CONNECT", 288, 280, 0, true),
    line(Command::LISTEN, "LISTEN", 8, 8, 0, false),
    line(Command::ACCEPT, "ACCEPT", 296, 288, 0, true),
    line(Command::REJECT, "REJECT", 264, 264, 0, true),
    line(Command::DISCONNECT, "DISCONNECT", 4, 4, 0, true),
    line(Command::INIT_QP_ATTR, "INIT_QP_ATTR", 16, 16, 144, true),
    line(Command::GET_EVENT, "GET_EVENT", 8, 8, 336, false),
    line(Command::GET_OPTION, "GET_OPTION", 0, 0, 0, false),
    line(Command::SET_OPTION, "SET_OPTION", 24, 24, 0, false),
    line(Command::NOTIFY, "NOTIFY", 8, 8, 0, false),
    line(Command::JOIN_IP_MCAST, "JOIN_IP_MCAST", 48, 48, 4, true),
    line(Command::LEAVE_MCAST, "LEAVE_MCAST", 16, 16, 4, false),
    line(Command::MIGRATE_ID, "MIGRATE_ID", 16, 16, 4, false),
    line(Command::QUERY, "QUERY", 16, 16, 0, false),
    line(Command::BIND, "BIND", 136, 136, 0, false),
    line(Command::RESOLVE_ADDR, "RESOLVE_ADDR", 272, 272, 0, false),
    line(Command::JOIN_MCAST, "JOIN_MCAST", 152, 152, 4, true),
    line(
        Command::RESOLVE_IB_SERVICE,
        "RESOLVE_IB_SERVICE",
        88,
        88,
        0,
        false,
    ),
    line(
        Command::WRITE_CM_EVENT,
        "WRITE_CM_EVENT",
        320,
        320,
        0,
        false,
    ),
];

/// Reads the structure at the start of `bytes`, wherever it is aligned; `None` when there are too few.
pub fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// Reads a structure that has grown: what an older caller did not send is zero.
pub fn read_grown<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    let room = value.as_mut_bytes();
    let n = bytes.len().min(room.len());
    room[..n].copy_from_slice(&bytes[..n]);
    value
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    #[test]
    fn every_command_stands_at_its_number() {
        for (number, info) in COMMANDS.iter().enumerate() {
            assert_eq!(info.command.0 as usize, number, "{}", info.name);
            assert!(info.request_min <= info.request, "{}", info.name);
        }
        assert_eq!(Command(25).info(), None);
        assert_eq!(Command(25).to_string(), "command 25");
        assert_eq!(Command::MIGRATE_ID.to_string(), "MIGRATE_ID");
    }

    #[test]
    fn a_short_request_reads_as_zeros_after_its_end() {
        let full = Connect {
            id: 7,
            ece: Ece {
                vendor_id: 1,
                attr_mod: 2,
            },
            ..Connect::new_zeroed()
        };
        let old: Connect = read_grown(&full.as_bytes()[..280]);
        assert_eq!(old.id, 7);
        assert_eq!(
            old.ece,
            Ece {
                vendor_id: 0,
                attr_mod: 0
            }
        );
        assert!(read::<Connect>(&full.as_bytes()[..287]).is_none());
    }
}
