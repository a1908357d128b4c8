//! Queue pairs: the packet engine of `oarlock-transport` behind a lock, and its driver.

mod create;
mod shared;

use std::any::Any;
use std::sync::Arc;

use oarlock_transport::{
    AccessFlags, AttrMask, BindWindow, Counters, QpAttr, QpState, QpType, RecvWr, SendData, SendOp,
    SendWr,
};
use oarlock_wire::{Gid, LKey, Qpn, RKey};

use crate::cq::Cq;
use crate::endpoint::Core;
use crate::error::Error;
use crate::groups::Group;
use crate::mr::{Window, WindowType};
use crate::pd::Pd;
use crate::srq::Srq;
use crate::xrc::XrcDomain;

pub(crate) use shared::{Overruns, QpInner, QpShared};

/// What a queue pair is created with.
#[derive(Clone)]
pub struct QpInit {
    /// The transport service.
    pub qp_type: QpType,
    /// Depth of the send queue. An XRC target has none: 0 for it, whatever is given.
    pub max_send_wr: u32,
    /// Depth of the receive queue. With `srq`, and for both kinds of XRC, there is none: 0, whatever is given.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send.
    pub max_inline_data: u32,
    /// Every send gives a completion.
    pub sq_sig_all: bool,
    /// Receives come from here instead of a receive queue of its own. RC, UC, UD.
    pub srq: Option<Arc<Srq>>,
    /// The domain of an XRC target, which needs one.
    pub xrc_domain: Option<XrcDomain>,
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
            srq: None,
            xrc_domain: None,
            user: None,
        }
    }
}

/// What [`Qp::bind_window`] binds a window of type 1 to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_mw_bind")]
pub struct WindowBind {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Asks for a completion when the binding succeeds.
    pub signaled: bool,
    /// Key of the region; it must allow windows, and local writes if the window allows remote writes or atomics.
    pub region: LKey,
    /// First byte, as the region counts.
    pub addr: u64,
    /// Length in bytes; 0 unbinds the window.
    pub len: u64,
    /// What peers may do through the window.
    pub access: AccessFlags,
}

/// Called when the peer's first request arrives; see [`Qp::on_comm_est`].
pub type CommEstHook = Box<dyn Fn(Qpn) + Send + Sync>;

/// A queue pair, of any transport service.
///
/// Dropping the handle (of an XRC target the last one: see [`XrcDomain::open_target`]) takes it out of the device without
/// waiting. A thread that handles a packet for it at that moment finishes; no packet is handled later. Its completions stay
/// in the completion queues, except those of a shared receive queue that has gone.
///
/// All methods may be called from several threads. Requests of one thread keep their order; those of one list
/// ([`post_send_list`](Self::post_send_list)) are not mixed with others.
#[doc(alias = "ibv_qp")]
pub struct Qp {
    owner: Arc<Owner>,
}

/// What the handles of a queue pair share; only an XRC target has more than one.
pub(crate) struct Owner {
    shared: Arc<QpShared>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    xrc_domain: Option<XrcDomain>,
}

impl Qp {
    /// Creates a queue pair in state Reset; takes a slot of the port if this process has none.
    ///
    /// An XRC target completes nothing on `send_cq` and `recv_cq`: its receives complete where the shared receive queue
    /// that a message names says.
    ///
    /// # Errors
    /// `OutOfRange`: beyond a limit of the device, which the error names. `OtherContext`: which object. `Needs`,
    /// `DoesNotTake`: what goes with which type. `UnsupportedQpType`. `TooManyQueuePairs`. `NoPort`: the host gives no slot.
    /// `DeviceFatal`. `Forked`.
    #[doc(alias = "ibv_create_qp")]
    pub fn new(
        pd: &Pd,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        mut init: QpInit,
    ) -> Result<Self, Error> {
        let context = pd.context();
        let core = context.endpoint().core();
        core.check_not_forked()?;
        create::check(pd, send_cq, recv_cq, &mut init)?;
        if context.is_removed() {
            return Err(Error::DeviceFatal);
        }
        let slot = core.attach()?;
        let device = context.device();
        let (srq, xrc_domain) = (init.srq.take(), init.xrc_domain.take());
        let shared = core.qps().insert(slot, |qpn| {
            let engine = create::engine(device, qpn, &init, srq.is_some());
            let number = xrc_domain.clone();
            QpShared::new(
                qpn,
                pd,
                (send_cq, recv_cq),
                (srq.as_deref(), number),
                engine,
                init,
            )
        })?;
        if shared.qp_type() != QpType::XrcTarget {
            send_cq.shared().attach(&shared);
            if !Arc::ptr_eq(send_cq, recv_cq) {
                recv_cq.shared().attach(&shared);
            }
        }
        if let Some(srq) = &srq {
            srq.shared().attach_qp();
        }
        let owner = Arc::new(Owner {
            shared,
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
            srq,
            xrc_domain,
        });
        if let Some(domain) = &owner.xrc_domain {
            domain.enter_target(owner.shared.qpn(), &owner);
        }
        // The service died, or the device went, while we were in no list; nobody else fails this one.
        if core.is_gone() || context.is_removed() {
            return Err(Error::DeviceFatal);
        }
        Ok(Self { owner })
    }

    /// One more handle.
    pub(crate) fn of(owner: Arc<Owner>) -> Self {
        Self { owner }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.shared().qpn()
    }

    /// Its transport service.
    pub fn qp_type(&self) -> QpType {
        self.shared().qp_type()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        self.shared().pd()
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.owner.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.owner.recv_cq
    }

    /// Where its receives come from, if not from a queue of its own.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.owner.srq.as_ref()
    }

    /// The domain of an XRC target.
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.owner.xrc_domain.as_ref()
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.shared().lock().transport.state()
    }

    /// Its attributes; the mask names those that have been given.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        self.shared().lock().transport.query()
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.shared().lock().transport.counters().clone()
    }

    /// Changes state and attributes.
    ///
    /// # Errors
    /// `QueuePair`: which transition, and which attribute is missing, extra or out of range.
    /// `OutOfRange`: not the device's port. `MtuTooLarge`. `DeviceFatal`: towards any state but
    /// Error and Reset.
    ///
    /// On the way to Error, what has arrived at the port is received first: requests that the peer had acknowledged before the
    /// program learned by another way that the connection has ended complete as done, not as flushed.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        self.core().check_not_forked()?;
        let device = self.pd().context().device();
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
        if !ends && (self.core().is_gone() || self.pd().context().is_removed()) {
            return Err(Error::DeviceFatal);
        }
        if ends && attr.state == QpState::Error {
            self.core().progress();
        }
        self.core()
            .with_qp(self.shared(), |inner| self.shared().modify(inner, attr))?;
        Ok(())
    }

    /// Takes the completions of its requests that have not been polled out of its completion queues. What completes later
    /// comes there as ever; in state Reset nothing does.
    pub fn forget_completions(&self) {
        self.shared().forget_completions();
    }

    /// Drops this handle, and with the last one also the completions of its requests that have not been polled.
    pub fn destroy(self) {
        let shared = Arc::clone(self.shared());
        drop(self);
        if shared.is_destroyed() {
            shared.forget_completions();
        }
    }

    /// Posts a request; packets leave from this thread, as far as the window allows. If many are on their way already, a short
    /// one waits for the next acknowledgement, and leaves with others that are posted meanwhile. In a program that waits for
    /// bytes which its peer writes, and not for completions, this thread then receives for a moment (60 µs at most).
    ///
    /// # Errors
    /// `QueuePair`: state, depth, number of elements, length or an operation that the type of queue pair has not, with the
    /// limit. `Forked`.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, request: &SendWr<'_>) -> Result<(), Error> {
        self.core().check_not_forked()?;
        self.send(|inner| inner.transport.post_send(request))?;
        Ok(())
    }

    /// Posts many requests, in order, until one is refused; their packets leave together.
    ///
    /// # Errors
    /// Index of the first one that was refused and why, as [`post_send`](Self::post_send): those before it are posted, it
    /// and those after it are not.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send_list(&self, requests: &[SendWr<'_>]) -> Result<(), (usize, Error)> {
        self.core().check_not_forked().map_err(|error| (0, error))?;
        self.send(|inner| {
            for (i, request) in requests.iter().enumerate() {
                let posted = inner.transport.post_send(request);
                posted.map_err(|error| (i, Error::from(error)))?;
            }
            Ok(())
        })
    }

    /// Runs `post` on the packet engine, and lingers behind a request that nothing is on its way before.
    fn send<E>(&self, post: impl FnOnce(&mut QpInner) -> Result<(), E>) -> Result<(), E> {
        let core = self.core();
        let placed = core.placed_writes();
        let (posted, is_alone) = core.with_posting(self.shared(), |inner| {
            let is_alone = inner.transport.has_sent_all();
            (post(inner), is_alone)
        });
        if is_alone && posted.is_ok() {
            core.linger(placed);
        }
        posted
    }

    /// Posts many requests, in order, or none of them; their packets leave together.
    ///
    /// # Errors
    /// Index of the first one that would be refused and why, as [`post_send`](Self::post_send).
    #[doc(alias = "ibv_wr_complete")]
    pub fn post_send_all(&self, requests: &[SendWr<'_>]) -> Result<(), (usize, Error)> {
        self.core().check_not_forked().map_err(|error| (0, error))?;
        let refused = |(i, error)| (i, Error::from(error));
        self.send(|inner| {
            inner.transport.check_sends(requests).map_err(refused)?;
            for (i, request) in requests.iter().enumerate() {
                let posted = inner.transport.post_send(request);
                posted.map_err(|error| refused((i, error)))?;
            }
            Ok(())
        })
    }

    /// Posts the binding of a window of type 1 and gives the key that the window has from now on; peers can use it when
    /// the request has completed, and the one before no more.
    ///
    /// # Errors
    /// `NotTypeOneWindow`. As [`post_send`](Self::post_send); the window keeps its key then. Rules of the binding itself
    /// (domain, bounds, rights) are found when it is executed, and end the request.
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_window(&self, window: &Window, bind: &WindowBind) -> Result<RKey, Error> {
        self.core().check_not_forked()?;
        if window.window_type() != WindowType::One {
            return Err(Error::NotTypeOneWindow);
        }
        let next = window.choose_key();
        let request = SendWr {
            wr_id: bind.wr_id,
            op: SendOp::BindWindow(BindWindow {
                window: window.rkey(),
                rkey: next,
                region: bind.region,
                addr: bind.addr,
                len: bind.len,
                access: bind.access,
            }),
            data: SendData::Sges(&[]),
            signaled: bind.signaled,
            ..SendWr::default()
        };
        self.core()
            .with_qp(self.shared(), |inner| inner.transport.post_send(&request))?;
        Ok(next)
    }

    /// Posts buffers for one message.
    ///
    /// # Errors
    /// `QueuePair`: state, depth or number of elements, with the limit; receives come from elsewhere
    /// ([`QpInit::srq`], XRC). `Forked`.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, request: &RecvWr<'_>) -> Result<(), Error> {
        self.core().check_not_forked()?;
        self.core()
            .with_qp(self.shared(), |inner| inner.transport.post_recv(request))?;
        Ok(())
    }

    /// Posts many, in order, until one is refused.
    ///
    /// # Errors
    /// Index of the first one that was refused and why, as [`post_recv`](Self::post_recv): those before it are posted, it
    /// and those after it are not.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv_list(&self, requests: &[RecvWr<'_>]) -> Result<(), (usize, Error)> {
        self.core().check_not_forked().map_err(|error| (0, error))?;
        self.core().with_qp(self.shared(), |inner| {
            for (i, request) in requests.iter().enumerate() {
                let posted = inner.transport.post_recv(request);
                posted.map_err(|error| (i, Error::from(error)))?;
            }
            Ok(())
        })
    }

    /// Attaches a UD queue pair to a multicast group of its device's interface: from now on it receives what is sent to the
    /// group with its Q_Key, its own messages included. Attached already, it stays so, and gets each message once.
    ///
    /// The first queue pair of this process makes it a member of the group, which the system tells the network (IGMP,
    /// MLD). Dropping the queue pair detaches it.
    ///
    /// # Errors
    /// `NotUd`. `NotMulticast`. `OutOfRange`: a limit of the device. `TooManyGroups`: a limit of the system. `CannotJoin`: the system refuses, for example
    /// because the interface is gone. `DeviceFatal`. `Forked`.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&self, group: Gid) -> Result<(), Error> {
        self.core().check_not_forked()?;
        let group = self.group("attach_multicast", group)?;
        self.core().attach_multicast(group, self.shared())
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
        if self.core().detach_multicast(group, self.shared()) {
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
    /// [`AsyncEvent::CommEst`](crate::AsyncEvent::CommEst); at once, from here, if that has happened.
    ///
    /// The call comes from the engine thread, with no lock of the device held; a hook that blocks
    /// holds up retransmissions. A hook that owns this queue pair keeps it alive for ever.
    pub fn on_comm_est(&self, hook: CommEstHook) {
        self.shared().on_comm_est(hook);
    }

    /// The program knows that the peer is connected: no hook is called and no
    /// [`AsyncEvent::CommEst`](crate::AsyncEvent::CommEst) raised any more.
    pub fn ignore_comm_est(&self) {
        self.shared().ignore_comm_est();
    }

    fn core(&self) -> &Arc<Core> {
        self.shared().core()
    }

    fn shared(&self) -> &Arc<QpShared> {
        &self.owner.shared
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let core = self.shared.core();
        if core.is_forked() {
            return;
        }
        self.shared.retire();
        if self.shared.qp_type() == QpType::Ud {
            core.detach_all(&self.shared);
        }
        if let Some(domain) = &self.xrc_domain {
            domain.forget_target(self.shared.qpn());
        }
        if let Some(srq) = &self.srq {
            srq.shared().detach_qp();
        }
        self.shared.destroy();
    }
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp")
            .field("qpn", &self.qpn())
            .field("type", &self.qp_type())
            .finish_non_exhaustive()
    }
}
