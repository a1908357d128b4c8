//! A program whose signal handlers interrupt system calls (no SA_RESTART).
#![allow(unsafe_code, reason = "signals have no safe wrapper")]

use oarlock_rdmacm::{ConnectionOptions, Connector, Host, Listener};
use oarlock_verbs::{Buffer, SendRequest};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn install() {
    // SAFETY: all zero is a valid sigaction, with no flags, so that calls are interrupted; the handler only adds to an
    // atomic number.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
}

fn this_thread() -> libc::pthread_t {
    // SAFETY: no obligations.
    unsafe { libc::pthread_self() }
}

/// Every blocking call goes on after a signal: no wait ends early, and nobody takes the service for gone.
#[test]
fn signals_interrupt_nothing() {
    install();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (tell, threads) = std::sync::mpsc::channel();
        let tell_passive = tell.clone();
        let over = &over;
        let bombarder = scope.spawn(move || {
            let targets: Vec<libc::pthread_t> = threads.iter().take(2).collect();
            while !over.load(Ordering::Acquire) {
                for target in &targets {
                    // SAFETY: both threads live until `over` is set.
                    unsafe { libc::pthread_kill(*target, libc::SIGUSR1) };
                }
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        tell.send(this_thread()).unwrap();
        let (address_of, address) = std::sync::mpsc::channel();
        let host = Host::private().unwrap();
        let passive_host = host.clone();
        let passive = scope.spawn(move || {
            tell_passive.send(this_thread()).unwrap();
            let listener = Listener::bind(&passive_host, "127.0.0.1:0".parse().unwrap())
                .unwrap()
                .options(ConnectionOptions::new().prepare(|queue_pair, pd| {
                    queue_pair.post_recv(1, Buffer::new(pd, 64)?)?;
                    Ok(())
                }));
            address_of.send(listener.local_addr().unwrap()).unwrap();
            let mut completions = Vec::new();
            for _ in 0..CONNECTIONS {
                let connection = listener.accept().expect("accept");
                completions.clear();
                connection
                    .recv_cq
                    .wait(&mut completions, None)
                    .expect("wait for a message");
                completions.remove(0).ok().expect("a message");
                connection.until_disconnected().expect("until_disconnected");
            }
            // Signals go to this thread until the other is done, too.
            while !over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        let address = address.recv().unwrap();
        let mut completions = Vec::new();
        for i in 0..CONNECTIONS {
            let connection = Connector::new(&host).connect(address).expect("connect");
            let message = Buffer::new(&connection.pd, 8).unwrap();
            connection
                .queue_pair
                .post_send(SendRequest::new(i, message))
                .expect("post_send");
            completions.clear();
            connection
                .send_cq
                .wait(&mut completions, None)
                .expect("wait for the acknowledgement");
            completions.remove(0).ok().expect("sent");
            connection.disconnect().expect("disconnect");
        }
        // A service that can be joined is one more: its start, its hello, its lookups.
        for _ in 0..20 {
            Host::private().unwrap().devices().unwrap();
        }
        // The end, and only then the threads'.
        while HANDLED.load(Ordering::Relaxed) < 100 {
            host.devices().expect("devices");
        }
        over.store(true, Ordering::Release);
        bombarder.join().unwrap();
        passive.join().unwrap();
    });
}

const CONNECTIONS: u64 = 100;
