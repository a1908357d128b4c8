//! Numbers of `infiniband/verbs.h` and `rdma/rdma_cma.h` (rdma-core 44).
//!
//! Names are those of the headers, so that whoever knows them finds them here; nothing but their layout is taken over.

use std::ffi::{c_int, c_uint};

pub(crate) type ib_uverbs_advise_mr_advice = c_uint;
pub(crate) const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH: ib_uverbs_advise_mr_advice = 0;
pub(crate) const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE: ib_uverbs_advise_mr_advice = 1;
pub(crate) const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ib_uverbs_advise_mr_advice = 2;

pub(crate) type ibv_access_flags = c_uint;
pub(crate) const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = 1;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = 2;
pub(crate) const IBV_ACCESS_REMOTE_READ: ibv_access_flags = 4;
pub(crate) const IBV_ACCESS_REMOTE_ATOMIC: ibv_access_flags = 8;
pub(crate) const IBV_ACCESS_MW_BIND: ibv_access_flags = 16;
pub(crate) const IBV_ACCESS_ZERO_BASED: ibv_access_flags = 32;
pub(crate) const IBV_ACCESS_ON_DEMAND: ibv_access_flags = 64;
pub(crate) const IBV_ACCESS_HUGETLB: ibv_access_flags = 128;
pub(crate) const IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = 1048576;

pub(crate) type ibv_atomic_cap = c_uint;
pub(crate) const IBV_ATOMIC_NONE: ibv_atomic_cap = 0;
pub(crate) const IBV_ATOMIC_HCA: ibv_atomic_cap = 1;
pub(crate) const IBV_ATOMIC_GLOB: ibv_atomic_cap = 2;

pub(crate) type ibv_cq_attr_mask = c_uint;
pub(crate) const IBV_CQ_ATTR_MODERATE: ibv_cq_attr_mask = 1;
pub(crate) const IBV_CQ_ATTR_RESERVED: ibv_cq_attr_mask = 2;

pub(crate) type ibv_cq_init_attr_mask = c_uint;
pub(crate) const IBV_CQ_INIT_ATTR_MASK_FLAGS: ibv_cq_init_attr_mask = 1;
pub(crate) const IBV_CQ_INIT_ATTR_MASK_PD: ibv_cq_init_attr_mask = 2;

pub(crate) type ibv_create_cq_attr_flags = c_uint;
pub(crate) const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: ibv_create_cq_attr_flags = 1;
pub(crate) const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: ibv_create_cq_attr_flags = 2;

pub(crate) type ibv_create_cq_wc_flags = c_uint;
pub(crate) const IBV_WC_EX_WITH_BYTE_LEN: ibv_create_cq_wc_flags = 1;
pub(crate) const IBV_WC_EX_WITH_IMM: ibv_create_cq_wc_flags = 2;
pub(crate) const IBV_WC_EX_WITH_QP_NUM: ibv_create_cq_wc_flags = 4;
pub(crate) const IBV_WC_EX_WITH_SRC_QP: ibv_create_cq_wc_flags = 8;
pub(crate) const IBV_WC_EX_WITH_SLID: ibv_create_cq_wc_flags = 16;
pub(crate) const IBV_WC_EX_WITH_SL: ibv_create_cq_wc_flags = 32;
pub(crate) const IBV_WC_EX_WITH_DLID_PATH_BITS: ibv_create_cq_wc_flags = 64;
pub(crate) const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: ibv_create_cq_wc_flags = 128;
pub(crate) const IBV_WC_EX_WITH_CVLAN: ibv_create_cq_wc_flags = 256;
pub(crate) const IBV_WC_EX_WITH_FLOW_TAG: ibv_create_cq_wc_flags = 512;
pub(crate) const IBV_WC_EX_WITH_TM_INFO: ibv_create_cq_wc_flags = 1024;
pub(crate) const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: ibv_create_cq_wc_flags = 2048;

pub(crate) type ibv_device_cap_flags = c_uint;
pub(crate) const IBV_DEVICE_RESIZE_MAX_WR: ibv_device_cap_flags = 1;
pub(crate) const IBV_DEVICE_BAD_PKEY_CNTR: ibv_device_cap_flags = 2;
pub(crate) const IBV_DEVICE_BAD_QKEY_CNTR: ibv_device_cap_flags = 4;
pub(crate) const IBV_DEVICE_RAW_MULTI: ibv_device_cap_flags = 8;
pub(crate) const IBV_DEVICE_AUTO_PATH_MIG: ibv_device_cap_flags = 16;
pub(crate) const IBV_DEVICE_CHANGE_PHY_PORT: ibv_device_cap_flags = 32;
pub(crate) const IBV_DEVICE_UD_AV_PORT_ENFORCE: ibv_device_cap_flags = 64;
pub(crate) const IBV_DEVICE_CURR_QP_STATE_MOD: ibv_device_cap_flags = 128;
pub(crate) const IBV_DEVICE_SHUTDOWN_PORT: ibv_device_cap_flags = 256;
pub(crate) const IBV_DEVICE_INIT_TYPE: ibv_device_cap_flags = 512;
pub(crate) const IBV_DEVICE_PORT_ACTIVE_EVENT: ibv_device_cap_flags = 1024;
pub(crate) const IBV_DEVICE_SYS_IMAGE_GUID: ibv_device_cap_flags = 2048;
pub(crate) const IBV_DEVICE_RC_RNR_NAK_GEN: ibv_device_cap_flags = 4096;
pub(crate) const IBV_DEVICE_SRQ_RESIZE: ibv_device_cap_flags = 8192;
pub(crate) const IBV_DEVICE_N_NOTIFY_CQ: ibv_device_cap_flags = 16384;
pub(crate) const IBV_DEVICE_MEM_WINDOW: ibv_device_cap_flags = 131072;
pub(crate) const IBV_DEVICE_UD_IP_CSUM: ibv_device_cap_flags = 262144;
pub(crate) const IBV_DEVICE_XRC: ibv_device_cap_flags = 1048576;
pub(crate) const IBV_DEVICE_MEM_MGT_EXTENSIONS: ibv_device_cap_flags = 2097152;
pub(crate) const IBV_DEVICE_MEM_WINDOW_TYPE_2A: ibv_device_cap_flags = 8388608;
pub(crate) const IBV_DEVICE_MEM_WINDOW_TYPE_2B: ibv_device_cap_flags = 16777216;
pub(crate) const IBV_DEVICE_RC_IP_CSUM: ibv_device_cap_flags = 33554432;
pub(crate) const IBV_DEVICE_RAW_IP_CSUM: ibv_device_cap_flags = 67108864;
pub(crate) const IBV_DEVICE_MANAGED_FLOW_STEERING: ibv_device_cap_flags = 536870912;

pub(crate) type ibv_event_type = c_uint;
pub(crate) const IBV_EVENT_CQ_ERR: ibv_event_type = 0;
pub(crate) const IBV_EVENT_QP_FATAL: ibv_event_type = 1;
pub(crate) const IBV_EVENT_QP_REQ_ERR: ibv_event_type = 2;
pub(crate) const IBV_EVENT_QP_ACCESS_ERR: ibv_event_type = 3;
pub(crate) const IBV_EVENT_COMM_EST: ibv_event_type = 4;
pub(crate) const IBV_EVENT_SQ_DRAINED: ibv_event_type = 5;
pub(crate) const IBV_EVENT_PATH_MIG: ibv_event_type = 6;
pub(crate) const IBV_EVENT_PATH_MIG_ERR: ibv_event_type = 7;
pub(crate) const IBV_EVENT_DEVICE_FATAL: ibv_event_type = 8;
pub(crate) const IBV_EVENT_PORT_ACTIVE: ibv_event_type = 9;
pub(crate) const IBV_EVENT_PORT_ERR: ibv_event_type = 10;
pub(crate) const IBV_EVENT_LID_CHANGE: ibv_event_type = 11;
pub(crate) const IBV_EVENT_PKEY_CHANGE: ibv_event_type = 12;
pub(crate) const IBV_EVENT_SM_CHANGE: ibv_event_type = 13;
pub(crate) const IBV_EVENT_SRQ_ERR: ibv_event_type = 14;
pub(crate) const IBV_EVENT_SRQ_LIMIT_REACHED: ibv_event_type = 15;
pub(crate) const IBV_EVENT_QP_LAST_WQE_REACHED: ibv_event_type = 16;
pub(crate) const IBV_EVENT_CLIENT_REREGISTER: ibv_event_type = 17;
pub(crate) const IBV_EVENT_GID_CHANGE: ibv_event_type = 18;
pub(crate) const IBV_EVENT_WQ_FATAL: ibv_event_type = 19;

pub(crate) type ibv_fork_status = c_uint;
pub(crate) const IBV_FORK_DISABLED: ibv_fork_status = 0;
pub(crate) const IBV_FORK_ENABLED: ibv_fork_status = 1;
pub(crate) const IBV_FORK_UNNEEDED: ibv_fork_status = 2;

pub(crate) type ibv_gid_type = c_uint;
pub(crate) const IBV_GID_TYPE_IB: ibv_gid_type = 0;
pub(crate) const IBV_GID_TYPE_ROCE_V1: ibv_gid_type = 1;
pub(crate) const IBV_GID_TYPE_ROCE_V2: ibv_gid_type = 2;

pub(crate) type ibv_mig_state = c_uint;
pub(crate) const IBV_MIG_MIGRATED: ibv_mig_state = 0;
pub(crate) const IBV_MIG_REARM: ibv_mig_state = 1;
pub(crate) const IBV_MIG_ARMED: ibv_mig_state = 2;

pub(crate) type ibv_mtu = c_uint;
pub(crate) const IBV_MTU_256: ibv_mtu = 1;
pub(crate) const IBV_MTU_512: ibv_mtu = 2;
pub(crate) const IBV_MTU_1024: ibv_mtu = 3;
pub(crate) const IBV_MTU_2048: ibv_mtu = 4;
pub(crate) const IBV_MTU_4096: ibv_mtu = 5;

pub(crate) type ibv_mw_type = c_uint;
pub(crate) const IBV_MW_TYPE_1: ibv_mw_type = 1;
pub(crate) const IBV_MW_TYPE_2: ibv_mw_type = 2;

pub(crate) type ibv_node_type = c_int;
pub(crate) const IBV_NODE_UNKNOWN: ibv_node_type = -1;
pub(crate) const IBV_NODE_CA: ibv_node_type = 1;
pub(crate) const IBV_NODE_SWITCH: ibv_node_type = 2;
pub(crate) const IBV_NODE_ROUTER: ibv_node_type = 3;
pub(crate) const IBV_NODE_RNIC: ibv_node_type = 4;
pub(crate) const IBV_NODE_USNIC: ibv_node_type = 5;
pub(crate) const IBV_NODE_USNIC_UDP: ibv_node_type = 6;
pub(crate) const IBV_NODE_UNSPECIFIED: ibv_node_type = 7;

pub(crate) type ibv_odp_general_caps = c_uint;
pub(crate) const IBV_ODP_SUPPORT: ibv_odp_general_caps = 1;
pub(crate) const IBV_ODP_SUPPORT_IMPLICIT: ibv_odp_general_caps = 2;

pub(crate) type ibv_odp_transport_cap_bits = c_uint;
pub(crate) const IBV_ODP_SUPPORT_SEND: ibv_odp_transport_cap_bits = 1;
pub(crate) const IBV_ODP_SUPPORT_RECV: ibv_odp_transport_cap_bits = 2;
pub(crate) const IBV_ODP_SUPPORT_WRITE: ibv_odp_transport_cap_bits = 4;
pub(crate) const IBV_ODP_SUPPORT_READ: ibv_odp_transport_cap_bits = 8;
pub(crate) const IBV_ODP_SUPPORT_ATOMIC: ibv_odp_transport_cap_bits = 16;
pub(crate) const IBV_ODP_SUPPORT_SRQ_RECV: ibv_odp_transport_cap_bits = 32;

pub(crate) type ibv_parent_domain_init_attr_mask = c_uint;
pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: ibv_parent_domain_init_attr_mask = 1;
pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: ibv_parent_domain_init_attr_mask = 2;

pub(crate) type ibv_pci_atomic_op_size = c_uint;
pub(crate) const IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = 1;
pub(crate) const IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = 2;
pub(crate) const IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = 4;

pub(crate) type ibv_port_cap_flags = c_uint;
pub(crate) const IBV_PORT_SM: ibv_port_cap_flags = 2;
pub(crate) const IBV_PORT_NOTICE_SUP: ibv_port_cap_flags = 4;
pub(crate) const IBV_PORT_TRAP_SUP: ibv_port_cap_flags = 8;
pub(crate) const IBV_PORT_OPT_IPD_SUP: ibv_port_cap_flags = 16;
pub(crate) const IBV_PORT_AUTO_MIGR_SUP: ibv_port_cap_flags = 32;
pub(crate) const IBV_PORT_SL_MAP_SUP: ibv_port_cap_flags = 64;
pub(crate) const IBV_PORT_MKEY_NVRAM: ibv_port_cap_flags = 128;
pub(crate) const IBV_PORT_PKEY_NVRAM: ibv_port_cap_flags = 256;
pub(crate) const IBV_PORT_LED_INFO_SUP: ibv_port_cap_flags = 512;
pub(crate) const IBV_PORT_SYS_IMAGE_GUID_SUP: ibv_port_cap_flags = 2048;
pub(crate) const IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP: ibv_port_cap_flags = 4096;
pub(crate) const IBV_PORT_EXTENDED_SPEEDS_SUP: ibv_port_cap_flags = 16384;
pub(crate) const IBV_PORT_CAP_MASK2_SUP: ibv_port_cap_flags = 32768;
pub(crate) const IBV_PORT_CM_SUP: ibv_port_cap_flags = 65536;
pub(crate) const IBV_PORT_SNMP_TUNNEL_SUP: ibv_port_cap_flags = 131072;
pub(crate) const IBV_PORT_REINIT_SUP: ibv_port_cap_flags = 262144;
pub(crate) const IBV_PORT_DEVICE_MGMT_SUP: ibv_port_cap_flags = 524288;
pub(crate) const IBV_PORT_VENDOR_CLASS_SUP: ibv_port_cap_flags = 1048576;
pub(crate) const IBV_PORT_DR_NOTICE_SUP: ibv_port_cap_flags = 2097152;
pub(crate) const IBV_PORT_CAP_MASK_NOTICE_SUP: ibv_port_cap_flags = 4194304;
pub(crate) const IBV_PORT_BOOT_MGMT_SUP: ibv_port_cap_flags = 8388608;
pub(crate) const IBV_PORT_LINK_LATENCY_SUP: ibv_port_cap_flags = 16777216;
pub(crate) const IBV_PORT_CLIENT_REG_SUP: ibv_port_cap_flags = 33554432;
pub(crate) const IBV_PORT_IP_BASED_GIDS: ibv_port_cap_flags = 67108864;

pub(crate) type ibv_port_cap_flags2 = c_uint;
pub(crate) const IBV_PORT_SET_NODE_DESC_SUP: ibv_port_cap_flags2 = 1;
pub(crate) const IBV_PORT_INFO_EXT_SUP: ibv_port_cap_flags2 = 2;
pub(crate) const IBV_PORT_VIRT_SUP: ibv_port_cap_flags2 = 4;
pub(crate) const IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP: ibv_port_cap_flags2 = 8;
pub(crate) const IBV_PORT_LINK_WIDTH_2X_SUP: ibv_port_cap_flags2 = 16;
pub(crate) const IBV_PORT_LINK_SPEED_HDR_SUP: ibv_port_cap_flags2 = 32;
pub(crate) const IBV_PORT_LINK_SPEED_NDR_SUP: ibv_port_cap_flags2 = 1024;

pub(crate) type ibv_port_state = c_uint;
pub(crate) const IBV_PORT_NOP: ibv_port_state = 0;
pub(crate) const IBV_PORT_DOWN: ibv_port_state = 1;
pub(crate) const IBV_PORT_INIT: ibv_port_state = 2;
pub(crate) const IBV_PORT_ARMED: ibv_port_state = 3;
pub(crate) const IBV_PORT_ACTIVE: ibv_port_state = 4;
pub(crate) const IBV_PORT_ACTIVE_DEFER: ibv_port_state = 5;

pub(crate) type ibv_qp_attr_mask = c_uint;
pub(crate) const IBV_QP_STATE: ibv_qp_attr_mask = 1;
pub(crate) const IBV_QP_CUR_STATE: ibv_qp_attr_mask = 2;
pub(crate) const IBV_QP_EN_SQD_ASYNC_NOTIFY: ibv_qp_attr_mask = 4;
pub(crate) const IBV_QP_ACCESS_FLAGS: ibv_qp_attr_mask = 8;
pub(crate) const IBV_QP_PKEY_INDEX: ibv_qp_attr_mask = 16;
pub(crate) const IBV_QP_PORT: ibv_qp_attr_mask = 32;
pub(crate) const IBV_QP_QKEY: ibv_qp_attr_mask = 64;
pub(crate) const IBV_QP_AV: ibv_qp_attr_mask = 128;
pub(crate) const IBV_QP_PATH_MTU: ibv_qp_attr_mask = 256;
pub(crate) const IBV_QP_TIMEOUT: ibv_qp_attr_mask = 512;
pub(crate) const IBV_QP_RETRY_CNT: ibv_qp_attr_mask = 1024;
pub(crate) const IBV_QP_RNR_RETRY: ibv_qp_attr_mask = 2048;
pub(crate) const IBV_QP_RQ_PSN: ibv_qp_attr_mask = 4096;
pub(crate) const IBV_QP_MAX_QP_RD_ATOMIC: ibv_qp_attr_mask = 8192;
pub(crate) const IBV_QP_ALT_PATH: ibv_qp_attr_mask = 16384;
pub(crate) const IBV_QP_MIN_RNR_TIMER: ibv_qp_attr_mask = 32768;
pub(crate) const IBV_QP_SQ_PSN: ibv_qp_attr_mask = 65536;
pub(crate) const IBV_QP_MAX_DEST_RD_ATOMIC: ibv_qp_attr_mask = 131072;
pub(crate) const IBV_QP_PATH_MIG_STATE: ibv_qp_attr_mask = 262144;
pub(crate) const IBV_QP_CAP: ibv_qp_attr_mask = 524288;
pub(crate) const IBV_QP_DEST_QPN: ibv_qp_attr_mask = 1048576;
pub(crate) const IBV_QP_RATE_LIMIT: ibv_qp_attr_mask = 33554432;

pub(crate) type ibv_qp_create_flags = c_uint;
pub(crate) const IBV_QP_CREATE_BLOCK_SELF_MCAST_LB: ibv_qp_create_flags = 2;
pub(crate) const IBV_QP_CREATE_SCATTER_FCS: ibv_qp_create_flags = 256;
pub(crate) const IBV_QP_CREATE_CVLAN_STRIPPING: ibv_qp_create_flags = 512;
pub(crate) const IBV_QP_CREATE_SOURCE_QPN: ibv_qp_create_flags = 1024;
pub(crate) const IBV_QP_CREATE_PCI_WRITE_END_PADDING: ibv_qp_create_flags = 2048;

pub(crate) type ibv_qp_init_attr_mask = c_uint;
pub(crate) const IBV_QP_INIT_ATTR_PD: ibv_qp_init_attr_mask = 1;
pub(crate) const IBV_QP_INIT_ATTR_XRCD: ibv_qp_init_attr_mask = 2;
pub(crate) const IBV_QP_INIT_ATTR_CREATE_FLAGS: ibv_qp_init_attr_mask = 4;
pub(crate) const IBV_QP_INIT_ATTR_MAX_TSO_HEADER: ibv_qp_init_attr_mask = 8;
pub(crate) const IBV_QP_INIT_ATTR_IND_TABLE: ibv_qp_init_attr_mask = 16;
pub(crate) const IBV_QP_INIT_ATTR_RX_HASH: ibv_qp_init_attr_mask = 32;
pub(crate) const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: ibv_qp_init_attr_mask = 64;

pub(crate) type ibv_qp_create_send_ops_flags = u64;
pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE: ibv_qp_create_send_ops_flags = 1;
pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: ibv_qp_create_send_ops_flags = 2;
pub(crate) const IBV_QP_EX_WITH_SEND: ibv_qp_create_send_ops_flags = 4;
pub(crate) const IBV_QP_EX_WITH_SEND_WITH_IMM: ibv_qp_create_send_ops_flags = 8;
pub(crate) const IBV_QP_EX_WITH_RDMA_READ: ibv_qp_create_send_ops_flags = 16;
pub(crate) const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: ibv_qp_create_send_ops_flags = 32;
pub(crate) const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: ibv_qp_create_send_ops_flags = 64;
pub(crate) const IBV_QP_EX_WITH_LOCAL_INV: ibv_qp_create_send_ops_flags = 128;
pub(crate) const IBV_QP_EX_WITH_BIND_MW: ibv_qp_create_send_ops_flags = 256;
pub(crate) const IBV_QP_EX_WITH_SEND_WITH_INV: ibv_qp_create_send_ops_flags = 512;
pub(crate) const IBV_QP_EX_WITH_TSO: ibv_qp_create_send_ops_flags = 1024;
pub(crate) const IBV_QP_EX_WITH_ATOMIC_WRITE: ibv_qp_create_send_ops_flags = 4096;

pub(crate) type ibv_qp_open_attr_mask = c_uint;
pub(crate) const IBV_QP_OPEN_ATTR_NUM: ibv_qp_open_attr_mask = 1;
pub(crate) const IBV_QP_OPEN_ATTR_XRCD: ibv_qp_open_attr_mask = 2;
pub(crate) const IBV_QP_OPEN_ATTR_CONTEXT: ibv_qp_open_attr_mask = 4;
pub(crate) const IBV_QP_OPEN_ATTR_TYPE: ibv_qp_open_attr_mask = 8;
pub(crate) const IBV_QP_OPEN_ATTR_RESERVED: ibv_qp_open_attr_mask = 16;

pub(crate) type ibv_qp_state = c_uint;
pub(crate) const IBV_QPS_RESET: ibv_qp_state = 0;
pub(crate) const IBV_QPS_INIT: ibv_qp_state = 1;
pub(crate) const IBV_QPS_RTR: ibv_qp_state = 2;
pub(crate) const IBV_QPS_RTS: ibv_qp_state = 3;
pub(crate) const IBV_QPS_SQD: ibv_qp_state = 4;
pub(crate) const IBV_QPS_SQE: ibv_qp_state = 5;
pub(crate) const IBV_QPS_ERR: ibv_qp_state = 6;
pub(crate) const IBV_QPS_UNKNOWN: ibv_qp_state = 7;

pub(crate) type ibv_qp_type = c_uint;
pub(crate) const IBV_QPT_RC: ibv_qp_type = 2;
pub(crate) const IBV_QPT_UC: ibv_qp_type = 3;
pub(crate) const IBV_QPT_UD: ibv_qp_type = 4;
pub(crate) const IBV_QPT_RAW_PACKET: ibv_qp_type = 8;
pub(crate) const IBV_QPT_XRC_SEND: ibv_qp_type = 9;
pub(crate) const IBV_QPT_XRC_RECV: ibv_qp_type = 10;
pub(crate) const IBV_QPT_DRIVER: ibv_qp_type = 255;

pub(crate) type ibv_rate = c_uint;
pub(crate) const IBV_RATE_MAX: ibv_rate = 0;
pub(crate) const IBV_RATE_2_5_GBPS: ibv_rate = 2;
pub(crate) const IBV_RATE_5_GBPS: ibv_rate = 5;
pub(crate) const IBV_RATE_10_GBPS: ibv_rate = 3;
pub(crate) const IBV_RATE_20_GBPS: ibv_rate = 6;
pub(crate) const IBV_RATE_30_GBPS: ibv_rate = 4;
pub(crate) const IBV_RATE_40_GBPS: ibv_rate = 7;
pub(crate) const IBV_RATE_60_GBPS: ibv_rate = 8;
pub(crate) const IBV_RATE_80_GBPS: ibv_rate = 9;
pub(crate) const IBV_RATE_120_GBPS: ibv_rate = 10;
pub(crate) const IBV_RATE_14_GBPS: ibv_rate = 11;
pub(crate) const IBV_RATE_56_GBPS: ibv_rate = 12;
pub(crate) const IBV_RATE_112_GBPS: ibv_rate = 13;
pub(crate) const IBV_RATE_168_GBPS: ibv_rate = 14;
pub(crate) const IBV_RATE_25_GBPS: ibv_rate = 15;
pub(crate) const IBV_RATE_100_GBPS: ibv_rate = 16;
pub(crate) const IBV_RATE_200_GBPS: ibv_rate = 17;
pub(crate) const IBV_RATE_300_GBPS: ibv_rate = 18;
pub(crate) const IBV_RATE_28_GBPS: ibv_rate = 19;
pub(crate) const IBV_RATE_50_GBPS: ibv_rate = 20;
pub(crate) const IBV_RATE_400_GBPS: ibv_rate = 21;
pub(crate) const IBV_RATE_600_GBPS: ibv_rate = 22;
pub(crate) const IBV_RATE_800_GBPS: ibv_rate = 23;
pub(crate) const IBV_RATE_1200_GBPS: ibv_rate = 24;

pub(crate) type ibv_rereg_mr_err_code = c_int;
pub(crate) const IBV_REREG_MR_ERR_INPUT: ibv_rereg_mr_err_code = -1;
pub(crate) const IBV_REREG_MR_ERR_DONT_FORK_NEW: ibv_rereg_mr_err_code = -2;
pub(crate) const IBV_REREG_MR_ERR_DO_FORK_OLD: ibv_rereg_mr_err_code = -3;
pub(crate) const IBV_REREG_MR_ERR_CMD: ibv_rereg_mr_err_code = -4;
pub(crate) const IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW: ibv_rereg_mr_err_code = -5;

pub(crate) type ibv_rereg_mr_flags = c_uint;
pub(crate) const IBV_REREG_MR_CHANGE_TRANSLATION: ibv_rereg_mr_flags = 1;
pub(crate) const IBV_REREG_MR_CHANGE_PD: ibv_rereg_mr_flags = 2;
pub(crate) const IBV_REREG_MR_CHANGE_ACCESS: ibv_rereg_mr_flags = 4;
pub(crate) const IBV_REREG_MR_FLAGS_SUPPORTED: ibv_rereg_mr_flags = 7;

pub(crate) type ibv_send_flags = c_uint;
pub(crate) const IBV_SEND_FENCE: ibv_send_flags = 1;
pub(crate) const IBV_SEND_SIGNALED: ibv_send_flags = 2;
pub(crate) const IBV_SEND_SOLICITED: ibv_send_flags = 4;
pub(crate) const IBV_SEND_INLINE: ibv_send_flags = 8;
pub(crate) const IBV_SEND_IP_CSUM: ibv_send_flags = 16;

pub(crate) type ibv_srq_attr_mask = c_uint;
pub(crate) const IBV_SRQ_MAX_WR: ibv_srq_attr_mask = 1;
pub(crate) const IBV_SRQ_LIMIT: ibv_srq_attr_mask = 2;

pub(crate) type ibv_srq_init_attr_mask = c_uint;
pub(crate) const IBV_SRQ_INIT_ATTR_TYPE: ibv_srq_init_attr_mask = 1;
pub(crate) const IBV_SRQ_INIT_ATTR_PD: ibv_srq_init_attr_mask = 2;
pub(crate) const IBV_SRQ_INIT_ATTR_XRCD: ibv_srq_init_attr_mask = 4;
pub(crate) const IBV_SRQ_INIT_ATTR_CQ: ibv_srq_init_attr_mask = 8;
pub(crate) const IBV_SRQ_INIT_ATTR_TM: ibv_srq_init_attr_mask = 16;
pub(crate) const IBV_SRQ_INIT_ATTR_RESERVED: ibv_srq_init_attr_mask = 32;

pub(crate) type ibv_srq_type = c_uint;
pub(crate) const IBV_SRQT_BASIC: ibv_srq_type = 0;
pub(crate) const IBV_SRQT_XRC: ibv_srq_type = 1;
pub(crate) const IBV_SRQT_TM: ibv_srq_type = 2;

pub(crate) type ibv_tm_cap_flags = c_uint;
pub(crate) const IBV_TM_CAP_RC: ibv_tm_cap_flags = 1;

pub(crate) type ibv_transport_type = c_int;
pub(crate) const IBV_TRANSPORT_UNKNOWN: ibv_transport_type = -1;
pub(crate) const IBV_TRANSPORT_IB: ibv_transport_type = 0;
pub(crate) const IBV_TRANSPORT_IWARP: ibv_transport_type = 1;
pub(crate) const IBV_TRANSPORT_USNIC: ibv_transport_type = 2;
pub(crate) const IBV_TRANSPORT_USNIC_UDP: ibv_transport_type = 3;
pub(crate) const IBV_TRANSPORT_UNSPECIFIED: ibv_transport_type = 4;

pub(crate) type ibv_values_mask = c_uint;
pub(crate) const IBV_VALUES_MASK_RAW_CLOCK: ibv_values_mask = 1;
pub(crate) const IBV_VALUES_MASK_RESERVED: ibv_values_mask = 2;

pub(crate) type ibv_wc_flags = c_uint;
pub(crate) const IBV_WC_GRH: ibv_wc_flags = 1;
pub(crate) const IBV_WC_WITH_IMM: ibv_wc_flags = 2;
pub(crate) const IBV_WC_IP_CSUM_OK: ibv_wc_flags = 4;
pub(crate) const IBV_WC_WITH_INV: ibv_wc_flags = 8;
pub(crate) const IBV_WC_TM_SYNC_REQ: ibv_wc_flags = 16;
pub(crate) const IBV_WC_TM_MATCH: ibv_wc_flags = 32;
pub(crate) const IBV_WC_TM_DATA_VALID: ibv_wc_flags = 64;

pub(crate) type ibv_wc_opcode = c_uint;
pub(crate) const IBV_WC_SEND: ibv_wc_opcode = 0;
pub(crate) const IBV_WC_RDMA_WRITE: ibv_wc_opcode = 1;
pub(crate) const IBV_WC_RDMA_READ: ibv_wc_opcode = 2;
pub(crate) const IBV_WC_COMP_SWAP: ibv_wc_opcode = 3;
pub(crate) const IBV_WC_FETCH_ADD: ibv_wc_opcode = 4;
pub(crate) const IBV_WC_BIND_MW: ibv_wc_opcode = 5;
pub(crate) const IBV_WC_LOCAL_INV: ibv_wc_opcode = 6;
pub(crate) const IBV_WC_TSO: ibv_wc_opcode = 7;
pub(crate) const IBV_WC_ATOMIC_WRITE: ibv_wc_opcode = 9;
pub(crate) const IBV_WC_RECV: ibv_wc_opcode = 128;
pub(crate) const IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = 129;
pub(crate) const IBV_WC_TM_ADD: ibv_wc_opcode = 130;
pub(crate) const IBV_WC_TM_DEL: ibv_wc_opcode = 131;
pub(crate) const IBV_WC_TM_SYNC: ibv_wc_opcode = 132;
pub(crate) const IBV_WC_TM_RECV: ibv_wc_opcode = 133;
pub(crate) const IBV_WC_TM_NO_TAG: ibv_wc_opcode = 134;
pub(crate) const IBV_WC_DRIVER1: ibv_wc_opcode = 135;
pub(crate) const IBV_WC_DRIVER2: ibv_wc_opcode = 136;
pub(crate) const IBV_WC_DRIVER3: ibv_wc_opcode = 137;

pub(crate) type ibv_wc_status = c_uint;
pub(crate) const IBV_WC_SUCCESS: ibv_wc_status = 0;
pub(crate) const IBV_WC_LOC_LEN_ERR: ibv_wc_status = 1;
pub(crate) const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = 2;
pub(crate) const IBV_WC_LOC_EEC_OP_ERR: ibv_wc_status = 3;
pub(crate) const IBV_WC_LOC_PROT_ERR: ibv_wc_status = 4;
pub(crate) const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = 5;
pub(crate) const IBV_WC_MW_BIND_ERR: ibv_wc_status = 6;
pub(crate) const IBV_WC_BAD_RESP_ERR: ibv_wc_status = 7;
pub(crate) const IBV_WC_LOC_ACCESS_ERR: ibv_wc_status = 8;
pub(crate) const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = 9;
pub(crate) const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = 10;
pub(crate) const IBV_WC_REM_OP_ERR: ibv_wc_status = 11;
pub(crate) const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = 12;
pub(crate) const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = 13;
pub(crate) const IBV_WC_LOC_RDD_VIOL_ERR: ibv_wc_status = 14;
pub(crate) const IBV_WC_REM_INV_RD_REQ_ERR: ibv_wc_status = 15;
pub(crate) const IBV_WC_REM_ABORT_ERR: ibv_wc_status = 16;
pub(crate) const IBV_WC_INV_EECN_ERR: ibv_wc_status = 17;
pub(crate) const IBV_WC_INV_EEC_STATE_ERR: ibv_wc_status = 18;
pub(crate) const IBV_WC_FATAL_ERR: ibv_wc_status = 19;
pub(crate) const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = 20;
pub(crate) const IBV_WC_GENERAL_ERR: ibv_wc_status = 21;
pub(crate) const IBV_WC_TM_ERR: ibv_wc_status = 22;
pub(crate) const IBV_WC_TM_RNDV_INCOMPLETE: ibv_wc_status = 23;

pub(crate) type ibv_wr_opcode = c_uint;
pub(crate) const IBV_WR_RDMA_WRITE: ibv_wr_opcode = 0;
pub(crate) const IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_opcode = 1;
pub(crate) const IBV_WR_SEND: ibv_wr_opcode = 2;
pub(crate) const IBV_WR_SEND_WITH_IMM: ibv_wr_opcode = 3;
pub(crate) const IBV_WR_RDMA_READ: ibv_wr_opcode = 4;
pub(crate) const IBV_WR_ATOMIC_CMP_AND_SWP: ibv_wr_opcode = 5;
pub(crate) const IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_opcode = 6;
pub(crate) const IBV_WR_LOCAL_INV: ibv_wr_opcode = 7;
pub(crate) const IBV_WR_BIND_MW: ibv_wr_opcode = 8;
pub(crate) const IBV_WR_SEND_WITH_INV: ibv_wr_opcode = 9;
pub(crate) const IBV_WR_TSO: ibv_wr_opcode = 10;
pub(crate) const IBV_WR_DRIVER1: ibv_wr_opcode = 11;
pub(crate) const IBV_WR_ATOMIC_WRITE: ibv_wr_opcode = 15;

pub(crate) type ibv_xrcd_init_attr_mask = c_uint;
pub(crate) const IBV_XRCD_INIT_ATTR_FD: ibv_xrcd_init_attr_mask = 1;
pub(crate) const IBV_XRCD_INIT_ATTR_OFLAGS: ibv_xrcd_init_attr_mask = 2;
pub(crate) const IBV_XRCD_INIT_ATTR_RESERVED: ibv_xrcd_init_attr_mask = 4;

pub(crate) type rdma_cm_event_type = c_uint;
pub(crate) const RDMA_CM_EVENT_ADDR_RESOLVED: rdma_cm_event_type = 0;
pub(crate) const RDMA_CM_EVENT_ADDR_ERROR: rdma_cm_event_type = 1;
pub(crate) const RDMA_CM_EVENT_ROUTE_RESOLVED: rdma_cm_event_type = 2;
pub(crate) const RDMA_CM_EVENT_ROUTE_ERROR: rdma_cm_event_type = 3;
pub(crate) const RDMA_CM_EVENT_CONNECT_REQUEST: rdma_cm_event_type = 4;
pub(crate) const RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = 5;
pub(crate) const RDMA_CM_EVENT_CONNECT_ERROR: rdma_cm_event_type = 6;
pub(crate) const RDMA_CM_EVENT_UNREACHABLE: rdma_cm_event_type = 7;
pub(crate) const RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = 8;
pub(crate) const RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = 9;
pub(crate) const RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = 10;
pub(crate) const RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_cm_event_type = 11;
pub(crate) const RDMA_CM_EVENT_MULTICAST_JOIN: rdma_cm_event_type = 12;
pub(crate) const RDMA_CM_EVENT_MULTICAST_ERROR: rdma_cm_event_type = 13;
pub(crate) const RDMA_CM_EVENT_ADDR_CHANGE: rdma_cm_event_type = 14;
pub(crate) const RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = 15;

pub(crate) type rdma_cm_join_mc_attr_mask = c_uint;
pub(crate) const RDMA_CM_JOIN_MC_ATTR_ADDRESS: rdma_cm_join_mc_attr_mask = 1;
pub(crate) const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: rdma_cm_join_mc_attr_mask = 2;
pub(crate) const RDMA_CM_JOIN_MC_ATTR_RESERVED: rdma_cm_join_mc_attr_mask = 4;

pub(crate) type rdma_cm_mc_join_flags = c_uint;
pub(crate) const RDMA_MC_JOIN_FLAG_FULLMEMBER: rdma_cm_mc_join_flags = 0;
pub(crate) const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: rdma_cm_mc_join_flags = 1;
pub(crate) const RDMA_MC_JOIN_FLAG_RESERVED: rdma_cm_mc_join_flags = 2;

pub(crate) type rdma_port_space = c_uint;
pub(crate) const RDMA_PS_IPOIB: rdma_port_space = 2;
pub(crate) const RDMA_PS_TCP: rdma_port_space = 262;
pub(crate) const RDMA_PS_UDP: rdma_port_space = 273;
pub(crate) const RDMA_PS_IB: rdma_port_space = 319;

pub(crate) const IBV_ACCESS_OPTIONAL_FIRST: u32 = 1048576;
pub(crate) const IBV_PATH_RECORD_REVERSIBLE: u32 = 128;
pub(crate) const IBV_PATH_FLAG_GMP: u32 = 1;
pub(crate) const IBV_PATH_FLAG_PRIMARY: u32 = 2;
pub(crate) const IBV_PATH_FLAG_ALTERNATE: u32 = 4;
pub(crate) const IBV_PATH_FLAG_OUTBOUND: u32 = 8;
pub(crate) const IBV_PATH_FLAG_INBOUND: u32 = 16;
pub(crate) const IBV_PATH_FLAG_INBOUND_REVERSE: u32 = 32;
pub(crate) const IBV_PATH_FLAG_BIDIRECTIONAL: u32 = 40;
pub(crate) const RDMA_IB_IP_PORT_MASK: u32 = 65535;
pub(crate) const RDMA_IB_IP_PS_TCP: u32 = 17170432;
pub(crate) const RDMA_IB_IP_PS_UDP: u32 = 17891328;
pub(crate) const RDMA_IB_PS_IB: u32 = 20905984;
pub(crate) const RDMA_UDP_QKEY: u32 = 19088743;
pub(crate) const RAI_PASSIVE: u32 = 1;
pub(crate) const RAI_NUMERICHOST: u32 = 2;
pub(crate) const RAI_NOROUTE: u32 = 4;
pub(crate) const RAI_FAMILY: u32 = 8;
pub(crate) const IBV_DEVICE_RAW_SCATTER_FCS: u64 = 17179869184;
pub(crate) const IBV_DEVICE_PCI_WRITE_END_PADDING: u64 = 68719476736;
pub(crate) const IBV_LINK_LAYER_UNSPECIFIED: c_uint = 0;
pub(crate) const IBV_LINK_LAYER_INFINIBAND: c_uint = 1;
pub(crate) const IBV_LINK_LAYER_ETHERNET: c_uint = 2;
pub(crate) const IBV_WC_IP_CSUM_OK_SHIFT: c_uint = 2;
pub(crate) const IBV_WC_STANDARD_FLAGS: c_uint = 127;
pub(crate) const IBV_CREATE_CQ_SUP_WC_FLAGS: c_uint = 4095;
pub(crate) const IBV_SYSFS_NAME_MAX: c_uint = 64;
pub(crate) const IBV_SYSFS_PATH_MAX: c_uint = 256;
pub(crate) const RDMA_MAX_RESP_RES: c_uint = 255;
pub(crate) const RDMA_MAX_INIT_DEPTH: c_uint = 255;
pub(crate) const RDMA_OPTION_ID: c_uint = 0;
pub(crate) const RDMA_OPTION_IB: c_uint = 1;
pub(crate) const RDMA_OPTION_ID_TOS: c_uint = 0;
pub(crate) const RDMA_OPTION_ID_REUSEADDR: c_uint = 1;
pub(crate) const RDMA_OPTION_ID_AFONLY: c_uint = 2;
pub(crate) const RDMA_OPTION_ID_ACK_TIMEOUT: c_uint = 3;
pub(crate) const RDMA_OPTION_IB_PATH: c_uint = 1;
