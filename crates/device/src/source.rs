//! What an endpoint needs of its host.

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use oarlock_port::fault::DeviceFault;
use oarlock_port::{DeviceStatistics, Port};

use crate::event::DeviceChange;

/// Where an endpoint gets its slot of the port from.
pub trait PortSource: Send + Sync {
    /// Takes a slot; called once, at the first queue pair.
    ///
    /// # Errors
    /// Whatever the host says; it is passed on.
    fn take_port(&self) -> Result<Port, Box<dyn StdError + Send + Sync>>;

    /// A descriptor that becomes readable when the host service is gone; `None` if it cannot go.
    ///
    /// # Errors
    /// No descriptor left.
    fn gone_fd(&self) -> io::Result<Option<OwnedFd>>;

    /// A descriptor that becomes readable when devices have changed; `None` if nobody would tell. Called after
    /// [`take_port`](Self::take_port), and before for [`Endpoint::watch`](crate::Endpoint::watch).
    ///
    /// # Errors
    /// No descriptor left.
    fn changes_fd(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// What has changed since the last call, oldest first, with the device's number ([`DeviceInfo::index`](crate::DeviceInfo::index)); makes the
    /// descriptor unreadable. Called by the thread that watches.
    ///
    /// # Blocking
    /// It must not.
    fn take_changes(&self) -> Vec<(u32, DeviceChange)> {
        Vec::new()
    }

    /// How often [`publish_statistics`](Self::publish_statistics) is wanted, at most, while something happens; `None`: never.
    fn statistics_interval(&self) -> Option<Duration> {
        None
    }

    /// What the devices of this process have counted so far ([`Context::statistics`](crate::Context::statistics), devices
    /// that are closed included). Called by the engine thread, the last time when the endpoint ends.
    ///
    /// # Blocking
    /// It must not.
    fn publish_statistics(&self, _statistics: &[DeviceStatistics]) {}

    /// A fault rule has struck that is the host's to carry out: something happens to the device with this address.
    ///
    /// # Blocking
    /// It must not.
    fn inject(&self, _fault: DeviceFault, _local: IpAddr) {}

    /// The slot has been closed on our side and can be given to somebody else. Not called when
    /// the service is gone.
    fn port_closed(&self, slot: u8);
}
