//! Wireshark's dissector, where it is installed, reads messages of our making and must see the values we put in.

use crate::hand_read;
use crate::opcodes::{Header, in_an_ip_packet, listed, make};
use crate::support::{Order, Random, V6_DESTINATION, V6_SOURCE, bare, ip_packet, write_pcap};
use oarlock_sim::not_run;
use oarlock_wire::icrc::icrc_ipv6;
use oarlock_wire::{
    AttributeId, Bth, CmMessage, Deth, MAD_LEN, MadHeader, Opcode, PacketHeader, Psn, QKey, Qpn,
    ROCE_PORT, TransactionId,
};
use std::net::Ipv6Addr;
use std::process::Command;

/// Our name of a field, and the dissector's. Not here are flow label and packet rate: the dissector (4.0) takes them from the
/// wrong bits, which the flow labels of the recorded kernels show (they are known functions of the ports).
type Table = &'static [(&'static str, &'static str)];

const REQ: Table = &[
    ("local_comm_id", "infiniband.cm.req"),
    ("local_ca_guid", "infiniband.cm.req.localcaguid"),
    ("local_qkey", "infiniband.cm.req.localqkey"),
    ("local_qpn", "infiniband.cm.req.localqpn"),
    ("responder_resources", "infiniband.cm.req.responderres"),
    ("local_eecn", "infiniband.cm.req.localeecn"),
    ("initiator_depth", "infiniband.cm.req.initdepth"),
    ("remote_eecn", "infiniband.cm.req.remoteeecn"),
    (
        "remote_cm_response_timeout",
        "infiniband.cm.req.remoteresptout",
    ),
    ("transport_service", "infiniband.cm.req.transpsvctype"),
    ("end_to_end_flow_control", "infiniband.cm.req.e2eflowctrl"),
    ("starting_psn", "infiniband.cm.req.startpsn"),
    (
        "local_cm_response_timeout",
        "infiniband.cm.req.localresptout",
    ),
    ("retry_count", "infiniband.cm.req.retrcount"),
    ("partition_key", "infiniband.cm.req.pkey"),
    ("path_mtu", "infiniband.cm.req.pppmtu"),
    ("rdc_exists", "infiniband.cm.req.rdcexist"),
    ("rnr_retry_count", "infiniband.cm.req.rnrretrcount"),
    ("max_cm_retries", "infiniband.cm.req.maxcmretr"),
    ("srq", "infiniband.cm.req.srq"),
    ("extended_transport", "infiniband.cm.req.ext_transport"),
    ("local_lid", "infiniband.cm.req.prim_locallid"),
    ("remote_lid", "infiniband.cm.req.prim_remotelid"),
    ("local_gid", "infiniband.cm.req.prim_localgid"),
    ("remote_gid", "infiniband.cm.req.prim_remotegid"),
    ("traffic_class", "infiniband.cm.req.prim_tfcclass"),
    ("hop_limit", "infiniband.cm.req.prim_hoplim"),
    ("service_level", "infiniband.cm.req.prim_sl"),
    ("subnet_local", "infiniband.cm.req.prim_subnetlocal"),
    ("local_ack_timeout", "infiniband.cm.req.prim_localacktout"),
];

const REP: Table = &[
    ("local_comm_id", "infiniband.cm.rep"),
    ("remote_comm_id", "infiniband.cm.rep.remotecommid"),
    ("local_qkey", "infiniband.cm.rep.localqkey"),
    ("local_qpn", "infiniband.cm.rep.localqpn"),
    ("local_eecn", "infiniband.cm.rep.localeecn"),
    ("starting_psn", "infiniband.cm.rep.startpsn"),
    ("responder_resources", "infiniband.cm.rep.respres"),
    ("initiator_depth", "infiniband.cm.rep.initdepth"),
    ("target_ack_delay", "infiniband.cm.rep.tgtackdelay"),
    ("failover_accepted", "infiniband.cm.rep.failoveracc"),
    ("end_to_end_flow_control", "infiniband.cm.rep.e2eflowctrl"),
    ("rnr_retry_count", "infiniband.cm.rep.rnrretrcount"),
    ("srq", "infiniband.cm.rep.srq"),
    ("local_ca_guid", "infiniband.cm.rep.localcaguid"),
];

const REJ: Table = &[
    ("local_comm_id", "infiniband.cm.rej.localcommid"),
    ("remote_comm_id", "infiniband.cm.rej.remotecommid"),
    ("message", "infiniband.cm.rej.msgrej"),
    ("ari_length", "infiniband.cm.rej.rejinfolen"),
    ("reason", "infiniband.cm.rej.reason"),
];

const RTU: Table = &[
    ("local_comm_id", "infiniband.cm.rtu.localcommid"),
    ("remote_comm_id", "infiniband.cm.rtu.remotecommid"),
];

const DREQ: Table = &[
    ("local_comm_id", "infiniband.cm.dreq.localcommid"),
    ("remote_comm_id", "infiniband.cm.dreq.remotecommid"),
    ("remote_qpn", "infiniband.cm.req.remoteqpneecn"),
];

const DREP: Table = &[
    ("local_comm_id", "infiniband.cm.drsp.localcommid"),
    ("remote_comm_id", "infiniband.cm.drsp.remotecommid"),
];

/// Random messages of one kind: any bits that make one, written by us.
fn messages(attribute: AttributeId, random: &mut Random) -> Vec<CmMessage> {
    let random_message = |_| {
        let mut mad = [0; MAD_LEN];
        random.fill(&mut mad);
        MadHeader::cm(attribute, TransactionId(0)).emit(&mut mad);
        match attribute {
            AttributeId::REJ => mad[24 + 9] %= 73 << 1,
            AttributeId::SIDR_REP => mad[24 + 5] %= 73,
            AttributeId::APR => mad[24 + 8] %= 73,
            _ => {}
        }
        random.fill(&mut mad[20..24]);
        CmMessage::parse(&mad)
            .expect("any other bits make a message")
            .1
    };
    (0..20).map(random_message).collect()
}

fn in_a_packet(message: &CmMessage) -> Vec<u8> {
    let mut mad = [0; MAD_LEN];
    message.emit(TransactionId(0x1234), &mut mad);
    let deth = Deth {
        qkey: QKey::GSI,
        src_qpn: Qpn::QP1,
    };
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::QP1, Psn::default());
    let mut bytes = [0; 300];
    let len = PacketHeader::new(bth)
        .with_deth(deth)
        .emit_packet(&mad, &mut bytes)
        .expect("there is room");
    let icrc = icrc_ipv6(
        V6_SOURCE,
        V6_DESTINATION,
        0xC000,
        ROCE_PORT,
        &[&bytes[..len]],
    );
    ip_packet(
        V6_SOURCE.into(),
        V6_DESTINATION.into(),
        0xC000,
        0,
        &bytes[..len],
        icrc,
    )
}

/// The values that the dissector sees, a line for each packet; `None` where it is not installed.
fn dissect(name: &str, packets: &[Vec<u8>], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let pcap = write_pcap(name, Order::Little, 101, bare, packets);
    let mut tshark = Command::new("tshark");
    tshark
        .args([
            "-n",
            "-T",
            "fields",
            "-E",
            "separator=|",
            "-E",
            "occurrence=f",
            // Takes every SEND with invalidate for its own, and calls those that are too short for it malformed.
            "--disable-protocol",
            "rpcordma",
        ])
        .arg("-r")
        .arg(pcap);
    for field in fields {
        tshark.args(["-e", field]);
    }
    match tshark.output() {
        Ok(output) => {
            assert!(
                output.status.success(),
                "tshark: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            let text = String::from_utf8(output.stdout).expect("text");
            Some(
                text.lines()
                    .map(|line| line.split('|').map(str::to_owned).collect())
                    .collect(),
            )
        }
        Err(error) => {
            not_run(
                "tshark",
                format_args!("agreement with the dissector: tshark: {error}"),
            );
            None
        }
    }
}

/// The words of the dissector for each message. It knows the header of each, and the fields of the seven that have a table above.
const NAMES: [(AttributeId, &str); 11] = [
    (AttributeId::REQ, "CM: ConnectRequest"),
    (AttributeId::MRA, "CM: MsgRcptAck"),
    (AttributeId::REJ, "CM: ConnectReject"),
    (AttributeId::REP, "CM: ConnectReply"),
    (AttributeId::RTU, "CM: ReadyToUse"),
    (AttributeId::DREQ, "CM: DisconnectRequest"),
    (AttributeId::DREP, "CM: DisconnectReply"),
    (AttributeId::SIDR_REQ, "CM: ServiceIDResReq"),
    (AttributeId::SIDR_REP, "CM: ServiceIDResReqResp"),
    (AttributeId::LAP, "CM: LoadAlternatePath"),
    (AttributeId::APR, "CM: AlternatePathResponse"),
];

fn number(text: &str) -> u128 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16).ok(),
        None => text
            .parse()
            .ok()
            .or_else(|| text.parse::<Ipv6Addr>().ok().map(u128::from)),
    };
    parsed.unwrap_or_else(|| panic!("{text:?} is a number or an address"))
}

#[test]
fn the_dissector_sees_the_values_that_were_put_in() {
    let mut random = Random::seeded();
    for (attribute, table) in [
        (AttributeId::REQ, REQ),
        (AttributeId::REP, REP),
        (AttributeId::REJ, REJ),
        (AttributeId::RTU, RTU),
        (AttributeId::DREQ, DREQ),
        (AttributeId::DREP, DREP),
    ] {
        let messages = messages(attribute, &mut random);
        let packets: Vec<_> = messages.iter().map(in_a_packet).collect();
        let mut fields: Vec<_> = table.iter().map(|(_, theirs)| *theirs).collect();
        fields.push("_ws.malformed");
        let Some(lines) = dissect(&format!("dissect-{attribute}.pcap"), &packets, &fields) else {
            return;
        };
        assert_eq!(lines.len(), messages.len());
        for (message, line) in messages.iter().zip(lines) {
            let values = hand_read::from_message(message);
            for ((ours, theirs), seen) in table.iter().zip(&line) {
                let (_, value) = values
                    .iter()
                    .find(|(name, _)| name == ours)
                    .expect("a field of the message");
                assert_eq!(number(seen), *value, "{theirs} in {message}");
            }
            assert_eq!(line[table.len()], "", "{message} is not malformed");
        }
    }
}

/// The dissector (4.0) does not look into MRA, SIDR, LAP and APR; what it knows of them is the header, with the ECE options in it.
/// Their fields are judged by recorded kernels and by Linux's table.
#[test]
fn the_dissector_knows_every_message_by_its_header() {
    let mut random = Random::seeded();
    for (attribute, name) in NAMES {
        let messages = messages(attribute, &mut random);
        let packets: Vec<_> = messages.iter().map(in_a_packet).collect();
        let fields = [
            "_ws.col.Info",
            "infiniband.mad.mgmtclass",
            "infiniband.mad.classversion",
            "infiniband.mad.method",
            "infiniband.mad.attributeid",
            "infiniband.mad.transactionid",
            "infiniband.mad.attributemodifier",
            "_ws.malformed",
        ];
        let Some(lines) = dissect(&format!("header-{attribute}.pcap"), &packets, &fields) else {
            return;
        };
        assert_eq!(lines.len(), messages.len());
        for (message, line) in messages.iter().zip(lines) {
            let options = hand_read::from_message(message)
                .iter()
                .find_map(|(field, value)| (*field == "options").then_some(*value))
                .unwrap_or_default();
            assert_eq!(line[0], name);
            let seen: Vec<_> = line[1..7].iter().map(|text| number(text)).collect();
            assert_eq!(
                seen,
                [7, 2, 3, attribute.0.into(), 0x1234, options],
                "{message}"
            );
            assert_eq!(line[7], "", "{message} is not malformed");
        }
    }
}

/// What the dissector sees of one packet, by field; a flag that is clear is 0.
fn seen(fields: &[&'static str], line: &[String]) -> Vec<(&'static str, u128)> {
    let values = fields.iter().zip(line);
    values
        .filter(|(_, text)| !text.is_empty())
        .map(|(field, text)| match text.as_str() {
            "True" => (*field, 1),
            "False" => (*field, 0),
            // Four bytes without a colon: immediate data and invalidated keys.
            hex if matches!(*field, "infiniband.immdt" | "infiniband.ieth") => (
                *field,
                u128::from_str_radix(hex, 16).expect("four bytes in hex"),
            ),
            text => (*field, number(text)),
        })
        .collect()
}

/// Every field of every header of every opcode. The dissector (4.0) knows neither the opcodes of XRC nor CNP: of those it sees
/// the BTH; the rest is judged by the hand-written packets.
#[test]
fn the_dissector_sees_every_opcode_with_its_fields_and_nothing_malformed() {
    const FIELDS: [&str; 24] = [
        "infiniband.bth.opcode",
        "infiniband.bth.se",
        "infiniband.bth.m",
        "infiniband.bth.padcnt",
        "infiniband.bth.tver",
        "infiniband.bth.p_key",
        "infiniband.bth.destqp",
        "infiniband.bth.a",
        "infiniband.bth.psn",
        "infiniband.deth.q_key",
        "infiniband.deth.srcqp",
        "infiniband.reth.va",
        "infiniband.reth.r_key",
        "infiniband.reth.dmalen",
        "infiniband.atomiceth.swapdt",
        "infiniband.atomiceth.cmpdt",
        "infiniband.aeth.syndrome",
        "infiniband.aeth.msn",
        "infiniband.atomicacketh.origremdt",
        "infiniband.immdt",
        "infiniband.ieth",
        "infiniband.invariant.crc",
        "_ws.malformed",
        "_ws.col.Info",
    ];
    const INFO: usize = FIELDS.len() - 1;
    let mut random = Random::seeded();
    let listed = listed();
    let made: Vec<_> = (0..5)
        .flat_map(|_| &listed)
        .map(|listed| {
            let mut made = make(listed, &mut random, false);
            // Random ones are now and then taken for those of another protocol.
            let header_len = made.header.len();
            made.bytes[header_len..][..made.payload.len()].fill(0xA5);
            made
        })
        .collect();
    let packets: Vec<_> = made
        .iter()
        .map(|made| in_an_ip_packet(&made.bytes))
        .collect();
    let Some(lines) = dissect("dissect-opcodes.pcap", &packets, &FIELDS) else {
        return;
    };
    assert_eq!(lines.len(), made.len());
    let mut known = 0;
    for ((made, packet), line) in made.iter().zip(&packets).zip(lines) {
        let header = &made.header;
        let bth = &header.bth;
        let mut wanted: Vec<(&str, u128)> = vec![
            (FIELDS[0], made.listed.code.into()),
            (FIELDS[1], bth.solicited.into()),
            (FIELDS[2], bth.migrated.into()),
            (FIELDS[3], bth.pad.into()),
            (FIELDS[4], 0),
            (FIELDS[5], bth.pkey.0.into()),
            (FIELDS[6], bth.dest_qpn.get().into()),
            (FIELDS[7], bth.ack_request.into()),
            (FIELDS[8], bth.psn.get().into()),
        ];
        let is_known = !matches!(made.listed.code >> 5, 4 | 5);
        assert_eq!(is_known, !line[INFO].contains("Unknown OpCode"), "{line:?}");
        if is_known {
            known += 1;
            for kind in &made.listed.headers {
                match kind {
                    Header::Deth => wanted.extend(header.deth.iter().flat_map(|deth| {
                        [
                            (FIELDS[9], deth.qkey.0.into()),
                            (FIELDS[10], deth.src_qpn.get().into()),
                        ]
                    })),
                    Header::Reth => wanted.extend(header.reth.iter().flat_map(|reth| {
                        [
                            (FIELDS[11], reth.addr.into()),
                            (FIELDS[12], reth.rkey.0.into()),
                            (FIELDS[13], reth.len.into()),
                        ]
                    })),
                    Header::AtomicEth => {
                        wanted.extend(header.atomic_eth.iter().flat_map(|operands| {
                            [
                                (FIELDS[11], operands.addr.into()),
                                (FIELDS[12], operands.rkey.0.into()),
                                (FIELDS[14], operands.swap_add.into()),
                                (FIELDS[15], operands.compare.into()),
                            ]
                        }));
                    }
                    Header::Aeth => wanted.extend(header.aeth.iter().flat_map(|aeth| {
                        [
                            (FIELDS[16], aeth.syndrome.to_bits().into()),
                            (FIELDS[17], aeth.msn.into()),
                        ]
                    })),
                    Header::AtomicAckEth => wanted.extend(
                        header
                            .atomic_ack_eth
                            .map(|ack| (FIELDS[18], u128::from(ack.original))),
                    ),
                    Header::ImmDt => {
                        wanted.extend(header.immdt.map(|immdt| (FIELDS[19], immdt.0.into())));
                    }
                    Header::Ieth => {
                        wanted.extend(header.ieth.map(|ieth| (FIELDS[20], ieth.0.0.into())));
                    }
                    Header::XrcEth => unreachable!("of an opcode that the dissector knows"),
                }
            }
            let (_, icrc) = packet.split_last_chunk::<4>().expect("an ICRC");
            wanted.push((FIELDS[21], u32::from_be_bytes(*icrc).into()));
        }
        assert_eq!(seen(&FIELDS[..22], &line), wanted, "{}", made.listed.name);
        assert_eq!(line[22], "", "{} is not malformed", made.listed.name);
    }
    assert_eq!(known, 5 * (23 + 12 + 2));
}
