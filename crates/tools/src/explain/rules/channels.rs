//! Rules of channels, events, migration.

use super::{EAGAIN, EDEADLK, EINTR, EINVAL, ENOENT, ENOMEM, EPIPE, ETIMEDOUT, HERE, UCMA, rule};
use crate::explain::calls::Rule;

/// Channels, events, migration.
pub(in crate::explain) const CHANNELS: &[Rule] = &[
    rule(
        &["get_event"],
        EAGAIN,
        &["NoEvent"],
        "no event waits, and the channel does not block",
        UCMA,
    ),
    rule(
        &["get_event"],
        EINTR,
        &[],
        "of the kernel: a signal ended the wait",
        UCMA,
    ),
    rule(
        &["migrate_id"],
        ENOENT,
        &["UnknownOldChannel"],
        "the old channel is none of the program's, or the identifier is not on it, or is being destroyed",
        UCMA,
    ),
    rule(
        &["migrate_id"],
        ENOMEM,
        &["ChannelFull"],
        "the new channel has no room for the events that would move there: take some first",
        HERE,
    ),
    rule(
        &["migrate_id"],
        EINVAL,
        &["OtherHost", "AlreadySynchronous"],
        "the new channel is of another host; or no channel was given, and the identifier is synchronous already",
        "rdma_migrate_id(3)",
    ),
    rule(
        &["migrate_id", "destroy_id", "leave_multicast"],
        EDEADLK,
        &["EventHeldByCaller"],
        "the calling thread holds an unacknowledged event of the identifier, for which the call would wait",
        "oarlock-rdmacm; the C library waits for ever",
    ),
    rule(
        &["migrate_id", "destroy_id", "leave_multicast"],
        ETIMEDOUT,
        &["Unacknowledged"],
        "events were not acknowledged by the deadline; it is done all the same",
        "oarlock-rdmacm",
    ),
    rule(
        &["create_event_channel"],
        EINVAL,
        &["NoRuntime"],
        "an asynchronous channel is opened outside of a tokio runtime",
        "oarlock-rdmacm",
    ),
    rule(
        &["get_event"],
        EPIPE,
        &["RuntimeGone"],
        "the tokio runtime that read the host's events has ended",
        "oarlock-rdmacm",
    ),
    rule(
        &["get_event"],
        EINVAL,
        &["NotSynchronous"],
        "get_request or next_event was asked of an identifier that reports to an event channel",
        "rdma_get_request(3)",
    ),
    rule(
        &["write_cm_event"],
        EINVAL,
        &["ForeignEvent", "NotInjectable"],
        "the event is neither USER (18) nor INTERNAL (19)",
        UCMA,
    ),
];
