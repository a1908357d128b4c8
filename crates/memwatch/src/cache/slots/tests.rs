//! The protocol in all orders, as a model; and as it is, by force.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use super::*;

/// Where a thread of the model is. Each step is one access to what threads share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Count,
    LookAtState,
    Use,
    TakeBack,
    LookAgain,
    Retire,
    /// Which shard is looked at next.
    Scan(usize),
    Claim,
    Recall,
    Over,
}

/// A user of shard `shard`, or the one that retires; `recalls` if it only wants idle values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Thread {
    at: At,
    shard: usize,
    retires: bool,
    recalls: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Model {
    state: u64,
    counts: [u32; 2],
    threads: Vec<Thread>,
    claims: u32,
}

impl Model {
    fn step(&self, number: usize) -> Self {
        let mut next = self.clone();
        let thread = &mut next.threads[number];
        thread.at = match thread.at {
            At::Count => {
                next.counts[thread.shard] += 1;
                At::LookAtState
            }
            At::LookAtState if next.state == LIVE => At::Use,
            At::LookAtState | At::Use => At::TakeBack,
            At::TakeBack => {
                next.counts[thread.shard] -= 1;
                At::LookAgain
            }
            At::LookAgain if next.state == RETIRED => At::Scan(0),
            At::LookAgain => At::Over,
            At::Retire => {
                assert_eq!(next.state, LIVE, "one thread at a time retires");
                next.state = RETIRED;
                At::Scan(0)
            }
            At::Scan(shard) => match (next.counts[shard], shard) {
                (0, 1) => At::Claim,
                (0, _) => At::Scan(shard + 1),
                _ if thread.retires && thread.recalls => At::Recall,
                _ => At::Over,
            },
            At::Claim => {
                if next.state == RETIRED {
                    next.state = CLAIMED;
                    next.claims += 1;
                }
                At::Over
            }
            At::Recall => {
                if next.state == RETIRED {
                    next.state = LIVE;
                }
                At::Over
            }
            At::Over => At::Over,
        };
        next
    }

    fn check(&self) {
        let using = self.threads.iter().any(|thread| thread.at == At::Use);
        assert!(self.claims == 0 || !using, "claimed in use: {self:?}");
        assert!(self.claims <= 1, "claimed twice: {self:?}");
        if self.threads.iter().all(|thread| thread.at == At::Over) {
            let recalled = self.state == LIVE;
            let retiring = self.threads.iter().find(|thread| thread.retires);
            let may_recall = retiring.is_some_and(|thread| thread.recalls);
            assert!(
                self.claims == 1 || may_recall && recalled,
                "retired and never claimed: {self:?}"
            );
        }
    }
}

/// Three users on two shards, and one that retires; all states that can be reached.
#[test]
fn in_every_order_a_value_is_claimed_once_and_never_in_use() {
    let user = |shard| Thread {
        at: At::Count,
        shard,
        retires: false,
        recalls: false,
    };
    for recalls in [false, true] {
        let retiring = Thread {
            at: At::Retire,
            shard: 0,
            retires: true,
            recalls,
        };
        let first = Model {
            state: LIVE,
            counts: [0; 2],
            threads: vec![user(0), user(1), user(1), retiring],
            claims: 0,
        };
        let mut seen = HashSet::from([first.clone()]);
        let mut open = vec![first];
        while let Some(model) = open.pop() {
            model.check();
            for number in 0..model.threads.len() {
                let next = model.step(number);
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        assert!(seen.len() > 1000, "{}", seen.len());
    }
}

/// Says whether it was dropped, and counts how many were.
struct Value {
    gone: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
}

impl Value {
    fn new(dropped: &Arc<AtomicU64>) -> Self {
        Self {
            gone: Arc::new(AtomicBool::new(false)),
            dropped: Arc::clone(dropped),
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        assert!(!self.gone.swap(true, Ordering::SeqCst), "dropped twice");
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

const SLOTS: usize = 4;

#[test]
fn threads_that_use_values_never_see_them_dropped() {
    let slots = Slots::<Value>::new(SLOTS).expect("memory");
    let dropped = Arc::new(AtomicU64::new(0));
    let made = AtomicU64::new(0);
    // What a cache's lock is for.
    let writer = Mutex::new(());
    let turns = if cfg!(miri) { 200 } else { 50_000 };
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (slots, dropped, made, writer) = (&slots, &dropped, &made, &writer);
            scope.spawn(move || {
                let mut rng = oarlock_sim::Rng::new(thread);
                let mut kept = Vec::new();
                for _ in 0..turns {
                    let slot = rng.index(SLOTS) as u32;
                    match rng.below(8) {
                        0 => {
                            let _one = writer.lock();
                            if let Some(reserved) = slots.reserve(0..10) {
                                drop(reserved.fill(Value::new(dropped), 0));
                                made.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        1 => {
                            let one = writer.lock();
                            let claimed = slots.retire(slot);
                            drop(one);
                            drop(claimed);
                        }
                        2 => {
                            let one = writer.lock();
                            let claimed = slots.retire_idle(slot);
                            drop(one);
                            drop(claimed);
                        }
                        3 => kept.clear(),
                        _ => {
                            if let Some(value) = slots.hit(slots.shard(), slot) {
                                assert!(!value.gone.load(Ordering::SeqCst));
                                if kept.len() < 3 {
                                    kept.push(value);
                                } else {
                                    value.reject();
                                }
                            }
                        }
                    }
                    for value in &kept {
                        assert!(!value.gone.load(Ordering::SeqCst));
                    }
                }
            });
        }
    });
    for slot in 0..SLOTS as u32 {
        drop(slots.retire(slot));
    }
    assert_eq!(dropped.load(Ordering::SeqCst), made.load(Ordering::SeqCst));
    assert_eq!((slots.occupied(), slots.bytes()), (0, 0));
    assert!(made.load(Ordering::SeqCst) > 10);
}

#[test]
fn what_is_live_is_dropped_with_the_slots() {
    let dropped = Arc::new(AtomicU64::new(0));
    let slots = Slots::new(3).expect("memory");
    drop(
        slots
            .reserve(0..5)
            .expect("a slot")
            .fill(Value::new(&dropped), 1),
    );
    // Forgotten, not taken back: retired for ever.
    let second = slots
        .reserve(5..7)
        .expect("a slot")
        .fill(Value::new(&dropped), 1);
    std::mem::forget(second);
    assert!(slots.retire(1).is_none());
    assert!(matches!(slots.retire_idle(1), Idle::InUse));
    drop(slots.reserve(7..8).expect("a slot"));
    assert_eq!((slots.occupied(), slots.bytes()), (2, 7));
    drop(slots);
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}

#[test]
fn hits_are_counted_beyond_what_a_count_holds() {
    let slots = Slots::new(1).expect("memory");
    let first = slots.reserve(0..1).expect("a slot").fill((), 1);
    let pins = slots.pins(slots.shard(), 0);
    pins.fetch_add(TOP_HIT - HIT, Ordering::SeqCst);
    assert_eq!(slots.hits(), (1 << 31) - 1);
    for _ in 0..3 {
        drop(slots.hit(slots.shard(), 0).expect("live"));
    }
    slots.hit(slots.shard(), 0).expect("live").reject();
    assert_eq!(slots.hits(), (1 << 31) + 2);
    assert_eq!(pins.load(Ordering::SeqCst), 1 + 2 * HIT);
    drop(first);
}

#[test]
fn too_many_forgotten_pins_are_refused_instead_of_wrapping() {
    let slots = Slots::new(1).expect("memory");
    let first = slots.reserve(0..1).expect("a slot").fill((), 1);
    let pins = slots.pins(slots.shard(), 0);
    pins.fetch_add(TOP_PIN, Ordering::SeqCst);
    assert!(slots.hit(slots.shard(), 0).is_none());
    assert!(slots.pin(0).is_none());
    assert_eq!(pins.load(Ordering::SeqCst), TOP_PIN + 1);
    drop(first);
    assert!(
        slots.retire(0).is_none(),
        "still in use, as far as is known"
    );
}
