//! Attributes in the form of the kernel: what librdmacm and its users convert.
//!
//! The layouts are those of Linux include/uapi/rdma/ib_user_verbs.h and ib_user_sa.h.

use crate::abi::{ibv_ah_attr, ibv_qp_attr, ibv_sa_path_rec};

/// `struct ib_uverbs_global_route`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelRoute {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved: u8,
}

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelAh {
    grh: KernelRoute,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelQp {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAh,
    alt_ah_attr: KernelAh,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `struct ib_user_path_rec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = assert!(
    size_of::<KernelAh>() == 32 && size_of::<KernelQp>() == 144 && size_of::<KernelPath>() == 64
);

/// `ibv_copy_ah_attr_from_kern`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: *const KernelAh,
) {
    // SAFETY: the caller's promise. `dst` is whole, though it may hold anything: every field is an integer.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    dst.grh.dgid.raw = src.grh.dgid;
    dst.grh.flow_label = src.grh.flow_label;
    dst.grh.sgid_index = src.grh.sgid_index;
    dst.grh.hop_limit = src.grh.hop_limit;
    dst.grh.traffic_class = src.grh.traffic_class;
    dst.dlid = src.dlid;
    dst.sl = src.sl;
    dst.src_path_bits = src.src_path_bits;
    dst.static_rate = src.static_rate;
    dst.is_global = src.is_global;
    dst.port_num = src.port_num;
}

/// `ibv_copy_qp_attr_from_kern`: everything but `qp_state`, which is the caller's question and not part of the answer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: *const KernelQp,
) {
    // SAFETY: the caller's promise. `dst` is whole, though it may hold anything: every field is an integer.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    dst.cur_qp_state = src.cur_qp_state;
    dst.path_mtu = src.path_mtu;
    dst.path_mig_state = src.path_mig_state;
    dst.qkey = src.qkey;
    dst.rq_psn = src.rq_psn;
    dst.sq_psn = src.sq_psn;
    dst.dest_qp_num = src.dest_qp_num;
    dst.qp_access_flags = src.qp_access_flags;
    dst.cap.max_send_wr = src.max_send_wr;
    dst.cap.max_recv_wr = src.max_recv_wr;
    dst.cap.max_send_sge = src.max_send_sge;
    dst.cap.max_recv_sge = src.max_recv_sge;
    dst.cap.max_inline_data = src.max_inline_data;
    // SAFETY: both are references.
    unsafe {
        ibv_copy_ah_attr_from_kern(&raw mut dst.ah_attr, &raw const src.ah_attr);
        ibv_copy_ah_attr_from_kern(&raw mut dst.alt_ah_attr, &raw const src.alt_ah_attr);
    }
    dst.pkey_index = src.pkey_index;
    dst.alt_pkey_index = src.alt_pkey_index;
    dst.en_sqd_async_notify = src.en_sqd_async_notify;
    dst.sq_draining = src.sq_draining;
    dst.max_rd_atomic = src.max_rd_atomic;
    dst.max_dest_rd_atomic = src.max_dest_rd_atomic;
    dst.min_rnr_timer = src.min_rnr_timer;
    dst.port_num = src.port_num;
    dst.timeout = src.timeout;
    dst.retry_cnt = src.retry_cnt;
    dst.rnr_retry = src.rnr_retry;
    dst.alt_port_num = src.alt_port_num;
    dst.alt_timeout = src.alt_timeout;
}

/// `ibv_copy_path_rec_from_kern`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    dst: *mut ibv_sa_path_rec,
    src: *const KernelPath,
) {
    // SAFETY: the caller's promise. `dst` is whole, though it may hold anything: every field is an integer.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    dst.dgid.raw = src.dgid;
    dst.sgid.raw = src.sgid;
    dst.raw_traffic = src.raw_traffic.cast_signed();
    dst.reversible = src.reversible.cast_signed();
    // A code of at most 6 bits.
    dst.mtu = src.mtu as u8;
    dst.dlid = src.dlid;
    dst.slid = src.slid;
    dst.flow_label = src.flow_label;
    dst.hop_limit = src.hop_limit;
    dst.traffic_class = src.traffic_class;
    dst.numb_path = src.numb_path;
    dst.pkey = src.pkey;
    dst.sl = src.sl;
    dst.mtu_selector = src.mtu_selector;
    dst.rate_selector = src.rate_selector;
    dst.rate = src.rate;
    dst.packet_life_time_selector = src.packet_life_time_selector;
    dst.packet_life_time = src.packet_life_time;
    dst.preference = src.preference;
}

/// `ibv_copy_path_rec_to_kern`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    dst: *mut KernelPath,
    src: *const ibv_sa_path_rec,
) {
    // SAFETY: the caller's promise. `dst` is whole, though it may hold anything: every field is an integer.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    // SAFETY: each half of the unions is 16 bytes, and any bytes are a value.
    unsafe {
        dst.dgid = src.dgid.raw;
        dst.sgid = src.sgid.raw;
    }
    dst.raw_traffic = src.raw_traffic.cast_unsigned();
    dst.reversible = src.reversible.cast_unsigned();
    dst.mtu = src.mtu.into();
    dst.dlid = src.dlid;
    dst.slid = src.slid;
    dst.flow_label = src.flow_label;
    dst.hop_limit = src.hop_limit;
    dst.traffic_class = src.traffic_class;
    dst.numb_path = src.numb_path;
    dst.pkey = src.pkey;
    dst.sl = src.sl;
    dst.mtu_selector = src.mtu_selector;
    dst.rate_selector = src.rate_selector;
    dst.rate = src.rate;
    dst.packet_life_time_selector = src.packet_life_time_selector;
    dst.packet_life_time = src.packet_life_time;
    dst.preference = src.preference;
}
