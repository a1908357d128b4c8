//! Options of identifiers, and what is told to them.

use std::ffi::{c_int, c_void};

use oarlock_ucm::abi::{Command, IbPathRecData, PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL, SetOption};
use oarlock_ucm::client;

use super::event::USER;
use super::id::Id;
use super::resolve;
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// Sets an option of an identifier.
///
/// # Safety
/// `id` is null or an identifier of this library; `optval` is null or valid for `optlen` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    let (level, name) = (level.cast_unsigned(), optname.cast_unsigned());
    // SAFETY: the caller's promise.
    let set = unsafe { Id::of(id).and_then(|id| set_option(id, level, name, optval, optlen)) };
    errno::minus_one("rdma_set_option", set)
}

unsafe fn set_option(
    id: &Id,
    level: u32,
    optname: u32,
    optval: *const c_void,
    optlen: usize,
) -> Result<()> {
    if optlen > LARGEST_VALUE {
        let sentence = format!("an option's value of {optlen} bytes; {LARGEST_VALUE} is the limit");
        return Err(Refused::new(libc::EINVAL, sentence));
    }
    if optval.is_null() && optlen > 0 {
        return Err(Refused::new(libc::EFAULT, "no value is given"));
    }
    let value = if optlen == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(optval.cast::<u8>(), optlen) }
    };
    let value = if (level, optname) == (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) {
        the_usable_path(value)
    } else {
        // Every other option is a number; what is longer is refused for its length, by whatever it begins with.
        &value[..optlen.min(LONGER_THAN_ANY_NUMBER)]
    };
    let body = SetOption {
        optval: 0,
        id: id.number().0,
        level,
        optname,
        // Both limits are far below 2^32.
        optlen: value.len() as u32,
    };
    resolve::write(id, Command::SET_OPTION, &body, value)
}

/// Of an array of path records the one that will be used, for an array may be larger than a message. One that has no such
/// record, or is none, stays what it is as far as it goes.
fn the_usable_path(value: &[u8]) -> &[u8] {
    const RECORD: usize = size_of::<IbPathRecData>();
    if !value.len().is_multiple_of(RECORD) {
        return &value[..value.len() % RECORD];
    }
    let is_usable =
        |record: &&[u8]| record.starts_with(&PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL.to_ne_bytes());
    let records = || value.chunks_exact(RECORD);
    records()
        .find(is_usable)
        .or_else(|| records().next())
        .unwrap_or_default()
}

/// Tells an identifier of an event of its queue pair: IBV_EVENT_COMM_EST, IBV_EVENT_PATH_MIG.
///
/// # Safety
/// `id` is null or an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    // SAFETY: the caller's promise.
    let told = unsafe { Id::of(id) }.and_then(|id| id.call(client::notify(id.number(), event)));
    errno::minus_one("rdma_notify", told)
}

/// Puts an event of kind RDMA_CM_EVENT_USER into the identifier's channel.
///
/// # Safety
/// `id` is null or an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let written = unsafe { Id::of(id) }.and_then(|id| {
        if event != USER {
            return Err(Refused::new(
                libc::EINVAL,
                format!("event {event} is not a program's to write: {USER} is"),
            ));
        }
        id.call(client::write_cm_event(id.number(), event, status, arg))
    });
    errno::minus_one("rdma_write_cm_event", written)
}

/// The largest value that the kernel copies (`KMALLOC_MAX_SIZE` with pages of 4 KiB).
const LARGEST_VALUE: usize = 4 << 20;
const LONGER_THAN_ANY_NUMBER: usize = 16;
