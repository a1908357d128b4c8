//! Verbs in safe Rust: contexts, protection domains, registered memory and windows, completion queues, shared receive
//! queues and queue pairs of the soft RoCEv2 device.
//!
//! # Memory and safety
//! A network card writes into a program's memory behind its back. In this API that memory cannot
//! be reached meanwhile, and no `unsafe` is needed to use it:
//!
//! - Registered memory is allocated by the library ([`MemoryRegion`]) and handed out as
//!   [`Buffer`]s, which never overlap and cannot be cloned. A buffer is the only way to its bytes.
//! - [`QueuePair::post_recv`] and [`QueuePair::post_send`] take buffers *by value*. They come back
//!   in the [`Completion`], or in the [`PostError`] if nothing was posted. In between no safe code
//!   has anything that leads to the bytes:
//!
//!   ```compile_fail,E0382
//!   # use oarlock_verbs::{Buffer, QueuePair};
//!   fn read_too_early(qp: &QueuePair, buffer: Buffer) -> u8 {
//!       qp.post_recv(1, buffer).unwrap();
//!       buffer[0] // error[E0382]: borrow of moved value: `buffer`
//!   }
//!   ```
//!   ```compile_fail,E0505
//!   # use oarlock_verbs::{Buffer, QueuePair, SendRequest};
//!   fn keep_a_view(qp: &QueuePair, mut buffer: Buffer) {
//!       let view = &mut buffer[..];
//!       qp.post_send(SendRequest::new(1, buffer)).unwrap(); // error[E0505]: cannot move out
//!       view[0] = 1;
//!   }
//!   ```
//!   ```compile_fail,E0599
//!   # use oarlock_verbs::{Buffer, QueuePair};
//!   fn post_twice(qp: &QueuePair, buffer: Buffer) {
//!       qp.post_recv(1, buffer.clone()).unwrap(); // error[E0599]: no method named `clone`
//!       qp.post_recv(2, buffer).unwrap();
//!   }
//!   ```
//! - While a request is outstanding its buffers are owned by a table that belongs to the queue
//!   pair, and the *device* holds that table: as long as one of its threads can still place data
//!   for the queue pair, the memory is there. Dropping the queue pair, the completion queue, the
//!   context or all of them in any order therefore frees nothing too early, and waits for nothing.
//! - `mem::forget` of anything (a buffer, a completion, a queue pair) leaks memory and does no
//!   other harm, since nothing relies on a destructor being run.
//! - The device looks a region up by its key for every packet, checks domain, bounds and rights,
//!   and completes a request only after the last byte has been placed. A completion can thus be
//!   taken as proof that the buffers in it are the program's again.
//! - Memory that peers may access by themselves ([`RemoteMemory`]) has no slice: the program reaches it by copies and words
//!   that exclude the device, and gets a [`Buffer`] of it only when no peer has a right any more. A [`MemoryRegion`] that
//!   is divided into buffers can have no right for peers.
//! - Objects of different contexts or domains do not mix: a buffer of another protection domain is
//!   no memory to the queue pair, and its request ends with a local protection error.
//!
//! What this crate relies on below: `oarlock-transport` never asks for memory of a request that it
//! has completed, and `oarlock-device` publishes completions under the lock under which it places.
//!
//! # Threads
//! Everything is `Send` and `Sync`, handles are cheap to clone, and no call blocks except where
//! its documentation says so. `post_send` sends from the calling thread; `poll` receives on the
//! calling thread; one engine thread per process does what is left, and sleeps when nothing is.
//!
//! # What it never does
//! It never copies a buffer more often than the way to the socket needs, never places data into memory that the program has
//! neither posted nor offered to peers, and never drops a completion without an error.
//!
//! # Operations
//! A [`SendRequest`] is one operation of the send queue. Besides SEND there are those on memory of the peer, which it
//! offers as [`RemoteMemory`] and names to us by any means as a [`RemoteAddress`]:
//!
//! ```
//! # use oarlock_verbs::*;
//! # mod doctest { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/pair.rs")); }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let ((qp, cq), (peer, peer_cq)) = doctest::connected(QpInitAttr::default());
//! # let next = || Ok::<_, Box<dyn std::error::Error>>(cq.wait_one(None)?.unwrap().ok()?);
//! // The peer offers 4 KiB and tells us where.
//! let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
//! let memory = RemoteMemory::new(peer.pd(), 4096, rights)?;
//! let there: RemoteAddress = memory.at(1024);
//!
//! // WRITE: the peer learns nothing of it.
//! let mut bytes = Buffer::new(qp.pd(), 13)?;
//! bytes.copy_from_slice(b"written there");
//! qp.post_send(SendRequest::write(1, bytes, there))?;
//! assert_eq!(next()?.opcode, WcOpcode::RDMA_WRITE);
//!
//! // READ into a buffer of ours.
//! qp.post_send(SendRequest::read(2, Buffer::new(qp.pd(), 7)?, there))?;
//! assert_eq!(&next()?.buffers[0][..], b"written");
//!
//! // Atomics give the value before, in host byte order.
//! let counter = memory.at(0);
//! qp.post_send(SendRequest::fetch_add(3, Buffer::new(qp.pd(), 8)?, counter, 5))?;
//! assert_eq!(next()?.buffers[0][..], 0_u64.to_ne_bytes());
//! qp.post_send(SendRequest::compare_swap(4, Buffer::new(qp.pd(), 8)?, counter, 5, 100))?;
//! assert_eq!(next()?.buffers[0][..], 5_u64.to_ne_bytes());
//! assert_eq!(memory.load_u64(0)?, 100);
//!
//! // WRITE with immediate: takes a receive of the peer, and so tells it.
//! peer.post_recv(7, Buffers::new())?;
//! qp.post_send(SendRequest::write_imm(5, Inline(b"!"), memory.at(1024), 42))?;
//! assert_eq!(peer_cq.wait_one(None)?.and_then(|told| told.imm), Some(42));
//! # next()?;
//!
//! // In the end the peer has its bytes for itself again.
//! let buffer = memory.into_buffer().map_err(|(_, error)| error)?;
//! assert_eq!(&buffer[1024..1037], b"!ritten there");
//! # Ok(()) }
//! ```
//!
//! What a queue pair's peer may do is also a matter of the queue pair ([`QpAttr::access`]) and of how many READs and atomics
//! both ends have agreed on ([`QpAttr::max_rd_atomic`], [`QpAttr::max_dest_rd_atomic`]). A refusal ends the connection, and
//! [`Completion::vendor_err`] says which rule was broken.
//!
//! | | RC | UC | UD | XRC |
//! |---|---|---|---|---|
//! | SEND, with immediate | yes | yes | yes | yes |
//! | SEND with invalidate | yes | | | yes |
//! | WRITE, with immediate | yes | yes | | yes |
//! | READ, atomics | yes | | | yes |
//! | bind, local invalidate | yes | yes | | yes |
//!
//! [`QueuePair::batch`] posts several requests together or not at all; [`QueuePair::post_send_list`] posts as many as it can.
//!
//! # Memory windows
//! A [`MemoryWindow`] opens a part of a [`RemoteMemory`] for a while, without registering anything anew. This one is taken
//! away by the peer, with its last message:
//!
//! ```
//! # use oarlock_verbs::*;
//! # mod doctest { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/pair.rs")); }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let ((peer, peer_cq), (qp, cq)) = doctest::connected(QpInitAttr::default());
//! let memory = RemoteMemory::new(qp.pd(), 4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
//! let window = MemoryWindow::new(qp.pd(), WindowType::Two)?;
//! let key = window.next_key();
//! qp.post_send(SendRequest::bind(1, &window, key, &memory, 100, 50, Access::REMOTE_WRITE))?;
//! cq.wait_one(None)?.unwrap().ok()?;
//!
//! // Tell the peer the key. It writes, and gives the window back.
//! qp.post_recv(2, Buffer::new(qp.pd(), 16)?)?;
//! let there = RemoteAddress { addr: memory.at(100).addr, rkey: key };
//! peer.post_send(SendRequest::write(1, Inline(b"through"), there).unsignaled())?;
//! peer.post_send(SendRequest::send_invalidate(2, Inline(b"done"), key))?;
//!
//! let done = cq.wait_one(None)?.unwrap().ok()?;
//! assert_eq!((done.message(), done.invalidated), (Some(&b"done"[..]), Some(key)));
//! assert!(window.bound().is_none());
//! // From here on the peer cannot change what is being looked at.
//! let mut bytes = [0; 7];
//! memory.read_at(100, &mut bytes)?;
//! assert_eq!(&bytes, b"through");
//! # peer_cq.wait_one(None)?.unwrap().ok()?;
//! # Ok(()) }
//! ```
//!
//! # Memory of the program, in place
//! Bytes that lie elsewhere, in a `Vec` or in memory of another library, need no copy: they are registered where they are, with a
//! promise instead of ownership ([`ProtectionDomain::register_notified`] is `unsafe` for that reason), and named in requests by
//! [`Element`]s. Their keys end when the program unmaps, moves or discards the memory, so that a free that nobody thought of
//! leads to an error, and never to bytes in somebody else's memory. A [`MemoryChannel`] tells which regions that were; a program
//! that sends from all over the place has an [`MrCache`](oarlock_memwatch::MrCache) of its [`ProtectionDomain`] instead.
//! The example `stale_cache` shows what happens without.
//!
//! # Shared receive queues
//! Queue pairs that are made for a [`SharedReceiveQueue`] take its receives in turn, so that many idle connections need few
//! buffers:
//!
//! ```
//! # use oarlock_verbs::*;
//! # mod doctest { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/pair.rs")); }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (peer, context) = doctest::contexts();
//! # let pd = context.default_pd();
//! # let peer_cq = CompletionQueue::new(&peer, 16)?;
//! # let peer_qp = || QueuePair::create(&peer.default_pd(), &peer_cq, &peer_cq, QpInitAttr::default());
//! let cq = CompletionQueue::new(&context, 64)?;
//! let srq = SharedReceiveQueue::new(&pd, SrqInitAttr::default())?;
//! let one = QueuePair::with_srq(&pd, &cq, &cq, &srq, QpInitAttr::default())?;
//! let two = QueuePair::with_srq(&pd, &cq, &cq, &srq, QpInitAttr::default())?;
//! # let (of_one, of_two) = (peer_qp()?, peer_qp()?);
//! # doctest::connect(&one, &of_one);
//! # doctest::connect(&two, &of_two);
//! for buffer in MemoryRegion::new(&pd, 8 * 64, Access::LOCAL_WRITE)?.into_buffers(64) {
//!     srq.post_recv(0, buffer)?;
//! }
//! // Tell us when fewer than four are left.
//! srq.set_limit(4)?;
//!
//! of_two.post_send(SendRequest::inline(1, b"from the peer of two"))?;
//! let received = cq.wait_one(None)?.unwrap().ok()?;
//! assert_eq!((received.qpn, received.srq), (two.qpn(), Some(srq.id())));
//! assert_eq!(received.message(), Some(&b"from the peer of two"[..]));
//! # Ok(()) }
//! ```
//!
//! # XRC
//! With extended reliable connections one connection reaches all shared receive queues of a process's [`XrcDomain`]: the
//! initiator's messages name the queue, and complete where that queue's receives do.
//!
//! ```
//! # use oarlock_verbs::*;
//! # mod doctest { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/pair.rs")); }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (peer, context) = doctest::contexts();
//! # let pd = context.default_pd();
//! let domain = XrcDomain::open(&context)?;
//! let cq = CompletionQueue::new(&context, 64)?;
//! let srq = SharedReceiveQueue::xrc(&pd, SrqInitAttr::default(), &domain, &cq)?;
//! let target = QueuePair::xrc_target(&pd, &cq, &domain)?;
//! srq.post_recv(5, Buffer::new(&pd, 64)?)?;
//! let number = srq.number().expect("queues of XRC have one");
//!
//! // The peer:
//! # let peer_cq = CompletionQueue::new(&peer, 16)?;
//! let kind = QpInitAttr { qp_type: QpType::XrcInitiator, ..QpInitAttr::default() };
//! let initiator = QueuePair::create(&peer.default_pd(), &peer_cq, &peer_cq, kind)?;
//! # doctest::connect(&initiator, &target);
//! initiator.post_send(SendRequest::inline(1, b"to that queue").srqn(number))?;
//!
//! let received = cq.wait_one(None)?.unwrap().ok()?;
//! assert_eq!(received.srqn, Some(number));
//! assert_eq!(received.message(), Some(&b"to that queue"[..]));
//! # Ok(()) }
//! ```
//!
//! # Completions
//! [`CompletionQueue::poll`] and [`wait`](CompletionQueue::wait) give [`Completion`]s, which own the buffers of their
//! requests. [`CompletionQueue::start_poll`] looks at them field by field. A queue that reports on a channel can gather
//! completions before it does ([`moderate`](CompletionQueue::moderate)). Each completion has a
//! [`timestamp`](Completion::timestamp).
//!
//! # Events and figures
//! What happens to queue pairs, queues, the port and the device without a call of the program is an [`AsyncEvent`], behind a
//! descriptor ([`Context::async_events`]); [`EVENT_KINDS`] lists those of the C interface, and why some never come.
//! [`Context::statistics`] has figures under the names that `rdma statistic` uses, explained in [`STATISTICS`].
//!
//! # Datagrams
//! A queue pair of type [`QpType::Ud`] needs no connection. Each [`SendRequest`] says where [`to`](SendRequest::to), with
//! an [`AddressHandle`], a queue pair number and the Q_Key that the receiver demands. A message is one packet, so it is at
//! most as long as the path MTU ([`DeviceInfo::max_path_mtu`]); nobody acknowledges it, and a message that is lost, finds
//! no receive posted or has the wrong Q_Key is gone. Before each received message stand [`GRH_LEN`] bytes of header, for
//! which the buffer must have room: [`Completion::message`] is what comes after, [`Completion::grh`] what the header says,
//! and [`AddressHandle::reply_to`] the way back. A message longer than the buffer is dropped and counted.
//!
//! Two queue pairs on a private host:
//!
//! ```
//! use oarlock_hostd::Host;
//! use oarlock_verbs::*;
//! use oarlock_wire::QKey;
//!
//! const KEY: QKey = QKey(0x1111_1111);
//!
//! fn datagrams(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<QueuePair, Error> {
//!     let kind = QpInitAttr { qp_type: QpType::Ud, ..QpInitAttr::default() };
//!     let qp = QueuePair::create(pd, cq, cq, kind)?;
//!     let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
//!     let steps = [
//!         (QpState::Init, init),
//!         (QpState::Rtr, AttrMask::empty()),
//!         (QpState::Rts, AttrMask::SQ_PSN),
//!     ];
//!     for (state, mask) in steps {
//!         let mask = mask | AttrMask::STATE;
//!         qp.modify(&QpAttr { mask, state, qkey: KEY, ..QpAttr::default() })?;
//!     }
//!     Ok(qp)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::private()?;
//! let context = Context::open(&host, Context::devices(&host)?[0].index)?;
//! let pd = context.default_pd();
//! let (asking, answering) = (CompletionQueue::new(&context, 16)?, CompletionQueue::new(&context, 16)?);
//! let (client, server) = (datagrams(&pd, &asking)?, datagrams(&pd, &answering)?);
//!
//! // A question ...
//! server.post_recv(1, Buffer::new(&pd, GRH_LEN + 100)?)?;
//! client.post_recv(2, Buffer::new(&pd, GRH_LEN + 100)?)?;
//! let remote = context.device().gids[0];
//! let to_server = AddressHandle::new(&pd, AddressHandleAttr { remote, ..AddressHandleAttr::default() })?;
//! client.post_send(SendRequest::inline(3, b"who is there?").to(&to_server, server.qpn(), KEY))?;
//! let mut received = Vec::new();
//! answering.wait(&mut received, None)?;
//! let question = received.remove(0).ok()?;
//! assert_eq!(question.message(), Some(&b"who is there?"[..]));
//! assert_eq!(question.src_qp, client.qpn());
//!
//! // ... and the answer, to whoever asked.
//! let back = AddressHandle::reply_to(&pd, &question)?;
//! server.post_send(SendRequest::inline(4, b"me").to(&back, question.src_qp, KEY).unsignaled())?;
//! while received.len() < 2 {
//!     asking.wait(&mut received, None)?; // the send, then the answer
//! }
//! assert_eq!(received[1].message(), Some(&b"me"[..]));
//! # Ok(()) }
//! ```
//!
//! Two members of a multicast group and a sender that is none; `datagrams` is the function above:
//!
//! ```
//! # use oarlock_hostd::Host;
//! # use oarlock_verbs::*;
//! # use oarlock_wire::{Gid, Qpn};
//! # mod doctest { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/datagrams.rs")); }
//! # use doctest::{KEY, datagrams};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let host = Host::private()?;
//! # let context = Context::open(&host, Context::devices(&host)?[0].index)?;
//! # let pd = context.default_pd();
//! let group = Gid::from_ip("239.1.2.3".parse()?);
//! let cq = CompletionQueue::new(&context, 16)?;
//! let members = [datagrams(&pd, &cq)?, datagrams(&pd, &cq)?];
//! for member in &members {
//!     member.attach_multicast(group)?;
//!     member.post_recv(1, Buffer::new(&pd, GRH_LEN + 100)?)?;
//! }
//! let sent = CompletionQueue::new(&context, 16)?;
//! let sender = datagrams(&pd, &sent)?;
//! let to_group = AddressHandle::new(&pd, AddressHandleAttr { remote: group, ..AddressHandleAttr::default() })?;
//! sender.post_send(SendRequest::inline(2, b"to all").to(&to_group, Qpn::MULTICAST, KEY))?;
//!
//! let mut received = Vec::new();
//! while received.len() < members.len() {
//!     cq.wait(&mut received, None)?;
//! }
//! for completion in &received {
//!     assert_eq!(completion.message(), Some(&b"to all"[..]));
//!     assert_eq!(completion.grh().map(|grh| grh.destination), Some(group.to_ip()));
//! }
//! # Ok(()) }
//! ```
//!
//! # Example
//! Two connected queue pairs on an in-memory wire (with a host service: [`Context::open`]):
//!
//! ```
//! use oarlock_verbs::{CompletionQueue, Buffer, QpInitAttr, QueuePair, SendRequest};
//! # mod doctest { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/pair.rs")); }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (context, peer) = doctest::contexts();
//! let pd = context.default_pd();
//! let cq = CompletionQueue::new(&context, 16)?;
//! let qp = QueuePair::create(&pd, &cq, &cq, QpInitAttr::default())?;
//! # let peer_pd = peer.default_pd();
//! # let peer_cq = CompletionQueue::new(&peer, 16)?;
//! # let peer_qp = QueuePair::create(&peer_pd, &peer_cq, &peer_cq, QpInitAttr::default())?;
//! # doctest::connect(&qp, &peer_qp);
//! // ... connected, by the connection manager or by hand ...
//! peer_qp.post_recv(7, Buffer::new(&peer_pd, 4096)?)?;
//! let mut message = Buffer::new(&pd, 5)?;
//! message.copy_from_slice(b"hello");
//! qp.post_send(SendRequest::new(1, message))?;
//!
//! let mut received = Vec::new();
//! peer_cq.wait(&mut received, None)?;
//! let completion = received.remove(0).ok()?;
//! assert_eq!(completion.wr_id, 7);
//! assert_eq!(&completion.buffers[0][..completion.byte_len as usize], b"hello");
//! # Ok(()) }
//! ```
#![deny(unsafe_code)]

mod address;
mod batch;
mod buffer;
mod context;
mod cq;
mod error;
mod host;
mod memory;
pub mod on_host;
mod outstanding;
mod pd;
mod polling;
mod qp;
mod remote;
mod request;
mod srq;
mod window;
mod xrc;

pub use address::{AddressHandle, AddressHandleAttr};
pub use batch::Batch;
pub use buffer::{Access, Buffer, Buffers, MemoryRegion};
pub use context::{
    AsyncEvent, AsyncEvents, AtomicCapability, Capabilities, Context, DeviceInfo, DeviceLimits,
    EVENT_KINDS, Endpoint, EventKind, STATISTICS, Statistic,
};
pub use cq::{Completion, CompletionChannel, CompletionQueue, CqEvent, CqId, GRH_LEN, Notify};
pub use error::{AddressError, Error, ListError, PostError, WorkError};
pub use memory::{Element, Elements, MemoryChannel, NotifiedRegion, ProgramMemory, Registered};
pub use pd::ProtectionDomain;
pub use polling::Polling;
pub use qp::{QpInitAttr, QueuePair};
pub use remote::RemoteMemory;
pub use request::{Inline, Payload, SendRequest};
pub use srq::{SharedReceiveQueue, SrqId, SrqInitAttr};
pub use window::{Bound, MemoryWindow, WindowType};
pub use xrc::XrcDomain;

pub use oarlock_device::{CommEstHook, Error as DeviceError};
pub use oarlock_transport::{
    AccessFlags, AttrMask, Counter, Counters, Error as QpError, QpAttr, QpState, QpType,
    RemoteAddress, SrqAttr, VendorError, WcOpcode, WcStatus,
};
#[doc(no_inline)]
pub use oarlock_wire::{AddressVector, Gid, Guid, LKey, Mtu, PKey, Psn, QKey, Qpn, RKey, Srqn};
