//! Where a service that a program started writes its log: a file of bounded size.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::folder::user_folders;

/// The environment variable that names the log file of a service. A program that starts a service sets it, unless it is
/// set already; empty means no file.
pub const LOG_FILE_VARIABLE: &str = "OARLOCK_LOG_FILE";

/// A log file that does not grow for ever: at [`LogFile::MAX_LEN`] bytes it becomes `NAME.old`, in place of the last
/// of that name, and begins anew. One that cannot be renamed is emptied.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    len: u64,
    max_len: u64,
}

impl LogFile {
    /// The length at which a file ends; with the older one beside it there are at most twice as many bytes.
    pub const MAX_LEN: u64 = 1 << 20;

    /// Opens the file, to append to it; makes it for this user alone when there is none.
    ///
    /// # Errors
    /// What the system says; the last part of the path is a symbolic link, or no regular file.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        Self::with_max_len(path.into(), Self::MAX_LEN)
    }

    /// The file that `$OARLOCK_LOG_FILE` names, if it does.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_env() -> io::Result<Option<Self>> {
        env::var_os(LOG_FILE_VARIABLE)
            .filter(|path| !path.is_empty())
            .map(Self::open)
            .transpose()
    }

    fn with_max_len(path: PathBuf, max_len: u64) -> io::Result<Self> {
        let (file, len) = open(&path)?;
        Ok(Self {
            path,
            file,
            len,
            max_len,
        })
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".old");
        if fs::rename(&self.path, old).is_err() {
            self.file.set_len(0)?;
        }
        (self.file, self.len) = open(&self.path)?;
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.len > 0 && self.len + bytes.len() as u64 > self.max_len {
            self.begin_anew()?;
        }
        let written = self.file.write(bytes)?;
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        // A pipe without a reader must not hold the service up.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let error = "the log file is no regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    Ok((file, metadata.len()))
}

/// What a program that starts a service puts into [`LOG_FILE_VARIABLE`]: what is there already, else the default.
/// None where there is no folder that is this user's alone.
pub(crate) fn path_for_service() -> Option<OsString> {
    match env::var_os(LOG_FILE_VARIABLE) {
        Some(path) if path.is_empty() => None,
        // The service runs in another directory: a relative path is made absolute.
        Some(path) => std::path::absolute(path).ok().map(PathBuf::into_os_string),
        None => {
            let folder = folder(env::var_os("XDG_RUNTIME_DIR"), &env::temp_dir())?;
            let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |metadata| metadata.ino());
            Some(folder.join(format!("host-{namespace}.log")).into())
        }
    }
}

/// The first of the user's folders that is there or can be made.
fn folder(runtime: Option<OsString>, temporary: &Path) -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let runtime = runtime.map(PathBuf::from).filter(|path| path.is_absolute());
    user_folders(runtime.as_deref(), temporary).find(|folder| is_made_private(folder, user))
}

/// Makes a folder if there is none; whether it is this user's and nobody else may write to it.
fn is_made_private(folder: &Path, user: u32) -> bool {
    let _ = DirBuilder::new().mode(0o700).create(folder);
    fs::symlink_metadata(folder).is_ok_and(|metadata| {
        metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o022 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_log_is_two_files_of_bounded_length_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for round in 0..2 {
            let mut log = LogFile::with_max_len(path.clone(), 100).unwrap();
            for i in 0..50 {
                writeln!(log, "{round} line {i:02}").unwrap();
            }
        }
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let (new, old) = (text("log"), text("log.old"));
        assert!(new.len() <= 100 && old.len() <= 100);
        assert!(new.ends_with("1 line 49\n"), "{new}");
        let last_of_old = old.lines().last().unwrap();
        let first_of_new = new.lines().next().unwrap();
        let number = |line: &str| line[7..].parse::<u32>().unwrap();
        assert_eq!(number(last_of_old) + 1, number(first_of_new), "{old}{new}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A line longer than the limit has a file of its own.
        let mut log = LogFile::with_max_len(path, 100).unwrap();
        log.write_all(&[b'x'; 300]).unwrap();
        log.write_all(b"y").unwrap();
        assert_eq!((text("log").len(), text("log.old").len()), (1, 300));
    }

    #[test]
    fn what_could_be_somebody_elses_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("target"), "").unwrap();
        symlink(path("target"), path("link")).unwrap();
        assert!(LogFile::open(path("link")).is_err());
        assert!(LogFile::open(folder.path()).is_err());
        assert!(LogFile::open("/dev/null").is_err());
        let user = rustix::process::geteuid().as_raw();
        assert!(is_made_private(&path("own"), user));
        assert!(!is_made_private(&path("own"), user + 1));
        let open = PermissionsExt::from_mode(0o777);
        fs::set_permissions(path("own"), open).unwrap();
        assert!(!is_made_private(&path("own"), user));
        symlink(path("own"), path("to own")).unwrap();
        assert!(!is_made_private(&path("to own"), user));
        assert!(!is_made_private(&path("target"), user));
    }

    #[test]
    fn the_folder_is_that_for_running_programs_else_that_for_temporary_files() {
        let place = tempfile::tempdir().unwrap();
        let (runtime, temporary) = (place.path().join("run"), place.path().join("tmp"));
        fs::create_dir(&temporary).unwrap();
        let find = || folder(Some(runtime.clone().into()), &temporary).unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(find(), temporary.join(format!("oarlock-{user}")));
        fs::create_dir(&runtime).unwrap();
        assert_eq!(find(), runtime.join("oarlock"));
        assert_eq!(
            folder(Some("relative".into()), &temporary),
            folder(None, &temporary)
        );
        assert_eq!(folder(None, &place.path().join("none")), None);
        // Somebody else has the names.
        let taken = |name: &str| {
            fs::remove_dir_all(temporary.join(name)).unwrap_or_default();
            fs::write(temporary.join(name), "").unwrap();
        };
        taken(&format!("oarlock-{user}"));
        taken(&format!("oarlock-{user}.1"));
        let other = temporary.join(format!("oarlock-{user}.2"));
        assert_eq!(folder(None, &temporary), Some(other));
    }
}
