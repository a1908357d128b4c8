//! A network in memory: any number of hosts with given addresses, each with 256 slots, and a pollable descriptor per
//! slot. Packets are as on the wire, ICRC included. Loss, duplication and reordering can be switched on, from a seed.
//! Addresses and the network interface of a host can come and go.

mod fault;
mod link;

pub use fault::Faults;
pub use link::MemChanges;

use crate::counters::Counter;
use crate::frame::{Flow, IpFields};
use crate::group::Groups;
use crate::pcap::{Capture, Tap};
use crate::{Batch, Counters, MemError, ROCE_PORT, SLOTS};
use fault::{Dice, Fate};
use link::Link;
use oarlock_wire::{AddressVector, FlowLabel, Gid};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An in-memory network. Clones are handles of the same network.
#[derive(Debug, Clone, Default)]
pub struct MemWire {
    state: Arc<Mutex<State>>,
}

/// One host on a [`MemWire`]: it leaves the wire when the last handle and the last open slot have gone.
#[derive(Debug, Clone)]
pub struct MemHost {
    wire: MemWire,
    host: Arc<HostEntry>,
}

/// One open slot of a host; closed when dropped.
#[derive(Debug)]
pub struct MemPort {
    host: MemHost,
    slot: u8,
    ready: Arc<OwnedFd>,
    queue: Arc<Mutex<Queue>>,
    groups: Groups,
    counters: Counters,
    tap: Tap,
}

impl MemWire {
    /// A network without faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A network with faults.
    #[must_use]
    pub fn with_faults(faults: Faults) -> Self {
        let wire = Self::default();
        wire.set_faults(faults);
        wire
    }

    /// Changes the faults from now on; the seed starts afresh.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().dice = Dice::new(faults);
    }

    /// Adds a host.
    ///
    /// # Errors
    /// `AddressTaken`, `NoAddress`.
    pub fn add_host(&self, addresses: &[IpAddr]) -> Result<MemHost, MemError> {
        if addresses.is_empty() {
            return Err(MemError::NoAddress);
        }
        let addresses: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
        let mut state = self.lock();
        if let Some(taken) = addresses
            .iter()
            .find(|address| state.hosts.contains_key(address))
        {
            return Err(MemError::AddressTaken(*taken));
        }
        let number = state.next_host;
        state.next_host += 1;
        for address in &addresses {
            state.hosts.insert(*address, number);
        }
        state.links.insert(number, Link::new(addresses));
        drop(state);
        Ok(MemHost {
            wire: self.clone(),
            host: Arc::new(HostEntry {
                wire: self.clone(),
                number,
            }),
        })
    }

    /// Whether some host has this address and can be reached.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.lock().host_of(address.to_canonical()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemHost {
    /// The wire the host is on.
    #[must_use]
    pub fn wire(&self) -> &MemWire {
        &self.wire
    }

    /// Opens a slot.
    ///
    /// # Errors
    /// `SlotTaken`: it is open already. `Descriptors`: no event descriptor to be had.
    pub fn open(&self, slot: u8) -> Result<MemPort, MemError> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| MemError::Descriptors(errno.raw_os_error()))?;
        let ready = Arc::new(ready);
        let queue = Arc::new(Mutex::new(Queue::default()));
        let entry = SlotEntry {
            queue: queue.clone(),
            ready: ready.clone(),
            held_back: None,
        };
        let mut state = self.wire.lock();
        match state.slots.entry((self.host.number, slot)) {
            std::collections::hash_map::Entry::Occupied(_) => {
                return Err(MemError::SlotTaken(slot));
            }
            std::collections::hash_map::Entry::Vacant(place) => place.insert(entry),
        };
        drop(state);
        Ok(MemPort {
            host: self.clone(),
            slot,
            ready,
            queue,
            groups: Groups::default(),
            counters: Counters::default(),
            tap: Tap::default(),
        })
    }
}

impl MemPort {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// What was sent, received and dropped.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn set_captures(&self, captures: Vec<Capture>) {
        self.tap.set_with(captures, &self.host.addresses());
    }

    pub(crate) fn record(&self, av: &AddressVector, packet: &[u8]) -> io::Result<()> {
        if !self.tap.is_on() {
            return Ok(());
        }
        let flow = self.flow(av, packet)?;
        let icrc = flow.icrc(0, packet)?;
        let ip = IpFields {
            identification: 0,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
        };
        self.tap.sent(&self.counters, &flow, ip, &[packet, &icrc]);
        Ok(())
    }

    pub(crate) fn send(&self, av: &AddressVector, packet: &[u8]) -> io::Result<()> {
        let flow = self.flow(av, packet)?;
        self.send_one(av, flow, 0, packet)
    }

    pub(crate) fn send_run(
        &self,
        av: &AddressVector,
        run: &mut [u8],
        segment: usize,
    ) -> io::Result<()> {
        crate::udp::check_run(run.len(), segment)?;
        let flow = self.flow(av, run)?;
        for (i, segment) in run.chunks(segment).enumerate() {
            self.send_one(av, flow, i as u16, &segment[..segment.len() - ICRC_LEN])?;
        }
        Ok(())
    }

    pub(crate) fn join_group(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let group = group.to_canonical();
        self.groups.join(group, ifindex, |_| {
            if ifindex != MEM_IFINDEX {
                return Err(io::Error::from_raw_os_error(libc::ENODEV));
            }
            let member = (self.host.host.number, self.slot);
            let mut wire = self.host.wire.lock();
            wire.groups.entry(group).or_default().insert(member);
            Ok(())
        })
    }

    pub(crate) fn leave_group(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let group = group.to_canonical();
        self.groups.leave(group, ifindex, |_| {
            self.host
                .wire
                .lock()
                .leave((self.host.host.number, self.slot), |left| left == group);
            Ok(())
        })
    }

    fn flow(&self, av: &AddressVector, packet: &[u8]) -> io::Result<Flow> {
        if packet.len() < BTH_LEN {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a packet has a BTH of 12 bytes",
            ));
        }
        let source = av.local.to_ip();
        if self.host.wire.lock().host_of(source) != Some(self.host.host.number) {
            return Err(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                "the local address is not one of this host",
            ));
        }
        // One source port per remote slot, as on the real port.
        let source_port = 0xC000 | u16::from(self.slot & 0x3F) << 8 | u16::from(packet[5]);
        Ok(Flow {
            source,
            source_port,
            destination: av.remote.to_ip(),
            destination_port: ROCE_PORT,
        })
    }

    fn send_one(
        &self,
        av: &AddressVector,
        flow: Flow,
        identification: u16,
        packet: &[u8],
    ) -> io::Result<()> {
        let icrc = flow.icrc(identification, packet)?;
        let mut datagram = Vec::with_capacity(packet.len() + ICRC_LEN);
        datagram.extend_from_slice(packet);
        datagram.extend_from_slice(&icrc);
        let ip = IpFields {
            identification,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
        };
        self.counters.add(Counter::tx_packets, 1);
        self.tap.sent(&self.counters, &flow, ip, &[&datagram]);
        let slot = packet[5];
        let packet = InFlight { flow, ip, datagram };
        let mut wire = self.host.wire.lock();
        if flow.destination.is_multicast() {
            wire.transmit_to_group(&self.counters, &packet);
        } else {
            wire.transmit(&self.counters, slot, packet);
        }
        Ok(())
    }

    pub(crate) fn recv(&self, batch: &mut Batch) -> io::Result<usize> {
        batch.clear();
        let mut used = 0;
        while batch.is_empty() || used < batch.buffers_mut().len() {
            let Some(packet) = self.next_packet() else {
                break;
            };
            let Some(identification) = packet.flow.verify(&packet.datagram) else {
                self.counters.add(Counter::icrc_bad, 1);
                continue;
            };
            let destination = packet.flow.destination;
            let to_group = destination.is_multicast();
            let dest_qpn = &packet.datagram[5..8];
            if to_group
                && !self
                    .groups
                    .accept(&self.counters, destination, MEM_IFINDEX, dest_qpn)
            {
                continue;
            }
            let ip = IpFields {
                identification,
                ..packet.ip
            };
            self.tap
                .received(&self.counters, &packet.flow, ip, &packet.datagram);
            let len = packet.datagram.len();
            let Some(room) = batch.buffers_mut()[used].get_mut(..len) else {
                self.counters.add(Counter::truncated, 1);
                continue;
            };
            room.copy_from_slice(&packet.datagram);
            let av = AddressVector {
                local: Gid::from_ip(packet.flow.destination),
                remote: Gid::from_ip(packet.flow.source),
                scope_id: if to_group { MEM_IFINDEX } else { 0 },
                traffic_class: packet.ip.traffic_class,
                hop_limit: packet.ip.hop_limit,
                flow_label: FlowLabel::default(),
                service_level: 0,
            };
            batch.push(av, used, 0..len - ICRC_LEN);
            used += 1;
        }
        self.counters.add(Counter::rx_packets, batch.len() as u64);
        Ok(batch.len())
    }

    /// Takes the oldest packet. The descriptor stops being readable with the last, under the queue's lock.
    fn next_packet(&self) -> Option<InFlight> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let packet = queue.packets.pop_front();
        if queue.packets.is_empty() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.ready, &mut count);
        }
        self.counters.set(Counter::rxq_overflow, queue.overflow);
        packet
    }
}

impl AsFd for MemPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Drop for MemPort {
    fn drop(&mut self) {
        let slot = (self.host.host.number, self.slot);
        let mut wire = self.host.wire.lock();
        wire.slots.remove(&slot);
        wire.leave(slot, |_| true);
    }
}

#[derive(Debug, Default)]
struct State {
    /// Whose each address is.
    hosts: HashMap<IpAddr, u64>,
    links: HashMap<u64, Link>,
    /// The members of each group: host and slot.
    groups: HashMap<IpAddr, BTreeSet<(u64, u8)>>,
    slots: HashMap<(u64, u8), SlotEntry>,
    next_host: u64,
    dice: Dice,
}

#[derive(Debug)]
struct HostEntry {
    wire: MemWire,
    number: u64,
}

impl Drop for HostEntry {
    fn drop(&mut self) {
        let number = self.number;
        let mut wire = self.wire.lock();
        wire.hosts.retain(|_, host| *host != number);
        wire.links.remove(&number);
    }
}

#[derive(Debug)]
struct SlotEntry {
    queue: Arc<Mutex<Queue>>,
    ready: Arc<OwnedFd>,
    /// A packet that the next one to this slot overtakes.
    held_back: Option<InFlight>,
}

#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<InFlight>,
    overflow: u64,
}

/// A datagram between sender and receiver.
#[derive(Debug, Clone)]
struct InFlight {
    flow: Flow,
    ip: IpFields,
    datagram: Vec<u8>,
}

impl State {
    fn transmit(&mut self, counters: &Counters, slot: u8, packet: InFlight) {
        let entry = self
            .host_of(packet.flow.destination)
            .and_then(|host| self.slots.get_mut(&(host, slot)));
        match entry {
            Some(entry) => entry.receive(counters, self.dice.roll(), packet),
            None => counters.add(Counter::no_receiver, 1),
        }
    }

    /// One copy for each member that can be reached, those of the sender's host included.
    fn transmit_to_group(&mut self, counters: &Counters, packet: &InFlight) {
        let members = self.groups.get(&packet.flow.destination);
        let mut reached = false;
        for (host, slot) in members.into_iter().flatten() {
            if self.links.get(host).is_some_and(|link| link.present)
                && let Some(entry) = self.slots.get_mut(&(*host, *slot))
            {
                entry.receive(counters, self.dice.roll(), packet.clone());
                reached = true;
            }
        }
        if !reached {
            counters.add(Counter::no_receiver, 1);
        }
    }

    /// The host that can be reached under an address.
    fn host_of(&self, address: IpAddr) -> Option<u64> {
        let host = *self.hosts.get(&address)?;
        self.links.get(&host)?.present.then_some(host)
    }

    /// Ends memberships of a slot.
    fn leave(&mut self, slot: (u64, u8), which: impl Fn(IpAddr) -> bool) {
        self.groups.retain(|group, members| {
            if which(*group) {
                members.remove(&slot);
            }
            !members.is_empty()
        });
    }
}

impl SlotEntry {
    /// What the dice say becomes of a packet to this slot.
    fn receive(&mut self, counters: &Counters, fate: Fate, packet: InFlight) {
        match fate {
            Fate::Lost => counters.add(Counter::fault_lost, 1),
            Fate::Delivered => self.deliver(packet),
            Fate::Duplicated => {
                counters.add(Counter::fault_duplicated, 1);
                self.deliver(packet.clone());
                self.deliver(packet);
            }
            // Held back until the next packet has overtaken it. With no next packet it is as good as lost, and the
            // protocols above deal with that.
            Fate::Reordered => {
                counters.add(Counter::fault_reordered, 1);
                if let Some(earlier) = self.held_back.replace(packet) {
                    self.deliver(earlier);
                }
            }
        }
    }

    fn deliver(&mut self, packet: InFlight) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        for packet in [Some(packet), self.held_back.take()].into_iter().flatten() {
            if queue.packets.len() >= QUEUE_MAX {
                queue.overflow += 1;
            } else {
                queue.packets.push_back(packet);
            }
        }
        let _ = rustix::io::write(&*self.ready, &1u64.to_ne_bytes());
    }
}

/// The interface index of an in-memory host's only interface.
pub const MEM_IFINDEX: u32 = 1;
const BTH_LEN: usize = 12;
const ICRC_LEN: usize = 4;
/// As many packets as a socket with a receive buffer of some megabytes holds.
const QUEUE_MAX: usize = 4096;
const _: () = assert!(SLOTS == 256, "a slot is a byte");

#[cfg(test)]
mod tests;
