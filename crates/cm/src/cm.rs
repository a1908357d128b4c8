//! `Cm`: the connections, the listeners, and where each input goes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use oarlock_wire::cm::{Ari, CmMessage, PrivateData};
use oarlock_wire::mad::MAD_LEN;
use oarlock_wire::units::{
    AddressVector, AprStatus, CommId, Gid, IbTimeout, Psn, Qpn, RejReason, ServiceId, TransactionId,
};
use oarlock_wire::{Time, earliest};

use crate::conn::{
    Base, Conn, Cx, Outcome, Role, State, active, cm_wait, lap, passive, sidr, teardown,
};
use crate::index::{Index, Slot};
use crate::output::Output;
use crate::random::Random;
use crate::timers::Timers;
use crate::{
    AcceptParams, AlternatePathParams, Config, ConnectParams, Counters, DropReason, Error, Event,
    LapState, MessageName, Seed, SidrParams, SidrReplyParams, StateName, Transmit,
};

mod dispatch;
mod held;
mod resolve;

/// A connection or a resolution of a [`Cm`]. Dead after [`Cm::destroy`]; never used for another connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnId {
    slot: Slot,
    generation: u32,
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}.{}", self.slot, self.generation)
    }
}

/// A listener of a [`Cm`]; never used for another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ListenerId(u64);

/// The communication manager of one host; see the [crate documentation](crate) for the contract.
pub struct Cm {
    config: Config,
    random: Random,
    conns: Vec<Entry>,
    free: Vec<Slot>,
    live: usize,
    half_open: usize,
    listeners: BTreeMap<ServiceId, ListenerId>,
    service_of: BTreeMap<ListenerId, ServiceId>,
    next_listener: u64,
    /// GIDs that a REQ's primary path may name besides the one that the REQ arrived at.
    local_gids: BTreeSet<Gid>,
    index: Index,
    timers: Timers,
    /// Requests that wait for a listener.
    waiting: held::Waiting,
    /// The first half of our transaction ids.
    tid_prefix: u32,
    #[cfg(test)]
    forced_comm_id: Option<CommId>,
    out: Output,
}

/// A place in the connection table. The generation grows when the place is used again.
struct Entry {
    generation: u32,
    /// Apart, so that an empty place takes no room: the table never gets shorter.
    conn: Option<Box<Conn>>,
}

impl Cm {
    /// A communication manager without connections. All its randomness comes from `seed`.
    #[must_use]
    pub fn new(config: Config, seed: Seed) -> Self {
        let mut random = Random::new(seed);
        Self {
            index: Index::new(&mut random),
            tid_prefix: random.wire_u32(),
            #[cfg(test)]
            forced_comm_id: None,
            config,
            random,
            conns: Vec::new(),
            free: Vec::new(),
            live: 0,
            half_open: 0,
            listeners: BTreeMap::new(),
            service_of: BTreeMap::new(),
            next_listener: 0,
            local_gids: BTreeSet::new(),
            timers: Timers::default(),
            waiting: held::Waiting::default(),
            out: Output::default(),
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Names the GIDs of this host. A REQ whose primary path leads to another GID than one of these, or the one it arrived
    /// at, is rejected (invalid GID). Without this call only the GID that the REQ arrived at is accepted. The path's other
    /// end must be where the REQ came from.
    pub fn set_local_gids(&mut self, gids: impl IntoIterator<Item = Gid>) {
        self.local_gids = gids.into_iter().collect();
    }

    /// Gives up memory that was needed at a busier time.
    pub fn shrink_to_fit(&mut self) {
        self.index.shrink_to_fit();
        self.out.transmits.shrink_to_fit();
        self.out.events.shrink_to_fit();
    }

    /// A fresh random PSN, to start a queue pair at.
    pub fn random_psn(&mut self) -> Psn {
        Psn::truncate(self.random.wire_u32())
    }

    /// Accepts requests for `service_id`: they arrive as [`Event::ReqReceived`] and [`Event::SidrReqReceived`]. Requests that
    /// wait for this listener ([`expect_listener`](Self::expect_listener)) arrive with the next
    /// [`handle_timeout`](Self::handle_timeout), which is due at once then.
    ///
    /// # Errors
    /// `ServiceIdInUse`.
    pub fn listen(&mut self, service_id: ServiceId) -> Result<ListenerId, Error> {
        if self.listeners.contains_key(&service_id) {
            return Err(Error::ServiceIdInUse(service_id));
        }
        let listener = ListenerId(self.next_listener);
        self.next_listener += 1;
        self.listeners.insert(service_id, listener);
        self.service_of.insert(listener, service_id);
        self.waiting.listener_came(service_id);
        Ok(listener)
    }

    /// Ends a listener. Connections that it brought live on. Further requests are rejected, unless another listener is
    /// [expected](Self::expect_listener).
    pub fn stop_listening(&mut self, listener: ListenerId) {
        if let Some(service_id) = self.service_of.remove(&listener) {
            self.listeners.remove(&service_id);
        }
    }

    /// Sends a REQ. The result is [`Event::RepReceived`], [`Event::RejReceived`] or [`Event::ReqError`].
    ///
    /// The REQ is repeated every 2 packet life times + `response_timeout` unless [`Config::req_wait`] says otherwise. When
    /// the repetitions or the deadline are used up, a REJ (timeout) tells the peer.
    ///
    /// # Errors
    /// `PrivateDataTooLong` (92 bytes), `TooManyRetries` (15), `TooManyConnections`.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, REQ.
    #[doc(alias = "ib_send_cm_req")]
    pub fn connect(&mut self, now: Time, params: ConnectParams) -> Result<ConnId, Error> {
        let mut req = active::request(&params, CommId::default(), self.config.ca_guid)?;
        self.check_room()?;
        let wait = self.config.req_wait.unwrap_or_else(|| {
            2 * cm_wait(params.packet_life_time) + cm_wait(params.response_timeout)
        });
        let one_way = params.packet_life_time.get();
        let id = self.open(|id, local_comm_id, own_tid| Base {
            id,
            role: Role::Active,
            local_comm_id,
            local_qpn: params.local_qpn,
            is_xrc: req.is_xrc(),
            av: params.av,
            req_tid: own_tid,
            own_tid,
            response_wait: wait,
            max_cm_retries: params.max_cm_retries,
            packet_life_time: params.packet_life_time,
            // Until the REP tells the delay of the peer's CA.
            ack_timeout: IbTimeout::new(one_way + 1).unwrap_or(IbTimeout::MAX),
            alternate_offered: false,
            laps_sent: 0,
        });
        self.step(now, id.slot, |_, cx| {
            req.local_comm_id = cx.base.local_comm_id;
            (active::connect(req, &params, cx), ())
        });
        Ok(id)
    }

    /// Accepts a request: sends the REP, repeated until the RTU (or [`notify_established`](Self::notify_established)).
    /// The result is [`Event::RtuReceived`], [`Event::UserEstablished`], [`Event::RejReceived`], [`Event::DreqReceived`]
    /// or [`Event::RepError`].
    ///
    /// # Errors
    /// `WrongState` unless REQ_RCVD or MRA_REQ_SENT; `PrivateDataTooLong` (196 bytes); `UnknownId`.
    #[doc(alias = "ib_send_cm_rep")]
    pub fn accept(&mut self, now: Time, id: ConnId, params: AcceptParams) -> Result<(), Error> {
        let rep = passive::reply(&params)?;
        self.call(now, id, |state, cx| passive::accept(state, rep, cx))
    }

    /// Completes the active side: sends the RTU.
    ///
    /// # Errors
    /// `WrongState` unless REP_RCVD or MRA_REP_SENT; `PrivateDataTooLong` (224 bytes); `UnknownId`.
    #[doc(alias = "ib_send_cm_rtu")]
    pub fn establish(&mut self, now: Time, id: ConnId, private_data: &[u8]) -> Result<(), Error> {
        PrivateData::<224>::from_slice(private_data)?;
        self.call(now, id, |state, cx| {
            active::establish(state, private_data, cx)
        })
    }

    /// Completes the passive side before the RTU has come: the queue pair received data (COMM_EST).
    ///
    /// # Errors
    /// `WrongState` unless REP_SENT or MRA_REP_RCVD; `UnknownId`.
    #[doc(alias = "ib_cm_notify")]
    pub fn notify_established(&mut self, now: Time, id: ConnId) -> Result<(), Error> {
        self.call(now, id, passive::notify_established)
    }

    /// Rejects: a request that came, a REP that came, or an attempt of our own. The connection rests in IDLE (in TIMEWAIT
    /// if our REP was out).
    ///
    /// While our own REQ is out the peer knows our comm id and GUID alone, and finds its request only by a REJ (timeout) that
    /// names them. So that is what it gets then, with the private data; there is no way to tell it another reason.
    ///
    /// # Errors
    /// `WrongState` in ESTABLISHED and later; `AdditionalInfoTooLong` (72 bytes); `PrivateDataTooLong` (148 bytes);
    /// `UnknownId`.
    #[doc(alias = "ib_send_cm_rej")]
    pub fn reject(
        &mut self,
        now: Time,
        id: ConnId,
        reason: RejReason,
        additional_info: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        let rej = oarlock_wire::cm::Rej {
            reason,
            additional_info: Ari::from_slice(additional_info)?,
            private_data: PrivateData::from_slice(private_data)?,
            ..teardown::rej(reason, &[])
        };
        self.call(now, id, |state, cx| teardown::reject(state, rej, cx))
    }

    /// Prepares an MRA that asks the peer to wait `service_timeout`. It is sent when the peer repeats its REQ, REP or LAP, not
    /// before: a quick decision costs no extra message.
    ///
    /// # Errors
    /// `WrongState` unless REQ_RCVD, REP_RCVD or ESTABLISHED; there `WrongLapState` unless LAP_RCVD; `UnknownId`.
    #[doc(alias = "ib_send_cm_mra")]
    pub fn send_mra(
        &mut self,
        now: Time,
        id: ConnId,
        service_timeout: IbTimeout,
    ) -> Result<(), Error> {
        self.call(now, id, |state, cx| {
            passive::prepare_mra(state, service_timeout, cx)
        })
    }

    /// Disconnects: sends the DREQ, repeated until the DREP. The result is [`Event::DrepReceived`],
    /// [`Event::DreqReceived`] (both sides disconnected at once) or [`Event::DreqError`].
    ///
    /// # Errors
    /// `WrongState` unless ESTABLISHED (in DREQ_RCVD the peer was first: [`reply_disconnect`](Self::reply_disconnect));
    /// `PrivateDataTooLong` (220 bytes); `UnknownId`.
    #[doc(alias = "ib_send_cm_dreq")]
    pub fn disconnect(&mut self, now: Time, id: ConnId, private_data: &[u8]) -> Result<(), Error> {
        let private_data = PrivateData::from_slice(private_data)?;
        self.call(now, id, |state, cx| {
            teardown::disconnect(state, private_data, cx)
        })
    }

    /// Answers a DREQ: sends the DREP. [`Event::TimewaitExit`] follows.
    ///
    /// # Errors
    /// `WrongState` unless DREQ_RCVD; `PrivateDataTooLong` (224 bytes); `UnknownId`.
    #[doc(alias = "ib_send_cm_drep")]
    pub fn reply_disconnect(
        &mut self,
        now: Time,
        id: ConnId,
        private_data: &[u8],
    ) -> Result<(), Error> {
        PrivateData::<224>::from_slice(private_data)?;
        self.call(now, id, |state, cx| {
            teardown::reply_disconnect(state, private_data, cx)
        })
    }

    /// Asks the peer for the queue pair and Q_Key of a datagram service: sends a SIDR_REQ. The result is
    /// [`Event::SidrRepReceived`], which may be a refusal, or [`Event::SidrReqError`].
    ///
    /// The request is repeated every `response_timeout` unless [`Config::sidr_wait`] says otherwise.
    ///
    /// # Errors
    /// `PrivateDataTooLong` (216 bytes), `TooManyRetries` (15), `TooManyConnections`.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, SIDR_REQ.
    #[doc(alias = "ib_send_cm_sidr_req")]
    pub fn sidr_request(&mut self, now: Time, params: SidrParams) -> Result<ConnId, Error> {
        let mut req = sidr::request(&params, CommId::default())?;
        self.check_room()?;
        let wait = self
            .config
            .sidr_wait
            .unwrap_or_else(|| cm_wait(params.response_timeout));
        let id = self.open(|id, local_comm_id, own_tid| Base {
            max_cm_retries: params.max_cm_retries,
            ..Base::of_resolution(id, Role::Resolver, local_comm_id, params.av, own_tid, wait)
        });
        self.step(now, id.slot, |_, cx| {
            req.request_id = cx.base.local_comm_id;
            (sidr::ask(req, &params, cx), ())
        });
        Ok(id)
    }

    /// Answers a SIDR_REQ: sends the SIDR_REP, and again whenever the request comes again, until the resolution is
    /// destroyed.
    ///
    /// # Errors
    /// `WrongState` unless SIDR_REQ_RCVD; `AdditionalInfoTooLong` (72 bytes); `PrivateDataTooLong` (136 bytes); `UnknownId`.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, SIDR_REP.
    #[doc(alias = "ib_send_cm_sidr_rep")]
    pub fn sidr_reply(
        &mut self,
        now: Time,
        id: ConnId,
        params: SidrReplyParams,
    ) -> Result<(), Error> {
        let rep = sidr::reply(&params)?;
        self.call(now, id, |state, cx| sidr::answer(state, rep, cx))
    }

    /// Asks the peer of a live connection to load an alternate path: sends a LAP. The result is [`Event::AprReceived`],
    /// which may be a refusal, or [`Event::LapError`]. The connection lives on in any case.
    ///
    /// The LAP is repeated every 2 packet life times + `response_timeout` unless [`Config::lap_wait`] says otherwise, as often
    /// as the REQ of the connection. When both sides ask at once, the LAP of the passive side gives way (`LapError`).
    ///
    /// # Errors
    /// `WrongState` unless ESTABLISHED; there `WrongLapState` unless LAP_IDLE; `PrivateDataTooLong` (168 bytes);
    /// `UnknownId`.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, LAP.
    #[doc(alias = "ib_send_cm_lap")]
    pub fn load_alternate_path(
        &mut self,
        now: Time,
        id: ConnId,
        params: AlternatePathParams,
    ) -> Result<(), Error> {
        let private_data = PrivateData::from_slice(&params.private_data)?;
        self.call(now, id, |state, cx| {
            lap::load(state, &params, private_data, cx)
        })
    }

    /// Answers a LAP: sends the APR, and again if the same LAP comes again.
    ///
    /// # Errors
    /// `WrongState` unless ESTABLISHED; there `WrongLapState` unless LAP_RCVD or MRA_LAP_SENT; `AdditionalInfoTooLong`
    /// (72 bytes); `PrivateDataTooLong` (148 bytes); `UnknownId`.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 12, APR.
    #[doc(alias = "ib_send_cm_apr")]
    pub fn answer_alternate_path(
        &mut self,
        now: Time,
        id: ConnId,
        status: AprStatus,
        additional_info: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        let additional_info = Ari::from_slice(additional_info)?;
        let private_data = PrivateData::from_slice(private_data)?;
        self.call(now, id, |state, cx| {
            lap::answer(state, status, additional_info, private_data, cx)
        })
    }

    /// Forgets a request without a word, as when the backlog is full: the peer repeats its REQ or SIDR_REQ, which is a new
    /// request.
    ///
    /// # Errors
    /// `WrongState` unless REQ_RCVD, MRA_REQ_SENT or SIDR_REQ_RCVD; `UnknownId`.
    pub fn drop_request(&mut self, now: Time, id: ConnId) -> Result<(), Error> {
        self.call(now, id, |state, cx| {
            let request = match state {
                State::ReqRcvd { .. } | State::MraReqSent { .. } => MessageName::Req,
                State::SidrReqRcvd { .. } => MessageName::SidrReq,
                other => return crate::conn::wrong_state(other, "drop_request"),
            };
            cx.out.drop_message(request, DropReason::ByListener);
            (State::Idle { peer: None }, Ok(()))
        })?;
        self.remove(id.slot);
        Ok(())
    }

    /// Ends a connection in whatever state, and its id. The peer is told once: by a REJ (timeout) while our REQ is out, a
    /// REJ (consumer defined) while a decision is pending or our REP is out, a DREQ when connected, a DREP when it
    /// disconnects, a SIDR_REP (rejected) while its SIDR_REQ is not answered. There are no events for `id` afterwards. An id that is gone already is ignored.
    #[doc(alias = "ib_destroy_cm_id")]
    pub fn destroy(&mut self, now: Time, id: ConnId) {
        if self.conn(id).is_none() {
            return;
        }
        self.step(now, id.slot, |state, cx| {
            teardown::destroy(state, cx);
            (State::Idle { peer: None }, ())
        });
        self.remove(id.slot);
    }

    /// Takes in a datagram that arrived at QP1. `av.local` is the address it arrived at.
    pub fn handle_mad(&mut self, now: Time, av: &AddressVector, mad: &[u8; MAD_LEN]) {
        match CmMessage::parse(mad) {
            Ok((header, message)) => self.dispatch(now, av, header.transaction_id, message),
            Err(error) => self.out.counters.count_malformed(error.kind),
        }
    }

    /// Takes in the time: whatever was due by `now` happens. Its output is polled in the same drain.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(slot) = self.timers.due(now) {
            self.step(now, slot, |state, cx| match state.due(now) {
                Some(timer) => (teardown::on_timer(state, timer, cx), ()),
                None => (state, ()),
            });
        }
        while let Some(held) = self.waiting.take_due(now) {
            self.end_wait(now, held);
        }
    }

    /// The next datagram to send.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.transmits.pop_front()
    }

    /// The next thing to tell the caller.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.out.events.pop_front()?;
            // What happened to a connection that has been destroyed since is of no interest.
            if self.conn(event.id()).is_some() {
                return Some(event);
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called, if nothing else happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        earliest(self.timers.earliest(), self.waiting.earliest())
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.out.counters
    }

    /// How many connections and resolutions exist, in whatever state.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.live
    }

    /// How many passive connections exist that are not established yet, and requests for a resolution that are not answered.
    #[must_use]
    pub fn half_open(&self) -> usize {
        self.half_open
    }

    /// The state of a connection; `None` if it does not exist any more.
    #[must_use]
    pub fn state(&self, id: ConnId) -> Option<StateName> {
        self.conn(id).map(|conn| conn.state.name())
    }

    /// Where a connection stands with an alternate path; `None` if it does not exist any more.
    #[must_use]
    pub fn lap_state(&self, id: ConnId) -> Option<LapState> {
        self.conn(id).map(|conn| conn.state.lap_state())
    }

    /// Our comm id of a connection, or the request id of a resolution of ours: under it captures show them.
    #[must_use]
    pub fn comm_id(&self, id: ConnId) -> Option<CommId> {
        self.conn(id).map(|conn| conn.base.local_comm_id)
    }
}

/// The connection table.
impl Cm {
    fn conn(&self, id: ConnId) -> Option<&Conn> {
        let entry = self.conns.get(id.slot as usize)?;
        if entry.generation == id.generation {
            entry.conn.as_deref()
        } else {
            None
        }
    }

    fn check_room(&self) -> Result<(), Error> {
        let max = self.config.max_connections;
        if self.live < max {
            Ok(())
        } else {
            Err(Error::TooManyConnections { max })
        }
    }

    fn at(&self, slot: Slot) -> Option<&Conn> {
        self.conns.get(slot as usize)?.conn.as_deref()
    }

    /// Makes a connection, with a comm id that no live connection has.
    fn open(&mut self, base: impl FnOnce(ConnId, CommId, TransactionId) -> Base) -> ConnId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.conns.push(Entry {
                generation: 0,
                conn: None,
            });
            Slot::try_from(self.conns.len() - 1)
                .expect("fewer than 2^32 connections: `max_connections` is checked before")
        });
        let local_comm_id = self.fresh_comm_id();
        let own_tid = TransactionId(u64::from(self.tid_prefix) << 32 | u64::from(local_comm_id.0));
        let entry = &mut self.conns[slot as usize];
        let id = ConnId {
            slot,
            generation: entry.generation,
        };
        entry.conn = Some(Box::new(Conn::new(
            base(id, local_comm_id, own_tid),
            State::Idle { peer: None },
        )));
        self.index.insert_local_id(local_comm_id, slot);
        self.live += 1;
        id
    }

    /// A comm id that no live connection has, and not 0, which in messages means "none". It is random: who was told one
    /// comm id, or many, cannot name the connections of others.
    fn fresh_comm_id(&mut self) -> CommId {
        #[cfg(test)]
        if let Some(id) = self.forced_comm_id.take() {
            return id;
        }
        loop {
            let id = CommId(self.random.wire_u32());
            if id.0 != 0 && self.index.local_id(id).is_none() {
                return id;
            }
        }
    }

    /// Runs a call on a connection.
    fn call(
        &mut self,
        now: Time,
        id: ConnId,
        f: impl FnOnce(State, &mut Cx<'_>) -> Outcome,
    ) -> Result<(), Error> {
        if self.conn(id).is_none() {
            return Err(Error::UnknownId(id));
        }
        self.step(now, id.slot, f)
            .unwrap_or(Err(Error::UnknownId(id)))
    }

    /// Every change of a connection happens here: takes its state, lets `f` give the next one, and brings the index, the
    /// timers and the count of half-open connections in line with it.
    fn step<R>(
        &mut self,
        now: Time,
        slot: Slot,
        f: impl FnOnce(State, &mut Cx<'_>) -> (State, R),
    ) -> Option<R> {
        let conn = self.conns.get_mut(slot as usize)?.conn.as_deref_mut()?;
        let was_half_open = conn.state.is_half_open();
        let state = std::mem::replace(&mut conn.state, State::Idle { peer: None });
        let mut cx = Cx {
            now,
            config: &self.config,
            base: &mut conn.base,
            random: &mut self.random,
            out: &mut self.out,
        };
        let (next, result) = f(state, &mut cx);
        conn.state = next;

        let peer = conn.state.indexed_peer();
        if peer != conn.indexed {
            let address = conn.base.av.peer();
            if let Some(old) = conn.indexed.take() {
                self.index.remove_peer(&old, address);
            }
            if let Some(new) = &peer {
                self.index.insert_peer(new, address, slot);
            }
            conn.indexed = peer;
        }
        let request = conn.state.sidr_request().map(|request| request.request_id);
        if request != conn.indexed_request {
            let address = conn.base.av.peer();
            if let Some(old) = conn.indexed_request.take() {
                self.index.remove_sidr_request(old, address, slot);
            }
            if let Some(new) = request {
                self.index.insert_sidr_request(new, address, slot);
            }
            conn.indexed_request = request;
        }
        let deadline = conn.state.deadline();
        self.timers.rearm(slot, conn.armed, deadline);
        conn.armed = deadline;
        match (was_half_open, conn.state.is_half_open()) {
            (false, true) => self.half_open += 1,
            (true, false) => self.half_open -= 1,
            _ => {}
        }
        Some(result)
    }

    /// Makes `id` the comm id of the next connection.
    #[cfg(test)]
    pub(crate) fn set_next_comm_id(&mut self, id: CommId) {
        self.forced_comm_id = Some(id);
    }

    /// Entries of the index, armed timers: for tests of leaks.
    #[cfg(test)]
    pub(crate) fn footprint(&self) -> ([usize; 4], usize) {
        (self.index.sizes(), self.timers.len())
    }

    /// Frees the place and the comm id of a connection that a step has brought to IDLE.
    fn remove(&mut self, slot: Slot) {
        let entry = &mut self.conns[slot as usize];
        let Some(conn) = entry.conn.take() else {
            return;
        };
        debug_assert!(
            conn.indexed.is_none() && conn.indexed_request.is_none() && conn.armed.is_none(),
            "in IDLE nothing is indexed and no timer runs"
        );
        entry.generation = entry.generation.wrapping_add(1);
        self.index.remove_local_id(conn.base.local_comm_id);
        self.free.push(slot);
        self.live -= 1;
    }
}

/// A queue pair that is not known yet: a passive connection learns its own when the caller accepts.
const UNKNOWN_QPN: Qpn = Qpn::QP0;

/// How long a passive connection waits for an answer, as the peer's REQ says.
fn claimed_wait(config: &Config, timeout: IbTimeout) -> Duration {
    let wait = cm_wait(timeout);
    config
        .longest_wait
        .map_or(wait, |longest| wait.min(longest))
}

impl fmt::Debug for Cm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cm")
            .field("connections", &self.live)
            .field("half_open", &self.half_open)
            .field("listeners", &self.listeners.len())
            .finish_non_exhaustive()
    }
}
