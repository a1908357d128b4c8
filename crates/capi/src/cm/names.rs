//! Names of events; ports.

use std::ffi::{CStr, c_char};
use std::ptr;

use oarlock_ucm::abi::{AF_IB, AF_INET, AF_INET6, SockaddrStorage};

use crate::abi::*;

/// The name of an event: `RDMA_CM_EVENT_` and what it is. Never null, and good for ever.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    let mut names = EVENT_NAMES.iter();
    let found = names.find(|&&(number, _)| number == event);
    found.map_or(c"UNKNOWN EVENT", |&(_, name)| name).as_ptr()
}

/// The same for our own sentences.
pub(super) fn of_event(event: rdma_cm_event_type) -> &'static str {
    let mut names = EVENT_NAMES.iter();
    let found = names.find(|&&(number, _)| number == event);
    let name = found.and_then(|(_, name)| name.to_str().ok());
    name.unwrap_or("an event without a name")
}

/// The port of the identifier's local address, big endian; 0 where it has none.
///
/// # Safety
/// `id` is an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise. No reference is made.
    let address = unsafe { &raw const (*id).route.addr.source };
    // SAFETY: a `sockaddr_storage`.
    unsafe { port(address.cast()) }
}

/// The port of the identifier's remote address, big endian; 0 where it has none.
///
/// # Safety
/// As [`rdma_get_src_port`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise. No reference is made.
    let address = unsafe { &raw const (*id).route.addr.destination };
    // SAFETY: a `sockaddr_storage`.
    unsafe { port(address.cast()) }
}

/// # Safety
/// `address` points to a `sockaddr_storage`.
unsafe fn port(address: *const SockaddrStorage) -> u16 {
    // SAFETY: the caller's promise; a `sockaddr_storage` is that many bytes.
    let address = unsafe { ptr::read_unaligned(address) };
    let at = match address.family() {
        AF_INET | AF_INET6 => 2,
        // The low 16 bits of the service ID.
        AF_IB => 30,
        _ => return 0,
    };
    u16::from_ne_bytes([address.bytes[at], address.bytes[at + 1]])
}

const EVENT_NAMES: [(rdma_cm_event_type, &CStr); 18] = [
    (RDMA_CM_EVENT_ADDR_RESOLVED, c"RDMA_CM_EVENT_ADDR_RESOLVED"),
    (RDMA_CM_EVENT_ADDR_ERROR, c"RDMA_CM_EVENT_ADDR_ERROR"),
    (
        RDMA_CM_EVENT_ROUTE_RESOLVED,
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    ),
    (RDMA_CM_EVENT_ROUTE_ERROR, c"RDMA_CM_EVENT_ROUTE_ERROR"),
    (
        RDMA_CM_EVENT_CONNECT_REQUEST,
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
    ),
    (
        RDMA_CM_EVENT_CONNECT_RESPONSE,
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    ),
    (RDMA_CM_EVENT_CONNECT_ERROR, c"RDMA_CM_EVENT_CONNECT_ERROR"),
    (RDMA_CM_EVENT_UNREACHABLE, c"RDMA_CM_EVENT_UNREACHABLE"),
    (RDMA_CM_EVENT_REJECTED, c"RDMA_CM_EVENT_REJECTED"),
    (RDMA_CM_EVENT_ESTABLISHED, c"RDMA_CM_EVENT_ESTABLISHED"),
    (RDMA_CM_EVENT_DISCONNECTED, c"RDMA_CM_EVENT_DISCONNECTED"),
    (
        RDMA_CM_EVENT_DEVICE_REMOVAL,
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    ),
    (
        RDMA_CM_EVENT_MULTICAST_JOIN,
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
    ),
    (
        RDMA_CM_EVENT_MULTICAST_ERROR,
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
    ),
    (RDMA_CM_EVENT_ADDR_CHANGE, c"RDMA_CM_EVENT_ADDR_CHANGE"),
    (RDMA_CM_EVENT_TIMEWAIT_EXIT, c"RDMA_CM_EVENT_TIMEWAIT_EXIT"),
    // Those of rdma-core 60 and later. The event of `rdma_write_cm_event` has no name.
    (
        RDMA_CM_EVENT_ADDRINFO_RESOLVED,
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    ),
    (
        RDMA_CM_EVENT_ADDRINFO_ERROR,
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    ),
];

const RDMA_CM_EVENT_ADDRINFO_RESOLVED: rdma_cm_event_type = 16;
const RDMA_CM_EVENT_ADDRINFO_ERROR: rdma_cm_event_type = 17;
