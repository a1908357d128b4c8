//! The public API on private hosts.

mod migration;
mod support;
