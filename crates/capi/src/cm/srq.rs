//! The shared receive queue of an identifier.
