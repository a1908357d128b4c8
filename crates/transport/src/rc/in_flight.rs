//! Which PSNs are on their way.

use oarlock_wire::Psn;

/// The requester's PSNs. All comparisons are distances from `oldest`, so that wrapping at 2^24 needs no case of its own.
///
/// ```text
///        acknowledged │ sent, waiting │ to be sent again │ never sent
///                     ^               ^                  ^
///                   oldest           next               end        (next == end unless rewound)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InFlight {
    oldest: Psn,
    next: Psn,
    end: Psn,
}

/// What a PSN in a response means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Acknowledged before.
    Stale,
    /// Sent and not acknowledged; the number of older ones.
    Sent(u32),
    /// Never sent.
    Unsent,
}

impl InFlight {
    pub(crate) const fn starting_at(psn: Psn) -> Self {
        Self {
            oldest: psn,
            next: psn,
            end: psn,
        }
    }

    pub(crate) const fn oldest(&self) -> Psn {
        self.oldest
    }

    pub(crate) const fn next(&self) -> Psn {
        self.next
    }

    /// The first that was never sent.
    pub(crate) const fn end(&self) -> Psn {
        self.end
    }

    /// How many are on their way.
    pub(crate) fn len(&self) -> u32 {
        self.next.distance_from(self.oldest)
    }

    /// Whether the next one was sent before.
    pub(crate) fn next_is_repetition(&self) -> bool {
        self.next != self.end
    }

    /// The next `count` have been sent: one packet, or the request of a READ of so many responses. They were all sent before,
    /// or none was.
    pub(crate) fn advance(&mut self, count: u32) {
        let repetition = self.next_is_repetition();
        debug_assert!(
            !repetition || count <= self.end.distance_from(self.next),
            "sending again what was sent, and more"
        );
        self.next = self.next.add(count);
        if !repetition {
            self.end = self.next;
        }
    }

    /// Whether nothing waits for an answer or to be sent again.
    pub(crate) fn is_settled(&self) -> bool {
        self.oldest == self.end
    }

    /// Everything that is not acknowledged is sent again.
    pub(crate) const fn rewind(&mut self) {
        self.next = self.oldest;
    }

    pub(crate) fn place(&self, psn: Psn) -> Place {
        let distance = psn.distance_from(self.oldest);
        if distance < self.end.distance_from(self.oldest) {
            Place::Sent(distance)
        } else if psn.is_before(self.oldest) {
            Place::Stale
        } else {
            Place::Unsent
        }
    }

    /// The `count` oldest are acknowledged. Returns whether this passes `next`: some of what was to be sent again had
    /// arrived after all.
    pub(crate) fn acknowledge(&mut self, count: u32) -> bool {
        debug_assert!(
            count <= self.end.distance_from(self.oldest),
            "acknowledging what was not sent"
        );
        let passes = count > self.len();
        self.oldest = self.oldest.add(count);
        if passes {
            self.next = self.oldest;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(value: u32) -> Psn {
        Psn::truncate(value)
    }

    #[test]
    fn places_are_right_across_the_wrap() {
        for start in [0, 1, 0xFF_FFFD, 0xFF_FFFF, 0x7F_FFFE, 0x80_0000] {
            let start = psn(start);
            let mut flight = InFlight::starting_at(start);
            assert_eq!(flight.place(start), Place::Unsent);
            for _ in 0..5 {
                flight.advance(1);
            }
            for n in 0..5 {
                assert_eq!(flight.place(start.add(n)), Place::Sent(n));
            }
            assert_eq!(flight.place(start.add(5)), Place::Unsent);
            assert_eq!(flight.place(start.sub(1)), Place::Stale);
            assert!(!flight.acknowledge(3));
            assert_eq!(flight.place(start.add(2)), Place::Stale);
            assert_eq!((flight.len(), flight.oldest()), (2, start.add(3)));
        }
    }

    #[test]
    fn a_late_acknowledgement_after_a_rewind_skips_the_repetition() {
        let start = psn(0xFF_FFFE);
        let mut flight = InFlight::starting_at(start);
        for _ in 0..4 {
            flight.advance(1);
        }
        flight.rewind();
        assert!(flight.next_is_repetition());
        flight.advance(1);
        assert_eq!(flight.len(), 1);
        assert!(flight.acknowledge(3));
        assert_eq!((flight.next(), flight.len()), (start.add(3), 0));
        assert!(flight.next_is_repetition());
        flight.advance(1);
        assert!(!flight.next_is_repetition());
    }
}
