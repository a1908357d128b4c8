//! The kernel as the judge: exchanges recorded between two Linux kernels (see the README beside the recordings).
//!
//! Each side of ours takes the place of one kernel: it is fed what that kernel received, is asked for what that kernel's
//! programs asked for, and what it sends is compared with what that kernel sent, field by field.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_wire::cm::{CmMessage, Drep, Dreq, Mra, Rep, Req, Rtu, SidrRep, SidrReq};
use oarlock_wire::layout::Field;
use oarlock_wire::mad::{AttributeId, MAD_HEADER_LEN, MAD_LEN, MadHeader};
use oarlock_wire::{AddressVector, Gid, IbTimeout, Mtu, Psn, Qpn, Time, TransportService};

use crate::{AcceptParams, Cm, Config, ConnId, ConnectParams, Event, Seed, StateName, ack_timeout};

const RPING: &[u8] = include_bytes!("../../../wire/fixtures/wire-rping.pcap");
pub(super) const CM_MADS: &[u8] = include_bytes!("../../../wire/fixtures/wire-cm-mads.pcap");

/// The packet life time of RoCE in the recorded kernels. (Later ones use 16.)
const PACKET_LIFE_TIME: IbTimeout = IbTimeout::truncate(18);
/// The acknowledgement delay of the recorded kernels' soft RoCE device.
const CA_ACK_DELAY: IbTimeout = IbTimeout::truncate(15);

/// A management datagram of a recording, as its receiver saw it.
#[derive(Clone, Copy)]
pub(super) struct Recorded {
    /// From its receiver to its sender.
    pub(super) av: AddressVector,
    pub(super) mad: [u8; MAD_LEN],
}

impl Recorded {
    pub(super) fn message(&self) -> CmMessage {
        CmMessage::parse(&self.mad).expect("a kernel sent it").1
    }
}

/// The five messages of a whole connection.
struct Exchange {
    req: Recorded,
    rep: Recorded,
    rtu: Recorded,
    dreq: Recorded,
    drep: Recorded,
}

impl Exchange {
    fn req(&self) -> Req {
        let CmMessage::Req(req) = self.req.message() else {
            unreachable!("sorted by kind")
        };
        req
    }

    fn rep(&self) -> Rep {
        let CmMessage::Rep(rep) = self.rep.message() else {
            unreachable!("sorted by kind")
        };
        rep
    }

    /// Whether the active side disconnected first.
    fn active_disconnects(&self) -> bool {
        self.dreq.message().local_comm_id() == Some(self.req().local_comm_id)
    }
}

/// The UDP payloads of a recording (classic pcap, little endian, Ethernet) on the port of RoCEv2.
fn packets(pcap: &[u8]) -> Vec<(AddressVector, &[u8])> {
    const UDP: u8 = 17;
    assert_eq!(pcap[..4], 0xA1B2_C3D4u32.to_le_bytes(), "classic pcap");
    assert_eq!(pcap[20..24], 1u32.to_le_bytes(), "Ethernet");
    let mut rest = &pcap[24..];
    let mut packets = Vec::new();
    while let [
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        l0,
        l1,
        l2,
        l3,
        _,
        _,
        _,
        _,
        tail @ ..,
    ] = rest
    {
        let (frame, next) = tail.split_at(u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize);
        rest = next;
        let ip = &frame[14..];
        let (from, to, udp) = match frame[12..14] {
            [8, 0] if ip[9] == UDP => (
                ipv4(&ip[12..16]),
                ipv4(&ip[16..20]),
                &ip[usize::from(ip[0] & 15) * 4..],
            ),
            [0x86, 0xDD] if ip[6] == UDP => (ipv6(&ip[8..24]), ipv6(&ip[24..40]), &ip[40..]),
            _ => continue,
        };
        if udp[2..4] == oarlock_wire::ROCE_PORT.to_be_bytes() {
            packets.push((AddressVector::new(to, from), &udp[8..]));
        }
    }
    packets
}

fn ipv4(bytes: &[u8]) -> Gid {
    Gid::from_ip(<[u8; 4]>::try_from(bytes).expect("four bytes").into())
}

fn ipv6(bytes: &[u8]) -> Gid {
    Gid::from_ip(<[u8; 16]>::try_from(bytes).expect("sixteen bytes").into())
}

/// The management datagrams of a recording, in order.
pub(super) fn recorded(pcap: &[u8]) -> Vec<Recorded> {
    const UD_SEND_ONLY: u8 = 0x64;
    let headers = 12 + 8;
    packets(pcap)
        .into_iter()
        .filter(|(_, packet)| packet[0] == UD_SEND_ONLY && packet[5..8] == [0, 0, 1])
        .map(|(av, packet)| Recorded {
            av,
            mad: packet[headers..headers + MAD_LEN]
                .try_into()
                .expect("a whole MAD"),
        })
        .collect()
}

/// The complete connections of a recording.
fn exchanges(pcap: &[u8]) -> Vec<Exchange> {
    let mut by_active_id: BTreeMap<_, Vec<Recorded>> = BTreeMap::new();
    let mut active_ids = BTreeSet::new();
    for one in recorded(pcap) {
        let message = one.message();
        // Resolutions are judged in `kernel_sidr`.
        if matches!(message, CmMessage::SidrReq(_) | CmMessage::SidrRep(_)) {
            continue;
        }
        if let CmMessage::Req(req) = &message {
            active_ids.insert(req.local_comm_id);
        }
        let ids = [message.local_comm_id(), message.remote_comm_id()];
        let active = ids
            .into_iter()
            .flatten()
            .find(|id| active_ids.contains(id))
            .expect("the REQ came first");
        by_active_id.entry(active).or_default().push(one);
    }
    let by_kind = |messages: &[Recorded], name| {
        messages
            .iter()
            .find(|one| one.message().name() == name)
            .copied()
    };
    by_active_id
        .values()
        .filter_map(|messages| {
            Some(Exchange {
                req: by_kind(messages, "REQ")?,
                rep: by_kind(messages, "REP")?,
                rtu: by_kind(messages, "RTU")?,
                dreq: by_kind(messages, "DREQ")?,
                drep: by_kind(messages, "DREP")?,
            })
        })
        .collect()
}

/// The names of the fields in which two messages differ: the common header, the message's field table, the private data.
/// Bits in no field count as one more, "reserved bits".
pub(super) fn differences(ours: &[u8; MAD_LEN], kernels: &[u8; MAD_LEN]) -> Vec<String> {
    if ours == kernels {
        return Vec::new();
    }
    let (a, b) = (MadHeader::parse(ours), MadHeader::parse(kernels));
    assert_eq!(a.attribute_id, b.attribute_id, "the same kind of message");
    let mut names = Vec::new();
    if a.transaction_id != b.transaction_id {
        names.push("transaction ID".to_owned());
    }
    if (MadHeader {
        transaction_id: b.transaction_id,
        ..a
    }) != b
    {
        names.push("another field of the MAD header".to_owned());
    }
    let (fields, private_data) = table(a.attribute_id);
    let (a, b) = (&ours[MAD_HEADER_LEN..], &kernels[MAD_HEADER_LEN..]);
    names.extend(
        fields
            .iter()
            .filter(|field| field.read(a) != field.read(b))
            .map(|field| field.name().to_owned()),
    );
    if a[private_data..] != b[private_data..] {
        names.push("private data".to_owned());
    }
    if names.is_empty() {
        names.push("reserved bits".to_owned());
    }
    names
}

/// The field table of a message, and where its private data begins after the MAD header.
fn table(attribute: AttributeId) -> (&'static [Field], usize) {
    match attribute {
        AttributeId::REQ => (Req::FIELDS, 140),
        AttributeId::REP => (Rep::FIELDS, 36),
        AttributeId::RTU => (Rtu::FIELDS, 8),
        AttributeId::DREQ => (Dreq::FIELDS, 12),
        AttributeId::DREP => (Drep::FIELDS, 8),
        AttributeId::MRA => (Mra::FIELDS, 10),
        AttributeId::SIDR_REQ => (SidrReq::FIELDS, 16),
        AttributeId::SIDR_REP => (SidrRep::FIELDS, 96),
        other => panic!("{other} is not in the recordings"),
    }
}

/// A manager in a kernel's place, whose next connection gets the comm id that the kernel's got.
pub(super) fn in_place_of(guid: oarlock_wire::Guid, comm_id: oarlock_wire::CommId) -> Cm {
    let mut cm = Cm::new(
        Config {
            ca_guid: guid,
            ..Config::default()
        },
        Seed([0; 32]),
    );
    cm.set_next_comm_id(comm_id);
    cm
}

/// What the kernel's REQ was asked for, by the program and by its RDMA CM. Everything else in our REQ is our own choice.
fn connect_params(exchange: &Exchange) -> ConnectParams {
    let req = exchange.req();
    ConnectParams {
        av: AddressVector {
            flow_label: req.primary.flow_label,
            ..exchange.req.av.reversed()
        },
        service_id: req.service_id,
        local_qpn: req.local_qpn,
        starting_psn: req.starting_psn,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        end_to_end_flow_control: req.end_to_end_flow_control,
        rnr_retry_count: req.rnr_retry_count,
        private_data: req.private_data.as_bytes().to_vec(),
        retry_count: req.retry_count,
        path_mtu: Mtu::MTU_1024,
        packet_life_time: PACKET_LIFE_TIME,
        local_ack_timeout: ack_timeout(CA_ACK_DELAY, PACKET_LIFE_TIME),
        ..ConnectParams::new(
            exchange.req.av,
            req.service_id,
            req.local_qpn,
            req.starting_psn,
        )
    }
}

/// What the kernel's REP was asked for.
fn accept_params(exchange: &Exchange) -> AcceptParams {
    let rep = exchange.rep();
    AcceptParams {
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        end_to_end_flow_control: rep.end_to_end_flow_control,
        rnr_retry_count: rep.rnr_retry_count,
        private_data: rep.private_data.as_bytes().to_vec(),
        target_ack_delay: CA_ACK_DELAY,
        ..AcceptParams::new(rep.local_qpn, rep.starting_psn)
    }
}

/// What a side of ours sent, compared with what the kernel in its place sent.
type Verdict = Vec<(&'static str, Vec<String>)>;

fn compare(verdict: &mut Verdict, cm: &mut Cm, kernels: &Recorded) {
    let name = kernels.message().name();
    let sent = cm
        .poll_transmit()
        .unwrap_or_else(|| panic!("we sent no {name}"));
    assert_eq!(
        (sent.av.local, sent.av.remote),
        (kernels.av.remote, kernels.av.local),
        "{name}: from and to the same addresses"
    );
    assert_eq!(
        CmMessage::parse(&sent.mad)
            .expect("we send correct messages")
            .1
            .name(),
        name
    );
    assert_eq!(cm.poll_transmit(), None, "one message");
    verdict.push((name, differences(&sent.mad, &kernels.mad)));
}

fn feed(cm: &mut Cm, recorded: &Recorded) {
    cm.handle_mad(Time::ZERO, &recorded.av, &recorded.mad);
}

/// Our active side in the place of the kernel that sent the REQ.
fn replay_active(exchange: &Exchange, params: ConnectParams) -> Verdict {
    let (req, rep) = (exchange.req(), exchange.rep());
    let mut verdict = Verdict::new();
    let mut cm = in_place_of(req.local_ca_guid, req.local_comm_id);
    let id = cm.connect(Time::ZERO, params).expect("correct parameters");
    compare(&mut verdict, &mut cm, &exchange.req);
    feed(&mut cm, &exchange.rep);
    let Some(Event::RepReceived { rep: told, .. }) = cm.poll_event() else {
        panic!("no reply")
    };
    assert_eq!(*told, rep, "the caller sees what the kernel said");
    cm.establish(Time::ZERO, id, &[]).expect("a reply waits");
    compare(&mut verdict, &mut cm, &exchange.rtu);
    disconnect(
        &mut verdict,
        &mut cm,
        id,
        exchange,
        exchange.active_disconnects(),
    );
    verdict
}

/// Our passive side in the place of the kernel that sent the REP.
fn replay_passive(exchange: &Exchange, params: AcceptParams) -> Verdict {
    let (req, rep) = (exchange.req(), exchange.rep());
    let mut verdict = Verdict::new();
    let mut cm = in_place_of(rep.local_ca_guid, rep.local_comm_id);
    cm.listen(req.service_id).expect("the first listener");
    feed(&mut cm, &exchange.req);
    let Some(Event::ReqReceived { id, req: told, .. }) = cm.poll_event() else {
        panic!("no request: {:?}", cm.poll_transmit())
    };
    assert_eq!(*told, req, "the caller sees what the kernel asked for");
    cm.accept(Time::ZERO, id, params).expect("a request waits");
    compare(&mut verdict, &mut cm, &exchange.rep);
    feed(&mut cm, &exchange.rtu);
    assert!(matches!(cm.poll_event(), Some(Event::RtuReceived { .. })));
    disconnect(
        &mut verdict,
        &mut cm,
        id,
        exchange,
        !exchange.active_disconnects(),
    );
    verdict
}

fn disconnect(
    verdict: &mut Verdict,
    cm: &mut Cm,
    id: ConnId,
    exchange: &Exchange,
    we_are_first: bool,
) {
    assert_eq!(cm.state(id), Some(StateName::Established));
    if we_are_first {
        cm.disconnect(Time::ZERO, id, &[]).expect("connected");
        compare(verdict, cm, &exchange.dreq);
        feed(cm, &exchange.drep);
        assert!(matches!(cm.poll_event(), Some(Event::DrepReceived { .. })));
    } else {
        feed(cm, &exchange.dreq);
        assert!(matches!(cm.poll_event(), Some(Event::DreqReceived { .. })));
        cm.reply_disconnect(Time::ZERO, id, &[])
            .expect("the peer disconnects");
        compare(verdict, cm, &exchange.drep);
    }
    assert_eq!(cm.state(id), Some(StateName::Timewait));
}

/// The differences we want, each with its reason.
///
/// Transactions that we start have ids of our own: a kernel writes its MAD agent's number and its comm id in the byte
/// order of its memory; we write a random number and the comm id. Nobody interprets them. Answers (REP, RTU, DREP) repeat
/// the id of the recorded message; an RTU repeats the id of our own REQ.
const WANTED: &[(&str, &[&str])] = &[
    ("REQ", &["transaction ID"]),
    ("REP", &[]),
    ("RTU", &["transaction ID"]),
    ("DREQ", &["transaction ID"]),
    ("DREP", &[]),
];

/// Where a verdict departs from the wanted differences.
fn surprises(verdict: &Verdict) -> Verdict {
    let wanted = |name| {
        WANTED
            .iter()
            .find(|(wanted, _)| *wanted == name)
            .map(|(_, fields)| fields.to_vec())
    };
    verdict
        .iter()
        .filter(|(name, fields)| wanted(*name).is_none_or(|wanted| wanted != *fields))
        .cloned()
        .collect()
}

#[test]
fn our_active_side_sends_what_the_kernel_sent() {
    let exchanges = exchanges(CM_MADS);
    assert_eq!(exchanges.len(), 208);
    for exchange in &exchanges {
        let verdict = replay_active(exchange, connect_params(exchange));
        assert_eq!(surprises(&verdict), [], "{:?}", exchange.req());
    }
}

#[test]
fn our_passive_side_answers_what_the_kernel_answered() {
    let exchanges = exchanges(CM_MADS);
    assert_eq!(exchanges.len(), 208);
    for exchange in &exchanges {
        let verdict = replay_passive(exchange, accept_params(exchange));
        assert_eq!(surprises(&verdict), [], "{:?}", exchange.rep());
    }
}

#[test]
fn both_orders_of_disconnecting_are_in_the_recordings() {
    let active_first = exchanges(CM_MADS)
        .iter()
        .filter(|exchange| exchange.active_disconnects())
        .count();
    assert!(
        (1..208).contains(&active_first),
        "{active_first} of 208: one branch of the replays would not be judged"
    );
}

#[test]
fn a_whole_rping_is_answered_as_the_kernel_did() {
    let exchanges = exchanges(RPING);
    assert_eq!(exchanges.len(), 1, "one of the two connections is complete");
    assert_eq!(
        surprises(&replay_active(&exchanges[0], connect_params(&exchanges[0]))),
        []
    );
    assert_eq!(
        surprises(&replay_passive(&exchanges[0], accept_params(&exchanges[0]))),
        []
    );
}

/// The PSN of the first request that each host sent into a queue pair, from the data packets of a recording.
fn first_data_psn(pcap: &[u8], destination: Gid, qpn: Qpn) -> Psn {
    let response = |opcode: u8| (0x0D..=0x12).contains(&opcode);
    packets(pcap)
        .into_iter()
        .map(|(av, packet)| {
            (
                av,
                oarlock_wire::Bth::parse(packet.first_chunk().expect("a whole BTH")),
            )
        })
        .find(|(av, bth)| {
            av.local == destination
                && bth.dest_qpn == qpn
                && bth.opcode.0 < 0x20
                && !response(bth.opcode.0)
        })
        .map(|(_, bth)| bth.psn)
        .expect("data was sent both ways")
}

/// Whether the PSNs that our side learns from the kernel's messages are those that the kernels' data begins with.
fn psns_agree(req_psn: Psn, rep_psn: Psn) -> Result<(), String> {
    let exchange = &exchanges(RPING)[0];
    let (active, passive) = (exchange.req.av.remote, exchange.req.av.local);
    let to_active = first_data_psn(RPING, active, exchange.req().local_qpn);
    let to_passive = first_data_psn(RPING, passive, exchange.rep().local_qpn);
    if (req_psn, rep_psn) == (to_active, to_passive) {
        Ok(())
    } else {
        Err(format!(
            "REQ {req_psn}, data to the active side {to_active}; REP {rep_psn}, data to the passive side {to_passive}"
        ))
    }
}

#[test]
fn a_starting_psn_is_the_first_psn_that_its_sender_receives() {
    let exchange = &exchanges(RPING)[0];
    assert_eq!(
        psns_agree(exchange.req().starting_psn, exchange.rep().starting_psn),
        Ok(())
    );
}

#[test]
fn the_judges_turn_red_when_the_psns_are_swapped() {
    let exchange = &exchanges(RPING)[0];
    let (req_psn, rep_psn) = (exchange.req().starting_psn, exchange.rep().starting_psn);
    assert!(psns_agree(rep_psn, req_psn).is_err());

    let params = ConnectParams {
        starting_psn: rep_psn,
        ..connect_params(exchange)
    };
    assert_eq!(
        surprises(&replay_active(exchange, params)),
        [("REQ", vec!["transaction ID".into(), "starting PSN".into()])]
    );
    let params = AcceptParams {
        starting_psn: req_psn,
        ..accept_params(exchange)
    };
    assert_eq!(
        surprises(&replay_passive(exchange, params)),
        [("REP", vec!["starting PSN".into()])]
    );
}

/// An exchange whose two depths differ, as none of the recorded ones do: with equal depths a swap would be no fault. The
/// bytes are placed by their offsets in the specification, not by our emitter.
fn exchange_with_unequal_depths() -> Exchange {
    let mut exchange = exchanges(RPING).remove(0);
    let (req, rep) = (
        &mut exchange.req.mad[MAD_HEADER_LEN..],
        &mut exchange.rep.mad[MAD_HEADER_LEN..],
    );
    (req[35], req[39]) = (4, 3);
    (rep[24], rep[25]) = (3, 2);
    exchange
}

#[test]
fn unequal_depths_stand_where_the_specification_puts_them() {
    let exchange = exchange_with_unequal_depths();
    assert_eq!(
        (
            exchange.req().responder_resources,
            exchange.req().initiator_depth
        ),
        (4, 3)
    );
    assert_eq!(
        (
            exchange.rep().responder_resources,
            exchange.rep().initiator_depth
        ),
        (3, 2)
    );
    assert_eq!(
        surprises(&replay_active(&exchange, connect_params(&exchange))),
        []
    );
    assert_eq!(
        surprises(&replay_passive(&exchange, accept_params(&exchange))),
        []
    );
}

#[test]
fn the_judges_turn_red_when_the_depths_are_swapped() {
    let exchange = exchange_with_unequal_depths();
    let params = connect_params(&exchange);
    let (responder_resources, initiator_depth) =
        (params.initiator_depth, params.responder_resources);
    let verdict = replay_active(
        &exchange,
        ConnectParams {
            responder_resources,
            initiator_depth,
            ..params
        },
    );
    let fields = ["transaction ID", "responder resources", "initiator depth"]
        .map(String::from)
        .to_vec();
    assert_eq!(surprises(&verdict), [("REQ", fields)]);

    let params = accept_params(&exchange);
    let (responder_resources, initiator_depth) =
        (params.initiator_depth, params.responder_resources);
    let verdict = replay_passive(
        &exchange,
        AcceptParams {
            responder_resources,
            initiator_depth,
            ..params
        },
    );
    let fields = ["responder resources", "initiator depth"]
        .map(String::from)
        .to_vec();
    assert_eq!(surprises(&verdict), [("REP", fields)]);
}

#[test]
fn the_judge_turns_red_on_any_flipped_bit() {
    let exchange = &exchanges(RPING)[0];
    for one in [
        &exchange.req,
        &exchange.rep,
        &exchange.rtu,
        &exchange.dreq,
        &exchange.drep,
    ] {
        assert_eq!(differences(&one.mad, &one.mad), [""; 0]);
        for bit in (0..MAD_LEN * 8).filter(|bit| !(16 * 8..18 * 8).contains(bit)) {
            let mut mad = one.mad;
            mad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(
                differences(&mad, &one.mad),
                [""; 0],
                "{} bit {bit}",
                one.message().name()
            );
        }
    }
}

#[test]
fn the_recorded_req_asks_for_the_transport_we_speak() {
    for exchange in exchanges(CM_MADS) {
        let req = exchange.req();
        assert_eq!(req.transport_service, TransportService::RC);
        assert_eq!(
            req.primary.remote_gid, exchange.req.av.local,
            "the rule behind REJ 12 fits the kernel's REQs"
        );
    }
}
