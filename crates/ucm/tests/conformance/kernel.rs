//! A Linux kernel as a subject: `/dev/infiniband/rdma_cm` of the machine that the test runs on.
//!
//! The machine is changed by it: use one of its own, as `.ci/rows-kernel` does, with the modules `rdma_ucm` and `rdma_rxe`.
//! Its clock is best a virtual one, for the rows wait for hours.

mod link;

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::subject::{File, HostEvent, Mode, OldFile, Peer, Refused, Subject, Write};
use link::Link;

const DEVICE: &str = "/dev/infiniband/rdma_cm";
/// What a kernel needs at most until a call, a message or a change has had its effects.
const SETTLED: Duration = Duration::from_millis(40);
/// A call that has not come back after this time waits for something.
const PATIENCE: Duration = Duration::from_secs(200);
/// After this time a closed file's connections are out of TIMEWAIT, which is 537 ms for the rows' numbers.
const FORGOTTEN: Duration = Duration::from_secs(3);
/// An address that no program has memory at.
const NOWHERE: u64 = 8;
/// A descriptor that no program of this size has.
const CLOSED: u32 = 9999;
/// What is in an answer's memory before the answer.
const UNWRITTEN: u8 = 0xA5;

type Job = Box<dyn FnOnce() + Send>;

/// An open file, and the thread that has opened it: Linux lets write only whom it knows as the opener.
struct Open {
    file: Arc<fs::File>,
    opener: Sender<Job>,
}

pub(crate) struct Kernel {
    version: (u32, u32),
    link: Link,
    files: Vec<Option<Open>>,
}

impl Kernel {
    pub(crate) fn new() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a Linux");
        Self {
            version: version(&release),
            link: Link::new(),
            files: Vec::new(),
        }
    }

    fn open_file(&self, file: File) -> &Open {
        self.files[file].as_ref().expect("it is open")
    }
}

/// Major and minor of `6.12.3-something`.
fn version(text: &str) -> (u32, u32) {
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().expect("a version of Linux"));
    let major = numbers.next().expect("a major version");
    (major, numbers.next().expect("a minor version"))
}

/// Gives the calling thread credentials of its own, with or without the right to ports below 1024.
fn become_another(privileged: bool) {
    let mut sets = capabilities(None).expect("one's own capabilities");
    sets.effective
        .set(CapabilitySet::NET_BIND_SERVICE, privileged);
    set_capabilities(None, sets).expect("less than before");
}

/// What `write(2)` says, with the answer.
fn written(file: &fs::File, request: &Request) -> Result<Vec<u8>, Refused> {
    let mut answer = vec![UNWRITTEN; 4096];
    // A request that says more than it has is followed by zeros.
    let mut memory = request.bytes.clone();
    let len = memory.len();
    memory.resize(len + 1024, 0);
    let value = request.value.clone();
    let pointers = [
        (
            request.response_at,
            match request.bad_response {
                true => NOWHERE,
                false => answer.as_mut_ptr().expose_provenance() as u64,
            },
        ),
        (
            value.as_ref().map(|_| 8),
            value
                .as_ref()
                .map_or(0, |value| value.as_ptr().expose_provenance() as u64),
        ),
    ];
    for (at, pointer) in pointers {
        if let Some(place) = at.and_then(|at| memory[..len].get_mut(at..at + 8)) {
            place.copy_from_slice(&pointer.to_ne_bytes());
        }
    }
    let mut file = file;
    match file.write(&memory[..len]) {
        Ok(taken) => {
            assert_eq!(taken, len, "success returns the whole length");
            let used = answer.iter().rposition(|byte| *byte != UNWRITTEN);
            answer.truncate(used.map_or(0, |last| last + 1));
            Ok(answer)
        }
        Err(error) => Err(Refused::Errno(error.raw_os_error().expect("a number"))),
    }
}

/// A [`Write`] that another thread can have.
struct Request {
    bytes: Vec<u8>,
    response_at: Option<usize>,
    bad_response: bool,
    value: Option<Vec<u8>>,
}

fn opener() -> Sender<Job> {
    let (opener, jobs): (Sender<Job>, Receiver<Job>) = channel();
    thread::spawn(move || jobs.into_iter().for_each(|job| job()));
    opener
}

/// Does something on that thread; `None`: it has not come back in time.
fn on<T: Send + 'static>(
    opener: &Sender<Job>,
    patience: Duration,
    job: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = channel();
    let job: Job = Box::new(move || {
        // Nobody waits any longer when it took too long.
        let _ = done.send(job());
    });
    opener.send(job).expect("the thread of the file runs");
    result.recv_timeout(patience).ok()
}

impl Subject for Kernel {
    fn is_kernel(&self) -> bool {
        true
    }

    fn is_since(&self, since: &str) -> bool {
        self.version >= version(since)
    }

    fn address(&self, name: &str) -> Option<(IpAddr, u32)> {
        self.link.address(name)
    }

    fn port(&self, number: u16) -> u16 {
        7470 + number
    }

    fn open(&mut self, mode: Mode) -> File {
        let opener = opener();
        let file = on(&opener, PATIENCE, move || {
            become_another(mode.privileged);
            let flags = match mode.blocking {
                true => rustix::fs::OFlags::CLOEXEC,
                false => rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NONBLOCK,
            };
            let mut options = fs::OpenOptions::new();
            options
                .read(true)
                .write(true)
                .custom_flags(flags.bits() as i32);
            options
                .open(DEVICE)
                .unwrap_or_else(|error| panic!("{DEVICE}: {error}"))
        });
        let file = Arc::new(file.expect("it opens"));
        self.files.push(Some(Open { file, opener }));
        self.files.len() - 1
    }

    fn close(&mut self, file: File) {
        let open = self.files[file].take().expect("it was open");
        assert!(Arc::into_inner(open.file).is_some(), "nobody writes on it");
        thread::sleep(SETTLED);
    }

    fn write(&mut self, file: File, write: &Write<'_>) -> Result<Vec<u8>, Refused> {
        let mut bytes = write.bytes.to_vec();
        if let Some((at, old)) = write.old_file {
            let number = match old {
                OldFile::Open(old) => self.open_file(old).file.as_raw_fd() as u32,
                OldFile::NoChannel => 0,
                OldFile::Closed => CLOSED,
            };
            if let Some(place) = bytes.get_mut(at..at + 4) {
                place.copy_from_slice(&number.to_ne_bytes());
            }
        }
        let request = Request {
            bytes,
            response_at: write.response_at,
            bad_response: write.bad_response,
            value: write.value.map(<[u8]>::to_vec),
        };
        let open = self.open_file(file);
        let held = Arc::clone(&open.file);
        let job = move || {
            let result = written(&held, &request);
            drop(held);
            result
        };
        let result = match write.by_another {
            false => on(&open.opener, PATIENCE, job),
            true => {
                let another = opener();
                on(&another, PATIENCE, || become_another(false));
                on(&another, PATIENCE, job)
            }
        };
        thread::sleep(SETTLED);
        result.unwrap_or(Err(Refused::Blocks))
    }

    fn poll(&mut self, file: File, within: Duration) -> bool {
        let file = &self.open_file(file).file;
        let mut fds = [PollFd::new(file, PollFlags::IN)];
        poll(&mut fds, Some(&time(within))).expect("poll");
        fds[0].revents().contains(PollFlags::IN)
    }

    fn send(&mut self, from: Peer, to: IpAddr, mad: &[u8; 256]) {
        self.link.send(from, to, mad);
        thread::sleep(SETTLED);
    }

    fn receive(&mut self, peer: Peer, within: Duration) -> Option<[u8; 256]> {
        let end = Instant::now() + within;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            if let Some(mad) = self.link.receive(peer, rest) {
                return Some(mad);
            }
            if rest.is_zero() {
                return None;
            }
        }
    }

    fn host(&mut self, event: HostEvent) {
        self.link.host(event);
        thread::sleep(SETTLED);
    }

    fn wait(&mut self, time: Duration) {
        thread::sleep(time);
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.files.clear();
        self.link.restore();
        thread::sleep(FORGOTTEN);
    }
}

fn time(duration: Duration) -> Timespec {
    Timespec::try_from(duration).expect("a time")
}
