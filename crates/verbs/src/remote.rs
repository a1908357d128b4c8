//! Memory that peers may access.
#![allow(
    unsafe_code,
    reason = "registering memory of the library with other rights; the argument is `RemoteMemory`'s"
)]

use std::sync::Arc;

use oarlock_device as device;
use oarlock_transport::RemoteAddress;
use oarlock_wire::{LKey, RKey};

use crate::buffer::{Access, Buffer};
use crate::error::Error;
use crate::pd::ProtectionDomain;

/// Registered memory that peers may read, write or change atomically, and that windows may be bound to.
///
/// A peer chooses what it touches and when, so there is no slice of these bytes. The program reaches them by copies and
/// words, each of which comes before or after a packet's access, never in the midst of it; a message of several packets
/// may be seen in part, and the way to know that it is complete is a completion (WRITE with immediate, or a SEND after it).
///
/// Dropping it takes its keys away, and peers that use them are refused. [`into_buffer`](Self::into_buffer) ends the
/// peers' access and gives the bytes as a [`Buffer`]. There is no slice before:
///
/// ```compile_fail,E0608
/// # use oarlock_verbs::RemoteMemory;
/// fn peek(memory: &RemoteMemory) -> u8 {
///     memory[0] // error[E0608]: cannot index into a value of type `&RemoteMemory`
/// }
/// ```
/// ```compile_fail,E0382
/// # use oarlock_verbs::RemoteMemory;
/// fn offer_too_long(memory: RemoteMemory) {
///     let buffer = memory.into_buffer();
///     memory.rkey(); // error[E0382]: borrow of moved value: `memory`
/// }
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_mr")]
pub struct RemoteMemory {
    pd: ProtectionDomain,
    region: Box<device::Region>,
}

impl RemoteMemory {
    /// Allocates and registers `len` zeroed bytes that peers may access as `access` says: any of
    /// [`Access::REMOTE_WRITE`], [`REMOTE_READ`](Access::REMOTE_READ), [`REMOTE_ATOMIC`](Access::REMOTE_ATOMIC), and
    /// [`MW_BIND`](Access::MW_BIND) for windows. The rights to change memory need [`Access::LOCAL_WRITE`] too. With
    /// [`Access::ZERO_BASED`] peers count addresses from 0.
    ///
    /// # Errors
    /// `Device`: no bytes asked for, no memory, too many regions, rights that do not go together or are unknown.
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(pd: &ProtectionDomain, len: usize, access: Access) -> Result<Self, Error> {
        Ok(Self {
            region: Box::new(pd.device().allocate(len, access)?),
            pd: pd.clone(),
        })
    }

    /// As [`new`](Self::new); peers count addresses from `iova`.
    ///
    /// # Errors
    /// As [`new`](Self::new); `Device`: the memory would leave the address space.
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn with_iova(
        pd: &ProtectionDomain,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self, Error> {
        Ok(Self {
            region: Box::new(pd.device().allocate_at(len, iova, access)?),
            pd: pd.clone(),
        })
    }

    /// Offers the bytes of a buffer to peers, with what is in them.
    ///
    /// # Errors
    /// The buffer, and why: `SharedRegion`: it is not the only piece of its region; `Device`: as for [`new`](Self::new).
    pub fn from_buffer(
        pd: &ProtectionDomain,
        buffer: Buffer,
        access: Access,
    ) -> Result<Self, (Buffer, Error)> {
        let region = Box::new(buffer.into_region()?);
        let mut memory = Self {
            pd: pd.clone(),
            region,
        };
        match memory.change(Some(pd), Some(access)) {
            Ok(()) => Ok(memory),
            Err(error) => Err((Buffer::of_region(*memory.region), error)),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        // The region was allocated by this process, so its length was a `usize` once.
        self.region.len() as usize
    }

    /// Never true: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// What peers may do.
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// The address by which peers name the first byte.
    pub fn addr(&self) -> u64 {
        self.region.iova()
    }

    /// The key by which peers name the memory.
    pub fn rkey(&self) -> RKey {
        self.region.rkey()
    }

    /// What a peer needs to reach the byte at `offset`: tell it by any means. Nothing is checked here; a peer that leaves
    /// the memory is refused.
    pub fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress {
            addr: self.addr().wrapping_add(offset),
            rkey: self.rkey(),
        }
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    /// `Device`: the range leaves the memory.
    ///
    /// # Blocking
    /// For the copy of a packet.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        Ok(self.region.copy_out(offset, out)?)
    }

    /// Copies `data` in, from `offset` on. Peers need no right for this, and neither does the program.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    ///
    /// # Blocking
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        Ok(self.region.copy_in(offset, data)?)
    }

    /// The word at `offset`, in the byte order of this host. Whole against atomic operations of peers.
    ///
    /// # Errors
    /// `Device`: the word leaves the memory, or is not on a multiple of 8 bytes of it.
    ///
    /// # Blocking
    /// As [`read_at`](Self::read_at).
    pub fn load_u64(&self, offset: u64) -> Result<u64, Error> {
        Ok(self.region.load_u64(offset)?)
    }

    /// Stores a word; no atomic operation of a peer is torn by it or undoes it unseen.
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    ///
    /// # Blocking
    /// As [`read_at`](Self::read_at).
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), Error> {
        Ok(self.region.store_u64(offset, value)?)
    }

    /// Changes what peers may do, as one step: an access meets the old rights or the new ones. The keys stay, unless
    /// [`Access::ZERO_BASED`] comes or goes.
    ///
    /// # Errors
    /// `Device`: windows are bound to the memory; the rights do not go together. Nothing has changed.
    ///
    /// # Blocking
    /// For the copy of a packet.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn reregister(&mut self, access: Access) -> Result<(), Error> {
        self.change(None, Some(access))
    }

    /// Moves the memory to another protection domain of its context, as one step.
    ///
    /// # Errors
    /// `Device`: windows are bound to the memory; the domain is of another context. Nothing has changed.
    ///
    /// # Blocking
    /// For the copy of a packet.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn move_to(&mut self, pd: &ProtectionDomain) -> Result<(), Error> {
        self.change(Some(pd), None)?;
        self.pd = pd.clone();
        Ok(())
    }

    /// Ends every access of peers and gives the bytes as a buffer of their own, whose slice may be used.
    ///
    /// # Errors
    /// The memory as it was, and why: `Device`: windows are bound to it.
    ///
    /// # Blocking
    /// For the copy of a packet.
    pub fn into_buffer(mut self) -> Result<Buffer, (Self, Error)> {
        match self.change(None, Some(Access::LOCAL_WRITE)) {
            Ok(()) => Ok(Buffer::of_region(*self.region)),
            Err(error) => Err((self, error)),
        }
    }

    /// Takes the keys away and frees the memory, and waits until no access of a peer is under way. Dropping does the same
    /// without waiting, and whether or not windows are bound.
    ///
    /// # Errors
    /// The memory as it was, and why: `Device`: windows are bound to it.
    ///
    /// # Blocking
    /// For the copy of a packet.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<(), (Self, Error)> {
        let Self { pd, region } = self;
        region.deregister().map_err(|(region, error)| {
            let region = Box::new(region);
            (Self { pd, region }, error.into())
        })
    }

    pub(crate) fn lkey(&self) -> LKey {
        self.region.lkey()
    }

    fn change(
        &mut self,
        pd: Option<&ProtectionDomain>,
        access: Option<Access>,
    ) -> Result<(), Error> {
        let changes = device::Reregistration {
            pd: pd.map(ProtectionDomain::device),
            access,
            translation: None,
        };
        // SAFETY: the memory is the library's own and stays where it is. No reference to its bytes exists: `self` gives
        // none out, and whoever had the `Buffer` that it was made of has given that away. After `into_buffer` references
        // are made again, when no peer has a right any more: the call has waited for those that were under way.
        unsafe { self.region.reregister(&changes)? };
        Ok(())
    }
}

impl Buffer {
    /// The only piece of a region that peers have no right to.
    fn of_region(region: device::Region) -> Self {
        Self::whole(Arc::new(region))
    }
}
