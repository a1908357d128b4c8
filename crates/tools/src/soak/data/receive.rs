//! What comes in: messages and WRITEs with immediate, compared as they come, until the other side says how many there were.

use super::Moved;
use super::direction::{MAX_LEN, PLACES, is_right, layout};
use crate::failure::Failure;
use oarlock_rdmacm::Connection;
use oarlock_verbs::{Completion, RemoteMemory, WcOpcode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a side says with its last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// Messages that take a receive, before this one.
    pub(super) messages: u64,
    pub(super) fetch_adds: u64,
    pub(super) compare_swaps: u64,
}

impl Said {
    /// The immediate value of the last message; others never come so far.
    pub(super) const IMM: u32 = u32::MAX;
    /// That of a side that has nothing under way any more.
    pub(super) const FINISHED: u32 = u32::MAX - 1;

    pub(super) fn emit(self) -> [u8; 24] {
        let mut field = [0; 24];
        field[..8].copy_from_slice(&self.messages.to_be_bytes());
        field[8..16].copy_from_slice(&self.fetch_adds.to_be_bytes());
        field[16..].copy_from_slice(&self.compare_swaps.to_be_bytes());
        field
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let field: &[u8; 24] = message.try_into().ok()?;
        let word = |at: usize| {
            let bytes = field[at..at + 8].try_into();
            bytes.map(u64::from_be_bytes).unwrap_or_default()
        };
        Some(Self {
            messages: word(0),
            fetch_adds: word(8),
            compare_swaps: word(16),
        })
    }
}

pub(super) struct Receiver {
    connection: Arc<Connection>,
    memory: Arc<RemoteMemory>,
    is_ended: Arc<AtomicBool>,
    /// Whether the other side says when it has finished.
    until_finished: bool,
    next: u64,
    seen: Vec<u8>,
    moved: Moved,
}

/// What has come, and what the other side says of its atomics.
pub(super) struct Received {
    pub(super) moved: Moved,
    pub(super) fetch_adds: u64,
    pub(super) compare_swaps: u64,
}

impl Receiver {
    pub(super) fn new(
        connection: Arc<Connection>,
        memory: Arc<RemoteMemory>,
        until_finished: bool,
    ) -> Self {
        Self {
            connection,
            memory,
            is_ended: Arc::default(),
            until_finished,
            next: 0,
            seen: vec![0; MAX_LEN],
            moved: Moved::default(),
        }
    }

    /// Becomes true with the other side's last message.
    pub(super) fn is_ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_ended)
    }

    pub(super) fn run(mut self) -> Result<Received, Failure> {
        loop {
            let completion = self.connection.receive()?;
            if completion.imm == Some(Said::IMM) {
                self.is_ended.store(true, Ordering::Release);
                let said = completion.message().and_then(Said::parse);
                let Some(said) = said.filter(|said| said.messages == self.next) else {
                    return Err(Failure::Result(format!(
                        "{} messages arrived, and the other side says something else",
                        self.next
                    )));
                };
                while self.until_finished && self.connection.receive()?.imm != Some(Said::FINISHED)
                {
                }
                return Ok(Received {
                    moved: self.moved,
                    fetch_adds: said.fetch_adds,
                    compare_swaps: said.compare_swaps,
                });
            }
            self.take(completion)?;
        }
    }

    fn take(&mut self, completion: Completion) -> Result<(), Failure> {
        let number = self.next;
        self.next += 1;
        self.moved.received += 1;
        let right = completion.imm == Some(number as u32)
            && if completion.opcode == WcOpcode::RECV_RDMA_WITH_IMM {
                let len = completion.byte_len as usize;
                let place = layout::PLACED + number % PLACES * MAX_LEN as u64;
                self.memory.read_at(place, &mut self.seen[..len])?;
                is_right(number, 0, &self.seen[..len])
            } else {
                completion
                    .message()
                    .is_some_and(|message| is_right(number, 0, message))
            };
        self.moved.mismatches += u64::from(!right);
        for buffer in completion.buffers {
            self.connection.queue_pair.post_recv(0, buffer)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read() {
        let said = Said {
            messages: 1,
            fetch_adds: u64::MAX,
            compare_swaps: 3 << 40,
        };
        assert_eq!(Said::parse(&said.emit()), Some(said));
        assert_eq!(Said::parse(&[0; 23]), None);
    }
}
