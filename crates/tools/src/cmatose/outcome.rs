//! What a run of the test came to.

use super::options::Plan;
use crate::failure::Failure;
use serde::Serialize;

/// The counts, as they are printed and as the JSON report carries them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// `active` or `passive`.
    pub(crate) side: &'static str,
    /// Connections asked for.
    pub(crate) asked: u32,
    /// Connections established.
    pub(crate) connections: u32,
    /// Messages that should arrive here.
    pub(crate) messages_expected: u64,
    /// Messages that arrived here.
    pub(crate) messages: u64,
    /// Messages that arrived with other content than they should have.
    pub(crate) mismatches: u64,
    /// Of these messages, those whose content nothing was known about: the peer sends no pattern.
    pub(crate) contents_unchecked: u64,
    /// Identifiers of connections that moved to the new channel.
    pub(crate) migrations: u32,
    /// Events that should have come.
    pub(crate) events_expected: u64,
    /// Events that came.
    pub(crate) events: u64,
    /// Events that should have come and did not.
    pub(crate) events_lost: u64,
    /// Events that were expected and came out of the channel after the migration.
    pub(crate) events_after_migration: u64,
    /// Connections that the other side, or its host, ended.
    pub(crate) disconnected: u32,
    /// From the first call that connects, or the first request, to the last connection established.
    pub(crate) connect_us: f64,
    /// From the first message to the last, both ways.
    pub(crate) transfer_us: f64,
    /// From the first disconnection to the last.
    pub(crate) disconnect_us: f64,
}

impl Outcome {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            side: if plan.is_active() {
                "active"
            } else {
                "passive"
            },
            asked: plan.connections,
            messages_expected: u64::from(plan.connections) * u64::from(plan.messages),
            ..Self::default()
        }
    }

    /// The line that tells what arrived.
    pub(super) fn messages_line(&self) -> String {
        let (arrived, expected) = (self.messages, self.messages_expected);
        if self.contents_unchecked > 0 {
            let which = if self.contents_unchecked == arrived {
                String::new()
            } else {
                format!(" of {}", self.contents_unchecked)
            };
            return format!(
                "messages received: {arrived} of {expected}, contents{which} not checked: the peer sends no pattern"
            );
        }
        format!(
            "messages checked: {arrived} of {expected}, mismatches: {}",
            self.mismatches
        )
    }

    /// Whether a run that ended well also brought everything.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.messages == self.messages_expected && self.mismatches == 0 && self.events_lost == 0
        {
            return Ok(());
        }
        Err(Failure::Result(format!(
            "{} of {} messages arrived, {} with wrong content; {} events were lost",
            self.messages, self.messages_expected, self.mismatches, self.events_lost
        )))
    }
}
