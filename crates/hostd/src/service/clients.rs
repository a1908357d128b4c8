//! Programs that are connected, and what each of them holds.

use super::event_loop::Source;
use crate::{Error, sys};
use oarlock_port::fdpass::{self, Peer};
use oarlock_port::fork::ForkGuard;
use oarlock_port::pcap::Capture;
use oarlock_ucm::proto::{Refusal, RefusalCode, Reply};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One connected program.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) peer: Peer,
    pub(super) name: String,
    /// Its process as it says itself, in its own pid namespace.
    pub(super) own_pid: u32,
    /// Whether it has said hello.
    pub(super) greeted: bool,
    pub(super) slots: Vec<u8>,
    pub(super) captures: Vec<Capture>,
    /// Becomes readable when the process ends, even if a forked child keeps the connection open.
    pub(super) process: Option<OwnedFd>,
    /// Whether epoll watches for room instead of requests.
    pub(super) waits_for_room: bool,
    /// Answers that found no room. While there are any, no further request is read.
    unsent: VecDeque<Unsent>,
    /// What answers were to bring that could not be sent with their descriptors.
    undelivered: Vec<Grant>,
    /// Our end of a socket pair on which nothing is ever sent: the program's end is readable once we are gone.
    lifeline: Option<(ForkGuard, OwnedFd)>,
    /// Taken off the list before the socket is closed: fields are dropped in this order.
    _fork: ForkGuard,
    socket: OwnedFd,
}

/// An answer on its way.
#[derive(Debug)]
struct Unsent {
    sequence: u32,
    message: Vec<u8>,
    fds: Vec<OwnedFd>,
    grant: Option<Grant>,
}

/// What a program has by an answer with a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grant {
    Hello,
    Channel(u64),
    Slot(u8),
}

impl Grant {
    fn of(reply: &Reply) -> Option<Self> {
        match reply {
            Reply::Hello(_) => Some(Self::Hello),
            Reply::Opened { token } => Some(Self::Channel(*token)),
            Reply::Slot { slot, .. } => Some(Self::Slot(*slot)),
            _ => None,
        }
    }
}

impl Client {
    /// A program that has just connected. Watches its process where that is another than ours.
    pub(super) fn new(socket: OwnedFd) -> Result<Self, (OwnedFd, Error)> {
        match Self::look_at(&socket) {
            Ok((peer, process, fork)) => Ok(Self::with(socket, peer, process, fork)),
            Err(error) => Err((socket, error)),
        }
    }

    fn look_at(socket: &OwnedFd) -> Result<(Peer, Option<OwnedFd>, ForkGuard), Error> {
        let peer = fdpass::peer(socket).map_err(Error::system("learn who has connected"))?;
        let process = match peer.pid {
            pid if pid == std::process::id() => None,
            pid => watch_process(socket, pid)?,
        };
        let fork = ForkGuard::new(socket).map_err(Error::system("watch for forks"))?;
        Ok((peer, process, fork))
    }

    fn with(socket: OwnedFd, peer: Peer, process: Option<OwnedFd>, fork: ForkGuard) -> Self {
        Self {
            peer,
            name: String::new(),
            own_pid: 0,
            greeted: false,
            slots: Vec::new(),
            captures: Vec::new(),
            process,
            waits_for_room: false,
            unsent: VecDeque::new(),
            undelivered: Vec::new(),
            lifeline: None,
            _fork: fork,
            socket,
        }
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Makes the lifeline, and gives the program's end.
    pub(super) fn make_lifeline(&mut self) -> Result<OwnedFd, Error> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(Error::errno("make a socket pair"))?;
        let fork = ForkGuard::new(&ours).map_err(Error::system("watch for forks"))?;
        self.lifeline = Some((fork, ours));
        Ok(theirs)
    }

    /// Receives one message without waiting.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<fdpass::Message> {
        fdpass::receive(&self.socket, buffer, false)
    }

    /// Sends an answer, now or when there is room. An error means that the program has gone.
    pub(super) fn send(
        &mut self,
        sequence: u32,
        reply: &Reply,
        fds: Vec<OwnedFd>,
    ) -> io::Result<()> {
        self.unsent.push_back(Unsent {
            sequence,
            message: reply.encode(sequence),
            fds,
            grant: Grant::of(reply),
        });
        self.send_unsent()
    }

    /// Sends what found no room earlier.
    pub(super) fn send_unsent(&mut self) -> io::Result<()> {
        while let Some(unsent) = self.unsent.front_mut() {
            let fds: Vec<BorrowedFd<'_>> = unsent.fds.iter().map(AsFd::as_fd).collect();
            match fdpass::send(&self.socket, &unsent.message, &fds, false) {
                Ok(_) => {}
                Err(error) if is_shortage(&error) => return Ok(()),
                Err(error) if is_too_many_on_their_way(&error) && !fds.is_empty() => {
                    unsent.fds.clear();
                    unsent.message =
                        Reply::Refused(too_many_on_their_way()).encode(unsent.sequence);
                    self.undelivered.extend(unsent.grant.take());
                    continue;
                }
                Err(error) => return Err(error),
            }
            self.unsent.pop_front();
        }
        Ok(())
    }

    /// Takes what answers were to bring and could not; the program has been told that it did not get it.
    pub(super) fn take_undelivered(&mut self) -> Vec<Grant> {
        let undelivered = std::mem::take(&mut self.undelivered);
        if undelivered.contains(&Grant::Hello) {
            self.greeted = false;
            self.lifeline = None;
        }
        undelivered
    }

    /// Whether answers wait for room.
    pub(super) fn is_backed_up(&self) -> bool {
        !self.unsent.is_empty()
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Room or memory is short at the moment, which is no fault of the program's.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// The system bounds the descriptors that lie unread in sockets, for all programs of a user together.
fn is_too_many_on_their_way(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ETOOMANYREFS)
}

fn too_many_on_their_way() -> Refusal {
    Refusal {
        code: RefusalCode::SYSTEM,
        sentence: "the host service cannot pass a descriptor, because too many are on their way between programs of this user: end programs that do not read theirs, or start the service with higher limits (`ulimit -n`)".to_owned(),
    }
}

/// A descriptor that tells when the program's process ends; none where the system has no such thing, or hides the process.
fn watch_process(socket: &OwnedFd, pid: u32) -> Result<Option<OwnedFd>, Error> {
    match sys::peer_pidfd(socket) {
        Ok(fd) => Ok(Some(fd)),
        Err(error) if is_out_of_descriptors(&error) => Err(Error::System {
            what: "watch the program's process",
            source: error,
        }),
        // Kernels before 6.5 cannot tell the descriptor of the very process, but of its number.
        Err(_) => Ok(open_process(pid)),
    }
}

/// Whether an error means that this process, or the system, has no descriptor left.
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// What epoll calls a client's two descriptors.
pub(super) fn sources(client: u32) -> (Source, Source) {
    (Source::Client(client), Source::Process(client))
}
