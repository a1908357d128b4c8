//! Lists of `struct rdma_addrinfo` in memory of `malloc`: programs put parts of their own in, and free what they take out.

use std::ffi::{CStr, c_int};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use crate::abi::*;
use crate::errno::{Refused, Result};

/// What an entry of a list says.
pub(super) struct Entry {
    pub(super) flags: u32,
    pub(super) family: c_int,
    pub(super) qp_type: c_int,
    pub(super) port_space: c_int,
    /// The bytes of a `sockaddr`; none where there is no address.
    pub(super) source: Vec<u8>,
    pub(super) destination: Vec<u8>,
}

/// A list, freed when dropped.
pub(super) struct List {
    first: *mut rdma_addrinfo,
}

// SAFETY: memory that nobody else has.
unsafe impl Send for List {}

impl Default for List {
    fn default() -> Self {
        Self {
            first: ptr::null_mut(),
        }
    }
}

impl List {
    /// Puts an entry at the end.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn push(&mut self, entry: &Entry) -> Result<()> {
        // SAFETY: zero is a value of every field.
        let new = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
        if new.is_null() {
            return Err(no_memory());
        }
        let mut last = &raw mut self.first;
        // SAFETY: a list of ours, null at its end.
        while !unsafe { *last }.is_null() {
            // SAFETY: as above.
            last = unsafe { &raw mut (**last).ai_next };
        }
        // SAFETY: as above; from here on the entry is freed with the list.
        unsafe { *last = new };
        // SAFETY: just made, and nobody else looks at it.
        let new = unsafe { &mut *new };
        new.ai_flags = entry.flags.cast_signed();
        new.ai_family = entry.family;
        new.ai_qp_type = entry.qp_type;
        new.ai_port_space = entry.port_space;
        (new.ai_src_addr, new.ai_src_len) = copy(&entry.source)?;
        (new.ai_dst_addr, new.ai_dst_len) = copy(&entry.destination)?;
        Ok(())
    }

    /// Hands the list over to C.
    pub(super) fn into_ptr(mut self) -> *mut rdma_addrinfo {
        std::mem::replace(&mut self.first, ptr::null_mut())
    }

    /// Takes a list over from C.
    ///
    /// # Safety
    /// `first` is null or a list whose parts `free` can free, and nobody else has it.
    pub(super) unsafe fn from_ptr(first: *mut rdma_addrinfo) -> Self {
        Self { first }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let mut next = self.first;
        while !next.is_null() {
            // SAFETY: what the list is made of, or what the program has put there by `malloc`; null is no fault.
            unsafe {
                let entry = *next;
                libc::free(entry.ai_connect);
                libc::free(entry.ai_route);
                libc::free(entry.ai_src_canonname.cast());
                libc::free(entry.ai_dst_canonname.cast());
                libc::free(entry.ai_src_addr.cast());
                libc::free(entry.ai_dst_addr.cast());
                libc::free(next.cast());
                next = entry.ai_next;
            }
        }
    }
}

fn copy(address: &[u8]) -> Result<(*mut libc::sockaddr, libc::socklen_t)> {
    if address.is_empty() {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: no obligation.
    let copy = unsafe { libc::malloc(address.len()) }.cast::<u8>();
    if copy.is_null() {
        return Err(no_memory());
    }
    // SAFETY: as long as the address.
    unsafe { ptr::copy_nonoverlapping(address.as_ptr(), copy, address.len()) };
    Ok((copy.cast(), address.len() as libc::socklen_t))
}

fn no_memory() -> Refused {
    Refused::new(libc::ENOMEM, "no memory for a list of addresses")
}

/// The family of an address in bytes; `AF_UNSPEC` for none.
pub(super) fn family(address: &[u8]) -> c_int {
    let bytes = address.first_chunk::<2>();
    bytes.map_or(libc::AF_UNSPEC, |bytes| u16::from_ne_bytes(*bytes).into())
}

/// The address in bytes, if it is one of IP.
pub(super) fn parsed(address: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*address.get(2..)?.first_chunk()?);
    match family(address) {
        libc::AF_INET => {
            let ip: [u8; 4] = *address.get(4..)?.first_chunk()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let flow = u32::from_be_bytes(*address.get(4..)?.first_chunk()?);
            let ip: [u8; 16] = *address.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*address.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
        }
        _ => None,
    }
}

/// The bytes of a `sockaddr_in` or a `sockaddr_in6`.
pub(super) fn sockaddr(address: SocketAddr) -> Vec<u8> {
    match address {
        SocketAddr::V4(address) => {
            let mut bytes = Vec::from((libc::AF_INET as u16).to_ne_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(address.ip().octets());
            bytes.resize(size_of::<libc::sockaddr_in>(), 0);
            bytes
        }
        SocketAddr::V6(address) => {
            let mut bytes = Vec::from((libc::AF_INET6 as u16).to_ne_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(address.flowinfo().to_be_bytes());
            bytes.extend(address.ip().octets());
            bytes.extend(address.scope_id().to_ne_bytes());
            bytes
        }
    }
}

/// The bytes of a `sockaddr_ib`: the IPv6 address is the GID, and the port is in the service ID of the port space. An address
/// of IPv4 is none that a GID was written as.
pub(super) fn native(port_space: c_int, address: SocketAddr) -> Vec<u8> {
    let SocketAddr::V6(address) = address else {
        return Vec::new();
    };
    let port_space = u64::from(port_space.cast_unsigned());
    let mut mask = RDMA_IB_IP_PS_MASK;
    if address.port() != 0 {
        mask |= u64::from(RDMA_IB_IP_PORT_MASK);
    }
    let mut bytes = Vec::from((AF_IB as u16).to_ne_bytes());
    bytes.extend(DEFAULT_PKEY.to_be_bytes());
    bytes.extend(address.flowinfo().to_be_bytes());
    bytes.extend(address.ip().octets());
    bytes.extend((port_space << 16 | u64::from(address.port())).to_be_bytes());
    bytes.extend(mask.to_be_bytes());
    bytes.extend(u64::from(address.scope_id()).to_ne_bytes());
    bytes
}

/// What the resolver says to one of its numbers.
pub(super) fn sentence(number: c_int) -> String {
    // SAFETY: a C string that is never freed, for any number.
    let sentence = unsafe { CStr::from_ptr(libc::gai_strerror(number)) };
    sentence.to_string_lossy().into_owned()
}

/// Addresses of native InfiniBand (Linux `include/linux/socket.h`).
pub(super) const AF_IB: c_int = 27;
/// `netdb.h` of the GNU C library.
pub(super) const EAI_ADDRFAMILY: c_int = -9;
/// All bits of a service ID but those of the port.
const RDMA_IB_IP_PS_MASK: u64 = 0xFFFF_FFFF_FFFF_0000;
const DEFAULT_PKEY: u16 = 0xFFFF;
