//! The public API on private hosts.

mod easy;
mod migration;
mod model;
mod parameters;
mod support;
