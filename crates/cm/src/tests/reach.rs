//! Bringing connections and resolutions into each place of the transition table, by real exchanges.

use oarlock_wire::cm::{AlternatePath, MessageKind, Mra, PrivateData};
use oarlock_wire::{AprStatus, CommId, IbTimeout};

use super::support::{A, B, Pair, SERVICE, av, gid, named};
use crate::table::Place;
use crate::{AlternatePathParams, ConnId, ConnectParams, SidrParams, SidrReplyParams, StateName};

/// Brings a connection or resolution on `side` into `place`. The active or asking side's id comes first.
pub(super) fn reach(
    pair: &mut Pair,
    place: Place,
    side: usize,
    params: ConnectParams,
) -> (ConnId, Option<ConnId>) {
    let (now, state) = (pair.now(), place.state());
    // Both sides must be able to be asked.
    pair.cms[A].listen(SERVICE).expect("the first listener");
    if let Some(ids) = reach_resolution(pair, place, &params) {
        return ids;
    }
    let active = pair.cms[A].connect(now, params).expect("correct");
    if state == StateName::ReqSent {
        pair.drain(A);
        return (active, None);
    }
    if state == StateName::MraReqRcvd {
        pair.drain(A);
        let remote_comm_id = pair.cms[A].comm_id(active).expect("exists");
        pair.inject_message(
            A,
            Mra {
                remote_comm_id,
                ..mra_of_req()
            },
        );
        pair.drain(A);
        return (active, None);
    }
    pair.drive();
    let crate::Event::ReqReceived { id: passive, .. } = pair.event(B) else {
        panic!("no request")
    };
    let both = (active, Some(passive));
    match state {
        StateName::ReqRcvd => return both,
        StateName::MraReqSent => {
            pair.cms[B]
                .send_mra(now, passive, IbTimeout::truncate(24))
                .expect("a request waits");
            return both;
        }
        _ => {}
    }
    pair.accept(B, passive);
    match state {
        StateName::RepSent | StateName::RepRcvd => return both,
        StateName::MraRepSent | StateName::MraRepRcvd => {
            pair.cms[A]
                .send_mra(pair.clock.now(), active, IbTimeout::truncate(24))
                .expect("a reply waits");
            let rep = named(&pair.sent, "REP")[0].1;
            pair.inject(A, &rep);
            pair.drive();
            return both;
        }
        _ => {}
    }
    pair.complete(A, active);
    let ids = [active, passive];
    if state == StateName::Established {
        reach_lap(pair, place, side, ids);
        return both;
    }
    // In DREQ_SENT and beyond, `side` has disconnected; in DREQ_RCVD the other one has.
    let first = if state == StateName::DreqRcvd {
        1 - side
    } else {
        side
    };
    pair.disconnect(first, ids[first]);
    if matches!(state, StateName::DreqSent | StateName::DreqRcvd) {
        return both;
    }
    pair.reply_disconnect(1 - side, ids[1 - side]);
    if state == StateName::Idle {
        pair.fire_timer(side);
        pair.drain(side);
    }
    both
}

/// Brings a resolution into `place`; `None` if it is not the place of one. The asking side's id comes first.
fn reach_resolution(
    pair: &mut Pair,
    place: Place,
    params: &ConnectParams,
) -> Option<(ConnId, Option<ConnId>)> {
    if !matches!(
        place,
        Place::SidrReqSent | Place::SidrRepRcvd | Place::SidrReqRcvd | Place::SidrRepSent
    ) {
        return None;
    }
    let now = pair.now();
    let sidr = SidrParams {
        max_cm_retries: params.max_cm_retries,
        deadline: params.deadline,
        ..SidrParams::new(av(A), SERVICE)
    };
    let asking = pair.cms[A].sidr_request(now, sidr).expect("correct");
    if place == Place::SidrReqSent {
        pair.drain(A);
        return Some((asking, None));
    }
    pair.drive();
    let crate::Event::SidrReqReceived { id: serving, .. } = pair.event(B) else {
        panic!("no request")
    };
    if place != Place::SidrReqRcvd {
        pair.cms[B]
            .sidr_reply(pair.clock.now(), serving, SidrReplyParams::default())
            .expect("a request waits");
        pair.drive();
    }
    Some((asking, Some(serving)))
}

/// Brings an established connection into `place` on `side`, as far as the alternate path goes.
fn reach_lap(pair: &mut Pair, place: Place, side: usize, ids: [ConnId; 2]) {
    match place {
        Place::LapSent | Place::MraLapRcvd => receive_lap(pair, 1 - side, ids),
        Place::LapRcvd | Place::MraLapSent => receive_lap(pair, side, ids),
        _ => return,
    }
    if matches!(place, Place::MraLapRcvd | Place::MraLapSent) {
        let asked = if place == Place::MraLapRcvd {
            1 - side
        } else {
            side
        };
        pair.cms[asked]
            .send_mra(pair.clock.now(), ids[asked], IbTimeout::truncate(24))
            .expect("a LAP waits");
        let lap = named(&pair.sent, "LAP")[0].1;
        pair.inject(asked, &lap);
        pair.drive();
    }
}

/// Lets `side` receive a LAP of the other one.
pub(super) fn receive_lap(pair: &mut Pair, side: usize, ids: [ConnId; 2]) {
    let now = pair.now();
    let other = 1 - side;
    pair.cms[other]
        .load_alternate_path(now, ids[other], alternate_path(other))
        .expect("connected");
    pair.drive();
}

pub(super) fn answer_lap(pair: &mut Pair, side: usize, id: ConnId) {
    let now = pair.now();
    pair.cms[side]
        .answer_alternate_path(now, id, AprStatus::REJECT, &[], &[])
        .expect("a LAP waits");
    pair.drive();
}

pub(super) fn alternate_path(side: usize) -> AlternatePathParams {
    AlternatePathParams::new(AlternatePath {
        local_gid: gid(side),
        remote_gid: gid(1 - side),
        ..AlternatePath::default()
    })
}

fn mra_of_req() -> Mra {
    Mra {
        local_comm_id: CommId(0x4321),
        remote_comm_id: CommId(0),
        message: MessageKind::REQ,
        service_timeout: IbTimeout::truncate(4),
        private_data: PrivateData::ZERO,
    }
}
