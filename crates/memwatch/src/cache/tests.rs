//! What only the inside can bring about: a Watcher that breaks.

use std::convert::Infallible;

use super::*;
use crate::event::Policy;
use crate::region::Validity;

struct Null;

impl Registrar for Null {
    type Access = ();
    type Registration = ();
    type Error = Infallible;

    fn covers((): (), (): ()) -> bool {
        true
    }

    fn union((): (), (): ()) -> Option<()> {
        Some(())
    }

    unsafe fn register(
        &self,
        _: usize,
        _: usize,
        (): (),
        _: Option<&Validity>,
    ) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Ends a thread that has the lock of the Watcher.
fn break_watcher(cache: &MrCache<Null>, memory: &[u8]) {
    let book = cache.inner.lock().expect("the cache is not broken");
    let watcher = book.watcher.clone().expect("there is one");
    drop(book);
    let region = watcher
        .register(memory.as_ptr() as usize, 1, u64::MAX, Policy::Report)
        .expect("registered");
    let shared = Arc::clone(&region.validity().shared);
    std::thread::spawn(move || std::mem::forget(shared.enter()))
        .join()
        .expect("no panic");
    assert!(matches!(watcher.regions(), Err(Error::Broken)));
}

fn get(cache: &MrCache<Null>, memory: &[u8]) -> Result<KeptHandle<Null>, CacheError<Infallible>> {
    let start = memory.as_ptr() as usize;
    // SAFETY: registers nothing.
    let handle = unsafe { cache.get(start, memory.len(), (), Lookup::Strict) };
    handle.map(Handle::keep)
}

#[test]
fn a_watcher_that_breaks_is_replaced_a_bounded_number_of_times() {
    let cache = match MrCache::new(Null, CacheOptions::default()) {
        Ok(cache) => cache,
        Err(error @ Error::Unavailable { .. }) => {
            return oarlock_sim::not_run("userfaultfd", error);
        }
        Err(error) => panic!("{error}"),
    };
    let memory = vec![1; 1 << 20];
    let mut reopened = 0;
    loop {
        let held = match get(&cache, &memory) {
            Ok(held) => held,
            Err(CacheError::Watch(Error::Broken)) => break,
            Err(error) => panic!("{error}"),
        };
        assert!(held.is_valid() && held.is_cached());
        assert_eq!(cache.statistics().reopened, reopened);
        break_watcher(&cache, &memory);
        assert!(!held.is_valid(), "of a watcher that sees nothing any more");
        reopened += 1;
    }
    assert_eq!(u64::from(miss::MAX_REOPENED) + 1, reopened);
    cache.clean();
    assert_eq!(cache.statistics().regions, 0);
}
