//! A passive side that changes its mind.

use crate::support::*;
use oarlock_rdmacm::{ConnParam, Event, RejReason};
use std::collections::HashMap;

const ATTEMPTS: u64 = 60;

/// Whatever the peer does right after the request, every attempt to connect ends with exactly one outcome: established
/// (and then perhaps disconnected), or one failure.
#[test]
fn every_attempt_has_one_outcome_whatever_the_peer_does() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let peer = std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut requests = 0;
        while requests < ATTEMPTS {
            let event = passive_channel
                .get_event_timeout(LONG)
                .unwrap()
                .expect("requests come");
            let Event::ConnectRequest { id, .. } = event else {
                continue;
            };
            requests += 1;
            if requests % 5 == 0 {
                id.reject(RejReason::CONSUMER_DEFINED, b"no").unwrap();
                continue;
            }
            idle_queue_pair(&id);
            id.accept(&ConnParam::default()).unwrap();
            match requests % 5 {
                1 => drop(id),
                2 => {
                    // Refused while the peer's confirmation is not here.
                    let _ = id.disconnect();
                    kept.push(id);
                }
                3 => {
                    let _ = id.reject(RejReason::CONSUMER_DEFINED, b"changed my mind");
                    kept.push(id);
                }
                _ => kept.push(id),
            }
        }
        kept
    });
    let mut ids = Vec::new();
    for number in 0..ATTEMPTS {
        let id = resolved(&active_channel, address);
        id.set_context(number);
        idle_queue_pair(&id);
        ids.push(id);
    }
    for id in &ids {
        id.connect(&ConnParam::default()).unwrap();
    }
    let mut outcomes: HashMap<u64, Vec<&str>> = HashMap::new();
    while outcomes.len() < ids.len() {
        let event = active_channel
            .get_event_timeout(LONG)
            .unwrap()
            .unwrap_or_else(|| {
                let states: Vec<String> = host
                    .ps()
                    .unwrap()
                    .ids
                    .into_iter()
                    .map(|id| id.state)
                    .collect();
                panic!(
                    "{} of {ATTEMPTS} have an outcome; {states:?}",
                    outcomes.len()
                )
            });
        let names = outcomes.entry(event.id().context()).or_default();
        names.push(event.name().strip_prefix("RDMA_CM_EVENT_").unwrap());
    }
    for (number, names) in &outcomes {
        let right = match names.as_slice() {
            ["CONNECT_ERROR" | "REJECTED" | "UNREACHABLE"] => true,
            ["ESTABLISHED", rest @ ..] => rest
                .iter()
                .all(|name| ["DISCONNECTED", "REJECTED", "TIMEWAIT_EXIT"].contains(name)),
            _ => false,
        };
        assert!(right, "attempt {number}: {names:?}");
    }
    drop(peer.join().unwrap());
}
