//! What a region is to the device: a registration behind a guard.
//!
//! # The guard
//! Whoever touches the bytes holds the guard, and checks under it that the key still names the region. Deregistration takes
//! it exclusively: when it returns, nothing is being placed, and nothing is placed later. Bytes of the program's memory that
//! leave through a pipe leave it after the guard is let go: for those it waits, too (`RegionTable::leave`).
//!
//! # No data race in safe programs
//! The bytes of memory that the library allocated are reached by plain copies, so two accesses at the same time, one of
//! which writes, must be kept apart:
//! - memory that peers may reach (a remote right, or windows) is reached by nobody but through the guard: placements,
//!   atomics and the program's own stores hold it exclusively; fetches and the program's loads hold it shared. Peers choose
//!   the addresses, so nothing less would do.
//! - memory for work requests only is named by a work request for each access of the device, and the program gives a
//!   buffer away with the request (as `oarlock-verbs` enforces by ownership). Placements hold the guard shared, so that
//!   receives of several queue pairs into one region do not wait for each other. The program's copies hold it exclusively.
//!
//! Memory of the program is reached by system calls only, which are no accesses of this program to the compiler.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use oarlock_memwatch::Validity;
use oarlock_transport::{AccessFlags, AtomicOp};

use super::access::is_offered;
use super::foreign::ForeignMemory;
use super::owned::OwnedMemory;
use super::table::RegionTable;
use crate::error::Error;
use crate::locks::{read, write};
use crate::sys::{Mapped, Pipe};

/// What the key table shares with the handle.
pub(crate) struct RegionInner {
    /// The handle is gone, or deregistration has happened.
    closed: AtomicBool,
    /// Whether placements take the guard exclusively. Changed with the guard held exclusively; read before it is taken, to
    /// choose how, and again under it.
    exclusive: AtomicBool,
    /// Whether the memory is the program's. Changed as `exclusive` is; a hint for who does not hold the guard.
    foreign: AtomicBool,
    /// How many windows are bound to the region. Grows with the guard held only.
    windows: AtomicUsize,
    guard: RwLock<Registration>,
}

/// Where the memory is, and who may do what with it.
pub(super) struct Registration {
    pub(super) key: u32,
    pub(super) pd: u32,
    pub(super) access: AccessFlags,
    /// Address of the first byte, as work requests and peers count.
    pub(super) iova: u64,
    pub(super) len: u64,
    pub(super) backing: Backing,
}

pub(super) enum Backing {
    Owned(Arc<OwnedMemory>),
    Foreign(ForeignMemory),
}

/// Bytes of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Piece {
    /// Where they begin, counted from the first byte of the region.
    pub(super) offset: u64,
    pub(super) len: usize,
}

impl Piece {
    pub(super) const fn is_within(&self, region_len: u64) -> bool {
        self.offset <= region_len && self.len as u64 <= region_len - self.offset
    }
}

/// See [`Registration::in_order`].
pub(super) struct InOrder([Piece; 2]);

impl InOrder {
    /// Without a first one of no bytes.
    pub(super) fn as_slice(&self) -> &[Piece] {
        &self.0[usize::from(self.0[0].len == 0)..]
    }
}

/// The guard of a region that is registered, held one way or the other.
pub(super) enum Entered<'a> {
    Shared(RwLockReadGuard<'a, Registration>),
    Exclusive(RwLockWriteGuard<'a, Registration>),
}

impl Deref for Entered<'_> {
    type Target = Registration;

    fn deref(&self) -> &Registration {
        match self {
            Self::Shared(registration) => registration,
            Self::Exclusive(registration) => registration,
        }
    }
}

impl RegionInner {
    pub(super) fn new(registration: Registration) -> Self {
        Self {
            closed: AtomicBool::new(false),
            exclusive: AtomicBool::new(registration.places_exclusively()),
            foreign: AtomicBool::new(registration.is_foreign()),
            windows: AtomicUsize::new(0),
            guard: RwLock::new(registration),
        }
    }

    /// Takes the guard for fetching bytes, or for looking at the registration; `None` if the region is gone.
    pub(super) fn enter_to_fetch(&self) -> Option<Entered<'_>> {
        let registration = read(&self.guard);
        (!self.is_closed()).then_some(Entered::Shared(registration))
    }

    /// Takes the guard for placing bytes; `None` if the region is gone.
    pub(super) fn enter_to_place(&self) -> Option<Entered<'_>> {
        if !self.exclusive.load(Ordering::Relaxed) {
            let registration = read(&self.guard);
            if self.is_closed() {
                return None;
            }
            if !registration.places_exclusively() {
                return Some(Entered::Shared(registration));
            }
            // Registered anew in between, with rights for peers.
        }
        self.enter_exclusively()
    }

    /// Takes the guard so that nobody else touches the bytes; `None` if the region is gone.
    pub(super) fn enter_exclusively(&self) -> Option<Entered<'_>> {
        let registration = write(&self.guard);
        (!self.is_closed()).then_some(Entered::Exclusive(registration))
    }

    /// Takes the guard so that nobody changes the bytes; `None` if the region is gone.
    pub(super) fn enter_to_look(&self) -> Option<Entered<'_>> {
        let registration = read(&self.guard);
        if registration.is_placed_shared() {
            drop(registration);
            return self.enter_exclusively();
        }
        (!self.is_closed()).then_some(Entered::Shared(registration))
    }

    /// Whether the memory is the program's, as far as can be told without the guard.
    pub(super) fn is_probably_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The handle is gone: nobody enters any more. Who is inside finishes.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Waits for those who are inside, then closes, unless windows are bound.
    ///
    /// # Errors
    /// How many windows are bound.
    pub(super) fn close_unless_bound(&self) -> Result<(), Error> {
        let _registration = write(&self.guard);
        self.check_unbound()?;
        self.close();
        Ok(())
    }

    /// What says whether its memory is still there, if anybody watches it.
    pub(super) fn validity(&self) -> Option<Validity> {
        match &read(&self.guard).backing {
            Backing::Owned(_) => None,
            Backing::Foreign(memory) => memory.validity().cloned(),
        }
    }

    fn check_unbound(&self) -> Result<(), Error> {
        match self.windows.load(Ordering::Acquire) {
            0 => Ok(()),
            count => Err(Error::WindowsBound { count }),
        }
    }

    /// Changes the registration while nobody is inside.
    ///
    /// # Errors
    /// How many windows are bound; `change` is not called then.
    pub(super) fn change(&self, change: impl FnOnce(&mut Registration)) -> Result<(), Error> {
        let mut registration = write(&self.guard);
        self.check_unbound()?;
        change(&mut registration);
        self.exclusive
            .store(registration.places_exclusively(), Ordering::Relaxed);
        self.foreign
            .store(registration.is_foreign(), Ordering::Relaxed);
        Ok(())
    }

    /// A window is bound to the region; called with the guard held.
    pub(super) fn add_window(&self) {
        self.windows.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn remove_window(&self) {
        self.windows.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Registration {
    fn is_foreign(&self) -> bool {
        matches!(self.backing, Backing::Foreign(_))
    }

    fn places_exclusively(&self) -> bool {
        matches!(self.backing, Backing::Owned(_)) && is_offered(self.access)
    }

    /// Whether placements are plain copies with the guard held shared.
    fn is_placed_shared(&self) -> bool {
        matches!(self.backing, Backing::Owned(_)) && !is_offered(self.access)
    }

    /// Where `len` bytes at `addr` lie; `None` if they leave the region.
    pub(super) fn piece(&self, addr: u64, len: u64) -> Option<Piece> {
        piece_of((self.iova, self.len), addr, len)
    }

    /// The address of the memory at `offset`.
    fn address(&self, offset: u64) -> u64 {
        let start = match &self.backing {
            Backing::Owned(memory) => memory.start().as_ptr() as u64,
            Backing::Foreign(memory) => memory.start(),
        };
        start.wrapping_add(offset)
    }

    pub(super) fn is_word(&self, offset: u64) -> bool {
        self.address(offset).is_multiple_of(8)
    }

    /// Copies `data` to the pieces, which have as many bytes together; `Ok(false)` if not all of it is there.
    pub(super) fn place(&self, pieces: &[Piece], data: &[u8]) -> io::Result<bool> {
        match &self.backing {
            Backing::Owned(memory) => {
                let mut rest = data;
                Ok(pieces.iter().all(|piece| {
                    let Some((now, later)) = rest.split_at_checked(piece.len) else {
                        return false;
                    };
                    rest = later;
                    memory.write(*piece, now)
                }))
            }
            Backing::Foreign(memory) => memory.write(pieces, data),
        }
    }

    /// As [`place`](Self::place), so that the last word becomes visible last.
    pub(super) fn place_in_order(&self, piece: Piece, data: &[u8]) -> io::Result<bool> {
        match &self.backing {
            Backing::Foreign(memory) => memory.write(self.in_order(piece).as_slice(), data),
            // Memory of the library is always written so.
            Backing::Owned(_) => self.place(&[piece], data),
        }
    }

    /// Copies what is on the shelf from `start` on to the pieces; returns how many bytes were copied before the first that
    /// is not there.
    pub(super) fn place_from(
        &self,
        shelf: &mut Mapped,
        start: usize,
        pieces: &[Piece],
    ) -> io::Result<usize> {
        match &self.backing {
            Backing::Foreign(memory) => memory.write_from(shelf, start, pieces),
            Backing::Owned(_) => {
                let len = pieces.iter().map(|piece| piece.len).sum::<usize>();
                let is_placed = self.place(pieces, &shelf.bytes()[start..start + len])?;
                Ok(if is_placed { len } else { 0 })
            }
        }
    }

    /// A piece in two, the last of which is the last word, or what the piece has of it.
    pub(super) fn in_order(&self, piece: Piece) -> InOrder {
        let end = self.address(piece.offset).wrapping_add(piece.len as u64);
        // The bytes behind the last multiple of 8, or the last 8.
        let tail = ((end.wrapping_sub(1) % 8) as usize + 1).min(piece.len);
        let body = piece.len - tail;
        InOrder([
            Piece { len: body, ..piece },
            Piece {
                offset: piece.offset + body as u64,
                len: tail,
            },
        ])
    }

    /// Puts the bytes of the pieces into the pipe; how many that were. Of memory of ours there are none: it is fetched at no cost.
    pub(super) fn put_in(&self, pipe: &mut Pipe, pieces: &[Piece]) -> usize {
        match &self.backing {
            Backing::Owned(_) => 0,
            Backing::Foreign(memory) => memory.put_in(pipe, pieces),
        }
    }

    /// Copies from the pieces into `out`, which has as many bytes; `Ok(false)` if not all of it is there.
    pub(super) fn fetch(&self, pieces: &[Piece], out: &mut [u8]) -> io::Result<bool> {
        match &self.backing {
            Backing::Owned(memory) => {
                let mut rest = out;
                Ok(pieces.iter().all(|piece| {
                    let taken = std::mem::take(&mut rest);
                    let Some((now, later)) = taken.split_at_mut_checked(piece.len) else {
                        return false;
                    };
                    rest = later;
                    memory.read(*piece, now)
                }))
            }
            Backing::Foreign(memory) => memory.read(pieces, out),
        }
    }

    /// Executes `op` on the word at `offset` and gives the value before; `Ok(None)` if it is not there, and then nothing was
    /// changed.
    ///
    /// All atomics of a device are atomic against each other, by whatever keys they reach the word: one lock of the table is
    /// held around each. Memory of the library is changed by the processor's atomic instruction besides, so that a program
    /// that looks by the bare pointer can take part.
    pub(super) fn atomic(
        &self,
        table: &RegionTable,
        offset: u64,
        op: AtomicOp,
    ) -> io::Result<Option<u64>> {
        let _others_wait = table.lock_atomics();
        match &self.backing {
            Backing::Owned(memory) => Ok(memory.atomic(offset, op)),
            Backing::Foreign(memory) => memory.atomic(offset, op),
        }
    }
}

/// Where `len` bytes at `addr` lie in a range `(start, length)` that does not wrap around; `None` if they leave it.
pub(super) fn piece_of((start, range): (u64, u64), addr: u64, len: u64) -> Option<Piece> {
    let offset = addr.checked_sub(start)?;
    let fits = offset <= range && len <= range - offset;
    // A range is no longer than the address space, so its parts are `usize`.
    fits.then_some(Piece {
        offset,
        len: len as usize,
    })
}
