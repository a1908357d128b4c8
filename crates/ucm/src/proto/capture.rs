//! Captures of packets in pcapng.

use super::MAX_NAME;
use super::codec::{Malformed, Reader, Writer};

/// Whose packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaptureScope {
    /// Those of all programs of the service, and the service's own.
    Host,
    /// Those of the client that asks, and the service's own.
    Client,
}

/// Where a program is to write its packets from now on. With an interface the file's descriptor comes along, and with it one
/// that the program keeps open until it writes no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureNews {
    /// Grows with every beginning and every end. News with a lower number than what is known are old.
    pub generation: u64,
    /// The number of the program's interface in the file; `None`: nothing is captured.
    pub interface: Option<u32>,
}

/// How the capture of all programs stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureState {
    /// How many programs have been told of it; those that have no queue pair need not know.
    pub programs: u32,
    /// Programs that were to be told and could not be.
    pub missed: u32,
    /// What has ended it early.
    pub failure: Option<CaptureFailure>,
}

/// A packet could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFailure {
    /// The process that could not.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What the system said; 0: the packet was written in part.
    pub errno: i32,
}

impl CaptureScope {
    pub(super) fn write(self, w: &mut Writer) {
        w.u8(match self {
            Self::Host => 1,
            Self::Client => 2,
        });
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        match r.u8("scope of a capture")? {
            1 => Ok(Self::Host),
            2 => Ok(Self::Client),
            value => Err(Malformed::OutOfRange {
                field: "scope of a capture",
                value: value.into(),
                max: 2,
            }),
        }
    }
}

impl CaptureNews {
    pub(super) fn write(&self, w: &mut Writer) {
        w.u64(self.generation);
        w.option(self.interface, Writer::u32);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            generation: r.u64("generation of a capture")?,
            interface: r.option("interface of a capture", Reader::u32)?,
        })
    }
}

impl CaptureState {
    pub(super) fn write(&self, w: &mut Writer) {
        w.u32(self.programs);
        w.u32(self.missed);
        w.bool(self.failure.is_some());
        if let Some(failure) = &self.failure {
            w.u32(failure.pid);
            w.text(&failure.name, MAX_NAME);
            w.i32(failure.errno);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (programs, missed) = (r.u32("number of programs")?, r.u32("number of programs")?);
        let failure = if r.bool("failure of a capture")? {
            Some(CaptureFailure {
                pid: r.u32("process")?,
                name: r.text("program name", MAX_NAME)?,
                errno: r.i32("errno")?,
            })
        } else {
            None
        };
        Ok(Self {
            programs,
            missed,
            failure,
        })
    }
}
