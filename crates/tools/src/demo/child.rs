//! The two processes of the demo: this program again, as `oarlock cmatose --json`.

use crate::failure::{Failure, system};
use crate::progress::Progress;
use serde::Deserialize;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const LISTENING: &str = "listening on ";
/// What each side says on its way.
const STAGES: [&str; 4] = [
    "initiating data transfers",
    "data transfers complete",
    "migrating to new event channel",
    "disconnected",
];
const POLL_EVERY: Duration = Duration::from_millis(5);

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
        let mut process = Command::new(program)
            .arg("cmatose")
            .args(arguments)
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

/// Waits for both to end well; the first that does not is the error.
pub(super) fn wait_both(a: &mut Child, b: &mut Child) -> Result<(Report, Report), Failure> {
    let mut progress = Progress::new("steps of both sides", 2 * STAGES.len() as u64);
    loop {
        progress.set(a.stages + b.stages);
        let mut all_ended = true;
        for child in [&mut *a, &mut *b] {
            if child.poll()? {
                if child.ended.is_some_and(|status| !status.success()) {
                    return Err(child.failed());
                }
            } else {
                all_ended = false;
            }
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
