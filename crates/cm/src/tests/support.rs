//! A pair of communication managers on one virtual clock.

use std::collections::VecDeque;
use std::time::Duration;

use oarlock_sim::{Clock, Ladder, Network, NetworkConfig};
use oarlock_wire::pretty::AnyMad;
use oarlock_wire::{
    AddressVector, CmMessage, Gid, Guid, Psn, Qpn, ServiceId, Time, TransactionId, earliest,
};

use crate::{
    AcceptParams, Cm, Config, ConnId, ConnectParams, Event, ListenerId, Seed, StateName, Transmit,
};

/// The active side of most tests.
pub(super) const A: usize = 0;
/// The passive side of most tests.
pub(super) const B: usize = 1;

pub(super) const SERVICE: ServiceId = ServiceId(0x0106_1D2F);
pub(super) const QPN: [Qpn; 2] = [Qpn::truncate(0x11), Qpn::truncate(0x12)];
pub(super) const PSN: [Psn; 2] = [Psn::truncate(0x03E8), Psn::truncate(0x07D0)];
pub(super) const GUID: [Guid; 2] = [Guid(0xA), Guid(0xB)];

pub(super) fn gid(side: usize) -> Gid {
    Gid::from_ip([10, 0, 0, side as u8 + 1].into())
}

/// The path from `side` to the other side.
pub(super) fn av(side: usize) -> AddressVector {
    AddressVector::new(gid(side), gid(1 - side))
}

pub(super) fn config(side: usize) -> Config {
    Config {
        ca_guid: GUID[side],
        ..Config::default()
    }
}

pub(super) fn connect_params() -> ConnectParams {
    ConnectParams {
        responder_resources: 4,
        initiator_depth: 3,
        ..ConnectParams::new(av(A), SERVICE, QPN[A], PSN[A])
    }
}

pub(super) fn accept_params() -> AcceptParams {
    AcceptParams {
        responder_resources: 3,
        initiator_depth: 2,
        ..AcceptParams::new(QPN[B], PSN[B])
    }
}

/// Two managers, the network between them, one clock, and the ladder of it all.
pub(super) struct Pair {
    pub(super) clock: Clock,
    pub(super) cms: [Cm; 2],
    pub(super) network: Network<Transmit>,
    pub(super) ladder: Ladder,
    pub(super) events: [VecDeque<Event>; 2],
    /// The names of all events so far.
    pub(super) told: [Vec<&'static str>; 2],
    pub(super) listener: ListenerId,
    /// Every datagram that was sent, with its sender: material for duplicates.
    pub(super) sent: Vec<(usize, Transmit)>,
}

impl Pair {
    /// B listens; the network is perfect.
    pub(super) fn new() -> Self {
        Self::with([config(A), config(B)], NetworkConfig::default(), 1)
    }

    pub(super) fn with(configs: [Config; 2], network: NetworkConfig, seed: u64) -> Self {
        let seed_of = |side: u8| {
            let mut bytes = [side; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            Seed(bytes)
        };
        let [a, b] = configs;
        let mut cms = [Cm::new(a, seed_of(1)), Cm::new(b, seed_of(2))];
        let listener = cms[B].listen(SERVICE).expect("the first listener");
        Self {
            clock: Clock::new(),
            cms,
            network: Network::new(network, seed),
            ladder: Ladder::new(["A", "B"]),
            events: Default::default(),
            told: Default::default(),
            listener,
            sent: Vec::new(),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The drain of one side: everything it wants to send goes to the network, everything it tells is kept.
    pub(super) fn drain(&mut self, side: usize) {
        let now = self.now();
        while let Some(transmit) = self.cms[side].poll_transmit() {
            self.sent.push((side, transmit));
            self.ladder
                .record(now, side, 1 - side, AnyMad(&transmit.mad));
            self.network.send(now, side, 1 - side, transmit);
        }
        while let Some(event) = self.cms[side].poll_event() {
            self.told[side].push(event.name());
            self.events[side].push_back(event);
        }
    }

    /// Delivers until nothing is in flight; timers that come due on the way fire.
    pub(super) fn drive(&mut self) {
        for _ in 0..10_000 {
            self.drain(A);
            self.drain(B);
            let Some(next) = self.network.next_delivery() else {
                return;
            };
            self.advance_to(next);
        }
        panic!("the exchange does not end:\n{}", self.ladder);
    }

    /// Delivers and fires timers until both sides are idle for good, or `limit` has passed.
    pub(super) fn drive_for(&mut self, limit: Duration) {
        let end = self.now() + limit;
        for _ in 0..1_000_000 {
            self.drain(A);
            self.drain(B);
            let timers = earliest(self.cms[A].poll_timeout(), self.cms[B].poll_timeout());
            match earliest(self.network.next_delivery(), timers) {
                Some(next) if next <= end => self.advance_to(next),
                _ => {
                    self.clock.advance_to(end);
                    return;
                }
            }
        }
        panic!("the exchange does not end:\n{}", self.ladder);
    }

    /// Moves the clock to `at` and lets happen what is due; each input is drained by itself.
    pub(super) fn advance_to(&mut self, at: Time) {
        let now = self.clock.advance_to(at);
        for side in [A, B] {
            if self.cms[side].poll_timeout().is_some_and(|due| due <= now) {
                self.cms[side].handle_timeout(now);
                self.drain(side);
            }
        }
        while let Some(delivery) = self.network.deliver(now) {
            self.inject(delivery.to, &delivery.datagram);
        }
    }

    /// Moves the clock to `at` and gives one side one input that is due: its time, or one datagram. The drain is the
    /// caller's. Says whether there was an input.
    pub(super) fn one_input(&mut self, at: Time) -> bool {
        let now = self.clock.advance_to(at);
        for cm in &mut self.cms {
            if cm.poll_timeout().is_some_and(|due| due <= now) {
                cm.handle_timeout(now);
                return true;
            }
        }
        let Some(delivery) = self.network.deliver(now) else {
            return false;
        };
        let transmit = delivery.datagram;
        self.cms[delivery.to].handle_mad(now, &transmit.av.reversed(), &transmit.mad);
        true
    }

    /// Moves the clock to the next timer of `side` and fires it, without any delivery.
    pub(super) fn fire_timer(&mut self, side: usize) {
        let due = self.cms[side].poll_timeout().expect("a timer is armed");
        let now = self.clock.advance_to(due);
        self.cms[side].handle_timeout(now);
    }

    /// Hands `side` a datagram that the other side sent.
    pub(super) fn inject(&mut self, side: usize, transmit: &Transmit) {
        let now = self.now();
        self.cms[side].handle_mad(now, &transmit.av.reversed(), &transmit.mad);
        self.drain(side);
    }

    /// Hands `side` a message that the other side might have sent. The drain is left to the caller.
    pub(super) fn inject_message(&mut self, side: usize, message: impl Into<CmMessage>) {
        self.inject_from(side, &av(side), message);
    }

    /// As `inject_message`, for a message that came over another path.
    pub(super) fn inject_from(
        &mut self,
        side: usize,
        path: &AddressVector,
        message: impl Into<CmMessage>,
    ) {
        self.inject_as(side, path, TransactionId(0x7777), message);
    }

    /// As `inject_from`, for a message of a certain transaction.
    pub(super) fn inject_as(
        &mut self,
        side: usize,
        path: &AddressVector,
        transaction_id: TransactionId,
        message: impl Into<CmMessage>,
    ) {
        let mut mad = [0; 256];
        message.into().emit(transaction_id, &mut mad);
        let now = self.now();
        self.cms[side].handle_mad(now, path, &mad);
    }

    /// The next event of a side.
    pub(super) fn event(&mut self, side: usize) -> Event {
        self.events[side]
            .pop_front()
            .unwrap_or_else(|| panic!("no event:\n{}", self.ladder))
    }

    pub(super) fn event_names(&self, side: usize) -> Vec<&'static str> {
        self.events[side].iter().map(Event::name).collect()
    }

    pub(super) fn state(&self, side: usize, id: ConnId) -> StateName {
        self.cms[side].state(id).expect("the connection exists")
    }

    /// The messages that were sent since, by sender.
    pub(super) fn messages_since(&self, mark: usize) -> Vec<(usize, &'static str)> {
        self.sent[mark..]
            .iter()
            .map(|(side, transmit)| (*side, parse(transmit).name()))
            .collect()
    }

    /// A sends a REQ and B has it; the network is empty.
    pub(super) fn request(&mut self) -> (ConnId, ConnId) {
        self.request_with(connect_params())
    }

    pub(super) fn request_with(&mut self, params: ConnectParams) -> (ConnId, ConnId) {
        let now = self.now();
        let active = self.cms[A]
            .connect(now, params)
            .expect("correct parameters");
        self.drive();
        let Event::ReqReceived { id: passive, .. } = self.event(B) else {
            panic!("no request:\n{}", self.ladder)
        };
        (active, passive)
    }

    /// A side accepts, and the REP is on its way, or has arrived.
    pub(super) fn accept(&mut self, side: usize, id: ConnId) {
        let now = self.now();
        self.cms[side]
            .accept(now, id, accept_params())
            .expect("a request waits");
        self.drive();
    }

    /// A side sends its RTU, which arrives.
    pub(super) fn complete(&mut self, side: usize, id: ConnId) {
        let now = self.now();
        self.cms[side]
            .establish(now, id, &[])
            .expect("a reply waits");
        self.drive();
    }

    /// A side sends a DREQ, which arrives.
    pub(super) fn disconnect(&mut self, side: usize, id: ConnId) {
        let now = self.now();
        self.cms[side].disconnect(now, id, &[]).expect("connected");
        self.drive();
    }

    /// A side sends a DREP, which arrives.
    pub(super) fn reply_disconnect(&mut self, side: usize, id: ConnId) {
        let now = self.now();
        self.cms[side]
            .reply_disconnect(now, id, &[])
            .expect("the peer disconnects");
        self.drive();
    }

    /// As `request`, and B has accepted, and A has the REP.
    pub(super) fn reply(&mut self) -> (ConnId, ConnId) {
        let (active, passive) = self.request();
        self.accept(B, passive);
        assert!(matches!(self.event(A), Event::RepReceived { .. }));
        (active, passive)
    }

    /// Both sides are connected.
    pub(super) fn establish(&mut self) -> (ConnId, ConnId) {
        let (active, passive) = self.reply();
        self.complete(A, active);
        assert!(matches!(self.event(B), Event::RtuReceived { .. }));
        (active, passive)
    }
}

pub(super) fn parse(transmit: &Transmit) -> CmMessage {
    CmMessage::parse(&transmit.mad)
        .expect("we send correct messages")
        .1
}

/// The messages in `sent` with this name.
pub(super) fn named(sent: &[(usize, Transmit)], name: &str) -> Vec<(usize, Transmit)> {
    sent.iter()
        .filter(|(_, transmit)| parse(transmit).name() == name)
        .copied()
        .collect()
}

/// Everything a side has ready to send.
pub(super) fn transmits(cm: &mut Cm) -> Vec<CmMessage> {
    std::iter::from_fn(|| cm.poll_transmit())
        .map(|transmit| parse(&transmit))
        .collect()
}
