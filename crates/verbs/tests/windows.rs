//! Memory windows of both types, and what takes their keys away.

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
    Access, Inline, MemoryWindow, QpInitAttr, RemoteAddress, RemoteMemory, SendRequest, WcOpcode,
    WcStatus, WindowType,
};
use oarlock_wire::RKey;
use pair::all_rights;

const WRITE: Access = Access::REMOTE_WRITE;

/// Memory of `end` that peers reach through windows only.
fn hidden(end: &End) -> RemoteMemory {
    RemoteMemory::new(&end.pd, 100, Access::LOCAL_WRITE | Access::MW_BIND).expect("memory")
}

fn bytes(memory: &RemoteMemory) -> Vec<u8> {
    let mut all = vec![0; memory.len()];
    memory.read_at(0, &mut all).expect("read");
    all
}

/// How a WRITE of `a` ends. A failure needs a new connection.
fn write(a: &End, text: &[u8], to: RemoteAddress) -> WcStatus {
    a.qp.post_send(SendRequest::write(1, Inline(text), to))
        .expect("post");
    a.one().status
}

fn reconnect(a: &End, b: &End) {
    for end in [a, b] {
        end.qp
            .modify(&oarlock_verbs::QpAttr::to_state(
                oarlock_verbs::QpState::Reset,
            ))
            .expect("reset");
    }
    pair::connect(&a.qp, &b.qp);
}

#[test]
fn a_type_2_window_opens_its_part_until_it_is_invalidated_here() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = hidden(&b);
    let window = MemoryWindow::new(&b.pd, WindowType::Two).expect("window");
    assert!(window.bound().is_none());
    let key = window.next_key();
    assert_eq!(key.0 & !0xff, window.rkey().0 & !0xff);
    b.qp.post_send(SendRequest::bind(1, &window, key, &memory, 20, 30, WRITE))
        .expect("post");
    assert_eq!(b.ok().opcode, WcOpcode::BIND_MW);
    assert_eq!(window.rkey(), key);
    let bound = window.bound().expect("bound");
    assert_eq!((bound.addr, bound.len), (memory.at(20).addr, 30));
    assert_eq!((bound.access, bound.qpn), (WRITE, Some(b.qp.qpn())));

    let to = |offset| RemoteAddress {
        rkey: key,
        ..memory.at(offset)
    };
    assert_eq!(write(&a, b"inside", to(44)), WcStatus::SUCCESS);
    assert_eq!(bytes(&memory)[44..50], *b"inside");

    b.qp.post_send(SendRequest::local_invalidate(2, key))
        .expect("post");
    assert_eq!(b.ok().opcode, WcOpcode::LOCAL_INV);
    assert!(window.bound().is_none());
    assert_eq!(write(&a, b"INSIDE", to(44)), WcStatus::REM_ACCESS_ERR);
    assert_eq!(bytes(&memory)[44..50], *b"inside");
}

#[test]
fn a_window_is_no_larger_than_its_part_and_gives_no_more_than_its_rights() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = hidden(&b);
    let window = MemoryWindow::new(&b.pd, WindowType::Two).expect("window");
    let bind = |b: &End| {
        let key = window.next_key();
        let request = SendRequest::bind(1, &window, key, &memory, 20, 30, WRITE);
        b.qp.post_send(request).expect("post");
        b.ok();
        key
    };
    for (offset, what) in [(19, "before"), (45, "beyond")] {
        let rkey = bind(&b);
        let to = RemoteAddress {
            rkey,
            ..memory.at(offset)
        };
        assert_eq!(write(&a, b"sixsix", to), WcStatus::REM_ACCESS_ERR, "{what}");
        // The window goes with the connection: it is of the queue pair that bound it.
        reconnect(&a, &b);
        assert!(window.bound().is_none());
    }
    let rkey = bind(&b);
    let from = RemoteAddress {
        rkey,
        ..memory.at(20)
    };
    a.qp.post_send(SendRequest::read(1, a.empty(4), from))
        .expect("post");
    assert_eq!(a.one().status, WcStatus::REM_ACCESS_ERR, "no right to read");
    assert_eq!(bytes(&memory), [0; 100]);
}

#[test]
fn the_peer_invalidates_with_a_message_and_the_receiver_is_told_the_key() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = hidden(&b);
    let window = MemoryWindow::new(&b.pd, WindowType::Two).expect("window");
    let key = window.next_key();
    let access = WRITE | Access::ZERO_BASED;
    b.qp.post_send(SendRequest::bind(1, &window, key, &memory, 10, 8, access))
        .expect("post");
    b.ok();
    // Addresses count from 0 in it.
    let to = RemoteAddress { addr: 3, rkey: key };
    assert_eq!(write(&a, b"zero", to), WcStatus::SUCCESS);
    assert_eq!(bytes(&memory)[13..17], *b"zero");
    b.qp.post_recv(5, b.empty(16)).expect("post");
    let request = SendRequest::send_invalidate(2, a.buffer(b"take it back"), key);
    a.qp.post_send(request).expect("post");
    assert_eq!(a.ok().opcode, WcOpcode::SEND);
    let told = b.ok();
    assert_eq!(told.invalidated, Some(key));
    assert_eq!((told.opcode, told.imm), (WcOpcode::RECV, None));
    assert_eq!(told.message(), Some(&b"take it back"[..]));
    assert!(window.bound().is_none());
    assert_eq!(write(&a, b"ZERO", to), WcStatus::REM_ACCESS_ERR);
}

#[test]
fn a_region_is_not_invalidated_by_a_message() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = RemoteMemory::new(&b.pd, 8, all_rights()).expect("memory");
    b.qp.post_recv(5, b.empty(16)).expect("post");
    let request = SendRequest::send_invalidate(2, Inline(b"x"), memory.rkey());
    a.qp.post_send(request).expect("post");
    assert_ne!(a.one().status, WcStatus::SUCCESS);
    reconnect(&a, &b);
    let status = write(&a, b"still", memory.at(0));
    assert_eq!(status, WcStatus::SUCCESS, "the key works");
}

#[test]
fn a_type_1_window_has_a_new_key_with_each_binding() {
    let (a, b) = ends(QpInitAttr::default());
    let memory = hidden(&b);
    let window = MemoryWindow::new(&b.pd, WindowType::One).expect("window");
    let bind = |offset, len| {
        let key = b.qp.bind_window(7, &window, &memory, offset, len, WRITE);
        let key = key.expect("post");
        assert_eq!(b.ok().wr_id, 7);
        key
    };
    let to = |rkey: RKey, offset| RemoteAddress {
        rkey,
        ..memory.at(offset)
    };
    let first = bind(0, 50);
    assert_eq!(write(&a, b"one", to(first, 0)), WcStatus::SUCCESS);
    let second = bind(50, 50);
    assert_ne!(first, second);
    assert_eq!(write(&a, b"two", to(second, 50)), WcStatus::SUCCESS);
    assert_eq!(bytes(&memory)[..3], *b"one");
    assert_eq!(bytes(&memory)[50..53], *b"two");
    assert_eq!(window.bound().expect("bound").qpn, None, "of the domain");
    assert_eq!(write(&a, b"ONE", to(first, 0)), WcStatus::REM_ACCESS_ERR);
    reconnect(&a, &b);
    // Bound to nothing.
    let none = bind(0, 0);
    assert!(window.bound().is_none());
    assert_eq!(write(&a, b"x", to(none, 0)), WcStatus::REM_ACCESS_ERR);
    assert_eq!(bytes(&memory)[..3], *b"one");
}

#[test]
fn each_type_has_its_own_way_of_binding() {
    let (_a, b) = ends(QpInitAttr::default());
    let memory = hidden(&b);
    let two = MemoryWindow::new(&b.pd, WindowType::Two).expect("window");
    let refused = b.qp.bind_window(1, &two, &memory, 0, 8, WRITE);
    assert!(refused.expect_err("type 2").to_string().contains("type 2"));
    // The refusal left nothing in the queue.
    let key = two.next_key();
    b.qp.post_send(SendRequest::bind(2, &two, key, &memory, 0, 8, WRITE))
        .expect("post");
    assert_eq!(b.ok().wr_id, 2);
}

#[test]
fn what_the_memory_does_not_allow_fails_when_it_is_executed() {
    for (rights, access) in [
        // No windows at all.
        (Access::LOCAL_WRITE | WRITE, WRITE),
        // Writes through a window need local writes of the memory.
        (Access::MW_BIND | Access::REMOTE_READ, WRITE),
    ] {
        let (_a, b) = ends(QpInitAttr::default());
        let memory = RemoteMemory::new(&b.pd, 8, rights).expect("memory");
        let window = MemoryWindow::new(&b.pd, WindowType::Two).expect("window");
        let key = window.next_key();
        b.qp.post_send(SendRequest::bind(1, &window, key, &memory, 0, 8, access))
            .expect("post");
        let failed = b.one();
        assert_eq!(failed.status, WcStatus::MW_BIND_ERR, "{rights:?}");
        assert!(window.bound().is_none());
    }
}

#[test]
fn memory_with_a_window_cannot_become_a_buffer_before_the_window_is_gone() {
    let (_a, b) = ends(QpInitAttr::default());
    let memory = hidden(&b);
    let window = MemoryWindow::new(&b.pd, WindowType::Two).expect("window");
    let key = window.next_key();
    b.qp.post_send(SendRequest::bind(1, &window, key, &memory, 0, 8, WRITE))
        .expect("post");
    b.ok();
    let (memory, error) = memory.into_buffer().expect_err("a window is bound");
    assert!(error.to_string().contains("window"), "{error}");
    let (memory, error) = memory.deregister().expect_err("a window is bound");
    assert!(error.to_string().contains("window"), "{error}");
    drop(window);
    assert_eq!(memory.into_buffer().expect("no window").len(), 100);
}
