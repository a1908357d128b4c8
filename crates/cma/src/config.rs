//! Everything that can be configured, with the kernel's values as the defaults.

use oarlock_wire::{IbTimeout, RnrTimer};
use std::ops::RangeInclusive;
use std::time::Duration;

/// What becomes of a connection request when the listener's backlog is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BacklogOverflow {
    /// It is dropped, as the kernel does; the peer sends it again.
    Drop,
    /// It is answered with a REJ for reason 3 (no resources), or a SIDR_REP with status 3 (no queue pair).
    RejectNoResources,
}

/// What becomes of an alternate path that a peer offers (LAP).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AlternatePaths {
    /// It is refused: soft devices do not migrate queue pairs between paths.
    Refuse,
    /// It is accepted if it leads to a device of this host, and kept: [`Query::alternate`](crate::Query::alternate) shows it.
    Accept,
}

/// Which device serves a loopback destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LoopbackRule {
    /// The device of the loopback interface, if there is one with an address of that family; else as `FirstDevice`.
    ///
    /// Deviation: the kernel has no such device as a rule, and takes the first one.
    LoopbackDevice,
    /// The first device and the first entry of its GID table, as the kernel does.
    FirstDevice,
}

/// The configuration of a [`Cma`](crate::Cma).
#[derive(Clone, Debug)]
pub struct Config {
    /// The IB CM's own configuration.
    pub cm: oarlock_cm::Config,
    /// Identifiers that may exist at a time. A connection request beyond it is dropped and counted.
    pub max_ids: usize,
    /// Event channels that may exist at a time.
    pub max_channels: usize,
    /// Events that may wait on one channel before calls that lead to more of them are refused, and connection requests
    /// dropped. What happens to identifiers that exist is reported beyond it: an identifier has a few events at most.
    pub max_queued_events: usize,
    /// Memberships in multicast groups that may exist at a time.
    pub max_multicasts: usize,
    /// The largest backlog, and the one of a listener that asks for none.
    pub max_backlog: usize,
    /// What becomes of a connection request when the backlog is full.
    pub backlog_overflow: BacklogOverflow,
    /// What becomes of an alternate path that a peer offers.
    pub alternate_paths: AlternatePaths,
    /// The ports that are given to those who ask for none in particular.
    pub ephemeral_ports: RangeInclusive<u16>,
    /// Whether ports below 1024 may be bound. [`Cma::allow_privileged_ports`](crate::Cma::allow_privileged_ports)
    /// changes it for one channel.
    pub privileged_ports: bool,
    /// Whether an IPv6 address stands for IPv6 only, unless an identifier says otherwise (`net.ipv6.bindv6only`).
    pub bindv6only: bool,
    /// Which device serves a loopback destination.
    pub loopback: LoopbackRule,
    /// The type of service of identifiers that set none.
    pub type_of_service: u8,
    /// The packet life time of a path, unless an acknowledgement timeout is set.
    pub packet_life_time: IbTimeout,
    /// The response timeout that goes into requests.
    pub cm_response_timeout: IbTimeout,
    /// How often a message of the connection manager is sent again, 4 bits.
    pub max_cm_retries: u8,
    /// How long the answer to a connection request may take after a duplicate of it was answered with an MRA.
    pub mra_service_timeout: IbTimeout,
    /// How long `connect` may take altogether, unless an identifier says otherwise; `None` leaves it to the retries.
    pub connect_deadline: Option<Duration>,
    /// The RNR timer that queue pairs ask of their peers.
    ///
    /// Deviation: the kernel hands out 0, which means 655.36 ms, so that one early message stalls a connection; 12 is 0.64 ms.
    pub min_rnr_timer: RnrTimer,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cm: oarlock_cm::Config::default(),
            max_ids: 65_536,
            max_channels: 65_536,
            max_queued_events: 65_536,
            max_multicasts: 65_536,
            max_backlog: 1024,
            backlog_overflow: BacklogOverflow::Drop,
            alternate_paths: AlternatePaths::Refuse,
            ephemeral_ports: 32_768..=60_999,
            privileged_ports: false,
            bindv6only: false,
            loopback: LoopbackRule::LoopbackDevice,
            type_of_service: 0,
            packet_life_time: IbTimeout::truncate(16),
            cm_response_timeout: IbTimeout::truncate(20),
            max_cm_retries: 15,
            mra_service_timeout: IbTimeout::truncate(24),
            connect_deadline: None,
            min_rnr_timer: RnrTimer::US_640,
        }
    }
}
