//! Attributes of queue pairs: from C to the device, and back.

use oarlock_transport::{AccessFlags, AttrMask, QpAttr, QpState};
use oarlock_wire::{AddressVector, IbTimeout, Mtu, PKey, Psn, QKey, Qpn, RetryCount};

use super::ah;
use super::context::Context;
use crate::abi::*;
use crate::errno::{Refused, Result};

impl ibv_qp_cap {
    /// No queue.
    pub(super) const NONE: Self = Self {
        max_send_wr: 0,
        max_recv_wr: 0,
        max_send_sge: 0,
        max_recv_sge: 0,
        max_inline_data: 0,
    };
}

/// The attributes that `mask` names.
///
/// # Errors
/// `EINVAL`: a value that is beyond its field, an index into a table that is shorter, an address that is none of the port's.
/// What goes with which state is the device's affair.
pub(super) fn from_c(context: &Context, attr: &ibv_qp_attr, mask: u32) -> Result<QpAttr> {
    let mask = AttrMask::from_bits_retain(mask);
    let given = |bit| mask.contains(bit);
    let mut to = QpAttr {
        mask,
        ..QpAttr::default()
    };
    if given(AttrMask::STATE) {
        to.state = state(attr.qp_state)?;
    }
    if given(AttrMask::CUR_STATE) {
        to.current_state = state(attr.cur_qp_state)?;
    }
    if given(AttrMask::EN_SQD_ASYNC_NOTIFY) {
        to.sqd_notify = attr.en_sqd_async_notify != 0;
    }
    if given(AttrMask::ACCESS_FLAGS) {
        to.access = rights(attr.qp_access_flags);
    }
    if given(AttrMask::PKEY_INDEX) {
        let limit = u32::from(context.device.device().limits.max_pkeys);
        below("pkey_index", attr.pkey_index.into(), limit)?;
        to.pkey = PKey::DEFAULT;
    }
    if given(AttrMask::PORT) {
        to.port_num = attr.port_num;
    }
    if given(AttrMask::QKEY) {
        to.qkey = QKey(attr.qkey);
    }
    if given(AttrMask::AV) {
        to.av = ah::vector_of(context, &attr.ah_attr)?;
    }
    if given(AttrMask::PATH_MTU) {
        // Beyond a byte: a code that the device refuses.
        to.path_mtu = Mtu(u8::try_from(attr.path_mtu).unwrap_or(u8::MAX));
    }
    if given(AttrMask::DEST_QPN) {
        to.dest_qpn = field("dest_qp_num", attr.dest_qp_num, Qpn::new)?;
    }
    // The fields are 32 bits wide, the numbers 24: the upper bits mean nothing on any device.
    if given(AttrMask::RQ_PSN) {
        to.rq_psn = Psn::truncate(attr.rq_psn);
    }
    if given(AttrMask::SQ_PSN) {
        to.sq_psn = Psn::truncate(attr.sq_psn);
    }
    if given(AttrMask::MAX_DEST_RD_ATOMIC) {
        to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    }
    if given(AttrMask::MAX_QP_RD_ATOMIC) {
        to.max_rd_atomic = attr.max_rd_atomic;
    }
    if given(AttrMask::MIN_RNR_TIMER) {
        to.min_rnr_timer = attr.min_rnr_timer;
    }
    if given(AttrMask::TIMEOUT) {
        to.timeout = field("timeout", attr.timeout, IbTimeout::new)?;
    }
    if given(AttrMask::RETRY_CNT) {
        to.retry_count = field("retry_cnt", attr.retry_cnt, RetryCount::new)?;
    }
    if given(AttrMask::RNR_RETRY) {
        to.rnr_retry = field("rnr_retry", attr.rnr_retry, RetryCount::new)?;
    }
    Ok(to)
}

/// All attributes.
pub(super) fn to_c(context: &Context, attr: &QpAttr, cap: ibv_qp_cap) -> ibv_qp_attr {
    let given = |bit| attr.mask.contains(bit);
    let ah_attr = if given(AttrMask::AV) {
        ah_attr(context, &attr.av)
    } else {
        // SAFETY: every field is an integer, for which zero is a value.
        unsafe { std::mem::zeroed() }
    };
    ibv_qp_attr {
        qp_state: attr.state as ibv_qp_state,
        cur_qp_state: attr.state as ibv_qp_state,
        path_mtu: attr.path_mtu.0.into(),
        path_mig_state: IBV_MIG_MIGRATED,
        qkey: attr.qkey.0,
        rq_psn: attr.rq_psn.get(),
        sq_psn: attr.sq_psn.get(),
        dest_qp_num: attr.dest_qpn.get(),
        qp_access_flags: attr.access.bits(),
        cap,
        ah_attr,
        // SAFETY: as above.
        alt_ah_attr: unsafe { std::mem::zeroed() },
        pkey_index: 0,
        alt_pkey_index: 0,
        en_sqd_async_notify: attr.sqd_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: if given(AttrMask::PORT) {
            attr.port_num
        } else {
            0
        },
        timeout: attr.timeout.get(),
        retry_cnt: attr.retry_count.get(),
        rnr_retry: attr.rnr_retry.get(),
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}

/// A path as C has it; the index of an address that is no longer the port's is 0.
fn ah_attr(context: &Context, av: &AddressVector) -> ibv_ah_attr {
    let gids = context.device.gids();
    let index = gids.iter().position(|gid| *gid == av.local);
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.remote.0 },
            flow_label: av.flow_label.get(),
            sgid_index: index.and_then(|i| u8::try_from(i).ok()).unwrap_or(0),
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: 0,
        sl: av.service_level,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: context.device.device().port_num,
    }
}

/// What the peer may do. Other rights of memory say nothing of a queue pair, and a device looks at these only.
fn rights(access: u32) -> AccessFlags {
    const GRANTED: AccessFlags = AccessFlags::LOCAL_WRITE
        .union(AccessFlags::REMOTE_WRITE)
        .union(AccessFlags::REMOTE_READ)
        .union(AccessFlags::REMOTE_ATOMIC);
    AccessFlags::from_bits_retain(access) & GRANTED
}

fn state(number: ibv_qp_state) -> Result<QpState> {
    Ok(match number {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::Rtr,
        IBV_QPS_RTS => QpState::Rts,
        IBV_QPS_SQD => QpState::Sqd,
        IBV_QPS_SQE => QpState::Sqe,
        IBV_QPS_ERR => QpState::Error,
        other => {
            let sentence = format!("{other} is no state of a queue pair");
            return Err(Refused::new(libc::EINVAL, sentence));
        }
    })
}

fn field<N: Copy + std::fmt::Display, T>(
    name: &str,
    given: N,
    new: impl Fn(N) -> Option<T>,
) -> Result<T> {
    new(given)
        .ok_or_else(|| Refused::new(libc::EINVAL, format!("{name} is {given}, beyond its field")))
}

fn below(name: &str, given: u32, limit: u32) -> Result<()> {
    if given < limit {
        return Ok(());
    }
    Err(Refused::new(
        libc::EINVAL,
        format!("{name} is {given}, must be below {limit}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_numbers_of_the_header() {
        for number in IBV_QPS_RESET..=IBV_QPS_ERR {
            assert_eq!(state(number).expect("a state") as ibv_qp_state, number);
        }
        for number in [IBV_QPS_UNKNOWN, 8, u32::MAX] {
            assert_eq!(state(number).err().map(|e| e.errno.0), Some(libc::EINVAL));
        }
    }

    #[test]
    fn a_queue_pair_grants_the_three_rights_of_peers() {
        let all = IBV_ACCESS_MW_BIND
            | IBV_ACCESS_ON_DEMAND
            | IBV_ACCESS_HUGETLB
            | IBV_ACCESS_RELAXED_ORDERING
            | IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        assert_eq!(rights(all).bits(), 0b1111);
        assert_eq!(rights(0), AccessFlags::empty());
    }

    #[test]
    fn values_beyond_their_fields_are_refused_by_name() {
        let refused = field("timeout", 32_u8, IbTimeout::new).expect_err("5 bits");
        assert_eq!(refused.errno.0, libc::EINVAL);
        assert!(refused.to_string().contains("timeout is 32"));
        field("retry_cnt", 7_u8, RetryCount::new).expect("3 bits");
        field("retry_cnt", 8_u8, RetryCount::new).expect_err("3 bits");
        below("pkey_index", 0, 1).expect("the only one");
        below("pkey_index", 1, 1).expect_err("there is one");
    }
}
