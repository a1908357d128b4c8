//! Events: fetched, turned into what C reads, acknowledged.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oarlock_ucm::client::{self, Addresses, EventParam, Gids, IdNumber, Paths, UdEventParam};
use oarlock_ucm::proto::{WriteBatch, WriteItem};

use super::channel::{self, Channel, Wait};
use super::id::{self, Id};
use super::multicast::{self, Join};
use super::{address, call, connect, migrate, names, qp, resolve};
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// An event as C holds it, with what its pointers lead to.
#[repr(C)]
pub(crate) struct Event {
    abi: UnsafeCell<rdma_cm_event>,
    private_data: [u8; PRIVATE_DATA],
    /// Whom its acknowledgement counts for: with a connection request the listener.
    owner: Arc<Id>,
    join: Option<Arc<Join>>,
    /// The serial number of the channel it came out of.
    channel: u64,
    /// It is counted already.
    is_counted: bool,
}

/// What the service knows besides the event, asked for in the same message.
struct About {
    addresses: Option<Addresses>,
    gids: Option<Gids>,
    paths: Option<Paths>,
}

/// What comes of looking for an event.
pub(crate) enum Next {
    Event(*mut rdma_cm_event),
    /// Take a byte from the channel's descriptor, which may wait, and look again.
    Wait(Wait),
}

/// Looks for the next event of a channel. `is_announced`: its byte was taken from the descriptor.
///
/// # Errors
/// `EIO`: the service has gone.
pub(crate) fn next(channel: &Arc<Channel>, mut is_announced: bool) -> Result<Next> {
    loop {
        if !is_announced && !channel.look()? {
            channel.say();
            return Ok(Next::Wait(channel.wait()));
        }
        is_announced = false;
        // The event announced may have moved, or its identifier may have gone.
        if let Some(event) = fetch(channel)? {
            return Ok(Next::Event(event));
        }
    }
}

fn fetch(channel: &Arc<Channel>) -> Result<Option<*mut rdma_cm_event>> {
    // Whose identifier the event is about is not known before: the service puts its number in.
    let anybody = IdNumber(0);
    let token = channel.token();
    let about = |item: WriteItem| WriteItem {
        id_from: Some(0),
        ..item
    };
    let batch = WriteBatch {
        stop_on_error: true,
        items: vec![
            client::get_event().into_item(token),
            about(client::query_addr(anybody).into_item(token)),
            about(client::query_gid(anybody).into_item(token)),
            about(client::query_path(anybody).into_item(token)),
        ],
        acknowledged: channel.take_unsaid(),
    };
    let mut replies = channel.host().call_batch(batch)?.into_iter();
    let event = match replies.next() {
        None => return Err(call::misfit()),
        Some(reply) if reply.errno == libc::EAGAIN => return Ok(None),
        Some(reply) => call::answer(reply)?,
    };
    let about = About {
        addresses: replies.next().and_then(|reply| call::answer(reply).ok()),
        gids: replies.next().and_then(|reply| call::answer(reply).ok()),
        paths: replies.next().and_then(|reply| call::answer(reply).ok()),
    };
    Ok(deliver(channel, &event, &about))
}

/// Turns what the service reports into an event, and does the library's part of it; `None` where the program has nothing
/// to learn.
fn deliver(
    channel: &Arc<Channel>,
    raw: &client::Event,
    about: &About,
) -> Option<*mut rdma_cm_event> {
    let is_join = matches!(
        raw.kind,
        RDMA_CM_EVENT_MULTICAST_JOIN | RDMA_CM_EVENT_MULTICAST_ERROR
    );
    let join = is_join.then(|| multicast::find(raw.uid)).flatten();
    let owner = match &join {
        Some(join) => Some(Arc::clone(join.id())),
        None => id::find(raw.uid),
    };
    let Some(owner) = owner else {
        tracing::error!(
            "event {} is about nobody that this program knows: use the same release for both",
            names::of_event(raw.kind)
        );
        return None;
    };
    let draft = Draft::new(&owner, raw, join.as_ref());
    let done = match raw.kind {
        RDMA_CM_EVENT_ADDR_RESOLVED => addr_resolved(draft, &owner, about),
        RDMA_CM_EVENT_ROUTE_RESOLVED => route_resolved(draft, &owner),
        RDMA_CM_EVENT_CONNECT_REQUEST => request(draft, channel, &owner, raw, about),
        RDMA_CM_EVENT_CONNECT_RESPONSE => response(draft, &owner, raw),
        RDMA_CM_EVENT_REJECTED => rejected(draft, &owner),
        RDMA_CM_EVENT_DISCONNECTED => unless_failed(draft, &owner),
        RDMA_CM_EVENT_MULTICAST_JOIN => joined(draft, raw, join.as_deref()),
        _ => Some(draft),
    };
    match done {
        Some(draft) => Some(draft.give(channel, owner, join)),
        None => {
            let total = owner.ledger.swallowed(channel.serial());
            channel.note_acknowledged(owner.number().0, total);
            None
        }
    }
}

/// An event that is not given to the program yet.
struct Draft {
    public: rdma_cm_event,
    private_data: Vec<u8>,
    is_datagram: bool,
}

impl Draft {
    fn new(owner: &Id, raw: &client::Event, join: Option<&Arc<Join>>) -> Self {
        // SAFETY: every field is an integer, a pointer or bytes, for which zero is a value.
        let mut public: rdma_cm_event = unsafe { std::mem::zeroed() };
        public.id = owner.abi();
        public.event = raw.kind;
        public.status = raw.status;
        if raw.kind == INTERNAL {
            // The library wrote it to itself, and says in it which event the program is to see.
            public.event = u32::try_from(raw.arg()).unwrap_or(INTERNAL);
        }
        let mut draft = Self {
            public,
            private_data: Vec::new(),
            is_datagram: owner.is_datagram(),
        };
        if raw.kind == INTERNAL {
            return draft;
        }
        if raw.kind == USER {
            // SAFETY: later headers have a 64-bit number at the start of the union, which is aligned for it.
            unsafe { (&raw mut draft.public.param).cast::<u64>().write(raw.arg()) };
        } else if let Some(join) = join {
            draft.datagram(&raw.ud());
            draft.private_data.clear();
            // What the program gave to the join stands where others have private data.
            draft.public.param.ud = rdma_ud_param {
                private_data: join.context(),
                private_data_len: 0,
                // SAFETY: written just now.
                ..unsafe { draft.public.param.ud }
            };
        } else if draft.is_datagram {
            draft.datagram(&raw.ud());
        } else {
            draft.connection(&raw.param);
        }
        draft
    }

    fn connection(&mut self, given: &EventParam) {
        self.private_data = given.private_data.clone().unwrap_or_default();
        self.public.param.conn = rdma_conn_param {
            private_data: ptr::null(),
            private_data_len: self.private_data_len(),
            responder_resources: given.responder_resources,
            initiator_depth: given.initiator_depth,
            flow_control: given.flow_control.into(),
            retry_count: given.retry_count,
            rnr_retry_count: given.rnr_retry_count,
            srq: given.srq.into(),
            qp_num: given.qp_num,
        };
    }

    fn datagram(&mut self, given: &UdEventParam) {
        self.private_data = given.private_data.clone().unwrap_or_default();
        self.public.param.ud = rdma_ud_param {
            private_data: ptr::null(),
            private_data_len: self.private_data_len(),
            ah_attr: address::ah_attr(&given.ah_attr),
            qp_num: given.qp_num,
            qkey: given.qkey,
        };
    }

    fn private_data_len(&self) -> u8 {
        // No message carries more than 224 bytes.
        u8::try_from(self.private_data.len()).unwrap_or(u8::MAX)
    }

    /// What was reported as a success has failed here.
    fn failed(mut self, kind: rdma_cm_event_type, refused: &Refused) -> Self {
        tracing::warn!("{}: {refused}", names::of_event(self.public.event));
        self.public.event = kind;
        self.public.status = -refused.errno.0;
        self
    }

    /// Hands the event to C, until [`rdma_ack_cm_event`].
    fn give(
        self,
        channel: &Arc<Channel>,
        owner: Arc<Id>,
        join: Option<Arc<Join>>,
    ) -> *mut rdma_cm_event {
        let mut event = Box::new(Event {
            abi: UnsafeCell::new(self.public),
            private_data: [0; PRIVATE_DATA],
            owner,
            join,
            channel: channel.serial(),
            is_counted: false,
        });
        event
            .owner
            .ledger
            .delivered(names::of_event(self.public.event));
        let len = self.private_data.len().min(PRIVATE_DATA);
        event.private_data[..len].copy_from_slice(&self.private_data[..len]);
        let event = Box::into_raw(event);
        if len > 0 {
            // SAFETY: the event is ours until it is returned; both forms of the union begin with the pointer.
            unsafe {
                let data = (&raw const (*event).private_data).cast();
                (*(*event).abi.get()).param.conn.private_data = data;
            }
        }
        event.cast()
    }
}

fn addr_resolved(draft: Draft, owner: &Id, about: &About) -> Option<Draft> {
    let learned = match &about.addresses {
        Some(addresses) => owner.learn_addresses(addresses),
        None => resolve::ask_addresses(owner),
    };
    let learned = learned.and_then(|()| match &about.gids {
        Some(gids) => {
            owner.learn_gids(gids);
            Ok(())
        }
        None => resolve::ask_gids(owner),
    });
    let learned = learned.and_then(|()| {
        if owner.device().is_some() {
            Ok(())
        } else {
            Err(Refused::new(
                libc::ENODEV,
                "the address is resolved, and there is no device for it",
            ))
        }
    });
    Some(match learned {
        Ok(()) => draft,
        Err(refused) => draft.failed(RDMA_CM_EVENT_ADDR_ERROR, &refused),
    })
}

fn route_resolved(draft: Draft, owner: &Id) -> Option<Draft> {
    Some(match resolve::ask_paths(owner) {
        Ok(()) => draft,
        Err(refused) => draft.failed(RDMA_CM_EVENT_ROUTE_ERROR, &refused),
    })
}

/// A connection request gets an identifier of its own.
fn request(
    mut draft: Draft,
    channel: &Arc<Channel>,
    listener: &Arc<Id>,
    raw: &client::Event,
    about: &About,
) -> Option<Draft> {
    let child = Id::child(listener, channel, raw.id);
    {
        let mut terms = child.terms();
        terms.responder_resources = raw.param.responder_resources;
        terms.initiator_depth = raw.param.initiator_depth;
        terms.remote_ece = raw.ece;
    }
    draft.public.id = child.abi();
    draft.public.listen_id = listener.abi();
    match introduce(&child, listener, about) {
        Ok(()) => Some(draft),
        Err(refused) => {
            // The peer is told by the end of the identifier.
            if refused.errno.0 == libc::ENODEV {
                // As was asked for, or the device has gone meanwhile.
                tracing::warn!("a connection request is rejected: {refused}");
            } else {
                tracing::error!("a connection request is rejected: {refused}");
            }
            if let Err(refused) = child.destroy() {
                tracing::warn!("{child} is not destroyed: {refused}");
            }
            None
        }
    }
}

/// What the program will find in a child's public part, and its channel.
fn introduce(child: &Arc<Id>, listener: &Id, about: &About) -> Result<()> {
    if listener.is_sync() {
        migrate::to_own_channel(child)?;
    }
    match &about.addresses {
        Some(addresses) => child.learn_addresses(addresses)?,
        None => resolve::ask_addresses(child)?,
    }
    match &about.gids {
        Some(gids) => child.learn_gids(gids),
        None => resolve::ask_gids(child)?,
    }
    match &about.paths {
        Some(paths) => child.learn_paths(resolve::records(paths)),
        None => resolve::ask_paths(child)?,
    }
    Ok(())
}

/// A response completes the connection where the queue pair is the identifier's; else that is the program's to do.
fn response(mut draft: Draft, owner: &Id, raw: &client::Event) -> Option<Draft> {
    owner.terms().remote_ece = raw.ece;
    if !owner.has_qp() {
        return Some(draft);
    }
    Some(match connect::complete_active(owner) {
        Ok(()) => {
            draft.public.event = RDMA_CM_EVENT_ESTABLISHED;
            draft
        }
        Err(refused) => {
            owner.has_failed.store(true, Ordering::Release);
            draft.failed(RDMA_CM_EVENT_CONNECT_ERROR, &refused)
        }
    })
}

fn rejected(draft: Draft, owner: &Id) -> Option<Draft> {
    let draft = unless_failed(draft, owner)?;
    if let Err(refused) = qp::to_error(owner) {
        tracing::debug!("the queue pair of {owner} is not stopped: {refused}");
    }
    Some(draft)
}

/// After CONNECT_ERROR the end of the connection is nothing new.
fn unless_failed(draft: Draft, owner: &Id) -> Option<Draft> {
    (!owner.has_failed.load(Ordering::Acquire)).then_some(draft)
}

fn joined(draft: Draft, raw: &client::Event, join: Option<&Join>) -> Option<Draft> {
    let attached = join.map_or(Ok(()), |join| join.joined(&raw.ud()));
    Some(match attached {
        Ok(()) => draft,
        Err(refused) => draft.failed(RDMA_CM_EVENT_MULTICAST_ERROR, &refused),
    })
}

impl Event {
    /// # Safety
    /// `event` is what C got of this library and has not acknowledged.
    unsafe fn take(event: *mut rdma_cm_event) -> Box<Self> {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { Box::from_raw(event.cast::<Self>()) }
    }

    fn name(&mut self) -> &'static str {
        names::of_event(self.abi.get_mut().event)
    }

    fn count(&mut self) {
        if self.is_counted {
            return;
        }
        self.is_counted = true;
        if let Some(join) = &self.join {
            join.acknowledge();
        }
        let name = self.name();
        let total = self.owner.ledger.acknowledged(self.channel, name);
        self.owner
            .bound()
            .note_acknowledged(self.owner.number().0, total);
    }
}

/// Counts an event that the library keeps for C, as `id->event` of the new identifier of a request: the listener need not
/// wait for that.
///
/// # Safety
/// `event` is what [`next`] gave and nobody acknowledged.
pub(crate) unsafe fn count_kept(event: *mut rdma_cm_event) {
    // SAFETY: the caller's promise.
    let mut kept = std::mem::ManuallyDrop::new(unsafe { Event::take(event) });
    kept.count();
}

/// Acknowledges `id->event`, if there is one.
pub(crate) fn release_kept(id: &Id) {
    let public = id.abi();
    // SAFETY: the public part is valid as long as the identifier is.
    let event = unsafe { ptr::replace(&raw mut (*public).event, ptr::null_mut()) };
    if !event.is_null() {
        // SAFETY: only the library sets the field, to events that it fetched.
        unsafe { Event::take(event) }.count();
    }
}

/// The next event of a channel; waits for it as `read(2)` does: not with O_NONBLOCK, and not longer than a signal.
///
/// # Safety
/// `channel` is null or a channel of this library; `event` is null or valid for writing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller's promise.
    let mut step = unsafe { get_step(channel, event) };
    loop {
        let Step::Wait(wait) = step else {
            return step.answer();
        };
        if !channel::wait_for_byte("rdma_get_cm_event", wait) {
            return -1;
        }
        // SAFETY: the caller's promise.
        step = unsafe { get_step_again(wait, event) };
    }
}

/// What a call does next.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Wait(Wait),
    Answer(c_int),
}

impl Step {
    /// The answer; 0 where there is none yet.
    pub(crate) fn answer(self) -> c_int {
        match self {
            Self::Wait(_) => 0,
            Self::Answer(answer) => answer,
        }
    }
}

/// The first look, from which nothing unwinds.
unsafe extern "C" fn get_step(
    channel: *mut rdma_event_channel,
    place: *mut *mut rdma_cm_event,
) -> Step {
    let looked = if place.is_null() {
        Err(Refused::new(libc::EINVAL, "no place for the event"))
    } else {
        // SAFETY: the caller's promise.
        unsafe { Channel::share(channel) }.and_then(|channel| next(&channel, false))
    };
    // SAFETY: the caller's promise.
    unsafe { step_of(looked, place) }
}

/// A further look, after a wait; nothing unwinds from it. Meanwhile the program may have closed the channel, whose pointer leads
/// nowhere then. As in a kernel, the wait goes on.
unsafe extern "C" fn get_step_again(wait: Wait, place: *mut *mut rdma_cm_event) -> Step {
    let Some(channel) = Channel::waited_for(wait) else {
        return Step::Wait(wait.of_closed());
    };
    match next(&channel, true) {
        Err(_) if channel.is_closed() => Step::Wait(wait.of_closed()),
        // SAFETY: the caller's promise.
        looked => unsafe { step_of(looked, place) },
    }
}

/// # Safety
/// `place` is valid for writing if there is an event.
unsafe fn step_of(looked: Result<Next>, place: *mut *mut rdma_cm_event) -> Step {
    match looked {
        Ok(Next::Wait(wait)) => Step::Wait(wait),
        Ok(Next::Event(event)) => {
            // SAFETY: the caller's promise.
            unsafe { *place = event };
            Step::Answer(0)
        }
        Err(refused) => Step::Answer(errno::minus_one("rdma_get_cm_event", Err(refused))),
    }
}

/// Gives an event back, which frees it.
///
/// # Safety
/// `event` is null, or an event that C got of this library and has not given back.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        let refused = Refused::new(libc::EINVAL, "no event is given");
        return errno::minus_one("rdma_ack_cm_event", Err(refused));
    }
    // SAFETY: the caller's promise.
    unsafe { Event::take(event) }.count();
    0
}

/// An event that a program wrote (Linux `include/uapi/rdma/rdma_user_cm.h`; later than the headers of rdma-core 44).
pub(super) const USER: rdma_cm_event_type = 18;
/// An event that a library wrote (as there).
pub(super) const INTERNAL: rdma_cm_event_type = 19;
/// `RDMA_MAX_PRIVATE_DATA` of the header.
const PRIVATE_DATA: usize = 256;
