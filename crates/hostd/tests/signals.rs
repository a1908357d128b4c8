//! A program whose signal handlers interrupt system calls (no SA_RESTART).
#![allow(unsafe_code, reason = "signals have no safe wrapper")]

mod support;

use oarlock_hostd::Host;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::namespace::in_own_namespace;
use support::program::{service_program, start_service};

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// A service that does not come to letting programs in makes them wait, through any signal.
#[test]
fn signals_do_not_end_the_wait_for_a_busy_service() {
    in_own_namespace("signals_do_not_end_the_wait_for_a_busy_service", || {
        let mut service = start_service(Command::new(service_program()).arg("host"));
        let pid = Pid::from_child(&service);
        kill_process(pid, Signal::STOP).unwrap();
        let name = SocketAddrUnix::new_abstract_name(b"oarlock.host").unwrap();
        let mut waiting = Vec::new();
        loop {
            let socket = socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )
            .unwrap();
            match connect(&socket, &name) {
                Ok(()) => waiting.push(socket),
                Err(errno) => {
                    assert_eq!(errno, rustix::io::Errno::AGAIN);
                    break;
                }
            }
            assert!(waiting.len() < 10_000);
        }
        // SAFETY: all zero is a valid sigaction, with no flags, so that calls are interrupted; the handler only adds to
        // an atomic number.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
            let done = libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
            assert_eq!(done, 0);
        }
        std::thread::scope(|scope| {
            let (tell, thread) = std::sync::mpsc::channel();
            let joined = scope.spawn(move || {
                // SAFETY: no obligations.
                tell.send(unsafe { libc::pthread_self() }).unwrap();
                Host::join()
            });
            let thread = thread.recv().unwrap();
            for _ in 0..200 {
                // SAFETY: the thread has not been joined, so that its number means it.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_millis(1));
            }
            kill_process(pid, Signal::CONT).unwrap();
            let host = joined.join().unwrap().unwrap();
            assert!(HANDLED.load(Ordering::Relaxed) > 0);
            host.stop_service().unwrap();
        });
        assert!(service.wait().unwrap().success());
    });
}
