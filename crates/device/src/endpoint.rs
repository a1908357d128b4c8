//! The endpoint of a process: one slot of the port, the queue pairs behind it, and whoever moves
//! packets between the two.
//!
//! # Who does the work
//! Any thread that calls in: a send leaves from the poster's thread, packets that have arrived are
//! handled by the thread that polls a completion queue, if no other is at it. The engine thread is
//! the fallback: it sleeps on the port, the next deadline and the service's life, and does what
//! nobody else has done. A thread that waits for completions sleeps on the port in its place
//! (`lead.rs`).
//!
//! # Lock order
//! A thread takes these in this order only, and may leave any of them out:
//!
//! 1. `attaching`, then `capture`; the lead
//! 2. `receiver`: one thread at a time takes packets off the port
//! 3. a queue pair's `inner` (never two at once); the groups
//! 4. the port (shared, except to open and close it); a table of queue pairs or of the shared receive queues of an XRC
//!    domain (shared, except to change it); of memory (`mr/`) a window's guard, then a region's, then the lock of atomics,
//!    then the table of keys or what counts bound windows
//! 5. a completion queue's `state`, a shared receive queue's `queue` (never both)
//! 6. the leaves, which call nothing while locked: timers, the backlog, event queues, scratch, engine calls,
//!    hooks, lists of contexts and of a completion queue's queue pairs
//!
//! Nothing of the program is called with any of them held.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Instant;

use oarlock_port::Port;
use oarlock_port::fork::{self, ForkGuard};
use oarlock_port::pcap::Capture;
use oarlock_transport::{QpState, VendorError};
use oarlock_wire::Time;
use rustix::event::{EventfdFlags, eventfd};

use crate::backlog::Backlog;
use crate::context::Context;
use crate::counters::Counters;
use crate::engine::{self, Signs};
use crate::error::Error;
use crate::event::DeviceChange;
use crate::groups::{Group, Groups};
use crate::lead::{Lead, Leading};
use crate::linger::Linger;
use crate::locks::{lock, read, write};
use crate::mr::{Probe, Ways};
use crate::qp::{Overruns, QpInner, QpShared};
use crate::qpn::QpnTable;
use crate::receive::Receiver;
use crate::source::PortSource;
use crate::statistics::Statistics;
use crate::timers::{Timers, Whose};
use crate::transmit::Scratch;
use crate::transport::QpMemory;
use crate::watch::Watch;

/// The endpoint of a process. All contexts on one host share it, and so one slot.
///
/// When the last handle is dropped the engine thread ends and the slot is closed.
pub struct Endpoint {
    core: Arc<Core>,
}

/// A piece of the program's code for the engine thread.
pub(crate) type EngineCall = Box<dyn FnOnce() + Send>;

pub(crate) struct Core {
    source: Box<dyn PortSource>,
    /// Held while the slot is being taken.
    attaching: Mutex<()>,
    pub(crate) port: RwLock<Option<Arc<Port>>>,
    /// Where packets are recorded, for the port to come as well.
    capture: Mutex<Option<Capture>>,
    gone: AtomicBool,
    /// The service is gone and every queue pair has been flushed: no completion will come.
    is_over: AtomicBool,
    pub(crate) qps: QpnTable,
    /// Shared receive queues and XRC domains that exist.
    srqs: AtomicU32,
    xrc_domains: AtomicU32,
    pub(crate) groups: Groups,
    pub(crate) receiver: Mutex<Receiver>,
    timers: Timers,
    backlog: Backlog,
    scratch: Mutex<Vec<Scratch>>,
    contexts: Mutex<Vec<Weak<Context>>>,
    engine_calls: Mutex<Vec<EngineCall>>,
    statistics: Statistics,
    /// A child that drops what it has a copy of does not wake the parent's engine.
    _unforked: ForkGuard,
    wake: OwnedFd,
    stop: AtomicBool,
    pub(crate) polls: AtomicU32,
    /// Completion queues that are armed: somebody sleeps, and the engine must not stand back.
    armed: AtomicUsize,
    standing_back: AtomicBool,
    called_back: AtomicBool,
    lead: Lead,
    linger: Linger,
    watch: Watch,
    start: Instant,
    fork_generation: u32,
    pub(crate) counters: Counters,
}

impl Endpoint {
    /// An endpoint that takes its slot from `source` when the first queue pair needs it.
    ///
    /// # Errors
    /// `System`: no descriptor left, or a fork of this process could not be told.
    pub fn new(source: Box<dyn PortSource>) -> Result<Arc<Self>, Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("create the engine's event descriptor"))?;
        let unforked =
            ForkGuard::new(&wake).map_err(Error::system("prepare for a fork of the process"))?;
        let fork_generation = fork::generation();
        let statistics = Statistics::new(source.statistics_interval());
        let core = Core {
            source,
            attaching: Mutex::new(()),
            port: RwLock::new(None),
            capture: Mutex::new(None),
            gone: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            qps: QpnTable::new(),
            srqs: AtomicU32::new(0),
            xrc_domains: AtomicU32::new(0),
            groups: Groups::new(),
            receiver: Mutex::default(),
            timers: Timers::new(),
            backlog: Backlog::default(),
            scratch: Mutex::default(),
            contexts: Mutex::default(),
            engine_calls: Mutex::default(),
            statistics,
            _unforked: unforked,
            wake,
            stop: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            armed: AtomicUsize::new(0),
            standing_back: AtomicBool::new(false),
            called_back: AtomicBool::new(false),
            lead: Lead::new()?,
            linger: Linger::default(),
            watch: Watch::new()?,
            start: Instant::now(),
            fork_generation,
            counters: Counters::default(),
        };
        Ok(Arc::new(Self {
            core: Arc::new(core),
        }))
    }

    /// The slot of the port, once a queue pair has needed it.
    pub fn slot(&self) -> Option<u8> {
        read(&self.core.port).as_ref().map(|port| port.slot())
    }

    /// Whether the host service is gone.
    pub fn is_gone(&self) -> bool {
        self.core.is_gone()
    }

    /// How many queue pairs exist.
    pub fn qp_count(&self) -> usize {
        self.core.qps.len()
    }

    /// What was done and dropped, by name: the endpoint's own counters, then those of the port
    /// with the prefix `port_`.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let own = self.core.counters.list();
        let mut all: Vec<_> = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        if let Some(port) = read(&self.core.port).as_ref() {
            let port = port.counters().iter();
            all.extend(port.map(|(name, value)| (format!("port_{name}"), value)));
        }
        all
    }

    /// From now on writes every packet of this process, as on the wire, to `capture`, or stops.
    pub fn capture(&self, capture: Option<Capture>) {
        // A port that is being opened takes what stands here before or after.
        let mut standing = lock(&self.core.capture);
        if let Some(port) = read(&self.core.port).as_ref() {
            port.tap(capture.clone());
        }
        *standing = capture;
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The engine lets go of the core, and with the core goes the port. It is not waited for.
        self.core.stop.store(true, Ordering::Release);
        self.core.wake_engine();
        if !self.core.is_forked() {
            self.core.watch.end();
        }
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("slot", &self.slot())
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn qps(&self) -> &QpnTable {
        &self.qps
    }

    pub(crate) fn source(&self) -> &dyn PortSource {
        &*self.source
    }

    pub(crate) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The contexts that are open.
    pub(crate) fn contexts(&self) -> Vec<Arc<Context>> {
        lock(&self.contexts)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(crate) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.timers
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// What tells of the host service's end, and of changes of devices.
    pub(crate) fn signs(&self) -> Result<Signs, Error> {
        let source = &self.source;
        Ok(Signs {
            gone: source
                .gone_fd()
                .map_err(Error::system("watch the host service"))?,
            changes: source
                .changes_fd()
                .map_err(Error::system("watch the devices"))?,
        })
    }

    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    /// Refuses what a forked child asks for, before it touches a lock that another thread of the parent may have held.
    pub(crate) fn check_not_forked(&self) -> Result<(), Error> {
        if self.is_forked() {
            Err(Error::Forked)
        } else {
            Ok(())
        }
    }

    /// Whether this is a forked child's copy: then a lock may be held for ever, and handles are dropped without taking any.
    pub(crate) fn is_forked(&self) -> bool {
        fork::generation() != self.fork_generation
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn now(&self) -> Time {
        let nanos = self.start.elapsed().as_nanos();
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    pub(crate) fn enter_context(&self, context: &Arc<Context>) {
        let mut contexts = lock(&self.contexts);
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
    }

    /// Opens the port and starts the engine, once; returns the slot.
    pub(crate) fn attach(self: &Arc<Self>) -> Result<u8, Error> {
        if let Some(port) = read(&self.port).as_ref() {
            return Ok(port.slot());
        }
        let _attaching = lock(&self.attaching);
        if self.is_gone() {
            return Err(Error::DeviceFatal);
        }
        if let Some(port) = read(&self.port).as_ref() {
            return Ok(port.slot());
        }
        let port = self
            .source
            .take_port()
            .map_err(|source| Error::NoPort { source })?;
        let port = Arc::new(port);
        let slot = port.slot();
        engine::start(Arc::clone(self), Arc::clone(&port), self.signs()?)
            .map_err(Error::system("start the engine thread"))?;
        self.watch.end();
        {
            let capture = lock(&self.capture);
            port.tap(capture.clone());
            *write(&self.port) = Some(port);
        }
        tracing::debug!(slot, "slot taken, engine started");
        Ok(slot)
    }

    /// Counts one more shared receive queue.
    pub(crate) fn enter_srq(&self, max: u32) -> Result<(), Error> {
        count_up(&self.srqs, max).ok_or(Error::TooManySrqs { max })
    }

    pub(crate) fn forget_srq(&self) {
        self.srqs.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts one more XRC domain.
    pub(crate) fn enter_xrc_domain(&self, max: u32) -> Result<(), Error> {
        count_up(&self.xrc_domains, max).ok_or(Error::TooManyXrcDomains { max })
    }

    pub(crate) fn forget_xrc_domain(&self) {
        self.xrc_domains.fetch_sub(1, Ordering::SeqCst);
    }

    /// Attaches a queue pair to a multicast group; the first of this process makes it a member.
    pub(crate) fn attach_multicast(&self, group: Group, qp: &Arc<QpShared>) -> Result<(), Error> {
        let port = read(&self.port).as_ref().map(Arc::clone);
        let port = port.ok_or(Error::DeviceFatal)?;
        self.groups.attach(&port, group, qp)
    }

    /// Detaches a queue pair; false if it is not attached.
    pub(crate) fn detach_multicast(&self, group: Group, qp: &QpShared) -> bool {
        let port = read(&self.port).as_ref().map(Arc::clone);
        self.groups.detach(port.as_deref(), group, qp)
    }

    /// The queue pair is gone: its attachments end.
    pub(crate) fn detach_all(&self, qp: &QpShared) {
        let port = read(&self.port).as_ref().map(Arc::clone);
        self.groups.forget(port.as_deref(), qp);
    }

    /// Runs `input` on the packet engine of `qp` and does whatever follows from it.
    pub(crate) fn with_qp<T>(
        self: &Arc<Self>,
        qp: &Arc<QpShared>,
        input: impl FnOnce(&mut QpInner) -> T,
    ) -> T {
        let (result, overruns) = {
            let mut inner = qp.lock();
            let result = input(&mut inner);
            let overruns = self.drive(qp, &mut inner);
            (result, overruns)
        };
        self.fail_overrun(overruns);
        result
    }

    /// As [`with_qp`](Self::with_qp), for requests that are posted: what may wait for others to be posted does.
    pub(crate) fn with_posting<T>(
        self: &Arc<Self>,
        qp: &Arc<QpShared>,
        post: impl FnOnce(&mut QpInner) -> T,
    ) -> T {
        let mut inner = qp.lock();
        let result = post(&mut inner);
        if inner.transport.may_wait() {
            return result;
        }
        let overruns = self.drive(qp, &mut inner);
        drop(inner);
        self.fail_overrun(overruns);
        result
    }

    /// Drains the outputs of a queue pair, as far as its turn goes: packets first, so that an acknowledgement has left
    /// before the completion is visible, then completions and events, then the deadline.
    pub(crate) fn drive(self: &Arc<Self>, qp: &Arc<QpShared>, inner: &mut QpInner) -> Overruns {
        inner.touched = false;
        let mut overruns = Overruns::new();
        if qp.is_destroyed() {
            return overruns;
        }
        if inner.transport.has_output() {
            let now = self.now();
            let mut scratch = lock(&self.scratch).pop().unwrap_or_default();
            let QpInner {
                transport, held, ..
            } = &mut *inner;
            let standing = read(&self.port);
            let port = standing.as_deref();
            let Scratch { bursts, outgoing } = &mut scratch;
            let ways = Ways {
                incoming: None,
                outgoing: Some(outgoing),
            };
            let probe = Probe::new();
            let mut memory = QpMemory::new(qp, &self.counters, held, &probe, ways);
            let has_more = bursts.send_turn(transport, now, &mut memory, port, &self.counters);
            drop(memory);
            drop(standing);
            lock(&self.scratch).push(scratch);
            if has_more {
                self.backlog.enter(self, qp, inner);
            }
            overruns = qp.publish(inner);
            self.count_activity(now);
        }
        if let Some(due) = inner.transport.poll_timeout()
            && inner.scheduled.last().is_none_or(|next| due < *next)
        {
            inner.scheduled.push(due);
            if self.timers.enter(due, qp) {
                self.wake_engine();
            }
        }
        overruns
    }

    /// Fails the queue pairs of completion queues that overran. Flushing them can overrun
    /// another queue, but each only once.
    pub(crate) fn fail_overrun(self: &Arc<Self>, mut pending: Overruns) {
        while let Some(cq) = pending.pop() {
            for qp in cq.overrun() {
                pending.extend(self.fail(&qp, VendorError::FLUSHED_BY_OVERRUN));
            }
        }
    }

    /// Puts a queue pair into the error state for this reason, which its flushed requests tell.
    pub(crate) fn fail(self: &Arc<Self>, qp: &Arc<QpShared>, reason: VendorError) -> Overruns {
        let mut inner = qp.lock();
        // From Reset there is nothing to flush, and nothing to say.
        if inner.transport.state() != QpState::Reset {
            inner.transport.fail(reason);
        }
        self.drive(qp, &mut inner)
    }

    /// Handles the deadlines that have come.
    pub(crate) fn fire_timers(self: &Arc<Self>) {
        if self.timers.has_due(self.now()) {
            // What a deadline waits for may have arrived.
            self.progress();
        }
        let now = self.now();
        while let Some((due, whose)) = self.timers.pop_due(now) {
            let qp = match whose {
                Whose::Qp(qp) => qp.upgrade(),
                Whose::Cq(cq) => {
                    if let Some(cq) = cq.upgrade() {
                        cq.moderation_due(now);
                    }
                    continue;
                }
                Whose::Statistics => {
                    self.publish_statistics();
                    continue;
                }
            };
            let Some(qp) = qp else {
                continue;
            };
            let overruns = {
                let mut inner = qp.lock();
                // The next one, unless an earlier one has been entered since it was taken out of the timers.
                if let Some(entry) = inner.scheduled.iter().rposition(|entry| *entry == due) {
                    inner.scheduled.remove(entry);
                }
                self.counters.timeouts.add(1);
                inner.transport.handle_timeout(now);
                self.drive(&qp, &mut inner)
            };
            self.fail_overrun(overruns);
        }
    }

    /// The host service is gone: closes the slot, fails every queue pair, tells every context.
    pub(crate) fn device_fatal(self: &Arc<Self>) {
        {
            let _attaching = lock(&self.attaching);
            self.gone.store(true, Ordering::SeqCst);
            // A leader holds the port open.
            self.lead.dismiss();
            *write(&self.port) = None;
        }
        tracing::error!("device fatal: the host service is gone");
        for qp in self.qps.all() {
            let overruns = self.fail(&qp, VendorError::FLUSHED_BY_DEVICE);
            self.fail_overrun(overruns);
        }
        self.is_over.store(true, Ordering::SeqCst);
        for context in self.contexts() {
            context.device_fatal();
        }
    }

    /// Devices have changed: fails the queue pairs of those that are gone, and tells their contexts.
    pub(crate) fn devices_changed(self: &Arc<Self>) {
        for (device, change) in self.source.take_changes() {
            for context in self.contexts() {
                if context.device().index == device {
                    self.device_changed(&context, &change);
                }
            }
        }
    }

    fn device_changed(self: &Arc<Self>, context: &Arc<Context>, change: &DeviceChange) {
        // Marked first: a queue pair that is being made sees the mark, or is found here.
        context.changed(change);
        if !matches!(change, DeviceChange::Removed) {
            return;
        }
        for qp in self.qps.all() {
            if Arc::ptr_eq(qp.pd().context(), context) {
                let overruns = self.fail(&qp, VendorError::FLUSHED_BY_DEVICE);
                self.fail_overrun(overruns);
            }
        }
    }

    pub(crate) fn wake_engine(&self) {
        // A full counter means that the engine is being woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Runs `call` on the engine thread.
    pub(crate) fn call_on_engine(&self, call: EngineCall) {
        lock(&self.engine_calls).push(call);
        self.wake_engine();
    }

    pub(crate) fn take_engine_calls(&self) -> Vec<EngineCall> {
        std::mem::take(&mut *lock(&self.engine_calls))
    }

    /// The calling thread sleeps on the port from now on, if no other does and nobody else counts
    /// on the engine.
    pub(crate) fn try_lead(&self) -> Option<Leading<'_>> {
        if self.armed.load(Ordering::SeqCst) > 0 || self.is_gone() {
            return None;
        }
        let port = read(&self.port).as_ref().map(Arc::clone)?;
        self.lead.try_begin(self, port)
    }

    pub(crate) fn lingering(&self) -> &Linger {
        &self.linger
    }

    pub(crate) fn lead(&self) -> &Lead {
        &self.lead
    }

    /// Whether somebody sleeps who counts on the engine.
    pub(crate) fn has_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn cq_armed(&self) {
        self.armed.fetch_add(1, Ordering::SeqCst);
        if self.lead.end_if_idle() {
            self.wake_engine();
        }
        if self.standing_back.swap(false, Ordering::SeqCst) {
            self.wake_engine();
        }
    }

    pub(crate) fn cq_disarmed(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the engine leaves the port to the program, which is trusted to poll, for a moment. True only while no
    /// completion queue is armed.
    pub(crate) fn may_stand_back(&self, is_trusted: bool) -> bool {
        self.standing_back.store(is_trusted, Ordering::SeqCst);
        // Who arms, or calls back, from here on sees the flag and wakes the engine.
        let stand_back = is_trusted && !self.has_armed() && !self.is_called_back();
        if is_trusted && !stand_back {
            self.standing_back.store(false, Ordering::SeqCst);
        }
        stand_back
    }

    /// The program does not receive after all: the engine is to do so at once.
    pub(crate) fn call_back(&self) {
        self.called_back.store(true, Ordering::SeqCst);
        if self.standing_back.swap(false, Ordering::SeqCst) {
            self.wake_engine();
        }
    }

    fn is_called_back(&self) -> bool {
        self.called_back.load(Ordering::SeqCst)
    }

    /// Whether it was called back since the last call.
    pub(crate) fn take_call_back(&self) -> bool {
        self.is_called_back() && self.called_back.swap(false, Ordering::SeqCst)
    }

    /// Polls that found the port theirs; wraps around.
    pub(crate) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    pub(crate) fn resume(&self) {
        self.standing_back.store(false, Ordering::SeqCst);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let port = self.port.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(port) = port.take() {
            let slot = port.slot();
            // The engine has dropped its reference: this closes the slot.
            drop(port);
            self.source.port_closed(slot);
        }
    }
}

/// One more, unless there are `max` already.
fn count_up(counter: &AtomicU32, max: u32) -> Option<()> {
    let more = |count: u32| (count < max).then_some(count + 1);
    let counted = counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
    counted.ok().map(drop)
}

#[cfg(test)]
mod tests;
