//! What an endpoint does with the verdicts.

use super::hold::Hold;
use super::judge::DESTINATION;
use super::{Direction, Faults, ICRC_LEN, Verdict};
use crate::Counters;
use crate::batch::Struck;
use crate::counters::Counter;
use crate::frame::{Flow, IpFields};
use oarlock_wire::AddressVector;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

/// A packet that may have to wait.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) direction: Direction,
    /// Of a sent packet, its path. Of a received one only the scope counts: the interface that it came by.
    pub(crate) av: AddressVector,
    pub(crate) flow: Flow,
    pub(crate) ip: IpFields,
    /// BTH to ICRC.
    pub(crate) datagram: Vec<u8>,
}

impl Held {
    pub(super) fn way(&self) -> Way {
        Way::of(self.direction, &self.flow, &self.datagram)
    }
}

/// Which packets can overtake each other: those that go one way to one queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    direction: Direction,
    destination: IpAddr,
    dest_qpn: [u8; 3],
}

impl Way {
    fn of(direction: Direction, flow: &Flow, datagram: &[u8]) -> Self {
        Self {
            direction,
            destination: flow.destination,
            dest_qpn: [datagram[5], datagram[6], datagram[7]],
        }
    }
}

/// Where packets go that may go: the sending half of an endpoint, which the endpoint shares with whoever lets held
/// packets go.
pub(crate) trait Outlet: fmt::Debug + Send + Sync {
    /// Sends a packet, or puts a received one into the endpoint's own queue, where it is not judged again.
    fn put(&self, packet: &Held) -> io::Result<()>;

    fn counters(&self) -> &Counters;

    /// As [`put`](Self::put), for a packet whose sender has gone on long ago.
    fn release(&self, packet: Held) {
        if self.put(&packet).is_err() {
            self.counters().add(Counter::tx_dropped, 1);
        }
    }
}

/// The faults of one endpoint. Costs one load when there are none.
#[derive(Debug, Default)]
pub(crate) struct Injector {
    on: AtomicBool,
    injected: RwLock<Injected>,
}

#[derive(Debug, Default)]
struct Injected {
    faults: Vec<Arc<Faults>>,
    hold: Option<Hold>,
}

/// A way to a port's faults that does not keep the port open, for whoever has handed the port over.
#[derive(Debug, Clone)]
pub struct PortFaults {
    injector: Weak<Injector>,
    outlet: Weak<dyn Outlet>,
}

impl PortFaults {
    pub(crate) fn new(injector: &Arc<Injector>, outlet: &Arc<dyn Outlet>) -> Self {
        Self {
            injector: Arc::downgrade(injector),
            outlet: Arc::downgrade(outlet),
        }
    }

    /// Whether the port is still there.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.injector.strong_count() > 0
    }

    /// As [`Port::inject`](crate::Port::inject); whether the port is still there.
    ///
    /// # Errors
    /// As there.
    pub fn inject(&self, faults: Option<Arc<Faults>>) -> io::Result<bool> {
        match (self.injector.upgrade(), self.outlet.upgrade()) {
            (Some(injector), Some(outlet)) => {
                injector.set(faults.into_iter().collect(), &outlet)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// What becomes of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Delivered,
    Twice,
    /// Delivered, and this is to happen.
    With(Struck),
    /// Gone, or held.
    Away,
    /// Damaged in place.
    Corrupted,
}

impl Injector {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Puts faults in the place of those there were. What is held goes at once.
    pub(crate) fn set(&self, faults: Vec<Arc<Faults>>, outlet: &Arc<dyn Outlet>) -> io::Result<()> {
        let hold = if faults.iter().any(|faults| faults.may_hold()) {
            Some(Hold::start(Arc::clone(outlet))?)
        } else {
            None
        };
        let is_on = !faults.is_empty();
        let before = {
            let mut injected = self
                .injected
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            self.on.store(is_on, Ordering::Release);
            std::mem::replace(&mut *injected, Injected { faults, hold })
        };
        if let Some(hold) = before.hold {
            for packet in hold.take_all() {
                outlet.release(packet);
            }
        }
        Ok(())
    }

    /// Sends a packet, or not.
    pub(crate) fn send(&self, outlet: &dyn Outlet, mut packet: Held) -> io::Result<()> {
        let injected = self.injected.read().unwrap_or_else(PoisonError::into_inner);
        let counters = outlet.counters();
        match injected.judge(Direction::Tx, &packet.datagram) {
            None | Some((Verdict::Device(_), _)) => {}
            Some((Verdict::Drop, _)) => {
                counters.add(Counter::fault_lost, 1);
                return Ok(());
            }
            Some((Verdict::Duplicate, _)) => {
                counters.add(Counter::fault_duplicated, 1);
                outlet.put(&packet)?;
            }
            Some((Verdict::Corrupt { offset, bit }, _)) => {
                counters.add(Counter::fault_corrupted, 1);
                corrupt(&packet.flow, &mut packet.datagram, offset, bit);
            }
            Some((Verdict::Delay(by), _)) => {
                injected.hold(outlet, packet, by, false);
                return Ok(());
            }
            Some((Verdict::Reorder(within), _)) => {
                injected.hold(outlet, packet, within, true);
                return Ok(());
            }
        }
        outlet.put(&packet)?;
        injected.release_overtaken(outlet, packet.way());
        Ok(())
    }

    /// What becomes of a received packet, whose ICRC is right and that was not held before. `held` makes one of it that
    /// can wait.
    pub(crate) fn received(
        &self,
        outlet: &dyn Outlet,
        flow: &Flow,
        datagram: &mut [u8],
        held: impl FnOnce(&[u8]) -> Held,
    ) -> Fate {
        let injected = self.injected.read().unwrap_or_else(PoisonError::into_inner);
        let counters = outlet.counters();
        let fate = match injected.judge(Direction::Rx, datagram) {
            None => Fate::Delivered,
            Some((Verdict::Device(fault), set)) => Fate::With(Struck { fault, set }),
            Some((Verdict::Drop, _)) => {
                counters.add(Counter::fault_lost, 1);
                return Fate::Away;
            }
            Some((Verdict::Duplicate, _)) => {
                counters.add(Counter::fault_duplicated, 1);
                Fate::Twice
            }
            Some((Verdict::Corrupt { offset, bit }, _)) => {
                counters.add(Counter::fault_corrupted, 1);
                corrupt(flow, datagram, offset, bit);
                return Fate::Corrupted;
            }
            Some((Verdict::Delay(by), _)) => {
                injected.hold(outlet, held(datagram), by, false);
                return Fate::Away;
            }
            Some((Verdict::Reorder(within), _)) => {
                injected.hold(outlet, held(datagram), within, true);
                return Fate::Away;
            }
        };
        injected.release_overtaken(outlet, Way::of(Direction::Rx, flow, datagram));
        fate
    }
}

impl Injected {
    /// What becomes of a packet, and by which set.
    fn judge(&self, direction: Direction, datagram: &[u8]) -> Option<(Verdict, usize)> {
        let (packet, _) = datagram.split_last_chunk::<ICRC_LEN>()?;
        // All see the packet, so that each knows its place; the first that strikes decides.
        let mut first = None;
        for (set, faults) in self.faults.iter().enumerate() {
            let strike = faults.judge(packet, direction);
            first = first.or(strike.map(|strike| (strike.verdict, set)));
        }
        first
    }

    fn hold(&self, outlet: &dyn Outlet, packet: Held, time: Duration, to_be_overtaken: bool) {
        let counter = if to_be_overtaken {
            Counter::fault_reordered
        } else {
            Counter::fault_delayed
        };
        outlet.counters().add(counter, 1);
        match &self.hold {
            Some(hold) => hold.keep(outlet, packet, time, to_be_overtaken),
            None => outlet.release(packet),
        }
    }

    fn release_overtaken(&self, outlet: &dyn Outlet, way: Way) {
        if let Some(hold) = &self.hold {
            for overtaken in hold.overtaken_on(way) {
                outlet.release(overtaken);
            }
        }
    }
}

/// Changes one bit such that the receiver must notice. Over IPv4 it cannot see the identification, which leaves a check of 16
/// bits: a bit whose change looks like another identification is not taken, but the next.
fn corrupt(flow: &Flow, datagram: &mut [u8], offset: u16, bit: u8) {
    let bits = datagram.len() * 8;
    let first = usize::from(offset) * 8 + usize::from(bit);
    let places = (0..bits)
        .map(|step| (first + step) % bits)
        .filter(|place| !DESTINATION.contains(&(place / 8)));
    for place in places {
        datagram[place / 8] ^= 1 << (place % 8);
        if flow.verify(datagram).is_none() {
            return;
        }
        datagram[place / 8] ^= 1 << (place % 8);
    }
}
