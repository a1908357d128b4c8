//! One-sided operations between two nodes that meet over TCP and connect their queue pairs by hand: RDMA WRITE, WRITE with
//! immediate, READ, compare-and-swap, fetch-and-add, a memory window and its invalidation, all checked by content.
//!
//! ```text
//! one_sided -s [OPTIONS]       offers memory and waits for a client
//! one_sided [OPTIONS] SERVER   works on the server's memory
//!   -p PORT     TCP port of the meeting (18516)
//!   -d DEVICE   name of the device (that of the TCP connection's own address)
//!   -g INDEX    own GID (that of the TCP connection's own address, else 0)
//!   -n BYTES    of the server's memory, a multiple of 8, at least 256 (1048640)
//!   -w          the server offers a memory window of type 2
//! one_sided --private [OPTIONS]  both sides in this process, without a network
//! ```
//!
//! # The exchange
//! The client sends one line, and the server, connected and with its receives posted, answers with one of the same form:
//!
//! ```text
//! oarlock-one-sided 1 qpn=%06x psn=%06x gid=%032x addr=%016x rkey=%08x window=%08x len=%u
//! ```
//!
//! `addr`, `rkey` and `len` are the server's memory: D = `len` - 64 bytes of data, then two words in host byte order that
//! are 7 and 100. `window` is the key of a window over all of it, or 0. When the server has sent `ready`, the client
//!
//! 1. WRITEs D bytes `i * 31 + 7`, then the first 64 of them inverted, with immediate 0x0a0b0c0d; READs all D;
//! 2. swaps 7 for 0x1122334455667788 in the first word, and tries it again; adds 5 and then 2^64 - 1 to the second;
//! 3. WRITEs 16 bytes 0xee to byte 128 through the window;
//! 4. SENDs `done`, which takes the window away, and sees the WRITE through it refused.
//!
//! Both end with `bye`.

#[path = "common/meeting.rs"]
mod meeting;

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::process::ExitCode;

use meeting::{Local, PATIENCE, Terms, Wish};
use oarlock_hostd::Host;
use oarlock_verbs::{
    Access, Buffer, Completion, CompletionQueue, Inline, MemoryWindow, QpInitAttr, QueuePair,
    RemoteAddress, RemoteMemory, SendRequest, WcOpcode, WcStatus, WindowType,
};
use oarlock_wire::{Gid, Mtu, Psn, Qpn, RKey};

#[derive(Clone, Debug)]
pub(crate) struct Options {
    server: Option<String>,
    serves: bool,
    private: bool,
    port: u16,
    wish: Wish,
    len: usize,
    wants_window: bool,
}

impl Options {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            server: None,
            serves: false,
            private: false,
            port: 18516,
            wish: Wish::default(),
            len: (1 << 20) + WORDS_ROOM,
            wants_window: false,
        };
        let mut arguments = arguments.skip(1);
        while let Some(option) = arguments.next() {
            let rest = &mut arguments;
            match option.as_str() {
                "-s" => options.serves = true,
                "-w" => options.wants_window = true,
                "--private" => options.private = true,
                "-p" => options.port = meeting::value(&option, rest)?,
                "-d" => options.wish.device = Some(meeting::value(&option, rest)?),
                "-g" => options.wish.gid_index = Some(meeting::value(&option, rest)?),
                "-n" => options.len = meeting::value(&option, rest)?,
                _ if option.starts_with('-') => return Err(format!("no option {option}").into()),
                _ if options.server.is_none() => options.server = Some(option),
                _ => return Err("more than one server".into()),
            }
        }
        if options.len < LEAST || !options.len.is_multiple_of(8) || options.len > 1 << 30 {
            return Err(format!("-n {}: a multiple of 8, {LEAST} to 2^30", options.len).into());
        }
        if !options.private && options.serves == options.server.is_some() {
            return Err("either -s or a server".into());
        }
        Ok(options)
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
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("one_sided: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A server and a client on a host of this process's own, that meet at 127.0.0.1.
pub(crate) fn run_private(options: &Options) -> Result<u32, Box<dyn Error>> {
    let host = Host::private()?;
    let server = Options {
        serves: true,
        server: None,
        ..options.clone()
    };
    let client = Options {
        serves: false,
        server: Some("127.0.0.1".to_owned()),
        ..options.clone()
    };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| run(&server, &host).map_err(|error| error.to_string()));
        let asked = run(&client, &host)?;
        let served = serving.join().map_err(|_| "the server has panicked")??;
        Ok(asked + served)
    })
}

/// How many things were not as they should be.
fn run(options: &Options, host: &Host) -> Result<u32, Box<dyn Error>> {
    let stream = meeting::meet(options.server.as_deref(), options.port)?;
    let local = Local::open(host, &options.wish, stream.local_addr()?)?;
    let mut end = End::new(local, stream)?;
    let has_window = if options.serves {
        end.serve(options)?
    } else {
        end.ask(options)?
    };
    println!(
        "one-sided: writes={} reads=1 atomics=4 window={} mismatches={}",
        if has_window { 3 } else { 2 },
        if has_window { "yes" } else { "no" },
        end.mismatches
    );
    Ok(end.mismatches)
}

/// Who a side is, and what it offers.
struct Introduction {
    qpn: Qpn,
    psn: Psn,
    gid: Gid,
    addr: u64,
    rkey: RKey,
    window: RKey,
    len: usize,
}

impl Introduction {
    fn to_line(&self) -> String {
        format!(
            "{GREETING} qpn={:06x} psn={:06x} gid={} addr={:016x} rkey={:08x} window={:08x} len={}\n",
            self.qpn.get(),
            self.psn.get(),
            meeting::gid_text(self.gid),
            self.addr,
            self.rkey.0,
            self.window.0,
            self.len
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.trim_end().strip_prefix(GREETING)?.split_whitespace();
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.strip_prefix('=');
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        Some(Self {
            qpn: Qpn::new(hex(field("qpn")?)?)?,
            psn: Psn::new(hex(field("psn")?)?)?,
            gid: meeting::parse_gid(field("gid")?)?,
            addr: u64::from_str_radix(field("addr")?, 16).ok()?,
            rkey: RKey(hex(field("rkey")?)?),
            window: RKey(hex(field("window")?)?),
            len: field("len")?.parse().ok()?,
        })
    }

    fn has_window(&self) -> bool {
        self.window != NO_KEY
    }

    fn at(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            addr: self.addr + offset as u64,
            rkey: self.rkey,
        }
    }

    fn in_window(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            rkey: self.window,
            ..self.at(offset)
        }
    }
}

/// One side.
struct End {
    local: Local,
    stream: BufReader<TcpStream>,
    cq: CompletionQueue,
    qp: QueuePair,
    mismatches: u32,
}

impl End {
    fn new(local: Local, stream: TcpStream) -> Result<Self, Box<dyn Error>> {
        let cq = CompletionQueue::new(&local.context, 64)?;
        let qp = QueuePair::create(&local.pd, &cq, &cq, QpInitAttr::default())?;
        meeting::init(&qp)?;
        Ok(Self {
            local,
            stream: BufReader::new(stream),
            cq,
            qp,
            mismatches: 0,
        })
    }

    fn serve(&mut self, options: &Options) -> Result<bool, Box<dyn Error>> {
        let client = self.hear()?;
        self.connect(&client)?;
        for number in 0..4 {
            self.qp
                .post_recv(number, Buffer::new(&self.local.pd, 64)?)?;
        }
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let memory = RemoteMemory::new(&self.local.pd, options.len, all)?;
        let data = options.len - WORDS_ROOM;
        memory.store_u64(data as u64, 7)?;
        memory.store_u64(data as u64 + 8, 100)?;
        let window = if options.wants_window {
            Some(self.bind(&memory)?)
        } else {
            None
        };
        let key = window.as_ref().map_or(NO_KEY, MemoryWindow::rkey);
        self.tell(&Introduction {
            addr: memory.addr(),
            rkey: memory.rkey(),
            window: key,
            len: options.len,
            ..self.introduction()
        })?;
        self.say("ready\n")?;

        let written = self.completion()?.ok()?;
        self.expect(
            written.opcode == WcOpcode::RECV_RDMA_WITH_IMM && written.imm == Some(IMM),
            "the first is a WRITE with immediate",
        );
        let mut bytes = vec![0; data];
        memory.read_at(0, &mut bytes)?;
        if window.is_some() && bytes[THROUGH] == THROUGH_WINDOW {
            // The client is quick, and has written through the window already.
            for (byte, index) in bytes[THROUGH].iter_mut().zip(THROUGH) {
                *byte = pattern(index);
            }
        }
        self.expect(is_written(&bytes), "what was written");

        let last = self.completion()?.ok()?;
        self.expect(last.message() == Some(b"done"), "what was sent");
        let words = (
            memory.load_u64(data as u64)?,
            memory.load_u64(data as u64 + 8)?,
        );
        self.expect(words == (SWAPPED, 104), "the atomics' words");
        if let Some(window) = &window {
            self.expect(last.invalidated == Some(key), "the invalidated key");
            self.expect(window.bound().is_none(), "the window is free");
            memory.read_at(THROUGH.start as u64, &mut bytes[THROUGH])?;
            self.expect(
                bytes[THROUGH] == THROUGH_WINDOW,
                "what was written through the window",
            );
        }
        self.hear_line("bye")?;
        self.say("bye\n")?;
        Ok(window.is_some())
    }

    /// A window over all of the memory.
    fn bind(&self, memory: &RemoteMemory) -> Result<MemoryWindow, Box<dyn Error>> {
        let window = MemoryWindow::new(&self.local.pd, WindowType::Two)?;
        let key = window.next_key();
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let len = memory.len() as u64;
        let request = SendRequest::bind(1, &window, key, memory, 0, len, rights);
        self.qp.post_send(request)?;
        self.completion()?.ok()?;
        Ok(window)
    }

    fn ask(&mut self, options: &Options) -> Result<bool, Box<dyn Error>> {
        self.tell(&Introduction {
            len: options.len,
            ..self.introduction()
        })?;
        let server = self.hear()?;
        if server.len < LEAST {
            return Err("the server offers too little memory".into());
        }
        self.connect(&server)?;
        self.hear_line("ready")?;
        let data = server.len - WORDS_ROOM;

        let mut buffer = Buffer::new(&self.local.pd, data)?;
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern(index);
        }
        let mut back = self
            .post(SendRequest::write(1, buffer, server.at(0)))?
            .buffers;
        let mut buffer = back.pop().ok_or("a WRITE without its buffer")?;
        for byte in &mut buffer[..INVERTED] {
            *byte = !*byte;
        }
        let inverted = buffer[..INVERTED].to_vec();
        self.post(SendRequest::write_imm(
            2,
            Inline(&inverted),
            server.at(0),
            IMM,
        ))?;
        buffer.fill(0);
        let read = self.post(SendRequest::read(3, buffer, server.at(0)))?;
        self.expect(is_written(&read.buffers[0]), "what was read");

        let (first, second) = (server.at(data), server.at(data + 8));
        let swap = |id, word| SendRequest::compare_swap(id, word, first, 7, SWAPPED);
        let add = |id, word, n| SendRequest::fetch_add(id, word, second, n);
        self.atomic(|word| swap(4, word), 7, "the first swap")?;
        self.atomic(|word| swap(5, word), SWAPPED, "the second swap")?;
        self.atomic(|word| add(6, word, 5), 100, "the first addition")?;
        self.atomic(|word| add(7, word, u64::MAX), 105, "the second addition")?;

        let through = server.in_window(THROUGH.start);
        if server.has_window() {
            self.post(SendRequest::write(8, Inline(&THROUGH_WINDOW), through))?;
            self.post(SendRequest::send_invalidate(
                9,
                Inline(b"done"),
                server.window,
            ))?;
            self.qp
                .post_send(SendRequest::write(10, Inline(&THROUGH_WINDOW), through))?;
            let status = self.completion()?.status;
            self.expect(status == WcStatus::REM_ACCESS_ERR, "the window is closed");
        } else {
            self.post(SendRequest::inline(9, b"done"))?;
        }
        self.say("bye\n")?;
        self.hear_line("bye")?;
        Ok(server.has_window())
    }

    fn atomic(
        &mut self,
        request: impl FnOnce(Buffer) -> SendRequest<'static>,
        before: u64,
        what: &str,
    ) -> Result<(), Box<dyn Error>> {
        let done = self.post(request(Buffer::new(&self.local.pd, 8)?))?;
        let word: [u8; 8] = done.buffers[0][..].try_into()?;
        self.expect(u64::from_ne_bytes(word) == before, what);
        Ok(())
    }

    /// Posts a request and waits until it has succeeded.
    fn post(&self, request: SendRequest<'_>) -> Result<Completion, Box<dyn Error>> {
        self.qp.post_send(request)?;
        Ok(self.completion()?.ok()?)
    }

    fn completion(&self) -> Result<Completion, Box<dyn Error>> {
        let completion = self.cq.wait_one(Some(PATIENCE))?;
        completion.ok_or_else(|| "no completion within 30 s".into())
    }

    fn expect(&mut self, holds: bool, what: &str) {
        if !holds {
            self.mismatches += 1;
            println!("mismatch: {what}");
        }
    }

    /// Without anything to offer.
    fn introduction(&self) -> Introduction {
        Introduction {
            qpn: self.qp.qpn(),
            psn: self.local.psn,
            gid: self.local.gid,
            addr: 0,
            rkey: NO_KEY,
            window: NO_KEY,
            len: 0,
        }
    }

    fn connect(&self, peer: &Introduction) -> Result<(), Box<dyn Error>> {
        let terms = Terms {
            remote_qpn: peer.qpn,
            remote_psn: peer.psn,
            mtu: Mtu::MTU_1024,
            rd_atomic: 4,
        };
        meeting::connect(&self.qp, &self.local, peer.gid, &terms)
    }

    fn tell(&mut self, introduction: &Introduction) -> Result<(), Box<dyn Error>> {
        self.say(&introduction.to_line())
    }

    fn hear(&mut self) -> Result<Introduction, Box<dyn Error>> {
        let line = self.line()?;
        Introduction::parse(&line).ok_or_else(|| format!("the peer says: {line}").into())
    }

    fn say(&mut self, line: &str) -> Result<(), Box<dyn Error>> {
        Ok(self.stream.get_mut().write_all(line.as_bytes())?)
    }

    fn hear_line(&mut self, expected: &str) -> Result<(), Box<dyn Error>> {
        let line = self.line()?;
        if line.trim_end() == expected {
            Ok(())
        } else {
            Err(format!("the peer says {:?}, not {expected:?}", line.trim_end()).into())
        }
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line)
    }
}

fn pattern(index: usize) -> u8 {
    (index as u8).wrapping_mul(31).wrapping_add(7)
}

/// Whether the data is that of both WRITEs.
fn is_written(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(index, byte)| {
        let expected = pattern(index);
        *byte
            == if index < INVERTED {
                !expected
            } else {
                expected
            }
    })
}

const GREETING: &str = "oarlock-one-sided 1";
/// The end of the memory, where the words are.
const WORDS_ROOM: usize = 64;
const LEAST: usize = 256;
/// Bytes of the WRITE with immediate.
const INVERTED: usize = 64;
const IMM: u32 = 0x0a0b_0c0d;
const SWAPPED: u64 = 0x1122_3344_5566_7788;
/// Where the WRITE through the window goes.
const THROUGH: Range<usize> = 128..144;
const THROUGH_WINDOW: [u8; 16] = [0xee; 16];
const NO_KEY: RKey = RKey(0);
