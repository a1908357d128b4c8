//! What the tables of the endpoint share with the handle of a queue pair.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use oarlock_transport::{Completion, QpAttr, QpEvent, QpState, QpType};
use oarlock_wire::{AddressVector, Qpn, Srqn, Time};

use super::{CommEstHook, QpInit};
use crate::cq::{Cq, CqShared, Pushed};
use crate::endpoint::Core;
use crate::event::AsyncEvent;
use crate::locks::{lock, try_lock};
use crate::pd::Pd;
use crate::srq::{Srq, SrqShared};
use crate::transport::Transport;
use crate::xrc::XrcDomain;

/// It lives until the last thread that handles a packet for it has finished, and with it `user` and so the memory of its
/// work requests.
pub(crate) struct QpShared {
    qpn: Qpn,
    qp_type: QpType,
    pd: Pd,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    srq: Option<Arc<SrqShared>>,
    xrc_domain: Option<XrcDomain>,
    inner: Mutex<QpInner>,
    /// Threads that wait for `inner`.
    wanted: AtomicU32,
    comm_est: Mutex<CommEst>,
    /// Has asynchronous events in its context's queue, or had.
    has_raised: AtomicBool,
    destroyed: AtomicBool,
    user: Option<Arc<dyn Any + Send + Sync>>,
}

pub(crate) struct QpInner {
    pub(crate) transport: Transport,
    /// Times of this queue pair's entries in the timers, the next one last. A new one is entered only when it is earlier
    /// than that, so that there are few.
    pub(crate) scheduled: Vec<Time>,
    /// Has more to send than its turn allowed, and waits for another.
    pub(crate) waits_for_turn: bool,
    /// Is in the list of those to be driven after a batch of packets.
    pub(crate) touched: bool,
    /// XRC: the queue that the engine's buffer was taken from; keeps its memory while the engine may write there.
    pub(crate) held: Option<Arc<SrqShared>>,
}

/// Completion queues that overran; their queue pairs must fail.
pub(crate) type Overruns = Vec<Arc<CqShared>>;

#[derive(Default)]
enum CommEst {
    #[default]
    NotYet,
    Hooked(CommEstHook),
    Happened,
}

impl std::fmt::Debug for QpShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QpShared")
            .field("qpn", &self.qpn)
            .finish_non_exhaustive()
    }
}

impl QpShared {
    pub(super) fn new(
        qpn: Qpn,
        pd: &Pd,
        (send_cq, recv_cq): (&Cq, &Cq),
        (srq, xrc_domain): (Option<&Srq>, Option<XrcDomain>),
        transport: Transport,
        init: QpInit,
    ) -> Arc<Self> {
        Arc::new(Self {
            qpn,
            qp_type: init.qp_type,
            pd: pd.clone(),
            send_cq: Arc::clone(send_cq.shared()),
            recv_cq: Arc::clone(recv_cq.shared()),
            srq: srq.map(|srq| Arc::clone(srq.shared())),
            xrc_domain,
            inner: Mutex::new(QpInner {
                transport,
                scheduled: Vec::new(),
                waits_for_turn: false,
                touched: false,
                held: None,
            }),
            wanted: AtomicU32::new(0),
            comm_est: Mutex::default(),
            has_raised: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
            user: init.user,
        })
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    pub(crate) fn user(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.user.as_ref()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, QpInner> {
        if let Some(inner) = try_lock(&self.inner) {
            return inner;
        }
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let inner = lock(&self.inner);
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        inner
    }

    /// For turns, which give way: `None` if another thread has it or waits for it.
    pub(crate) fn lock_if_unwanted(&self) -> Option<MutexGuard<'_, QpInner>> {
        if self.wanted.load(Ordering::SeqCst) > 0 {
            return None;
        }
        try_lock(&self.inner)
    }

    /// Whether the handle is gone: nothing more is to be done for this queue pair.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    /// Whether a packet was sent to an address of this queue pair's device.
    pub(crate) fn is_at(&self, from: &AddressVector) -> bool {
        let context = self.pd.context();
        // A link-local address may be that of several interfaces: the packet's tells.
        let is_here = from.scope_id == 0 || from.scope_id == context.device().ifindex;
        is_here && context.gids().contains(&from.local)
    }

    /// The shared receive queue that a message takes its buffer from: that of the queue pair, or the one that it names.
    pub(crate) fn shared_receives(&self, named: Option<Srqn>) -> Option<Arc<SrqShared>> {
        match (named, &self.xrc_domain) {
            (Some(number), Some(domain)) => domain.srq(number),
            _ => self.srq.as_ref().map(Arc::clone),
        }
    }

    /// Publishes what the packet engine has finished; called with `inner` locked, after all its
    /// packets have been sent.
    pub(crate) fn publish(self: &Arc<Self>, inner: &mut QpInner) -> Overruns {
        let mut overruns = Overruns::new();
        while let Some(completion) = inner.transport.poll_completion() {
            self.complete(completion, &inner.held, &mut overruns);
        }
        while let Some(event) = inner.transport.poll_event() {
            match event {
                QpEvent::CommEst => self.communication_established(),
                QpEvent::RequestError => self.raise(AsyncEvent::QpRequestError(self.qpn)),
                QpEvent::AccessError => self.raise(AsyncEvent::QpAccessError(self.qpn)),
                QpEvent::SqDrained => self.raise(AsyncEvent::SqDrained(self.qpn)),
                QpEvent::LastWqeReached => self.raise(AsyncEvent::LastWqeReached(self.qpn)),
                // That the device is gone is one event of the device.
                QpEvent::Fatal if self.has_lost_device() => {}
                QpEvent::Fatal => self.raise(AsyncEvent::QpFatal(self.qpn)),
                other => tracing::error!(?other, "event of a queue pair without a translation"),
            }
        }
        overruns
    }

    fn has_lost_device(&self) -> bool {
        self.pd.context().is_removed() || self.core().is_gone()
    }

    fn complete(
        self: &Arc<Self>,
        completion: Completion,
        held: &Option<Arc<SrqShared>>,
        overruns: &mut Overruns,
    ) {
        if completion.is_send {
            if self.send_cq.push(completion, self, None) == Pushed::Overrun {
                overruns.push(Arc::clone(&self.send_cq));
            }
            return;
        }
        let Some(number) = completion.srqn else {
            let pushed = self.recv_cq.push(completion, self, self.srq.as_ref());
            if pushed == Pushed::Overrun {
                overruns.push(Arc::clone(&self.recv_cq));
            }
            return;
        };
        // One that is gone is not found, and nobody wants its completions.
        let srq = match held {
            Some(srq) if srq.number() == Some(number) => Some(Arc::clone(srq)),
            _ => self.shared_receives(Some(number)),
        };
        if let Some(srq) = srq
            && let Some(cq) = srq.cq()
            && cq.push(completion, self, Some(&srq)) == Pushed::Overrun
        {
            // The queue knows only the queue pairs that were made for it.
            cq.attach(self);
            overruns.push(Arc::clone(cq));
        }
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.has_raised.store(true, Ordering::Release);
        if !self.is_destroyed() {
            self.pd.context().raise(event);
        }
    }

    pub(super) fn on_comm_est(&self, hook: CommEstHook) {
        let mut state = lock(&self.comm_est);
        match *state {
            CommEst::Happened => {
                drop(state);
                hook(self.qpn);
            }
            CommEst::NotYet | CommEst::Hooked(_) => *state = CommEst::Hooked(hook),
        }
    }

    pub(super) fn ignore_comm_est(&self) {
        let before = std::mem::replace(&mut *lock(&self.comm_est), CommEst::Happened);
        // Outside the lock: the hook is the program's.
        drop(before);
    }

    /// Changes state and attributes; called with `inner` locked.
    pub(super) fn modify(
        &self,
        inner: &mut QpInner,
        attr: &QpAttr,
    ) -> Result<(), oarlock_transport::Error> {
        inner.transport.modify(attr)?;
        if inner.transport.state() == QpState::Reset {
            inner.held = None;
            self.release_windows();
        }
        Ok(())
    }

    pub(super) fn forget_completions(&self) {
        self.send_cq.forget(self);
        self.recv_cq.forget(self);
    }

    /// Windows of type 2 that were bound through it are bound no more.
    fn release_windows(&self) {
        self.pd.context().regions().release_windows_of(self.qpn);
    }

    /// Takes it out of the table of queue pairs.
    pub(super) fn retire(&self) {
        self.pd.context().retire(|| {
            self.core().qps().remove(self.qpn);
            let inner = self.lock();
            // With the lock in hand: no packet that is being handled finds them bound again.
            self.destroyed.store(true, Ordering::Release);
            self.release_windows();
            inner.transport.counters().clone()
        });
    }

    /// The last handle has gone, and the tables know it no more.
    pub(super) fn destroy(&self) {
        debug_assert!(self.is_destroyed());
        self.ignore_comm_est();
        // So the queue of events is bounded by the queue pairs there are, also for a program that
        // never reads it.
        if self.has_raised.load(Ordering::Acquire) {
            let qpn = self.qpn;
            let context = self.pd.context();
            context.forget_events(|event| event.qpn() == Some(qpn));
        }
    }

    fn communication_established(&self) {
        let before = std::mem::replace(&mut *lock(&self.comm_est), CommEst::Happened);
        match before {
            CommEst::NotYet => self.raise(AsyncEvent::CommEst(self.qpn)),
            CommEst::Hooked(hook) => {
                let qpn = self.qpn;
                self.core().call_on_engine(Box::new(move || hook(qpn)));
            }
            CommEst::Happened => {}
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.pd.context().endpoint().core()
    }
}
