//! Tests on the real port: each runs again in a network namespace of its own, in a child process.

use crate::netlink;

/// Runs `body` in a namespace of its own with the loopback interface up, by running the test of this name again.
pub(crate) fn in_own_namespace(test: &str, body: impl FnOnce()) {
    oarlock_sim::in_namespace(&["-Urn"], test, || {
        netlink::bring_up(LOOPBACK).unwrap();
        body();
    });
}

/// Runs a command line that sets something up in this namespace.
pub(crate) fn run(line: &str) {
    let output = std::process::Command::new("sh")
        .args(["-c", line])
        .output()
        .expect("a shell is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
}

/// A new namespace's loopback interface is its first (Linux `LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
