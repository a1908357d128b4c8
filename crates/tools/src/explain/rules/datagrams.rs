//! Rules of datagram queue pairs and multicast.

use super::{
    CMA, EADDRNOTAVAIL, ECONNREFUSED, EINVAL, EIO, EMSGSIZE, ENOENT, ENOMEM, ENOTSUPP, ETIMEDOUT,
    HERE, UCMA, rule,
};
use crate::explain::calls::Rule;

/// UD and multicast.
pub(in crate::explain) const DATAGRAMS: &[Rule] = &[
    rule(
        &["join_multicast"],
        EINVAL,
        &["NotDatagram"],
        "the identifier is not of a datagram port space (udp, ipoib, or ib with UD)",
        CMA,
    ),
    rule(
        &["join_multicast"],
        EINVAL,
        &["NotMulticast"],
        "the address is no multicast group",
        CMA,
    ),
    rule(
        &["join_multicast"],
        EINVAL,
        &["JoinFlags"],
        "the flags are neither those of a full member (0) nor of one that only sends (1)",
        UCMA,
    ),
    rule(
        &["join_multicast"],
        EADDRNOTAVAIL,
        &["NoSourceForGroup"],
        "the identifier's device has no address of the group's family",
        HERE,
    ),
    rule(
        &["join_multicast"],
        ENOMEM,
        &["TooManyMulticasts"],
        "as many memberships exist as the host allows",
        HERE,
    ),
    rule(
        &["join_multicast"],
        ETIMEDOUT,
        &["JoinFailed"],
        "the group was not joined (as negative status of MULTICAST_ERROR, whatever the number)",
        CMA,
    ),
    rule(
        &["leave_multicast"],
        EINVAL,
        &["OtherFilesJoin"],
        "the membership is of an identifier on another event channel",
        UCMA,
    ),
    rule(
        &["establish", "disconnect", "notify"],
        EINVAL,
        &["NotConnected"],
        "the identifier is for UD queue pairs, which are not connected",
        CMA,
    ),
    rule(
        &["connect", "accept"],
        EINVAL,
        &["QKeyWithoutDatagrams", "QKeyMismatch"],
        "a Q_Key is given for a connected queue pair, or another one than the identifier has already",
        CMA,
    ),
    rule(
        &["connect"],
        ECONNREFUSED,
        &["ServiceRefused"],
        "UD: the peer has no service there (a synchronous identifier; others see UNREACHABLE with the SIDR status)",
        "oarlock-rdmacm",
    ),
    rule(
        &["join_multicast"],
        EINVAL,
        &["WrongState"],
        "the identifier is not of a datagram port space, has no device, or is in another state than ADDR_BOUND or ADDR_RESOLVED",
        CMA,
    ),
    rule(
        &["join_multicast"],
        ENOTSUPP,
        &[],
        "of the kernel: the group is an IPv6 one on RoCEv2",
        CMA,
    ),
    rule(
        &["send_to"],
        EMSGSIZE,
        &["MessageTooLong"],
        "the message is longer than one packet of the path carries, and a datagram is one packet",
        "oarlock-rdmacm",
    ),
    rule(
        &["receive"],
        EIO,
        &["ReceiveFailed"],
        "the queue pair has failed",
        "oarlock-rdmacm",
    ),
    rule(
        &[
            "send",
            "write",
            "read",
            "fetch_add",
            "compare_swap",
            "receive",
        ],
        EIO,
        &["WorkFailed"],
        "the work request completed with a failure: the sentence has its status, for `explain status`, and the rule that was broken, for `explain vendor`",
        "oarlock-rdmacm",
    ),
    rule(
        &["leave_multicast"],
        EADDRNOTAVAIL,
        &[],
        "of the C library: the identifier has not joined that group",
        "rdma_leave_multicast(3)",
    ),
    rule(
        &["leave_multicast"],
        ENOENT,
        &["UnknownJoin", "UnknownMulticast", "AlreadyLeft"],
        "there is no such membership (any more)",
        UCMA,
    ),
    rule(
        &["connect"],
        EINVAL,
        &[],
        "UD: the peer's Q_Key is not that of the port space (as status -22 of ADDR_ERROR)",
        CMA,
    ),
];
