//! One connection to a service: any number of requests under way, answered in their order.
//!
//! Whoever waits for an answer reads the socket if nobody else does. A reader hands answers that are not its own to those
//! who wait for them; when it has its own, another takes over.

use crate::Error;
use crate::patience::Patience;
use oarlock_port::fdpass;
use oarlock_port::fork::{self, ForkGuard};
use oarlock_ucm::proto::{Hello, MAX_MESSAGE, MAX_NAME, Malformed, NO_ANSWER, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Connection {
    /// The process that made it; a forked child must not use it.
    pid: u32,
    generation: u32,
    hello: Hello,
    gone: AtomicBool,
    sequence: AtomicU32,
    /// Messages that want no answer and have not been sent yet; sent before anything else.
    posted: Mutex<VecDeque<Vec<u8>>>,
    /// Held while messages are put on the socket, so that requests wait for answers in the order of the socket.
    sending: Mutex<()>,
    inbox: Mutex<Inbox>,
    /// An answer has been handed over, or nobody reads any more.
    inbox_changed: Condvar,
    /// Taken off the list before the sockets are closed: fields are dropped in this order.
    _forks: [ForkGuard; 2],
    socket: OwnedFd,
    lifeline: OwnedFd,
}

/// Answers on their way.
#[derive(Debug)]
struct Inbox {
    /// The requests under way, oldest first: the next answer is the first one's.
    expected: VecDeque<u32>,
    /// Answers that another thread has read.
    arrived: Vec<(u32, Answer)>,
    /// What messages are read into; the reader has it.
    buffer: Option<Box<[u8]>>,
    /// Threads that sleep until the inbox changes; waking nobody is a system call, too.
    sleepers: usize,
}

type Answer = (Reply, Vec<OwnedFd>);

impl Connection {
    /// Says hello.
    pub(super) fn new(socket: OwnedFd) -> Result<Self, Error> {
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let name = name.trim_end();
        let name = name[..name.floor_char_boundary(MAX_NAME)].to_owned();
        let pid = std::process::id();
        let mut buffer = vec![0; MAX_MESSAGE].into_boxed_slice();
        let hello = Request::Hello { pid, name }.encode(HELLO_SEQUENCE);
        let answer = fdpass::send(&socket, &hello, &[], true)
            .map_err(gone)
            .and_then(|_| receive(&socket, &mut buffer))
            .or_else(|error| last_words(&socket, &mut buffer).ok_or(error));
        let (sequence, (reply, fds)) = answer?;
        let (HELLO_SEQUENCE, Reply::Hello(hello)) = (sequence, refused(reply)?) else {
            return Err(Error::UnexpectedReply);
        };
        let lifeline = fds.into_iter().next().ok_or(Error::NoDescriptor)?;
        let guard = |fd: &OwnedFd| ForkGuard::new(fd).map_err(Error::system("watch for forks"));
        let forks = [guard(&socket)?, guard(&lifeline)?];
        Ok(Self {
            pid,
            generation: fork::generation(),
            hello,
            gone: AtomicBool::new(false),
            sequence: AtomicU32::new(HELLO_SEQUENCE + 1),
            posted: Mutex::default(),
            sending: Mutex::default(),
            inbox: Mutex::new(Inbox {
                expected: VecDeque::new(),
                arrived: Vec::new(),
                buffer: Some(buffer),
                sleepers: 0,
            }),
            inbox_changed: Condvar::new(),
            _forks: forks,
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
        let result = self
            .send(sequence, &message, fds)
            .and_then(|()| self.await_answer(sequence));
        match result {
            Ok((reply, fds)) => Ok((refused(reply)?, fds)),
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
        if message.len() > MAX_MESSAGE {
            // The service would refuse it in an answer, which nobody here waits for.
            return Err(Error::Protocol(Malformed::TooLong {
                given: message.len(),
                max: MAX_MESSAGE,
            }));
        }
        lock(&self.posted).push_back(message);
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
        if self.is_child() {
            return Err(Error::Forked { opener: self.pid });
        }
        if self.gone.load(Ordering::Acquire) {
            return Err(Error::ServiceGone);
        }
        Ok(())
    }

    fn is_child(&self) -> bool {
        fork::generation() != self.generation
    }

    fn send(&self, sequence: u32, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let sending = lock(&self.sending);
        self.send_posted(true)?;
        // Before it is sent: the answer may come before the lock is given back.
        lock(&self.inbox).expected.push_back(sequence);
        let sent = fdpass::send(&self.socket, message, fds, true);
        if sent.is_err() {
            let mut inbox = lock(&self.inbox);
            inbox.expected.retain(|expected| *expected != sequence);
        }
        drop(sending);
        // Whoever posted meanwhile found the socket taken and left the sending to us.
        self.try_send_posted();
        sent.map(drop).map_err(gone)
    }

    /// Waits for the answer to a request that has been sent.
    fn await_answer(&self, sequence: u32) -> Result<Answer, Error> {
        let mut patience = Patience::new();
        let mut inbox = lock(&self.inbox);
        loop {
            if let Some(place) = inbox.arrived.iter().position(|(of, _)| *of == sequence) {
                return Ok(inbox.arrived.swap_remove(place).1);
            }
            if !inbox.expected.contains(&sequence) {
                // The connection has failed under a reader, which then forgets all requests.
                return Err(Error::ServiceGone);
            }
            if let Some(buffer) = inbox.buffer.take() {
                drop(inbox);
                return self.read_until(sequence, buffer);
            }
            match &mut patience {
                Some(waiting) => {
                    drop(inbox);
                    if !waiting.look_again() {
                        patience = None;
                    }
                    inbox = lock(&self.inbox);
                }
                None => {
                    inbox.sleepers += 1;
                    inbox = self
                        .inbox_changed
                        .wait(inbox)
                        .unwrap_or_else(PoisonError::into_inner);
                    inbox.sleepers -= 1;
                }
            }
        }
    }

    /// Reads answers up to the one wanted.
    fn read_until(&self, wanted: u32, mut buffer: Box<[u8]>) -> Result<Answer, Error> {
        loop {
            let received = receive(&self.socket, &mut buffer);
            let mut inbox = lock(&self.inbox);
            let result = received.and_then(|(sequence, answer)| {
                let first = inbox.expected.pop_front();
                // A message that could not be read at all is refused with sequence number 0.
                let is_refusal = matches!((sequence, &answer.0), (NO_ANSWER, Reply::Refused(_)));
                match first {
                    Some(first) if first == sequence || is_refusal => Ok((first, answer)),
                    _ => Err(Error::UnexpectedReply),
                }
            });
            let done = match result {
                Ok((sequence, answer)) if sequence == wanted => Ok(answer),
                Ok(other) => {
                    inbox.arrived.push(other);
                    self.wake_sleepers(inbox);
                    continue;
                }
                Err(error) => {
                    // Nothing that comes after this can be understood. Later calls only know that the service is out of reach.
                    if !error.is_gone() {
                        tracing::error!(%error, "the connection to the host service has failed");
                    }
                    inbox.expected.clear();
                    self.gone.store(true, Ordering::Release);
                    Err(error)
                }
            };
            inbox.buffer = Some(buffer);
            self.wake_sleepers(inbox);
            return done;
        }
    }

    fn wake_sleepers(&self, inbox: MutexGuard<'_, Inbox>) {
        let sleepers = inbox.sleepers;
        drop(inbox);
        if sleepers > 0 {
            self.inbox_changed.notify_all();
        }
    }

    /// Sends what was posted unless another thread is sending, which does it then.
    fn try_send_posted(&self) {
        while !lock(&self.posted).is_empty() {
            let Ok(sending) = self.sending.try_lock() else {
                return;
            };
            let sent = self.send_posted(false);
            drop(sending);
            if sent.is_err() {
                return;
            }
        }
    }

    /// With `sending` held: sends what was posted, in order.
    fn send_posted(&self, wait: bool) -> Result<(), Error> {
        loop {
            let mut posted = lock(&self.posted);
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
        if !self.is_child() {
            self.try_send_posted();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Queues whose every change is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(reply: Reply) -> Result<Reply, Error> {
    match reply {
        Reply::Refused(refusal) => Err(Error::Refused(refusal)),
        reply => Ok(reply),
    }
}

/// Receives the next answer, with the number of its request.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<(u32, Answer), Error> {
    let mut patience = Patience::new();
    loop {
        let message = match fdpass::receive(socket, buffer, patience.is_none()) {
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if patience
                    .as_mut()
                    .is_none_or(|waiting| !waiting.look_again())
                {
                    patience = None;
                }
                continue;
            }
            Err(error) => return Err(gone(error)),
        };
        if let Some(waiting) = patience {
            waiting.paid_off();
        }
        if message.len == 0 {
            return Err(Error::ServiceGone);
        }
        let (header, reply) = Reply::decode(&buffer[..message.len]).map_err(Error::Protocol)?;
        return Ok((header.sequence, (reply, message.fds)));
    }
}

/// What a service that turned us away said before it closed. That it did not read our hello is an error first, which the
/// socket tells once.
fn last_words(socket: &OwnedFd, buffer: &mut [u8]) -> Option<(u32, Answer)> {
    (0..2).find_map(|_| {
        let message = fdpass::receive(socket, buffer, false).ok()?;
        let (header, reply) = Reply::decode(&buffer[..message.len]).ok()?;
        matches!(reply, Reply::Refused(_)).then_some((header.sequence, (reply, message.fds)))
    })
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
