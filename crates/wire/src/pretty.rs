//! One-line renderings of messages and packets, shared by logs, ladders and tools.
//!
//! Every CM message, and every [`Packet`], implements `Display`. [`AnyMad`] and [`AnyPacket`] show any bytes, however
//! nonsensical.
//!
//! ```
//! use oarlock_wire::{CommId, Drep};
//!
//! let drep = Drep { local_comm_id: CommId(0x8001), remote_comm_id: CommId(1), ..Drep::default() };
//! assert_eq!(drep.to_string(), "DREP local_comm_id=0x8001 remote_comm_id=0x0001");
//! ```

use crate::base::{AtomicEth, Bth, Ieth, Opcode, Operation, Reth};
use crate::cm::{Apr, CmMessage, Drep, Dreq, Ece, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use crate::mad::{MAD_LEN, MadHeader};
use crate::packet::Packet;
use crate::units::{CommId, Qpn, SidrStatus};
use core::fmt;

/// The line of a whole MAD: the message if it is one, else its header and what is wrong.
#[derive(Clone, Copy, Debug)]
pub struct AnyMad<'a>(pub &'a [u8; MAD_LEN]);

impl fmt::Display for AnyMad<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match CmMessage::parse(self.0) {
            Ok((_, message)) => message.fmt(f),
            Err(error) => {
                let header = MadHeader::parse(self.0);
                let (class, method) = (header.mgmt_class.0, header.method.0);
                if header.expect_cm().is_ok() {
                    write!(
                        f,
                        "{} transaction_id={} ({error})",
                        header.attribute_id, header.transaction_id
                    )
                } else {
                    write!(f, "MAD  class={class:#04x} method={method:#04x} ({error})")
                }
            }
        }
    }
}

/// The line of a packet without its ICRC: the CM message if it is one on QP1, else the packet, else what is wrong.
#[derive(Clone, Copy, Debug)]
pub struct AnyPacket<'a>(pub &'a [u8]);

impl fmt::Display for AnyPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Packet::parse(self.0) {
            Ok(packet) => match <&[u8; MAD_LEN]>::try_from(packet.payload) {
                Ok(mad) if packet.bth.dest_qpn == Qpn::QP1 && packet.deth.is_some() => {
                    AnyMad(mad).fmt(f)
                }
                _ => packet.fmt(f),
            },
            Err(error) => match self.0.first_chunk() {
                Some(bytes) => {
                    let bth = Bth::parse(bytes);
                    write!(
                        f,
                        "{} qpn={} psn={} ({error})",
                        bth.opcode, bth.dest_qpn, bth.psn
                    )
                }
                None => write!(f, "{} bytes ({error})", self.0.len()),
            },
        }
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} qpn={} psn={}",
            self.bth.opcode, self.bth.dest_qpn, self.bth.psn
        )?;
        if let Some(deth) = self.deth {
            write!(f, " src_qpn={}", deth.src_qpn)?;
        }
        if let Some(xrceth) = self.xrceth {
            write!(f, " srqn={}", xrceth.srqn)?;
        }
        if let Some(Reth { addr, rkey, len }) = self.reth {
            write!(f, " addr={addr:#018x} rkey={rkey} dma_len={len}")?;
        }
        if let Some(atomic_eth) = self.atomic_eth {
            atomic(self.bth.opcode, &atomic_eth, f)?;
        }
        if let Some(aeth) = self.aeth {
            write!(f, " syndrome=\"{}\" msn={}", aeth.syndrome, aeth.msn)?;
        }
        if let Some(ack) = self.atomic_ack_eth {
            write!(f, " original={:#018x}", ack.original)?;
        }
        if let Some(immdt) = self.immdt {
            write!(f, " imm={:#010x}", immdt.0)?;
        }
        if let Some(Ieth(rkey)) = self.ieth {
            write!(f, " invalidate={rkey}")?;
        }
        if has_payload(self.bth.opcode) || !self.payload.is_empty() {
            write!(f, " len={}", self.payload.len())?;
        }
        if self.bth.ack_request {
            f.write_str(" ack_request")?;
        }
        if self.bth.solicited {
            f.write_str(" solicited")?;
        }
        Ok(())
    }
}

/// The operands that the operation has.
fn atomic(opcode: Opcode, operands: &AtomicEth, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let AtomicEth {
        addr,
        rkey,
        swap_add,
        compare,
    } = operands;
    write!(f, " addr={addr:#018x} rkey={rkey}")?;
    if opcode.operation() == Operation::FetchAdd {
        write!(f, " add={swap_add:#018x}")
    } else {
        write!(f, " compare={compare:#018x} swap={swap_add:#018x}")
    }
}

/// Whether packets of this kind carry a payload.
const fn has_payload(opcode: Opcode) -> bool {
    !matches!(
        opcode.operation(),
        Operation::RdmaReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
    )
}

impl fmt::Display for CmMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Req(message) => message.fmt(f),
            Self::Mra(message) => message.fmt(f),
            Self::Rej(message) => message.fmt(f),
            Self::Rep(message) => message.fmt(f),
            Self::Rtu(message) => message.fmt(f),
            Self::Dreq(message) => message.fmt(f),
            Self::Drep(message) => message.fmt(f),
            Self::SidrReq(message) => message.fmt(f),
            Self::SidrRep(message) => message.fmt(f),
            Self::Lap(message) => message.fmt(f),
            Self::Apr(message) => message.fmt(f),
        }
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REQ  local_comm_id={} service_id={} qpn={} psn={}",
            self.local_comm_id, self.service_id, self.local_qpn, self.starting_psn
        )?;
        ece(self.ece, f)
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ids("MRA ", self.local_comm_id, self.remote_comm_id, f)?;
        write!(
            f,
            " message={} service_timeout={:?}",
            self.message,
            self.service_timeout.to_duration()
        )
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ids("REJ ", self.local_comm_id, self.remote_comm_id, f)?;
        write!(f, " message={} reason=\"{}\"", self.message, self.reason)
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ids("REP ", self.local_comm_id, self.remote_comm_id, f)?;
        write!(f, " qpn={} psn={}", self.local_qpn, self.starting_psn)?;
        ece(self.ece, f)
    }
}

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ids("RTU ", self.local_comm_id, self.remote_comm_id, f)
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ids("DREQ", self.local_comm_id, self.remote_comm_id, f)?;
        write!(f, " remote_qpn={}", self.remote_qpn)
    }
}

impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ids("DREP", self.local_comm_id, self.remote_comm_id, f)
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SIDR_REQ request_id={} service_id={}",
            self.request_id, self.service_id
        )
    }
}

impl fmt::Display for SidrRep {
    /// Queue pair and Q_Key are shown where the status says they are valid.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIDR_REP request_id={}", self.request_id)?;
        if self.status == SidrStatus::SUCCESS {
            write!(f, " qpn={} qkey={}", self.qpn, self.qkey)?;
        } else {
            write!(f, " status=\"{}\"", self.status)?;
        }
        ece(self.ece, f)
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ids("LAP ", self.local_comm_id, self.remote_comm_id, f)?;
        write!(
            f,
            " remote_qpn={} alternate=\"{} > {}\"",
            self.remote_qpn, self.alternate.local_gid, self.alternate.remote_gid
        )
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ids("APR ", self.local_comm_id, self.remote_comm_id, f)?;
        write!(f, " status=\"{}\"", self.status)
    }
}

/// ECE, where a message has some.
fn ece(ece: Ece, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if ece.is_none() {
        return Ok(());
    }
    write!(f, " ece={ece}")
}

fn ids(name: &str, local: CommId, remote: CommId, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{name} local_comm_id={local} remote_comm_id={remote}")
}

#[cfg(test)]
mod tests;
