//! Names of events; ports.
