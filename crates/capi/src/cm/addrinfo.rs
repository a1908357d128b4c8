//! `rdma_getaddrinfo`: names and services to addresses, queue pair types and port spaces; and the same as an event of an
//! identifier.
//!
//! Names are resolved by `getaddrinfo(3)`. It is asked for one kind of socket, so that each address comes once; every address
//! becomes an entry, in its order. What it cannot say is told with its own numbers (`EAI_...`); everything else is -1 with
//! `errno`.

mod interface;
mod list;

use std::ffi::{CStr, c_char, c_int};
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_ucm::client;

use super::id::Id;
use super::sync;
use crate::abi::*;
use crate::errno::{self, Refused, Result};
use interface::OnInterface;
use list::{AF_IB, Entry, List};

type Found<T> = std::result::Result<T, Fault>;

/// Why there is no answer.
enum Fault {
    /// One of `EAI_...`, and the question.
    Resolver(c_int, String),
    Refused(Refused),
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// What a hint says, or the absence of hints.
#[derive(Default)]
struct Hints {
    given: bool,
    flags: u32,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
    source: Vec<u8>,
    destination: Vec<u8>,
}

impl Hints {
    /// # Safety
    /// `hints` is null or points to what the manual page says.
    unsafe fn read(hints: *const rdma_addrinfo) -> Self {
        // SAFETY: the caller's promise.
        let Some(hints) = (unsafe { hints.as_ref() }) else {
            return Self::default();
        };
        Self {
            given: true,
            flags: hints.ai_flags.cast_unsigned(),
            family: hints.ai_family,
            qp_type: hints.ai_qp_type,
            port_space: hints.ai_port_space,
            // SAFETY: the caller's promise: the lengths are those of the addresses.
            source: unsafe { bytes(hints.ai_src_addr, hints.ai_src_len) },
            // SAFETY: as above.
            destination: unsafe { bytes(hints.ai_dst_addr, hints.ai_dst_len) },
        }
    }

    fn is_passive(&self) -> bool {
        self.flags & RAI_PASSIVE != 0
    }

    /// The node is a GID as text, and the answer a native address.
    fn wants_gid(&self) -> bool {
        let bits = RAI_FAMILY | RAI_NUMERICHOST;
        self.family == AF_IB && self.flags & bits == bits
    }

    /// The kind of socket that stands for the wanted kind of queue pair.
    fn socket(&self) -> (c_int, c_int) {
        let of_type = match u32::try_from(self.qp_type) {
            Ok(IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) => {
                Some(libc::SOCK_STREAM)
            }
            Ok(IBV_QPT_UD) => Some(libc::SOCK_DGRAM),
            _ => None,
        };
        let of_space = match u32::try_from(self.port_space) {
            Ok(RDMA_PS_TCP) => Some(libc::SOCK_STREAM),
            Ok(RDMA_PS_UDP | RDMA_PS_IPOIB) => Some(libc::SOCK_DGRAM),
            _ => None,
        };
        let socket = of_type.or(of_space).unwrap_or(libc::SOCK_STREAM);
        // Where both are given and differ, the resolver says EAI_SOCKTYPE.
        (socket, protocol_of(of_space.unwrap_or(socket)))
    }

    /// Connections unless hints say datagrams; each of type and port space follows from the other.
    fn kind(&self) -> (c_int, c_int) {
        let (socket, _) = self.socket();
        let (qp_type, port_space) = if socket == libc::SOCK_DGRAM {
            (IBV_QPT_UD, RDMA_PS_UDP)
        } else {
            (IBV_QPT_RC, RDMA_PS_TCP)
        };
        let or = |given: c_int, derived: u32| {
            if given == 0 {
                derived.cast_signed()
            } else {
                given
            }
        };
        (or(self.qp_type, qp_type), or(self.port_space, port_space))
    }

    /// The family to look in. A source that is given says it, when nothing else does: an address of another family could not
    /// be reached from it.
    fn resolver_family(&self) -> c_int {
        if self.wants_gid() {
            return libc::AF_INET6;
        }
        let of_source = match list::family(&self.source) {
            family @ (libc::AF_INET | libc::AF_INET6) if !self.is_passive() => family,
            _ => libc::AF_UNSPEC,
        };
        match self.family {
            libc::AF_UNSPEC | AF_IB => of_source,
            family => family,
        }
    }
}

const fn protocol_of(socket: c_int) -> c_int {
    if socket == libc::SOCK_DGRAM {
        libc::IPPROTO_UDP
    } else {
        libc::IPPROTO_TCP
    }
}

/// # Safety
/// `address` is null, or points to `len` bytes.
unsafe fn bytes(address: *const libc::sockaddr, len: libc::socklen_t) -> Vec<u8> {
    if address.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len as usize) }.to_vec()
}

/// # Safety
/// `text` is null, or a C string that outlives the answer.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Finds addresses for `node` and `service`: 0 and a list in `res`, one of `EAI_...`, or -1 with `errno`. The list is freed by
/// [`rdma_freeaddrinfo`].
///
/// # Safety
/// `node`, `service` and `hints` are null or what the manual page says; `res` is valid for writing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's promise.
    let (node, service) = unsafe { (text(node), text(service)) };
    // SAFETY: the caller's promise.
    let hints = unsafe { Hints::read(hints) };
    let found = if res.is_null() {
        Err(Fault::Refused(Refused::new(
            libc::EINVAL,
            "no place for the answer",
        )))
    } else {
        find(node, service, &hints)
    };
    match found {
        Ok(list) => {
            // SAFETY: the caller's promise.
            unsafe { *res = list.into_ptr() };
            0
        }
        Err(fault) => fault.tell("rdma_getaddrinfo"),
    }
}

impl Fault {
    fn tell(self, call: &'static str) -> c_int {
        match self {
            Self::Resolver(libc::EAI_SYSTEM, question) => {
                tracing::warn!("{call}: {question}: {}", std::io::Error::last_os_error());
                libc::EAI_SYSTEM
            }
            Self::Resolver(number, question) => {
                tracing::warn!("{call}: {question}: {}", list::sentence(number));
                number
            }
            Self::Refused(refused) => errno::minus_one(call, Err(refused)),
        }
    }

    /// For calls that have no other way than `errno`.
    fn into_refused(self) -> Refused {
        match self {
            Self::Refused(refused) => refused,
            Self::Resolver(number, question) => {
                let last = std::io::Error::last_os_error().raw_os_error();
                let errno = match number {
                    libc::EAI_SYSTEM => last.unwrap_or(libc::EIO),
                    libc::EAI_MEMORY => libc::ENOMEM,
                    libc::EAI_AGAIN => libc::EAGAIN,
                    libc::EAI_FAMILY | list::EAI_ADDRFAMILY => libc::EAFNOSUPPORT,
                    libc::EAI_SOCKTYPE => libc::ESOCKTNOSUPPORT,
                    libc::EAI_BADFLAGS => libc::EINVAL,
                    _ => libc::ENOENT,
                };
                Refused::new(errno, format!("{question}: {}", list::sentence(number)))
            }
        }
    }
}

fn find(node: Option<&CStr>, service: Option<&CStr>, hints: &Hints) -> Found<List> {
    if node.is_none() && service.is_none() && !hints.given {
        let sentence = "neither a node, nor a service, nor hints";
        return Err(Refused::new(libc::EINVAL, sentence).into());
    }
    if hints.flags & RAI_SA != 0 {
        return Err(service_records(node, service, hints).into());
    }
    let mut list = List::default();
    if node.is_none() && service.is_none() {
        list.push(&of_hints(hints))?;
        return Ok(list);
    }
    for entry in resolved(node, service, hints)? {
        list.push(&entry)?;
    }
    Ok(list)
}

/// There is a subnet administrator on InfiniBand links only, and so there are service records.
fn service_records(node: Option<&CStr>, service: Option<&CStr>, hints: &Hints) -> Refused {
    if node.is_some() || hints.flags & RAI_DNS != 0 {
        let sentence =
            "service records are looked up by service alone, without a node and without RAI_DNS";
        Refused::new(libc::EOPNOTSUPP, sentence)
    } else if service.is_none() {
        Refused::new(
            libc::EINVAL,
            "a service record is looked up by service, and none is given",
        )
    } else {
        Refused::new(
            libc::ENOENT,
            "no device has a subnet administrator that keeps service records",
        )
    }
}

/// Without a node and a service: what the hints say, with what follows from it.
fn of_hints(hints: &Hints) -> Entry {
    let (qp_type, port_space) = hints.kind();
    let addressed = if hints.destination.is_empty() {
        &hints.source
    } else {
        &hints.destination
    };
    Entry {
        flags: hints.flags,
        family: if hints.family == libc::AF_UNSPEC {
            list::family(addressed)
        } else {
            hints.family
        },
        qp_type,
        port_space,
        source: hints.source.clone(),
        destination: hints.destination.clone(),
    }
}

fn resolved(node: Option<&CStr>, service: Option<&CStr>, hints: &Hints) -> Found<Vec<Entry>> {
    let on_interface = match node {
        Some(node) => interface::split(node)?,
        None => None,
    };
    let numeric = on_interface.as_ref().map(|on| on.node.as_c_str());
    let mut addresses = ask(numeric.or(node), service, hints)?;
    if node.is_none() && hints.is_passive() && listens_for_both() {
        // A program that takes the first entry hears everybody.
        addresses.sort_by_key(|address| address.is_ipv4());
    }
    let (qp_type, port_space) = hints.kind();
    let mut entries = Vec::with_capacity(addresses.len());
    for mut address in addresses {
        let mut source = hints.source.clone();
        if let Some(on) = &on_interface {
            place(on, &mut address, &mut source, hints)?;
        }
        let ours = if hints.wants_gid() {
            list::native(port_space, address)
        } else {
            list::sockaddr(address)
        };
        let (source, destination) = if hints.is_passive() {
            (ours, Vec::new())
        } else {
            (source, ours)
        };
        entries.push(Entry {
            flags: hints.flags & RAI_PASSIVE,
            family: list::family(if hints.is_passive() {
                &source
            } else {
                &destination
            }),
            qp_type,
            port_space,
            source,
            destination,
        });
    }
    Ok(entries)
}

/// Whether a listener at any IPv6 address hears those who come over IPv4, too, unless it says otherwise.
fn listens_for_both() -> bool {
    std::fs::read_to_string(BINDV6ONLY).is_ok_and(|only| only.trim() == "0")
}

/// `address%interface`: a listener's address must be of the interface, any address becomes the interface's; the way to a
/// remote address starts at the interface.
fn place(
    on: &OnInterface,
    address: &mut SocketAddr,
    source: &mut Vec<u8>,
    hints: &Hints,
) -> Found<()> {
    let no_address =
        |number: c_int| Fault::Resolver(number, format!("{}%{}", address.ip(), on.interface));
    if !hints.is_passive() {
        if source.is_empty() {
            let local = on.local_for(address.ip());
            let local = local.ok_or_else(|| no_address(list::EAI_ADDRFAMILY))?;
            *source = list::sockaddr(SocketAddr::new(local, 0));
        }
    } else if address.ip().is_unspecified() {
        let local = on.local_for(address.ip());
        let local = local.ok_or_else(|| no_address(list::EAI_ADDRFAMILY))?;
        address.set_ip(local);
    } else if !on.has(address.ip()) {
        return Err(no_address(libc::EAI_NONAME));
    }
    Ok(())
}

/// Asks the resolver: each address once, in its order.
fn ask(node: Option<&CStr>, service: Option<&CStr>, hints: &Hints) -> Found<Vec<SocketAddr>> {
    let (socket, protocol) = hints.socket();
    let mut flags = 0;
    if hints.is_passive() {
        flags |= libc::AI_PASSIVE;
    }
    if hints.flags & RAI_NUMERICHOST != 0 {
        flags |= libc::AI_NUMERICHOST;
    }
    if !hints.given {
        // What getaddrinfo(3) takes for no hints at all.
        flags |= libc::AI_V4MAPPED | libc::AI_ADDRCONFIG;
    }
    // SAFETY: zero is a value of every field.
    let mut question: libc::addrinfo = unsafe { std::mem::zeroed() };
    question.ai_flags = flags;
    question.ai_family = hints.resolver_family();
    question.ai_socktype = socket;
    question.ai_protocol = protocol;
    let c_pointer = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    let mut first = ptr::null_mut();
    // SAFETY: C strings or null, and a place for the answer.
    let number = unsafe {
        libc::getaddrinfo(
            c_pointer(node),
            c_pointer(service),
            &raw const question,
            &raw mut first,
        )
    };
    if number != 0 {
        let node = node.map_or_else(|| "any node".into(), CStr::to_string_lossy);
        let service = service.map_or_else(|| "no service".into(), CStr::to_string_lossy);
        return Err(Fault::Resolver(number, format!("{node}, {service}")));
    }
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: a list of the resolver, null at its end.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: as the resolver says.
        let address = list::parsed(&unsafe { bytes(entry.ai_addr, entry.ai_addrlen) });
        if let Some(address) = address.filter(|address| !addresses.contains(address)) {
            addresses.push(address);
        }
        next = entry.ai_next;
    }
    // SAFETY: the list, which nobody looks at any more.
    unsafe { libc::freeaddrinfo(first) };
    Ok(addresses)
}

/// Frees a list.
///
/// # Safety
/// `res` is null, or a list whose parts `free` can free.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    // SAFETY: the caller's promise.
    drop(unsafe { List::from_ptr(res) });
}

/// The resolution of an identifier: [`rdma_resolve_addrinfo`] starts one, [`rdma_query_addrinfo`] takes its answer.
#[derive(Default)]
pub(crate) struct Resolution(Mutex<Progress>);

#[derive(Default)]
enum Progress {
    #[default]
    None,
    /// Started; without an answer yet.
    Started,
    Answered(List),
}

impl Resolution {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds addresses as [`rdma_getaddrinfo`] does. `RDMA_CM_EVENT_ADDRINFO_RESOLVED` follows, and then [`rdma_query_addrinfo`].
///
/// # Safety
/// As [`rdma_getaddrinfo`]; `id` is null or an identifier of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let begun = begin_resolve_addrinfo(id, node, service, hints);
        sync::finish("rdma_resolve_addrinfo", id, begun)
    }
}

unsafe extern "C" fn begin_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's promise.
    let (node, service) = unsafe { (text(node), text(service)) };
    // SAFETY: the caller's promise.
    let hints = unsafe { Hints::read(hints) };
    // SAFETY: the caller's promise.
    let result = unsafe { Id::of(id) }.and_then(|id| resolve(id, node, service, &hints));
    errno::minus_one("rdma_resolve_addrinfo", result)
}

fn resolve(id: &Id, node: Option<&CStr>, service: Option<&CStr>, hints: &Hints) -> Result<()> {
    {
        let mut progress = id.kept.addrinfo.lock();
        if !matches!(*progress, Progress::None) {
            return Err(Refused::new(
                libc::EBUSY,
                "the answer of the last resolution was not taken yet",
            ));
        }
        *progress = Progress::Started;
    }
    let result = answer(id, node, service, hints);
    if result.is_err() {
        *id.kept.addrinfo.lock() = Progress::None;
    }
    result
}

fn answer(id: &Id, node: Option<&CStr>, service: Option<&CStr>, hints: &Hints) -> Result<()> {
    let list = find(node, service, hints).map_err(Fault::into_refused)?;
    *id.kept.addrinfo.lock() = Progress::Answered(list);
    let event = u64::from(RDMA_CM_EVENT_ADDRINFO_RESOLVED);
    id.call(client::write_cm_event(
        id.number(),
        RDMA_CM_EVENT_INTERNAL,
        0,
        event,
    ))
}

/// Gives the answer of [`rdma_resolve_addrinfo`], once.
///
/// # Safety
/// `id` is null or an identifier of this library; `info` is null or valid for writing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { Id::of(id) }.and_then(take_answer);
    let result = match result {
        Ok(_) if info.is_null() => Err(Refused::new(libc::EINVAL, "no place for the answer")),
        Ok(list) => {
            // SAFETY: the caller's promise.
            unsafe { *info = list.into_ptr() };
            Ok(())
        }
        Err(refused) => Err(refused),
    };
    errno::minus_one("rdma_query_addrinfo", result)
}

fn take_answer(id: &Id) -> Result<List> {
    let mut progress = id.kept.addrinfo.lock();
    match std::mem::take(&mut *progress) {
        Progress::Answered(list) => Ok(list),
        other => {
            *progress = other;
            Err(Refused::new(
                libc::ENOENT,
                "there is no answer of a resolution",
            ))
        }
    }
}

const BINDV6ONLY: &str = "/proc/sys/net/ipv6/bindv6only";
const RAI_SA: u32 = 0x10;
const RAI_DNS: u32 = 0x20;
/// The event that [`rdma_resolve_addrinfo`] writes; whoever fetches it makes the event of it whose number it carries.
const RDMA_CM_EVENT_INTERNAL: u32 = 19;
const RDMA_CM_EVENT_ADDRINFO_RESOLVED: u32 = 16;
