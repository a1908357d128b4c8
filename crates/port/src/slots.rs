//! The host service's side of UDP port 4791: a group of 256 sockets, one per slot.
//!
//! With SO_REUSEPORT the kernel gives each arriving datagram to one socket of the group; our steering program says
//! which, by the upper 8 bits of the destination QP number. The number is an index into the group, in the order in
//! which the sockets were bound, and closing one moves the *last* into its place. Hence:
//!
//! - the last socket, 255, is a spare that is never lent;
//! - a slot is renewed by closing its socket, so that the spare moves in, and adding a new spare at the end. Nothing
//!   of the last borrower survives: queue, options, multicast memberships;
//! - a socket gets its options when it is lent for the first time, and what it queued until then is thrown away: most slots
//!   are never lent, and a service must start quickly;
//! - a borrower's copy keeps a socket alive. As long as there is one, the socket stays in the group at its place; the
//!   slot is then not ready, and [`UdpSlots::settle`] tries again.

mod owner;

use crate::fork::ForkGuard;
use crate::sys::{attach_slot_steering, dropped, set_option};
use crate::{Batch, ROCE_PORT, SLOTS, SPARE_SLOT, SlotsError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// The socket group of UDP port 4791.
#[derive(Debug)]
pub struct UdpSlots {
    ipv6: bool,
    /// By slot. `None`: the place is held by a socket of which a former borrower still has a copy.
    sockets: Vec<Option<Member>>,
    /// Slots whose place a former borrower holds, with the inode of the socket.
    held: Vec<(u8, u64)>,
}

/// One socket of the group. Taken off the fork list before the socket is closed: fields are dropped in this order.
#[derive(Debug)]
struct Member {
    _fork: ForkGuard,
    socket: Socket,
    /// Whether it has its options, and nothing from the time before.
    prepared: Cell<bool>,
}

impl Member {
    fn prepare(&self, ipv6: bool) -> io::Result<()> {
        if !self.prepared.get() {
            configure(&self.socket, ipv6)?;
            // What has come was meant for nobody.
            drain(&self.socket);
            self.prepared.set(true);
        }
        Ok(())
    }
}

/// What became of a slot that was to be renewed.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// It has a fresh socket and may be lent.
    Ready,
    /// A former borrower still holds a copy of its socket: call [`UdpSlots::settle`] later.
    Held,
}

impl UdpSlots {
    /// Opens the whole group, after making sure that nobody else has the port.
    ///
    /// # Errors
    /// Port taken, with its owner; no IP; too few descriptors.
    pub fn open() -> Result<Self, SlotsError> {
        raise_descriptor_limit()?;
        Self::group(probe()?)
    }

    fn group(ipv6: bool) -> Result<Self, SlotsError> {
        let mut slots = Self {
            ipv6,
            sockets: Vec::with_capacity(SLOTS),
            held: Vec::new(),
        };
        for slot in 0..SLOTS {
            let socket = slots.member()?;
            if slot == 0 {
                attach_slot_steering(&socket.socket)
                    .map_err(system("attach the steering program"))?;
            }
            slots.sockets.push(Some(socket));
        }
        Ok(slots)
    }

    /// The socket of a slot, to be lent to a program of the same user; none while its renewal is [`Renewal::Held`].
    ///
    /// # Errors
    /// The system refuses an option.
    pub fn lend(&self, slot: u8) -> Result<Option<BorrowedFd<'_>>, SlotsError> {
        let Some(member) = &self.sockets[usize::from(slot)] else {
            return Ok(None);
        };
        member
            .prepare(self.ipv6)
            .map_err(system("set the options of a socket"))?;
        Ok(Some(member.socket.as_fd()))
    }

    /// Whether a slot can be lent, its renewal not being [`Renewal::Held`].
    #[must_use]
    pub fn is_ready(&self, slot: u8) -> bool {
        self.sockets[usize::from(slot)].is_some()
    }

    /// Number of datagrams that a slot's queue had no room for since its last renewal; not while that is held up.
    #[must_use]
    pub fn dropped(&self, slot: u8) -> u64 {
        self.sockets[usize::from(slot)]
            .as_ref()
            .and_then(|member| dropped(member.socket.as_fd()).ok())
            .map_or(0, u64::from)
    }

    /// Whether the group receives IPv6, or IPv4 alone because the system has no IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Replaces the socket of a slot whose borrower has gone.
    ///
    /// # Errors
    /// The new spare could not be made; the slot itself is renewed.
    ///
    /// # Panics
    /// The service's own slot and the spare are not lent and cannot be renewed.
    pub fn renew(&mut self, slot: u8) -> Result<Renewal, SlotsError> {
        assert!(
            slot != crate::SERVICE_SLOT && slot != SPARE_SLOT,
            "slot {slot} is never lent"
        );
        self.settle()?;
        let Some(socket) = self.sockets[usize::from(slot)].take() else {
            return Ok(Renewal::Held);
        };
        let inode = rustix::fs::fstat(&socket.socket)
            .map_err(|e| system("look at a socket")(e.into()))?
            .st_ino;
        drop(socket);
        self.held.push((slot, inode));
        self.settle()?;
        Ok(if self.sockets[usize::from(slot)].is_some() {
            Renewal::Ready
        } else {
            Renewal::Held
        })
    }

    /// Completes renewals that a former borrower's copy held up. Cheap when there are none.
    ///
    /// # Errors
    /// A new spare could not be made; the slots are renewed as far as possible.
    pub fn settle(&mut self) -> Result<(), SlotsError> {
        let waiting = std::mem::take(&mut self.held);
        let mut result = Ok(());
        for (slot, inode) in waiting {
            if result.is_err() || owner::is_bound(inode) {
                self.held.push((slot, inode));
                continue;
            }
            // The kernel has moved the spare into this place.
            self.sockets[usize::from(slot)] = self.sockets[usize::from(SPARE_SLOT)].take();
            match self.member() {
                Ok(spare) => self.sockets[usize::from(SPARE_SLOT)] = Some(spare),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Makes a socket and appends it to the group.
    fn member(&self) -> Result<Member, SlotsError> {
        let socket = udp_socket(self.ipv6).map_err(refused)?;
        // Or each gets a copy of what comes for any group that somebody joined.
        leave_multicast(&socket, self.ipv6).map_err(system("set the options of a socket"))?;
        socket
            .set_reuse_port(true)
            .map_err(system("share the port among sockets"))?;
        bind(&socket, self.ipv6).map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => SlotsError::PortTaken {
                owner: owner::find(),
            },
            _ => system("bind a socket")(error),
        })?;
        let fork = ForkGuard::new(&socket).map_err(system("watch for forks"))?;
        Ok(Member {
            _fork: fork,
            socket,
            prepared: Cell::new(false),
        })
    }
}

/// Learns whether the port is free and which family it can have. Without SO_REUSEPORT, so that a group of another
/// service of this user is not silently joined.
fn probe() -> Result<bool, SlotsError> {
    let (socket, ipv6) = match udp_socket(true) {
        Ok(socket) => (socket, true),
        Err(error) if is_descriptor_shortage(&error) => return Err(refused(error)),
        Err(_) => (udp_socket(false).map_err(refused)?, false),
    };
    match bind(&socket, ipv6) {
        Ok(()) => Ok(ipv6),
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
            Err(SlotsError::PortTaken {
                owner: owner::find(),
            })
        }
        Err(error) => Err(system("bind a socket")(error)),
    }
}

fn udp_socket(ipv6: bool) -> io::Result<Socket> {
    let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if ipv6 {
        socket.set_only_v6(false)?;
    }
    Ok(socket)
}

fn bind(socket: &Socket, ipv6: bool) -> io::Result<()> {
    let any: IpAddr = if ipv6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    socket.bind(&SockAddr::from(SocketAddr::new(any, ROCE_PORT)))
}

fn leave_multicast(socket: &Socket, ipv6: bool) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
    if ipv6 {
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0)?;
    }
    Ok(())
}

fn configure(socket: &Socket, ipv6: bool) -> io::Result<()> {
    let ip = |name, value| set_option(socket, libc::IPPROTO_IP, name, value);
    ip(libc::IP_RECVTOS, 1)?;
    ip(libc::IP_RECVTTL, 1)?;
    if ipv6 {
        let ip6 = |name, value| set_option(socket, libc::IPPROTO_IPV6, name, value);
        ip6(libc::IPV6_RECVPKTINFO, 1)?;
        ip6(libc::IPV6_RECVTCLASS, 1)?;
        ip6(libc::IPV6_RECVHOPLIMIT, 1)?;
        // The kernel's soft RoCE sends UDP checksum 0 over IPv6.
        set_option(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    } else {
        ip(libc::IP_PKTINFO, 1)?;
    }
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    // Beyond the system's limit (net.core.rmem_max) when we may, up to it when not: more is cut to it without a word.
    if set_option(
        socket,
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        RECEIVE_BUFFER,
    )
    .is_err()
    {
        set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
    }
    Ok(())
}

/// Throws away what a socket has queued.
fn drain(socket: &Socket) {
    let mut batch = Batch::new(1);
    let mut results = [crate::sys::Received::default(); 1];
    for _ in 0..DRAIN_MAX {
        if !matches!(crate::sys::receive_many(socket.as_fd(), batch.buffers_mut(), &mut results), Ok(n) if n > 0)
        {
            return;
        }
    }
}

fn raise_descriptor_limit() -> Result<(), SlotsError> {
    let limit = getrlimit(Resource::Nofile);
    // No entry means no limit.
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    if maximum < DESCRIPTORS_NEEDED {
        return Err(SlotsError::Descriptors {
            limit: maximum,
            needed: DESCRIPTORS_NEEDED,
        });
    }
    if limit.current.is_some_and(|current| current < maximum) {
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised)
            .map_err(|e| system("raise the limit of open descriptors")(e.into()))?;
    }
    Ok(())
}

fn is_descriptor_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// What a refused socket means.
fn refused(error: io::Error) -> SlotsError {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
            SlotsError::Descriptors {
                limit,
                needed: limit.saturating_add(DESCRIPTORS_NEEDED),
            }
        }
        Some(libc::ENFILE) => SlotsError::SystemFiles { source: error },
        Some(libc::EAFNOSUPPORT) => SlotsError::NoIp { source: error },
        _ => system("make a socket")(error),
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> SlotsError {
    move |source| SlotsError::System { what, source }
}

/// The group, a new spare, and room for the service's clients.
const DESCRIPTORS_NEEDED: u64 = 512;
/// What is asked for; Linux counts twice as much, for what surrounds the bytes. In Linux 6.18 a packet of 4 KiB takes 4.7 KB of
/// it in a burst and 8.5 KB alone, over either family. So the 212,992 bytes that a user may have on a system as it is installed hold 90
/// packets in bursts or 50 one by one, which is more than one connection's window of 64 in bursts; 4 MiB hold 1,995 and 992.
/// It is a bound, not a reservation.
const RECEIVE_BUFFER: i32 = 16 << 20;
const DRAIN_MAX: usize = 1 << 16;

#[cfg(test)]
mod groups;
#[cfg(test)]
mod tests;
