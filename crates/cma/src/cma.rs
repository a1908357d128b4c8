//! `Cma`: identifiers and channels, from creation to destruction, and everything that passes through to the IB CM.

use crate::channel::Channels;
use crate::device::Devices;
use crate::handle::Table;
use crate::identifier::{Identifier, Standing};
use crate::listeners::Listeners;
use crate::lookup::Lookups;
use crate::multicast::Multicasts;
use crate::ports::Ports;
use crate::{
    Backlog, ChannelId, Config, Counter, Counters, Device, DeviceRef, Error, Event, EventKind, Id,
    IdOption, Lookup, QpType, Query, State,
};
use oarlock_cm::{Cm, ConnId, Seed, Transmit};
use oarlock_wire::{
    AddressVector, IbTimeout, MAD_LEN, PortSpace, RnrTimer, ServiceId, Time, earliest,
};
use std::collections::{BTreeMap, BTreeSet};

/// The RDMA connection manager of one host: identifiers, event channels, port spaces.
///
/// See the [crate documentation](crate) for the contract between this and its driver.
#[derive(Debug)]
pub struct Cma {
    pub(crate) config: Config,
    pub(crate) cm: Cm,
    pub(crate) devices: Devices,
    pub(crate) channels: Channels,
    pub(crate) ids: Table<Identifier>,
    pub(crate) by_connection: BTreeMap<ConnId, Id>,
    pub(crate) listeners: Listeners,
    pub(crate) ports: Ports,
    pub(crate) lookups: Lookups,
    /// Lookups by the moment at which they are given up.
    pub(crate) lookup_deadlines: BTreeSet<(Time, Id)>,
    pub(crate) multicasts: Multicasts,
    pub(crate) counters: Counters,
}

impl Cma {
    /// A connection manager without devices. All randomness comes from `seed`.
    #[must_use]
    pub fn new(config: Config, seed: Seed) -> Self {
        let mut port_seed = [0; 8];
        port_seed.copy_from_slice(&seed.0[..8]);
        Self {
            cm: Cm::new(config.cm.clone(), seed),
            config,
            devices: Devices::default(),
            channels: Channels::new(),
            ids: Table::new(),
            by_connection: BTreeMap::new(),
            listeners: Listeners::default(),
            ports: Ports::new(u64::from_le_bytes(port_seed)),
            lookups: Lookups::default(),
            lookup_deadlines: BTreeSet::new(),
            multicasts: Multicasts::new(),
            counters: Counters::new(),
        }
    }

    // ---- the end of things ----

    /// Takes an identifier out of everything that leads to further events: lookups, listening, its connection.
    pub(crate) fn cut_off(&mut self, now: Time, id: Id) {
        let Some(ident) = self.ids.get_mut(id.into()) else {
            return;
        };
        let (lookup, listening, connection) = (
            ident.lookup.take(),
            ident.listening.take(),
            ident.connection.take(),
        );
        if let Some(lookup) = lookup {
            self.lookups.take(lookup.token);
            self.lookup_deadlines.remove(&(lookup.deadline, id));
        }
        if listening.is_some() {
            self.stop_listening(id);
        }
        if let Some(connection) = connection {
            self.by_connection.remove(&connection.cm);
            self.cm.destroy(now, connection.cm);
        }
        self.drop_memberships(id);
    }

    /// Gives up memory that was needed at a busier time.
    pub fn shrink_to_fit(&mut self) {
        self.cm.shrink_to_fit();
    }

    // ---- channels ----

    /// Creates an event channel.
    ///
    /// # Errors
    /// `TooManyChannels`.
    pub fn create_channel(&mut self) -> Result<ChannelId, Error> {
        let max = self.config.max_channels;
        if self.channels.len() >= max {
            return Err(Error::TooManyChannels { max });
        }
        Ok(self.channels.create(self.config.privileged_ports))
    }

    /// Destroys a channel and every identifier on it, as closing the kernel's file does.
    ///
    /// # Errors
    /// `UnknownChannel`.
    pub fn destroy_channel(&mut self, now: Time, channel: ChannelId) -> Result<(), Error> {
        let ids: Vec<Id> = self
            .channels
            .get(channel)
            .ok_or(Error::UnknownChannel)?
            .ids
            .iter()
            .copied()
            .collect();
        for id in ids {
            // A child whose request still waits is destroyed with its listener, which is on this channel too.
            if self.exposed(id).is_ok() {
                self.destroy(now, id);
            }
        }
        self.channels.remove(channel);
        self.pump(now);
        Ok(())
    }

    /// Says whether identifiers on a channel may bind ports below 1024; initially it is as configured.
    ///
    /// # Errors
    /// `UnknownChannel`.
    pub fn allow_privileged_ports(&mut self, channel: ChannelId, allow: bool) -> Result<(), Error> {
        self.channels
            .get_mut(channel)
            .ok_or(Error::UnknownChannel)?
            .privileged = allow;
        Ok(())
    }

    /// Says whose a channel is, as a number of the caller's; initially it is 0. It tells which listeners cannot come back
    /// once the owner [has ended](Self::end_owner), and nothing else.
    ///
    /// # Errors
    /// `UnknownChannel`.
    pub fn set_owner(&mut self, channel: ChannelId, owner: u64) -> Result<(), Error> {
        self.channels
            .get_mut(channel)
            .ok_or(Error::UnknownChannel)?
            .owner = owner;
        Ok(())
    }

    /// Says that an owner of channels has ended: requests that wait for a listener of its to come back are rejected at the
    /// next [`handle_timeout`](Self::handle_timeout), which is due at once. Its channels are the caller's to destroy.
    pub fn end_owner(&mut self, owner: u64) {
        self.cm.expect_no_more(owner);
    }

    // ---- identifiers ----

    /// Creates an identifier on a channel. Port space TCP is for RC queue pairs, UDP and IPOIB are for UD ones, whatever
    /// `qp_type` says; port space IB takes `qp_type`.
    ///
    /// Each port space has ports of its own.
    ///
    /// # Errors
    /// `UnknownChannel`, `UnknownPortSpace`, `QpTypeNotImplemented`, `TooManyIds`.
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(
        &mut self,
        channel: ChannelId,
        port_space: PortSpace,
        qp_type: QpType,
        context: u64,
    ) -> Result<Id, Error> {
        let qp_type = match (port_space, qp_type) {
            (PortSpace::TCP, _) => QpType::RC,
            (PortSpace::UDP | PortSpace::IPOIB, _) => QpType::UD,
            (PortSpace::IB, QpType::RC | QpType::UC | QpType::UD) => qp_type,
            (PortSpace::IB, QpType::XRC_SEND | QpType::XRC_RECV) => qp_type,
            (PortSpace::IB, other) => return Err(Error::QpTypeNotImplemented(other)),
            (other, _) => return Err(Error::UnknownPortSpace(other)),
        };
        if self.channels.get(channel).is_none() {
            return Err(Error::UnknownChannel);
        }
        if self.ids.len() >= self.config.max_ids {
            return Err(Error::TooManyIds {
                max: self.config.max_ids,
            });
        }
        let starting_psn = self.cm.random_psn();
        Ok(self.add(Identifier::new(
            channel,
            port_space,
            qp_type,
            context,
            starting_psn,
        )))
    }

    pub(crate) fn add(&mut self, ident: Identifier) -> Id {
        let channel = ident.channel;
        let id = self.ids.insert(ident).into();
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.ids.insert(id);
        }
        id
    }

    /// Destroys an identifier in any state, and gives the number of events that were handed out over its life.
    ///
    /// Its queued events are dropped; children whose connection requests are among them are destroyed too, and their
    /// peers get REJ 28. What the peer of the identifier itself gets depends on how far the connection is: REJ 4 for a
    /// REQ without an answer, REJ 28 before establishment, one DREQ after it, DREP where it waits for that.
    ///
    /// The port of a listener may be listened on again soon: for 10 s, requests for it wait up to half a second for that
    /// before they are rejected (REJ 8, SIDR status 1).
    ///
    /// # Errors
    /// `UnknownId`.
    pub fn destroy_id(&mut self, now: Time, id: Id) -> Result<u32, Error> {
        let ident = self.exposed(id)?;
        let listened = ident.listening.and(self.service_of(id));
        let owner = self
            .channels
            .get(ident.channel)
            .map(|channel| channel.owner);
        let reported = self.destroy(now, id);
        if let (Some(service_id), Some(owner)) = (listened, owner) {
            self.cm.expect_listener(now, service_id, owner);
        }
        self.pump(now);
        Ok(reported)
    }

    fn destroy(&mut self, now: Time, id: Id) -> u32 {
        self.cut_off(now, id);
        let Some(ident) = self.ids.remove(id.into()) else {
            return 0;
        };
        for place in &ident.queued {
            let Some(event) = self.channels.take(ident.channel, *place) else {
                continue;
            };
            self.counters.count(Counter::EventsDestroyed);
            if event.kind == EventKind::CONNECT_REQUEST {
                self.destroy(now, event.id);
            }
        }
        for mc in &ident.multicasts {
            self.end_join(*mc);
        }
        if let Some(port) = ident.bound_port {
            self.ports.release(id, ident.port_space, port);
        }
        if let Some(channel) = self.channels.get_mut(ident.channel) {
            channel.ids.remove(&id);
        }
        ident.reported
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `UnknownId`; `OptionState` for `ReuseAddr` while listening (or cleared after binding) and for `AfOnly` after
    /// resolution began; `OptionQpType` for `AckTimeout` unless RC or XRC_SEND, and for `MinRnrTimer` unless RC
    /// or XRC_RECV; `OptionRange` for a value that its field
    /// cannot hold.
    pub fn set_option(&mut self, id: Id, option: IdOption) -> Result<(), Error> {
        let ident = self.exposed_mut(id)?;
        let state = ident.state;
        let refused = |option, wanted| {
            Err(Error::OptionState {
                option,
                state,
                wanted,
            })
        };
        let qp_type = ident.qp_type;
        let options = &mut ident.options;
        match option {
            IdOption::AckTimeout(_) if !matches!(qp_type, QpType::RC | QpType::XRC_SEND) => {
                return Err(Error::OptionQpType {
                    option: "ACK_TIMEOUT",
                    qp_type,
                });
            }
            IdOption::MinRnrTimer(_) if !matches!(qp_type, QpType::RC | QpType::XRC_RECV) => {
                return Err(Error::OptionQpType {
                    option: "MIN_RNR_TIMER",
                    qp_type,
                });
            }
            IdOption::TypeOfService(tos) => options.type_of_service = Some(tos),
            IdOption::ReuseAddr(true) if state == State::Listen => {
                return refused("REUSEADDR", "any but LISTEN");
            }
            IdOption::ReuseAddr(false) if state != State::Idle => {
                return refused("REUSEADDR (clear)", "IDLE");
            }
            IdOption::ReuseAddr(reuse) => options.reuse_addr = reuse,
            IdOption::AfOnly(af_only) => match state {
                State::Idle | State::AddrBound => {
                    options.af_only = af_only;
                    options.af_only_set = true;
                }
                _ => return refused("AFONLY", "IDLE or ADDR_BOUND"),
            },
            IdOption::AckTimeout(exponent) => {
                options.ack_timeout = Some(five_bits("ACK_TIMEOUT", exponent)?)
            }
            IdOption::MinRnrTimer(code) => {
                let timer = five_bits("MIN_RNR_TIMER", code)?;
                options.min_rnr_timer = Some(RnrTimer::truncate(timer.get()));
            }
            IdOption::CmResponseTimeout(exponent) => {
                options.cm_response_timeout = Some(five_bits("CM_RESPONSE_TIMEOUT", exponent)?)
            }
            IdOption::MaxCmRetries(given) if given > MAX_CM_RETRIES => {
                return Err(Error::OptionRange {
                    option: "MAX_CM_RETRIES",
                    given,
                    max: MAX_CM_RETRIES,
                });
            }
            IdOption::MaxCmRetries(retries) => options.max_cm_retries = Some(retries),
            IdOption::ConnectDeadline(deadline) => options.connect_deadline = Some(deadline),
        }
        Ok(())
    }

    /// The channel that an identifier reports on.
    ///
    /// # Errors
    /// `UnknownId`.
    pub fn channel_of(&self, id: Id) -> Result<ChannelId, Error> {
        self.exposed(id).map(|ident| ident.channel)
    }

    /// What is known about an identifier.
    ///
    /// # Errors
    /// `UnknownId`.
    pub fn query(&self, id: Id) -> Result<Query, Error> {
        let ident = self.exposed(id)?;
        let device = ident.device.and_then(|index| self.devices.get(index));
        let connection = ident.connection.as_ref();
        Ok(Query {
            channel: ident.channel,
            context: ident.context,
            port_space: ident.port_space,
            qp_type: ident.qp_type,
            state: ident.state,
            cm_state: connection.and_then(|connection| self.cm.state(connection.cm)),
            local: ident.local,
            remote: ident.remote,
            device: device.map(|device| DeviceRef {
                index: device.index,
                guid: device.guid,
                port_num: device.port_num,
            }),
            av: ident
                .path
                .map(|path| path.av)
                .or(ident.resolution.map(|resolution| resolution.av)),
            path: ident.path,
            alternate: ident.alternate,
            qkey: ident.qkey,
            multicasts: ident.multicasts.iter().copied().collect(),
            qpn: connection.and_then(|connection| connection.role.local_qpn()),
            remote_qpn: connection.and_then(|connection| connection.role.remote_qpn()),
            backlog: ident.listening.map(|listening| Backlog {
                size: listening.backlog,
                waiting: listening.waiting,
                overflows: listening.overflows,
            }),
            events_queued: ident.queued.len(),
            events_reported: ident.reported,
        })
    }

    /// Every identifier that the callers know.
    pub fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.ids
            .iter()
            .filter(|(_, ident)| is_exposed(ident))
            .map(|(key, _)| key.into())
    }

    /// Identifiers that exist, children of waiting connection requests included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether no identifier exists.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ports in use with the number of their owners, in order.
    pub fn ports(&self) -> impl Iterator<Item = (PortSpace, u16, usize)> + '_ {
        self.ports.iter()
    }

    /// The identifier, if the caller knows it.
    pub(crate) fn exposed(&self, id: Id) -> Result<&Identifier, Error> {
        self.ids
            .get(id.into())
            .filter(|ident| is_exposed(ident))
            .ok_or(Error::UnknownId)
    }

    pub(crate) fn exposed_mut(&mut self, id: Id) -> Result<&mut Identifier, Error> {
        self.ids
            .get_mut(id.into())
            .filter(|ident| is_exposed(ident))
            .ok_or(Error::UnknownId)
    }

    /// As [`exposed`](Self::exposed), for calls that do something: after DEVICE_REMOVAL none does.
    pub(crate) fn working(&self, call: &'static str, id: Id) -> Result<&Identifier, Error> {
        match self.exposed(id)? {
            ident if ident.state == State::DeviceRemoval => Err(Error::DeviceRemoved { call }),
            ident => Ok(ident),
        }
    }

    /// The device that an identifier is bound to.
    pub(crate) fn device_of(
        &self,
        call: &'static str,
        ident: &Identifier,
    ) -> Result<&Device, Error> {
        let device = ident.device.and_then(|index| self.devices.get(index));
        device.ok_or(Error::NoDevice {
            call,
            state: ident.state,
        })
    }

    // ---- events ----

    /// Takes the next event of a channel: GET_EVENT. It counts as reported, a multicast event on its join too, and a
    /// connection request gives its place in the backlog back.
    #[must_use]
    pub fn next_event(&mut self, channel: ChannelId) -> Option<Event> {
        let (place, event) = self.channels.pop(channel)?;
        self.counters.count(Counter::EventsReported);
        if let Some(owner) = self.ids.get_mut(event.owner().into()) {
            let front = owner.queued.pop_front();
            debug_assert_eq!(
                front,
                Some(place),
                "an identifier's events stand on its channel in order"
            );
            owner.reported += 1;
            if let Some(listening) = owner
                .listening
                .as_mut()
                .filter(|_| event.kind == EventKind::CONNECT_REQUEST)
            {
                listening.waiting -= 1;
            }
        }
        if let Some(join) = event.multicast.and_then(|mc| self.multicasts.get_mut(mc)) {
            join.queued = None;
            join.reported += 1;
        }
        if event.kind == EventKind::CONNECT_REQUEST
            && let Some(child) = self.ids.get_mut(event.id.into())
        {
            child.standing = Standing::Unaccepted;
        }
        Some(event)
    }

    /// The next channel with events that were queued since it was last given here, and how many they are. A driver
    /// wakes that many readers, or writes that many bytes.
    ///
    /// Events can disappear again before a reader takes them, with their identifier, or to another channel; so a reader
    /// that was woken may find nothing.
    #[must_use]
    pub fn poll_ready(&mut self) -> Option<(ChannelId, usize)> {
        self.channels.poll_ready()
    }

    /// Events that wait on a channel; 0 if there is no such channel.
    #[must_use]
    pub fn queued(&self, channel: ChannelId) -> usize {
        self.channels.queued(channel)
    }

    // ---- the outside world ----

    /// The next route lookup for the driver to answer with [`handle_lookup`](Self::handle_lookup).
    #[must_use]
    pub fn poll_lookup(&mut self) -> Option<Lookup> {
        self.lookups.poll()
    }

    /// A management datagram arrived on QP1.
    pub fn handle_mad(&mut self, now: Time, av: &AddressVector, mad: &[u8; MAD_LEN]) {
        self.cm.handle_mad(now, av, mad);
        self.pump(now);
    }

    /// Time has passed. Early, late and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        self.cm.handle_timeout(now);
        self.expire_lookups(now);
        self.pump(now);
    }

    /// The next management datagram to send from QP1.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.cm.poll_transmit()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        earliest(
            self.cm.poll_timeout(),
            self.lookup_deadlines.first().map(|(deadline, _)| *deadline),
        )
    }

    /// What happened, by number.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The IB CM's counters.
    #[must_use]
    pub fn cm_counters(&self) -> &oarlock_cm::Counters {
        self.cm.counters()
    }

    /// Connections that the IB CM holds, TIMEWAIT included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.cm.connections()
    }

    /// The service ID of an identifier that has an address.
    fn service_of(&self, id: Id) -> Option<ServiceId> {
        let ident = self.ids.get(id.into())?;
        let port = ident.local?.port();
        Some(ServiceId::for_port(ident.port_space, port))
    }

    fn stop_listening(&mut self, id: Id) {
        let Some(service_id) = self.service_of(id) else {
            return;
        };
        if let Some(last) = self.listeners.remove(service_id, id) {
            self.cm.stop_listening(last);
        }
    }
}

fn is_exposed(ident: &Identifier) -> bool {
    !matches!(ident.standing, Standing::Undelivered { .. })
}

fn five_bits(option: &'static str, given: u8) -> Result<IbTimeout, Error> {
    IbTimeout::new(given).ok_or(Error::OptionRange {
        option,
        given,
        max: IbTimeout::MAX.get(),
    })
}

const MAX_CM_RETRIES: u8 = 15;
