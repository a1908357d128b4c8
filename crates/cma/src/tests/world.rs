//! Any number of hosts, each with a `Cma`, interfaces and a routing table, on one network and one clock.

use crate::{
    ChannelId, Cma, Config, ConnEventParam, ConnectParam, Device, Errno, Error, Event, EventKind,
    Id, Limits, Lookup, LookupError, LookupToken, Path, PortSpace, QpType, Route, Seed,
    UdEventParam,
};
use oarlock_sim::{Clock, Ladder, Network, NetworkConfig};
use oarlock_wire::{AddressVector, CmMessage, Guid, MAD_LEN, Qpn, Time};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const PORT: u16 = 7471;

#[derive(Clone, Debug)]
struct Datagram {
    av: AddressVector,
    mad: [u8; MAD_LEN],
}

/// Where lookups go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookups {
    /// They are answered from the interfaces.
    Answered,
    /// They are kept and never answered.
    Kept,
}

pub(super) struct Host {
    pub(super) cma: Cma,
    pub(super) channel: ChannelId,
    pub(super) devices: Vec<Device>,
    pub(super) lookups: Lookups,
    pub(super) asked: Vec<Lookup>,
}

pub(super) struct World {
    pub(super) clock: Clock,
    pub(super) hosts: Vec<Host>,
    pub(super) ladder: Ladder,
    pub(super) network: NetworkFaults,
    /// Looks at every message, and may change it.
    pub(super) tap: Option<Tap>,
    next_qpn: u32,
    net: Network<Datagram>,
}

type Tap = Box<dyn FnMut(&mut CmMessage)>;

/// What is lost on purpose.
#[derive(Default)]
pub(super) struct NetworkFaults {
    /// Messages of these names are lost.
    pub(super) lose: Vec<&'static str>,
    /// The messages that were sent, by name, the lost ones included.
    pub(super) sent: Vec<&'static str>,
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub(super) fn addr(text: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(text), port)
}

/// An address with an interface.
pub(super) fn scoped(text: &str, port: u16, scope_id: u32) -> SocketAddr {
    crate::resolve::with_scope(addr(text, port), scope_id)
}

pub(super) fn device(index: u32, mtu: u32, addresses: &[&str]) -> Device {
    Device {
        index,
        name: format!("soft{index}"),
        guid: Guid(0x1000 + u64::from(index)),
        port_num: 1,
        ifindex: index + 2,
        is_loopback: false,
        netdev_mtu: mtu,
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        limits: Limits::default(),
    }
}

pub(super) fn loopback(index: u32) -> Device {
    Device {
        is_loopback: true,
        ifindex: 1,
        ..device(index, 65_536, &["127.0.0.1", "::1"])
    }
}

/// An Ethernet interface and the loopback interface of host `n`, counted from 1.
pub(super) fn usual_devices(n: u8) -> Vec<Device> {
    let v4 = format!("10.0.0.{n}");
    let v6 = format!("fd00::{n}");
    let link_local = format!("fe80::{n}");
    vec![device(0, 1500, &[&v4, &v6, &link_local]), loopback(1)]
}

/// The error number and the sentence of a call that must be refused.
#[track_caller]
pub(super) fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> (Errno, String) {
    let error = result.expect_err("must be refused");
    (error.errno(), error.to_string())
}

/// The datagram parameters of an event that must have some.
#[track_caller]
pub(super) fn ud(event: &Event) -> &UdEventParam {
    event
        .param
        .ud()
        .unwrap_or_else(|| panic!("{event:?} has no datagram parameters"))
}

/// The connection parameters of an event that must have some.
#[track_caller]
pub(super) fn conn(event: &Event) -> &ConnEventParam {
    event
        .param
        .conn()
        .unwrap_or_else(|| panic!("{event:?} has no connection parameters"))
}

pub(super) fn qpn(n: u32) -> Qpn {
    Qpn::truncate(n)
}

pub(super) fn param(qp: u32) -> ConnectParam {
    ConnectParam {
        qpn: qpn(qp),
        responder_resources: 4,
        initiator_depth: 3,
        ..ConnectParam::default()
    }
}

impl Host {
    pub(super) fn new(config: Config, seed: u8, devices: Vec<Device>) -> Self {
        let mut cma = Cma::new(config, Seed([seed; 32]));
        cma.set_devices(Time::ZERO, devices.clone());
        let channel = cma.create_channel().expect("the first channel");
        Self {
            cma,
            channel,
            devices,
            lookups: Lookups::Answered,
            asked: Vec::new(),
        }
    }

    pub(super) fn id(&mut self) -> Id {
        self.id_on(self.channel)
    }

    pub(super) fn id_on(&mut self, channel: ChannelId) -> Id {
        self.cma
            .create_id(channel, PortSpace::TCP, QpType::RC, 0xC0FFEE)
            .expect("an identifier")
    }

    /// An identifier for datagrams.
    pub(super) fn ud_id(&mut self) -> Id {
        self.id_of(PortSpace::UDP, QpType::UD)
    }

    pub(super) fn id_of(&mut self, port_space: PortSpace, qp_type: QpType) -> Id {
        self.cma
            .create_id(self.channel, port_space, qp_type, 0xC0FFEE)
            .expect("an identifier")
    }

    pub(super) fn ud_listener(&mut self, address: SocketAddr, backlog: i32) -> Id {
        let id = self.ud_id();
        self.listen_at(id, address, backlog);
        id
    }

    pub(super) fn listen_at(&mut self, id: Id, address: SocketAddr, backlog: i32) {
        self.cma
            .bind_addr(id, address)
            .expect("the address is free");
        self.cma.listen(id, backlog).expect("nobody listens there");
    }

    pub(super) fn listener(&mut self, address: SocketAddr, backlog: i32) -> Id {
        let id = self.id();
        self.cma
            .bind_addr(id, address)
            .expect("the address is free");
        self.cma.listen(id, backlog).expect("nobody listens there");
        id
    }

    /// An identifier bound to `address`.
    pub(super) fn bound(&mut self, address: SocketAddr) -> Result<Id, Error> {
        let id = self.id();
        self.cma.bind_addr(id, address).map(|()| id)
    }

    /// The path of an identifier whose route is resolved.
    #[track_caller]
    pub(super) fn path(&self, id: Id) -> Path {
        let query = self.cma.query(id).expect("exists");
        query.path.expect("resolved")
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        self.cma.next_event(self.channel)
    }

    #[track_caller]
    pub(super) fn expect(&mut self, kind: EventKind) -> Event {
        self.expect_on(self.channel, kind)
    }

    #[track_caller]
    pub(super) fn expect_on(&mut self, channel: ChannelId, kind: EventKind) -> Event {
        let event = self.cma.next_event(channel);
        assert_eq!(
            event.as_ref().map(|event| event.kind),
            Some(kind),
            "{event:?}"
        );
        event.expect("just compared")
    }

    #[track_caller]
    pub(super) fn expect_nothing(&mut self) {
        assert_eq!(self.next(), None);
    }

    /// What a routing table of directly connected networks says.
    fn route(&self, lookup: &Lookup) -> Result<Route, LookupError> {
        let own = self
            .devices
            .iter()
            .find(|device| device.addresses.contains(&lookup.destination));
        if let Some(device) = own {
            return Ok(Route {
                source: lookup.source.unwrap_or(lookup.destination),
                ifindex: device.ifindex,
                gateway: None,
                hop_limit: 0,
                mtu: 65_536,
                is_local: true,
            });
        }
        let device = self.devices.iter().find(|device| {
            !device.is_loopback && (lookup.scope_id == 0 || device.ifindex == lookup.scope_id)
        });
        let device = device.ok_or(LookupError::Unreachable(Errno::ENETUNREACH))?;
        let wants_link_local = crate::device::is_link_local(lookup.destination);
        let source = device.addresses.iter().copied().find(|address| {
            address.is_ipv4() == lookup.destination.is_ipv4()
                && crate::device::is_link_local(*address) == wants_link_local
        });
        let source = lookup
            .source
            .or(source)
            .ok_or(LookupError::Unreachable(Errno::ENETUNREACH))?;
        Ok(Route {
            source,
            ifindex: device.ifindex,
            gateway: None,
            hop_limit: 0,
            mtu: 0,
            is_local: false,
        })
    }
}

impl World {
    /// Two hosts, A and B, with 10.0.0.1 and 10.0.0.2.
    pub(super) fn pair() -> Self {
        Self::with(&[Config::default(), Config::default()])
    }

    pub(super) fn with(configs: &[Config]) -> Self {
        let number = |n: usize| u8::try_from(n + 1).expect("a handful of hosts");
        let hosts = configs.iter().enumerate().map(|(n, config)| {
            let mut config = config.clone();
            config.cm.ca_guid = Guid(0xA000 + n as u64);
            Host::new(config, number(n), usual_devices(number(n)))
        });
        Self::of(hosts.collect(), NetworkConfig::default(), 1)
    }

    pub(super) fn of(hosts: Vec<Host>, network: NetworkConfig, seed: u64) -> Self {
        Self {
            clock: Clock::new(),
            hosts,
            ladder: Ladder::new(["A", "B", "C", "D"]),
            network: NetworkFaults::default(),
            tap: None,
            next_qpn: 0x11,
            net: Network::new(network, seed),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(super) fn a(&mut self) -> &mut Host {
        &mut self.hosts[0]
    }

    pub(super) fn b(&mut self) -> &mut Host {
        &mut self.hosts[1]
    }

    pub(super) fn set_faults(&mut self, config: NetworkConfig) {
        self.net.set_config(config);
    }

    /// Datagrams that the network lost by chance.
    pub(super) fn lost(&self) -> u64 {
        self.net.counters().lost
    }

    /// Polls every host until nothing is left but deadlines and what is in flight.
    pub(super) fn drain(&mut self) {
        let now = self.now();
        for from in 0..self.hosts.len() {
            let host = &mut self.hosts[from];
            while let Some(lookup) = host.cma.poll_lookup() {
                host.asked.push(lookup);
                if host.lookups == Lookups::Answered {
                    let answer = host.route(&lookup);
                    host.cma.handle_lookup(now, lookup.token, answer);
                }
            }
            while let Some(transmit) = self.hosts[from].cma.poll_transmit() {
                self.send(from, &transmit.av, &transmit.mad);
            }
        }
    }

    fn send(&mut self, from: usize, av: &AddressVector, mad: &[u8; MAD_LEN]) {
        let (header, mut message) = CmMessage::parse(mad).expect("a host sends CM messages");
        self.network.sent.push(message.name());
        let target = av.remote.to_ip();
        let owns = |host: &Host| {
            host.devices
                .iter()
                .any(|device| device.addresses.contains(&target))
        };
        let local = owns(&self.hosts[from]).then_some(from);
        let to = local
            .or_else(|| self.hosts.iter().position(owns))
            .expect("the destination is a host");
        self.ladder.record(self.clock.now(), from, to, &message);
        if self.network.lose.contains(&message.name()) {
            return;
        }
        if let Some(tap) = &mut self.tap {
            tap(&mut message);
        }
        let mut mad = [0; MAD_LEN];
        message.emit(header.transaction_id, &mut mad);
        let now = self.now();
        self.net.send(now, from, to, Datagram { av: *av, mad });
    }

    /// Delivers what has arrived by now.
    fn deliver(&mut self) {
        let now = self.now();
        while let Some(delivery) = self.net.deliver(now) {
            let host = &mut self.hosts[delivery.to];
            let mut av = delivery.datagram.av.reversed();
            if av.local.is_link_local() {
                let arrived = host
                    .devices
                    .iter()
                    .find(|device| device.addresses.contains(&av.local.to_ip()));
                av.scope_id = arrived.expect("the datagram was sent here").ifindex;
            }
            host.cma.handle_mad(now, &av, &delivery.datagram.mad);
            self.drain();
        }
    }

    /// Runs until nothing is in flight; no timer expires that lies after that.
    pub(super) fn settle(&mut self) {
        self.drain();
        while let Some(at) = self.net.next_delivery() {
            self.clock.advance_to(at);
            self.deliver();
        }
    }

    /// Runs for a time, timers included.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now() + time;
        self.drain();
        loop {
            let timers = self.hosts.iter().filter_map(|host| host.cma.poll_timeout());
            let next = timers.chain(self.net.next_delivery()).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            let now = self.clock.advance_to(next);
            self.deliver();
            for host in &mut self.hosts {
                host.cma.handle_timeout(now);
            }
            self.drain();
        }
        self.clock.advance_to(end);
    }

    // ---- the steps of a connection ----

    /// Parameters with a queue pair that no other connection has: two live ones are a stale connection to the IB CM.
    pub(super) fn param(&mut self) -> ConnectParam {
        let param = param(self.next_qpn);
        self.next_qpn += 1;
        param
    }

    /// Resolves address and route on host `n`, and takes both events.
    #[track_caller]
    pub(super) fn resolve(
        &mut self,
        n: usize,
        id: Id,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) {
        let now = self.now();
        let host = &mut self.hosts[n];
        host.cma
            .resolve_addr(now, id, source, destination, SECOND)
            .expect("may resolve");
        self.drain();
        let host = &mut self.hosts[n];
        let channel = host.cma.channel_of(id).expect("exists");
        let event = host.expect_on(channel, EventKind::ADDR_RESOLVED);
        assert_eq!((event.id, event.status), (id, 0));
        host.cma
            .resolve_route(id, SECOND)
            .expect("the address is resolved");
        host.expect_on(channel, EventKind::ROUTE_RESOLVED);
    }

    /// An identifier of host 0 with a path to `destination`.
    #[track_caller]
    pub(super) fn resolved(&mut self, destination: SocketAddr) -> Id {
        let id = self.a().id();
        self.resolve(0, id, None, destination);
        id
    }

    /// A asks for the way to `destination`; the answer is left to come.
    #[track_caller]
    pub(super) fn ask(&mut self, id: Id, destination: SocketAddr) {
        let now = self.now();
        self.a()
            .cma
            .resolve_addr(now, id, None, destination, SECOND)
            .expect("may resolve");
    }

    /// As `ask`, and the test gives the answer.
    #[track_caller]
    pub(super) fn ask_and_keep(&mut self, id: Id, destination: SocketAddr) -> LookupToken {
        self.a().lookups = Lookups::Kept;
        self.ask(id, destination);
        self.drain();
        self.a().asked.last().expect("asked").token
    }

    /// A sends its request, and it arrives.
    #[track_caller]
    pub(super) fn connect(&mut self, active: Id, param: ConnectParam) {
        let now = self.now();
        self.a()
            .cma
            .connect(now, active, param)
            .expect("may connect");
        self.settle();
    }

    /// B accepts, and its response arrives.
    #[track_caller]
    pub(super) fn accept(&mut self, passive: Id, param: ConnectParam) {
        let now = self.now();
        self.b()
            .cma
            .accept(now, passive, None, param)
            .expect("the request waits");
        self.settle();
    }

    /// A completes the connection, and B learns of it.
    #[track_caller]
    pub(super) fn establish(&mut self, active: Id) {
        let now = self.now();
        self.a()
            .cma
            .establish(now, active)
            .expect("the response is there");
        self.settle();
    }

    /// A sends a request for 10.0.0.2:PORT, where B listens; gives A's identifier and B's child.
    #[track_caller]
    pub(super) fn requested(&mut self) -> (Id, Id) {
        let active = self.resolved(addr("10.0.0.2", PORT));
        let param = self.param();
        self.connect(active, param);
        let event = self.b().expect(EventKind::CONNECT_REQUEST);
        (active, event.id)
    }

    /// The two identifiers of an established connection; B listens on PORT already.
    #[track_caller]
    pub(super) fn connected(&mut self) -> (Id, Id) {
        let (active, passive) = self.requested();
        let now = self.now();
        let answer = ConnectParam {
            responder_resources: 3,
            initiator_depth: 4,
            ..self.param()
        };
        self.b()
            .cma
            .accept(now, passive, Some(7), answer)
            .expect("the request waits");
        self.settle();
        self.a().expect(EventKind::CONNECT_RESPONSE);
        self.establish(active);
        self.b().expect(EventKind::ESTABLISHED);
        (active, passive)
    }

    /// Fails unless every host is as empty as a new one but for its channels.
    #[track_caller]
    pub(super) fn assert_nothing_left(&mut self) {
        self.run(10 * SECOND);
        for host in &self.hosts {
            assert_eq!(host.cma.len(), 0, "identifiers");
            assert_eq!(host.cma.ports().count(), 0, "ports");
            assert_eq!(host.cma.connections(), 0, "connections of the IB CM");
            assert_eq!(host.cma.poll_timeout(), None, "timers");
        }
    }
}
