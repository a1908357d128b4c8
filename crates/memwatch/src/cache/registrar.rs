//! What a cache calls to register memory.

use crate::region::Validity;

/// Registers memory with whatever the cache is for: a protection domain, a device, a library.
///
/// The cache calls [`register`](Self::register) and drops registrations outside of its locks, in the thread of a lookup, of
/// [`MrCache::clean`](crate::MrCache::clean) or of a handle that is dropped; never in the thread that marks changes. So both may
/// take their time, allocate, fail and panic: then the lookup fails or unwinds, and the cache is as it was before. [`covers`](Self::covers)
/// and [`union`](Self::union) are called with a lock held, too: they only compute.
pub trait Registrar: Send + Sync {
    /// What may be done to memory through a registration.
    type Access: Copy + Eq + Send + Sync;
    /// A registration. Dropping it deregisters. It may still be in use by the program when its memory is gone.
    type Registration: Send + Sync;
    /// Why memory was not registered.
    type Error;

    /// Whether a registration made for `held` serves a lookup that wants `wanted`.
    fn covers(held: Self::Access, wanted: Self::Access) -> bool;

    /// One access that covers both, for the registration that replaces two. `None`: they are kept apart.
    ///
    /// The registration that is merged allows this for the whole of its range, also to peers that know its key.
    fn union(a: Self::Access, b: Self::Access) -> Option<Self::Access>;

    /// Registers a range, which need not be aligned.
    ///
    /// `watch` says whether the memory is still what is being registered, from before this call on; a registration that keeps it
    /// can refuse its use afterwards. `None`: the memory cannot be watched, and the registration will not be cached.
    ///
    /// # Errors
    /// Whatever keeps it from being registered. The lookup fails with it, unless more was tried than the lookup asked for.
    ///
    /// # Safety
    /// As for [`MrCache::get`](crate::MrCache::get), of whose arguments these are the union.
    unsafe fn register(
        &self,
        start: usize,
        len: usize,
        access: Self::Access,
        watch: Option<&Validity>,
    ) -> Result<Self::Registration, Self::Error>;
}
