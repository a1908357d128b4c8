//! The interface of 2006, node IBVERBS_1.0, and what else only very old objects ask for.
//!
//! Its structures have another layout than those of IBVERBS_1.1 (a context of it has no extended half, its tables begin
//! elsewhere), and rdma-core 44 serves it by wrapping each object. Here a program or driver of that age starts, and is told
//! that there is no such interface: its first call, for the list of devices, answers null, and `errno` is `ENOSYS`. The other
//! names are reached by a program only that goes on without a device.

use std::ffi::{c_int, c_void};

core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/old.s")));

/// What answers a pointer: null, and `errno` is `ENOSYS`.
#[unsafe(no_mangle)]
extern "C" fn oarlock_old_no_object() -> *mut c_void {
    crate::errno::set(crate::errno::Errno(libc::ENOSYS));
    std::ptr::null_mut()
}

/// What answers an error number: `ENOSYS`.
#[unsafe(no_mangle)]
extern "C" fn oarlock_old_number() -> c_int {
    libc::ENOSYS
}

/// What answers -1 with `errno`: `ENOSYS`.
#[unsafe(no_mangle)]
extern "C" fn oarlock_old_minus_one() -> c_int {
    crate::errno::set(crate::errno::Errno(libc::ENOSYS));
    -1
}

/// The unique number of a device that is none: 0, and `errno` is `ENOSYS`.
#[unsafe(no_mangle)]
extern "C" fn oarlock_old_no_guid() -> u64 {
    crate::errno::set(crate::errno::Errno(libc::ENOSYS));
    0
}

/// What answers nothing, and has nothing to do.
#[unsafe(no_mangle)]
extern "C" fn oarlock_old_nothing() {}
