//! The example `stale_cache` shows what it says.

#[path = "../examples/stale_cache.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "an example has a main of its own"
)]
mod stale_cache;

/// Not told, a cache corrupts data; told, it does not.
#[test]
fn one_cache_corrupts_data_and_the_other_does_not() {
    let Err(error) = oarlock_memwatch::Watcher::new() else {
        let shown = stale_cache::run().expect("both");
        assert!(shown.naive.is_corrupt(), "{}", shown.naive);
        assert!(shown.notified.is_right(), "{}", shown.notified);
        return;
    };
    oarlock_sim::not_run("userfaultfd", error);
}
