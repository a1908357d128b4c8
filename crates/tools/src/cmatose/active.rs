//! The active side: connects, receives, replies, disconnects or waits for it.

use super::options::Plan;
use super::outcome::Outcome;
use super::session::Session;
use crate::content::Direction;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::report::{Lines, micros};
use oarlock_hostd::Host;
use oarlock_rdmacm::{Event, Identifier};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Address and route resolved, established, disconnected.
const EVENTS_PER_CONNECTION: u32 = 4;
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn run(
    host: Host,
    plan: &Plan,
    server: SocketAddr,
    lines: Lines,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    lines.say("cmatose: starting client");
    let mut session = Session::new(host, plan, lines, outcome, EVENTS_PER_CONNECTION)?;
    let result = work(&mut session, server);
    session.finish(result)
}

fn work(session: &mut Session<'_>, server: SocketAddr) -> Result<(), Failure> {
    session.lines.say("cmatose: connecting");
    let started = Instant::now();
    for at in 0..session.nodes.len() {
        let id = Identifier::new(&session.channel, session.plan.space.port_space())?;
        if let Some(tos) = session.plan.type_of_service {
            id.set_type_of_service(tos)?;
        }
        session.adopt(at, at as u32, id.clone());
        id.resolve_addr(session.plan.bind, server, RESOLVE_TIMEOUT)?;
    }
    connect(session)?;
    session.outcome.connect_us = micros(started.elapsed());
    if session.plan.messages > 0 {
        let started = Instant::now();
        session.lines.say("initiating data transfers");
        session.lines.say("receiving data transfers");
        session.receive_all(Direction::ToPassive)?;
        session.lines.say("sending replies");
        session.send_all(Direction::ToPassive)?;
        session.lines.say("data transfers complete");
        session.outcome.transfer_us = micros(started.elapsed());
    }
    if session.plan.migrate {
        session.migrate(None)?;
    }
    Ok(())
}

/// Handles events until every connection is established or has failed.
fn connect(session: &mut Session<'_>) -> Result<(), Failure> {
    let total = session.nodes.len();
    let mut progress = Progress::new("connected", total as u64);
    while session.undecided() > 0 {
        let event = session.next_event("connections", session.undecided())?;
        let at = event.id().context() as usize;
        let step = match &event {
            Event::AddressResolved { id, .. } => {
                session.count();
                id.resolve_route(RESOLVE_TIMEOUT).map_err(Failure::from)
            }
            Event::RouteResolved { id, .. } => {
                session.count();
                session
                    .prepare(at)
                    .and_then(|()| Ok(id.connect(&session.param(at))?))
            }
            other => session.note(other).map(drop),
        };
        match step {
            Ok(()) => {}
            Err(failure) if failure.is_device_fatal() => return Err(failure),
            Err(failure) => session.fail_to_connect(at, failure),
        }
        progress.set(u64::from(session.outcome.connections));
    }
    session.all_connected()
}
