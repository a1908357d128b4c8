//! The transition table, row by row, and the ranges of values.

use std::fmt::Write as _;

use oarlock_sim::assert_snapshot;

use super::*;
use crate::error::Error;

const TYPES: [QpType; 5] = [
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::XrcInitiator,
    QpType::XrcTarget,
];
const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Error,
];
const NONE: AttrMask = AttrMask::empty();
const LIMITS: Limits = Limits {
    max_rd_atomic: 5,
    max_dest_rd_atomic: 7,
    mtu: Mtu::MTU_1024,
};

/// Every bit with a name.
fn named() -> impl Iterator<Item = AttrMask> {
    AttrMask::UNNAMED.complement().iter()
}

fn attr(from: QpState, to: QpState, mask: AttrMask) -> QpAttr {
    QpAttr {
        mask: mask | AttrMask::STATE,
        state: to,
        current_state: from,
        ..QpAttr::default()
    }
}

/// Every pair of states of every type.
fn pairs() -> impl Iterator<Item = (QpType, QpState, QpState)> {
    TYPES.into_iter().flat_map(|qp_type| {
        let of_type = move |from| STATES.into_iter().map(move |to| (qp_type, from, to));
        STATES.into_iter().flat_map(of_type)
    })
}

fn text(mask: AttrMask) -> String {
    if mask.is_empty() {
        "-".to_owned()
    } else {
        mask.to_string().replace(' ', "")
    }
}

#[test]
fn the_whole_table_is_the_one_that_is_checked_in() {
    let mut table = String::from("type from -> to: required; optional\n");
    for (qp_type, from, to) in pairs() {
        let row = match qp_type.transition(from, to) {
            Some(row) => format!("{}; {}", text(row.required), text(row.optional)),
            None => "refused".to_owned(),
        };
        writeln!(table, "{qp_type} {from} -> {to}: {row}").unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/attr/transitions.txt");
    assert_snapshot(path, &table);
}

/// Each row is executed: complete, without each of its required bits, and with every other bit there is.
#[test]
fn every_row_needs_takes_and_refuses_what_it_says() {
    let mut executed = 0;
    for (qp_type, from, to) in pairs() {
        let check = |mask| transition(qp_type, from, &attr(from, to, mask));
        let Some(row) = qp_type.transition(from, to) else {
            assert_eq!(check(NONE), Err(Error::InvalidTransition { from, to }));
            continue;
        };
        assert_eq!(check(row.required), Ok(to));
        assert_eq!(check(row.required | row.optional), Ok(to));
        for missing in row.required.iter() {
            let expected = Error::AttributeMissing { from, to, missing };
            assert_eq!(check(row.required - missing), Err(expected));
        }
        for bit in named().filter(|bit| *bit != AttrMask::STATE) {
            executed += 1;
            match check(row.required | bit) {
                Ok(reached) => {
                    assert_eq!(reached, to);
                    assert!((row.required | row.optional).contains(bit));
                }
                Err(Error::AttributeNotAllowed { extra, .. }) => {
                    assert_eq!(extra, bit);
                    assert!(!(row.required | row.optional).contains(bit));
                }
                Err(Error::AttributeNotSupported { attribute, .. }) => {
                    assert_eq!(attribute, bit);
                    assert!(!(row.required | row.optional).contains(bit));
                }
                Err(other) => panic!("{qp_type} {from} -> {to} with {bit}: {other}"),
            }
        }
    }
    // 5 types of 14 resets and errors and 8 rows of their own, and the two that leave Sqe; 21 bits each.
    assert_eq!(executed, (5 * (14 + 8) + 2) * 21);
}

#[test]
fn what_the_device_refuses_has_a_reason() {
    for bits in [
        AttrMask::ALT_PATH,
        AttrMask::PATH_MIG_STATE,
        AttrMask::CAP,
        AttrMask::RATE_LIMIT,
        AttrMask::from_bits_retain(1 << 21),
        AttrMask::from_bits_retain(1 << 31 | 1 << 24),
    ] {
        let asked = attr(QpState::Rts, QpState::Rts, bits | AttrMask::ACCESS_FLAGS);
        let Err(error) = transition(QpType::Rc, QpState::Rts, &asked) else {
            panic!("{bits} was accepted");
        };
        let Error::AttributeNotSupported { attribute, reason } = error else {
            panic!("{bits}: {error}");
        };
        assert_eq!(attribute, bits);
        assert!(error.to_string().contains(reason));
    }
    assert!(named().all(|bit| !AttrMask::UNNAMED.intersects(bit)));
    assert_eq!(named().count(), 22);
}

/// A state that is not given is the present one; a present state that is given has to be right.
#[test]
fn the_states_that_are_given_and_not_given() {
    let empty = QpAttr {
        mask: AttrMask::ACCESS_FLAGS,
        ..QpAttr::default()
    };
    for state in [QpState::Init, QpState::Rts, QpState::Sqd] {
        assert_eq!(transition(QpType::Rc, state, &empty), Ok(state));
    }
    for given in STATES {
        let asked = QpAttr {
            mask: AttrMask::STATE | AttrMask::CUR_STATE,
            state: QpState::Rts,
            current_state: given,
            ..QpAttr::default()
        };
        let answer = transition(QpType::Uc, QpState::Sqe, &asked);
        if given == QpState::Sqe {
            assert_eq!(answer, Ok(QpState::Rts));
        } else {
            let actual = QpState::Sqe;
            assert_eq!(answer, Err(Error::CurrentStateMismatch { given, actual }));
        }
    }
}

fn value(mask: AttrMask, set: impl FnOnce(&mut QpAttr)) -> Result<(), Error> {
    let mut attr = QpAttr {
        mask,
        ..QpAttr::default()
    };
    set(&mut attr);
    LIMITS.check(&attr)
}

#[test]
fn every_value_is_taken_up_to_its_limit_and_refused_beyond() {
    let too_large = |attribute, given, max| {
        Err(Error::AttributeTooLarge {
            attribute,
            given,
            max,
        })
    };
    let timer = |v| value(AttrMask::MIN_RNR_TIMER, |attr| attr.min_rnr_timer = v);
    assert_eq!((timer(0), timer(31)), (Ok(()), Ok(())));
    assert_eq!(timer(32), too_large("min_rnr_timer", 32, 31));
    let reads = |v| value(AttrMask::MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = v);
    assert_eq!(reads(5), Ok(()));
    assert_eq!(reads(6), too_large("max_rd_atomic", 6, 5));
    let dest = |v| {
        value(AttrMask::MAX_DEST_RD_ATOMIC, |attr| {
            attr.max_dest_rd_atomic = v;
        })
    };
    assert_eq!(dest(7), Ok(()));
    assert_eq!(dest(8), too_large("max_dest_rd_atomic", 8, 7));
    let port = |v| value(AttrMask::PORT, |attr| attr.port_num = v);
    assert_eq!(port(1), Ok(()));
    assert_eq!(port(2), too_large("port_num", 2, 1));
    let expected = Error::AttributeTooSmall {
        attribute: "port_num",
        given: 0,
        min: 1,
    };
    assert_eq!(port(0), Err(expected));
    let mtu = |v| value(AttrMask::PATH_MTU, |attr| attr.path_mtu = v);
    assert_eq!((mtu(Mtu::MTU_256), mtu(Mtu::MTU_1024)), (Ok(()), Ok(())));
    let (given, port) = (Mtu::MTU_2048, Mtu::MTU_1024);
    assert_eq!(mtu(given), Err(Error::PathMtuTooLarge { given, port }));
    assert_eq!(mtu(Mtu(0)), Err(Error::InvalidMtu(0)));
    assert_eq!(mtu(Mtu(6)), Err(Error::InvalidMtu(6)));
    // Without its bit a value is nothing that was given.
    assert_eq!(value(NONE, |attr| attr.port_num = 9), Ok(()));
}

#[test]
fn a_queue_pair_grants_the_three_remote_rights_and_nothing_else() {
    let access = |flags| value(AttrMask::ACCESS_FLAGS, |attr| attr.access = flags);
    let granted = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC;
    assert_eq!(access(granted), Ok(()));
    for flags in (0..32).map(|bit| AccessFlags::from_bits_retain(1 << bit)) {
        if !granted.contains(flags) {
            let expected = Error::QpAccessNotSupported { flags };
            assert_eq!(access(granted | flags), Err(expected));
        }
    }
}

/// Every attribute that can be given is kept by `merge`, and no other is touched.
#[test]
fn merging_takes_exactly_what_the_mask_names() {
    let given = QpAttr {
        access: AccessFlags::REMOTE_READ,
        pkey: PKey(0x1234),
        port_num: 9,
        qkey: QKey(7),
        av: AddressVector::new(Gid([1; 16]), Gid([2; 16])),
        path_mtu: Mtu::MTU_256,
        dest_qpn: Qpn::truncate(5),
        rq_psn: Psn::truncate(6),
        sq_psn: Psn::truncate(7),
        max_dest_rd_atomic: 8,
        max_rd_atomic: 9,
        min_rnr_timer: 10,
        timeout: IbTimeout::MAX,
        retry_count: RetryCount::MAX,
        rnr_retry: RetryCount::MAX,
        ..QpAttr::default()
    };
    let all = AttrMask::UNNAMED.complement();
    let mut whole = QpAttr::default();
    whole.merge(&QpAttr { mask: all, ..given });
    let kept = all - AttrMask::CUR_STATE - AttrMask::EN_SQD_ASYNC_NOTIFY;
    assert_eq!(
        whole,
        QpAttr {
            mask: kept,
            ..given
        }
    );
    for bit in named() {
        let mut one = QpAttr::default();
        one.merge(&QpAttr { mask: bit, ..given });
        let changed = QpAttr { mask: NONE, ..one } != QpAttr::default();
        let has_a_field = !matches!(
            bit,
            AttrMask::STATE
                | AttrMask::CUR_STATE
                | AttrMask::EN_SQD_ASYNC_NOTIFY
                | AttrMask::ALT_PATH
                | AttrMask::PATH_MIG_STATE
                | AttrMask::CAP
                | AttrMask::RATE_LIMIT
        );
        assert_eq!(changed, has_a_field, "{bit}");
    }
}
