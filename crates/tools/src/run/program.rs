//! The program that is to run: where it is, and whether it will get the libraries.

use super::elf::Elf;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The names that this project's library is found under.
pub(super) const LIBRARIES: [&str; 2] = ["librdmacm.so.1", "libibverbs.so.1"];

/// Why a program is not run: the exit status and a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u8,
    pub(super) sentence: String,
}

impl Refusal {
    /// Something of ours.
    pub(super) fn ours(sentence: impl Into<String>) -> Self {
        Self {
            status: super::STATUS_OURS,
            sentence: sentence.into(),
        }
    }
}

/// What is worth saying about a program that runs all the same, and is not linked with either library.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remark {
    /// It will not get the libraries, and may not want them.
    Warning(String),
    /// For who asks for information.
    Note(String),
}

/// Finds a program as execvp(3) does.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    let shown = name.display();
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Ok(metadata) if is_executable(&path, &metadata) => Ok(path),
            Ok(_) => Err(Refusal {
                status: STATUS_CANNOT,
                sentence: format!("{shown} is no file that may be executed"),
            }),
            Err(error) => Err(Refusal {
                status: if error.kind() == ErrorKind::PermissionDenied {
                    STATUS_CANNOT
                } else {
                    STATUS_NOT_FOUND
                },
                sentence: format!("{shown}: {error}"),
            }),
        };
    }
    find_in(
        name,
        &env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()),
    )
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, Refusal> {
    let mut found = None;
    for folder in env::split_paths(path) {
        // An empty part of PATH is the current folder.
        let path = if folder.as_os_str().is_empty() {
            Path::new(".").join(name)
        } else {
            folder.join(name)
        };
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        if is_executable(&path, &metadata) {
            return Ok(path);
        }
        if metadata.is_file() {
            found = Some(path);
        }
    }
    Err(match found {
        Some(path) => Refusal {
            status: STATUS_CANNOT,
            sentence: format!("{} is no file that may be executed", path.display()),
        },
        None => Refusal {
            status: STATUS_NOT_FOUND,
            sentence: format!("{}: no such program in PATH", name.display()),
        },
    })
}

fn is_executable(path: &Path, metadata: &Metadata) -> bool {
    metadata.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Whether the program will get the library: `own` is what the library needs and has. `None`: it is linked with the library
/// and gets it.
pub(super) fn examine(path: &Path, own: &Elf) -> Result<Option<Remark>, Refusal> {
    let Ok(Some(elf)) = Elf::read(path) else {
        // A script; or it cannot be read, and executed perhaps.
        return Ok(Some(Remark::Note(format!(
            "{} is no binary program; programs that it starts will find the libraries",
            path.display()
        ))));
    };
    let shown = path.display();
    if let Some(foreign) = elf.foreign {
        return Err(Refusal::ours(format!(
            "{shown} is for {foreign}, this library is for {}",
            env::consts::ARCH
        )));
    }
    let wanted: Vec<&str> = LIBRARIES
        .into_iter()
        .filter(|name| elf.needed.iter().any(|needed| needed == name))
        .collect();
    let Some(interpreter) = &elf.interpreter else {
        return if has_rdma_inside(path) {
            Err(Refusal::ours(format!(
                "{shown} is statically linked and has its own copy of rdma-core's libraries, in whose place none can be put: \
                 link it dynamically"
            )))
        } else {
            Ok(Some(Remark::Warning(format!(
                "{shown} is statically linked: it cannot use the libraries, programs that it starts can"
            ))))
        };
    };
    if interpreter
        .as_os_str()
        .as_encoded_bytes()
        .windows(7)
        .any(|part| part == b"ld-musl")
    {
        let sentence = format!("{shown} is made for the C library musl, the libraries for glibc");
        return if wanted.is_empty() {
            Ok(Some(Remark::Warning(format!(
                "{sentence}: it cannot use them, programs that it starts can"
            ))))
        } else {
            Err(Refusal::ours(format!(
                "{sentence}: build it for glibc (a target that ends in -gnu)"
            )))
        };
    }
    if let Some(rights) = changes_rights(path) {
        let sentence =
            format!("{shown} is {rights}, and such a program is not told where to find libraries");
        return if wanted.is_empty() {
            Ok(Some(Remark::Warning(format!(
                "{sentence}; nor are programs that it starts"
            ))))
        } else {
            Err(Refusal::ours(format!(
                "{sentence}: run a copy of it (cp makes one without)"
            )))
        };
    }
    if wanted.is_empty() {
        return Ok(Some(Remark::Note(format!(
            "{shown} is linked with neither {} nor {}; what it loads later, and programs that it starts, will find them",
            LIBRARIES[0], LIBRARIES[1]
        ))));
    }
    if let Some((folder, library)) = library_in_rpath(path, &elf) {
        return Err(Refusal::ours(format!(
            "{shown} has a DT_RPATH that goes before LD_LIBRARY_PATH and leads to {}: remove it from a copy (patchelf \
             --remove-rpath, chrpath -d), or link with -Wl,--enable-new-dtags",
            folder.join(library).display()
        )));
    }
    let newer = elf
        .version_needs
        .iter()
        .find(|(library, node)| wanted.contains(&library.as_str()) && !own.nodes.contains(node));
    if let Some((library, node)) = newer {
        return Err(Refusal::ours(format!(
            "{shown} needs {node} of {library}, which is newer than this release of oarlock has"
        )));
    }
    if let Some(node) = missing_of_glibc(interpreter, own) {
        let floor = own
            .newest_need("GLIBC_")
            .unwrap_or(node)
            .replace("GLIBC_", "glibc ");
        return Err(Refusal::ours(format!(
            "{shown} runs with a glibc that is too old for the libraries: they need {floor} or newer"
        )));
    }
    Ok(None)
}

/// rdma-core's libraries open files there, and nothing else does.
fn has_rdma_inside(path: &Path) -> bool {
    const MARK: &[u8] = b"/dev/infiniband";
    const LIMIT: u64 = 64 << 20;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LIMIT).read_to_end(&mut bytes));
    read.is_ok() && memchr::memmem::find(&bytes, MARK).is_some()
}

/// How a program gets other rights than its caller's: then the dynamic linker does not look at `LD_LIBRARY_PATH`.
fn changes_rights(path: &Path) -> Option<&'static str> {
    let metadata = fs::metadata(path).ok()?;
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let by_mode = rights_of(
        metadata.permissions().mode(),
        (metadata.uid(), metadata.gid()),
        (user, group),
    );
    by_mode.or_else(|| {
        let has_capabilities =
            rustix::fs::getxattr(path, c"security.capability", &mut [0_u8; 64]).is_ok();
        (has_capabilities && user != ROOT).then_some("given capabilities of its own (setcap)")
    })
}

fn rights_of(
    mode: u32,
    (owner, of_group): (u32, u32),
    (user, group): (u32, u32),
) -> Option<&'static str> {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010;
    if mode & SET_USER == SET_USER && owner != user {
        return Some("setuid");
    }
    (mode & SET_GROUP == SET_GROUP && of_group != group).then_some("setgid")
}

/// A library that the program finds before ours.
fn library_in_rpath(path: &Path, elf: &Elf) -> Option<(PathBuf, &'static str)> {
    // With a DT_RUNPATH, which comes after LD_LIBRARY_PATH, DT_RPATH does not count.
    let rpath = elf.rpath.as_ref().filter(|_| elf.runpath.is_none())?;
    let program = fs::canonicalize(path).ok()?;
    let origin = program.parent()?.to_str()?.to_owned();
    rpath
        .split(':')
        .filter(|folder| !folder.is_empty())
        .flat_map(|folder| expand(folder, &origin))
        .find_map(|folder| {
            LIBRARIES
                .into_iter()
                .find(|name| folder.join(name).exists())
                .map(|name| (folder, name))
        })
}

/// What may stand for a folder, as in ld.so(8). `$LIB` differs between distributions.
fn expand(folder: &str, origin: &str) -> Vec<PathBuf> {
    let replace = |text: &str, name: &str, value: &str| {
        text.replace(&format!("${{{name}}}"), value)
            .replace(&format!("${name}"), value)
    };
    let folder = replace(folder, "ORIGIN", origin);
    let folder = replace(&folder, "PLATFORM", env::consts::ARCH);
    let multiarch = format!("lib/{}-linux-gnu", env::consts::ARCH);
    ["lib64", &multiarch, "lib"]
        .into_iter()
        .map(|lib| PathBuf::from(replace(&folder, "LIB", lib)))
        .collect()
}

/// A version of glibc that our library needs and the program's C library, beside its dynamic linker, does not have.
fn missing_of_glibc<'a>(interpreter: &Path, own: &'a Elf) -> Option<&'a str> {
    let linker = fs::canonicalize(interpreter).ok()?;
    let libc = Elf::read(&linker.with_file_name(LIBC)).ok()??;
    let mut needs = own
        .version_needs
        .iter()
        .filter(|(library, _)| library == LIBC);
    needs
        .find(|(_, node)| !libc.nodes.contains(node))
        .map(|(_, node)| node.as_str())
}

const ROOT: u32 = 0;
const LIBC: &str = "libc.so.6";
/// Where execvp(3) looks when there is no PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
const STATUS_CANNOT: u8 = 126;
const STATUS_NOT_FOUND: u8 = 127;

#[cfg(test)]
#[path = "program/tests.rs"]
mod tests;
