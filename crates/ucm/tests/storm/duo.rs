//! Two hosts without queue pairs, for scenarios with a plot: a program decides on each event, at each alarm, and nothing else
//! happens.

use std::collections::BTreeSet;
use std::time::Duration;

use oarlock_cm::Seed;
use oarlock_cma::Config;
use oarlock_sim::{Network, NetworkConfig, Rng};
use oarlock_ucm::client::{self, Answer, Call, Event, IdNumber, Param};
use oarlock_ucm::{Failure, FileId, Owner, Ucm};
use oarlock_wire::{AddressVector, Guid, MAD_LEN, Time};

use crate::host::{Present, address};
use crate::world::TCP;

pub(crate) const PORT: u16 = 7471;

/// The two programs.
pub(crate) trait Plot {
    fn on_event(&mut self, duo: &mut Duo, side: usize, event: &Event);
    /// An alarm that was set, with what it was set for.
    fn on_alarm(&mut self, duo: &mut Duo, what: usize);
}

pub(crate) struct Duo {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) network: Network<(AddressVector, Box<[u8; MAD_LEN]>)>,
    pub(crate) hosts: [Ucm; 2],
    pub(crate) files: [FileId; 2],
    /// The time at which a host's clock stands.
    pub(crate) stands: [Option<Time>; 2],
    /// Channels that have something to read, and whether they are read at once.
    pub(crate) reads_at_once: [bool; 2],
    readable: BTreeSet<usize>,
    alarms: BTreeSet<(Time, usize)>,
    configs: [Config; 2],
    lives: u64,
}

const PRESENT: Present = Present {
    devices: [true, false],
    movable: false,
};

impl Duo {
    /// The hosts' configurations, less their GUIDs.
    pub(crate) fn new(mut configs: [Config; 2], network: NetworkConfig, seed: u64) -> Self {
        for (side, config) in configs.iter_mut().enumerate() {
            config.cm.ca_guid = Guid(0x1000 + side as u64);
        }
        let mut duo = Self {
            now: Time::ZERO,
            rng: Rng::new(seed ^ 0xD00),
            network: Network::new(network, seed),
            hosts: [0, 1].map(|side| Ucm::new(configs[side].clone(), Seed([0; 32]))),
            files: [FileId(0); 2],
            stands: [None; 2],
            reads_at_once: [true; 2],
            readable: BTreeSet::new(),
            alarms: BTreeSet::new(),
            configs,
            lives: seed << 8,
        };
        duo.restart(0);
        duo.restart(1);
        duo
    }

    /// A host begins anew, with the same GUID and address, and knows nothing of its earlier life.
    pub(crate) fn restart(&mut self, side: usize) {
        self.lives += 1;
        let mut seed = [side as u8; 32];
        seed[..8].copy_from_slice(&self.lives.to_le_bytes());
        let mut host = Ucm::new(self.configs[side].clone(), Seed(seed));
        host.set_devices(self.now, PRESENT.list(side));
        self.files[side] = host.open(Owner(1)).expect("the first channel");
        self.hosts[side] = host;
        self.readable.remove(&side);
    }

    pub(crate) fn alarm(&mut self, after: Duration, what: usize) {
        self.alarms.insert((self.now + after, what));
    }

    fn host_now(&self, side: usize) -> Time {
        self.stands[side].unwrap_or(self.now)
    }

    // ---- requests ----

    pub(crate) fn try_call<A: Answer>(
        &mut self,
        side: usize,
        call: &Call<A>,
    ) -> Result<A, Failure> {
        let (now, file) = (self.host_now(side), self.files[side]);
        let mut response = Vec::new();
        let (request, inline) = (call.request(), call.inline());
        let written = self.hosts[side].write(now, file, request, inline, &mut response);
        self.drain(side);
        written.map(|_| call.decode(&response).expect("the answer fits its command"))
    }

    pub(crate) fn call<A: Answer>(&mut self, side: usize, call: &Call<A>) -> A {
        self.try_call(side, call)
            .unwrap_or_else(|failure| panic!("side {side}: {failure}"))
    }

    pub(crate) fn listen(&mut self, side: usize, backlog: i32) -> IdNumber {
        let id = self.call(side, &client::create_id(0, TCP, 2));
        self.call(side, &client::bind(id, (address(side), PORT).into()));
        self.call(side, &client::listen(id, backlog));
        id
    }

    /// Begins to reach the other side; `uid` comes back with every event.
    pub(crate) fn resolve(&mut self, side: usize, uid: u64) -> IdNumber {
        let id = self.call(side, &client::create_id(uid, TCP, 2));
        let to = (address(1 - side), PORT).into();
        self.call(side, &client::resolve_addr(id, None, to, 2000));
        id
    }

    /// What comes before a connect; `true` once it is time for it.
    pub(crate) fn is_resolved(&mut self, side: usize, event: &Event) -> bool {
        match event.kind {
            0 => {
                self.call(side, &client::resolve_route(event.id, 2000));
                false
            }
            2 => true,
            _ => false,
        }
    }

    pub(crate) fn connect(&mut self, side: usize, id: IdNumber, qpn: u32) {
        let call = client::connect(id, &param(qpn)).expect("no data");
        self.call(side, &call);
    }

    pub(crate) fn accept(
        &mut self,
        side: usize,
        id: IdNumber,
        uid: u64,
        qpn: u32,
    ) -> Result<(), Failure> {
        let call = client::accept(id, uid, &param(qpn)).expect("no data");
        self.try_call(side, &call)
    }

    pub(crate) fn destroy(&mut self, side: usize, id: IdNumber) {
        self.call(side, &client::destroy_id(id));
    }

    /// The next event of a side, if there is one.
    pub(crate) fn take(&mut self, side: usize) -> Option<Event> {
        match self.try_call(side, &client::get_event()) {
            Ok(event) => Some(event),
            Err(Failure::NoEvent) => None,
            Err(failure) => panic!("side {side}: {failure}"),
        }
    }

    pub(crate) fn counter(&self, side: usize, wanted: &str) -> u64 {
        let counters = self.hosts[side].counters();
        let found = counters.iter().find(|(name, _)| name == wanted);
        found
            .unwrap_or_else(|| panic!("there is no counter {wanted}"))
            .1
    }

    // ---- time ----

    /// Sends what a host has to send, and answers its lookups.
    fn drain(&mut self, side: usize) {
        let now = self.host_now(side);
        let host = &mut self.hosts[side];
        while let Some(lookup) = host.poll_lookup() {
            host.handle_lookup(now, lookup.token, PRESENT.route(side, &lookup));
        }
        while let Some(transmit) = host.poll_transmit() {
            let datagram = (transmit.av.reversed(), Box::new(transmit.mad));
            self.network.send(self.now, side, 1 - side, datagram);
        }
        while host.poll_wake().is_some() {
            self.readable.insert(side);
        }
    }

    fn host_timeout(&self, side: usize) -> Option<Time> {
        let at = self.hosts[side].poll_timeout()?;
        match self.stands[side] {
            // Its time never comes.
            Some(stands) if at > stands => None,
            _ => Some(at),
        }
    }

    fn next_moment(&self) -> Option<Time> {
        let others = [
            self.network.next_delivery(),
            self.alarms.first().map(|(at, _)| *at),
        ];
        let hosts = [0, 1].map(|side| self.host_timeout(side));
        hosts.into_iter().chain(others).flatten().min()
    }

    /// Lets time pass until then, or until nothing can happen any more.
    pub(crate) fn run(&mut self, plot: &mut impl Plot, until: Time) {
        loop {
            self.read(plot);
            let Some(next) = self.next_moment().filter(|next| *next <= until) else {
                break;
            };
            self.now = self.now.max(next);
            while let Some(delivery) = self.network.deliver(self.now) {
                let (av, mad) = delivery.datagram;
                let shown = self.host_now(delivery.to);
                self.hosts[delivery.to].handle_mad(shown, &av, &mad);
                self.drain(delivery.to);
            }
            for side in [0, 1] {
                if self.host_timeout(side).is_some_and(|at| at <= self.now) {
                    let shown = self.host_now(side);
                    self.hosts[side].handle_timeout(shown);
                    self.drain(side);
                }
            }
            self.read(plot);
            while let Some(alarm) = self.alarms.first().copied() {
                if alarm.0 > self.now {
                    break;
                }
                self.alarms.remove(&alarm);
                plot.on_alarm(self, alarm.1);
            }
        }
        self.now = self.now.max(until);
    }

    fn read(&mut self, plot: &mut impl Plot) {
        for side in [0, 1] {
            if self.reads_at_once[side] && self.readable.remove(&side) {
                while let Some(event) = self.take(side) {
                    plot.on_event(self, side, &event);
                }
            }
        }
    }

    /// Nothing is left of anything but what was created and not destroyed.
    pub(crate) fn check_empty(&self) {
        for (side, host) in self.hosts.iter().enumerate() {
            let left = (host.ids(), host.cma().len(), host.cma().connections());
            assert_eq!(
                left,
                (0, 0, 0),
                "side {side}: ids, with children, connections"
            );
            assert!(host.ports().is_empty(), "side {side}: {:?}", host.ports());
            assert_eq!(host.poll_timeout(), None, "side {side}");
        }
    }

    /// Destroys everything that has a number.
    pub(crate) fn destroy_all(&mut self, side: usize) {
        let infos = self.hosts[side].id_infos(None, |_| 1);
        let numbers: Vec<u32> = infos.map(|info| info.id).collect();
        for number in numbers {
            self.destroy(side, IdNumber(number));
        }
    }
}

fn param(qpn: u32) -> Param {
    Param {
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: qpn,
        ..Param::default()
    }
}
