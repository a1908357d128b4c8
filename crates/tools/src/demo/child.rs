//! The two processes of the demo: this program again, as `oarlock cmatose --json`.

use crate::failure::{DISCONNECTED_BY_PEER, Failure, system};
use crate::progress::Progress;
use serde::Deserialize;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LISTENING: &str = "listening on ";
/// What each side says on its way.
const STAGES: [&str; 4] = [
    "initiating data transfers",
    "data transfers complete",
    "migrating to new event channel",
    "disconnected",
];
const POLL_EVERY: Duration = Duration::from_millis(5);
/// A side that was disconnected waits so long for the other one to say why.
const WAIT_FOR_CAUSE: Duration = Duration::from_secs(10);

/// What a process reports, as far as the demo uses it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Report {
    pub(super) connections: u32,
    pub(super) messages: u64,
    pub(super) mismatches: u64,
    pub(super) migrations: u32,
    pub(super) events_lost: u64,
    pub(super) events_after_migration: u64,
    pub(super) connect_us: f64,
    pub(super) transfer_us: f64,
}

/// A running process; killed when it is dropped.
pub(super) struct Child {
    role: &'static str,
    process: std::process::Child,
    /// The lines it says for people.
    said: Receiver<String>,
    /// Its report, complete when it has ended.
    report: Option<JoinHandle<std::io::Result<String>>>,
    /// How many of the [`STAGES`] it has come through.
    stages: u64,
    /// What it said last by way of an error.
    complaint: Option<String>,
    ended: Option<ExitStatus>,
}

impl Child {
    pub(super) fn start(role: &'static str, arguments: &[String]) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(system("the path of this program"))?;
        let mut command = Command::new(program);
        command.arg("cmatose").args(arguments);
        Self::spawn(role, command)
    }

    fn spawn(role: &'static str, mut command: Command) -> Result<Self, Failure> {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(system("starting a process"))?;
        let mut stdout = process.stdout.take().expect("piped above");
        let stderr = process.stderr.take().expect("piped above");
        let report = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).map(|_| text)
        });
        let (say, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { break };
                if say.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            role,
            process,
            said,
            report: Some(report),
            stages: 0,
            complaint: None,
            ended: None,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the process says where it listens.
    pub(super) fn wait_listening(&mut self) -> Result<SocketAddr, Failure> {
        // The lines end when the process does.
        while let Ok(line) = self.said.recv() {
            if let Some(address) = line
                .find(LISTENING)
                .and_then(|at| line[at + LISTENING.len()..].parse().ok())
            {
                return Ok(address);
            }
            self.note(line);
        }
        self.process
            .wait()
            .map_err(system("waiting for a process"))?;
        Err(self.failed())
    }

    fn note(&mut self, line: String) {
        self.stages += u64::from(STAGES.contains(&line.as_str()));
        if let Some(sentence) = line.strip_prefix("error: ") {
            self.complaint = Some(sentence.to_owned());
        }
    }

    /// Whether it has ended.
    fn poll(&mut self) -> Result<bool, Failure> {
        while let Ok(line) = self.said.try_recv() {
            self.note(line);
        }
        if self.ended.is_none() {
            self.ended = self
                .process
                .try_wait()
                .map_err(system("waiting for a process"))?;
        }
        Ok(self.ended.is_some())
    }

    fn has_failed(&self) -> bool {
        self.ended.is_some_and(|status| !status.success())
    }

    fn failed(&mut self) -> Failure {
        while let Ok(line) = self.said.recv() {
            self.note(line);
        }
        let status = match self.process.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let sentence = self
            .complaint
            .take()
            .unwrap_or_else(|| "it said nothing".to_owned());
        Failure::Child {
            role: self.role,
            status,
            sentence,
        }
    }

    /// Of a process that has ended well: its report.
    fn report(&mut self) -> Result<Report, Failure> {
        let text = self
            .report
            .take()
            .and_then(|reader| reader.join().ok())
            .unwrap_or_else(|| Ok(String::new()))
            .map_err(system("a process's report"))?;
        serde_json::from_str(&text).map_err(|error| Failure::System {
            what: "a process's report",
            source: error.into(),
        })
    }
}

/// Whether the other side's failure is behind this one.
fn is_consequence(failure: &Failure) -> bool {
    matches!(failure, Failure::Child { sentence, .. } if sentence.contains(DISCONNECTED_BY_PEER))
}

/// The failure that explains what happened: that of the side that ended first, unless it was only disconnected by the other
/// one and that fails too, within the time given.
fn first_cause(ended: &mut Child, other: &mut Child, patience: Duration) -> Failure {
    let failure = ended.failed();
    if !is_consequence(&failure) {
        return failure;
    }
    let until = Instant::now() + patience;
    loop {
        match other.poll() {
            Ok(true) => break,
            Ok(false) if Instant::now() < until => std::thread::sleep(POLL_EVERY),
            Ok(false) | Err(_) => return failure,
        }
    }
    if !other.has_failed() {
        return failure;
    }
    let cause = other.failed();
    if is_consequence(&cause) {
        failure
    } else {
        cause
    }
}

/// Waits for both to end well; the first cause of what goes wrong is the error.
pub(super) fn wait_both(a: &mut Child, b: &mut Child) -> Result<(Report, Report), Failure> {
    let mut progress = Progress::new("steps of both sides", 2 * STAGES.len() as u64);
    loop {
        progress.set(a.stages + b.stages);
        let all_ended = a.poll()? & b.poll()?;
        if a.has_failed() {
            return Err(first_cause(a, b, WAIT_FOR_CAUSE));
        }
        if b.has_failed() {
            return Err(first_cause(b, a, WAIT_FOR_CAUSE));
        }
        if all_ended {
            return Ok((a.report()?, b.report()?));
        }
        std::thread::sleep(POLL_EVERY);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // It may have ended by itself meanwhile; then there is nothing to kill.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that says this, and ends with this status after a while.
    fn child(role: &'static str, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::spawn(role, command).expect("a shell")
    }

    fn disconnected(lost: usize) -> String {
        let sentence = Failure::Disconnected {
            lost,
            connections: 20,
        };
        format!("echo 'error: {sentence}' >&2; exit 1")
    }

    fn cause(passive: &str, active: &str) -> String {
        let (mut passive, mut active) = (child("passive", passive), child("active", active));
        wait_both(&mut passive, &mut active)
            .expect_err("one has failed")
            .to_string()
    }

    #[test]
    fn the_cause_is_told_and_not_what_follows_from_it() {
        let said = "echo 'error: no memory' >&2; exit 1".to_owned();
        let later = format!("sleep 0.2; {said}");
        // Whichever side it is, and whoever ends first.
        for active in [&said, &later] {
            let told = cause(&disconnected(20), active);
            assert_eq!(
                told,
                "the active process failed (exit status: 1): no memory"
            );
        }
        for passive in [&said, &later] {
            let told = cause(passive, &disconnected(7));
            assert_eq!(
                told,
                "the passive process failed (exit status: 1): no memory"
            );
        }
    }

    #[test]
    fn a_killed_side_is_the_cause() {
        let told = cause("sleep 0.2; kill -9 $$", &disconnected(20));
        assert_eq!(
            told,
            "the passive process failed (signal: 9 (SIGKILL)): it said nothing"
        );
    }

    #[test]
    fn a_disconnection_that_nobody_explains_is_told_itself() {
        let expected = "the passive process failed (exit status: 1): 3 of 20 connections were \
                        disconnected by the peer before the end";
        assert_eq!(cause(&disconnected(3), "exit 0"), expected);
        // Of two that both only follow, whichever ended first.
        let either = cause(&disconnected(3), &disconnected(5));
        let other = expected
            .replace("passive", "active")
            .replace("3 of", "5 of");
        assert!([expected, &other].contains(&either.as_str()), "{either}");
        let (mut passive, mut active) = (
            child("passive", &disconnected(3)),
            child("active", "exec sleep 600"),
        );
        let told = first_cause(&mut passive, &mut active, Duration::from_millis(50));
        assert_eq!(told.to_string(), expected);
    }
}
