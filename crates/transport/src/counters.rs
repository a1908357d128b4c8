//! Counters by name: what was sent and received, and why packets were dropped.

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
#[non_exhaustive]
pub enum Counter {
    /// Request packets sent, repetitions included.
    RequestsSent,
    /// Request packets sent again.
    RequestsResent,
    /// ACKs sent.
    AcksSent,
    /// NAKs "PSN sequence error" sent.
    SequenceNaksSent,
    /// RNR NAKs sent.
    RnrNaksSent,
    /// NAKs that end the connection sent.
    FatalNaksSent,
    /// Request packets executed.
    RequestsReceived,
    /// Request packets seen before.
    DuplicateRequests,
    /// ACKs that acknowledged something.
    AcksReceived,
    /// NAKs "PSN sequence error" obeyed.
    SequenceNaksReceived,
    /// RNR NAKs obeyed.
    RnrNaksReceived,
    /// NAKs that ended the connection.
    FatalNaksReceived,
    /// Local ACK timeouts.
    AckTimeouts,
    /// Dropped: not a packet.
    DroppedMalformed,
    /// Dropped: for another queue pair.
    DroppedWrongQpn,
    /// Dropped: the state takes no such packet.
    DroppedWrongState,
    /// Dropped: of another partition.
    DroppedWrongPkey,
    /// Dropped: not from the peer's address, or not to ours; a datagram from no host's address.
    DroppedWrongSource,
    /// Dropped: transport header version unknown.
    DroppedWrongVersion,
    /// Dropped: the opcode is of another transport service.
    DroppedWrongTransport,
    /// Dropped: a response that no request of ours asks for.
    DroppedUnexpectedResponse,
    /// Dropped: a response without its AETH.
    DroppedNoAeth,
    /// Dropped: an acknowledgement of what is acknowledged already.
    DroppedStaleAck,
    /// Dropped: an acknowledgement of what was not sent.
    DroppedUnsentAck,
    /// Dropped: a NAK for what waits for the receiver to become ready anyhow.
    DroppedDuringRnrWait,
    /// Dropped: an AETH syndrome that the specification reserves.
    DroppedReservedSyndrome,
    /// Dropped: a request after a gap that a NAK has reported or reports now.
    DroppedOutOfOrder,
    /// Dropped: a request or datagram for which no receive buffer is posted.
    DroppedReceiverNotReady,
    /// Dropped: a request that is answered with a fatal NAK.
    DroppedInvalidRequest,
    /// Not sent: the queue of responses is full. The peer's timeout recovers.
    ResponsesSuppressed,
    /// Datagrams sent.
    DatagramsSent,
    /// Datagrams placed into a receive buffer.
    DatagramsReceived,
    /// Dropped: a datagram whose Q_Key is not that of the queue pair.
    DroppedWrongQkey,
    /// Dropped: a datagram longer than the path MTU.
    DroppedTooLong,
    /// Dropped: a datagram longer than the receive buffer, which waits for another.
    DroppedNoRoom,
    /// Dropped: a datagram whose receive buffer could not be written, and has failed for it.
    DroppedNotPlaced,
}

/// Every counter with its name, in order of declaration.
const NAMES: [(Counter, &str); 36] = [
    (Counter::RequestsSent, "requests_sent"),
    (Counter::RequestsResent, "requests_resent"),
    (Counter::AcksSent, "acks_sent"),
    (Counter::SequenceNaksSent, "sequence_naks_sent"),
    (Counter::RnrNaksSent, "rnr_naks_sent"),
    (Counter::FatalNaksSent, "fatal_naks_sent"),
    (Counter::RequestsReceived, "requests_received"),
    (Counter::DuplicateRequests, "duplicate_requests"),
    (Counter::AcksReceived, "acks_received"),
    (Counter::SequenceNaksReceived, "sequence_naks_received"),
    (Counter::RnrNaksReceived, "rnr_naks_received"),
    (Counter::FatalNaksReceived, "fatal_naks_received"),
    (Counter::AckTimeouts, "ack_timeouts"),
    (Counter::DroppedMalformed, "dropped_malformed"),
    (Counter::DroppedWrongQpn, "dropped_wrong_qpn"),
    (Counter::DroppedWrongState, "dropped_wrong_state"),
    (Counter::DroppedWrongPkey, "dropped_wrong_pkey"),
    (Counter::DroppedWrongSource, "dropped_wrong_source"),
    (Counter::DroppedWrongVersion, "dropped_wrong_version"),
    (Counter::DroppedWrongTransport, "dropped_wrong_transport"),
    (
        Counter::DroppedUnexpectedResponse,
        "dropped_unexpected_response",
    ),
    (Counter::DroppedNoAeth, "dropped_no_aeth"),
    (Counter::DroppedStaleAck, "dropped_stale_ack"),
    (Counter::DroppedUnsentAck, "dropped_unsent_ack"),
    (Counter::DroppedDuringRnrWait, "dropped_during_rnr_wait"),
    (
        Counter::DroppedReservedSyndrome,
        "dropped_reserved_syndrome",
    ),
    (Counter::DroppedOutOfOrder, "dropped_out_of_order"),
    (
        Counter::DroppedReceiverNotReady,
        "dropped_receiver_not_ready",
    ),
    (Counter::DroppedInvalidRequest, "dropped_invalid_request"),
    (Counter::ResponsesSuppressed, "responses_suppressed"),
    (Counter::DatagramsSent, "datagrams_sent"),
    (Counter::DatagramsReceived, "datagrams_received"),
    (Counter::DroppedWrongQkey, "dropped_wrong_qkey"),
    (Counter::DroppedTooLong, "dropped_too_long"),
    (Counter::DroppedNoRoom, "dropped_no_room"),
    (Counter::DroppedNotPlaced, "dropped_not_placed"),
];

const _: () = {
    let mut i = 0;
    while i < NAMES.len() {
        assert!(
            NAMES[i].0 as usize == i,
            "NAMES must stand in order of declaration"
        );
        i += 1;
    }
    assert!(
        Counter::DroppedNotPlaced as usize + 1 == NAMES.len(),
        "NAMES must name every counter"
    );
};

/// The counters of one queue pair. They survive [`QpState::Reset`](crate::QpState::Reset).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    values: [u64; NAMES.len()],
}

impl Default for Counters {
    /// All zero.
    fn default() -> Self {
        Self {
            values: [0; NAMES.len()],
        }
    }
}

impl Counters {
    /// One counter.
    pub const fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// All of them, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES
            .iter()
            .zip(&self.values)
            .map(|((_, name), value)| (*name, *value))
    }

    /// Adds those of another queue pair, for totals of a device.
    pub fn add(&mut self, other: &Self) {
        for (sum, value) in self.values.iter_mut().zip(&other.values) {
            *sum += value;
        }
    }

    pub(crate) const fn count(&mut self, counter: Counter) {
        self.values[counter as usize] += 1;
    }
}
