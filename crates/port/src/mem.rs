//! A network in memory: any number of hosts with given addresses, each with 256 slots, and a pollable descriptor per
//! slot. Packets are as on the wire, ICRC included. Loss, duplication and reordering can be switched on, from a seed.
//! Addresses and the network interface of a host can come and go.

mod dice;
mod link;

pub use dice::Faults;
pub use link::MemChanges;

use crate::counters::Counter;
use crate::fault::{self, Direction, Fate, Held, Injector, Outlet, PortFaults};
use crate::frame::{Flow, IpFields};
use crate::group::Groups;
use crate::pcap::{Capture, PortTap, Tap, Tapped};
use crate::{Batch, Counters, MemError, ROCE_PORT, SLOTS};
use dice::{Dice, Roll};
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
    /// Ends before the slot is closed.
    injector: Arc<Injector>,
    groups: Groups,
    out: Arc<MemOutgoing>,
}

/// What a slot sends with, shared with whoever lets held packets go.
#[derive(Debug)]
struct MemOutgoing {
    host: MemHost,
    slot: u8,
    ready: Arc<OwnedFd>,
    queue: Arc<Mutex<Queue>>,
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
            injector: Arc::default(),
            groups: Groups::default(),
            out: Arc::new(MemOutgoing {
                host: self.clone(),
                slot,
                ready,
                queue,
                counters: Counters::default(),
                tap: Tap::default(),
            }),
        })
    }
}

impl MemPort {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.out.slot
    }

    /// What was sent, received and dropped.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.out.counters
    }

    pub(crate) fn set_captures(&self, captures: Vec<Capture>) {
        self.out.tap.set(captures, || self.out.own_addresses());
    }

    pub(crate) fn taps(&self) -> PortTap {
        let tapped: Arc<dyn Tapped> = self.out.clone();
        PortTap::new(&tapped)
    }

    pub(crate) fn inject(&self, faults: Vec<Arc<fault::Faults>>) -> io::Result<()> {
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

    pub(crate) fn record(&self, av: &AddressVector, packet: &[u8]) -> io::Result<()> {
        let out = &*self.out;
        if !out.tap.is_on() {
            return Ok(());
        }
        let flow = out.flow(av, packet)?;
        let icrc = flow.icrc(0, packet)?;
        let at = out.tap.moment();
        out.tap
            .sent(&out.counters, at, &flow, ip_fields(av, 0), &[packet, &icrc]);
        Ok(())
    }

    pub(crate) fn send(&self, av: &AddressVector, packet: &[u8]) -> io::Result<()> {
        let flow = self.out.flow(av, packet)?;
        self.send_one(av, flow, 0, packet)
    }

    pub(crate) fn send_run(
        &self,
        av: &AddressVector,
        run: &mut [u8],
        segment: usize,
    ) -> io::Result<()> {
        crate::udp::check_run(run.len(), segment)?;
        let flow = self.out.flow(av, run)?;
        for (i, segment) in run.chunks(segment).enumerate() {
            self.send_one(av, flow, i as u16, &segment[..segment.len() - ICRC_LEN])?;
        }
        Ok(())
    }

    fn send_one(
        &self,
        av: &AddressVector,
        flow: Flow,
        identification: u16,
        packet: &[u8],
    ) -> io::Result<()> {
        let icrc = flow.icrc(identification, packet)?;
        let packet = Held {
            direction: Direction::Tx,
            av: *av,
            flow,
            ip: ip_fields(av, identification),
            datagram: [packet, &icrc].concat(),
        };
        if self.injector.is_on() {
            self.injector.send(&*self.out, packet)
        } else {
            self.out.transmit(packet.flow, packet.ip, packet.datagram);
            Ok(())
        }
    }

    pub(crate) fn join_group(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let group = group.to_canonical();
        self.groups.join(group, ifindex, |_| {
            if ifindex != MEM_IFINDEX {
                return Err(io::Error::from_raw_os_error(libc::ENODEV));
            }
            let mut wire = self.out.host.wire.lock();
            wire.groups
                .entry(group)
                .or_default()
                .insert(self.out.place());
            Ok(())
        })
    }

    pub(crate) fn leave_group(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let group = group.to_canonical();
        self.groups.leave(group, ifindex, |_| {
            let mut wire = self.out.host.wire.lock();
            wire.leave(self.out.place(), |left| left == group);
            Ok(())
        })
    }

    pub(crate) fn recv<const N: usize>(&self, batch: &mut Batch) -> io::Result<usize> {
        batch.clear();
        let mut used = 0;
        while batch.is_empty() || used < batch.buffers_mut().len().min(N) {
            let Some(packet) = self.out.next_packet() else {
                break;
            };
            used += usize::from(self.accept(packet, used, batch));
        }
        self.out
            .counters
            .add(Counter::rx_packets, batch.len() as u64);
        Ok(batch.len())
    }

    /// Checks a packet and puts it into the batch, unless it is dropped.
    fn accept(&self, mut packet: InFlight, buffer: usize, batch: &mut Batch) -> bool {
        let counters = &self.out.counters;
        let Some(identification) = packet.flow.verify(&packet.datagram) else {
            counters.add(Counter::icrc_bad, 1);
            return false;
        };
        packet.ip.identification = identification;
        let destination = packet.flow.destination;
        let to_group = destination.is_multicast();
        let dest_qpn = &packet.datagram[5..8];
        if to_group
            && !self
                .groups
                .accept(counters, destination, MEM_IFINDEX, dest_qpn)
        {
            return false;
        }
        if !packet.was_held {
            self.out
                .tap
                .received(counters, &packet.flow, packet.ip, &packet.datagram);
        }
        let av = AddressVector {
            local: Gid::from_ip(packet.flow.destination),
            remote: Gid::from_ip(packet.flow.source),
            scope_id: if to_group { MEM_IFINDEX } else { 0 },
            traffic_class: packet.ip.traffic_class,
            hop_limit: packet.ip.hop_limit,
            flow_label: FlowLabel::default(),
            service_level: 0,
        };
        let fate = if packet.was_held || !self.injector.is_on() {
            Fate::Delivered
        } else {
            let InFlight {
                flow, ip, datagram, ..
            } = &mut packet;
            let (flow, ip) = (*flow, *ip);
            self.injector
                .received(&*self.out, &flow, datagram, |datagram| Held {
                    direction: Direction::Rx,
                    av,
                    flow,
                    ip,
                    datagram: datagram.to_vec(),
                })
        };
        match fate {
            Fate::Away => return false,
            Fate::Corrupted => {
                let is_right = packet.flow.verify(&packet.datagram).is_some();
                debug_assert!(!is_right, "a changed bit is one that the ICRC covers");
                counters.add(Counter::icrc_bad, 1);
                return false;
            }
            Fate::Delivered | Fate::Twice | Fate::With(_) => {}
        }
        let len = packet.datagram.len();
        let Some(room) = batch.buffers_mut()[buffer].get_mut(..len) else {
            counters.add(Counter::truncated, 1);
            return false;
        };
        room.copy_from_slice(&packet.datagram);
        if fate == Fate::Twice {
            batch.push(av, buffer, 0..len - ICRC_LEN);
        }
        batch.push(av, buffer, 0..len - ICRC_LEN);
        if let Fate::With(fault) = fate {
            batch.strike(fault);
        }
        true
    }
}

impl MemOutgoing {
    /// Host and slot.
    fn place(&self) -> (u64, u8) {
        (self.host.host.number, self.slot)
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

    fn transmit(&self, flow: Flow, ip: IpFields, datagram: Vec<u8>) {
        self.counters.add(Counter::tx_packets, 1);
        let at = self.tap.moment();
        self.tap.sent(&self.counters, at, &flow, ip, &[&datagram]);
        let slot = datagram[5];
        let packet = InFlight {
            flow,
            ip,
            datagram,
            was_held: false,
        };
        let mut wire = self.host.wire.lock();
        if !wire.carries(self.host.host.number) {
            self.counters.add(Counter::no_receiver, 1);
        } else if flow.destination.is_multicast() {
            wire.transmit_to_group(&self.counters, &packet);
        } else {
            wire.transmit(&self.counters, slot, packet);
        }
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

impl Tapped for MemOutgoing {
    fn tap(&self) -> &Tap {
        &self.tap
    }

    fn own_addresses(&self) -> Vec<IpAddr> {
        self.host.addresses()
    }
}

impl Outlet for MemOutgoing {
    fn put(&self, packet: &Held) -> io::Result<()> {
        match packet.direction {
            Direction::Tx => {
                self.transmit(packet.flow, packet.ip, packet.datagram.clone());
            }
            Direction::Rx => enqueue(
                &self.queue,
                &self.ready,
                [InFlight {
                    flow: packet.flow,
                    ip: packet.ip,
                    datagram: packet.datagram.clone(),
                    was_held: true,
                }],
            ),
        }
        Ok(())
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl AsFd for MemPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.out.ready.as_fd()
    }
}

impl Drop for MemPort {
    fn drop(&mut self) {
        let slot = self.out.place();
        let mut wire = self.out.host.wire.lock();
        wire.slots.remove(&slot);
        wire.leave(slot, |_| true);
    }
}

fn ip_fields(av: &AddressVector, identification: u16) -> IpFields {
    IpFields {
        identification,
        traffic_class: av.traffic_class,
        hop_limit: av.hop_limit,
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
    /// The receiver has held it and lets it come now.
    was_held: bool,
}

impl State {
    fn transmit(&mut self, counters: &Counters, slot: u8, packet: InFlight) {
        let entry = self
            .host_of(packet.flow.destination)
            .filter(|host| self.carries(*host))
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
            if self
                .links
                .get(host)
                .is_some_and(|link| link.present && link.carries)
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

    /// Whether packets pass a host's interface.
    fn carries(&self, host: u64) -> bool {
        self.links.get(&host).is_some_and(|link| link.carries)
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
    fn receive(&mut self, counters: &Counters, roll: Roll, packet: InFlight) {
        match roll {
            Roll::Lost => counters.add(Counter::fault_lost, 1),
            Roll::Delivered => self.deliver(packet),
            Roll::Duplicated => {
                counters.add(Counter::fault_duplicated, 1);
                self.deliver(packet.clone());
                self.deliver(packet);
            }
            // Held back until the next packet has overtaken it. With no next packet it is as good as lost, and the
            // protocols above deal with that.
            Roll::Reordered => {
                counters.add(Counter::fault_reordered, 1);
                if let Some(earlier) = self.held_back.replace(packet) {
                    self.deliver(earlier);
                }
            }
        }
    }

    fn deliver(&mut self, packet: InFlight) {
        let packets = [Some(packet), self.held_back.take()].into_iter().flatten();
        enqueue(&self.queue, &self.ready, packets);
    }
}

fn enqueue(queue: &Mutex<Queue>, ready: &OwnedFd, packets: impl IntoIterator<Item = InFlight>) {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    for packet in packets {
        if queue.packets.len() >= QUEUE_MAX {
            queue.overflow += 1;
        } else {
            queue.packets.push_back(packet);
        }
    }
    let _ = rustix::io::write(ready, &1u64.to_ne_bytes());
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
