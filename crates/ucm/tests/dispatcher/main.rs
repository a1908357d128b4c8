//! The dispatcher, driven by bytes: what the kernel's file would be driven by.

mod batch;
mod connection;
mod errno;
mod errors;
mod garbage;
mod growth;
mod migration;
mod multicast;
mod options;
mod values;
mod world;
