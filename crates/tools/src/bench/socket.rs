//! The same over TCP, for comparison: a connection in place of each queue pair. Send and write are a stream of messages one way, read
//! a request of 8 bytes and its answer, `--lat` a message and one back.

use super::control::{Control, Dialled, End, Message, PATIENCE, foreign, is_timeout};
use super::lanes::random;
use super::meter::{Meter, cpu_time, data};
use super::pattern;
use super::pingpong::{BACK, THERE};
use super::plan::{Mode, Op, Plan};
use super::report::{Active, Passive};
use crate::failure::Failure;
use crate::report::micros;
use crate::signals::Ending;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// A connection, with what is on its way out and in.
#[derive(Debug)]
struct Lane {
    stream: TcpStream,
    out: Vec<u8>,
    /// Bytes of `out` that are written; all of them: nothing is on its way out.
    written: usize,
    input: Vec<u8>,
    read: usize,
    /// Messages, or requests, begun and ended.
    sent: u64,
    received: u64,
    /// When what is not answered was sent, oldest first.
    sent_at: VecDeque<Instant>,
}

/// The connections of one side.
#[derive(Debug)]
pub(super) struct Sockets {
    lanes: Vec<Lane>,
    mode: Mode,
}

impl Sockets {
    /// What the other side has to know.
    pub(super) fn end() -> End {
        End {
            token: random(),
            ..End::default()
        }
    }

    /// The connections, made by whoever dialled. Each begins with the token, so that no stranger is taken for one.
    pub(super) fn connect(
        plan: &Plan,
        control: &mut Control,
        token: u64,
        lens: (usize, usize),
    ) -> Result<Self, Failure> {
        let (_, peer) = control.addresses()?;
        let mut streams = Vec::new();
        while streams.len() < plan.qps as usize {
            match &control.dialled {
                Dialled::Here => streams.push(dial(peer, token)?),
                Dialled::There(listener) => {
                    if !super::control::is_readable(listener.as_fd(), PATIENCE)? {
                        return Err(super::silent(PATIENCE));
                    }
                    let (stream, _) = listener.accept().map_err(data)?;
                    if has_token(&stream, token)? {
                        streams.push(stream);
                    }
                }
            }
        }
        let lanes = streams
            .into_iter()
            .map(|stream| {
                stream.set_nodelay(true).map_err(data)?;
                stream.set_nonblocking(true).map_err(data)?;
                Ok(Lane {
                    stream,
                    out: vec![0; lens.0],
                    written: lens.0,
                    input: vec![0; lens.1],
                    read: 0,
                    sent: 0,
                    received: 0,
                    sent_at: VecDeque::new(),
                })
            })
            .collect::<Result<_, Failure>>()?;
        let mode = plan.mode;
        Ok(Self { lanes, mode })
    }

    /// Waits, as the plan says, until a connection can be read, or written where there is something to write, or the other side
    /// says something.
    fn wait(&self, control: &Control, limit: Duration, writes: bool) -> Result<(), Failure> {
        if self.mode == Mode::Poll {
            std::hint::spin_loop();
            return Ok(());
        }
        let mut fds: Vec<PollFd<'_>> = self
            .lanes
            .iter()
            .map(|lane| {
                let mut what = PollFlags::IN;
                if writes || lane.written < lane.out.len() {
                    what |= PollFlags::OUT;
                }
                PollFd::new(&lane.stream, what)
            })
            .collect();
        fds.push(PollFd::new(control, PollFlags::IN));
        let limit = Timespec::try_from(limit).map_err(|error| data(io::Error::other(error)))?;
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(data(errno.into())),
        }
    }
}

/// The lengths of what a side sends and gets.
pub(super) fn lengths(plan: &Plan, client: bool) -> (usize, usize) {
    let size = plan.size as usize;
    match (plan.op, client) {
        (Op::Read, true) => (REQUEST, size),
        (Op::Read, false) => (size, REQUEST),
        _ => (size, size),
    }
}

fn dial(peer: SocketAddr, token: u64) -> Result<TcpStream, Failure> {
    let mut stream = TcpStream::connect_timeout(&peer, PATIENCE).map_err(data)?;
    stream.write_all(&token.to_le_bytes()).map_err(data)?;
    Ok(stream)
}

fn has_token(mut stream: &TcpStream, token: u64) -> Result<bool, Failure> {
    let mut field = [0; 8];
    stream.set_read_timeout(Some(PATIENCE)).map_err(data)?;
    Ok(stream.read_exact(&mut field).is_ok() && u64::from_le_bytes(field) == token)
}

impl Lane {
    /// Writes what the connection takes; whether anything moved.
    fn write(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(super::gone()),
                Ok(count) => self.written += count,
                Err(error) if is_timeout(&error) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(data(error)),
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Reads what has arrived of a message; whether it is whole.
    fn read(&mut self) -> Result<bool, Failure> {
        while self.read < self.input.len() {
            match self.stream.read(&mut self.input[self.read..]) {
                Ok(0) => return Err(super::gone()),
                Ok(count) => self.read += count,
                Err(error) if is_timeout(&error) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(data(error)),
            }
        }
        self.read = 0;
        Ok(true)
    }

    fn is_free(&self) -> bool {
        self.written == self.out.len()
    }
}

/// The requesting side.
pub(super) fn client(
    plan: &Plan,
    sockets: &mut Sockets,
    control: &Control,
    ending: &Ending,
) -> Result<(Active, Vec<u64>), Failure> {
    let mut meter = Meter::start(plan.seconds);
    let mut mismatches = 0;
    let answered = plan.lat || plan.op == Op::Read;
    let mut turn = 0u32;
    loop {
        let mut moved = false;
        let now = Instant::now();
        for at in 0..sockets.lanes.len() {
            let lane = &mut sockets.lanes[at];
            moved |= lane.write()?;
            let window = plan.window as usize;
            let open = !answered || lane.sent_at.len() < window;
            if lane.is_free() && open && !meter.is_over() {
                compose(plan, at as u32, lane.sent, &mut lane.out);
                lane.written = 0;
                lane.sent += 1;
                if answered {
                    lane.sent_at.push_back(now);
                } else {
                    // On its way, as far as this side can know.
                    meter.count(None);
                }
                lane.write()?;
                moved = true;
            }
            while answered && lane.read()? {
                moved = true;
                let way = lane.sent_at.pop_front().map(|sent| sent.elapsed());
                let Some(way) = way else {
                    return Err(foreign());
                };
                let number = lane.received;
                lane.received += 1;
                meter.count(Some(if plan.lat && plan.op != Op::Read {
                    way / 2
                } else {
                    way
                }));
                let direction = if plan.op == Op::Read { at as u32 } else { BACK };
                let right = !plan.check || pattern::is_right(direction, number, 0, &lane.input);
                mismatches += u64::from(!right);
            }
        }
        meter.tick(now);
        let is_done = |lane: &Lane| lane.is_free() && lane.sent_at.is_empty();
        if meter.is_over() && sockets.lanes.iter().all(is_done) {
            break;
        }
        turn = turn.wrapping_add(1);
        if !moved {
            let writes = !answered && !meter.is_over();
            let left = meter.closes().saturating_duration_since(Instant::now());
            let limit = if meter.is_over() {
                LOOK_EVERY
            } else {
                left.min(LOOK_EVERY)
            };
            sockets.wait(control, limit, writes)?;
        }
        if ending.is_asked() {
            return Err(super::asked_to_end());
        }
        if turn.is_multiple_of(TURNS) && control.has_news()? {
            return Err(super::gone());
        }
    }
    let sent: Vec<u64> = sockets.lanes.iter().map(|lane| lane.sent).collect();
    let active = Active {
        measured: meter.measured(),
        sent: sent.iter().sum(),
        mismatches,
        retransmits: 0,
    };
    Ok((active, sent))
}

/// What the client sends.
fn compose(plan: &Plan, at: u32, number: u64, out: &mut [u8]) {
    if plan.op == Op::Read {
        out.copy_from_slice(&number.to_le_bytes());
    } else if plan.check {
        let direction = if plan.lat { THERE } else { at };
        pattern::fill(direction, number, 0, out);
    }
}

/// The responding side, until the client is done.
pub(super) fn server(
    plan: &Plan,
    sockets: &mut Sockets,
    control: &mut Control,
    ending: &Ending,
) -> Result<Passive, Failure> {
    let mut counted = Passive::default();
    let mut first: Option<(Instant, Duration)> = None;
    let mut last = Instant::now();
    let mut told: Option<u64> = None;
    let answers = plan.lat || plan.op == Op::Read;
    let mut turn = 0u32;
    loop {
        let mut moved = false;
        for at in 0..sockets.lanes.len() {
            let lane = &mut sockets.lanes[at];
            moved |= lane.write()?;
            // The next is read when the answer to this one is on its way.
            while lane.is_free() && lane.read()? {
                moved = true;
                last = Instant::now();
                if first.is_none() {
                    first = Some((last, cpu_time()));
                }
                let number = lane.received;
                lane.received += 1;
                counted.received += 1;
                counted.mismatches += u64::from(!arrived_right(plan, at as u32, number, lane));
                if answers {
                    if plan.check {
                        let direction = if plan.op == Op::Read { at as u32 } else { BACK };
                        pattern::fill(direction, number, 0, &mut lane.out);
                    }
                    lane.written = 0;
                    lane.write()?;
                }
            }
        }
        if told == Some(counted.received) {
            break;
        }
        turn = turn.wrapping_add(1);
        if !moved || turn.is_multiple_of(TURNS) {
            if told.is_none() && control.has_news()? {
                let Message::Done { posted } = control.hear(PATIENCE)? else {
                    return Err(foreign());
                };
                told = Some(posted.iter().sum());
                continue;
            }
            if told.is_some() && last.elapsed() > PATIENCE {
                return Err(super::silent(PATIENCE));
            }
        }
        if !moved {
            sockets.wait(control, LOOK_EVERY, false)?;
        }
        if ending.is_asked() {
            return Err(super::asked_to_end());
        }
    }
    if let Some((began, cpu)) = first {
        counted.elapsed_us = micros(last - began);
        counted.cpu_us = micros(cpu_time().saturating_sub(cpu));
    }
    Ok(counted)
}

fn arrived_right(plan: &Plan, at: u32, number: u64, lane: &Lane) -> bool {
    if plan.op == Op::Read {
        return lane.input == number.to_le_bytes();
    }
    let direction = if plan.lat { THERE } else { at };
    !plan.check || pattern::is_right(direction, number, 0, &lane.input)
}

/// Bytes that ask for a message: its number.
const REQUEST: usize = 8;
/// Turns of a loop before the other side is listened to.
const TURNS: u32 = 1024;
const LOOK_EVERY: Duration = Duration::from_millis(500);
