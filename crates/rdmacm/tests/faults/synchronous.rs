//! Identifiers whose calls wait.

use crate::support::*;
use oarlock_rdmacm::{Error, Host, Identifier, PortSpace, RejReason};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

fn synchronous(host: &Host, address: SocketAddr) -> Identifier {
    let id = Identifier::synchronous(host, PortSpace::TCP).unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    id.resolve_route(LONG).unwrap();
    id
}

/// Public faults 14 and 27: a call that waits for its peer holds nothing that others need, on the same identifier or on
/// another; a disconnect from another thread ends it, and the peer is told.
#[test]
fn a_waiting_call_holds_up_nobody() {
    let host = private();
    let passive_channel = channel(&host);
    let (_listener, address) = listener(&passive_channel);
    let waiting = synchronous(&host, address);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| waiting.connect(&external(1)).unwrap_err());
        // It waits: the request is there, and nobody answers it.
        let child = request(&passive_channel).id;
        assert_eq!(waiting.peer_addr().unwrap(), Some(address));
        assert!(waiting.local_addr().unwrap().is_some());
        waiting.device().unwrap();
        let error = waiting.resolve_route(LONG).unwrap_err();
        assert_eq!(error.errno(), 22, "{error}");
        drop(synchronous(&host, address));
        assert!(!connecting.is_finished());
        waiting.disconnect().unwrap();
        let error = connecting.join().unwrap();
        assert!(
            matches!(error, Error::DisconnectedEarly { .. }),
            "{error:?}"
        );
        // The request is dead for the passive side.
        let error = child.accept(&external(2)).unwrap_err();
        assert_eq!(error.errno(), 22, "{error}");
    });
    // And again, the other way round: a second disconnect is harmless.
    waiting.disconnect().unwrap();
}

/// Public faults 2 and 9: destroying an identifier ends the call that waits in another thread, whatever it waits for.
#[test]
fn closing_ends_a_call_that_waits() {
    let host = private();
    let passive_channel = channel(&host);
    let (_listener, address) = listener(&passive_channel);
    let ends = |id: &Identifier, error: Error| {
        assert!(matches!(error, Error::Closed { .. }), "{error:?}");
        assert_eq!(error.errno(), id.resolve_route(LONG).unwrap_err().errno());
    };
    for _ in 0..20 {
        // In connect: the request has arrived, so the call waits.
        let connecting = synchronous(&host, address);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| connecting.connect(&external(1)).unwrap_err());
            let child = request(&passive_channel).id;
            connecting.clone().close().unwrap();
            ends(&connecting, waiting.join().unwrap());
            drop(child);
        });
        // In get_request; it may be closed before it waits.
        let passive = Identifier::synchronous(&host, PortSpace::TCP).unwrap();
        passive.listen(0).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| passive.get_request().unwrap_err());
            passive.clone().close().unwrap();
            ends(&passive, waiting.join().unwrap());
        });
    }
}

/// Of the calls that wait on one identifier each event answers one, and the others see what it changes for them.
#[test]
fn several_threads_wait_on_one_identifier() {
    let host = private();
    let events = channel(&host);
    let listener = Identifier::synchronous(&host, PortSpace::TCP).unwrap();
    listener.listen(0).unwrap();
    let port = listener.local_addr().unwrap().unwrap().port();
    listener.set_deadline(Instant::now().checked_add(LONG));
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| listener.get_request()))
            .collect();
        let peers = [1, 2, 3].map(|number| {
            let id = resolved(&events, SocketAddr::from(([127, 0, 0, 1], port)));
            id.connect(&external(number)).unwrap();
            id
        });
        while waiting.iter().filter(|call| call.is_finished()).count() < peers.len() {
            std::thread::yield_now();
        }
        // The deadline counts for those that do not read as well.
        listener.set_deadline(Some(Instant::now()));
        let error = listener.get_request().unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        listener.clone().close().unwrap();
        let (requests, ends): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .map(|call| call.join().unwrap())
            .partition(Result::is_ok);
        assert_eq!(requests.len(), peers.len());
        assert!(matches!(ends[..], [Err(Error::Closed { .. })]), "{ends:?}");
    });
    // A rejection that another call takes ends the one that waits for its connection.
    let (_listener, address) = crate::support::listener(&events);
    for _ in 0..20 {
        let id = synchronous(&host, address);
        id.set_deadline(Instant::now().checked_add(LONG));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| id.next_event().map(drop));
            }
            let connecting = scope.spawn(|| id.connect(&external(4)).unwrap_err());
            let child = request(&events).id;
            child.reject(RejReason::CONSUMER_DEFINED, b"").unwrap();
            let error = connecting.join().unwrap();
            assert!(
                matches!(
                    error,
                    Error::Rejected { .. } | Error::DisconnectedEarly { .. }
                ),
                "{error}"
            );
            // The other calls have no event to come.
            id.clone().close().unwrap();
        });
    }
}

/// Public faults 23 and 20: whatever a synchronous call ends with, its errno is positive and that of a C program, and the
/// error says more.
#[test]
fn failures_have_positive_error_numbers() {
    let wire = oarlock_hostd::MemWire::new();
    let (near, far): (IpAddr, IpAddr) =
        ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
    let host = Host::private_on(&wire, &[near]).unwrap();
    let far_host = Host::private_on(&wire, &[far]).unwrap();
    let passive = Identifier::synchronous(&far_host, PortSpace::TCP).unwrap();
    passive.bind_addr(SocketAddr::new(far, 0)).unwrap();
    passive.listen(0).unwrap();
    let address = passive.local_addr().unwrap().unwrap();

    // A rejection, by the program and by the host.
    let rejecting = std::thread::spawn(move || {
        let child = passive.get_request().unwrap();
        child.reject(RejReason::CONSUMER_DEFINED, b"no").unwrap();
        passive
    });
    let error = synchronous(&host, address)
        .connect(&external(1))
        .unwrap_err();
    assert!(matches!(error, Error::Rejected { .. }), "{error}");
    assert_eq!(error.errno(), 111, "{error}");
    let passive = rejecting.join().unwrap();
    let nobody = SocketAddr::new(far, 9);
    let error = synchronous(&host, nobody)
        .connect(&external(2))
        .unwrap_err();
    assert_eq!(error.errno(), 111, "{error}");

    // Nothing waits, within a deadline.
    passive.set_deadline(Some(Instant::now() + Duration::from_millis(5)));
    let error = passive.get_request().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert_eq!(error.errno(), 110, "{error}");

    // Nobody is there.
    let id = Identifier::synchronous(&host, PortSpace::TCP).unwrap();
    let away = "[fd00::9]:1".parse().unwrap();
    let error = id.resolve_addr(None, away, LONG).unwrap_err();
    assert!([101, 113].contains(&error.errno()), "{error}");

    // A peer that does not answer.
    let id = synchronous(&host, address);
    id.set_connect_deadline(Some(Duration::from_millis(20)))
        .unwrap();
    far_host.memory().unwrap().remove_address(far);
    let error = id.connect(&external(3)).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(error.errno(), 110, "{error}");
}

/// Public fault 10: an attempt to reach a peer that has gone ends when the program says, from the identifier's options alone,
/// and destroying while it lasts waits for nothing.
#[test]
fn an_attempt_that_nobody_answers_can_be_destroyed_at_once() {
    let wire = oarlock_hostd::MemWire::new();
    let (near, far): (IpAddr, IpAddr) =
        ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
    let host = Host::private_on(&wire, &[near]).unwrap();
    let far_host = Host::private_on(&wire, &[far]).unwrap();
    let events = channel(&host);
    let connecting: Vec<Identifier> = (0..20)
        .map(|n| {
            let id = resolved(&events, SocketAddr::new(far, 7471));
            far_host.memory().unwrap().remove_address(far);
            id.connect(&external(n)).unwrap();
            far_host.memory().unwrap().add_address(far).unwrap();
            id
        })
        .collect();
    // The retries of Linux last for 74 s; none of these is waited for.
    for id in connecting {
        id.close().unwrap();
    }
    assert_eq!(host.ps().unwrap().ids.len(), 0);
    assert_empty(&events);
}
