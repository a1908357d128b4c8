//! The service as a program of its own, and connections to it that are no [`Host`](oarlock_hostd::Host).
#![allow(dead_code, reason = "each test file uses a part")]

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
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
