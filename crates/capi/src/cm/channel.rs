//! Event channels.

use std::cell::UnsafeCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use oarlock_hostd::{ClientChannel, Host, Patience, Wake};
use oarlock_port::fork::{self, PerProcess};
use oarlock_ucm::proto::{Acknowledged, MAX_BATCH, WriteBatch};
use rustix::event::EventfdFlags;
use rustix::fs::OFlags;

use crate::abi::rdma_event_channel;
use crate::errno::{self, Refused, Result};
use crate::process::{self, Process};

/// An event channel. C's pointer is that of an `Arc`; identifiers on the channel hold others.
#[repr(C)]
pub(crate) struct Channel {
    abi: UnsafeCell<rdma_event_channel>,
    /// Never that of another channel of this process.
    serial: u64,
    token: u64,
    fd: c_int,
    process: Process,
    fork_generation: u32,
    /// Gone when the channel is closed.
    client: Mutex<Option<Arc<ClientChannel>>>,
    /// What was acknowledged since the service was last told: by identifier, events in all.
    unsaid: Mutex<HashMap<u32, u32>>,
}

// SAFETY: the public part is C's and reached by pointer only; everything else is `Send` and `Sync` by itself.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// Opens a channel.
    ///
    /// # Errors
    /// No descriptor is left; a limit of the service; it has gone.
    pub(crate) fn open(process: &Process) -> Result<Arc<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let client = process.host.open_channel()?;
        let fd = client.as_fd().as_raw_fd();
        // The service makes it without; whether calls wait is for the program to say.
        let flags = rustix::fs::fcntl_getfl(&client).map_err(of_descriptor)?;
        rustix::fs::fcntl_setfl(&client, flags.difference(OFlags::NONBLOCK))
            .map_err(of_descriptor)?;
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let channel = Arc::new(Self {
            abi: UnsafeCell::new(rdma_event_channel { fd }),
            serial,
            token: client.token(),
            fd,
            process: process.clone(),
            fork_generation: fork::generation(),
            client: Mutex::new(Some(Arc::new(client))),
            unsaid: Mutex::default(),
        });
        open().insert(serial, Arc::downgrade(&channel));
        Ok(channel)
    }

    /// The channel that a wait is for, if the program has not closed it meanwhile: then its pointer is not to be followed.
    pub(crate) fn waited_for(wait: Wait) -> Option<Arc<Self>> {
        open().get(&wait.serial)?.upgrade()
    }

    /// The channel that C knows as `channel`.
    ///
    /// # Errors
    /// `EINVAL`: null. `EACCES`: it was made before a fork, by the parent; so the kernel answers whoever has other credentials
    /// than the opener of the descriptor.
    ///
    /// # Safety
    /// `channel` is null, or what C got of this library and has not destroyed.
    pub(crate) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> Result<&'a Self> {
        if channel.is_null() {
            return Err(Refused::new(libc::EINVAL, "no event channel is given"));
        }
        // SAFETY: the caller's promise; `abi` is the first field.
        let channel = unsafe { &*channel.cast::<Self>() };
        if channel.fork_generation != fork::generation() {
            return Err(Refused::new(
                libc::EACCES,
                "the event channel is of the process that this one was forked from",
            ));
        }
        Ok(channel)
    }

    /// As [`of`](Self::of), for what keeps the channel.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn share(channel: *mut rdma_event_channel) -> Result<Arc<Self>> {
        // SAFETY: the caller's promise.
        unsafe { Self::of(channel) }?;
        // SAFETY: C's pointer, and that of a synchronous identifier's channel, is the pointer of an `Arc`.
        let held = ManuallyDrop::new(unsafe { Arc::from_raw(channel.cast::<Self>()) });
        Ok(Arc::clone(&held))
    }

    /// What C knows the channel by.
    pub(crate) fn as_ptr(self: &Arc<Self>) -> *mut rdma_event_channel {
        Arc::as_ptr(self).cast_mut().cast()
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn host(&self) -> &Host {
        &self.process.host
    }

    /// What names the channel in requests.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// What to wait on for the next event.
    pub(crate) fn wait(&self) -> Wait {
        Wait {
            fd: self.fd,
            serial: self.serial,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock_client().is_none()
    }

    /// Closes the descriptor; the service destroys the identifiers that are still here.
    pub(crate) fn close(&self) {
        open().remove(&self.serial);
        self.lock_client().take();
    }

    /// Looks for an announced event, for a moment unless the program asked not to wait; whether there is one.
    ///
    /// # Errors
    /// `EIO`: the service has gone. `EBADF`: the channel is closed.
    pub(crate) fn look(&self) -> Result<bool> {
        let client = self.client()?;
        if take(&client)? {
            return Ok(true);
        }
        let flags = rustix::fs::fcntl_getfl(&*client).map_err(of_descriptor)?;
        if !flags.contains(OFlags::NONBLOCK)
            && let Some(mut waiting) = Patience::new()
        {
            while waiting.look_again() {
                if take(&client)? {
                    waiting.paid_off();
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn client(&self) -> Result<Arc<ClientChannel>> {
        let client = self.lock_client().clone();
        client.ok_or_else(|| Refused::new(libc::EBADF, "the event channel is closed"))
    }

    fn lock_client(&self) -> MutexGuard<'_, Option<Arc<ClientChannel>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identifier has acknowledged so many events by now; the service learns it with the next request for one.
    pub(crate) fn note_acknowledged(&self, id: u32, events: u32) {
        self.lock_unsaid().insert(id, events);
    }

    /// The identifier has gone, and its number may soon be another's.
    pub(crate) fn forget(&self, id: u32) {
        self.lock_unsaid().remove(&id);
    }

    pub(crate) fn take_unsaid(&self) -> Vec<Acknowledged> {
        let mut unsaid = self.lock_unsaid();
        let some: Vec<u32> = unsaid.keys().copied().take(MAX_BATCH).collect();
        let taken = some.into_iter().filter_map(|id| {
            let events = unsaid.remove(&id)?;
            Some(Acknowledged { id, events })
        });
        taken.collect()
    }

    /// Tells the service what was acknowledged, before a wait that may be long. It only shows it to others.
    pub(crate) fn say(&self) {
        let acknowledged = self.take_unsaid();
        if !acknowledged.is_empty() {
            self.host().post_batch(WriteBatch {
                acknowledged,
                ..WriteBatch::default()
            });
        }
    }

    fn lock_unsaid(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        self.unsaid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(client: &ClientChannel) -> Result<bool> {
    match client.take_wake(1) {
        Ok(Wake::Events(_)) => Ok(true),
        Ok(Wake::Nothing) => Ok(false),
        Ok(_) => Err(gone()),
        Err(error) => Err(Refused::new(
            error.raw_os_error().unwrap_or(libc::EIO),
            error.to_string(),
        )),
    }
}

fn of_descriptor(errno: rustix::io::Errno) -> Refused {
    let sentence = format!("the event channel's descriptor: {errno}");
    Refused::new(errno.raw_os_error(), sentence)
}

/// The service's end of the descriptor is closed.
pub(crate) fn gone() -> Refused {
    Refused::new(
        libc::EIO,
        "the host service has gone, or the event channel was closed: no event will come",
    )
}

/// Opens an event channel; null and `errno` if there is none to be had.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    let opened = process::current().and_then(|process| Channel::open(&process));
    errno::object(
        "rdma_create_event_channel",
        opened.map(|channel| Arc::into_raw(channel).cast_mut().cast()),
    )
}

/// Closes an event channel. In a forked child nothing happens: its descriptor was let go of by the fork.
///
/// # Safety
/// `channel` is null, or a channel that C got of this library, uses no more and has not destroyed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the caller's promise.
    match unsafe { Channel::of(channel) } {
        Ok(open) => {
            open.close();
            // SAFETY: the count that C held, which it gives up with this call.
            drop(unsafe { Arc::from_raw(channel.cast::<Channel>()) });
        }
        Err(refused) => tracing::warn!("rdma_destroy_event_channel: {refused}"),
    }
}

/// Takes a byte from a channel's descriptor, as `read(2)` does; whether there was one, else `errno` says why.
///
/// A program may cancel a thread that waits here (`pthread_cancel`): neither this function nor its callers may own anything.
/// It may also destroy the channel meanwhile. Then the thread goes on waiting, as in a call to the kernel whose descriptor is
/// closed: programs take the end of such a wait for a failure.
pub(crate) fn wait_for_byte(call: &'static str, wait: Wait) -> bool {
    let mut byte = 0_u8;
    // SAFETY: the byte is valid for writing.
    let mut got = unsafe { recv(wait.fd, (&raw mut byte).cast(), 1, 0) };
    if got > 0 {
        return true;
    }
    let endless = endless_unless_open(wait.serial);
    if endless >= 0 {
        let mut count = 0_u64;
        // SAFETY: the number is valid for writing.
        got = unsafe { read(endless, (&raw mut count).cast(), size_of::<u64>()) };
    }
    told_why(call, got);
    false
}

/// What to wait on, and which channel's it is.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    fd: c_int,
    serial: u64,
}

impl Wait {
    /// For a channel that was closed while a thread waited for it: it goes on waiting, and its descriptor may be another's now.
    pub(crate) const fn of_closed(self) -> Self {
        Self {
            fd: -1,
            serial: self.serial,
        }
    }
}

/// Channels that are not closed, by their serial numbers.
static OPEN: PerProcess<Mutex<BTreeMap<u64, Weak<Channel>>>> =
    PerProcess::new(|_| Mutex::default());

fn open() -> MutexGuard<'static, BTreeMap<u64, Weak<Channel>>> {
    OPEN.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// If the channel was closed by this program: a descriptor that never becomes readable. Keeps `errno`.
extern "C" fn endless_unless_open(serial: u64) -> c_int {
    static ENDLESS: PerProcess<Option<OwnedFd>> =
        PerProcess::new(|_| rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok());
    let error = std::io::Error::last_os_error();
    let endless = if open().contains_key(&serial) {
        None
    } else {
        ENDLESS.get().as_ref()
    };
    errno::set(errno::Errno(error.raw_os_error().unwrap_or_default()));
    endless.map_or(-1, AsRawFd::as_raw_fd)
}

#[allow(
    improper_ctypes_definitions,
    reason = "both sides are Rust: the ABI is there because nothing unwinds from it"
)]
extern "C" fn told_why(call: &'static str, got: isize) {
    let error = std::io::Error::last_os_error();
    let refused = match error.raw_os_error() {
        Some(errno) if got < 0 && errno != libc::ECONNRESET => {
            Refused::new(errno, error.to_string())
        }
        _ => gone(),
    };
    errno::minus_one(call, Err(refused));
}

// Declared here because those of crate `libc` say that nothing unwinds from them.
unsafe extern "C-unwind" {
    fn recv(socket: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize;
}
