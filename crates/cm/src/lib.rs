//! The IB communication-management protocol as a sans-IO state machine.
#![forbid(unsafe_code)]
