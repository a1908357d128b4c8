//! Joining the running service, or starting one.

use super::Host;
use crate::address::connect_to_service;
use crate::{Error, log, sys};
use oarlock_port::fdpass;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

/// Connects to the running service and checks that it is this user's or root's.
pub(super) fn join() -> Result<OwnedFd, Error> {
    let socket = connect_to_service()?;
    let service = fdpass::peer(&socket)
        .map_err(Error::system("learn whose the host service is"))?
        .uid;
    let program = rustix::process::geteuid().as_raw();
    if service != program && service != ROOT && program != ROOT {
        return Err(Error::OtherUser { service, program });
    }
    Ok(socket)
}

impl Host {
    /// Starts a host service with `program` (as [`open_starting`](Self::open_starting) does) if none runs, and leaves it at
    /// once: it stays for the time that services wait for their first program. For what starts another program.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Blocking
    /// As [`open`](Self::open).
    pub fn start(program: &Path) -> Result<(), Error> {
        join_or_start(Some(program)).map(drop)
    }
}

/// Joins the running service; starts one when there is none: `own`, if given, unless `$OARLOCK_HOSTD` names another.
pub(super) fn join_or_start(own: Option<&Path>) -> Result<OwnedFd, Error> {
    match join() {
        Err(Error::NoService) => {}
        result => return result,
    }
    let program = find(own)?;
    let mut service = Started::new(&program)?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match join() {
            Err(Error::NoService) => {}
            result => return result,
        }
        if service.has_ended() {
            // Of two services started at once one gives way; its starter joins the other, which has the name before
            // the first could find it taken.
            return match join() {
                Err(Error::NoService) => Err(Error::StartFailed {
                    program,
                    sentence: service.sentence(),
                }),
                result => result,
            };
        }
        if Instant::now() >= deadline {
            let log = service.log.as_ref().map_or_else(String::new, |path| {
                format!("; see {}", Path::new(path).display())
            });
            let sentence = format!("it did not answer within {} s{log}", START_LIMIT.as_secs());
            return Err(Error::StartFailed { program, sentence });
        }
    }
}

/// Finds the service's program: the one that `$OARLOCK_HOSTD` names if it is set, else `own`, in this program's folder, in PATH.
fn find(own: Option<&Path>) -> Result<PathBuf, Error> {
    let variable = env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let program = env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let path = env::var_os("PATH");
    find_in(variable.as_deref(), own, folder, path.as_deref())
}

fn find_in(
    variable: Option<&OsStr>,
    own: Option<&Path>,
    folder: Option<&Path>,
    path: Option<&OsStr>,
) -> Result<PathBuf, Error> {
    // The service runs in another directory: a relative path is made absolute.
    if let Some(value) = variable {
        let program = std::path::absolute(value).unwrap_or_else(|_| value.into());
        // Somebody chose it: another in its place would be a surprise.
        return match why_not_executable(&program) {
            None => Ok(program),
            Some(why) => Err(Error::NotExecutable { program, why }),
        };
    }
    let mut candidates: Vec<PathBuf> = Vec::new();
    candidates.extend(own.and_then(|own| std::path::absolute(own).ok()));
    candidates.extend(folder.map(|folder| folder.join(PROGRAM)));
    if let Some(path) = path {
        candidates.extend(
            env::split_paths(path)
                .filter(|dir| dir.is_absolute())
                .map(|dir| dir.join(PROGRAM)),
        );
    }
    candidates
        .into_iter()
        .find(|candidate| why_not_executable(candidate).is_none())
        .ok_or_else(|| Error::NoProgram {
            folder: folder.map_or_else(
                || "the program's folder".to_owned(),
                |folder| folder.display().to_string(),
            ),
        })
}

fn why_not_executable(path: &Path) -> Option<String> {
    match path.metadata() {
        Ok(data) if !data.is_file() => return Some("is no file".to_owned()),
        Ok(_) => {}
        Err(error) => return Some(format!("cannot be looked at ({error})")),
    }
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK)
        .err()
        .map(|error| format!("cannot be executed ({error})"))
}

/// A service that was started, as far as its standard error tells.
struct Started {
    stderr: ChildStderr,
    said: Vec<u8>,
    log: Option<OsString>,
}

impl Started {
    fn new(program: &Path) -> Result<Self, Error> {
        let mut command = Command::new(program);
        command
            .args(["host", "--grace"])
            .arg(GRACE_SECONDS.to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let log = log::path_for_service();
        match &log {
            Some(path) => command.env(log::LOG_FILE_VARIABLE, path),
            None => command.env_remove(log::LOG_FILE_VARIABLE),
        };
        sys::detach(&mut command);
        let failed = |source: std::io::Error| Error::StartFailed {
            program: program.to_owned(),
            sentence: source.to_string(),
        };
        let mut child = command.spawn().map_err(failed)?;
        // This is the process in between, which ends at once.
        child.wait().map_err(failed)?;
        let stderr = child.stderr.take().expect("standard error is a pipe");
        Ok(Self {
            stderr,
            said: Vec::new(),
            log,
        })
    }

    /// Whether the service has closed its standard error, which it does by ending. Waits a moment.
    fn has_ended(&mut self) -> bool {
        let mut fds = [PollFd::new(&self.stderr, PollFlags::IN)];
        // A service is there some milliseconds after its start.
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 500_000,
        };
        if !matches!(poll(&mut fds, Some(&moment)), Ok(n) if n > 0) {
            return false;
        }
        let mut buffer = [0; 1024];
        match self.stderr.read(&mut buffer) {
            Ok(n) => {
                let room = SENTENCE_MAX.saturating_sub(self.said.len());
                self.said.extend_from_slice(&buffer[..n.min(room)]);
                n == 0
            }
            Err(error) => error.kind() != std::io::ErrorKind::Interrupted,
        }
    }

    fn sentence(&self) -> String {
        let text = String::from_utf8_lossy(&self.said);
        let text = text.trim();
        match text.strip_prefix("error: ").unwrap_or(text) {
            "" => "it ended without a word".to_owned(),
            text => text.lines().collect::<Vec<_>>().join("; "),
        }
    }
}

const VARIABLE: &str = "OARLOCK_HOSTD";
const PROGRAM: &str = "oarlock";
/// How long a service that was started by a program stays after its last program.
const GRACE_SECONDS: u32 = 10;
const START_LIMIT: Duration = Duration::from_secs(20);
const SENTENCE_MAX: usize = 4096;
const ROOT: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A file that can be executed from the second call on.
    fn place(path: &Path) {
        let mode = if path.exists() { 0o755 } else { 0o644 };
        std::fs::write(path, "").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_program_is_looked_for_in_all_places_and_they_are_named() {
        let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let candidate = |i: usize| folders[i].path().join("oarlock");
        let path = folders[2].path().as_os_str();
        let own = candidate(0);
        let find = || find_in(None, Some(&own), Some(folders[1].path()), Some(path));
        let text = find().unwrap_err().to_string();
        assert!(
            text.contains(&folders[1].path().display().to_string())
                && text.contains("$OARLOCK_HOSTD")
                && text.contains("PATH"),
            "{text}"
        );
        for i in [2, 1, 0] {
            place(&candidate(i));
            assert!(
                find().is_err() || find().unwrap() != candidate(i),
                "not executable yet"
            );
            place(&candidate(i));
            assert_eq!(find().unwrap(), candidate(i));
        }
    }

    #[test]
    fn the_program_that_the_variable_names_is_taken_and_no_other_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("oarlock");
        place(&other);
        place(&other);
        let named = folder.path().join("named");
        let find = || {
            let path = Some(folder.path().as_os_str());
            find_in(
                Some(named.as_os_str()),
                Some(&other),
                Some(folder.path()),
                path,
            )
        };
        let refused = |why: &str| {
            let error = find().unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::NotExecutable { .. }), "{text}");
            assert!(
                text.contains("$OARLOCK_HOSTD")
                    && text.contains(&named.display().to_string())
                    && text.contains(why),
                "{text}"
            );
        };
        refused("No such file");
        std::fs::create_dir(&named).unwrap();
        refused("is no file");
        std::fs::remove_dir(&named).unwrap();
        place(&named);
        refused("cannot be executed");
        place(&named);
        assert_eq!(find().unwrap(), named);
    }
}
