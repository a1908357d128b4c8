//! Capture files: opening one that several processes write to, and reading one.

use crate::failure::{Failure, system};
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
}

impl SharedCapture {
    /// Lets the service append what it sends and receives, until this program ends.
    pub(crate) fn trace_service(&self, host: &Host) -> Result<(), Failure> {
        let file = File::options()
            .append(true)
            .open(&self.path)
            .map_err(|source| Failure::File {
                path: self.path.clone(),
                source,
            })?;
        Ok(host.trace(&file)?)
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
        })
    }
}

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
