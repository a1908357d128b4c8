//! Which seeds a simulation runs, and who failed.

use std::io::Write;

/// The seeds to run: `OARLOCK_SEED=N` runs that one alone, `OARLOCK_SEEDS=COUNT` runs 0..COUNT, otherwise 0..`count`.
///
/// # Panics
/// When one of the variables is set to something that is not a number: a simulation that silently ran other seeds
/// than asked for would be a false pass.
#[must_use]
pub fn seeds(count: u64) -> Vec<u64> {
    choose(number("OARLOCK_SEED"), number("OARLOCK_SEEDS"), count)
}

/// Runs `body` for each of [`seeds`]`(count)`; when it panics, the seed that reproduces it is printed.
pub fn for_each_seed(count: u64, mut body: impl FnMut(u64)) {
    let seeds = seeds(count);
    assert!(
        !seeds.is_empty(),
        "no seeds to run: nothing would be tested"
    );
    for seed in seeds {
        let guard = Announce { seed };
        body(seed);
        std::mem::forget(guard);
    }
}

/// Dropped only when the body unwinds.
struct Announce {
    seed: u64,
}

impl Drop for Announce {
    fn drop(&mut self) {
        let line = format!("failing seed: reproduce with OARLOCK_SEED={}\n", self.seed);
        // A lost line must not turn a panic into an abort.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn choose(one: Option<u64>, count: Option<u64>, default_count: u64) -> Vec<u64> {
    match one {
        Some(seed) => vec![seed],
        None => (0..count.unwrap_or(default_count)).collect(),
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_beats_a_count_and_a_count_beats_the_default() {
        assert_eq!(choose(None, None, 3), [0, 1, 2]);
        assert_eq!(choose(None, Some(2), 3), [0, 1]);
        assert_eq!(choose(Some(77), Some(2), 3), [77]);
    }

    #[test]
    fn a_panicking_seed_stops_the_run_there() {
        let mut ran = Vec::new();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for_each_seed(3, |seed| {
                ran.push(seed);
                assert!(ran.len() < 2, "planted");
            });
        }));
        // With OARLOCK_SEED set there is a single seed and the planted fault is not reached.
        assert_eq!(outcome.is_err(), seeds(3).len() > 1);
        assert_eq!(ran, seeds(3)[..ran.len()]);
    }
}
