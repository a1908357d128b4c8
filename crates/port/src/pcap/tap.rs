//! The place in an endpoint where captures may be attached.

use super::Capture;
use crate::Counters;
use crate::counters::Counter;
use crate::frame::{Flow, IpFields};
use crate::netlink;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Writes what passes to a capture, when there is one. Costs one load when there is none.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    on: AtomicBool,
    attached: Mutex<Option<Attached>>,
}

#[derive(Debug)]
struct Attached {
    captures: Vec<Capture>,
    /// Addresses of this host, whose packets are recorded where they are sent.
    own: HashSet<IpAddr>,
}

impl Tap {
    /// Attaches captures in place of those there were; the host's addresses are those of its interfaces now.
    pub(crate) fn set(&self, captures: Vec<Capture>) {
        let own: Vec<IpAddr> = if captures.is_empty() {
            Vec::new()
        } else {
            netlink::interfaces()
                .unwrap_or_default()
                .into_iter()
                .flat_map(|interface| interface.addresses.into_iter().map(|address| address.ip))
                .collect()
        };
        self.set_with(captures, &own);
    }

    pub(crate) fn set_with(&self, captures: Vec<Capture>, own: &[IpAddr]) {
        self.on.store(!captures.is_empty(), Ordering::Relaxed);
        let attached = Attached {
            captures,
            own: own.iter().copied().collect(),
        };
        *self.attached.lock().unwrap_or_else(PoisonError::into_inner) = Some(attached);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn sent(&self, counters: &Counters, flow: &Flow, ip: IpFields, pieces: &[&[u8]]) {
        if self.is_on() {
            self.record(counters, flow, ip, pieces, |_| true);
        }
    }

    /// Records a received packet unless it came from this host.
    pub(crate) fn received(&self, counters: &Counters, flow: &Flow, ip: IpFields, datagram: &[u8]) {
        if self.is_on() && !flow.source.is_loopback() {
            self.record(counters, flow, ip, &[datagram], |attached| {
                !attached.own.contains(&flow.source)
            });
        }
    }

    fn record(
        &self,
        counters: &Counters,
        flow: &Flow,
        ip: IpFields,
        pieces: &[&[u8]],
        wanted: impl FnOnce(&Attached) -> bool,
    ) {
        let attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(attached) = attached.as_ref().filter(|attached| wanted(attached)) else {
            return;
        };
        for capture in &attached.captures {
            if capture.write_datagram(flow, ip, pieces).is_err() {
                counters.add(Counter::capture_failed, 1);
            }
        }
    }
}
