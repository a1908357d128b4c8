//! The file this library was loaded from, and whether another of the kind is in the process.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;

use oarlock_port::fork::without_forks;

use crate::errno::{Refused, Result};

/// The names under which this library is installed.
const NAMES: [&str; 3] = ["librdmacm.so.1", "libibverbs.so.1", "liboarlock_capi.so"];
/// Where the tool may be, from the folder of the library's file: beside it, as one folder that was copied in; as installed; as
/// cargo builds it.
const PLACES_OF_TOOL: [&str; 4] = [
    "oarlock",
    "../bin/oarlock",
    "../../bin/oarlock",
    "../oarlock",
];

/// The program that is started as the host service if none runs: the tool that came with this library. `$OARLOCK_HOSTD` goes
/// before, PATH comes after.
pub(super) fn service_program() -> Option<PathBuf> {
    let file = std::fs::canonicalize(own_file()?.path).ok()?;
    let folder = file.parent()?;
    PLACES_OF_TOOL
        .iter()
        .map(|place| folder.join(place))
        .find(|program| {
            rustix::fs::access(program, rustix::fs::Access::EXEC_OK).is_ok() && program.is_file()
        })
}

/// Says in the log which of rdma-core's own libraries are in the process beside this one, because a library of the program
/// has a DT_RPATH that leads there: calls that reach them find no device.
pub(super) fn tell_of_others() {
    let own = own_file().map(|own| own.base);
    for file in loaded() {
        if Some(file.base) != own && file.has_our_name() && !file.is_copy() {
            tracing::error!(
                "{} is in this process, too: calls that reach it know nothing of oarlock",
                file.path.display()
            );
        }
    }
}

/// Refuses to work in a process that has this library twice, as two files that are copies of each other: each would have
/// identifiers and devices of its own, and a call would reach now the one, now the other. The one that the program's own
/// references lead to may work; so a program that was linked with two copies runs.
///
/// # Errors
/// `ENODEV`: this is the other.
pub(super) fn only_copy() -> Result<()> {
    let Some(own) = own_file() else { return Ok(()) };
    let Some(other) = loaded()
        .into_iter()
        .find(|file| file.base != own.base && file.is_copy())
    else {
        return Ok(());
    };
    // The library's own view, RTLD_DEFAULT, would begin with the program's and end with itself.
    // SAFETY: the handle of the program, whose libraries are there already.
    let program = unsafe { libc::dlopen(ptr::null(), libc::RTLD_LAZY) };
    let is_the_programs = MARKS.iter().all(|name| {
        // SAFETY: that handle, a C string.
        let function = unsafe { libc::dlsym(program, name.as_ptr()) };
        File::of(function).is_some_and(|file| file.base == own.base)
    });
    if is_the_programs {
        return Ok(());
    }
    Err(Refused::new(
        libc::ENODEV,
        format!(
            "this process has two copies of oarlock's library, {} and {}, which would know nothing of each other: make one \
             a link to the other, or use `oarlock run`",
            own.path.display(),
            other.path.display()
        ),
    ))
}

/// One function of either library: only this library has both.
const MARKS: [&CStr; 2] = [c"rdma_create_id", c"ibv_open_device"];

struct File {
    base: usize,
    path: PathBuf,
}

impl File {
    /// The file that an address was loaded from.
    fn of(address: *const c_void) -> Option<Self> {
        // SAFETY: all zeroes is a value of this structure of pointers.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is there; the address is only compared.
        let found = unsafe { libc::dladdr(address, &raw mut info) };
        if found == 0 || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: a C string of the dynamic linker's, which lives as long as the library.
        let path = unsafe { CStr::from_ptr(info.dli_fname) };
        Some(Self {
            base: info.dli_fbase as usize,
            path: Path::new(OsStr::from_bytes(path.to_bytes())).to_owned(),
        })
    }

    fn has_our_name(&self) -> bool {
        let name = self.path.file_name();
        name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
    }

    /// Whether the file is this library, too, under one of its names.
    fn is_copy(&self) -> bool {
        if !self.has_our_name() {
            return false;
        }
        let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) else {
            return false;
        };
        // SAFETY: nothing is loaded or initialised, the library is there already.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return false;
        }
        let has_all = MARKS.iter().all(|name| {
            // SAFETY: a handle that was opened above, a C string.
            let function = unsafe { libc::dlsym(library, name.as_ptr()) };
            Self::of(function).is_some_and(|file| file.base == self.base)
        });
        // SAFETY: opened above, once.
        unsafe { libc::dlclose(library) };
        has_all
    }
}

fn own_file() -> Option<File> {
    File::of(own_file as *const c_void)
}

/// What the dynamic linker has loaded.
fn loaded() -> Vec<File> {
    unsafe extern "C" fn add(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        files: *mut c_void,
    ) -> c_int {
        // SAFETY: the vector of below; the dynamic linker's structure, with a C string or null for a name.
        unsafe {
            let files = &mut *files.cast::<Vec<File>>();
            let name = (*info).dlpi_name;
            if !name.is_null() {
                let path = OsStr::from_bytes(CStr::from_ptr(name).to_bytes());
                files.push(File {
                    base: (*info).dlpi_addr as usize,
                    path: path.into(),
                });
            }
        }
        0
    }
    let mut files: Vec<File> = Vec::new();
    let to_files = ptr::from_mut(&mut files).cast();
    // The walk holds a lock of the dynamic linker's, which a child would wait for.
    // SAFETY: the function takes the vector, which outlives the call.
    without_forks(|| unsafe { libc::dl_iterate_phdr(Some(add), to_files) });
    files
}
