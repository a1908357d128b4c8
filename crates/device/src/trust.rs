//! Whether the engine may leave the port to a program that polls: what is known of how it has polled so far.

use std::time::Duration;

use oarlock_wire::Time;

/// How the program polls, and whether it has been found not to take what arrives.
pub(crate) struct Trust {
    /// When polls were counted last, and how many there had been.
    since: Time,
    polls: u32,
    is_busy: bool,
    /// It is not given before.
    from: Time,
    /// How long it is withdrawn the next time.
    pause: Duration,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            since: Time::ZERO,
            polls: 0,
            is_busy: false,
            from: Time::ZERO,
            pause: SHORTEST_PAUSE,
        }
    }
}

impl Trust {
    /// Whether the port may be left to the program now, which has polled so often until now. A program that receives when it
    /// posts (`is_winning`) needs to poll only.
    pub(crate) fn is_given(&mut self, now: Time, polls: u32, is_winning: bool) -> bool {
        let elapsed = now - self.since;
        // How often the engine is woken must not matter.
        if elapsed >= SHORTEST_COUNT {
            let wanted = u128::from(BUSY_POLLS) * elapsed.as_nanos();
            let counted = u128::from(polls.wrapping_sub(self.polls));
            self.is_busy = counted * PER.as_nanos() >= wanted;
            self.count_from(now, polls);
        }
        self.is_busy && (is_winning || now >= self.from)
    }

    /// The program says that it will not poll for now.
    pub(crate) const fn end(&mut self, now: Time, polls: u32) {
        self.is_busy = false;
        self.count_from(now, polls);
    }

    const fn count_from(&mut self, now: Time, polls: u32) {
        self.since = now;
        self.polls = polls;
    }

    /// It took what arrived.
    pub(crate) const fn confirm(&mut self) {
        self.pause = SHORTEST_PAUSE;
    }

    /// Something has arrived, and nobody has taken it.
    pub(crate) fn withdraw(&mut self, now: Time) {
        self.from = now + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
    }
}

/// Polls within this time that count as a program that polls.
const BUSY_POLLS: u32 = 32;
const PER: Duration = Duration::from_millis(1);
/// They are counted for so long at least.
const SHORTEST_COUNT: Duration = Duration::from_micros(500);
/// For how long the engine receives when it has found packets that nobody took: twice as long each time in a row.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_program_that_polls_often_enough_is_trusted_however_often_the_engine_looks() {
        for step in [5, 100, 1000] {
            let (mut often, mut rarely) = (Trust::default(), Trust::default());
            let mut given = (false, false);
            for micros in (step..20_000).step_by(step) {
                // One poll in 20 µs, and one in 50.
                let polls = (micros / 20) as u32;
                given.0 = often.is_given(at(micros as u64), polls, false);
                given.1 |= rarely.is_given(at(micros as u64), polls * 2 / 5, false);
            }
            assert_eq!(given, (true, false), "every {step} µs");
        }
    }

    #[test]
    fn polls_of_long_ago_are_none_of_now() {
        let mut trust = Trust::default();
        assert!(!trust.is_given(at(10_000_000), 100_000, false));
        assert!(trust.is_given(at(10_001_000), 100_032, false));
        assert!(
            trust.is_given(at(10_001_001), 100_032, false),
            "no news yet"
        );
        assert!(!trust.is_given(at(10_001_501), 100_033, false));
    }

    #[test]
    fn trust_is_withdrawn_longer_each_time_and_given_back() {
        let mut trust = Trust::default();
        let is_given = |trust: &mut Trust, micros: u64| {
            trust.is_given(at(micros), (micros / 10) as u32, false)
        };
        assert!(is_given(&mut trust, 1000));
        trust.withdraw(at(1000));
        assert!(!is_given(&mut trust, 10_999));
        assert!(
            trust.is_given(at(10_999), 1099, true),
            "it receives when it posts"
        );
        assert!(is_given(&mut trust, 11_000));
        trust.withdraw(at(11_000));
        assert!(!is_given(&mut trust, 30_999));
        for _ in 0..10 {
            trust.withdraw(at(31_000));
        }
        assert!(!is_given(&mut trust, 350_999));
        assert!(is_given(&mut trust, 351_000), "not for ever");
        trust.confirm();
        trust.withdraw(at(351_000));
        assert!(is_given(&mut trust, 361_000), "as short as at first");
        trust.end(at(361_000), 36_100);
        assert!(!trust.is_given(at(361_400), 36_500, true));
        assert!(trust.is_given(at(361_500), 36_510, false), "it polls again");
    }
}
