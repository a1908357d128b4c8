//! What the devices of a process count, for whoever watches the process from outside.
//!
//! Something that happens enters a deadline, at which the engine thread publishes; so an endpoint where nothing happens
//! does not wake up, and one where much happens wakes up once an interval for it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oarlock_port::DeviceStatistics;
use oarlock_wire::Time;

use crate::endpoint::Core;
use crate::locks::lock;

/// Figures that are to be published, and when.
pub(crate) struct Statistics {
    interval: Option<Duration>,
    /// A deadline stands in the timers.
    is_due: AtomicBool,
    /// Sums of the contexts that are closed, by device. A leaf of the lock order.
    closed: Mutex<BTreeMap<u32, Figures>>,
}

type Figures = Vec<(&'static str, u64)>;

impl Statistics {
    pub(crate) fn new(interval: Option<Duration>) -> Self {
        Self {
            interval,
            is_due: AtomicBool::new(false),
            closed: Mutex::default(),
        }
    }
}

impl Core {
    /// Something has happened that counts.
    #[inline]
    pub(crate) fn count_activity(&self, now: Time) {
        let statistics = self.statistics();
        let Some(interval) = statistics.interval else {
            return;
        };
        if statistics.is_due.load(Ordering::Relaxed)
            || statistics.is_due.swap(true, Ordering::AcqRel)
        {
            return;
        }
        if self.timers().enter_statistics(now + interval) {
            self.wake_engine();
        }
    }

    /// The deadline has come, or the endpoint ends.
    pub(crate) fn publish_statistics(&self) {
        let statistics = self.statistics();
        if statistics.interval.is_none() {
            return;
        }
        // First: what happens from here on enters a deadline of its own.
        statistics.is_due.store(false, Ordering::Release);
        let contexts = self.contexts();
        let mut devices = lock(&statistics.closed).clone();
        for context in &contexts {
            add(devices.entry(context.device().index), context.statistics());
        }
        let all: Vec<_> = devices
            .into_iter()
            .map(|(device, counters)| DeviceStatistics { device, counters })
            .collect();
        self.source().publish_statistics(&all);
    }

    /// A context is closed: its figures stay in the sums.
    pub(crate) fn keep_statistics(&self, device: u32, figures: Figures) {
        let statistics = self.statistics();
        if statistics.interval.is_some() {
            add(lock(&statistics.closed).entry(device), figures);
        }
    }
}

fn add(sums: std::collections::btree_map::Entry<'_, u32, Figures>, figures: Figures) {
    match sums.or_default() {
        sums if sums.is_empty() => *sums = figures,
        sums => {
            // Every list has the same names in the same order.
            for ((name, sum), (other, value)) in sums.iter_mut().zip(figures) {
                debug_assert_eq!(*name, other);
                *sum += value;
            }
        }
    }
}
