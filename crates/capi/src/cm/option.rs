//! Options of identifiers.
