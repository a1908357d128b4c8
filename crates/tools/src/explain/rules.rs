//! The rules behind the error numbers, as data: what the Linux RDMA CM checks, and what this stack checks beside it.

mod addresses;
mod channels;
mod connections;
mod datagrams;
mod every_call;
mod memory;

use super::calls::Rule;

/// Every rule; those of all calls come last.
pub(super) fn rules() -> impl Iterator<Item = &'static Rule> {
    [
        addresses::ADDRESSES,
        connections::CONNECTIONS,
        datagrams::DATAGRAMS,
        channels::CHANNELS,
        memory::MEMORY,
        every_call::EVERY_CALL,
    ]
    .into_iter()
    .flatten()
}

const CMA: &str = "Linux drivers/infiniband/core/cma.c";
const UCMA: &str = "Linux drivers/infiniband/core/ucma.c";
const HERE: &str = "oarlock's own rule; see its list of deviations (crates/ucm/src/deviations.rs)";
const CM: &str = "IBA Vol. 1 ch. 12; Linux drivers/infiniband/core/cm.c";

const fn rule(
    calls: &'static [&'static str],
    errno: i64,
    shown_by: &'static [&'static str],
    when: &'static str,
    source: &'static str,
) -> Rule {
    Rule {
        calls,
        errno,
        shown_by,
        when,
        source,
    }
}

const EPERM: i64 = 1;
const ENOENT: i64 = 2;
const EINTR: i64 = 4;
const EIO: i64 = 5;
const ENXIO: i64 = 6;
const EBADF: i64 = 9;
const EAGAIN: i64 = 11;
const ENOMEM: i64 = 12;
const EACCES: i64 = 13;
const EFAULT: i64 = 14;
const EBUSY: i64 = 16;
const EEXIST: i64 = 17;
const ENODEV: i64 = 19;
const EINVAL: i64 = 22;
const ENFILE: i64 = 23;
const EMFILE: i64 = 24;
const ENOSPC: i64 = 28;
const EPIPE: i64 = 32;
const EDEADLK: i64 = 35;
const ENOSYS: i64 = 38;
const ENODATA: i64 = 61;
const EPROTO: i64 = 71;
const EMSGSIZE: i64 = 90;
const EPROTONOSUPPORT: i64 = 93;
const EOPNOTSUPP: i64 = 95;
const EAFNOSUPPORT: i64 = 97;
const EADDRINUSE: i64 = 98;
const EADDRNOTAVAIL: i64 = 99;
const ENETUNREACH: i64 = 101;
const ECONNRESET: i64 = 104;
const EISCONN: i64 = 106;
const ETIMEDOUT: i64 = 110;
const ECONNREFUSED: i64 = 111;
const EHOSTUNREACH: i64 = 113;
const ECANCELED: i64 = 125;
const EOWNERDEAD: i64 = 130;
const ENOTSUPP: i64 = 524;
