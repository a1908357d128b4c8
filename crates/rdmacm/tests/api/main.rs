//! The public API on private hosts.

mod asynchronous;
mod easy;
mod hostile;
mod lossy;
mod migration;
mod model;
mod parameters;
mod support;
