//! What all queue pairs of a device together have done, under the names that others use.

use oarlock_transport::{Counter, Counters};

/// A figure of [`Context::statistics`](crate::Context::statistics).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Statistic {
    /// Its name: the one that `rdma statistic` shows for Linux's soft RoCE, for mlx5 where that one has none, or the field
    /// of `struct ibv_port_attr`.
    pub name: &'static str,
    /// What is counted.
    pub meaning: &'static str,
    source: Source,
}

/// Where a figure comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// A counter of queue pairs.
    QueuePairs(Counter),
    /// The endpoint's packets that were not sent.
    Unsent,
    /// How often the port went down.
    Downs,
}

impl Statistic {
    const fn of(name: &'static str, source: Counter, meaning: &'static str) -> Self {
        Self {
            name,
            meaning,
            source: Source::QueuePairs(source),
        }
    }

    pub(super) fn value(&self, sum: &Counters, unsent: u64, downs: u64) -> u64 {
        match self.source {
            Source::QueuePairs(counter) => sum.get(counter),
            Source::Unsent => unsent,
            Source::Downs => downs,
        }
    }
}

/// Every figure, in the order of [`Context::statistics`](crate::Context::statistics).
///
/// Linux's `drivers/infiniband/sw/rxe/rxe_hw_counters.c` and `drivers/infiniband/hw/mlx5/counters.c` have the names;
/// the meanings here are what this device counts. Two names may count the same thing, one for each of the two drivers.
pub const STATISTICS: [Statistic; 36] = [
    Statistic::of(
        "sent_pkts",
        Counter::PacketsSent,
        "packets sent, of every kind, repetitions included",
    ),
    Statistic::of(
        "rcvd_pkts",
        Counter::PacketsReceived,
        "packets that reached a queue pair, those that it dropped included",
    ),
    Statistic::of(
        "duplicate_request",
        Counter::DuplicateRequests,
        "request packets that had been seen before",
    ),
    Statistic::of(
        "out_of_seq_request",
        Counter::DroppedOutOfOrder,
        "request packets dropped since an earlier one was missing",
    ),
    Statistic::of(
        "rcvd_rnr_err",
        Counter::RnrNaksReceived,
        "RNR NAKs received: the peer had no receive buffer, and the request waits",
    ),
    Statistic::of(
        "send_rnr_err",
        Counter::RnrNaksSent,
        "RNR NAKs sent: no receive buffer was posted here",
    ),
    Statistic::of(
        "rcvd_seq_err",
        Counter::SequenceNaksReceived,
        "NAKs \"PSN sequence error\" received: the peer missed a packet",
    ),
    Statistic::of(
        "ack_deferred",
        Counter::AcksDeferred,
        "acknowledgements that a later one made superfluous before they were sent",
    ),
    Statistic::of(
        "retry_exceeded_err",
        Counter::RetriesExceeded,
        "requests that failed since the retry count was used up",
    ),
    Statistic::of(
        "retry_rnr_exceeded_err",
        Counter::RnrRetriesExceeded,
        "requests that failed since the RNR retry count was used up",
    ),
    Statistic::of(
        "completer_retry_err",
        Counter::Retries,
        "times that everything not acknowledged was sent again",
    ),
    Statistic {
        name: "send_err",
        meaning: "packets that could not be sent, of all devices that this process has open on the host",
        source: Source::Unsent,
    },
    Statistic {
        name: "link_downed",
        meaning: "times that the port went down while the device was open",
        source: Source::Downs,
    },
    Statistic::of(
        "rdma_sends",
        Counter::SendsCompleted,
        "SENDs of this side that succeeded",
    ),
    Statistic::of(
        "rdma_recvs",
        Counter::SendsReceived,
        "SENDs of peers that were received",
    ),
    Statistic::of(
        "rx_write_requests",
        Counter::WritesReceived,
        "RDMA WRITEs of peers that were placed",
    ),
    Statistic::of(
        "rx_read_requests",
        Counter::ReadsReceived,
        "RDMA READs of peers that were accepted, repetitions not counted",
    ),
    Statistic::of(
        "rx_atomic_requests",
        Counter::AtomicsReceived,
        "atomic operations of peers that were executed",
    ),
    Statistic::of(
        "out_of_buffer",
        Counter::DroppedReceiverNotReady,
        "packets dropped since no receive buffer was posted",
    ),
    Statistic::of(
        "out_of_sequence",
        Counter::DroppedOutOfOrder,
        "as out_of_seq_request",
    ),
    Statistic::of(
        "rnr_nak_retry_err",
        Counter::RnrNaksReceived,
        "as rcvd_rnr_err",
    ),
    Statistic::of(
        "packet_seq_err",
        Counter::SequenceNaksReceived,
        "as rcvd_seq_err",
    ),
    Statistic::of(
        "implied_nak_seq_err",
        Counter::ImpliedNaks,
        "READs and atomics whose response was lost, which a later acknowledgement told",
    ),
    Statistic::of(
        "local_ack_timeout_err",
        Counter::AckTimeouts,
        "times that no acknowledgement came within the local ACK timeout",
    ),
    Statistic::of(
        "resp_local_length_error",
        Counter::ReceiveLengthErrors,
        "messages of peers that were longer than the buffer",
    ),
    Statistic::of(
        "resp_cqe_error",
        Counter::ReceivesFailed,
        "receives that failed, those flushed not counted",
    ),
    Statistic::of(
        "resp_cqe_flush_error",
        Counter::ReceivesFlushed,
        "receives that were flushed",
    ),
    Statistic::of(
        "resp_remote_access_errors",
        Counter::RemoteAccessNaksSent,
        "requests of peers for memory that they may not access so",
    ),
    Statistic::of(
        "req_cqe_error",
        Counter::SendsFailed,
        "requests of send queues that failed, those flushed not counted",
    ),
    Statistic::of(
        "req_cqe_flush_error",
        Counter::SendsFlushed,
        "requests of send queues that were flushed",
    ),
    Statistic::of(
        "req_remote_invalid_request",
        Counter::InvalidRequestNaksReceived,
        "requests that a peer found invalid",
    ),
    Statistic::of(
        "req_remote_access_errors",
        Counter::RemoteAccessNaksReceived,
        "requests for memory of a peer that may not be accessed so",
    ),
    Statistic::of(
        "req_remote_operational_errors",
        Counter::RemoteOperationalNaksReceived,
        "requests that a peer could not execute",
    ),
    Statistic::of(
        "bad_resp_errors",
        Counter::BadResponses,
        "responses that do not fit their request and ended it",
    ),
    Statistic::of(
        "bad_pkey_cntr",
        Counter::DroppedWrongPkey,
        "packets dropped: of another partition",
    ),
    Statistic::of(
        "qkey_viol_cntr",
        Counter::DroppedWrongQkey,
        "datagrams dropped: of another Q_Key than the queue pair's",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_stands_for_one_figure() {
        let mut names: Vec<_> = STATISTICS.iter().map(|figure| figure.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STATISTICS.len());
    }

    #[test]
    fn the_three_sources_are_not_mixed_up() {
        let sum = Counters::default();
        for figure in &STATISTICS {
            let expected = match figure.name {
                "send_err" => 3,
                "link_downed" => 5,
                _ => 0,
            };
            assert_eq!(figure.value(&sum, 3, 5), expected, "{}", figure.name);
        }
    }
}
