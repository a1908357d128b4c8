//! What can be built can be emitted, and comes back as it was.

use oarlock_wire::packet::{MAX_HEADER_LEN, padding};
use oarlock_wire::{
    AddressVector, Aeth, Apr, AprStatus, Ari, Bth, CmMessage, CommId, Deth, Drep, Dreq, Ece,
    FlowLabel, Gid, Grh, Guid, IbTimeout, ImmDt, IpCmHeader, Lap, Lid, MAD_LEN, MadHeader,
    MessageKind, Mra, Mtu, Opcode, PKey, Packet, PacketHeader, PathFields, PrivateData, Psn, QKey,
    Qpn, Rate, Rej, RejReason, Rep, Req, RetryCount, RnrTimer, Rtu, ServiceId, SidrRep, SidrReq,
    SidrStatus, Syndrome, TransactionId, TransportService, WireErrorKind,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::IpAddr;

fn qpn() -> impl Strategy<Value = Qpn> {
    any::<u32>().prop_map(Qpn::truncate)
}

fn psn() -> impl Strategy<Value = Psn> {
    any::<u32>().prop_map(Psn::truncate)
}

fn comm_id() -> impl Strategy<Value = CommId> {
    any::<u32>().prop_map(CommId)
}

fn timeout() -> impl Strategy<Value = IbTimeout> {
    any::<u8>().prop_map(IbTimeout::truncate)
}

fn retries() -> impl Strategy<Value = RetryCount> {
    any::<u8>().prop_map(RetryCount::truncate)
}

fn gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_map(Gid)
}

fn bits_24() -> impl Strategy<Value = u32> {
    0..1_u32 << 24
}

fn ece() -> impl Strategy<Value = Ece> {
    (bits_24(), any::<u32>()).prop_map(|(vendor_id, options)| Ece { vendor_id, options })
}

fn ari() -> impl Strategy<Value = Ari> {
    vec(any::<u8>(), 0..=Ari::MAX_LEN)
        .prop_map(|bytes| Ari::from_slice(&bytes).expect("at most 72"))
}

fn private_data<const N: usize>() -> impl Strategy<Value = PrivateData<N>> {
    vec(any::<u8>(), 0..=N).prop_map(|bytes| PrivateData::from_slice(&bytes).expect("at most N"))
}

fn message_kind() -> impl Strategy<Value = MessageKind> {
    (0..4_u8).prop_map(MessageKind)
}

prop_compose! {
    fn path()(
        (local_lid, remote_lid) in (any::<u16>().prop_map(Lid), any::<u16>().prop_map(Lid)),
        (local_gid, remote_gid) in (gid(), gid()),
        flow_label in any::<u32>().prop_map(FlowLabel::truncate),
        packet_rate in (0..64_u8).prop_map(Rate),
        (traffic_class, hop_limit) in any::<(u8, u8)>(),
        service_level in 0..16_u8,
        subnet_local: bool,
        local_ack_timeout in timeout(),
    ) -> PathFields {
        PathFields {
            local_lid, remote_lid, local_gid, remote_gid, flow_label, packet_rate, traffic_class, hop_limit,
            service_level, subnet_local, local_ack_timeout,
        }
    }
}

prop_compose! {
    fn req()(
        (local_comm_id, local_qpn, starting_psn) in (comm_id(), qpn(), psn()),
        (ece, local_eecn, remote_eecn) in (ece(), bits_24(), bits_24()),
        (service_id, local_ca_guid, local_qkey, partition_key) in any::<(u64, u64, u32, u16)>(),
        (responder_resources, initiator_depth) in any::<(u8, u8)>(),
        (remote_cm_response_timeout, local_cm_response_timeout) in (timeout(), timeout()),
        (retry_count, rnr_retry_count, max_cm_retries) in (retries(), retries(), 0..16_u8),
        (transport_service, path_mtu, extended_transport) in (0..4_u8, 0..16_u8, 0..8_u8),
        (end_to_end_flow_control, rdc_exists, srq) in any::<(bool, bool, bool)>(),
        (primary, alternate) in (path(), path()),
        private_data in private_data(),
    ) -> Req {
        Req {
            local_comm_id, ece, service_id: ServiceId(service_id), local_ca_guid: Guid(local_ca_guid),
            local_qkey: QKey(local_qkey), local_qpn, responder_resources, local_eecn, initiator_depth, remote_eecn,
            remote_cm_response_timeout, transport_service: TransportService(transport_service),
            end_to_end_flow_control, starting_psn, local_cm_response_timeout, retry_count,
            partition_key: PKey(partition_key), path_mtu: Mtu(path_mtu), rdc_exists, rnr_retry_count, max_cm_retries,
            srq, extended_transport, primary, alternate, private_data,
        }
    }
}

prop_compose! {
    fn rep()(
        (local_comm_id, remote_comm_id) in (comm_id(), comm_id()),
        (local_qkey, local_qpn, starting_psn) in (any::<u32>(), qpn(), psn()),
        (ece, local_eecn, local_ca_guid) in (ece(), bits_24(), any::<u64>()),
        (responder_resources, initiator_depth) in any::<(u8, u8)>(),
        (target_ack_delay, failover_accepted, rnr_retry_count) in (timeout(), 0..4_u8, retries()),
        (end_to_end_flow_control, srq) in any::<(bool, bool)>(),
        private_data in private_data(),
    ) -> Rep {
        Rep {
            local_comm_id, remote_comm_id, local_qkey: QKey(local_qkey), local_qpn, ece, local_eecn,
            starting_psn, responder_resources, initiator_depth, target_ack_delay, failover_accepted,
            end_to_end_flow_control, rnr_retry_count, srq, local_ca_guid: Guid(local_ca_guid), private_data,
        }
    }
}

prop_compose! {
    fn rej()(
        (local_comm_id, remote_comm_id) in (comm_id(), comm_id()),
        (message, reason) in (message_kind(), any::<u16>()),
        additional_info in ari(),
        private_data in private_data(),
    ) -> Rej {
        Rej { local_comm_id, remote_comm_id, message, reason: RejReason(reason), additional_info, private_data }
    }
}

prop_compose! {
    fn mra()(
        (local_comm_id, remote_comm_id) in (comm_id(), comm_id()),
        (message, service_timeout) in (message_kind(), timeout()),
        private_data in private_data(),
    ) -> Mra {
        Mra { local_comm_id, remote_comm_id, message, service_timeout, private_data }
    }
}

prop_compose! {
    fn rtu()((local_comm_id, remote_comm_id) in (comm_id(), comm_id()), private_data in private_data()) -> Rtu {
        Rtu { local_comm_id, remote_comm_id, private_data }
    }
}

prop_compose! {
    fn dreq()(
        (local_comm_id, remote_comm_id) in (comm_id(), comm_id()),
        remote_qpn in qpn(),
        private_data in private_data(),
    ) -> Dreq {
        Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data }
    }
}

prop_compose! {
    fn drep()((local_comm_id, remote_comm_id) in (comm_id(), comm_id()), private_data in private_data()) -> Drep {
        Drep { local_comm_id, remote_comm_id, private_data }
    }
}

prop_compose! {
    fn sidr_req()(
        (request_id, partition_key, service_id) in (comm_id(), any::<u16>(), any::<u64>()),
        private_data in private_data(),
    ) -> SidrReq {
        SidrReq { request_id, partition_key: PKey(partition_key), service_id: ServiceId(service_id), private_data }
    }
}

prop_compose! {
    fn sidr_rep()(
        (request_id, qpn, ece, additional_info) in (comm_id(), qpn(), ece(), ari()),
        (status, service_id, qkey) in any::<(u8, u64, u32)>(),
        private_data in private_data(),
    ) -> SidrRep {
        SidrRep {
            request_id, status: SidrStatus(status), additional_info, ece, qpn, service_id: ServiceId(service_id),
            qkey: QKey(qkey), private_data,
        }
    }
}

prop_compose! {
    fn lap()(
        (local_comm_id, remote_comm_id) in (comm_id(), comm_id()),
        (remote_qpn, remote_cm_response_timeout) in (qpn(), timeout()),
        alternate in path(),
        private_data in private_data(),
    ) -> Lap {
        Lap { local_comm_id, remote_comm_id, remote_qpn, remote_cm_response_timeout, alternate, private_data }
    }
}

prop_compose! {
    fn apr()(
        (local_comm_id, remote_comm_id) in (comm_id(), comm_id()),
        (status, additional_info) in (any::<u8>(), ari()),
        private_data in private_data(),
    ) -> Apr {
        Apr { local_comm_id, remote_comm_id, status: AprStatus(status), additional_info, private_data }
    }
}

pub(crate) fn message() -> impl Strategy<Value = CmMessage> {
    prop_oneof![
        3 => req().prop_map(CmMessage::from),
        2 => rep().prop_map(CmMessage::from),
        2 => rej().prop_map(CmMessage::from),
        1 => mra().prop_map(CmMessage::from),
        1 => rtu().prop_map(CmMessage::from),
        1 => dreq().prop_map(CmMessage::from),
        1 => drep().prop_map(CmMessage::from),
        1 => sidr_req().prop_map(CmMessage::from),
        2 => sidr_rep().prop_map(CmMessage::from),
        2 => lap().prop_map(CmMessage::from),
        2 => apr().prop_map(CmMessage::from),
    ]
}

/// The ECE of a message that has a place for it.
fn ece_of(message: &CmMessage) -> Option<Ece> {
    match message {
        CmMessage::Req(req) => Some(req.ece),
        CmMessage::Rep(rep) => Some(rep.ece),
        CmMessage::SidrRep(sidr_rep) => Some(sidr_rep.ece),
        _ => None,
    }
}

prop_compose! {
    fn grh()(
        (v4, v6, is_v4) in any::<([[u8; 4]; 2], [[u8; 16]; 2], bool)>(),
        (traffic_class, hop_limit, flow_label) in any::<(u8, u8, u32)>(),
        payload_len in 0..=u16::MAX - 20,
    ) -> Grh {
        let [source, destination] = if is_v4 { v4.map(IpAddr::from) } else { v6.map(IpAddr::from) };
        let flow_label = if is_v4 { FlowLabel::default() } else { FlowLabel::truncate(flow_label) };
        Grh { source, destination, traffic_class, flow_label, hop_limit, payload_len }
    }
}

prop_compose! {
    fn bth(opcode: Opcode)(
        (dest_qpn, psn, pkey) in (qpn(), psn(), any::<u16>()),
        (solicited, migrated, fecn, becn, ack_request) in any::<(bool, bool, bool, bool, bool)>(),
    ) -> Bth {
        let pkey = PKey(pkey);
        Bth { opcode, solicited, migrated, pad: 0, version: 0, pkey, fecn, becn, dest_qpn, ack_request, psn }
    }
}

fn packet() -> impl Strategy<Value = (PacketHeader, Vec<u8>)> {
    let immdt = || any::<u32>().prop_map(ImmDt);
    let deth = || {
        (any::<u32>(), qpn()).prop_map(|(qkey, src_qpn)| Deth {
            qkey: QKey(qkey),
            src_qpn,
        })
    };
    let aeth = (any::<u8>(), bits_24()).prop_map(|(bits, msn)| Aeth {
        syndrome: Syndrome::from_bits(bits),
        msn,
    });
    let plain = (0..5_u8)
        .prop_filter("without immediate", |code| *code != 3)
        .prop_map(Opcode);
    let header = prop_oneof![
        plain.prop_flat_map(bth).prop_map(PacketHeader::new),
        (bth(Opcode::RC_SEND_LAST_IMM), immdt())
            .prop_map(|(bth, imm)| PacketHeader::new(bth).with_immdt(imm)),
        (bth(Opcode::RC_SEND_ONLY_IMM), immdt())
            .prop_map(|(bth, imm)| PacketHeader::new(bth).with_immdt(imm)),
        (bth(Opcode::RC_ACKNOWLEDGE), aeth)
            .prop_map(|(bth, aeth)| PacketHeader::new(bth).with_aeth(aeth)),
        (bth(Opcode::UD_SEND_ONLY), deth())
            .prop_map(|(bth, deth)| PacketHeader::new(bth).with_deth(deth)),
        (bth(Opcode::UD_SEND_ONLY_IMM), deth(), immdt())
            .prop_map(|(bth, deth, imm)| PacketHeader::new(bth).with_deth(deth).with_immdt(imm)),
    ];
    (header, vec(any::<u8>(), 0..70))
}

proptest! {
    #[test]
    fn every_message_comes_back_as_it_was(message in message(), transaction_id: u64) {
        let mut mad = [0xA5; MAD_LEN];
        message.emit(TransactionId(transaction_id), &mut mad);
        let (header, parsed) = CmMessage::parse(&mad).expect("what was emitted can be parsed");
        let attribute_modifier = ece_of(&message).unwrap_or_default().options;
        let plain = MadHeader::cm(message.attribute_id(), TransactionId(transaction_id));
        prop_assert_eq!(header, MadHeader { attribute_modifier, ..plain });
        prop_assert_eq!(parsed, message);
    }

    #[test]
    fn reserved_bits_are_ignored_and_not_repeated(message in message(), noise: [u8; 32]) {
        let mut mad = [0; MAD_LEN];
        message.emit(TransactionId(1), &mut mad);
        let clean = mad;
        for (&(attribute, byte, mask), noise) in RESERVED.iter().zip(noise.iter().cycle()) {
            if attribute == message.attribute_id().0 {
                assert_eq!(mad[24 + byte] & mask, 0, "reserved bits of byte {byte} are emitted as zero");
                mad[24 + byte] |= noise & mask;
            }
        }
        let (header, parsed) = CmMessage::parse(&mad).expect("reserved bits are ignored");
        prop_assert_eq!(&parsed, &message);
        parsed.emit(header.transaction_id, &mut mad);
        prop_assert_eq!(mad, clean);
    }

    #[test]
    fn every_packet_comes_back_as_it_was((header, payload) in packet()) {
        let mut bytes = [0xA5; MAX_HEADER_LEN + 72];
        let len = header.emit_packet(&payload, &mut bytes).expect("there is room");
        prop_assert_eq!(len % 4, 0);
        prop_assert_eq!(len, header.len() + payload.len() + padding(payload.len()));
        prop_assert!(bytes[len..].iter().all(|&byte| byte == 0xA5), "nothing is written past the end");
        let parsed = Packet::parse(&bytes[..len]).expect("what was emitted can be parsed");
        prop_assert_eq!(parsed.payload, payload);
        let pad = padding(parsed.payload.len()) as u8;
        prop_assert_eq!(parsed.header(), PacketHeader { bth: Bth { pad, ..header.bth }, ..header });

        let too_short = header.emit_packet(parsed.payload, &mut [0; 200][..len - 1]);
        let kind = too_short.expect_err("one byte too few").kind;
        prop_assert_eq!(kind.label(), "no_room");
    }

    #[test]
    fn headers_that_the_opcode_does_not_call_for_are_refused((header, _) in packet()) {
        let with = PacketHeader { immdt: if header.immdt.is_some() { None } else { Some(ImmDt(0)) }, ..header };
        let error = with.emit(0, &mut [0; MAX_HEADER_LEN]).expect_err("not the opcode's headers");
        prop_assert_eq!(error.kind, WireErrorKind::HeaderSet(header.bth.opcode.0));
    }

    #[test]
    fn every_ip_cm_header_comes_back_as_it_was(source_port: u16, v4: [[u8; 4]; 2], v6: [[u8; 16]; 2], is_v4: bool) {
        let [source, destination] = if is_v4 { v4.map(IpAddr::from) } else { v6.map(IpAddr::from) };
        let header = IpCmHeader { source_port, source, destination };
        let mut bytes = [0xA5; IpCmHeader::LEN];
        header.emit(&mut bytes);
        prop_assert_eq!(IpCmHeader::parse(&bytes), Ok(header));
    }

    #[test]
    fn every_grh_comes_back_as_it_was(grh in grh()) {
        let bytes = grh.to_bytes();
        prop_assert_eq!(Grh::parse(&bytes), Ok(grh));
    }

    #[test]
    fn any_forty_bytes_are_a_grh_or_an_error_that_names_the_version(mut bytes: [u8; 40], version: u8, v4: u8) {
        bytes[0] = version;
        bytes[20] = v4;
        match Grh::parse(&bytes) {
            Ok(grh) => {
                let again = Grh::parse(&grh.to_bytes()).expect("what was emitted can be parsed");
                prop_assert_eq!(again, grh);
            }
            Err(error) => {
                prop_assert!(version >> 4 != 6 && v4 != 0x45);
                prop_assert_eq!((error.message, error.field), ("GRH", "IP version"));
            }
        }
    }

    #[test]
    fn the_grh_of_a_packet_shows_its_path(v4: bool, traffic_class: u8, hop_limit: u8, packet_len in 0..4200_usize) {
        let [local, remote] = if v4 { ["239.1.2.3", "192.0.2.1"] } else { ["ff0e::1", "fd00::1"] };
        let [local, remote] = [local, remote].map(|text| text.parse::<IpAddr>().expect("an address"));
        let flow_label = FlowLabel::truncate(0x5_4321);
        let path = AddressVector::new(local.into(), remote.into());
        let grh = Grh::of(&AddressVector { traffic_class, hop_limit, flow_label, ..path }, packet_len);
        prop_assert_eq!((grh.source, grh.destination), (remote, local));
        prop_assert_eq!((grh.traffic_class, grh.hop_limit), (traffic_class, hop_limit));
        prop_assert_eq!(grh.flow_label.get(), if v4 { 0 } else { 0x5_4321 });
        prop_assert_eq!(usize::from(grh.payload_len), 8 + packet_len + 4);
    }

    #[test]
    fn every_syndrome_byte_survives(bits: u8) {
        prop_assert_eq!(Syndrome::from_bits(bits).to_bits(), bits);
    }

    #[test]
    fn a_value_wider_than_its_field_is_emitted_as_the_largest(wide in 1_u32 << 24.., retries in 16_u8..) {
        let [wide, widest] = [wide, 0xFF_FFFF].map(|vendor_id| Ece { vendor_id, options: 7 });
        let req = Req { ece: wide, max_cm_retries: retries, path_mtu: Mtu(retries), ..Req::default() };
        let mut mad = [0; MAD_LEN];
        req.emit(TransactionId(0), &mut mad);
        let largest = Req { ece: widest, max_cm_retries: 15, path_mtu: Mtu(15), ..Req::default() };
        prop_assert_eq!(Req::parse(&mad), Ok(largest));

        let rep = Rep { ece: wide, ..Rep::default() };
        rep.emit(TransactionId(0), &mut mad);
        prop_assert_eq!(Rep::parse(&mad), Ok(Rep { ece: widest, ..Rep::default() }));

        let sidr_rep = SidrRep { ece: wide, ..SidrRep::default() };
        sidr_rep.emit(TransactionId(0), &mut mad);
        prop_assert_eq!(SidrRep::parse(&mad), Ok(SidrRep { ece: widest, ..SidrRep::default() }));
    }
}

/// Reserved bits of the messages: attribute, byte after the MAD header, mask.
const RESERVED: [(u16, usize, u8); 36] = [
    (0x10, 4, 0xFF),
    (0x10, 24, 0xFF),
    (0x10, 25, 0xFF),
    (0x10, 26, 0xFF),
    (0x10, 27, 0xFF),
    (0x10, 90, 0x0F),
    (0x10, 91, 0xC0),
    (0x10, 94, 0x07),
    (0x10, 95, 0x07),
    (0x10, 134, 0x0F),
    (0x10, 135, 0xC0),
    (0x10, 138, 0x07),
    (0x10, 139, 0x07),
    (0x11, 8, 0x3F),
    (0x11, 9, 0x07),
    (0x12, 8, 0x3F),
    (0x12, 9, 0x01),
    (0x13, 27, 0x0F),
    (0x15, 11, 0xFF),
    (0x17, 6, 0xFF),
    (0x17, 7, 0xFF),
    (0x19, 8, 0xFF),
    (0x19, 9, 0xFF),
    (0x19, 10, 0xFF),
    (0x19, 11, 0xFF),
    (0x19, 15, 0x07),
    (0x19, 16, 0xFF),
    (0x19, 17, 0xFF),
    (0x19, 18, 0xFF),
    (0x19, 19, 0xFF),
    (0x19, 58, 0x0F),
    (0x19, 61, 0xC0),
    (0x19, 62, 0x07),
    (0x19, 63, 0x07),
    (0x1A, 10, 0xFF),
    (0x1A, 11, 0xFF),
];

#[test]
fn a_request_with_native_addresses_is_told_from_a_wrong_version() {
    let mut bytes = [0; IpCmHeader::LEN];
    assert_eq!(
        IpCmHeader::parse(&bytes).expect_err("no IP").kind,
        WireErrorKind::NotIp(0)
    );
    bytes[1] = 0x50;
    assert_eq!(
        IpCmHeader::parse(&bytes).expect_err("no IP").kind,
        WireErrorKind::NotIp(5)
    );
    bytes[0] = 1;
    assert_eq!(
        IpCmHeader::parse(&bytes).expect_err("another version").kind,
        WireErrorKind::UnsupportedVersion(1)
    );
}

#[test]
fn private_data_too_long_is_an_error_that_names_both_lengths() {
    let error = PrivateData::<92>::from_slice(&[0; 93]).expect_err("93 into 92");
    assert_eq!((error.given, error.max), (93, 92));
    assert_eq!(
        error.to_string(),
        "93 bytes of private data, the message carries 92"
    );
    let error = Ari::from_slice(&[0; 300]).expect_err("300 into 72");
    assert_eq!(
        error.to_string(),
        "300 bytes of additional information, a message carries 72"
    );
}

#[test]
fn a_rnr_timer_of_zero_is_the_longest() {
    let times = (0..32)
        .map(|code| RnrTimer::truncate(code).to_duration())
        .collect::<Vec<_>>();
    assert_eq!(times[0].as_micros(), 655_360);
    assert_eq!(RnrTimer::US_640.to_duration().as_micros(), 640);
    assert!(times[1..].is_sorted(), "from 1 on longer and longer");
    assert_eq!(times[31].as_micros(), 491_520);
    assert_eq!(RnrTimer::new(32), None);
}

/// Not every device clears the bytes before an IPv4 header: what lay there may look like IPv6. The checksum tells.
#[test]
fn an_ipv4_header_behind_rubbish_is_found_by_its_checksum() {
    let grh = Grh {
        source: IpAddr::from([192, 0, 2, 1]),
        destination: IpAddr::from([239, 1, 2, 3]),
        traffic_class: 0x20,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        payload_len: 136,
    };
    let mut bytes = grh.to_bytes();
    bytes[..20].fill(0x66);
    assert_eq!(Grh::parse(&bytes), Ok(grh));
    bytes[28] -= 1;
    let v6 = Grh::parse(&bytes).expect("the version of IPv6 at its place");
    assert!(v6.source.is_ipv6());
    bytes[0] = 0;
    let v4 = Grh::parse(&bytes).expect("a version of IPv4 at its place, and none of IPv6");
    assert_eq!((v4.source, v4.hop_limit), (grh.source, 63));
}
