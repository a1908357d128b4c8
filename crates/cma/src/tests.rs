//! Hosts over a simulated network on virtual time, and what they are put through.

mod connection;
mod destroy;
mod events;
mod kernel;
mod migrate;
mod model;
mod params;
mod recipes;
mod requests;
mod resolve;
mod scale;
mod storm;
mod world;
