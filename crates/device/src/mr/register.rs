//! Registering memory, and registering it anew.

use std::sync::Arc;

use oarlock_memwatch::Validity;

use super::access;
use super::foreign::ForeignMemory;
use super::owned::OwnedMemory;
use super::region::{Backing, RegionInner, Registration};
use super::table::RegionTable;
use super::watched::is_lost;
use super::{Access, Region};
use crate::error::Error;
use crate::pd::Pd;

/// What [`Region::reregister`] changes; what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reregistration<'a> {
    /// Other memory of the program.
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub translation: Option<Translation>,
    /// Another protection domain of the same context.
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub pd: Option<&'a Pd>,
    /// Other rights.
    #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
    pub access: Option<Access>,
}

/// Where memory of the program is, and how it is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these three say it all")]
pub struct Translation {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
    /// Address of the first byte as work requests and peers count; `None`: `addr`, or 0 with [`Access::ZERO_BASED`].
    pub iova: Option<u64>,
}

impl Pd {
    /// Registers `len` zeroed bytes of the library's own memory.
    ///
    /// # Errors
    /// `ZeroLength`, `OutOfMemory`, `TooManyRegions`. `OutOfRange`: longer than the device's limit. `UnsupportedAccess`:
    /// which flag, and why. `LocalWriteMissing`: peers may not write what the device may not.
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Region, Error> {
        self.allocate_named(len, None, access)
    }

    /// As [`allocate`](Self::allocate); work requests and peers count addresses from `iova`.
    ///
    /// Atomic operations need 8-byte alignment both ways: choose a multiple of 8.
    ///
    /// # Errors
    /// As there. `RangeOverflow`: the region would leave the address space. `OutOfRange`: an `iova` other than 0 with
    /// [`Access::ZERO_BASED`].
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn allocate_at(&self, len: usize, iova: u64, access: Access) -> Result<Region, Error> {
        self.allocate_named(len, Some(iova), access)
    }

    fn allocate_named(
        &self,
        len: usize,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Region, Error> {
        access::check(access)?;
        self.check_len(len)?;
        let memory = OwnedMemory::new(len).ok_or(Error::OutOfMemory { len })?;
        let addr = memory.start().as_ptr() as u64;
        let iova = iova_of(addr, len, iova, access)?;
        self.enter(addr, iova, len, access, Backing::Owned(Arc::new(memory)))
    }

    /// Registers memory of the program.
    ///
    /// The range is probed: a page that cannot be read (or written, with
    /// [`Access::LOCAL_WRITE`]) is an error now. A page that vanishes later is a local protection
    /// error of the work request that meets it, or a remote operational error of the peer's. With [`Access::ON_DEMAND`]
    /// nothing is probed: pages need exist only when they are used.
    ///
    /// # Errors
    /// `NotMapped`: part of the range cannot be reached (`EFAULT`). `ForeignMemoryForbidden`: this
    /// system does not let a process copy to itself by `process_vm_writev`. `ZeroLength`,
    /// `RangeOverflow`, `TooManyRegions`. `OutOfRange`: longer than the device's limit. `UnsupportedAccess`: which flag, and
    /// why. `LocalWriteMissing`. `ImplicitOnDemand`: the whole address space, on demand.
    ///
    /// # Safety
    /// With [`Access::LOCAL_WRITE`] bytes of the range may be changed by another thread while a receive, READ or atomic that
    /// names them is posted; while the region is registered, if peers have a remote right or windows may be bound; and by
    /// [`Region::copy_in`] and [`Region::store_u64`]. The caller makes sure that no Rust reference to them is used then, and
    /// that the range is not re-used for memory that must not change so while the region is registered.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register(&self, addr: u64, len: usize, access: Access) -> Result<Region, Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.register_named(addr, len, None, access, None) }
    }

    /// As [`register`](Self::register), for as long as `validity` is true: when the program unmaps, moves or discards memory of
    /// the range, the region's keys stop working, before its Watcher's event can be read.
    ///
    /// The Watcher has watched all of the range since before this call. It is asked
    /// ([`Validity::settle`](oarlock_memwatch::Validity::settle)) once for each batch of packets that uses such a region, and the
    /// call that unmaps waits for a copy that is under way: once it has returned, no byte is copied into or out of what comes
    /// to lie at the address. Requests that still name the region end with a local protection error, requests of peers with a
    /// remote access error; windows that are bound to it stop, too. Nobody deregisters it: it stays in the table until its
    /// handle goes.
    ///
    /// Other regions cost nothing more for it.
    ///
    /// A region whose memory was changed before this call, but since it is watched, is refused at its first use.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there, but the range may be re-used for other memory, if that is a change which the Watcher can see.
    pub unsafe fn register_watched(
        &self,
        addr: u64,
        len: usize,
        access: Access,
        validity: Validity,
    ) -> Result<Region, Error> {
        // SAFETY: the caller's promise is the same, and memory that comes to lie there later is not touched.
        unsafe { self.register_named(addr, len, None, access, Some(validity)) }
    }

    /// As [`register`](Self::register); work requests and peers count addresses from `iova`.
    ///
    /// Atomic operations need 8-byte alignment both ways: choose an `iova` that is `addr` modulo 8.
    ///
    /// # Errors
    /// As there. `OutOfRange`: an `iova` other than 0 with [`Access::ZERO_BASED`].
    ///
    /// # Safety
    /// As there.
    #[doc(alias = "ibv_reg_mr_iova")]
    pub unsafe fn register_at(
        &self,
        addr: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Region, Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.register_named(addr, len, Some(iova), access, None) }
    }

    unsafe fn register_named(
        &self,
        addr: u64,
        len: usize,
        iova: Option<u64>,
        access: Access,
        validity: Option<Validity>,
    ) -> Result<Region, Error> {
        access::check(access)?;
        if access.contains(Access::ON_DEMAND) && addr == 0 && len == usize::MAX {
            return Err(Error::ImplicitOnDemand);
        }
        self.check_len(len)?;
        let iova = iova_of(addr, len, iova, access)?;
        // SAFETY: the caller's promise is the one that `foreign` asks for.
        let memory = unsafe { foreign(addr, len, access, validity)? };
        self.enter(addr, iova, len, access, Backing::Foreign(memory))
    }

    fn check_len(&self, len: usize) -> Result<(), Error> {
        if len == 0 {
            return Err(Error::ZeroLength);
        }
        let max = self.context().device().limits.max_mr_size;
        if len as u64 > max {
            return Err(Error::OutOfRange {
                parameter: "length of a memory region",
                given: len as u64,
                min: 1,
                max,
            });
        }
        Ok(())
    }

    fn enter(
        &self,
        addr: u64,
        iova: u64,
        len: usize,
        access: Access,
        backing: Backing,
    ) -> Result<Region, Error> {
        let table = self.context().regions();
        let max = self.context().device().limits.max_mr as usize;
        let registration = Registration {
            key: 0,
            pd: self.id(),
            access,
            iova,
            len: len as u64,
            backing,
        };
        enter(table, max, addr, registration)
    }
}

/// Enters a registration under a fresh key.
pub(super) fn enter(
    table: &Arc<RegionTable>,
    max: usize,
    addr: u64,
    registration: Registration,
) -> Result<Region, Error> {
    let (iova, len, access) = (registration.iova, registration.len, registration.access);
    let own = match &registration.backing {
        Backing::Owned(memory) => Some(Arc::clone(memory)),
        Backing::Foreign(_) => None,
    };
    let (key, inner) = table.insert_region(max, |key| {
        RegionInner::new(Registration {
            key,
            ..registration
        })
    })?;
    Ok(Region {
        inner,
        table: Arc::clone(table),
        key,
        addr,
        iova,
        len,
        access,
        own,
    })
}

impl Region {
    /// Changes what is registered, the protection domain and the rights, any of them, as one step: an access of the device
    /// meets the old registration or the new one.
    ///
    /// With another translation, or when addresses begin to count from elsewhere, the keys are new and the old ones stop: a
    /// peer that still has them does not reach the new memory. Else they stay. On failure the region is as it was, with its
    /// keys.
    ///
    /// # Errors
    /// `WindowsBound`: windows are bound to the region, so many. `OtherContext`: the protection domain. `OwnMemory`: another
    /// translation of memory that the library allocated. `Watched`: another translation of memory that is watched
    /// ([`reregister_watched`](Self::reregister_watched)); `Invalidated`: it was taken away. Those of [`Pd::register`], for the new translation and rights.
    ///
    /// # Blocking
    /// For the rest of a copy of at most one packet, and of bursts that are being built.
    ///
    /// # Safety
    /// As [`Pd::register`], for the memory and the rights from now on. With rights for peers no reference made from
    /// [`as_ptr`](Self::as_ptr) is used any more.
    #[doc(alias = "ibv_rereg_mr")]
    pub unsafe fn reregister(&mut self, changes: &Reregistration<'_>) -> Result<(), Error> {
        if changes.translation.is_some() && self.inner.validity().is_some() {
            return Err(Error::Watched);
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.reregister_named(changes, None) }
    }

    /// As [`reregister`](Self::reregister): from now on the region is valid as long as `validity`, which is of the memory from
    /// now on; see [`Pd::register_watched`]. The region may have been invalidated before, or not been watched.
    ///
    /// # Errors
    /// As there. `Invalidated`: the memory from now on was changed since it is watched; then the region is as it was.
    ///
    /// # Blocking
    /// As there.
    ///
    /// # Safety
    /// As [`Pd::register_watched`], for the memory and the rights from now on.
    pub unsafe fn reregister_watched(
        &mut self,
        changes: &Reregistration<'_>,
        validity: Validity,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.reregister_named(changes, Some(validity)) }
    }

    /// # Safety
    /// As [`reregister`](Self::reregister).
    unsafe fn reregister_named(
        &mut self,
        changes: &Reregistration<'_>,
        watched_anew: Option<Validity>,
    ) -> Result<(), Error> {
        let access = changes.access.unwrap_or(self.access);
        access::check(access)?;
        let pd = match changes.pd {
            Some(pd) if !Arc::ptr_eq(pd.context().regions(), &self.table) => {
                return Err(Error::OtherContext {
                    object: "protection domain",
                });
            }
            Some(pd) => Some(pd.id()),
            None => None,
        };
        let (addr, len, iova) = self.translated(changes, access)?;
        let is_elsewhere = changes.translation.is_some() || watched_anew.is_some();
        let validity = watched_anew.or_else(|| self.inner.validity());
        if validity.as_ref().is_some_and(is_lost) {
            return Err(Error::Invalidated { addr, len });
        }
        let backing = match &self.own {
            Some(_) if is_elsewhere => return Err(Error::OwnMemory),
            None if is_elsewhere || changes.access.is_some() => {
                // SAFETY: the caller's promise is the one that `foreign` asks for.
                Some(unsafe { foreign(addr, len, access, validity)? })
            }
            Some(_) | None => None,
        };
        let is_renamed = changes.translation.is_some() || iova != self.iova;
        let mut key = self.key;
        self.inner.change(|registration| {
            if is_renamed {
                key = self.table.rekey(registration.key);
            }
            registration.key = key;
            registration.access = access;
            registration.iova = iova;
            registration.len = len as u64;
            if let Some(pd) = pd {
                registration.pd = pd;
            }
            if let Some(backing) = backing {
                registration.backing = Backing::Foreign(backing);
            }
        })?;
        self.table.wait_for_leaving();
        self.key = key;
        self.addr = addr;
        self.iova = iova;
        self.len = len as u64;
        self.access = access;
        Ok(())
    }

    /// Address, length and the address that peers use, from now on.
    fn translated(
        &self,
        changes: &Reregistration<'_>,
        access: Access,
    ) -> Result<(u64, usize, u64), Error> {
        let Some(new) = changes.translation else {
            let counted = |access: Access| access.contains(Access::ZERO_BASED);
            let iova = match (counted(self.access), counted(access)) {
                (_, true) => 0,
                (true, false) => self.addr,
                (false, false) => self.iova,
            };
            return Ok((self.addr, self.len as usize, iova));
        };
        if new.len == 0 {
            return Err(Error::ZeroLength);
        }
        let iova = iova_of(new.addr, new.len, new.iova, access)?;
        Ok((new.addr, new.len, iova))
    }
}

/// Memory of the program, probed unless it is to be found on demand.
///
/// # Safety
/// See [`Pd::register`].
unsafe fn foreign(
    addr: u64,
    len: usize,
    access: Access,
    validity: Option<Validity>,
) -> Result<ForeignMemory, Error> {
    // Beyond the last page there is never user memory, so page rounding cannot overflow either.
    let room = (len as u64).checked_add(0xffff);
    if room.and_then(|room| addr.checked_add(room)).is_none() {
        return Err(Error::RangeOverflow { addr, len });
    }
    // SAFETY: the caller's promise is the one that `new` asks for.
    let memory = unsafe { ForeignMemory::new(addr, len, access.contains(Access::LOCAL_WRITE)) };
    if !access.contains(Access::ON_DEMAND) {
        memory
            .probe()
            .map_err(|source| match source.raw_os_error() {
                Some(libc::EFAULT) => Error::NotMapped { addr, len },
                _ => Error::ForeignMemoryForbidden { source },
            })?;
    }
    Ok(memory.watched(validity))
}

/// Where addresses of the region count from. The end of the region may be the end of the address space.
fn iova_of(addr: u64, len: usize, asked: Option<u64>, access: Access) -> Result<u64, Error> {
    let iova = if access.contains(Access::ZERO_BASED) {
        match asked {
            None | Some(0) => 0,
            Some(given) => {
                return Err(Error::OutOfRange {
                    parameter: "iova of a zero-based region",
                    given,
                    min: 0,
                    max: 0,
                });
            }
        }
    } else {
        asked.unwrap_or(addr)
    };
    match iova.checked_add(len as u64 - 1) {
        Some(_) => Ok(iova),
        None => Err(Error::RangeOverflow { addr: iova, len }),
    }
}
