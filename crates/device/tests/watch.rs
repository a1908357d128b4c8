//! What a process hears of its devices before it has a queue pair.

mod support;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use oarlock_device::{AsyncEvent, Context, DeviceChange, Endpoint, Error, QpInit};
use oarlock_port::{MemWire, Port};
use support::{Changes, Side, Source, device, eventually, gid, host};

/// A source that tells of changes; writing to the second descriptor, or closing it, is the end of the service.
fn source(changes: &Changes) -> (Source, OwnedFd) {
    let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
    let port = Port::Mem(host(&MemWire::new(), 1).open(3).expect("slot"));
    let source = Source::new(port).with_changes(changes).with_service(ours);
    (source, theirs)
}

#[test]
fn a_context_without_queue_pairs_hears_of_its_device() {
    let changes = Changes::new();
    let (source, _service) = source(&changes);
    let endpoint = Endpoint::new(Box::new(source)).expect("endpoint");
    let context = Context::open(device("mem0", gid(1)), &endpoint).expect("open");
    endpoint.watch().expect("watch");
    endpoint
        .watch()
        .expect("once is enough, twice does no harm");
    changes.tell(0, DeviceChange::PortError);
    let event = context.async_event(None).expect("wait");
    assert_eq!(event, Some(AsyncEvent::PortError(1)));
    assert!(!context.is_port_active());
    assert_eq!(endpoint.slot(), None, "watching takes no slot");
}

#[test]
fn the_end_of_the_service_is_heard_without_queue_pairs() {
    let changes = Changes::new();
    let (source, service) = source(&changes);
    let endpoint = Endpoint::new(Box::new(source)).expect("endpoint");
    let context = Context::open(device("mem0", gid(1)), &endpoint).expect("open");
    endpoint.watch().expect("watch");
    drop(service);
    let event = context.async_event(None).expect("wait");
    assert_eq!(event, Some(AsyncEvent::DeviceFatal));
    assert!(endpoint.is_gone());
    assert!(matches!(endpoint.watch(), Err(Error::DeviceFatal)));
}

#[test]
fn the_engine_takes_over_with_the_first_queue_pair() {
    let changes = Changes::new();
    let (source, _service) = source(&changes);
    let side = Side::new(source, gid(1));
    side.context.endpoint().watch().expect("watch");
    let _qp = side.qp(QpInit::default());
    for change in [DeviceChange::PortError, DeviceChange::PortActive] {
        changes.tell(0, change);
    }
    for expected in [AsyncEvent::PortError(1), AsyncEvent::PortActive(1)] {
        assert_eq!(
            side.context.async_event(None).expect("wait"),
            Some(expected)
        );
    }
}

#[test]
fn watching_ends_with_the_endpoint() {
    let changes = Changes::new();
    let (source, service) = source(&changes);
    let held = Arc::downgrade(&source.closed);
    let endpoint = Endpoint::new(Box::new(source)).expect("endpoint");
    endpoint.watch().expect("watch");
    drop(endpoint);
    eventually("the source is let go", || held.strong_count() == 0);
    drop(service);
}
