//! Files of devices that programs look at by themselves, without the library: UCX asks whether it may use the device's node
//! below /dev/infiniband, and reads the types of its GIDs below /sys; others list the folders.
//!
//! There are no such files, since no kernel knows of the devices. From the first list of devices on the calls of the process
//! that open, read the state of, list or ask for a file come here: a file that is not there otherwise and that a device of this
//! host would have is answered by what [`ibv_read_sysfs_file`](super::ibv_read_sysfs_file) says of it, through a file in memory;
//! a folder by one with the same names ([`folders`]); a device's node can be asked for, and not opened.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::hint::black_box;
use std::io::{Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::ptr;

use oarlock_device::DeviceInfo;
use oarlock_port::thread::Uncancelled;

use super::folders::{self, List};

use super::slots::{self, Function};
use super::{device, of_devices, path_bytes};
use crate::process;

/// Lets the objects of this process call the functions of this module. Each calls the one of its own name: a program may have
/// an `open` that calls `open64`, and it reaches what it would.
pub(in crate::verbs) fn serve() {
    let functions = [
        of(c"access", access as *const ()),
        of(c"stat", stat as *const ()),
        of(c"stat64", stat64 as *const ()),
        of(c"__xstat", xstat as *const ()),
        of(c"__xstat64", xstat as *const ()),
        of(c"lstat", lstat as *const ()),
        of(c"lstat64", lstat64 as *const ()),
        of(c"__lxstat", lxstat as *const ()),
        of(c"__lxstat64", lxstat as *const ()),
        of(c"open", open as *const ()),
        of(c"open64", open64 as *const ()),
        of(c"fopen", fopen as *const ()),
        of(c"fopen64", fopen64 as *const ()),
        of(c"opendir", opendir as *const ()),
        of(c"scandir", scandir as *const ()),
        of(c"scandir64", scandir as *const ()),
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
    Folder(List),
}

/// What `then` makes of the file of a device of this host at `path`, after a call has not found another one there; `None` if
/// there is none either, and `errno` is as it was.
///
/// The thread cannot be cancelled in here: unwinding ends where Rust's functions begin, and the process with it.
///
/// # Safety
/// `path` is a C string.
unsafe fn answer<T>(path: *const c_char, then: impl FnOnce(File) -> T) -> Option<T> {
    let errno = std::io::Error::last_os_error().raw_os_error()?;
    if errno != libc::ENOENT {
        return None;
    }
    // SAFETY: the caller's promise: the call has read it.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !path.starts_with(NODES) && !path.starts_with(path_bytes()) {
        return None;
    }
    let _uncancelled = Uncancelled::new();
    let found = str::from_utf8(path).ok().and_then(find);
    set_errno(errno);
    found.map(then)
}

/// As [`answer`], of a folder that lists devices and that the kernel has, too: it lists what is in either.
///
/// # Safety
/// `path` is a C string.
unsafe fn answer_beside<T>(path: *const c_char, then: impl FnOnce(File) -> T) -> Option<T> {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !lists_devices(path) {
        return None;
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    let _uncancelled = Uncancelled::new();
    let found = str::from_utf8(path).ok().and_then(find);
    let list = match found {
        Some(File::Folder(list)) => {
            folders::with_kernels(list, Path::new(OsStr::from_bytes(path))).ok()
        }
        _ => None,
    };
    errno.into_iter().for_each(set_errno);
    list.map(File::Folder).map(then)
}

/// Whether devices of the kernel stand beside those of this host at this path.
fn lists_devices(path: &[u8]) -> bool {
    let end = path.iter().rposition(|byte| *byte != b'/');
    let path = &path[..end.map_or(0, |end| end + 1)];
    let class = path.strip_prefix(path_bytes());
    path == NODES
        || class
            .is_some_and(|class| class == CLASS.as_bytes() || class == b"/class/infiniband_verbs")
}

fn find(path: &str) -> Option<File> {
    let devices = || {
        let listed = process::current().and_then(|process| device::list(&process));
        let infos = listed.ok()?.into_iter().map(|(_, info, _)| info);
        Some(infos.collect::<Vec<_>>())
    };
    if let Some(node) = path.as_bytes().strip_prefix(NODES) {
        return match node {
            b"" | b"/" => Some(File::Folder(folders::of_nodes(&devices()?))),
            _ => is_node(node.strip_prefix(b"/")?, &devices()?).then_some(File::Node),
        };
    }
    let below = path.as_bytes().strip_prefix(path_bytes())?;
    let below = str::from_utf8(below).ok()?;
    if !below.starts_with(CLASS) {
        return None;
    }
    if let Ok(Some(content)) = of_devices(below) {
        return Some(File::Content(content));
    }
    folders::of_sysfs(below, &devices()?).map(File::Folder)
}

/// `uverbsN`, as the devices' `dev_name` says.
fn is_node(name: &[u8], devices: &[DeviceInfo]) -> bool {
    let mut names = devices.iter().map(|info| format!("uverbs{}", info.index));
    names.any(|node| name == node.as_bytes())
}

impl File {
    /// A file that is open for reading; `None` with `errno`.
    fn open(self, is_kept: bool) -> Option<OwnedFd> {
        let text = match self {
            Self::Content(text) => text,
            Self::Node => {
                // What the kernel says of a node behind which there is no driver.
                set_errno(libc::ENXIO);
                return None;
            }
            Self::Folder(list) => {
                let path = path_of(&list)?;
                let flags = if is_kept { 0 } else { libc::O_CLOEXEC };
                // SAFETY: a C string; a descriptor that is nobody else's comes back.
                let opened = unsafe { libc::open(path.as_ptr(), libc::O_DIRECTORY | flags) };
                // SAFETY: as said.
                return (opened >= 0).then(|| unsafe { OwnedFd::from_raw_fd(opened) });
            }
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

    /// The path of a folder that lists as this one; `None` with `errno`.
    fn folder(self) -> Option<CString> {
        match self {
            Self::Folder(list) => path_of(&list),
            Self::Node | Self::Content(_) => {
                set_errno(libc::ENOTDIR);
                None
            }
        }
    }
}

/// A folder that lists so. `None`, with `errno` as where there is no such folder: none can be made.
fn path_of(list: &List) -> Option<CString> {
    let made = folders::made(list).inspect_err(|error| {
        tracing::warn!("no folder that a program lists can be made: {error}");
    });
    let path = made
        .ok()
        .and_then(|path| CString::new(path.into_os_string().into_vec()).ok());
    if path.is_none() {
        set_errno(libc::ENOENT);
    }
    path
}

fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// access(2)
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the program's promise.
    let real = unsafe { libc::access(path, mode) };
    if real == 0 {
        return 0;
    }
    let of_file = |file| {
        let refused = match file {
            File::Node => libc::X_OK,
            File::Content(_) => libc::X_OK | libc::W_OK,
            File::Folder(_) => libc::W_OK,
        };
        if mode & refused == 0 {
            return 0;
        }
        set_errno(libc::EACCES);
        -1
    };
    // SAFETY: the program's promise.
    unsafe { answer(path, of_file) }.unwrap_or(real)
}

/// stat(2)
unsafe extern "C" fn stat(path: *const c_char, buf: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    match unsafe { libc::stat(path, buf) } {
        0 => 0,
        // SAFETY: the program's promise.
        _ => unsafe { stat_missing(path, buf) },
    }
}

/// As [`stat`]; the two structures are one on 64-bit machines.
unsafe extern "C" fn stat64(path: *const c_char, buf: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    match unsafe { libc::stat64(path, buf.cast()) } {
        0 => 0,
        // SAFETY: the program's promise.
        _ => unsafe { stat_missing(path, buf) },
    }
}

/// [`stat`] of what is not there otherwise.
unsafe fn stat_missing(path: *const c_char, buf: *mut libc::stat) -> c_int {
    let of_file = |file| match file {
        // SAFETY: a C string; the program's promise.
        File::Node => unsafe { libc::stat(c"/dev/null".as_ptr(), buf) },
        File::Folder(_) => {
            // SAFETY: a C string; the program's promise.
            let told = unsafe { libc::stat(c"/".as_ptr(), buf) };
            if told == 0 {
                // SAFETY: written just now.
                unsafe { (*buf).st_mode = libc::S_IFDIR | 0o555 };
            }
            told
        }
        file @ File::Content(_) => file.open(false).map_or(-1, |open| {
            // SAFETY: an open descriptor; the program's promise.
            unsafe { libc::fstat(open.as_raw_fd(), buf) }
        }),
    };
    // SAFETY: the program's promise.
    unsafe { answer(path, of_file) }.unwrap_or(-1)
}

/// What programs call for stat(2) that were built with a C library before 2.33; all versions of the structure are one on
/// 64-bit machines.
unsafe extern "C" fn xstat(_version: c_int, path: *const c_char, buf: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    unsafe { stat(path, buf) }
}

/// lstat(2): none of the files that stand for missing ones is a link.
unsafe extern "C" fn lstat(path: *const c_char, buf: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    match unsafe { libc::lstat(path, buf) } {
        0 => 0,
        // SAFETY: the program's promise.
        _ => unsafe { stat_missing(path, buf) },
    }
}

/// As [`lstat`]; the two structures are one on 64-bit machines.
unsafe extern "C" fn lstat64(path: *const c_char, buf: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    match unsafe { libc::lstat64(path, buf.cast()) } {
        0 => 0,
        // SAFETY: the program's promise.
        _ => unsafe { stat_missing(path, buf) },
    }
}

/// [`xstat`] of lstat(2).
unsafe extern "C" fn lxstat(_version: c_int, path: *const c_char, buf: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    unsafe { lstat(path, buf) }
}

/// open(2), whose third argument is where a third would be, whether it is given or not. A thread that waits in it may be
/// cancelled, which unwinds it: it owns nothing.
unsafe extern "C-unwind" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the program's promise.
    let real = unsafe { c_open(path, flags, mode) };
    // SAFETY: the program's promise.
    unsafe { opened(real, path, flags) }
}

/// As [`open`].
unsafe extern "C-unwind" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the program's promise.
    let real = unsafe { c_open64(path, flags, mode) };
    // SAFETY: the program's promise.
    unsafe { opened(real, path, flags) }
}

/// What the C library opened, a folder that lists more in its place, or [`open_missing`].
unsafe extern "C" fn opened(real: c_int, path: *const c_char, flags: c_int) -> c_int {
    if real < 0 {
        // SAFETY: the program's promise.
        return unsafe { open_missing(path, flags) };
    }
    let of_folder = |folder: File| {
        let folder = folder.open(flags & libc::O_CLOEXEC == 0)?;
        // Here, where the thread cannot be cancelled.
        // SAFETY: opened for the program, which has not seen it.
        unsafe { libc::close(real) };
        Some(folder.into_raw_fd())
    };
    // SAFETY: the program's promise.
    let beside = unsafe { answer_beside(path, of_folder) };
    beside.flatten().unwrap_or(real)
}

/// [`open`] of what is not there otherwise.
unsafe extern "C" fn open_missing(path: *const c_char, flags: c_int) -> c_int {
    let of_file = |file| {
        let is_for_writing = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let refused = match file {
            File::Folder(_) => is_for_writing.then_some(libc::EISDIR),
            _ if flags & libc::O_DIRECTORY != 0 => Some(libc::ENOTDIR),
            File::Content(_) => is_for_writing.then_some(libc::EACCES),
            File::Node => None,
        };
        if let Some(errno) = refused {
            set_errno(errno);
            return -1;
        }
        let opened = file.open(flags & libc::O_CLOEXEC == 0);
        opened.map_or(-1, IntoRawFd::into_raw_fd)
    };
    // SAFETY: the program's promise.
    unsafe { answer(path, of_file) }.unwrap_or(-1)
}

/// fopen(3); cancelled as [`open`] is.
unsafe extern "C-unwind" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // The compiler knows the function by its name, and takes it for one that does not unwind.
    let c_fopen: unsafe extern "C-unwind" fn(_, _) -> _ = black_box(c_fopen);
    // SAFETY: the program's promise.
    let real = unsafe { c_fopen(path, mode) };
    if !real.is_null() {
        return real;
    }
    // SAFETY: the program's promise.
    unsafe { fopen_missing(path, mode) }
}

/// As [`fopen`].
unsafe extern "C-unwind" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let c_fopen64: unsafe extern "C-unwind" fn(_, _) -> _ = black_box(c_fopen64);
    // SAFETY: the program's promise.
    let real = unsafe { c_fopen64(path, mode) };
    if !real.is_null() {
        return real;
    }
    // SAFETY: the program's promise.
    unsafe { fopen_missing(path, mode) }
}

/// [`fopen`] of what is not there otherwise.
unsafe extern "C" fn fopen_missing(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let of_file = |file: File| {
        // SAFETY: the program's promise.
        let how = unsafe { CStr::from_ptr(mode) }.to_bytes();
        if how.first() != Some(&b'r') || how.contains(&b'+') {
            set_errno(match file {
                File::Folder(_) => libc::EISDIR,
                File::Content(_) | File::Node => libc::EACCES,
            });
            return ptr::null_mut();
        }
        let Some(open) = file.open(!how.contains(&b'e')) else {
            return ptr::null_mut();
        };
        // SAFETY: an open descriptor; the program's promise.
        let stream = unsafe { libc::fdopen(open.as_raw_fd(), mode) };
        if !stream.is_null() {
            // The stream has it.
            let _ = open.into_raw_fd();
        }
        stream
    };
    // SAFETY: the program's promise.
    unsafe { answer(path, of_file) }.unwrap_or(ptr::null_mut())
}

/// opendir(3). The stream is the C library's own, of a folder with the same names.
unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: the program's promise.
    let real = unsafe { libc::opendir(path) };
    let folder = if real.is_null() {
        // SAFETY: the program's promise.
        unsafe { answer(path, File::folder) }
    } else {
        // SAFETY: the program's promise.
        unsafe { answer_beside(path, File::folder) }
    };
    let Some(folder) = folder.flatten() else {
        return real;
    };
    // SAFETY: a C string.
    let stream = unsafe { libc::opendir(folder.as_ptr()) };
    if stream.is_null() {
        return real;
    }
    if !real.is_null() {
        // SAFETY: opened above, and the program has not seen it.
        unsafe { libc::closedir(real) };
    }
    stream
}

/// scandir(3), and scandir64, which is the same on 64-bit machines. The functions that it calls are the program's and may
/// unwind: there is nothing here to be freed then.
unsafe extern "C-unwind" fn scandir(
    path: *const c_char,
    list: *mut *mut *mut libc::dirent,
    filter: Option<Filter>,
    compare: Option<Compare>,
) -> c_int {
    let mut folder = [0; FOLDER_PATH_MAX];
    // SAFETY: the program's promise.
    if !unsafe { folder_beside(path, &mut folder) } {
        // SAFETY: the program's promise.
        let real = unsafe { c_scandir(path, list, filter, compare) };
        // SAFETY: the program's promise.
        if real >= 0 || !unsafe { folder_missing(path, &mut folder) } {
            return real;
        }
    }
    // SAFETY: a C string; the program's promise.
    unsafe { c_scandir(folder.as_ptr(), list, filter, compare) }
}

type FolderPath = [c_char; FOLDER_PATH_MAX];

/// Writes the path of a folder that lists as the missing one would; whether there is one.
unsafe extern "C" fn folder_missing(path: *const c_char, place: &mut FolderPath) -> bool {
    // SAFETY: the program's promise.
    put(unsafe { answer(path, File::folder) }.flatten(), place)
}

/// As [`folder_missing`], of a folder that the kernel has, too.
unsafe extern "C" fn folder_beside(path: *const c_char, place: &mut FolderPath) -> bool {
    // SAFETY: the program's promise.
    put(
        unsafe { answer_beside(path, File::folder) }.flatten(),
        place,
    )
}

fn put(folder: Option<CString>, place: &mut FolderPath) -> bool {
    let Some(folder) = folder else {
        return false;
    };
    let bytes = folder.as_bytes_with_nul();
    if bytes.len() > place.len() {
        set_errno(libc::ENAMETOOLONG);
        return false;
    }
    for (place, byte) in place.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    true
}

type Filter = unsafe extern "C-unwind" fn(*const libc::dirent) -> c_int;
type Compare =
    unsafe extern "C-unwind" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int;

// As the crate libc declares them, but that they may unwind.
unsafe extern "C-unwind" {
    #[link_name = "open"]
    fn c_open(path: *const c_char, flags: c_int, ...) -> c_int;
    #[link_name = "fopen"]
    fn c_fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    #[link_name = "open64"]
    fn c_open64(path: *const c_char, flags: c_int, ...) -> c_int;
    #[link_name = "fopen64"]
    fn c_fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    #[link_name = "scandir"]
    fn c_scandir(
        path: *const c_char,
        list: *mut *mut *mut libc::dirent,
        filter: Option<Filter>,
        compare: Option<Compare>,
    ) -> c_int;
}

const NODES: &[u8] = b"/dev/infiniband";
/// Below the root of sysfs: `infiniband`, `infiniband_verbs`.
const CLASS: &str = "/class/infiniband";
const FOLDER_PATH_MAX: usize = libc::PATH_MAX as usize;
