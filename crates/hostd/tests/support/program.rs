//! The service as a program of its own, and connections to it that are no [`Host`](oarlock_hostd::Host).
#![allow(dead_code, reason = "each test file uses a part")]

use oarlock_ucm::proto::{RefusalCode, Reply};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The smallest service there is, built beside the tests.
pub(crate) fn service_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/host");
    assert!(
        program.exists(),
        "{} is missing: cargo build -p oarlock-hostd --examples",
        program.display()
    );
    program
}

/// A process that does not outlive the test, however that ends.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the service as `oarlock host` does; returns when programs can connect.
pub(crate) fn start_service(command: &mut Command) -> Process {
    let mut service = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(service.0.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    if line != "ready\n" {
        let mut text = String::new();
        let stderr = service.0.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut text).unwrap();
        panic!("the service did not start: {text}");
    }
    service
}

/// A connection to the service that says nothing by itself.
pub(crate) fn raw() -> OwnedFd {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(b"oarlock.host").unwrap(),
    )
    .unwrap();
    socket
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// This test again, in a process of its own, as another part of the play.
pub(crate) fn play(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("OARLOCK_TEST_PART", part);
    command
}

pub(crate) fn part() -> Option<String> {
    std::env::var("OARLOCK_TEST_PART").ok()
}

/// What a part prints for another.
pub(crate) fn say(text: &str) {
    println!("\nsays {text}");
}

pub(crate) fn hear(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    let mut heard = String::new();
    for _ in 0..100 {
        line.clear();
        let n = reader.read_line(&mut line).unwrap();
        assert!(n > 0, "the other part has ended: {heard}");
        heard += &line;
        if let Some(text) = line.strip_prefix("says ") {
            return text.trim().to_owned();
        }
    }
    panic!("the other part talks nonsense");
}

/// The code of a refusal, which has a sentence.
pub(crate) fn refused(reply: &Reply) -> RefusalCode {
    let Reply::Refused(refusal) = reply else {
        panic!("{reply:?}")
    };
    assert!(!refusal.sentence.is_empty());
    refusal.code
}
