//! What the rows are run against: anything that behaves like `/dev/infiniband/rdma_cm` and has a peer to talk to.

use std::net::IpAddr;
use std::time::Duration;

/// An open file.
pub(crate) type File = usize;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mode {
    /// GET_EVENT waits on it.
    pub(crate) blocking: bool,
    /// The opener may bind ports below 1024.
    pub(crate) privileged: bool,
}

/// What a migration names as the old file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldFile {
    /// This file.
    Open(File),
    /// A file that is open, but not of this device.
    NoChannel,
    /// No open file.
    Closed,
}

/// What one `write(2)` carries, and where the pointers in it stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Write<'a> {
    pub(crate) bytes: &'a [u8],
    /// The offset of the pointer to the answer.
    pub(crate) response_at: Option<usize>,
    /// The pointer to the answer leads nowhere.
    pub(crate) bad_response: bool,
    /// An option's value, whose pointer stands at offset 8.
    pub(crate) value: Option<&'a [u8]>,
    /// The old file of a migration, whose descriptor stands at the given offset.
    pub(crate) old_file: Option<(usize, OldFile)>,
    /// Somebody else than the opener writes.
    pub(crate) by_another: bool,
}

/// Why a write did not come back with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The error number.
    Errno(i32),
    /// It did not come back.
    Blocks,
}

/// Something that happens to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostEvent {
    /// The RDMA device of `$LOCAL` goes.
    DeviceLeaves,
    /// It comes again.
    DeviceReturns,
    /// `$LOCAL` is taken away from its interface.
    AddressLeaves,
    /// It is given back.
    AddressReturns,
    /// The hardware address of `$OTHER` is another one from now on.
    NeighbourMoves,
}

/// Hosts on the link that the rows can let speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// At `$OTHER`.
    Other,
    /// At `$STRANGER`.
    Stranger,
}

/// The service under test, with a link that the rows' peers are on.
///
/// A new one has no files. `$P1` to `$P9` are ports of 1024 and above that nobody has bound; the names of addresses are
/// in `conformance/README.md`.
pub(crate) trait Subject {
    /// Whether this is a kernel: then the steps marked `kernel:` count, otherwise those marked `here:`.
    fn is_kernel(&self) -> bool;
    /// Whether it answers as a Linux of this version does.
    fn is_since(&self, version: &str) -> bool;
    /// The address behind a name such as `LOCAL`, and the interface where it needs one.
    fn address(&self, name: &str) -> Option<(IpAddr, u32)>;
    /// The port behind a number: `$P1` is 1.
    fn port(&self, number: u16) -> u16;
    /// Opens the device.
    fn open(&mut self, mode: Mode) -> File;
    /// Closes a file.
    fn close(&mut self, file: File);
    /// Writes, and gives the bytes of the answer.
    fn write(&mut self, file: File, write: &Write<'_>) -> Result<Vec<u8>, Refused>;
    /// Whether the file is readable, within that time at the latest.
    fn poll(&mut self, file: File, within: Duration) -> bool;
    /// A management datagram from a peer to a local address.
    fn send(&mut self, from: Peer, to: IpAddr, mad: &[u8; 256]);
    /// The next management datagram for a peer.
    fn receive(&mut self, peer: Peer, within: Duration) -> Option<[u8; 256]>;
    /// Something happens to the machine.
    fn host(&mut self, event: HostEvent);
    /// Lets time pass.
    fn wait(&mut self, time: Duration);
}
