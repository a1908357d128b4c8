//! Futures dropped at their awaits: what each call promises is left.

use super::ways::any_port;
use super::*;
use crate::support::*;
use oarlock_rdmacm::{
    AsyncConnector, AsyncEventChannel, AsyncIdentifier, AsyncListener, ConnParam, EventChannel,
    Identifier, PortSpace,
};
use oarlock_verbs::{Buffer, SendRequest};

/// `get_event`: raced against something that is always ready sooner or later, it loses none.
#[test]
fn get_event_in_a_select_loses_no_event() {
    on_both(|host| async move {
        let events = AsyncEventChannel::new(EventChannel::new(&host).unwrap()).unwrap();
        let (_listener, address) = listener(&channel(&host));
        let mut ids = Vec::new();
        let (mut taken, mut cancelled) = (0, 0);
        while taken < 200 {
            if ids.len() < 200 {
                let id = Identifier::new(events.channel(), PortSpace::TCP).unwrap();
                id.resolve_addr(None, address, LONG).unwrap();
                ids.push(id);
            }
            // Whichever is looked at first; waiting, the first is always dropped.
            tokio::select! {
                event = events.get_event() => {
                    event.unwrap();
                    taken += 1;
                }
                () = std::future::ready(()) => {
                    cancelled += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
        assert!(cancelled > 0);
        assert_empty(events.channel());
    });
}

/// Each call of an identifier, dropped after its first poll: the operation goes on, and its outcome is the next event.
#[test]
fn the_outcome_of_a_cancelled_call_is_the_next_event() {
    on_both(|host| async move {
        let host = async_host(&host);
        let listener = AsyncListener::bind(&host, any_port()).unwrap();
        let address = listener.local_addr().unwrap();
        let active = AsyncIdentifier::new(&host, PortSpace::TCP).unwrap();
        let expect_next = async |id: &AsyncIdentifier, name: &str| {
            let event = id.next_event().await.unwrap();
            assert_eq!(event.name(), name);
        };
        // With no poll at all nothing has begun.
        assert!(
            cancelled_after(0, active.resolve_addr(None, address, LONG))
                .await
                .is_none()
        );
        if cancelled_after(1, active.resolve_addr(None, address, LONG))
            .await
            .is_none()
        {
            expect_next(&active, "RDMA_CM_EVENT_ADDR_RESOLVED").await;
        }
        if cancelled_after(1, active.resolve_route(LONG))
            .await
            .is_none()
        {
            expect_next(&active, "RDMA_CM_EVENT_ROUTE_RESOLVED").await;
        }
        idle_queue_pair(active.id());
        let cancelled = cancelled_after(1, active.connect(&ConnParam::default())).await;
        assert!(cancelled.is_none(), "nobody has accepted yet");
        let passive = listener.get_request().await.unwrap();
        idle_queue_pair(passive.id());
        let accepted = cancelled_after(1, passive.accept(&ConnParam::default())).await;
        expect_next(&active, "RDMA_CM_EVENT_ESTABLISHED").await;
        if accepted.is_none() {
            expect_next(&passive, "RDMA_CM_EVENT_ESTABLISHED").await;
        }
        let cancelled = cancelled_after(1, active.disconnect()).await;
        assert!(cancelled.is_none(), "the peer has not answered yet");
        expect_next(&passive, "RDMA_CM_EVENT_DISCONNECTED").await;
        passive.disconnect().await.unwrap();
        expect_next(&active, "RDMA_CM_EVENT_DISCONNECTED").await;
    });
}

/// `accept`: dropped at whatever await, as often as it takes; every peer gets its connection all the same.
#[test]
fn accept_in_a_select_loses_no_connection() {
    on_both(|host| async move {
        let host = async_host(&host);
        let listener = AsyncListener::bind(&host, any_port())
            .unwrap()
            .options(small());
        let address = listener.local_addr().unwrap();
        let peers: Vec<_> = (0..30)
            .map(|_| {
                let connector = AsyncConnector::new(&host).options(small());
                tokio::spawn(async move {
                    let connection = connector.connect(address).await.unwrap();
                    connection.until_disconnected().await.unwrap();
                })
            })
            .collect();
        let (mut accepted, mut cancelled) = (Vec::new(), 0);
        while accepted.len() < 30 {
            match cancelled_after(1, listener.accept()).await {
                Some(connection) => accepted.push(connection.unwrap()),
                None => {
                    cancelled += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
        assert!(cancelled > 0);
        drop(accepted);
        for peer in peers {
            peer.await.unwrap();
        }
        assert_eq!(listener.turned_away(), 0);
    });
}

/// `get_request` between calls of `accept`: a connection that becomes established meanwhile is kept.
#[test]
fn a_request_looked_for_loses_no_connection() {
    on_both(|host| async move {
        let events = channel(&host);
        let host = async_host(&host);
        let listener = AsyncListener::bind(&host, any_port())
            .unwrap()
            .options(small());
        let first = resolved(&events, listener.local_addr().unwrap());
        first.connect(&external(1)).unwrap();
        wait_queued(host.host(), 1);
        // Takes the request, and answers it.
        let accepted = cancelled_after(1, listener.accept()).await;
        assert!(accepted.is_none(), "not confirmed yet");
        expect(&events, "CONNECT_RESPONSE").ack();
        first.establish().unwrap();
        wait_queued(host.host(), 1);
        // Takes the confirmation, and finds no request.
        while queued_at_listener(&host) > 0 {
            assert!(cancelled_after(1, listener.get_request()).await.is_none());
            tokio::task::yield_now().await;
        }
        let connection = listener.accept().await.unwrap();
        assert_eq!(
            connection.id.id().peer_addr().unwrap(),
            first.local_addr().unwrap()
        );
    });
}

/// While one task looks for a request, it finds the connection that another waits for.
#[test]
fn a_request_looked_for_ends_the_wait_for_a_connection() {
    let host = private();
    on(&on_one_thread(), async move {
        let events = channel(&host);
        let host = async_host(&host);
        let listener = AsyncListener::bind(&host, any_port())
            .unwrap()
            .options(small());
        let first = resolved(&events, listener.local_addr().unwrap());
        first.connect(&external(1)).unwrap();
        wait_queued(host.host(), 1);
        let mut accepting = pin!(listener.accept());
        assert!(cancelled_after(1, accepting.as_mut()).await.is_none());
        expect(&events, "CONNECT_RESPONSE").ack();
        first.establish().unwrap();
        wait_queued(host.host(), 1);
        while queued_at_listener(&host) > 0 {
            assert!(cancelled_after(1, listener.get_request()).await.is_none());
            tokio::task::yield_now().await;
        }
        let connection = accepting.await.unwrap();
        assert_eq!(
            connection.id.id().peer_addr().unwrap(),
            first.local_addr().unwrap()
        );
    });
}

fn queued_at_listener(host: &AsyncHost) -> u32 {
    let ids = host.host().ps().unwrap().ids;
    ids.iter().map(|id| id.queued).sum()
}

/// `connect`: dropped after every number of polls that it takes; nothing of it is left, here or at the service.
#[test]
fn a_cancelled_connect_leaves_nothing() {
    on_both(|host| async move {
        let host = async_host(&host);
        let listener = AsyncListener::bind(&host, any_port())
            .unwrap()
            .options(small());
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            loop {
                // One that is given up right after it was established ends.
                let connection = listener.accept().await.unwrap();
                tokio::spawn(async move { connection.until_disconnected().await });
            }
        });
        let mut polls = 0;
        loop {
            let connector = AsyncConnector::new(&host).options(small());
            if cancelled_after(polls, connector.connect(address))
                .await
                .is_some()
            {
                break;
            }
            polls += 1;
        }
        assert!(polls > 1, "connecting waits at least once");
        // The listener's identifier stays.
        while host.host().ps().unwrap().ids.len() > 1 {
            tokio::task::yield_now().await;
        }
        accepting.abort();
    });
}

/// `wait` of a completion queue: every completion comes out once, whatever is dropped in between.
#[test]
fn waiting_for_completions_in_a_select_loses_none() {
    on_both(|host| async move {
        const MESSAGES: usize = 50;
        let host = async_host(&host);
        let options = small()
            .queue_sizes(QueueSizes::new(MESSAGES as u32, MESSAGES as u32))
            .prepare(|queue_pair, pd| {
                for number in 0..MESSAGES as u64 {
                    queue_pair.post_recv(number, Buffer::new(pd, 8)?)?;
                }
                Ok(())
            });
        let listener = AsyncListener::bind(&host, any_port())
            .unwrap()
            .options(options.clone());
        let address = listener.local_addr().unwrap();
        let receiving = tokio::spawn(async move {
            let connection = listener.accept().await.unwrap();
            let mut received = Vec::new();
            while received.len() < MESSAGES {
                tokio::select! {
                    count = connection.recv_cq.wait(&mut received) => assert!(count.unwrap() > 0),
                    () = tokio::task::yield_now() => {}
                }
            }
            let numbers: Vec<u64> = received
                .into_iter()
                .map(|completion| completion.ok().unwrap().wr_id)
                .collect();
            assert_eq!(numbers, (0..MESSAGES as u64).collect::<Vec<_>>());
            connection.until_disconnected().await.unwrap();
        });
        let connection = AsyncConnector::new(&host)
            .options(options)
            .connect(address)
            .await
            .unwrap();
        let mut sent = Vec::new();
        for number in 0..MESSAGES as u64 {
            let message = Buffer::new(&connection.pd, 8).unwrap();
            connection
                .queue_pair
                .post_send(SendRequest::new(number, message))
                .unwrap();
            if number % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        while sent.len() < MESSAGES {
            connection.send_cq.wait(&mut sent).await.unwrap();
        }
        connection.disconnect().await.unwrap();
        receiving.await.unwrap();
    });
}
