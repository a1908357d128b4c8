//! READ and atomics at the responder, and what arrives a second time.
//!
//! A READ is accepted when its request comes and carried out when its response packets are built, one by one, so that memory of
//! any size is read without a copy of it being kept; what the peer sent behind it may be executed before (a fence prevents that:
//! IBA Vol. 1 ch. 10 "Ordering of work requests"). An atomic is executed when it comes; its result is kept for repetitions,
//! as many results as the peer may have atomics outstanding. IBA Vol. 1 ch. 9 "RDMA READ", "Atomic operations", "Duplicate
//! requests".

use oarlock_wire::{Packet, Psn, Reth};

use super::Rc;
use super::opcodes::Service;
use super::responder::{Executed, Refusal};
use super::responses::ReadJob;
use crate::attr::AccessFlags;
use crate::counters::Counter;
use crate::memory::{AtomicOp, Memory, RemoteAccess};
use crate::vendor::VendorError;
use crate::work::MAX_MESSAGE_LEN;

impl Rc {
    pub(super) fn execute_read(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<Executed, Refusal> {
        let Some(reth) = packet.reth else {
            return Err(Refusal::invalid(VendorError::OPCODE_UNSUPPORTED));
        };
        self.check_enabled(AccessFlags::REMOTE_READ)?;
        self.check_resources()?;
        if reth.len > MAX_MESSAGE_LEN || !packet.payload.is_empty() {
            return Err(Refusal::invalid(VendorError::PACKET_LENGTH));
        }
        if reth.len > 0 {
            memory
                .check_remote(reth.rkey, reth.addr, reth.len.into(), RemoteAccess::Read)
                .map_err(|error| Refusal::remote_memory(error, None))?;
        }
        self.responder.count_message();
        self.counters.count(Counter::ReadsReceived);
        let job = self.read_job(packet, reth, false);
        self.responder.responses.push_read(job);
        Ok(Executed::Answered(self.packets(reth.len)))
    }

    pub(super) fn execute_atomic(
        &mut self,
        service: Service,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<Executed, Refusal> {
        let Some(eth) = packet.atomic_eth else {
            return Err(Refusal::invalid(VendorError::OPCODE_UNSUPPORTED));
        };
        self.check_enabled(AccessFlags::REMOTE_ATOMIC)?;
        self.check_resources()?;
        if !packet.payload.is_empty() {
            return Err(Refusal::invalid(VendorError::PACKET_LENGTH));
        }
        if !eth.addr.is_multiple_of(8) {
            return Err(Refusal::invalid(VendorError::MISALIGNED));
        }
        let op = if service == Service::CompareSwap {
            AtomicOp::CompareSwap {
                compare: eth.compare,
                swap: eth.swap_add,
            }
        } else {
            AtomicOp::FetchAdd { add: eth.swap_add }
        };
        let original = memory
            .atomic(eth.rkey, eth.addr, op)
            .map_err(|error| Refusal::remote_memory(error, None))?;
        self.responder.count_message();
        self.counters.count(Counter::AtomicsReceived);
        let results = &mut self.responder.results;
        if results.len() >= usize::from(self.attr.max_dest_rd_atomic) {
            let _ = results.pop_front();
        }
        results.push_back((packet.bth.psn, original));
        self.respond_atomic(packet.bth.psn, original, false);
        Ok(Executed::Answered(1))
    }

    /// Whether one more READ or atomic may be outstanding.
    fn check_resources(&self) -> Result<(), Refusal> {
        let responses = &self.responder.responses;
        if responses.outstanding() >= usize::from(self.attr.max_dest_rd_atomic) {
            return Err(Refusal::invalid(VendorError::TOO_MANY_READS));
        }
        if responses.is_full() {
            return Err(Refusal::NoRoom);
        }
        Ok(())
    }

    /// Answers a request that was executed before.
    pub(super) fn repeat(&mut self, packet: &Packet<'_>, service: Service) {
        match service {
            Service::Read => self.repeat_read(packet),
            Service::CompareSwap | Service::FetchAdd => self.repeat_atomic(packet.bth.psn),
            Service::Send | Service::Write => {
                if packet.bth.ack_request {
                    self.repeat_ack(packet.bth.psn);
                }
            }
            _ => self.counters.count(Counter::DroppedInvalidRequest),
        }
    }

    /// Everything up to the expected PSN is done, but the peer may still want the data of a READ between.
    fn repeat_ack(&mut self, psn: Psn) {
        if psn.is_before(self.responder.data_end) {
            self.respond(psn, self.ack_syndrome());
        } else {
            self.respond_ack();
        }
    }

    fn repeat_read(&mut self, packet: &Packet<'_>) {
        let Some(reth) = packet.reth else {
            return self.counters.count(Counter::DroppedInvalidRequest);
        };
        let is_enabled = self.attr.access.contains(AccessFlags::REMOTE_READ);
        let done = self.responder.expected.distance_from(packet.bth.psn);
        if !is_enabled || reth.len > MAX_MESSAGE_LEN || self.packets(reth.len) > done {
            // Not a part of anything that was answered before.
            return self.counters.count(Counter::DroppedInvalidRequest);
        }
        let job = self.read_job(packet, reth, true);
        let limit = usize::from(self.attr.max_dest_rd_atomic);
        let repeated = self.responder.responses.repeat_read(job, limit);
        self.counters.count(if repeated {
            Counter::DuplicateReads
        } else {
            Counter::DroppedTooManyReads
        });
    }

    fn repeat_atomic(&mut self, psn: Psn) {
        let mut results = self.responder.results.iter().rev();
        match results.find(|(at, _)| *at == psn) {
            Some(&(_, original)) => {
                self.counters.count(Counter::DuplicateAtomics);
                self.respond_atomic(psn, original, true);
            }
            None => self.counters.count(Counter::DroppedLostAtomic),
        }
    }

    fn read_job(&self, packet: &Packet<'_>, reth: Reth, is_repetition: bool) -> ReadJob {
        ReadJob {
            psn: packet.bth.psn,
            end: packet.bth.psn.add(self.packets(reth.len)),
            msn: self.responder.msn,
            addr: reth.addr,
            rkey: reth.rkey,
            left: reth.len,
            is_first: true,
            is_repetition,
            srqn: packet.xrceth.map(|xrceth| xrceth.srqn),
        }
    }

    /// Response packets of a READ.
    fn packets(&self, len: u32) -> u32 {
        len.div_ceil(self.mtu).max(1)
    }
}
