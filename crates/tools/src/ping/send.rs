//! Pinging by SEND: the message's number is the immediate data, there and back.

use super::message;
use crate::failure::Failure;
use crate::report::Lines;
use oarlock_rdmacm::Identifier;
use oarlock_verbs::{
    Buffer, Completion, CompletionQueue, QpInitAttr, QueuePair, SendRequest, WcStatus,
};
use std::time::{Duration, Instant};

/// Messages that may be under way each way: one, and one that comes late or whose acknowledgement does.
const BUFFERS: u32 = 2;

/// One end: a queue pair, its completions, and buffers.
#[derive(Debug)]
pub(super) struct End {
    queue_pair: QueuePair,
    cq: CompletionQueue,
    size: usize,
    spare: Vec<Buffer>,
    completions: Vec<Completion>,
}

impl End {
    /// Makes the identifier's queue pair and posts its receives. A client also has buffers to send from; a server sends back
    /// what it received.
    pub(super) fn new(id: &Identifier, size: u32, client: bool) -> Result<Self, Failure> {
        let context = id.device()?;
        let pd = context.default_pd();
        let cq = CompletionQueue::new(&context, 2 * BUFFERS + 2)?;
        let init = QpInitAttr {
            max_send_wr: BUFFERS + 1,
            max_recv_wr: BUFFERS + 1,
            ..QpInitAttr::default()
        };
        let queue_pair = id.create_qp(&pd, &cq, &cq, init)?;
        // A region has at least one byte, a message may have none.
        let buffer = || Buffer::new(&pd, size.max(1) as usize);
        let mut spare = Vec::new();
        for _ in 0..BUFFERS {
            queue_pair.post_recv(0, buffer()?)?;
            if client {
                spare.push(buffer()?);
            }
        }
        Ok(Self {
            queue_pair,
            cq,
            size: size as usize,
            spare,
            completions: Vec::new(),
        })
    }

    fn post(&mut self, number: u32, mut buffer: Buffer, len: usize) -> Result<(), Failure> {
        if len == 0 {
            self.spare.push(buffer);
            let empty = SendRequest::inline(0, &[]).imm(number);
            return Ok(self.queue_pair.post_send(empty)?);
        }
        buffer.set_len(len);
        Ok(self
            .queue_pair
            .post_send(SendRequest::new(0, buffer).imm(number))?)
    }

    fn post_receive(&mut self, mut buffer: Buffer) -> Result<(), Failure> {
        buffer.set_len(buffer.capacity());
        Ok(self.queue_pair.post_recv(0, buffer)?)
    }

    /// The next completion; none within the limit is `None`.
    fn next(&mut self, limit: Option<Duration>) -> Result<Option<Completion>, Failure> {
        if self.completions.is_empty() {
            self.cq.wait(&mut self.completions, limit)?;
            self.completions.reverse();
        }
        Ok(self.completions.pop())
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reply {
    /// It came back.
    Came { time: Duration, right: bool },
    /// It has not come back within the time.
    Lost,
    /// The caller wanted no more of it.
    Stopped,
}

/// What a client wants of its messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) verbose: bool,
    pub(super) validate: bool,
}

impl End {
    /// Client: sends message `number` and waits for its reply for `limit`. Asks `go_on` now and then. Replies to earlier
    /// messages are counted in `late`.
    pub(super) fn ping(
        &mut self,
        number: u32,
        limit: Duration,
        wanted: Wanted,
        lines: Lines,
        late: &mut u64,
        mut go_on: impl FnMut() -> Result<bool, Failure>,
    ) -> Result<Reply, Failure> {
        let until = Instant::now().checked_add(limit);
        let mut sent = None;
        loop {
            if sent.is_none()
                && let Some(mut buffer) = self.spare.pop()
            {
                buffer.set_len(buffer.capacity());
                message::fill(number, &mut buffer[..self.size]);
                sent = Some(Instant::now());
                self.post(number, buffer, self.size)?;
            }
            let left = until.map_or(LOOK_EVERY, |until| {
                until.saturating_duration_since(Instant::now())
            });
            let Some(completion) = self.next(Some(left.min(LOOK_EVERY)))? else {
                if !go_on()? {
                    return Ok(Reply::Stopped);
                }
                if left.is_zero() {
                    return Ok(Reply::Lost);
                }
                continue;
            };
            let now = Instant::now();
            let received = self.take(completion)?;
            let Some((arrived, message)) = received else {
                continue;
            };
            let right = message.len() == self.size
                && (!wanted.validate || message::is_right(arrived, &message));
            let line = wanted.verbose.then(|| message::printable(&message));
            self.post_receive(message)?;
            if let (true, Some(sent)) = (arrived == number, sent) {
                let time = now.saturating_duration_since(sent);
                if let Some(text) = line {
                    let ms = time.as_secs_f64() * 1e3;
                    lines.say(format_args!("ping {number}: {ms:.3} ms, data: {text}"));
                }
                return Ok(Reply::Came { time, right });
            }
            *late += 1;
        }
    }

    /// Sorts a completion: a message with its number, as long as it is, or a buffer that is free again.
    fn take(&mut self, completion: Completion) -> Result<Option<(u32, Buffer)>, Failure> {
        if completion.status != WcStatus::SUCCESS {
            return Err(Failure::Completion {
                connection: 0,
                operation: if completion.is_send {
                    "a send"
                } else {
                    "a receive"
                },
                status: completion.status.to_string(),
                hint: "",
            });
        }
        if completion.is_send {
            self.spare.extend(completion.buffers);
            return Ok(None);
        }
        let len = completion.byte_len as usize;
        let mut buffers = completion.buffers.into_iter();
        Ok(match (buffers.next(), completion.imm) {
            (Some(mut buffer), Some(number)) => {
                buffer.set_len(len);
                Some((number, buffer))
            }
            // A message without a number is none of this protocol.
            _ => {
                return Err(Failure::Protocol(
                    "a message without a number arrived".to_owned(),
                ));
            }
        })
    }
}

/// How long a client waits for a reply before it looks whether the connection still is.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a server has done for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) messages: u64,
    pub(super) mismatches: u64,
}

impl End {
    /// Server: sends back whatever arrives, until the queue pair is stopped.
    pub(super) fn answer(
        &mut self,
        wanted: Wanted,
        lines: Lines,
        peer: &str,
    ) -> (Answered, Result<(), Failure>) {
        let mut answered = Answered::default();
        let result = self.answer_all(wanted, lines, peer, &mut answered);
        (answered, result)
    }

    fn answer_all(
        &mut self,
        wanted: Wanted,
        lines: Lines,
        peer: &str,
        answered: &mut Answered,
    ) -> Result<(), Failure> {
        while let Some(completion) = self.next(None)? {
            if completion.status == WcStatus::WR_FLUSH_ERR {
                // The connection has ended.
                break;
            }
            let Some((number, message)) = self.take(completion)? else {
                while let Some(buffer) = self.spare.pop() {
                    self.post_receive(buffer)?;
                }
                continue;
            };
            answered.messages += 1;
            if wanted.validate
                && (message.len() != self.size || !message::is_right(number, &message))
            {
                answered.mismatches += 1;
            }
            if wanted.verbose {
                lines.say(format_args!(
                    "{peer}: ping {number}, data: {}",
                    message::printable(&message)
                ));
            }
            let len = message.len();
            match self.post(number, message, len) {
                Ok(()) => {}
                // It was stopped meanwhile.
                Err(_) if self.queue_pair.state() == oarlock_verbs::QpState::Error => break,
                Err(failure) => return Err(failure),
            }
            // An empty message needs no buffer for its way back.
            while len == 0
                && let Some(buffer) = self.spare.pop()
            {
                self.post_receive(buffer)?;
            }
        }
        Ok(())
    }
}
