//! libibverbs: devices, contexts, memory, queues, work requests.

pub(crate) mod acks;
pub(crate) mod ah;
pub(crate) mod async_event;
pub(crate) mod comp_channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod extended;
pub(crate) mod kern;
pub(crate) mod mr;
pub(crate) mod multicast;
pub(crate) mod mw;
pub(crate) mod names;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod qp_ex;
pub(crate) mod query;
pub(crate) mod srq;
pub(crate) mod work;
pub(crate) mod xrc;
