//! Shared receive queues: buffers for the messages of many queue pairs.

use oarlock_wire::Srqn;

use crate::memory::Sge;

/// A buffer that was taken out of a shared receive queue for one message, and belongs to the queue pair now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldReceive {
    /// From the work request.
    pub wr_id: u64,
    /// The buffers; the vector is used again, so that taking allocates nothing once it has grown.
    pub sges: Vec<Sge>,
    /// The protection domain of the queue, a number of whoever implements [`Memory`](crate::Memory).
    pub domain: u32,
    /// The queue, if it has a number (XRC).
    pub srqn: Option<Srqn>,
}
