//! What happens to the programs: devices and addresses go and come, clocks stand still, identifiers are moved and their
//! channels closed at moments that nobody chose.

use std::time::Duration;

use oarlock_cma::Errno;
use oarlock_ucm::client::{self, IdNumber};
use oarlock_ucm::{FileId, Owner};
use oarlock_wire::{Gid, Time};

use crate::host::{Present, WILD_CHANNELS};
use crate::ledger::{Part, Stage};
use crate::program::kind;
use crate::world::{ACTIVE, Action, PASSIVE, World};

/// A host's clock, which may stand still for a while and then jump.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    stands: Option<(Time, Time)>,
}

impl Clock {
    pub(crate) const fn standing(from: Time, until: Time) -> Self {
        Self {
            stands: Some((from, until)),
        }
    }

    pub(crate) fn shows(&self, now: Time) -> Time {
        match self.stands {
            Some((from, until)) if (from..until).contains(&now) => from,
            _ => now,
        }
    }

    /// The moment from `now` on at which it shows `at` or later.
    pub(crate) fn when_it_shows(&self, at: Time, now: Time) -> Time {
        match self.stands {
            Some((from, until)) if from < at && at < until && now < until => until,
            _ => at,
        }
    }
}

/// What injected events carry as their status.
const STATUS: i32 = -7;

impl World {
    /// The plan of a whole storm.
    pub(crate) fn plan_weather(&mut self) {
        for side in [ACTIVE, PASSIVE] {
            let mut at = Duration::ZERO;
            for _ in 0..2 {
                let scale = if self.rng.chance(0.3) { 8_000 } else { 120 };
                at += Duration::from_millis(self.rng.below(scale) + 1);
                self.after(at, Action::Device(side, 1, false));
                at += Duration::from_millis(self.rng.below(3_000) + 1);
                self.after(at, Action::Device(side, 1, true));
                at += Duration::from_millis(self.rng.below(scale) + 1);
                self.after(at, Action::Address(side, false));
                at += Duration::from_millis(self.rng.below(500) + 1);
                self.after(at, Action::Address(side, true));
            }
            for _ in 0..12 {
                self.later(Duration::from_millis(200), Action::Inject(side));
                self.later(Duration::from_millis(300), Action::MoveAny(side));
            }
            for _ in 0..4 {
                self.later(Duration::from_secs(15), Action::Inject(side));
                self.later(Duration::from_secs(15), Action::MoveAny(side));
            }
            if self.rng.chance(0.5) {
                self.later(Duration::from_secs(4), Action::CloseAny(side));
            }
        }
        if self.is_severe {
            let side = self.rng.index(2);
            let at = Duration::from_millis(self.rng.below(100) + 1);
            self.after(at, Action::Device(side, 0, false));
            let back = Duration::from_millis(self.rng.below(2_000) + 1);
            self.after(at + back, Action::Device(side, 0, true));
        }
    }

    // ---- devices ----

    pub(crate) fn device(&mut self, side: usize, device: usize, comes: bool) -> Result<(), String> {
        let mut present = self.hosts[side].devices;
        present.devices[device] = comes;
        self.change_devices(side, present)?;
        if comes {
            self.count("devices that came back");
            // Whoever listened there can do so again.
            self.later(Duration::from_millis(5), Action::Listen(side, 1));
        }
        Ok(())
    }

    pub(crate) fn address(&mut self, side: usize, comes: bool) -> Result<(), String> {
        let mut present = self.hosts[side].devices;
        present.movable = comes;
        self.change_devices(side, present)
    }

    /// Notes for each identifier what it is owed, and tells the host.
    fn change_devices(&mut self, side: usize, present: Present) -> Result<(), String> {
        let before = self.hosts[side].devices;
        let ids = self.hosts[side].ledger.iter();
        let ids: Vec<(IdNumber, FileId)> = ids
            .filter(|(_, record)| !record.is_gone)
            .map(|(id, record)| (id, record.file))
            .collect();
        for (id, file) in ids {
            let bound = self.call(side, file, &client::query_addr(id))?;
            let Some(device) = bound.device else { continue };
            if !present.devices[device.index as usize] {
                self.hosts[side].ledger.device_goes(id);
                continue;
            }
            let path = self.call(side, file, &client::query_gid(id))?;
            let local = bound.local.map(|local| local.ip());
            let mut relied_on = local.into_iter().chain([Gid(path.local).to_ip()]);
            if relied_on.any(|ip| before.owns(side, ip) && !present.owns(side, ip)) {
                self.hosts[side].ledger.address_goes(id);
            }
        }
        self.hosts[side].devices = present;
        let shown = self.host_now(side);
        self.hosts[side].ucm.set_devices(shown, present.list(side));
        self.drain_host(side)
    }

    // ---- programs ----

    /// One of the identifiers that the programs have, if there is one that fits.
    fn any(
        &mut self,
        side: usize,
        fits: impl Fn(&crate::ledger::Record) -> bool,
    ) -> Option<IdNumber> {
        let ids = self.hosts[side].ledger.iter();
        let ids: Vec<IdNumber> = ids
            .filter(|(_, record)| fits(record))
            .map(|(id, _)| id)
            .collect();
        (!ids.is_empty()).then(|| ids[self.rng.index(ids.len())])
    }

    /// An event of the program's own. Not to the child of a request: its value changes when it is accepted.
    pub(crate) fn inject(&mut self, side: usize) -> Result<(), String> {
        let Some(id) = self.any(side, |record| record.is_reporting) else {
            return Ok(());
        };
        let value = self.rng.next_u64();
        let call = client::write_cm_event(id, kind::USER, STATUS, value);
        if self.demand(side, id, &call)?.is_some() {
            self.hosts[side].ledger.inject(id, value, STATUS);
            self.count("events injected");
        }
        Ok(())
    }

    /// An identifier of those that are not the spine's moves, with what waits on it, whatever it is doing.
    pub(crate) fn move_any(&mut self, side: usize) -> Result<(), String> {
        let wild = self.hosts[side].wild.clone();
        let Some(id) = self.any(side, |record| wild.contains(&record.file)) else {
            return Ok(());
        };
        let record = self.hosts[side].ledger.record(id);
        let (old, is_gone) = (record.file, record.is_gone);
        let new = wild[self.rng.index(WILD_CHANNELS)];
        let queued = |world: &Self| {
            let ucm = &world.hosts[side].ucm;
            ucm.queued(old) + if old == new { 0 } else { ucm.queued(new) }
        };
        let before = queued(self);
        match self.try_call(side, new, &client::migrate_id(id, old.0))? {
            Ok(counted) if !is_gone => {
                self.hosts[side].ledger.migrated(id, new, counted.0)?;
                self.count("moves of any kind");
            }
            Err(failure) if is_gone && failure.errno() == Errno::ENXIO => {}
            other => return Err(format!("{id:?} moves; device gone: {is_gone}: {other:?}")),
        }
        if queued(self) != before {
            return Err(format!("{id:?}: events came or went while it moved"));
        }
        Ok(())
    }

    /// A channel is closed with all that is on it, as by the end of a process, and another one takes its place.
    pub(crate) fn close_any(&mut self, side: usize) -> Result<(), String> {
        let place = self.rng.index(WILD_CHANNELS);
        let file = self.hosts[side].wild[place];
        let new = self.hosts[side].ucm.open(Owner(1));
        self.hosts[side].wild[place] = new.map_err(|failure| failure.to_string())?;
        for part in self.hosts[side].ledger.closed(file) {
            match part {
                // Its port is free at once.
                Part::Listener(which) => {
                    self.later(Duration::from_millis(2), Action::Listen(side, which));
                }
                Part::Member(member) => self.forget_member(member),
                Part::Caller(attempt) | Part::Asker(attempt) => self.forget_caller(attempt),
                Part::Called(_) | Part::Asked(_) | Part::Stray => self.count("children closed"),
                Part::Spine(_) | Part::SpineListener => {
                    return Err(format!("{part:?} was on {file:?}"));
                }
            }
        }
        let shown = self.host_now(side);
        self.hosts[side].ucm.close(shown, file);
        self.count("channels closed with identifiers");
        self.drain_host(side)
    }

    /// Whether it may still report, and is not owed its end.
    pub(crate) fn is_wild(part: Part) -> bool {
        !matches!(
            part,
            Part::Spine(_)
                | Part::SpineListener
                | Part::Stray
                | Part::Listener(_)
                | Part::Member(_)
        )
    }

    pub(crate) fn stage(&self, side: usize, id: IdNumber) -> Stage {
        let record = self.hosts[side].ledger.get(id);
        record.expect("it is in the books").stage
    }
}
