//! The list of devices.
