//! What is measured, as both sides know it, and which combinations there are.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    /// The receiver posts buffers and gets a completion for every message
    Send,
    /// The bytes go into the other side's memory, which hears nothing
    Write,
    /// The bytes come out of the other side's memory, which hears nothing
    Read,
    /// 8 bytes of the other side's memory are changed at once, see --atomic
    Atomic,
}

/// The transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    /// Reliable connection
    Rc,
    /// Unreliable connection: send and write
    Uc,
    /// Unreliable datagrams: send of at most the path MTU
    Ud,
}

/// How the bytes get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Path {
    /// RoCEv2, over UDP port 4791
    Udp,
    /// Between two processes of one host, past the network
    Local,
    /// Sockets of TCP in place of queue pairs, for comparison: send and write are a stream, read is a request and its answer
    Tcp,
}

/// How both sides wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// They look again and again
    Poll,
    /// They sleep until they are woken: a completion channel, with TCP poll(2)
    Event,
}

/// The atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Atomic {
    /// Fetch and add
    Fadd,
    /// Compare and swap
    Cswap,
}

/// What both sides must know.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) op: Op,
    pub(super) atomic: Atomic,
    pub(super) transport: Transport,
    pub(super) path: Path,
    pub(super) mode: Mode,
    /// Bytes in a message.
    pub(super) size: u32,
    /// Queue pairs; with TCP connections.
    pub(super) qps: u32,
    /// Work requests outstanding on each.
    pub(super) window: u32,
    /// One message after the other is timed, in place of as many as can be.
    pub(super) lat: bool,
    /// Contents are made and compared.
    pub(super) check: bool,
    pub(super) seconds: f64,
}

/// Why there is no such measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    LocalPath,
    /// The transport service has no such operation.
    NoSuchOp(Op, Transport),
    TransportOverTcp(Transport),
    AtomicOverTcp,
    AtomicSize(u32),
    LatencyQps(u32),
    LatencyWindow(u32),
    Memory {
        asked: u64,
    },
    /// A datagram is one packet.
    DatagramSize {
        size: u32,
        mtu: u32,
    },
    Range(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalPath => f.write_str(
                "--path local: data between two processes of one host goes by UDP, there is no other path yet; use --path udp",
            ),
            Self::NoSuchOp(op, transport) => write!(
                f,
                "{op} on {transport}: unreliable connections have send and write, unreliable datagrams send, and only reliable connections have all"
            ),
            Self::TransportOverTcp(transport) => {
                write!(f, "--path tcp with --transport {transport}: TCP is reliable and connected")
            }
            Self::AtomicOverTcp => f.write_str("--path tcp: TCP has nothing like an atomic operation"),
            Self::AtomicSize(size) => {
                write!(f, "--size {size}: an atomic operation is one of 8 bytes")
            }
            Self::LatencyQps(qps) => {
                write!(f, "--lat with --qps {qps}: one message after the other takes one queue pair")
            }
            Self::LatencyWindow(window) => {
                write!(f, "--lat with --window {window}: one message after the other is a window of 1")
            }
            Self::Memory { asked } => write!(
                f,
                "--qps, --window and --size together need {asked} bytes of memory, and at most {MAX_MEMORY} are taken: give fewer or less, as with --window 1"
            ),
            Self::DatagramSize { size, mtu } => write!(
                f,
                "--size {size}: a datagram is one packet, and the path MTU is {mtu} bytes"
            ),
            Self::Range(what) => write!(f, "the other side asks for {what} out of range"),
        }
    }
}

impl Plan {
    /// Whether both sides could do it, as far as can be known without a device.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.path == Path::Local {
            return Err(Refusal::LocalPath);
        }
        if !SIZES.contains(&self.size) {
            return Err(Refusal::Range("a size"));
        }
        if !QPS.contains(&self.qps) {
            return Err(Refusal::Range("a number of queue pairs"));
        }
        if !WINDOWS.contains(&self.window) {
            return Err(Refusal::Range("a window"));
        }
        if !SECONDS.contains(&self.seconds) {
            return Err(Refusal::Range("a time"));
        }
        if self.path == Path::Tcp {
            if self.transport != Transport::Rc {
                return Err(Refusal::TransportOverTcp(self.transport));
            }
            if self.op == Op::Atomic {
                return Err(Refusal::AtomicOverTcp);
            }
        }
        match (self.transport, self.op) {
            (Transport::Rc, _)
            | (Transport::Uc, Op::Send | Op::Write)
            | (Transport::Ud, Op::Send) => {}
            (transport, op) => return Err(Refusal::NoSuchOp(op, transport)),
        }
        if self.op == Op::Atomic && self.size != ATOMIC_SIZE {
            return Err(Refusal::AtomicSize(self.size));
        }
        if self.lat && self.qps != 1 {
            return Err(Refusal::LatencyQps(self.qps));
        }
        if self.lat && self.window != 1 {
            return Err(Refusal::LatencyWindow(self.window));
        }
        let asked = u64::from(self.qps) * u64::from(self.receives()) * u64::from(self.size);
        if asked > MAX_MEMORY {
            return Err(Refusal::Memory { asked });
        }
        Ok(())
    }

    /// Receives that a side keeps posted on each queue pair.
    pub(super) fn receives(&self) -> u32 {
        2 * self.window
    }

    /// Whether a message may be lost without that anything has gone wrong.
    pub(super) fn may_lose(&self) -> bool {
        self.transport != Transport::Rc
    }

    /// The window that suits a size: many small messages, few large ones.
    pub(super) fn usual_window(size: u32, lat: bool) -> u32 {
        if lat {
            return 1;
        }
        (USUAL_BYTES / size.max(1)).clamp(*WINDOWS.start() + 1, USUAL_WINDOW)
    }

    /// The size that is measured where none is asked for.
    pub(super) fn usual_size(op: Op, transport: Transport, lat: bool) -> u32 {
        match (op, transport) {
            (Op::Atomic, _) => ATOMIC_SIZE,
            _ if lat => 64,
            (_, Transport::Ud) => 1024,
            _ => 65_536,
        }
    }
}

/// Bytes of an atomic operation.
pub(super) const ATOMIC_SIZE: u32 = 8;
/// The largest is what fits with a window of one.
pub(super) const SIZES: std::ops::RangeInclusive<u32> = 1..=1 << 29;
pub(super) const QPS: std::ops::RangeInclusive<u32> = 1..=256;
pub(super) const WINDOWS: std::ops::RangeInclusive<u32> = 1..=4096;
pub(super) const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;
/// What one side holds at most, in bytes.
const MAX_MEMORY: u64 = 1 << 30;
const USUAL_WINDOW: u32 = 128;
const USUAL_BYTES: u32 = 8 << 20;

macro_rules! named {
    ($($type:ident),*) => {$(
        impl fmt::Display for $type {
            /// As on the command line.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let value = self.to_possible_value();
                f.pad(value.as_ref().map_or("", |value| value.get_name()))
            }
        }
    )*};
}

named!(Op, Transport, Path, Mode, Atomic);

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// 64-byte messages, for as short as can be.
    pub(in crate::bench) fn plan(op: Op) -> Plan {
        Plan {
            op,
            atomic: Atomic::Fadd,
            transport: Transport::Rc,
            path: Path::Udp,
            mode: Mode::Event,
            size: if op == Op::Atomic { ATOMIC_SIZE } else { 64 },
            qps: 1,
            window: 16,
            lat: false,
            check: true,
            seconds: *SECONDS.start(),
        }
    }

    /// Every combination either is measured or is refused with a sentence that names what cannot be.
    #[test]
    fn what_cannot_be_measured_is_refused_by_name() {
        use Transport::{Rc, Uc, Ud};
        for (op, transport, path, refusal) in [
            (Op::Send, Rc, Path::Udp, None),
            (Op::Send, Ud, Path::Udp, None),
            (Op::Write, Uc, Path::Udp, None),
            (Op::Atomic, Rc, Path::Udp, None),
            (Op::Read, Rc, Path::Tcp, None),
            (Op::Read, Uc, Path::Udp, Some("read on uc")),
            (Op::Atomic, Uc, Path::Udp, Some("atomic on uc")),
            (Op::Write, Ud, Path::Udp, Some("write on ud")),
            (Op::Send, Rc, Path::Local, Some("--path local")),
            (
                Op::Send,
                Uc,
                Path::Tcp,
                Some("--path tcp with --transport uc"),
            ),
            (
                Op::Atomic,
                Rc,
                Path::Tcp,
                Some("nothing like an atomic operation"),
            ),
        ] {
            let plan = Plan {
                transport,
                path,
                ..plan(op)
            };
            let said = plan.check().err().map(|refusal| refusal.to_string());
            match refusal {
                None => assert_eq!(said, None),
                Some(part) => assert!(said.unwrap().contains(part), "{plan:?}"),
            }
        }
        let send = plan(Op::Send);
        for (changed, part) in [
            (Plan { lat: true, ..send }, "--lat with --window 16"),
            (
                Plan {
                    lat: true,
                    window: 1,
                    qps: 2,
                    ..send
                },
                "--lat with --qps 2",
            ),
            (
                Plan {
                    size: 16,
                    ..plan(Op::Atomic)
                },
                "--size 16: an atomic",
            ),
            (
                Plan {
                    size: 1 << 29,
                    qps: 4,
                    ..send
                },
                "bytes of memory",
            ),
            (Plan { size: 0, ..send }, "a size"),
            (Plan { qps: 0, ..send }, "a number of queue pairs"),
            (Plan { window: 0, ..send }, "a window"),
            (
                Plan {
                    seconds: f64::NAN,
                    ..send
                },
                "a time",
            ),
        ] {
            let said = changed.check().unwrap_err().to_string();
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn what_is_usual_can_be_measured() {
        for op in [Op::Send, Op::Write, Op::Read, Op::Atomic] {
            for lat in [false, true] {
                let size = Plan::usual_size(op, Transport::Rc, lat);
                let window = Plan::usual_window(size, lat);
                let plan = Plan {
                    size,
                    window,
                    lat,
                    ..plan(op)
                };
                assert_eq!(plan.check(), Ok(()));
            }
        }
        assert_eq!(Plan::usual_window(1 << 20, false), 8);
        assert_eq!(Plan::usual_window(64 << 20, false), 2);
    }
}
