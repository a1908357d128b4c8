//! The short way: an address becomes a connection.

mod connection;
mod connector;
mod datagrams;
pub(crate) mod intake;
mod listener;
mod options;
pub(crate) mod work;

pub use connection::Connection;
#[cfg(feature = "tokio")]
pub(crate) use connection::{ends, succeeded};
pub use connector::Connector;
pub use datagrams::{Datagram, DatagramSocket, Destination};
pub use listener::Listener;
#[cfg(feature = "tokio")]
pub(crate) use options::RESOLVE_TIMEOUT;
pub use options::{ConnectionOptions, QueueSizes};
