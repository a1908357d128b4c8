//! A program that forks while it is connected. The one test of its process, in which no other thread does anything at that
//! moment.
#![allow(unsafe_code, reason = "fork has no safe wrapper")]

use oarlock_rdmacm::{
    Connection, ConnectionOptions, Connector, Error, EventChannel, Host, Identifier, Listener,
    PortSpace,
};
use oarlock_verbs::{Buffer, SendRequest};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(300);

/// Two ends of a connection on a host, the passive one with receives posted.
fn connected(host: &Host) -> (Connection, Connection) {
    let patience = || ConnectionOptions::new().deadline(LONG);
    let listener = Listener::bind(host, "127.0.0.1:0".parse().unwrap())
        .unwrap()
        .options(patience().prepare(|queue_pair, pd| {
            for n in 0..4 {
                queue_pair.post_recv(n, Buffer::new(pd, 64)?)?;
            }
            Ok(())
        }));
    let address = listener.local_addr().unwrap();
    let passive = std::thread::spawn(move || listener.accept().unwrap());
    let active = Connector::new(host).options(patience());
    let active = active.connect(address).unwrap();
    (active, passive.join().unwrap())
}

/// A message from one end to the other.
fn exchange(active: &Connection, passive: &Connection, text: &[u8]) {
    let message = SendRequest::inline(1, text);
    active.queue_pair.post_send(message).unwrap();
    let mut done = Vec::new();
    passive.recv_cq.wait(&mut done, Some(LONG)).unwrap();
    let received = done.remove(0).ok().unwrap();
    assert_eq!(received.message(), Some(text));
    active.send_cq.wait(&mut done, Some(LONG)).unwrap();
    done.remove(0).ok().unwrap();
}

/// What the child finds: the number of the first thing that is not so, else 0.
fn child(host: &Host, active: &Connection) -> i32 {
    let is_forked = |error: Error| {
        matches!(
            error,
            Error::Host {
                source: oarlock_hostd::Error::Forked { .. },
                ..
            }
        )
    };
    let mut wrong = 0;
    let mut check = |number: i32, is_so: bool| {
        if wrong == 0 && !is_so {
            wrong = number;
        }
    };
    check(1, active.id.resolve_route(LONG).is_err_and(is_forked));
    check(2, EventChannel::new(host).is_err_and(is_forked));
    check(
        3,
        Identifier::synchronous(host, PortSpace::TCP).is_err_and(is_forked),
    );
    check(4, active.id.disconnect().is_err_and(is_forked));
    let refused = active.queue_pair.post_send(SendRequest::inline(1, b"x"));
    check(6, refused.is_err());
    let buffer = Buffer::new(&active.pd, 64).unwrap();
    check(7, active.queue_pair.post_recv(9, buffer).is_err());
    // A host of its own is whole.
    let own = Host::private().unwrap();
    let (near, far) = connected(&own);
    exchange(&near, &far, b"of the child");
    check(5, own.ps().is_ok());
    wrong
}

/// Public faults 63 and 64: a forked child gets an error for everything of its parent's host, at once, and can open a host of its
/// own. Of what it does the parent's connection feels nothing: receives that were posted before the fork get their data.
#[test]
fn a_child_has_nothing_of_its_parents_host_and_can_have_its_own() {
    let host = Host::private().unwrap();
    let (active, passive) = connected(&host);
    exchange(&active, &passive, b"before");
    // SAFETY: the other threads of this process wait for requests or packets, of which there are none, so that the child finds
    // no lock taken; it ends by `_exit`, or after a minute by a signal.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        // SAFETY: no obligations.
        unsafe { libc::alarm(60) };
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| child(&host, &active)));
        // SAFETY: no obligations.
        unsafe { libc::_exit(outcome.unwrap_or(100)) };
    }
    exchange(&active, &passive, b"meanwhile");
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child ended with {status:#x}"
    );
    exchange(&active, &passive, b"after");
    drop(active);
    passive.until_disconnected().unwrap();
}
