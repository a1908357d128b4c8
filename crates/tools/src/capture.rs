//! Capture files: opening one that several processes write to, and reading one.

use crate::failure::{Failure, system};
use crate::host;
use oarlock_hostd::Host;
use oarlock_port::pcap::{Capture, Direction, PcapError, Reader};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One UDP datagram of a capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) time: Duration,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) payload: &'a [u8],
}

/// A file that this command, its children and the host service append to, each packet whole.
#[derive(Debug)]
pub(crate) struct SharedCapture {
    pub(crate) capture: Capture,
    pub(crate) path: PathBuf,
    /// Packets that the service had failed to write, to whatever file, before it was told of this one.
    service_failed_before: Option<u64>,
}

/// The counter of packets that a capture should hold and does not.
const FAILED: &str = "port_capture_failed";

impl SharedCapture {
    /// Lets the service append what it sends and receives, until this program ends.
    pub(crate) fn trace_service(&mut self, host: &Host) -> Result<(), Failure> {
        let file = File::options()
            .append(true)
            .open(&self.path)
            .map_err(|source| Failure::File {
                path: self.path.clone(),
                source,
            })?;
        self.service_failed_before = Some(host::counter(host, FAILED)?);
        Ok(host.trace(&file)?)
    }

    /// Fails when packets are missing in the file: the service's, or of those that this process sent and received by these
    /// devices.
    pub(crate) fn check(
        &self,
        host: &Host,
        devices: &crate::connections::Devices,
    ) -> Result<(), Failure> {
        let of_service = match self.service_failed_before {
            Some(before) => host::counter(host, FAILED)?.saturating_sub(before),
            None => 0,
        };
        match of_service + devices.counter(FAILED) {
            0 => Ok(()),
            packets => Err(Failure::CaptureIncomplete {
                path: self.path.clone(),
                packets,
                cause: self.what_stops_growth(),
            }),
        }
    }

    fn what_stops_growth(&self) -> String {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        let size = std::fs::metadata(&self.path).map_or(0, |file| file.len());
        match limit {
            // Less than the largest packet is left.
            Some(limit) if size.saturating_add(LARGEST_RECORD) >= limit => {
                format!("a file may have {limit} bytes here (ulimit -f), and it has {size}")
            }
            _ => format!("it has {size} bytes; is there room on the disk?"),
        }
    }

    /// Empties or creates the file.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        Self::open(path, Capture::create(path))
    }

    /// Appends to what other processes have begun, or begins.
    pub(crate) fn join(path: &Path) -> Result<Self, Failure> {
        Self::open(path, Capture::append(path))
    }

    fn open(path: &Path, capture: io::Result<Capture>) -> Result<Self, Failure> {
        let capture = capture.map_err(|source| Failure::File {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            capture,
            path: path.to_owned(),
            service_failed_before: None,
        })
    }
}

/// The largest IP packet, and what a capture adds to it.
const LARGEST_RECORD: u64 = 65_535 + 16;

/// A file for a capture of the whole host, which nobody captures to, and whether it is new. What is in it stays.
pub(crate) fn for_record(path: &Path) -> Result<(File, bool), Failure> {
    let problem = |problem: &str| Failure::Capture {
        path: path.to_owned(),
        problem: problem.to_owned(),
    };
    let failed = |source| Failure::File {
        path: path.to_owned(),
        source,
    };
    let mut options = File::options();
    options.read(true).append(true);
    let (file, is_new) = match options.clone().create_new(true).open(path) {
        Ok(file) => (file, true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            (options.create(true).open(path).map_err(failed)?, false)
        }
        Err(error) => return Err(failed(error)),
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(problem("a capture must go to a regular file"));
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Err(problem("somebody captures to this file")),
        // A file system without locks.
        Err(_) => {}
        Ok(()) => {
            let unlocked = flock(&file, FlockOperation::Unlock);
            unlocked.map_err(|errno| failed(errno.into()))?;
        }
    }
    Ok((file, is_new))
}

/// Hands every RoCEv2 datagram of the file to `each`, in the order of time. One that was captured by its sender and by its
/// receiver is one datagram. A file that ends in the middle of a packet is read up to there, with a warning.
pub(crate) fn read(path: &Path, mut each: impl FnMut(Datagram<'_>)) -> Result<(), Failure> {
    let damaged = |error: PcapError| Failure::Capture {
        path: path.to_owned(),
        problem: error.to_string(),
    };
    let file = File::open(path).map_err(|source| Failure::File {
        path: path.to_owned(),
        source,
    })?;
    let mut reader = Reader::new(BufReader::new(file)).map_err(damaged)?;
    let mut datagrams: Vec<(Duration, IpAddr, IpAddr, Vec<u8>)> = Vec::new();
    let mut twice = Twice::default();
    loop {
        let record = match reader.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(PcapError::Truncated) if !datagrams.is_empty() => {
                let path = path.display();
                tracing::warn!("{path} ends in the middle of a packet, and is read up to there");
                break;
            }
            Err(error) => return Err(damaged(error)),
        };
        if let Some(datagram) = record.datagram()
            && datagram.destination.port() == oarlock_wire::ROCE_PORT
        {
            twice.note(datagrams.len(), record.direction, record.data);
            datagrams.push((
                record.time,
                datagram.source.ip(),
                datagram.destination.ip(),
                datagram.payload.to_vec(),
            ));
        }
    }
    let mut number = 0;
    datagrams.retain(|_| {
        number += 1;
        !twice.is_second(number - 1)
    });
    // Several writers append as they come to it; what has one time keeps the order of the file.
    datagrams.sort_by_key(|(time, ..)| *time);
    for (time, source, destination, payload) in &datagrams {
        each(Datagram {
            time: *time,
            source: *source,
            destination: *destination,
            payload,
        });
    }
    Ok(())
}

/// Datagrams that their senders and their receivers have both captured.
#[derive(Debug, Default)]
struct Twice {
    sent: HashMap<u64, u32>,
    received: Vec<(usize, u64)>,
    /// Filled when it is asked first, in the order of the file.
    second: Option<HashSet<usize>>,
}

impl Twice {
    fn note(&mut self, number: usize, direction: Direction, packet: &[u8]) {
        // Whichever was written first, each that was sent stands for one that was received.
        let mut hasher = DefaultHasher::new();
        packet.hash(&mut hasher);
        match direction {
            Direction::Sent => *self.sent.entry(hasher.finish()).or_default() += 1,
            Direction::Received => self.received.push((number, hasher.finish())),
            _ => {}
        }
    }

    fn is_second(&mut self, number: usize) -> bool {
        let Self {
            sent,
            received,
            second,
        } = self;
        let second = second.get_or_insert_with(|| {
            let is_known = |(_, hash): &&(usize, u64)| match sent.get_mut(hash) {
                Some(count @ 1..) => {
                    *count -= 1;
                    true
                }
                _ => false,
            };
            let known = received.iter().filter(is_known);
            known.map(|(number, _)| *number).collect()
        });
        second.contains(&number)
    }
}

/// The path as a child process can open it, whatever its working directory.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(system("the working directory"))
}
