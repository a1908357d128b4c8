//! Hosts on one link that loses nothing, driven by requests in bytes.

use std::net::{IpAddr, SocketAddr};

use oarlock_cm::Seed;
use oarlock_cma::{Config, Device, Errno, Limits, Membership, MembershipAction, Route};
use oarlock_ucm::client::{self, Answer, Call, Event, IdNumber, Param};
use oarlock_ucm::{Failure, FileId, Owner, Ucm};
use oarlock_wire::{Guid, Time};

pub(crate) const TCP: u16 = 0x0106;
pub(crate) const UDP: u16 = 0x0111;
pub(crate) const PORT: u16 = 7471;

pub(crate) mod kind {
    pub(crate) const ADDR_RESOLVED: u32 = 0;
    pub(crate) const ROUTE_RESOLVED: u32 = 2;
    pub(crate) const CONNECT_REQUEST: u32 = 4;
    pub(crate) const CONNECT_RESPONSE: u32 = 5;
    pub(crate) const UNREACHABLE: u32 = 7;
    pub(crate) const REJECTED: u32 = 8;
    pub(crate) const ESTABLISHED: u32 = 9;
    pub(crate) const DISCONNECTED: u32 = 10;
    pub(crate) const DEVICE_REMOVAL: u32 = 11;
    pub(crate) const MULTICAST_JOIN: u32 = 12;
    pub(crate) const MULTICAST_ERROR: u32 = 13;
    pub(crate) const TIMEWAIT_EXIT: u32 = 15;
    pub(crate) const USER: u32 = 18;
}

/// Hosts 0, 1, ... with addresses 10.0.0.1, 10.0.0.2, ... .
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) hosts: Vec<Ucm>,
    /// What becomes of memberships that are asked for.
    pub(crate) membership: Result<(), Errno>,
    /// Memberships that were asked for, with the host.
    pub(crate) memberships: Vec<(usize, Membership)>,
}

pub(crate) fn address(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, u8::try_from(host + 1).expect("few hosts")])
}

pub(crate) fn device(host: usize) -> Device {
    Device {
        index: 0,
        name: format!("dev{host}"),
        guid: Guid(0x1000 + host as u64),
        port_num: 1,
        ifindex: 2,
        is_loopback: false,
        netdev_mtu: 1500,
        addresses: vec![address(host)],
        limits: Limits::default(),
    }
}

impl World {
    pub(crate) fn new(hosts: usize) -> Self {
        let host = |n: usize| {
            let seed = Seed([u8::try_from(n + 1).expect("few hosts"); 32]);
            let mut ucm = Ucm::new(Config::default(), seed);
            ucm.set_devices(Time::ZERO, vec![device(n)]);
            ucm
        };
        Self {
            now: Time::ZERO,
            hosts: (0..hosts).map(host).collect(),
            membership: Ok(()),
            memberships: Vec::new(),
        }
    }

    pub(crate) fn open(&mut self, host: usize) -> FileId {
        self.hosts[host]
            .open(Owner(1))
            .expect("channels are not exhausted")
    }

    /// One request, and what it leads to on every host.
    pub(crate) fn call<A: Answer>(
        &mut self,
        host: usize,
        file: FileId,
        call: &Call<A>,
    ) -> Result<A, Failure> {
        let mut response = Vec::new();
        let written =
            self.hosts[host].write(self.now, file, call.request(), call.inline(), &mut response);
        self.settle();
        assert_eq!(
            written?,
            call.request().len(),
            "success returns the full length"
        );
        Ok(call.decode(&response).expect("the answer fits its command"))
    }

    /// One request that succeeds.
    pub(crate) fn ok<A: Answer>(&mut self, host: usize, file: FileId, call: &Call<A>) -> A {
        self.call(host, file, call)
            .unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// The error number of a request, 0 for success.
    pub(crate) fn errno(
        &mut self,
        host: usize,
        file: FileId,
        request: &[u8],
        inline: &[u8],
    ) -> i32 {
        let mut response = Vec::new();
        let result = self.hosts[host].write(self.now, file, request, inline, &mut response);
        self.settle();
        result.map_or_else(|failure| failure.errno().0, |_| 0)
    }

    /// Carries datagrams and answers lookups until nothing moves.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut moved = false;
            for host in 0..self.hosts.len() {
                while let Some(lookup) = self.hosts[host].poll_lookup() {
                    moved = true;
                    let route = Route {
                        source: lookup.source.unwrap_or_else(|| address(host)),
                        ifindex: 2,
                        gateway: None,
                        hop_limit: 64,
                        mtu: 1500,
                        is_local: lookup.destination == address(host),
                    };
                    self.hosts[host].handle_lookup(self.now, lookup.token, Ok(route));
                }
                while let Some(membership) = self.hosts[host].poll_membership() {
                    moved = true;
                    if membership.action == MembershipAction::Join {
                        let outcome = self.membership;
                        self.hosts[host].handle_membership(self.now, membership.token, outcome);
                    }
                    self.memberships.push((host, membership));
                }
                while let Some(transmit) = self.hosts[host].poll_transmit() {
                    moved = true;
                    let to =
                        (0..self.hosts.len()).find(|&to| address(to) == transmit.av.remote.to_ip());
                    if let Some(to) = to {
                        self.hosts[to].handle_mad(self.now, &transmit.av.reversed(), &transmit.mad);
                    }
                }
            }
            if !moved {
                break;
            }
        }
    }

    /// Lets time pass until no host waits for anything.
    pub(crate) fn rest(&mut self) {
        while let Some(next) = self.hosts.iter().filter_map(Ucm::poll_timeout).min() {
            self.now = self.now.max(next);
            for host in &mut self.hosts {
                host.handle_timeout(self.now);
            }
            self.settle();
        }
    }

    /// The next event of a file, `None` for `EAGAIN`.
    pub(crate) fn event(&mut self, host: usize, file: FileId) -> Option<Event> {
        match self.call(host, file, &client::get_event()) {
            Ok(event) => Some(event),
            Err(Failure::NoEvent) => None,
            Err(other) => panic!("{other}"),
        }
    }

    pub(crate) fn expect(&mut self, host: usize, file: FileId, kind: u32) -> Event {
        let event = self
            .event(host, file)
            .unwrap_or_else(|| panic!("no event, but event {kind} was expected"));
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    pub(crate) fn create(&mut self, host: usize, file: FileId, uid: u64) -> IdNumber {
        self.ok(host, file, &client::create_id(uid, TCP, 0))
    }

    pub(crate) fn listener(&mut self, host: usize, file: FileId, uid: u64) -> IdNumber {
        let id = self.create(host, file, uid);
        self.ok(
            host,
            file,
            &client::bind(id, SocketAddr::new(address(host), PORT)),
        );
        self.ok(host, file, &client::listen(id, 10));
        id
    }

    /// An identifier that has a route to the listener of a host.
    pub(crate) fn routed(&mut self, host: usize, file: FileId, uid: u64, to: usize) -> IdNumber {
        let id = self.create(host, file, uid);
        self.ok(
            host,
            file,
            &client::resolve_addr(id, None, SocketAddr::new(address(to), PORT), 1000),
        );
        assert_eq!(self.expect(host, file, kind::ADDR_RESOLVED).id, id);
        self.ok(host, file, &client::resolve_route(id, 1000));
        assert_eq!(self.expect(host, file, kind::ROUTE_RESOLVED).id, id);
        id
    }

    pub(crate) fn connect(&mut self, host: usize, file: FileId, id: IdNumber, qpn: u32) {
        self.ok(
            host,
            file,
            &client::connect(id, &param(qpn)).expect("short private data"),
        );
    }

    /// Two established ends; host 0 is active. The events of set-up are taken.
    pub(crate) fn established(&mut self, active: FileId, passive: FileId) -> (IdNumber, IdNumber) {
        let id = self.routed(0, active, 1, 1);
        // A queue pair has one connection at a time: the number follows the identifier's.
        self.connect(0, active, id, 0x11 + id.0);
        let child = self.expect(1, passive, kind::CONNECT_REQUEST).id;
        self.ok(
            1,
            passive,
            &client::accept(child, 2, &accept_param(0x22 + id.0)).expect("short private data"),
        );
        assert_eq!(self.expect(0, active, kind::CONNECT_RESPONSE).id, id);
        self.ok(0, active, &client::establish(id));
        assert_eq!(self.expect(1, passive, kind::ESTABLISHED).id, child);
        (id, child)
    }
}

pub(crate) fn param(qpn: u32) -> Param {
    Param {
        private_data: b"hello".to_vec(),
        responder_resources: 4,
        initiator_depth: 2,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        qp_num: qpn,
        ..Param::default()
    }
}

/// Parameters that accept a request made with [`param`]: no more than it offers.
pub(crate) fn accept_param(qpn: u32) -> Param {
    Param {
        responder_resources: 2,
        initiator_depth: 4,
        ..param(qpn)
    }
}
