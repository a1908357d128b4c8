//! Memory windows: keys for a part of a region, which work requests give and take (IBA Vol. 1 ch. 10 "Memory windows").
//!
//! | | type 1 | type 2 |
//! |---|---|---|
//! | key | the device chooses a new one with each binding | the program chooses its low 8 bits |
//! | used by | every queue pair of the protection domain | the queue pair that bound it |
//! | bound again | at any time; no bytes: unbound | only when free: after an invalidation |
//! | invalidated | never | by that queue pair, or its peer (SEND with invalidate) |
//! | addresses | the region's | the region's, or from 0 |
//!
//! Windows of type 2 are of kind 2B: a queue pair that is destroyed, or goes to Reset, frees those it has bound.
//!
//! A window has a guard like a region's: what goes through it holds it shared, around that of the region; invalidating,
//! binding and deallocating take it exclusively.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, Weak};

use oarlock_transport::{AccessFlags, BindWindow, MemoryError};
use oarlock_wire::{Qpn, RKey};

use super::access::{OF_WINDOWS, REMOTE};
use super::keys::{index_of, key_of};
use super::region::{Piece, RegionInner, piece_of};
use super::table::{Entry, RegionTable};
use crate::error::Error;
use crate::locks::{lock, read, write};
use crate::pd::Pd;

/// The type of a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the specification's two")]
#[doc(alias = "ibv_mw_type")]
pub enum WindowType {
    /// Bound by [`Qp::bind_window`](crate::Qp::bind_window), for all queue pairs of the protection domain.
    One,
    /// Bound by a send-queue request, for the queue pair that binds it; can be invalidated.
    Two,
}

/// A memory window: a key that names a part of a region to peers for as long as it is bound.
///
/// Dropping it takes the key away without waiting: a copy through it that is under way ends first.
#[doc(alias = "ibv_mw")]
pub struct Window {
    inner: Arc<WindowInner>,
    table: Arc<RegionTable>,
    pd: Pd,
    /// Variant of the key that was chosen last for a binding of type 1.
    chosen: AtomicU8,
}

/// What a window is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Bound {
    /// Address of the first byte, as peers count.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// What peers may do.
    pub access: AccessFlags,
    /// The only queue pair it works for; `None`: all of the protection domain.
    pub qpn: Option<Qpn>,
}

/// What the key table shares with the handle.
pub(crate) struct WindowInner {
    /// Its place in the table.
    index: u32,
    pd: u32,
    window_type: WindowType,
    /// The handle is gone.
    closed: AtomicBool,
    guard: RwLock<WindowState>,
    /// Counts the window where it is bound. Apart from the guard, so that dropping the handle need not wait.
    tie: Mutex<Option<Tie>>,
}

/// What is behind a window's guard.
pub(super) struct WindowState {
    key: u32,
    binding: Option<Binding>,
    pd: u32,
}

pub(super) struct Binding {
    /// A window does not keep its region.
    pub(super) region: Weak<RegionInner>,
    pub(super) access: AccessFlags,
    /// Address of the first byte, as peers count.
    addr: u64,
    len: u64,
    /// Where in the region that is.
    offset: u64,
    qpn: Option<Qpn>,
}

/// One of the windows that a region counts, and the table for a queue pair.
struct Tie {
    region: Weak<RegionInner>,
    qpn: Option<Qpn>,
}

impl Drop for Tie {
    fn drop(&mut self) {
        if let Some(region) = self.region.upgrade() {
            region.remove_window();
        }
    }
}

impl Window {
    /// A window that is bound to nothing.
    ///
    /// # Errors
    /// `TooManyWindows`.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn new(pd: &Pd, window_type: WindowType) -> Result<Self, Error> {
        let context = pd.context();
        let table = Arc::clone(context.regions());
        let max = context.device().limits.max_mw as usize;
        let (key, inner) = WindowInner::insert(&table, max, pd.id(), window_type)?;
        Ok(Self {
            inner,
            table,
            pd: pd.clone(),
            chosen: AtomicU8::new(key as u8),
        })
    }

    /// The key it has now: works while the window is bound.
    pub fn rkey(&self) -> RKey {
        RKey(read(&self.inner.guard).key)
    }

    /// Its type.
    pub fn window_type(&self) -> WindowType {
        self.inner.window_type
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// What it is bound to; `None` if it is free.
    ///
    /// A binding takes effect when its work request is executed, not when it is posted.
    pub fn bound(&self) -> Option<Bound> {
        let state = read(&self.inner.guard);
        let binding = state.binding.as_ref()?;
        binding.region.upgrade()?;
        Some(Bound {
            addr: binding.addr,
            len: binding.len,
            access: binding.access,
            qpn: binding.qpn,
        })
    }

    /// Takes the key away, unbinds, and waits until no copy through the window is under way.
    ///
    /// # Blocking
    /// For the rest of a copy of at most one packet, and of bursts that are being built.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn deallocate(self) {
        self.inner.close(&self.table);
        drop(write(&self.inner.guard));
        self.table.wait_for_leaving();
    }

    /// A key for the next binding of type 1: the index of the window with a variant that it had none of the last 255 times.
    pub(crate) fn choose_key(&self) -> RKey {
        // An odd step meets all 256 variants.
        let variant = self
            .chosen
            .fetch_add(STEP, Ordering::Relaxed)
            .wrapping_add(STEP);
        RKey(key_of(self.inner.index, variant))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.inner.close(&self.table);
        self.table.remove(key_of(self.inner.index, 0));
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("window_type", &self.window_type())
            .field("rkey", &format_args!("{:#x}", self.rkey().0))
            .field("bound", &self.bound())
            .finish_non_exhaustive()
    }
}

impl WindowInner {
    /// Enters a window that is bound to nothing.
    pub(super) fn insert(
        table: &RegionTable,
        max: usize,
        pd: u32,
        window_type: WindowType,
    ) -> Result<(u32, Arc<Self>), Error> {
        table.insert_window(max, |key| Self {
            index: index_of(key),
            pd,
            window_type,
            closed: AtomicBool::new(false),
            guard: RwLock::new(WindowState {
                key,
                binding: None,
                pd,
            }),
            tie: Mutex::new(None),
        })
    }

    pub(super) fn pd(&self) -> u32 {
        self.pd
    }

    /// Takes the guard for going through the window; `None` if it is gone.
    pub(super) fn enter(&self) -> Option<RwLockReadGuard<'_, WindowState>> {
        let state = read(&self.guard);
        (!self.closed.load(Ordering::Acquire)).then_some(state)
    }

    /// Nobody goes through the window any more, and it counts nowhere.
    fn close(&self, table: &RegionTable) {
        self.closed.store(true, Ordering::Release);
        self.untie(table);
    }

    fn untie(&self, table: &RegionTable) {
        let tie = lock(&self.tie).take();
        if let Some(qpn) = tie.and_then(|tie| tie.qpn) {
            table.leave_bound(qpn, self.index);
        }
    }

    /// See [`Memory::invalidate`](oarlock_transport::Memory::invalidate).
    pub(super) fn invalidate(
        &self,
        table: &RegionTable,
        rkey: RKey,
        qpn: Qpn,
    ) -> Result<(), MemoryError> {
        if self.window_type == WindowType::One {
            return Err(MemoryError::NotInvalidatable(rkey));
        }
        // Waits for what goes through the window now.
        let mut state = write(&self.guard);
        let pd = self.pd;
        if self.closed.load(Ordering::Acquire) || state.usable(rkey, pd, qpn).is_none() {
            return Err(MemoryError::InvalidRemoteKey(rkey));
        }
        self.unbind(&mut state, table);
        Ok(())
    }

    /// Frees the window if `qpn` has bound it.
    pub(super) fn release_from(&self, qpn: Qpn, table: &RegionTable) {
        let mut state = write(&self.guard);
        if state.binding.as_ref().is_some_and(|b| b.qpn == Some(qpn)) {
            self.unbind(&mut state, table);
        }
    }

    fn unbind(&self, state: &mut WindowState, table: &RegionTable) {
        state.binding = None;
        self.untie(table);
    }
}

impl WindowState {
    /// The binding, if a queue pair may go through it by this key.
    pub(super) fn usable(&self, rkey: RKey, pd: u32, qpn: Qpn) -> Option<&Binding> {
        let binding = self.binding.as_ref()?;
        let may = self.key == rkey.0
            && self.pd == pd
            && binding.qpn.is_none_or(|bound_by| bound_by == qpn);
        may.then_some(binding)
    }
}

impl Binding {
    /// Where in the region `len` bytes at `addr` lie; `None` if they leave the window.
    pub(super) fn piece(&self, addr: u64, len: u64) -> Option<Piece> {
        let within = piece_of((self.addr, self.len), addr, len)?;
        Some(Piece {
            offset: self.offset + within.offset,
            ..within
        })
    }
}

/// See [`Memory::bind`](oarlock_transport::Memory::bind). The window is of the protection domain of queue pair `qpn`.
pub(super) fn bind(
    table: &RegionTable,
    window: &WindowInner,
    bind: &BindWindow,
    qpn: Qpn,
) -> Result<(), MemoryError> {
    let unknown = MemoryError::InvalidRemoteKey(bind.window);
    // Waits for what goes through the window now.
    let mut state = write(&window.guard);
    if window.closed.load(Ordering::Acquire) {
        return Err(unknown);
    }
    // Of a type 1 window the device chose the new key when the request was posted. Requests posted meanwhile may have
    // changed the present one.
    if window.window_type == WindowType::Two && state.key != bind.window.0 {
        return Err(unknown);
    }
    check_window(window.window_type, &state, bind).map_err(MemoryError::BindRefused)?;
    if bind.len == 0 {
        window.unbind(&mut state, table);
        state.key = bind.rkey.0;
        return Ok(());
    }
    let (binding, tie) = tie_to_region(table, window, bind, qpn)?;
    {
        let mut slot = lock(&window.tie);
        // Whoever closes the window unties it afterwards: so either that is seen here, or the tie is seen there.
        if window.closed.load(Ordering::Acquire) {
            return Err(unknown);
        }
        if let Some(qpn) = tie.qpn {
            table.enter_bound(qpn, window.index);
        }
        *slot = Some(tie);
    }
    state.binding = Some(binding);
    state.key = bind.rkey.0;
    Ok(())
}

/// The rules that do not concern the region.
fn check_window(
    window_type: WindowType,
    state: &WindowState,
    bind: &BindWindow,
) -> Result<(), &'static str> {
    if index_of(bind.rkey.0) != index_of(bind.window.0) {
        return Err("the new key differs from the present one in more than the low 8 bits");
    }
    if !OF_WINDOWS.contains(bind.access) {
        return Err(
            "a window has the rights REMOTE_WRITE, REMOTE_READ and REMOTE_ATOMIC, and ZERO_BASED",
        );
    }
    match window_type {
        WindowType::One => {
            if bind.access.contains(AccessFlags::ZERO_BASED) {
                return Err("addresses of a type 1 window cannot count from 0");
            }
        }
        WindowType::Two => {
            if state.binding.is_some() {
                return Err("a type 2 window must be invalidated before it is bound again");
            }
            if bind.len == 0 {
                return Err("a type 2 window is not unbound by binding no bytes, but invalidated");
            }
        }
    }
    Ok(())
}

/// Checks the region and counts the window there.
fn tie_to_region(
    table: &RegionTable,
    window: &WindowInner,
    bind: &BindWindow,
    qpn: Qpn,
) -> Result<(Binding, Tie), MemoryError> {
    let unknown = MemoryError::InvalidKey(bind.region);
    let Some(Entry::Region(region)) = table.get(bind.region.0) else {
        return Err(unknown);
    };
    let registration = region.enter_to_fetch().ok_or(unknown)?;
    if registration.key != bind.region.0 || registration.pd != window.pd {
        return Err(unknown);
    }
    if registration.is_lost() {
        return Err(unknown);
    }
    let region_access = registration.access;
    if !region_access.contains(AccessFlags::MW_BIND) {
        return Err(MemoryError::BindRefused(
            "the region is not registered with MW_BIND",
        ));
    }
    let writes = bind
        .access
        .intersects(REMOTE.difference(AccessFlags::REMOTE_READ));
    if writes && !region_access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(MemoryError::BindRefused(
            "a window for writes and atomics needs a region with LOCAL_WRITE",
        ));
    }
    let piece = registration
        .piece(bind.addr, bind.len)
        .ok_or(MemoryError::OutOfBounds {
            addr: bind.addr,
            len: bind.len,
        })?;
    // With the guard held: so a deregistration either sees the window, or is seen by it.
    region.add_window();
    let tie = Tie {
        region: Arc::downgrade(&region),
        qpn: (window.window_type == WindowType::Two).then_some(qpn),
    };
    let zero_based = bind.access.contains(AccessFlags::ZERO_BASED);
    let binding = Binding {
        region: Arc::downgrade(&region),
        access: bind.access,
        addr: if zero_based { 0 } else { bind.addr },
        len: bind.len,
        offset: piece.offset,
        qpn: tie.qpn,
    };
    Ok((binding, tie))
}

const STEP: u8 = 0x8d;
