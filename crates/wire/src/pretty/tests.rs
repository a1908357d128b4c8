//! Each rendering, word for word.

use super::*;
use crate::base::{Aeth, AtomicAckEth, ImmDt, NakCode, Syndrome, TransportClass, XrcEth};
use crate::cm::{AlternatePath, MessageKind};
use crate::packet::PacketHeader;
use crate::units::{
    AprStatus, Gid, IbTimeout, Psn, QKey, RKey, RejReason, ServiceId, Srqn, TransactionId,
};
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
fn a_resolution_is_one_line_that_shows_the_queue_pair_or_why_there_is_none() {
    let (request_id, service_id) = (CommId(0xD51E_41DF), ServiceId(0x0111_1C06));
    let req = SidrReq {
        request_id,
        service_id,
        ..SidrReq::default()
    };
    let granted = SidrRep {
        request_id,
        service_id,
        qpn: Qpn::truncate(0x11),
        qkey: QKey::RDMA_UDP,
        ..SidrRep::default()
    };
    let refused = SidrRep {
        status: SidrStatus::UNSUPPORTED,
        ..granted.clone()
    };
    let lines = [
        (
            CmMessage::from(req),
            "SIDR_REQ request_id=0xd51e41df service_id=0x0000000001111c06",
        ),
        (
            granted.into(),
            "SIDR_REP request_id=0xd51e41df qpn=0x000011 qkey=0x01234567",
        ),
        (
            refused.into(),
            "SIDR_REP request_id=0xd51e41df status=\"service ID not supported (1)\"",
        ),
    ];
    for (message, line) in lines {
        assert_eq!(message.to_string(), line);
    }
}

#[test]
fn an_alternate_path_and_the_answer_to_it_are_one_line_each() {
    let (local_comm_id, remote_comm_id) = (CommId(1), CommId(0x8001));
    let [local_gid, remote_gid] =
        ["192.0.2.1", "192.0.2.2"].map(|text| Gid::from_ip(text.parse().expect("an address")));
    let lap = Lap {
        local_comm_id,
        remote_comm_id,
        remote_qpn: Qpn::truncate(0x12),
        alternate: AlternatePath {
            local_gid,
            remote_gid,
            ..AlternatePath::default()
        },
        ..Lap::default()
    };
    let apr = Apr {
        local_comm_id,
        remote_comm_id,
        status: AprStatus::UNSUPPORTED,
        ..Apr::default()
    };
    assert_eq!(
        lap.to_string(),
        "LAP  local_comm_id=0x0001 remote_comm_id=0x8001 remote_qpn=0x000012 alternate=\"192.0.2.1 > 192.0.2.2\""
    );
    assert_eq!(
        apr.to_string(),
        "APR  local_comm_id=0x0001 remote_comm_id=0x8001 status=\"alternate paths not supported (2)\""
    );
}

#[test]
fn ece_is_shown_where_there_is_some() {
    let ece = Ece {
        vendor_id: 0x15B3,
        options: 1,
    };
    let messages: [CmMessage; 3] = [
        Req {
            ece,
            ..Req::default()
        }
        .into(),
        Rep {
            ece,
            ..Rep::default()
        }
        .into(),
        SidrRep {
            ece,
            ..SidrRep::default()
        }
        .into(),
    ];
    for message in messages {
        let line = message.to_string();
        assert!(line.ends_with(" ece=0x0015b3:0x00000001"), "{line}");
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
    mad[17] = 0x01;
    assert_eq!(
        AnyMad(&mad).to_string(),
        "ClassPortInfo transaction_id=0x0000000000000007 (MAD, attribute ID: attribute 0x0001 is not supported)"
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
    let resync = Bth {
        opcode: Opcode(0x55),
        ..bth
    };
    resync.emit(bytes.first_chunk_mut().expect("64 bytes"));
    assert_eq!(
        AnyPacket(&bytes[..28]).to_string(),
        "RD_RESYNC qpn=0x000011 psn=0x000005 (BTH, opcode: opcode 0x55 is not supported)"
    );
}

#[test]
fn a_packet_of_each_one_sided_operation_has_its_line() {
    let bth = |opcode| Bth::new(opcode, Qpn::truncate(0x11), Psn::truncate(5));
    let (addr, rkey) = (0x7F00_0000_1000, RKey(0x0102_0304));
    let reth = Reth {
        addr,
        rkey,
        len: 5000,
    };
    let operands = AtomicEth {
        addr,
        rkey,
        swap_add: 2,
        compare: 1,
    };
    let srqn = Srqn::truncate(7);
    let aeth = Aeth {
        syndrome: Syndrome::ACK,
        msn: 3,
    };
    let xrc_write = Opcode::RC_RDMA_WRITE_ONLY_IMM.of(TransportClass::Xrc);
    let lines = [
        (
            PacketHeader::new(bth(xrc_write))
                .with_xrceth(XrcEth { srqn })
                .with_reth(reth)
                .with_immdt(ImmDt(9)),
            "XRC_RDMA_WRITE_ONLY_IMM qpn=0x000011 psn=0x000005 srqn=0x000007 addr=0x00007f0000001000 rkey=0x01020304 dma_len=5000 imm=0x00000009 len=4",
        ),
        (
            PacketHeader::new(bth(Opcode::RC_RDMA_READ_RESPONSE_ONLY)).with_aeth(aeth),
            "RC_RDMA_READ_RESPONSE_ONLY qpn=0x000011 psn=0x000005 syndrome=\"ACK\" msn=3 len=4",
        ),
        (
            PacketHeader::new(bth(Opcode::RC_SEND_ONLY_INVALIDATE)).with_ieth(Ieth(rkey)),
            "RC_SEND_ONLY_INVALIDATE qpn=0x000011 psn=0x000005 invalidate=0x01020304 len=4",
        ),
    ];
    for (header, line) in lines {
        assert_eq!(header.packet(b"data").to_string(), line);
    }
    let lines = [
        (
            PacketHeader::new(bth(Opcode::RC_RDMA_READ_REQUEST)).with_reth(reth),
            "RC_RDMA_READ_REQUEST qpn=0x000011 psn=0x000005 addr=0x00007f0000001000 rkey=0x01020304 dma_len=5000",
        ),
        (
            PacketHeader::new(bth(Opcode::RC_COMPARE_SWAP)).with_atomic_eth(operands),
            "RC_COMPARE_SWAP qpn=0x000011 psn=0x000005 addr=0x00007f0000001000 rkey=0x01020304 compare=0x0000000000000001 swap=0x0000000000000002",
        ),
        (
            PacketHeader::new(bth(Opcode::RC_FETCH_ADD)).with_atomic_eth(operands),
            "RC_FETCH_ADD qpn=0x000011 psn=0x000005 addr=0x00007f0000001000 rkey=0x01020304 add=0x0000000000000002",
        ),
        (
            PacketHeader::new(bth(Opcode::RC_ATOMIC_ACKNOWLEDGE))
                .with_aeth(aeth)
                .with_atomic_ack_eth(AtomicAckEth { original: 1 }),
            "RC_ATOMIC_ACKNOWLEDGE qpn=0x000011 psn=0x000005 syndrome=\"ACK\" msn=3 original=0x0000000000000001",
        ),
    ];
    for (header, line) in lines {
        assert_eq!(header.packet(&[]).to_string(), line);
    }
}
