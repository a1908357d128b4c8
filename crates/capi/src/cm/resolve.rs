//! Binding, and resolving addresses and routes.
