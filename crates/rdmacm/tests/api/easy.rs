//! The short way.

use crate::support::*;
use oarlock_rdmacm::{ConnParam, Connector, Error, Listener, QueueSizes, RejReason};
use oarlock_verbs::{Buffer, SendRequest};
use std::time::Duration;

#[test]
fn an_address_becomes_a_connection_that_carries_a_message() {
    let host = private();
    let listener = Listener::bind(&host, "[::1]:0".parse().unwrap())
        .unwrap()
        .deadline(LONG)
        .queue_sizes(QueueSizes::new(1, 2))
        .prepare(|queue_pair, pd| Ok(queue_pair.post_recv(5, Buffer::new(pd, 64)?)?));
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
        .deadline(LONG)
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
    match Connector::new(&host).deadline(LONG).connect(address) {
        Err(Error::Rejected {
            reason,
            private_data,
        }) => {
            assert_eq!(reason, RejReason::CONSUMER_DEFINED);
            assert!(private_data.unwrap().is_padded_from(b"closed on mondays"));
        }
        other => panic!("{other:?}"),
    }
    passive.join().unwrap().unwrap();
}

#[test]
fn nobody_listening_is_a_refusal_by_the_host() {
    let host = private();
    let error = Connector::new(&host)
        .deadline(LONG)
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
}

#[test]
fn a_deadline_ends_the_wait_of_both_sides() {
    let host = private();
    let soon = Duration::from_millis(30);
    let listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap())
        .unwrap()
        .deadline(soon);
    let error = listener.accept().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    // The request is queued at the listener, and nobody fetches it.
    let address = listener.local_addr().unwrap();
    let error = Connector::new(&host)
        .deadline(soon)
        .connect(address)
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::TimedOut {
                awaited: "the connection"
            }
        ),
        "{error}"
    );
}

#[test]
fn a_peer_that_gave_up_is_passed_over() {
    let host = private();
    let listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap())
        .unwrap()
        .deadline(LONG);
    let address = listener.local_addr().unwrap();
    let hasty = Connector::new(&host).deadline(Duration::from_millis(30));
    hasty.connect(address).unwrap_err();
    let patient = {
        let host = host.clone();
        std::thread::spawn(move || {
            let param = ConnParam::default().private_data(b"patient");
            let connector = Connector::new(&host).param(param).deadline(LONG);
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
