//! Test support: virtual clock, lossy network, ladder recorder, seeds.
//!
//! Everything here is deterministic: the same seed gives the same losses, the same delays and the same order. There
//! are no threads and nothing sleeps; a test moves [`Clock`] to the next thing that happens.
//!
//! ```
//! use oarlock_sim::{Clock, Ladder, Network, NetworkConfig};
//! use std::time::Duration;
//!
//! let mut clock = Clock::new();
//! let mut ladder = Ladder::new(["A", "B"]);
//! let mut network = Network::new(NetworkConfig { delay: Duration::from_micros(10)..=Duration::from_micros(10), ..NetworkConfig::default() }, 7);
//! network.send(clock.now(), 0, 1, "REQ");
//! while let Some(at) = network.next_delivery() {
//!     clock.advance_to(at);
//!     while let Some(delivery) = network.deliver(clock.now()) {
//!         ladder.record(clock.now(), delivery.from, delivery.to, delivery.datagram);
//!     }
//! }
//! assert_eq!(ladder.to_string(), "t=0.000010  A > B  REQ\n");
//! ```
//!
//! Only ever a dev-dependency.
#![forbid(unsafe_code)]

mod clock;
mod ladder;
mod namespace;
mod network;
mod not_run;
mod rng;
mod seeds;
mod snapshot;

pub use clock::Clock;
pub use ladder::Ladder;
pub use namespace::in_namespace;
pub use network::{Delivery, Network, NetworkConfig, NetworkCounters};
pub use not_run::not_run;
pub(crate) use not_run::repeat_not_run;
pub use rng::Rng;
pub use seeds::{for_each_seed, seeds};
pub use snapshot::assert_snapshot;
