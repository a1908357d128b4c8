//! What the host service tells a program about its devices, and what a program tells the service of them.

/// Something that has happened to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceChange {
    /// The device's number on this host.
    pub device: u32,
    /// What has happened.
    pub kind: DeviceChangeKind,
}

/// What can happen to a device.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceChangeKind {
    /// The link is down: nothing passes the port.
    PortError,
    /// The link is up again.
    PortActive,
    /// The GID table is another: ask for the devices again.
    GidChange,
    /// The device is no longer there; its queue pairs have no use.
    Removed,
    /// A device with the number of one that had been removed is there.
    Returned,
}

/// The counters of one device, as a program has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// The device's number on this host.
    pub device: u32,
    /// The counters with their names.
    pub counters: Vec<(&'static str, u64)>,
}
