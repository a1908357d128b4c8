//! Multicast groups of datagram queue pairs.

use std::ffi::c_int;
use std::sync::{MutexGuard, PoisonError};

use oarlock_wire::Gid;

use super::qp::Qp;
use crate::abi::{ibv_gid, ibv_qp};
use crate::errno::{self, Result};

impl Qp {
    pub(super) fn lock_groups(&self) -> MutexGuard<'_, Vec<Gid>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attached already, it stays so, and one detachment ends it.
    fn attach(&self, group: Gid) -> Result<()> {
        self.birth.check()?;
        let mut groups = self.lock_groups();
        self.inner.attach_multicast(group)?;
        if !groups.contains(&group) {
            groups.push(group);
        }
        Ok(())
    }

    fn detach(&self, group: Gid) -> Result<()> {
        self.birth.check()?;
        let mut groups = self.lock_groups();
        self.inner.detach_multicast(group)?;
        groups.retain(|attached| *attached != group);
        Ok(())
    }
}

/// `ibv_attach_mcast(3)`. Ethernet has no LIDs, so the group is its address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the program's promise.
    let (qp, group) = unsafe { (Qp::of(qp), Gid((*gid).raw)) };
    errno::positive("ibv_attach_mcast", qp.attach(group))
}

/// `ibv_detach_mcast(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the program's promise.
    let (qp, group) = unsafe { (Qp::of(qp), Gid((*gid).raw)) };
    errno::positive("ibv_detach_mcast", qp.detach(group))
}
