//! XRC domains.
//!
//! A domain of a file is one that several openings share. Here they share it within a context: targets and shared receive
//! queues live in the process that made them, which alone receives for them.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use oarlock_device::XrcDomain;

use super::context::Context;
use super::pd::{Use, Users};
use crate::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, IBV_XRCD_INIT_ATTR_RESERVED, ibv_context,
    ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::errno::{self, Refused, Result};

/// A handle of an XRC domain.
#[repr(C)]
pub(crate) struct Xrcd {
    abi: UnsafeCell<ibv_xrcd>,
    pub(crate) inner: XrcDomain,
    shared: Arc<Shared>,
    context: Arc<Context>,
}

/// What the handles of a domain have in common.
struct Shared {
    domain: XrcDomain,
    users: Users,
}

/// The domains of files, by device and inode of the file.
#[derive(Default)]
pub(crate) struct Files(Mutex<HashMap<(u64, u64), Weak<Shared>>>);

impl Files {
    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u64), Weak<Shared>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Xrcd {
    /// The domain that C knows as `xrcd`.
    ///
    /// # Safety
    /// `xrcd` is what C got of this library, and not closed.
    pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*xrcd.cast::<Self>() }
    }

    /// For a shared receive queue or target of the domain: see [`Pd::enter`](super::pd::Pd::enter).
    pub(crate) fn enter(&self) -> Use {
        self.shared.users.enter()
    }

    /// # Errors
    /// `EBUSY`: it is the last handle, and something is in the domain. `EPERM`: see
    /// [`Birth::check`](super::birth::Birth::check).
    fn check_closable(&self) -> Result<()> {
        self.context.birth.check()?;
        // Nobody opens the domain of the file again meanwhile.
        let _files = self.context.xrc_files.lock();
        if Arc::strong_count(&self.shared) > 1 {
            return Ok(());
        }
        self.shared.users.check_unused("XRC domain")
    }
}

/// `ibv_open_xrcd`.
pub(crate) unsafe extern "C" fn ibv_open_xrcd(
    context: *mut ibv_context,
    xrcd_init_attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the caller's promise.
    let opened = unsafe { open(Context::share(context), &*xrcd_init_attr) };
    errno::object(
        "ibv_open_xrcd",
        opened.map(|xrcd| Box::into_raw(xrcd).cast()),
    )
}

fn open(context: Arc<Context>, attr: &ibv_xrcd_init_attr) -> Result<Box<Xrcd>> {
    context.birth.check()?;
    if attr.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
        return Err(Refused::new(
            libc::EOPNOTSUPP,
            format!(
                "comp_mask {:#x} has bits of a later version",
                attr.comp_mask
            ),
        ));
    }
    if attr.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
        return Err(Refused::new(
            libc::EINVAL,
            "an XRC domain needs fd and oflags",
        ));
    }
    let shared = if attr.fd == -1 {
        fresh(&context)?
    } else {
        of_file(&context, attr.fd, attr.oflags)?
    };
    let public = ibv_xrcd {
        context: context.as_ptr(),
    };
    Ok(Box::new(Xrcd {
        abi: UnsafeCell::new(public),
        inner: shared.domain.clone(),
        shared,
        context,
    }))
}

fn fresh(context: &Context) -> Result<Arc<Shared>> {
    Ok(Arc::new(Shared {
        domain: XrcDomain::open(&context.device, None)?,
        users: Users::default(),
    }))
}

/// The domain of the file `fd`, with the meaning that `open` gives to `O_CREAT` and `O_EXCL`.
fn of_file(context: &Context, fd: c_int, oflags: c_int) -> Result<Arc<Shared>> {
    let file = inode(fd)?;
    let mut files = context.xrc_files.lock();
    let known = files.get(&file).and_then(Weak::upgrade);
    if let Some(known) = known {
        if oflags & libc::O_EXCL != 0 {
            return Err(Refused::new(
                libc::EINVAL,
                "the file has an XRC domain already",
            ));
        }
        return Ok(known);
    }
    if oflags & libc::O_CREAT == 0 {
        return Err(Refused::new(
            libc::EAGAIN,
            "the file has no XRC domain, and O_CREAT is not given",
        ));
    }
    let shared = fresh(context)?;
    files.retain(|_, domain| domain.strong_count() > 0);
    files.insert(file, Arc::downgrade(&shared));
    Ok(shared)
}

fn inode(fd: c_int) -> Result<(u64, u64)> {
    // SAFETY: every field is an integer, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` has room for the answer. Whether `fd` is open the kernel says.
    if unsafe { libc::fstat(fd, &raw mut stat) } == 0 {
        Ok((stat.st_dev, stat.st_ino))
    } else {
        Err(Refused::new(
            libc::EBADF,
            format!("descriptor {fd} is not open"),
        ))
    }
}

/// `ibv_close_xrcd`: `EBUSY` for the last handle while shared receive queues or targets are in the domain.
pub(crate) unsafe extern "C" fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller's promise.
    let unused = unsafe { Xrcd::of(xrcd) }.check_closable();
    let closed = unused.map(|()| {
        // SAFETY: `ibv_open_xrcd` made it of a box, and the program does not use it any more.
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
    });
    errno::positive("ibv_close_xrcd", closed)
}
