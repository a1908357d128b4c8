//! One connection to a service: requests one at a time, answers matched by their sequence numbers.

use crate::Error;
use oarlock_port::fdpass;
use oarlock_port::fork::ForkGuard;
use oarlock_ucm::proto::{Hello, MAX_MESSAGE, MAX_NAME, NO_ANSWER, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Connection {
    /// The process that made it; a forked child must not use it.
    pid: u32,
    hello: Hello,
    gone: AtomicBool,
    sequence: AtomicU32,
    /// Messages that want no answer and have not been sent yet; sent before anything else.
    posted: Mutex<VecDeque<Vec<u8>>>,
    /// Held from a request to its answer.
    exchange: Mutex<Exchange>,
    /// Taken off the list before the sockets are closed: fields are dropped in this order.
    _forks: [ForkGuard; 2],
    socket: OwnedFd,
    lifeline: OwnedFd,
}

#[derive(Debug)]
struct Exchange {
    buffer: Box<[u8]>,
}

impl Connection {
    /// Says hello.
    pub(super) fn new(socket: OwnedFd) -> Result<Self, Error> {
        let pid = std::process::id();
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let name = name.trim_end();
        let name = name[..name.floor_char_boundary(MAX_NAME)].to_owned();
        let mut exchange = Exchange {
            buffer: vec![0; MAX_MESSAGE].into_boxed_slice(),
        };
        send(
            &socket,
            &Request::Hello { pid, name }.encode(HELLO_SEQUENCE),
            &[],
        )?;
        let (reply, fds) = receive(&socket, HELLO_SEQUENCE, &mut exchange)?;
        let (Reply::Hello(hello), Some(lifeline)) = (reply, fds.into_iter().next()) else {
            return Err(Error::UnexpectedReply);
        };
        let guard = |fd: &OwnedFd| ForkGuard::new(fd).map_err(Error::system("watch for forks"));
        Ok(Self {
            pid,
            hello,
            gone: AtomicBool::new(false),
            sequence: AtomicU32::new(HELLO_SEQUENCE + 1),
            posted: Mutex::default(),
            exchange: Mutex::new(exchange),
            _forks: [guard(&socket)?, guard(&lifeline)?],
            socket,
            lifeline,
        })
    }

    pub(super) fn hello(&self) -> &Hello {
        &self.hello
    }

    pub(super) fn lifeline(&self) -> BorrowedFd<'_> {
        self.lifeline.as_fd()
    }

    /// Whether the service has gone: known from a failed call, or seen on the lifeline.
    pub(super) fn is_gone(&self) -> bool {
        if self.gone.load(Ordering::Acquire) {
            return true;
        }
        let mut fds = [PollFd::new(&self.lifeline, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let gone = matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0);
        if gone {
            self.gone.store(true, Ordering::Release);
        }
        gone
    }

    /// Ends the connection; the service sees it at once.
    pub(super) fn shut_down(&self) {
        self.gone.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Sends a request and waits for its answer; a refusal is an error.
    pub(super) fn request(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.check()?;
        let sequence = self.next_sequence();
        let message = request.encode(sequence);
        let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self
            .send_posted(true)
            .and_then(|()| send(&self.socket, &message, fds))
            .and_then(|()| receive(&self.socket, sequence, &mut exchange));
        drop(exchange);
        // Whoever posted meanwhile found the exchange taken and left the sending to us.
        self.try_send_posted();
        match result {
            Ok((Reply::Refused(refusal), _)) => Err(Error::Refused(refusal)),
            Ok(reply) => Ok(reply),
            Err(error) => {
                if error.is_gone() {
                    self.gone.store(true, Ordering::Release);
                }
                Err(error)
            }
        }
    }

    /// Sends a request that is carried out before every later one of this process, without waiting for anything.
    pub(super) fn post(&self, request: &Request) -> Result<(), Error> {
        self.check()?;
        let message = request.encode(NO_ANSWER);
        self.posted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(message);
        self.try_send_posted();
        Ok(())
    }

    fn next_sequence(&self) -> u32 {
        match self.sequence.fetch_add(1, Ordering::Relaxed) {
            NO_ANSWER => self.sequence.fetch_add(1, Ordering::Relaxed),
            sequence => sequence,
        }
    }

    fn check(&self) -> Result<(), Error> {
        if std::process::id() != self.pid {
            return Err(Error::Forked { opener: self.pid });
        }
        if self.gone.load(Ordering::Acquire) {
            return Err(Error::ServiceGone);
        }
        Ok(())
    }

    /// Sends what was posted unless a request is under way, whose thread does it then.
    fn try_send_posted(&self) {
        while !self
            .posted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
        {
            let Ok(exchange) = self.exchange.try_lock() else {
                return;
            };
            let sent = self.send_posted(false);
            drop(exchange);
            if sent.is_err() {
                return;
            }
        }
    }

    /// With the exchange held: sends what was posted, in order.
    fn send_posted(&self, wait: bool) -> Result<(), Error> {
        loop {
            let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(message) = posted.front() else {
                return Ok(());
            };
            match fdpass::send(&self.socket, message, &[], false) {
                Ok(_) => {
                    posted.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && wait => {
                    drop(posted);
                    wait_writable(&self.socket)?;
                }
                Err(error) => return Err(gone(error)),
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if std::process::id() == self.pid {
            self.try_send_posted();
        }
    }
}

/// Sends one message, waiting for room.
fn send(socket: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
    fdpass::send(socket, message, fds, true)
        .map(drop)
        .map_err(gone)
}

/// Receives the answer to a request.
fn receive(
    socket: &OwnedFd,
    sequence: u32,
    exchange: &mut Exchange,
) -> Result<(Reply, Vec<OwnedFd>), Error> {
    let mut spin_until = Some(Instant::now() + SPIN);
    loop {
        let message = match fdpass::receive(socket, &mut exchange.buffer, spin_until.is_none()) {
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // A wake-up costs more than the answer: look again for a moment before sleeping.
                if spin_until.is_some_and(|until| Instant::now() >= until) {
                    spin_until = None;
                }
                std::thread::yield_now();
                continue;
            }
            Err(error) => return Err(gone(error)),
        };
        if message.len == 0 {
            return Err(Error::ServiceGone);
        }
        let (header, reply) =
            Reply::decode(&exchange.buffer[..message.len]).map_err(Error::Protocol)?;
        if header.sequence == sequence {
            return Ok((reply, message.fds));
        }
        // A message that could not be read at all is refused with sequence number 0.
        if let (NO_ANSWER, Reply::Refused(_)) = (header.sequence, &reply) {
            return Ok((reply, message.fds));
        }
        return Err(Error::UnexpectedReply);
    }
}

fn wait_writable(socket: &OwnedFd) -> Result<(), Error> {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::errno("wait for the host service")(errno)),
    }
}

/// What a failed system call on the connection means.
fn gone(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::NotConnected => Error::ServiceGone,
        _ => Error::System {
            what: "talk to the host service",
            source: error,
        },
    }
}

const HELLO_SEQUENCE: u32 = 1;
/// About the cost of one wake-up.
const SPIN: Duration = Duration::from_micros(50);
