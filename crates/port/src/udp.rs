//! A slot of the real port: receiving on the slot's socket, sending from sockets of our own.
//!
//! We send from unconnected sockets with DF, because then the IPv4 identification, which the ICRC covers, is 0 (and i
//! in segment i of a GSO burst). There is one sending socket, and so one source port, for each slot of the remote
//! host: GRO merges packets of one UDP flow, and a burst is delivered to one socket, so packets for two slots must
//! never share a flow.

mod forward;
mod loopback;
mod outgoing;
mod sender;

pub use forward::ForwardToken;
#[cfg(test)]
pub(crate) use loopback::carrier as carrier_of;

use crate::counters::Counter;
use crate::fault::{Direction, Fate, Faults, Held, Injector, Outlet, PortFaults};
use crate::frame::{Flow, IpFields};
use crate::group::{self, Groups};
use crate::pcap::{Capture, PortTap, Tap, Tapped, interface_addresses};
use crate::sys::{Received, dropped, receive_many};
use crate::{Batch, Counters, ROCE_PORT};
use forward::Forwarded;
use oarlock_wire::{AddressVector, FlowLabel, Gid};
use outgoing::Outgoing;
use sender::Senders;
use socket2::Socket;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// One slot of UDP port 4791.
#[derive(Debug)]
pub struct UdpPort {
    /// Taken off the list before the socket is closed: fields are dropped in this order.
    _fork: crate::fork::ForkGuard,
    socket: Socket,
    injector: Arc<Injector>,
    groups: Groups,
    out: Arc<Outgoing>,
}

impl UdpPort {
    /// Takes the socket of `slot`, as [`UdpSlots`](crate::UdpSlots) made it and the service handed it over.
    ///
    /// # Errors
    /// The descriptor is not a bound UDP socket.
    pub fn new(slot: u8, socket: OwnedFd, token: ForwardToken) -> io::Result<Self> {
        let socket = Socket::from(socket);
        let address = socket.local_addr()?.as_socket();
        let Some(address) = address.filter(|address| address.port() == ROCE_PORT) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the descriptor is not a socket of UDP port 4791",
            ));
        };
        Ok(Self {
            _fork: crate::fork::ForkGuard::new(&socket)?,
            socket,
            injector: Arc::default(),
            groups: Groups::default(),
            out: Arc::new(Outgoing {
                slot,
                token,
                senders: Senders::new(address.is_ipv6()),
                counters: Counters::default(),
                tap: Tap::default(),
            }),
        })
    }

    /// The slot.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.out.slot
    }

    /// What was sent, received and dropped.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        if let Ok(dropped) = dropped(&self.socket) {
            self.out.counters.set(Counter::rxq_overflow, dropped.into());
        }
        &self.out.counters
    }

    pub(crate) fn set_captures(&self, captures: Vec<Capture>) {
        self.out.tap.set(captures, interface_addresses);
    }

    pub(crate) fn taps(&self) -> PortTap {
        let tapped: Arc<dyn Tapped> = self.out.clone();
        PortTap::new(&tapped)
    }

    pub(crate) fn inject(&self, faults: Vec<Arc<Faults>>) -> io::Result<()> {
        let outlet: Arc<dyn Outlet> = self.out.clone();
        self.injector.set(faults, &outlet)
    }

    pub(crate) fn faults(&self) -> PortFaults {
        let outlet: Arc<dyn Outlet> = self.out.clone();
        PortFaults::new(&self.injector, &outlet)
    }

    pub(crate) fn has_faults(&self) -> bool {
        self.injector.is_on()
    }

    pub(crate) fn join_group(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let group = group.to_canonical();
        let joined = loopback::carried(group, ifindex);
        if group.is_ipv6() && !self.out.senders.have_ipv6() {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        self.groups.join(group, ifindex, |others| {
            if loopback::is_carried_for(joined, ifindex, others) {
                return Ok(());
            }
            group::join(&self.socket, joined, ifindex)
        })
    }

    pub(crate) fn leave_group(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let group = group.to_canonical();
        let joined = loopback::carried(group, ifindex);
        self.groups.leave(group, ifindex, |others| {
            if loopback::is_carried_for(joined, ifindex, others) {
                return Ok(());
            }
            group::leave(&self.socket, joined, ifindex)
        })
    }

    pub(crate) fn record(&self, av: &AddressVector, packet: &[u8]) -> io::Result<()> {
        if !self.out.tap.is_on() {
            return Ok(());
        }
        let (_, flow) = self.out.way(av, packet)?;
        let icrc = flow.icrc(0, packet)?;
        self.out.tap.sent(
            &self.out.counters,
            self.out.tap.moment(),
            &flow,
            ip_fields(av, 0),
            &[packet, &icrc],
        );
        Ok(())
    }

    pub(crate) fn send(&self, av: &AddressVector, packet: &[u8]) -> io::Result<()> {
        let (sender, flow) = self.out.way(av, packet)?;
        let icrc = flow.icrc(0, packet)?;
        if self.injector.is_on() {
            return self.send_judged(av, &flow, &[packet, &icrc]);
        }
        self.out.send(sender, av, &flow, &[packet, &icrc])
    }

    /// Sends a packet as the faults will have it.
    fn send_judged(&self, av: &AddressVector, flow: &Flow, pieces: &[&[u8]]) -> io::Result<()> {
        let packet = Held {
            direction: Direction::Tx,
            av: *av,
            flow: *flow,
            ip: ip_fields(av, 0),
            datagram: pieces.concat(),
        };
        self.injector.send(&*self.out, packet)
    }

    pub(crate) fn send_run(
        &self,
        av: &AddressVector,
        run: &mut [u8],
        segment: usize,
    ) -> io::Result<()> {
        check_run(run.len(), segment)?;
        if self.injector.is_on() {
            // One by one, so that each can meet its own fate.
            return run
                .chunks(segment)
                .try_for_each(|one| self.send(av, &one[..one.len() - ICRC_LEN]));
        }
        let (sender, flow) = self.out.way(av, run)?;
        let mut count = 0;
        for (i, segment) in run.chunks_mut(segment).enumerate() {
            let (packet, icrc) = segment
                .split_last_chunk_mut::<4>()
                .expect("check_run has seen to the length");
            // The kernel numbers the segments of a burst by counting up the identification from 0.
            *icrc = flow.icrc(i as u16, packet)?;
            count += 1;
        }
        let at = self.out.tap.moment();
        let result = if loopback::carries(av, &flow) {
            run.chunks(segment).try_for_each(|one| {
                loopback::send(&self.out.senders, self.out.token, av, &flow, &[one])
            })
        } else {
            sender.send(av, &flow, &[run], (count > 1).then_some(segment as u16))
        };
        self.out.sent(count, result)?;
        self.out.tap.sent_run(
            &self.out.counters,
            at,
            &flow,
            ip_fields(av, 0),
            (run, segment),
        );
        Ok(())
    }

    /// See [`Port::recv`](crate::Port::recv); of `N` datagrams or bursts at most.
    pub(crate) fn recv<const N: usize>(&self, batch: &mut Batch) -> io::Result<usize> {
        batch.clear();
        let mut results = [Received::default(); N];
        // What is dropped must not make the queue look empty: go on, but not for ever.
        for _ in 0..ROUNDS {
            let n = receive_many(self.socket.as_fd(), batch.buffers_mut(), &mut results)?;
            if n == 0 {
                break;
            }
            for (i, received) in results.iter().enumerate().take(n) {
                self.accept(i, received, batch);
            }
            if !batch.is_empty() {
                break;
            }
        }
        self.out
            .counters
            .add(Counter::rx_packets, batch.len() as u64);
        Ok(batch.len())
    }

    /// Checks one datagram or burst and puts its packets into the batch.
    fn accept(&self, buffer: usize, received: &Received, batch: &mut Batch) {
        if received.truncated {
            self.out.counters.add(Counter::truncated, 1);
            return;
        }
        let (Some(source), Some((local, interface))) = (received.source, received.destination)
        else {
            self.out.counters.add(Counter::no_address, 1);
            return;
        };
        let arrival = Arrival {
            flow: Flow {
                source: source.ip().to_canonical(),
                source_port: source.port(),
                destination: local,
                destination_port: ROCE_PORT,
            },
            interface,
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
        };
        let segment = received.segment.unwrap_or(received.len).max(1);
        let mut start = 0;
        while start < received.len {
            let end = (start + segment).min(received.len);
            self.accept_one(&arrival, buffer, start..end, batch);
            start = end;
        }
        if received.len == 0 {
            self.out.counters.add(Counter::not_rocev2, 1);
        }
    }

    fn accept_one(&self, arrival: &Arrival, buffer: usize, range: Range<usize>, batch: &mut Batch) {
        let datagram = &batch.buffer(buffer)[range.clone()];
        if datagram.len() < MIN_DATAGRAM {
            self.out.counters.add(Counter::not_rocev2, 1);
            return;
        }
        if forward::is_forwarded(datagram) {
            match forward::open(arrival, self.out.token, datagram) {
                Some(Forwarded {
                    arrival,
                    offset,
                    was_held,
                }) => {
                    let range = range.start + offset..range.end;
                    if !was_held {
                        self.out.counters.add(Counter::forward_received, 1);
                    }
                    self.deliver(&arrival, buffer, range, batch, was_held);
                }
                None => self.out.counters.add(Counter::forward_bad, 1),
            }
            return;
        }
        // What came to a group has come to every member, and is never handed on.
        if arrival.flow.destination.is_multicast() || datagram[5] == self.out.slot {
            self.deliver(arrival, buffer, range, batch, false);
            return;
        }
        if datagram[5..8] == group::MULTICAST_QPN {
            self.out.counters.add(Counter::group_qp_bad, 1);
            return;
        }
        self.out.counters.add(Counter::foreign_qp, 1);
        if arrival.flow.verify(datagram).is_none() {
            self.out.counters.add(Counter::icrc_bad, 1);
        } else if forward::send(&self.out.senders, arrival, self.out.token, datagram).is_ok() {
            self.out.counters.add(Counter::forwarded, 1);
        }
    }

    /// Checks the ICRC and puts the packet into the batch. One that faults have held is not judged again.
    fn deliver(
        &self,
        arrival: &Arrival,
        buffer: usize,
        range: Range<usize>,
        batch: &mut Batch,
        was_held: bool,
    ) {
        let datagram = &batch.buffer(buffer)[range.clone()];
        if datagram.len() < MIN_DATAGRAM {
            self.out.counters.add(Counter::not_rocev2, 1);
            return;
        }
        let Some(identification) = arrival.flow.verify(datagram) else {
            self.out.counters.add(Counter::icrc_bad, 1);
            return;
        };
        let destination = arrival.flow.destination;
        if destination.is_multicast() {
            let dest_qpn = &datagram[5..8];
            if !self
                .groups
                .accept(&self.out.counters, destination, arrival.interface, dest_qpn)
            {
                return;
            }
        } else if datagram[5] != self.out.slot {
            self.out.counters.add(Counter::foreign_qp, 1);
            return;
        }
        let ip = IpFields {
            identification,
            traffic_class: arrival.traffic_class,
            hop_limit: arrival.hop_limit,
        };
        if !was_held {
            self.out
                .tap
                .received(&self.out.counters, &arrival.flow, ip, datagram);
        }
        let fate = if was_held || !self.injector.is_on() {
            Fate::Delivered
        } else {
            self.judge(arrival, ip, &mut batch.buffers_mut()[buffer][range.clone()])
        };
        if fate == Fate::Away {
            return;
        }
        if fate == Fate::Corrupted {
            // The check that every packet passes through finds the damage.
            let is_right = arrival.flow.verify(&batch.buffer(buffer)[range]).is_some();
            debug_assert!(!is_right, "a changed bit is one that the ICRC covers");
            self.out.counters.add(Counter::icrc_bad, 1);
            return;
        }
        let packet = range.start..range.end - ICRC_LEN;
        let av = arrival.address_vector();
        if fate == Fate::Twice {
            batch.push(av, buffer, packet.clone());
        }
        batch.push(av, buffer, packet);
        if let Fate::With(fault) = fate {
            batch.strike(fault);
        }
    }

    /// What the faults make of a received packet.
    fn judge(&self, arrival: &Arrival, ip: IpFields, datagram: &mut [u8]) -> Fate {
        self.injector
            .received(&*self.out, &arrival.flow, datagram, |datagram| Held {
                direction: Direction::Rx,
                av: AddressVector {
                    scope_id: arrival.interface,
                    ..arrival.address_vector()
                },
                flow: arrival.flow,
                ip,
                datagram: datagram.to_vec(),
            })
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Where a datagram came from and how.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    flow: Flow,
    interface: u32,
    traffic_class: u8,
    hop_limit: u8,
}

impl Arrival {
    fn address_vector(&self) -> AddressVector {
        let remote = Gid::from_ip(self.flow.source);
        AddressVector {
            local: Gid::from_ip(self.flow.destination),
            remote,
            scope_id: if remote.is_link_local() || self.flow.destination.is_multicast() {
                self.interface
            } else {
                0
            },
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: FlowLabel::default(),
            service_level: 0,
        }
    }
}

fn ip_fields(av: &AddressVector, identification: u16) -> IpFields {
    IpFields {
        identification,
        traffic_class: av.traffic_class,
        hop_limit: sender::hop_limit(av),
    }
}

/// A GSO burst: every segment holds a BTH and an ICRC, and the kernel's limits are kept.
pub(crate) fn check_run(len: usize, segment: usize) -> io::Result<()> {
    let rest = if segment == 0 { 0 } else { len % segment };
    let invalid =
        if segment < MIN_DATAGRAM || len < MIN_DATAGRAM || (rest != 0 && rest < MIN_DATAGRAM) {
            "a segment of a run is shorter than a BTH and an ICRC"
        } else if len > MAX_RUN || len.div_ceil(segment) > MAX_SEGMENTS {
            "a run has more than 64 segments or 65,000 bytes"
        } else {
            return Ok(());
        };
    Err(io::Error::new(io::ErrorKind::InvalidInput, invalid))
}

/// BTH and ICRC.
const MIN_DATAGRAM: usize = 16;
const ICRC_LEN: usize = 4;
const ROUNDS: usize = 16;
const MAX_RUN: usize = 65_000;
/// Old kernels take at most 64.
const MAX_SEGMENTS: usize = 64;
