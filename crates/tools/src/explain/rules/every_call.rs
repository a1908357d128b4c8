//! Rules that hold for every call.

use super::{
    EACCES, EBADF, ECANCELED, EFAULT, EINVAL, EIO, ENOENT, ENOSPC, ENOSYS, ENXIO, EPROTO, UCMA,
    rule,
};
use crate::explain::calls::{ANY, Rule};

/// What holds for all of them.
pub(in crate::explain) const EVERY_CALL: &[Rule] = &[
    rule(
        &[ANY],
        ENOENT,
        &["UnknownId", "UnknownChannel", "Closed"],
        "the identifier or channel does not exist (any more)",
        UCMA,
    ),
    rule(
        &[ANY],
        EINVAL,
        &["OtherFile"],
        "the identifier is on another event channel than the one that the request came on",
        UCMA,
    ),
    rule(
        &[ANY],
        EINVAL,
        &["NoDevice"],
        "the call needs a device, and the identifier is bound to none yet: resolve an address first",
        UCMA,
    ),
    rule(
        &[ANY],
        ENXIO,
        &["DeviceRemoved"],
        "the identifier's device has gone; destroying it is all that is left",
        UCMA,
    ),
    rule(
        &[ANY],
        EINVAL,
        &[
            "NoHeader",
            "UnknownCommand",
            "BodyLength",
            "ShortRequest",
            "Reserved",
            "AddressSize",
            "NothingNamed",
        ],
        "the request itself is malformed: a length, a reserved field or an address size contradicts its structure (an error of the library that made it)",
        UCMA,
    ),
    rule(
        &[ANY],
        EINVAL,
        &["Cm"],
        "the IB CM refused for a reason that earlier checks should have caught; the sentence has its words",
        "oarlock-cm",
    ),
    rule(
        &[ANY],
        EFAULT,
        &["RequestEnds"],
        "the request ends before its structure does",
        UCMA,
    ),
    rule(
        &[ANY],
        ENOSPC,
        &["NoRoom"],
        "the room for the answer is smaller than the answer",
        UCMA,
    ),
    rule(
        &[ANY],
        ENOSYS,
        &["NoGetOption"],
        "the command, or what it asks for, is not implemented; the sentence names it",
        UCMA,
    ),
    rule(
        &[ANY],
        ECANCELED,
        &["NotTried"],
        "an earlier request of the same batch failed",
        "oarlock-ucm",
    ),
    rule(
        &[ANY],
        EBADF,
        &["UnknownFile"],
        "the event channel was closed",
        UCMA,
    ),
    rule(
        &[ANY],
        EACCES,
        &[],
        "of the kernel: the caller's credentials are not those of the process that opened the channel",
        UCMA,
    ),
    rule(
        &[ANY],
        EIO,
        &["ServiceGone"],
        "the host service is gone",
        "oarlock-rdmacm",
    ),
    rule(
        &[ANY],
        EPROTO,
        &["Host", "Answer", "UnexpectedEvent"],
        "the host service could not be asked, or its answer not be understood",
        "oarlock-rdmacm",
    ),
];
