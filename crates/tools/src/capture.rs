//! Capture files: opening one that several processes write to, and reading one.

use crate::failure::{Failure, system};
use crate::host;
use oarlock_hostd::Host;
use oarlock_port::pcap::{Capture, PcapError, Reader};
use std::fs::File;
use std::io::BufReader;
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

    fn open(path: &Path, capture: std::io::Result<Capture>) -> Result<Self, Failure> {
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

/// Hands every RoCEv2 datagram of the file to `each`, in the order of time.
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
    while let Some(record) = reader.next_record().map_err(damaged)? {
        if let Some(datagram) = record.datagram()
            && datagram.destination.port() == oarlock_wire::ROCE_PORT
        {
            datagrams.push((
                record.time,
                datagram.source.ip(),
                datagram.destination.ip(),
                datagram.payload.to_vec(),
            ));
        }
    }
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

/// The path as a child process can open it, whatever its working directory.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(system("the working directory"))
}
