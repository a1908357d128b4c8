//! A message that is repeated until it is answered: when the next repetition is due, and how many are left.

use std::time::Duration;

use oarlock_wire::Time;
use oarlock_wire::mad::MAD_LEN;

use super::Cx;
use crate::MessageName;

/// A wait that could double without growing would send all repetitions at once.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// A message that is out.
pub(crate) struct Resend {
    mad: Box<[u8; MAD_LEN]>,
    message: MessageName,
    /// The longest time between two repetitions.
    wait: Duration,
    /// The time to the next repetition; grows to `wait`.
    interval: Duration,
    resends_left: u8,
    reply_by: Time,
}

impl Resend {
    /// The message is on its way for the first time.
    pub(crate) fn new(
        mad: Box<[u8; MAD_LEN]>,
        message: MessageName,
        wait: Duration,
        retries: u8,
        cx: &mut Cx<'_>,
    ) -> Self {
        let first = cx.config.first_wait.unwrap_or(wait);
        let interval = first.max(SHORTEST_WAIT).min(wait);
        Self {
            mad,
            message,
            wait,
            interval,
            resends_left: retries,
            reply_by: cx.now + cx.spread(interval),
        }
    }

    /// When the next repetition, or the end, is due.
    pub(crate) fn reply_by(&self) -> Time {
        self.reply_by
    }

    /// Sends the message again, unless it was sent often enough. Says which.
    pub(crate) fn send_again(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(left) = self.resends_left.checked_sub(1) else {
            return false;
        };
        self.resends_left = left;
        self.interval = self.interval.saturating_mul(2).min(self.wait);
        self.reply_by = cx.now + cx.spread(self.interval);
        cx.out.counters.count_retried(self.message);
        cx.out.send_mad(cx.base.av, self.message, *self.mad);
        true
    }

    /// The peer has the message and asks for patience: waits this long from now on and after every repetition.
    pub(crate) fn be_patient(&mut self, wait: Duration, cx: &Cx<'_>) {
        self.wait = wait;
        self.interval = wait;
        self.reply_by = cx.now + wait;
    }
}
