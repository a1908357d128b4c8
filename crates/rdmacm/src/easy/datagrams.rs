//! Datagrams, the short way, blocking.

use super::QueueSizes;
use super::options::RESOLVE_TIMEOUT;
use crate::channel::EventChannel;
use crate::datagram::UdParam;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::identifier::Identifier;
use crate::multicast::{JoinKind, Multicast};
use crate::param::{ConnParam, PaddedData};
use oarlock_hostd::Host;
use oarlock_verbs::{
    AddressHandle, AttrMask, Buffer, Completion, CompletionChannel, CompletionQueue, Context,
    GRH_LEN, Notify, ProtectionDomain, QpAttr, QpInitAttr, QpState, QpType, QueuePair, SendRequest,
};
use oarlock_wire::{PortSpace, QKey, Qpn, RejReason};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Answered requests that are kept, so that a peer that missed the answer gets it again.
const KEPT: usize = 128;

/// One queue pair that exchanges datagrams with whoever knows its address: other sockets like this, any program that uses
/// port space UDP, and multicast groups.
///
/// Messages are one packet, at most [`max_message`](Self::max_message) bytes; one may be lost, and nobody is told. Peers
/// that look for this address are answered while [`receive`](Self::receive) or [`resolve`](Self::resolve) waits.
///
/// ```
/// # use oarlock_rdmacm::{DatagramSocket, Host};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let host = Host::private()?;
/// let server = DatagramSocket::bind(&host, "127.0.0.1:0".parse()?)?;
/// let address = server.local_addr();
/// let serving = std::thread::spawn(move || {
///     let question = server.receive().expect("a question comes");
///     assert_eq!(question.message, b"who is there?");
///     server.send_to(&question.from, b"me").expect("the answer is sent");
/// });
///
/// let client = DatagramSocket::bind(&host, "127.0.0.1:0".parse()?)?;
/// let peer = client.resolve(address)?;
/// client.send_to(&peer, b"who is there?")?;
/// assert_eq!(client.receive()?.message, b"me");
/// serving.join().expect("the server does not panic");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DatagramSocket {
    host: Host,
    /// Listens; the requests of peers come out of `requests`.
    id: Identifier,
    requests: EventChannel,
    local: SocketAddr,
    queue_pair: QueuePair,
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    arrivals: CompletionChannel,
    sends_left: Mutex<u32>,
    received: Mutex<VecDeque<Completion>>,
    turn: Turn,
    answered: Mutex<VecDeque<Identifier>>,
    greeting: Vec<u8>,
    deadline: Option<Duration>,
}

/// Where datagrams go: a peer's queue pair, or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Destination {
    /// The way there.
    pub handle: AddressHandle,
    /// The queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key to send with.
    pub qkey: QKey,
}

/// A datagram that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagram {
    /// What was sent.
    pub message: Vec<u8>,
    /// The way back.
    pub from: Destination,
    /// What it was sent to: an address of this host, or a group.
    pub to: IpAddr,
}

impl DatagramSocket {
    /// Makes a queue pair and listens for peers on an address; port 0 takes a free one.
    ///
    /// It uses the device that has the address; with a wildcard address, the first one.
    ///
    /// # Errors
    /// As [`Identifier::bind_addr`] and [`Identifier::listen`]; [`Error::Verbs`]; [`Error::NoDevice`]: the host has none.
    ///
    /// # Blocking
    /// A few round trips to the host service.
    #[doc(alias = "rdma_create_ep")]
    pub fn bind(host: &Host, address: SocketAddr) -> Result<Self> {
        Self::bind_with(host, address, QueueSizes::default())
    }

    /// As [`bind`](Self::bind), with queues of other depths: datagrams that find no receive posted are lost.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    ///
    /// # Blocking
    /// As [`bind`](Self::bind).
    pub fn bind_with(host: &Host, address: SocketAddr, sizes: QueueSizes) -> Result<Self> {
        const CALL: &str = "DatagramSocket::bind";
        let verbs = |source| Error::Verbs { call: CALL, source };
        let requests = EventChannel::new(host)?;
        let id = Identifier::new(&requests, PortSpace::UDP)?;
        id.bind_addr(address)?;
        id.listen(0)?;
        let local = id.local_addr()?.ok_or(Error::NoDevice { call: CALL })?;
        let device = device_of(host, local.ip(), CALL)?;
        let pd = device.default_pd();
        let arrivals = CompletionChannel::new(&device).map_err(verbs)?;
        let (sends, receives) = (sizes.send.max(1), sizes.receive.max(1));
        let send_cq = CompletionQueue::new(&device, sends).map_err(verbs)?;
        let recv_cq = CompletionQueue::with_channel(&device, receives, &arrivals).map_err(verbs)?;
        let init = QpInitAttr {
            qp_type: QpType::Ud,
            max_send_wr: sends,
            max_recv_wr: receives,
            ..QpInitAttr::default()
        };
        let queue_pair = QueuePair::create(&pd, &send_cq, &recv_cq, init).map_err(verbs)?;
        make_ready(&queue_pair, device.device().port_num).map_err(verbs)?;
        let socket = Self {
            host: host.clone(),
            id,
            requests,
            local,
            queue_pair,
            pd,
            send_cq,
            recv_cq,
            arrivals,
            sends_left: Mutex::new(sends),
            received: Mutex::default(),
            turn: Turn::default(),
            answered: Mutex::default(),
            greeting: Vec::new(),
            deadline: None,
        };
        for _ in 0..receives {
            let buffer = Buffer::new(&socket.pd, GRH_LEN + socket.max_message()).map_err(verbs)?;
            socket
                .queue_pair
                .post_recv(0, buffer)
                .map_err(|refused| Error::Verbs {
                    call: CALL,
                    source: refused.into(),
                })?;
        }
        Ok(socket)
    }

    /// Private data for peers that resolve this address, at most
    /// [`MAX_DATAGRAM_REPLY_PRIVATE_DATA`](crate::MAX_DATAGRAM_REPLY_PRIVATE_DATA) bytes.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`].
    pub fn greeting(mut self, data: impl Into<Vec<u8>>) -> Result<Self> {
        self.greeting = data.into();
        let (given, max) = (self.greeting.len(), crate::MAX_DATAGRAM_REPLY_PRIVATE_DATA);
        if given > max {
            let call = "DatagramSocket::greeting";
            return Err(Error::PrivateDataTooLong { call, given, max });
        }
        Ok(self)
    }

    /// The longest that one `resolve`, `join` or `receive` may wait.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The address with its port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The identifier that listens for peers.
    #[must_use]
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// The queue pair; [`receive`](Self::receive) owns its completions.
    #[must_use]
    pub fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// The longest message: the payload of one packet.
    #[must_use]
    pub fn max_message(&self) -> usize {
        let mtu = self.pd.context().device().max_path_mtu();
        mtu.bytes().map_or(0, usize::from)
    }

    /// Finds the queue pair of the socket, or service of port space UDP, that listens on an address.
    ///
    /// # Errors
    /// [`Error::AddressResolution`], [`Error::RouteResolution`], [`Error::ServiceRefused`], [`Error::Unreachable`],
    /// [`Error::QKeyMismatch`], [`Error::TimedOut`] at the deadline, [`Error::ServiceGone`].
    ///
    /// # Blocking
    /// Until the peer has answered; peers that look for this socket are answered meanwhile.
    #[doc(alias = "rdma_connect")]
    pub fn resolve(&self, destination: SocketAddr) -> Result<Destination> {
        self.resolve_with(destination, &[]).map(|(found, _)| found)
    }

    /// As [`resolve`](Self::resolve), and exchanges private data: what is sent along, and what the peer's answer carries.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Error::PrivateDataTooLong`]: more than
    /// [`MAX_DATAGRAM_CONNECT_PRIVATE_DATA`](crate::MAX_DATAGRAM_CONNECT_PRIVATE_DATA) bytes.
    ///
    /// # Blocking
    /// As [`resolve`](Self::resolve).
    pub fn resolve_with(
        &self,
        destination: SocketAddr,
        private_data: &[u8],
    ) -> Result<(Destination, Option<PaddedData>)> {
        let until = self.until();
        let (channel, id) = self.resolved(destination, until)?;
        id.resolve_route(RESOLVE_TIMEOUT)?;
        self.outcome(&channel, until, "route resolution", destination, |event| {
            matches!(event, Event::RouteResolved { .. }).then_some(())
        })?;
        id.ask_for_peer("resolve", private_data)?;
        let awaited = "the answer of the datagram service";
        let param = self.outcome(&channel, until, awaited, destination, |event| match event {
            Event::Established { ud, .. } => *ud,
            _ => None,
        })?;
        Ok((self.destination(&param)?, id.peer_private_data().cloned()))
    }

    /// Joins a multicast group: what is sent to it arrives here as long as the [`Multicast`] lives, and
    /// [`Destination`] is where to send to all.
    ///
    /// # Errors
    /// [`Error::JoinFailed`]; as [`Identifier::join_multicast`].
    ///
    /// # Blocking
    /// Until the host has joined.
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(&self, group: SocketAddr, kind: JoinKind) -> Result<(Multicast, Destination)> {
        let until = self.until();
        let (channel, id) = self.resolved(group, until)?;
        let multicast = id.join_multicast(group, kind)?;
        let param = self.outcome(
            &channel,
            until,
            "the multicast group",
            group,
            |event| match event {
                Event::MulticastJoin { ud, .. } => Some(*ud),
                _ => None,
            },
        )?;
        if kind == JoinKind::FullMember {
            self.queue_pair
                .attach_multicast(param.address.remote)
                .map_err(|source| Error::Verbs {
                    call: "join",
                    source,
                })?;
        }
        Ok((multicast, self.destination(&param)?))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`]; [`Error::Verbs`].
    ///
    /// # Blocking
    /// While as many messages are on their way out as the send queue holds.
    #[doc(alias = "rdma_post_ud_send")]
    pub fn send_to(&self, destination: &Destination, message: &[u8]) -> Result<()> {
        const CALL: &str = "send_to";
        let verbs = |source| Error::Verbs { call: CALL, source };
        let max = self.max_message();
        if message.len() > max {
            return Err(Error::MessageTooLong {
                given: message.len(),
                max,
            });
        }
        // An empty one needs no memory.
        let request = if message.is_empty() {
            SendRequest::inline(0, message)
        } else {
            let mut buffer = Buffer::new(&self.pd, message.len()).map_err(verbs)?;
            buffer.copy_from_slice(message);
            SendRequest::new(0, buffer)
        };
        let mut left = lock(&self.sends_left);
        let mut sent = Vec::new();
        self.send_cq.poll(&mut sent).map_err(verbs)?;
        while *left == 0 && sent.is_empty() {
            self.send_cq.wait(&mut sent, None).map_err(verbs)?;
        }
        *left += u32::try_from(sent.len()).expect("no queue is so long");
        self.queue_pair
            .post_send(request.to(&destination.handle, destination.qpn, destination.qkey))
            .map_err(|refused| verbs(refused.into()))?;
        *left -= 1;
        Ok(())
    }

    /// The next datagram.
    ///
    /// # Errors
    /// [`Error::TimedOut`] at the deadline; [`Error::Verbs`]: the queue pair has failed; [`Error::ServiceGone`].
    ///
    /// # Blocking
    /// Until one arrives; peers that look for this socket are answered meanwhile. Of several threads one waits for
    /// datagrams, the others for their turn.
    #[doc(alias = "rdma_get_recv_comp")]
    pub fn receive(&self) -> Result<Datagram> {
        const CALL: &str = "receive";
        let verbs = |source| Error::Verbs { call: CALL, source };
        let until = self.until();
        let _turn = self.turn.take(until).ok_or(Error::TimedOut {
            peer: None,
            awaited: "a datagram",
        })?;
        loop {
            self.answer()?;
            while let Some(arrived) = self.next_arrival().map_err(verbs)? {
                if let Some(datagram) = self.take(arrived)? {
                    return Ok(datagram);
                }
            }
            self.recv_cq.req_notify(Notify::Any).map_err(verbs)?;
            if let Some(arrived) = self.next_arrival().map_err(verbs)? {
                match self.take(arrived)? {
                    Some(datagram) => return Ok(datagram),
                    None => continue,
                }
            }
            self.wait(self.arrivals.as_fd(), until, "a datagram", None)?;
            while self.arrivals.try_next_event().is_some() {}
        }
    }

    fn until(&self) -> Option<Instant> {
        Instant::now().checked_add(self.deadline?)
    }

    fn destination(&self, param: &UdParam) -> Result<Destination> {
        Ok(Destination {
            handle: param.address_handle(&self.pd)?,
            qpn: param.qpn,
            qkey: param.qkey,
        })
    }

    /// An identifier with the way to an address, and the channel that it alone reports to.
    fn resolved(
        &self,
        destination: SocketAddr,
        until: Option<Instant>,
    ) -> Result<(EventChannel, Identifier)> {
        let channel = EventChannel::new(&self.host)?;
        let id = Identifier::new(&channel, PortSpace::UDP)?;
        let source = self.local.ip();
        let fits = !source.is_unspecified() && source.is_ipv4() == destination.is_ipv4();
        let source = fits.then(|| SocketAddr::new(source, 0));
        id.resolve_addr(source, destination, RESOLVE_TIMEOUT)?;
        self.outcome(
            &channel,
            until,
            "address resolution",
            destination,
            |event| matches!(event, Event::AddressResolved { .. }).then_some(()),
        )?;
        Ok((channel, id))
    }

    /// What an event of the channel says, answering peers meanwhile.
    fn outcome<T>(
        &self,
        channel: &EventChannel,
        until: Option<Instant>,
        awaited: &'static str,
        peer: SocketAddr,
        answer: impl Fn(&Event) -> Option<T>,
    ) -> Result<T> {
        loop {
            self.answer()?;
            while let Some(event) = channel.try_event()? {
                if let Some(found) = answer(&event) {
                    return Ok(found);
                }
                if let Some(error) = event.error() {
                    return Err(error);
                }
            }
            self.wait(channel.as_fd(), until, awaited, Some(peer))?;
        }
    }

    /// Answers a peer that looks for this socket. One at a time: however many look, what else has come is looked at, too.
    fn answer(&self) -> Result<()> {
        match self.requests.try_event()? {
            Some(Event::ConnectRequest { id, .. }) => self.answer_one(id),
            Some(Event::DeviceRemoval { .. }) => Err(Error::DeviceRemoved { call: "receive" }),
            _ => Ok(()),
        }
    }

    fn answer_one(&self, child: Identifier) -> Result<()> {
        let device = match child.device() {
            Ok(device) => device,
            Err(error) if error.is_device_fatal() => return Err(error),
            Err(error) => {
                // The request came by a device that has gone since. That need not be the one of this socket.
                tracing::debug!(%error, "a request that cannot be answered was dropped");
                return Ok(());
            }
        };
        let outcome = if device == *self.pd.context() {
            let named = ConnParam::default()
                .private_data(self.greeting.clone())
                .external_queue_pair(self.queue_pair.qpn(), false);
            child.accept(&named)
        } else {
            // The queue pair is of another device, from which this peer is not reached.
            child.reject(RejReason::CONSUMER_DEFINED, &[])
        };
        match outcome {
            // The peer has given up.
            Ok(()) | Err(Error::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut answered = lock(&self.answered);
        if answered.len() == KEPT {
            answered.pop_front();
        }
        answered.push_back(child);
        Ok(())
    }

    fn next_arrival(&self) -> Result<Option<Completion>, oarlock_verbs::Error> {
        let mut received = lock(&self.received);
        if received.is_empty() {
            let mut arrived = Vec::new();
            self.recv_cq.poll(&mut arrived)?;
            received.extend(arrived);
        }
        Ok(received.pop_front())
    }

    /// A datagram, and its buffer back to where it came from. `None`: it came from nowhere that could be answered, as a
    /// stranger may have it.
    fn take(&self, arrived: Completion) -> Result<Option<Datagram>> {
        const CALL: &str = "receive";
        let verbs = |source| Error::Verbs { call: CALL, source };
        let arrived = arrived.ok().map_err(|failed| Error::ReceiveFailed {
            status: failed.status,
        })?;
        let datagram = match (AddressHandle::reply_to(&self.pd, &arrived), arrived.grh()) {
            (Ok(handle), Some(header)) => Some(Datagram {
                message: arrived.message().unwrap_or_default().to_vec(),
                from: Destination {
                    handle,
                    qpn: arrived.src_qp,
                    qkey: QKey::RDMA_UDP,
                },
                to: header.destination,
            }),
            (Err(error), _) => {
                tracing::debug!(%error, "a datagram that cannot be answered was dropped");
                None
            }
            (Ok(_), None) => None,
        };
        for buffer in arrived.buffers {
            self.queue_pair
                .post_recv(0, buffer)
                .map_err(|refused| verbs(refused.into()))?;
        }
        Ok(datagram)
    }

    /// Waits until the descriptor or that of the requests is readable.
    fn wait(
        &self,
        fd: BorrowedFd<'_>,
        until: Option<Instant>,
        awaited: &'static str,
        peer: Option<SocketAddr>,
    ) -> Result<()> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(Error::TimedOut { peer, awaited });
        }
        let limit = left.map(|left| {
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: i32::MAX.into(),
                tv_nsec: 0,
            })
        });
        let mut fds = [
            PollFd::from_borrowed_fd(fd, PollFlags::IN),
            PollFd::new(&self.requests, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::Channel(errno.into())),
        }
    }
}

/// Who waits for datagrams.
#[derive(Debug, Default)]
struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
}

/// Gives the turn back.
struct Taken<'a>(&'a Turn);

impl Turn {
    /// Waits for the turn; `None` at the deadline.
    fn take(&self, until: Option<Instant>) -> Option<Taken<'_>> {
        let mut taken = lock(&self.taken);
        while *taken {
            taken = match until {
                None => self
                    .free
                    .wait(taken)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.checked_duration_since(Instant::now())?;
                    self.free
                        .wait_timeout(taken, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        *taken = true;
        Some(Taken(self))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) = false;
        self.0.free.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Push, pop and counting leave the values whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device that has an address, else the first one.
fn device_of(host: &Host, address: IpAddr, call: &'static str) -> Result<Context> {
    let verbs = |source| Error::Verbs { call, source };
    let devices = Context::devices(host).map_err(verbs)?;
    let has = |gid: &oarlock_wire::Gid| gid.to_ip() == address;
    let found = devices
        .iter()
        .find(|device| device.gids.iter().any(has))
        .or(devices.first())
        .ok_or(Error::NoDevice { call })?;
    Context::open(host, found.index).map_err(verbs)
}

/// Brings a queue pair for datagrams to RTS, with the Q_Key of port space UDP.
fn make_ready(queue_pair: &QueuePair, port_num: u8) -> Result<(), oarlock_verbs::Error> {
    let steps = [
        (
            QpState::Init,
            AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
        ),
        (QpState::Rtr, AttrMask::empty()),
        (QpState::Rts, AttrMask::SQ_PSN),
    ];
    for (state, mask) in steps {
        queue_pair.modify(&QpAttr {
            mask: mask | AttrMask::STATE,
            state,
            port_num,
            qkey: QKey::RDMA_UDP,
            ..QpAttr::default()
        })?;
    }
    Ok(())
}
