//! Memory channels.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use oarlock_memwatch::{Event, Kind, Options, Validity, Watcher};
use oarlock_port::thread::Uncancelled;

use super::given;
use crate::abi::{
    OARLOCK_MEMORY_DISCARDED, OARLOCK_MEMORY_HINT, OARLOCK_MEMORY_INVALIDATED, OARLOCK_MEMORY_LAST,
    OARLOCK_MEMORY_MOVED, OARLOCK_MEMORY_UNKNOWN, OARLOCK_MEMORY_UNMAPPED, ibv_context, ibv_mr,
    oarlock_memory_channel, oarlock_memory_event,
};
use crate::errno::{self, Refused, Result};
use crate::verbs::birth::Birth;
use crate::verbs::context::Context;
use crate::verbs::pd::{Use, Users};

/// A memory channel. C's pointer is that of an `Arc`; its context knows it, its regions hold others.
#[repr(C)]
pub(crate) struct Channel {
    abi: UnsafeCell<oarlock_memory_channel>,
    pub(super) watcher: Watcher,
    page: Page,
    context: Arc<Context>,
    pub(super) birth: Birth,
    users: Users,
    /// The number of the next region.
    next: AtomicU64,
    /// In the order in which they were registered.
    regions: Mutex<BTreeMap<u64, Known>>,
}

// SAFETY: the public part is C's and reached by pointer only; everything else is `Send` and `Sync` by itself.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// A region of a channel, as the channel knows it.
pub(super) struct Known {
    pub(super) mr: *mut ibv_mr,
    pub(super) cookie: u64,
    pub(super) validity: Validity,
}

// SAFETY: the pointer is followed only by who took the entry out, for a call of the program.
unsafe impl Send for Known {}

/// The memory channel of a context, if it has one.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Weak<Channel>>);

impl Slot {
    /// The channel, which stays as long as the answer does.
    ///
    /// # Errors
    /// `EBADF`: the context has none.
    pub(super) fn enter(&self) -> Result<(Use, Arc<Channel>)> {
        // The channel cannot be destroyed between the two.
        let slot = self.lock();
        let channel = slot.upgrade().ok_or_else(|| {
            Refused::new(
                libc::EBADF,
                "the context has no memory channel: it is made before the first region",
            )
        })?;
        let entered = channel.users.enter();
        // The channel is let go first: whoever finds it unused is the last.
        Ok((entered, channel))
    }

    /// What the channel says, if there is one.
    pub(super) fn look<T>(&self, at: impl FnOnce(&Channel) -> T) -> Option<T> {
        // Who destroys the channel waits for this, and is the last to have it.
        let slot = self.lock();
        let channel = slot.upgrade()?;
        Some(at(&channel))
    }

    fn lock(&self) -> MutexGuard<'_, Weak<Channel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    fn create(context: Arc<Context>) -> Result<Arc<Self>> {
        context.birth.check()?;
        let mut slot = context.memory.lock();
        if slot.strong_count() > 0 {
            return Err(Refused::new(
                libc::EEXIST,
                "the context has a memory channel already",
            ));
        }
        let watcher = Watcher::with(Options {
            max_regions: max_regions(&context),
            ..Options::default()
        })?;
        let page = Page::map(watcher.generation_page()?)?;
        let public = oarlock_memory_channel {
            context: context.as_ptr(),
            fd: watcher.as_fd().as_raw_fd(),
            generation_fd: page.file.as_raw_fd(),
            generation: page.start,
        };
        let channel = Arc::new(Self {
            abi: UnsafeCell::new(public),
            watcher,
            page,
            context: Arc::clone(&context),
            birth: Birth::here(),
            users: Users::default(),
            next: AtomicU64::new(0),
            regions: Mutex::default(),
        });
        *slot = Arc::downgrade(&channel);
        Ok(channel)
    }

    /// The channel that C knows as `channel`.
    ///
    /// # Errors
    /// `EINVAL`: null. `EPERM`: it was made before a fork, by the parent.
    ///
    /// # Safety
    /// `channel` is null, or what C got of this library and has not destroyed.
    pub(super) unsafe fn of<'a>(channel: *mut oarlock_memory_channel) -> Result<&'a Self> {
        let channel = given(channel, "memory channel")?.cast::<Self>();
        // SAFETY: the caller's promise; `abi` is the first field.
        let channel = unsafe { &*channel };
        channel.birth.check()?;
        Ok(channel)
    }

    /// # Errors
    /// `EBUSY`: regions are there.
    fn end(&self) -> Result<()> {
        let mut slot = self.context.memory.lock();
        self.users.check_unused("memory channel")?;
        *slot = Weak::new();
        Ok(())
    }

    /// A number for one more region.
    pub(super) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The region of that number is there from now on; also one that was taken, and stays after all.
    pub(super) fn add(&self, number: u64, known: Known) {
        self.lock().insert(number, known);
    }

    /// The first region after that number which was invalidated. It is the caller's, until it is put back.
    pub(super) fn take_invalid(&self, after: Option<u64>) -> Option<(u64, Known)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut regions = self.lock();
        let number = regions
            .range((from, Bound::Unbounded))
            .find(|(_, known)| !known.validity.is_valid())
            .map(|(number, _)| *number)?;
        regions.remove_entry(&number)
    }

    /// The region goes.
    pub(super) fn remove(&self, number: u64) {
        self.lock().remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next events as C sees them.
    fn read(&self, max: usize) -> Result<Vec<oarlock_memory_event>> {
        let mut events = Vec::new();
        self.watcher.read_events(&mut events, max)?;
        // Where a full array left no room to say that none is left, the next call says it.
        Ok(events.iter().filter_map(public).take(max).collect())
    }
}

/// The kind that C means.
fn kind_of(number: u32) -> Result<Kind> {
    match number {
        OARLOCK_MEMORY_UNKNOWN => Ok(Kind::Unknown),
        OARLOCK_MEMORY_DISCARDED => Ok(Kind::Discarded),
        OARLOCK_MEMORY_UNMAPPED => Ok(Kind::Unmapped),
        OARLOCK_MEMORY_MOVED => Ok(Kind::Moved),
        other => Err(Refused::new(
            libc::EINVAL,
            format!("kind {other} is not known"),
        )),
    }
}

/// How many regions a channel of the context takes: as many as the device.
pub(super) fn max_regions(context: &Context) -> usize {
    context.device.device().limits.max_mr as usize
}

/// An event as C sees it.
fn public(event: &Event) -> Option<oarlock_memory_event> {
    let none = oarlock_memory_event {
        type_: OARLOCK_MEMORY_INVALIDATED,
        kind: OARLOCK_MEMORY_UNKNOWN,
        flags: 0,
        hint_start: 0,
        hint_end: 0,
        cookie: 0,
        generation: 0,
    };
    match event {
        Event::Invalidated(event) => {
            let told = oarlock_memory_event {
                kind: kind(event.kind),
                cookie: event.cookie,
                ..none
            };
            Some(match &event.hint {
                Some(hint) => oarlock_memory_event {
                    flags: OARLOCK_MEMORY_HINT,
                    hint_start: hint.start as u64,
                    hint_end: hint.end as u64,
                    ..told
                },
                None => told,
            })
        }
        Event::Last { generation } => Some(oarlock_memory_event {
            type_: OARLOCK_MEMORY_LAST,
            generation: *generation,
            ..none
        }),
        _ => None,
    }
}

pub(super) fn kind(kind: Kind) -> u32 {
    match kind {
        Kind::Discarded => OARLOCK_MEMORY_DISCARDED,
        Kind::Unmapped => OARLOCK_MEMORY_UNMAPPED,
        Kind::Moved => OARLOCK_MEMORY_MOVED,
        // `Kind::Unknown`, and what a later version tells apart.
        _ => OARLOCK_MEMORY_UNKNOWN,
    }
}

/// The generation page, for the program.
struct Page {
    start: *const u64,
    file: OwnedFd,
}

impl Page {
    fn map(file: OwnedFd) -> Result<Self> {
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                Self::size(),
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(Refused::new(
                error.raw_os_error().unwrap_or(libc::ENOMEM),
                format!("the generation page cannot be mapped: {error}"),
            ));
        }
        Ok(Self {
            start: start.cast_const().cast(),
            file,
        })
    }

    fn size() -> usize {
        // SAFETY: no pointers.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).expect("a page has a size")
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which the program does not use any more.
        unsafe { libc::munmap(self.start.cast_mut().cast(), Self::size()) };
    }
}

/// `oarlock_create_memory_channel(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_create_memory_channel(
    context: *mut ibv_context,
) -> *mut oarlock_memory_channel {
    let _uncancelled = Uncancelled::new();
    let created = given(context, "context").and_then(|context| {
        // SAFETY: the program's promise.
        Channel::create(unsafe { Context::share(context) })
    });
    errno::object(
        "oarlock_create_memory_channel",
        created.map(|channel| Arc::into_raw(channel).cast_mut().cast()),
    )
}

/// `oarlock_destroy_memory_channel(3)`: `EBUSY` while regions are there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_destroy_memory_channel(
    channel: *mut oarlock_memory_channel,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the program's promise.
    let ended = unsafe { Channel::of(channel) }.and_then(Channel::end);
    let ended = ended.map(|()| {
        // SAFETY: the count that C held, which it gives up with this call.
        drop(unsafe { Arc::from_raw(channel.cast::<Channel>()) });
    });
    errno::positive("oarlock_destroy_memory_channel", ended)
}

/// `oarlock_read_memory_events(3)`: how many were written to `events`, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_read_memory_events(
    channel: *mut oarlock_memory_channel,
    events: *mut oarlock_memory_event,
    max: c_int,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the program's promise.
    let read = unsafe { Channel::of(channel) }.and_then(|channel| {
        let room = room(max, events.is_null())?;
        channel.read(room)
    });
    errno::count(
        "oarlock_read_memory_events",
        read.map(|read| {
            for (at, event) in read.iter().enumerate() {
                // SAFETY: the program's promise: there is room for `max`, and `read` has no more.
                unsafe { events.add(at).write(*event) };
            }
            read.len()
        }),
    )
}

/// How much room a list of the program has.
pub(super) fn room(max: c_int, is_null: bool) -> Result<usize> {
    match usize::try_from(max) {
        Ok(room) if room > 0 && !is_null => Ok(room),
        _ => Err(Refused::new(
            libc::EINVAL,
            format!("a list of {max} has no room"),
        )),
    }
}

/// `oarlock_settle_memory_events(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_settle_memory_events(
    channel: *mut oarlock_memory_channel,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the program's promise.
    let settled =
        unsafe { Channel::of(channel) }.and_then(|channel| Ok(channel.watcher.settle()?));
    errno::positive("oarlock_settle_memory_events", settled)
}

/// `oarlock_invalidate_memory(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_invalidate_memory(
    channel: *mut oarlock_memory_channel,
    addr: *mut c_void,
    length: usize,
    of_kind: c_uint,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    let start = addr.addr();
    // SAFETY: the program's promise.
    let invalidated = unsafe { Channel::of(channel) }.and_then(|channel| {
        let of_kind = kind_of(of_kind)?;
        let end = start.checked_add(length).filter(|_| length > 0);
        let end = end.ok_or_else(|| {
            Refused::new(
                libc::EINVAL,
                "a range that is empty, or leaves the address space",
            )
        })?;
        Ok(channel.watcher.invalidate(start..end, of_kind)?)
    });
    errno::positive("oarlock_invalidate_memory", invalidated)
}
