//! The queue pair of an identifier.
