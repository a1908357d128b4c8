//! Two sides on one private host.

use oarlock_rdmacm::{
    ConnParam, Event, EventChannel, Host, Identifier, PaddedData, PeerParam, PortSpace, Qpn,
};
use oarlock_verbs::{CompletionQueue, QpInitAttr, QueuePair};
use std::net::SocketAddr;
use std::time::Duration;

/// Far beyond anything that happens on a private host, however busy the machine is; only a failure waits so long.
pub(crate) const LONG: Duration = Duration::from_secs(300);

pub(crate) fn private() -> Host {
    Host::private().expect("a private host")
}

pub(crate) fn channel(host: &Host) -> EventChannel {
    EventChannel::new(host).expect("an event channel")
}

/// The next event, whose name must be this one (without its prefix).
#[track_caller]
pub(crate) fn expect(channel: &EventChannel, name: &str) -> Event {
    let event = channel
        .get_event_timeout(LONG)
        .expect("the service answers")
        .unwrap_or_else(|| panic!("no event came, {name} was expected"));
    assert_eq!(
        event.name().strip_prefix("RDMA_CM_EVENT_"),
        Some(name),
        "{event}"
    );
    event
}

/// Waits until the service has queued so many events for the identifiers in all.
#[track_caller]
pub(crate) fn wait_queued(host: &Host, wanted: u32) {
    let deadline = std::time::Instant::now() + LONG;
    loop {
        let queued: u32 = host.ps().expect("ps").ids.iter().map(|id| id.queued).sum();
        if queued == wanted {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{queued} events are queued, {wanted} were expected"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn listener(channel: &EventChannel) -> (Identifier, SocketAddr) {
    let id = Identifier::new(channel, PortSpace::TCP).expect("an identifier");
    id.bind_addr("127.0.0.1:0".parse().unwrap()).expect("bind");
    id.listen(0).expect("listen");
    let address = id
        .local_addr()
        .expect("query")
        .expect("a listener is bound");
    (id, address)
}

pub(crate) fn idle_queue_pair(id: &Identifier) -> QueuePair {
    let device = id.device().expect("a device");
    let cq = CompletionQueue::new(&device, 4).expect("a completion queue");
    let init = QpInitAttr {
        max_send_wr: 2,
        max_recv_wr: 2,
        ..QpInitAttr::default()
    };
    id.create_qp(&device.default_pd(), &cq, &cq, init)
        .expect("a queue pair")
}

/// Parameters with a queue pair that exists in name only: for tests in which no data flows.
pub(crate) fn external(number: u32) -> ConnParam {
    ConnParam::default().external_queue_pair(Qpn::truncate(0x01_0000 + number), false)
}

/// An active identifier with address and route resolved.
pub(crate) fn resolved(channel: &EventChannel, address: SocketAddr) -> Identifier {
    let id = Identifier::new(channel, PortSpace::TCP).expect("an identifier");
    id.resolve_addr(None, address, LONG).expect("resolve_addr");
    expect(channel, "ADDR_RESOLVED");
    id.resolve_route(LONG).expect("resolve_route");
    expect(channel, "ROUTE_RESOLVED");
    id
}

/// What a connection request carries.
pub(crate) struct Request {
    pub(crate) id: Identifier,
    pub(crate) listen_id: Identifier,
    pub(crate) params: PeerParam,
    pub(crate) private_data: Option<PaddedData>,
}

#[track_caller]
pub(crate) fn request(channel: &EventChannel) -> Request {
    match expect(channel, "CONNECT_REQUEST") {
        Event::ConnectRequest {
            id,
            listen_id,
            params,
            private_data,
            ..
        } => Request {
            id,
            listen_id,
            params: params.expect("a connection request carries parameters"),
            private_data,
        },
        other => panic!("{other}"),
    }
}

/// An established connection with queue pairs, each side on a channel of its own.
pub(crate) struct Pair {
    pub(crate) host: Host,
    pub(crate) listener: Identifier,
    pub(crate) address: SocketAddr,
    pub(crate) passive: Identifier,
    pub(crate) passive_channel: EventChannel,
    pub(crate) active: Identifier,
    pub(crate) active_channel: EventChannel,
}

pub(crate) fn pair() -> Pair {
    let host = private();
    let passive_channel = channel(&host);
    let active_channel = channel(&host);
    let (listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    idle_queue_pair(&active);
    active.connect(&ConnParam::default()).expect("connect");
    let passive = request(&passive_channel).id;
    idle_queue_pair(&passive);
    passive.accept(&ConnParam::default()).expect("accept");
    expect(&active_channel, "ESTABLISHED");
    expect(&passive_channel, "ESTABLISHED");
    Pair {
        host,
        listener,
        address,
        passive,
        passive_channel,
        active,
        active_channel,
    }
}

/// An event channel that has nothing to give.
#[track_caller]
pub(crate) fn assert_empty(channel: &EventChannel) {
    let event = channel.try_event().expect("the service answers");
    assert!(event.is_none(), "{}", event.unwrap());
}

/// The channel that the service has the identifier on, known by its local address.
pub(crate) fn channel_of(host: &Host, id: &Identifier) -> u64 {
    let local = id.local_addr().expect("query");
    let ids = host.ps().expect("ps").ids;
    let found = ids
        .iter()
        .find(|info| info.local == local && info.remote.is_some());
    found.expect("the identifier is listed").channel
}
