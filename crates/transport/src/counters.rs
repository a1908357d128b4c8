//! Counters by name: what was sent and received, and why packets were dropped.

use crate::completion::WcStatus;

/// Declares the counters: variant, name, meaning.
macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[$doc])* #[doc = concat!("\n\nName: `", $name, "`.")] $variant,)*
        }

        /// The names, in order of declaration.
        const NAMES: &[&str] = &[$($name),*];
    };
}

counters! {
    /// Request packets sent, repetitions included.
    RequestsSent = "requests_sent",
    /// Request packets sent again.
    RequestsResent = "requests_resent",
    /// ACKs sent.
    AcksSent = "acks_sent",
    /// NAKs "PSN sequence error" sent.
    SequenceNaksSent = "sequence_naks_sent",
    /// RNR NAKs sent.
    RnrNaksSent = "rnr_naks_sent",
    /// NAKs that end the connection sent.
    FatalNaksSent = "fatal_naks_sent",
    /// Request packets executed.
    RequestsReceived = "requests_received",
    /// Request packets seen before, or overtaken by later ones.
    DuplicateRequests = "duplicate_requests",
    /// ACKs that acknowledged something.
    AcksReceived = "acks_received",
    /// NAKs "PSN sequence error" obeyed.
    SequenceNaksReceived = "sequence_naks_received",
    /// RNR NAKs obeyed.
    RnrNaksReceived = "rnr_naks_received",
    /// NAKs that ended the connection.
    FatalNaksReceived = "fatal_naks_received",
    /// Local ACK timeouts.
    AckTimeouts = "ack_timeouts",
    /// Everything not acknowledged is sent again: after a timeout, a NAK or an implied loss.
    Retries = "retries",
    /// The retry count was used up: the request has failed.
    RetriesExceeded = "retries_exceeded",
    /// The RNR retry count was used up: the request has failed.
    RnrRetriesExceeded = "rnr_retries_exceeded",
    /// A READ or atomic was acknowledged without its data: sent again.
    ImpliedNaks = "implied_naks",
    /// NAKs "invalid request" that ended a request.
    InvalidRequestNaksReceived = "invalid_request_naks_received",
    /// NAKs "remote access error" that ended a request.
    RemoteAccessNaksReceived = "remote_access_naks_received",
    /// NAKs "remote operational error" that ended a request.
    RemoteOperationalNaksReceived = "remote_operational_naks_received",
    /// NAKs "invalid request" sent.
    InvalidRequestNaksSent = "invalid_request_naks_sent",
    /// NAKs "remote access error" sent.
    RemoteAccessNaksSent = "remote_access_naks_sent",
    /// NAKs "remote operational error" sent.
    RemoteOperationalNaksSent = "remote_operational_naks_sent",
    /// Acknowledgements that a later one made superfluous before they were sent.
    AcksDeferred = "acks_deferred",
    /// Responses that do not fit their request and have ended it.
    BadResponses = "bad_responses",
    /// READ response packets sent.
    ReadResponsesSent = "read_responses_sent",
    /// Acknowledgements of atomic operations sent.
    AtomicResponsesSent = "atomic_responses_sent",
    /// READ response packets placed.
    ReadResponsesReceived = "read_responses_received",
    /// Acknowledgements of atomic operations placed.
    AtomicResponsesReceived = "atomic_responses_received",
    /// READ requests executed again.
    DuplicateReads = "duplicate_reads",
    /// Atomic requests answered again with the result that was kept.
    DuplicateAtomics = "duplicate_atomics",
    /// The peer has given no credits: one packet goes out as a probe.
    CreditStalls = "credit_stalls",
    /// RNR NAKs that a fault rule asked for.
    RnrInjected = "rnr_injected",
    /// Requests of this side that failed because local memory could not be reached.
    LocalAccessErrors = "local_access_errors",
    /// Packets sent, of every kind.
    PacketsSent = "packets_sent",
    /// Packets handed to the queue pair, those that it drops included.
    PacketsReceived = "packets_received",
    /// SENDs of this side that succeeded.
    SendsCompleted = "sends_completed",
    /// RDMA WRITEs of this side that succeeded.
    WritesCompleted = "writes_completed",
    /// RDMA READs of this side that succeeded.
    ReadsCompleted = "reads_completed",
    /// Atomic operations of this side that succeeded.
    AtomicsCompleted = "atomics_completed",
    /// Local invalidates that succeeded.
    InvalidatesCompleted = "invalidates_completed",
    /// Bindings of memory windows that succeeded.
    BindsCompleted = "binds_completed",
    /// SENDs of the peer that were placed.
    SendsReceived = "sends_received",
    /// RDMA WRITEs of the peer that were placed.
    WritesReceived = "writes_received",
    /// RDMA READ requests of the peer that were accepted, repetitions not counted.
    ReadsReceived = "reads_received",
    /// Atomic operations of the peer that were executed.
    AtomicsReceived = "atomics_received",
    /// Keys that the peer took away with a SEND.
    InvalidatesReceived = "invalidates_received",
    /// Requests of the send queue that failed, those that were only flushed not counted.
    SendsFailed = "sends_failed",
    /// Requests of the send queue that were flushed.
    SendsFlushed = "sends_flushed",
    /// Receive buffers that failed, those that were only flushed not counted.
    ReceivesFailed = "receives_failed",
    /// Receive buffers that were flushed.
    ReceivesFlushed = "receives_flushed",
    /// Messages longer than the buffer that took them.
    ReceiveLengthErrors = "receive_length_errors",
    /// UC: messages of which part had been placed when a packet was missing.
    MessagesAbandoned = "messages_abandoned",
    /// UC: packets were missing before one that has arrived.
    SequenceGaps = "sequence_gaps",
    /// UC: a burst was full and more was to be sent.
    PaceWaits = "pace_waits",
    /// Dropped: not a packet.
    DroppedMalformed = "dropped_malformed",
    /// Dropped: for another queue pair.
    DroppedWrongQpn = "dropped_wrong_qpn",
    /// Dropped: the state takes no such packet.
    DroppedWrongState = "dropped_wrong_state",
    /// Dropped: of another partition.
    DroppedWrongPkey = "dropped_wrong_pkey",
    /// Dropped: not from the peer's address, or not to ours; a datagram from no host's address.
    DroppedWrongSource = "dropped_wrong_source",
    /// Dropped: transport header version unknown.
    DroppedWrongVersion = "dropped_wrong_version",
    /// Dropped: the opcode is of another transport service.
    DroppedWrongTransport = "dropped_wrong_transport",
    /// Dropped: a response that no request of ours asks for.
    DroppedUnexpectedResponse = "dropped_unexpected_response",
    /// Dropped: data of a READ or atomic operation that have arrived before.
    DroppedStaleResponse = "dropped_stale_response",
    /// Dropped: a response behind data of a READ or atomic operation that are missing, and asked for again already.
    DroppedOutOfOrderResponse = "dropped_out_of_order_response",
    /// Dropped: a response without its AETH.
    DroppedNoAeth = "dropped_no_aeth",
    /// Dropped: an acknowledgement of what is acknowledged already.
    DroppedStaleAck = "dropped_stale_ack",
    /// Dropped: an acknowledgement of what was not sent.
    DroppedUnsentAck = "dropped_unsent_ack",
    /// Dropped: a NAK for what waits for the receiver to become ready anyhow.
    DroppedDuringRnrWait = "dropped_during_rnr_wait",
    /// Dropped: an AETH syndrome that the specification reserves.
    DroppedReservedSyndrome = "dropped_reserved_syndrome",
    /// Dropped: a request after a gap. RC: a NAK has reported the gap or reports it now; UC: the rest of its message is dropped.
    DroppedOutOfOrder = "dropped_out_of_order",
    /// Dropped: a request or datagram for which no receive buffer is posted.
    DroppedReceiverNotReady = "dropped_receiver_not_ready",
    /// Dropped: a request that no responder may execute. RC answers it with a fatal NAK, UC with silence.
    DroppedInvalidRequest = "dropped_invalid_request",
    /// Dropped: a request to a queue pair that only sends (XRC initiator).
    DroppedNoResponder = "dropped_no_responder",
    /// Dropped: a repeated atomic operation whose result is no longer kept.
    DroppedLostAtomic = "dropped_lost_atomic",
    /// Dropped: a repeated READ while as many as allowed wait to be answered.
    DroppedTooManyReads = "dropped_too_many_reads",
    /// Dropped: a UC WRITE whose key, range or right does not fit, and the rest of its message.
    DroppedRemoteAccess = "dropped_remote_access",
    /// Not sent: the queue of responses is full. The peer's timeout recovers.
    ResponsesSuppressed = "responses_suppressed",
    /// Datagrams sent.
    DatagramsSent = "datagrams_sent",
    /// Datagrams placed into a receive buffer.
    DatagramsReceived = "datagrams_received",
    /// Dropped: a datagram whose Q_Key is not that of the queue pair.
    DroppedWrongQkey = "dropped_wrong_qkey",
    /// Dropped: a datagram longer than the path MTU.
    DroppedTooLong = "dropped_too_long",
    /// Dropped: a datagram longer than the receive buffer, which waits for another.
    DroppedNoRoom = "dropped_no_room",
    /// Dropped: a datagram whose receive buffer could not be written, and has failed for it.
    DroppedNotPlaced = "dropped_not_placed",
}

impl Counter {
    /// What counts the end of a send-queue request that did not succeed.
    pub(crate) const fn of_failed_send(status: WcStatus) -> Self {
        match status {
            WcStatus::WR_FLUSH_ERR => Self::SendsFlushed,
            _ => Self::SendsFailed,
        }
    }

    /// What counts the end of a receive buffer that did not take a message.
    pub(crate) const fn of_failed_receive(status: WcStatus) -> Self {
        match status {
            WcStatus::WR_FLUSH_ERR => Self::ReceivesFlushed,
            _ => Self::ReceivesFailed,
        }
    }
}

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
            .map(|(name, value)| (*name, *value))
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_stand_where_their_counters_do() {
        let names: HashSet<&str> = NAMES.iter().copied().collect();
        assert_eq!(names.len(), NAMES.len());
        let mut counters = Counters::default();
        counters.count(Counter::PaceWaits);
        counters.count(Counter::DroppedNotPlaced);
        counters.count(Counter::DroppedNotPlaced);
        let counted: Vec<_> = counters.iter().filter(|(_, value)| *value > 0).collect();
        assert_eq!(counted, [("pace_waits", 1), ("dropped_not_placed", 2)]);
        assert!(
            names
                .iter()
                .all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        );
    }

    #[test]
    fn sums_are_by_counter() {
        let mut one = Counters::default();
        one.count(Counter::RequestsSent);
        let mut sum = one.clone();
        sum.add(&one);
        sum.add(&Counters::default());
        assert_eq!(sum.get(Counter::RequestsSent), 2);
        assert_eq!(sum.iter().map(|(_, value)| value).sum::<u64>(), 2);
    }

    #[test]
    fn flushed_requests_are_no_failures() {
        for status in WcStatus::ALL.iter().copied().filter(|s| !s.is_success()) {
            let flushed = status == WcStatus::WR_FLUSH_ERR;
            let send = Counter::of_failed_send(status);
            assert_eq!(send == Counter::SendsFlushed, flushed);
            assert_eq!(send == Counter::SendsFailed, !flushed);
            let receive = Counter::of_failed_receive(status);
            assert_eq!(receive == Counter::ReceivesFlushed, flushed);
            assert_eq!(receive == Counter::ReceivesFailed, !flushed);
        }
    }
}
