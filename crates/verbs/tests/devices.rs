//! What the host service tells of devices, and what it is told of them.

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

use std::net::{IpAddr, Ipv4Addr};

use end::{End, eventually, next_event};
use oarlock_hostd::{Host, Injection};
use oarlock_port::MemWire;
use oarlock_port::fault::DeviceFault;
use oarlock_verbs::{AsyncEvent, Buffers, Context, QpInitAttr, QpState, SendRequest, WcStatus};
use oarlock_wire::Gid;

const fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

/// A context with a queue pair, so that somebody listens to the service.
fn on_host(host: &Host) -> End {
    let index = Context::devices(host).expect("devices")[0].index;
    let context = Context::open(host, index).expect("open");
    End::new(context, QpInitAttr::default())
}

#[test]
fn a_device_that_is_removed_tells_and_takes_its_queue_pairs_along() {
    let host = Host::private_on(&MemWire::new(), &[address(7)]).expect("host");
    let End { context, qp, .. } = on_host(&host);
    qp.modify(&pair::init()).expect("init");
    qp.post_recv(4, Buffers::new()).expect("post");
    host.fail_device(DeviceFault::DeviceRemoval, address(7));
    assert_eq!(next_event(&context), AsyncEvent::DeviceRemoved);
    let flushed = end::one(qp.recv_cq());
    assert_eq!((flushed.wr_id, flushed.status), (4, WcStatus::WR_FLUSH_ERR));
    // It was a fault: the device is there again at once, and new queue pairs can be made.
    let port = context.device().port_num;
    assert_eq!(next_event(&context), AsyncEvent::PortActive(port));
    assert!(!context.is_removed() && context.is_port_active());
    assert_eq!(qp.state(), QpState::Error, "that one stays as it is");
    on_host(&host);
}

#[test]
fn addresses_that_change_are_told() {
    let host = Host::private_on(&MemWire::new(), &[address(7)]).expect("host");
    let end = on_host(&host);
    let port = end.context.device().port_num;
    // A fault that says so, and the truth.
    host.fail_device(DeviceFault::AddressChange, address(7));
    assert_eq!(next_event(&end.context), AsyncEvent::GidChange(port));
    assert_eq!(end.context.gids()[..], [Gid::from_ip(address(7))]);
    let memory = host.memory().expect("a private host");
    memory.add_address(address(8)).expect("address");
    assert_eq!(next_event(&end.context), AsyncEvent::GidChange(port));
    let both = [address(7), address(8)].map(Gid::from_ip);
    assert_eq!(end.context.gids()[..], both);
    assert_eq!(end.context.device().gids, [both[0]], "as it was opened");
}

#[test]
fn a_port_that_goes_down_and_comes_up_is_told_and_can_be_asked() {
    let host = Host::private_on(&MemWire::new(), &[address(7)]).expect("host");
    let end = on_host(&host);
    let port = end.context.device().port_num;
    let memory = host.memory().expect("a private host");
    assert!(end.context.is_port_active());
    for round in 1..3 {
        memory.set_link_up(false);
        assert_eq!(next_event(&end.context), AsyncEvent::PortError(port));
        assert!(!end.context.is_port_active());
        memory.set_link_up(true);
        assert_eq!(next_event(&end.context), AsyncEvent::PortActive(port));
        assert!(end.context.is_port_active());
        let figures = end.context.statistics();
        assert!(figures.contains(&("link_downed", round)));
    }
    // Who opens it when it is down learns it at once.
    memory.set_link_up(false);
    next_event(&end.context);
    let index = end.context.device().index;
    drop(end);
    let again = Context::open(&host, index).expect("open");
    assert!(!again.is_port_active());
    memory.set_link_up(true);
    eventually("the port", || {
        again.refresh().expect("refresh");
        again.is_port_active()
    });
}

/// Two connected ends on two hosts of one wire.
fn two_hosts() -> [(Host, End); 2] {
    let wire = MemWire::new();
    let ends = [1, 2].map(|last| {
        let host = Host::private_on(&wire, &[address(last)]).expect("host");
        let end = on_host(&host);
        (host, end)
    });
    pair::connect(&ends[0].1.qp, &ends[1].1.qp);
    ends
}

#[test]
fn a_fault_rule_removes_the_device_in_the_midst_of_messages() {
    let [(_a_host, a), (b_host, b)] = two_hosts();
    let rules = "device_removal:opcode=send,after=2".parse().expect("rules");
    let injected = b_host.inject(Injection::Rules(rules), None);
    injected.expect("inject");
    for wr_id in 0..4 {
        b.qp.post_recv(wr_id, Buffers::new()).expect("post");
    }
    for wr_id in 0..3 {
        a.qp.post_send(SendRequest::inline(wr_id, b""))
            .expect("post");
    }
    assert_eq!(next_event(&b.context), AsyncEvent::DeviceRemoved);
    // Those that came before, and the rest flushed: none is lost.
    let received = b.collect(4);
    let good = received
        .iter()
        .take_while(|one| one.status == WcStatus::SUCCESS)
        .count();
    assert!(good >= 2, "the first two are let through");
    let flushed = &received[good..];
    assert!(!flushed.is_empty(), "there was no message for the last");
    assert!(
        flushed
            .iter()
            .all(|one| one.status == WcStatus::WR_FLUSH_ERR)
    );
}

#[test]
fn the_service_knows_the_figures_of_queue_pairs_that_are_gone() {
    let [(a_host, a), (_b_host, b)] = two_hosts();
    for wr_id in 0..5 {
        b.qp.post_recv(wr_id, Buffers::new()).expect("post");
        a.qp.post_send(SendRequest::inline(wr_id, b""))
            .expect("post");
        a.ok();
    }
    let index = a.context.device().index;
    let End {
        context,
        pd,
        cq,
        qp,
    } = a;
    drop(qp);
    let own = context.statistics();
    drop((context, pd, cq));
    // Published now and then, and when the endpoint ends.
    let told = |name: &str| {
        let all = a_host.statistics().expect("statistics");
        let device = all.iter().find(|of| of.device == index)?;
        let mut figures = device.counters.iter();
        figures.find(|(known, _)| known == name).map(|(_, n)| *n)
    };
    for (name, value) in own.into_iter().filter(|(_, value)| *value > 0) {
        eventually(name, || told(name) == Some(value));
    }
}
