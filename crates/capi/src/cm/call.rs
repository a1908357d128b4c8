//! Commands of the rdma_ucm ABI, to the host service and back.

use oarlock_hostd::Host;
use oarlock_ucm::abi::{Command, Header};
use oarlock_ucm::client::{Answer, Call};
use oarlock_ucm::proto::{WriteItem, WriteReply};
use zerocopy::{Immutable, IntoBytes};

use crate::errno::{Refused, Result};

/// Carries out one command on a channel.
///
/// # Errors
/// The kernel's, with the service's sentence.
pub(crate) fn call<A: Answer>(host: &Host, channel: u64, command: Call<A>) -> Result<A> {
    let mut replies = host.call(&[command.into_item(channel)])?;
    answer(replies.pop().ok_or_else(misfit)?)
}

/// Carries out a command whose structure and beside it C's own bytes are handed on as they are: the service judges them as
/// the kernel does.
///
/// # Errors
/// As [`call`].
pub(crate) fn write<T: IntoBytes + Immutable>(
    host: &Host,
    channel: u64,
    command: Command,
    body: &T,
    inline: &[u8],
) -> Result<()> {
    let body = body.as_bytes();
    let header = Header {
        cmd: command.0,
        in_len: u16::try_from(body.len()).map_err(|_| misfit())?,
        out_len: 0,
    };
    let item = WriteItem {
        channel,
        request: [header.as_bytes(), body].concat(),
        inline: inline.to_vec(),
        id_from: None,
    };
    let mut replies = host.call(&[item])?;
    answer(replies.pop().ok_or_else(misfit)?)
}

/// Reads the answer to an item.
///
/// # Errors
/// As [`call`].
pub(crate) fn answer<A: Answer>(reply: WriteReply) -> Result<A> {
    if reply.errno != 0 {
        return Err(Refused::new(reply.errno, reply.sentence));
    }
    A::decode(&reply.response).map_err(|bad| Refused::new(libc::EIO, bad.to_string()))
}

pub(crate) fn misfit() -> Refused {
    Refused::new(
        libc::EIO,
        "the host service answered something else than was asked: use the same release for both",
    )
}
