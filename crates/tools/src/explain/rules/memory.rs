//! Rules of memory events.

use super::{
    EACCES, EAGAIN, EBADF, EBUSY, EEXIST, EFAULT, EINVAL, EMFILE, ENFILE, ENOENT, ENOMEM,
    EOPNOTSUPP, EOWNERDEAD, EPERM, rule,
};
use crate::explain::calls::Rule;

const CHANNEL: &str = "oarlock_create_memory_channel(3)";
const REGION: &str = "oarlock_reg_mr_notify(3)";
const EVENTS: &str = "oarlock_read_memory_events(3)";

/// Memory channels, and regions that are watched.
pub(in crate::explain) const MEMORY: &[Rule] = &[
    rule(
        &["create_memory_channel"],
        EOPNOTSUPP,
        &[],
        "the kernel has no userfaultfd, or one without the write-protect mode (Linux 5.7): nothing can be watched, so nothing may be cached",
        CHANNEL,
    ),
    rule(
        &["create_memory_channel"],
        EACCES,
        &[],
        "the process may not use userfaultfd: a seccomp filter, as in many containers, or a kernel before 5.11",
        CHANNEL,
    ),
    rule(
        &["create_memory_channel"],
        EEXIST,
        &[],
        "the context has a memory channel",
        CHANNEL,
    ),
    rule(
        &["create_memory_channel"],
        EMFILE,
        &[],
        "the process has no descriptor left, or 64 memory channels",
        CHANNEL,
    ),
    rule(
        &["create_memory_channel"],
        EBUSY,
        &[],
        "regions of the channel that is to be destroyed are registered",
        CHANNEL,
    ),
    rule(
        &["create_memory_channel"],
        EINVAL,
        &[],
        "the context, channel or answer is NULL, or a mode, operation or mapping is none of the header's",
        CHANNEL,
    ),
    rule(
        &["create_memory_channel"],
        EAGAIN,
        &[],
        "the process cannot start the thread that reads the kernel's events",
        CHANNEL,
    ),
    rule(
        &["create_memory_channel"],
        ENFILE,
        &[],
        "the system has no descriptor left",
        CHANNEL,
    ),
    rule(
        &["create_memory_channel"],
        ENOMEM,
        &[],
        "the system has no memory left",
        CHANNEL,
    ),
    rule(
        &["reg_mr_notify"],
        EBADF,
        &[],
        "the context has no memory channel: it is made before the first region",
        REGION,
    ),
    rule(
        &["reg_mr_notify"],
        EEXIST,
        &[],
        "a region of the channel has the cookie",
        REGION,
    ),
    rule(
        &["reg_mr_notify"],
        EFAULT,
        &[],
        "part of the range is not mapped, or it leaves the address space",
        REGION,
    ),
    rule(
        &["reg_mr_notify"],
        EINVAL,
        &[],
        "the domain is NULL, the range is empty, the policy is not known, or the rights do not go together",
        REGION,
    ),
    rule(
        &["reg_mr_notify"],
        EBUSY,
        &[],
        "another userfaultfd of the process has a page of the memory, that of another memory channel, too: register it without notification, and do not cache it",
        REGION,
    ),
    rule(
        &["reg_mr_notify"],
        EOPNOTSUPP,
        &[],
        "the kernel does not watch memory of this kind: a shared mapping of a file that was opened for reading only; before Linux 6.7 also other files and System V segments",
        REGION,
    ),
    rule(
        &["reg_mr_notify"],
        EAGAIN,
        &[],
        "the memory changed again and again while it was registered",
        REGION,
    ),
    rule(
        &["reg_mr_notify"],
        ENOMEM,
        &[],
        "the channel, the device or the process has no room for another region or mapping (vm.max_map_count)",
        REGION,
    ),
    rule(
        &["dereg_mr_notified"],
        EINVAL,
        &[],
        "the region is NULL, or was registered without notification",
        REGION,
    ),
    rule(
        &["dereg_mr_notified"],
        EOPNOTSUPP,
        &[],
        "the kernel does not say which memory it watches (Linux 6.7), so that oarlock_validate_mr cannot be answered",
        REGION,
    ),
    rule(
        &["dereg_mr_notified"],
        EBUSY,
        &[],
        "windows are bound to the region, which stays",
        REGION,
    ),
    rule(
        &["dereg_mr_notified"],
        ENOENT,
        &[],
        "there is no /proc, so that oarlock_validate_mr cannot be answered",
        REGION,
    ),
    rule(
        &["read_memory_events", "dereg_notified_mrs"],
        EINVAL,
        &[],
        "the channel is NULL, the list has no room, or a range to invalidate is empty or of no kind",
        EVENTS,
    ),
    rule(
        &[
            "reg_mr_notify",
            "dereg_mr_notified",
            "dereg_notified_mrs",
            "read_memory_events",
        ],
        EOWNERDEAD,
        &[],
        "a thread ended inside a call on the channel: nothing of it is valid any more",
        EVENTS,
    ),
    rule(
        &[
            "create_memory_channel",
            "reg_mr_notify",
            "dereg_mr_notified",
            "dereg_notified_mrs",
            "read_memory_events",
        ],
        EPERM,
        &[],
        "the object is of the process that this one was forked from: make one of your own",
        CHANNEL,
    ),
];
