//! The status of SIDR replies.

use super::table::{Entry, Table};

/// Codes of the `status` field of a SIDR_REP. Other than 0 they are the status of `RDMA_CM_EVENT_UNREACHABLE` of a UD
/// identifier.
pub(super) const TABLE: Table = Table {
    kind: "sidr",
    prefix: "IB_SIDR_",
    entries: &[
        entry(
            0,
            "success",
            &["valid"],
            "the service is there: the reply names its queue pair and Q_Key",
            "nothing is wrong: send to the queue pair that the event names",
        ),
        entry(
            1,
            "unsupported",
            &["no-listener"],
            "nobody listens for that service ID on the passive host",
            "start the listening program first; compare address, port and port space (udp, ipoib) on both sides",
        ),
        entry(
            2,
            "reject",
            &["rejected"],
            "the program there refused, or destroyed the request without an answer; the private data may say why",
            "look at the private data and at the other program's log",
        ),
        entry(
            3,
            "no-qp",
            &[],
            "the passive side has no queue pair for the service",
            "close what is not needed there, or raise its limit of queue pairs; then try again",
        ),
        entry(
            4,
            "redirect",
            &[],
            "the service is to be asked for elsewhere: the additional information says where",
            "resolve the service at the address that the additional information names; the RDMA CM does not follow it by itself",
        ),
        entry(
            5,
            "unsupported-version",
            &[],
            "the receiver does not speak that version of the communication management class",
            "version 2 is the only one in use: look for what mangles the datagrams",
        ),
    ],
};

const fn entry(
    code: i64,
    name: &'static str,
    aliases: &'static [&'static str],
    meaning: &'static str,
    remedy: &'static str,
) -> Entry {
    Entry {
        code,
        name,
        aliases,
        meaning,
        remedy,
        source: "IBA Vol. 1 ch. 12, SIDR_REP, status; Linux include/rdma/ib_cm.h, enum ib_cm_sidr_status",
    }
}
