//! Error numbers as the kernel's ABI gives them, without a C library.

use crate::numbered::named_numbers;

/// An error number of Linux (`include/uapi/asm-generic/errno.h`), positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Errno(pub i32);

named_numbers! {
    Errno, "Number", "errno":
    ENOENT = 2, "no such identifier";
    ENXIO = 6, "the device is gone";
    EAGAIN = 11, "nothing there yet";
    ENOMEM = 12, "a limit is reached";
    EACCES = 13, "not allowed";
    EBUSY = 16, "in use";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument or state";
    ENOSYS = 38, "not implemented";
    EAFNOSUPPORT = 97, "address family not supported";
    EADDRINUSE = 98, "address in use";
    EADDRNOTAVAIL = 99, "address not available";
    ENETUNREACH = 101, "network unreachable";
    EISCONN = 106, "already connected";
    ETIMEDOUT = 110, "timed out";
    EHOSTUNREACH = 113, "host unreachable";
}

impl Errno {
    /// The value that an event carries in its status: negative.
    #[must_use]
    pub const fn as_status(self) -> i32 {
        -self.0
    }
}
