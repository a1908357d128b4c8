//! Calls that this device answers without doing anything: precautions for forks, which it needs none of, and what it has not,
//! by name.

use std::ffi::{c_int, c_void};

use crate::abi::{IBV_FORK_UNNEEDED, ibv_ece, ibv_fork_status, ibv_qp};
use crate::errno::{self, Refused};

/// `ibv_fork_init`: memory is reached through the process's own address space, so that nothing of it is shared with a child
/// that must not be.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

/// `ibv_dontfork_range`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_query_ece`: there are no vendor's extensions to agree on.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    absent("ibv_query_ece")
}

/// `ibv_set_ece`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    absent("ibv_set_ece")
}

fn absent(call: &'static str) -> c_int {
    errno::positive(call, Err(refused()))
}

fn refused() -> Refused {
    Refused::new(libc::EOPNOTSUPP, "the soft device has no such thing")
}

/// Functions that answer an error number, whatever they are given: they look at no argument.
macro_rules! answer_errno {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> c_int {
            absent(stringify!($name))
        })*
    };
}

/// Functions that answer null.
macro_rules! answer_null {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> *mut c_void {
            errno::object(stringify!($name), Err(refused()))
        })*
    };
}

/// Functions that answer -1 with `errno`.
macro_rules! answer_minus_one {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> c_int {
            errno::minus_one(stringify!($name), Err(refused()))
        })*
    };
}

/// Functions that answer nothing, for objects that there are none of.
macro_rules! answer_nothing {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() {
            absent(stringify!($name));
        })*
    };
}

answer_null! {
    /// A device is opened by its name; there is no descriptor to take over.
    ibv_import_device;
    /// Objects belong to the process that made them.
    ibv_import_pd;
    /// As `ibv_import_pd`.
    ibv_import_mr;
    /// There is no device memory.
    ibv_import_dm;
    /// Memory of other devices cannot be reached.
    ibv_reg_dmabuf_mr;
    /// There are no hints for a bus.
    ibv_alloc_dmah;
    /// The library lends no memory.
    ibv_alloc_buf;
    /// As `ibv_alloc_buf`.
    ibv_reg_buf_mr;
    /// There are no completion counters.
    ibv_create_comp_cntr;
}

answer_nothing! {
    /// See `ibv_import_pd`.
    ibv_unimport_pd;
    /// See `ibv_import_mr`.
    ibv_unimport_mr;
    /// See `ibv_import_dm`.
    ibv_unimport_dm;
    /// See `ibv_alloc_buf`.
    ibv_free_buf;
}

answer_errno! {
    /// See `ibv_alloc_dmah`.
    ibv_dealloc_dmah;
    /// See `ibv_create_comp_cntr`, for this and what follows.
    _ibv_query_comp_cntr_caps;
    /// Not there.
    ibv_destroy_comp_cntr;
    /// Not there.
    ibv_set_comp_cntr;
    /// Not there.
    ibv_set_err_comp_cntr;
    /// Not there.
    ibv_inc_comp_cntr;
    /// Not there.
    ibv_inc_err_comp_cntr;
    /// Not there.
    ibv_read_comp_cntr;
    /// Not there.
    ibv_read_err_comp_cntr;
    /// Not there.
    ibv_qp_attach_comp_cntr;
}

answer_minus_one! {
    /// See `ibv_import_dm`.
    ibv_dm_export_dmabuf_fd;
    /// See `ibv_alloc_buf`.
    ibv_export_buf_dmabuf_fd;
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::ptr;

    use super::*;

    fn last() -> Option<i32> {
        io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn what_is_not_there_is_refused_with_one_errno() {
        assert_eq!(ibv_dealloc_dmah(), libc::EOPNOTSUPP);
        // SAFETY: it looks at neither.
        let set = unsafe { ibv_set_ece(ptr::null_mut(), ptr::null_mut()) };
        assert_eq!(set, libc::EOPNOTSUPP);
        assert!(ibv_import_pd().is_null());
        assert_eq!(last(), Some(libc::EOPNOTSUPP));
        errno::set(errno::Errno(0));
        assert_eq!(ibv_dm_export_dmabuf_fd(), -1);
        assert_eq!(last(), Some(libc::EOPNOTSUPP));
        errno::set(errno::Errno(0));
        ibv_unimport_pd();
        assert_eq!(last(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn forks_need_no_precautions() {
        assert_eq!(ibv_fork_init(), 0);
        assert_eq!(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
    }
}
