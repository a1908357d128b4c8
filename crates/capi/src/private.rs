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

/// What answers nothing, and has nothing to do.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_nothing() {}

/// A driver makes itself known: it is not asked about any device.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_register_driver(_driver: *const c_void) {}

/// A driver's line for its log, with arguments as printf's: the log of a driver without a device is empty.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_verbs_log(
    _context: *mut c_void,
    _level: u32,
    _format: *const c_char,
) {
}

/// Whether destroying an object of a device that is gone succeeds: a variable that drivers read.
#[unsafe(no_mangle)]
static oarlock_private_verbs_allow_disassociate_destroy: bool = false;

/// `ibv_query_gid_type`: as refused until there are contexts.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_ibv_query_gid_type() -> c_int {
    libc::ENOSYS
}

/// `ibv_read_ibdev_sysfs_file`: as refused until there are contexts.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_ibv_read_ibdev_sysfs_file() -> c_int {
    libc::ENOSYS
}

/// `ibv_wr_opcode_str`.
#[unsafe(no_mangle)]
extern "C" fn oarlock_private_ibv_wr_opcode_str(_opcode: u32) -> *const c_char {
    c"unknown".as_ptr()
}
