//! A recorded exchange with our queue pair in the place of one of its sides.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use oarlock_transport::{
    MAX_PACKET_LEN, Memory, MemoryError, Rc, RecvWr, RemoteAccess, RemoteAddress, SendData, SendOp,
    SendWr, Sge,
};
use oarlock_wire::base::Operation;
use oarlock_wire::{AddressVector, Packet, RKey, Reth, Time};

use crate::kernel::bth;
use crate::memory::VecMemory;
use crate::pcap::Recorded;

/// Local memory, and what the recorded side offered: by key, with the address that its peer uses.
struct Host {
    local: VecMemory,
    offered: BTreeMap<u32, (u64, Vec<u8>)>,
}

impl Host {
    /// Offers what the peer's request names, holding `bytes`.
    fn offer(&mut self, reth: Reth, bytes: &[u8]) {
        self.offered
            .insert(reth.rkey.0, (reth.addr, bytes.to_vec()));
    }

    fn range(&mut self, rkey: RKey, addr: u64, len: usize) -> Result<&mut [u8], MemoryError> {
        let (start, bytes) = self
            .offered
            .get_mut(&rkey.0)
            .ok_or(MemoryError::InvalidRemoteKey(rkey))?;
        let at = addr.wrapping_sub(*start) as usize;
        bytes
            .get_mut(at..at.saturating_add(len))
            .ok_or(MemoryError::OutOfBounds {
                addr,
                len: len as u64,
            })
    }
}

impl Memory for Host {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.local.scatter(sges, offset, data)
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.local.gather(sges, offset, out)
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u64,
        _: RemoteAccess,
    ) -> Result<(), MemoryError> {
        self.range(rkey, addr, len as usize).map(|_| ())
    }

    fn write_remote(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.range(rkey, addr, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn read_remote(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        out.copy_from_slice(self.range(rkey, addr, out.len())?);
        Ok(())
    }
}

/// The request that `side` sent, and where its result went.
fn post(rc: &mut Rc, memory: &mut VecMemory, packet: &Packet<'_>) -> Option<Sge> {
    let remote = packet
        .reth
        .map_or(RemoteAddress::default(), |reth| RemoteAddress {
            addr: reth.addr,
            rkey: reth.rkey,
        });
    let (op, sge, result) = match packet.bth.opcode.operation() {
        Operation::RdmaReadRequest => {
            let len = packet.reth.map_or(0, |reth| reth.len);
            let sge = memory.alloc(len as usize);
            (SendOp::Read(remote), sge, Some(sge))
        }
        Operation::RdmaWrite => (SendOp::Write(remote), memory.store(packet.payload), None),
        _ => (SendOp::Send, memory.store(packet.payload), None),
    };
    let wr = SendWr {
        op,
        data: SendData::Sges(&[sge]),
        solicited: packet.bth.solicited,
        ..SendWr::default()
    };
    rc.post_send(&wr).expect("what the kernel sent");
    result
}

/// Plays `side` of the recorded packets: posts what it asked for when it did, and gives it what its peer sent. Gives all that
/// it sends, and what is wrong about data that arrive and requests that complete.
pub(crate) fn run(
    mut rc: Rc,
    av: AddressVector,
    side: Ipv4Addr,
    packets: &[Recorded],
) -> (Vec<Vec<u8>>, Vec<String>) {
    let mut wrong = Vec::new();
    let mut host = Host {
        local: VecMemory::new(1 << 16),
        offered: BTreeMap::new(),
    };
    let mut sent = Vec::new();
    let mut results = BTreeMap::new();
    let mut out = [0; MAX_PACKET_LEN];
    for recorded in packets {
        let packet = Packet::parse(&recorded.bytes).expect("a packet of the kernel's");
        let is_request = !packet.bth.opcode.is_response();
        if recorded.source == side {
            if is_request && let Some(sge) = post(&mut rc, &mut host.local, &packet) {
                results.insert(packet.bth.psn.get(), sge);
            }
        } else {
            let buffer = host.local.alloc(64);
            let wr = RecvWr {
                wr_id: 0,
                sges: &[buffer],
            };
            rc.post_recv(&wr).expect("there is room");
            if let Some(reth) = packet.reth {
                host.offer(reth, &answer_of(packets, &packet, reth));
            }
            rc.handle_datagram(Time::ZERO, &av, &recorded.bytes, &mut host);
            if packet.bth.opcode.operation() == Operation::RdmaWrite
                && let Some(reth) = packet.reth
                && host.offered[&reth.rkey.0].1 != packet.payload
            {
                wrong.push(format!("WRITE {} is not placed", packet.bth.psn));
            }
            if let Some(sge) = results.get(&packet.bth.psn.get()) {
                assert_eq!(host.local.load(*sge, packet.payload.len()), packet.payload);
            }
        }
        while let Some(transmit) = rc.poll_transmit(Time::ZERO, &mut host, &mut out) {
            sent.push(out[..transmit.len].to_vec());
        }
        while let Some(completion) = rc.poll_completion() {
            if !completion.status.is_success() {
                wrong.push(format!("{completion:?}"));
            }
        }
    }
    (sent, wrong)
}

/// What was answered to a READ; for a WRITE as many bytes as it announces.
fn answer_of(packets: &[Recorded], request: &Packet<'_>, reth: Reth) -> Vec<u8> {
    let answer = packets.iter().find(|recorded| {
        bth(recorded).opcode.operation() == Operation::RdmaReadResponse
            && bth(recorded).psn == request.bth.psn
    });
    match answer {
        Some(recorded) => Packet::parse(&recorded.bytes)
            .expect("data")
            .payload
            .to_vec(),
        None => vec![0; reth.len as usize],
    }
}
