//! Faults on purpose that a device carries out, and data that arrives unchanged under those of the network.

mod support;

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use oarlock_device::{Access, AsyncEvent, Context, Cq, Endpoint, Pd, PortSource, QpInit};
use oarlock_port::fault::{DeviceFault, Faults};
use oarlock_port::{MemWire, Port};
use oarlock_transport::{QpState, WcStatus};
use support::*;

/// What a host was asked to let happen.
type Asked = Arc<Mutex<Vec<(DeviceFault, IpAddr)>>>;

/// A port, and a host that notes what it is asked.
struct Noting {
    port: Mutex<Option<Port>>,
    asked: Asked,
}

impl PortSource for Noting {
    fn take_port(&self) -> Result<Port, Box<dyn StdError + Send + Sync>> {
        let port = self.port.lock().expect("lock").take();
        port.ok_or_else(|| "the slot is taken".into())
    }

    fn gone_fd(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn inject(&self, fault: DeviceFault, local: IpAddr) {
        self.asked.lock().expect("lock").push((fault, local));
    }

    fn port_closed(&self, _slot: u8) {}
}

/// Two devices; the rules are the second one's.
fn pair_under(rules: &str) -> (Side, Side, Arc<Faults>, Asked) {
    let wire = MemWire::new();
    let a = host(&wire, 1).open(3).expect("slot");
    let a = Side::new(Source::new(Port::Mem(a)), gid(1));
    let faults = Arc::new(Faults::new(rules.parse().expect("rules")));
    let port = Port::Mem(host(&wire, 2).open(7).expect("slot"));
    port.inject(Some(Arc::clone(&faults))).expect("inject");
    let asked = Asked::default();
    let source = Noting {
        port: Mutex::new(Some(port)),
        asked: Arc::clone(&asked),
    };
    let endpoint = Endpoint::new(Box::new(source)).expect("endpoint");
    let context = Context::open(device("mem0", gid(2)), &endpoint).expect("context");
    let b = Side {
        pd: Pd::new(&context),
        cq: Arc::new(Cq::new(&context, 1024, None, 0).expect("cq")),
        context,
        gid: gid(2),
    };
    (a, b, faults, asked)
}

/// The receive is there, and the requester is told that it is not, as often as the rule says.
#[test]
fn a_ready_receiver_says_that_it_is_not() {
    let (a, b, faults, _) = pair_under("rnr:opcode=send,after=1,count=3");
    let (qa, qb) = connected(&a, &b);
    let target = b.pd.allocate(64, Access::LOCAL_WRITE).expect("region");
    for round in 0..3 {
        let message = pattern(round, 64);
        recv(&qb, round as u64, &[whole(&target)]);
        let source = filled(&a, &message);
        send(&qa, round as u64, &[whole(&source)]);
        b.collect(1);
        a.collect(1);
        assert_eq!(content(&target), message);
    }
    assert_eq!(faults.counts()[0].struck, 3);
    let (sent, received) = (b.context.statistics(), a.context.statistics());
    let value = |all: &[(&'static str, u64)], name: &str| {
        let found = all.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    };
    assert_eq!(value(&sent, "send_rnr_err"), 3);
    assert_eq!(value(&received, "rcvd_rnr_err"), 3);
}

/// A receiver that is never ready ends the requester's patience.
#[test]
fn a_receiver_that_is_never_ready_is_given_up() {
    let (a, b, _, _) = pair_under("rnr");
    let (qa, qb) = (a.qp(QpInit::default()), b.qp(QpInit::default()));
    let path = Path {
        rnr_retry: 2,
        ..Path::between(&a, &b)
    };
    for (qp, peer, path) in [(&qa, &qb, &path), (&qb, &qa, &Path::between(&b, &a))] {
        to_init(qp);
        to_rtr(qp, peer, path);
        to_rts(qp, path);
    }
    let target = filled(&b, b"untouched");
    recv(&qb, 1, &[whole(&target)]);
    let source = filled(&a, b"a message");
    send(&qa, 2, &[whole(&source)]);
    let cqe = a.collect_any(1).remove(0);
    assert_eq!(cqe.completion.status, WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(content(&target), b"untouched");
}

/// The queue pair whose packet is struck fails with everything on it; its neighbour does not.
#[test]
fn a_queue_pair_fails_and_its_program_is_told() {
    let (a, b, _, _) = pair_under("qp_error:opcode=send,after=1");
    let (qa, qb) = connected_lossy(&a, &b);
    let (neighbour_a, neighbour_b) = connected(&a, &b);
    let target = b.pd.allocate(5, Access::LOCAL_WRITE).expect("region");
    let source = filled(&a, b"hello");
    for wr_id in 1..=3 {
        recv(&qb, wr_id, &[whole(&target)]);
    }
    send(&qa, 1, &[whole(&source)]);
    assert_eq!(b.collect(1)[0].completion.wr_id, 1);
    a.collect(1);
    send(&qa, 2, &[whole(&source)]);
    let flushed = b.collect_any(2);
    for (cqe, wr_id) in flushed.iter().zip(2..) {
        let completion = &cqe.completion;
        let seen = (completion.wr_id, completion.status);
        assert_eq!(seen, (wr_id, WcStatus::WR_FLUSH_ERR));
    }
    let mut events = std::iter::from_fn(|| b.context.try_async_event());
    assert!(events.any(|event| event == AsyncEvent::QpFatal(qb.qpn())));
    assert_eq!(qb.query().state, QpState::Error);
    // Nobody answers any more.
    let ended = a.collect_any(1).remove(0);
    assert_eq!(ended.completion.status, WcStatus::RETRY_EXC_ERR);
    recv(&neighbour_b, 7, &[whole(&target)]);
    send(&neighbour_a, 7, &[whole(&source)]);
    b.collect(1);
    a.collect(1);
}

/// What only the host can do it is asked for, with the address that the packet came to; the packet is handled as ever.
#[test]
fn faults_of_the_host_are_asked_of_it() {
    let (a, b, _, asked) =
        pair_under("address_change:opcode=send;device_removal:opcode=send,after=1");
    let (qa, qb) = connected(&a, &b);
    let target = b.pd.allocate(5, Access::LOCAL_WRITE).expect("region");
    let source = filled(&a, b"hello");
    for wr_id in 0..4 {
        recv(&qb, wr_id, &[whole(&target)]);
        send(&qa, wr_id, &[whole(&source)]);
        b.collect(1);
        a.collect(1);
    }
    let local = gid(2).to_ip();
    let expected = [
        (DeviceFault::AddressChange, local),
        (DeviceFault::DeviceRemoval, local),
    ];
    assert_eq!(*asked.lock().expect("lock"), expected);
}

/// Loss, doubling, overtaking, delay and damage together, in both directions: every message arrives unchanged and once, and the
/// damaged packets are found by their ICRC.
#[test]
fn messages_arrive_unchanged_under_every_fault_of_the_network() {
    let rules = "drop:p=0.02,seed=4;duplicate:p=0.03,seed=4;reorder:p=0.03,us=300,seed=4;\
                 delay:p=0.03,us=300,seed=4;corrupt:p=0.03,seed=4";
    let (a, b, faults, _) = pair_under(rules);
    let (qa, qb) = connected_lossy(&a, &b);
    let len = 10_000;
    let target = b.pd.allocate(len, Access::LOCAL_WRITE).expect("region");
    for round in 0..40 {
        let message = pattern(round, len);
        recv(&qb, round as u64, &[whole(&target)]);
        let source = filled(&a, &message);
        send(&qa, round as u64, &[whole(&source)]);
        let received = b.collect(1).remove(0).completion;
        assert_eq!(
            (received.wr_id, received.byte_len),
            (round as u64, len as u32)
        );
        a.collect(1);
        assert!(content(&target) == message, "round {round}");
    }
    for count in faults.counts() {
        assert!(count.struck > 0, "{}", count.rule);
    }
    assert!(a.counter("port_icrc_bad") + b.counter("port_icrc_bad") > 0);
}
