//! Error numbers of Linux (`errno.h`), written down once more so that the crate does not judge itself.

pub(crate) const ENOENT: i32 = 2;
pub(crate) const ENXIO: i32 = 6;
pub(crate) const EBADF: i32 = 9;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EFAULT: i32 = 14;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const ENOSYS: i32 = 38;
pub(crate) const EAFNOSUPPORT: i32 = 97;
pub(crate) const EADDRINUSE: i32 = 98;
pub(crate) const EADDRNOTAVAIL: i32 = 99;
pub(crate) const EISCONN: i32 = 106;
