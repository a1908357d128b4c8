use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{Opened, last};
use crate::abi::ibv_async_event;
use crate::verbs::acks::{Registry, Unacked};
use crate::verbs::async_event::ibv_get_async_event;

#[test]
fn whoever_waits_waits_for_the_last_acknowledgement() {
    let unacked = Arc::new(Unacked::default());
    let done = Arc::new(AtomicBool::new(false));
    unacked.delivered();
    unacked.delivered();
    let waiter = thread::spawn({
        let (unacked, done) = (Arc::clone(&unacked), Arc::clone(&done));
        move || {
            unacked.wait();
            done.load(Ordering::Acquire)
        }
    });
    unacked.acknowledge(1);
    thread::yield_now();
    done.store(true, Ordering::Release);
    unacked.acknowledge(1);
    assert!(
        waiter.join().expect("no panic"),
        "woken before the last one"
    );
    unacked.acknowledge(5);
    unacked.wait();
}

#[test]
fn events_go_to_the_oldest_object_of_a_number_until_it_leaves() {
    let registry = Registry::<u32, u8>::default();
    let mut objects = [0_u8; 2];
    let [first, second] = &mut objects;
    let (first, second) = (ptr::from_mut(first), ptr::from_mut(second));
    assert_eq!(registry.deliver(&7), None);
    registry.enter(7, first);
    registry.enter(7, second);
    assert_eq!(registry.deliver(&7), Some(first));
    registry.acknowledge(first);
    registry.leave(&7, first);
    assert_eq!(registry.deliver(&7), Some(second));
    registry.acknowledge(second);
    registry.leave(&7, second);
    assert_eq!(registry.deliver(&7), None);
    // An acknowledgement too much, of an object that is gone.
    registry.acknowledge(second);
}

#[test]
fn an_object_leaves_when_its_events_are_acknowledged() {
    let registry = Arc::new(Registry::<u32, u8>::default());
    let object = Box::into_raw(Box::new(0_u8));
    registry.enter(1, object);
    assert_eq!(registry.deliver(&1), Some(object));
    let acknowledged = Arc::new(AtomicBool::new(false));
    let leaving = thread::spawn({
        let (registry, acknowledged) = (Arc::clone(&registry), Arc::clone(&acknowledged));
        let address = object.expose_provenance();
        move || {
            registry.leave(&1, ptr::with_exposed_provenance_mut(address));
            acknowledged.load(Ordering::Acquire)
        }
    });
    // No event is delivered any more, though the object is there until the acknowledgement.
    while registry.deliver(&1).is_some() {
        registry.acknowledge(object);
        thread::yield_now();
    }
    acknowledged.store(true, Ordering::Release);
    registry.acknowledge(object);
    assert!(leaving.join().expect("no panic"));
    // SAFETY: made above; nobody has it any more.
    drop(unsafe { Box::from_raw(object) });
}

#[test]
fn a_descriptor_that_does_not_block_has_nothing_to_give() {
    let opened = Opened::new();
    let mut event = MaybeUninit::<ibv_async_event>::uninit();
    // SAFETY: a context of this library, and its descriptor.
    unsafe {
        let fd = (*opened.context).async_fd;
        let flags = libc::fcntl(fd, libc::F_GETFL);
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        assert_eq!(ibv_get_async_event(opened.context, event.as_mut_ptr()), -1);
    }
    assert_eq!(last(), libc::EAGAIN);
}
