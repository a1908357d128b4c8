//! Scenarios with a plot: partitions that heal after the deadlines, a peer that comes back with the same addresses and queue
//! pairs, clocks that stand still, and a thousand clients before a door for eight.

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_cma::{BacklogOverflow, Config};
use oarlock_sim::{NetworkConfig, for_each_seed};
use oarlock_ucm::client::{self, Event, IdNumber};
use oarlock_wire::Time;

use crate::duo::{Duo, Plot};
use crate::program::{kind, reason};

const A: usize = 0;
const B: usize = 1;

/// What the kernel's values come to: sixteen times twice the packet life time and the response time, 4.8 s.
const GIVEN_UP: Duration = Duration::from_secs(80);

fn network(loss: f64) -> NetworkConfig {
    NetworkConfig {
        loss,
        duplication: loss / 2.0,
        reorder: loss / 2.0,
        delay: Duration::from_micros(20)..=Duration::from_micros(200),
        ..NetworkConfig::default()
    }
}

const fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

/// Clients on A that want to be connected to B, and try again until they are; B accepts all.
struct Crowd {
    clients: Vec<Client>,
    /// How long a client waits after a refusal, at most.
    rest: Duration,
    /// B's ends that are up, by the client's queue pair.
    served: BTreeMap<IdNumber, u32>,
    /// B's ends that were taken down, and those that were and are over.
    ended: u32,
    past: u32,
    listener: Option<IdNumber>,
    next_qpn: u32,
    /// B takes a request that often, if not at once.
    pace: Option<Duration>,
    /// What A's attempts came to, by kind and status.
    outcomes: BTreeMap<(u32, i32), u64>,
    requests: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    id: Option<IdNumber>,
    asked_at: Time,
    is_up: bool,
    attempts: u32,
    longest: Duration,
}

/// The alarm of the one who accepts; others are those of clients.
const ACCEPTOR: usize = usize::MAX;

impl Crowd {
    fn new(clients: usize) -> Self {
        Self {
            clients: vec![Client::default(); clients],
            rest: Duration::from_secs(1),
            served: BTreeMap::new(),
            ended: 0,
            past: 0,
            listener: None,
            next_qpn: 0x8000,
            pace: None,
            outcomes: BTreeMap::new(),
            requests: 0,
        }
    }

    fn all_up(&self) -> bool {
        self.clients.iter().all(|client| client.is_up)
    }

    fn outcome(&self, kind: u32, status: i32) -> u64 {
        self.outcomes.get(&(kind, status)).copied().unwrap_or(0)
    }

    fn on_a(&mut self, duo: &mut Duo, event: &Event) {
        let index = event.uid as usize;
        if duo.is_resolved(A, event) {
            self.clients[index].asked_at = duo.now;
            duo.connect(A, event.id, 0x100 + index as u32);
            return;
        }
        let client = &mut self.clients[index];
        assert_eq!(client.id, Some(event.id), "{event:?}");
        match event.kind {
            kind::ADDR_RESOLVED => {}
            kind::CONNECT_RESPONSE => {
                client.is_up = true;
                let took = duo.now.saturating_since(client.asked_at);
                client.longest = client.longest.max(took);
                duo.call(A, &client::establish(event.id));
            }
            kind::REJECTED | kind::UNREACHABLE | kind::DISCONNECTED => {
                let outcome = (event.kind, event.status);
                *self.outcomes.entry(outcome).or_default() += 1;
                if !client.is_up {
                    let took = duo.now.saturating_since(client.asked_at);
                    client.longest = client.longest.max(took);
                }
                (client.id, client.is_up) = (None, false);
                duo.destroy(A, event.id);
                let rest = duo.rng.duration(&(Duration::from_millis(1)..=self.rest));
                duo.alarm(rest, index);
            }
            _ => panic!("{event:?} was not asked for"),
        }
    }

    fn on_b(&mut self, duo: &mut Duo, event: &Event) {
        match event.kind {
            kind::CONNECT_REQUEST => {
                self.requests += 1;
                self.next_qpn += 1;
                let (id, qpn) = (event.id, event.param.qp_num);
                if duo.accept(B, id, qpn.into(), self.next_qpn).is_err() {
                    // Its peer has given up.
                    duo.destroy(B, id);
                }
            }
            kind::ESTABLISHED => {
                let twice = self.served.insert(event.id, event.uid as u32);
                assert_eq!(twice, None, "{event:?}");
            }
            kind::DISCONNECTED => {
                self.served.remove(&event.id);
                self.ended += 1;
                duo.call(B, &client::disconnect(event.id));
            }
            kind::TIMEWAIT_EXIT => {
                self.past += 1;
                duo.destroy(B, event.id);
            }
            kind::UNREACHABLE | kind::REJECTED => {
                self.served.remove(&event.id);
                duo.destroy(B, event.id);
            }
            _ => panic!("{event:?} was not asked for"),
        }
    }

    /// Everybody leaves in an orderly way, and nothing is left.
    fn go_home(&mut self, duo: &mut Duo) {
        let mut goodbye = Goodbye { crowd: self };
        for index in 0..goodbye.crowd.clients.len() {
            if let Some(id) = goodbye.crowd.clients[index].id {
                duo.call(A, &client::disconnect(id));
            }
        }
        let until = duo.now + Duration::from_secs(200);
        duo.run(&mut goodbye, until);
        duo.destroy_all(A);
        duo.destroy_all(B);
        let until = duo.now + Duration::from_secs(200);
        duo.run(&mut goodbye, until);
        duo.check_empty();
    }
}

impl Plot for Crowd {
    fn on_event(&mut self, duo: &mut Duo, side: usize, event: &Event) {
        match side {
            A => self.on_a(duo, event),
            _ => self.on_b(duo, event),
        }
    }

    fn on_alarm(&mut self, duo: &mut Duo, what: usize) {
        if what == ACCEPTOR {
            if let Some(event) = duo.take(B) {
                self.on_b(duo, &event);
            }
            if let Some(pace) = self.pace {
                duo.alarm(pace, ACCEPTOR);
            }
            return;
        }
        let client = &mut self.clients[what];
        client.attempts += 1;
        client.id = Some(duo.resolve(A, what as u64));
    }
}

/// Nobody tries again any more.
struct Goodbye<'a> {
    crowd: &'a mut Crowd,
}

impl Plot for Goodbye<'_> {
    fn on_event(&mut self, duo: &mut Duo, side: usize, event: &Event) {
        if side == B {
            return self.crowd.on_b(duo, event);
        }
        match event.kind {
            kind::DISCONNECTED | kind::TIMEWAIT_EXIT => {}
            _ => panic!("{event:?} was not asked for"),
        }
    }

    fn on_alarm(&mut self, duo: &mut Duo, what: usize) {
        if what == ACCEPTOR {
            self.crowd.on_alarm(duo, what);
        }
    }
}

// ---- partitions ----

/// A partition longer than every deadline: those who ask are told that nobody is there, within the time that the protocol
/// takes, once for each attempt; those who are connected and leave are told that their leaving was not heard. When it heals,
/// everything goes on, and what the other side still held of the past ends when it leaves too.
#[test]
fn a_partition_that_heals_too_late_ends_everything_and_prevents_nothing() {
    for_each_seed(12, |seed| {
        let loss = [0.0, 0.05, 0.2][(seed % 3) as usize];
        let mut duo = Duo::new([Config::default(), Config::default()], network(loss), seed);
        let mut crowd = Crowd::new(40);
        duo.listen(B, 64);
        for index in 0..20 {
            duo.alarm(Duration::from_millis(10), index);
        }
        duo.run(&mut crowd, at(200));
        let connected = crowd.clients.iter().filter(|client| client.is_up).count();
        assert_eq!((connected, crowd.served.len()), (20, 20), "seed {seed}");
        let before = crowd.outcomes.clone();

        duo.network.partition(A, B);
        for index in 20..40 {
            duo.alarm(Duration::from_millis(10), index);
        }
        for index in 0..10 {
            let id = crowd.clients[index].id.expect("connected");
            duo.call(A, &client::disconnect(id));
        }
        duo.run(&mut crowd, at(450));
        let unheard = crowd.outcome(kind::DISCONNECTED, -110);
        assert_eq!(unheard, 10, "seed {seed}: {:?}", crowd.outcomes);
        let unanswered = crowd.outcome(kind::UNREACHABLE, -110)
            - before.get(&(kind::UNREACHABLE, -110)).copied().unwrap_or(0);
        // Twenty that never were connected, and ten that wanted to be again: two or three attempts each.
        assert!((60..=90).contains(&unanswered), "seed {seed}: {unanswered}");
        let longest = crowd.clients.iter().map(|client| client.longest).max();
        assert!(longest <= Some(GIVEN_UP), "seed {seed}: {longest:?}");
        assert_eq!(crowd.served.len(), 20, "seed {seed}: nobody told B");

        duo.network.heal(A, B);
        duo.run(&mut crowd, at(900));
        assert!(crowd.all_up(), "seed {seed}: {:?}", crowd.clients);
        // The queue pairs of those who came back are known to B from before: it found the old connections stale.
        let up = crowd.served.len();
        assert_eq!(up, 40, "seed {seed}: {:?}", crowd.served);
        crowd.go_home(&mut duo);
    });
}

// ---- restarts ----

/// A host that crashes and comes back with the same GUID, addresses and queue pairs: the peer answers its first request with
/// REJ 10 (stale connection) and takes the old connection down, once; the next request succeeds.
#[test]
fn a_peer_that_restarts_finds_its_old_connections_stale_and_gets_new_ones() {
    const CLIENTS: usize = 12;
    for_each_seed(24, |seed| {
        let loss = [0.0, 0.01, 0.05, 0.2][(seed % 4) as usize];
        let mut duo = Duo::new([Config::default(), Config::default()], network(loss), seed);
        let mut crowd = Crowd::new(CLIENTS);
        duo.listen(B, 64);
        for life in 1..=4 {
            for index in 0..CLIENTS {
                duo.alarm(Duration::from_millis(10), index);
            }
            duo.run(&mut crowd, at(400 * life));
            assert!(crowd.all_up(), "seed {seed}: {:?}", crowd.clients);
            let served: Vec<u32> = crowd.served.values().copied().collect();
            let wanted: Vec<u32> = (0..CLIENTS as u32).map(|index| 0x100 + index).collect();
            let mut sorted = served.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, wanted, "seed {seed}, life {life}");
            if loss == 0.0 {
                let stale = crowd.outcome(kind::REJECTED, reason::STALE_CONNECTION);
                let old = (life - 1) * CLIENTS as u64;
                assert_eq!(stale, old, "seed {seed}, life {life}");
                assert_eq!(u64::from(crowd.ended), old, "seed {seed}, life {life}");
                assert_eq!(crowd.ended, crowd.past, "seed {seed}, life {life}");
            }
            if life < 4 {
                duo.restart(A);
                crowd.clients = vec![Client::default(); CLIENTS];
            }
        }
        // Where a REJ is lost, the request that comes after it finds the old connection gone.
        let stale = duo.counter(B, "cm_dropped_stale_connection");
        assert!(stale >= 3 * CLIENTS as u64, "seed {seed}: {stale}");
        assert!(
            crowd.ended >= 3 * CLIENTS as u32,
            "seed {seed}: {}",
            crowd.ended
        );
        crowd.go_home(&mut duo);
    });
}

// ---- clocks ----

/// Both clocks stand still: whatever needs no time happens, and nothing that does. Then an hour passes at once: each thing
/// that waited happens once, and nobody is given up for it.
#[test]
fn an_hour_that_passes_at_once_costs_one_repetition() {
    let mut duo = Duo::new([Config::default(), Config::default()], network(0.0), 1);
    duo.stands = [Some(at(1)), Some(at(1))];
    let mut crowd = Crowd::new(60);
    duo.listen(B, 64);
    for index in 0..40 {
        duo.alarm(Duration::from_millis(10), index);
    }
    duo.run(&mut crowd, at(20));
    assert_eq!(crowd.served.len(), 40);
    // Half of them leave, and their past stays in the network, as no time passes.
    for index in 0..20 {
        let id = crowd.clients[index].id.expect("connected");
        duo.call(A, &client::disconnect(id));
    }
    duo.run(&mut Goodbye { crowd: &mut crowd }, at(40));
    assert_eq!((crowd.ended, crowd.past), (20, 0));
    // Others ask, and nobody hears them.
    duo.network.partition(A, B);
    for index in 40..60 {
        duo.alarm(Duration::from_millis(10), index);
    }
    duo.run(&mut crowd, at(60));
    let sent = duo.counter(A, "cm_req_sent");
    assert_eq!(sent, 60);
    duo.network.heal(A, B);

    duo.now = at(3600);
    duo.stands = [None, None];
    let before = duo.counter(A, "cm_req_retried");
    duo.run(&mut Goodbye { crowd: &mut crowd }, at(3600));
    assert_eq!(duo.counter(A, "cm_req_retried") - before, 20);
    duo.run(&mut crowd, at(3610));
    assert_eq!(crowd.past, 20, "the past of those who left is over");
    assert_eq!(crowd.served.len(), 40, "and those who asked are heard");
    assert_eq!(crowd.outcome(kind::UNREACHABLE, -110), 0);
}

// ---- a thousand clients ----

const THOUSAND: usize = 1000;
const BACKLOG: i32 = 8;
/// How often the acceptor takes an event.
const PACE: Duration = Duration::from_millis(1);

/// A thousand ask at once, and eight may wait. Gives what became of them, when all are through.
fn rush(config: Config, loss: f64, seed: u64, rest: Duration) -> (Duo, Crowd) {
    let passive = Config {
        backlog_overflow: config.backlog_overflow,
        ..Config::default()
    };
    let mut duo = Duo::new([config, passive], network(loss), seed);
    let mut crowd = Crowd::new(THOUSAND);
    crowd.rest = rest;
    crowd.pace = Some(PACE);
    crowd.listener = Some(duo.listen(B, BACKLOG));
    duo.reads_at_once[B] = false;
    duo.alarm(PACE, ACCEPTOR);
    for index in 0..THOUSAND {
        let after = duo
            .rng
            .duration(&(Duration::ZERO..=Duration::from_millis(50)));
        duo.alarm(after, index);
    }
    let mut seconds = 0;
    while !crowd.all_up() || crowd.served.len() < THOUSAND {
        seconds += 5;
        assert!(
            seconds <= 600,
            "{} are served: {:?}",
            crowd.served.len(),
            crowd.outcomes
        );
        duo.run(&mut crowd, at(seconds));
    }
    (duo, crowd)
}

/// Says how often the listener was full, as `ps` shows it.
fn overflows(duo: &Duo, crowd: &Crowd) -> u64 {
    let listener = crowd.listener.expect("it listens");
    let mut infos = duo.hosts[B].id_infos(listener.0.checked_sub(1), |_| 1);
    let info = infos.next().expect("it is the first").backlog;
    let backlog = info.expect("a listener has one");
    assert_eq!(backlog.limit, BACKLOG as u32);
    backlog.overflows
}

/// The kernel's rule: what finds the backlog full is dropped, and comes again. Each attempt gets through or ends with
/// UNREACHABLE within the time that sixteen requests take; every drop is counted, and nothing else is.
#[test]
fn a_thousand_clients_get_through_a_backlog_of_eight_that_drops() {
    let (mut duo, mut crowd) = rush(Config::default(), 0.0, 1, Duration::from_secs(4));
    let dropped = overflows(&duo, &crowd);
    assert_eq!(dropped, duo.counter(B, "cma_requests_dropped_backlog"));
    let (sent, duplicates) = (
        duo.counter(A, "cm_req_sent"),
        duo.counter(B, "cm_req_duplicate"),
    );
    let received = duo.counter(B, "cm_req_received");
    let queued = duo.counter(B, "cma_requests_queued");
    println!(
        "a backlog that drops: {dropped} of {sent} requests dropped, {:?}",
        crowd.outcomes
    );
    assert_eq!((sent, received), (received, dropped + duplicates + queued));
    assert!(dropped > 0 && crowd.requests >= THOUSAND as u64);
    let given_up = crowd.outcome(kind::UNREACHABLE, -110);
    let attempts: u64 = crowd
        .clients
        .iter()
        .map(|client| u64::from(client.attempts))
        .sum();
    assert_eq!(attempts, THOUSAND as u64 + given_up, "{:?}", crowd.outcomes);
    let longest = crowd.clients.iter().map(|client| client.longest).max();
    assert!(longest <= Some(GIVEN_UP), "{longest:?}");
    crowd.go_home(&mut duo);
}

/// Waits that grow from a short one and differ by chance (public faults 10b and 54): nobody is given up, since those who
/// were refused together do not come back together.
#[test]
fn requests_that_come_back_one_by_one_all_get_through_a_backlog_of_eight() {
    let mut config = Config::default();
    config.cm.first_wait = Some(Duration::from_millis(100));
    config.cm.retry_spread = 50;
    let (mut duo, mut crowd) = rush(config, 0.0, 2, Duration::from_secs(4));
    println!(
        "a backlog that drops, and waits that differ: {:?}",
        crowd.outcomes
    );
    assert!(overflows(&duo, &crowd) > 0);
    assert_eq!(crowd.outcomes, BTreeMap::new());
    crowd.go_home(&mut duo);
}

/// The other rule: what finds the backlog full is answered with REJ 3 (no resources), and each such answer is counted.
#[test]
fn a_thousand_clients_get_through_a_backlog_of_eight_that_rejects() {
    let config = Config {
        backlog_overflow: BacklogOverflow::RejectNoResources,
        ..Config::default()
    };
    let (mut duo, mut crowd) = rush(config, 0.0, 3, Duration::from_secs(4));
    let rejected = overflows(&duo, &crowd);
    println!(
        "a backlog that rejects: {rejected} rejected, {:?}",
        crowd.outcomes
    );
    assert_eq!(rejected, duo.counter(B, "cma_requests_rejected_backlog"));
    assert_eq!(
        rejected,
        crowd.outcome(kind::REJECTED, reason::NO_RESOURCES)
    );
    assert!(
        rejected > 0 && crowd.outcomes.len() == 1,
        "{:?}",
        crowd.outcomes
    );
    crowd.go_home(&mut duo);
}

/// The same over a network that loses: everybody gets through in the end, with either rule.
#[test]
fn a_thousand_clients_get_through_a_backlog_of_eight_over_a_bad_network() {
    for (seed, rule) in [
        (4, BacklogOverflow::Drop),
        (5, BacklogOverflow::RejectNoResources),
    ] {
        let config = Config {
            backlog_overflow: rule,
            ..Config::default()
        };
        let (mut duo, mut crowd) = rush(config, 0.05, seed, Duration::from_secs(4));
        assert!(overflows(&duo, &crowd) > 0);
        let longest = crowd.clients.iter().map(|client| client.longest).max();
        println!(
            "{rule:?} over a bad network: longest {longest:?}, {:?}",
            crowd.outcomes
        );
        crowd.go_home(&mut duo);
    }
}
