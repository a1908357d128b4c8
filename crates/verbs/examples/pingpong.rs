//! A message back and forth between two nodes that meet over TCP and connect their queue pairs by hand.
//!
//! Speaks with `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong` of the libibverbs utilities, on either side:
//!
//! ```text
//! pingpong [OPTIONS]          waits for a client
//! pingpong [OPTIONS] SERVER   calls it
//!   --transport rc|uc|ud   which of the three programs (rc)
//!   -p PORT     TCP port of the meeting (18515)
//!   -d DEVICE   name of the device (that of the TCP connection's own address)
//!   -g INDEX    own GID (that of the TCP connection's own address, else 0)
//!   -s BYTES    of a message (4096; ud: 1024)
//!   -n COUNT    of messages each way (1000)
//!   -r COUNT    receives kept posted (500)
//!   -m MTU      256, 512, 1024, 2048 or 4096 (1024)
//!   -e          sleep on the completion channel
//!   -c          check the content of every message
//! pingpong --private [OPTIONS]  both sides in this process, without a network
//! ```
//!
//! Each side sends the text `LID:QPN:PSN:GID` in hexadecimal, 51 characters and a zero byte, the client first; the client
//! then sends `done` and a zero byte. The server sends back what it has received, so that with `-c` the client, which
//! changes the content with every message, sees its own bytes again.

#[path = "common/meeting.rs"]
mod meeting;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use meeting::{Local, PATIENCE, QKEY, Terms, Wish};
use oarlock_hostd::Host;
use oarlock_verbs::{
    Access, AddressHandle, Buffer, Buffers, Completion, CompletionChannel, CompletionQueue,
    GRH_LEN, MemoryRegion, Notify, QpInitAttr, QpType, QueuePair, SendRequest,
};
use oarlock_wire::{Gid, Mtu, Psn, Qpn};

#[derive(Clone, Debug)]
pub(crate) struct Options {
    server: Option<String>,
    private: bool,
    qp_type: QpType,
    port: u16,
    wish: Wish,
    size: Option<usize>,
    iters: u64,
    rx_depth: u32,
    mtu: Mtu,
    use_event: bool,
    validate: bool,
}

impl Options {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            server: None,
            private: false,
            qp_type: QpType::Rc,
            port: 18515,
            wish: Wish::default(),
            size: None,
            iters: 1000,
            rx_depth: 500,
            mtu: Mtu::MTU_1024,
            use_event: false,
            validate: false,
        };
        let mut arguments = arguments.skip(1);
        while let Some(option) = arguments.next() {
            let rest = &mut arguments;
            match option.as_str() {
                "--private" => options.private = true,
                "--transport" => {
                    options.qp_type = match meeting::value::<String>(&option, rest)?.as_str() {
                        "rc" => QpType::Rc,
                        "uc" => QpType::Uc,
                        "ud" => QpType::Ud,
                        other => return Err(format!("no transport {other}: rc, uc or ud").into()),
                    }
                }
                "-p" => options.port = meeting::value(&option, rest)?,
                "-d" => options.wish.device = Some(meeting::value(&option, rest)?),
                "-g" => options.wish.gid_index = Some(meeting::value(&option, rest)?),
                "-s" => options.size = Some(meeting::value(&option, rest)?),
                "-n" => options.iters = meeting::value(&option, rest)?,
                "-r" => options.rx_depth = meeting::value(&option, rest)?,
                "-m" => {
                    let bytes: u16 = meeting::value(&option, rest)?;
                    options.mtu = MTUS
                        .into_iter()
                        .find(|mtu| mtu.bytes() == Some(bytes))
                        .ok_or_else(|| format!("no path MTU of {bytes} bytes"))?;
                }
                "-e" => options.use_event = true,
                "-c" => options.validate = true,
                _ if option.starts_with('-') => return Err(format!("no option {option}").into()),
                _ if options.server.is_none() => options.server = Some(option),
                _ => return Err("more than one server".into()),
            }
        }
        if options.iters == 0 || options.rx_depth == 0 {
            return Err("at least one message and one receive".into());
        }
        Ok(options)
    }

    fn size(&self) -> usize {
        let usual = if is_datagram(self.qp_type) {
            1024
        } else {
            4096
        };
        self.size.unwrap_or(usual)
    }
}

fn main() -> ExitCode {
    let outcome = Options::parse(std::env::args()).and_then(|options| {
        if options.private {
            run_private(&options)
        } else {
            run(&options, &Host::open()?)
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A server and a client on a host of this process's own, that meet at 127.0.0.1.
pub(crate) fn run_private(options: &Options) -> Result<(), Box<dyn Error>> {
    let host = Host::private()?;
    let client = Options {
        server: Some("127.0.0.1".to_owned()),
        ..options.clone()
    };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| run(options, &host).map_err(|error| error.to_string()));
        let asked = run(&client, &host);
        let served = serving.join().map_err(|_| "the server has panicked")?;
        asked.and(served.map_err(Into::into))
    })
}

fn run(options: &Options, host: &Host) -> Result<(), Box<dyn Error>> {
    let mut stream = meeting::meet(options.server.as_deref(), options.port)?;
    let local = Local::open(host, &options.wish, stream.local_addr()?)?;
    let mut end = End::new(options, local)?;
    end.exchange(&mut stream)?;
    end.play()
}

/// Who a side is.
struct Destination {
    qpn: Qpn,
    psn: Psn,
    gid: Gid,
}

impl Destination {
    /// With a LID of zero: there is none on Ethernet.
    fn to_message(&self) -> [u8; MESSAGE_LEN] {
        let text = format!(
            "0000:{:06x}:{:06x}:{}",
            self.qpn.get(),
            self.psn.get(),
            meeting::gid_text(self.gid)
        );
        let mut message = [0; MESSAGE_LEN];
        message[..text.len()].copy_from_slice(text.as_bytes());
        message
    }

    fn parse(message: &[u8; MESSAGE_LEN]) -> Option<Self> {
        let text = str::from_utf8(message).ok()?.trim_end_matches('\0');
        let mut fields = text.split(':');
        let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
        let (_lid, qpn, psn) = (number()?, number()?, number()?);
        Some(Self {
            qpn: Qpn::new(qpn)?,
            psn: Psn::new(psn)?,
            gid: meeting::parse_gid(fields.next()?)?,
        })
    }

    fn print(&self, whose: &str) {
        println!(
            "  {whose} LID 0x0000, QPN {:#08x}, PSN {:#08x}, GID {}",
            self.qpn.get(),
            self.psn.get(),
            as_ipv6(self.gid)
        );
    }
}

/// One side.
struct End<'a> {
    options: &'a Options,
    local: Local,
    cq: CompletionQueue,
    channel: Option<CompletionChannel>,
    qp: QueuePair,
    /// Bytes before a message.
    header: usize,
    /// Where datagrams go.
    to: Option<(AddressHandle, Qpn)>,
    /// What is sent next: of a server, what it got.
    message: Option<Buffer>,
    /// A server's: the header that came before the message that is being sent.
    split_off: Option<Buffer>,
    /// A server's: the buffer for the next receive.
    spare: Option<Buffer>,
}

impl<'a> End<'a> {
    fn new(options: &'a Options, local: Local) -> Result<Self, Box<dyn Error>> {
        let capacity = options.rx_depth + 1;
        let channel = if options.use_event {
            Some(CompletionChannel::new(&local.context)?)
        } else {
            None
        };
        let cq = match &channel {
            Some(channel) => CompletionQueue::with_channel(&local.context, capacity, channel)?,
            None => CompletionQueue::new(&local.context, capacity)?,
        };
        let attr = QpInitAttr {
            qp_type: options.qp_type,
            max_send_wr: 1,
            max_recv_wr: options.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpInitAttr::default()
        };
        let qp = QueuePair::create(&local.pd, &cq, &cq, attr)?;
        meeting::init(&qp)?;
        let header = if is_datagram(options.qp_type) {
            GRH_LEN
        } else {
            0
        };
        let room = (header + options.size()).max(1);
        // A server's message is a receive's buffer, in whose place another is posted.
        let count = options.rx_depth as usize + 1;
        let region = MemoryRegion::new(&local.pd, room * count, Access::LOCAL_WRITE)?;
        let mut buffers = region.into_buffers(room);
        let spare = buffers.pop();
        for buffer in buffers {
            qp.post_recv(RECEIVE, buffer)?;
        }
        if options.use_event {
            cq.req_notify(Notify::Any)?;
        }
        let message = match options.server {
            Some(_) => Some(Buffer::new(&local.pd, options.size().max(1))?),
            None => None,
        };
        Ok(Self {
            options,
            local,
            cq,
            channel,
            qp,
            header,
            to: None,
            message,
            split_off: None,
            spare,
        })
    }

    /// Tells who we are and learns who the peer is; both are connected afterwards.
    fn exchange(&mut self, stream: &mut TcpStream) -> Result<(), Box<dyn Error>> {
        let own = Destination {
            qpn: self.qp.qpn(),
            psn: self.local.psn,
            gid: self.local.gid,
        };
        own.print("local address: ");
        let mut message = [0; MESSAGE_LEN];
        let peer = |message: &[u8; MESSAGE_LEN]| {
            Destination::parse(message).ok_or("the peer sent no address")
        };
        if self.options.server.is_some() {
            stream.write_all(&own.to_message())?;
            stream.read_exact(&mut message)?;
            stream.write_all(DONE)?;
            self.connect(&peer(&message)?)?;
        } else {
            stream.read_exact(&mut message)?;
            self.connect(&peer(&message)?)?;
            stream.write_all(&own.to_message())?;
            let mut done = [0; DONE.len()];
            stream.read_exact(&mut done)?;
            if done != *DONE {
                return Err("the client is not done".into());
            }
        }
        peer(&message)?.print("remote address:");
        Ok(())
    }

    fn connect(&mut self, peer: &Destination) -> Result<(), Box<dyn Error>> {
        let terms = Terms {
            remote_qpn: peer.qpn,
            remote_psn: peer.psn,
            mtu: self.options.mtu,
            rd_atomic: 1,
        };
        meeting::connect(&self.qp, &self.local, peer.gid, &terms)?;
        if is_datagram(self.options.qp_type) {
            self.to = Some((self.local.path(peer.gid)?, peer.qpn));
        }
        Ok(())
    }

    /// The messages, and how long they took.
    fn play(&mut self) -> Result<(), Box<dyn Error>> {
        let Options { iters, .. } = *self.options;
        let (mut received, mut sent) = (0, 0);
        let start = Instant::now();
        // The ball is ours: we have the message, and the one before has left.
        let mut has_ball = self.options.server.is_some();
        let mut is_sending = false;
        while received < iters || sent < iters {
            if has_ball && !is_sending && sent < iters {
                self.serve_ball(sent)?;
                (has_ball, is_sending) = (false, true);
            }
            let completion = self.completion()?.ok()?;
            if completion.is_send {
                sent += 1;
                is_sending = false;
                self.take_back(completion.buffers)?;
            } else {
                self.take_message(completion, received)?;
                received += 1;
                has_ball = true;
            }
        }
        self.print(start.elapsed());
        Ok(())
    }

    /// Sends the message.
    fn serve_ball(&mut self, number: u64) -> Result<(), Box<dyn Error>> {
        let mut message = self.message.take().ok_or("nothing to send")?;
        if self.options.server.is_some() {
            fill(&mut message, number, self.options.validate);
        }
        message.set_len(self.options.size().min(message.capacity()));
        let mut request = SendRequest::new(SEND, message);
        if let Some((ah, qpn)) = &self.to {
            request = request.to(ah, *qpn, QKEY);
        }
        self.qp.post_send(request)?;
        Ok(())
    }

    /// A sent message is the client's next, or the buffer for a server's next receive.
    fn take_back(&mut self, mut buffers: Buffers) -> Result<(), Box<dyn Error>> {
        let sent = buffers.pop().ok_or("a send without its buffer")?;
        if self.options.server.is_some() {
            self.message = Some(sent);
        } else {
            self.spare = match self.split_off.take() {
                Some(header) => header.join(sent).ok(),
                None => Some(sent),
            };
        }
        Ok(())
    }

    fn take_message(&mut self, completion: Completion, number: u64) -> Result<(), Box<dyn Error>> {
        let size = self.options.size();
        let length = completion.byte_len as usize;
        if length != self.header + size {
            return Err(format!("message {number} has {length} bytes").into());
        }
        if self.options.validate {
            let content = completion.message().ok_or("a message in pieces")?;
            check(content, number)?;
        }
        let mut buffers = completion.buffers;
        let mut room = buffers.pop().ok_or("a receive without its buffer")?;
        if self.options.server.is_some() {
            self.qp.post_recv(RECEIVE, room)?;
            return Ok(());
        }
        let mut next = match self.spare.take() {
            Some(spare) => spare,
            // The message before is still being sent.
            None => Buffer::new(&self.local.pd, room.capacity())?,
        };
        next.set_len(next.capacity());
        self.qp.post_recv(RECEIVE, next)?;
        self.message = Some(if self.header == 0 {
            room
        } else {
            let message = room.split_off(self.header);
            self.split_off = Some(room);
            message
        });
        Ok(())
    }

    fn completion(&self) -> Result<Completion, Box<dyn Error>> {
        let Some(channel) = &self.channel else {
            let completion = self.cq.wait_one(Some(PATIENCE))?;
            return completion.ok_or_else(|| NO_NEWS.into());
        };
        loop {
            if let Some(polling) = self.cq.start_poll()? {
                return Ok(polling.into_completion());
            }
            // Whatever completes after this gives an event; what has before does not.
            self.cq.req_notify(Notify::Any)?;
            if let Some(polling) = self.cq.start_poll()? {
                return Ok(polling.into_completion());
            }
            if channel.next_event(Some(PATIENCE))?.is_none() {
                return Err(NO_NEWS.into());
            }
        }
    }

    fn print(&self, took: Duration) {
        let (iters, seconds) = (self.options.iters, took.as_secs_f64());
        let bytes = self.options.size() as u64 * iters * 2;
        println!(
            "{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec",
            bytes as f64 * 8. / seconds / 1e6
        );
        println!(
            "{iters} iters in {seconds:.2} seconds = {:.2} usec/iter",
            seconds * 1e6 / iters as f64
        );
    }
}

/// As `ibv_*_pingpong` print a GID.
fn as_ipv6(gid: Gid) -> String {
    match gid.to_ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_string(),
        IpAddr::V6(v6) => v6.to_string(),
    }
}

/// Whether queue pairs of the type say where each message goes.
fn is_datagram(qp_type: QpType) -> bool {
    qp_type == QpType::Ud
}

/// The content of message `number`. The first byte of each page is zero, which is what the other programs check with `-c`.
fn fill(message: &mut [u8], number: u64, varies: bool) {
    for (index, byte) in message.iter_mut().enumerate() {
        *byte = if varies {
            pattern(index, number)
        } else {
            USUAL
        };
    }
}

fn pattern(index: usize, number: u64) -> u8 {
    if index.is_multiple_of(PAGE) {
        0
    } else {
        (index as u64).wrapping_mul(31).wrapping_add(number * 17) as u8
    }
}

/// A message is what this program's client sends, or what the other programs do.
fn check(content: &[u8], number: u64) -> Result<(), Box<dyn Error>> {
    let is_ours = |(index, byte): (usize, &u8)| *byte == pattern(index, number);
    let is_usual = |(index, byte): (usize, &u8)| {
        let expected = if index.is_multiple_of(PAGE) { 0 } else { USUAL };
        *byte == expected
    };
    if content.iter().enumerate().all(is_ours) || content.iter().enumerate().all(is_usual) {
        return Ok(());
    }
    let wrong = content
        .iter()
        .enumerate()
        .position(|pair| !is_ours(pair))
        .unwrap_or(0);
    Err(format!(
        "invalid data in message {number} at byte {wrong}: {:#04x}, not {:#04x}",
        content[wrong],
        pattern(wrong, number)
    )
    .into())
}

const MTUS: [Mtu; 5] = [
    Mtu::MTU_256,
    Mtu::MTU_512,
    Mtu::MTU_1024,
    Mtu::MTU_2048,
    Mtu::MTU_4096,
];
/// `0000:000000:000000:` and a GID, and a zero byte.
const MESSAGE_LEN: usize = 52;
const DONE: &[u8; 5] = b"done\0";
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const PAGE: usize = 4096;
/// What the other programs send.
const USUAL: u8 = 0x7b;
const NO_NEWS: &str = "no completion within 30 s";
