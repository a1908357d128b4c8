//! One work request at a time, posted and waited for: what the calls of blocking and awaited connections have in common.

use crate::error::{Error, Result};
use oarlock_verbs::{Buffer, Buffers, Completion, ProtectionDomain, SendRequest};
use std::net::SocketAddr;

/// The requests of a connection's own calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// How many there were.
    begun: u64,
    /// Completions of requests that the program has posted itself, found while waiting for one of these.
    pub(crate) others: Vec<Completion>,
    /// Where atomic operations bring the value before.
    word: Option<Buffer>,
}

/// Requests of these calls have the numbers from here on, those of the program any below.
pub(crate) const FIRST_NUMBER: u64 = 1 << 63;

impl Calls {
    /// The number of the next request.
    pub(crate) fn begin(&mut self) -> u64 {
        let number = FIRST_NUMBER + self.begun;
        self.begun += 1;
        number
    }

    /// Sorts what has completed; what became of request `number`, if that is among it. `completed` is empty then.
    pub(crate) fn sort(
        &mut self,
        call: &'static str,
        peer: Option<SocketAddr>,
        number: u64,
        completed: &mut Vec<Completion>,
    ) -> Option<Result<Buffers>> {
        let mut outcome = None;
        for completion in completed.drain(..) {
            if completion.wr_id < FIRST_NUMBER {
                self.others.push(completion);
            } else if completion.wr_id == number {
                outcome = Some(if completion.status.is_success() {
                    Ok(completion.buffers)
                } else {
                    Err(Error::WorkFailed {
                        call,
                        peer,
                        status: completion.status,
                        rule: completion.vendor_err,
                    })
                });
            }
            // Else of a call that gave up waiting: its buffers go.
        }
        outcome
    }

    /// A buffer of 8 bytes.
    pub(crate) fn word(&mut self, call: &'static str, pd: &ProtectionDomain) -> Result<Buffer> {
        match self.word.take() {
            Some(word) => Ok(word),
            None => {
                Buffer::new(pd, size_of::<u64>()).map_err(|source| Error::Verbs { call, source })
            }
        }
    }

    /// The value in it.
    pub(crate) fn value_of(&mut self, mut buffers: Buffers) -> u64 {
        let Some(word) = buffers.pop() else {
            unreachable!("a completion brings back the buffer that was posted");
        };
        let value = word
            .first_chunk()
            .map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        self.word = Some(word);
        value
    }
}

/// For `map_err` of a post: the buffers are dropped.
pub(crate) fn refused(call: &'static str) -> impl FnOnce(oarlock_verbs::PostError) -> Error {
    move |refused| Error::Verbs {
        call,
        source: refused.into(),
    }
}

/// Posts with the number, if the queue pair takes it.
pub(crate) fn post(
    call: &'static str,
    queue_pair: &oarlock_verbs::QueuePair,
    request: SendRequest<'_>,
) -> Result<()> {
    queue_pair.post_send(request).map_err(refused(call))
}
