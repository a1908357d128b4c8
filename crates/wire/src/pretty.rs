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

use crate::base::Bth;
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
        if let Some(aeth) = self.aeth {
            write!(f, " syndrome=\"{}\" msn={}", aeth.syndrome, aeth.msn)?;
        }
        if let Some(immdt) = self.immdt {
            write!(f, " imm={:#010x}", immdt.0)?;
        }
        if self.aeth.is_none() {
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
mod tests {
    use super::*;
    use crate::base::{Aeth, NakCode, Opcode, Syndrome};
    use crate::cm::MessageKind;
    use crate::packet::PacketHeader;
    use crate::units::{IbTimeout, Psn, RejReason, ServiceId, TransactionId};
    use std::string::ToString;

    #[test]
    fn each_message_is_one_line_that_names_its_fields() {
        let (local_comm_id, remote_comm_id) = (CommId(1), CommId(0x8001));
        let req = Req {
            local_comm_id,
            service_id: ServiceId(0x0106_1D2F),
            local_qpn: Qpn::truncate(0x11),
            starting_psn: Psn::truncate(0x3E8),
            ..Req::default()
        };
        let rep = Rep {
            local_comm_id,
            remote_comm_id,
            local_qpn: Qpn::truncate(0x12),
            ..Rep::default()
        };
        let rtu = Rtu {
            local_comm_id,
            remote_comm_id,
            ..Rtu::default()
        };
        let rej = Rej {
            local_comm_id,
            remote_comm_id,
            message: MessageKind::REP,
            reason: RejReason::CONSUMER_DEFINED,
            ..Rej::default()
        };
        let mra = Mra {
            local_comm_id,
            remote_comm_id,
            service_timeout: IbTimeout::truncate(24),
            ..Mra::default()
        };
        let dreq = Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn: Qpn::truncate(0x12),
            ..Dreq::default()
        };
        let lines = [
            (
                req.into(),
                "REQ  local_comm_id=0x0001 service_id=0x0000000001061d2f qpn=0x000011 psn=0x0003e8",
            ),
            (
                CmMessage::from(rep),
                "REP  local_comm_id=0x0001 remote_comm_id=0x8001 qpn=0x000012 psn=0x000000",
            ),
            (
                rtu.into(),
                "RTU  local_comm_id=0x0001 remote_comm_id=0x8001",
            ),
            (
                rej.into(),
                "REJ  local_comm_id=0x0001 remote_comm_id=0x8001 message=REP reason=\"consumer defined (28)\"",
            ),
            (
                mra.into(),
                "MRA  local_comm_id=0x0001 remote_comm_id=0x8001 message=REQ service_timeout=68.719476736s",
            ),
            (
                dreq.into(),
                "DREQ local_comm_id=0x0001 remote_comm_id=0x8001 remote_qpn=0x000012",
            ),
        ];
        for (message, line) in lines {
            assert_eq!(message.to_string(), line);
        }
    }

    #[test]
    fn any_bytes_have_a_line() {
        let mut mad = [0; MAD_LEN];
        assert_eq!(
            AnyMad(&mad).to_string(),
            "MAD  class=0x00 method=0x00 (MAD, base version: version 0 is not supported)"
        );
        Rtu::default().emit(TransactionId(7), &mut mad);
        mad[17] = 0x19;
        assert_eq!(
            AnyMad(&mad).to_string(),
            "LAP transaction_id=0x0000000000000007 (MAD, attribute ID: attribute 0x0019 is not supported)"
        );
        assert_eq!(
            AnyPacket(&mad[..3]).to_string(),
            "3 bytes (BTH, length: truncated: 3 bytes of 12)"
        );
    }

    #[test]
    fn a_packet_line_shows_what_its_headers_say() {
        let bth = Bth::new(
            Opcode::RC_ACKNOWLEDGE,
            Qpn::truncate(0x11),
            Psn::truncate(5),
        );
        let aeth = Aeth {
            syndrome: Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR),
            msn: 3,
        };
        let mut bytes = [0; 64];
        let len = PacketHeader::new(bth)
            .with_aeth(aeth)
            .emit(0, &mut bytes)
            .expect("the AETH belongs to it");
        assert_eq!(
            AnyPacket(&bytes[..len]).to_string(),
            "RC_ACKNOWLEDGE qpn=0x000011 psn=0x000005 syndrome=\"NAK PSN sequence error\" msn=3"
        );
        let write = Bth {
            opcode: Opcode::RC_RDMA_WRITE_ONLY,
            ..bth
        };
        write.emit(bytes.first_chunk_mut().expect("64 bytes"));
        assert_eq!(
            AnyPacket(&bytes[..28]).to_string(),
            "RC_RDMA_WRITE_ONLY qpn=0x000011 psn=0x000005 (BTH, opcode: opcode 0x0a is not supported)"
        );
    }
}
