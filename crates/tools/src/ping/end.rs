//! One end of the exchange of rping(1).
//!
//! ```text
//! client                                   server
//!    |  SEND: where the message is           |
//!    |-------------------------------------->|
//!    |  READ of the message                  |
//!    |<--------------------------------------|
//!    |  SEND: go ahead                       |
//!    |<--------------------------------------|
//!    |  SEND: where it is to come back to    |
//!    |-------------------------------------->|
//!    |  WRITE of the message                 |
//!    |<--------------------------------------|
//!    |  SEND: done                           |
//!    |<--------------------------------------|
//! ```

use super::info::{INFO_LEN, Info};
use super::message;
use crate::failure::Failure;
use crate::report::Lines;
use oarlock_rdmacm::Identifier;
use oarlock_verbs::{
    AccessFlags, Buffer, Completion, CompletionQueue, ProtectionDomain, QpInitAttr, QpState,
    QueuePair, RemoteMemory, SendRequest, VendorError, WcOpcode, WcStatus,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A queue pair, its completions, and what has come out of them.
#[derive(Debug)]
struct End {
    queue_pair: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    completions: Vec<Completion>,
    /// Messages of the peer, each as long as it came.
    received: VecDeque<Vec<u8>>,
    /// The buffer of the READ or WRITE that has completed.
    transferred: Option<Buffer>,
    /// Buffers to send infos from.
    spare: Vec<Buffer>,
}

/// What a client and a server want of messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) verbose: bool,
    pub(super) validate: bool,
}

impl End {
    /// Makes the identifier's queue pair and posts its receives.
    fn new(id: &Identifier) -> Result<Self, Failure> {
        let context = id.device()?;
        let pd = context.default_pd();
        let cq = CompletionQueue::new(&context, SENDS + RECEIVES)?;
        let init = QpInitAttr {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpInitAttr::default()
        };
        let queue_pair = id.create_qp(&pd, &cq, &cq, init)?;
        for _ in 0..RECEIVES {
            // Longer than an info, so that what is something else shows as such.
            queue_pair.post_recv(0, Buffer::new(&pd, 4 * INFO_LEN)?)?;
        }
        Ok(Self {
            queue_pair,
            cq,
            pd,
            completions: Vec::new(),
            received: VecDeque::new(),
            transferred: None,
            spare: Vec::new(),
        })
    }

    fn send(&mut self, info: Info) -> Result<(), Failure> {
        let mut buffer = match self.spare.pop() {
            Some(buffer) => buffer,
            None => Buffer::new(&self.pd, INFO_LEN)?,
        };
        buffer.copy_from_slice(&info.emit());
        Ok(self.queue_pair.post_send(SendRequest::new(0, buffer))?)
    }

    /// Takes what has completed, or waits for it as long as is given; whether there was something.
    fn turn(&mut self, limit: Option<Duration>) -> Result<bool, Ended> {
        let mut completions = std::mem::take(&mut self.completions);
        let taken = self.cq.wait(&mut completions, limit);
        for completion in completions.drain(..) {
            self.take(completion)?;
        }
        self.completions = completions;
        Ok(taken.map_err(Failure::from)? > 0)
    }

    fn take(&mut self, completion: Completion) -> Result<(), Ended> {
        if completion.status == WcStatus::WR_FLUSH_ERR {
            return Err(Ended::Stopped(completion.vendor_err));
        }
        if completion.status != WcStatus::SUCCESS {
            let operation = if completion.is_send {
                "a request"
            } else {
                "a receive"
            };
            return Err(Ended::Failed(Failure::Completion {
                connection: 0,
                operation,
                status: format!("{} ({})", completion.status, completion.vendor_err),
                hint: "",
            }));
        }
        let (is_send, opcode) = (completion.is_send, completion.opcode);
        let len = completion.byte_len as usize;
        for buffer in completion.buffers {
            if !is_send {
                self.received.push_back(buffer[..len].to_vec());
                self.queue_pair
                    .post_recv(0, buffer)
                    .map_err(Failure::from)?;
            } else if opcode == WcOpcode::SEND {
                self.spare.push(buffer);
            } else {
                self.transferred = Some(buffer);
            }
        }
        Ok(())
    }

    /// The peer's next message; `None` where there is none within the time.
    fn hear(&mut self, limit: Option<Duration>) -> Result<Option<[u8; INFO_LEN]>, Ended> {
        loop {
            if let Some(message) = self.received.pop_front() {
                return match <[u8; INFO_LEN]>::try_from(&message[..]) {
                    Ok(field) => Ok(Some(field)),
                    Err(_) => Err(Ended::Failed(Failure::Protocol(format!(
                        "a message of {} bytes arrived, and those of rping have {INFO_LEN}: the other side is another program",
                        message.len()
                    )))),
                };
            }
            if !self.turn(limit)? {
                return Ok(None);
            }
        }
    }
}

/// Why an end does not go on.
#[derive(Debug)]
enum Ended {
    /// Its queue pair was stopped, which is how a connection ends, and why.
    Stopped(VendorError),
    Failed(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The client's end, with the memory that the server reads and writes.
#[derive(Debug)]
pub(super) struct Client {
    end: End,
    source: RemoteMemory,
    sink: RemoteMemory,
    message: Vec<u8>,
    seen: Vec<u8>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reply {
    /// It came back.
    Came { time: Duration, right: bool },
    /// It has not come back within the time; nor can another one follow it.
    Lost,
    /// The caller wanted no more of it.
    Stopped,
}

impl Client {
    pub(super) fn new(id: &Identifier, size: u32) -> Result<Self, Failure> {
        let end = End::new(id)?;
        let len = size as usize;
        let source = RemoteMemory::new(&end.pd, len, AccessFlags::REMOTE_READ)?;
        let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let sink = RemoteMemory::new(&end.pd, len, writable)?;
        Ok(Self {
            end,
            source,
            sink,
            message: vec![0; len],
            seen: vec![0; len],
        })
    }

    /// Lets the server fetch message `number` and write it back, and waits for that for `limit`. Asks `go_on` now and then.
    pub(super) fn ping(
        &mut self,
        number: u32,
        limit: Duration,
        wanted: Wanted,
        lines: Lines,
        mut go_on: impl FnMut() -> Result<bool, Failure>,
    ) -> Result<Reply, Failure> {
        let until = Instant::now().checked_add(limit);
        message::fill(number, &mut self.message);
        self.source.write_at(0, &self.message)?;
        let sent = Instant::now();
        for memory in [&self.source, &self.sink] {
            let info = Info {
                memory: memory.at(0),
                len: self.message.len() as u32,
            };
            self.end.send(info)?;
            loop {
                let left = until.map_or(LOOK_EVERY, |until| {
                    until.saturating_duration_since(Instant::now())
                });
                match self.end.hear(Some(left.min(LOOK_EVERY))) {
                    Ok(Some(_)) => break,
                    Ok(None) if !go_on()? => return Ok(Reply::Stopped),
                    Ok(None) if left.is_zero() => return Ok(Reply::Lost),
                    Ok(None) => {}
                    Err(Ended::Failed(failure)) => return Err(failure),
                    Err(Ended::Stopped(why)) => {
                        // The event that tells why says more.
                        go_on()?;
                        return Err(Failure::Protocol(format!("the connection ended: {why}")));
                    }
                }
            }
        }
        let time = sent.elapsed();
        self.sink.read_at(0, &mut self.seen)?;
        let right = !wanted.validate || self.seen == self.message;
        if wanted.verbose {
            let ms = time.as_secs_f64() * 1e3;
            let text = message::printable(&self.seen);
            lines.say(format_args!("ping {number}: {ms:.3} ms, data: {text}"));
        }
        Ok(Reply::Came { time, right })
    }
}

/// How long a client waits before it looks whether the connection still is.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a server has done for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) messages: u64,
    pub(super) mismatches: u64,
}

/// The server's end.
#[derive(Debug)]
pub(super) struct Server {
    end: End,
    /// Where messages pass through, as large as the largest so far.
    buffer: Option<Buffer>,
}

impl Server {
    pub(super) fn new(id: &Identifier) -> Result<Self, Failure> {
        Ok(Self {
            end: End::new(id)?,
            buffer: None,
        })
    }

    /// Fetches messages and writes them back, until the queue pair is stopped.
    pub(super) fn answer(
        &mut self,
        wanted: Wanted,
        lines: Lines,
        peer: &str,
    ) -> (Answered, Result<(), Failure>) {
        let mut answered = Answered::default();
        let result = loop {
            match self.answer_one(wanted, lines, peer, &mut answered) {
                Ok(()) => {}
                Err(Ended::Stopped(_)) => break Ok(()),
                // What is posted just then is refused.
                Err(Ended::Failed(_))
                    if self.end.queue_pair.state() == QpState::Error && self.was_stopped() =>
                {
                    break Ok(());
                }
                Err(Ended::Failed(failure)) => break Err(failure),
            }
        };
        (answered, result)
    }

    /// Whether the queue pair was stopped by this side, and did not fail.
    fn was_stopped(&mut self) -> bool {
        loop {
            match self.end.turn(Some(Duration::ZERO)) {
                Err(Ended::Stopped(_)) => return true,
                Err(Ended::Failed(_)) | Ok(false) => return false,
                Ok(true) => {}
            }
        }
    }

    fn answer_one(
        &mut self,
        wanted: Wanted,
        lines: Lines,
        peer: &str,
        answered: &mut Answered,
    ) -> Result<(), Ended> {
        let source = self.hear()?;
        if source.len > MAX_SIZE {
            return Err(Ended::Failed(Failure::Protocol(format!(
                "the client's message has {} bytes, at most {MAX_SIZE} are possible",
                source.len
            ))));
        }
        let buffer = self.buffer(source.len as usize)?;
        let read = SendRequest::read(0, buffer, source.memory);
        let message = self.transfer(read)?;
        let number = answered.messages as u32;
        answered.messages += 1;
        if wanted.validate && !message::is_right(number, &message) {
            answered.mismatches += 1;
        }
        if wanted.verbose {
            let text = message::printable(&message);
            lines.say(format_args!("{peer}: ping {number}, data: {text}"));
        }
        self.end.send(Info::default())?;
        let sink = self.hear()?;
        let mut message = message;
        message.set_len(message.len().min(sink.len as usize));
        let written = self.transfer(SendRequest::write(0, message, sink.memory))?;
        self.buffer = Some(written);
        Ok(self.end.send(Info::default())?)
    }

    fn hear(&mut self) -> Result<Info, Ended> {
        loop {
            if let Some(field) = self.end.hear(None)? {
                return Ok(Info::parse(&field));
            }
        }
    }

    fn buffer(&mut self, len: usize) -> Result<Buffer, Failure> {
        let mut buffer = match self.buffer.take() {
            Some(buffer) if buffer.capacity() >= len => buffer,
            // A region has at least one byte, a message may have none.
            _ => Buffer::new(&self.end.pd, len.max(1))?,
        };
        buffer.set_len(len);
        Ok(buffer)
    }

    /// Posts a READ or WRITE and waits until it is done.
    fn transfer(&mut self, request: SendRequest<'_>) -> Result<Buffer, Ended> {
        self.end
            .queue_pair
            .post_send(request)
            .map_err(Failure::from)?;
        loop {
            if let Some(buffer) = self.end.transferred.take() {
                return Ok(buffer);
            }
            self.end.turn(None)?;
        }
    }
}

/// The largest message, in bytes, that a server makes room for.
pub(super) const MAX_SIZE: u32 = 1 << 20;
/// Two infos, whose completions may be late, and a transfer.
const SENDS: u32 = 4;
const RECEIVES: u32 = 4;
