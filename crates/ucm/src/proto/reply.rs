//! What the service answers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::capture::{CaptureNews, CaptureState};
use super::changes::DeviceChange;
use super::codec::{Malformed, Reader, Writer};
use super::devices::DevicePage;
use super::statistics::StatisticsPage;
use super::{
    Header, MAX_BATCH, MAX_COUNTERS, MAX_GROUPS, MAX_MESSAGE, MAX_NAME, MAX_PORTS, MAX_RESPONSE,
    MAX_SENTENCE, VERSION, Version, end, frame,
};

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The request was not carried out. Has the same form in every version.
    Refused(Refusal),
    /// To [`Request::Hello`](super::Request::Hello).
    Hello(Hello),
    /// To [`Request::OpenChannel`](super::Request::OpenChannel); the channel's descriptor comes along.
    Opened {
        /// Names the channel in later requests.
        token: u64,
    },
    /// To [`Request::Write`](super::Request::Write), one entry per item.
    Written(Vec<WriteReply>),
    /// To [`Request::TakeSlot`](super::Request::TakeSlot); the slot's socket comes along.
    Slot {
        /// The slot's number: the upper 8 bits of the process's queue pair numbers.
        slot: u8,
        /// The secret by which the holders of slots know packets that they hand on to each other; 0 where there is none.
        forward: u64,
    },
    /// To [`Request::Devices`](super::Request::Devices).
    Devices(DevicePage),
    /// To [`Request::Ps`](super::Request::Ps).
    Ps(IdPage),
    /// Done, with nothing to say: to CloseChannel, ReturnSlot, Trace, Stop, InjectFaults, FailDevice and CaptureFailed; to WatchDevices and
    /// ShareStatistics, to which a descriptor comes along.
    Done,
    /// To [`Request::Statistics`](super::Request::Statistics).
    Statistics(StatisticsPage),
    /// Unasked, on the feed of [`Request::WatchDevices`](super::Request::WatchDevices): what has happened, oldest first.
    Changes(Vec<DeviceChange>),
    /// To [`Request::JoinCapture`](super::Request::JoinCapture) and to [`Request::Capture`](super::Request::Capture) of a client's own
    /// packets, and unasked on the feed when it changes.
    Capture(CaptureNews),
    /// To [`Request::Capture`](super::Request::Capture) of all packets and [`Request::EndCapture`](super::Request::EndCapture).
    CaptureState(CaptureState),
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people; at most [`MAX_SENTENCE`] bytes.
    pub sentence: String,
}

/// The kind of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RefusalCode(pub u16);

impl RefusalCode {
    /// The major versions differ.
    pub const VERSION: Self = Self(1);
    /// The service does not know the request.
    pub const UNKNOWN_REQUEST: Self = Self(2);
    /// The message contradicts itself.
    pub const MALFORMED: Self = Self(3);
    /// Something came before Hello.
    pub const HELLO_FIRST: Self = Self(4);
    /// The client belongs to another user.
    pub const OTHER_USER: Self = Self(5);
    /// No channel of this client has the token.
    pub const UNKNOWN_CHANNEL: Self = Self(6);
    /// A limit of the service is reached: slots, channels, clients.
    pub const LIMIT: Self = Self(7);
    /// The system refused: descriptors, memory, a socket.
    pub const SYSTEM: Self = Self(8);
    /// The service is ending.
    pub const STOPPING: Self = Self(9);
    /// A descriptor should have come along, or should not have.
    pub const DESCRIPTOR: Self = Self(10);
}

impl fmt::Debug for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::VERSION => "version",
            Self::UNKNOWN_REQUEST => "unknown request",
            Self::MALFORMED => "malformed",
            Self::HELLO_FIRST => "hello first",
            Self::OTHER_USER => "other user",
            Self::UNKNOWN_CHANNEL => "unknown channel",
            Self::LIMIT => "limit",
            Self::SYSTEM => "system",
            Self::STOPPING => "stopping",
            Self::DESCRIPTOR => "descriptor",
            Self(other) => return write!(f, "refusal {other}"),
        };
        f.write_str(name)
    }
}

impl Refusal {
    pub(super) fn malformed(error: Malformed) -> Self {
        Self {
            code: RefusalCode::MALFORMED,
            sentence: format!("the request is malformed: {error}"),
        }
    }
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The service's process.
    pub pid: u32,
    /// The service's user.
    pub uid: u32,
    /// This client's number.
    pub client: u32,
}

/// The answer to one request of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteReply {
    /// 0, or the positive errno that `write(2)` would have failed with.
    pub errno: i32,
    /// Which rule was broken: state, limit and value. Empty on success.
    pub sentence: String,
    /// The answer's structure; empty on failure.
    pub response: Vec<u8>,
}

/// Some of the identifiers, and with the first page the service's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdPage {
    /// The service; with the first page only.
    pub host: Option<HostInfo>,
    /// The identifiers, by number.
    pub ids: Vec<IdInfo>,
    /// Whether more follow the last one.
    pub more: bool,
}

/// The service's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostInfo {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its clients.
    pub clients: Vec<ClientInfo>,
    /// The slots that are taken.
    pub slots: Vec<u8>,
    /// The ports that are bound, at most [`MAX_PORTS`].
    pub ports: Vec<PortInfo>,
    /// How many ports are bound.
    pub port_count: u32,
    /// Its counters, at most [`MAX_COUNTERS`].
    pub counters: Vec<(String, u64)>,
}

/// One bound port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortInfo {
    /// The port space.
    pub ps: u16,
    /// The port.
    pub port: u16,
}

/// One client of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its process; 0: the program is in another process namespace, and has no number in the service's.
    pub pid: u32,
    /// The program's name.
    pub name: String,
    /// Its slot, once it has taken one.
    pub slot: Option<u8>,
    /// The process number that it gave itself, which is another one than `pid` in another process namespace; 0 before it
    /// is known, and from a service before version 1.1.
    pub own_pid: u32,
}

/// One identifier, as `oarlock ps` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdInfo {
    /// Its number.
    pub id: u32,
    /// The process whose channel it is on; 0: the program is in another process namespace.
    pub pid: u32,
    /// Its port space.
    pub ps: u16,
    /// Its state's name.
    pub state: String,
    /// The local address.
    pub local: Option<SocketAddr>,
    /// The remote address.
    pub remote: Option<SocketAddr>,
    /// The local queue pair, once it is known.
    pub qpn: Option<u32>,
    /// The channel's token.
    pub channel: u64,
    /// Events that wait in the channel.
    pub queued: u32,
    /// Events that were delivered and, as far as the client has said, not acknowledged.
    pub unacked: u32,
    /// The backlog of a listener; `None` for others, and from a service before version 1.1.
    pub backlog: Option<BacklogInfo>,
    /// The multicast groups that it has joined, at most [`MAX_GROUPS`]; none from a service before version 1.1.
    pub groups: Vec<IpAddr>,
}

/// How full a listener is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BacklogInfo {
    /// Connection requests that wait to be taken.
    pub used: u32,
    /// How many may wait.
    pub limit: u32,
    /// Connection requests that were dropped, or rejected for want of resources, because it was full.
    pub overflows: u64,
}

mod kind {
    pub(super) const REFUSED: u16 = 0x8000;
    pub(super) const HELLO: u16 = 0x8001;
    pub(super) const OPENED: u16 = 0x8002;
    pub(super) const DONE: u16 = 0x8003;
    pub(super) const WRITTEN: u16 = 0x8004;
    pub(super) const SLOT: u16 = 0x8005;
    pub(super) const DEVICES: u16 = 0x8006;
    pub(super) const PS: u16 = 0x8007;
    pub(super) const STATISTICS: u16 = 0x8008;
    pub(super) const CHANGES: u16 = 0x8009;
    pub(super) const CAPTURE: u16 = 0x800A;
    pub(super) const CAPTURE_STATE: u16 = 0x800B;
}

impl Reply {
    /// The message's bytes.
    #[must_use]
    pub fn encode(&self, sequence: u32) -> Vec<u8> {
        self.encode_as(VERSION, sequence)
    }

    pub(super) fn encode_as(&self, version: Version, sequence: u32) -> Vec<u8> {
        let mut w = Writer::with_capacity(64);
        let kind = self.write(&mut w);
        frame(version, kind, sequence, &w.finish())
    }

    fn write(&self, w: &mut Writer) -> u16 {
        match self {
            Self::Refused(refusal) => {
                w.u16(refusal.code.0);
                w.text(&refusal.sentence, MAX_SENTENCE);
                kind::REFUSED
            }
            Self::Hello(hello) => {
                w.u32(hello.pid);
                w.u32(hello.uid);
                w.u32(hello.client);
                kind::HELLO
            }
            Self::Opened { token } => {
                w.u64(*token);
                kind::OPENED
            }
            Self::Written(replies) => {
                w.count(replies.len());
                for reply in replies {
                    w.i32(reply.errno);
                    w.text(&reply.sentence, MAX_SENTENCE);
                    w.blob(&reply.response);
                }
                kind::WRITTEN
            }
            Self::Slot { slot, forward } => {
                w.u8(*slot);
                w.u64(*forward);
                kind::SLOT
            }
            Self::Devices(page) => {
                page.write(w);
                kind::DEVICES
            }
            Self::Ps(page) => {
                page.write(w);
                kind::PS
            }
            Self::Done => kind::DONE,
            Self::Statistics(page) => {
                page.write(w);
                kind::STATISTICS
            }
            Self::Changes(changes) => {
                w.count(changes.len());
                for change in changes {
                    change.write(w);
                }
                kind::CHANGES
            }
            Self::Capture(news) => {
                news.write(w);
                kind::CAPTURE
            }
            Self::CaptureState(state) => {
                state.write(w);
                kind::CAPTURE_STATE
            }
        }
    }

    /// Reads a whole message.
    ///
    /// A refusal is read whatever the sender's version; another reply only from the same major version.
    ///
    /// # Errors
    /// The bytes are no reply that this version knows.
    pub fn decode(message: &[u8]) -> Result<(Header, Self), Malformed> {
        let (header, body) = Header::read(message)?;
        let mut r = Reader::new(body);
        if header.kind == kind::REFUSED {
            let code = RefusalCode(r.u16("code")?);
            let sentence = r.text("sentence", MAX_SENTENCE)?;
            return Ok((header, Self::Refused(Refusal { code, sentence })));
        }
        if header.version.major != VERSION.major {
            let sentence = format!(
                "the service speaks version {} of the messages, this program speaks {VERSION}; use the same release for both",
                header.version
            );
            return Ok((
                header,
                Self::Refused(Refusal {
                    code: RefusalCode::VERSION,
                    sentence,
                }),
            ));
        }
        let reply = Self::read(&header, &mut r)?;
        end(&header, r)?;
        Ok((header, reply))
    }

    fn read(header: &Header, r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match header.kind {
            kind::HELLO => Self::Hello(Hello {
                pid: r.u32("process")?,
                uid: r.u32("user")?,
                client: r.u32("client")?,
            }),
            kind::OPENED => Self::Opened {
                token: r.u64("channel")?,
            },
            kind::WRITTEN => {
                let count = r.count("number of answers", MAX_BATCH, 12)?;
                let mut replies = Vec::with_capacity(count);
                for _ in 0..count {
                    replies.push(WriteReply {
                        errno: r.i32("errno")?,
                        sentence: r.text("sentence", MAX_SENTENCE)?,
                        response: r.blob("answer", MAX_RESPONSE)?,
                    });
                }
                Self::Written(replies)
            }
            kind::SLOT => Self::Slot {
                slot: r.u8("slot")?,
                forward: r.u64("token for forwarding")?,
            },
            kind::DEVICES => Self::Devices(DevicePage::read(
                r,
                header.version >= Version { major: 1, minor: 2 },
            )?),
            kind::PS => Self::Ps(IdPage::read(
                r,
                header.version >= Version { major: 1, minor: 1 },
            )?),
            kind::DONE => Self::Done,
            kind::STATISTICS => Self::Statistics(StatisticsPage::read(r)?),
            kind::CHANGES => {
                let count = r.count("number of changes", MAX_MESSAGE, DeviceChange::LEAST)?;
                let changes: Result<_, _> = (0..count).map(|_| DeviceChange::read(r)).collect();
                Self::Changes(changes?)
            }
            kind::CAPTURE => Self::Capture(CaptureNews::read(r)?),
            kind::CAPTURE_STATE => Self::CaptureState(CaptureState::read(r)?),
            kind => return Err(Malformed::UnknownReply { kind }),
        })
    }
}

/// Room in a message for what comes in pages; the rest is for the frame and counts.
pub(super) const PAGE_ROOM: usize = MAX_MESSAGE - 1024;
/// How much of it the counters may take.
const COUNTER_ROOM: usize = MAX_MESSAGE / 2;

/// The longest start of `entries` that fits in `room` bytes, and whether more follow.
pub(super) fn fitting<T>(
    mut room: usize,
    entries: impl IntoIterator<Item = T>,
    write: impl Fn(&T, &mut Writer),
) -> (Vec<T>, bool) {
    let mut taken = Vec::new();
    for entry in entries {
        let len = written_len(|w| write(&entry, w));
        if len > room {
            return (taken, true);
        }
        room -= len;
        taken.push(entry);
    }
    (taken, false)
}

fn written_len(write: impl FnOnce(&mut Writer)) -> usize {
    let mut w = Writer::with_capacity(128);
    write(&mut w);
    w.finish().len()
}

impl IdPage {
    /// As many of `ids`, which come in the order of their numbers, as fit.
    #[must_use]
    pub fn fill(host: Option<HostInfo>, ids: impl IntoIterator<Item = IdInfo>) -> Self {
        let taken = host.as_ref().map_or(0, |host| {
            written_len(|w| host.write(w)) + 4 * host.written_clients().len()
        });
        let (ids, more) = fitting(PAGE_ROOM - taken, ids, |id: &IdInfo, w: &mut Writer| {
            id.write(w);
            id.write_since_1_1(w);
        });
        Self { host, ids, more }
    }

    fn write(&self, w: &mut Writer) {
        w.option(self.host.as_ref(), |w, host| host.write(w));
        w.count(self.ids.len());
        for id in &self.ids {
            id.write(w);
        }
        w.bool(self.more);
        for id in &self.ids {
            id.write_since_1_1(w);
        }
        for client in self.host.iter().flat_map(HostInfo::written_clients) {
            w.u32(client.own_pid);
        }
    }

    fn read(r: &mut Reader<'_>, since_1_1: bool) -> Result<Self, Malformed> {
        let mut host = r.option("service", |r, _| HostInfo::read(r))?;
        let count = r.count("number of identifiers", MAX_MESSAGE, IdInfo::LEAST)?;
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            ids.push(IdInfo::read(r)?);
        }
        let more = r.bool("more")?;
        if since_1_1 {
            for id in &mut ids {
                id.read_since_1_1(r)?;
            }
            for client in host.iter_mut().flat_map(|host| &mut host.clients) {
                client.own_pid = r.u32("own process")?;
            }
        }
        Ok(Self { host, ids, more })
    }
}

impl HostInfo {
    /// No host has more slots than this, and a client without a slot is rare; the list is cut there.
    const MAX_CLIENTS: usize = 512;

    fn written_clients(&self) -> &[ClientInfo] {
        &self.clients[..self.clients.len().min(Self::MAX_CLIENTS)]
    }

    fn write(&self, w: &mut Writer) {
        w.u32(self.pid);
        w.u32(self.uid);
        w.blob(&self.slots[..self.slots.len().min(256)]);
        let ports = &self.ports[..self.ports.len().min(MAX_PORTS)];
        w.count(ports.len());
        for port in ports {
            w.u16(port.ps);
            w.u16(port.port);
        }
        w.u32(self.port_count);
        let clients = self.written_clients();
        w.count(clients.len());
        for client in clients {
            w.u32(client.pid);
            w.text(&client.name, MAX_NAME);
            w.option(client.slot, Writer::u8);
        }
        let (counters, _) = fitting(
            COUNTER_ROOM,
            self.counters.iter().take(MAX_COUNTERS),
            |(name, value): &&(String, u64), w: &mut Writer| {
                w.text(name, MAX_NAME);
                w.u64(*value);
            },
        );
        w.count(counters.len());
        for (name, value) in counters {
            w.text(name, MAX_NAME);
            w.u64(*value);
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (pid, uid) = (r.u32("process")?, r.u32("user")?);
        let slots = r.blob("slots", 256)?;
        let count = r.count("number of ports", MAX_PORTS, 4)?;
        let mut ports = Vec::with_capacity(count);
        for _ in 0..count {
            ports.push(PortInfo {
                ps: r.u16("port space")?,
                port: r.u16("port")?,
            });
        }
        let port_count = r.u32("number of ports")?;
        let count = r.count("number of clients", Self::MAX_CLIENTS, 4 + 4 + 1)?;
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(ClientInfo {
                pid: r.u32("process")?,
                name: r.text("program name", MAX_NAME)?,
                slot: r.option("slot", Reader::u8)?,
                own_pid: 0,
            });
        }
        let count = r.count("number of counters", MAX_COUNTERS, 4 + 8)?;
        let mut counters = Vec::with_capacity(count);
        for _ in 0..count {
            counters.push((r.text("counter", MAX_NAME)?, r.u64("counter")?));
        }
        Ok(Self {
            pid,
            uid,
            clients,
            slots,
            ports,
            port_count,
            counters,
        })
    }
}

impl IdInfo {
    const LEAST: usize = 4 + 4 + 2 + 4 + 1 + 1 + 1 + 8 + 4 + 4;

    fn write(&self, w: &mut Writer) {
        w.u32(self.id);
        w.u32(self.pid);
        w.u16(self.ps);
        w.text(&self.state, MAX_NAME);
        w.option(self.local, Writer::socket_addr);
        w.option(self.remote, Writer::socket_addr);
        w.option(self.qpn, Writer::u32);
        w.u64(self.channel);
        w.u32(self.queued);
        w.u32(self.unacked);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            id: r.u32("identifier")?,
            pid: r.u32("process")?,
            ps: r.u16("port space")?,
            state: r.text("state", MAX_NAME)?,
            local: r.option("local address", Reader::socket_addr)?,
            remote: r.option("remote address", Reader::socket_addr)?,
            qpn: r.option("queue pair", Reader::u32)?,
            channel: r.u64("channel")?,
            queued: r.u32("queued events")?,
            unacked: r.u32("unacknowledged events")?,
            backlog: None,
            groups: Vec::new(),
        })
    }

    /// What version 1.1 added. It follows the whole list, so that older programs read the list as they always did.
    fn write_since_1_1(&self, w: &mut Writer) {
        w.option(self.backlog, |w, backlog| {
            w.u32(backlog.used);
            w.u32(backlog.limit);
            w.u64(backlog.overflows);
        });
        let groups = &self.groups[..self.groups.len().min(MAX_GROUPS)];
        w.count(groups.len());
        for &group in groups {
            w.ip(group);
        }
    }

    fn read_since_1_1(&mut self, r: &mut Reader<'_>) -> Result<(), Malformed> {
        self.backlog = r.option("backlog", |r, field| {
            Ok(BacklogInfo {
                used: r.u32(field)?,
                limit: r.u32(field)?,
                overflows: r.u64(field)?,
            })
        })?;
        let count = r.count("number of groups", MAX_GROUPS, 5)?;
        self.groups.reserve(count);
        for _ in 0..count {
            self.groups.push(r.ip("group")?);
        }
        Ok(())
    }
}
