//! rsockets: not implemented; each call fails with ENOSYS.
