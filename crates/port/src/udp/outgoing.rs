//! The sending half of a slot, shared with whoever lets held packets go.

use super::forward::{self, ForwardToken};
use super::sender::{Sender, Senders};
use super::{Arrival, ICRC_LEN, MIN_DATAGRAM, ip_fields, loopback};
use crate::counters::Counter;
use crate::fault::{Direction, Held, Outlet};
use crate::frame::{Flow, IpFields};
use crate::pcap::{Tap, Tapped, interface_addresses};
use crate::{Counters, ROCE_PORT};
use oarlock_wire::AddressVector;
use std::io;
use std::net::IpAddr;

/// What a slot sends with.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) slot: u8,
    pub(super) token: ForwardToken,
    pub(super) senders: Senders,
    pub(super) counters: Counters,
    pub(super) tap: Tap,
}

impl Outgoing {
    /// The socket that a packet leaves from, and the addresses it leaves with.
    pub(super) fn way(&self, av: &AddressVector, packet: &[u8]) -> io::Result<(&Sender, Flow)> {
        if packet.len() < MIN_DATAGRAM - ICRC_LEN {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a packet has a BTH of 12 bytes",
            ));
        }
        let destination = av.remote.to_ip();
        let remote_slot = packet[5];
        let sender = self.senders.get(destination.is_ipv6(), remote_slot)?;
        let flow = Flow {
            source: av.local.to_ip(),
            source_port: sender.port(),
            destination,
            destination_port: ROCE_PORT,
        };
        Ok((sender, flow))
    }

    /// Sends one datagram, given in pieces of which the last ends with the ICRC.
    pub(super) fn send(
        &self,
        sender: &Sender,
        av: &AddressVector,
        flow: &Flow,
        pieces: &[&[u8]],
    ) -> io::Result<()> {
        let at = self.tap.moment();
        let result = if loopback::carries(av, flow) {
            loopback::send(&self.senders, self.token, av, flow, pieces)
        } else {
            sender.send(av, flow, pieces, None)
        };
        self.sent(1, result)?;
        self.tap
            .sent(&self.counters, at, flow, ip_fields(av, 0), pieces);
        Ok(())
    }

    /// Counts what has left, or was lost for want of room.
    pub(super) fn sent(&self, packets: u64, result: io::Result<()>) -> io::Result<()> {
        let counter = match result {
            Ok(()) => Counter::tx_packets,
            // No room at the moment, or a packet filter refused it: lost, as on any network.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EPERM)
                ) =>
            {
                Counter::tx_dropped
            }
            Err(error) => return Err(error),
        };
        self.counters.add(counter, packets);
        Ok(())
    }
}

impl Tapped for Outgoing {
    fn tap(&self) -> &Tap {
        &self.tap
    }

    fn own_addresses(&self) -> Vec<IpAddr> {
        interface_addresses()
    }
}

impl Outlet for Outgoing {
    fn put(&self, packet: &Held) -> io::Result<()> {
        match packet.direction {
            Direction::Tx => {
                let (sender, _) = self.way(&packet.av, &packet.datagram)?;
                self.send(sender, &packet.av, &packet.flow, &[&packet.datagram])
            }
            // Over loopback to our own slot, as a packet that was held.
            Direction::Rx => {
                let IpFields {
                    traffic_class,
                    hop_limit,
                    ..
                } = packet.ip;
                let arrival = Arrival {
                    flow: packet.flow,
                    interface: packet.av.scope_id,
                    traffic_class,
                    hop_limit,
                };
                forward::send_to_slot(
                    &self.senders,
                    &arrival,
                    self.token,
                    self.slot,
                    &packet.datagram,
                )
            }
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
