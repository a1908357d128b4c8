//! From the packet engine to the port: runs of packets of equal length leave in one call.
//!
//! Packets are built where they leave from. The headers of the first packet of a WRITE or READ response are longer than
//! those of the packets after it, so it leaves with the second one, and the others of equal length together.

use oarlock_port::Port;
use oarlock_transport::{MAX_PACKET_LEN, PacketBuf};
use oarlock_wire::{AddressVector, Time};

use crate::counters::Counters;
use crate::mr::Outgoing;
use crate::transport::{QpMemory, Transport};

/// What a thread sends with; kept in a pool, since it is large.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) bursts: Bursts,
    pub(crate) outgoing: Outgoing,
}

/// A buffer to build packets in.
pub(crate) struct Bursts {
    run: Box<[u8]>,
}

impl Default for Bursts {
    fn default() -> Self {
        // Behind a run that is as long as can be there is room for one more packet.
        Self {
            run: vec![0; MAX_RUN_LEN + MAX_PACKET_LEN + ICRC_LEN].into(),
        }
    }
}

/// The run that is being collected.
struct Run {
    av: AddressVector,
    /// A burst is received as a whole by the slot of its queue pair.
    dest_qpn: [u8; 3],
    /// Length of each packet but the last, with room for the ICRC.
    segment: usize,
    /// Length of all of them, each with room for the ICRC.
    len: usize,
    count: u64,
    /// A shorter packet ends the run.
    is_closed: bool,
}

impl Run {
    /// Whether another packet of this length may leave with those there are.
    fn takes(&self, av: &AddressVector, dest_qpn: [u8; 3], segment: usize) -> bool {
        !self.is_closed
            && self.av == *av
            && self.dest_qpn == dest_qpn
            && segment <= self.segment
            && self.count < MAX_SEGMENTS
            && self.len + segment <= MAX_RUN_LEN
    }

    /// Counts a packet that [`takes`](Self::takes) has let pass.
    fn add(&mut self, segment: usize) {
        self.len += segment;
        self.count += 1;
        self.is_closed = segment < self.segment;
    }
}

impl Bursts {
    /// Takes the packets that `transport` has to send, at most [`TURN`]; whether there may be more. Without a port (the
    /// service is gone) they are counted and dropped, so that completions can follow.
    pub(crate) fn send_turn(
        &mut self,
        transport: &mut Transport,
        now: Time,
        memory: &mut QpMemory<'_>,
        port: Option<&Port>,
        counters: &Counters,
    ) -> bool {
        let mut run: Option<Run> = None;
        let mut is_all = false;
        let mut is_whole = true;
        memory.begin_burst(&self.run);
        for _ in 0..TURN {
            let end = run.as_ref().map_or(0, |run| run.len);
            let packet: &mut PacketBuf = self.run[end..]
                .first_chunk_mut()
                .expect("a run leaves room for a packet");
            let Some(transmit) = transport.poll_transmit(now, memory, packet) else {
                is_all = true;
                break;
            };
            let segment = transmit.len + ICRC_LEN;
            let dest_qpn = [packet[5], packet[6], packet[7]];
            if let Some(run) = &mut run
                && run.takes(&transmit.av, dest_qpn, segment)
            {
                run.add(segment);
                continue;
            }
            if let Some(full) = run.take() {
                // The packet behind it, too.
                is_whole &= memory.settle(&mut self.run);
                self.flush(&full, is_whole, port, counters);
                self.run.copy_within(end..end + transmit.len, 0);
            }
            run = Some(Run {
                av: transmit.av,
                dest_qpn,
                segment,
                len: segment,
                count: 1,
                is_closed: false,
            });
        }
        is_whole &= memory.settle(&mut self.run);
        if let Some(last) = run {
            self.flush(&last, is_whole, port, counters);
        }
        memory.end_burst(&mut self.run);
        !is_all
    }

    /// Packets that are not whole, because the system has not given what it had promised, count as sent in vain.
    fn flush(&mut self, run: &Run, is_whole: bool, port: Option<&Port>, counters: &Counters) {
        if !is_whole {
            counters.send_failed.add(run.count);
            return;
        }
        let bytes = &mut self.run[..run.len];
        let sent = match port {
            None => {
                counters.send_without_port.add(run.count);
                Ok(())
            }
            Some(port) if run.count == 1 => port.send(&run.av, &bytes[..run.segment - ICRC_LEN]),
            Some(port) => port.send_run(&run.av, bytes, run.segment),
        };
        if let Err(error) = sent {
            // The peer's silence is what the requester's retries are for; they end in an error of
            // the work request.
            counters.send_failed.add(run.count);
            tracing::debug!(%error, local = %run.av.local, remote = %run.av.remote, "cannot send");
        }
    }
}

/// Packets that a queue pair may send while it is locked. One READ request of a peer asks for up to 2^31 bytes, and whoever
/// wants the queue pair, or the thread that sends them, must not wait for all of them. More than the windows of our own
/// requests, which so leave in one turn.
pub(crate) const TURN: u32 = 256;
const ICRC_LEN: usize = 4;
/// What [`Port::send_run`] takes.
const MAX_SEGMENTS: u64 = 64;
const MAX_RUN_LEN: usize = 65_000;

#[cfg(test)]
mod tests {
    use oarlock_wire::Gid;

    use super::*;

    #[test]
    fn a_run_is_of_one_path_one_queue_pair_and_one_length() {
        let gid = |last| Gid::from_ip([10, 0, 0, last].into());
        let av = AddressVector::new(gid(1), gid(2));
        let run = Run {
            av,
            dest_qpn: [2, 0, 1],
            segment: 100,
            len: 100,
            count: 1,
            is_closed: false,
        };
        assert!(run.takes(&av, [2, 0, 1], 100));
        assert!(run.takes(&av, [2, 0, 1], 40), "the last may be shorter");
        assert!(!run.takes(&av, [2, 0, 1], 101));
        assert!(!run.takes(&AddressVector::new(gid(1), gid(3)), [2, 0, 1], 100));
        // Datagrams to two slots of one host: a burst would be received as a whole by the first.
        assert!(!run.takes(&av, [3, 0, 1], 100));
        let full = Run {
            count: MAX_SEGMENTS,
            ..run
        };
        assert!(!full.takes(&av, [2, 0, 1], 100));
        let mut run = Run { count: 1, ..full };
        run.add(40);
        assert!(!run.takes(&av, [2, 0, 1], 40), "a shorter one ends it");
        let long = Run {
            len: MAX_RUN_LEN - 99,
            is_closed: false,
            ..run
        };
        assert!(!long.takes(&av, [2, 0, 1], 100));
        assert!(long.takes(&av, [2, 0, 1], 99));
    }
}
