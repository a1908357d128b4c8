//! The library as C calls it, on the host of the unit tests.

mod addresses;
mod devices;
mod events;
mod memory;
mod names;

use std::io;
use std::ptr;

use super::context::{ibv_close_device, ibv_open_device};
use super::device::{ibv_free_device_list, ibv_get_device_list};
use super::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::abi::{ibv_context, ibv_pd};

/// An opened device and a protection domain, which must be unused at the end.
struct Opened {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
}

impl Opened {
    fn new() -> Self {
        // SAFETY: a list of this library, with a device.
        unsafe {
            let list = ibv_get_device_list(ptr::null_mut());
            assert!(!list.is_null(), "{}", io::Error::last_os_error());
            assert!(!(*list).is_null(), "the host of the tests has a device");
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            assert!(!context.is_null(), "{}", io::Error::last_os_error());
            let pd = ibv_alloc_pd(context);
            assert!(!pd.is_null(), "{}", io::Error::last_os_error());
            Self { context, pd }
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: made above, and freed once.
        unsafe {
            let freed = ibv_dealloc_pd(self.pd);
            let closed = ibv_close_device(self.context);
            if !std::thread::panicking() {
                assert_eq!((freed, closed), (0, 0));
            }
        }
    }
}

/// `errno` of the last call that failed.
fn last() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
