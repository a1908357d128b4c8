//! Async calls on the tokio runtime (feature `tokio`).
//!
//! | Type | Is to |
//! |---|---|
//! | [`AsyncHost`] | [`Host`](crate::Host): reads the events of all its identifiers through one descriptor |
//! | [`AsyncIdentifier`] | [`Identifier`](crate::Identifier): calls that wait for their outcome |
//! | [`AsyncConnector`], [`AsyncListener`], [`AsyncConnection`] | the short way |
//! | [`AsyncCompletionQueue`] | [`CompletionQueue`](oarlock_verbs::CompletionQueue) |
//! | [`AsyncEventChannel`] | [`EventChannel`](crate::EventChannel), for programs that sort events themselves |
//!
//! # Cancellation
//! Every future may be dropped at any await; each call says what is left then. One rule holds for all: what was fetched (an
//! event, a completion, a connection) is returned in the same step, never dropped with a future. A fetched event that
//! nobody waits for is kept with its identifier, for the next call.
//!
//! Deadlines are tokio's: `tokio::time::timeout` around any call.
//!
//! # Blocking
//! Commands go to the host service and back (tens of microseconds; the service never waits for anything) on the thread that
//! polls the future. Nothing else blocks.
//!
//! # Runtime
//! Any flavour with I/O and time enabled (`enable_all`). Other runtimes: [`EventChannel`](crate::EventChannel) has a
//! descriptor and [`poll_event`](crate::EventChannel::poll_event).

mod channel;
mod completion;
mod connection;
mod connector;
mod host;
mod identifier;
mod listener;

pub use channel::AsyncEventChannel;
pub use completion::AsyncCompletionQueue;
pub use connection::AsyncConnection;
pub use connector::AsyncConnector;
pub use host::AsyncHost;
pub use identifier::AsyncIdentifier;
pub use listener::AsyncListener;
