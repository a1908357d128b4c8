//! The kernel as the judge of our resolutions: see `kernel`.

use oarlock_wire::cm::{CmMessage, SidrRep, SidrReq};
use oarlock_wire::mad::MadHeader;
use oarlock_wire::{Guid, SidrStatus, Time};

use super::kernel::{CM_MADS, Recorded, differences, in_place_of, recorded};
use crate::{Event, SidrParams, SidrReplyParams};

const UDADDY: &[u8] = include_bytes!("../../../wire/fixtures/wire-udaddy.pcap");

/// The resolutions of a recording: each request that was answered, and its answer.
fn resolutions(pcap: &[u8]) -> Vec<(Recorded, SidrReq, Recorded, SidrRep)> {
    let all = recorded(pcap);
    let answer_to = |wanted: &SidrReq| {
        all.iter().find_map(|one| match one.message() {
            CmMessage::SidrRep(rep) if rep.request_id == wanted.request_id => Some((*one, rep)),
            _ => None,
        })
    };
    all.iter()
        .filter_map(|one| {
            let CmMessage::SidrReq(req) = one.message() else {
                return None;
            };
            let (answer, rep) = answer_to(&req)?;
            Some((*one, req, answer, rep))
        })
        .collect()
}

#[test]
fn our_asking_side_sends_what_the_kernel_sent() {
    // Three over IPv4, one over IPv6, one that nobody listened for, and one of another recording.
    let resolutions: Vec<_> = [CM_MADS, UDADDY]
        .into_iter()
        .flat_map(resolutions)
        .collect();
    assert_eq!(resolutions.len(), 6);
    for (request, req, answer, rep) in resolutions {
        let mut cm = in_place_of(Guid(1), req.request_id);
        let params = SidrParams {
            pkey: req.partition_key,
            private_data: req.private_data.as_bytes().to_vec(),
            ..SidrParams::new(request.av.reversed(), req.service_id)
        };
        let id = cm.sidr_request(Time::ZERO, params).expect("correct");
        let sent = cm.poll_transmit().expect("a SIDR_REQ");
        assert_eq!(sent.av.remote, request.av.local);
        // Transaction ids are each side's own choice.
        assert_eq!(differences(&sent.mad, &request.mad), ["transaction ID"]);
        cm.handle_mad(Time::ZERO, &answer.av, &answer.mad);
        let told = Event::SidrRepReceived {
            id,
            rep: Box::new(rep),
        };
        assert_eq!(cm.poll_event(), Some(told));
    }
}

#[test]
fn our_serving_side_answers_what_the_kernel_answered() {
    let mut refused = 0;
    for (request, req, answer, rep) in [CM_MADS, UDADDY].into_iter().flat_map(resolutions) {
        let mut cm = in_place_of(Guid(1), oarlock_wire::CommId(1));
        if rep.status == SidrStatus::UNSUPPORTED {
            cm.handle_mad(Time::ZERO, &request.av, &request.mad);
            let sent = cm.poll_transmit().expect("a SIDR_REP");
            assert_eq!(differences(&sent.mad, &answer.mad), [""; 0]);
            refused += 1;
            continue;
        }
        cm.listen(req.service_id).expect("the first listener");
        cm.handle_mad(Time::ZERO, &request.av, &request.mad);
        let Some(Event::SidrReqReceived { id, req: told, .. }) = cm.poll_event() else {
            panic!("no request")
        };
        assert_eq!(*told, req);
        assert_eq!(rep.status, SidrStatus::SUCCESS);
        let params = SidrReplyParams {
            private_data: rep.private_data.as_bytes().to_vec(),
            ..SidrReplyParams::success(rep.qpn, rep.qkey)
        };
        cm.sidr_reply(Time::ZERO, id, params)
            .expect("a request waits");
        let sent = cm.poll_transmit().expect("a SIDR_REP");
        assert_eq!(sent.av.remote, answer.av.local);
        assert_eq!(differences(&sent.mad, &answer.mad), [""; 0]);
        assert_eq!(
            MadHeader::parse(&sent.mad).transaction_id,
            MadHeader::parse(&request.mad).transaction_id
        );
    }
    assert_eq!(refused, 1);
}
