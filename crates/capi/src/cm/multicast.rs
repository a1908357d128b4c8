//! Joining and leaving multicast groups.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use oarlock_port::fork::PerProcess;
use oarlock_ucm::abi::SockaddrStorage;
use oarlock_ucm::client::{self, JoinNumber, UdEventParam};

use super::id::{self, Id};
use super::{address, sync};
use crate::abi::*;
use crate::errno::{self, Refused, Result};
use crate::verbs::multicast::{ibv_attach_mcast, ibv_detach_mcast};

/// An identifier's membership in a group. Its events name it by its uid.
pub(crate) struct Join {
    id: Arc<Id>,
    context: *mut c_void,
    address: SockaddrStorage,
    is_send_only: bool,
    /// The program has asked to leave, and does not find it any more.
    has_left: AtomicBool,
    state: Mutex<State>,
    acknowledged: Condvar,
}

#[derive(Default)]
struct State {
    /// What the service calls it, once it has been told of it.
    number: Option<JoinNumber>,
    /// The group's GID, and LID, once it is joined.
    group: Option<(ibv_gid, u16)>,
    /// How many of its events the program has acknowledged.
    acknowledged: u32,
}

// SAFETY: the context is the program's, handed back and never followed; everything else is `Send` and `Sync` by itself.
unsafe impl Send for Join {}
// SAFETY: as above.
unsafe impl Sync for Join {}

/// Every membership, by its uid: the newest last.
static JOINS: PerProcess<Mutex<BTreeMap<u64, Arc<Join>>>> = PerProcess::new(|_| Mutex::default());

fn all() -> MutexGuard<'static, BTreeMap<u64, Arc<Join>>> {
    JOINS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The membership that an event names. One that the program leaves is there until its events are acknowledged.
pub(crate) fn find(uid: u64) -> Option<Arc<Join>> {
    all().get(&uid).cloned()
}

/// The identifier is destroyed, and its memberships with it.
pub(crate) fn forget(id: &Id) {
    let gone = {
        let mut all = all();
        let (gone, left) = std::mem::take(&mut *all)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, join)| join.is_of(id));
        *all = left;
        gone
    };
    drop(gone);
}

/// The queue pair that `id` had is about to be destroyed, which one that is attached to a group cannot be.
pub(super) fn detach_all(id: &Id, qp: *mut ibv_qp) {
    for join in all().values() {
        let group = join.lock().group;
        if let Some((group, lid)) = group
            && join.is_of(id)
            && !join.is_send_only
        {
            // Two memberships in one group are attached once.
            // SAFETY: the caller has taken the queue pair out of the identifier and not destroyed it.
            unsafe { ibv_detach_mcast(qp, &raw const group, lid) };
        }
    }
}

impl Join {
    pub(crate) fn id(&self) -> &Arc<Id> {
        &self.id
    }

    /// What the program gave to the call that joined.
    pub(crate) fn context(&self) -> *mut c_void {
        self.context
    }

    /// The group is joined: attaches the identifier's queue pair, if it has one and is to receive.
    ///
    /// # Errors
    /// As `ibv_attach_mcast`.
    pub(crate) fn joined(&self, param: &UdEventParam) -> Result<()> {
        let gid = ibv_gid {
            raw: param.ah_attr.dgid,
        };
        let lid = param.ah_attr.dlid;
        self.lock().group = Some((gid, lid));
        if self.is_send_only {
            return Ok(());
        }
        let _turn = self.id.qp_turn();
        // SAFETY: the public part is valid as long as the identifier is.
        let qp = unsafe { (*self.id.abi()).qp };
        if qp.is_null() {
            return Ok(());
        }
        // SAFETY: it is the queue pair's turn.
        match unsafe { ibv_attach_mcast(qp, &raw const gid, lid) } {
            0 => Ok(()),
            errno => Err(Refused::new(
                errno,
                "the queue pair is not attached to the group",
            )),
        }
    }

    /// The program acknowledges one of its events.
    pub(crate) fn acknowledge(&self) {
        self.lock().acknowledged += 1;
        self.acknowledged.notify_all();
    }

    fn is_of(&self, id: &Id) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.id), id)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn detach(&self, group: ibv_gid, lid: u16) {
        let _turn = self.id.qp_turn();
        // SAFETY: the public part is valid as long as the identifier is.
        let qp = unsafe { (*self.id.abi()).qp };
        // SAFETY: it is the queue pair's turn. One that was not attached is not attached afterwards either.
        if !qp.is_null() && unsafe { ibv_detach_mcast(qp, &raw const group, lid) } != 0 {
            tracing::debug!(
                "rdma_leave_multicast: the queue pair of {} was not attached",
                self.id
            );
        }
    }
}

/// Joins the group with the address `addr`, to send and to receive. `RDMA_CM_EVENT_MULTICAST_JOIN` follows.
///
/// # Safety
/// `id` is null or an identifier of this library; `addr` is null or as long as its family is.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let begun = begin_join(id, addr, context);
        sync::finish("rdma_join_multicast", id, begun)
    }
}

unsafe extern "C" fn begin_join(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let joined = unsafe { Id::of(id) }.and_then(|id| {
        // SAFETY: the caller's promise.
        let address = unsafe { address::read(addr) }?;
        join(id, address, RDMA_MC_JOIN_FLAG_FULLMEMBER, context)
    });
    errno::minus_one("rdma_join_multicast", joined)
}

/// As [`rdma_join_multicast`], with flags.
///
/// # Safety
/// As there; `mc_join_attr` is null or valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let begun = begin_join_ex(id, mc_join_attr, context);
        sync::finish("rdma_join_multicast_ex", id, begun)
    }
}

unsafe extern "C" fn begin_join_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let joined = unsafe { Id::of(id) }.and_then(|id| {
        // SAFETY: the caller's promise.
        let attr = unsafe { mc_join_attr.as_ref() };
        let attr = attr.ok_or_else(|| Refused::new(libc::EINVAL, "no attributes are given"))?;
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            let sentence = format!("comp_mask {:#x} has unknown bits", attr.comp_mask);
            return Err(Refused::new(libc::EOPNOTSUPP, sentence));
        }
        let wanted = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask != wanted || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
            let sentence =
                "an address is needed, and flags for a full member or one that only sends";
            return Err(Refused::new(libc::EINVAL, sentence));
        }
        // SAFETY: the caller's promise.
        let address = unsafe { address::read(attr.addr) }?;
        join(id, address, attr.join_flags, context)
    });
    errno::minus_one("rdma_join_multicast_ex", joined)
}

fn join(id: &Id, address: SockaddrStorage, flags: u32, context: *mut c_void) -> Result<()> {
    let group = address.to_addr();
    let group = group.map_err(|error| Refused::new(libc::EINVAL, error.to_string()))?;
    let held = id::find(id.uid());
    let held = held.ok_or_else(|| Refused::new(libc::EINVAL, format!("{id} is destroyed")))?;
    let uid = id::next_uid();
    let join = Arc::new(Join {
        id: held,
        context,
        address,
        is_send_only: flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
        has_left: AtomicBool::new(false),
        state: Mutex::default(),
        acknowledged: Condvar::new(),
    });
    // Before the service hears of it: its event may be fetched before this call goes on.
    all().insert(uid, Arc::clone(&join));
    let flags = if join.is_send_only { 1 } else { 0 };
    match id.call(client::join_multicast(id.number(), uid, group, flags)) {
        Ok(number) => join.lock().number = Some(number),
        Err(refused) => {
            all().remove(&uid);
            return Err(refused);
        }
    }
    Ok(())
}

/// Leaves the group that was joined with `addr`: the newest membership, if there are several. Waits until the events of the
/// membership that the program got are acknowledged.
///
/// # Safety
/// As [`rdma_join_multicast`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: the caller's promise.
    let left = unsafe { Id::of(id) }.and_then(|id| {
        // SAFETY: the caller's promise.
        let address = unsafe { address::read(addr) }?;
        leave(id, &address)
    });
    errno::minus_one("rdma_leave_multicast", left)
}

fn leave(id: &Id, address: &SockaddrStorage) -> Result<()> {
    // One that another thread is still joining has no number yet.
    let is_it = |join: &Join| {
        join.is_of(id)
            && join.address == *address
            && join.lock().number.is_some()
            && !join.has_left.load(Ordering::Acquire)
    };
    let found = {
        let all = all();
        let found = all.iter().rev().find(|(_, join)| is_it(join));
        found.map(|(uid, join)| {
            join.has_left.store(true, Ordering::Release);
            (*uid, Arc::clone(join))
        })
    };
    let Some((uid, join)) = found else {
        let sentence = format!("{id} is not a member of {address:?}");
        return Err(Refused::new(libc::EADDRNOTAVAIL, sentence));
    };
    let (number, group) = {
        let state = join.lock();
        (state.number.unwrap_or(JoinNumber(u32::MAX)), state.group)
    };
    if let Some((group, lid)) = group
        && !join.is_send_only
    {
        join.detach(group, lid);
    }
    let result = id.call(client::leave_multicast(number)).map(|reported| {
        let is_due = |state: &mut State| state.acknowledged < reported.0;
        let wait = join.acknowledged.wait_while(join.lock(), is_due);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    });
    all().remove(&uid);
    result
}
