//! Regions that are watched.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_device as device;
use oarlock_memwatch::{Policy, Region, Validity};
use oarlock_port::thread::Uncancelled;

use super::channel::{Channel, Known, room};
use super::given;
use crate::abi::{
    OARLOCK_MEMORY_DEREGISTER, OARLOCK_MEMORY_REPORT, ibv_mr, ibv_pd, oarlock_deregistered,
    oarlock_memory_channel,
};
use crate::errno::{self, Refused, Result};
use crate::verbs::mr::{self, Mr};
use crate::verbs::pd::{Pd, Use};

/// What a region that is watched has beside the others.
pub(crate) struct Watch {
    channel: Arc<Channel>,
    number: u64,
    validity: Validity,
    /// `None` once it has ended.
    region: Mutex<Option<Region>>,
    _in_channel: Use,
}

impl Watch {
    /// Ends it, once the device's region has ended: how many events were read. 0 of what had ended by itself, by its policy or
    /// with a channel that broke.
    pub(crate) fn end(&self) -> u64 {
        self.channel.remove(self.number);
        let region = take(&mut *self.region.lock().unwrap_or_else(PoisonError::into_inner));
        region
            .and_then(|region| region.deregister().ok())
            .unwrap_or(0)
    }

    /// Whether the region's memory is there, as the kernel says. What is missing invalidates it.
    fn validate(&self) -> Result<bool> {
        self.channel.birth.check()?;
        let region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = &*region
            && self.validity.is_valid()
        {
            region.validate()?;
        }
        Ok(self.validity.is_valid())
    }
}

/// Watches the memory first and then registers it, so that no change in between is missed.
fn register(
    pd: &Pd,
    pd_ptr: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
    cookie: u64,
    policy: c_uint,
) -> Result<*mut ibv_mr> {
    pd.context.birth.check()?;
    let policy = match policy {
        OARLOCK_MEMORY_REPORT => Policy::Report,
        OARLOCK_MEMORY_DEREGISTER => Policy::Deregister,
        other => {
            return Err(Refused::new(
                libc::EINVAL,
                format!("policy {other} is not known"),
            ));
        }
    };
    let (in_channel, channel) = pd.context.memory.enter()?;
    let access = mr::rights(access);
    let start = addr.addr();
    let mut tries = TRIES;
    let (watched, region) = loop {
        let watched = channel.watcher.register(start, length, cookie, policy)?;
        // SAFETY: C has no references; the library reaches the memory by system calls only.
        let registered = unsafe {
            pd.inner
                .register_watched(start as u64, length, access, watched.validity())
        };
        tries -= 1;
        match registered {
            Ok(region) => break (watched, region),
            // A change under way, perhaps of what was here before.
            Err(device::Error::Invalidated { .. }) if tries > 0 => {}
            Err(error) => return Err(error.into()),
        }
    };
    let number = channel.next_number();
    let validity = watched.validity();
    let watch = Watch {
        channel: Arc::clone(&channel),
        number,
        validity: validity.clone(),
        region: Mutex::new(Some(watched)),
        _in_channel: in_channel,
    };
    let mr = Mr::make(pd, pd_ptr, addr, length, region, Some(watch));
    channel.add(
        number,
        Known {
            mr,
            cookie,
            validity,
        },
    );
    Ok(mr)
}

/// How often memory is registered anew that changes while it is registered.
const TRIES: u32 = 8;

/// `oarlock_reg_mr_notify(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_reg_mr_notify(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
    cookie: u64,
    policy: c_uint,
) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    let made = given(pd, "protection domain").and_then(|pd| {
        // SAFETY: the caller's promise.
        let domain = unsafe { Pd::of(pd) };
        register(domain, pd, addr, length, access, cookie, policy)
    });
    errno::object("oarlock_reg_mr_notify", made)
}

/// `oarlock_dereg_mr_notified(3)`: `EBUSY` while windows are bound to the region, which stays then.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_dereg_mr_notified(
    mr: *mut ibv_mr,
    events: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let watched = unsafe { watch_of(mr) }.map(drop);
    let done = watched.and_then(|()| {
        // SAFETY: as above.
        unsafe { mr::deregister(mr) }
    });
    let told = done.map(|reported| {
        if !events.is_null() {
            // SAFETY: the caller's promise.
            unsafe { events.write(reported) };
        }
    });
    errno::positive("oarlock_dereg_mr_notified", told)
}

/// `oarlock_dereg_notified_mrs(3)`: how many, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_dereg_notified_mrs(
    channel: *mut oarlock_memory_channel,
    list: *mut oarlock_deregistered,
    max: c_int,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the caller's promise.
    let done = unsafe { Channel::of(channel) }.and_then(|channel| {
        let room = room(max, list.is_null())?;
        deregister_notified(channel, room, |at, ended| {
            // SAFETY: the caller's promise: the list has room for `max`, and no more end.
            unsafe { list.add(at).write(ended) };
        })
    });
    errno::count("oarlock_dereg_notified_mrs", done)
}

fn deregister_notified(
    channel: &Channel,
    max: usize,
    tell: impl Fn(usize, oarlock_deregistered),
) -> Result<usize> {
    channel.watcher.settle()?;
    let (mut count, mut after) = (0, None);
    while count < max
        && let Some((number, known)) = channel.take_invalid(after)
    {
        after = Some(number);
        // SAFETY: a region of this library that was in the channel, which whoever ends it leaves first.
        match unsafe { mr::deregister(known.mr) } {
            Ok(events) => {
                let (cookie, mr) = (known.cookie, known.mr);
                tell(count, oarlock_deregistered { cookie, events, mr });
                count += 1;
            }
            // Windows are bound to it: it stays, as for `ibv_dereg_mr`.
            Err(_) => channel.add(number, known),
        }
    }
    Ok(count)
}

/// `oarlock_mr_is_valid(3)`: one load.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_mr_is_valid(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { watch_of(mr) } {
        Ok(watch) => watch.validity.is_valid().into(),
        Err(refused) => errno::minus_one("oarlock_mr_is_valid", Err(refused)),
    }
}

/// `oarlock_validate_mr(3)`: 1, 0, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_validate_mr(mr: *mut ibv_mr) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the caller's promise.
    let watch = unsafe { watch_of(mr) };
    let validated = watch.and_then(Watch::validate).map(usize::from);
    errno::count("oarlock_validate_mr", validated)
}

/// # Errors
/// `EINVAL`: null, or a region without a watch.
///
/// # Safety
/// `mr` is null, or as for [`Mr::of`].
unsafe fn watch_of<'a>(mr: *mut ibv_mr) -> Result<&'a Watch> {
    // SAFETY: the caller's promise.
    let region = unsafe { Mr::of(given(mr, "region")?) };
    region.watch().ok_or_else(|| {
        Refused::new(
            libc::EINVAL,
            "the region was not registered with notification",
        )
    })
}
