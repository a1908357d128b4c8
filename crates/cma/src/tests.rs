//! Hosts over a simulated network on virtual time, and what they are put through.

mod bind;
mod connection;
mod destroy;
mod events;
mod kernel;
mod loopback;
mod migrate;
mod model;
mod params;
mod paths;
mod recipes;
mod requests;
mod resolve;
mod scale;
mod storm;
mod world;
