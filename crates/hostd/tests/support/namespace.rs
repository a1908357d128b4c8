//! Tests on the real port: each runs again in a network namespace of its own, in a child process.

use oarlock_port::netlink;

/// Runs `body` in a network namespace of its own with the loopback interface up, by running the test of this name again.
pub(crate) fn in_own_namespace(test: &str, body: impl FnOnce()) {
    run_in(test, &["-Urn"], body);
}

/// As [`in_own_namespace`], but with all users there are; needs root.
pub(crate) fn in_namespace_with_users(test: &str, body: impl FnOnce()) {
    run_in(test, &["-n"], body);
}

fn run_in(test: &str, flags: &[&str], body: impl FnOnce()) {
    oarlock_sim::in_namespace(flags, test, || {
        netlink::bring_up(LOOPBACK).unwrap();
        body();
    });
}

/// A new namespace's loopback interface is its first (Linux `LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
