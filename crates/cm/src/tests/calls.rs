//! Misuse: every refused call says what was wrong and changes nothing.

use oarlock_wire::RejReason;

use super::support::{A, B, Pair, SERVICE, accept_params, connect_params, transmits};
use crate::{AcceptParams, ConnectParams, Error, StateName};

#[test]
fn private_data_beyond_the_field_is_an_error_that_names_both_lengths() {
    let mut pair = Pair::new();
    let now = pair.now();
    let too_long = |max: usize| {
        Err(Error::PrivateDataTooLong {
            given: max + 1,
            max,
        })
    };
    let connect = pair.cms[A].connect(
        now,
        ConnectParams {
            private_data: vec![0; 93],
            ..connect_params()
        },
    );
    assert_eq!(connect.map(|_| ()), too_long(92));
    assert_eq!(
        pair.cms[A].connections(),
        0,
        "a refused call leaves nothing behind"
    );

    let (active, passive) = pair.request();
    assert_eq!(
        pair.cms[B].accept(
            now,
            passive,
            AcceptParams {
                private_data: vec![0; 197],
                ..accept_params()
            }
        ),
        too_long(196)
    );
    assert_eq!(
        pair.cms[B].reject(now, passive, RejReason::CONSUMER_DEFINED, &[], &[0; 149]),
        too_long(148)
    );
    assert_eq!(
        pair.cms[B].reject(now, passive, RejReason::CONSUMER_DEFINED, &[0; 73], &[]),
        Err(Error::AdditionalInfoTooLong { given: 73, max: 72 })
    );
    assert_eq!(pair.cms[A].establish(now, active, &[0; 225]), too_long(224));
    assert_eq!(
        pair.cms[A].disconnect(now, active, &[0; 221]),
        too_long(220)
    );
    assert_eq!(
        pair.cms[A].reply_disconnect(now, active, &[0; 225]),
        too_long(224)
    );
    assert_eq!(pair.state(B, passive), StateName::ReqRcvd);
    assert_eq!(transmits(&mut pair.cms[B]).len(), 0);
    assert_eq!(
        pair.cms[B].accept(
            now,
            passive,
            AcceptParams {
                private_data: vec![0; 196],
                ..accept_params()
            }
        ),
        Ok(())
    );
}

#[test]
fn more_retries_than_the_field_holds_are_refused() {
    let mut pair = Pair::new();
    let now = pair.now();
    let result = pair.cms[A].connect(
        now,
        ConnectParams {
            max_cm_retries: 16,
            ..connect_params()
        },
    );
    assert_eq!(result, Err(Error::TooManyRetries { given: 16, max: 15 }));
}

#[test]
fn a_call_in_the_wrong_state_names_the_call_and_the_state() {
    let mut pair = Pair::new();
    let (active, _) = pair.request();
    let error = pair.cms[A]
        .disconnect(pair.clock.now(), active, &[])
        .expect_err("not connected");
    assert_eq!(
        error,
        Error::WrongState {
            call: "disconnect",
            state: StateName::ReqSent
        }
    );
    assert_eq!(
        error.to_string(),
        "disconnect is not possible in state REQ_SENT"
    );
}

#[test]
fn a_destroyed_id_is_unknown_to_every_call() {
    let mut pair = Pair::new();
    let (active, _) = pair.request();
    let now = pair.now();
    pair.cms[A].destroy(now, active);
    let cm = &mut pair.cms[A];
    let results = [
        cm.accept(now, active, accept_params()),
        cm.establish(now, active, &[]),
        cm.notify_established(now, active),
        cm.reject(now, active, RejReason::CONSUMER_DEFINED, &[], &[]),
        cm.send_mra(now, active, oarlock_wire::IbTimeout::MAX),
        cm.disconnect(now, active, &[]),
        cm.reply_disconnect(now, active, &[]),
        cm.drop_request(now, active),
    ];
    assert!(
        results
            .iter()
            .all(|result| *result == Err(Error::UnknownId(active))),
        "{results:?}"
    );
    assert_eq!(cm.state(active), None);
    assert_eq!(cm.comm_id(active), None);
}

#[test]
fn a_service_id_has_one_listener() {
    let mut pair = Pair::new();
    assert_eq!(
        pair.cms[B].listen(SERVICE),
        Err(Error::ServiceIdInUse(SERVICE))
    );
}

#[test]
fn random_psns_differ_and_follow_from_the_seed() {
    let mut draws = [Pair::new(), Pair::new()]
        .map(|mut pair| (0..4).map(|_| pair.cms[A].random_psn()).collect::<Vec<_>>());
    assert_eq!(draws[0], draws[1]);
    draws[0].dedup();
    assert_eq!(draws[0].len(), 4);
}
