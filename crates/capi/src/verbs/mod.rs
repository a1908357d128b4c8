//! libibverbs: devices, contexts, memory, queues, work requests.

pub(crate) mod acks;
pub(crate) mod ah;
pub(crate) mod async_event;
pub(crate) mod birth;
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
mod neighbour;
pub(crate) mod pd;
pub(crate) mod qp;
mod qp_attr;
pub(crate) mod qp_ex;
pub(crate) mod query;
mod speed;
pub(crate) mod srq;
mod sysfs;
mod turn;
pub(crate) mod work;
pub(crate) mod xrc;

#[cfg(test)]
mod tests;
