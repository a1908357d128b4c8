//! The passive side: listens, sends, receives, disconnects or waits for it.

use super::options::Plan;
use super::outcome::Outcome;
use super::session::{Session, number_in};
use crate::content::Direction;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::report::{Lines, micros};
use oarlock_hostd::Host;
use oarlock_rdmacm::{Event, Identifier, RejReason};
use std::time::Instant;

/// Connection request, established, disconnected.
const EVENTS_PER_CONNECTION: u32 = 3;

pub(super) fn run(
    host: Host,
    plan: &Plan,
    lines: Lines,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    lines.say("cmatose: starting server");
    let mut session = Session::new(host, plan, lines, outcome, EVENTS_PER_CONNECTION)?;
    let listener = Identifier::new(&session.channel, session.plan.space.port_space())?;
    if let Some(tos) = plan.type_of_service {
        listener.set_type_of_service(tos)?;
    }
    if let Some(address) = plan.bind {
        listener.bind_addr(address)?;
    }
    listener.listen(0)?;
    if let Some(address) = listener.local_addr()? {
        lines.say(format_args!("listening on {address}"));
    }
    let result = work(&mut session, &listener);
    session.finish(result)
}

fn work(session: &mut Session<'_>, listener: &Identifier) -> Result<(), Failure> {
    accept(session)?;
    if session.plan.messages > 0 {
        let started = Instant::now();
        session.lines.say("initiating data transfers");
        session.lines.say("completing sends");
        session.send_all(Direction::ToActive)?;
        session.lines.say("receiving data transfers");
        session.receive_all(Direction::ToActive)?;
        session.lines.say("data transfers complete");
        session.outcome.transfer_us = micros(started.elapsed());
    }
    if session.plan.migrate {
        session.migrate(Some(listener))?;
    }
    Ok(())
}

/// Accepts until every connection is established or has failed.
fn accept(session: &mut Session<'_>) -> Result<(), Failure> {
    let total = session.nodes.len();
    let mut requests = 0;
    // The wait for the first peer has no limit.
    let mut event = session.channel.get_event()?;
    let started = Instant::now();
    let mut progress = Progress::new("connected", total as u64);
    loop {
        match &event {
            Event::ConnectRequest { id, .. } if requests == total => {
                id.reject(RejReason::CONSUMER_DEFINED, &[])?;
            }
            Event::ConnectRequest {
                id, private_data, ..
            } => {
                session.count();
                let number = number_in(private_data.as_ref());
                session.adopt(requests, number.unwrap_or(requests as u32), id.clone());
                session.nodes[requests].has_pattern = number.is_some();
                let accepted = session
                    .prepare(requests)
                    .and_then(|()| Ok(id.accept(&session.param(requests))?));
                match accepted {
                    Ok(()) => {}
                    Err(failure) if failure.is_device_fatal() => return Err(failure),
                    Err(failure) => session.fail_to_connect(requests, failure),
                }
                requests += 1;
            }
            other => {
                session.note(other)?;
            }
        }
        progress.set(u64::from(session.outcome.connections));
        if session.undecided() == 0 {
            break;
        }
        event = session.next_event("connections", session.undecided())?;
    }
    session.outcome.connect_us = micros(started.elapsed());
    session.all_connected()
}
