//! The program's own way to the bytes of a region: copies that exclude the device.

use std::io;
use std::sync::atomic::Ordering;

use super::Region;
use super::region::{Backing, Entered, Piece, Registration};
use super::watched::{Held, Probe};
use crate::error::Error;

impl Region {
    /// Copies `data` into the region, `offset` bytes after its first.
    ///
    /// Towards the device the copy happens at once: a packet, or an atomic operation, comes before or after it. (That is so
    /// for memory of the library; memory of the program is changed by the kernel, page by page upwards, and packets may come
    /// in between.) The right [`Access::LOCAL_WRITE`](super::Access::LOCAL_WRITE) is the device's: the program may always
    /// write memory of the library. Memory of the program needs it, as that is how it was promised.
    ///
    /// # Errors
    /// `OutsideRegion`. `NotMapped`: memory of the program that has vanished, or is not writable; part of the bytes may have
    /// been copied. `Invalidated`: memory that is watched, and was unmapped, moved or discarded. `ForeignMemoryForbidden`.
    ///
    /// # Blocking
    /// For the copy of a packet, and for its own.
    pub fn copy_in(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let piece = self.piece(offset, data.len())?;
        let registration = self.exclusively();
        let held = self.hold(&registration)?;
        let copied = registration.place(&[piece], data);
        drop(held);
        self.complete(copied, piece)
    }

    /// Copies bytes out of the region, from `offset` bytes after its first on; otherwise as [`copy_in`](Self::copy_in).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Blocking
    /// As there.
    pub fn copy_out(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let piece = self.piece(offset, out.len())?;
        let registration = self.for_looking();
        let held = self.hold(&registration)?;
        let copied = registration.fetch(&[piece], out);
        drop(held);
        self.complete(copied, piece)
    }

    /// The word at `offset`, in the byte order of this machine. Every write of a peer that was complete before is seen, and
    /// an atomic operation of the device is seen whole.
    ///
    /// # Errors
    /// `OutsideRegion`, `Misaligned`: its address in memory is not a multiple of 8. `NotMapped`, `Invalidated`,
    /// `ForeignMemoryForbidden`.
    ///
    /// # Blocking
    /// For the copy of a packet.
    pub fn load_u64(&self, offset: u64) -> Result<u64, Error> {
        let piece = self.word(offset)?;
        let registration = self.for_looking();
        let _held = self.hold(&registration)?;
        match &registration.backing {
            Backing::Owned(memory) => {
                let word = memory.word(offset).ok_or(Error::Misaligned { offset })?;
                Ok(word.load(Ordering::Acquire))
            }
            Backing::Foreign(memory) => {
                let mut bytes = [0; 8];
                // Not in the middle of an atomic operation.
                let _atomics_wait = self.table.lock_atomics();
                self.complete(memory.read(&[piece], &mut bytes), piece)?;
                Ok(u64::from_ne_bytes(bytes))
            }
        }
    }

    /// Stores a word at `offset`, in the byte order of this machine. No atomic operation of the device loses it.
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    ///
    /// # Blocking
    /// For the copy of a packet.
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), Error> {
        let piece = self.word(offset)?;
        let registration = self.exclusively();
        let _held = self.hold(&registration)?;
        let _atomics_wait = self.table.lock_atomics();
        match &registration.backing {
            Backing::Owned(memory) => {
                let word = memory.word(offset).ok_or(Error::Misaligned { offset })?;
                word.store(value, Ordering::Release);
                Ok(())
            }
            Backing::Foreign(memory) => {
                self.complete(memory.write(&[piece], &value.to_ne_bytes()), piece)
            }
        }
    }

    fn piece(&self, offset: u64, len: usize) -> Result<Piece, Error> {
        let piece = Piece { offset, len };
        if piece.is_within(self.len) {
            Ok(piece)
        } else {
            Err(Error::OutsideRegion {
                offset,
                len,
                region_len: self.len,
            })
        }
    }

    fn word(&self, offset: u64) -> Result<Piece, Error> {
        let piece = self.piece(offset, 8)?;
        if self.addr.wrapping_add(offset).is_multiple_of(8) {
            Ok(piece)
        } else {
            Err(Error::Misaligned { offset })
        }
    }

    fn exclusively(&self) -> Entered<'_> {
        self.inner.enter_exclusively().expect(ALIVE)
    }

    /// Placements for work requests only hold the guard shared: then looking must not.
    fn for_looking(&self) -> Entered<'_> {
        self.inner.enter_to_look().expect(ALIVE)
    }

    /// Asks, if somebody watches the memory, whether it is still there.
    fn hold<'a>(&self, registration: &'a Registration) -> Result<Held<'a>, Error> {
        let held = registration.hold(&Probe::new());
        held.ok_or(Error::Invalidated {
            addr: self.addr,
            len: self.len as usize,
        })
    }

    fn complete(&self, copied: io::Result<bool>, piece: Piece) -> Result<(), Error> {
        match copied {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::NotMapped {
                addr: self.addr.wrapping_add(piece.offset),
                len: piece.len,
            }),
            Err(source) => Err(Error::ForeignMemoryForbidden { source }),
        }
    }
}

/// Why a handle's region can be entered.
const ALIVE: &str = "a region is closed by consuming its handle";
