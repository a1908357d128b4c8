//! The short way.

use crate::support::*;
use oarlock_rdmacm::{
    ConnParam, ConnectionOptions, Connector, Error, Listener, QueueSizes, RejReason,
};
use oarlock_verbs::{Buffer, SendRequest};
use std::time::{Duration, Instant};

fn patient() -> ConnectionOptions {
    ConnectionOptions::new().deadline(LONG)
}

#[test]
fn an_address_becomes_a_connection_that_carries_a_message() {
    let host = private();
    let listener = Listener::bind(&host, "[::1]:0".parse().unwrap())
        .unwrap()
        .options(
            patient()
                .queue_sizes(QueueSizes::new(1, 2))
                .prepare(|queue_pair, pd| Ok(queue_pair.post_recv(5, Buffer::new(pd, 64)?)?)),
        );
    let address = listener.local_addr().unwrap();
    let passive = std::thread::spawn(move || {
        let connection = listener.accept().unwrap();
        let mut completions = Vec::new();
        while completions.is_empty() {
            connection
                .recv_cq
                .wait(&mut completions, Some(LONG))
                .unwrap();
        }
        let message = completions.remove(0).ok().unwrap();
        assert_eq!(message.wr_id, 5);
        assert_eq!(
            &message.buffers[0][..message.byte_len as usize],
            b"short way"
        );
        connection.until_disconnected().unwrap();
    });
    let active = Connector::new(&host)
        .options(patient())
        .connect(address)
        .unwrap();
    let mut message = Buffer::new(&active.pd, 9).unwrap();
    message.copy_from_slice(b"short way");
    active
        .queue_pair
        .post_send(SendRequest::new(1, message))
        .unwrap();
    let mut completions = Vec::new();
    while completions.is_empty() {
        active.send_cq.wait(&mut completions, Some(LONG)).unwrap();
    }
    completions.remove(0).ok().unwrap();
    active.disconnect().unwrap();
    passive.join().unwrap();
}

#[test]
fn a_refusal_carries_its_reason_and_data() {
    let host = private();
    let listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let passive = std::thread::spawn(move || listener.reject(b"closed on mondays"));
    match Connector::new(&host).options(patient()).connect(address) {
        Err(error @ Error::Rejected { .. }) => {
            let message =
                format!("rejected by {address}: consumer defined (28): by the program there");
            assert!(error.to_string().contains(&message), "{error}");
            let Error::Rejected {
                reason,
                private_data,
                ..
            } = error
            else {
                unreachable!("matched above")
            };
            assert_eq!(reason, RejReason::CONSUMER_DEFINED);
            assert!(private_data.unwrap().is_padded_from(b"closed on mondays"));
        }
        other => panic!("{other:?}"),
    }
    passive.join().unwrap().unwrap();
}

/// Public fault 26.
#[test]
fn nobody_listening_is_a_refusal_by_the_host() {
    let host = private();
    let error = Connector::new(&host)
        .options(patient())
        .connect("127.0.0.1:4711".parse().unwrap())
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Rejected {
                reason: RejReason::INVALID_SERVICE_ID,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.errno(), 111);
    // Public fault 26 and the wish for errors that say what to do: the name, the number, the address, the cause.
    let message =
        "rejected by 127.0.0.1:4711: invalid service ID (8): nobody listens on 127.0.0.1:4711";
    assert!(error.to_string().contains(message), "{error}");
}

#[test]
fn a_deadline_ends_the_wait_of_both_sides() {
    let host = private();
    let soon = Duration::from_millis(30);
    let listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap())
        .unwrap()
        .options(ConnectionOptions::new().deadline(soon));
    let error = listener.accept().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    // The request is queued at the listener, and nobody fetches it.
    let address = listener.local_addr().unwrap();
    let mut later = soon;
    loop {
        let error = Connector::new(&host)
            .options(ConnectionOptions::new().deadline(later))
            .connect(address)
            .unwrap_err();
        match error {
            Error::TimedOut { awaited, peer } if peer == Some(address) => {
                if awaited == "the connection" {
                    break;
                }
                // On a busy machine the address was not resolved by then.
                later *= 2;
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_peer_that_gave_up_is_passed_over() {
    let host = private();
    let listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap())
        .unwrap()
        .options(patient());
    let address = listener.local_addr().unwrap();
    let hasty =
        Connector::new(&host).options(ConnectionOptions::new().deadline(Duration::from_millis(30)));
    hasty.connect(address).unwrap_err();
    let patient = {
        let host = host.clone();
        std::thread::spawn(move || {
            let param = ConnParam::default().private_data(b"patient");
            let connector = Connector::new(&host).options(patient().param(param));
            connector
                .connect(address)
                .unwrap()
                .until_disconnected()
                .unwrap();
        })
    };
    listener.accept().unwrap().disconnect().unwrap();
    patient.join().unwrap();
}

/// A peer that asks and does not confirm holds up nobody: each connection is made at its own pace.
#[test]
fn an_unconfirmed_connection_holds_up_nobody() {
    let host = private();
    let listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap())
        .unwrap()
        .options(patient());
    let address = listener.local_addr().unwrap();
    let events = channel(&host);
    // With a queue pair of the program's own the confirmation is the program's.
    let slow = resolved(&events, address);
    slow.connect(&external(1)).unwrap();
    let connecting = {
        let host = host.clone();
        std::thread::spawn(move || {
            let connector = Connector::new(&host).options(patient());
            connector.connect(address).unwrap()
        })
    };
    let quick = listener.accept().unwrap();
    let quick_peer = connecting.join().unwrap();
    assert_eq!(
        quick.id.peer_addr().unwrap(),
        quick_peer.id.local_addr().unwrap()
    );
    expect(&events, "CONNECT_RESPONSE").ack();
    slow.establish().unwrap();
    let late = listener.accept().unwrap();
    assert_eq!(
        late.id.peer_addr().unwrap(),
        slow.local_addr().unwrap(),
        "the one that confirmed late"
    );
}

/// Whatever one thread fetches for a connection, none of it is lost for the other: an end that comes at once is reported to
/// whoever was given the connection.
#[test]
fn several_threads_accept_and_every_end_is_reported() {
    let host = private();
    let listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap())
        .unwrap()
        .options(patient().queue_sizes(QueueSizes::new(1, 1)));
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let connection = listener.accept().unwrap();
                    connection.id.set_deadline(Some(Instant::now() + LONG));
                    connection.until_disconnected().unwrap();
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let connector =
                        Connector::new(&host).options(patient().queue_sizes(QueueSizes::new(1, 1)));
                    connector.connect(address).unwrap().disconnect().unwrap();
                }
            });
        }
    });
    assert_eq!(listener.turned_away(), 0);
}

/// While one thread looks for a request, it finds the connection that another thread waits for.
#[test]
fn a_request_looked_for_ends_the_wait_for_a_connection() {
    let host = private();
    let hasty = ConnectionOptions::new().deadline(Duration::ZERO);
    let mut listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let events = channel(&host);
    for _ in 0..10 {
        listener = listener.options(hasty.clone());
        let peer = resolved(&events, address);
        peer.connect(&external(1)).unwrap();
        wait_queued(&host, 1);
        // Accepted, not confirmed.
        assert!(matches!(listener.accept(), Err(Error::TimedOut { .. })));
        expect(&events, "CONNECT_RESPONSE").ack();
        listener = listener.options(patient());
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept());
            std::thread::sleep(Duration::from_millis(5));
            let looking = scope.spawn(|| listener.get_request());
            // Time for both to wait, the one that looks being the first to be woken.
            std::thread::sleep(Duration::from_millis(5));
            peer.establish().unwrap();
            let connection = accepting.join().unwrap().unwrap();
            assert_eq!(
                connection.id.peer_addr().unwrap(),
                peer.local_addr().unwrap()
            );
            // Ends the thread that looks.
            let another = resolved(&events, address);
            another.connect(&external(2)).unwrap();
            looking.join().unwrap().unwrap();
            expect(&events, "REJECTED").ack();
        });
        expect(&events, "DISCONNECTED").ack();
    }
}

/// A refusal picks a request; connections that become established meanwhile come out of the next `accept`.
#[test]
fn a_refusal_loses_no_connection() {
    let host = private();
    let listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap())
        .unwrap()
        .options(ConnectionOptions::new().deadline(Duration::from_millis(30)));
    let address = listener.local_addr().unwrap();
    let events = channel(&host);
    let first = resolved(&events, address);
    first.connect(&external(1)).unwrap();
    wait_queued(&host, 1);
    // Accepted, not confirmed.
    assert!(matches!(listener.accept(), Err(Error::TimedOut { .. })));
    expect(&events, "CONNECT_RESPONSE").ack();
    first.establish().unwrap();
    wait_queued(&host, 1);
    // Takes the confirmation off the channel, and finds no request.
    assert!(matches!(listener.reject(b""), Err(Error::TimedOut { .. })));
    let connection = listener.accept().unwrap();
    assert_eq!(
        connection.id.peer_addr().unwrap(),
        first.local_addr().unwrap()
    );
}
