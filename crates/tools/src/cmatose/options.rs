//! The options, and what they come to.

use super::address;
use crate::failure::Failure;
use clap::{Args, ValueEnum};
use oarlock_rdmacm::PortSpace;
use oarlock_wire::IbTimeout;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `oarlock cmatose`; the letters are those of ucmatose(1).
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  oarlock cmatose -c 100 -C 10 -S 4096 -m                 the passive side, and\n  oarlock cmatose -s 127.0.0.1 -c 100 -C 10 -S 4096 -m    its active side\n  oarlock cmatose -b ::1                                  listens on one address\n  oarlock cmatose -s ::1 --pcap x.pcap --ladder           shows the packets\n\nStart the passive side first. Both sides must be given the same -c, -C and -S. The last lines are `test complete` and `return status N`; N is 0 when every connection was made and every message arrived with the right content, else 1."
)]
pub(crate) struct Options {
    /// The passive side's name or address; without it this is the passive side
    #[arg(short = 's', value_name = "ADDRESS")]
    server: Option<String>,
    /// The local address to bind to (`::` for any, IPv4 and IPv6)
    #[arg(short = 'b', value_name = "ADDRESS")]
    bind: Option<String>,
    /// What -s and -b are: a host name, an IPv4 or an IPv6 address, or a GID; without it, any of the
    /// first three
    #[arg(short = 'f', value_name = "FORMAT")]
    format: Option<Format>,
    /// The port space
    #[arg(short = 'P', value_name = "SPACE", default_value = "tcp")]
    port_space: Space,
    /// How many connections
    #[arg(short = 'c', value_name = "CONNECTIONS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    connections: u32,
    /// How many messages each way on every connection
    #[arg(short = 'C', value_name = "MESSAGES", default_value_t = 10)]
    messages: u32,
    /// Bytes in a message
    #[arg(short = 'S', value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1 << 30))]
    size: u32,
    /// The type of service of the packets; without it, 0
    #[arg(short = 't', value_name = "TOS")]
    type_of_service: Option<u8>,
    /// The passive side's port; 0, on the passive side, takes a free one
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7471)]
    port: u16,
    /// The acknowledgement timeout of the queue pairs: 4.096 us * 2^N; without it, the device's
    #[arg(short = 'a', value_name = "N", value_parser = clap::value_parser!(u8).range(0..=31))]
    ack_timeout: Option<u8>,
    /// Moves every identifier to a new event channel before disconnecting
    #[arg(short = 'm')]
    migrate: bool,
    /// Gives up when nothing happens for so long; the passive side's wait for the first connection has no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    stall: u64,
    /// Appends every packet of this program, and the service's management packets, to a pcap file;
    /// both sides may name the same one
    #[arg(long, value_name = "FILE")]
    pub(super) pcap: Option<PathBuf>,
    /// Leaves the service's packets to whoever started this program
    #[arg(long, requires = "pcap", hide = true)]
    pcap_data_only: bool,
    /// Prints the first connection of the capture as a ladder
    #[arg(long, requires = "pcap")]
    pub(super) ladder: bool,
    /// Prints the result as one JSON object, and everything else to standard error
    #[arg(long)]
    pub(super) json: bool,
}

/// What the addresses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A host name
    Name,
    /// An IPv4 address
    Ip,
    /// An IPv6 address
    Ipv6,
    /// A GID (not implemented yet)
    Gid,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Space {
    #[default]
    /// Reliable connections addressed by IP and port
    Tcp,
    /// The port space of InfiniBand, addressed by IP and port too
    Ib,
}

impl Space {
    pub(super) fn port_space(self) -> PortSpace {
        match self {
            Self::Tcp => PortSpace::TCP,
            Self::Ib => PortSpace::IB,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) server: Option<SocketAddr>,
    pub(super) bind: Option<SocketAddr>,
    pub(super) space: Space,
    pub(super) connections: u32,
    pub(super) messages: u32,
    pub(super) size: u32,
    pub(super) type_of_service: Option<u8>,
    pub(super) ack_timeout: Option<IbTimeout>,
    pub(super) migrate: bool,
    pub(super) stall: Duration,
    pub(super) pcap: Option<PathBuf>,
    pub(super) pcap_data_only: bool,
}

impl Plan {
    pub(super) fn is_active(&self) -> bool {
        self.server.is_some()
    }
}

impl Options {
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        if self.format == Some(Format::Gid) {
            return Err(Failure::Usage(
                "-f gid: native InfiniBand addresses are not implemented yet; give an IP address"
                    .to_owned(),
            ));
        }
        let resolve = |name: &str, port| address::resolve(name, self.format, port);
        Ok(Plan {
            server: self
                .server
                .as_deref()
                .map(|name| resolve(name, self.port))
                .transpose()?,
            bind: self
                .bind
                .as_deref()
                // The active side's own port is any.
                .map(|name| resolve(name, if self.server.is_some() { 0 } else { self.port }))
                .transpose()?
                .or(self.server.is_none().then(|| address::any(self.port))),
            space: self.port_space,
            connections: self.connections,
            messages: self.messages,
            size: self.size,
            type_of_service: self.type_of_service,
            ack_timeout: self.ack_timeout.map(IbTimeout::truncate),
            migrate: self.migrate,
            stall: Duration::from_secs(self.stall),
            pcap: self.pcap.clone(),
            pcap_data_only: self.pcap_data_only,
        })
    }
}
