//! Synchronous identifiers: the call waits for its event.
