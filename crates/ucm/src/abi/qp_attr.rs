//! Queue pair attributes as the ABI carries them (Linux `include/uapi/rdma/ib_user_verbs.h`).

use oarlock_cma::{
    AccessFlags, InitAttr, QpAttr, QpAttrMask, RtrAttr, RtsAttr, UcRtrAttr, UdInitAttr,
};
use oarlock_wire::{AddressVector, FlowLabel, Gid, IbTimeout, Mtu, Psn, QKey, Qpn, RetryCount};
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

impl UverbsAhAttr {
    /// The way to a remote port on RoCE. The interface of a link-local address has no place here.
    #[must_use]
    pub fn new(av: &AddressVector, sgid_index: u8, port_num: u8) -> Self {
        Self {
            dgid: av.remote.0,
            flow_label: av.flow_label.get(),
            sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
            sl: av.service_level,
            is_global: 1,
            port_num,
            ..Self::default()
        }
    }

    /// The address vector; `local` is the entry of the device's GID table at `sgid_index`, with its interface (0 where none
    /// is needed).
    ///
    /// # Errors
    /// The flow label has more than 20 bits.
    pub fn address_vector(
        &self,
        (local, scope_id): (Gid, u32),
    ) -> Result<AddressVector, BadQpAttr> {
        Ok(AddressVector {
            local,
            remote: Gid(self.dgid),
            scope_id,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: narrow("flow_label", self.flow_label, FlowLabel::new)?,
            service_level: self.sl,
        })
    }
}

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
    /// `qkey`.
    pub const QKEY: u32 = 1 << 6;
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

/// Why attributes are none that a connection is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadQpAttr {
    /// A state without a recipe.
    #[error("there is no recipe for queue pair state {state}")]
    State {
        /// The state.
        state: u32,
    },
    /// Another set of attributes than the recipe of the state.
    #[error(
        "attribute mask {given:#x}, where the recipe for queue pair state {state} sets {wanted:#x}"
    )]
    Mask {
        /// The state.
        state: u32,
        /// The attributes that are set.
        given: u32,
        /// The attributes that the recipe sets.
        wanted: u32,
    },
    /// A value that its field on the wire cannot hold.
    #[error("{field} of {value:#x} does not fit its field")]
    Range {
        /// The attribute.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// The local GID's index is none of the device.
    #[error("the device's GID table has no entry {index}")]
    SgidIndex {
        /// The index.
        index: u8,
    },
}

impl From<&QpAttr> for UverbsQpAttr {
    fn from(attr: &QpAttr) -> Self {
        let start = Self {
            qp_attr_mask: attr.mask().0,
            qp_state: attr.state().0,
            ..Self::default()
        };
        match attr {
            QpAttr::Init(init) => Self {
                qp_access_flags: init.access.0,
                pkey_index: init.pkey_index,
                port_num: init.port_num,
                ..start
            },
            QpAttr::Rtr(rtr) => Self {
                ah_attr: UverbsAhAttr::new(&rtr.av, rtr.sgid_index, rtr.port_num),
                path_mtu: rtr.path_mtu.0.into(),
                dest_qp_num: rtr.dest_qpn.get(),
                rq_psn: rtr.rq_psn.get(),
                max_dest_rd_atomic: rtr.max_dest_rd_atomic,
                min_rnr_timer: rtr.min_rnr_timer,
                ..start
            },
            QpAttr::Rts(rts) => Self {
                sq_psn: rts.sq_psn.get(),
                timeout: rts.timeout.get(),
                retry_cnt: rts.retry_cnt.get(),
                rnr_retry: rts.rnr_retry.get(),
                max_rd_atomic: rts.max_rd_atomic,
                ..start
            },
            QpAttr::UcRtr(rtr) => Self {
                ah_attr: UverbsAhAttr::new(&rtr.av, rtr.sgid_index, rtr.port_num),
                path_mtu: rtr.path_mtu.0.into(),
                dest_qp_num: rtr.dest_qpn.get(),
                rq_psn: rtr.rq_psn.get(),
                ..start
            },
            QpAttr::UdInit(init) => Self {
                qkey: init.qkey.0,
                pkey_index: init.pkey_index,
                port_num: init.port_num,
                ..start
            },
            QpAttr::XrcRecvRts { sq_psn, timeout } => Self {
                sq_psn: sq_psn.get(),
                timeout: timeout.get(),
                ..start
            },
            QpAttr::UcRts { sq_psn } | QpAttr::UdRts { sq_psn } => Self {
                sq_psn: sq_psn.get(),
                ..start
            },
            _ => start,
        }
    }
}

impl UverbsQpAttr {
    /// The typed form.
    ///
    /// The ABI names the local address by its place in the device's GID table and carries no interface for link-local
    /// addresses; `gid_table` gives both: the GID at an index, and the interface (0 where none is needed). Nor does it tell
    /// unreliable connected queue pairs from datagram ones on the way to RTS, where both get nothing but `sq_psn`: the answer
    /// is then [`QpAttr::UdRts`].
    ///
    /// # Errors
    /// The state has no recipe, the mask is not the recipe's, or a value does not fit its field.
    pub fn to_typed(
        &self,
        gid_table: impl FnOnce(u8) -> Option<(Gid, u32)>,
    ) -> Result<QpAttr, BadQpAttr> {
        let mask = QpAttrMask(self.qp_attr_mask);
        let attr = match self.qp_state {
            qp_state::INIT if mask == QpAttrMask::UD_INIT => QpAttr::UdInit(UdInitAttr {
                qkey: QKey(self.qkey),
                pkey_index: self.pkey_index,
                port_num: self.port_num,
            }),
            qp_state::INIT => QpAttr::Init(InitAttr {
                access: AccessFlags(self.qp_access_flags),
                pkey_index: self.pkey_index,
                port_num: self.port_num,
            }),
            qp_state::RTR if mask == QpAttrMask::UD_RTR => QpAttr::UdRtr,
            qp_state::RTR if mask == QpAttrMask::UC_RTR => QpAttr::UcRtr(self.uc_rtr(gid_table)?),
            qp_state::RTR => QpAttr::Rtr(self.rtr(gid_table)?),
            qp_state::RTS if mask == QpAttrMask::UD_RTS => QpAttr::UdRts {
                sq_psn: narrow("sq_psn", self.sq_psn, Psn::new)?,
            },
            qp_state::RTS if mask == QpAttrMask::XRC_RECV_RTS => QpAttr::XrcRecvRts {
                sq_psn: narrow("sq_psn", self.sq_psn, Psn::new)?,
                timeout: narrow("timeout", self.timeout, IbTimeout::new)?,
            },
            qp_state::RTS => QpAttr::Rts(RtsAttr {
                sq_psn: narrow("sq_psn", self.sq_psn, Psn::new)?,
                timeout: narrow("timeout", self.timeout, IbTimeout::new)?,
                retry_cnt: narrow("retry_cnt", self.retry_cnt, RetryCount::new)?,
                rnr_retry: narrow("rnr_retry", self.rnr_retry, RetryCount::new)?,
                max_rd_atomic: self.max_rd_atomic,
            }),
            state => return Err(BadQpAttr::State { state }),
        };
        let (given, wanted) = (self.qp_attr_mask, attr.mask().0);
        if given != wanted {
            return Err(BadQpAttr::Mask {
                state: self.qp_state,
                given,
                wanted,
            });
        }
        Ok(attr)
    }

    fn uc_rtr(
        &self,
        gid_table: impl FnOnce(u8) -> Option<(Gid, u32)>,
    ) -> Result<UcRtrAttr, BadQpAttr> {
        let ah = &self.ah_attr;
        let index = ah.sgid_index;
        let local = gid_table(index).ok_or(BadQpAttr::SgidIndex { index })?;
        let mtu = u8::try_from(self.path_mtu)
            .ok()
            .map(Mtu)
            .filter(|mtu| mtu.bytes().is_some());
        Ok(UcRtrAttr {
            av: ah.address_vector(local)?,
            sgid_index: index,
            port_num: ah.port_num,
            path_mtu: mtu.ok_or(BadQpAttr::Range {
                field: "path_mtu",
                value: self.path_mtu,
            })?,
            dest_qpn: narrow("dest_qp_num", self.dest_qp_num, Qpn::new)?,
            rq_psn: narrow("rq_psn", self.rq_psn, Psn::new)?,
        })
    }

    /// What unreliable connected queue pairs have too, and what reliable ones add.
    fn rtr(&self, gid_table: impl FnOnce(u8) -> Option<(Gid, u32)>) -> Result<RtrAttr, BadQpAttr> {
        let common = self.uc_rtr(gid_table)?;
        Ok(RtrAttr {
            av: common.av,
            sgid_index: common.sgid_index,
            port_num: common.port_num,
            path_mtu: common.path_mtu,
            dest_qpn: common.dest_qpn,
            rq_psn: common.rq_psn,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
        })
    }
}

fn narrow<T: Copy + Into<u32>, N>(
    field: &'static str,
    value: T,
    new: impl FnOnce(T) -> Option<N>,
) -> Result<N, BadQpAttr> {
    new(value).ok_or(BadQpAttr::Range {
        field,
        value: value.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipes() -> [QpAttr; 3] {
        let av = AddressVector {
            scope_id: 3,
            traffic_class: 7,
            hop_limit: 9,
            flow_label: FlowLabel::truncate(0xABCDE),
            service_level: 2,
            ..AddressVector::new(Gid([1; 16]), Gid([2; 16]))
        };
        [
            QpAttr::Init(InitAttr {
                access: AccessFlags::REMOTE_READ,
                pkey_index: 0,
                port_num: 1,
            }),
            QpAttr::Rtr(RtrAttr {
                av,
                sgid_index: 4,
                port_num: 1,
                path_mtu: Mtu::MTU_1024,
                dest_qpn: Qpn::truncate(0x123456),
                rq_psn: Psn::truncate(0xABCDEF),
                max_dest_rd_atomic: 5,
                min_rnr_timer: 12,
            }),
            QpAttr::Rts(RtsAttr {
                sq_psn: Psn::truncate(0xFEDCBA),
                timeout: IbTimeout::truncate(17),
                retry_cnt: RetryCount::truncate(6),
                rnr_retry: RetryCount::truncate(5),
                max_rd_atomic: 3,
            }),
        ]
    }

    /// R-PAR-4: the recipe that leaves the service is the one that reaches the queue pair.
    #[test]
    fn recipes_survive_the_abi() {
        for attr in recipes() {
            let raw = UverbsQpAttr::from(&attr);
            let table = |index: u8| (index == 4).then_some((Gid([1; 16]), 3));
            assert_eq!(raw.to_typed(table), Ok(attr));
        }
    }

    /// R-PAR-4: so do those of datagram, unreliable connected and XRC queue pairs.
    #[test]
    fn recipes_of_other_queue_pair_types_survive_the_abi() {
        let [_, rtr, _] = recipes();
        let QpAttr::Rtr(rtr) = rtr else {
            unreachable!("the second recipe leads to RTR")
        };
        let sq_psn = Psn::truncate(0xFEDCBA);
        let uc_rtr = QpAttr::UcRtr(UcRtrAttr {
            av: rtr.av,
            sgid_index: rtr.sgid_index,
            port_num: rtr.port_num,
            path_mtu: rtr.path_mtu,
            dest_qpn: rtr.dest_qpn,
            rq_psn: rtr.rq_psn,
        });
        let ud_init = QpAttr::UdInit(UdInitAttr {
            qkey: QKey::RDMA_UDP,
            pkey_index: 0,
            port_num: 1,
        });
        let table = |index: u8| (index == 4).then_some((Gid([1; 16]), 3));
        let timeout = IbTimeout::truncate(17);
        let xrc = QpAttr::XrcRecvRts { sq_psn, timeout };
        for attr in [
            uc_rtr,
            ud_init,
            QpAttr::UdRtr,
            QpAttr::UdRts { sq_psn },
            xrc,
        ] {
            assert_eq!(UverbsQpAttr::from(&attr).to_typed(table), Ok(attr));
        }
        let raw = UverbsQpAttr::from(&QpAttr::UcRts { sq_psn });
        assert_eq!(raw.to_typed(table), Ok(QpAttr::UdRts { sq_psn }));
        use qp_attr_mask as m;
        let ud_init = UverbsQpAttr::from(&ud_init);
        assert_eq!(
            (ud_init.qp_attr_mask, ud_init.qkey),
            (m::STATE | m::PKEY_INDEX | m::PORT | m::QKEY, 0x0123_4567)
        );
    }

    #[test]
    fn what_is_no_recipe_is_named() {
        let table = |_: u8| Some((Gid([1; 16]), 0));
        let [init, rtr, rts] = recipes().map(|attr| UverbsQpAttr::from(&attr));
        let bad = UverbsQpAttr {
            qp_state: qp_state::SQD,
            ..init
        };
        assert_eq!(bad.to_typed(table), Err(BadQpAttr::State { state: 4 }));
        let bad = UverbsQpAttr {
            qp_attr_mask: 1,
            ..init
        };
        assert_eq!(
            bad.to_typed(table),
            Err(BadQpAttr::Mask {
                state: 1,
                given: 1,
                wanted: 0x39
            })
        );
        let bad = UverbsQpAttr {
            rq_psn: 1 << 24,
            ..rtr
        };
        assert_eq!(
            bad.to_typed(table),
            Err(BadQpAttr::Range {
                field: "rq_psn",
                value: 1 << 24
            })
        );
        let bad = UverbsQpAttr { path_mtu: 6, ..rtr };
        assert_eq!(
            bad.to_typed(table),
            Err(BadQpAttr::Range {
                field: "path_mtu",
                value: 6
            })
        );
        let bad = UverbsQpAttr {
            retry_cnt: 8,
            ..rts
        };
        assert_eq!(
            bad.to_typed(table),
            Err(BadQpAttr::Range {
                field: "retry_cnt",
                value: 8
            })
        );
        assert_eq!(
            rtr.to_typed(|_| None),
            Err(BadQpAttr::SgidIndex { index: 4 })
        );
    }

    #[test]
    fn masks_are_those_of_the_verbs() {
        use qp_attr_mask as m;
        let [init, rtr, rts] = recipes().map(|attr| UverbsQpAttr::from(&attr).qp_attr_mask);
        assert_eq!(init, m::STATE | m::ACCESS_FLAGS | m::PKEY_INDEX | m::PORT);
        assert_eq!(
            rtr,
            m::STATE
                | m::AV
                | m::PATH_MTU
                | m::DEST_QPN
                | m::RQ_PSN
                | m::MAX_DEST_RD_ATOMIC
                | m::MIN_RNR_TIMER
        );
        assert_eq!(
            rts,
            m::STATE | m::SQ_PSN | m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC
        );
    }
}
