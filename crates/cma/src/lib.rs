//! RDMA CM identifiers: addresses, routes, port spaces, events, migration.
#![forbid(unsafe_code)]
