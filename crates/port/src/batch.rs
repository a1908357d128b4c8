//! Received packets of one call.

use crate::fault::DeviceFault;
use oarlock_wire::AddressVector;
use std::ops::Range;

/// Room for what one [`Port::recv`](crate::Port::recv) takes from the socket, and the packets found in it.
#[derive(Debug)]
pub struct Batch {
    buffers: Vec<Box<[u8]>>,
    packets: Vec<Entry>,
    /// Which packets bring a fault of the device with them, in their order.
    faults: Vec<(usize, Struck)>,
}

#[derive(Debug, Clone)]
struct Entry {
    av: AddressVector,
    buffer: usize,
    range: Range<usize>,
}

impl Batch {
    /// Room for `buffers` datagrams or GRO bursts of up to 64 KiB each.
    ///
    /// # Panics
    /// Never; zero is taken as one.
    #[must_use]
    pub fn new(buffers: usize) -> Self {
        let buffers = buffers.clamp(1, MAX_BUFFERS);
        Self {
            buffers: (0..buffers)
                .map(|_| vec![0; BUFFER_LEN].into_boxed_slice())
                .collect(),
            packets: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// The packets, in the order of their arrival: where each came from, and its bytes from the BTH to the end of
    /// the padded payload.
    pub fn iter(&self) -> impl Iterator<Item = (AddressVector, &[u8])> {
        self.packets
            .iter()
            .map(|entry| (entry.av, &self.buffers[entry.buffer][entry.range.clone()]))
    }

    /// The packet at this place, 0 being the first, as [`iter`](Self::iter) gives it.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<(AddressVector, &[u8])> {
        let entry = self.packets.get(place)?;
        Some((entry.av, &self.buffers[entry.buffer][entry.range.clone()]))
    }

    /// The faults that [rules](crate::fault) have for these packets and that are the receiver's to carry out.
    #[must_use]
    pub fn strikes(&self) -> Strikes<'_> {
        Strikes { rest: &self.faults }
    }

    /// Number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.packets.clear();
        self.faults.clear();
    }

    /// The packet that was put in last brings a fault with it.
    pub(crate) fn strike(&mut self, struck: Struck) {
        if let Some(last) = self.packets.len().checked_sub(1) {
            self.faults.push((last, struck));
        }
    }

    pub(crate) fn buffers_mut(&mut self) -> &mut [Box<[u8]>] {
        &mut self.buffers
    }

    pub(crate) fn buffer(&self, index: usize) -> &[u8] {
        &self.buffers[index]
    }

    pub(crate) fn push(&mut self, av: AddressVector, buffer: usize, range: Range<usize>) {
        self.packets.push(Entry { av, buffer, range });
    }
}

/// The faults for the packets of a [`Batch`], asked for in the packets' order.
#[derive(Debug)]
pub struct Strikes<'a> {
    rest: &'a [(usize, Struck)],
}

/// A fault that a packet brings with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Struck {
    pub(crate) fault: DeviceFault,
    /// Which of the port's sets of rules has struck.
    pub(crate) set: usize,
}

impl Strikes<'_> {
    /// Whether there is none for the packets that have not been asked for yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The fault that comes with the packet at this place, 0 being the first. The places of several calls must ascend.
    #[inline]
    pub fn at(&mut self, packet: usize) -> Option<DeviceFault> {
        self.with_set(packet).map(|(fault, _)| fault)
    }

    /// As [`at`](Self::at), and which of the sets given to [`Port::set_faults`](crate::Port::set_faults) has struck, from 0.
    #[inline]
    pub fn with_set(&mut self, packet: usize) -> Option<(DeviceFault, usize)> {
        while let Some(((place, struck), rest)) = self.rest.split_first() {
            if *place > packet {
                break;
            }
            self.rest = rest;
            if *place == packet {
                return Some((struck.fault, struck.set));
            }
        }
        None
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new(4)
    }
}

/// A GRO burst is at most one IP datagram's length.
pub(crate) const BUFFER_LEN: usize = 65_536;
/// More buffers than this in one call bring nothing and cost memory.
pub(crate) const MAX_BUFFERS: usize = 16;
