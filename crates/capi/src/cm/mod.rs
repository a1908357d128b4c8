//! librdmacm: event channels, identifiers, events, and what is made of them.

pub(crate) mod address;
pub(crate) mod addrinfo;
pub(crate) mod call;
pub(crate) mod channel;
pub(crate) mod connect;
pub(crate) mod devices;
pub(crate) mod endpoint;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod ledger;
pub(crate) mod migrate;
pub(crate) mod multicast;
pub(crate) mod names;
pub(crate) mod option;
pub(crate) mod qp;
pub(crate) mod resolve;
pub(crate) mod srq;
pub(crate) mod sync;
