//! Packets that wait: delayed ones for their time, reordered ones to be overtaken.
//!
//! A thread lets them go. It exists only while there are rules that hold packets, and sleeps while none is held.

use super::inject::{Held, Outlet, Way};
use crate::counters::Counter;
use crate::fork;
use crate::thread::spawn_without_signals;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is held, and the thread that lets it go. Dropping it ends the thread and forgets what is held, as the network
/// forgets what a dead host has not sent.
#[derive(Debug)]
pub(super) struct Hold {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    fork_generation: u32,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By the time to go, then in the order of coming.
    packets: BTreeMap<(Instant, u64), Waiter>,
    next: u64,
    bytes: usize,
    /// How many wait to be overtaken.
    to_be_overtaken: usize,
    is_over: bool,
}

#[derive(Debug)]
struct Waiter {
    packet: Held,
    /// Goes as soon as another packet of its direction to its queue pair has passed.
    to_be_overtaken: bool,
}

impl Hold {
    /// Starts the thread.
    pub(super) fn start(outlet: Arc<dyn Outlet>) -> io::Result<Self> {
        fork::install()?;
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = spawn_without_signals("oarlock-fault", move || {
            for_thread.run(&*outlet);
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
            fork_generation: fork::generation(),
        })
    }

    /// Holds a packet. When too much is held already, those that would go first go now.
    pub(super) fn keep(
        &self,
        outlet: &dyn Outlet,
        packet: Held,
        time: Duration,
        to_be_overtaken: bool,
    ) {
        let mut early = Vec::new();
        {
            let mut waiting = self.shared.lock();
            waiting.enter(packet, Instant::now() + time, to_be_overtaken);
            while waiting.packets.len() > MAX_PACKETS || waiting.bytes > MAX_BYTES {
                early.extend(waiting.take_first());
            }
        }
        self.shared.changed.notify_one();
        let count = early.len() as u64;
        if count > 0 {
            outlet.counters().add(Counter::fault_released_early, count);
        }
        for packet in early {
            outlet.release(packet);
        }
    }

    /// Takes what a packet that has gone this way has overtaken.
    pub(super) fn overtaken_on(&self, way: Way) -> Vec<Held> {
        let mut waiting = self.shared.lock();
        if waiting.to_be_overtaken == 0 {
            return Vec::new();
        }
        let overtaken: Vec<_> = waiting
            .packets
            .iter()
            .filter(|(_, waiter)| waiter.to_be_overtaken && waiter.packet.way() == way)
            .map(|(key, _)| *key)
            .collect();
        overtaken
            .into_iter()
            .filter_map(|key| waiting.take(key))
            .collect()
    }

    /// Takes everything, the next to go first.
    pub(super) fn take_all(&self) -> Vec<Held> {
        let mut waiting = self.shared.lock();
        std::iter::from_fn(|| waiting.take_first()).collect()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A forked child has neither the thread nor, maybe, the lock.
        if fork::generation() != self.fork_generation {
            return;
        }
        self.shared.lock().is_over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It waits for nothing but this; a panic there has ended it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, outlet: &dyn Outlet) {
        let mut waiting = self.lock();
        while !waiting.is_over {
            let next = waiting.packets.keys().next().map(|(due, _)| *due);
            let now = Instant::now();
            match next {
                Some(due) if due <= now => {
                    let packet = waiting.take_first();
                    drop(waiting);
                    if let Some(packet) = packet {
                        outlet.release(packet);
                    }
                    waiting = self.lock();
                }
                Some(due) => {
                    (waiting, _) = self
                        .changed
                        .wait_timeout(waiting, due - now)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                None => {
                    waiting = self
                        .changed
                        .wait(waiting)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Waiting {
    fn enter(&mut self, packet: Held, due: Instant, to_be_overtaken: bool) {
        self.bytes += packet.datagram.len();
        self.to_be_overtaken += usize::from(to_be_overtaken);
        let waiter = Waiter {
            packet,
            to_be_overtaken,
        };
        self.packets.insert((due, self.next), waiter);
        self.next += 1;
    }

    fn take(&mut self, key: (Instant, u64)) -> Option<Held> {
        let waiter = self.packets.remove(&key)?;
        self.bytes -= waiter.packet.datagram.len();
        self.to_be_overtaken -= usize::from(waiter.to_be_overtaken);
        Some(waiter.packet)
    }

    fn take_first(&mut self) -> Option<Held> {
        let key = *self.packets.keys().next()?;
        self.take(key)
    }
}

/// What one port holds at most.
const MAX_PACKETS: usize = 4096;
const MAX_BYTES: usize = 16 << 20;
