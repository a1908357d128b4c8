//! Protection domains, thread domains, parent domains.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oarlock_device as device;

use super::context::Context;
use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::errno::{self, Refused, Result};

/// A protection domain. A parent domain is one, too, of the same protection as the one it is made of.
#[repr(C)]
pub(crate) struct Pd {
    abi: UnsafeCell<ibv_pd>,
    pub(crate) inner: device::Pd,
    pub(crate) context: Arc<Context>,
    users: Users,
    /// What a parent domain uses.
    _parts: Vec<Use>,
}

/// A thread domain: a promise of the program that it makes calls for what is in it from one thread at a time. Nothing
/// follows from it here, since every lock is free of charge when nobody else wants it.
#[repr(C)]
pub(crate) struct Td {
    abi: UnsafeCell<ibv_td>,
    users: Users,
    context: Arc<Context>,
}

/// How many objects use another, which cannot be destroyed meanwhile.
#[derive(Clone, Default)]
pub(crate) struct Users(Arc<AtomicUsize>);

/// One of them: ends when dropped.
pub(crate) struct Use(Arc<AtomicUsize>);

impl Users {
    /// One more.
    pub(crate) fn enter(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(&self.0))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// # Errors
    /// `EBUSY`: something uses it.
    pub(crate) fn check_unused(&self, what: &str) -> Result<()> {
        match self.count() {
            0 => Ok(()),
            count => Err(Refused::new(
                libc::EBUSY,
                format!("{count} objects use the {what}"),
            )),
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Pd {
    /// The domain that C knows as `pd`.
    ///
    /// # Safety
    /// `pd` is what C got of this library, and not deallocated.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*pd.cast::<Self>() }
    }

    /// What C knows the domain by.
    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.abi.get()
    }

    fn new(context: Arc<Context>, inner: device::Pd, parts: Vec<Use>) -> Box<Self> {
        let public = ibv_pd {
            context: context.as_ptr(),
            handle: context.next_handle(),
        };
        Box::new(Self {
            abi: UnsafeCell::new(public),
            inner,
            context,
            users: Users::default(),
            _parts: parts,
        })
    }

    /// For an object that is made in the domain: keep it until the object is destroyed. Meanwhile the domain is busy.
    pub(crate) fn enter(&self) -> Use {
        self.users.enter()
    }
}

/// `ibv_alloc_pd`: a new protection domain.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::share(context) };
    let made = context.birth.check().map(|()| {
        let inner = device::Pd::new(&context.device);
        Box::into_raw(Pd::new(context, inner, Vec::new())).cast()
    });
    errno::object("ibv_alloc_pd", made)
}

/// `ibv_dealloc_pd`: `EBUSY` while regions, windows, queues or address handles are in the domain.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's promise.
    let domain = unsafe { Pd::of(pd) };
    let in_process = domain.context.birth.check();
    let unused = in_process.and_then(|()| domain.users.check_unused("protection domain"));
    let freed = unused.map(|()| {
        // SAFETY: `ibv_alloc_pd` or `alloc_parent_domain` made it of a box, and the program does not use it any more.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
    });
    errno::positive("ibv_dealloc_pd", freed)
}

/// `ibv_alloc_td`: a new thread domain.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init_attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the caller's promise.
    let (context, comp_mask) = unsafe { (Context::share(context), (*init_attr).comp_mask) };
    let made = thread_domain(context, comp_mask);
    errno::object("ibv_alloc_td", made.map(|td| Box::into_raw(td).cast()))
}

fn thread_domain(context: Arc<Context>, comp_mask: u32) -> Result<Box<Td>> {
    context.birth.check()?;
    if comp_mask != 0 {
        return Err(unknown_mask(comp_mask));
    }
    let public = ibv_td {
        context: context.as_ptr(),
    };
    Ok(Box::new(Td {
        abi: UnsafeCell::new(public),
        users: Users::default(),
        context,
    }))
}

/// `ibv_dealloc_td`: `EBUSY` while a parent domain has it.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller's promise; `abi` is the first field.
    let domain = unsafe { &*td.cast::<Td>() };
    let in_process = domain.context.birth.check();
    let unused = in_process.and_then(|()| domain.users.check_unused("thread domain"));
    let freed = unused.map(|()| {
        // SAFETY: `alloc_td` made it of a box, and the program does not use it any more.
        drop(unsafe { Box::from_raw(td.cast::<Td>()) });
    });
    errno::positive("ibv_dealloc_td", freed)
}

/// `ibv_alloc_parent_domain`: another name for a protection domain, perhaps with a thread domain.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    let made = unsafe { parent_domain(Context::share(context), &*attr) };
    errno::object(
        "ibv_alloc_parent_domain",
        made.map(|pd| Box::into_raw(pd).cast()),
    )
}

/// # Safety
/// The domains of `attr` are null or what C got of this library.
unsafe fn parent_domain(
    context: Arc<Context>,
    attr: &ibv_parent_domain_init_attr,
) -> Result<Box<Pd>> {
    context.birth.check()?;
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if attr.comp_mask & !known != 0 {
        return Err(unknown_mask(attr.comp_mask));
    }
    if attr.comp_mask != 0 {
        return Err(Refused::new(
            libc::EOPNOTSUPP,
            "a parent domain's allocators would never be asked: queues are in memory of the library",
        ));
    }
    if attr.pd.is_null() {
        return Err(Refused::new(
            libc::EINVAL,
            "a parent domain needs a protection domain",
        ));
    }
    // SAFETY: the caller's promise.
    let pd = unsafe { Pd::of(attr.pd) };
    if !Arc::ptr_eq(&pd.context, &context) {
        return Err(Refused::new(
            libc::EINVAL,
            "the protection domain is of another context",
        ));
    }
    let mut parts = vec![pd.enter()];
    if !attr.td.is_null() {
        // SAFETY: the caller's promise; `abi` is the first field.
        parts.push(unsafe { (*attr.td.cast::<Td>()).users.enter() });
    }
    Ok(Pd::new(context, pd.inner.clone(), parts))
}

fn unknown_mask(comp_mask: u32) -> Refused {
    Refused::new(
        libc::EINVAL,
        format!("comp_mask {comp_mask:#x} has bits of a later version"),
    )
}
