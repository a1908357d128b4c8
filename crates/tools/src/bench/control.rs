//! What the two sides say to each other beside the measurement: a line of JSON each, over a TCP connection of their own.
//!
//! ```text
//! client                      server
//!    | hello (version, plan)    |
//!    |------------------------->|  refuses with a sentence, or makes its queue pairs
//!    |         ready (them)     |
//!    |<-------------------------|
//!    | ready (its own)          |
//!    |------------------------->|  connects and posts its receives
//!    |         start            |
//!    |<-------------------------|
//!    |      ... messages ...    |
//!    | done (how many)          |
//!    |------------------------->|  takes what is still to come, compares its memory
//!    |         report           |
//!    |<-------------------------|
//! ```
//! With `--local` the server, a child process, makes the connection, else the client: who dials is of no meaning beyond.

use super::plan::Plan;
use super::report::Passive;
use crate::failure::{Failure, system};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Of what the lines hold.
pub(super) const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    Hello { version: u32, plan: Plan },
    Refused { sentence: String },
    Ready(End),
    Start,
    Done { posted: Vec<u64> },
    Report(Passive),
}

/// What one side has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct End {
    /// The largest path MTU of its device, as encoded in the specification; 0 with TCP.
    pub(super) mtu: u8,
    /// Begins each TCP connection for data.
    pub(super) token: u64,
    pub(super) lanes: Vec<LaneEnd>,
}

/// A queue pair, and the memory that the other side may reach through it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct LaneEnd {
    pub(super) qpn: u32,
    pub(super) psn: u32,
    pub(super) addr: u64,
    pub(super) rkey: u32,
}

/// Who made the connection.
#[derive(Debug)]
pub(super) enum Dialled {
    /// The other side, to this listener.
    There(TcpListener),
    /// This side.
    Here,
}

/// One side's end of the conversation.
#[derive(Debug)]
pub(super) struct Control {
    stream: TcpStream,
    read: BufReader<TcpStream>,
    pub(super) dialled: Dialled,
}

impl Control {
    /// Calls the other side.
    pub(super) fn dial(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| {
            Failure::Protocol(format!(
                "no connection with {address}: {error}; is `oarlock bench --server` running there?"
            ))
        })?;
        Self::new(stream, Dialled::Here)
    }

    /// Waits for the other side, until `is_over` says why it will not come.
    pub(super) fn answer(
        listener: TcpListener,
        mut is_over: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        loop {
            if is_readable(listener.as_fd(), LOOK_EVERY)? {
                let (stream, _) = listener.accept().map_err(conversation)?;
                return Self::new(stream, Dialled::There(listener));
            }
            is_over()?;
        }
    }

    fn new(stream: TcpStream, dialled: Dialled) -> Result<Self, Failure> {
        stream.set_nodelay(true).map_err(conversation)?;
        let read = BufReader::new(stream.try_clone().map_err(conversation)?);
        Ok(Self {
            stream,
            read,
            dialled,
        })
    }

    /// The addresses of both sides, by which their devices are found.
    pub(super) fn addresses(&self) -> Result<(IpAddr, SocketAddr), Failure> {
        let local = self.stream.local_addr().map_err(conversation)?;
        let remote = self.stream.peer_addr().map_err(conversation)?;
        Ok((
            local.ip().to_canonical(),
            SocketAddr::new(remote.ip().to_canonical(), remote.port()),
        ))
    }

    pub(super) fn say(&mut self, message: &Message) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message).map_err(|error| conversation(error.into()))?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(conversation)
    }

    /// What the other side says next, within `limit`.
    pub(super) fn hear(&mut self, limit: Duration) -> Result<Message, Failure> {
        self.stream
            .set_read_timeout(Some(limit))
            .map_err(conversation)?;
        let mut line = Vec::new();
        let mut bounded = (&mut self.read).take(MAX_LINE);
        match bounded.read_until(b'\n', &mut line) {
            Ok(0) => return Err(Failure::Protocol("the other side has gone".to_owned())),
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {
                return Err(Failure::Protocol(format!(
                    "the other side says nothing for {:.0} s",
                    limit.as_secs_f64()
                )));
            }
            Err(error) => return Err(conversation(error)),
        }
        match serde_json::from_slice(&line) {
            Ok(Message::Refused { sentence }) => Err(Failure::Protocol(format!(
                "{REFUSES}: {}",
                sentence.escape_debug()
            ))),
            Ok(message) => Ok(message),
            Err(_) => Err(foreign()),
        }
    }

    /// Why the other side has given up, if it has said so.
    pub(super) fn refusal(&mut self) -> Option<Failure> {
        while self.has_news().ok()? {
            match self.hear(PATIENCE) {
                Ok(_) => {}
                Err(failure @ Failure::Protocol(_)) if failure.to_string().contains(REFUSES) => {
                    return Some(failure);
                }
                Err(_) => return None,
            }
        }
        None
    }

    /// Whether there is something to hear: at once, also where the other side has gone.
    pub(super) fn has_news(&self) -> Result<bool, Failure> {
        Ok(!self.read.buffer().is_empty() || is_readable(self.as_fd(), Duration::ZERO)?)
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits until a descriptor can be read, or for as long as is given.
pub(super) fn is_readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<bool, Failure> {
    let until = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now()));
        let left = left.map_err(|error| conversation(std::io::Error::other(error)))?;
        match poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            Some(&left),
        ) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(conversation(errno.into())),
        }
    }
}

/// What the other side said is not of this conversation.
pub(super) fn foreign() -> Failure {
    Failure::Protocol(
        "the other side is no `oarlock bench`, or does not keep to its order".to_owned(),
    )
}

pub(super) fn conversation(error: std::io::Error) -> Failure {
    system("the conversation with the other side")(error)
}

pub(super) fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
    )
}

/// How long a side takes for a step at most that it does at once.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const REFUSES: &str = "the other side refuses";
/// The longest line: what 256 queue pairs are said in, and ten times as much.
const MAX_LINE: u64 = 1 << 18;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::Op;
    use crate::bench::plan::tests::plan;

    fn pair() -> (Control, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let control = Control::answer(listener, || Ok(())).unwrap();
        (control, other)
    }

    #[test]
    fn what_is_said_is_heard() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut here = Control::dial(address).unwrap();
        let mut there = Control::answer(listener, || Ok(())).unwrap();
        assert!(!there.has_news().unwrap());
        here.say(&Message::Hello {
            version: VERSION,
            plan: plan(Op::Read),
        })
        .unwrap();
        let Message::Hello {
            version,
            plan: heard,
        } = there.hear(PATIENCE).unwrap()
        else {
            panic!("another message");
        };
        assert_eq!((version, heard), (VERSION, plan(Op::Read)));
        there
            .say(&Message::Refused {
                sentence: "no \u{1b}[2J".to_owned(),
            })
            .unwrap();
        let said = here.hear(PATIENCE).unwrap_err().to_string();
        assert_eq!(said, "the other side refuses: no \\u{1b}[2J");
        drop(here);
        assert!(there.has_news().unwrap());
        let said = there.hear(PATIENCE).unwrap_err().to_string();
        assert_eq!(said, "the other side has gone");
    }

    /// Peer input never panics, and a line without end is not collected.
    #[test]
    fn what_is_no_message_ends_the_conversation() {
        for said in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\n",
            b"{\"hello\":{\"version\":1}}\n",
            b"{\"ready\":{\"mtu\":99999999,\"token\":0,\"lanes\":[]}}\n",
            &[b'['; 1 << 19],
        ] {
            let (mut control, mut other) = pair();
            let said = said.to_owned();
            let saying = std::thread::spawn(move || {
                // The other end may hang up before all is said.
                let _ = other.write_all(&said);
                other
            });
            let heard = control.hear(PATIENCE).unwrap_err().to_string();
            assert_eq!(heard, foreign().to_string());
            drop(control);
            saying.join().unwrap();
        }
    }

    #[test]
    fn silence_is_not_waited_out() {
        let (mut control, _other) = pair();
        let said = control.hear(Duration::from_millis(10)).unwrap_err();
        assert!(said.to_string().contains("says nothing"), "{said}");
    }
}
