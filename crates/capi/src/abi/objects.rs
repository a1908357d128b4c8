//! The objects that programs hold pointers to.
//!
//! Names are those of the headers, so that whoever knows them finds them here; nothing but their layout is taken over.

use std::ffi::{c_char, c_int, c_void};

use super::*;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device {
    pub(crate) _ops: _ibv_device_ops,
    pub(crate) node_type: ibv_node_type,
    pub(crate) transport_type: ibv_transport_type,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_td {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_xrcd {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) type_: ibv_mw_type,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_dm {
    pub(crate) context: *mut ibv_context,
    pub(crate) memcpy_to_dm: Option<
        unsafe extern "C" fn(
            dm: *mut ibv_dm,
            dm_offset: u64,
            host_addr: *const c_void,
            length: usize,
        ) -> c_int,
    >,
    pub(crate) memcpy_from_dm: Option<
        unsafe extern "C" fn(
            host_addr: *mut c_void,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
        ) -> c_int,
    >,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: ibv_qp_state,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_async_event {
    pub(crate) element: ibv_async_event_element,
    pub(crate) event_type: ibv_event_type,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union ibv_async_event_element {
    pub(crate) cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) wq: *mut ibv_wq,
    pub(crate) port_num: c_int,
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_flow {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_flow_attr {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_flow_action {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_flow_action_esp_attr {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_counters {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_counters_init_attr {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_counter_attach_attr {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_wq {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_wq_init_attr {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_wq_attr {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_rwq_ind_table {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_rwq_ind_table_init_attr {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_ops_wr {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_wc_tm_info {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct verbs_ex_private {
    _opaque: [u8; 0],
}

/// Never made by this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ib_uverbs_flow_action_esp_encap {
    _opaque: [u8; 0],
}
