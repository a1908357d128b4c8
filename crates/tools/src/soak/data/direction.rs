//! One connection: what goes out of this side, and what comes in.

use super::Moved;
use super::receive::Receiver;
use super::send::Sender;
use crate::failure::{Failure, system};
use oarlock_rdmacm::Connection;
use oarlock_verbs::{Access, Buffer, RemoteAddress, RemoteMemory, SendRequest};
use oarlock_wire::RKey;
use std::sync::Arc;
use std::time::Instant;

/// The longest message; not a multiple of any path MTU.
pub(super) const MAX_LEN: usize = 20_001;
/// Receives that are posted.
pub(super) const RECEIVES: u32 = 32;
/// Send requests that may be outstanding.
pub(super) const SENDS: u32 = 16;
/// Places for WRITEs with immediate: more than the other side can begin before a receive is posted anew, which is when the
/// first of them has been compared.
pub(super) const PLACES: u64 = 64;

/// Where what lies in the memory that each side offers.
pub(super) mod layout {
    use super::{MAX_LEN, PLACES};

    /// The words that fetch-and-add and compare-and-swap work on.
    pub(in crate::soak::data) const COUNTER: u64 = 0;
    pub(in crate::soak::data) const SWAPPED: u64 = 8;
    /// Places that the other side writes and reads back, nobody else looking. There are more than can be outstanding: a WRITE
    /// that follows a READ of its place may overtake it (IBA Vol. 1 ch. 10, ordering of work requests).
    pub(in crate::soak::data) const SCRATCH: u64 = 64;
    pub(in crate::soak::data) const SCRATCHES: u64 = super::SENDS as u64;
    /// Where WRITEs with immediate go.
    pub(in crate::soak::data) const PLACED: u64 = SCRATCH + SCRATCHES * MAX_LEN as u64;
    /// What never changes, for READs.
    pub(in crate::soak::data) const CONSTANT: u64 = PLACED + PLACES * MAX_LEN as u64;
    pub(in crate::soak::data) const LEN: usize = CONSTANT as usize + 2 * MAX_LEN;
}

/// A connection whose memory is known on both sides.
pub(super) struct Direction {
    connection: Arc<Connection>,
    memory: Arc<RemoteMemory>,
    there: RemoteAddress,
    lane: u32,
    seed: u64,
    is_active: bool,
}

impl Direction {
    /// Offers memory, says where it is, and hears where the other side's is.
    pub(super) fn new(
        connection: Arc<Connection>,
        lane: u32,
        seed: u64,
        is_active: bool,
    ) -> Result<Self, Failure> {
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let memory = connection.memory(layout::LEN, rights)?;
        let mut constant = vec![0; 2 * MAX_LEN];
        fill(CONSTANT_NUMBER, 0, &mut constant);
        memory.write_at(layout::CONSTANT, &constant)?;
        let mut place = [0; PLACE_LEN];
        place[..8].copy_from_slice(&memory.addr().to_be_bytes());
        place[8..].copy_from_slice(&memory.rkey().0.to_be_bytes());
        connection
            .queue_pair
            .post_send(SendRequest::inline(0, &place).unsignaled())?;
        let heard = connection.receive()?;
        let field: Option<[u8; PLACE_LEN]> =
            heard.message().and_then(|message| message.try_into().ok());
        let Some([a, b, c, d, e, f, g, h, i, j, k, l]) = field else {
            return Err(Failure::Protocol(
                "the other side says something else".to_owned(),
            ));
        };
        for buffer in heard.buffers {
            connection.queue_pair.post_recv(0, buffer)?;
        }
        Ok(Self {
            connection,
            memory: Arc::new(memory),
            there: RemoteAddress {
                addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
                rkey: RKey(u32::from_be_bytes([i, j, k, l])),
            },
            lane,
            seed,
            is_active,
        })
    }

    /// Moves data until `end`, or until the other side says that it has ended.
    pub(super) fn run(self, end: Option<Instant>) -> Result<Moved, Failure> {
        let receiver = Receiver::new(
            Arc::clone(&self.connection),
            Arc::clone(&self.memory),
            self.is_active,
        );
        let is_ended = receiver.is_ended();
        let receiving = std::thread::Builder::new()
            .name(format!("receive {}", self.lane))
            .spawn(move || receiver.run())
            .map_err(system("starting a thread"))?;
        let sender = Sender::new(
            Arc::clone(&self.connection),
            self.there,
            self.seed.wrapping_mul(31) + u64::from(self.lane),
        );
        let is_over = || match end {
            Some(end) => Instant::now() >= end,
            None => is_ended.load(std::sync::atomic::Ordering::Acquire),
        };
        let sent = sender.run(is_over, self.is_active);
        if sent.is_err() {
            // What is received ends with it.
            self.connection.id.disconnect()?;
        }
        let received = match receiving.join() {
            Ok(received) => received,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let mut moved = sent?;
        let received = received?;
        moved.add(&received.moved);
        // The atomics of the other side are all here, as many as it says.
        let counter = self.memory.load_u64(layout::COUNTER)?;
        let swapped = self.memory.load_u64(layout::SWAPPED)?;
        moved.mismatches += u64::from(counter != received.fetch_adds);
        moved.mismatches += u64::from(swapped != received.compare_swaps);
        let counters = self.connection.queue_pair.counters();
        moved.retransmits = counters.get(oarlock_verbs::Counter::RequestsResent);
        if self.is_active {
            self.connection.id.disconnect()?;
        } else {
            until_disconnected(&self.connection)?;
        }
        Ok(moved)
    }
}

/// Waits until the other side has heard all, which it says by disconnecting.
fn until_disconnected(connection: &Connection) -> Result<(), Failure> {
    use oarlock_rdmacm::Event;
    connection.id.set_deadline(None);
    while !matches!(
        connection.id.next_event()?,
        Event::Disconnected { .. } | Event::TimewaitExit { .. } | Event::DeviceRemoval { .. }
    ) {}
    Ok(connection.id.disconnect()?)
}

/// Bytes of message `number` from position `first` on: each follows from both.
pub(super) fn fill(number: u64, first: usize, message: &mut [u8]) {
    for (at, byte) in message.iter_mut().enumerate() {
        *byte = byte_of(number, first + at);
    }
}

/// Whether `message` is message `number` from position `first` on.
pub(super) fn is_right(number: u64, first: usize, message: &[u8]) -> bool {
    message
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte == byte_of(number, first + at))
}

/// The mixing of splitmix64, a byte of which serves each position.
fn byte_of(number: u64, at: usize) -> u8 {
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((at as u64) >> 3);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (word >> (8 * (at & 7))) as u8
}

/// A buffer with `len` bytes of room, from those that have come back.
pub(super) fn take(
    spare: &mut Vec<Buffer>,
    connection: &Connection,
    len: usize,
) -> Result<Buffer, Failure> {
    let mut buffer = match spare.pop() {
        Some(buffer) => buffer,
        None => Buffer::new(&connection.pd, MAX_LEN)?,
    };
    buffer.set_len(len);
    Ok(buffer)
}

/// Of the memory that READs find.
pub(super) const CONSTANT_NUMBER: u64 = u64::MAX;
const PLACE_LEN: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_follows_from_number_and_position() {
        let mut message = vec![0; 1000];
        fill(7, 13, &mut message);
        assert!(is_right(7, 13, &message));
        assert!(!is_right(8, 13, &message) && !is_right(7, 14, &message));
        assert!(is_right(7, 113, &message[100..]));
        for at in 0..message.len() {
            message[at] ^= 1;
            assert!(!is_right(7, 13, &message), "{at}");
            message[at] ^= 1;
        }
    }
}
