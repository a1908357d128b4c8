//! Reasons and statuses with what they carry: each arrives as it was sent.

use oarlock_wire::cm::{AlternatePath, Ece};
use oarlock_wire::{AprStatus, QKey, Qpn, Rate, RejReason, SidrStatus, TransportService};

use super::support::{A, B, Pair, SERVICE, accept_params, av, connect_params};
use crate::{
    AcceptParams, AlternatePathParams, ConnectParams, Event, Failover, SidrParams, SidrReplyParams,
    StateName,
};

const LONG: [u8; 72] = [0x5A; 72];

/// IBA Vol. 1 ch. 12, REJ: reasons 1 to 35, the reserved one and unknown ones included.
#[test]
fn every_reject_reason_of_a_req_arrives_with_its_additional_information() {
    for code in (0..40).chain([0xFFFF]) {
        let reason = RejReason(code);
        // A REJ that says "timeout" says whose by its additional information, so it is not the caller's.
        if reason == RejReason::TIMEOUT {
            continue;
        }
        for info in [&LONG[..], &LONG[..usize::from(code % 72)]] {
            let mut pair = Pair::new();
            let (active, passive) = pair.request();
            let now = pair.now();
            pair.cms[B]
                .reject(now, passive, reason, info, &[7; 148])
                .expect("a request waits");
            pair.drive();
            let Event::RejReceived { id, rej } = pair.event(A) else {
                panic!("{reason}: no rejection")
            };
            assert_eq!((id, rej.reason), (active, reason));
            assert_eq!(rej.additional_info.as_bytes(), info, "{reason}");
            assert_eq!(rej.private_data.as_bytes(), &[7; 148]);
            let expected = if reason == RejReason::STALE_CONNECTION {
                StateName::Timewait
            } else {
                StateName::Idle
            };
            assert_eq!(pair.state(A, active), expected, "{reason}");
        }
    }
}

#[test]
fn every_reject_reason_of_a_rep_arrives_with_its_additional_information() {
    for code in (0..40).filter(|code| RejReason(*code) != RejReason::TIMEOUT) {
        let mut pair = Pair::new();
        let (active, passive) = pair.reply();
        let now = pair.now();
        pair.cms[A]
            .reject(now, active, RejReason(code), &LONG, &[])
            .expect("a reply waits");
        pair.drive();
        let Event::RejReceived { id, rej } = pair.event(B) else {
            panic!("{code}: no rejection")
        };
        assert_eq!((id, rej.reason), (passive, RejReason(code)));
        assert_eq!(rej.additional_info.as_bytes(), &LONG);
    }
}

/// IBA Vol. 1 ch. 12, SIDR_REP: status 0 to 5, and unknown ones.
#[test]
fn every_sidr_status_arrives_with_its_additional_information() {
    for code in (0..8).chain([0xFF]) {
        let mut pair = Pair::new();
        let now = pair.now();
        let asking = pair.cms[A]
            .sidr_request(now, SidrParams::new(av(A), SERVICE))
            .expect("correct");
        pair.drive();
        let Event::SidrReqReceived { id, .. } = pair.event(B) else {
            panic!("no request")
        };
        let params = SidrReplyParams {
            status: SidrStatus(code),
            qpn: Qpn::truncate(0x77),
            qkey: QKey(0x0123_4567),
            additional_info: LONG[..usize::from(code) % 73].to_vec(),
            private_data: vec![9; 136],
            ece: Ece {
                vendor_id: 0x15B3,
                options: 0x1234,
            },
        };
        let now = pair.now();
        pair.cms[B]
            .sidr_reply(now, id, params.clone())
            .expect("a request waits");
        pair.drive();
        let Event::SidrRepReceived { id, rep } = pair.event(A) else {
            panic!("no answer")
        };
        assert_eq!((id, rep.status), (asking, params.status));
        assert_eq!((rep.qpn, rep.qkey), (params.qpn, params.qkey));
        assert_eq!(rep.service_id, SERVICE);
        assert_eq!(rep.additional_info.as_bytes(), params.additional_info);
        assert_eq!(rep.private_data.as_bytes(), &params.private_data[..]);
        assert_eq!(rep.ece, params.ece);
    }
}

/// IBA Vol. 1 ch. 12, APR: each AP status, and unknown ones.
#[test]
fn every_apr_status_arrives_with_its_additional_information() {
    for code in (0..16).chain([0xFF]) {
        let mut pair = Pair::new();
        let (active, passive) = pair.establish();
        let now = pair.now();
        pair.cms[A]
            .load_alternate_path(
                now,
                active,
                AlternatePathParams::new(AlternatePath::default()),
            )
            .expect("connected");
        pair.drive();
        let Event::LapReceived { id, .. } = pair.event(B) else {
            panic!("no LAP")
        };
        assert_eq!(id, passive);
        let now = pair.now();
        pair.cms[B]
            .answer_alternate_path(now, passive, AprStatus(code), &LONG, &[8; 148])
            .expect("a LAP waits");
        pair.drive();
        let Event::AprReceived { id, apr } = pair.event(A) else {
            panic!("no APR")
        };
        assert_eq!((id, apr.status), (active, AprStatus(code)));
        assert_eq!(apr.additional_info.as_bytes(), &LONG);
        assert_eq!(apr.private_data.as_bytes(), &[8; 148]);
    }
}

/// Linux, include/rdma/ib_cm.h: `ib_cm_req_param.ece` and `ib_cm_rep_param.ece`.
#[test]
fn ece_travels_in_the_req_and_in_the_rep() {
    let ece = |n: u32| Ece {
        vendor_id: 0x15B3 + n,
        options: 0x8000_0000 + n,
    };
    let mut pair = Pair::new();
    let now = pair.now();
    let params = ConnectParams {
        ece: ece(1),
        ..connect_params()
    };
    pair.cms[A].connect(now, params).expect("correct");
    pair.drive();
    let Event::ReqReceived { id, req, .. } = pair.event(B) else {
        panic!("no request")
    };
    assert_eq!(req.ece, ece(1));
    let now = pair.now();
    let params = AcceptParams {
        ece: ece(2),
        ..accept_params()
    };
    pair.cms[B]
        .accept(now, id, params)
        .expect("a request waits");
    pair.drive();
    let Event::RepReceived { rep, .. } = pair.event(A) else {
        panic!("no reply")
    };
    assert_eq!(rep.ece, ece(2));
}

#[test]
fn a_rep_says_what_became_of_the_alternate_path_of_its_req_and_nothing_if_there_was_none() {
    let path = AlternatePath {
        local_gid: super::support::gid(A),
        remote_gid: super::support::gid(B),
        ..AlternatePath::default()
    };
    for (alternate, failover, said) in [
        (None, Failover::default(), 0),
        (None, Failover::Rejected, 0),
        (Some(path), Failover::default(), 1),
        (Some(path), Failover::Rejected, 2),
        (Some(path), Failover::Accepted, 0),
    ] {
        let mut pair = Pair::new();
        let now = pair.now();
        let params = ConnectParams {
            alternate,
            ..connect_params()
        };
        pair.cms[A].connect(now, params).expect("correct");
        pair.drive();
        let Event::ReqReceived { id, req, .. } = pair.event(B) else {
            panic!("no request")
        };
        assert_eq!(req.alternate, alternate.unwrap_or_default());
        let now = pair.now();
        let params = AcceptParams {
            failover,
            ..accept_params()
        };
        pair.cms[B]
            .accept(now, id, params)
            .expect("a request waits");
        pair.drive();
        let Event::RepReceived { rep, .. } = pair.event(A) else {
            panic!("no reply")
        };
        assert_eq!(rep.failover_accepted, said, "{failover:?}");
    }
}

#[test]
fn the_transport_service_and_the_rate_travel_in_the_req() {
    let mut pair = Pair::new();
    let now = pair.now();
    let params = ConnectParams {
        transport_service: TransportService::UC,
        packet_rate: Rate(3),
        ..connect_params()
    };
    pair.cms[A].connect(now, params).expect("correct");
    pair.drive();
    let Event::ReqReceived { req, .. } = pair.event(B) else {
        panic!("no request")
    };
    assert_eq!(req.transport_service, TransportService::UC);
    assert_eq!(req.primary.packet_rate, Rate(3));
}
