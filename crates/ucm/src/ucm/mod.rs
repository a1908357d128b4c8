//! `Ucm`: files, identifier numbers, and everything that passes through to the identifiers.

mod commands;
mod event;
mod multicast;
mod numbers;
mod query;
mod setup;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use oarlock_cm::{Seed, Transmit};
use oarlock_cma::{
    ChannelId, Cma, Config, Device, Errno, Id, Lookup, LookupError, LookupToken, Membership,
    MembershipToken, Pretence, Route,
};
use oarlock_wire::{AddressVector, AlternatePath, MAD_LEN, Time};

use crate::Failure;
use crate::proto::{BacklogInfo, IdInfo, MAX_GROUPS, PortInfo};

use numbers::{Entry, Join, Numbers};

/// An open file of the rdma_cm device: one event channel. Never used again once closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileId({})", self.0)
    }
}

/// Whoever opened a file. Identifiers migrate between files of one owner only, as a process can only name its own
/// descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u32);

#[derive(Debug)]
struct File {
    owner: Owner,
    channel: ChannelId,
    /// The numbers of the identifiers on it.
    numbers: BTreeSet<u32>,
}

/// The rdma_ucm device of one host.
///
/// A file is opened, requests are written on it, and what they lead to is polled, in the manner of all sans-IO crates
/// here: after each input, [`poll_lookup`](Self::poll_lookup), [`poll_membership`](Self::poll_membership),
/// [`poll_transmit`](Self::poll_transmit), [`poll_wake`](Self::poll_wake) and [`poll_timeout`](Self::poll_timeout) until there is nothing left but the deadline.
#[derive(Debug)]
pub struct Ucm {
    cma: Cma,
    files: BTreeMap<FileId, File>,
    by_channel: BTreeMap<ChannelId, FileId>,
    next_file: u64,
    numbers: Numbers<Entry>,
    joins: Numbers<Join>,
    counters: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    requests: u64,
    requests_refused: u64,
    files_opened: u64,
}

impl Ucm {
    /// A device without files. All randomness comes from `seed`.
    #[must_use]
    pub fn new(config: Config, seed: Seed) -> Self {
        Self {
            cma: Cma::new(config, seed),
            files: BTreeMap::new(),
            by_channel: BTreeMap::new(),
            next_file: 1,
            numbers: Numbers::new(),
            joins: Numbers::new(),
            counters: Counters::default(),
        }
    }

    // ---- files ----

    /// Opens the device: a new event channel.
    ///
    /// # Errors
    /// `TooManyChannels`.
    pub fn open(&mut self, owner: Owner) -> Result<FileId, Failure> {
        let channel = self.cma.create_channel()?;
        self.cma.set_owner(channel, owner.0.into())?;
        let file = FileId(self.next_file);
        self.next_file += 1;
        self.files.insert(
            file,
            File {
                owner,
                channel,
                numbers: BTreeSet::new(),
            },
        );
        self.by_channel.insert(channel, file);
        self.counters.files_opened += 1;
        Ok(file)
    }

    /// Closes a file, which destroys every identifier on it. `false` if it was not open.
    pub fn close(&mut self, now: Time, file: FileId) -> bool {
        let Some(File {
            channel, numbers, ..
        }) = self.files.remove(&file)
        else {
            return false;
        };
        for number in numbers {
            self.forget(number);
        }
        self.by_channel.remove(&channel);
        // The channel existed as long as the file, so that there is no error to report.
        let _existed = self.cma.destroy_channel(now, channel).is_ok();
        true
    }

    /// Frees the number of an identifier, which is to be destroyed next, and those of its joins.
    fn forget(&mut self, number: u32) {
        let Some(entry) = self.numbers.remove(number) else {
            return;
        };
        let joins = self.cma.query(entry.id).map(|known| known.multicasts);
        for multicast in joins.unwrap_or_default() {
            if let Some(number) = self.joins.of(multicast) {
                self.joins.remove(number);
            }
        }
    }

    /// Closes every file of an owner, as the end of a process does.
    pub fn close_all(&mut self, now: Time, owner: Owner) {
        let files = self
            .files
            .iter()
            .filter(|(_, file)| file.owner == owner)
            .map(|(&file, _)| file);
        for file in files.collect::<Vec<_>>() {
            self.close(now, file);
        }
        self.cma.end_owner(owner.0.into());
    }

    /// Whoever opened a file, as long as it is open.
    #[must_use]
    pub fn owner(&self, file: FileId) -> Option<Owner> {
        self.files.get(&file).map(|file| file.owner)
    }

    /// Files that are open.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Whether ports below 1024 may be bound on a file: the caller has the privilege for it.
    ///
    /// # Errors
    /// `UnknownFile`.
    pub fn allow_privileged_ports(&mut self, file: FileId, allow: bool) -> Result<(), Failure> {
        let channel = self.files.get(&file).ok_or(Failure::UnknownFile)?.channel;
        self.cma.allow_privileged_ports(channel, allow)?;
        Ok(())
    }

    /// Events that wait on a file; 0 if it is not open.
    #[must_use]
    pub fn queued(&self, file: FileId) -> usize {
        self.files
            .get(&file)
            .map_or(0, |file| self.cma.queued(file.channel))
    }

    /// The next file on which events were queued, or moved to, since it was told of last, and how many.
    pub fn poll_wake(&mut self) -> Option<(FileId, usize)> {
        while let Some((channel, events)) = self.cma.poll_ready() {
            if let Some(&file) = self.by_channel.get(&channel) {
                return Some((file, events));
            }
        }
        None
    }

    /// Gives up memory that was needed at a busier time.
    pub fn shrink_to_fit(&mut self) {
        self.cma.shrink_to_fit();
    }

    // ---- the outside world ----

    /// The identifiers behind the numbers, to look at.
    #[must_use]
    pub const fn cma(&self) -> &Cma {
        &self.cma
    }

    /// Takes the new list of devices, in the order in which they are preferred.
    pub fn set_devices(&mut self, now: Time, devices: Vec<Device>) {
        self.cma.set_devices(now, devices);
    }

    /// Lets something happen to a device, as far as the identifiers of one owner are concerned.
    pub fn pretend(&mut self, now: Time, owner: Owner, device: u32, what: Pretence) {
        let channels: BTreeSet<ChannelId> = self
            .files
            .values()
            .filter(|file| file.owner == owner)
            .map(|file| file.channel)
            .collect();
        self.cma
            .pretend(now, device, what, |channel| channels.contains(&channel));
    }

    /// Takes the local addresses of interfaces that have no device.
    pub fn set_addresses_without_device(&mut self, addresses: Vec<IpAddr>) {
        self.cma.set_addresses_without_device(addresses);
    }

    /// The next route lookup for the driver to answer with [`handle_lookup`](Self::handle_lookup).
    #[must_use]
    pub fn poll_lookup(&mut self) -> Option<Lookup> {
        self.cma.poll_lookup()
    }

    /// The answer to a route lookup.
    pub fn handle_lookup(
        &mut self,
        now: Time,
        token: LookupToken,
        answer: Result<Route, LookupError>,
    ) {
        self.cma.handle_lookup(now, token, answer);
    }

    /// The next change of an interface's membership in a multicast group for the driver to make.
    #[must_use]
    pub fn poll_membership(&mut self) -> Option<Membership> {
        self.cma.poll_membership()
    }

    /// The outcome of a join that came from [`poll_membership`](Self::poll_membership).
    pub fn handle_membership(
        &mut self,
        now: Time,
        token: MembershipToken,
        outcome: Result<(), Errno>,
    ) {
        self.cma.handle_membership(now, token, outcome);
    }

    /// A management datagram arrived on QP1.
    pub fn handle_mad(&mut self, now: Time, av: &AddressVector, mad: &[u8; MAD_LEN]) {
        self.cma.handle_mad(now, av, mad);
    }

    /// Time has passed. Early, late and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        self.cma.handle_timeout(now);
    }

    /// The next management datagram to send from QP1.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.cma.poll_transmit()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.cma.poll_timeout()
    }

    /// Asks the peer of a connection to load an alternate path, see [`Cma::load_alternate_path`]: the ABI has no command
    /// for it.
    ///
    /// # Errors
    /// `UnknownId` of the identifiers' own errors, and those of the call.
    pub fn load_alternate_path(
        &mut self,
        now: Time,
        number: u32,
        path: AlternatePath,
    ) -> Result<(), Failure> {
        let id = self.id(number).ok_or(oarlock_cma::Error::UnknownId)?;
        Ok(self.cma.load_alternate_path(now, id, path)?)
    }

    // ---- looking in ----

    /// The identifier behind a number, to look it up in [`cma`](Self::cma).
    #[must_use]
    pub fn id(&self, number: u32) -> Option<Id> {
        self.numbers.get(number).map(|entry| entry.id)
    }

    /// Multicast joins that have a number.
    #[must_use]
    pub fn joins(&self) -> usize {
        self.joins.len()
    }

    /// Identifiers that have a number.
    #[must_use]
    pub fn ids(&self) -> usize {
        self.numbers.len()
    }

    /// The identifiers with numbers above `after`, in order, as `oarlock ps` shows them.
    pub fn id_infos(
        &self,
        after: Option<u32>,
        pid: impl Fn(Owner) -> u32,
    ) -> impl Iterator<Item = IdInfo> {
        let entries = after
            .map_or(Some(0), |after| after.checked_add(1))
            .map(|first| self.numbers.iter_from(first));
        entries
            .into_iter()
            .flatten()
            .filter_map(move |(number, entry)| self.id_info(number, entry, &pid))
    }

    fn id_info(&self, number: u32, entry: &Entry, pid: impl Fn(Owner) -> u32) -> Option<IdInfo> {
        let query = self.cma.query(entry.id).ok()?;
        let groups = query.multicasts.iter().take(MAX_GROUPS);
        let groups = groups.filter_map(|join| self.cma.multicast_group(*join).ok());
        Some(IdInfo {
            id: number,
            pid: self.owner(entry.file).map_or(0, pid),
            ps: query.port_space.0,
            state: query.state.name().into(),
            local: query.local,
            remote: query.remote,
            qpn: query.qpn.map(|qpn| qpn.get()),
            channel: entry.file.0,
            queued: u32::try_from(query.events_queued).unwrap_or(u32::MAX),
            unacked: query.events_reported.saturating_sub(entry.acknowledged),
            backlog: query.backlog.map(|backlog| BacklogInfo {
                used: u32::try_from(backlog.waiting).unwrap_or(u32::MAX),
                limit: u32::try_from(backlog.size).unwrap_or(u32::MAX),
                overflows: backlog.overflows,
            }),
            groups: groups.collect(),
        })
    }

    /// The ports that are bound, in order.
    #[must_use]
    pub fn ports(&self) -> Vec<PortInfo> {
        let ports = self
            .cma
            .ports()
            .map(|(ps, port, _)| PortInfo { ps: ps.0, port });
        ports.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Every counter of the device, of the identifiers and of the IB CM, by name.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        let own = [
            ("ucm_requests", self.counters.requests),
            ("ucm_requests_refused", self.counters.requests_refused),
            ("ucm_files_opened", self.counters.files_opened),
        ];
        let own = own
            .into_iter()
            .map(|(name, value)| (name.to_string(), value));
        let cma = self
            .cma
            .counters()
            .iter()
            .map(|(name, value)| (name.to_string(), value));
        let cm = self
            .cma
            .cm_counters()
            .iter()
            .map(|(name, value)| (format!("cm_{name}"), value));
        own.chain(cma).chain(cm).collect()
    }
}
