//! The nodes IBVERBS_PRIVATE_N: what drivers of rdma-core need to load.
//!
//! A program that is linked with libmlx5, libmlx4 or libefa (perftest, UCX and libfabric are) starts only when the libibverbs
//! it finds has the private node of the driver's release. The drivers then register themselves and find no device of theirs,
//! so none of the commands below is ever called by them; each answers `ENOSYS`.
//!
//! N is the private ABI number of rdma-core's top CMakeLists.txt: 34 in releases 34 to 56 (Debian 12 and 13, Ubuntu 22.04 and
//! 24.04), 57 in 57 and 58, 59 in 59 to 63, 64 in 64. All of them are here, as names of the same few functions, rather than as
//! empty libraries that stand in for the drivers': those would need every name of every driver, and would take away what works
//! without a device.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::{ibv_context, ibv_wr_opcode};
use crate::verbs::names::ibv_wr_opcode_str;
use crate::verbs::query::gid_type_of_sysfs;

core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/private.s")));

/// Every command, and what else answers an error number: `ENOSYS`.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_command() -> c_int {
    libc::ENOSYS
}

/// What answers a pointer: null, and `errno` is `ENOSYS`.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_no_object() -> *mut c_void {
    crate::errno::set(crate::errno::Errno(libc::ENOSYS));
    std::ptr::null_mut()
}

/// What answers -1 with `errno`: `ENOSYS`. A file of a device that only a driver is given, for one.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_minus_one() -> c_int {
    crate::errno::set(crate::errno::Errno(libc::ENOSYS));
    -1
}

/// What answers nothing and has nothing to do: a driver's registration, which is not asked about any device; the log of
/// drivers, which is empty without one.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_nothing() {}

/// Whether destroying an object of a device that is gone succeeds: a variable that drivers read.
#[unsafe(no_mangle)]
static oarlock_private_variable: bool = false;

/// `ibv_query_gid_type`, which ibv_devinfo calls.
///
/// # Safety
/// As [`gid_type_of_sysfs`].
#[unsafe(no_mangle)]
unsafe extern "C" fn oarlock_private_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { gid_type_of_sysfs(context, port_num, index, gid_type) }
}

/// `ibv_wr_opcode_str`.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    ibv_wr_opcode_str(opcode)
}
