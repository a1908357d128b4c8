//! The identifier's device and queue pair.

use crate::command;
use crate::connect::ReadLimits;
use crate::error::{Error, Result};
use crate::identifier::{Identifier, Shared};
use oarlock_ucm::abi::{UverbsQpAttr, notify_event, qp_state};
use oarlock_ucm::client;
use oarlock_verbs::{
    AccessFlags, AttrMask, CompletionQueue, Context, ProtectionDomain, QpAttr, QpInitAttr, QpState,
    QpType, QueuePair, SharedReceiveQueue,
};
use oarlock_wire::{
    AddressVector, FlowLabel, Gid, IbTimeout, Mtu, PKey, Psn, QKey, Qpn, RetryCount,
};
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

impl Identifier {
    /// The device the identifier is bound to: after binding to an address that is neither a wildcard nor loopback, after
    /// address resolution, and on the passive side from the beginning.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: not bound to one yet.
    ///
    /// # Blocking
    /// One round trip to the host service, once.
    pub fn device(&self) -> Result<Context> {
        self.0.device("device")
    }

    /// Makes the identifier's queue pair and brings it to state Init, so that receives can be posted. From then on the
    /// identifier moves it: to RTS when the connection is established or accepted, to Error when it ends. One for datagrams
    /// is brought to RTS at once, with the identifier's Q_Key.
    ///
    /// # Errors
    /// [`Error::QueuePairExists`]; [`Error::NoDevice`]; [`Error::OtherDevice`]; [`Error::OtherQpType`];
    /// [`Error::Verbs`].
    ///
    /// # Blocking
    /// One round trip to the host service.
    #[doc(alias = "rdma_create_qp")]
    #[doc(alias = "rdma_create_qp_ex")]
    pub fn create_qp(
        &self,
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        init: QpInitAttr,
    ) -> Result<QueuePair> {
        self.make_qp(pd, init, || QueuePair::create(pd, send_cq, recv_cq, init))
    }

    /// As [`create_qp`](Self::create_qp); the queue pair's messages go into receives of `srq`, which may serve any number of
    /// them. The peer is told so with the connection, as [`PeerParam::srq`](crate::PeerParam::srq). `max_recv_wr` and
    /// `max_recv_sge` of `init` are of no meaning then.
    ///
    /// # Errors
    /// As there; [`Error::Verbs`] when the queue is of another device, or one of XRC.
    ///
    /// # Blocking
    /// As there.
    ///
    /// # Examples
    /// Two connections of a listener take their receives from one queue.
    ///
    /// ```
    /// use oarlock_rdmacm::{ConnParam, ConnectionOptions, Connector, Host, Identifier, PortSpace};
    /// use oarlock_verbs::{Buffer, CompletionQueue, QpInitAttr, SendRequest, SharedReceiveQueue, SrqInitAttr};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let host = Host::private()?;
    /// let listener = Identifier::synchronous(&host, PortSpace::TCP)?;
    /// listener.bind_addr("127.0.0.1:0".parse()?)?;
    /// listener.listen(0)?;
    /// let address = listener.local_addr()?.expect("it is bound");
    /// let peers = std::thread::spawn(move || {
    ///     for message in [b"one", b"two"] {
    ///         let connection = Connector::new(&host).connect(address).expect("it listens");
    ///         let sent = SendRequest::inline(1, message);
    ///         connection.queue_pair.post_send(sent).expect("it is connected");
    ///         connection.until_disconnected().expect("the listener disconnects");
    ///     }
    /// });
    ///
    /// let mut shared = None;
    /// for expected in [b"one", b"two"] {
    ///     let id = listener.get_request()?;
    ///     let device = id.device()?;
    ///     let pd = device.default_pd();
    ///     let srq = match &shared {
    ///         Some(srq) => srq,
    ///         None => {
    ///             let srq = SharedReceiveQueue::new(&pd, SrqInitAttr::default())?;
    ///             for number in 0..8 {
    ///                 srq.post_recv(number, Buffer::new(&pd, 64)?)?;
    ///             }
    ///             shared.insert(srq)
    ///         }
    ///     };
    ///     let cq = CompletionQueue::new(&device, 16)?;
    ///     id.create_qp_with_srq(&pd, &cq, &cq, QpInitAttr::default(), srq)?;
    ///     id.accept(&ConnParam::default())?;
    ///     let mut received = Vec::new();
    ///     cq.wait(&mut received, None)?;
    ///     assert_eq!(received.remove(0).ok()?.message(), Some(&expected[..]));
    ///     id.disconnect()?;
    /// }
    /// # peers.join().expect("the peers do not panic");
    /// # Ok(()) }
    /// ```
    #[doc(alias = "rdma_create_srq")]
    #[doc(alias = "rdma_create_srq_ex")]
    #[doc(alias = "rdma_create_qp")]
    pub fn create_qp_with_srq(
        &self,
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        init: QpInitAttr,
        srq: &SharedReceiveQueue,
    ) -> Result<QueuePair> {
        self.make_qp(pd, init, || {
            QueuePair::with_srq(pd, send_cq, recv_cq, srq, init)
        })
    }

    fn make_qp(
        &self,
        pd: &ProtectionDomain,
        init: QpInitAttr,
        create: impl FnOnce() -> Result<QueuePair, oarlock_verbs::Error>,
    ) -> Result<QueuePair> {
        const CALL: &str = "create_qp";
        let shared = &self.0;
        let device = shared.device(CALL)?;
        if pd.context() != &device {
            return Err(Error::OtherDevice {
                given: pd.context().device().name.clone(),
                bound: device.device().name.clone(),
            });
        }
        if init.qp_type != shared.qp_type {
            return Err(Error::OtherQpType {
                call: CALL,
                given: init.qp_type,
                wanted: shared.qp_type,
            });
        }
        let mut slot = shared.lock_queue_pair();
        if slot.is_some() {
            return Err(Error::QueuePairExists { call: CALL });
        }
        let verbs = |source| Error::Verbs { call: CALL, source };
        let attr = match shared.recipes().init {
            Some(known) => known,
            None => shared.ask(CALL, client::init_qp_attr(shared.number, qp_state::INIT))?,
        };
        let queue_pair = create().map_err(verbs)?;
        queue_pair
            .modify(&attributes(&device, &attr, CALL)?)
            .map_err(verbs)?;
        if shared.qp_type == QpType::Ud {
            // Datagrams need no peer to be sent and received.
            let states = [qp_state::RTR, qp_state::RTS];
            let recipes: [UverbsQpAttr; 2] = shared.ask_all(
                CALL,
                states.map(|state| client::init_qp_attr(shared.number, state)),
            )?;
            for recipe in &recipes {
                queue_pair
                    .modify(&attributes(&device, recipe, CALL)?)
                    .map_err(verbs)?;
            }
        } else if shared.is_passive {
            queue_pair.on_comm_est(notify_on_first_data(Arc::downgrade(shared)));
        } else {
            // The active side knows by itself when it is established.
            queue_pair.ignore_comm_est();
        }
        *slot = Some(queue_pair.clone());
        Ok(queue_pair)
    }

    /// The identifier's queue pair.
    #[must_use]
    pub fn queue_pair(&self) -> Option<QueuePair> {
        self.0.lock_queue_pair().clone()
    }

    /// Lets go of the queue pair; it is destroyed with its last handle.
    #[doc(alias = "rdma_destroy_qp")]
    pub fn destroy_qp(&self) {
        let mut slot = self.0.lock_queue_pair();
        slot.take();
        self.0.lock_attached().clear();
    }
}

impl Shared {
    pub(crate) fn device(&self, call: &'static str) -> Result<Context> {
        if let Some(device) = self.device.get() {
            return Ok(device.clone());
        }
        self.check_open(call)?;
        let index = match self.recipes().device {
            Some(index) => index,
            None => self.ask_device(call)?,
        };
        let device = match Context::opened(&self.host, index) {
            Some(open) => open,
            None => {
                Context::open(&self.host, index).map_err(|source| Error::Verbs { call, source })?
            }
        };
        Ok(self.device.get_or_init(|| device).clone())
    }

    /// Asks for the device, and in the same message for what a queue pair will need. The passive side's recipes are complete
    /// as soon as there is a request; the active side's change when the reply comes.
    fn ask_device(&self, call: &'static str) -> Result<u32> {
        let states: &[u32] = if self.is_passive {
            &[qp_state::INIT, qp_state::RTR, qp_state::RTS]
        } else {
            &[qp_state::INIT]
        };
        let (addresses, recipes) = {
            let channel = self.bound();
            self.check_open(call)?;
            let recipes = states
                .iter()
                .map(|&state| client::init_qp_attr(self.number, state));
            let query = client::query_addr(self.number);
            command::ask_and_try(&self.host, call, channel.token(), query, recipes)?
        };
        let bound = addresses.device.ok_or(Error::NoDevice { call })?;
        let mut recipes = recipes.into_iter().map(Result::ok);
        self.keep_recipes(Recipes {
            device: Some(bound.index),
            local: addresses.local.map(|address| address.ip()),
            init: recipes.next().flatten(),
            rtr: recipes.next().flatten(),
            rts: recipes.next().flatten(),
        });
        Ok(bound.index)
    }

    pub(crate) fn keep_recipes(&self, recipes: Recipes) {
        *self.lock_recipes() = recipes;
    }

    fn lock_recipes(&self) -> MutexGuard<'_, Recipes> {
        // Only whole values are assigned.
        self.recipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recipes(&self) -> Recipes {
        *self.lock_recipes()
    }

    pub(crate) fn forget_recipes(&self) {
        let mut known = self.lock_recipes();
        *known = Recipes {
            device: known.device,
            local: known.local,
            ..Recipes::default()
        };
    }

    pub(crate) fn read_limits(&self, call: &'static str) -> Result<ReadLimits> {
        let device = self.device(call)?;
        let limits = &device.device().limits;
        Ok(ReadLimits {
            responder_resources: limits.max_qp_rd_atom,
            initiator_depth: limits.max_qp_init_rd_atom,
        })
    }

    /// Active side: brings the queue pair to RTS by the reply's attributes, which came with it. Init again first, since
    /// only now the service knows what the remote side may do. Without a queue pair there is nothing to do.
    pub(crate) fn ready_active(&self, call: &'static str, recipes: &Recipes) -> Result<()> {
        let Some(queue_pair) = self.lock_queue_pair().clone() else {
            return Ok(());
        };
        let recipes = match recipes.all() {
            Some(recipes) => recipes,
            None => self.ask_recipes(call)?,
        };
        self.apply(&queue_pair, &recipes, call)
    }

    /// Passive side: brings the queue pair to RTS by the request's attributes and what is going to be accepted.
    pub(crate) fn ready_passive(
        &self,
        call: &'static str,
        responder_resources: u8,
        initiator_depth: u8,
    ) -> Result<()> {
        if self.qp_type == QpType::Ud {
            return Ok(());
        }
        let Some(queue_pair) = self.lock_queue_pair().clone() else {
            return Ok(());
        };
        let [init, mut rtr, mut rts] = match self.recipes().all() {
            Some(recipes) => recipes,
            None => self.ask_recipes(call)?,
        };
        // The service's recipe says what the request offers; less may be accepted.
        rtr.max_dest_rd_atomic = responder_resources;
        rts.max_rd_atomic = initiator_depth;
        self.apply(&queue_pair, &[init, rtr, rts], call)
    }

    fn ask_recipes(&self, call: &'static str) -> Result<[UverbsQpAttr; 3]> {
        let states = [qp_state::INIT, qp_state::RTR, qp_state::RTS];
        self.ask_all(
            call,
            states.map(|state| client::init_qp_attr(self.number, state)),
        )
    }

    fn apply(
        &self,
        queue_pair: &QueuePair,
        recipes: &[UverbsQpAttr; 3],
        call: &'static str,
    ) -> Result<()> {
        let device = self.device(call)?;
        self.refresh_addresses(&device, &recipes[1], call)?;
        for recipe in recipes {
            queue_pair
                .modify(&attributes(&device, recipe, call)?)
                .map_err(|source| Error::Verbs { call, source })?;
        }
        Ok(())
    }

    /// A recipe names the identifier's own address by its index, and addresses come and go while the device is open: one that
    /// is not what it was is asked for again.
    fn refresh_addresses(
        &self,
        device: &Context,
        rtr: &UverbsQpAttr,
        call: &'static str,
    ) -> Result<()> {
        let known = device.gids();
        let known = known.get(usize::from(rtr.ah_attr.sgid_index));
        if known.is_some() && known == self.recipes().local.map(Gid::from_ip).as_ref() {
            return Ok(());
        }
        let verbs = |source| Error::Verbs { call, source };
        device.refresh().map_err(verbs)
    }

    /// The connection is established: first data says nothing new any more.
    pub(crate) fn ignore_first_data(&self) {
        if let Some(queue_pair) = &*self.lock_queue_pair() {
            queue_pair.ignore_comm_est();
        }
    }

    /// Stops the queue pair of a connection: what is posted completes as flushed.
    pub(crate) fn stop_queue_pair(&self) {
        if self.qp_type == QpType::Rc
            && let Some(queue_pair) = self.lock_queue_pair().clone()
            && let Err(error) = queue_pair.to_error()
        {
            // The device is lost, which stops it as well.
            tracing::debug!(
                "queue pair {:#08x} not stopped: {error}",
                queue_pair.qpn().get()
            );
        }
    }
}

/// The identifier's device and the service's recipes for a queue pair, as far as they are known.
#[derive(Clone, Copy, Default)]
pub(crate) struct Recipes {
    pub(crate) device: Option<u32>,
    /// The identifier's own address.
    pub(crate) local: Option<IpAddr>,
    pub(crate) init: Option<UverbsQpAttr>,
    pub(crate) rtr: Option<UverbsQpAttr>,
    pub(crate) rts: Option<UverbsQpAttr>,
}

impl Recipes {
    fn all(&self) -> Option<[UverbsQpAttr; 3]> {
        Some([self.init?, self.rtr?, self.rts?])
    }
}

/// The first data may overtake the peer's RTU; the service then takes the connection for established (IBA Vol. 1 ch. 12,
/// "communication established").
fn notify_on_first_data(shared: Weak<Shared>) -> Box<dyn Fn(Qpn) + Send + Sync> {
    Box::new(move |_| {
        if let Some(shared) = shared.upgrade() {
            let channel = shared.bound();
            // Sent without waiting, since the device's thread asks; on an established connection it changes nothing.
            let command = client::notify(shared.number, notify_event::COMM_EST);
            command::post(&shared.host, channel.token(), command);
        }
    })
}

/// The service's recipe as the verbs take it.
fn attributes(device: &Context, attr: &UverbsQpAttr, call: &'static str) -> Result<QpAttr> {
    let misfit = || Error::Answer {
        call,
        got: size_of_val(attr),
    };
    let state = match attr.qp_state {
        qp_state::INIT => QpState::Init,
        qp_state::RTR => QpState::Rtr,
        qp_state::RTS => QpState::Rts,
        _ => return Err(misfit()),
    };
    let mask = AttrMask::from_bits_retain(attr.qp_attr_mask);
    let mut taken = QpAttr {
        mask,
        state,
        access: AccessFlags::from_bits_retain(attr.qp_access_flags),
        pkey: PKey::DEFAULT,
        port_num: attr.port_num,
        path_mtu: Mtu(u8::try_from(attr.path_mtu).map_err(|_| misfit())?),
        dest_qpn: Qpn::new(attr.dest_qp_num).ok_or_else(misfit)?,
        rq_psn: Psn::truncate(attr.rq_psn),
        sq_psn: Psn::truncate(attr.sq_psn),
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        max_rd_atomic: attr.max_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: IbTimeout::truncate(attr.timeout),
        retry_count: RetryCount::truncate(attr.retry_cnt),
        rnr_retry: RetryCount::truncate(attr.rnr_retry),
        qkey: QKey(attr.qkey),
        ..QpAttr::default()
    };
    if mask.contains(AttrMask::AV) {
        let path = &attr.ah_attr;
        let gids = device.gids();
        let local = *gids.get(usize::from(path.sgid_index)).ok_or_else(misfit)?;
        taken.av = AddressVector {
            scope_id: if local.is_link_local() {
                device.device().ifindex
            } else {
                0
            },
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            flow_label: FlowLabel::truncate(path.flow_label),
            service_level: path.sl,
            ..AddressVector::new(local, Gid(path.dgid))
        };
    }
    Ok(taken)
}
