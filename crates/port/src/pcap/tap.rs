//! The place in an endpoint where captures may be attached.

use super::Capture;
use crate::Counters;
use crate::counters::Counter;
use crate::frame::{Flow, IpFields};
use crate::netlink;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

/// Writes what passes to captures, when there are any. Costs one load when there are none.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    on: AtomicBool,
    attached: Mutex<Attached>,
}

#[derive(Debug, Default)]
struct Attached {
    /// Those that the port's holder has set.
    captures: Vec<Capture>,
    /// Those that were set by a [`PortTap`].
    beside: Vec<Capture>,
    /// Addresses of this host, whose packets are recorded where they are sent.
    own: HashSet<IpAddr>,
}

/// The half of an endpoint that has the tap.
pub(crate) trait Tapped: fmt::Debug + Send + Sync {
    fn tap(&self) -> &Tap;

    /// The host's addresses.
    fn own_addresses(&self) -> Vec<IpAddr>;
}

/// A way to a port's captures that does not keep the port open, for whoever has handed the port over. Has captures of its own,
/// beside those of [`Port::set_captures`](crate::Port::set_captures).
#[derive(Debug, Clone)]
pub struct PortTap(Weak<dyn Tapped>);

impl PortTap {
    pub(crate) fn new(tapped: &Arc<dyn Tapped>) -> Self {
        Self(Arc::downgrade(tapped))
    }

    /// Attaches captures in place of those that were attached here before; when it returns, nothing more is written to those. Also
    /// learns the host's addresses anew. Whether the port is still there.
    #[must_use]
    pub fn set(&self, captures: Vec<Capture>) -> bool {
        let Some(tapped) = self.0.upgrade() else {
            return false;
        };
        let own = own(&captures, || tapped.own_addresses());
        tapped.tap().change(|attached| {
            attached.learn(own);
            std::mem::replace(&mut attached.beside, captures)
        });
        true
    }

    /// Whether the port is still there.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// The addresses of this host's interfaces.
pub(crate) fn interface_addresses() -> Vec<IpAddr> {
    netlink::interfaces()
        .unwrap_or_default()
        .into_iter()
        .flat_map(|interface| interface.addresses.into_iter().map(|address| address.ip))
        .collect()
}

/// The host's addresses, if any capture needs them.
fn own(captures: &[Capture], addresses: impl FnOnce() -> Vec<IpAddr>) -> Option<Vec<IpAddr>> {
    (!captures.is_empty()).then(addresses)
}

impl Attached {
    fn learn(&mut self, own: Option<Vec<IpAddr>>) {
        if let Some(own) = own {
            self.own = own.into_iter().collect();
        }
    }

    fn all(&self) -> impl Iterator<Item = &Capture> {
        self.captures.iter().chain(&self.beside)
    }
}

impl Tap {
    /// Attaches captures in place of those there were; the host's addresses are those of now.
    pub(crate) fn set(&self, captures: Vec<Capture>, addresses: impl FnOnce() -> Vec<IpAddr>) {
        let own = own(&captures, addresses);
        self.change(|attached| {
            attached.learn(own);
            std::mem::replace(&mut attached.captures, captures)
        });
    }

    fn change(&self, change: impl FnOnce(&mut Attached) -> Vec<Capture>) {
        let mut attached = self.lock();
        let before = change(&mut attached);
        attached.captures.retain(|capture| !capture.has_ended());
        attached.beside.retain(|capture| !capture.has_ended());
        self.on
            .store(attached.all().next().is_some(), Ordering::Relaxed);
        drop(attached);
        // Files are closed without the lock.
        drop(before);
    }

    fn lock(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// The time to record a packet with that is about to be sent; none when nothing is recorded. Taken before it is sent: the
    /// receiver may answer, and that be recorded, before this call's caller comes to recording it.
    #[inline]
    pub(crate) fn moment(&self) -> Option<SystemTime> {
        self.is_on().then(SystemTime::now)
    }

    /// Records a packet that was sent at this moment, if any.
    #[inline]
    pub(crate) fn sent(
        &self,
        counters: &Counters,
        at: Option<SystemTime>,
        flow: &Flow,
        ip: IpFields,
        pieces: &[&[u8]],
    ) {
        if let Some(at) = at {
            self.record_sent(counters, at, flow, ip, pieces);
        }
    }

    #[cold]
    fn record_sent(
        &self,
        counters: &Counters,
        at: SystemTime,
        flow: &Flow,
        ip: IpFields,
        pieces: &[&[u8]],
    ) {
        let whole;
        let datagram = match pieces {
            [datagram] => datagram,
            pieces => {
                whole = pieces.concat();
                whole.as_slice()
            }
        };
        self.record_run(counters, at, flow, ip, (datagram, datagram.len()));
    }

    /// Records a run of packets of so many bytes each, of which the last may be shorter, sent at this moment, if any.
    #[inline]
    pub(crate) fn sent_run(
        &self,
        counters: &Counters,
        at: Option<SystemTime>,
        flow: &Flow,
        ip: IpFields,
        run: (&[u8], usize),
    ) {
        if let Some(at) = at {
            self.record_run(counters, at, flow, ip, run);
        }
    }

    #[cold]
    fn record_run(
        &self,
        counters: &Counters,
        at: SystemTime,
        flow: &Flow,
        ip: IpFields,
        (run, segment): (&[u8], usize),
    ) {
        self.record(counters, |capture, _| {
            Some(capture.write_datagrams(at, flow, ip, false, run.chunks(segment)))
        });
    }

    /// Records a received packet; only where that is wanted if it came from this host.
    pub(crate) fn received(&self, counters: &Counters, flow: &Flow, ip: IpFields, datagram: &[u8]) {
        if let Some(at) = self.moment() {
            self.record(counters, |capture, own| {
                let is_wanted = capture.wants_all_received()
                    || !(flow.source.is_loopback() || own.contains(&flow.source));
                let datagram = std::iter::once(datagram);
                is_wanted.then(|| capture.write_datagrams(at, flow, ip, true, datagram))
            });
        }
    }

    /// Lets each capture write; one that ends by a failure is detached.
    fn record(
        &self,
        counters: &Counters,
        mut write: impl FnMut(&Capture, &HashSet<IpAddr>) -> Option<std::io::Result<()>>,
    ) {
        let mut attached = self.lock();
        let Attached {
            captures,
            beside,
            own,
        } = &mut *attached;
        for captures in [captures, beside] {
            captures.retain(|capture| match write(capture, own) {
                None | Some(Ok(())) => true,
                Some(Err(error)) => {
                    counters.add(Counter::capture_failed, 1);
                    !capture.ends_by(&error)
                }
            });
        }
        if attached.all().next().is_none() {
            self.on.store(false, Ordering::Relaxed);
        }
    }
}
