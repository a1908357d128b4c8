//! The oarlock command.
#![forbid(unsafe_code)]

fn main() {}
