//! A Registrar that keeps books, and does what a test tells it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_memwatch::{
    CacheError, CacheOptions, Handle, KeptHandle, Lookup, MrCache, Registrar, Validity,
};

/// Access bits.
pub(crate) const READ: u8 = 1;
pub(crate) const WRITE: u8 = 2;
/// Not to be merged with an access that has it not.
pub(crate) const ALONE: u8 = 4;

/// Whoever merges it ends there.
pub(crate) const DEADLY: u8 = 8;
/// Somebody has come to that.
pub(crate) static DYING: AtomicBool = AtomicBool::new(false);

type Hook = Box<dyn Fn(Range<usize>, u8) -> Result<(), Refused> + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused on purpose")
    }
}

impl std::error::Error for Refused {}

/// What exists.
#[derive(Default)]
pub(crate) struct Books {
    alive: Mutex<HashMap<usize, Range<usize>>>,
    made: AtomicUsize,
    pub(crate) most: AtomicUsize,
    /// Runs in each registration that is dropped.
    on_drop: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl Books {
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }

    pub(crate) fn alive(&self) -> Vec<Range<usize>> {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ranges: Vec<_> = alive.values().cloned().collect();
        ranges.sort_by_key(|range| (range.start, range.end));
        ranges
    }

    pub(crate) fn on_drop(&self, what: impl Fn() + Send + Sync + 'static) {
        *self.on_drop.lock().expect("no panic") = Some(Arc::new(what));
    }
}

pub(crate) struct Keeper {
    pub(crate) books: Arc<Books>,
    hook: Mutex<Hook>,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        Self {
            books: Arc::default(),
            hook: Mutex::new(Box::new(|_, _| Ok(()))),
        }
    }

    /// What happens at each registration, before it is made.
    pub(crate) fn hook(
        &self,
        hook: impl Fn(Range<usize>, u8) -> Result<(), Refused> + Send + Sync + 'static,
    ) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(hook);
    }
}

pub(crate) struct Registration {
    pub(crate) id: usize,
    books: Arc<Books>,
}

impl Registrar for Keeper {
    type Access = u8;
    type Registration = Registration;
    type Error = Refused;

    fn covers(held: u8, wanted: u8) -> bool {
        held & wanted == wanted && (held ^ wanted) & ALONE == 0
    }

    fn union(a: u8, b: u8) -> Option<u8> {
        if (a | b) & DEADLY != 0 {
            DYING.store(true, Ordering::SeqCst);
            // SAFETY: ends this thread as a fatal signal to it alone would, with whatever it holds.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        ((a ^ b) & ALONE == 0).then_some(a | b)
    }

    unsafe fn register(
        &self,
        start: usize,
        len: usize,
        access: u8,
        _: Option<&Validity>,
    ) -> Result<Registration, Refused> {
        let range = start..start + len;
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)(range.clone(), access)?;
        let id = self.books.made.fetch_add(1, Ordering::SeqCst);
        let mut alive = self.books.alive.lock().expect("no panic");
        alive.insert(id, range);
        self.books.most.fetch_max(alive.len(), Ordering::SeqCst);
        drop(alive);
        Ok(Registration {
            id,
            books: Arc::clone(&self.books),
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        assert_ne!(
            std::thread::current().name(),
            Some("memory events"),
            "deregistered by the thread that marks changes"
        );
        let mut alive = self.books.alive.lock().expect("no panic");
        assert!(alive.remove(&self.id).is_some(), "deregistered twice");
        drop(alive);
        let hook = self.books.on_drop.lock().expect("no panic").clone();
        if let Some(hook) = hook {
            hook();
        }
    }
}

pub(crate) type Cache = MrCache<Keeper>;
pub(crate) type Got<'c> = Result<Handle<'c, Keeper>, CacheError<Refused>>;
pub(crate) type Kept = KeptHandle<Keeper>;

/// `None`: this machine cannot watch memory, which was said.
pub(crate) fn cache(options: CacheOptions) -> Option<Cache> {
    drop(crate::support::watcher()?);
    Some(MrCache::new(Keeper::new(), options).expect("a cache"))
}

pub(crate) fn get(cache: &Cache, range: Range<usize>, access: u8, lookup: Lookup) -> Got<'_> {
    // SAFETY: nothing is done to the memory.
    unsafe { cache.get(range.start, range.len(), access, lookup) }
}

/// A strict lookup to read, which must succeed.
pub(crate) fn read(cache: &Cache, range: Range<usize>) -> Handle<'_, Keeper> {
    get(cache, range, READ, Lookup::Strict).expect("registered")
}
