//! Our numbers beside those of the header.

use oarlock_device::{Capabilities as Cap, EVENT_KINDS};
use oarlock_transport::{
    AccessFlags as Access, AttrMask as Attr, QpState, QpType, WcOpcode, WcStatus,
};
use oarlock_wire::Mtu;

use super::{header, list, rows};

/// Operations that some type of queue pair has.
pub(super) const OPERATIONS: [&str; 10] = [
    "IBV_WR_RDMA_WRITE",
    "IBV_WR_RDMA_WRITE_WITH_IMM",
    "IBV_WR_SEND",
    "IBV_WR_SEND_WITH_IMM",
    "IBV_WR_RDMA_READ",
    "IBV_WR_ATOMIC_CMP_AND_SWP",
    "IBV_WR_ATOMIC_FETCH_AND_ADD",
    "IBV_WR_LOCAL_INV",
    "IBV_WR_BIND_MW",
    "IBV_WR_SEND_WITH_INV",
];

/// Every constant of the C interface that has a number here.
fn ours() -> Vec<(&'static str, i64)> {
    let mut all: Vec<(&'static str, i64)> = Vec::new();
    let mut add = |name, value: u64| all.push((name, value as i64));
    for (name, value) in [
        ("IBV_QPT_RC", QpType::Rc),
        ("IBV_QPT_UC", QpType::Uc),
        ("IBV_QPT_UD", QpType::Ud),
        ("IBV_QPT_XRC_SEND", QpType::XrcInitiator),
        ("IBV_QPT_XRC_RECV", QpType::XrcTarget),
    ] {
        add(name, value as u64);
    }
    for (name, value) in [
        ("IBV_QPS_RESET", QpState::Reset),
        ("IBV_QPS_INIT", QpState::Init),
        ("IBV_QPS_RTR", QpState::Rtr),
        ("IBV_QPS_RTS", QpState::Rts),
        ("IBV_QPS_SQD", QpState::Sqd),
        ("IBV_QPS_SQE", QpState::Sqe),
        ("IBV_QPS_ERR", QpState::Error),
    ] {
        add(name, value as u64);
    }
    for (name, value) in [
        ("IBV_QP_STATE", Attr::STATE),
        ("IBV_QP_CUR_STATE", Attr::CUR_STATE),
        ("IBV_QP_EN_SQD_ASYNC_NOTIFY", Attr::EN_SQD_ASYNC_NOTIFY),
        ("IBV_QP_ACCESS_FLAGS", Attr::ACCESS_FLAGS),
        ("IBV_QP_PKEY_INDEX", Attr::PKEY_INDEX),
        ("IBV_QP_PORT", Attr::PORT),
        ("IBV_QP_QKEY", Attr::QKEY),
        ("IBV_QP_AV", Attr::AV),
        ("IBV_QP_PATH_MTU", Attr::PATH_MTU),
        ("IBV_QP_TIMEOUT", Attr::TIMEOUT),
        ("IBV_QP_RETRY_CNT", Attr::RETRY_CNT),
        ("IBV_QP_RNR_RETRY", Attr::RNR_RETRY),
        ("IBV_QP_RQ_PSN", Attr::RQ_PSN),
        ("IBV_QP_MAX_QP_RD_ATOMIC", Attr::MAX_QP_RD_ATOMIC),
        ("IBV_QP_ALT_PATH", Attr::ALT_PATH),
        ("IBV_QP_MIN_RNR_TIMER", Attr::MIN_RNR_TIMER),
        ("IBV_QP_SQ_PSN", Attr::SQ_PSN),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", Attr::MAX_DEST_RD_ATOMIC),
        ("IBV_QP_PATH_MIG_STATE", Attr::PATH_MIG_STATE),
        ("IBV_QP_CAP", Attr::CAP),
        ("IBV_QP_DEST_QPN", Attr::DEST_QPN),
        ("IBV_QP_RATE_LIMIT", Attr::RATE_LIMIT),
    ] {
        add(name, value.bits().into());
    }
    for (name, value) in [
        ("IBV_ACCESS_LOCAL_WRITE", Access::LOCAL_WRITE),
        ("IBV_ACCESS_REMOTE_WRITE", Access::REMOTE_WRITE),
        ("IBV_ACCESS_REMOTE_READ", Access::REMOTE_READ),
        ("IBV_ACCESS_REMOTE_ATOMIC", Access::REMOTE_ATOMIC),
        ("IBV_ACCESS_MW_BIND", Access::MW_BIND),
        ("IBV_ACCESS_ZERO_BASED", Access::ZERO_BASED),
        ("IBV_ACCESS_ON_DEMAND", Access::ON_DEMAND),
    ] {
        add(name, value.bits().into());
    }
    for (name, value) in [
        ("IBV_WC_SUCCESS", WcStatus::SUCCESS),
        ("IBV_WC_LOC_LEN_ERR", WcStatus::LOC_LEN_ERR),
        ("IBV_WC_LOC_QP_OP_ERR", WcStatus::LOC_QP_OP_ERR),
        ("IBV_WC_LOC_EEC_OP_ERR", WcStatus::LOC_EEC_OP_ERR),
        ("IBV_WC_LOC_PROT_ERR", WcStatus::LOC_PROT_ERR),
        ("IBV_WC_WR_FLUSH_ERR", WcStatus::WR_FLUSH_ERR),
        ("IBV_WC_MW_BIND_ERR", WcStatus::MW_BIND_ERR),
        ("IBV_WC_BAD_RESP_ERR", WcStatus::BAD_RESP_ERR),
        ("IBV_WC_LOC_ACCESS_ERR", WcStatus::LOC_ACCESS_ERR),
        ("IBV_WC_REM_INV_REQ_ERR", WcStatus::REM_INV_REQ_ERR),
        ("IBV_WC_REM_ACCESS_ERR", WcStatus::REM_ACCESS_ERR),
        ("IBV_WC_REM_OP_ERR", WcStatus::REM_OP_ERR),
        ("IBV_WC_RETRY_EXC_ERR", WcStatus::RETRY_EXC_ERR),
        ("IBV_WC_RNR_RETRY_EXC_ERR", WcStatus::RNR_RETRY_EXC_ERR),
        ("IBV_WC_LOC_RDD_VIOL_ERR", WcStatus::LOC_RDD_VIOL_ERR),
        ("IBV_WC_REM_INV_RD_REQ_ERR", WcStatus::REM_INV_RD_REQ_ERR),
        ("IBV_WC_REM_ABORT_ERR", WcStatus::REM_ABORT_ERR),
        ("IBV_WC_INV_EECN_ERR", WcStatus::INV_EECN_ERR),
        ("IBV_WC_INV_EEC_STATE_ERR", WcStatus::INV_EEC_STATE_ERR),
        ("IBV_WC_FATAL_ERR", WcStatus::FATAL_ERR),
        ("IBV_WC_RESP_TIMEOUT_ERR", WcStatus::RESP_TIMEOUT_ERR),
        ("IBV_WC_GENERAL_ERR", WcStatus::GENERAL_ERR),
        ("IBV_WC_TM_ERR", WcStatus::TM_ERR),
        ("IBV_WC_TM_RNDV_INCOMPLETE", WcStatus::TM_RNDV_INCOMPLETE),
    ] {
        add(name, value.0.into());
    }
    for (name, value) in [
        ("IBV_WC_SEND", WcOpcode::SEND),
        ("IBV_WC_RDMA_WRITE", WcOpcode::RDMA_WRITE),
        ("IBV_WC_RDMA_READ", WcOpcode::RDMA_READ),
        ("IBV_WC_COMP_SWAP", WcOpcode::COMP_SWAP),
        ("IBV_WC_FETCH_ADD", WcOpcode::FETCH_ADD),
        ("IBV_WC_BIND_MW", WcOpcode::BIND_MW),
        ("IBV_WC_LOCAL_INV", WcOpcode::LOCAL_INV),
        ("IBV_WC_RECV", WcOpcode::RECV),
        ("IBV_WC_RECV_RDMA_WITH_IMM", WcOpcode::RECV_RDMA_WITH_IMM),
    ] {
        add(name, value.0.into());
    }
    for (name, value) in [
        ("IBV_MTU_256", Mtu::MTU_256),
        ("IBV_MTU_512", Mtu::MTU_512),
        ("IBV_MTU_1024", Mtu::MTU_1024),
        ("IBV_MTU_2048", Mtu::MTU_2048),
        ("IBV_MTU_4096", Mtu::MTU_4096),
    ] {
        add(name, value.0.into());
    }
    for (name, value) in [
        ("IBV_DEVICE_BAD_PKEY_CNTR", Cap::BAD_PKEY_COUNTER),
        ("IBV_DEVICE_BAD_QKEY_CNTR", Cap::BAD_QKEY_COUNTER),
        ("IBV_DEVICE_UD_AV_PORT_ENFORCE", Cap::UD_AV_PORT_ENFORCE),
        (
            "IBV_DEVICE_CURR_QP_STATE_MOD",
            Cap::CURRENT_QP_STATE_MODIFIER,
        ),
        ("IBV_DEVICE_PORT_ACTIVE_EVENT", Cap::PORT_ACTIVE_EVENT),
        ("IBV_DEVICE_SYS_IMAGE_GUID", Cap::SYSTEM_IMAGE_GUID),
        ("IBV_DEVICE_RC_RNR_NAK_GEN", Cap::RC_RNR_NAK),
        ("IBV_DEVICE_SRQ_RESIZE", Cap::SRQ_RESIZE),
        ("IBV_DEVICE_MEM_WINDOW", Cap::MEMORY_WINDOW),
        ("IBV_DEVICE_XRC", Cap::XRC),
        ("IBV_DEVICE_MEM_MGT_EXTENSIONS", Cap::MEMORY_MANAGEMENT),
        ("IBV_DEVICE_MEM_WINDOW_TYPE_2B", Cap::MEMORY_WINDOW_TYPE_2B),
    ] {
        add(name, value.bits().into());
    }
    for kind in &EVENT_KINDS {
        add(kind.name, kind.number.into());
    }
    all
}

#[test]
fn constants_have_the_numbers_of_the_header() {
    let Some(header) = header() else {
        return;
    };
    for (name, value) in ours() {
        assert_eq!(header.value(name), Some(value), "{name}");
    }
}

/// A thing that is listed as absent has no name here; what is implemented and has a number, has it here.
#[test]
fn what_is_absent_has_no_number_here() {
    let ours = ours();
    let numbered = [
        "qp type",
        "qp state",
        "qp attribute",
        "wc status",
        "wc opcode",
        "path mtu",
        "async event",
    ];
    for row in rows(&list()) {
        let is_ours = ours.iter().any(|(name, _)| *name == row.name);
        match &row.refused {
            Some(why) if why.starts_with("absent: ") => assert!(!is_ours, "{}", row.name),
            Some(_) => {}
            None if numbered.contains(&row.kind.as_str()) => assert!(is_ours, "{}", row.name),
            None => {}
        }
    }
    // A number without a name prints as a number.
    for number in [7, 8, 9, 130, 135] {
        assert_eq!(WcOpcode(number).to_string(), format!("opcode {number}"));
    }
    assert_eq!(WcStatus(24).to_string(), "status 24");
    assert_eq!(Mtu(6).bytes(), None);
}
