//! What was sent, received, repeated and dropped, and why.

use oarlock_wire::error::WireErrorKind;

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident => $text:literal, $lower:literal;)*) => {
        /// The CM messages, as counters and the transition table name them.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[expect(
            clippy::exhaustive_enums,
            reason = "indexes the counter tables; a new message is a new column everywhere"
        )]
        pub enum MessageName {
            $($(#[$doc])* $name,)*
        }

        impl MessageName {
            /// Every message.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The specification's name: `REQ`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }

        const SENT: [&str; MESSAGES] = [$(concat!($lower, "_sent"),)*];
        const RECEIVED: [&str; MESSAGES] = [$(concat!($lower, "_received"),)*];
        const RETRIED: [&str; MESSAGES] = [$(concat!($lower, "_retried"),)*];
        const DUPLICATE: [&str; MESSAGES] = [$(concat!($lower, "_duplicate"),)*];
        const DROPPED: [&str; MESSAGES] = [$(concat!($lower, "_dropped"),)*];
    };
}

messages! {
    /// Request for communication.
    Req => "REQ", "req";
    /// Message receipt acknowledgement.
    Mra => "MRA", "mra";
    /// Rejection.
    Rej => "REJ", "rej";
    /// Reply to a request for communication.
    Rep => "REP", "rep";
    /// Ready to use.
    Rtu => "RTU", "rtu";
    /// Request to disconnect.
    Dreq => "DREQ", "dreq";
    /// Reply to a request to disconnect.
    Drep => "DREP", "drep";
    /// Service ID resolution request.
    SidrReq => "SIDR_REQ", "sidr_req";
    /// Service ID resolution response.
    SidrRep => "SIDR_REP", "sidr_rep";
    /// Load alternate path.
    Lap => "LAP", "lap";
    /// Alternate path response.
    Apr => "APR", "apr";
}

impl std::fmt::Display for MessageName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident => $label:literal,)*) => {
        /// Why a well-formed message was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum DropReason {
            $($(#[$doc])* $name,)*
        }

        impl DropReason {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// A stable name, which is also the name of the counter.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// The comm ids name no connection (or not one that this message can be for).
    UnknownCommId => "dropped_unknown_comm_id",
    /// The comm ids name a connection whose peer has another address than the sender.
    ForeignAddress => "dropped_foreign_address",
    /// The message comes from or to a multicast group, or from no address: an answer would go to many, or to nobody.
    NotUnicast => "dropped_not_unicast",
    /// The message has no meaning in the connection's state; usually a late duplicate.
    UnexpectedInState => "dropped_unexpected_in_state",
    /// The same message came before and is being dealt with.
    Duplicate => "dropped_duplicate",
    /// A LAP of the passive side that crossed one of the active side, which goes first.
    CrossedLap => "dropped_crossed_lap",
    /// A REQ or SIDR_REQ for a service ID that nobody listens on; answered with REJ 8 or SIDR_REP status 1.
    NoListener => "dropped_no_listener",
    /// A REQ or REP of a queue pair that an older connection still uses; answered with REJ 10.
    StaleConnection => "dropped_stale_connection",
    /// A REQ whose primary path names a GID that is not ours, or one that cannot be answered; answered with REJ 12.
    UnusableGid => "dropped_unusable_gid",
    /// A DREQ or LAP for another queue pair than the connection's.
    QpnMismatch => "dropped_qpn_mismatch",
    /// A REJ with reason timeout that does not say whose.
    RejWithoutGuid => "dropped_rej_without_guid",
    /// An MRA or REJ that says it answers a message we do not know.
    UnknownMessageKind => "dropped_unknown_message_kind",
    /// A REQ or SIDR_REQ beyond the limit of half-open connections.
    TooManyHalfOpen => "dropped_too_many_half_open",
    /// A REQ or SIDR_REQ beyond the limit of connections.
    TooManyConnections => "dropped_too_many_connections",
    /// A request that the caller forgot with `drop_request`.
    ByListener => "dropped_by_listener",
    /// A REQ that waited for a listener, and that its sender gave up.
    Withdrawn => "dropped_withdrawn",
}

const MESSAGES: usize = MessageName::ALL.len();

/// Counters since the [`Cm`](crate::Cm) was made, in datagrams. They only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    sent: [u64; MESSAGES],
    received: [u64; MESSAGES],
    retried: [u64; MESSAGES],
    duplicate: [u64; MESSAGES],
    /// By message and reason.
    dropped: [[u64; DropReason::ALL.len()]; MESSAGES],
    malformed: [u64; WireErrorKind::LABELS.len()],
}

impl Counters {
    /// Sent, repetitions included.
    #[must_use]
    pub fn sent(&self, message: MessageName) -> u64 {
        self.sent[message as usize]
    }

    /// Received and understood.
    #[must_use]
    pub fn received(&self, message: MessageName) -> u64 {
        self.received[message as usize]
    }

    /// Sent again because no answer came.
    #[must_use]
    pub fn retried(&self, message: MessageName) -> u64 {
        self.retried[message as usize]
    }

    /// Received again, whether answered again or dropped.
    #[must_use]
    pub fn duplicate(&self, message: MessageName) -> u64 {
        self.duplicate[message as usize]
    }

    /// Dropped for `reason`, whatever the message.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.iter().map(|by| by[reason as usize]).sum()
    }

    /// Messages of one kind that were dropped for `reason`.
    #[must_use]
    pub fn dropped_of(&self, message: MessageName, reason: DropReason) -> u64 {
        self.dropped[message as usize][reason as usize]
    }

    /// Messages of one kind that were dropped, for whatever reason.
    #[must_use]
    pub fn dropped_in_all(&self, message: MessageName) -> u64 {
        self.dropped[message as usize].iter().sum()
    }

    /// Datagrams that are not CM messages we understand, by [`WireErrorKind::label`].
    #[must_use]
    pub fn malformed(&self, label: &str) -> u64 {
        WireErrorKind::LABELS
            .iter()
            .position(|l| *l == label)
            .map_or(0, |i| self.malformed[i])
    }

    /// Every counter with its stable name, zeros included: `req_sent`, `req_received`, `req_retried`, `req_duplicate` and
    /// `req_dropped` for each message, then the drops by reason, then what was malformed.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let by_message = MessageName::ALL.iter().flat_map(|message| {
            let i = *message as usize;
            [
                (SENT[i], self.sent[i]),
                (RECEIVED[i], self.received[i]),
                (RETRIED[i], self.retried[i]),
                (DUPLICATE[i], self.duplicate[i]),
                (DROPPED[i], self.dropped_in_all(*message)),
            ]
        });
        by_message
            .chain(
                DropReason::ALL
                    .iter()
                    .map(|reason| (reason.label(), self.dropped(*reason))),
            )
            .chain(
                MALFORMED
                    .iter()
                    .copied()
                    .zip(self.malformed.iter().copied()),
            )
    }

    pub(crate) fn count_sent(&mut self, message: MessageName) {
        self.sent[message as usize] += 1;
    }

    pub(crate) fn count_received(&mut self, message: MessageName) {
        self.received[message as usize] += 1;
    }

    pub(crate) fn count_retried(&mut self, message: MessageName) {
        self.retried[message as usize] += 1;
    }

    pub(crate) fn count_duplicate(&mut self, message: MessageName) {
        self.duplicate[message as usize] += 1;
    }

    pub(crate) fn count_dropped(&mut self, message: MessageName, reason: DropReason) {
        self.dropped[message as usize][reason as usize] += 1;
    }

    pub(crate) fn count_malformed(&mut self, kind: WireErrorKind) {
        self.malformed[kind.index()] += 1;
    }
}

/// `malformed_` before each of [`WireErrorKind::LABELS`]; a test compares them.
const MALFORMED: [&str; WireErrorKind::LABELS.len()] = [
    "malformed_truncated",
    "malformed_no_room",
    "malformed_out_of_range",
    "malformed_unsupported_version",
    "malformed_unsupported_class",
    "malformed_unsupported_method",
    "malformed_unsupported_attribute",
    "malformed_unsupported_opcode",
    "malformed_not_ip",
    "malformed_header_set",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_names_follow_from_messages_and_labels() {
        for (i, message) in MessageName::ALL.iter().enumerate() {
            assert_eq!(*message as usize, i);
            let lower = message.as_str().to_lowercase();
            assert_eq!(
                [SENT[i], RECEIVED[i], RETRIED[i], DUPLICATE[i], DROPPED[i]],
                ["sent", "received", "retried", "duplicate", "dropped"]
                    .map(|kind| format!("{lower}_{kind}"))
            );
        }
        for (name, label) in MALFORMED.iter().zip(WireErrorKind::LABELS) {
            assert_eq!(*name, format!("malformed_{label}"));
        }
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
            assert!(reason.label().starts_with("dropped_"));
        }
    }

    #[test]
    fn every_counter_has_a_name_of_its_own() {
        let mut names: Vec<_> = Counters::default().iter().map(|(name, _)| name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(
            count,
            5 * MESSAGES + DropReason::ALL.len() + WireErrorKind::LABELS.len()
        );
    }
}
