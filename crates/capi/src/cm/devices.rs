//! The contexts that identifiers share.
