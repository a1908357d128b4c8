//! Judges of the wire formats: recorded exchanges between two Linux kernels, a packet dissector, an independent ICRC program,
//! and bytes that nobody sane would send.

mod capture;
mod datagrams;
mod dissector;
mod hand_read;
mod icrc_program;
mod linux_header;
mod opcodes;
mod robustness;
mod round_trip;
mod support;
