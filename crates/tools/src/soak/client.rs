//! The active side: keeps connections up, and compares what comes back.

use super::{LOOK_EVERY, RECEIVE, SIZE, post_receive, queue_sizes};
use crate::connections::Devices;
use crate::content::{Direction, fill, is_right};
use crate::failure::Failure;
use crate::report::Lines;
use crate::signals::Ending;
use oarlock_hostd::Host;
use oarlock_rdmacm::{ConnParam, Event, EventChannel, Identifier, PortSpace, RetryCount};
use oarlock_verbs::{Buffer, Completion, QueuePair, SendRequest, WcStatus};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Connections that are being made at once.
const AT_ONCE: u32 = 64;
/// Messages that are under way at once, over all connections.
const MESSAGES_AT_ONCE: usize = 16;
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection is given up, and tried again, after so long.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// How long the end is waited for.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Before a connection is tried again: this, and as much again by its place, so that they do not all come together.
const PAUSE: Duration = Duration::from_millis(50);

/// What was done.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Counts {
    connections: u32,
    /// Those that are up.
    up: u32,
    /// Times that a connection was established.
    established: u64,
    /// Times that an established one ended by the other side.
    ended: u64,
    /// Times that one was not made.
    refused: u64,
    messages: u64,
    mismatches: u64,
}

impl Counts {
    pub(super) fn new(connections: u32) -> Self {
        Self {
            connections,
            up: 0,
            established: 0,
            ended: 0,
            refused: 0,
            messages: 0,
            mismatches: 0,
        }
    }
}

#[derive(Default)]
enum State {
    /// Is tried when it is time.
    #[default]
    Down,
    Connecting,
    Up,
}

#[derive(Default)]
struct Connection {
    state: State,
    again_at: Option<Instant>,
    /// The identifier's context: place, and how often this place was tried.
    number: u64,
    id: Option<Identifier>,
    queue_pair: Option<QueuePair>,
    /// The message under way.
    under_way: bool,
    spare: Option<Buffer>,
    sent: u32,
}

struct Client<'a> {
    channel: EventChannel,
    address: SocketAddr,
    devices: Devices,
    connections: Vec<Connection>,
    /// Whose turn it is to send.
    turn: usize,
    under_way: usize,
    connecting: u32,
    lines: Lines,
    counts: &'a mut Counts,
}

pub(super) fn run(
    host: &Host,
    address: SocketAddr,
    ending: &Ending,
    lines: Lines,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let connections = counts.connections;
    let mut client = Client {
        channel: EventChannel::new(host)?,
        address,
        devices: Devices::with_capacity(4 * connections),
        connections: (0..connections).map(|_| Connection::default()).collect(),
        turn: 0,
        under_way: 0,
        connecting: 0,
        lines,
        counts,
    };
    let mut completions = Vec::new();
    while !ending.is_asked() {
        client.connect_some()?;
        client.turn(&mut completions)?;
        client.send_some();
    }
    client.end()?;
    match client.counts.mismatches {
        0 => Ok(()),
        wrong => Err(Failure::Result(format!(
            "{wrong} of {} messages came back wrong",
            client.counts.messages
        ))),
    }
}

impl Client<'_> {
    /// Events and completions that are there, or come soon.
    fn turn(&mut self, completions: &mut Vec<Completion>) -> Result<(), Failure> {
        while let Some(event) = self.channel.try_event()? {
            self.handle(&event)?;
        }
        self.devices.wait(completions, LOOK_EVERY)?;
        for completion in completions.drain(..) {
            self.complete(completion);
        }
        Ok(())
    }

    fn connect_some(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        for at in 0..self.connections.len() {
            if self.connecting >= AT_ONCE {
                break;
            }
            let connection = &mut self.connections[at];
            if !matches!(connection.state, State::Down)
                || connection.again_at.is_some_and(|again| now < again)
            {
                continue;
            }
            let id = Identifier::new(&self.channel, PortSpace::TCP)?;
            id.set_connect_deadline(Some(CONNECT_DEADLINE))?;
            connection.number += 1 << 32;
            id.set_context(connection.number | at as u64);
            id.resolve_addr(None, self.address, RESOLVE_TIMEOUT)?;
            connection.id = Some(id);
            connection.state = State::Connecting;
            self.connecting += 1;
        }
        Ok(())
    }

    fn handle(&mut self, event: &Event) -> Result<(), Failure> {
        let id = event.id();
        let at = (id.context() & u64::from(u32::MAX)) as usize;
        if self.connections[at].id.as_ref() != Some(id) {
            // Of an identifier that is dropped by now.
            return Ok(());
        }
        let step = match event {
            Event::AddressResolved { .. } => {
                id.resolve_route(RESOLVE_TIMEOUT).map_err(Failure::from)
            }
            Event::RouteResolved { .. } => self.connect(at),
            Event::Established { .. } => {
                self.connecting -= 1;
                self.counts.established += 1;
                self.counts.up += 1;
                self.connections[at].state = State::Up;
                if self.counts.up == self.counts.connections {
                    self.lines.say(format_args!("up: {}", self.counts.up));
                }
                Ok(())
            }
            Event::Disconnected { .. } => {
                self.drop_connection(at);
                Ok(())
            }
            other => match other.error() {
                Some(error) => Err(error.into()),
                None => Ok(()),
            },
        };
        match step {
            Err(failure) if failure.is_device_fatal() => Err(failure),
            Err(failure) => {
                tracing::info!("connection {at}: {failure}");
                self.drop_connection(at);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn connect(&mut self, at: usize) -> Result<(), Failure> {
        let connection = &mut self.connections[at];
        let Some(id) = &connection.id else {
            return Ok(());
        };
        let (queue_pair, pd) = self.devices.queue_pair(id, queue_sizes())?;
        post_receive(&queue_pair, &pd, id.context())?;
        connection.spare = Some(Buffer::new(&pd, SIZE)?);
        connection.queue_pair = Some(queue_pair);
        id.connect(&ConnParam::default().rnr_retry_count(RetryCount::MAX))?;
        Ok(())
    }

    /// Lets go of everything; the place is tried again.
    fn drop_connection(&mut self, at: usize) {
        let pause = PAUSE + PAUSE.mul_f64(at as f64 / self.connections.len() as f64);
        let connection = &mut self.connections[at];
        match connection.state {
            State::Down => return,
            State::Connecting => {
                self.connecting -= 1;
                self.counts.refused += 1;
            }
            State::Up => {
                self.counts.up -= 1;
                self.counts.ended += 1;
            }
        }
        self.under_way -= usize::from(connection.under_way);
        *connection = Connection {
            number: connection.number,
            again_at: Instant::now().checked_add(pause),
            ..Connection::default()
        };
    }

    /// Sends on the connections that are up, one after the other.
    fn send_some(&mut self) {
        for _ in 0..self.connections.len() {
            if self.under_way >= MESSAGES_AT_ONCE {
                return;
            }
            self.turn = (self.turn + 1) % self.connections.len();
            let connection = &mut self.connections[self.turn];
            let (State::Up, false, Some(id), Some(queue_pair)) = (
                &connection.state,
                connection.under_way,
                &connection.id,
                &connection.queue_pair,
            ) else {
                continue;
            };
            let Some(mut buffer) = connection.spare.take() else {
                continue;
            };
            let number = id.context();
            fill(
                Direction::ToPassive,
                number as u32,
                connection.sent,
                &mut buffer,
            );
            match queue_pair.post_send(SendRequest::new(number, buffer)) {
                Ok(()) => {
                    connection.under_way = true;
                    self.under_way += 1;
                }
                // The connection is ending, which an event tells.
                Err(error) => tracing::debug!("connection {number:#x}: {error}"),
            }
        }
    }

    fn complete(&mut self, completion: Completion) {
        let number = completion.wr_id & !RECEIVE;
        let at = (number & u64::from(u32::MAX)) as usize;
        let connection = &mut self.connections[at];
        let is_current = connection
            .id
            .as_ref()
            .is_some_and(|id| id.context() == number);
        if !is_current || completion.status != WcStatus::SUCCESS {
            // What fails, fails because the connection ends, which an event tells.
            return;
        }
        let len = completion.byte_len as usize;
        let Some(buffer) = completion.buffers.into_iter().next() else {
            return;
        };
        if completion.is_send {
            connection.spare = Some(buffer);
            return;
        }
        let right = len == SIZE
            && is_right(
                Direction::ToPassive,
                number as u32,
                connection.sent,
                &buffer,
            );
        self.counts.messages += 1;
        self.counts.mismatches += u64::from(!right);
        connection.sent = connection.sent.wrapping_add(1);
        self.under_way -= usize::from(connection.under_way);
        connection.under_way = false;
        if let Some(queue_pair) = &connection.queue_pair
            && let Err(error) = queue_pair.post_recv(RECEIVE | number, buffer)
        {
            tracing::debug!("connection {number:#x}: {error}");
        }
    }

    /// Disconnects what is up, and waits until it is down.
    fn end(&mut self) -> Result<(), Failure> {
        let up = self.counts.up;
        for connection in &self.connections {
            if let (State::Up, Some(id)) = (&connection.state, &connection.id) {
                id.disconnect()?;
            }
        }
        let ended = self.counts.ended;
        let until = Instant::now() + END_LIMIT;
        let mut completions = Vec::new();
        while self.counts.up > 0 && Instant::now() < until {
            self.turn(&mut completions)?;
        }
        let left = self.counts.up;
        // These were ended by this side, and `up` tells how many there were.
        self.counts.ended = ended;
        self.counts.up = up;
        match left {
            0 => Ok(()),
            left => Err(Failure::Stalled {
                seconds: END_LIMIT.as_secs(),
                awaited: "disconnections",
                missing: left as usize,
                total: up as usize,
                hint: "",
            }),
        }
    }
}
