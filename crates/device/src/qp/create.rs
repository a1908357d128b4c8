//! What a queue pair may be created with, and the engine that it gets.

use std::sync::Arc;

use oarlock_transport::{QpType, Rc, RcConfig, RcKind, Uc, UcConfig, Ud, UdConfig};
use oarlock_wire::Qpn;

use super::QpInit;
use crate::context::DeviceInfo;
use crate::cq::Cq;
use crate::error::Error;
use crate::pd::Pd;
use crate::srq::check_range;
use crate::transport::Transport;

/// Checks everything that is given, and takes out what the queue pair has no use for.
pub(super) fn check(pd: &Pd, send_cq: &Cq, recv_cq: &Cq, init: &mut QpInit) -> Result<(), Error> {
    let context = pd.context();
    let qp_type = init.qp_type;
    let is_xrc = match qp_type {
        QpType::Rc | QpType::Uc | QpType::Ud => false,
        QpType::XrcInitiator | QpType::XrcTarget => true,
        other => return Err(Error::UnsupportedQpType(other)),
    };
    let other = |object| Err(Error::OtherContext { object });
    if !Arc::ptr_eq(send_cq.context(), context) {
        return other("completion queue for sends");
    }
    if !Arc::ptr_eq(recv_cq.context(), context) {
        return other("completion queue for receives");
    }
    if let Some(srq) = &init.srq {
        if !Arc::ptr_eq(srq.pd().context(), context) {
            return other("shared receive queue");
        }
        if is_xrc || srq.number().is_some() {
            // The packets of XRC name their queue; and a queue of XRC completes elsewhere.
            let what = if is_xrc {
                "shared receive queue of their own"
            } else {
                "shared receive queue of XRC"
            };
            return Err(Error::DoesNotTake { qp_type, what });
        }
    }
    match (&init.xrc_domain, qp_type) {
        (Some(domain), QpType::XrcTarget) => {
            if !Arc::ptr_eq(domain.context(), context) {
                return other("XRC domain");
            }
        }
        (None, QpType::XrcTarget) => {
            let what = "an XRC domain";
            return Err(Error::Needs { qp_type, what });
        }
        (Some(_), _) => {
            let what = "XRC domain";
            return Err(Error::DoesNotTake { qp_type, what });
        }
        (None, _) => {}
    }
    if qp_type == QpType::XrcTarget {
        init.max_send_wr = 0;
        init.max_send_sge = 0;
        init.max_inline_data = 0;
    }
    if is_xrc || init.srq.is_some() {
        init.max_recv_wr = 0;
        init.max_recv_sge = 0;
    }
    let limits = context.device().limits;
    let inline = limits.max_inline_data;
    check_range("max_send_wr", init.max_send_wr, 0, limits.max_qp_wr)?;
    check_range("max_recv_wr", init.max_recv_wr, 0, limits.max_qp_wr)?;
    check_range("max_send_sge", init.max_send_sge, 0, limits.max_sge)?;
    check_range("max_recv_sge", init.max_recv_sge, 0, limits.max_sge)?;
    check_range("max_inline_data", init.max_inline_data, 0, inline)
}

/// The packet engine of a queue pair that has passed [`check`].
pub(super) fn engine(
    device: &DeviceInfo,
    qpn: Qpn,
    init: &QpInit,
    shared_receives: bool,
) -> Transport {
    let connected = |kind| {
        Transport::Rc(Rc::new(RcConfig {
            qpn,
            kind,
            max_send_wr: init.max_send_wr,
            max_recv_wr: init.max_recv_wr,
            max_send_sge: init.max_send_sge,
            max_recv_sge: init.max_recv_sge,
            max_inline: init.max_inline_data,
            sq_sig_all: init.sq_sig_all,
            max_qp_rd_atom: device.limits.max_qp_rd_atom,
            max_qp_init_rd_atom: device.limits.max_qp_init_rd_atom,
            shared_receives,
            flow_control: true,
            mtu: device.max_path_mtu(),
            window: 4 * BURST,
            ack_interval: 2 * BURST,
            ..RcConfig::default()
        }))
    };
    match init.qp_type {
        QpType::Ud => Transport::Ud(Ud::new(UdConfig {
            qpn,
            max_send_wr: init.max_send_wr,
            max_recv_wr: init.max_recv_wr,
            max_send_sge: init.max_send_sge,
            max_recv_sge: init.max_recv_sge,
            max_inline: init.max_inline_data,
            sq_sig_all: init.sq_sig_all,
            shared_receives,
            mtu: device.max_path_mtu(),
        })),
        QpType::Uc => Transport::Uc(Uc::new(UcConfig {
            qpn,
            max_send_wr: init.max_send_wr,
            max_recv_wr: init.max_recv_wr,
            max_send_sge: init.max_send_sge,
            max_recv_sge: init.max_recv_sge,
            max_inline: init.max_inline_data,
            sq_sig_all: init.sq_sig_all,
            shared_receives,
            mtu: device.max_path_mtu(),
            ..UcConfig::default()
        })),
        QpType::XrcInitiator => connected(RcKind::XrcInitiator),
        QpType::XrcTarget => connected(RcKind::XrcTarget),
        _ => connected(RcKind::Rc),
    }
}

/// As many packets of the largest MTU as leave in one call (65,000 bytes); windows are multiples of it, so that no call is
/// for a remnant.
const BURST: u32 = 15;
