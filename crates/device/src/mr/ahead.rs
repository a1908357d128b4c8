//! Copies to and from memory of the program that do more than one packet at a time.
//!
//! Each costs a system call, whose price is that of copying many kilobytes. Packets of one message come in bursts and leave in
//! bursts, so:
//! - with the first packet of a burst that is placed, the payloads of those behind it are placed too, which the device has
//!   found to be the next of the same message ([`Incoming`]). When their turn comes each is checked as if nothing had
//!   happened, and only the copy is left out. What could not be placed is tried again then: so each packet meets its own
//!   fate, and the packets before it are not harmed.
//! - with the first packet that is fetched, bytes of those are put into a pipe that the engine announces
//!   ([`Memory::announce`](oarlock_transport::Memory::announce)). Of each packet that is built only the place is noted, and
//!   before a burst leaves its packets are filled from the pipe, all at once ([`Outgoing`]). Nothing of it is kept for the
//!   next time that the queue pair is locked.

use std::ops::Range;

use oarlock_transport::{MAX_PACKET_LEN, Sge};
use oarlock_wire::{Packet, RKey};

use crate::sys::{Pipe, Shelf, Step};

/// What is placed by.
#[derive(Default)]
pub(crate) struct Incoming {
    pub(super) shelf: Shelf,
}

/// What is fetched by.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(super) pipe: Pipe,
    /// Where the packets of the burst are built: nowhere, outside of one.
    buffer: Range<usize>,
    /// What becomes of the bytes in the pipe.
    steps: Vec<Step>,
}

impl Outgoing {
    /// From now on packets are built in `buffer`: their payloads may be missing there until [`settle`](Self::settle).
    pub(crate) fn begin(&mut self, buffer: &[u8]) {
        let start = buffer.as_ptr().addr();
        self.buffer = start..start + buffer.len();
    }

    /// Fills what is missing in `buffer`, of which [`begin`](Self::begin) was told; whether it could be done.
    pub(crate) fn settle(&mut self, buffer: &mut [u8]) -> bool {
        let is_done = self.pipe.carry_out(&self.steps, buffer);
        self.steps.clear();
        is_done
    }

    /// No packet is built from now on: leaves nothing in the pipe, which had so many bytes more than packets wanted.
    pub(super) fn end(&mut self, unwanted: usize, buffer: &mut [u8]) {
        self.skip(unwanted);
        self.settle(buffer);
        debug_assert_eq!(self.pipe.held(), 0);
        self.buffer = 0..0;
    }

    /// Whether `out` lies where packets are built.
    pub(super) fn is_in_burst(&self, out: &[u8]) -> bool {
        let start = out.as_ptr().addr();
        self.buffer.start <= start && start + out.len() <= self.buffer.end
    }

    /// The next bytes in the pipe belong into `out`, which [is where packets are built](Self::is_in_burst).
    pub(super) fn fill_later(&mut self, out: &[u8]) {
        if !out.is_empty() {
            let start = out.as_ptr().addr() - self.buffer.start;
            self.steps.push(Step::Fill(start..start + out.len()));
        }
    }

    /// So many bytes that were put into the pipe are of no use.
    pub(super) fn skip(&mut self, len: usize) {
        if len > 0 {
            self.steps.push(Step::Skip(len));
        }
    }
}

/// The two together.
pub(crate) struct Ways<'a> {
    /// For placing; without it each packet is placed by itself.
    pub(crate) incoming: Option<&'a mut Incoming>,
    /// For fetching; without it each packet is fetched by itself.
    pub(crate) outgoing: Option<&'a mut Outgoing>,
}

#[cfg(test)]
impl Ways<'_> {
    /// Neither.
    pub(super) const NONE: Self = Self {
        incoming: None,
        outgoing: None,
    };
}

/// Where bytes of a message belong.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Place {
    memory: Named,
    /// Address, or how far into the message.
    at: u64,
}

/// Memory as a message names it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Named {
    #[default]
    Nothing,
    Remote(RKey),
    /// The first element of a list.
    Local(Sge),
}

impl Place {
    pub(super) const fn remote(rkey: RKey, addr: u64) -> Self {
        Self {
            memory: Named::Remote(rkey),
            at: addr,
        }
    }

    pub(super) fn local(sges: &[Sge], offset: u64) -> Self {
        let first = sges.first().copied();
        Self {
            memory: first.map_or(Named::Nothing, Named::Local),
            at: offset,
        }
    }

    const fn behind(self, len: usize) -> Self {
        Self {
            memory: self.memory,
            at: self.at.wrapping_add(len as u64),
        }
    }
}

/// Packets that follow the one in hand, and how many of them are in place.
#[derive(Default)]
pub(super) struct Following<'a> {
    packets: &'a [Packet<'a>],
    /// Whether the packet in hand was placed with one before it. What it places itself does not count: a datagram places
    /// its header first, and its payload right behind.
    is_in_hand: bool,
    /// How many of those behind it are placed.
    placed: usize,
    /// Where the next of those begins.
    next: Place,
}

impl<'a> Following<'a> {
    /// The next packet is in hand, and these follow it.
    pub(super) const fn go_on(&mut self, packets: &'a [Packet<'a>]) {
        self.packets = packets;
        self.is_in_hand = self.placed > 0;
        self.placed = self.placed.saturating_sub(1);
    }

    /// Whether the packet in hand is in place already, if that is where it belongs.
    pub(super) fn is_placed(&mut self, place: Place, len: usize) -> bool {
        let is_placed = self.is_in_hand && place == self.next;
        if is_placed {
            self.next = place.behind(len);
        } else {
            self.placed = 0;
        }
        self.is_in_hand = false;
        is_placed
    }

    /// Puts the packet in hand on the shelf, and as many of those that follow as there is room for and as have no more than
    /// `more` bytes together; returns how many bytes they all are.
    pub(super) fn load(&self, data: &[u8], more: u64, shelf: &mut [u8]) -> usize {
        shelf[..data.len()].copy_from_slice(data);
        let limit = usize::try_from(more).map_or(shelf.len(), |more| {
            shelf.len().min(data.len().saturating_add(more))
        });
        let mut end = data.len();
        for packet in self.packets {
            let next = end + packet.payload.len();
            if next > limit {
                break;
            }
            shelf[end..next].copy_from_slice(packet.payload);
            end = next;
        }
        end
    }

    /// So many bytes from `place` on are in place now, the first `len` of which are those of the packet in hand; whether
    /// these are.
    pub(super) fn note_placed(&mut self, place: Place, len: usize, copied: usize) -> bool {
        if copied < len {
            return false;
        }
        let mut rest = copied - len;
        let whole = self.packets.iter().take_while(|packet| {
            let left = rest.checked_sub(packet.payload.len());
            rest = left.unwrap_or(rest);
            left.is_some()
        });
        self.placed = whole.count();
        self.next = place.behind(len);
        true
    }
}

/// What of a message is in the pipe, and no packet has asked for yet.
#[derive(Clone, Copy, Default)]
pub(super) struct Fetched {
    place: Place,
    len: usize,
}

impl Fetched {
    /// So many bytes from `place` on.
    pub(super) const fn new(place: Place, len: usize) -> Self {
        Self { place, len }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn has(&self, place: Place, len: usize) -> bool {
        self.place == place && len > 0 && self.len >= len
    }

    /// The next of them are asked for.
    pub(super) const fn take(&mut self, len: usize) {
        self.place = self.place.behind(len);
        self.len -= len;
    }
}

const _: () = assert!(MAX_PACKET_LEN <= Pipe::LONGEST);
