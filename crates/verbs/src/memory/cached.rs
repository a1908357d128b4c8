//! Registrations for a cache.
#![allow(
    unsafe_code,
    reason = "registers the program's memory; the promises are those of the cache's caller"
)]

use std::ops::Deref;

use oarlock_device as device;
use oarlock_memwatch::{Registrar, Validity};

use super::element::Registered;
use crate::buffer::{Access, OF_PEERS};
use crate::error::Error;
use crate::pd::ProtectionDomain;

/// A registration of the program's memory, as [`MrCache`](oarlock_memwatch::MrCache) keeps them for a [`ProtectionDomain`].
///
/// Its keys end with it, and before that when the memory is unmapped, moved or discarded, before anybody is told. Then a request
/// that names it ends with a local protection error, a peer's with a remote access error, and nothing is copied: once the call
/// that took the memory away has returned, no byte goes into or out of what lies at the address now.
#[derive(Debug)]
pub struct ProgramMemory {
    names: Registered,
    _region: device::Region,
}

impl Deref for ProgramMemory {
    type Target = Registered;

    fn deref(&self) -> &Registered {
        &self.names
    }
}

/// Registrations for a cache: `MrCache::new(pd, options)`.
///
/// ```
/// # use oarlock_verbs::*;
/// # mod doctest { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/pair.rs")); }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let ((qp, cq), (peer, peer_cq)) = doctest::connected(QpInitAttr::default());
/// use oarlock_memwatch::{CacheOptions, Error as WatchError, Lookup, MrCache};
///
/// let cache = match MrCache::new(qp.pd().clone(), CacheOptions::default()) {
///     // Old kernels and some containers: register without a cache.
///     Err(WatchError::Unavailable { .. }) => return Ok(()),
///     made => made?,
/// };
/// peer.post_recv(1, Buffer::new(peer.pd(), 100)?)?;
///
/// let message = b"from where it lies".to_vec();
/// let (addr, len) = (message.as_ptr().addr(), message.len());
/// // SAFETY: without a right to write, the device only looks at the bytes.
/// let memory = unsafe { cache.get(addr, len, Access::empty(), Lookup::Strict)? };
/// qp.post_send(SendRequest::new(2, memory.element(addr, len as u32)))?;
/// cq.wait_one(None)?.unwrap().ok()?;
/// assert_eq!(peer_cq.wait_one(None)?.unwrap().message(), Some(&message[..]));
/// # Ok(()) }
/// ```
///
/// `union`: ranges that peers have different rights to are kept apart, so that no registration gives a peer more of them than
/// was asked for. [`Access::ZERO_BASED`] is refused, as a registration may begin before the range that was asked for.
impl Registrar for ProtectionDomain {
    type Access = Access;
    type Registration = ProgramMemory;
    type Error = Error;

    fn covers(held: Access, wanted: Access) -> bool {
        held.contains(wanted)
    }

    fn union(a: Access, b: Access) -> Option<Access> {
        (a & OF_PEERS == b & OF_PEERS).then_some(a | b)
    }

    unsafe fn register(
        &self,
        start: usize,
        len: usize,
        access: Access,
        watch: Option<&Validity>,
    ) -> Result<ProgramMemory, Error> {
        if access.contains(Access::ZERO_BASED) {
            return Err(device::Error::UnsupportedAccess {
                flag: "ZERO_BASED",
                bits: Access::ZERO_BASED.bits(),
                reason: "a registration in a cache may begin before the range that was asked for",
            }
            .into());
        }
        let start = start as u64;
        // SAFETY: the caller's promise is the one that these ask for.
        let region = unsafe {
            match watch {
                Some(validity) => {
                    let validity = validity.clone();
                    self.device()
                        .register_watched(start, len, access, validity)?
                }
                None => self.device().register(start, len, access)?,
            }
        };
        Ok(ProgramMemory {
            names: Registered::of(&region),
            _region: region,
        })
    }
}
