//! What connections need for one-sided work: memory of the peer, limits of READs and atomics, shared receive queues.

use crate::support::*;
use oarlock_rdmacm::{
    AsyncConnector, AsyncHost, AsyncListener, ConnParam, Connection, ConnectionOptions, Connector,
    Error, Event, Host, Identifier, Listener, PortSpace,
};
use oarlock_verbs::{
    Access, Buffer, CompletionQueue, QpInitAttr, RemoteAddress, RemoteMemory, SendRequest,
    SharedReceiveQueue, SrqInitAttr, VendorError, WcStatus,
};
use oarlock_wire::RKey;

fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

fn patient() -> ConnectionOptions {
    ConnectionOptions::new().deadline(LONG)
}

/// Both sides of a connection; the active side asks with `param`, the passive side accepts with `accepted`.
fn connected(host: &Host, param: ConnParam, accepted: ConnParam) -> (Connection, Connection) {
    let listener = Listener::bind(host, "127.0.0.1:0".parse().unwrap())
        .unwrap()
        .options(patient().param(accepted));
    let address = listener.local_addr().unwrap();
    let passive = std::thread::spawn(move || listener.accept().unwrap());
    let active = Connector::new(host)
        .options(patient().param(param))
        .connect(address)
        .unwrap();
    (active, passive.join().unwrap())
}

fn end(active: Connection, passive: Connection) {
    let waiting = std::thread::spawn(move || passive.until_disconnected());
    active.disconnect().unwrap();
    waiting.join().unwrap().unwrap();
}

fn buffer(connection: &Connection, bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(&connection.pd, bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

#[test]
fn the_calls_of_a_connection_work_on_memory_of_the_peer() {
    let host = private();
    let (active, passive) = connected(&host, ConnParam::default(), ConnParam::default());
    let memory = passive.memory(10_000, all_rights()).unwrap();
    let long: Vec<u8> = (0..9000_u32).map(|at| (at % 251) as u8).collect();
    let written = active
        .write(buffer(&active, &long), memory.at(100))
        .unwrap();
    let mut there = vec![0; long.len()];
    memory.read_at(100, &mut there).unwrap();
    assert_eq!(there, long);
    // The buffers come back, and go again.
    let mut back = written;
    back[0].fill(0);
    let back = active.read(back, memory.at(100)).unwrap();
    assert_eq!(back[0][..], long);
    memory.store_u64(0, u64::MAX).unwrap();
    assert_eq!(active.fetch_add(memory.at(0), 3).unwrap(), u64::MAX);
    assert_eq!(active.compare_swap(memory.at(0), 1, 9).unwrap(), 2);
    assert_eq!(active.compare_swap(memory.at(0), 2, 9).unwrap(), 2);
    assert_eq!(memory.load_u64(0).unwrap(), 9);
    passive
        .queue_pair
        .post_recv(4, Buffer::new(&passive.pd, 16).unwrap())
        .unwrap();
    active.send(buffer(&active, b"both ways")).unwrap();
    let received = passive.receive().unwrap();
    assert_eq!(
        (received.wr_id, received.message()),
        (4, Some(&b"both ways"[..]))
    );
    end(active, passive);
}

/// Requests that the program posts itself keep their completions, whoever finds them.
#[test]
fn calls_do_not_take_what_is_not_theirs() {
    let host = private();
    let (active, passive) = connected(&host, ConnParam::default(), ConnParam::default());
    let memory = passive.memory(64, all_rights()).unwrap();
    for number in 0..3 {
        let request =
            SendRequest::write(number, buffer(&active, &[number as u8]), memory.at(number));
        active.queue_pair.post_send(request).unwrap();
    }
    // It completes after the others.
    active.write(buffer(&active, b"x"), memory.at(8)).unwrap();
    let others: Vec<u64> = active
        .take_others()
        .iter()
        .map(|other| other.wr_id)
        .collect();
    assert_eq!(others, [0, 1, 2]);
    assert!(active.take_others().is_empty());
    end(active, passive);
}

/// A failure names its status and the rule; the memory of the peer is as before, and what follows is flushed.
#[test]
fn a_call_that_fails_says_by_which_rule() {
    let host = private();
    let (active, passive) = connected(&host, ConnParam::default(), ConnParam::default());
    let memory = passive.memory(64, Access::REMOTE_READ).unwrap();
    let failed = active
        .write(buffer(&active, b"no"), memory.at(0))
        .unwrap_err();
    assert_eq!(failed.errno(), 5);
    assert!(
        failed.to_string().contains("remote access error"),
        "{failed}"
    );
    let Error::WorkFailed { status, rule, .. } = failed else {
        panic!("{failed}");
    };
    assert_eq!(
        (status, rule),
        (WcStatus::REM_ACCESS_ERR, VendorError::NAK_REMOTE_ACCESS)
    );
    let mut bytes = [1; 2];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 2]);
    let after = active.send(buffer(&active, b"late")).unwrap_err();
    assert!(
        matches!(
            after,
            Error::WorkFailed {
                status: WcStatus::WR_FLUSH_ERR,
                ..
            }
        ) || matches!(after, Error::Verbs { .. }),
        "{after}"
    );
}

/// R-PAR-3, R-PAR-4: the two resource counts of both sides reach the queue pairs: as many READs go out as were agreed, however many
/// are posted, and all of them are answered; with none agreed a READ is refused where it is posted.
#[test]
fn reads_work_exactly_up_to_the_limits() {
    for (asked, allowed, agreed) in [(0, 4, 0), (1, 4, 1), (4, 2, 2), (16, 16, 16)] {
        let host = private();
        let (active, passive) = connected(
            &host,
            ConnParam::default()
                .initiator_depth(asked)
                .responder_resources(0),
            // What the passive side gives at most is what the active side asks for.
            ConnParam::default()
                .responder_resources(allowed.min(asked))
                .initiator_depth(0),
        );
        assert_eq!(active.queue_pair.query().max_rd_atomic, agreed);
        assert_eq!(passive.queue_pair.query().max_dest_rd_atomic, agreed);
        assert_eq!(active.queue_pair.query().max_dest_rd_atomic, 0);
        assert_eq!(passive.queue_pair.query().max_rd_atomic, 0);
        let memory = passive.memory(8192, all_rights()).unwrap();
        memory.write_at(0, &[7; 8192]).unwrap();
        let mut posted = 0;
        for number in 0..40 {
            let into = Buffer::new(&active.pd, 200).unwrap();
            let read = SendRequest::read(number, into, memory.at(number * 200));
            posted += u32::from(active.queue_pair.post_send(read).is_ok());
        }
        assert_eq!(
            posted,
            if agreed == 0 { 0 } else { 40 },
            "{asked} {allowed}"
        );
        let mut done = Vec::new();
        while done.len() < posted as usize {
            active.send_cq.wait(&mut done, Some(LONG)).unwrap();
        }
        for completion in &done {
            assert_eq!(completion.status, WcStatus::SUCCESS, "{asked} {allowed}");
            assert!(completion.buffers[0].iter().all(|byte| *byte == 7));
        }
        end(active, passive);
    }
}

/// A side whose peer offers no READs refuses its own by name.
#[test]
fn a_read_without_resources_is_refused_where_it_is_posted() {
    let host = private();
    let none = || {
        ConnParam::default()
            .responder_resources(0)
            .initiator_depth(0)
    };
    let (active, passive) = connected(&host, none(), none());
    let memory = passive.memory(64, all_rights()).unwrap();
    for refused in [
        active
            .read(Buffer::new(&active.pd, 8).unwrap(), memory.at(0))
            .unwrap_err(),
        active.fetch_add(memory.at(0), 1).unwrap_err(),
    ] {
        assert!(matches!(refused, Error::Verbs { .. }), "{refused}");
        assert!(refused.to_string().contains("max_rd_atomic"), "{refused}");
    }
    // WRITEs need none.
    active.write(buffer(&active, b"w"), memory.at(0)).unwrap();
    end(active, passive);
}

/// A queue pair with a shared receive queue says so to the peer, on either side, and its messages go there.
#[test]
fn connections_with_a_shared_receive_queue_say_so_and_receive_from_it() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let device = {
        let probe = resolved(&active_channel, address);
        probe.device().unwrap()
    };
    let pd = device.default_pd();
    let srq = SharedReceiveQueue::new(&pd, SrqInitAttr::default()).unwrap();
    for number in 0..4 {
        srq.post_recv(number, Buffer::new(&pd, 64).unwrap())
            .unwrap();
    }
    let cq = CompletionQueue::new(&device, 32).unwrap();
    let init = QpInitAttr::default();
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let active = resolved(&active_channel, address);
        let theirs = CompletionQueue::new(&device, 16).unwrap();
        active.create_qp(&pd, &theirs, &theirs, init).unwrap();
        active.connect(&ConnParam::default()).unwrap();
        let request = request(&passive_channel);
        assert!(!request.params.srq);
        request
            .id
            .create_qp_with_srq(&pd, &cq, &cq, init, &srq)
            .unwrap();
        request.id.accept(&ConnParam::default()).unwrap();
        let Event::Established { params, .. } = expect(&active_channel, "ESTABLISHED") else {
            panic!("expected above");
        };
        assert!(params.expect("a reply's parameters").srq);
        expect(&passive_channel, "ESTABLISHED");
        pairs.push((active, request.id));
    }
    for (number, (active, _)) in pairs.iter().enumerate() {
        let message = [number as u8; 3];
        let queue_pair = active.queue_pair().unwrap();
        queue_pair
            .post_send(SendRequest::inline(0, &message))
            .unwrap();
        let mut received = Vec::new();
        cq.wait(&mut received, Some(LONG)).unwrap();
        let received = received.remove(0).ok().unwrap();
        assert_eq!(received.message(), Some(&message[..]));
        assert_eq!(
            received.wr_id, number as u64,
            "the oldest receive of the shared queue"
        );
    }
    // An active side with one says so in its request.
    let active = resolved(&active_channel, address);
    active
        .create_qp_with_srq(&pd, &cq, &cq, init, &srq)
        .unwrap();
    active.connect(&ConnParam::default()).unwrap();
    assert!(request(&passive_channel).params.srq);
    drop(pairs);
}

/// A shared receive queue of another device is refused, and the identifier has no queue pair afterwards.
#[test]
fn a_foreign_shared_receive_queue_is_refused() {
    let (host, other) = (private(), private());
    let channel = channel(&host);
    let (_listener, address) = listener(&channel);
    let id = resolved(&channel, address);
    let device = id.device().unwrap();
    let foreign = {
        let id = Identifier::synchronous(&other, PortSpace::TCP).unwrap();
        id.resolve_addr(None, "127.0.0.1:9".parse().unwrap(), LONG)
            .unwrap();
        id.device().unwrap()
    };
    let srq = SharedReceiveQueue::new(&foreign.default_pd(), SrqInitAttr::default()).unwrap();
    let cq = CompletionQueue::new(&device, 4).unwrap();
    let refused = id
        .create_qp_with_srq(&device.default_pd(), &cq, &cq, QpInitAttr::default(), &srq)
        .unwrap_err();
    assert!(matches!(refused, Error::Verbs { .. }), "{refused}");
    assert!(id.queue_pair().is_none());
}

/// The same calls, awaited: they give the task back while they wait, and one that is dropped takes nothing along.
#[test]
fn the_calls_are_there_to_be_awaited() {
    let host = private();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let host = AsyncHost::new(&host).unwrap();
        let receives = ConnectionOptions::new().prepare(|queue_pair, pd| {
            for number in 0..2 {
                queue_pair.post_recv(number, Buffer::new(pd, 64)?)?;
            }
            Ok(())
        });
        let listener = AsyncListener::bind(&host, "127.0.0.1:0".parse().unwrap())
            .unwrap()
            .options(receives);
        let address = listener.local_addr().unwrap();
        let connector = AsyncConnector::new(&host);
        let (active, passive) = tokio::join!(connector.connect(address), listener.accept());
        let (active, passive) = (active.unwrap(), passive.unwrap());
        let memory: RemoteMemory = passive.memory(64, all_rights()).unwrap();
        let mut message = Buffer::new(&active.pd, 5).unwrap();
        message.copy_from_slice(b"async");
        let message = active.write(message, memory.at(16)).await.unwrap();
        let back = Buffer::new(&active.pd, 5).unwrap();
        let back = active.read(back, memory.at(16)).await.unwrap();
        assert_eq!(back[0][..], message[0][..]);
        assert_eq!(active.fetch_add(memory.at(0), 4).await.unwrap(), 0);
        assert_eq!(active.compare_swap(memory.at(0), 4, 5).await.unwrap(), 4);
        // One that is dropped while it waits for its completion ...
        let mut given_up = Buffer::new(&active.pd, 5).unwrap();
        given_up.copy_from_slice(b"given");
        drop(tokio::time::timeout(std::time::Duration::ZERO, active.send(given_up)).await);
        // ... is not taken for the next.
        let (sent, _) = tokio::join!(active.send(message), async {});
        assert_eq!(sent.unwrap()[0][..], b"async"[..]);
        let mut last = passive.receive().await.unwrap();
        if last.message() == Some(&b"given"[..]) {
            last = passive.receive().await.unwrap();
        }
        assert_eq!(last.message(), Some(&b"async"[..]));
        let nowhere = RemoteAddress {
            addr: 0,
            rkey: RKey(0),
        };
        let failed = active
            .write(Buffer::new(&active.pd, 1).unwrap(), nowhere)
            .await
            .unwrap_err();
        assert!(matches!(failed, Error::WorkFailed { .. }), "{failed}");
    });
}
