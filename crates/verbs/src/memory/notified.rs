//! Regions whose program is told when their memory changes.
#![allow(
    unsafe_code,
    reason = "registers the program's memory; the promises are the caller's"
)]

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use oarlock_device as device;
use oarlock_memwatch as memwatch;
use oarlock_memwatch::{Policy, Validity};

use super::channel::{MemoryChannel, lock};
use super::element::Registered;
use crate::buffer::Access;
use crate::error::Error;
use crate::pd::ProtectionDomain;

/// A registration of the program's memory, which ends when the memory does: [`ProtectionDomain::register_notified`].
///
/// Dropping it deregisters, without saying how many events were read, and also if windows are bound.
#[derive(Debug)]
#[doc(alias = "ibv_mr")]
pub struct NotifiedRegion {
    channel: MemoryChannel,
    slot: Arc<Slot>,
    names: Registered,
}

/// What a channel and the handle of a region have in common.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) cookie: u64,
    pub(super) policy: Policy,
    validity: Validity,
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    /// Ended, by whomever: nothing is entered any more.
    is_over: bool,
    device: Option<device::Region>,
    watch: Option<memwatch::Region>,
}

impl Slot {
    pub(super) fn new(watch: memwatch::Region, policy: Policy) -> Self {
        Self {
            cookie: watch.cookie(),
            policy,
            validity: watch.validity(),
            parts: Mutex::new(Parts {
                is_over: false,
                device: None,
                watch: Some(watch),
            }),
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.validity.is_valid()
    }

    /// Takes the keys away, waits for copies that are under way, and ends the watch. What was ended before stays so.
    pub(super) fn end(&self) {
        let (device, watch) = {
            let mut parts = lock(&self.parts);
            parts.is_over = true;
            (parts.device.take(), parts.watch.take())
        };
        if let Some(Err((region, _bound))) = device.map(device::Region::deregister) {
            // Windows are bound to it, and end with it.
            drop(region);
        }
        drop(watch);
    }

    /// The device has registered the memory.
    fn enter(&self, region: device::Region) {
        let mut parts = lock(&self.parts);
        if !parts.is_over {
            parts.device = Some(region);
            return;
        }
        drop(parts);
        // It was changed and ended meanwhile.
        drop(region);
    }
}

impl ProtectionDomain {
    /// Registers memory of the program for as long as it is there.
    ///
    /// When the program unmaps, moves or discards any of it, the keys stop working; then `channel` has an event with `cookie`
    /// ([`Policy::Report`]), or the region is deregistered without anybody reading ([`Policy::Deregister`]): the device forgets it
    /// soon, and the cookie is free at once. A request that still names it ends with a local protection error, one of a
    /// peer with a remote access error. Once the call that took the memory away has returned, no byte is copied into or out of
    /// what lies at the address then, in whatever way that memory was mapped.
    ///
    /// What cannot be seen, so that the keys go on working: operations without an event, for which see
    /// [`Capabilities::promise`](memwatch::Capabilities::promise) of [`MemoryChannel::capabilities`].
    ///
    /// # Errors
    /// `Memory`: the range cannot be watched, the cookie is in use, or this is a forked child. `Device`: the channel is of another
    /// context; the range is not mapped, or not with this access; too many regions; rights that do not go together or are
    /// unknown. `System`: no thread for [`Policy::Deregister`].
    ///
    /// # Blocking
    /// For the time of another call, and of a change of watched memory that is under way.
    ///
    /// # Safety
    /// With [`Access::LOCAL_WRITE`] the device changes bytes of the range while a receive, READ or atomic that names them is
    /// posted, and peers that have a right to do so at any time while it is registered: no Rust reference to those bytes is used
    /// then. Elements ([`Registered::element`]) of a region that has ended are not posted after 2^23 other regions and windows of
    /// the context were made, nor is a request that has one outstanding until then: its key could be another's.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_verbs::*;
    /// # mod doctest { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/pair.rs")); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let ((qp, cq), (peer, peer_cq)) = doctest::connected(QpInitAttr::default());
    /// use oarlock_memwatch::{Error as WatchError, Event, Policy};
    ///
    /// let channel = match MemoryChannel::new(peer.context()) {
    ///     Err(Error::Memory(WatchError::Unavailable { .. })) => return Ok(()),
    ///     made => made?,
    /// };
    /// let memory = vec![0_u8; 1 << 20];
    /// let (addr, len) = (memory.as_ptr().addr(), memory.len());
    /// let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// // SAFETY: no reference to the bytes is used until the peer has written.
    /// let region = unsafe {
    ///     peer.pd().register_notified(&channel, addr, len, rights, 7, Policy::Report)?
    /// };
    /// let there = region.at(100);
    /// qp.post_send(SendRequest::write(1, Inline(b"written"), there))?;
    /// cq.wait_one(None)?.unwrap().ok()?;
    /// assert_eq!(&memory[100..107], b"written");
    ///
    /// // The allocator gives a block of this size back to the system.
    /// drop(memory);
    /// let mut events = Vec::new();
    /// channel.read_events(&mut events, 16)?;
    /// assert!(matches!(&events[0], Event::Invalidated(event) if event.cookie == 7));
    /// // The peer's next WRITE does no harm to whoever has the addresses now.
    /// qp.post_send(SendRequest::write(2, Inline(b"too late"), there))?;
    /// assert_eq!(cq.wait_one(None)?.unwrap().status, WcStatus::REM_ACCESS_ERR);
    /// assert_eq!(region.deregister().map_err(|(_, error)| error)?, 1);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_notified(
        &self,
        channel: &MemoryChannel,
        addr: usize,
        len: usize,
        access: Access,
        cookie: u64,
        policy: Policy,
    ) -> Result<NotifiedRegion, Error> {
        if channel.context() != self.context() {
            return Err(device::Error::OtherContext {
                object: "memory channel",
            }
            .into());
        }
        let slot = channel.watch((addr, len), cookie, policy)?;
        let register = || {
            let validity = slot.validity.clone();
            // SAFETY: the caller's promise.
            unsafe {
                self.device()
                    .register_watched(addr as u64, len, access, validity)
            }
        };
        let registered = match register() {
            Err(device::Error::TooManyRegions { .. }) if channel.forget_ended() > 0 => register(),
            registered => registered,
        };
        match registered {
            Ok(region) => {
                let names = Registered::of(&region);
                slot.enter(region);
                Ok(NotifiedRegion {
                    channel: channel.clone(),
                    slot,
                    names,
                })
            }
            Err(error) => {
                channel.forget(&slot);
                Err(error.into())
            }
        }
    }
}

impl NotifiedRegion {
    /// What its events carry.
    pub fn cookie(&self) -> u64 {
        self.slot.cookie
    }

    /// Whether the memory is what was registered, as far as is known: false before the event can be read, and never true again.
    /// [`MemoryChannel::settle`] first, to be sure.
    pub fn is_valid(&self) -> bool {
        self.slot.is_valid()
    }

    /// The channel of its events.
    pub fn channel(&self) -> &MemoryChannel {
        &self.channel
    }

    /// Takes the keys away, waits until no copy into or out of the memory is under way, and returns how many events of the region
    /// were read. An unread one is dropped, and none comes later.
    ///
    /// # Errors
    /// The region, and why. `Device`: windows are bound to it, and it is as it was. `Memory`: it has ended already, by
    /// [`MemoryChannel::deregister_notified`] or by its policy; or this is a forked child.
    ///
    /// # Blocking
    /// For the rest of copies of a packet and of bursts that are being built, and for the time of another call.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<u64, (Self, Error)> {
        match self.end() {
            Ok(reported) => Ok(reported),
            Err(error) => Err((self, error)),
        }
    }

    fn end(&self) -> Result<u64, Error> {
        self.channel.check_fork()?;
        let mut parts = lock(&self.slot.parts);
        let device = parts.device.take();
        if let Some(Err((region, error))) = device.map(device::Region::deregister) {
            parts.device = Some(region);
            return Err(error.into());
        }
        parts.is_over = true;
        let watch = parts.watch.take();
        drop(parts);
        // Of a region that has ended, its cookie may be another's by now.
        self.channel.forget(&self.slot);
        let watch = watch.ok_or(memwatch::Error::UnknownCookie {
            cookie: self.slot.cookie,
        })?;
        Ok(watch.deregister()?)
    }
}

impl Deref for NotifiedRegion {
    type Target = Registered;

    fn deref(&self) -> &Registered {
        &self.names
    }
}

impl Drop for NotifiedRegion {
    fn drop(&mut self) {
        self.channel.forget(&self.slot);
    }
}
