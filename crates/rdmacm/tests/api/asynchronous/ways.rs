//! What the calls do when nothing goes wrong.

use super::*;
use crate::support::*;
use oarlock_rdmacm::{
    AsyncConnector, AsyncEventChannel, AsyncIdentifier, AsyncListener, ConnParam, Error,
    EventChannel, Identifier, JoinKind, Listener, PortSpace, RejReason,
};
use oarlock_verbs::{Buffer, SendRequest};
use std::net::SocketAddr;

pub(super) fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn an_address_becomes_a_connection_that_carries_messages_both_ways() {
    on_both(|host| async move {
        let host = async_host(&host);
        let options =
            small().prepare(|queue_pair, pd| Ok(queue_pair.post_recv(5, Buffer::new(pd, 64)?)?));
        let listener = AsyncListener::bind(&host, "[::1]:0".parse().unwrap())
            .unwrap()
            .options(options.clone());
        let address = listener.local_addr().unwrap();
        let passive = tokio::spawn(async move {
            let connection = listener.accept().await.unwrap();
            let mut completions = Vec::new();
            connection.recv_cq.wait(&mut completions).await.unwrap();
            let message = completions.remove(0).ok().unwrap();
            assert_eq!(message.wr_id, 5);
            assert_eq!(
                &message.buffers[0][..message.byte_len as usize],
                b"question"
            );
            let mut answer = Buffer::new(&connection.pd, 6).unwrap();
            answer.copy_from_slice(b"answer");
            connection
                .queue_pair
                .post_send(SendRequest::new(1, answer))
                .unwrap();
            connection.until_disconnected().await.unwrap();
        });
        let active = AsyncConnector::new(&host)
            .options(options)
            .connect(address)
            .await
            .unwrap();
        assert_eq!(active.id.id().peer_addr().unwrap(), Some(address));
        let mut question = Buffer::new(&active.pd, 8).unwrap();
        question.copy_from_slice(b"question");
        active
            .queue_pair
            .post_send(SendRequest::new(1, question))
            .unwrap();
        let mut completions = Vec::new();
        active.send_cq.wait(&mut completions).await.unwrap();
        completions.remove(0).ok().unwrap();
        active.recv_cq.wait(&mut completions).await.unwrap();
        let answer = completions.remove(0).ok().unwrap();
        assert_eq!(&answer.buffers[0][..answer.byte_len as usize], b"answer");
        active.disconnect().await.unwrap();
        passive.await.unwrap();
    });
}

#[test]
fn step_by_step_with_a_request_looked_at() {
    on_both(|host| async move {
        let host = async_host(&host);
        let listener = AsyncListener::bind(&host, any_port()).unwrap();
        let address = listener.local_addr().unwrap();
        let passive = tokio::spawn(async move {
            let refused = listener.get_request().await.unwrap();
            refused
                .id()
                .reject(RejReason::CONSUMER_DEFINED, b"not you")
                .unwrap();
            let accepted = listener.get_request().await.unwrap();
            let data = accepted.id().peer_private_data().unwrap();
            assert!(data.is_padded_from(b"me"), "{data:?}");
            idle_queue_pair(accepted.id());
            accepted.accept(&ConnParam::default()).await.unwrap();
            let end = accepted.next_event().await.unwrap();
            assert_eq!(end.name(), "RDMA_CM_EVENT_DISCONNECTED");
            accepted.disconnect().await.unwrap();
        });
        let connect = async |data: &[u8]| {
            let id = AsyncIdentifier::new(&host, PortSpace::TCP).unwrap();
            id.resolve_addr(None, address, LONG).await.unwrap();
            id.resolve_route(LONG).await.unwrap();
            idle_queue_pair(id.id());
            let outcome = id.connect(&ConnParam::default().private_data(data)).await;
            outcome.map(|()| id)
        };
        let error = connect(b"somebody").await.unwrap_err();
        match error {
            Error::Rejected {
                peer, private_data, ..
            } => {
                assert_eq!(peer, Some(address));
                assert!(private_data.unwrap().is_padded_from(b"not you"));
            }
            other => panic!("{other}"),
        }
        let id = connect(b"me").await.unwrap();
        id.disconnect().await.unwrap();
        // Public fault 32: a second disconnect is harmless.
        id.disconnect().await.unwrap();
        passive.await.unwrap();
    });
}

/// Both ways of calling meet: nothing on the wire or in the service differs.
#[test]
fn an_async_side_talks_to_a_blocking_one() {
    on_both(|host| async move {
        let listener = Listener::bind(&host, any_port()).unwrap().options(small());
        let address = listener.local_addr().unwrap();
        let blocking = std::thread::spawn(move || {
            listener.accept().unwrap().until_disconnected().unwrap();
        });
        let host = async_host(&host);
        let connection = AsyncConnector::new(&host)
            .options(small())
            .connect(address)
            .await
            .unwrap();
        connection.disconnect().await.unwrap();
        blocking.join().unwrap();
    });
}

#[test]
fn an_identifier_becomes_async_and_ordinary_again_and_no_event_is_lost() {
    on_both(|host| async move {
        let first = channel(&host);
        let (_listener, address) = listener(&channel(&host));
        let id = Identifier::new(&first, PortSpace::TCP).unwrap();
        id.resolve_addr(None, address, LONG).unwrap();
        wait_queued(&host, 1);
        let host = async_host(&host);
        let id = AsyncIdentifier::adopt(&host, id).unwrap();
        let event = id.next_event().await.unwrap();
        assert_eq!(event.name(), "RDMA_CM_EVENT_ADDR_RESOLVED");
        drop(event);
        assert_empty(&first);
        // Fetched or still queued: one of both.
        id.id().resolve_route(LONG).unwrap();
        let last = channel(host.host());
        let (id, mut fetched) = id.into_identifier(&last).unwrap();
        let event = match fetched.pop() {
            Some(event) => event,
            None => expect(&last, "ROUTE_RESOLVED"),
        };
        assert_eq!(event.name(), "RDMA_CM_EVENT_ROUTE_RESOLVED");
        // It still has to be acknowledged before the identifier may move again.
        let error = id.migrate(&first).unwrap_err();
        assert!(matches!(error, Error::EventHeldByCaller { .. }), "{error}");
        event.ack();
        id.migrate(&first).unwrap();
        id.close().unwrap();
    });
}

#[test]
fn a_channel_gives_each_event_to_one_of_its_readers() {
    on_both(|host| async move {
        let events = AsyncEventChannel::new(EventChannel::new(&host).unwrap()).unwrap();
        let (_listener, address) = listener(&channel(&host));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let events = events.clone();
                tokio::spawn(async move {
                    let mut seen = Vec::new();
                    loop {
                        let event = events.get_event().await.unwrap();
                        match event.id().context() {
                            0 => return seen,
                            number => seen.push(number),
                        }
                        drop(event);
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let start = |number| {
            let id = Identifier::new(events.channel(), PortSpace::TCP).unwrap();
            id.set_context(number);
            id.resolve_addr(None, address, LONG).unwrap();
            id
        };
        let ids: Vec<_> = (1..=100).map(start).collect();
        // Only when all have come the readers may be told to stop.
        while ids.iter().any(|id| id.device().is_err()) || queued(&host) > 0 {
            tokio::task::yield_now().await;
        }
        let last: Vec<_> = (0..3).map(|_| start(0)).collect();
        let mut seen = Vec::new();
        for reader in readers {
            seen.extend(reader.await.unwrap());
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=100).collect::<Vec<u64>>());
        drop(last);
    });
}

fn queued(host: &Host) -> u32 {
    host.ps().unwrap().ids.iter().map(|id| id.queued).sum()
}

#[test]
fn datagrams_and_groups() {
    on_both(|host| async move {
        let on_host = async_host(&host);
        let (_listener, address) = crate::datagram::datagram_listener(&channel(&host));
        let id = AsyncIdentifier::new(&on_host, PortSpace::UDP).unwrap();
        id.resolve_addr(None, address, LONG).await.unwrap();
        id.resolve_route(LONG).await.unwrap();
        let own = crate::datagram::socket(id.id());
        // Its answer is not here yet: the question goes on, and the answer is the next event.
        assert!(cancelled_after(1, id.resolve_peer(b"")).await.is_none());
        let group: SocketAddr = "239.1.2.3:0".parse().unwrap();
        let member = AsyncIdentifier::new(&on_host, PortSpace::UDP).unwrap();
        member.resolve_addr(None, group, LONG).await.unwrap();
        let socket = crate::datagram::socket(member.id());
        let multicast = member
            .join_multicast(group, JoinKind::FullMember)
            .await
            .unwrap();
        let param = multicast.param().unwrap();
        let handle = param.address_handle(own.queue_pair.pd()).unwrap();
        own.send(&handle, param.qpn, param.qkey, b"to all");
        assert_eq!(socket.receive().message(), Some(&b"to all"[..]));
        let nobody = AsyncIdentifier::new(&on_host, PortSpace::UDP).unwrap();
        nobody
            .resolve_addr(None, "127.0.0.1:4711".parse().unwrap(), LONG)
            .await
            .unwrap();
        nobody.resolve_route(LONG).await.unwrap();
        let error = nobody.resolve_peer(b"").await.unwrap_err();
        assert!(matches!(error, Error::ServiceRefused { .. }), "{error}");
    });
}

/// From another task, an event of the program's own ends the wait.
#[test]
fn an_injected_event_wakes_a_task() {
    on_both(|host| async move {
        let on_host = async_host(&host);
        let id = std::sync::Arc::new(AsyncIdentifier::new(&on_host, PortSpace::TCP).unwrap());
        let waiting = tokio::spawn({
            let id = std::sync::Arc::clone(&id);
            async move { id.next_event().await.unwrap().name() }
        });
        id.id().inject(7, 0).unwrap();
        assert_eq!(waiting.await.unwrap(), "RDMA_CM_EVENT_USER");
    });
}

/// A task that waits for the end of an identifier from its beginning takes no outcome from the calls beside it, and hears of
/// a call that was given up.
#[test]
fn who_waits_for_what_is_left_takes_nothing_from_a_call() {
    on_both(|host| async move {
        let host = async_host(&host);
        let listener = AsyncListener::bind(&host, any_port()).unwrap();
        let address = listener.local_addr().unwrap();
        let passive = tokio::spawn(async move {
            let accepted = std::sync::Arc::new(listener.get_request().await.unwrap());
            let end = left(&accepted);
            idle_queue_pair(accepted.id());
            accepted.accept(&ConnParam::default()).await.unwrap();
            end.await.unwrap()
        });
        let id = std::sync::Arc::new(AsyncIdentifier::new(&host, PortSpace::TCP).unwrap());
        let end = left(&id);
        tokio::task::yield_now().await;
        id.resolve_addr(None, address, LONG).await.unwrap();
        id.resolve_route(LONG).await.unwrap();
        idle_queue_pair(id.id());
        id.connect(&ConnParam::default()).await.unwrap();
        id.disconnect().await.unwrap();
        assert_eq!(end.await.unwrap(), "RDMA_CM_EVENT_DISCONNECTED");
        assert_eq!(passive.await.unwrap(), "RDMA_CM_EVENT_DISCONNECTED");

        let id = std::sync::Arc::new(AsyncIdentifier::new(&host, PortSpace::TCP).unwrap());
        let outcome = left(&id);
        let call = id.resolve_addr(None, address, LONG);
        if cancelled_after(1, call).await.is_none() {
            assert_eq!(outcome.await.unwrap(), "RDMA_CM_EVENT_ADDR_RESOLVED");
        } else {
            outcome.abort();
        }
    });
}

/// The name of the next event that no call waits for.
fn left(id: &std::sync::Arc<AsyncIdentifier>) -> tokio::task::JoinHandle<&'static str> {
    let id = std::sync::Arc::clone(id);
    tokio::spawn(async move { id.next_event().await.unwrap().name() })
}
