//! The folder with the libraries under their two names.

use super::program::{LIBRARIES, Refusal};
use oarlock_hostd::user_folders;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The shared object, and a folder where it has both names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Libraries {
    pub(super) object: PathBuf,
    pub(super) folder: PathBuf,
}

/// Finds the shared object from the folder of this program, and a folder with both names: one that came with the program, else
/// one that is made, with links, for this user alone.
pub(super) fn libraries() -> Result<Libraries, Refusal> {
    let program = std::env::current_exe()
        .map_err(|error| Refusal::ours(format!("the path of this program: {error}")))?;
    let of_program = program.parent().unwrap_or(Path::new("/"));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    libraries_of(of_program, runtime.as_deref(), &std::env::temp_dir())
}

fn libraries_of(
    of_program: &Path,
    runtime: Option<&OsStr>,
    temporary: &Path,
) -> Result<Libraries, Refusal> {
    let places = PLACES.iter().map(|place| of_program.join(place));
    let Some(object) = places
        .clone()
        .find_map(|place| fs::canonicalize(place.join(OBJECT)).ok())
    else {
        return Err(Refusal::ours(format!(
            "the library {OBJECT} is in none of {}: copy it beside this program; a build has it in target/release/deps, and \
             `bash dist/folder.sh DIR` makes a folder with both",
            places
                .map(|place| place
                    .components()
                    .collect::<PathBuf>()
                    .display()
                    .to_string())
                .collect::<Vec<_>>()
                .join(", ")
        )));
    };
    let of_object = object.parent().unwrap_or(Path::new("/"));
    let folder = if is_complete(of_object, &object) && is_plain(of_object) {
        of_object.to_owned()
    } else {
        linked(&object, runtime, temporary)?
    };
    Ok(Libraries { object, folder })
}

/// Whether both names are there, for this object.
fn is_complete(folder: &Path, object: &Path) -> bool {
    LIBRARIES
        .iter()
        .all(|name| fs::canonicalize(folder.join(name)).is_ok_and(|found| found == object))
}

/// Whether a folder can stand in `LD_LIBRARY_PATH`, where some characters mean something.
fn is_plain(folder: &Path) -> bool {
    !folder
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| b":;$".contains(byte))
}

/// A folder with links to the object: in the user's folder for running programs, else in that for temporary files.
fn linked(object: &Path, runtime: Option<&OsStr>, temporary: &Path) -> Result<PathBuf, Refusal> {
    let user = rustix::process::geteuid().as_raw();
    let runtime = runtime
        .map(Path::new)
        .filter(|folder| folder.is_absolute() && is_of(folder, user));
    let candidates = user_folders(runtime, temporary).filter(|folder| is_plain(folder));
    // The first that was tried is the one that should have been: the others are for when its name is taken.
    let mut problem = None;
    for folder in candidates {
        match make(&folder, object, user) {
            Ok(made) => return Ok(made),
            Err(error) => {
                problem.get_or_insert_with(|| {
                    format!(
                        "a folder for links to the library, {}: {error}",
                        folder.display()
                    )
                });
            }
        }
    }
    let problem =
        problem.unwrap_or_else(|| "no folder can be made for links to the library".to_owned());
    Err(Refusal::ours(format!(
        "{problem}; set XDG_RUNTIME_DIR or TMPDIR to a folder of your own"
    )))
}

fn make(parent: &Path, object: &Path, user: u32) -> io::Result<PathBuf> {
    let parent_folder = open_own(parent, user)?;
    // One for each object: programs of another version may be running.
    let metadata = fs::metadata(object)?;
    let name = format!("lib-{:x}-{:x}", metadata.dev(), metadata.ino());
    match rustix::fs::mkdirat(&parent_folder, &name, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = rustix::fs::openat(&parent_folder, &name, FOLDER, Mode::empty())?;
    check(&folder, user)?;
    for library in LIBRARIES {
        let leads_to = rustix::fs::readlinkat(&folder, library, Vec::new());
        if leads_to.is_ok_and(|path| path.as_bytes() == object.as_os_str().as_encoded_bytes()) {
            continue;
        }
        // Another process may be doing the same, in another PID namespace with the same number, too: each puts a whole link
        // of a name of its own into place.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let new = format!("{library}.{}.{}", std::process::id(), now.as_nanos());
        rustix::fs::symlinkat(object, &folder, new.as_str())?;
        rustix::fs::renameat(&folder, new.as_str(), &folder, library)?;
    }
    Ok(parent.join(name))
}

/// Makes a folder for this user alone if there is none, and opens it, if it is that.
fn open_own(path: &Path, user: u32) -> io::Result<OwnedFd> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let folder = rustix::fs::open(path, FOLDER, Mode::empty())?;
    check(&folder, user)?;
    Ok(folder)
}

/// A folder of another user, or one to which others write, may lead anywhere.
fn check(folder: &OwnedFd, user: u32) -> io::Result<()> {
    let stat = rustix::fs::fstat(folder)?;
    if stat.st_uid != user {
        return Err(io::Error::other(format!(
            "it belongs to user {}",
            stat.st_uid
        )));
    }
    if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::other("others may write to it"));
    }
    Ok(())
}

fn is_of(folder: &Path, user: u32) -> bool {
    fs::metadata(folder)
        .is_ok_and(|metadata| metadata.uid() == user && metadata.mode() & WRITABLE_BY_OTHERS == 0)
}

const OBJECT: &str = "liboarlock_capi.so";
/// Where the object may be, from the folder of this program: where cargo leaves it, beside it, installed.
const PLACES: [&str; 4] = ["deps", ".", "../lib/oarlock", "../lib"];
const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::RDONLY);
const WRITABLE_BY_OTHERS: u32 = 0o022;

#[cfg(test)]
#[path = "folder/tests.rs"]
mod tests;
