//! The public API on private hosts.

mod asynchronous;
mod datagram;
mod easy;
mod errors;
mod hostile;
mod injected;
mod lossy;
mod migration;
mod model;
mod multicast;
mod one_sided;
mod over;
mod parameters;
mod support;
