//! What a process asks for.

use std::net::IpAddr;

use super::capture::CaptureScope;
use super::codec::{Malformed, Reader, Writer};
use super::{
    Header, MAX_BATCH, MAX_INLINE, MAX_NAME, MAX_REQUEST, MAX_RULES_TEXT, Refusal, RefusalCode,
    VERSION, Version, end, frame,
};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// The first message of every client; anything else before it is refused.
    Hello {
        /// The client's process, as it sees itself; the service trusts the socket's credentials instead.
        pid: u32,
        /// The program's name, for `oarlock ps`; at most [`MAX_NAME`] bytes.
        name: String,
    },
    /// Opens an event channel. [`Reply::Opened`](super::Reply::Opened) brings its descriptor along.
    OpenChannel,
    /// Closes an event channel and destroys what is on it.
    CloseChannel {
        /// The channel.
        token: u64,
    },
    /// Requests of the rdma_ucm ABI.
    Write(WriteBatch),
    /// Takes a slot for queue pairs. [`Reply::Slot`](super::Reply::Slot) brings its socket along.
    TakeSlot,
    /// Gives a slot back, once its socket is closed.
    ReturnSlot {
        /// The slot.
        slot: u8,
    },
    /// Lists devices from an index on.
    Devices {
        /// The first wanted.
        first: u32,
    },
    /// Lists identifiers, and the service's state.
    Ps {
        /// Only identifiers with higher numbers; `None` from the start.
        after: Option<u32>,
    },
    /// Writes a copy of every datagram of the service to the file whose descriptor comes along.
    Trace,
    /// Asks the service to end.
    Stop,
    /// Asks for the feed of [`DeviceChange`](super::DeviceChange)s: a descriptor comes with [`Reply::Done`](super::Reply::Done),
    /// on which the service sends [`Reply::Changes`](super::Reply::Changes) unasked, with sequence number 0. Since 1.2.
    WatchDevices,
    /// Injects faults into management datagrams, in place of what the client injected before. The descriptor of a record may come
    /// along, to which a line is appended for every fault. Since 1.2.
    InjectFaults(InjectFaults),
    /// Lets something happen to a device, as far as this client's identifiers on it are concerned. Since 1.2.
    FailDevice {
        /// What.
        fault: DeviceFault,
        /// An address of the device.
        address: IpAddr,
    },
    /// Asks for the file for this client's counters, which comes with [`Reply::Done`](super::Reply::Done). Since 1.2.
    ShareStatistics,
    /// Lists the counters of devices, those of all clients, that there are and that have been, taken together. Since 1.2.
    Statistics {
        /// Only devices with higher indices; `None` from the start.
        after: Option<u32>,
    },
    /// Captures packets in pcapng, in the file whose descriptor comes along, open for reading and writing; until the client has gone.
    /// The scope `Host` may bring a second descriptor, which is kept open by everybody who writes. Answered with
    /// [`Reply::Capture`](super::Reply::Capture) or [`Reply::CaptureState`](super::Reply::CaptureState), by the scope. Since 1.3.
    Capture(CaptureScope),
    /// Ends this client's capture of all programs; answered with [`Reply::CaptureState`](super::Reply::CaptureState). Since 1.3.
    EndCapture,
    /// Asks whether this client's packets are to be captured for another, answered with [`Reply::Capture`](super::Reply::Capture);
    /// changes come on the feed of [`WatchDevices`](Self::WatchDevices). Since 1.3.
    JoinCapture,
    /// A packet could not be written, and this client writes no more. Since 1.3.
    CaptureFailed {
        /// To which capture.
        scope: CaptureScope,
        /// What the system said; 0: a packet was written in part.
        errno: i32,
    },
}

/// Faults on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InjectFaults {
    /// No more.
    None,
    /// Rules, as text of at most [`MAX_RULES_TEXT`] bytes.
    Rules(String),
    /// A record, as text of at most [`MAX_RULES_TEXT`] bytes, that is replayed.
    Replay(String),
}

/// What can be made to happen to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceFault {
    /// It goes away, and is there again for whoever asks for it anew.
    Removal,
    /// Its address changes.
    AddressChange,
}

/// Requests of the rdma_ucm ABI that are answered together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    /// Whether a failure ends the batch: what comes after it is answered with `ECANCELED` and not tried.
    pub stop_on_error: bool,
    /// The requests, at most [`MAX_BATCH`].
    pub items: Vec<WriteItem>,
    /// How many events the client has acknowledged so far, for identifiers where that has changed. Only shown.
    pub acknowledged: Vec<Acknowledged>,
}

/// One request in a batch: what would be one `write(2)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteItem {
    /// The channel it is written on.
    pub channel: u64,
    /// Header and structure.
    pub request: Vec<u8>,
    /// What travels beside the structure.
    pub inline: Vec<u8>,
    /// An earlier item of the batch whose identifier this request means, in place of the number in it: a CREATE_ID, or a
    /// GET_EVENT that brings ADDR_RESOLVED, CONNECT_REQUEST or CONNECT_RESPONSE. After those a program asks for a device or
    /// for a queue pair's attributes next; any other event names no identifier, and the request fails.
    pub id_from: Option<u8>,
}

/// How many events of an identifier a client has acknowledged over its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The identifier's number.
    pub id: u32,
    /// How many.
    pub events: u32,
}

mod kind {
    pub(super) const HELLO: u16 = 1;
    pub(super) const OPEN_CHANNEL: u16 = 2;
    pub(super) const CLOSE_CHANNEL: u16 = 3;
    pub(super) const WRITE: u16 = 4;
    pub(super) const TAKE_SLOT: u16 = 5;
    pub(super) const DEVICES: u16 = 6;
    pub(super) const PS: u16 = 7;
    pub(super) const TRACE: u16 = 8;
    pub(super) const STOP: u16 = 9;
    pub(super) const RETURN_SLOT: u16 = 10;
    pub(super) const WATCH_DEVICES: u16 = 11;
    pub(super) const INJECT_FAULTS: u16 = 12;
    pub(super) const FAIL_DEVICE: u16 = 13;
    pub(super) const SHARE_STATISTICS: u16 = 14;
    pub(super) const STATISTICS: u16 = 15;
    pub(super) const CAPTURE: u16 = 16;
    pub(super) const END_CAPTURE: u16 = 17;
    pub(super) const JOIN_CAPTURE: u16 = 18;
    pub(super) const CAPTURE_FAILED: u16 = 19;
}

impl Request {
    /// The message's bytes. To a request with sequence number [`NO_ANSWER`](super::NO_ANSWER) nothing is sent back.
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
            Self::Hello { pid, name } => {
                w.u32(*pid);
                w.text(name, MAX_NAME);
                kind::HELLO
            }
            Self::OpenChannel => kind::OPEN_CHANNEL,
            Self::CloseChannel { token } => {
                w.u64(*token);
                kind::CLOSE_CHANNEL
            }
            Self::Write(batch) => {
                batch.write(w);
                kind::WRITE
            }
            Self::TakeSlot => kind::TAKE_SLOT,
            Self::ReturnSlot { slot } => {
                w.u8(*slot);
                kind::RETURN_SLOT
            }
            Self::Devices { first } => {
                w.u32(*first);
                kind::DEVICES
            }
            Self::Ps { after } => {
                w.option(*after, Writer::u32);
                kind::PS
            }
            Self::Trace => kind::TRACE,
            Self::Stop => kind::STOP,
            Self::WatchDevices => kind::WATCH_DEVICES,
            Self::InjectFaults(faults) => {
                faults.write(w);
                kind::INJECT_FAULTS
            }
            Self::FailDevice { fault, address } => {
                w.u8(match fault {
                    DeviceFault::Removal => 1,
                    DeviceFault::AddressChange => 2,
                });
                w.ip(*address);
                kind::FAIL_DEVICE
            }
            Self::ShareStatistics => kind::SHARE_STATISTICS,
            Self::Statistics { after } => {
                w.option(*after, Writer::u32);
                kind::STATISTICS
            }
            Self::Capture(scope) => {
                scope.write(w);
                kind::CAPTURE
            }
            Self::EndCapture => kind::END_CAPTURE,
            Self::JoinCapture => kind::JOIN_CAPTURE,
            Self::CaptureFailed { scope, errno } => {
                scope.write(w);
                w.i32(*errno);
                kind::CAPTURE_FAILED
            }
        }
    }

    /// Reads the body of a message whose header has passed [`Header::check`].
    ///
    /// # Errors
    /// The refusal to answer with: unknown kind, or malformed.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Self, Refusal> {
        let mut r = Reader::new(body);
        match Self::read(header, &mut r) {
            Ok(Some(request)) => end(header, r).map(|()| request).map_err(Refusal::malformed),
            Ok(None) => Err(Refusal {
                code: RefusalCode::UNKNOWN_REQUEST,
                sentence: format!(
                    "this service, version {VERSION}, does not know request {} of version {}",
                    header.kind, header.version
                ),
            }),
            Err(error) => Err(Refusal::malformed(error)),
        }
    }

    fn read(header: &Header, r: &mut Reader<'_>) -> Result<Option<Self>, Malformed> {
        Ok(Some(match header.kind {
            kind::HELLO => Self::Hello {
                pid: r.u32("process")?,
                name: r.text("program name", MAX_NAME)?,
            },
            kind::OPEN_CHANNEL => Self::OpenChannel,
            kind::CLOSE_CHANNEL => Self::CloseChannel {
                token: r.u64("channel")?,
            },
            kind::WRITE => Self::Write(WriteBatch::read(r)?),
            kind::TAKE_SLOT => Self::TakeSlot,
            kind::RETURN_SLOT => Self::ReturnSlot {
                slot: r.u8("slot")?,
            },
            kind::DEVICES => Self::Devices {
                first: r.u32("first device")?,
            },
            kind::PS => Self::Ps {
                after: r.option("identifier", Reader::u32)?,
            },
            kind::TRACE => Self::Trace,
            kind::STOP => Self::Stop,
            kind::WATCH_DEVICES => Self::WatchDevices,
            kind::INJECT_FAULTS => Self::InjectFaults(InjectFaults::read(r)?),
            kind::FAIL_DEVICE => Self::FailDevice {
                fault: match r.u8("fault")? {
                    1 => DeviceFault::Removal,
                    2 => DeviceFault::AddressChange,
                    value => return Err(out_of_range("fault", value, 2)),
                },
                address: r.ip("address")?,
            },
            kind::SHARE_STATISTICS => Self::ShareStatistics,
            kind::STATISTICS => Self::Statistics {
                after: r.option("device", Reader::u32)?,
            },
            kind::CAPTURE => Self::Capture(CaptureScope::read(r)?),
            kind::END_CAPTURE => Self::EndCapture,
            kind::JOIN_CAPTURE => Self::JoinCapture,
            kind::CAPTURE_FAILED => Self::CaptureFailed {
                scope: CaptureScope::read(r)?,
                errno: r.i32("errno")?,
            },
            _ => return Ok(None),
        }))
    }
}

impl InjectFaults {
    fn write(&self, w: &mut Writer) {
        match self {
            Self::None => w.u8(0),
            Self::Rules(text) => {
                w.u8(1);
                w.blob(text.as_bytes());
            }
            Self::Replay(text) => {
                w.u8(2);
                w.blob(text.as_bytes());
            }
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match r.u8("kind of faults")? {
            0 => Self::None,
            1 => Self::Rules(r.text("fault rules", MAX_RULES_TEXT)?),
            2 => Self::Replay(r.text("fault record", MAX_RULES_TEXT)?),
            value => return Err(out_of_range("kind of faults", value, 2)),
        })
    }
}

fn out_of_range(field: &'static str, value: u8, max: u64) -> Malformed {
    Malformed::OutOfRange {
        field,
        value: value.into(),
        max,
    }
}

impl WriteBatch {
    const ITEM_LEAST: usize = 8 + 4 + 4 + 1;

    fn write(&self, w: &mut Writer) {
        w.bool(self.stop_on_error);
        w.count(self.items.len());
        for item in &self.items {
            w.u64(item.channel);
            w.blob(&item.request);
            w.blob(&item.inline);
            w.option(item.id_from, Writer::u8);
        }
        w.count(self.acknowledged.len());
        for Acknowledged { id, events } in &self.acknowledged {
            w.u32(*id);
            w.u32(*events);
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let stop_on_error = r.bool("stop on error")?;
        let count = r.count("number of requests", MAX_BATCH, Self::ITEM_LEAST)?;
        let mut items = Vec::with_capacity(count);
        for index in 0..count {
            let item = WriteItem {
                channel: r.u64("channel")?,
                request: r.blob("request", MAX_REQUEST)?,
                inline: r.blob("inline bytes", MAX_INLINE)?,
                id_from: r.option("earlier request", Reader::u8)?,
            };
            match item.id_from {
                Some(from) if usize::from(from) >= index => {
                    let max = index.saturating_sub(1) as u64;
                    return Err(Malformed::OutOfRange {
                        field: "earlier request",
                        value: from.into(),
                        max,
                    });
                }
                _ => items.push(item),
            }
        }
        let count = r.count("number of acknowledgements", super::MAX_MESSAGE, 8)?;
        let mut acknowledged = Vec::with_capacity(count);
        for _ in 0..count {
            acknowledged.push(Acknowledged {
                id: r.u32("identifier")?,
                events: r.u32("acknowledged events")?,
            });
        }
        Ok(Self {
            stop_on_error,
            items,
            acknowledged,
        })
    }
}
