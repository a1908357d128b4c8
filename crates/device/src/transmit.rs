//! From the packet engine to the port: runs of packets of equal length leave in one call.

use oarlock_port::Port;
use oarlock_transport::{MAX_PACKET_LEN, Memory, PacketBuf};
use oarlock_wire::{AddressVector, Time};

use crate::counters::Counters;
use crate::transport::Transport;

/// Buffers to build packets in; kept in a pool, since they are large.
pub(crate) struct Scratch {
    packet: Box<PacketBuf>,
    run: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            packet: Box::new([0; MAX_PACKET_LEN]),
            run: Vec::with_capacity(MAX_RUN_LEN),
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
    }
}

impl Scratch {
    /// Takes all packets that `transport` has to send. Without a port (the service is gone) they are
    /// counted and dropped, so that completions can follow.
    pub(crate) fn send_all(
        &mut self,
        transport: &mut Transport,
        now: Time,
        memory: &mut dyn Memory,
        port: Option<&Port>,
        counters: &Counters,
    ) {
        let mut run: Option<Run> = None;
        while let Some(transmit) = transport.poll_transmit(now, memory, &mut self.packet) {
            let segment = transmit.len + ICRC_LEN;
            let dest_qpn = [self.packet[5], self.packet[6], self.packet[7]];
            let fits = run.as_ref().is_some_and(|run| {
                run.takes(&transmit.av, dest_qpn, segment)
                    && self.run.len() + segment <= MAX_RUN_LEN
            });
            if !fits && let Some(full) = run.take() {
                self.flush(&full, port, counters);
            }
            self.run.extend_from_slice(&self.packet[..transmit.len]);
            self.run.extend_from_slice(&[0; ICRC_LEN]);
            match &mut run {
                Some(run) => {
                    run.count += 1;
                    run.is_closed = segment < run.segment;
                }
                None => {
                    run = Some(Run {
                        av: transmit.av,
                        dest_qpn,
                        segment,
                        count: 1,
                        is_closed: false,
                    });
                }
            }
        }
        if let Some(last) = run {
            self.flush(&last, port, counters);
        }
    }

    fn flush(&mut self, run: &Run, port: Option<&Port>, counters: &Counters) {
        let sent = match port {
            None => {
                counters.send_without_port.add(run.count);
                Ok(())
            }
            Some(port) if run.count == 1 => port.send(&run.av, &self.run[..run.segment - ICRC_LEN]),
            Some(port) => port.send_run(&run.av, &mut self.run, run.segment),
        };
        if let Err(error) = sent {
            // The peer's silence is what the requester's retries are for; they end in an error of
            // the work request.
            counters.send_failed.add(run.count);
            tracing::debug!(%error, local = %run.av.local, remote = %run.av.remote, "cannot send");
        }
        self.run.clear();
    }
}

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
        let closed = Run {
            count: 2,
            is_closed: true,
            ..full
        };
        assert!(!closed.takes(&av, [2, 0, 1], 40));
    }
}
