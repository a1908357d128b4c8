//! `oarlock trace -w`: captures the packets of all programs of this host.

use super::tally::{Tally, tally};
use crate::capture::for_record;
use crate::failure::{Failure, system};
use crate::host;
use crate::report::{Lines, micros, print_json};
use crate::signals::Ending;
use oarlock_hostd::{CaptureFailure, Host, HostCapture};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the command prints with `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    file: &'a Path,
    elapsed_us: f64,
    ended_by: End,
    /// Why the capture ended before it was to; none if it did not.
    failure: Option<&'a str>,
    #[serde(flatten)]
    tally: &'a Tally,
}

/// What has ended the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum End {
    /// The time that was given.
    Time,
    /// SIGINT or SIGTERM.
    Signal,
    /// The host service has gone.
    ServiceGone,
    /// A packet could not be written.
    Failure,
}

impl End {
    fn words(self) -> &'static str {
        match self {
            Self::Time => "the time is over",
            Self::Signal => "as told by a signal",
            Self::ServiceGone => "the host service has gone",
            Self::Failure => "a packet could not be written",
        }
    }
}

/// Captures until something ends it, and tells what the file then holds.
pub(super) fn run(path: &Path, limit: Option<Duration>, json: bool) -> Result<(), Failure> {
    let lines = Lines::new(json);
    // Before anything begins, so that a signal that comes early still ends it well.
    let ending = Ending::register().map_err(system("signals"))?;
    let host = host::open()?;
    let gone = host
        .gone_fd()
        .map_err(system("the descriptor that tells of the service's end"))?;
    let (file, is_new) = for_record(path)?;
    let begun = begin(&host, path, &file);
    if begun.is_err() && is_new {
        // Nobody has it yet.
        let _ = fs::remove_file(path);
    }
    let capture = begun?;
    let started = Instant::now();
    lines.say(format_args!(
        "tracing this host to {}: {} programs with queue pairs now, and whoever comes; {}",
        path.display(),
        capture.state().programs,
        limit.map_or_else(
            || "SIGINT ends it".to_owned(),
            |limit| format!("for {} s", limit.as_secs_f64())
        )
    ));
    let end = wait(&ending, &capture, &gone, limit.map(|limit| started + limit))
        .map_err(system("waiting"))?;
    let elapsed = started.elapsed();
    let (end, failure) = finish(&host, &capture, end)?;
    // The service's copy and the programs' are closed; what is counted now is what the file holds.
    let tally = tally(path, &file)?;
    if json {
        let report = Report {
            file: path,
            elapsed_us: micros(elapsed),
            ended_by: end,
            failure: failure.as_deref(),
            tally: &tally,
        };
        print_json("trace", failure.is_none(), &report)?;
    } else {
        lines.say(format_args!(
            "{} packets, {} bytes in {:.1} s; {}",
            tally.packets,
            tally.bytes,
            elapsed.as_secs_f64(),
            end.words()
        ));
        for line in tally.lines() {
            lines.say(line);
        }
    }
    match failure {
        None => Ok(()),
        Some(sentence) => Err(Failure::Capture {
            path: path.to_owned(),
            problem: sentence,
        }),
    }
}

/// Begins to capture to the file, of which the service takes an empty one.
fn begin(host: &Host, path: &Path, file: &File) -> Result<HostCapture, Failure> {
    let failed = |source| Failure::File {
        path: path.to_owned(),
        source,
    };
    if file.metadata().map_err(failed)?.len() > 0 {
        // What is in it is given up for a capture that begins only: one to memory tells whether this one is refused.
        let memory = memfd_create("trace", MemfdFlags::CLOEXEC)
            .map_err(|errno| system("a file in memory")(errno.into()))?;
        host.capture_host(&memory)?.end()?;
        file.set_len(0).map_err(failed)?;
    }
    Ok(host.capture_host(file)?)
}

/// Waits for what ends the capture.
fn wait(
    ending: &Ending,
    capture: &HostCapture,
    gone: &OwnedFd,
    deadline: Option<Instant>,
) -> io::Result<End> {
    loop {
        if ending.is_asked() {
            return Ok(End::Signal);
        }
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(End::Time);
        }
        let mut fds = [
            PollFd::new(ending, PollFlags::IN),
            PollFd::new(gone, PollFlags::IN),
            PollFd::new(capture, PollFlags::IN),
        ];
        // A limit too long for the system is waited for in pieces.
        let left = left.map(|left| {
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: 3600,
                tv_nsec: 0,
            })
        });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let [_, gone, idle] = fds.each_ref().map(|fd| !fd.revents().is_empty());
        if gone {
            return Ok(End::ServiceGone);
        }
        if idle {
            return Ok(End::Failure);
        }
    }
}

/// Ends the capture and waits until nobody writes any more; what went wrong.
fn finish(host: &Host, capture: &HostCapture, end: End) -> Result<(End, Option<String>), Failure> {
    let mut failure = None;
    let mut end = end;
    if end != End::ServiceGone {
        match capture.end() {
            Ok(state) => {
                if let Some(failed) = state.failure {
                    end = End::Failure;
                    failure = Some(sentence(&failed));
                } else if state.missed > 0 {
                    failure = Some(format!(
                        "{} programs could not be told to trace, because too many descriptors were on their way between programs of this user",
                        state.missed
                    ));
                }
            }
            Err(error) if error.is_gone() || host.is_gone() => end = End::ServiceGone,
            Err(error) => return Err(error.into()),
        }
    }
    if !becomes_idle(capture).map_err(system("waiting"))? && failure.is_none() {
        failure = Some(
            "a program has not let go of the file, as one does that is stopped (kill -STOP): what it still sends may come behind what is counted here"
                .to_owned(),
        );
    }
    Ok((end, failure))
}

fn becomes_idle(capture: &HostCapture) -> io::Result<bool> {
    let deadline = Instant::now() + LET_GO;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(capture, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn sentence(failed: &CaptureFailure) -> String {
    let cause = match failed.errno {
        0 => "the file took only a part of it; is there room on the disk?".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    };
    format!(
        "process {} ({}) could not write a packet, and tracing ended there: {cause}",
        failed.pid, failed.name
    )
}

/// Programs let go when their engine threads next run, which is at once unless they are stopped.
const LET_GO: Duration = Duration::from_secs(5);
