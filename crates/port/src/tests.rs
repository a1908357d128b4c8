//! Support for the tests.

pub(crate) mod namespace;
