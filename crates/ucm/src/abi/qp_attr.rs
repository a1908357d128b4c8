//! Queue pair attributes as the ABI carries them (Linux `include/uapi/rdma/ib_user_verbs.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::layout;

/// How to reach a remote port (`struct ib_uverbs_ah_attr`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UverbsAhAttr {
    /// Remote GID.
    pub dgid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// Index of the local GID in the device's table.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Unused.
    pub grh_reserved: u8,
    /// Remote LID.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the local LID.
    pub src_path_bits: u8,
    /// Static rate.
    pub static_rate: u8,
    /// Whether the GIDs count; always on RoCE.
    pub is_global: u8,
    /// The device's port.
    pub port_num: u8,
    /// Unused.
    pub reserved: u8,
}
layout!(UverbsAhAttr, 32, {
    dgid: 0, flow_label: 16, sgid_index: 20, hop_limit: 21, traffic_class: 22, grh_reserved: 23, dlid: 24, sl: 26,
    src_path_bits: 27, static_rate: 28, is_global: 29, port_num: 30, reserved: 31,
});

/// The answer to INIT_QP_ATTR (`struct ib_uverbs_qp_attr`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UverbsQpAttr {
    /// Which attributes count, see [`qp_attr_mask`].
    pub qp_attr_mask: u32,
    /// The state to go to, see [`qp_state`].
    pub qp_state: u32,
    /// The state to come from.
    pub cur_qp_state: u32,
    /// Path MTU, encoded.
    pub path_mtu: u32,
    /// Path migration state.
    pub path_mig_state: u32,
    /// Queue key.
    pub qkey: u32,
    /// First PSN to be received.
    pub rq_psn: u32,
    /// First PSN to be sent.
    pub sq_psn: u32,
    /// Remote queue pair.
    pub dest_qp_num: u32,
    /// What the remote side may do.
    pub qp_access_flags: u32,
    /// Primary path.
    pub ah_attr: UverbsAhAttr,
    /// Alternate path.
    pub alt_ah_attr: UverbsAhAttr,
    /// Send queue depth.
    pub max_send_wr: u32,
    /// Receive queue depth.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Inline data of a send.
    pub max_inline_data: u32,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Index of the alternate path's partition key.
    pub alt_pkey_index: u16,
    /// Whether reaching the drained state is reported.
    pub en_sqd_async_notify: u8,
    /// Whether the send queue is draining.
    pub sq_draining: u8,
    /// Outstanding reads and atomics as the requester.
    pub max_rd_atomic: u8,
    /// Outstanding reads and atomics as the responder.
    pub max_dest_rd_atomic: u8,
    /// Receiver-not-ready timer, encoded.
    pub min_rnr_timer: u8,
    /// The device's port.
    pub port_num: u8,
    /// Acknowledgement timeout, encoded.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// Retries after receiver-not-ready.
    pub rnr_retry: u8,
    /// The device's port of the alternate path.
    pub alt_port_num: u8,
    /// Acknowledgement timeout of the alternate path, encoded.
    pub alt_timeout: u8,
    /// Unused.
    pub reserved: [u8; 5],
}
layout!(UverbsQpAttr, 144, {
    qp_attr_mask: 0, qp_state: 4, cur_qp_state: 8, path_mtu: 12, path_mig_state: 16, qkey: 20, rq_psn: 24, sq_psn: 28,
    dest_qp_num: 32, qp_access_flags: 36, ah_attr: 40, alt_ah_attr: 72, max_send_wr: 104, max_recv_wr: 108,
    max_send_sge: 112, max_recv_sge: 116, max_inline_data: 120, pkey_index: 124, alt_pkey_index: 126,
    en_sqd_async_notify: 128, sq_draining: 129, max_rd_atomic: 130, max_dest_rd_atomic: 131, min_rnr_timer: 132,
    port_num: 133, timeout: 134, retry_cnt: 135, rnr_retry: 136, alt_port_num: 137, alt_timeout: 138, reserved: 139,
});

/// The bits of [`UverbsQpAttr::qp_attr_mask`] (`enum ib_qp_attr_mask`).
pub mod qp_attr_mask {
    /// `qp_state`.
    pub const STATE: u32 = 1;
    /// `qp_access_flags`.
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    /// `pkey_index`.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// `port_num`.
    pub const PORT: u32 = 1 << 5;
    /// `ah_attr`.
    pub const AV: u32 = 1 << 7;
    /// `path_mtu`.
    pub const PATH_MTU: u32 = 1 << 8;
    /// `timeout`.
    pub const TIMEOUT: u32 = 1 << 9;
    /// `retry_cnt`.
    pub const RETRY_CNT: u32 = 1 << 10;
    /// `rnr_retry`.
    pub const RNR_RETRY: u32 = 1 << 11;
    /// `rq_psn`.
    pub const RQ_PSN: u32 = 1 << 12;
    /// `max_rd_atomic`.
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    /// `min_rnr_timer`.
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    /// `sq_psn`.
    pub const SQ_PSN: u32 = 1 << 16;
    /// `max_dest_rd_atomic`.
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// `dest_qp_num`.
    pub const DEST_QPN: u32 = 1 << 20;
}

/// Queue pair states as the verbs number them.
pub mod qp_state {
    /// Reset.
    pub const RESET: u32 = 0;
    /// Initialised.
    pub const INIT: u32 = 1;
    /// Ready to receive.
    pub const RTR: u32 = 2;
    /// Ready to send.
    pub const RTS: u32 = 3;
    /// Send queue drained.
    pub const SQD: u32 = 4;
    /// Send queue error.
    pub const SQE: u32 = 5;
    /// Error.
    pub const ERR: u32 = 6;
}
