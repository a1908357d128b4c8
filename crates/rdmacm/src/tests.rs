//! The requirements, through the public API, on private hosts.
