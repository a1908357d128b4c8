//! What a device can do.

use bitflags::bitflags;
use oarlock_wire::IbTimeout;

bitflags! {
    /// What a device can do beyond the basics. The bits are those of `enum ibv_device_cap_flags`; those without a name
    /// here are never set: alternate paths, raw packets, checksum offload and flow steering have no meaning on a soft
    /// device, and a queue pair's depth is fixed when it is made.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[doc(alias = "ibv_device_cap_flags")]
    pub struct Capabilities: u32 {
        /// Counts packets of a wrong partition key.
        const BAD_PKEY_COUNTER = 1 << 1;
        /// Counts packets of a wrong Q_Key.
        const BAD_QKEY_COUNTER = 1 << 2;
        /// An address handle is for one port, which is checked.
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// `ibv_modify_qp` honours the state that the caller believes the queue pair to be in.
        const CURRENT_QP_STATE_MODIFIER = 1 << 7;
        /// A port that comes up is an event.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// The GUID of the device is that of the system image, too.
        const SYSTEM_IMAGE_GUID = 1 << 11;
        /// A receiver without a buffer says so.
        const RC_RNR_NAK = 1 << 12;
        /// A shared receive queue can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// Memory windows of type 1.
        const MEMORY_WINDOW = 1 << 17;
        /// Extended reliable connections.
        const XRC = 1 << 20;
        /// SEND with invalidate, local invalidate.
        const MEMORY_MANAGEMENT = 1 << 21;
        /// Memory windows of type 2 that belong to the queue pair that bound them, and its protection domain.
        const MEMORY_WINDOW_TYPE_2B = 1 << 24;
    }
}

/// Against what the atomic operations of a device are atomic. The numbers are those of `enum ibv_atomic_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(clippy::exhaustive_enums, reason = "the specification's three")]
#[doc(alias = "ibv_atomic_cap")]
pub enum AtomicCapability {
    /// There are none.
    None = 0,
    /// Against each other.
    #[doc(alias = "IBV_ATOMIC_HCA")]
    Device = 1,
    /// Also against those of processors and other devices.
    #[doc(alias = "IBV_ATOMIC_GLOB")]
    Global = 2,
}

/// Limits of a device, per process unless they say otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_device_attr")]
pub struct DeviceLimits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Outstanding requests of one queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of one request, RDMA READ included.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
    /// Completion queues of one context.
    pub max_cq: u32,
    /// Completions that one completion queue holds.
    pub max_cqe: u32,
    /// Memory regions of one context.
    pub max_mr: u32,
    /// Bytes of one memory region; what of it there is memory for is another question.
    pub max_mr_size: u64,
    /// Memory windows of one context; they take their keys from the same table as regions.
    pub max_mw: u32,
    /// Protection domains of one context: numbers are all that they take.
    pub max_pd: u32,
    /// Address handles: nothing is kept for one, so this is the largest number that a C program can be told.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Buffers that one shared receive queue holds.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of one buffer of a shared receive queue.
    pub max_srq_sge: u32,
    /// XRC domains.
    pub max_xrcd: u32,
    /// Multicast groups. The system may allow a process fewer (`net.ipv4.igmp_max_memberships`).
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Partition keys of the port.
    pub max_pkeys: u16,
    /// Outstanding reads and atomics of a queue pair as responder.
    pub max_qp_rd_atom: u8,
    /// Outstanding reads and atomics of a queue pair as requester.
    pub max_qp_init_rd_atom: u8,
    /// How long an acknowledgement takes at most.
    pub local_ca_ack_delay: IbTimeout,
    /// What the device can do beyond the basics.
    pub capabilities: Capabilities,
    /// What its atomic operations are atomic against. Those of this process's queue pairs are atomic against each other,
    /// and against [`Region::load_u64`](crate::Region::load_u64) and [`store_u64`](crate::Region::store_u64); the memory
    /// of another process is not reached by this device.
    pub atomic: AtomicCapability,
}

impl DeviceLimits {
    /// Reads and atomics that all queue pairs together have outstanding as responders at most.
    pub const fn max_res_rd_atom(&self) -> u32 {
        self.max_qp * self.max_qp_rd_atom as u32
    }

    /// Attachments of queue pairs to multicast groups at most, all groups together.
    pub const fn max_total_mcast_qp_attach(&self) -> u32 {
        self.max_mcast_grp.saturating_mul(self.max_mcast_qp_attach)
    }
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self {
            max_qp: MAX_QP,
            max_qp_wr: 16_384,
            max_sge: 32,
            max_inline_data: 1024,
            max_cq: 65_536,
            max_cqe: 1 << 20,
            max_mr: crate::mr::MAX_REGIONS as u32,
            max_mr_size: isize::MAX as u64,
            max_mw: crate::mr::MAX_REGIONS as u32,
            max_pd: i32::MAX as u32,
            max_ah: i32::MAX as u32,
            max_srq: 65_536,
            max_srq_wr: 32_768,
            max_srq_sge: 32,
            max_xrcd: 65_536,
            max_mcast_grp: 8192,
            max_mcast_qp_attach: MAX_QP,
            max_pkeys: 1,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            local_ca_ack_delay: IbTimeout::truncate(15),
            capabilities: Capabilities::all(),
            atomic: AtomicCapability::Device,
        }
    }
}

/// As many as the lower 16 bits of a queue pair number can tell apart, less a reserve so that a
/// number is not used again soon.
pub(crate) const MAX_QP: u32 = 32_768;
