//! Queue pairs: the packet engine of `oarlock-transport` behind a lock, and its driver.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use oarlock_transport::{
    AttrMask, Counters, QpAttr, QpEvent, QpState, QpType, Rc, RcConfig, RecvWr, SendWr, Ud,
    UdConfig,
};
use oarlock_wire::{Gid, Qpn, Time};

use crate::context::DeviceInfo;
use crate::cq::{Cq, CqShared, Pushed};
use crate::endpoint::Core;
use crate::error::Error;
use crate::event::AsyncEvent;
use crate::groups::Group;
use crate::locks::lock;
use crate::mr::PdMemory;
use crate::pd::Pd;
use crate::transport::Transport;

/// What a queue pair is created with.
#[derive(Clone)]
pub struct QpInit {
    /// The transport service.
    pub qp_type: QpType,
    /// Depth of the send queue.
    pub max_send_wr: u32,
    /// Depth of the receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send.
    pub max_inline_data: u32,
    /// Every send gives a completion.
    pub sq_sig_all: bool,
    /// Comes back with every completion, and lives at least as long as the device may touch
    /// memory that a work request of this queue pair names.
    pub user: Option<Arc<dyn Any + Send + Sync>>,
}

impl Default for QpInit {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
            sq_sig_all: false,
            user: None,
        }
    }
}

/// Called when the peer's first request arrives; see [`Qp::on_comm_est`].
pub type CommEstHook = Box<dyn Fn(Qpn) + Send + Sync>;

/// A queue pair: reliable-connected or unreliable-datagram.
///
/// Dropping the handle takes it out of the device without waiting. A thread that handles a packet
/// for it at that moment finishes; no packet is handled later. Its completions stay in the
/// completion queues.
#[doc(alias = "ibv_qp")]
pub struct Qp {
    shared: Arc<QpShared>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
}

/// What the tables share with the handle. It lives until the last thread that handles a packet
/// for it has finished, and with it `user` and so the memory of its work requests.
pub(crate) struct QpShared {
    qpn: Qpn,
    qp_type: QpType,
    pd: Pd,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    inner: Mutex<QpInner>,
    comm_est: Mutex<CommEst>,
    /// Has asynchronous events in its context's queue, or had.
    has_raised: AtomicBool,
    destroyed: AtomicBool,
    user: Option<Arc<dyn Any + Send + Sync>>,
}

pub(crate) struct QpInner {
    pub(crate) transport: Transport,
    /// Time of this queue pair's entry in the timers that counts.
    pub(crate) scheduled: Option<Time>,
    /// Is in the list of those to be driven after a batch of packets.
    pub(crate) touched: bool,
}

#[derive(Default)]
enum CommEst {
    #[default]
    NotYet,
    Hooked(CommEstHook),
    Happened,
}

impl Qp {
    /// Creates a queue pair in state Reset; takes a slot of the port if this process has none.
    ///
    /// # Errors
    /// `OutOfRange`: beyond a limit of the device, which the error names. `OtherContext`.
    /// `UnsupportedQpType`. `TooManyQueuePairs`. `NoPort`: the host gives no slot. `DeviceFatal`.
    #[doc(alias = "ibv_create_qp")]
    pub fn new(pd: &Pd, send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>, init: QpInit) -> Result<Self, Error> {
        check(pd, send_cq, recv_cq, &init)?;
        let core = pd.context().endpoint().core();
        let slot = core.attach()?;
        let device = pd.context().device();
        let shared = core.qps().insert(slot, |qpn| {
            let transport = transport(device, qpn, &init);
            Arc::new(QpShared {
                qpn,
                qp_type: init.qp_type,
                pd: pd.clone(),
                send_cq: Arc::clone(send_cq.shared()),
                recv_cq: Arc::clone(recv_cq.shared()),
                inner: Mutex::new(QpInner {
                    transport,
                    scheduled: None,
                    touched: false,
                }),
                comm_est: Mutex::default(),
                has_raised: AtomicBool::new(false),
                destroyed: AtomicBool::new(false),
                user: init.user,
            })
        })?;
        send_cq.shared().attach(&shared);
        if !Arc::ptr_eq(send_cq, recv_cq) {
            recv_cq.shared().attach(&shared);
        }
        let qp = Self {
            shared,
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
        };
        if core.is_gone() {
            // The service died while we were in neither list; nobody else fails this one.
            return Err(Error::DeviceFatal);
        }
        Ok(qp)
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.shared.qpn
    }

    /// Its transport service.
    pub fn qp_type(&self) -> QpType {
        self.shared.qp_type
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.recv_cq
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        lock(&self.shared.inner).transport.state()
    }

    /// Its attributes; the mask names those that have been given.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        lock(&self.shared.inner).transport.query()
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        lock(&self.shared.inner).transport.counters().clone()
    }

    /// Changes state and attributes.
    ///
    /// # Errors
    /// `QueuePair`: which transition, and which attribute is missing, extra or out of range.
    /// `OutOfRange`: not the device's port. `MtuTooLarge`. `DeviceFatal`: towards any state but
    /// Error and Reset.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        self.core().check_not_forked()?;
        let device = self.shared.pd.context().device();
        if attr.mask.contains(AttrMask::PORT) && attr.port_num != device.port_num {
            let only = device.port_num.into();
            return Err(Error::OutOfRange {
                parameter: "port number",
                given: attr.port_num.into(),
                min: only,
                max: only,
            });
        }
        let largest = device.max_path_mtu();
        if attr.mask.contains(AttrMask::PATH_MTU) && attr.path_mtu.0 > largest.0 {
            return Err(Error::MtuTooLarge {
                requested: attr.path_mtu,
                largest,
            });
        }
        let ends = attr.mask.contains(AttrMask::STATE)
            && matches!(attr.state, QpState::Error | QpState::Reset);
        if !ends && self.core().is_gone() {
            return Err(Error::DeviceFatal);
        }
        self.core()
            .with_qp(&self.shared, |inner| inner.transport.modify(attr))?;
        Ok(())
    }

    /// Posts a send; packets leave from this thread, as far as the window allows.
    ///
    /// # Errors
    /// `QueuePair`: state, depth, number of elements or length, with the limit. `Forked`.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, request: &SendWr<'_>) -> Result<(), Error> {
        self.core().check_not_forked()?;
        self.core()
            .with_qp(&self.shared, |inner| inner.transport.post_send(request))?;
        Ok(())
    }

    /// Posts buffers for one message.
    ///
    /// # Errors
    /// `QueuePair`: state, depth or number of elements, with the limit. `Forked`.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, request: &RecvWr<'_>) -> Result<(), Error> {
        self.core().check_not_forked()?;
        self.core()
            .with_qp(&self.shared, |inner| inner.transport.post_recv(request))?;
        Ok(())
    }

    /// Attaches a UD queue pair to a multicast group of its device's interface: from now on it receives what is sent to the
    /// group with its Q_Key, its own messages included. Attached already, it stays so, and gets each message once.
    ///
    /// The first queue pair of this process makes it a member of the group, which the system tells the network (IGMP,
    /// MLD). Dropping the queue pair detaches it.
    ///
    /// # Errors
    /// `NotUd`. `NotMulticast`. `TooManyGroups`: a limit of the system. `CannotJoin`: the system refuses, for example
    /// because the interface is gone. `DeviceFatal`. `Forked`.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&self, group: Gid) -> Result<(), Error> {
        self.core().check_not_forked()?;
        let group = self.group("attach_multicast", group)?;
        self.core().attach_multicast(group, &self.shared)
    }

    /// Undoes [`attach_multicast`](Self::attach_multicast). A message that a thread of the device has in hand may still
    /// arrive.
    ///
    /// # Errors
    /// `NotUd`. `NotMulticast`. `NotAttached`.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_multicast(&self, group: Gid) -> Result<(), Error> {
        let group = self.group("detach_multicast", group)?;
        if self.core().detach_multicast(group, &self.shared) {
            Ok(())
        } else {
            Err(Error::NotAttached(group.gid))
        }
    }

    fn group(&self, call: &'static str, gid: Gid) -> Result<Group, Error> {
        match self.qp_type() {
            QpType::Ud => {}
            qp_type => return Err(Error::NotUd { call, qp_type }),
        }
        if !gid.is_multicast() {
            return Err(Error::NotMulticast(gid));
        }
        Ok(Group {
            gid,
            ifindex: self.pd().context().device().ifindex,
        })
    }

    /// Calls `hook` once when the peer's first request arrives, in place of
    /// [`AsyncEvent::CommEst`]; at once, from here, if that has happened.
    ///
    /// The call comes from the engine thread, with no lock of the device held; a hook that blocks
    /// holds up retransmissions. A hook that owns this queue pair keeps it alive for ever.
    pub fn on_comm_est(&self, hook: CommEstHook) {
        let mut state = lock(&self.shared.comm_est);
        match *state {
            CommEst::Happened => {
                drop(state);
                hook(self.shared.qpn);
            }
            CommEst::NotYet | CommEst::Hooked(_) => *state = CommEst::Hooked(hook),
        }
    }

    /// The program knows that the peer is connected: no hook is called and no
    /// [`AsyncEvent::CommEst`] raised any more.
    pub fn ignore_comm_est(&self) {
        let before = std::mem::replace(&mut *lock(&self.shared.comm_est), CommEst::Happened);
        // Outside the lock: the hook is the program's.
        drop(before);
    }

    fn core(&self) -> &Arc<Core> {
        self.shared.core()
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.shared.destroyed.store(true, Ordering::Release);
        self.core().qps().remove(self.shared.qpn);
        if self.qp_type() == QpType::Ud {
            self.core().detach_all(&self.shared);
        }
        self.ignore_comm_est();
        // So the queue of events is bounded by the queue pairs there are, also for a program that
        // never reads it.
        if self.shared.has_raised.load(Ordering::Acquire) {
            self.pd().context().forget_events_of(self.shared.qpn);
        }
    }
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp")
            .field("qpn", &format_args!("{:#08x}", self.shared.qpn.get()))
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for QpShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QpShared")
            .field("qpn", &format_args!("{:#08x}", self.qpn.get()))
            .finish_non_exhaustive()
    }
}

impl QpShared {
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn user(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.user.as_ref()
    }

    pub(crate) fn inner(&self) -> &Mutex<QpInner> {
        &self.inner
    }

    /// Whether the handle is gone: nothing more is to be done for this queue pair.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    pub(crate) fn memory<'a>(&'a self, core: &'a Core) -> PdMemory<'a> {
        PdMemory::new(self.pd.context().regions(), self.pd.id(), core.counters())
    }

    /// Publishes what the packet engine has finished; called with `inner` locked, after all its
    /// packets have been sent. Returns completion queues that overran.
    pub(crate) fn publish(self: &Arc<Self>, inner: &mut QpInner) -> [Option<Arc<CqShared>>; 2] {
        let mut overruns = [None, None];
        while let Some(completion) = inner.transport.poll_completion() {
            let (cq, overrun) = if completion.is_send {
                (&self.send_cq, &mut overruns[0])
            } else {
                (&self.recv_cq, &mut overruns[1])
            };
            if cq.push(completion, self) == Pushed::Overrun {
                *overrun = Some(Arc::clone(cq));
            }
        }
        while let Some(event) = inner.transport.poll_event() {
            match event {
                QpEvent::CommEst => self.communication_established(),
                QpEvent::RequestError => {
                    self.raise(AsyncEvent::QpRequestError(self.qpn));
                }
                other => tracing::debug!(?other, "event of a queue pair without a translation"),
            }
        }
        overruns
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.has_raised.store(true, Ordering::Release);
        if !self.is_destroyed() {
            self.pd.context().raise(event);
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

    fn core(&self) -> &Arc<Core> {
        self.pd.context().endpoint().core()
    }
}

/// The packet engine of a queue pair whose sizes have been checked.
fn transport(device: &DeviceInfo, qpn: Qpn, init: &QpInit) -> Transport {
    if init.qp_type == QpType::Ud {
        return Transport::Ud(Ud::new(UdConfig {
            qpn,
            max_send_wr: init.max_send_wr,
            max_recv_wr: init.max_recv_wr,
            max_send_sge: init.max_send_sge,
            max_recv_sge: init.max_recv_sge,
            max_inline: init.max_inline_data,
            sq_sig_all: init.sq_sig_all,
            mtu: device.max_path_mtu(),
        }));
    }
    Transport::Rc(Rc::new(RcConfig {
        qpn,
        max_send_wr: init.max_send_wr,
        max_recv_wr: init.max_recv_wr,
        max_send_sge: init.max_send_sge,
        max_recv_sge: init.max_recv_sge,
        max_inline: init.max_inline_data,
        sq_sig_all: init.sq_sig_all,
        max_qp_rd_atom: device.limits.max_qp_rd_atom,
        max_qp_init_rd_atom: device.limits.max_qp_init_rd_atom,
        ..RcConfig::default()
    }))
}

fn check(pd: &Pd, send_cq: &Cq, recv_cq: &Cq, init: &QpInit) -> Result<(), Error> {
    let context = pd.context();
    if !matches!(init.qp_type, QpType::Rc | QpType::Ud) {
        return Err(Error::UnsupportedQpType(init.qp_type));
    }
    for (cq, object) in [
        (send_cq, "completion queue for sends"),
        (recv_cq, "completion queue for receives"),
    ] {
        if !Arc::ptr_eq(cq.context(), context) {
            return Err(Error::OtherContext { object });
        }
    }
    let limits = context.device().limits;
    for (parameter, given, max) in [
        ("max_send_wr", init.max_send_wr, limits.max_qp_wr),
        ("max_recv_wr", init.max_recv_wr, limits.max_qp_wr),
        ("max_send_sge", init.max_send_sge, limits.max_sge),
        ("max_recv_sge", init.max_recv_sge, limits.max_sge),
        (
            "max_inline_data",
            init.max_inline_data,
            limits.max_inline_data,
        ),
    ] {
        if given > max {
            return Err(Error::OutOfRange {
                parameter,
                given: given.into(),
                min: 0,
                max: max.into(),
            });
        }
    }
    Ok(())
}
