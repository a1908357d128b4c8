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

/// Finds the service's program: `$OARLOCK_HOSTD`, `own`, this program's folder, PATH.
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
    let mut candidates: Vec<PathBuf> = Vec::new();
    // The service runs in another directory: a relative path is made absolute.
    candidates.extend(variable.and_then(|value| std::path::absolute(value).ok()));
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
        .find(|candidate| is_executable(candidate))
        .ok_or_else(|| Error::NoProgram {
            env: variable.map_or_else(
                || "not set".to_owned(),
                |value| value.to_string_lossy().into_owned(),
            ),
            folder: folder.map_or_else(
                || "the program's folder".to_owned(),
                |folder| folder.display().to_string(),
            ),
        })
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
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
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
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

    #[test]
    fn the_program_is_looked_for_in_all_places_and_they_are_named() {
        let folders: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
        let place = |i: usize| folders[i].path().join("oarlock");
        let path = folders[2].path().as_os_str();
        let variable = place(0);
        let own = place(3);
        let find = || {
            find_in(
                Some(variable.as_os_str()),
                Some(&own),
                Some(folders[1].path()),
                Some(path),
            )
        };
        let text = find().unwrap_err().to_string();
        assert!(text.contains(&variable.display().to_string()), "{text}");
        assert!(
            text.contains(&folders[1].path().display().to_string()),
            "{text}"
        );
        assert!(
            text.contains("$OARLOCK_HOSTD") && text.contains("PATH"),
            "{text}"
        );
        for i in [2, 1, 3, 0] {
            std::fs::write(place(i), "").unwrap();
            assert!(
                find().is_err() || find().unwrap() != place(i),
                "not executable yet"
            );
            std::fs::set_permissions(place(i), std::fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(find().unwrap(), place(i));
        }
    }
}
