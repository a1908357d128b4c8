//! The transition tables, row by row.

use super::*;

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Error,
];
const GIVABLE: AttrMask = INIT.union(RTR).union(RTS).union(AttrMask::QKEY);
const TABLES: [&[Transition]; 2] = [&RC_TRANSITIONS, &UD_TRANSITIONS];

fn attr(to: QpState, mask: AttrMask) -> QpAttr {
    QpAttr {
        mask: mask | AttrMask::STATE,
        state: to,
        ..QpAttr::default()
    }
}

/// Every row with its table.
fn rows() -> impl Iterator<Item = (&'static [Transition], Transition)> {
    TABLES
        .into_iter()
        .flat_map(|table| table.iter().map(move |row| (table, *row)))
}

#[test]
fn every_required_attribute_is_named_when_it_is_missing() {
    for (table, row) in rows() {
        let check = |mask| check_transition(table, row.from, &attr(row.to, mask));
        assert_eq!(check(row.required), Ok(row.to));
        for missing in row.required.iter() {
            let expected = Error::AttributeMissing {
                from: row.from,
                to: row.to,
                missing,
            };
            assert_eq!(check(row.required - missing), Err(expected));
        }
    }
}

#[test]
fn every_other_attribute_is_refused_by_name() {
    for (table, row) in rows() {
        for bit in GIVABLE.iter() {
            let answer = check_transition(table, row.from, &attr(row.to, row.required | bit));
            if (row.required | row.optional).contains(bit) {
                assert_eq!(answer, Ok(row.to));
            } else {
                let expected = Error::AttributeNotAllowed {
                    from: row.from,
                    to: row.to,
                    extra: bit,
                };
                assert_eq!(answer, Err(expected));
            }
        }
    }
}

#[test]
fn pairs_outside_the_table_are_refused() {
    for table in TABLES {
        for from in STATES {
            for to in STATES {
                let answer = check_transition(table, from, &attr(to, NONE));
                let in_table = table.iter().any(|row| row.from == from && row.to == to);
                match to {
                    QpState::Reset | QpState::Error => assert_eq!(answer, Ok(to)),
                    QpState::Sqd => assert_eq!(answer, Err(Error::StateNotSupported(to))),
                    _ if in_table => {}
                    _ => assert_eq!(answer, Err(Error::InvalidTransition { from, to })),
                }
            }
        }
    }
}

#[test]
fn nobody_asks_for_the_send_queue_error_and_only_datagrams_leave_it() {
    let rows: Vec<_> = rows().map(|(_, row)| (row.from, row.to)).collect();
    assert!(rows.iter().all(|(_, to)| *to != QpState::Sqe));
    let left: Vec<_> = rows
        .iter()
        .filter(|(from, _)| *from == QpState::Sqe)
        .collect();
    assert_eq!(left, [&(QpState::Sqe, QpState::Rts)]);
}

#[test]
fn a_wrong_idea_of_the_current_state_is_refused() {
    let mask = AttrMask::STATE | AttrMask::CUR_STATE;
    let attr = QpAttr {
        mask,
        state: QpState::Error,
        current_state: QpState::Rts,
        ..QpAttr::default()
    };
    let expected = Error::CurrentStateMismatch {
        given: QpState::Rts,
        actual: QpState::Init,
    };
    for table in TABLES {
        assert_eq!(check_transition(table, QpState::Init, &attr), Err(expected));
        assert_eq!(
            check_transition(table, QpState::Rts, &attr),
            Ok(QpState::Error)
        );
    }
}

#[test]
fn bits_without_a_name_are_refused_and_printed() {
    let message = |table, from, to, mask| {
        check_transition(table, from, &attr(to, mask))
            .unwrap_err()
            .to_string()
    };
    let alternate_path = AttrMask::from_bits_retain(1 << 14);
    for table in TABLES {
        assert_eq!(
            message(table, QpState::Rts, QpState::Rts, alternate_path),
            "RTS to RTS does not take the attributes 0x4000"
        );
    }
    assert_eq!(
        message(
            &RC_TRANSITIONS,
            QpState::Reset,
            QpState::Init,
            AttrMask::PORT
        ),
        "RESET to INIT needs the attributes ACCESS_FLAGS | PKEY_INDEX"
    );
    assert_eq!(
        message(
            &UD_TRANSITIONS,
            QpState::Reset,
            QpState::Init,
            AttrMask::PORT
        ),
        "RESET to INIT needs the attributes PKEY_INDEX | QKEY"
    );
}

#[test]
fn mask_bits_are_those_of_the_verbs_header() {
    // Linux include/uapi: enum ib_qp_attr_mask.
    assert_eq!(INIT.bits(), 0x38);
    assert_eq!(
        RTR.bits(),
        1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20
    );
    assert_eq!(RTS.bits(), 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16);
    assert_eq!(UD_INIT.bits(), 1 << 4 | 1 << 5 | 1 << 6);
}

#[test]
fn type_numbers_are_those_of_the_verbs_header() {
    // Linux include/uapi: enum ib_uverbs_qp_type.
    let numbers = [QpType::Rc, QpType::Uc, QpType::Ud].map(|kind| kind as u8);
    assert_eq!(numbers, [2, 3, 4]);
    assert_eq!(QpType::default(), QpType::Rc);
    let names = [QpType::Rc, QpType::Uc, QpType::Ud].map(|kind| kind.to_string());
    assert_eq!(names, ["RC", "UC", "UD"]);
}
