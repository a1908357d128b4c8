//! Registered memory as a queue pair's packet engine sees it: each access resolves its key, and checks everything.

use std::io;
use std::sync::{Arc, RwLockReadGuard};

use oarlock_transport::{
    AccessFlags, AtomicOp, BindWindow, HeldReceive, Memory, MemoryError, RemoteAccess, Sge,
};
use oarlock_wire::{LKey, Packet, Qpn, RKey};

use super::access::right_for;
use super::ahead::{Fetched, Following, Incoming, Outgoing, Place, Ways};
use super::keys::index_of;
use super::region::{Entered, Piece, RegionInner, Registration};
use super::table::{Entry, RegionTable};
use super::watched::Probe;
use super::window::{self, WindowInner};
use crate::counters::Counters;
use crate::sys::{MAX_RANGES, Pipe};

/// The memory of one queue pair. Made for a packet or a run of them, and not kept: it may keep a region's memory alive.
pub(crate) struct PdMemory<'a> {
    regions: &'a RegionTable,
    /// The protection domain of the queue pair.
    pd: u32,
    /// The one that remote keys are checked against; another one for an XRC request only.
    remote_pd: u32,
    qpn: Qpn,
    counters: &'a Counters,
    /// Which Watchers of the program's memory need not be asked any more.
    probe: &'a Probe,
    /// What was looked up last. A message's packets, and the calls for one packet, name the same memory.
    last: Option<(u32, Entry)>,
    incoming: Option<&'a mut Incoming>,
    outgoing: Option<&'a mut Outgoing>,
    following: Following<'a>,
    fetched: Fetched,
    /// Bytes are on their way out; see [`RegionTable::leave`].
    leaving: Option<RwLockReadGuard<'a, ()>>,
    /// A window was bound: what goes by its key of before is to end.
    has_bound: bool,
    /// What the engine says of the next copy.
    announced: u64,
}

impl<'a> PdMemory<'a> {
    pub(crate) fn new(
        regions: &'a RegionTable,
        pd: u32,
        qpn: Qpn,
        counters: &'a Counters,
        probe: &'a Probe,
        ways: Ways<'a>,
    ) -> Self {
        Self {
            regions,
            pd,
            remote_pd: pd,
            qpn,
            counters,
            probe,
            last: None,
            incoming: ways.incoming,
            outgoing: ways.outgoing,
            following: Following::default(),
            fetched: Fetched::default(),
            leaving: None,
            has_bound: false,
            announced: 0,
        }
    }

    /// From now on the packet in hand is one that is followed by these: the next of the same message, in their order. Of the
    /// first one that is told of, all are new; then each is the first of those told of before.
    pub(crate) fn go_on(&mut self, following: &'a [Packet<'a>]) {
        self.following.go_on(following);
    }

    /// From now on packets are built in `buffer`; see [`Outgoing::begin`].
    pub(crate) fn begin_burst(&mut self, buffer: &[u8]) {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.begin(buffer);
        }
    }

    /// Fills the payloads of the packets in `buffer`; whether it could be done.
    pub(crate) fn settle(&mut self, buffer: &mut [u8]) -> bool {
        let outgoing = self.outgoing.as_mut();
        let is_done = outgoing.is_none_or(|outgoing| outgoing.settle(buffer));
        self.leaving = None;
        is_done
    }

    /// Leaves nothing in the pipe. If a window was bound, waits for other queue pairs whose packets go through it: who finds
    /// that it is bound may use for anything else what it was bound to before.
    pub(crate) fn end_burst(&mut self, buffer: &mut [u8]) {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.end(self.fetched.len(), buffer);
            self.fetched = Fetched::default();
        }
        self.leaving = None;
        if std::mem::take(&mut self.has_bound) {
            self.regions.wait_for_leaving();
        }
    }

    /// From now on remote keys are checked against protection domain `pd`: an XRC request's, which is its shared receive
    /// queue's (IBA Vol. 1 annex A14).
    pub(crate) fn set_remote_domain(&mut self, pd: u32) {
        self.remote_pd = pd;
    }

    /// What `key` names. What was looked up before is still right if its key is: see `RegionTable`.
    fn lookup(&mut self, key: u32) -> Option<&Entry> {
        let index = index_of(key);
        if self.last.as_ref().is_none_or(|(last, _)| *last != index) {
            self.last = Some((index, self.regions.get(key)?));
        }
        self.last.as_ref().map(|(_, entry)| entry)
    }

    /// Whether a copy to or from what `key` names is a system call. Of a window, whatever lies behind it.
    fn is_foreign(&mut self, key: u32) -> bool {
        match self.lookup(key) {
            Some(Entry::Region(region)) => region.is_probably_foreign(),
            Some(Entry::Window(_)) => true,
            None => false,
        }
    }

    /// As [`is_foreign`](Self::is_foreign), for the first element that names memory.
    fn are_foreign(&mut self, sges: &[Sge]) -> bool {
        let named = sges.iter().find(|sge| sge.len > 0);
        named.is_some_and(|sge| self.is_foreign(sge.lkey.0))
    }

    /// Calls `copy(registration, pieces, from, to)` for the message bytes `[offset, offset + len)`, as many elements of one
    /// region at a time as one copy takes; `from..to` counts from `offset`.
    fn for_pieces(
        &mut self,
        pd: u32,
        sges: &[Sge],
        message: (u64, usize),
        way: Way,
        mut copy: impl FnMut(&Registration, &[Piece], usize, usize) -> io::Result<bool>,
    ) -> Result<(), MemoryError> {
        let (offset, len) = message;
        let probe = self.probe;
        let mut skip = offset;
        let mut done = 0;
        let mut rest = sges.iter().peekable();
        while done < len {
            let Some(first) = rest.next() else {
                // The elements end before the message does.
                return Err(MemoryError::OutOfBounds {
                    addr: offset,
                    len: len as u64,
                });
            };
            if skip >= u64::from(first.len) {
                skip -= u64::from(first.len);
                continue;
            }
            let registration = self.enter_local(first.lkey, pd, way)?;
            let mut pieces = [Piece::default(); MAX_RANGES];
            let (mut count, mut total) = (0, 0);
            let mut next = Some(first);
            while let Some(sge) = next {
                if sge.len > 0 {
                    let mut piece = element(&registration, sge)?;
                    piece.offset += skip;
                    piece.len = (piece.len - skip as usize).min(len - done - total);
                    skip = 0;
                    pieces[count] = piece;
                    count += 1;
                    total += piece.len;
                }
                next = if count < MAX_RANGES && done + total < len {
                    rest.next_if(|sge| sge.lkey == first.lkey)
                } else {
                    None
                };
            }
            let unknown = MemoryError::InvalidKey(first.lkey);
            // The address of the first of them; a list is short.
            let unmapped = MemoryError::Unmapped {
                addr: registration.iova + pieces[0].offset,
                len: total as u64,
            };
            let mut copy_some = || {
                let copied = copy(&registration, &pieces[..count], done, done + total);
                is_complete(copied).then_some(()).ok_or(unmapped)
            };
            if registration.is_watched() {
                registration.while_held(probe, unknown, copy_some)?;
            } else {
                copy_some()?;
            }
            done += total;
        }
        Ok(())
    }

    /// Takes the guard of the region that a work request names.
    fn enter_local(&mut self, lkey: LKey, pd: u32, way: Way) -> Result<Entered<'_>, MemoryError> {
        let unknown = MemoryError::InvalidKey(lkey);
        let Some(Entry::Region(region)) = self.lookup(lkey.0) else {
            return Err(unknown);
        };
        let entered = match way {
            Way::Place => region.enter_to_place(),
            Way::Fetch => region.enter_to_fetch(),
        };
        let registration = entered.ok_or(unknown)?;
        if registration.key != lkey.0 || registration.pd != pd {
            return Err(unknown);
        }
        if way == Way::Place && !registration.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(MemoryError::NotWritable(lkey));
        }
        Ok(registration)
    }

    /// Calls `then(registration, piece)` with the guards held for memory that the peer may access so.
    fn with_remote<T>(
        &mut self,
        rkey: RKey,
        range: (u64, u64),
        access: RemoteAccess,
        then: impl FnOnce(&RegionTable, &Registration, Piece) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let unknown = MemoryError::InvalidRemoteKey(rkey);
        let denied = MemoryError::RemoteAccessDenied { rkey, access };
        let outside = MemoryError::OutOfBounds {
            addr: range.0,
            len: range.1,
        };
        let (regions, pd, qpn, probe) = (self.regions, self.remote_pd, self.qpn, self.probe);
        match self.lookup(rkey.0).ok_or(unknown)? {
            Entry::Region(region) => {
                let registration = enter(region, access).ok_or(unknown)?;
                if registration.key != rkey.0 || registration.pd != pd {
                    return Err(unknown);
                }
                if !registration.access.contains(right_for(access)) {
                    return Err(denied);
                }
                let piece = registration.piece(range.0, range.1).ok_or(outside)?;
                check_word(access, range.0, &registration, piece)?;
                if registration.is_watched() {
                    return registration
                        .while_held(probe, unknown, || then(regions, &registration, piece));
                }
                then(regions, &registration, piece)
            }
            Entry::Window(window) => {
                let state = window.enter().ok_or(unknown)?;
                let binding = state.usable(rkey, pd, qpn).ok_or(unknown)?;
                if !binding.access.contains(right_for(access)) {
                    return Err(denied);
                }
                let within = binding.piece(range.0, range.1).ok_or(outside)?;
                let region = binding.region.upgrade().ok_or(unknown)?;
                let registration = enter(&region, access).ok_or(unknown)?;
                check_word(access, range.0, &registration, within)?;
                if registration.is_watched() {
                    return registration
                        .while_held(probe, unknown, || then(regions, &registration, within));
                }
                then(regions, &registration, within)
            }
        }
    }

    fn write(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        let more = std::mem::take(&mut self.announced);
        let place = Place::remote(rkey, addr);
        if self.following.is_placed(place, data.len()) {
            let range = (addr, data.len() as u64);
            return self.with_remote(rkey, range, RemoteAccess::Write, |_, _, _| Ok(()));
        }
        if self.is_foreign(rkey.0)
            && let Some(incoming) = self.incoming.take()
        {
            let is_placed = self.write_ahead(incoming, (rkey, addr), data, more);
            self.incoming = Some(incoming);
            if is_placed {
                return Ok(());
            }
        }
        self.write_checked(rkey, addr, data)
    }

    /// Places a packet's bytes and those of packets that follow; whether at least its own are in place.
    fn write_ahead(
        &mut self,
        incoming: &mut Incoming,
        (rkey, addr): (RKey, u64),
        data: &[u8],
        more: u64,
    ) -> bool {
        let Some(shelf) = incoming.shelf.mapped() else {
            return false;
        };
        let total = self.following.load(data, more, shelf.bytes());
        let range = (addr, total as u64);
        let copied = self.with_remote(rkey, range, RemoteAccess::Write, |_, memory, piece| {
            let pieces = memory.in_order(piece);
            let copied = memory.place_from(shelf, 0, pieces.as_slice());
            Ok(copied.inspect_err(refused).unwrap_or(0))
        });
        let place = Place::remote(rkey, addr);
        copied.is_ok_and(|copied| self.following.note_placed(place, data.len(), copied))
    }

    fn read(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let more = std::mem::take(&mut self.announced);
        let place = Place::remote(rkey, addr);
        if self.fetched.has(place, out.len()) {
            self.leave();
            let range = (addr, out.len() as u64);
            self.with_remote(rkey, range, RemoteAccess::Read, |_, _, _| Ok(()))?;
            self.take_fetched(out);
            return Ok(());
        }
        if self.is_foreign(rkey.0)
            && let Some(outgoing) = self.begin_ahead(out)
        {
            let total = total_ahead(out, more);
            self.leave_if_long(total);
            let range = (addr, total as u64);
            let mut put = 0;
            // If it fails, it has put this much.
            let _ = self.with_remote(rkey, range, RemoteAccess::Read, |_, memory, piece| {
                put = memory.put_in(&mut outgoing.pipe, &[piece]);
                Ok(())
            });
            if self.end_ahead(outgoing, place, out, (put, total)) {
                return Ok(());
            }
        }
        self.read_checked(rkey, addr, out)
    }

    /// Bytes are on their way out from now on until the packets that there are have all of theirs.
    fn leave(&mut self) {
        if self.leaving.is_none() {
            self.leaving = Some(self.regions.leave());
        }
    }

    /// As [`leave`](Self::leave), unless so few bytes are copied into the pipe at once.
    fn leave_if_long(&mut self, total: usize) {
        if total > Pipe::COPIED {
            self.leave();
        }
    }

    /// What packets are fetched by that are built where `out` lies; what is in the pipe for others is of no use any more.
    fn begin_ahead(&mut self, out: &[u8]) -> Option<&'a mut Outgoing> {
        let outgoing = self.outgoing.take()?;
        if !outgoing.is_in_burst(out) {
            self.outgoing = Some(outgoing);
            return None;
        }
        outgoing.skip(self.fetched.len());
        self.fetched = Fetched::default();
        Some(outgoing)
    }

    /// So many bytes from `place` on are in the pipe, of all that were to be put there: whether what belongs into `out` is.
    fn end_ahead(
        &mut self,
        outgoing: &'a mut Outgoing,
        place: Place,
        out: &[u8],
        (put, total): (usize, usize),
    ) -> bool {
        let is_all = put == total;
        if is_all {
            outgoing.fill_later(out);
            self.fetched = Fetched::new(place, total);
            self.fetched.take(out.len());
        } else {
            outgoing.skip(put);
        }
        self.outgoing = Some(outgoing);
        is_all
    }

    /// The next bytes of the message in the pipe belong into `out`.
    fn take_fetched(&mut self, out: &[u8]) {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.fill_later(out);
            self.fetched.take(out.len());
        }
    }

    fn write_checked(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        let len = data.len() as u64;
        self.with_remote(
            rkey,
            (addr, len),
            RemoteAccess::Write,
            |_, memory, piece| {
                if is_complete(memory.place_in_order(piece, data)) {
                    Ok(())
                } else {
                    Err(MemoryError::Unmapped { addr, len })
                }
            },
        )
    }

    fn read_checked(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let len = out.len() as u64;
        self.with_remote(rkey, (addr, len), RemoteAccess::Read, |_, memory, piece| {
            if is_complete(memory.fetch(&[piece], out)) {
                Ok(())
            } else {
                Err(MemoryError::Unmapped { addr, len })
            }
        })
    }

    fn scatter_in(
        &mut self,
        pd: u32,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        let placed = self.scatter_somehow(pd, sges, offset, data);
        placed.inspect_err(|_| self.counters.scatter_failed.add(1))
    }

    fn scatter_somehow(
        &mut self,
        pd: u32,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        self.announced = 0;
        let message = (offset, data.len());
        let place = Place::local(sges, offset);
        if self.following.is_placed(place, data.len()) {
            return self.for_pieces(pd, sges, message, Way::Place, |_, _, _, _| Ok(true));
        }
        if self.are_foreign(sges)
            && let Some(incoming) = self.incoming.take()
        {
            let is_placed = self.scatter_ahead(incoming, (pd, sges), offset, data);
            self.incoming = Some(incoming);
            if is_placed {
                return Ok(());
            }
        }
        self.for_pieces(pd, sges, message, Way::Place, |memory, pieces, from, to| {
            memory.place(pieces, &data[from..to])
        })
    }

    /// Places a packet's bytes and those of packets that follow; whether at least its own are in place.
    fn scatter_ahead(
        &mut self,
        incoming: &mut Incoming,
        (pd, sges): (u32, &[Sge]),
        offset: u64,
        data: &[u8],
    ) -> bool {
        let Some(shelf) = incoming.shelf.mapped() else {
            return false;
        };
        let room: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
        let more = room.saturating_sub(offset + data.len() as u64);
        let total = self.following.load(data, more, shelf.bytes());
        let mut copied = 0;
        // If it fails, it has copied this much.
        let _ = self.for_pieces(
            pd,
            sges,
            (offset, total),
            Way::Place,
            |memory, pieces, from, to| {
                let some = memory.place_from(shelf, from, pieces)?;
                copied += some;
                Ok(some == to - from)
            },
        );
        let place = Place::local(sges, offset);
        self.following.note_placed(place, data.len(), copied)
    }

    fn gather_somehow(
        &mut self,
        sges: &[Sge],
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), MemoryError> {
        let more = std::mem::take(&mut self.announced);
        let (pd, message) = (self.pd, (offset, out.len()));
        let place = Place::local(sges, offset);
        if self.fetched.has(place, out.len()) {
            self.leave();
            self.for_pieces(pd, sges, message, Way::Fetch, |_, _, _, _| Ok(true))?;
            self.take_fetched(out);
            return Ok(());
        }
        if self.are_foreign(sges)
            && let Some(outgoing) = self.begin_ahead(out)
        {
            let total = total_ahead(out, more);
            self.leave_if_long(total);
            let mut put = 0;
            // If it fails, it has put this much.
            let _ = self.for_pieces(
                pd,
                sges,
                (offset, total),
                Way::Fetch,
                |memory, pieces, from, to| {
                    let some = memory.put_in(&mut outgoing.pipe, pieces);
                    put += some;
                    Ok(some == to - from)
                },
            );
            if self.end_ahead(outgoing, place, out, (put, total)) {
                return Ok(());
            }
        }
        self.for_pieces(pd, sges, message, Way::Fetch, |memory, pieces, from, to| {
            memory.fetch(pieces, &mut out[from..to])
        })
    }

    /// The window with this key, if it is of protection domain `pd`.
    fn window(&self, rkey: RKey, pd: u32) -> Result<Arc<WindowInner>, MemoryError> {
        match self.regions.get(rkey.0) {
            Some(Entry::Window(window)) if window.pd() == pd => Ok(window),
            Some(Entry::Region(_)) => Err(MemoryError::NotInvalidatable(rkey)),
            _ => Err(MemoryError::InvalidRemoteKey(rkey)),
        }
    }
}

impl Memory for PdMemory<'_> {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.scatter_in(self.pd, sges, offset, data)
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let fetched = self.gather_somehow(sges, offset, out);
        fetched.inspect_err(|_| self.counters.gather_failed.add(1))
    }

    fn announce(&mut self, more: u64) {
        self.announced = more;
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        self.with_remote(rkey, (addr, len), access, |_, _, _| Ok(()))
    }

    fn write_remote(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        let placed = self.write(rkey, addr, data);
        placed.inspect_err(|_| self.counters.scatter_failed.add(1))
    }

    fn read_remote(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let fetched = self.read(rkey, addr, out);
        fetched.inspect_err(|_| self.counters.gather_failed.add(1))
    }

    fn atomic(&mut self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        let executed = self.with_remote(
            rkey,
            (addr, WORD),
            RemoteAccess::Atomic,
            |table, memory, piece| match memory.atomic(table, piece.offset, op) {
                Ok(Some(before)) => Ok(before),
                Ok(None) => Err(MemoryError::Unmapped { addr, len: WORD }),
                Err(error) => {
                    refused(&error);
                    Err(MemoryError::Unmapped { addr, len: WORD })
                }
            },
        );
        executed.inspect_err(|_| self.counters.scatter_failed.add(1))
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        self.window(rkey, self.remote_pd)?
            .invalidate(self.regions, rkey, self.qpn)
    }

    fn bind(&mut self, bind: &BindWindow) -> Result<(), MemoryError> {
        let window = self
            .window(bind.window, self.pd)
            .map_err(|_| MemoryError::InvalidRemoteKey(bind.window))?;
        window::bind(self.regions, &window, bind, self.qpn)?;
        self.has_bound = true;
        Ok(())
    }

    fn scatter_held(
        &mut self,
        held: &HeldReceive,
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        self.scatter_in(held.domain, &held.sges, offset, data)
    }
}

/// What is done with the bytes that a work request names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Place,
    Fetch,
}

/// Takes the guard for an operation of the peer.
fn enter(region: &RegionInner, access: RemoteAccess) -> Option<Entered<'_>> {
    match access {
        RemoteAccess::Read => region.enter_to_fetch(),
        RemoteAccess::Write | RemoteAccess::Atomic => region.enter_to_place(),
    }
}

/// The whole element is checked, not only the bytes of this packet: a list that is wrong fails at its first byte.
fn element(registration: &Registration, sge: &Sge) -> Result<Piece, MemoryError> {
    let len = u64::from(sge.len);
    registration
        .piece(sge.addr, len)
        .ok_or(MemoryError::OutOfBounds {
            addr: sge.addr,
            len,
        })
}

/// The word of an atomic is aligned both as the peer counts and in memory; a region whose two addresses differ modulo 8, or
/// a window that counts from 0 at an odd place, has none.
fn check_word(
    access: RemoteAccess,
    addr: u64,
    memory: &Registration,
    piece: Piece,
) -> Result<(), MemoryError> {
    if access == RemoteAccess::Atomic
        && !(addr.is_multiple_of(WORD) && memory.is_word(piece.offset))
    {
        return Err(MemoryError::Misaligned { addr });
    }
    Ok(())
}

/// How many bytes to fetch for a packet, if `more` are to follow.
fn total_ahead(out: &[u8], more: u64) -> usize {
    let more = usize::try_from(more).unwrap_or(Pipe::LONGEST);
    out.len()
        .saturating_add(more)
        .min(Pipe::LONGEST.max(out.len()))
}

/// Whether all was copied. The system refusing copies as such is told besides.
fn is_complete(copied: io::Result<bool>) -> bool {
    copied.unwrap_or_else(|error| {
        refused(&error);
        false
    })
}

fn refused(error: &io::Error) {
    tracing::warn!(%error, "the system refuses copies to the program's memory");
}

const WORD: u64 = 8;
