//! Datagrams in safe Rust: address handles, messages behind their headers, groups, and who owns which buffer.

#[path = "support/datagrams.rs"]
#[allow(
    unreachable_pub,
    missing_docs,
    reason = "shared with the crate's examples"
)]
mod datagrams;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use datagrams::{KEY, datagrams, start};
use oarlock_hostd::Host;
use oarlock_port::MemWire;
use oarlock_verbs::{
    Access, AddressError, AddressHandle, AddressHandleAttr, Buffer, Completion, CompletionQueue,
    Context, Error, GRH_LEN, MemoryRegion, ProtectionDomain, QpInitAttr, QpState, QpType,
    QueuePair, SendRequest, WcStatus,
};
use oarlock_wire::{AddressVector, FlowLabel, Gid, QKey, Qpn};

/// One host with one datagram queue pair.
struct End {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

impl End {
    fn on(host: &Host) -> Self {
        let index = Context::devices(host).expect("devices")[0].index;
        let context = Context::open(host, index).expect("open");
        let pd = context.default_pd();
        let cq = CompletionQueue::new(&context, 256).expect("cq");
        let qp = datagrams(&pd, &cq).expect("qp");
        Self {
            context,
            pd,
            cq,
            qp,
        }
    }

    fn gid(&self) -> Gid {
        self.context.device().gids[0]
    }

    fn recv(&self, wr_id: u64, len: usize) {
        let buffer = Buffer::new(&self.pd, GRH_LEN + len).expect("buffer");
        self.qp.post_recv(wr_id, buffer).expect("post");
    }

    fn to(&self, remote: Gid) -> AddressHandle {
        let attr = AddressHandleAttr {
            remote,
            ..AddressHandleAttr::default()
        };
        AddressHandle::new(&self.pd, attr).expect("address handle")
    }

    /// Sends and waits until it is out.
    fn say(&self, message: &[u8], to: &Self) {
        let request = SendRequest::inline(0, message).to(&self.to(to.gid()), to.qp.qpn(), KEY);
        self.qp.post_send(request).expect("post");
        assert!(self.one().is_send);
    }

    fn collect(&self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        while all.len() < count {
            let got = self
                .cq
                .wait(&mut all, Some(Duration::from_secs(300)))
                .expect("wait");
            assert!(got > 0, "{} of {count} completions", all.len());
        }
        all
    }

    fn one(&self) -> Completion {
        self.collect(1).remove(0)
    }
}

/// Hosts on one wire.
fn hosts<const N: usize>() -> ([Host; N], [End; N]) {
    let wire = MemWire::new();
    let hosts = std::array::from_fn(|n| {
        let address = IpAddr::from([10, 0, 0, n as u8 + 1]);
        Host::private_on(&wire, &[address]).expect("host")
    });
    let ends = hosts.each_ref().map(End::on);
    (hosts, ends)
}

#[test]
fn a_message_comes_with_its_sender_and_the_way_back() {
    let (_hosts, [a, b]) = hosts();
    b.recv(7, 100);
    a.recv(8, 100);
    let to = a.to(b.gid());
    let mut message = Buffer::new(&a.pd, 5).expect("buffer");
    message.copy_from_slice(b"hello");
    let request = SendRequest::new(9, message).imm(5).to(&to, b.qp.qpn(), KEY);
    a.qp.post_send(request).expect("post");
    let sent = a.one().ok().expect("sent");
    assert_eq!((sent.wr_id, &sent.buffers[0][..]), (9, &b"hello"[..]));
    assert_eq!((sent.grh_len(), sent.message()), (0, None));
    let received = b.one().ok().expect("received");
    assert_eq!((received.wr_id, received.imm), (7, Some(5)));
    assert_eq!((received.grh_len(), received.byte_len), (40, 45));
    assert_eq!(received.message(), Some(&b"hello"[..]));
    assert_eq!(received.src_qp, a.qp.qpn());
    assert_eq!((received.pkey_index, received.service_level), (0, 0));
    let grh = received.grh().expect("a header");
    assert_eq!(
        (grh.source, grh.destination),
        (a.gid().to_ip(), b.gid().to_ip())
    );

    let back = AddressHandle::reply_to(&b.pd, &received).expect("a way back");
    assert_eq!(back.address_vector(), AddressVector::new(b.gid(), a.gid()));
    let answer = SendRequest::inline(1, b"welcome").to(&back, received.src_qp, KEY);
    b.qp.post_send(answer).expect("post");
    assert_eq!(a.one().message(), Some(&b"welcome"[..]));
}

#[test]
fn a_message_in_several_buffers_begins_where_the_header_ends() {
    let (_hosts, [a, b]) = hosts();
    let parts = MemoryRegion::new(&b.pd, GRH_LEN + 10, Access::LOCAL_WRITE)
        .expect("region")
        .into_buffers(GRH_LEN);
    b.qp.post_recv(1, parts).expect("post");
    a.say(b"0123456789", &b);
    let received = b.one();
    assert_eq!(received.message(), None);
    assert!(received.grh().is_some());
    assert_eq!(&received.buffers[1][..], b"0123456789");
    // The header in two pieces.
    let parts = MemoryRegion::new(&b.pd, 2 * GRH_LEN, Access::LOCAL_WRITE)
        .expect("region")
        .into_buffers(GRH_LEN - 1);
    b.qp.post_recv(1, parts).expect("post");
    a.say(b"x", &b);
    let received = b.one();
    assert_eq!((received.grh(), received.message()), (None, None));
    assert!(received.has_grh);
    let refused = AddressHandle::reply_to(&b.pd, &received).expect_err("no header");
    assert!(matches!(refused, Error::Address(AddressError::NoHeader)));
    // No message is a message of no bytes.
    b.recv(1, 0);
    a.say(b"", &b);
    assert_eq!(b.one().message(), Some(&b""[..]));
}

#[test]
fn address_handles_that_cannot_be_say_why() {
    let (_hosts, [a]) = hosts();
    let other = Gid::from_ip([10, 0, 0, 9].into());
    let make = |change: fn(&mut AddressHandleAttr)| {
        let mut attr = AddressHandleAttr {
            remote: Gid::from_ip([10, 0, 0, 9].into()),
            ..AddressHandleAttr::default()
        };
        change(&mut attr);
        let made = AddressHandle::new(&a.pd, attr);
        made.map(|_| ()).map_err(|error| error.to_string())
    };
    let refused = |message: &str| Err(message.to_owned());
    assert_eq!(make(|_| {}), Ok(()));
    assert_eq!(
        make(|attr| attr.port_num = 2),
        refused("port 2 does not exist, the device has port 1")
    );
    assert_eq!(
        make(|attr| attr.sgid_index = 1),
        refused("own address 1 does not exist, the device has 1, counted from 0")
    );
    assert_eq!(
        make(|attr| attr.remote = Gid::UNSPECIFIED),
        refused("an end of the path is unspecified")
    );
    assert_eq!(
        make(|attr| attr.remote = Gid::from_ip("fd00::1".parse().expect("an address"))),
        refused("10.0.0.1 and fd00::1 are of different IP versions")
    );
    let av = AddressVector {
        service_level: 16,
        ..AddressVector::new(a.gid(), other)
    };
    let refused = AddressHandle::along(&a.pd, av).expect_err("4 bits");
    assert_eq!(refused.to_string(), "service level 16 is above 15");
    let av = AddressVector {
        scope_id: 77,
        ..AddressVector::new(a.gid(), other)
    };
    let refused = AddressHandle::along(&a.pd, av).expect_err("another interface");
    let ifindex = a.context.device().ifindex;
    assert_eq!(
        refused.to_string(),
        format!("the path leaves by interface 77, the device is interface {ifindex}")
    );
    // Groups and link-local addresses are those of the device's interface.
    let group = a.to(Gid::from_ip([239, 1, 1, 1].into()));
    assert_eq!(group.address_vector().scope_id, ifindex);
    assert_eq!(a.to(other).address_vector().scope_id, 0);
}

/// What would not reach the wire is refused by name, and not accepted without effect.
#[test]
fn an_address_handle_takes_no_flow_label_and_no_service_level() {
    let (_hosts, [a, b]) = hosts();
    let attr = AddressHandleAttr {
        remote: b.gid(),
        ..AddressHandleAttr::default()
    };
    let sentence = |attr| {
        let refused = AddressHandle::new(&a.pd, attr).expect_err("not carried");
        refused.to_string()
    };
    assert_eq!(
        sentence(AddressHandleAttr {
            flow_label: FlowLabel::truncate(5),
            ..attr
        }),
        "flow label 5 cannot be sent: it takes a privileged socket"
    );
    assert_eq!(
        sentence(AddressHandleAttr {
            service_level: 3,
            ..attr
        }),
        "service level 3 cannot be sent: packets over IP have none"
    );
    // What comes from a connection manager is kept.
    let av = AddressVector {
        service_level: 3,
        ..AddressVector::new(a.gid(), b.gid())
    };
    let along = AddressHandle::along(&a.pd, av).expect("a path");
    assert_eq!(along.address_vector().service_level, 3);
}

#[test]
fn a_refused_datagram_gives_its_buffers_back() {
    let (_hosts, [a, b]) = hosts();
    let to = a.to(b.gid());
    let mtu = a.context.device().max_path_mtu().bytes().expect("an MTU");
    let long = Buffer::new(&a.pd, usize::from(mtu) + 1).expect("buffer");
    let refused =
        a.qp.post_send(SendRequest::new(1, long).to(&to, b.qp.qpn(), KEY))
            .expect_err("too long");
    assert_eq!(
        refused.to_string(),
        format!(
            "datagram of {} bytes does not fit the path MTU of {mtu}",
            mtu + 1
        )
    );
    let mut buffer = { refused.buffers }.pop().expect("it comes back");
    buffer.set_len(usize::from(mtu));
    let refused =
        a.qp.post_send(SendRequest::new(1, buffer))
            .expect_err("where to");
    assert_eq!(
        refused.to_string(),
        "a send on a UD queue pair needs a destination"
    );
    let buffer = { refused.buffers }.pop().expect("it comes back");
    let refused =
        a.qp.post_send(SendRequest::new(1, buffer).to(&to, Qpn::MULTICAST, KEY))
            .expect_err("no group");
    let buffer = { refused.buffers }.pop().expect("it comes back");
    b.recv(1, usize::from(mtu));
    a.qp.post_send(SendRequest::new(1, buffer).to(&to, b.qp.qpn(), KEY))
        .expect("at last");
    assert_eq!(b.one().message().map(<[u8]>::len), Some(mtu.into()));
    // And a connected queue pair takes no destination.
    let rc = QueuePair::create(&a.pd, &a.cq, &a.cq, QpInitAttr::default()).expect("qp");
    assert_eq!((rc.qp_type(), a.qp.qp_type()), (QpType::Rc, QpType::Ud));
    rc.to_error().expect("error");
    let refused = rc
        .post_send(SendRequest::inline(1, b"").to(&to, b.qp.qpn(), KEY))
        .expect_err("connected");
    assert_eq!(
        refused.to_string(),
        "a send on a connected queue pair takes no destination of its own"
    );
}

#[test]
fn two_members_hear_a_sender_that_is_none_and_each_other() {
    let (_hosts, [a, b, c]) = hosts();
    let group = Gid::from_ip([239, 1, 2, 3].into());
    for member in [&a, &b] {
        member.qp.attach_multicast(group).expect("attach");
        member.recv(1, 100);
        member.recv(2, 100);
    }
    c.recv(1, 100);
    let say = |from: &End, text: &[u8]| {
        let request = SendRequest::inline(9, text).to(&from.to(group), Qpn::MULTICAST, KEY);
        from.qp.post_send(request).expect("post");
    };
    say(&c, b"from outside");
    assert!(c.one().is_send);
    for member in [&a, &b] {
        let received = member.one();
        assert_eq!(received.message(), Some(&b"from outside"[..]));
        assert_eq!(received.src_qp, c.qp.qpn());
        assert_eq!(
            received.grh().map(|grh| grh.destination),
            Some(group.to_ip())
        );
        // The answer goes to the sender alone, and from an address of the member.
        let back = AddressHandle::reply_to(&member.pd, &received).expect("a way back");
        assert_eq!(
            back.address_vector(),
            AddressVector::new(member.gid(), c.gid())
        );
    }
    say(&a, b"from a member");
    let here = a.collect(2);
    assert_eq!(here.iter().filter(|c| c.is_send).count(), 1);
    assert!(
        here.iter()
            .any(|c| c.message() == Some(&b"from a member"[..]))
    );
    assert_eq!(b.one().message(), Some(&b"from a member"[..]));

    // Who has left hears nothing, and cannot leave twice.
    b.qp.detach_multicast(group).expect("detach");
    b.recv(3, 100);
    a.recv(3, 100);
    say(&c, b"again");
    assert_eq!(a.one().message(), Some(&b"again"[..]));
    a.say(b"between us", &b);
    assert_eq!(b.one().message(), Some(&b"between us"[..]));
    let refused = b.qp.detach_multicast(group).expect_err("not attached");
    assert_eq!(
        refused.to_string(),
        "the queue pair is not attached to group 239.1.2.3"
    );
}

#[test]
fn a_message_that_does_not_fit_is_dropped_and_an_ended_queue_pair_can_start_again() {
    let (_hosts, [a, b]) = hosts();
    b.recv(1, 4);
    a.say(b"12345", &b);
    a.say(b"1234", &b);
    assert_eq!(b.one().message(), Some(&b"1234"[..]));
    b.recv(2, 100);
    b.qp.to_error().expect("to the error state");
    let flushed = b.one();
    assert_eq!(flushed.status, WcStatus::WR_FLUSH_ERR);
    assert!(flushed.buffers.len() == 1 && flushed.message().is_none());
    b.qp.modify(&oarlock_verbs::QpAttr::to_state(QpState::Reset))
        .expect("reset");
    start(&b.qp).expect("start");
    b.recv(3, 100);
    a.say(b"12345", &b);
    assert_eq!(b.one().message(), Some(&b"12345"[..]));
}

/// Memory of queue pairs that are dropped while datagrams arrive is given back, attached or not.
#[test]
fn handles_may_go_under_fire() {
    let (_hosts, [a, b]) = hosts();
    let group = Gid::from_ip([239, 1, 2, 3].into());
    for round in 0..50 {
        let cq = CompletionQueue::new(&b.context, 64).expect("cq");
        let qp = datagrams(&b.pd, &cq).expect("qp");
        qp.attach_multicast(group).expect("attach");
        for wr_id in 0..8 {
            let buffer = Buffer::new(&b.pd, 200).expect("buffer");
            qp.post_recv(wr_id, buffer).expect("post");
        }
        let (one, all) = (a.to(b.gid()), a.to(group));
        for _ in 0..4 {
            for (ah, qpn) in [(&one, qp.qpn()), (&all, Qpn::MULTICAST)] {
                let request = SendRequest::inline(1, b"fire").to(ah, qpn, KEY);
                a.qp.post_send(request).expect("post");
            }
        }
        match round % 3 {
            0 => drop((qp, cq)),
            1 => drop((cq, qp)),
            _ => {
                let mut some = Vec::new();
                cq.wait(&mut some, Some(Duration::from_secs(300)))
                    .expect("wait");
                drop((some, qp, cq));
            }
        }
        assert_eq!(a.collect(8).len(), 8);
    }
    let end = Instant::now() + Duration::from_secs(300);
    while b.context.region_count() > 0 {
        assert!(Instant::now() < end, "memory is kept");
        std::thread::yield_now();
    }
}

#[test]
fn a_wrong_key_is_no_way_in() {
    let (_hosts, [a, b]) = hosts();
    b.recv(1, 100);
    let to = a.to(b.gid());
    for (key, text) in [(QKey(7), b"bad"), (QKey(0x8000_0000), b"own")] {
        let request = SendRequest::inline(1, text).to(&to, b.qp.qpn(), key);
        a.qp.post_send(request).expect("post");
    }
    // The second stands for the sender's own key, which is the same here.
    assert_eq!(b.one().message(), Some(&b"own"[..]));
    let counters = b.qp.counters();
    let dropped = counters
        .iter()
        .find(|(name, _)| *name == "dropped_wrong_qkey");
    assert_eq!(dropped, Some(("dropped_wrong_qkey", 1)));
}
