//! Why a call was refused, and how work requests fail.

use oarlock_device as device;
use oarlock_hostd as hostd;
use oarlock_transport::WcStatus;

use crate::buffer::Buffers;

/// A call that was refused. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host has no such device.
    #[error("no device with index {index}: this host has {devices}")]
    NoSuchDevice {
        /// What was asked for.
        index: u32,
        /// The devices there are, by index and name.
        devices: String,
    },
    /// The host service refused, or is gone.
    #[error("{}{}", prefix_of(.0), .0)]
    Host(#[from] hostd::Error),
    /// A buffer is longer than an element of a work request can say.
    #[error("buffer of {given} bytes in a work request, at most {max}")]
    BufferTooLong {
        /// Its length.
        given: usize,
        /// The limit.
        max: u32,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] device::Error),
}

impl Error {
    /// Whether the host service is gone, so that nothing will work on this context any more.
    pub fn is_device_fatal(&self) -> bool {
        match self {
            Self::Device(error) => matches!(error, device::Error::DeviceFatal),
            Self::Host(error) => error.is_gone(),
            _ => false,
        }
    }
}

fn prefix_of(error: &hostd::Error) -> &'static str {
    if error.is_gone() {
        "device fatal: "
    } else {
        ""
    }
}

/// A work request that was refused, with the buffers it came with.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct PostError {
    /// Why.
    #[source]
    pub error: Error,
    /// What was to be posted.
    pub buffers: Buffers,
}

impl From<PostError> for Error {
    /// Drops the buffers.
    fn from(refused: PostError) -> Self {
        refused.error
    }
}

/// A work request that failed: see [`Completion::ok`](crate::Completion::ok).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {wr_id} failed: {status}")]
pub struct WorkError {
    /// From the work request.
    pub wr_id: u64,
    /// How it failed.
    pub status: WcStatus,
}
