//! Where cases run, and the run of all of them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};

use oarlock_port::{ForwardToken, MemWire, Port, UdpPort, UdpSlots, netlink};

use crate::end::End;
use crate::{Case, all_cases, support};

/// What carries the packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Medium {
    /// Two hosts on an in-memory wire, in one process.
    Private,
    /// Two processes and UDP port 4791, IPv4.
    Udp4,
    /// The same with IPv6.
    Udp6,
}

impl Medium {
    fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Udp4 => "udp4",
            Self::Udp6 => "udp6",
        }
    }

    /// Of both ends.
    fn addresses(self) -> [IpAddr; 2] {
        match self {
            Self::Private => [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()],
            Self::Udp4 => [Ipv4Addr::LOCALHOST.into(); 2],
            Self::Udp6 => [Ipv6Addr::LOCALHOST.into(); 2],
        }
    }
}

/// Runs the cases that the environment selects, on one medium; `test` is the name of the calling test.
pub(crate) fn run(medium: Medium, test: &str) {
    let wanted = std::env::var(MEDIUM_VARIABLE);
    if wanted.is_ok_and(|wanted| wanted != medium.name()) {
        return;
    }
    match medium {
        Medium::Private => run_cases(medium, |case| private(case, medium)),
        Medium::Udp4 | Medium::Udp6 if std::env::var_os(PEER).is_some() => second_process(medium),
        Medium::Udp4 | Medium::Udp6 => oarlock_sim::in_namespace(&["-Urn"], test, || {
            netlink::bring_up(LOOPBACK).expect("loopback up");
            let mut slots = UdpSlots::open().expect("port 4791");
            let mut first_slot = 1;
            run_cases(medium, |case| {
                between_processes(case, medium, test, &mut slots, &mut first_slot);
            });
        }),
    }
}

fn run_cases(medium: Medium, mut run: impl FnMut(&'static Case)) {
    let cases = selected();
    let mut failed = Vec::new();
    for case in &cases {
        eprintln!("semantics: medium={} case={}", medium.name(), case.name);
        if catch_unwind(AssertUnwindSafe(|| run(case))).is_err() {
            failed.push(case.name);
        }
    }
    let (count, passed) = (cases.len(), cases.len() - failed.len());
    let line = format!(
        "semantics: medium={} cases={count} passed={passed}",
        medium.name()
    );
    println!("{line}");
    assert!(failed.is_empty(), "{line}; failed: {}", failed.join(" "));
}

fn selected() -> Vec<&'static Case> {
    let Ok(names) = std::env::var(CASE_VARIABLE) else {
        return all_cases().collect();
    };
    let names: HashSet<&str> = names.split(',').collect();
    let cases: Vec<_> = all_cases()
        .filter(|case| names.contains(case.name))
        .collect();
    assert_eq!(cases.len(), names.len(), "{CASE_VARIABLE}: unknown names");
    cases
}

/// Both ends in this process, each on a thread.
fn private(case: &Case, medium: Medium) {
    let wire = MemWire::new();
    let (here, there) = UnixStream::pair().expect("a pair of sockets");
    let [first, second] = medium.addresses();
    let end = |address, peer, slot, control, is_first| {
        let host = wire.add_host(&[address]).expect("host");
        let port = Port::Mem(host.open(slot).expect("slot"));
        End::new(port, (address, peer), control, is_first)
    };
    let mut a = end(first, second, 3, here, true);
    let mut b = end(second, first, 7, there, false);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || (case.b)(&mut b));
        let ended = catch_unwind(AssertUnwindSafe(|| (case.a)(&mut a)));
        // The channel closes: a second side that still waits for this one fails now.
        drop(a);
        let other = other.join();
        // The panics have been printed; the first one is passed on.
        for ended in [ended, other] {
            if let Err(panic) = ended {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// The first end here, the second in a process of its own, which is this program again.
fn between_processes(
    case: &Case,
    medium: Medium,
    test: &str,
    slots: &mut UdpSlots,
    next_slot: &mut u8,
) {
    // A slot that was used and could not be renewed at once has no socket: the next one has.
    let mut socket = || {
        for _ in 0..LAST_SLOT {
            let slot = *next_slot;
            *next_slot = if slot == LAST_SLOT { 1 } else { slot + 1 };
            if let Some(socket) = slots.lend(slot).expect("options") {
                return (slot, socket.try_clone_to_owned().expect("dup"));
            }
        }
        panic!("every slot is held");
    };
    let ((first_slot, first), (second_slot, second)) = (socket(), socket());
    let name = format!("oarlock-semantics-{}-{first_slot}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("listen");
    let peer = Command::new(std::env::current_exe().expect("a test is a program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(PEER, format!("{name}/{second_slot}"))
        .env(CASE_VARIABLE, case.name)
        .stdin(Stdio::from(second))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a second process");
    // A second process that fails before it connects must not leave us here.
    listener.set_nonblocking(true).expect("non-blocking");
    let mut control = None;
    support::eventually("the second process", || {
        control = listener.accept().ok();
        control.is_some()
    });
    let (control, _) = control.expect("it has connected");
    control.set_nonblocking(false).expect("blocking");
    let mut a = end_on(first, first_slot, medium, control, true);
    let ended = catch_unwind(AssertUnwindSafe(|| (case.a)(&mut a)));
    drop(a);
    let output = peer.wait_with_output().expect("it ends");
    slots.settle().expect("those that were held");
    for slot in [first_slot, second_slot] {
        slots.renew(slot).expect("renewed");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "second process: {text}"
    );
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

/// We are the second process: the slot's socket is our standard input.
fn second_process(medium: Medium) {
    let peer = std::env::var(PEER).expect("asked before");
    let (name, slot) = peer.split_once('/').expect("name and slot");
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    let control = UnixStream::connect_addr(&address).expect("the first process listens");
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("dup");
    let case = selected()[0];
    let mut b = end_on(
        socket,
        slot.parse().expect("a slot"),
        medium,
        control,
        false,
    );
    (case.b)(&mut b);
}

fn end_on(socket: OwnedFd, slot: u8, medium: Medium, control: UnixStream, is_first: bool) -> End {
    let port = UdpPort::new(slot, socket, ForwardToken(1)).expect("port");
    let [first, second] = medium.addresses();
    let addresses = if is_first {
        (first, second)
    } else {
        (second, first)
    };
    End::new(Port::Udp(port), addresses, control, is_first)
}

/// A new namespace's loopback interface is its first (Linux `LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
/// Of those that may be lent.
const LAST_SLOT: u8 = oarlock_port::SPARE_SLOT - 1;
/// Names the first process's control channel, and the slot, to the second.
const PEER: &str = "OARLOCK_SEMANTICS_PEER";
const CASE_VARIABLE: &str = "OARLOCK_SEMANTICS_CASE";
const MEDIUM_VARIABLE: &str = "OARLOCK_SEMANTICS_MEDIUM";
