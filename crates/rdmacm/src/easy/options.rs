//! What connecting and accepting have in common.

use super::Connection;
use crate::error::{Error, Result};
use crate::param::ConnParam;
use oarlock_verbs::{ProtectionDomain, QueuePair};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the host may take for one resolution; a deadline may end the wait before.
pub(crate) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The depths of a connection's, or a datagram socket's, queues: at most
/// [`max_qp_wr`](oarlock_verbs::DeviceLimits::max_qp_wr) of the device, 64 by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueSizes {
    /// Sends that may be outstanding.
    pub send: u32,
    /// Receives that may be posted.
    pub receive: u32,
}

impl Default for QueueSizes {
    fn default() -> Self {
        Self {
            send: 64,
            receive: 64,
        }
    }
}

impl QueueSizes {
    /// Both depths.
    #[must_use]
    pub fn new(send: u32, receive: u32) -> Self {
        Self { send, receive }
    }
}

/// How connections are made: by a [`Connector`](crate::Connector) and by a [`Listener`](crate::Listener) alike.
///
/// ```
/// # use oarlock_rdmacm::{ConnectionOptions, ConnParam, QueueSizes};
/// # use oarlock_verbs::Buffer;
/// # use std::time::Duration;
/// let options = ConnectionOptions::new()
///     .param(ConnParam::default().private_data(b"version 3"))
///     .queue_sizes(QueueSizes::new(16, 128))
///     .deadline(Duration::from_secs(10))
///     .prepare(|queue_pair, pd| {
///         for number in 0..128 {
///             queue_pair.post_recv(number, Buffer::new(pd, 4096)?)?;
///         }
///         Ok(())
///     });
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectionOptions {
    param: ConnParam,
    sizes: QueueSizes,
    deadline: Option<Duration>,
    prepared: Prepared,
}

type Prepare =
    dyn Fn(&QueuePair, &ProtectionDomain) -> Result<(), oarlock_verbs::Error> + Send + Sync;

/// Called with the queue pair before the connection exists, to post receives.
#[derive(Clone, Default)]
struct Prepared(Option<Arc<Prepare>>);

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "given" } else { "none" })
    }
}

impl ConnectionOptions {
    /// Default parameters and queues, nothing prepared, no deadline.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is sent along with the request, or with every acceptance.
    #[must_use]
    pub fn param(mut self, param: ConnParam) -> Self {
        self.param = param;
        self
    }

    /// The depths of the queues.
    #[must_use]
    pub fn queue_sizes(mut self, sizes: QueueSizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// The longest that one `connect` or one `accept` may take in all, for an `accept` the wait for a peer included. Without
    /// it `connect` ends when the connection manager's retries are used up (74 s, unless the host is configured otherwise),
    /// and `accept` waits for as long as it takes.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Posts receives before the peer can send.
    #[must_use]
    pub fn prepare(
        mut self,
        prepare: impl Fn(&QueuePair, &ProtectionDomain) -> Result<(), oarlock_verbs::Error>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.prepared = Prepared(Some(Arc::new(prepare)));
        self
    }

    pub(crate) fn conn_param(&self) -> &ConnParam {
        &self.param
    }

    pub(crate) fn sizes(&self) -> QueueSizes {
        self.sizes
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.deadline
    }

    /// When a call that begins now has to end; one beyond what the clock can express does not have to.
    pub(crate) fn until(&self) -> Option<Instant> {
        Instant::now().checked_add(self.deadline?)
    }

    pub(super) fn run_prepared(&self, call: &'static str, connection: &Connection) -> Result<()> {
        match &self.prepared.0 {
            None => Ok(()),
            Some(prepare) => prepare(&connection.queue_pair, &connection.pd)
                .map_err(|source| Error::Verbs { call, source }),
        }
    }
}
