//! Established connections.

use super::ConnectionOptions;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::identifier::Identifier;
use oarlock_verbs::{CompletionQueue, Context, ProtectionDomain, QpInitAttr, QueuePair};

/// An established connection: an identifier, its queue pair, and a completion queue for each direction. Dropping it
/// disconnects.
#[doc(alias = "rdma_create_ep")]
#[doc(alias = "rdma_destroy_ep")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Connection {
    /// The identifier, synchronous.
    pub id: Identifier,
    /// The queue pair, in state RTS.
    pub queue_pair: QueuePair,
    /// Where memory for messages comes from.
    pub pd: ProtectionDomain,
    /// Completions of sends.
    pub send_cq: CompletionQueue,
    /// Completions of receives.
    pub recv_cq: CompletionQueue,
}

impl Connection {
    /// Ends the connection, and waits until it is down.
    ///
    /// # Errors
    /// [`Error::ServiceGone`]; [`Error::TimedOut`] at the [identifier's deadline](Identifier::set_deadline).
    ///
    /// # Blocking
    /// Until the peer has answered: disconnected as well, or dropped its side. A peer that does neither is asked again
    /// until the retries are used up, more than a minute, or until the identifier's deadline.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(self) -> Result<()> {
        self.id.disconnect()
    }

    /// Waits until the peer ends the connection, and answers.
    ///
    /// # Errors
    /// [`Error::ServiceGone`]; [`Error::TimedOut`] at the [identifier's deadline](Identifier::set_deadline);
    /// [`Error::DeviceRemoved`].
    ///
    /// # Blocking
    /// Until the peer ends the connection, or the identifier's deadline.
    pub fn until_disconnected(self) -> Result<()> {
        while !ends(&self.id.next_event()?)? {}
        self.id.disconnect()
    }

    /// Two completion queues and a queue pair for an identifier that has its device.
    pub(crate) fn prepare(
        call: &'static str,
        id: Identifier,
        options: &ConnectionOptions,
        new_cq: impl Fn(&Context, u32) -> Result<CompletionQueue>,
    ) -> Result<Self> {
        let device = id.device()?;
        let pd = device.default_pd();
        let sizes = options.sizes();
        let send_cq = new_cq(&device, sizes.send.max(1))?;
        let recv_cq = new_cq(&device, sizes.receive.max(1))?;
        let init = QpInitAttr {
            max_send_wr: sizes.send,
            max_recv_wr: sizes.receive,
            ..QpInitAttr::default()
        };
        let queue_pair = id.create_qp(&pd, &send_cq, &recv_cq, init)?;
        let connection = Self {
            id,
            queue_pair,
            pd,
            send_cq,
            recv_cq,
        };
        options.run_prepared(call, &connection)?;
        Ok(connection)
    }
}

/// A completion queue that is polled or waited on.
pub(super) fn plain_cq(device: &Context, size: u32) -> Result<CompletionQueue> {
    CompletionQueue::new(device, size).map_err(|source| Error::Verbs {
        call: "create_cq",
        source,
    })
}

/// Whether the event is the connection's end.
pub(crate) fn ends(event: &Event) -> Result<bool> {
    match event {
        Event::Disconnected { .. } | Event::TimewaitExit { .. } => Ok(true),
        Event::DeviceRemoval { .. } => Err(Error::DeviceRemoved {
            call: "until_disconnected",
        }),
        _ => Ok(false),
    }
}
