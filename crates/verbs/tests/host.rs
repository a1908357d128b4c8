//! Contexts on a host service in this process.

use std::time::Duration;

use oarlock_hostd::Host;
use oarlock_verbs::{
    AsyncEvent, CompletionQueue, Context, ProtectionDomain, QpInitAttr, QueuePair,
};

fn qp(context: &Context) -> QueuePair {
    let pd = ProtectionDomain::new(context);
    let cq = CompletionQueue::new(context, 16).expect("cq");
    QueuePair::create(&pd, &cq, &cq, QpInitAttr::default()).expect("qp")
}

fn slot(qp: &QueuePair) -> u32 {
    qp.qpn().get() >> 16
}

#[test]
fn a_process_has_one_context_per_device_and_one_slot_per_host() {
    let host = Host::private().expect("host");
    let devices = Context::devices(&host).expect("devices");
    let index = devices.first().expect("a private host has a device").index;
    let context = Context::open(&host, index).expect("open");
    assert_eq!(context.device(), &devices[0]);
    assert_eq!(Context::open(&host.clone(), index).expect("open"), context);
    let (first, second) = (qp(&context), qp(&context));
    assert_eq!(slot(&first), slot(&second));
    assert_ne!(slot(&first), 0, "the service's own");

    let other_host = Host::private().expect("host");
    let other = Context::open(&other_host, index).expect("open");
    assert_ne!(other, context);

    let unknown = Context::open(&host, 4711)
        .expect_err("no such device")
        .to_string();
    let expected = format!(
        "no device with index 4711: this host has {index} {}",
        devices[0].name
    );
    assert!(unknown.starts_with(&expected), "{unknown}");
}

#[test]
fn a_slot_can_be_had_again_and_again() {
    let host = Host::private().expect("host");
    let index = Context::devices(&host).expect("devices")[0].index;
    // More often than there are slots.
    for _ in 0..300 {
        let context = Context::open(&host, index).expect("open");
        qp(&context);
    }
}

#[test]
fn the_end_of_the_service_is_device_fatal() {
    let host = Host::private().expect("host");
    let index = Context::devices(&host).expect("devices")[0].index;
    let context = Context::open(&host, index).expect("open");
    let qp = qp(&context);
    host.stop_service().expect("stop");
    let event = context.async_events().next(Some(Duration::from_secs(300)));
    assert_eq!(event.expect("wait"), Some(AsyncEvent::DeviceFatal));
    assert!(context.is_device_fatal());
    let error = qp
        .send_cq()
        .wait(&mut Vec::new(), None)
        .expect_err("nothing will come");
    assert!(error.is_device_fatal());
    assert_eq!(error.to_string(), "device fatal: the host service is gone");
    let refused = Context::devices(&host).expect_err("nobody answers");
    assert!(refused.is_device_fatal(), "{refused}");
}
