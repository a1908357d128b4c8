//! The per-host service and its client side.
