//! The passive side: accepts whatever comes, and lets go when the other side does.

use crate::connections::Devices;
use crate::failure::Failure;
use oarlock_hostd::Host;
use oarlock_rdmacm::{ConnParam, Event, EventChannel, Identifier, PortSpace};
use std::collections::HashMap;
use std::net::SocketAddr;

pub(super) struct Passive {
    channel: EventChannel,
    /// Listens as long as it exists.
    _listener: Identifier,
    address: SocketAddr,
}

impl Passive {
    pub(super) fn listen(host: &Host, address: SocketAddr) -> Result<Self, Failure> {
        let channel = EventChannel::new(host)?;
        let listener = Identifier::new(&channel, PortSpace::TCP)?;
        listener.bind_addr(address)?;
        listener.listen(0)?;
        let address = listener.local_addr()?.unwrap_or(address);
        Ok(Self {
            channel,
            _listener: listener,
            address,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until so many connections have come and gone; for ever without a number.
    pub(super) fn serve(self, total: Option<u32>) -> Result<(), Failure> {
        let mut devices = Devices::default();
        // By a number of our own; 0 is what an identifier has that was never accepted.
        let mut open = HashMap::new();
        let mut accepted = 0;
        let mut gone = 0;
        while total.is_none_or(|total| gone < total) {
            match self.channel.get_event()? {
                Event::ConnectRequest { id, .. } => {
                    devices.idle_queue_pair(&id)?;
                    // A peer that has given up meanwhile is its own affair; dropping the identifier tidies up.
                    match id.accept(&ConnParam::default()) {
                        Ok(()) => {
                            accepted += 1;
                            id.set_context(accepted);
                            open.insert(accepted, id);
                        }
                        Err(error) if error.is_device_fatal() => return Err(error.into()),
                        Err(error) => {
                            tracing::warn!("a connection request was not accepted: {error}");
                            gone += 1;
                        }
                    }
                }
                Event::Disconnected { id, .. }
                | Event::Rejected { id, .. }
                | Event::Unreachable { id, .. }
                | Event::ConnectError { id, .. } => {
                    gone += u32::from(open.remove(&id.context()).is_some());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
