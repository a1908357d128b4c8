//! Completion channels.
