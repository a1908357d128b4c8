//! Events that were delivered and not acknowledged: what destructors wait for.
