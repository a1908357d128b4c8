//! Hosts over a simulated network on virtual time, and what they are put through.

mod alternate;
mod bind;
mod connection;
mod datagram;
mod destroy;
mod events;
mod faults;
mod hotplug;
mod inject;
mod kernel;
mod loopback;
mod migrate;
mod model;
mod multicast;
mod params;
mod path_given;
mod paths;
mod port_spaces;
mod recipes;
mod requests;
mod resolve;
mod scale;
mod storm;
mod world;
