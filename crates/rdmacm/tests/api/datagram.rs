//! Unreliable datagrams: finding the peer's queue pair (SIDR), and using it.

use crate::support::*;
use oarlock_rdmacm::{
    ConnParam, DatagramSocket, Ece, Error, Event, EventChannel, Host, Identifier,
    MAX_DATAGRAM_CONNECT_PRIVATE_DATA, MAX_DATAGRAM_REPLY_PRIVATE_DATA, PortSpace, QKey, Qpn,
    RejReason, SidrStatus, UdParam,
};
use oarlock_verbs::{
    AddressHandle, Buffer, Completion, CompletionQueue, Counter, GRH_LEN, QpInitAttr, QpState,
    QpType, QueuePair, SendRequest,
};
use std::net::SocketAddr;

pub(crate) struct Socket {
    pub(crate) queue_pair: QueuePair,
    pub(crate) cq: CompletionQueue,
}

/// The identifier's queue pair for datagrams, with receives posted.
pub(crate) fn socket(id: &Identifier) -> Socket {
    let device = id.device().expect("a device");
    let cq = CompletionQueue::new(&device, 16).expect("a completion queue");
    let pd = device.default_pd();
    let init = QpInitAttr {
        qp_type: QpType::Ud,
        ..QpInitAttr::default()
    };
    let queue_pair = id.create_qp(&pd, &cq, &cq, init).expect("a queue pair");
    for number in 0..4 {
        let buffer = Buffer::new(&pd, GRH_LEN + 256).expect("a buffer");
        queue_pair.post_recv(number, buffer).expect("post_recv");
    }
    Socket { queue_pair, cq }
}

impl Socket {
    pub(crate) fn send(&self, to: &AddressHandle, qpn: Qpn, qkey: QKey, message: &[u8]) {
        let request = SendRequest::inline(100, message).to(to, qpn, qkey);
        self.queue_pair
            .post_send(request.unsignaled())
            .expect("post_send");
    }

    pub(crate) fn receive(&self) -> Completion {
        let mut completions = Vec::new();
        self.cq
            .wait(&mut completions, Some(LONG))
            .expect("the host lives");
        assert_eq!(completions.len(), 1, "one message");
        completions.remove(0).ok().expect("it arrived whole")
    }
}

pub(crate) fn datagram_listener(channel: &EventChannel) -> (Identifier, SocketAddr) {
    let id = Identifier::new(channel, PortSpace::UDP).expect("an identifier");
    id.bind_addr("127.0.0.1:0".parse().unwrap()).expect("bind");
    id.listen(0).expect("listen");
    let address = id.local_addr().expect("query").expect("bound");
    (id, address)
}

pub(crate) fn resolved_datagram(channel: &EventChannel, address: SocketAddr) -> Identifier {
    let id = Identifier::new(channel, PortSpace::UDP).expect("an identifier");
    id.resolve_addr(None, address, LONG).expect("resolve_addr");
    expect(channel, "ADDR_RESOLVED");
    id.resolve_route(LONG).expect("resolve_route");
    expect(channel, "ROUTE_RESOLVED");
    id
}

struct Sides {
    host: Host,
    passive_channel: EventChannel,
    active_channel: EventChannel,
    _listener: Identifier,
    address: SocketAddr,
}

fn sides() -> Sides {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (listener, address) = datagram_listener(&passive_channel);
    Sides {
        host,
        passive_channel,
        active_channel,
        _listener: listener,
        address,
    }
}

/// R-PAR-7: what ESTABLISHED says is what a datagram to the peer is addressed with, and its receiver can answer.
#[test]
fn a_resolved_peer_is_sent_to_and_answers() {
    let sides = sides();
    let active = resolved_datagram(&sides.active_channel, sides.address);
    assert!(active.is_datagram());
    let client = socket(&active);
    assert_eq!(client.queue_pair.state(), QpState::Rts);
    active
        .connect(&ConnParam::default().private_data(b"looking for you"))
        .unwrap();
    let Event::ConnectRequest {
        id: passive,
        params,
        ud,
        private_data,
        ..
    } = expect(&sides.passive_channel, "CONNECT_REQUEST")
    else {
        unreachable!("its name says so")
    };
    assert_eq!(params, None);
    // The peer has named no queue pair yet, only where it is.
    let asking = ud.unwrap();
    assert_eq!((asking.qpn, asking.qkey), (Qpn::truncate(0), QKey(0)));
    let data = private_data.unwrap();
    assert_eq!(data.as_padded().len(), MAX_DATAGRAM_CONNECT_PRIVATE_DATA);
    assert!(data.is_padded_from(b"looking for you"));
    assert!(passive.is_datagram());
    assert_eq!(passive.offered(), None);
    let server = socket(&passive);
    passive
        .accept(&ConnParam::default().private_data(b"here"))
        .unwrap();
    let Event::Established {
        params,
        ud,
        private_data,
        ..
    } = expect(&sides.active_channel, "ESTABLISHED")
    else {
        unreachable!("its name says so")
    };
    assert_eq!(params, None);
    let data = private_data.unwrap();
    assert_eq!(data.as_padded().len(), MAX_DATAGRAM_REPLY_PRIVATE_DATA);
    assert!(data.is_padded_from(b"here"));
    assert_eq!(active.peer_private_data(), Some(&data));
    let peer: UdParam = ud.unwrap();
    assert_eq!(peer.qpn, server.queue_pair.qpn());
    assert_eq!(peer.qkey, QKey::RDMA_UDP);
    let handle = peer.address_handle(client.queue_pair.pd()).unwrap();
    client.send(&handle, peer.qpn, peer.qkey, b"who is there?");
    let question = server.receive();
    assert_eq!(question.message(), Some(&b"who is there?"[..]));
    assert_eq!(question.src_qp, client.queue_pair.qpn());
    let back = AddressHandle::reply_to(server.queue_pair.pd(), &question).unwrap();
    server.send(&back, question.src_qp, QKey::RDMA_UDP, b"me");
    assert_eq!(client.receive().message(), Some(&b"me"[..]));
    // Nothing is reported to the passive side, R-PAR-7.
    assert_empty(&sides.passive_channel);
}

/// One queue pair serves all peers: each request is answered with its number.
#[test]
fn one_queue_pair_answers_every_request() {
    let sides = sides();
    let server_id = Identifier::synchronous(&sides.host, PortSpace::UDP).unwrap();
    server_id.resolve_addr(None, sides.address, LONG).unwrap();
    let server = socket(&server_id);
    let mut passive = Vec::new();
    for number in 0..3_u8 {
        let active = resolved_datagram(&sides.active_channel, sides.address);
        let client = socket(&active);
        active.connect(&ConnParam::default()).unwrap();
        let Event::ConnectRequest { id, .. } = expect(&sides.passive_channel, "CONNECT_REQUEST")
        else {
            unreachable!("its name says so")
        };
        let named = ConnParam::default().external_queue_pair(server.queue_pair.qpn(), false);
        id.accept(&named).unwrap();
        passive.push(id);
        let Event::Established { ud: Some(peer), .. } =
            expect(&sides.active_channel, "ESTABLISHED")
        else {
            panic!("datagrams are established with an address")
        };
        let handle = peer.address_handle(client.queue_pair.pd()).unwrap();
        client.send(&handle, peer.qpn, peer.qkey, &[number]);
        assert_eq!(server.receive().message(), Some(&[number][..]));
    }
}

/// Each way in which there is no service: nobody listens, or the program there says no. Public fault 26: the text says
/// which.
#[test]
fn a_service_that_is_none_says_why() {
    let sides = sides();
    let nobody: SocketAddr = "127.0.0.1:4711".parse().unwrap();
    let active = resolved_datagram(&sides.active_channel, nobody);
    active.connect(&ConnParam::default()).unwrap();
    let event = expect(&sides.active_channel, "UNREACHABLE");
    assert_eq!(event.status(), 1);
    let error = event.error().unwrap();
    let message = "refused by 127.0.0.1:4711: service ID not supported (1): nobody listens for \
                   datagrams on 127.0.0.1:4711";
    assert!(error.to_string().contains(message), "{error}");
    assert_eq!(error.errno(), 111);

    let active = resolved_datagram(&sides.active_channel, sides.address);
    active.connect(&ConnParam::default()).unwrap();
    let Event::ConnectRequest { id, .. } = expect(&sides.passive_channel, "CONNECT_REQUEST") else {
        unreachable!("its name says so")
    };
    let too_long = vec![1; MAX_DATAGRAM_REPLY_PRIVATE_DATA + 1];
    let error = id
        .reject(RejReason::CONSUMER_DEFINED, &too_long)
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::PrivateDataTooLong {
                max: MAX_DATAGRAM_REPLY_PRIVATE_DATA,
                ..
            }
        ),
        "{error}"
    );
    id.reject(RejReason::CONSUMER_DEFINED, b"closed").unwrap();
    match expect(&sides.active_channel, "UNREACHABLE").error() {
        Some(Error::ServiceRefused {
            status: SidrStatus::REJECT,
            private_data,
            ..
        }) => assert!(private_data.unwrap().is_padded_from(b"closed")),
        other => panic!("{other:?}"),
    }
}

/// R-PAR-1: the limits of both messages, one byte below and above.
#[test]
fn private_data_limits_are_those_of_the_messages() {
    let sides = sides();
    let active = resolved_datagram(&sides.active_channel, sides.address);
    let with = |len: usize| ConnParam::default().private_data(vec![7; len]);
    let check = |error: Error, limit: usize| match error {
        Error::PrivateDataTooLong { given, max, .. } => {
            assert_eq!((given, max), (limit + 1, limit));
        }
        other => panic!("{other}"),
    };
    let limit = MAX_DATAGRAM_CONNECT_PRIVATE_DATA;
    check(active.connect(&with(limit + 1)).unwrap_err(), limit);
    active.connect(&with(limit)).unwrap();
    let Event::ConnectRequest {
        id, private_data, ..
    } = expect(&sides.passive_channel, "CONNECT_REQUEST")
    else {
        unreachable!("its name says so")
    };
    assert!(private_data.unwrap().is_padded_from(&vec![7; limit]));
    let limit = MAX_DATAGRAM_REPLY_PRIVATE_DATA;
    let named = |len| with(len).external_queue_pair(Qpn::truncate(0x01_0001), false);
    check(id.accept(&named(limit + 1)).unwrap_err(), limit);
    id.accept(&named(limit)).unwrap();
    let event = expect(&sides.active_channel, "ESTABLISHED");
    assert!(
        matches!(event, Event::Established { private_data: Some(data), .. }
        if data.is_padded_from(&vec![7; limit]))
    );
}

/// A synchronous identifier resolves a peer in one call. Public fault 13: a synchronous accept waits for nothing, since
/// nothing comes.
#[test]
fn synchronous_datagrams() {
    let host = private();
    let listener = Identifier::synchronous(&host, PortSpace::UDP).unwrap();
    listener.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().unwrap();
    let passive = std::thread::spawn(move || {
        let child = listener.get_request().unwrap();
        let server = socket(&child);
        child.accept(&ConnParam::default()).unwrap();
        let message = server.receive();
        assert_eq!(message.message(), Some(&b"hello"[..]));
    });
    let active = Identifier::synchronous(&host, PortSpace::UDP).unwrap();
    active.resolve_addr(None, address, LONG).unwrap();
    active.resolve_route(LONG).unwrap();
    let client = socket(&active);
    let peer = active.resolve_peer(b"").unwrap();
    let handle = peer.address_handle(client.queue_pair.pd()).unwrap();
    client.send(&handle, peer.qpn, peer.qkey, b"hello");
    passive.join().unwrap();
    // Without an answer from a program: by the host.
    let nobody = Identifier::synchronous(&host, PortSpace::UDP).unwrap();
    nobody
        .resolve_addr(None, "127.0.0.1:4711".parse().unwrap(), LONG)
        .unwrap();
    nobody.resolve_route(LONG).unwrap();
    let error = nobody.resolve_peer(b"").unwrap_err();
    assert!(matches!(error, Error::ServiceRefused { .. }), "{error}");
}

/// An identifier and its queue pair are of one type, and each port space has its own, IB excepted.
#[test]
fn queue_pairs_are_of_the_identifiers_type() {
    let sides = sides();
    let active = resolved_datagram(&sides.active_channel, sides.address);
    let device = active.device().unwrap();
    let cq = CompletionQueue::new(&device, 1).unwrap();
    let error = active
        .create_qp(&device.default_pd(), &cq, &cq, QpInitAttr::default())
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::OtherQpType {
                given: QpType::Rc,
                wanted: QpType::Ud,
                ..
            }
        ),
        "{error}"
    );
    let with = |space, kind| Identifier::with_qp_type(&sides.active_channel, space, kind);
    let error = with(PortSpace::TCP, QpType::Ud).unwrap_err();
    assert!(matches!(error, Error::OtherQpType { .. }), "{error}");
    assert!(with(PortSpace::IPOIB, QpType::Ud).unwrap().is_datagram());
    assert!(with(PortSpace::IB, QpType::Ud).unwrap().is_datagram());
    assert!(!with(PortSpace::IB, QpType::Rc).unwrap().is_datagram());
}

/// Two sockets that look for each other at the same time find each other: each answers while it asks.
#[test]
fn sockets_find_each_other() {
    let host = private();
    let bind = || {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        DatagramSocket::bind(&host, any).unwrap().deadline(LONG)
    };
    let (one, other) = (bind(), bind().greeting(b"the other").unwrap());
    let error = bind().greeting([0; 137]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::PrivateDataTooLong {
                given: 137,
                max: 136,
                ..
            }
        ),
        "{error}"
    );
    let (address_of_one, address_of_other) = (one.local_addr(), other.local_addr());
    let theirs = std::thread::spawn(move || {
        let peer = other.resolve(address_of_one).unwrap();
        other.send_to(&peer, &[7; 1000]).unwrap();
        let answer = other.receive().unwrap();
        assert_eq!(answer.message, b"got it");
        other
    });
    let (peer, greeting) = one.resolve_with(address_of_other, b"").unwrap();
    assert!(greeting.unwrap().is_padded_from(b"the other"));
    let arrived = one.receive().unwrap();
    assert_eq!(arrived.message, [7; 1000]);
    assert_eq!(arrived.from.qpn, peer.qpn);
    assert_eq!(arrived.to, address_of_one.ip());
    one.send_to(&arrived.from, b"got it").unwrap();
    let other = theirs.join().unwrap();
    // A message may be empty: who gives back what comes must not fail by it.
    one.send_to(&arrived.from, b"").unwrap();
    assert_eq!(other.receive().unwrap().message, b"");
    let max = other.max_message();
    let error = other.send_to(&peer, &vec![0; max + 1]).unwrap_err();
    assert!(
        matches!(error, Error::MessageTooLong { given, .. } if given == max + 1),
        "{error}"
    );
    other.send_to(&peer, &vec![3; max]).unwrap();
}

/// A socket's deadline ends each of its waits, and names what was awaited.
#[test]
fn the_deadline_of_a_socket() {
    let host = private();
    let soon = std::time::Duration::from_millis(20);
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let socket = DatagramSocket::bind(&host, any).unwrap().deadline(soon);
    let error = socket.receive().unwrap_err();
    assert!(
        matches!(
            error,
            Error::TimedOut {
                awaited: "a datagram",
                ..
            }
        ),
        "{error}"
    );
    // Somebody listens there and does not answer.
    let (_listener, silent) = datagram_listener(&channel(&host));
    let error = socket.resolve(silent).unwrap_err();
    assert!(
        matches!(error, Error::TimedOut { peer: Some(peer), .. } if peer == silent),
        "{error}"
    );
}

/// More messages than both queues hold, one answer each: queues turn over, several threads receive.
#[test]
fn a_socket_goes_on_past_the_depth_of_its_queues() {
    let host = private();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let sizes = oarlock_rdmacm::QueueSizes::new(2, 4);
    let bind = || {
        DatagramSocket::bind_with(&host, any, sizes)
            .unwrap()
            .deadline(LONG)
    };
    let (server, client) = (bind(), bind());
    let address = server.local_addr();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let question = server.receive().unwrap();
                    if question.message == b"enough" {
                        break;
                    }
                    server.send_to(&question.from, &question.message).unwrap();
                }
            });
        }
        let peer = client.resolve(address).unwrap();
        for number in 0..100_u32 {
            let question = number.to_le_bytes();
            client.send_to(&peer, &question).unwrap();
            assert_eq!(client.receive().unwrap().message, question);
        }
        for _ in 0..2 {
            client.send_to(&peer, b"enough").unwrap();
        }
    });
}

/// A SIDR_REQ has no place for a vendor's options, its answer has.
#[test]
fn vendor_options_come_with_the_answer_only() {
    let sides = sides();
    let ece = Ece {
        vendor_id: 0x00_15b3,
        options: 9,
    };
    let active = resolved_datagram(&sides.active_channel, sides.address);
    let error = active.connect(&ConnParam::default().ece(ece)).unwrap_err();
    assert!(error.to_string().contains("SIDR_REQ"), "{error}");
    active.connect(&ConnParam::default()).unwrap();
    let Event::ConnectRequest { id, .. } = expect(&sides.passive_channel, "CONNECT_REQUEST") else {
        unreachable!("its name says so")
    };
    id.accept(&external(2).ece(ece)).unwrap();
    expect(&sides.active_channel, "ESTABLISHED");
    assert_eq!(active.peer_ece(), Some(ece));
}

/// However many peers look for a socket, what has arrived is received, and its deadline holds: no more than a few of them
/// are answered before.
#[test]
fn peers_that_look_for_a_socket_do_not_keep_it_from_receiving() {
    const PEERS: usize = 60;
    let host = private();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = DatagramSocket::bind(&host, any).unwrap();
    let address = server.local_addr();
    let client = DatagramSocket::bind(&host, any).unwrap().deadline(LONG);
    let (peer, server) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let server = server.deadline(LONG);
            assert_eq!(server.receive().unwrap().message, b"the first");
            server
        });
        let peer = client.resolve(address).unwrap();
        client.send_to(&peer, b"the first").unwrap();
        (peer, serving.join().unwrap())
    });

    let seekers = channel(&host);
    let look = || {
        let seeker = resolved_datagram(&seekers, address);
        let named = ConnParam::default().external_queue_pair(client.queue_pair().qpn(), false);
        seeker.connect(&named).unwrap();
        seeker
    };
    let looking: Vec<_> = (0..PEERS).map(|_| look()).collect();
    let answered = || {
        let events = std::iter::from_fn(|| seekers.try_event().unwrap());
        events
            .filter(|event| event.name().ends_with("ESTABLISHED"))
            .count()
    };
    client.send_to(&peer, b"the second").unwrap();
    while server
        .queue_pair()
        .counters()
        .get(Counter::DatagramsReceived)
        < 2
    {
        std::thread::yield_now();
    }
    assert_eq!(server.receive().unwrap().message, b"the second");
    let before = answered();
    assert!(
        before + 2 < PEERS,
        "{before} of {PEERS} were answered before"
    );
    // A wait without an arrival ends at the deadline, with peers in the queue, and answers them all if it has the time.
    let server = server.deadline(std::time::Duration::ZERO);
    assert!(matches!(server.receive(), Err(Error::TimedOut { .. })));
    let in_no_time = before + answered();
    assert!(in_no_time + 2 < PEERS, "{in_no_time} of {PEERS}");
    let server = server.deadline(std::time::Duration::from_millis(500));
    let mut now = in_no_time;
    for _ in 0..100 {
        assert!(matches!(server.receive(), Err(Error::TimedOut { .. })));
        now += answered();
        if now == looking.len() {
            return;
        }
    }
    panic!("{now} of {PEERS} were answered in the end");
}
