//! Event channels on the runtime.

use crate::channel::{EventChannel, QUIET};
use crate::easy::intake::Found;
use crate::error::{Error, Result};
use crate::event::Event;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::runtime::Handle;

/// An event channel whose events are awaited.
///
/// A handle; clones are the same. Several tasks may wait, each event goes to one of them. For identifiers made with
/// [`Identifier::new`](crate::Identifier::new) on the channel within, whose calls return at once.
///
/// ```
/// # use oarlock_rdmacm::{AsyncEventChannel, EventChannel, Host, Identifier, PortSpace};
/// # let host = Host::private()?;
/// # let listener = Identifier::synchronous(&host, PortSpace::TCP)?;
/// # listener.bind_addr("127.0.0.1:0".parse()?)?;
/// # let address = listener.local_addr()?.unwrap();
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let channel = AsyncEventChannel::new(EventChannel::new(&host)?)?;
/// let id = Identifier::new(channel.channel(), PortSpace::TCP)?;
/// id.resolve_addr(None, address, std::time::Duration::from_secs(2))?;
/// let event = channel.get_event().await?;
/// assert_eq!(event.name(), "RDMA_CM_EVENT_ADDR_RESOLVED");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_event_channel")]
#[derive(Clone)]
pub struct AsyncEventChannel {
    fd: Arc<Readable<EventChannel>>,
}

impl AsyncEventChannel {
    /// Registers a channel with the runtime; once, since the runtime knows each descriptor once.
    ///
    /// # Errors
    /// [`Error::NoRuntime`]; [`Error::Channel`] with `AlreadyExists` when it is registered already.
    ///
    /// # Panics
    /// If the runtime was built without I/O.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new(channel: EventChannel) -> Result<Self> {
        Ok(Self {
            fd: Arc::new(Readable::new("AsyncEventChannel::new", channel)?),
        })
    }

    /// The channel within, for identifiers to be made on.
    #[must_use]
    pub fn channel(&self) -> &EventChannel {
        self.fd.source()
    }

    /// The next event.
    ///
    /// # Errors
    /// [`Error::ServiceGone`] when the host service has died: nothing will come any more.
    ///
    /// # Cancellation
    /// Safe: an event is fetched and returned in one step. What was not fetched stays queued.
    #[doc(alias = "rdma_get_cm_event")]
    pub async fn get_event(&self) -> Result<Event> {
        self.wait_for(|| {
            Ok(match self.channel().try_event()? {
                Some(event) => Found::This(event),
                None => Found::Nothing,
            })
        })
        .await
    }

    /// Looks for what the channel's events bring until something is found.
    pub(super) async fn wait_for<T>(
        &self,
        mut look: impl FnMut() -> Result<Found<T>>,
    ) -> Result<T> {
        loop {
            let mut ready = self.readable().await?;
            match look()? {
                Found::This(found) => return Ok(found),
                Found::Nothing => ready.clear_ready(),
                Found::LookAgain => tokio::task::yield_now().await,
            }
        }
    }

    /// Waits until events are queued. When none comes soon the service is told what was acknowledged, which else travels
    /// with the next request for an event.
    pub(super) async fn readable(&self) -> Result<AsyncFdReadyGuard<'_, Source<EventChannel>>> {
        let channel = &self.channel().inner;
        if channel.has_unsaid() {
            match tokio::time::timeout(QUIET, self.fd.readable()).await {
                Ok(ready) => return ready,
                Err(_) => channel.say_acknowledged(),
            }
        }
        self.fd.readable().await
    }
}

impl fmt::Debug for AsyncEventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Async{:?}", self.channel())
    }
}

/// Something with a descriptor that is readable while there is something to take.
pub(super) struct Readable<T: AsFd>(AsyncFd<Source<T>>);

/// A descriptor as the runtime wants it.
pub(super) struct Source<T: AsFd>(T);

impl<T: AsFd> AsRawFd for Source<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl<T: AsFd> Readable<T> {
    pub(super) fn new(call: &'static str, source: T) -> Result<Self> {
        // Registering outside of a runtime panics.
        Handle::try_current().map_err(|_| Error::NoRuntime { call })?;
        // SAFETY: the descriptor is open and stays the same while the registration lives: event channels and completion
        // channels, the only sources, own one from beginning to end, and the registration owns a handle of the source.
        #[allow(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
        let registered =
            unsafe { AsyncFd::register_with_interest(Source(source), Interest::READABLE) };
        registered
            .map(Self)
            .map_err(|refused| Error::Channel(refused.into()))
    }

    pub(super) fn source(&self) -> &T {
        &self.0.get_ref().0
    }

    pub(super) async fn readable(&self) -> Result<AsyncFdReadyGuard<'_, Source<T>>> {
        self.0.readable().await.map_err(Error::Channel)
    }
}
