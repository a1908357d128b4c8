//! Fields of CM messages read by hand: byte offsets from the specification's tables, without the crate's field tables.

use oarlock_wire::{CmMessage, Lap, PathFields, Rej, Rep, Req, SidrRep};

/// A field's name and value.
pub(crate) type Named = Vec<(&'static str, u128)>;

fn number(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0, |all, &byte| all << 8 | u128::from(byte))
}

/// The fields of a MAD that is a CM message, by offsets.
pub(crate) fn from_bytes(mad: &[u8; 256]) -> Named {
    let body = &mad[24..];
    let at = |first: usize, len: usize| number(&body[first..first + len]);
    let bits =
        |byte: usize, shift: u32, width: u32| u128::from(body[byte] >> shift & ((1 << width) - 1));
    let attribute = mad[17];
    let mut fields = match attribute {
        0x17 | 0x18 => vec![("request_id", at(0, 4))],
        _ => vec![("local_comm_id", at(0, 4))],
    };
    if !matches!(attribute, 0x10 | 0x17 | 0x18) {
        fields.push(("remote_comm_id", at(4, 4)));
    }
    if matches!(attribute, 0x10 | 0x13 | 0x18) {
        fields.push(("options", number(&mad[20..24])));
    }
    match attribute {
        0x10 => {
            fields.extend([
                ("vendor_id", at(5, 3)),
                ("service_id", at(8, 8)),
                ("local_ca_guid", at(16, 8)),
                ("local_qkey", at(28, 4)),
                ("local_qpn", at(32, 3)),
                ("responder_resources", at(35, 1)),
                ("local_eecn", at(36, 3)),
                ("initiator_depth", at(39, 1)),
                ("remote_eecn", at(40, 3)),
                ("remote_cm_response_timeout", bits(43, 3, 5)),
                ("transport_service", bits(43, 1, 2)),
                ("end_to_end_flow_control", bits(43, 0, 1)),
                ("starting_psn", at(44, 3)),
                ("local_cm_response_timeout", bits(47, 3, 5)),
                ("retry_count", bits(47, 0, 3)),
                ("partition_key", at(48, 2)),
                ("path_mtu", bits(50, 4, 4)),
                ("rdc_exists", bits(50, 3, 1)),
                ("rnr_retry_count", bits(50, 0, 3)),
                ("max_cm_retries", bits(51, 4, 4)),
                ("srq", bits(51, 3, 1)),
                ("extended_transport", bits(51, 0, 3)),
            ]);
            for path in [52, 96] {
                fields.extend([
                    ("local_lid", at(path, 2)),
                    ("remote_lid", at(path + 2, 2)),
                    ("local_gid", at(path + 4, 16)),
                    ("remote_gid", at(path + 20, 16)),
                    ("flow_label", at(path + 36, 3) >> 4),
                    ("packet_rate", bits(path + 39, 0, 6)),
                    ("traffic_class", at(path + 40, 1)),
                    ("hop_limit", at(path + 41, 1)),
                    ("service_level", bits(path + 42, 4, 4)),
                    ("subnet_local", bits(path + 42, 3, 1)),
                    ("local_ack_timeout", bits(path + 43, 3, 5)),
                ]);
            }
        }
        0x11 => fields.extend([
            ("message", bits(8, 6, 2)),
            ("service_timeout", bits(9, 3, 5)),
        ]),
        0x12 => fields.extend([
            ("message", bits(8, 6, 2)),
            ("ari_length", bits(9, 1, 7)),
            ("reason", at(10, 2)),
        ]),
        0x13 => fields.extend([
            ("local_qkey", at(8, 4)),
            ("local_qpn", at(12, 3)),
            ("vendor_id", at(15, 1) << 16 | at(19, 1) << 8 | at(23, 1)),
            ("local_eecn", at(16, 3)),
            ("starting_psn", at(20, 3)),
            ("responder_resources", at(24, 1)),
            ("initiator_depth", at(25, 1)),
            ("target_ack_delay", bits(26, 3, 5)),
            ("failover_accepted", bits(26, 1, 2)),
            ("end_to_end_flow_control", bits(26, 0, 1)),
            ("rnr_retry_count", bits(27, 5, 3)),
            ("srq", bits(27, 4, 1)),
            ("local_ca_guid", at(28, 8)),
        ]),
        0x15 => fields.push(("remote_qpn", at(8, 3))),
        0x17 => fields.extend([("partition_key", at(4, 2)), ("service_id", at(8, 8))]),
        0x18 => fields.extend([
            ("status", at(4, 1)),
            ("ari_length", at(5, 1)),
            ("vendor_id", at(6, 2) << 8 | at(11, 1)),
            ("qpn", at(8, 3)),
            ("service_id", at(12, 8)),
            ("qkey", at(20, 4)),
        ]),
        0x19 => fields.extend([
            ("remote_qpn", at(12, 3)),
            ("remote_cm_response_timeout", bits(15, 3, 5)),
            ("local_lid", at(20, 2)),
            ("remote_lid", at(22, 2)),
            ("local_gid", at(24, 16)),
            ("remote_gid", at(40, 16)),
            ("flow_label", at(56, 3) >> 4),
            ("packet_rate", bits(61, 0, 6)),
            ("traffic_class", at(59, 1)),
            ("hop_limit", at(60, 1)),
            ("service_level", bits(62, 4, 4)),
            ("subnet_local", bits(62, 3, 1)),
            ("local_ack_timeout", bits(63, 3, 5)),
        ]),
        0x1A => fields.extend([("ari_length", at(8, 1)), ("status", at(9, 1))]),
        _ => {}
    }
    fields
}

/// The same fields of a parsed message, in the same order.
pub(crate) fn from_message(message: &CmMessage) -> Named {
    let mut fields = Named::new();
    fields.extend(
        message
            .local_comm_id()
            .map(|id| ("local_comm_id", id.0.into())),
    );
    fields.extend(
        message
            .remote_comm_id()
            .map(|id| ("remote_comm_id", id.0.into())),
    );
    match message {
        CmMessage::Req(req) => req_fields(req, &mut fields),
        CmMessage::Rep(rep) => rep_fields(rep, &mut fields),
        CmMessage::Mra(mra) => fields.extend([
            ("message", mra.message.0.into()),
            ("service_timeout", mra.service_timeout.get().into()),
        ]),
        CmMessage::Rej(rej) => rej_fields(rej, &mut fields),
        CmMessage::Dreq(dreq) => fields.push(("remote_qpn", dreq.remote_qpn.get().into())),
        CmMessage::Rtu(_) | CmMessage::Drep(_) => {}
        CmMessage::SidrReq(sidr_req) => fields.extend([
            ("request_id", sidr_req.request_id.0.into()),
            ("partition_key", sidr_req.partition_key.0.into()),
            ("service_id", sidr_req.service_id.0.into()),
        ]),
        CmMessage::SidrRep(sidr_rep) => sidr_rep_fields(sidr_rep, &mut fields),
        CmMessage::Lap(lap) => lap_fields(lap, &mut fields),
        CmMessage::Apr(apr) => fields.extend([
            ("ari_length", apr.additional_info.len().into()),
            ("status", apr.status.0.into()),
        ]),
        other => panic!("{} has no list of fields here", other.name()),
    }
    fields
}

fn rej_fields(rej: &Rej, fields: &mut Named) {
    fields.extend([
        ("message", rej.message.0.into()),
        ("ari_length", rej.additional_info.len().into()),
        ("reason", rej.reason.0.into()),
    ]);
}

fn sidr_rep_fields(sidr_rep: &SidrRep, fields: &mut Named) {
    fields.extend([
        ("request_id", sidr_rep.request_id.0.into()),
        ("options", sidr_rep.ece.options.into()),
        ("status", sidr_rep.status.0.into()),
        ("ari_length", sidr_rep.additional_info.len().into()),
        ("vendor_id", sidr_rep.ece.vendor_id.into()),
        ("qpn", sidr_rep.qpn.get().into()),
        ("service_id", sidr_rep.service_id.0.into()),
        ("qkey", sidr_rep.qkey.0.into()),
    ]);
}

fn lap_fields(lap: &Lap, fields: &mut Named) {
    fields.extend([
        ("remote_qpn", lap.remote_qpn.get().into()),
        (
            "remote_cm_response_timeout",
            lap.remote_cm_response_timeout.get().into(),
        ),
    ]);
    path_fields(&lap.alternate, fields);
}

fn rep_fields(rep: &Rep, fields: &mut Named) {
    fields.extend([
        ("options", rep.ece.options.into()),
        ("local_qkey", rep.local_qkey.0.into()),
        ("local_qpn", rep.local_qpn.get().into()),
        ("vendor_id", rep.ece.vendor_id.into()),
        ("local_eecn", rep.local_eecn.into()),
        ("starting_psn", rep.starting_psn.get().into()),
        ("responder_resources", rep.responder_resources.into()),
        ("initiator_depth", rep.initiator_depth.into()),
        ("target_ack_delay", rep.target_ack_delay.get().into()),
        ("failover_accepted", rep.failover_accepted.into()),
        (
            "end_to_end_flow_control",
            rep.end_to_end_flow_control.into(),
        ),
        ("rnr_retry_count", rep.rnr_retry_count.get().into()),
        ("srq", rep.srq.into()),
        ("local_ca_guid", rep.local_ca_guid.0.into()),
    ]);
}

fn req_fields(req: &Req, fields: &mut Named) {
    fields.extend([
        ("options", req.ece.options.into()),
        ("vendor_id", req.ece.vendor_id.into()),
        ("service_id", req.service_id.0.into()),
        ("local_ca_guid", req.local_ca_guid.0.into()),
        ("local_qkey", req.local_qkey.0.into()),
        ("local_qpn", req.local_qpn.get().into()),
        ("responder_resources", req.responder_resources.into()),
        ("local_eecn", req.local_eecn.into()),
        ("initiator_depth", req.initiator_depth.into()),
        ("remote_eecn", req.remote_eecn.into()),
        (
            "remote_cm_response_timeout",
            req.remote_cm_response_timeout.get().into(),
        ),
        ("transport_service", req.transport_service.0.into()),
        (
            "end_to_end_flow_control",
            req.end_to_end_flow_control.into(),
        ),
        ("starting_psn", req.starting_psn.get().into()),
        (
            "local_cm_response_timeout",
            req.local_cm_response_timeout.get().into(),
        ),
        ("retry_count", req.retry_count.get().into()),
        ("partition_key", req.partition_key.0.into()),
        ("path_mtu", req.path_mtu.0.into()),
        ("rdc_exists", req.rdc_exists.into()),
        ("rnr_retry_count", req.rnr_retry_count.get().into()),
        ("max_cm_retries", req.max_cm_retries.into()),
        ("srq", req.srq.into()),
        ("extended_transport", req.extended_transport.into()),
    ]);
    path_fields(&req.primary, fields);
    path_fields(&req.alternate, fields);
}

fn path_fields(path: &PathFields, fields: &mut Named) {
    fields.extend([
        ("local_lid", path.local_lid.0.into()),
        ("remote_lid", path.remote_lid.0.into()),
        ("local_gid", u128::from_be_bytes(path.local_gid.0)),
        ("remote_gid", u128::from_be_bytes(path.remote_gid.0)),
        ("flow_label", path.flow_label.get().into()),
        ("packet_rate", path.packet_rate.0.into()),
        ("traffic_class", path.traffic_class.into()),
        ("hop_limit", path.hop_limit.into()),
        ("service_level", path.service_level.into()),
        ("subnet_local", path.subnet_local.into()),
        ("local_ack_timeout", path.local_ack_timeout.get().into()),
    ]);
}
