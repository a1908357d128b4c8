//! Datagrams between two nodes: paths are set up by service resolution (SIDR), the client sends on each path, the server
//! answers every message.
//!
//! Speaks with the `udaddy` of the rdmacm-utils, on either side, and takes the same options:
//!
//! ```text
//! udaddy           [-b ADDRESS] [-c PATHS] [-C MESSAGES] [-S BYTES]          [-p udp|ipoib]
//! udaddy -s SERVER [-b ADDRESS] [-c PATHS] [-C MESSAGES] [-S BYTES] [-t TOS] [-p udp|ipoib]
//! udaddy --private              [-c PATHS] [-C MESSAGES] [-S BYTES] [-t TOS] [-p udp|ipoib]
//! ```
//!
//! `--private` runs both sides in this process, without a network.

use oarlock_rdmacm::{
    ConnParam, Event, EventChannel, Host, Identifier, PortSpace, QKey, Qpn, UdParam,
};
use oarlock_verbs::{
    AddressHandle, Buffer, Completion, CompletionQueue, GRH_LEN, QpInitAttr, QpType, QueuePair,
    SendRequest,
};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Where the server listens.
const PORT: u16 = 7174;
/// How long one step may take; a lost datagram is not sent again.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Options {
    server: Option<IpAddr>,
    bind: Option<IpAddr>,
    private: bool,
    paths: usize,
    messages: usize,
    bytes: usize,
    /// Type of service or traffic class of what a client sends; a server answers with that of the message it got.
    tos: Option<u8>,
    port_space: PortSpace,
}

impl Options {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            server: None,
            bind: None,
            private: false,
            paths: 1,
            messages: 10,
            bytes: 100,
            tos: None,
            port_space: PortSpace::UDP,
        };
        let mut arguments = arguments.skip(1);
        while let Some(option) = arguments.next() {
            if option == "--private" {
                options.private = true;
                continue;
            }
            let value = arguments
                .next()
                .ok_or_else(|| format!("{option} wants a value"))?;
            match option.as_str() {
                "-s" => options.server = Some(value.parse()?),
                "-b" => options.bind = Some(value.parse()?),
                "-c" => options.paths = value.parse()?,
                "-C" => options.messages = value.parse()?,
                "-S" => options.bytes = value.parse()?,
                "-t" => options.tos = Some(value.parse()?),
                "-p" => {
                    options.port_space = match value.as_str() {
                        "udp" | "0x0111" => PortSpace::UDP,
                        "ipoib" | "0x0002" => PortSpace::IPOIB,
                        _ => return Err(format!("no port space {value}: udp or ipoib").into()),
                    }
                }
                _ => return Err(format!("no option {option}").into()),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let outcome = Options::parse(std::env::args()).and_then(|options| run(&options));
    let status = match outcome {
        Ok(()) => {
            println!("test complete");
            0
        }
        Err(error) => {
            eprintln!("udaddy: {error}");
            1
        }
    };
    println!("return status {status}");
    ExitCode::from(status)
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    if !options.private {
        let host = Host::open()?;
        return match options.server {
            Some(server) => Client::connect(&host, options, SocketAddr::new(server, PORT))?.run(),
            None if options.tos.is_some() => Err("-t TOS is for the client".into()),
            None => Server::listen(&host, options, PORT)?.run(),
        };
    }
    let host = Host::private()?;
    let local = Options {
        bind: Some(Ipv4Addr::LOCALHOST.into()),
        ..options.clone()
    };
    let server = Server::listen(&host, &local, 0)?;
    let address = server.address;
    let serving = std::thread::spawn(move || server.run().map_err(|error| error.to_string()));
    let client = Client::connect(&host, &local, address)?.run();
    serving.join().map_err(|_| "the server has panicked")??;
    client
}

/// One path: an identifier with its queue pair.
struct Path {
    /// Keeps the path known to the other side.
    _id: Identifier,
    queue_pair: QueuePair,
    cq: CompletionQueue,
    bytes: usize,
    /// Where messages go, once that is known.
    peer: Option<(AddressHandle, Qpn, QKey)>,
}

impl Path {
    /// The identifier's queue pair, with a receive posted for every message.
    fn new(id: Identifier, options: &Options) -> Result<Self, Box<dyn Error>> {
        let device = id.device()?;
        let max = device
            .device()
            .max_path_mtu()
            .bytes()
            .map_or(0, usize::from);
        if options.bytes > max {
            return Err(
                format!("{} bytes are more than one packet of {max}", options.bytes).into(),
            );
        }
        let depth = u32::try_from(options.messages)?.max(1);
        let cq = CompletionQueue::new(&device, 2 * depth)?;
        let init = QpInitAttr {
            qp_type: QpType::Ud,
            max_send_wr: depth,
            max_recv_wr: depth,
            ..QpInitAttr::default()
        };
        let pd = device.default_pd();
        let queue_pair = id.create_qp(&pd, &cq, &cq, init)?;
        for number in 0..options.messages {
            queue_pair.post_recv(number as u64, Buffer::new(&pd, GRH_LEN + options.bytes)?)?;
        }
        Ok(Self {
            _id: id,
            queue_pair,
            cq,
            bytes: options.bytes,
            peer: None,
        })
    }

    fn post_sends(&self, messages: usize) -> Result<(), Box<dyn Error>> {
        if messages == 0 {
            return Ok(());
        }
        let (handle, qpn, qkey) = self.peer.ok_or("the path leads nowhere yet")?;
        for number in 0..messages {
            let message = Buffer::new(self.queue_pair.pd(), self.bytes)?;
            // Whoever answers finds the queue pair's number beside the message.
            let request = SendRequest::new(number as u64, message)
                .imm(self.queue_pair.qpn().get())
                .to(&handle, qpn, qkey);
            self.queue_pair.post_send(request)?;
        }
        Ok(())
    }

    /// Waits for so many messages, sent or received; the last one received.
    fn wait(&self, sends: usize, receives: usize) -> Result<Option<Completion>, Box<dyn Error>> {
        let until = Instant::now() + PATIENCE;
        let (mut sent, mut received, mut last) = (0, 0, None);
        while sent < sends || received < receives {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!(
                    "{received} of {receives} messages have come, {sent} of {sends} have gone"
                )
                .into());
            }
            let mut completions = Vec::new();
            self.cq.wait(&mut completions, Some(left))?;
            for completion in completions {
                let completion = completion.ok()?;
                if completion.is_send {
                    sent += 1;
                } else {
                    received += 1;
                    last = Some(completion);
                }
            }
        }
        Ok(last)
    }
}

struct Server {
    channel: EventChannel,
    /// Listens as long as it lives.
    _listener: Identifier,
    address: SocketAddr,
    options: Options,
}

impl Server {
    fn listen(host: &Host, options: &Options, port: u16) -> Result<Self, Box<dyn Error>> {
        println!("udaddy: starting server");
        let channel = EventChannel::new(host)?;
        let listener = Identifier::new(&channel, options.port_space)?;
        let bind = options.bind.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        listener.bind_addr(SocketAddr::new(bind, port))?;
        listener.listen(0)?;
        let address = listener.local_addr()?.ok_or("a listener is bound")?;
        Ok(Self {
            channel,
            _listener: listener,
            address,
            options: options.clone(),
        })
    }

    fn run(self) -> Result<(), Box<dyn Error>> {
        let mut paths = Vec::new();
        while paths.len() < self.options.paths {
            // An acceptance of a datagram lookup is followed by no event.
            if let Event::ConnectRequest { id, .. } = self.channel.get_event()? {
                let path = Path::new(id.clone(), &self.options)?;
                id.accept(&ConnParam::default())?;
                paths.push(path);
            }
        }
        println!("receiving data transfers");
        for path in &mut paths {
            if let Some(message) = path.wait(0, self.options.messages)? {
                let back = AddressHandle::reply_to(path.queue_pair.pd(), &message)?;
                let qpn = message.imm.map_or(message.src_qp, Qpn::truncate);
                path.peer = Some((back, qpn, QKey::RDMA_UDP));
            }
        }
        println!("sending replies");
        for path in &paths {
            path.post_sends(self.options.messages)?;
        }
        for path in &paths {
            path.wait(self.options.messages, 0)?;
        }
        println!("data transfers complete");
        Ok(())
    }
}

struct Client {
    paths: Vec<Path>,
    messages: usize,
}

impl Client {
    fn connect(host: &Host, options: &Options, server: SocketAddr) -> Result<Self, Box<dyn Error>> {
        println!("udaddy: starting client");
        let source = options.bind.map(|address| SocketAddr::new(address, 0));
        let mut paths = Vec::new();
        for _ in 0..options.paths {
            let id = Identifier::synchronous(host, options.port_space)?;
            id.set_deadline(Some(Instant::now() + PATIENCE));
            if let Some(tos) = options.tos {
                id.set_type_of_service(tos)?;
            }
            id.resolve_addr(source, server, PATIENCE)?;
            id.resolve_route(PATIENCE)?;
            let mut path = Path::new(id.clone(), options)?;
            let peer: UdParam = id.resolve_peer(&[])?;
            let handle = peer.address_handle(path.queue_pair.pd())?;
            path.peer = Some((handle, peer.qpn, peer.qkey));
            paths.push(path);
        }
        Ok(Self {
            paths,
            messages: options.messages,
        })
    }

    fn run(self) -> Result<(), Box<dyn Error>> {
        println!("initiating data transfers");
        for path in &self.paths {
            path.post_sends(self.messages)?;
        }
        println!("receiving data transfers");
        for path in &self.paths {
            path.wait(self.messages, self.messages)?;
        }
        println!("data transfers complete");
        Ok(())
    }
}
