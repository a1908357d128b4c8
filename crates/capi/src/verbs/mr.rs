//! Memory regions.
//!
//! A region's memory is the program's. The library reaches it by system calls only, which is what `Pd::register` of the
//! device asks for: nothing here or below makes a reference to it.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_device::{Access, Region, Reregistration, Translation};
use oarlock_port::thread::Uncancelled;

use super::context::Context;
use super::pd::{Pd, Use};
use crate::abi::{
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_OPTIONAL_FIRST, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT,
    IBV_REREG_MR_FLAGS_SUPPORTED, ib_uverbs_advise_mr_advice, ibv_mr, ibv_pd, ibv_sge,
};
use crate::errno::{self, Refused, Result};
use crate::memory::Watch;

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    abi: UnsafeCell<ibv_mr>,
    inner: Mutex<Registered>,
    /// Of a region that is watched.
    watch: Option<Watch>,
    context: Arc<Context>,
}

struct Registered {
    /// `None` only while it is being deregistered.
    region: Option<Region>,
    in_pd: Use,
}

impl Mr {
    /// The region that C knows as `mr`.
    ///
    /// # Safety
    /// `mr` is what C got of this library, and not deregistered.
    pub(crate) unsafe fn of<'a>(mr: *mut ibv_mr) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*mr.cast::<Self>() }
    }

    /// What C knows a new region by.
    pub(crate) fn make(
        pd: &Pd,
        pd_ptr: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        region: Region,
        watch: Option<Watch>,
    ) -> *mut ibv_mr {
        let public = ibv_mr {
            context: pd.context.as_ptr(),
            pd: pd_ptr,
            addr,
            length,
            handle: pd.context.next_handle(),
            lkey: region.lkey().0,
            rkey: region.rkey().0,
        };
        let registered = Registered {
            region: Some(region),
            in_pd: pd.enter(),
        };
        let mr = Box::new(Self {
            abi: UnsafeCell::new(public),
            inner: Mutex::new(registered),
            watch,
            context: Arc::clone(&pd.context),
        });
        Box::into_raw(mr).cast()
    }

    /// Of a region that is watched.
    pub(crate) const fn watch(&self) -> Option<&Watch> {
        self.watch.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rights that the device is asked for.
///
/// Two kinds of flags are left out, as they permit something and demand nothing: those of the optional range
/// (`IBV_ACCESS_RELAXED_ORDERING` and whatever a later version adds), which a device without them ignores by definition; and
/// `IBV_ACCESS_HUGETLB`, which lets a device translate by larger pages.
pub(crate) fn rights(access: c_uint) -> Access {
    Access::from_bits_retain(access & !(OPTIONAL_RANGE | IBV_ACCESS_HUGETLB))
}

/// The rights of a memory window. `IBV_ACCESS_LOCAL_WRITE` is left out, too: nobody reaches a window from this side, so that
/// it says nothing, and programs give it as for a region.
pub(super) fn rights_of_window(access: c_uint) -> Access {
    rights(access & !IBV_ACCESS_LOCAL_WRITE)
}

/// Registers `length` bytes at `addr`, which work requests and peers count from `iova` on.
fn register(
    pd: &Pd,
    pd_ptr: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut ibv_mr> {
    pd.context.birth.check()?;
    let access = rights(access);
    let start = addr.addr() as u64;
    // What the kernel asks for of every device: both addresses are at the same place of a page.
    let is_zero_based = access.contains(Access::ZERO_BASED);
    if !is_zero_based && (iova ^ start) & (PAGE - 1) != 0 {
        return Err(Refused::new(
            libc::EINVAL,
            format!("iova {iova:#x} and address {start:#x} are at different places of a page"),
        ));
    }
    // The header's macro gives the address itself where a program gave no iova.
    let region = if is_zero_based && iova == start {
        // SAFETY: C has no references; see the module. What the program does with the memory meanwhile is its affair.
        unsafe { pd.inner.register(start, length, access)? }
    } else {
        // SAFETY: as above.
        unsafe { pd.inner.register_at(start, length, iova, access)? }
    };
    Ok(Mr::make(pd, pd_ptr, addr, length, region, None))
}

/// `ibv_reg_mr`, called where no flag of the optional range can be meant.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let access = access.cast_unsigned();
    // SAFETY: the caller's promise.
    let made = register(
        unsafe { Pd::of(pd) },
        pd,
        addr,
        length,
        addr.addr() as u64,
        access,
    );
    errno::object("ibv_reg_mr", made)
}

/// `ibv_reg_mr_iova`: peers count from `iova`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    let made = register(
        unsafe { Pd::of(pd) },
        pd,
        addr,
        length,
        iova,
        access.cast_unsigned(),
    );
    errno::object("ibv_reg_mr_iova", made)
}

/// `ibv_reg_mr_iova2`: what the macros `ibv_reg_mr` and `ibv_reg_mr_iova` call for the rest.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    let made = register(unsafe { Pd::of(pd) }, pd, addr, length, iova, access);
    errno::object("ibv_reg_mr", made)
}

/// `struct ibv_mr_init_attr`, as far as this device has a use for it (rdma-core 60 and later).
#[repr(C)]
pub(crate) struct MrInitAttr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
}

/// `ibv_reg_mr_ex`: memory of the program, with or without an iova of its own.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut MrInitAttr,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    let (domain, attr) = unsafe { (Pd::of(pd), &*attr) };
    let access = attr.access.cast_unsigned();
    let made = if attr.comp_mask & !(MASK_IOVA | MASK_ADDR) != 0 {
        Err(Refused::new(
            libc::EOPNOTSUPP,
            "regions of descriptors, buffers of the library and hints for a bus are not there",
        ))
    } else if attr.comp_mask & MASK_ADDR == 0 {
        Err(Refused::new(libc::EINVAL, "no address is given"))
    } else {
        let iova = if attr.comp_mask & MASK_IOVA == 0 {
            attr.addr.addr() as u64
        } else {
            attr.iova
        };
        register(domain, pd, attr.addr, attr.length, iova, access)
    };
    errno::object("ibv_reg_mr_ex", made)
}

/// `ibv_dereg_mr`: `EBUSY` while windows are bound to the region, which stays then.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { deregister(mr) };
    errno::positive("ibv_dereg_mr", done.map(drop))
}

/// Ends a region and frees what C knows it by: how many of its events were read.
///
/// # Errors
/// `EBUSY`: windows are bound to it; it stays.
///
/// # Safety
/// As [`Mr::of`]; on success C does not use it any more.
pub(crate) unsafe fn deregister(mr: *mut ibv_mr) -> Result<u64> {
    // SAFETY: the caller's promise.
    let ended = end(unsafe { Mr::of(mr) })?;
    // SAFETY: `make` made it of a box, and the program does not use it any more.
    drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
    Ok(ended)
}

fn end(mr: &Mr) -> Result<u64> {
    mr.context.birth.check()?;
    // Ending a watch may wait.
    let _uncancelled = mr.watch().map(|_| Uncancelled::new());
    let mut registered = mr.lock();
    if let Some(region) = registered.region.take()
        && let Err((region, error)) = region.deregister()
    {
        registered.region = Some(region);
        return Err(error.into());
    }
    Ok(mr.watch().map_or(0, Watch::end))
}

/// `ibv_rereg_mr`: 0, or one of `enum ibv_rereg_mr_err_code` with `errno`; the region is as it was then.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let (flags, access) = (flags.cast_unsigned(), access.cast_unsigned());
    if let Err(refused) = check_changes(flags, pd, addr, length, access) {
        errno::minus_one("ibv_rereg_mr", Err(refused));
        return IBV_REREG_MR_ERR_INPUT;
    }
    let is_moved = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let into = (flags & IBV_REREG_MR_CHANGE_PD != 0).then(|| {
        // SAFETY: the caller's promise; it is not null.
        unsafe { Pd::of(pd) }
    });
    let changes = Reregistration {
        translation: is_moved.then(|| Translation {
            addr: addr.addr() as u64,
            len: length,
            iova: None,
        }),
        pd: into.map(|pd| &pd.inner),
        access: (flags & IBV_REREG_MR_CHANGE_ACCESS != 0).then(|| rights(access)),
    };
    // SAFETY: the caller's promise.
    let key = match reregister(unsafe { Mr::of(mr) }, &changes, into) {
        Ok(key) => key,
        Err(refused) => {
            errno::minus_one("ibv_rereg_mr", Err(refused));
            return IBV_REREG_MR_ERR_CMD;
        }
    };
    // SAFETY: the public part is there, and reached by pointer only.
    unsafe {
        (*mr).lkey = key;
        (*mr).rkey = key;
        if is_moved {
            (*mr).addr = addr;
            (*mr).length = length;
        }
        if into.is_some() {
            (*mr).pd = pd;
        }
    }
    0
}

/// Makes the changes and gives the key from now on, which is one for both sides.
fn reregister(mr: &Mr, changes: &Reregistration<'_>, into: Option<&Pd>) -> Result<u32> {
    mr.context.birth.check()?;
    let mut registered = mr.lock();
    let gone = || Refused::new(libc::EINVAL, "the region is being deregistered");
    let region = registered.region.as_mut().ok_or_else(gone)?;
    // SAFETY: C has no references; see the module.
    unsafe { region.reregister(changes)? };
    let key = region.lkey().0;
    if let Some(into) = into {
        registered.in_pd = into.enter();
    }
    Ok(key)
}

/// What is refused before anything is tried.
fn check_changes(
    flags: c_uint,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> Result<()> {
    let wrong = if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
        "flags of a later version"
    } else if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 && (length == 0 || addr.is_null()) {
        "a translation without address or length"
    } else if access != 0 && flags & IBV_REREG_MR_CHANGE_ACCESS == 0 {
        "access without IBV_REREG_MR_CHANGE_ACCESS"
    } else if flags & IBV_REREG_MR_CHANGE_PD != 0 && pd.is_null() {
        "IBV_REREG_MR_CHANGE_PD without a protection domain"
    } else {
        return Ok(());
    };
    Err(Refused::new(libc::EINVAL, wrong))
}

/// `ibv_advise_mr`: pages are fetched when they are used, so that the advice has been followed already.
pub(crate) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    _sg_list: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    let advised = if advice > IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
        Err(Refused::new(
            libc::EOPNOTSUPP,
            format!("advice {advice} is not known"),
        ))
    } else if flags & !ADVISE_FLAG_FLUSH != 0 || num_sges == 0 {
        Err(Refused::new(
            libc::EINVAL,
            "flags of a later version, or no range",
        ))
    } else {
        Ok(())
    };
    errno::positive("ibv_advise_mr", advised)
}

/// `IBV_ACCESS_OPTIONAL_RANGE` of the header.
const OPTIONAL_RANGE: u32 = 0x3ff0_0000;
const _: () = assert!(OPTIONAL_RANGE & IBV_ACCESS_OPTIONAL_FIRST == IBV_ACCESS_OPTIONAL_FIRST);

/// `IB_UVERBS_ADVISE_MR_FLAG_FLUSH` of Linux include/uapi/rdma/ib_user_ioctl_verbs.h: return when the advice is carried out.
const ADVISE_FLAG_FLUSH: u32 = 1;

/// `enum ibv_mr_init_attr_mask`.
const MASK_IOVA: u64 = 1;
const MASK_ADDR: u64 = 2;

/// The smallest page of any system.
const PAGE: u64 = 4096;
