//! Identifiers.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use oarlock_port::fork::{self, PerProcess};
use oarlock_ucm::abi::Ece;
use oarlock_ucm::client::{self, Addresses, Answer, Call, DeviceRef, Gids, IdNumber};

use super::call;
use super::channel::Channel;
use super::devices::{self, Bound};
use super::endpoint::Kept;
use super::ledger::Ledger;
use super::{event, multicast, resolve};
use crate::abi::*;
use crate::errno::{self, Refused, Result};
use crate::process::{self, Process};

/// An identifier. The list of all of them holds it until it is destroyed; C's pointer counts nothing. A thread that handles
/// an event of it holds it, too.
#[repr(C)]
pub(crate) struct Id {
    abi: UnsafeCell<rdma_cm_id>,
    /// What names it in events; never that of another identifier of this process.
    uid: u64,
    number: IdNumber,
    process: Process,
    fork_generation: u32,
    /// Where it reports. Commands name the channel: they hold it while they run, so that none of them misses an identifier
    /// that migrates.
    pub(super) reports_to: RwLock<Arc<Channel>>,
    /// Nobody but the identifier itself has the channel, and its calls wait.
    is_sync: AtomicBool,
    /// Held by whoever changes `qp` in the public part, or uses what it points to on the library's own account.
    qp: Mutex<()>,
    pub(super) ledger: Ledger,
    pub(super) terms: Mutex<Terms>,
    /// Completing the connection failed, and the program knows: the end that follows is nothing new.
    pub(super) has_failed: AtomicBool,
    /// Its device, once it has one.
    device: Mutex<Option<Bound>>,
    /// The path records that the public part points to.
    paths: Mutex<Box<[ibv_sa_path_rec]>>,
    /// endpoint: what was made for it, and what its children will be made of.
    pub(super) kept: Kept,
}

/// What is going to be agreed on with the peer.
#[derive(Default)]
pub(crate) struct Terms {
    /// Reads and atomics that this side accepts.
    pub(crate) responder_resources: u8,
    /// Reads and atomics that this side has under way.
    pub(crate) initiator_depth: u8,
    /// Goes before the private data of the next connection request (`ai_connect`).
    pub(crate) connect_prefix: Vec<u8>,
    /// Options of enhanced connection establishment that go with the next message.
    pub(crate) local_ece: Ece,
    /// Those that the peer's last message carried.
    pub(crate) remote_ece: Ece,
}

// SAFETY: the public part is C's and reached by pointer only; everything else is `Send` and `Sync` by itself.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

/// Every identifier that is not destroyed, by its uid.
static IDS: PerProcess<Mutex<BTreeMap<u64, Arc<Id>>>> = PerProcess::new(|_| Mutex::default());

fn all() -> MutexGuard<'static, BTreeMap<u64, Arc<Id>>> {
    IDS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that names an identifier, or a multicast join, in events; none comes twice.
pub(crate) fn next_uid() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The identifier that an event names, if it still exists.
pub(crate) fn find(uid: u64) -> Option<Arc<Id>> {
    all().get(&uid).cloned()
}

impl Id {
    /// Makes an identifier on `channel`; without one it is synchronous.
    ///
    /// # Errors
    /// `EINVAL`: no such port space. `ENOSYS`: no such type of queue pair in port space IB. As [`Channel::open`].
    pub(crate) fn create(
        channel: Option<Arc<Channel>>,
        context: *mut c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Result<Arc<Self>> {
        let is_sync = channel.is_none();
        let channel = match channel {
            Some(channel) => channel,
            None => Channel::open(&process::current()?)?,
        };
        let unknown = |_| Refused::new(libc::EINVAL, format!("{ps:#x} is no port space"));
        let number = u16::try_from(ps).map_err(unknown)?;
        // The service knows types by their numbers in the kernel, which are those of C.
        let service_type = u8::try_from(qp_type)
            .map_err(|_| Refused::new(libc::EINVAL, "no such type of queue pair"))?;
        let uid = next_uid();
        let command = client::create_id(uid, number, service_type);
        let number = call::call(channel.host(), channel.token(), command)?;
        Ok(Self::enter(
            channel,
            uid,
            number,
            is_sync,
            (context, ps, qp_type),
        ))
    }

    /// The identifier that came with a connection request on `channel`, as it looks before anything is known of it.
    pub(crate) fn child(listener: &Self, channel: &Arc<Channel>, number: IdNumber) -> Arc<Self> {
        let public = listener.abi();
        // SAFETY: the listener's public part is valid as long as it is.
        let inherited = unsafe { ((*public).context, (*public).ps, (*public).qp_type) };
        Self::enter(Arc::clone(channel), next_uid(), number, false, inherited)
    }

    fn enter(
        channel: Arc<Channel>,
        uid: u64,
        number: IdNumber,
        is_sync: bool,
        (context, ps, qp_type): (*mut c_void, rdma_port_space, ibv_qp_type),
    ) -> Arc<Self> {
        // SAFETY: every field is an integer, a pointer or bytes, for which zero is a value.
        let mut public: rdma_cm_id = unsafe { std::mem::zeroed() };
        public.channel = channel.as_ptr();
        public.context = context;
        public.ps = ps;
        public.qp_type = qp_type;
        let id = Arc::new(Self {
            abi: UnsafeCell::new(public),
            uid,
            number,
            process: channel.process().clone(),
            fork_generation: fork::generation(),
            reports_to: RwLock::new(channel),
            is_sync: AtomicBool::new(is_sync),
            qp: Mutex::new(()),
            ledger: Ledger::default(),
            terms: Mutex::default(),
            has_failed: AtomicBool::new(false),
            device: Mutex::new(None),
            paths: Mutex::default(),
            kept: Kept::default(),
        });
        all().insert(uid, Arc::clone(&id));
        id
    }

    /// The identifier that C knows as `id`.
    ///
    /// # Errors
    /// `EINVAL`: null. `EACCES`: it was made before a fork, by the parent; so the kernel answers whoever has other credentials
    /// than the opener of the descriptor.
    ///
    /// # Safety
    /// `id` is null, or what C got of this library and has not destroyed.
    pub(crate) unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a Self> {
        if id.is_null() {
            return Err(Refused::new(libc::EINVAL, "no identifier is given"));
        }
        // SAFETY: the caller's promise; `abi` is the first field.
        let id = unsafe { &*id.cast::<Self>() };
        if id.fork_generation != fork::generation() {
            return Err(Refused::new(
                libc::EACCES,
                "the identifier is of the process that this one was forked from",
            ));
        }
        Ok(id)
    }

    /// What C knows the identifier by, for its public fields. They are C's, too: no reference is made to them.
    pub(crate) fn abi(&self) -> *mut rdma_cm_id {
        UnsafeCell::raw_get(&raw const self.abi)
    }

    pub(crate) fn uid(&self) -> u64 {
        self.uid
    }

    pub(crate) fn number(&self) -> IdNumber {
        self.number
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// The type of queue pair that C's headers name.
    pub(crate) fn qp_type(&self) -> ibv_qp_type {
        // SAFETY: the public part is valid as long as the identifier is.
        unsafe { (*self.abi()).qp_type }
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// Whether its calls wait for what comes of them.
    pub(crate) fn is_sync(&self) -> bool {
        self.is_sync.load(Ordering::Acquire)
    }

    pub(super) fn set_sync(&self, is_sync: bool) {
        self.is_sync.store(is_sync, Ordering::Release);
    }

    /// Where it reports, kept for as long as a command runs.
    pub(crate) fn bound(&self) -> RwLockReadGuard<'_, Arc<Channel>> {
        self.reports_to
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out one command of the identifier.
    ///
    /// # Errors
    /// The kernel's, with the service's sentence.
    pub(crate) fn call<A: Answer>(&self, command: Call<A>) -> Result<A> {
        let channel = self.bound();
        call::call(channel.host(), channel.token(), command)
    }

    /// Whoever has it may use the queue pair that the public part names, and nobody else destroys it meanwhile.
    pub(crate) fn qp_turn(&self) -> MutexGuard<'_, ()> {
        self.qp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the program gave the identifier a queue pair.
    pub(crate) fn has_qp(&self) -> bool {
        // SAFETY: the public part is valid as long as the identifier is.
        unsafe { !(*self.abi()).qp.is_null() }
    }

    pub(crate) fn terms(&self) -> MutexGuard<'_, Terms> {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identifier's part in its device, if it has one.
    pub(crate) fn device(&self) -> MutexGuard<'_, Option<Bound>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what the service knows of addresses and device.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub(super) fn learn_addresses(&self, known: &Addresses) -> Result<()> {
        resolve::show_addresses(self, known);
        match &known.device {
            Some(device) => self.learn_device(device),
            None => Ok(()),
        }
    }

    fn learn_device(&self, known: &DeviceRef) -> Result<()> {
        let mut device = self.device();
        if device.is_some() {
            return Ok(());
        }
        let bound = devices::bind(&self.process, known)?;
        let public = self.abi();
        // SAFETY: the public part is valid as long as the identifier is; nobody else writes these fields.
        unsafe {
            (*public).verbs = bound.verbs;
            (*public).pd = bound.pd;
            (*public).port_num = known.port;
            (*public).route.addr.ibaddr.pkey = known.pkey.to_be();
        }
        *device = Some(bound);
        Ok(())
    }

    /// Takes over what the service knows of GIDs.
    pub(super) fn learn_gids(&self, known: &Gids) {
        let public = self.abi();
        // SAFETY: as above.
        unsafe {
            (*public).route.addr.ibaddr.sgid = ibv_gid { raw: known.local };
            (*public).route.addr.ibaddr.dgid = ibv_gid { raw: known.remote };
        }
    }

    /// Takes over path records.
    pub(super) fn learn_paths(&self, records: Vec<ibv_sa_path_rec>) {
        let count = c_int::try_from(records.len()).unwrap_or(c_int::MAX);
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *paths, records.into_boxed_slice());
        let first = if paths.is_empty() {
            ptr::null_mut()
        } else {
            paths.as_mut_ptr()
        };
        let public = self.abi();
        // SAFETY: as above; the records live as long as the identifier, or until there are others.
        unsafe {
            (*public).route.path_rec = first;
            (*public).route.num_paths = count;
        }
        drop(old);
    }

    /// Destroys the identifier and waits until all its events are acknowledged. Its memory goes with the last thread that
    /// handles one.
    ///
    /// # Errors
    /// The service does not know it. Nothing is destroyed then.
    pub(crate) fn destroy(&self) -> Result<()> {
        let channel = Arc::clone(&self.bound());
        if channel.is_closed() {
            // The service destroyed it with the channel.
            self.release();
            return Ok(());
        }
        let reported = match self.call(client::destroy_id(self.number)) {
            Ok(reported) => reported,
            Err(_) if self.process.host.is_gone() => {
                // So has everything that it knew.
                self.release();
                return Ok(());
            }
            Err(refused) => return Err(refused),
        };
        channel.forget(self.number.0);
        self.ledger.close_account(channel.serial(), reported.0);
        event::release_kept(self);
        self.ledger.wait(&format_args!("rdma_destroy_id of {self}"));
        self.release();
        Ok(())
    }

    fn release(&self) {
        // Memberships hold the identifier.
        multicast::forget(self);
        let listed = all().remove(&self.uid);
        if self.is_sync() {
            self.bound().close();
        }
        self.device().take();
        drop(listed);
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "identifier {}", self.number.0)
    }
}

/// Makes an identifier; without a channel it is synchronous.
///
/// # Safety
/// `channel` is null or a channel of this library; `id` is null or valid for writing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    // SAFETY: the caller's promise.
    errno::minus_one("rdma_create_id", unsafe {
        create(channel, id, context, ps)
    })
}

unsafe fn create(
    channel: *mut rdma_event_channel,
    place: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> Result<()> {
    if place.is_null() {
        return Err(Refused::new(libc::EINVAL, "no place for the identifier"));
    }
    let channel = if channel.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { Channel::share(channel) }?)
    };
    let qp_type = match ps {
        RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    };
    let id = Id::create(channel, context, ps, qp_type)?;
    // SAFETY: the caller's promise.
    unsafe { *place = id.abi() };
    Ok(())
}

/// Destroys an identifier; waits until all its events are acknowledged.
///
/// # Safety
/// `id` is null, or an identifier that C got of this library, uses no more and has not destroyed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    let destroyed = unsafe { Id::of(id) }.and_then(|id| match find(id.uid) {
        Some(held) => held.destroy(),
        None => Err(Refused::new(
            libc::EINVAL,
            "the identifier is not one of this process",
        )),
    });
    errno::minus_one("rdma_destroy_id", destroyed)
}
