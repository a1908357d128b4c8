//! Moving an identifier to another channel.
//!
//! Events stay with the service until they are fetched, and it either hands one out or moves it. Commands name the channel
//! of their identifier and hold it while they run; the move holds it alone. So no event is lost or seen twice and no command
//! misses the identifier, whatever other threads do meanwhile.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError};

use oarlock_ucm::client;

use super::channel::{self, Channel};
use super::id::Id;
use super::{call, event};
use crate::abi::{rdma_cm_id, rdma_event_channel};
use crate::errno::{self, Refused, Result};

/// Moves an identifier to another channel, or makes it synchronous; waits until the events that were got are acknowledged.
///
/// # Safety
/// `id` is null or an identifier of this library; `channel` is null or a channel of it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the caller's promise.
    errno::minus_one("rdma_migrate_id", unsafe { migrate(id, channel) })
}

unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<()> {
    // SAFETY: the caller's promise.
    let id = unsafe { Id::of(id) }?;
    if !channel.is_null() {
        // SAFETY: the caller's promise.
        return to(id, unsafe { Channel::share(channel) }?, false);
    }
    if id.is_sync() {
        return Err(Refused::new(
            libc::EINVAL,
            "the identifier is synchronous already",
        ));
    }
    to_own_channel(id)
}

/// Makes an identifier synchronous.
///
/// # Errors
/// As [`Channel::open`]; the kernel's.
pub(super) fn to_own_channel(id: &Id) -> Result<()> {
    to(id, Channel::open(id.process())?, true)
}

fn to(id: &Id, channel: Arc<Channel>, is_sync: bool) -> Result<()> {
    if id.process().host.id() != channel.host().id() {
        return Err(if id.process().host.is_gone() {
            channel::gone()
        } else {
            Refused::new(libc::EINVAL, "the channel is of another host service")
        });
    }
    let old = {
        let mut bound = id
            .reports_to
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let command = client::migrate_id(id.number(), bound.token());
        let reported = call::call(channel.host(), channel.token(), command)?;
        bound.forget(id.number().0);
        // SAFETY: the public part is valid as long as the identifier is.
        unsafe { (*id.abi()).channel = channel.as_ptr() };
        let old = std::mem::replace(&mut *bound, channel);
        id.ledger.close_account(old.serial(), reported.0);
        old
    };
    if id.is_sync() {
        // Nobody else has the channel.
        old.close();
        event::release_kept(id);
    }
    id.set_sync(is_sync);
    id.ledger.wait(&format_args!("rdma_migrate_id of {id}"));
    Ok(())
}
