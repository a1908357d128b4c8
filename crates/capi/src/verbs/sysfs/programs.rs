//! Files of devices that programs look at by themselves, without the library: UCX asks whether it may use the device's node
//! below /dev/infiniband, and reads the types of its GIDs below /sys.
//!
//! There are no such files, since no kernel knows of the devices. From the first list of devices on the calls of the process
//! that open, read the state of or ask for a file come here: a file that is not there otherwise and that a device of this host
//! would have is answered by what [`ibv_read_sysfs_file`](super::ibv_read_sysfs_file) says of it, through a file in memory;
//! a device's node can be asked for, and not opened. Folders have no content.

use std::ffi::{CStr, c_char, c_int};
use std::io::{Seek as _, Write as _};
use std::os::fd::{FromRawFd as _, IntoRawFd, OwnedFd};

use super::slots::{self, Function};
use super::{device, of_devices, path_bytes};
use crate::process;

/// Lets the objects of this process call the functions of this module.
pub(in crate::verbs) fn serve() {
    let functions = [
        of(c"access", access as *const ()),
        of(c"stat", stat as *const ()),
        of(c"stat64", stat as *const ()),
        of(c"__xstat", xstat as *const ()),
        of(c"__xstat64", xstat as *const ()),
        of(c"open", open as *const ()),
        of(c"open64", open as *const ()),
        of(c"fopen", fopen as *const ()),
        of(c"fopen64", fopen as *const ()),
    ];
    // SAFETY: each is as the C library's of its name.
    unsafe { slots::rebind(&functions) };
}

fn of(name: &'static CStr, function: *const ()) -> Function {
    Function {
        name,
        address: function.expose_provenance(),
    }
}

/// What stands for a file that is not there.
enum File {
    Node,
    Content(String),
}

/// The file of a device of this host at `path`, after a call has not found another one there; `errno` is as it was.
///
/// # Safety
/// `path` is a C string.
unsafe fn missing(path: *const c_char) -> Option<File> {
    let errno = std::io::Error::last_os_error().raw_os_error()?;
    if errno != libc::ENOENT {
        return None;
    }
    // SAFETY: the caller's promise: the call has read it.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let found = if let Some(node) = path.strip_prefix(NODES) {
        is_node(node).then_some(File::Node)
    } else if let Some(below) = path.strip_prefix(path_bytes())
        && below.starts_with(CLASS)
    {
        let content = str::from_utf8(below).ok().map(of_devices);
        content.and_then(|content| content.ok()?).map(File::Content)
    } else {
        return None;
    };
    set_errno(errno);
    found
}

/// `uverbsN`, as the devices' `dev_name` says.
fn is_node(name: &[u8]) -> bool {
    let listed = process::current().and_then(|process| device::list(&process));
    listed.is_ok_and(|devices| {
        let mut devices = devices.iter();
        devices.any(|(device, ..)| name == format!("uverbs{}", device.index).as_bytes())
    })
}

impl File {
    /// A file that is open for reading; `None` with `errno`.
    fn open(self, is_kept: bool) -> Option<OwnedFd> {
        let Self::Content(text) = self else {
            // What the kernel says of a node behind which there is no driver.
            set_errno(libc::ENXIO);
            return None;
        };
        let flags = if is_kept { 0 } else { libc::MFD_CLOEXEC };
        // SAFETY: a C string; a descriptor that is nobody else's comes back.
        let made = unsafe { libc::memfd_create(c"sysfs".as_ptr(), flags) };
        if made < 0 {
            return None;
        }
        // SAFETY: as said.
        let mut file = unsafe { std::fs::File::from_raw_fd(made) };
        file.write_all(text.as_bytes()).ok()?;
        file.rewind().ok()?;
        Some(file.into())
    }
}

fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// access(2)
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the program's promise.
    let answer = unsafe { libc::access(path, mode) };
    if answer == 0 {
        return 0;
    }
    // SAFETY: the program's promise.
    match unsafe { missing(path) } {
        Some(File::Node) if mode & libc::X_OK == 0 => 0,
        Some(File::Content(_)) if mode & (libc::X_OK | libc::W_OK) == 0 => 0,
        Some(_) => {
            set_errno(libc::EACCES);
            -1
        }
        None => answer,
    }
}

/// stat(2)
unsafe extern "C" fn stat(path: *const c_char, buf: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    let answer = unsafe { libc::stat(path, buf) };
    if answer == 0 {
        return 0;
    }
    // SAFETY: the program's promise.
    match unsafe { missing(path) } {
        // SAFETY: a C string; the program's promise.
        Some(File::Node) => unsafe { libc::stat(c"/dev/null".as_ptr(), buf) },
        Some(file) => match file.open(false).map(IntoRawFd::into_raw_fd) {
            // SAFETY: the descriptor is closed once; the program's promise.
            Some(fd) => unsafe {
                let answer = libc::fstat(fd, buf);
                libc::close(fd);
                answer
            },
            None => -1,
        },
        None => answer,
    }
}

/// What programs call for stat(2) that were built with a C library before 2.33; all versions of the structure are one on
/// 64-bit machines.
unsafe extern "C" fn xstat(_version: c_int, path: *const c_char, buf: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    unsafe { stat(path, buf) }
}

/// open(2), whose third argument is where a third would be, whether it is given or not.
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the program's promise.
    let answer = unsafe { libc::open(path, flags, mode) };
    if answer >= 0 {
        return answer;
    }
    // SAFETY: the program's promise.
    let Some(file) = (unsafe { missing(path) }) else {
        return answer;
    };
    if flags & libc::O_ACCMODE != libc::O_RDONLY && matches!(file, File::Content(_)) {
        set_errno(libc::EACCES);
        return -1;
    }
    let opened = file.open(flags & libc::O_CLOEXEC == 0);
    opened.map_or(-1, IntoRawFd::into_raw_fd)
}

/// fopen(3)
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the program's promise.
    let answer = unsafe { libc::fopen(path, mode) };
    if !answer.is_null() {
        return answer;
    }
    // SAFETY: the program's promise.
    let (Some(file), how) = (unsafe { (missing(path), CStr::from_ptr(mode)) }) else {
        return answer;
    };
    let how = how.to_bytes();
    if how.first() != Some(&b'r') || how.contains(&b'+') {
        set_errno(libc::EACCES);
        return answer;
    }
    let Some(fd) = file.open(!how.contains(&b'e')).map(IntoRawFd::into_raw_fd) else {
        return answer;
    };
    // SAFETY: an open descriptor; the program's promise.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.is_null() {
        // SAFETY: nobody else has it.
        unsafe { libc::close(fd) };
    }
    stream
}

const NODES: &[u8] = b"/dev/infiniband/";
/// Below the root of sysfs: `infiniband`, `infiniband_verbs`.
const CLASS: &[u8] = b"/class/infiniband";
