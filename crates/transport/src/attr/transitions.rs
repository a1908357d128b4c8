//! Which attributes a transition needs and takes, by type of queue pair, and which values they may have.
//!
//! The facts are those of IBA Vol. 1 ch. 11 "Modify queue pair" (tables of RC, UC, UD) and Annex A14 (XRC), as in the table of
//! Linux `drivers/infiniband/core/verbs.c`. Where we differ, the code says *Deviation*. `transitions.txt` beside this file is the
//! whole table.

use oarlock_wire::Mtu;

use super::{AccessFlags, AttrMask, QpAttr, QpState, QpType};
use crate::error::Error;

/// The attributes of one transition, beside [`AttrMask::STATE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the specification's two columns")]
pub struct Transition {
    /// Has to be given.
    pub required: AttrMask,
    /// May be given.
    pub optional: AttrMask,
}

const NONE: AttrMask = AttrMask::empty();

impl Transition {
    const NOTHING: Self = Self::of(NONE, NONE);

    const fn of(required: AttrMask, optional: AttrMask) -> Self {
        Self { required, optional }
    }

    const fn optional(optional: AttrMask) -> Self {
        Self::of(NONE, optional)
    }
}

impl QpType {
    /// The transition of [`modify`](crate::Rc::modify) from one state to another (or within one), or `None` if there is no such.
    ///
    /// ```
    /// use oarlock_transport::{AttrMask, QpState, QpType};
    ///
    /// let transition = QpType::Ud.transition(QpState::Rtr, QpState::Rts).expect("it exists");
    /// assert_eq!(transition.required, AttrMask::SQ_PSN);
    /// assert!(QpType::Ud.transition(QpState::Reset, QpState::Rts).is_none());
    /// ```
    #[must_use]
    pub const fn transition(self, from: QpState, to: QpState) -> Option<Transition> {
        use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
        Some(match (from, to) {
            // Deviation: Linux has no transition from Reset to Error. The specification leads there from any state, and a
            // program that ends a connection need not ask whether it was ever begun.
            (_, Reset | Error) => Transition::NOTHING,
            (Reset, Init) => Transition::of(self.init(), NONE),
            (Init, Init) => Transition::optional(self.init()),
            (Init, Rtr) => Transition::of(self.rtr(), self.rtr_optional()),
            (Rtr, Rts) => Transition::of(self.rts(), self.running()),
            (Rts | Sqd, Rts) => Transition::optional(self.running()),
            (Rts, Sqd) => Transition::optional(AttrMask::EN_SQD_ASYNC_NOTIFY),
            (Sqd, Sqd) => Transition::optional(self.drained()),
            // Deviation: Linux has this row for RC too, without attributes. An RC queue pair is never in this state.
            (Sqe, Rts) if matches!(self, Self::Uc | Self::Ud) => {
                Transition::optional(self.running())
            }
            _ => return None,
        })
    }

    const fn init(self) -> AttrMask {
        let common = AttrMask::PKEY_INDEX.union(AttrMask::PORT);
        match self {
            Self::Ud => common.union(AttrMask::QKEY),
            _ => common.union(AttrMask::ACCESS_FLAGS),
        }
    }

    const fn rtr(self) -> AttrMask {
        let path = AttrMask::AV
            .union(AttrMask::PATH_MTU)
            .union(AttrMask::DEST_QPN)
            .union(AttrMask::RQ_PSN);
        match self {
            Self::Ud => NONE,
            Self::Uc | Self::XrcInitiator => path,
            Self::Rc | Self::XrcTarget => path
                .union(AttrMask::MAX_DEST_RD_ATOMIC)
                .union(AttrMask::MIN_RNR_TIMER),
        }
    }

    const fn rtr_optional(self) -> AttrMask {
        match self {
            Self::Ud => AttrMask::PKEY_INDEX.union(AttrMask::QKEY),
            _ => AttrMask::PKEY_INDEX.union(AttrMask::ACCESS_FLAGS),
        }
    }

    const fn rts(self) -> AttrMask {
        match self {
            Self::Ud | Self::Uc => AttrMask::SQ_PSN,
            Self::XrcTarget => AttrMask::SQ_PSN.union(AttrMask::TIMEOUT),
            Self::Rc | Self::XrcInitiator => AttrMask::SQ_PSN
                .union(AttrMask::TIMEOUT)
                .union(AttrMask::RETRY_CNT)
                .union(AttrMask::RNR_RETRY)
                .union(AttrMask::MAX_QP_RD_ATOMIC),
        }
    }

    /// What may change while packets flow.
    const fn running(self) -> AttrMask {
        let own = match self {
            Self::Ud => AttrMask::QKEY,
            Self::Uc | Self::XrcInitiator => AttrMask::ACCESS_FLAGS,
            Self::Rc | Self::XrcTarget => AttrMask::ACCESS_FLAGS.union(AttrMask::MIN_RNR_TIMER),
        };
        AttrMask::CUR_STATE.union(own)
    }

    /// What may change while nothing is sent.
    const fn drained(self) -> AttrMask {
        let path = AttrMask::AV
            .union(AttrMask::ACCESS_FLAGS)
            .union(AttrMask::PKEY_INDEX);
        let reliable = path.union(AttrMask::PORT).union(AttrMask::TIMEOUT);
        let requester = AttrMask::RETRY_CNT
            .union(AttrMask::RNR_RETRY)
            .union(AttrMask::MAX_QP_RD_ATOMIC);
        let responder = AttrMask::MAX_DEST_RD_ATOMIC.union(AttrMask::MIN_RNR_TIMER);
        match self {
            Self::Ud => AttrMask::PKEY_INDEX.union(AttrMask::QKEY),
            Self::Uc => path,
            Self::Rc => reliable.union(requester).union(responder),
            Self::XrcInitiator => reliable.union(requester),
            Self::XrcTarget => reliable.union(responder),
        }
    }
}

/// Deviation: attributes that the specification has and this device refuses, with the reason.
const NOT_SUPPORTED: [(AttrMask, &str); 5] = [
    (
        AttrMask::ALT_PATH,
        "which way packets take is chosen by the operating system's routes",
    ),
    (
        AttrMask::PATH_MIG_STATE,
        "there is no alternate path to migrate to",
    ),
    (
        AttrMask::CAP,
        "the sizes of the work queues are fixed when the queue pair is made",
    ),
    (
        AttrMask::RATE_LIMIT,
        "it is for raw packet queue pairs, and the interface's queueing discipline limits rates",
    ),
    (AttrMask::UNNAMED, "nothing is known of these bits"),
];

/// The state that `attr` leads to from `from`, or the rule that it breaks.
pub(crate) fn transition(qp_type: QpType, from: QpState, attr: &QpAttr) -> Result<QpState, Error> {
    let to = if attr.mask.contains(AttrMask::STATE) {
        attr.state
    } else {
        from
    };
    for (bits, reason) in NOT_SUPPORTED {
        if attr.mask.intersects(bits) {
            return Err(Error::AttributeNotSupported {
                attribute: attr.mask.intersection(bits),
                reason,
            });
        }
    }
    if attr.mask.contains(AttrMask::CUR_STATE) && attr.current_state != from {
        return Err(Error::CurrentStateMismatch {
            given: attr.current_state,
            actual: from,
        });
    }
    let row = qp_type
        .transition(from, to)
        .ok_or(Error::InvalidTransition { from, to })?;
    let given = attr.mask.difference(AttrMask::STATE);
    let missing = row.required.difference(given);
    if !missing.is_empty() {
        return Err(Error::AttributeMissing { from, to, missing });
    }
    let extra = given.difference(row.required.union(row.optional));
    if !extra.is_empty() {
        return Err(Error::AttributeNotAllowed { from, to, extra });
    }
    Ok(to)
}

/// How large attributes may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    /// What the port carries.
    pub(crate) mtu: Mtu,
}

/// A soft device has one port.
const PORT: u8 = 1;

/// What a queue pair may allow its peer; LOCAL_WRITE is granted in any case.
const QP_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

impl Limits {
    /// Whether the values that `attr` gives are in their ranges. The other attributes have none, or a type that ensures it.
    pub(crate) fn check(&self, attr: &QpAttr) -> Result<(), Error> {
        let given = |bit| attr.mask.contains(bit);
        if given(AttrMask::PATH_MTU) {
            if attr.path_mtu.bytes().is_none() {
                return Err(Error::InvalidMtu(attr.path_mtu.0));
            }
            if attr.path_mtu.bytes() > self.mtu.bytes() {
                return Err(Error::PathMtuTooLarge {
                    given: attr.path_mtu,
                    port: self.mtu,
                });
            }
        }
        if given(AttrMask::ACCESS_FLAGS) && !QP_ACCESS.contains(attr.access) {
            return Err(Error::QpAccessNotSupported {
                flags: attr.access.difference(QP_ACCESS),
            });
        }
        if given(AttrMask::PORT) && attr.port_num < PORT {
            return Err(Error::AttributeTooSmall {
                attribute: "port_num",
                given: attr.port_num.into(),
                min: PORT.into(),
            });
        }
        let limited = [
            (AttrMask::PORT, "port_num", attr.port_num, PORT),
            (
                AttrMask::MIN_RNR_TIMER,
                "min_rnr_timer",
                attr.min_rnr_timer,
                31,
            ),
            (
                AttrMask::MAX_QP_RD_ATOMIC,
                "max_rd_atomic",
                attr.max_rd_atomic,
                self.max_rd_atomic,
            ),
            (
                AttrMask::MAX_DEST_RD_ATOMIC,
                "max_dest_rd_atomic",
                attr.max_dest_rd_atomic,
                self.max_dest_rd_atomic,
            ),
        ];
        for (bit, attribute, value, max) in limited {
            if given(bit) && value > max {
                return Err(Error::AttributeTooLarge {
                    attribute,
                    given: value.into(),
                    max: max.into(),
                });
            }
        }
        Ok(())
    }
}
