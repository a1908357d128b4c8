//! Asynchronous events.
