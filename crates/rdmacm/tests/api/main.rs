//! The public API on private hosts.

mod easy;
mod hostile;
mod lossy;
mod migration;
mod model;
mod parameters;
mod support;
