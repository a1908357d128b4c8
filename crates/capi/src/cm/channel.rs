//! Event channels.
