//! Every operation of a send queue, by content.

#[path = "support/end.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared by the tests"
)]
mod end;
#[path = "support/pair.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with the crate's examples"
)]
mod pair;

use end::{End, ends};
use oarlock_verbs::{
    Access, Buffer, Buffers, Error, Inline, MemoryRegion, QpInitAttr, QpType, RemoteMemory,
    SendRequest, VendorError, WcOpcode, WcStatus,
};
use pair::{all_rights, connect_with};

fn offered(end: &End, len: usize) -> RemoteMemory {
    RemoteMemory::new(&end.pd, len, all_rights()).expect("memory")
}

fn bytes(memory: &RemoteMemory, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    memory.read_at(offset, &mut out).expect("read");
    out
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

#[test]
fn a_write_arrives_where_it_was_sent_and_nowhere_else() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (a, b) = ends(QpInitAttr {
            qp_type,
            ..QpInitAttr::default()
        });
        let memory = offered(&b, 10_000);
        memory.write_at(0, &[0xee; 10_000]).expect("fill");
        // Several packets, from two buffers.
        let data = pattern(5000, 3);
        let buffers = [a.buffer(&data[..1234]), a.buffer(&data[1234..])];
        a.qp.post_send(SendRequest::write(1, buffers, memory.at(777)))
            .expect("post");
        let done = a.ok();
        assert_eq!((done.wr_id, done.opcode), (1, WcOpcode::RDMA_WRITE));
        assert_eq!(done.buffers.len(), 2);
        // UC completes when it has sent: a message behind it tells that it has arrived.
        b.qp.post_recv(2, Buffers::new()).expect("post");
        a.qp.post_send(SendRequest::inline(3, &[])).expect("post");
        b.ok();
        assert_eq!(bytes(&memory, 777, 5000), data, "{qp_type}");
        assert_eq!(bytes(&memory, 0, 777), [0xee; 777]);
        assert_eq!(bytes(&memory, 5777, 10_000 - 5777), [0xee; 10_000 - 5777]);
    }
}

#[test]
fn a_write_with_immediate_takes_a_receive_and_leaves_its_buffer_alone() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = offered(&b, 64);
    let mut untouched = b.empty(16);
    untouched.fill(7);
    b.qp.post_recv(5, untouched).expect("post");
    let request = SendRequest::write_imm(1, Inline(b"with a value"), memory.at(4), 0xfeed_0001);
    a.qp.post_send(request).expect("post");
    let received = b.ok();
    assert_eq!(received.wr_id, 5);
    assert_eq!(received.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!((received.imm, received.byte_len), (Some(0xfeed_0001), 12));
    assert_eq!(received.buffers[0][..], [7; 16]);
    assert_eq!(bytes(&memory, 4, 12), b"with a value");
    a.ok();
}

#[test]
fn a_read_brings_the_peers_bytes_in_order_into_several_buffers() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = offered(&b, 300_000);
    let data = pattern(300_000, 9);
    memory.write_at(0, &data).expect("fill");
    let buffers = [a.empty(100_000), a.empty(1), a.empty(150_000)];
    a.qp.post_send(SendRequest::read(1, buffers, memory.at(11)))
        .expect("post");
    let done = a.ok();
    assert_eq!((done.opcode, done.byte_len), (WcOpcode::RDMA_READ, 250_001));
    let got: Vec<u8> = done.buffers.iter().flat_map(|b| b.to_vec()).collect();
    assert_eq!(got, data[11..11 + 250_001]);
    // Nobody at the peer learns of it.
    assert_eq!(b.cq.iter().count(), 0);
}

#[test]
fn atomics_return_the_value_before_and_change_it_as_they_should() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = offered(&b, 64);
    memory.store_u64(8, 40).expect("store");
    let word = |buffers: &Buffers| {
        let eight: [u8; 8] = buffers[0][..].try_into().expect("8 bytes");
        u64::from_ne_bytes(eight)
    };

    a.qp.post_send(SendRequest::fetch_add(1, a.empty(8), memory.at(8), 2))
        .expect("post");
    let done = a.ok();
    assert_eq!((done.opcode, done.byte_len), (WcOpcode::FETCH_ADD, 8));
    assert_eq!(word(&done.buffers), 40);
    assert_eq!(memory.load_u64(8).expect("load"), 42);

    a.qp.post_send(SendRequest::compare_swap(
        2,
        a.empty(8),
        memory.at(8),
        42,
        7,
    ))
    .expect("post");
    let done = a.ok();
    assert_eq!(done.opcode, WcOpcode::COMP_SWAP);
    assert_eq!(word(&done.buffers), 42);
    assert_eq!(memory.load_u64(8).expect("load"), 7);

    // The comparison fails: nothing is stored.
    a.qp.post_send(SendRequest::compare_swap(
        3,
        a.empty(8),
        memory.at(8),
        42,
        8,
    ))
    .expect("post");
    assert_eq!(word(&a.ok().buffers), 7);
    assert_eq!(memory.load_u64(8).expect("load"), 7);

    // Modulo 2^64.
    a.qp.post_send(SendRequest::fetch_add(
        4,
        a.empty(8),
        memory.at(8),
        u64::MAX,
    ))
    .expect("post");
    assert_eq!(word(&a.ok().buffers), 7);
    assert_eq!(memory.load_u64(8).expect("load"), 6);
    // The neighbours are as they were.
    assert_eq!(bytes(&memory, 0, 8), [0; 8]);
    assert_eq!(bytes(&memory, 16, 48), [0; 48]);
}

#[test]
fn counting_from_two_sides_and_by_the_owner_loses_nothing() {
    const EACH: u64 = 200;
    let (a, b) = ends(QpInitAttr::default());
    let (c, d) = (a.context.clone(), b.context.clone());
    let (c, d) = (
        End::new(c, QpInitAttr::default()),
        End::new(d, QpInitAttr::default()),
    );
    pair::connect(&c.qp, &d.qp);
    let memory = offered(&b, 8);
    std::thread::scope(|scope| {
        for end in [&a, &c] {
            let memory = &memory;
            scope.spawn(move || {
                for i in 0..EACH {
                    let before = end.empty(8);
                    end.qp
                        .post_send(SendRequest::fetch_add(i, before, memory.at(0), 1))
                        .expect("post");
                    end.ok();
                }
            });
        }
    });
    assert_eq!(memory.load_u64(0).expect("load"), 2 * EACH);
}

#[test]
fn a_fenced_write_starts_after_the_reads_before_it() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = offered(&b, 100_000);
    let before = pattern(100_000, 1);
    for round in 0..10 {
        memory.write_at(0, &before).expect("fill");
        let mut batch = a.qp.batch();
        batch.push(SendRequest::read(1, a.empty(100_000), memory.at(0)));
        let overwrite = SendRequest::write(2, a.buffer(&[0xff; 100_000]), memory.at(0));
        batch.push(overwrite.fence());
        batch.complete().expect("post");
        let done = a.collect(2);
        assert_eq!((done[0].wr_id, done[1].wr_id), (1, 2));
        assert_eq!(done[0].buffers[0][..], before[..], "round {round}");
        assert_eq!(bytes(&memory, 0, 100_000), [0xff; 100_000]);
    }
}

#[test]
fn what_is_refused_of_a_request_is_named_and_its_buffers_come_back() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = offered(&b, 64);
    let refused = |request: SendRequest<'_>| {
        let refused = a.qp.post_send(request).expect_err("refused");
        (refused.error.to_string(), refused.buffers.len())
    };
    let (error, count) = refused(SendRequest::read(1, a.empty(8), memory.at(0)).imm(5));
    assert_eq!(error, "RDMA READ carries no immediate value");
    assert_eq!(count, 1);
    let (error, count) = refused(SendRequest::fetch_add(1, a.empty(4), memory.at(0), 1));
    assert!(error.contains('8'), "{error}");
    assert_eq!(count, 1);
    let (error, _) = refused(SendRequest::write(1, a.empty(8), memory.at(0)).solicited());
    assert!(error.contains("solicited"), "{error}");
    let srqn = oarlock_wire::Srqn::truncate(5);
    let (error, _) = refused(SendRequest::new(1, a.empty(8)).srqn(srqn));
    assert!(error.contains("shared receive queue"), "{error}");
    // An immediate value with an operation that takes one is no matter.
    b.qp.post_recv(1, b.empty(8)).expect("post");
    let request = SendRequest::write(2, Inline(b"12"), memory.at(0)).imm(9);
    a.qp.post_send(request).expect("post");
    assert_eq!(b.ok().imm, Some(9));
    assert_eq!(
        a.ok().wr_id,
        2,
        "nothing of the others is left in the queue"
    );
}

#[test]
fn what_the_type_of_queue_pair_cannot_do_is_refused() {
    let (a, b) = ends(QpInitAttr {
        qp_type: QpType::Uc,
        ..QpInitAttr::default()
    });
    let memory = offered(&b, 64);
    for request in [
        SendRequest::read(1, a.empty(8), memory.at(0)),
        SendRequest::compare_swap(1, a.empty(8), memory.at(0), 1, 2),
        SendRequest::fetch_add(1, a.empty(8), memory.at(0), 1),
        SendRequest::send_invalidate(1, a.empty(8), memory.rkey()),
        SendRequest::new(1, a.empty(8)).fence(),
    ] {
        let text = format!("{request:?}");
        let refused = a.qp.post_send(request).expect_err(&text);
        assert!(refused.to_string().contains("UC"), "{refused}");
        assert_eq!(refused.buffers.len(), 1);
    }
}

#[test]
fn a_peer_without_the_right_is_refused_and_both_sides_know_why() {
    use oarlock_verbs::AsyncEvent;
    for (rights, vendor) in [
        (
            Access::LOCAL_WRITE | Access::REMOTE_READ,
            VendorError::NAK_REMOTE_ACCESS,
        ),
        (Access::LOCAL_WRITE, VendorError::NAK_REMOTE_ACCESS),
    ] {
        let (a, b) = ends(QpInitAttr::default());
        let memory = RemoteMemory::new(&b.pd, 64, rights).expect("memory");
        let request = SendRequest::write(1, Inline(b"no"), memory.at(0));
        a.qp.post_send(request).expect("post");
        let failed = a.one();
        assert_eq!(failed.status, WcStatus::REM_ACCESS_ERR);
        assert_eq!(failed.vendor_err, vendor);
        assert_eq!(bytes(&memory, 0, 2), [0, 0]);
        let events = b.context.async_events();
        let access_error = AsyncEvent::QpAccessError(b.qp.qpn());
        let seen = std::iter::from_fn(|| events.next(Some(end::PATIENCE)).expect("event"));
        assert!(seen.take(2).any(|event| event == access_error));
        let error = failed.ok().expect_err("failed").to_string();
        assert!(
            error.starts_with("work request 1 failed: remote access error ("),
            "{error}"
        );
    }
}

#[test]
fn an_operation_that_the_queue_pair_does_not_enable_is_an_invalid_request() {
    let (a, b) = pair::contexts();
    let (a, b) = (
        End::new(a, QpInitAttr::default()),
        End::new(b, QpInitAttr::default()),
    );
    connect_with(&a.qp, &b.qp, |attr| attr.access = Access::REMOTE_READ);
    let memory = offered(&b, 64);
    a.qp.post_send(SendRequest::read(1, a.empty(4), memory.at(0)))
        .expect("post");
    a.ok();
    a.qp.post_send(SendRequest::write(2, Inline(b"x"), memory.at(0)))
        .expect("post");
    assert_eq!(a.one().status, WcStatus::REM_INV_REQ_ERR);
}

#[test]
fn rights_and_domain_of_memory_can_change_and_its_bytes_become_a_buffer() {
    let (a, b) = ends(QpInitAttr::default());
    let mut memory = offered(&b, 32);
    let there = memory.at(0);
    a.qp.post_send(SendRequest::write(1, Inline(b"first"), there))
        .expect("post");
    a.ok();
    memory
        .reregister(Access::LOCAL_WRITE | Access::REMOTE_READ)
        .expect("rights");
    assert_eq!(memory.at(0), there, "the key stays");
    a.qp.post_send(SendRequest::read(2, a.empty(5), there))
        .expect("post");
    assert_eq!(&a.ok().buffers[0][..], b"first");
    let mut buffer = memory.into_buffer().expect("no window");
    assert_eq!(&buffer[..5], b"first");
    buffer[..5].copy_from_slice(b"owner");
    // The peer that still has the key reaches nothing.
    a.qp.post_send(SendRequest::read(3, a.empty(5), there))
        .expect("post");
    assert_eq!(a.one().status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(&buffer[..5], b"owner");
}

#[test]
fn a_buffer_is_offered_and_taken_back_with_what_is_in_it() {
    let (a, b) = ends(QpInitAttr::default());
    let rights = all_rights();
    let buffer = b.buffer(b"my own bytes");
    let memory = RemoteMemory::from_buffer(&b.pd, buffer, rights).expect("offer");
    a.qp.post_send(SendRequest::write(1, Inline(b"OWN"), memory.at(3)))
        .expect("post");
    a.ok();
    let buffer = memory.into_buffer().expect("no window");
    assert_eq!(&buffer[..], b"my OWN bytes");

    // A piece of a region that has other pieces is not.
    let mut one = Buffer::new(&b.pd, 20).expect("buffer");
    let two = one.split_off(10);
    let (one, error) = RemoteMemory::from_buffer(&b.pd, one, rights).expect_err("shared");
    assert!(matches!(error, Error::SharedRegion), "{error}");
    let (two, error) = RemoteMemory::from_buffer(&b.pd, two, rights).expect_err("shared");
    assert!(matches!(error, Error::SharedRegion), "{error}");
    let whole = one.join(two).expect("neighbours");
    RemoteMemory::from_buffer(&b.pd, whole, rights).expect("the only piece again");
}

#[test]
fn memory_of_slices_can_have_no_right_for_peers() {
    let (a, _) = pair::contexts();
    for right in [
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::MW_BIND,
    ] {
        let error = MemoryRegion::new(&a.default_pd(), 8, Access::LOCAL_WRITE | right)
            .expect_err("refused");
        assert!(
            matches!(error, Error::RemoteRights { rights } if rights == right),
            "{error}"
        );
    }
}

#[test]
fn addresses_count_from_where_they_were_told_to() {
    let (a, b) = ends(QpInitAttr::default());
    let zero = RemoteMemory::new(&b.pd, 16, all_rights() | Access::ZERO_BASED).expect("memory");
    let high = RemoteMemory::with_iova(&b.pd, 16, 0xffff_ffff_ffff_fff0, all_rights());
    let high = high.expect("memory up to the last address");
    assert_eq!((zero.addr(), high.addr()), (0, 0xffff_ffff_ffff_fff0));
    for memory in [&zero, &high] {
        a.qp.post_send(SendRequest::write(1, Inline(b"tail"), memory.at(12)))
            .expect("post");
        a.ok();
        assert_eq!(bytes(memory, 12, 4), b"tail");
    }
    // One byte beyond.
    a.qp.post_send(SendRequest::write(2, Inline(b"tail"), zero.at(13)))
        .expect("post");
    assert_eq!(a.one().status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(bytes(&zero, 12, 4), b"tail");
}

#[test]
fn the_list_stops_at_the_first_that_is_refused() {
    let (a, b) = ends(QpInitAttr::default());
    for wr_id in 0..4 {
        b.qp.post_recv(wr_id, b.empty(8)).expect("post");
    }
    let long = [0; 2000];
    let refused =
        a.qp.post_send_list([
            SendRequest::new(1, a.buffer(b"one")).unsignaled(),
            SendRequest::inline(2, b"two"),
            SendRequest::inline(3, &long),
            SendRequest::new(4, a.buffer(b"four")),
        ])
        .expect_err("too long");
    assert_eq!(refused.index, 2);
    assert!(refused.error.to_string().contains("2000"), "{refused}");
    let back: Vec<_> = refused
        .buffers
        .iter()
        .map(|buffers| buffers.len())
        .collect();
    assert_eq!(back, [0, 1], "the buffers from there on");
    assert_eq!(&refused.buffers[1][0][..], b"four");
    assert_eq!(b.ok().message(), Some(&b"one"[..]));
    assert_eq!(b.ok().message(), Some(&b"two"[..]));
    let done = a.ok();
    assert_eq!(done.wr_id, 2);
    assert_eq!(&done.earlier[0][..], b"one");
    // The queue goes on.
    a.qp.post_send(SendRequest::inline(5, b"five"))
        .expect("post");
    assert_eq!(b.ok().message(), Some(&b"five"[..]));
    assert_eq!(a.ok().wr_id, 5);
}

#[test]
fn a_batch_is_posted_as_a_whole_or_not_at_all() {
    let (a, b) = ends(QpInitAttr {
        max_send_wr: 4,
        ..QpInitAttr::default()
    });
    for wr_id in 0..8 {
        b.qp.post_recv(wr_id, b.empty(8)).expect("post");
    }
    // One of them is wrong.
    let long = [0; 2000];
    let mut batch = a.qp.batch();
    batch.push(SendRequest::new(1, a.buffer(b"one")));
    batch.push(SendRequest::inline(2, &long));
    let refused = batch.complete().expect_err("too long");
    assert_eq!((refused.index, refused.buffers.len()), (1, 2));
    assert_eq!(&refused.buffers[0][0][..], b"one");
    // One has no place.
    let mut batch = a.qp.batch();
    for wr_id in 0..5 {
        batch.push(SendRequest::new(wr_id, a.buffer(b"x")));
    }
    assert_eq!(batch.len(), 5);
    let refused = batch.complete().expect_err("too many");
    assert_eq!((refused.index, refused.buffers.len()), (4, 5));
    // Given up.
    let mut batch = a.qp.batch();
    batch.push(SendRequest::new(1, a.buffer(b"kept")));
    let kept = batch.abort();
    assert_eq!(
        &kept.into_iter().next().expect("one").into_buffers()[0][..],
        b"kept"
    );
    // Dropped.
    let mut batch = a.qp.batch();
    batch.push(SendRequest::new(1, a.buffer(b"gone")));
    drop(batch);
    // All right: and it is the first thing that the peer hears.
    let mut batch = a.qp.batch();
    for text in [&b"a"[..], b"b", b"c", b"d"] {
        batch.push(SendRequest::inline(text[0].into(), text));
    }
    batch.complete().expect("post");
    let heard: Vec<_> = b
        .collect(4)
        .iter()
        .map(|received| received.message().expect("message")[0])
        .collect();
    assert_eq!(heard, *b"abcd");
    let done: Vec<_> = a.collect(4).iter().map(|done| done.wr_id).collect();
    assert_eq!(done, [97, 98, 99, 100]);
    assert!(a.qp.batch().is_empty());
    a.qp.batch().complete().expect("nothing is posted");
}
