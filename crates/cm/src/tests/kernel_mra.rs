//! The kernel as the judge of our MRAs: see `kernel`. In the recording the program of each side was stopped until the other
//! kernel had repeated its message, so that each kernel answered the second one with an MRA.

use oarlock_wire::cm::{CmMessage, Mra};
use oarlock_wire::{Guid, IbTimeout, MessageKind, Time};

use super::kernel::{Recorded, differences, in_place_of, recorded};
use crate::{AcceptParams, ConnectParams, DropReason, Event, MessageName, StateName};

const MRA: &[u8] = include_bytes!("../../../wire/fixtures/wire-mra.pcap");

/// What the CM of Linux asks for (`CMA_CM_MRA_SETTING`).
const SERVICE_TIMEOUT: IbTimeout = IbTimeout::truncate(24);

fn named(name: &str) -> Vec<Recorded> {
    recorded(MRA)
        .into_iter()
        .filter(|one| one.message().name() == name)
        .collect()
}

fn mras() -> [Mra; 2] {
    let mras: Vec<_> = named("MRA")
        .iter()
        .map(|one| match one.message() {
            CmMessage::Mra(mra) => mra,
            other => unreachable!("{}: sorted by name", other.name()),
        })
        .collect();
    mras.try_into().expect("two")
}

#[test]
fn our_passive_side_answers_a_second_req_as_the_kernel_did() {
    let (reqs, answers) = (named("REQ"), named("MRA"));
    let CmMessage::Req(req) = reqs[0].message() else {
        unreachable!("sorted by name")
    };
    let mut cm = in_place_of(Guid(1), mras()[0].local_comm_id);
    cm.listen(req.service_id).expect("the first listener");
    cm.handle_mad(Time::ZERO, &reqs[0].av, &reqs[0].mad);
    let Some(Event::ReqReceived { id, .. }) = cm.poll_event() else {
        panic!("no request")
    };
    cm.send_mra(Time::ZERO, id, SERVICE_TIMEOUT)
        .expect("a request waits");
    assert_eq!(
        cm.poll_transmit(),
        None,
        "only a second REQ is worth an MRA"
    );
    cm.handle_mad(Time::ZERO, &reqs[1].av, &reqs[1].mad);
    let sent = cm.poll_transmit().expect("an MRA");
    assert_eq!(differences(&sent.mad, &answers[0].mad), [""; 0]);
    assert_eq!(cm.poll_event(), None);

    // The peer's MRA for our REP stops the repetitions for its time.
    let CmMessage::Rep(rep) = named("REP")[0].message() else {
        unreachable!("sorted by name")
    };
    let params = AcceptParams::new(rep.local_qpn, rep.starting_psn);
    cm.accept(Time::ZERO, id, params).expect("a request waits");
    cm.handle_mad(Time::ZERO, &answers[1].av, &answers[1].mad);
    assert_eq!(cm.state(id), Some(StateName::MraRepRcvd));
    let next = cm.poll_timeout().expect("a REP is out");
    assert!(
        next.saturating_since(Time::ZERO).as_millis() >= SERVICE_TIMEOUT.kernel_millis().into()
    );
}

#[test]
fn our_active_side_answers_a_second_rep_as_the_kernel_did() {
    let (reqs, reps, answers) = (named("REQ"), named("REP"), named("MRA"));
    let CmMessage::Req(req) = reqs[0].message() else {
        unreachable!("sorted by name")
    };
    let mut cm = in_place_of(req.local_ca_guid, req.local_comm_id);
    let params = ConnectParams::new(
        reqs[0].av.reversed(),
        req.service_id,
        req.local_qpn,
        req.starting_psn,
    );
    let id = cm.connect(Time::ZERO, params).expect("correct");
    let sent = cm.poll_transmit().expect("a REQ");
    cm.handle_mad(Time::ZERO, &answers[0].av, &answers[0].mad);
    assert!(matches!(cm.poll_event(), Some(Event::MraReceived { .. })));
    assert_eq!(cm.state(id), Some(StateName::MraReqRcvd));
    cm.handle_mad(Time::ZERO, &reps[0].av, &reps[0].mad);
    assert!(matches!(cm.poll_event(), Some(Event::RepReceived { .. })));
    cm.send_mra(Time::ZERO, id, SERVICE_TIMEOUT)
        .expect("a reply waits");
    cm.handle_mad(Time::ZERO, &reps[1].av, &reps[1].mad);
    let mra = cm.poll_transmit().expect("an MRA");
    assert_eq!(differences(&mra.mad, &answers[1].mad), ["transaction ID"]);
    let header = |mad| oarlock_wire::mad::MadHeader::parse(mad).transaction_id;
    assert_eq!(header(&mra.mad), header(&sent.mad), "that of our REQ");
    assert_eq!(cm.counters().duplicate(MessageName::Rep), 1);
    assert_eq!(cm.counters().dropped(DropReason::Duplicate), 0);
}

#[test]
fn the_recorded_mras_are_for_a_req_and_for_a_rep() {
    let [of_req, of_rep] = mras();
    assert_eq!(of_req.message, MessageKind::REQ);
    assert_eq!(of_rep.message, MessageKind::REP);
    for mra in [of_req, of_rep] {
        assert_eq!(mra.service_timeout, SERVICE_TIMEOUT);
    }
}
