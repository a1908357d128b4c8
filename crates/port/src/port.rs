//! One slot's endpoint, whatever carries it.

use crate::batch::MAX_BUFFERS;
use crate::fault::{Faults, PortFaults};
use crate::pcap::{Capture, PortTap};
use crate::{Batch, Counters, MemPort, UdpPort};
use oarlock_wire::AddressVector;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// One slot's endpoint: sends and receives RoCEv2 packets, from the BTH to the end of the padded payload.
///
/// All methods take `&self` and may be called from several threads.
#[non_exhaustive]
#[derive(Debug)]
pub enum Port {
    /// The real UDP port 4791.
    Udp(UdpPort),
    /// A slot of a host on an in-memory wire.
    Mem(MemPort),
}

impl Port {
    /// The slot: the upper 8 bits of every QP number behind this endpoint.
    #[must_use]
    pub fn slot(&self) -> u8 {
        match self {
            Self::Udp(port) => port.slot(),
            Self::Mem(port) => port.slot(),
        }
    }

    /// Sends one packet (BTH to padded payload) from `av.local` to `av.remote`, adding the ICRC.
    ///
    /// A packet for which the system has no room at the moment is dropped and counted, as on any network.
    /// `av.flow_label` and `av.service_level` do not reach the wire: an ordinary user cannot set the first without a
    /// lease, and the second has no place in RoCEv2.
    ///
    /// To a multicast group a packet leaves by the interface `av.scope_id`, and comes back to the members on this host.
    ///
    /// # Errors
    /// What a datagram socket says: no route, packet larger than the path's MTU, address not on this host.
    ///
    /// # Blocking
    /// Never.
    pub fn send(&self, av: &AddressVector, packet: &[u8]) -> io::Result<()> {
        match self {
            Self::Udp(port) => port.send(av, packet),
            Self::Mem(port) => port.send(av, packet),
        }
    }

    /// Sends a run of packets of one queue pair, each `segment` bytes long including four bytes of room for the
    /// ICRC at its end; the last may be shorter. On the real port this is one system call (GSO).
    ///
    /// # Errors
    /// As [`send`](Self::send); `InvalidInput` when a segment cannot hold a BTH and an ICRC, or the run has more
    /// than 64 segments or 65,000 bytes.
    pub fn send_run(&self, av: &AddressVector, run: &mut [u8], segment: usize) -> io::Result<()> {
        match self {
            Self::Udp(port) => port.send_run(av, run, segment),
            Self::Mem(port) => port.send_run(av, run, segment),
        }
    }

    /// Fills `batch` with what has arrived and returns the number of packets, after dropping and counting what is
    /// not for us or damaged. Zero with an empty queue; call until then, or again when the descriptor is readable.
    ///
    /// # Errors
    /// What the socket says; never `WouldBlock`.
    ///
    /// # Blocking
    /// Never: wait for [`as_fd`](AsFd::as_fd) to become readable.
    pub fn recv(&self, batch: &mut Batch) -> io::Result<usize> {
        self.recv_up_to::<MAX_BUFFERS>(batch)
    }

    /// As [`recv`](Self::recv), but takes no more than one datagram or burst from the socket. For who waits for a single
    /// packet: the look for a second one costs as much as one that finds nothing.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Blocking
    /// Never.
    pub fn recv_one(&self, batch: &mut Batch) -> io::Result<usize> {
        self.recv_up_to::<1>(batch)
    }

    fn recv_up_to<const N: usize>(&self, batch: &mut Batch) -> io::Result<usize> {
        match self {
            Self::Udp(port) => port.recv::<N>(batch),
            Self::Mem(port) => port.recv::<N>(batch),
        }
    }

    /// Makes this slot a member of a multicast group on one interface: from now on [`recv`](Self::recv) gives it one copy of
    /// each packet to queue pair 0xFFFFFF of the group, those sent by this host and by this slot itself included.
    /// `ifindex` is the interface's index (of an in-memory host: [`MEM_IFINDEX`](crate::MEM_IFINDEX)).
    ///
    /// On the real port the kernel tells the network (IGMP, MLD). The loopback interface carries no IPv6 multicast; there
    /// an IPv4 group of our own takes its place, within this host.
    ///
    /// # Errors
    /// `EADDRINUSE`: it is a member already. `EINVAL`: not a group, or no interface given. `ENODEV`: no such interface.
    /// `EAFNOSUPPORT`: an IPv6 group where the system has no IPv6. `ENOBUFS`: in more IPv4 groups than the system lets one
    /// socket join (`net.ipv4.igmp_max_memberships`, 20 as a rule); `ENOMEM`: the same for IPv6
    /// (`net.core.optmem_max`).
    ///
    /// # Blocking
    /// Never.
    pub fn join_group(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        match self {
            Self::Udp(port) => port.join_group(group, ifindex),
            Self::Mem(port) => port.join_group(group, ifindex),
        }
    }

    /// Ends a membership. What is still in the queue for the group is dropped.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`: it is no member.
    ///
    /// # Blocking
    /// Never.
    pub fn leave_group(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        match self {
            Self::Udp(port) => port.leave_group(group, ifindex),
            Self::Mem(port) => port.leave_group(group, ifindex),
        }
    }

    /// From now on does to packets of both directions what `faults` says, or no longer. Packets that wait at this moment go
    /// at once.
    ///
    /// A run of packets then leaves one by one. While there are rules that make packets wait there is a thread that lets
    /// them go; it sleeps while none waits. At most 4,096 packets or 16 MiB wait: beyond that the next to go goes early and is
    /// counted. Packets that wait when the port is dropped are lost.
    ///
    /// # Errors
    /// No thread to be had; then nothing has changed.
    pub fn inject(&self, faults: Option<Arc<Faults>>) -> io::Result<()> {
        self.set_faults(faults.into_iter().collect())
    }

    /// As [`inject`](Self::inject), with any number of faults in place of those there were. Each sees every packet; the first
    /// that strikes decides.
    ///
    /// # Errors
    /// As [`inject`](Self::inject).
    pub fn set_faults(&self, faults: Vec<Arc<Faults>>) -> io::Result<()> {
        match self {
            Self::Udp(port) => port.inject(faults),
            Self::Mem(port) => port.inject(faults),
        }
    }

    /// A handle by which faults can be injected when the port is in other hands.
    #[must_use]
    pub fn faults(&self) -> PortFaults {
        match self {
            Self::Udp(port) => port.faults(),
            Self::Mem(port) => port.faults(),
        }
    }

    /// Whether there are faults.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        match self {
            Self::Udp(port) => port.has_faults(),
            Self::Mem(port) => port.has_faults(),
        }
    }

    /// What was sent, received and dropped, by name.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        match self {
            Self::Udp(port) => port.counters(),
            Self::Mem(port) => port.counters(),
        }
    }

    /// From now on writes every packet as on the wire to `capture`, or stops doing so.
    ///
    /// Sent packets are recorded, and received ones when they come from another host: so a packet between two
    /// programs of one host that capture into one file stands there once.
    pub fn tap(&self, capture: Option<Capture>) {
        self.set_captures(capture.into_iter().collect());
    }

    /// As [`tap`](Self::tap), with any number of captures in place of those there were.
    pub fn set_captures(&self, captures: Vec<Capture>) {
        match self {
            Self::Udp(port) => port.set_captures(captures),
            Self::Mem(port) => port.set_captures(captures),
        }
    }

    /// A handle by which captures can be attached, beside those of [`set_captures`](Self::set_captures), when the port is in
    /// other hands.
    #[must_use]
    pub fn taps(&self) -> PortTap {
        match self {
            Self::Udp(port) => port.taps(),
            Self::Mem(port) => port.taps(),
        }
    }

    /// Records a packet as if it had been sent, for one that need not leave its program.
    ///
    /// # Errors
    /// As [`send`](Self::send), when the packet could not have been sent.
    pub fn record(&self, av: &AddressVector, packet: &[u8]) -> io::Result<()> {
        match self {
            Self::Udp(port) => port.record(av, packet),
            Self::Mem(port) => port.record(av, packet),
        }
    }
}

/// The counters of one device, as a program tells its host service of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// The device's number on this host.
    pub device: u32,
    /// The counters with their names.
    pub counters: Vec<(&'static str, u64)>,
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Udp(port) => port.as_fd(),
            Self::Mem(port) => port.as_fd(),
        }
    }
}
