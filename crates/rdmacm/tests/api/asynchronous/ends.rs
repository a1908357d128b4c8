//! How waits end that nothing satisfies.

use super::ways::any_port;
use super::*;
use crate::support::*;
use oarlock_rdmacm::{
    AsyncConnector, AsyncEventChannel, AsyncIdentifier, AsyncListener, Error, EventChannel,
    PortSpace,
};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_deadline_ends_the_wait_of_both_sides() {
    on_both(|host| async move {
        let host = async_host(&host);
        let soon = small().deadline(Duration::from_millis(30));
        let listener = AsyncListener::bind(&host, any_port())
            .unwrap()
            .options(soon.clone());
        let error = listener.accept().await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::TimedOut {
                    awaited: "a connection",
                    ..
                }
            ),
            "{error}"
        );
        let error = listener.get_request().await.unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        // The request is queued at the listener, and nobody fetches it.
        let address = listener.local_addr().unwrap();
        let connector = AsyncConnector::new(&host).options(soon);
        let error = connector.connect(address).await.unwrap_err();
        assert!(
            matches!(error, Error::TimedOut { peer: Some(peer), .. } if peer == address),
            "{error}"
        );
        // Nothing of it is left: what the listener finds is a request whose sender has gone.
        while host.host().ps().unwrap().ids.iter().any(|id| id.queued > 0) {
            let _ = listener.accept().await.unwrap_err();
        }
    });
}

/// The end of the service ends every wait.
#[test]
fn the_end_of_the_service_ends_every_wait() {
    on_both(|host| async move {
        let on_host = async_host(&host);
        let listener = AsyncListener::bind(&on_host, any_port())
            .unwrap()
            .options(small());
        let address = listener.local_addr().unwrap();
        let peer = tokio::spawn({
            let connector = AsyncConnector::new(&on_host).options(small());
            async move { connector.connect(address).await.unwrap() }
        });
        let accepted = listener.accept().await.unwrap();
        let connection = peer.await.unwrap();
        let events = AsyncEventChannel::new(EventChannel::new(&host).unwrap()).unwrap();
        let id = AsyncIdentifier::new(&on_host, PortSpace::TCP).unwrap();
        let waits = [
            tokio::spawn(async move { events.get_event().await.unwrap_err() }),
            tokio::spawn(async move { listener.accept().await.unwrap_err() }),
            tokio::spawn(async move { id.next_event().await.unwrap_err() }),
            tokio::spawn(async move { accepted.until_disconnected().await.unwrap_err() }),
            tokio::spawn(async move {
                let mut completions = Vec::new();
                connection.recv_cq.wait(&mut completions).await.unwrap_err()
            }),
        ];
        tokio::task::yield_now().await;
        host.close();
        for wait in waits {
            let error = wait.await.unwrap();
            assert!(error.is_device_fatal(), "{error}");
        }
    });
}

/// The runtime that reads the events may end before one that awaits them.
#[test]
fn the_end_of_the_reading_runtime_ends_every_wait() {
    let host = private();
    let reading = on_several_threads();
    let on_host = reading.block_on(async { async_host(&host) });
    let (_listener, address) = listener(&channel(&host));
    on_one_thread().block_on(async {
        let id = AsyncIdentifier::new(&on_host, PortSpace::TCP).unwrap();
        id.resolve_addr(None, address, LONG).await.unwrap();
        let mut waiting = pin!(id.next_event());
        assert!(cancelled_after(1, waiting.as_mut()).await.is_none());
        reading.shutdown_background();
        let error = waiting.await.unwrap_err();
        assert!(matches!(error, Error::RuntimeGone), "{error}");
        let error = id.next_event().await.unwrap_err();
        assert!(matches!(error, Error::RuntimeGone), "{error}");
    });
}

#[test]
fn without_a_runtime_there_is_an_error_and_no_panic() {
    let host = private();
    let error = AsyncHost::new(&host).unwrap_err();
    assert!(matches!(error, Error::NoRuntime { .. }), "{error}");
    let events = EventChannel::new(&host).unwrap();
    let error = AsyncEventChannel::new(events.clone()).unwrap_err();
    assert!(matches!(error, Error::NoRuntime { .. }), "{error}");
    // And a channel is registered once.
    on_one_thread().block_on(async {
        let _first = AsyncEventChannel::new(events.clone()).unwrap();
        match AsyncEventChannel::new(events).unwrap_err() {
            Error::Channel(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
            other => panic!("{other}"),
        }
    });
}

/// What the program acknowledged reaches the service, although no further event is asked for.
#[test]
fn acknowledgements_reach_the_service() {
    on_both(|host| async move {
        let on_host = async_host(&host);
        let (_listener, address) = listener(&channel(&host));
        let id = AsyncIdentifier::new(&on_host, PortSpace::TCP).unwrap();
        id.resolve_addr(None, address, LONG).await.unwrap();
        while host.ps().unwrap().ids.iter().any(|id| id.unacked > 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

/// Public faults 2 and 9: closing an identifier ends the call that waits in another task, whatever it waits for.
#[test]
fn closing_ends_a_call_that_waits() {
    on_both(|host| async move {
        let on_host = async_host(&host);
        let listener = AsyncListener::bind(&on_host, any_port())
            .unwrap()
            .options(small());
        let address = listener.local_addr().unwrap();
        for _ in 0..20 {
            let id = resolved(&on_host, address).await;
            let handle = id.id().clone();
            let waiting = tokio::spawn(async move { id.connect(&external(1)).await.unwrap_err() });
            // The request has arrived, so the call waits.
            let child = listener.get_request().await.unwrap();
            handle.close().unwrap();
            let error = waiting.await.unwrap();
            assert!(
                matches!(error, Error::Closed { call: "connect" }),
                "{error:?}"
            );
            drop(child);
            // It may be closed before it waits.
            let id = AsyncIdentifier::new(&on_host, PortSpace::TCP).unwrap();
            let handle = id.id().clone();
            let waiting = tokio::spawn(async move { id.next_event().await.unwrap_err() });
            handle.close().unwrap();
            let error = waiting.await.unwrap();
            assert!(matches!(error, Error::Closed { .. }), "{error:?}");
        }
    });
}

/// Public fault 27: an attempt that another task withdraws ends once, in the call that waits for it.
#[test]
fn a_disconnect_ends_the_call_that_waits_and_does_not_wait_itself() {
    on_both(|host| async move {
        let on_host = async_host(&host);
        let listener = AsyncListener::bind(&on_host, any_port())
            .unwrap()
            .options(small());
        let address = listener.local_addr().unwrap();
        for _ in 0..20 {
            let id = Arc::new(resolved(&on_host, address).await);
            let waiting = tokio::spawn({
                let id = Arc::clone(&id);
                async move { id.connect(&external(1)).await.unwrap_err() }
            });
            let child = listener.get_request().await.unwrap();
            id.disconnect().await.unwrap();
            let error = waiting.await.unwrap();
            assert!(
                matches!(error, Error::DisconnectedEarly { .. }),
                "{error:?}"
            );
            id.disconnect().await.unwrap();
            drop(child);
        }
    });
}

/// One event tells of the end, whichever call takes it: it ends every call that waits for it.
#[test]
fn a_disconnect_ends_although_another_call_takes_the_event() {
    let host = private();
    // On one thread, so that no event is delivered before the other call waits.
    on(&on_one_thread(), async move {
        let on_host = async_host(&host);
        let listener = AsyncListener::bind(&on_host, any_port()).unwrap();
        let id = resolved(&on_host, listener.local_addr().unwrap()).await;
        id.id().connect(&external(1)).unwrap();
        let _child = listener.get_request().await.unwrap();
        let mut disconnecting = pin!(id.disconnect());
        assert!(cancelled_after(1, disconnecting.as_mut()).await.is_none());
        // A call that is not polled meanwhile does not hold up another.
        let event = id.next_event().await.unwrap();
        assert_eq!(event.name(), "RDMA_CM_EVENT_DISCONNECTED");
        disconnecting.await.unwrap();
    });
}

#[test]
fn a_disconnect_of_what_is_over_does_not_wait() {
    on_both(|host| async move {
        let on_host = async_host(&host);
        for (what, id) in crate::over::over(&host).ids {
            let id = AsyncIdentifier::adopt(&on_host, id).unwrap();
            let disconnecting = tokio::time::timeout(LONG, id.disconnect());
            let done = disconnecting.await.unwrap_or_else(|_| panic!("{what}"));
            done.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    });
}

async fn resolved(host: &AsyncHost, address: std::net::SocketAddr) -> AsyncIdentifier {
    let id = AsyncIdentifier::new(host, PortSpace::TCP).unwrap();
    id.resolve_addr(None, address, LONG).await.unwrap();
    id.resolve_route(LONG).await.unwrap();
    id
}
