//! The kernel as the judge: exchanges recorded between two Linux kernels (see the README beside the recordings in the crate
//! of the wire formats).
//!
//! Our active side takes the place of the kernel's rdma_cm with nothing but what the program gave it, addresses, ports, queue
//! pair, parameters, and what it sends is compared with what the kernel sent. The queue pair attributes of either side are
//! compared with the first data packets that the kernels' queue pairs sent.

use super::world::{SECOND, conn, device};
use crate::{
    Cma, Config, ConnectParam, EventKind, Id, PortSpace, QpAttr, QpState, QpType, Route, RtrAttr,
    RtsAttr, Seed,
};
use oarlock_wire::{
    AddressVector, CmMessage, Gid, IbTimeout, IpCmHeader, MAD_LEN, Psn, QKey, Qpn, ROCE_PORT, Rep,
    Req, Time, TransactionId,
};
use std::net::SocketAddr;

const RPING: &[u8] = include_bytes!("../../../wire/fixtures/wire-rping.pcap");
const CM_MADS: &[u8] = include_bytes!("../../../wire/fixtures/wire-cm-mads.pcap");
const NOW: Time = Time::ZERO;

/// A packet of a recording: from its receiver's view, from the BTH on.
struct Recorded<'a> {
    av: AddressVector,
    packet: &'a [u8],
}

impl Recorded<'_> {
    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.packet[at..at + 4].try_into().expect("four bytes")) & 0xFF_FFFF
    }

    fn dest_qpn(&self) -> Qpn {
        Qpn::truncate(self.word(4))
    }

    fn psn(&self) -> Psn {
        Psn::truncate(self.word(8))
    }

    /// The management datagram, if the packet carries one of a connection.
    fn message(&self) -> Option<(TransactionId, CmMessage)> {
        let mad: &[u8; MAD_LEN] = self.packet.get(20..20 + MAD_LEN)?.try_into().ok()?;
        let parsed = CmMessage::parse(mad)
            .ok()
            .filter(|_| self.dest_qpn() == Qpn::QP1);
        parsed.map(|(header, message)| (header.transaction_id, message))
    }
}

/// The RoCEv2 packets of a recording: classic pcap, little endian, Ethernet, IPv4.
fn packets(pcap: &[u8]) -> Vec<Recorded<'_>> {
    assert_eq!(
        (&pcap[..4], &pcap[20..24]),
        (&[0xD4, 0xC3, 0xB2, 0xA1][..], &[1, 0, 0, 0][..])
    );
    let mut rest = &pcap[24..];
    let mut packets = Vec::new();
    while rest.len() > 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().expect("four bytes"));
        let (frame, next) = rest[16..].split_at(usize::try_from(len).expect("small"));
        rest = next;
        let is_roce =
            frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == ROCE_PORT.to_be_bytes();
        if is_roce {
            let ip = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).expect("four bytes");
            let gid = |at| Gid::from_ip(ip(at).into());
            packets.push(Recorded {
                av: AddressVector::new(gid(30), gid(26)),
                packet: &frame[42..],
            });
        }
    }
    packets
}

/// A connection manager in the place of the recorded kernel that sent, or received, `req`. Its device is that of the recording:
/// an MTU of 1500, soft RoCE, a packet life time of 18 (later kernels: 16).
fn in_place_of(gid: Gid, guid: oarlock_wire::Guid) -> Cma {
    let mut config = Config {
        packet_life_time: IbTimeout::truncate(18),
        ..Config::default()
    };
    config.cm.ca_guid = guid;
    let mut cma = Cma::new(config, Seed([3; 32]));
    let mut device = device(0, 1500, &[&gid.to_ip().to_string()]);
    // As large as a program may ask for: what the recorded devices could do is not recorded.
    device.limits.max_qp_rd_atom = 255;
    device.limits.max_qp_init_rd_atom = 255;
    cma.set_devices(NOW, vec![device]);
    cma
}

fn header(req: &Req) -> IpCmHeader {
    IpCmHeader::parse(req.private_data.as_bytes().first_chunk().expect("36 bytes"))
        .expect("a kernel sent it")
}

/// Does what the kernel's program did, and gives the request that goes out.
fn connect(cma: &mut Cma, recorded: &Req, first_psn: Psn) -> (Id, Req) {
    let header = header(recorded);
    let channel = cma.create_channel().expect("room");
    let id = cma
        .create_id(channel, PortSpace::TCP, QpType::RC, 0)
        .expect("room");
    cma.exposed_mut(id).expect("exists").starting_psn = first_psn;
    cma.bind_addr(id, SocketAddr::new(header.source, header.source_port))
        .expect("our address");
    let port = recorded.service_id.port().expect("a port space");
    cma.resolve_addr(
        NOW,
        id,
        None,
        SocketAddr::new(header.destination, port),
        SECOND,
    )
    .expect("bound");
    let lookup = cma.poll_lookup().expect("another host");
    let route = Route {
        source: header.source,
        ifindex: 2,
        gateway: None,
        hop_limit: 0,
        mtu: 1500,
        is_local: false,
    };
    cma.handle_lookup(NOW, lookup.token, Ok(route));
    cma.resolve_route(id, SECOND).expect("resolved");
    let param = ConnectParam {
        qpn: recorded.local_qpn,
        responder_resources: recorded.responder_resources,
        initiator_depth: recorded.initiator_depth,
        flow_control: recorded.end_to_end_flow_control,
        retry_count: recorded.retry_count,
        rnr_retry_count: recorded.rnr_retry_count,
        srq: recorded.srq,
        ece: recorded.ece,
        qkey: QKey(0),
        private_data: recorded.private_data.as_bytes()[IpCmHeader::LEN..].to_vec(),
    };
    cma.connect(NOW, id, param).expect("a path");
    let transmit = cma.poll_transmit().expect("a request");
    let Ok((_, CmMessage::Req(req))) = CmMessage::parse(&transmit.mad) else {
        panic!("not a request")
    };
    for kind in [EventKind::ADDR_RESOLVED, EventKind::ROUTE_RESOLVED] {
        assert_eq!(cma.next_event(channel).map(|event| event.kind), Some(kind));
    }
    (id, req)
}

/// The requests of a recording.
fn requests(pcap: &[u8]) -> Vec<(AddressVector, TransactionId, Req)> {
    let requests = packets(pcap)
        .into_iter()
        .filter_map(|recorded| match recorded.message()? {
            (transaction, CmMessage::Req(req)) => Some((recorded.av, transaction, req)),
            _ => None,
        });
    requests.collect()
}

/// Our request, with what both sides draw at random taken from the recorded one.
fn our_request(recorded: &Req) -> Req {
    let mut cma = in_place_of(recorded.primary.local_gid, recorded.local_ca_guid);
    let (_, req) = connect(&mut cma, recorded, recorded.starting_psn);
    Req {
        local_comm_id: recorded.local_comm_id,
        ..req
    }
}

#[test]
fn our_requests_are_those_of_the_kernel() {
    let requests = requests(CM_MADS);
    assert_eq!(requests.len(), 208);
    for (_, _, recorded) in &requests {
        assert_eq!(our_request(recorded), *recorded);
    }
}

/// The judge sees a fault: each of these, planted in a recorded request, is a difference.
#[test]
fn a_planted_fault_turns_the_judge_red() {
    let (_, _, recorded) = &requests(CM_MADS)[0];
    let faults: [fn(&mut Req); 4] = [
        |req| req.primary.flow_label = oarlock_wire::FlowLabel::default(),
        |req| req.primary.local_ack_timeout = IbTimeout::truncate(18),
        |req| req.path_mtu = oarlock_wire::Mtu::MTU_4096,
        |req| {
            (req.primary.local_gid, req.primary.remote_gid) =
                (req.primary.remote_gid, req.primary.local_gid)
        },
    ];
    let ours = our_request(recorded);
    for fault in faults {
        let mut faulty = recorded.clone();
        fault(&mut faulty);
        assert_ne!(ours, faulty);
    }
}

/// The first connection of the ping: request, response, and the first data packet each way.
struct Ping {
    req_av: AddressVector,
    req_transaction: TransactionId,
    req: Req,
    rep_av: AddressVector,
    rep: Rep,
    first_psn_to_active: Psn,
    first_psn_to_passive: Psn,
}

fn ping() -> Ping {
    let packets = packets(RPING);
    let (req_av, req_transaction, req) = requests(RPING).into_iter().next().expect("a connection");
    let response = packets
        .iter()
        .find_map(|recorded| match recorded.message()? {
            (_, CmMessage::Rep(rep)) if rep.remote_comm_id == req.local_comm_id => {
                Some((recorded.av, rep))
            }
            _ => None,
        });
    let (rep_av, rep) = response.expect("it was accepted");
    // Requests only: acknowledgements and read responses (opcodes 13 to 17) carry the other direction's PSNs. Both kernels
    // may have given the same queue pair number.
    let first_to = |gid, qpn| {
        let is_request = |recorded: &&Recorded<'_>| {
            (recorded.av.local, recorded.dest_qpn()) == (gid, qpn)
                && !(13..=17).contains(&recorded.packet[0])
        };
        packets
            .iter()
            .find(is_request)
            .expect("data was sent")
            .psn()
    };
    let first_psn_to_active = first_to(rep_av.local, req.local_qpn);
    let first_psn_to_passive = first_to(req_av.local, rep.local_qpn);
    Ping {
        req_av,
        req_transaction,
        req,
        rep_av,
        rep,
        first_psn_to_active,
        first_psn_to_passive,
    }
}

fn attributes(cma: &mut Cma, id: Id) -> (RtrAttr, RtsAttr) {
    match (
        cma.init_qp_attr(id, QpState::RTR),
        cma.init_qp_attr(id, QpState::RTS),
    ) {
        (Ok(QpAttr::Rtr(rtr)), Ok(QpAttr::Rts(rts))) => (rtr, rts),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_active_sides_queue_pair_fits_the_kernels_packets() {
    let ping = ping();
    let mut cma = in_place_of(ping.req.primary.local_gid, ping.req.local_ca_guid);
    let (id, req) = connect(&mut cma, &ping.req, ping.req.starting_psn);
    let rep = Rep {
        remote_comm_id: req.local_comm_id,
        ..ping.rep.clone()
    };
    let mut mad = [0; MAD_LEN];
    rep.emit(TransactionId(1), &mut mad);
    cma.handle_mad(NOW, &ping.rep_av, &mad);
    let (rtr, rts) = attributes(&mut cma, id);
    assert_eq!(rtr.dest_qpn, ping.rep.local_qpn);
    assert_eq!(
        (rts.sq_psn, rtr.rq_psn),
        (ping.first_psn_to_passive, ping.first_psn_to_active)
    );
    assert_ne!(rts.sq_psn, rtr.rq_psn, "swapped PSNs would be seen");
    assert_eq!(
        (rtr.max_dest_rd_atomic, rts.max_rd_atomic),
        (ping.rep.initiator_depth, ping.rep.responder_resources)
    );
    assert_eq!(
        (rtr.av.remote, rtr.av.local),
        (ping.rep_av.remote, ping.rep_av.local)
    );
}

#[test]
fn the_passive_sides_queue_pair_fits_the_kernels_packets() {
    let ping = ping();
    let mut cma = in_place_of(ping.req.primary.remote_gid, ping.rep.local_ca_guid);
    let channel = cma.create_channel().expect("room");
    let listener = cma
        .create_id(channel, PortSpace::TCP, QpType::RC, 0)
        .expect("room");
    let port = ping.req.service_id.port().expect("a port space");
    cma.bind_addr(listener, SocketAddr::new(ping.req_av.local.to_ip(), port))
        .expect("our address");
    cma.listen(listener, 0).expect("bound");
    let mut mad = [0; MAD_LEN];
    ping.req.emit(ping.req_transaction, &mut mad);
    cma.handle_mad(NOW, &ping.req_av, &mad);
    let event = cma.next_event(channel).expect("a request");
    assert_eq!(
        (event.kind, conn(&event).qpn),
        (EventKind::CONNECT_REQUEST, ping.req.local_qpn)
    );
    let depths = (
        conn(&event).responder_resources,
        conn(&event).initiator_depth,
    );
    assert_eq!(
        depths,
        (ping.req.initiator_depth, ping.req.responder_resources)
    );
    let query = cma.query(event.id).expect("taken");
    let header = header(&ping.req);
    assert_eq!(
        query.remote,
        Some(SocketAddr::new(header.source, header.source_port))
    );
    assert_eq!(query.local, Some(SocketAddr::new(header.destination, port)));
    cma.exposed_mut(event.id).expect("taken").starting_psn = ping.rep.starting_psn;
    let answer = ConnectParam {
        qpn: ping.rep.local_qpn,
        responder_resources: ping.rep.responder_resources,
        initiator_depth: ping.rep.initiator_depth,
        flow_control: ping.rep.end_to_end_flow_control,
        rnr_retry_count: ping.rep.rnr_retry_count,
        srq: ping.rep.srq,
        ..ConnectParam::default()
    };
    cma.accept(NOW, event.id, None, answer)
        .expect("the request waits");
    let transmit = cma.poll_transmit().expect("a response");
    let Ok((_, CmMessage::Rep(rep))) = CmMessage::parse(&transmit.mad) else {
        panic!("not a response")
    };
    let kernels = Rep {
        local_comm_id: rep.local_comm_id,
        ..ping.rep.clone()
    };
    assert_eq!(rep, kernels);
    let (rtr, rts) = attributes(&mut cma, event.id);
    assert_eq!(rtr.dest_qpn, ping.req.local_qpn);
    assert_eq!(
        (rts.sq_psn, rtr.rq_psn),
        (ping.first_psn_to_active, ping.first_psn_to_passive)
    );
    assert_eq!(
        (rtr.max_dest_rd_atomic, rts.max_rd_atomic),
        (ping.rep.responder_resources, ping.rep.initiator_depth)
    );
}
