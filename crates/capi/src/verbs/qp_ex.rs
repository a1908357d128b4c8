//! Queue pairs that are posted to call by call.
