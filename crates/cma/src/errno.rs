//! Error numbers as the kernel's ABI gives them, without a C library.

use core::fmt;

/// An error number of Linux (`include/uapi/asm-generic/errno.h`), positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! numbers {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = concat!("Number ", $value, ": ", $text, ".")]
            pub const $name: Self = Self($value);)*

            /// The symbolic name, or `None` for a number that this crate never gives.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

numbers! {
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

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}
