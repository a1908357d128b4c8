//! The states of an identifier, under the names that the kernel's rdma_cm gives them.

use core::fmt;

/// What an identifier is doing.
///
/// ```text
///            bind_addr            resolve_addr        (lookup)
///   IDLE ---------------> ADDR_BOUND ---------> ADDR_QUERY -----> ADDR_RESOLVED
///                          |      ^                 |                  | resolve_route
///                   listen |      +-----------------+                  v
///                          v        ADDR_ERROR               ROUTE_QUERY > ROUTE_RESOLVED
///                        LISTEN                                        | connect
///                          | a REQ makes a child                       v
///                          +--------------------------------------> CONNECT
///                                                                      | DREQ or DREP
///                                                                      v
///                                                                  DISCONNECT
/// ```
///
/// `resolve_addr` and `listen` bind an idle identifier by themselves. A device that goes away leads to DEVICE_REMOVAL
/// from every state that has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum State {
    /// New: no address.
    Idle,
    /// Has a local address and port.
    AddrBound,
    /// Waits for a route lookup.
    AddrQuery,
    /// Knows its peer's address, its device and the way there.
    AddrResolved,
    /// Waits for a path.
    RouteQuery,
    /// Has a path.
    RouteResolved,
    /// Listens.
    Listen,
    /// Connecting or connected; the IB CM's state says which.
    Connect,
    /// Disconnected.
    Disconnect,
    /// Its device has gone; only destroying it is left.
    DeviceRemoval,
}

impl State {
    /// The name in the kernel's spelling.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "IDLE",
            Self::AddrBound => "ADDR_BOUND",
            Self::AddrQuery => "ADDR_QUERY",
            Self::AddrResolved => "ADDR_RESOLVED",
            Self::RouteQuery => "ROUTE_QUERY",
            Self::RouteResolved => "ROUTE_RESOLVED",
            Self::Listen => "LISTEN",
            Self::Connect => "CONNECT",
            Self::Disconnect => "DISCONNECT",
            Self::DeviceRemoval => "DEVICE_REMOVAL",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
