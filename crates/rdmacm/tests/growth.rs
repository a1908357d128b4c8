//! A program that makes and destroys without end. The one test of its process, which nobody else allocates in.

use oarlock_rdmacm::{
    ConnectionOptions, Connector, EventChannel, Host, Identifier, Listener, PortSpace,
};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(300);

/// Bytes of memory that the process really has (proc_pid_status(5), VmRSS).
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<usize>().unwrap() * 1024
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// One round of everything that a program makes.
fn everything(host: &Host, listener: &Listener) {
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let patience = ConnectionOptions::new().deadline(LONG);
        let passive = scope.spawn(|| listener.accept().unwrap().until_disconnected().unwrap());
        let active = Connector::new(host).options(patience);
        active.connect(address).unwrap().disconnect().unwrap();
        passive.join().unwrap();
    });
}

/// Destroyed unused, half-way, and with events queued; the program and its service are this process.
fn identifiers(host: &Host, address: std::net::SocketAddr, count: usize) {
    let channel = EventChannel::new(host).unwrap();
    for n in 0..count {
        let id = Identifier::new(&channel, PortSpace::TCP).unwrap();
        if n % 50 == 0 {
            id.resolve_addr(None, address, LONG).unwrap();
            if n % 100 == 0 {
                channel.get_event().unwrap().ack();
            }
        }
    }
}

/// Public fault 19: a hundred thousand identifiers later, and some hundred connections, channels and hosts, the process has the
/// descriptors it had, and no more memory than that of a handful.
#[test]
fn nothing_grows_with_what_was_destroyed() {
    let host = Host::private().unwrap();
    let listener = Listener::bind(&host, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let round = |scale: usize| {
        identifiers(&host, address, 1000 * scale);
        for _ in 0..scale {
            everything(&host, &listener);
            drop(Host::private().unwrap());
        }
    };
    // Tables and pools reach their size.
    round(10);
    // A host that is closed ends in a thread of its own.
    let settled = || {
        let mut now = descriptors();
        for _ in 0..2000 {
            std::thread::sleep(Duration::from_millis(5));
            let next = descriptors();
            if next == now {
                break;
            }
            now = next;
        }
        now
    };
    let (files, memory) = (settled(), resident());
    round(100);
    assert_eq!(settled(), files, "descriptors");
    let grown = resident().saturating_sub(memory);
    assert!(
        grown < 4 << 20,
        "{grown} bytes more, 40 for each identifier"
    );
    assert_eq!(host.ps().unwrap().ids.len(), 1, "the listener");
}
