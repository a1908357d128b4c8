//! SEND and RDMA WRITE at the responder: packets placed as they come.
//!
//! Bytes are placed in the order of their addresses, packet by packet, so that the last bytes of a WRITE become visible last.
//! A WRITE's key is checked for all of its bytes with its first packet, and again with each copy; that of a WRITE without bytes
//! is not looked at. Whether a WRITE with immediate finds a receive buffer is known before any byte of its last packet is
//! placed.

use oarlock_wire::{Ieth, Packet};

use super::Rc;
use super::opcodes::Meaning;
use super::responder::{Executed, Message, Refusal, Write};
use crate::attr::AccessFlags;
use crate::completion::{WcOpcode, WcStatus};
use crate::counters::Counter;
use crate::memory::{Memory, RemoteAccess};
use crate::vendor::VendorError;
use crate::work::MAX_MESSAGE_LEN;

impl Rc {
    pub(super) fn execute_send(
        &mut self,
        part: Meaning,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<Executed, Refusal> {
        let placed = match self.responder.message {
            Message::Send { placed } => placed,
            _ => {
                self.ready_receive(packet, memory)?;
                0
            }
        };
        let end = placed + packet.payload.len() as u64;
        self.check_length(part, packet)?;
        if end > u64::from(MAX_MESSAGE_LEN) {
            return Err(Refusal::invalid(VendorError::PACKET_LENGTH));
        }
        self.place_received(placed, packet.payload, memory)?;
        if !part.is_last {
            self.responder.message = Message::Send { placed: end };
            return Ok(Executed::Placed);
        }
        if let Some(Ieth(rkey)) = packet.ieth {
            // The error class of the receive is that of Linux drivers/infiniband/sw/rxe: class J of IBA Vol. 1 ch. 9
            // "Responder side error behavior".
            memory
                .invalidate(rkey)
                .map_err(|error| Refusal::remote_memory(error, Some(WcStatus::REM_INV_REQ_ERR)))?;
            self.counters.count(Counter::InvalidatesReceived);
        }
        self.responder.message = Message::None;
        self.responder.count_message();
        self.counters.count(Counter::SendsReceived);
        self.complete_receive(WcOpcode::RECV, end as u32, packet);
        Ok(Executed::Placed)
    }

    pub(super) fn execute_write(
        &mut self,
        part: Meaning,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<Executed, Refusal> {
        let write = match (self.responder.message, packet.reth) {
            (Message::Write(write), _) => write,
            (_, Some(reth)) => {
                self.check_enabled(AccessFlags::REMOTE_WRITE)?;
                Write {
                    rkey: reth.rkey,
                    addr: reth.addr,
                    left: reth.len,
                    total: reth.len,
                }
            }
            _ => return Err(Refusal::invalid(VendorError::OPCODE_SEQUENCE)),
        };
        let receive = if packet.immdt.is_some() {
            self.ready_receive(packet, memory)?;
            Some(WcStatus::LOC_ACCESS_ERR)
        } else {
            None
        };
        self.check_length(part, packet)?;
        let len = packet.payload.len() as u64;
        let fits = if part.is_last {
            u64::from(write.left) == len
        } else {
            u64::from(write.left) > len
        };
        if !fits || write.total > MAX_MESSAGE_LEN {
            return Err(Refusal::invalid(VendorError::WRITE_LENGTH));
        }
        if part.is_first && write.total > 0 {
            memory
                .check_remote(
                    write.rkey,
                    write.addr,
                    write.total.into(),
                    RemoteAccess::Write,
                )
                .map_err(|error| Refusal::remote_memory(error, receive))?;
        }
        if len > 0 {
            memory.announce(u64::from(write.left) - len);
            memory
                .write_remote(write.rkey, write.addr, packet.payload)
                .map_err(|error| Refusal::remote_memory(error, receive))?;
        }
        if !part.is_last {
            self.responder.message = Message::Write(Write {
                addr: write.addr.wrapping_add(len),
                left: write.left - len as u32,
                ..write
            });
            return Ok(Executed::Placed);
        }
        self.responder.message = Message::None;
        self.responder.count_message();
        self.counters.count(Counter::WritesReceived);
        if packet.immdt.is_some() {
            self.complete_receive(WcOpcode::RECV_RDMA_WITH_IMM, write.total, packet);
        }
        Ok(Executed::Placed)
    }

    pub(super) const fn check_enabled(&self, access: AccessFlags) -> Result<(), Refusal> {
        if self.attr.access.contains(access) {
            Ok(())
        } else {
            Err(Refusal::invalid(VendorError::ACCESS_NOT_ENABLED))
        }
    }

    /// A first or middle packet is full and without padding, a last one not empty, none longer than the path MTU.
    const fn check_length(&self, part: Meaning, packet: &Packet<'_>) -> Result<(), Refusal> {
        let len = packet.payload.len() as u64;
        let mtu = self.mtu as u64;
        let is_valid = if !part.is_last {
            len == mtu && packet.bth.pad == 0
        } else if part.is_first {
            len <= mtu
        } else {
            len <= mtu && len > 0
        };
        if is_valid {
            Ok(())
        } else {
            Err(Refusal::invalid(VendorError::PACKET_LENGTH))
        }
    }
}
