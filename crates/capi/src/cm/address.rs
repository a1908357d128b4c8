//! Socket addresses, from C and to C.

use std::ptr;

use oarlock_ucm::abi::SockaddrStorage;
use zerocopy::{FromZeros, IntoBytes};

use crate::abi::*;
use crate::errno::{Refused, Result};

/// An address that C gave, with the size of its family; the service judges the rest.
///
/// # Errors
/// `EINVAL`: null, or a family whose size nobody knows.
///
/// # Safety
/// `address` is null or points to as many bytes as its family has.
pub(crate) unsafe fn read(address: *const libc::sockaddr) -> Result<SockaddrStorage> {
    if address.is_null() {
        return Err(Refused::new(libc::EINVAL, "no address is given"));
    }
    // SAFETY: every address begins with its family; it need not be aligned.
    let family = unsafe { ptr::read_unaligned(address.cast::<libc::sa_family_t>()) };
    let size = match libc::c_int::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        AF_IB => SOCKADDR_IB_LEN,
        other => {
            let sentence = format!("address family {other} is neither IPv4 (2) nor IPv6 (10)");
            return Err(Refused::new(libc::EINVAL, sentence));
        }
    };
    let mut storage = SockaddrStorage::new_zeroed();
    // SAFETY: the caller's promise; a storage has room for the largest of them.
    let given = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), size) };
    storage.as_mut_bytes()[..size].copy_from_slice(given);
    Ok(storage)
}

/// Writes an address where C reads it: as many bytes as its family has.
///
/// # Safety
/// `place` is valid for writing a `sockaddr_storage`.
pub(crate) unsafe fn write(address: &SockaddrStorage, place: *mut libc::sockaddr_storage) {
    let bytes = &address.as_bytes()[..address.size()];
    // SAFETY: the caller's promise; no family has more bytes than a storage.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast::<u8>(), bytes.len()) };
}

/// The attributes of an address handle, as the service gives them.
pub(crate) fn ah_attr(given: &oarlock_ucm::abi::UverbsAhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: given.dgid },
            flow_label: given.flow_label,
            sgid_index: given.sgid_index,
            hop_limit: given.hop_limit,
            traffic_class: given.traffic_class,
        },
        dlid: given.dlid,
        sl: given.sl,
        src_path_bits: given.src_path_bits,
        static_rate: given.static_rate,
        is_global: given.is_global,
        port_num: given.port_num,
    }
}

/// Addresses of native InfiniBand (Linux `include/linux/socket.h`).
pub(super) const AF_IB: libc::c_int = 27;
const SOCKADDR_IB_LEN: usize = 48;
