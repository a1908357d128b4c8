//! What can go wrong below the packet.

use std::fmt;
use std::io;
use std::net::IpAddr;

/// Why the host's socket group on UDP port 4791 could not be opened or kept.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum SlotsError {
    /// Something else holds the port.
    #[error("UDP port 4791 is taken by {owner}: {}", owner.remedy())]
    PortTaken {
        /// Who holds it, as far as an ordinary user can see.
        owner: PortOwner,
    },
    /// Not even an IPv4 datagram socket can be made.
    #[error(
        "this system offers neither IPv6 nor IPv4 datagram sockets ({source}): a kernel with IP is needed"
    )]
    NoIp {
        /// What the system said.
        source: io::Error,
    },
    /// The limit of open descriptors is too low for the 256 sockets of the port.
    #[error(
        "the limit of open descriptors ({limit}) is too low, the host service needs {needed}: raise it with `ulimit -Hn {needed}` or in limits.conf"
    )]
    Descriptors {
        /// The hard limit.
        limit: u64,
        /// How many the service needs.
        needed: u64,
    },
    /// The system as a whole has no descriptor left.
    #[error("the system has run out of open files ({source}): raise fs.file-max or close programs")]
    SystemFiles {
        /// What the system said.
        source: io::Error,
    },
    /// Any other refusal.
    #[error("cannot {what} for UDP port 4791: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Who holds UDP port 4791.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortOwner {
    /// The kernel's soft RoCE.
    KernelSoftRoce {
        /// Name of the RDMA device.
        device: String,
    },
    /// A process of this or another user whose descriptors we may read.
    Process {
        /// Its process id.
        pid: u32,
        /// Its command name.
        command: String,
    },
    /// A socket of a user whose processes we may not look into.
    User {
        /// The user's id.
        uid: u32,
    },
    /// Nothing could be learned.
    Unknown,
}

impl PortOwner {
    fn remedy(&self) -> String {
        match self {
            Self::KernelSoftRoce { device } => {
                format!("remove it with `rdma link delete {device}`, or use a network namespace of your own (`unshare -rn`)")
            }
            Self::Process { pid, .. } => {
                format!("end process {pid}, or use a network namespace of your own (`unshare -rn`)")
            }
            Self::User { .. } | Self::Unknown => {
                "end the program that holds it (`ss -ulpn sport = 4791` as root shows it), or use a network namespace of your own (`unshare -rn`)"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KernelSoftRoce { device } => write!(f, "the kernel's soft RoCE device {device}"),
            Self::Process { pid, command } => write!(f, "process {pid} ({command})"),
            Self::User { uid } => write!(f, "a process of user {uid}"),
            Self::Unknown => f.write_str("another program"),
        }
    }
}

/// Why a host or slot could not be made on an in-memory wire.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemError {
    /// Two hosts cannot have one address.
    #[error(
        "address {0} already belongs to a host on this wire: give each host addresses of its own"
    )]
    AddressTaken(IpAddr),
    /// A host without addresses cannot be reached.
    #[error("a host on an in-memory wire needs at least one address")]
    NoAddress,
    /// The slot has a holder.
    #[error("slot {0} of this host is already open")]
    SlotTaken(u8),
    /// The system refused the event descriptor.
    #[error("cannot make an event descriptor (errno {0}): raise the limit of open descriptors")]
    Descriptors(i32),
}
