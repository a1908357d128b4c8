//! The host service and its client.
//!
//! One *host service* per network namespace plays the part of the kernel: it owns QP1 and the connection manager, port
//! spaces, QP number slots and the list of devices. A program talks to it through a [`Host`]:
//!
//! | | |
//! |---|---|
//! | [`Host::private`] | a service in this process on an in-memory wire; any number may exist |
//! | [`Host::private_on`] | the same, as one of several hosts on a given wire |
//! | [`Host::serve`] | this process is the service of its network namespace, on the real port |
//! | [`Host::open`] | joins the running service, else starts one (`oarlock host`) |
//! | [`Host::join`] | joins the running service, else is an error |
//!
//! The data path is in the program: packets of queue pairs never pass through the service, whose counter
//! `data_packets` shows it.
//!
//! ```text
//!  program                                            service
//!  Host ---- SOCK_SEQPACKET, answers in order -------- Client       (proto::Request, proto::Reply)
//!  ClientChannel ---- one byte per queued event ------- Pipe         (a channel's descriptor)
//!  gone_fd ---- nothing, until the end ---------------- lifeline
//!  Port ---- UDP 4791, slot n                           Port, slot 0: QP1
//! ```
//!
//! # One service
//! The service's abstract Unix name is an exclusive lock on its network namespace, one for all users; only programs of the
//! service's own user, and of root, are served, because whoever holds a slot's socket could disturb the others. Both
//! sides check the other's user (SO_PEERCRED).
//!
//! # Faults on purpose
//! A program, or whoever starts it, lets packets be lost, delayed, damaged, and devices fail, by rules
//! ([`oarlock_port::fault`]): [`Host::inject`], or the environment of the program, which is looked at whenever a host is
//! opened. A variable that says nothing sensible makes opening fail.
//!
//! | | |
//! |---|---|
//! | `OARLOCK_FAULT` | rules, separated by `;` |
//! | `OARLOCK_FAULT_RECORD` | a file for a line about every fault that strikes; `%p` in its name is the process's number |
//! | `OARLOCK_FAULT_REPLAY` | such a file: exactly its faults strike again; not together with `OARLOCK_FAULT` |
//!
//! # Captures
//! [`Host::capture_host`] captures the packets of all programs of a service in pcapng, [`Host::capture`] those of one program;
//! the variable `OARLOCK_TRACE` names a file for the latter, with `%p` for the process's number, and is looked at whenever a host is
//! opened. Without `%p` programs append to one file. The service adds a program to the file as an interface and passes the descriptor; the program
//! writes its packets itself, whole blocks at a time, at the place where they leave and arrive. The file is a regular one, so
//! that writing to it waits for nobody. When it cannot grow the capture ends, and nothing else.
//!
//! # What devices do
//! [`Host::take_changes`] tells of devices that go and come, of links that fail, of GID tables that change; the service sends
//! it on a socket of its own and waits for no reader. [`Host::statistics`] has the counters of all programs by device; each
//! program writes its own to a small file that the service reads when it is asked, so that programs that do nothing are not
//! woken for it, and no message passes on the data path.
//!
//! # When somebody dies
//! A dead program's identifiers are destroyed (their peers get DREQ at once), its ports are free, its slots renewed.
//! When the service dies, every call of its programs fails with [`Error::ServiceGone`], the descriptor of
//! [`Host::gone_fd`] becomes readable, and channels end.
//!
//! # Log
//! The service tells what happens to it and its programs through the crate `tracing`. One that a program started has no
//! terminal: it is told a file by the variable [`OARLOCK_LOG_FILE`](service::LOG_FILE_VARIABLE), which is
//! `oarlock/host-NAMESPACE.log` in `$XDG_RUNTIME_DIR`, else `oarlock-USER/host-NAMESPACE.log` in `$TMPDIR` or `/tmp`
//! (NAMESPACE is the number of the network namespace, as `readlink /proc/self/ns/net` shows it), unless the variable is set
//! already; set but empty it means no log. The file is bounded ([`LogFile`](service::LogFile)). What is logged is
//! for the program that is the service to choose; `oarlock host` looks at `$OARLOCK_LOG`.
//!
//! # Fork
//! Every descriptor closes on exec. A forked child does not inherit a [`Host`]: its calls fail with
//! [`Error::Forked`], and the parent's sockets are let go in the child.
//!
//! # Files
//! `host.rs` the client; `host/` how it comes by a service, its channels, its faults and captures, what it hears of devices and what it
//! tells of itself. `service.rs` the service, `service/` its parts: the loop, who is let in, clients and their requests,
//! channels' pipes, QP1, captures, devices and what changes about them, statistics. `log.rs` the file that a started service logs to,
//! `folder.rs` where a user's own folders are.
#![deny(unsafe_code)]

mod address;
mod error;
mod folder;
mod host;
mod log;
mod patience;
pub mod service;
mod sys;

pub use error::Error;
pub use folder::user_folders;
pub use host::{
    ClientChannel, FAULT_RECORD_VARIABLE, FAULT_REPLAY_VARIABLE, FAULT_VARIABLE, Host, HostCapture,
    HostState, Injection, TRACE_VARIABLE, Wake,
};
pub use oarlock_port::{MemWire, Port};
pub use oarlock_ucm::proto::{
    CaptureFailure, CaptureState, ClientInfo, DeviceChange, DeviceChangeKind, DeviceCounters,
    DeviceInfo, Hello, HostInfo, IdInfo, PortInfo, WriteBatch, WriteItem as Call,
    WriteReply as Reply,
};
pub use patience::Patience;
