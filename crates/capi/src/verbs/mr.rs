//! Memory regions.
