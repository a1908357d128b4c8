use super::*;
use oarlock_wire::base::TransportClass;
use oarlock_wire::{
    Aeth, Apr, AtomicAckEth, AtomicEth, Bth, Deth, Drep, Dreq, Ieth, ImmDt, Lap, Mra, Opcode,
    PacketHeader, Psn, QKey, RKey, Rej, RejReason, Rep, Req, Reth, Rtu, SidrRep, SidrReq, Srqn,
    Syndrome, TransactionId, XrcEth,
};

pub(super) const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
pub(super) const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

pub(super) fn qpn(number: u32) -> Qpn {
    Qpn::new(number).unwrap()
}

fn bth(opcode: Opcode, dest_qpn: Qpn, psn: u32) -> Bth {
    Bth::new(opcode, dest_qpn, Psn::new(psn).unwrap())
}

/// One datagram: packet and a place for the ICRC, which the ladder does not judge.
pub(super) fn datagram(header: &PacketHeader, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.len() + payload.len() + 4];
    let len = header.emit_packet(payload, &mut bytes).unwrap();
    bytes.truncate(len + 4);
    bytes.resize(len + 4, 0);
    bytes
}

fn management(message: &CmMessage) -> Vec<u8> {
    let mut mad = [0; MAD_LEN];
    message.emit(TransactionId(7), &mut mad);
    let deth = Deth {
        qkey: QKey::GSI,
        src_qpn: Qpn::QP1,
    };
    let header = PacketHeader::new(bth(Opcode::UD_SEND_ONLY, Qpn::QP1, 0)).with_deth(deth);
    datagram(&header, &mad)
}

pub(super) struct Recorder {
    pub(super) exchanges: Exchanges,
    micros: u64,
}

impl Recorder {
    fn new() -> Self {
        Self {
            exchanges: Exchanges::default(),
            micros: 1_000_000,
        }
    }

    pub(super) fn add(&mut self, source: IpAddr, destination: IpAddr, payload: &[u8]) {
        self.micros += 10;
        self.exchanges.add(&Datagram {
            time: Duration::from_micros(self.micros),
            source,
            destination,
            payload,
        });
    }

    pub(super) fn say(&mut self, source: IpAddr, destination: IpAddr, message: &CmMessage) {
        self.add(source, destination, &management(message));
    }
}

pub(super) fn req(id: u32) -> CmMessage {
    CmMessage::Req(Req {
        local_comm_id: CommId(id),
        local_qpn: qpn(0x11),
        ..Req::default()
    })
}

pub(super) fn rep(active: u32, passive: u32) -> CmMessage {
    CmMessage::Rep(Rep {
        local_comm_id: CommId(passive),
        remote_comm_id: CommId(active),
        local_qpn: qpn(0x22),
        ..Rep::default()
    })
}

fn rtu(active: u32, passive: u32) -> CmMessage {
    CmMessage::Rtu(Rtu {
        local_comm_id: CommId(active),
        remote_comm_id: CommId(passive),
        ..Rtu::default()
    })
}

/// A whole connection; both ends may have one address.
pub(super) fn whole(a: IpAddr, b: IpAddr) -> Recorder {
    let mut recorder = Recorder::new();
    recorder.say(a, b, &req(1));
    recorder.say(a, b, &req(1));
    recorder.say(b, a, &rep(1, 2));
    recorder.say(a, b, &rtu(1, 2));
    for psn in [5, 6, 6] {
        let header = PacketHeader::new(bth(Opcode::RC_SEND_ONLY, qpn(0x22), psn));
        recorder.add(a, b, &datagram(&header, b"12345678"));
    }
    let ack = PacketHeader::new(bth(Opcode::RC_ACKNOWLEDGE, qpn(0x11), 6)).with_aeth(Aeth {
        syndrome: Syndrome::ACK,
        msn: 2,
    });
    recorder.add(b, a, &datagram(&ack, &[]));
    recorder.say(
        b,
        a,
        &CmMessage::Dreq(Dreq {
            local_comm_id: CommId(2),
            remote_comm_id: CommId(1),
            ..Dreq::default()
        }),
    );
    recorder.say(
        a,
        b,
        &CmMessage::Drep(Drep {
            local_comm_id: CommId(1),
            remote_comm_id: CommId(2),
            ..Drep::default()
        }),
    );
    recorder
}

/// The arrows and the words behind them, without times and fields.
fn outline(lines: &[String]) -> Vec<String> {
    lines
        .iter()
        .skip(1)
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            let again = if line.ends_with("(again)") {
                " again"
            } else {
                ""
            };
            format!("{}{again}", words[..4].join(" "))
        })
        .collect()
}

#[test]
fn a_connection_is_told_as_a_ladder_whatever_the_addresses() {
    for (a, b) in [(A, B), (A, A)] {
        let lines = whole(a, b).exchanges.exchange(1).unwrap();
        assert_eq!(
            outline(&lines),
            [
                "A > B REQ",
                "A > B REQ again",
                "A < B REP",
                "A > B RTU",
                "A = B data",
                "A < B DREQ",
                "A > B DREP",
            ]
            .map(str::to_owned),
            "{lines:#?}"
        );
        assert!(
            lines[1].starts_with("t=0.000000  A > B  REQ"),
            "{}",
            lines[1]
        );
        assert_eq!(
            lines[5],
            "t=0.000040  A = B  data  A > B: 2 messages in 2 packets, 16 bytes, 0 acknowledgements, 1 repeated packets; \
             A < B: 0 messages in 0 packets, 0 bytes, 1 acknowledgements"
        );
    }
}

#[test]
fn an_id_used_again_after_the_end_is_another_connection() {
    let mut recorder = whole(A, B);
    recorder.say(A, B, &req(1));
    assert_eq!(recorder.exchanges.count(), 2);
    assert!(recorder.exchanges.exchange(3).is_none());
    assert!(recorder.exchanges.exchange(0).is_none());
}

#[test]
fn a_refusal_finds_its_request_by_the_remote_id() {
    let mut recorder = Recorder::new();
    recorder.say(A, B, &req(9));
    recorder.say(
        B,
        A,
        &CmMessage::Rej(Rej {
            local_comm_id: CommId(0),
            remote_comm_id: CommId(9),
            reason: RejReason::CONSUMER_DEFINED,
            ..Rej::default()
        }),
    );
    let lines = recorder.exchanges.exchange(1).unwrap();
    assert_eq!(
        outline(&lines),
        ["A > B REQ", "A < B REJ"].map(str::to_owned)
    );
}

/// Patience and an alternate path belong to their connection, whichever side begins.
#[test]
fn patience_and_alternate_paths_are_rungs_of_their_connection() {
    let mut recorder = Recorder::new();
    recorder.say(A, B, &req(1));
    recorder.say(
        B,
        A,
        &CmMessage::Mra(Mra {
            local_comm_id: CommId(2),
            remote_comm_id: CommId(1),
            ..Mra::default()
        }),
    );
    recorder.say(B, A, &rep(1, 2));
    recorder.say(A, B, &rtu(1, 2));
    let lap = CmMessage::Lap(Lap {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        ..Lap::default()
    });
    recorder.say(A, B, &lap);
    recorder.say(A, B, &lap);
    recorder.say(
        B,
        A,
        &CmMessage::Apr(Apr {
            local_comm_id: CommId(2),
            remote_comm_id: CommId(1),
            ..Apr::default()
        }),
    );
    let lines = recorder.exchanges.exchange(1).unwrap();
    let steps = [
        "A > B REQ",
        "A < B MRA",
        "A < B REP",
        "A > B RTU",
        "A > B LAP",
        "A > B LAP again",
        "A < B APR",
    ];
    assert_eq!(outline(&lines), steps.map(str::to_owned), "{lines:#?}");
}

fn ud(source_qpn: u32, dest_qpn: Qpn) -> Vec<u8> {
    let deth = Deth {
        qkey: QKey(7),
        src_qpn: qpn(source_qpn),
    };
    let header = PacketHeader::new(bth(Opcode::UD_SEND_ONLY, dest_qpn, 0)).with_deth(deth);
    datagram(&header, b"1234")
}

fn sidr_req(id: u32) -> CmMessage {
    CmMessage::SidrReq(SidrReq {
        request_id: CommId(id),
        ..SidrReq::default()
    })
}

fn sidr_rep(id: u32, status: SidrStatus) -> CmMessage {
    CmMessage::SidrRep(SidrRep {
        request_id: CommId(id),
        status,
        qpn: qpn(0x22),
        qkey: QKey(7),
        ..SidrRep::default()
    })
}

/// Two clients of one host find one queue pair: each one's datagrams, both ways, belong to its own resolution, though
/// datagrams carry no number of theirs.
#[test]
fn a_resolution_is_a_ladder_with_its_datagrams() {
    for (a, b) in [(A, B), (A, A)] {
        let mut recorder = Recorder::new();
        for id in [1, 2] {
            recorder.say(a, b, &sidr_req(id));
            recorder.say(a, b, &sidr_req(id));
            recorder.say(b, a, &sidr_rep(id, SidrStatus::SUCCESS));
        }
        for source in [0x31, 0x32, 0x32] {
            recorder.add(a, b, &ud(source, qpn(0x22)));
            recorder.add(b, a, &ud(0x22, qpn(source)));
        }
        for (number, datagrams) in [(1, 1), (2, 2)] {
            let lines = recorder.exchanges.exchange(number).unwrap();
            assert!(lines[0].starts_with(&format!("resolution {number}: A = {a}")));
            let steps = [
                "A > B SIDR_REQ",
                "A > B SIDR_REQ again",
                "A < B SIDR_REP",
                "A = B data",
            ];
            assert_eq!(outline(&lines), steps.map(str::to_owned), "{lines:#?}");
            let bytes = 4 * datagrams;
            assert!(
                lines[4].ends_with(&format!(
                    "A > B: {datagrams} datagrams, {bytes} bytes; A < B: {datagrams} datagrams, {bytes} bytes"
                )),
                "{}",
                lines[4]
            );
        }
        let last = recorder.exchanges.all().pop().unwrap();
        assert!(
            last.starts_with("0 connections; 2 resolutions; 0 groups; 0 packets"),
            "{last}"
        );
    }
}

#[test]
fn a_refused_resolution_finds_nobody_and_its_id_may_come_back() {
    let mut recorder = Recorder::new();
    recorder.say(A, B, &sidr_req(1));
    recorder.say(B, A, &sidr_rep(1, SidrStatus::UNSUPPORTED));
    recorder.add(A, B, &ud(0x31, qpn(0x22)));
    recorder.say(A, B, &sidr_req(1));
    recorder.say(B, A, &sidr_rep(3, SidrStatus::SUCCESS));
    let last = recorder.exchanges.all().pop().unwrap();
    assert!(
        last.starts_with("0 connections; 2 resolutions; 0 groups; 2 packets"),
        "{last}"
    );
}

#[test]
fn datagrams_to_a_group_are_told_by_sender() {
    let group = "239.1.2.3".parse().unwrap();
    let mut recorder = Recorder::new();
    for (source, number) in [(A, 0x31), (B, 0x32), (A, 0x31)] {
        recorder.add(source, group, &ud(number, Qpn::MULTICAST));
    }
    let lines = recorder.exchanges.all();
    assert_eq!(
        lines[..3],
        [
            "group 239.1.2.3".to_owned(),
            "t=0.000000  192.0.2.1 (qpn 0x000031) > 239.1.2.3  data  2 datagrams, 8 bytes"
                .to_owned(),
            "t=0.000010  192.0.2.2 (qpn 0x000032) > 239.1.2.3  data  1 datagrams, 4 bytes"
                .to_owned(),
        ]
    );
    assert!(
        lines
            .last()
            .unwrap()
            .starts_with("0 connections; 0 resolutions; 1 groups; 0 packets")
    );
}

#[test]
fn what_belongs_to_no_connection_is_counted() {
    let mut recorder = Recorder::new();
    recorder.say(A, B, &rtu(1, 2));
    recorder.add(A, B, b"no packet");
    recorder.add(A, B, &[]);
    let last = recorder.exchanges.all().pop().unwrap();
    assert_eq!(
        last,
        "0 connections; 0 resolutions; 0 groups; 1 packets of exchanges that began before the capture; 2 datagrams that are no packet we know"
    );
}

/// A connection between queue pairs 0x11 (A) and 0x22 (B), established, with nothing said yet.
pub(super) fn established() -> Recorder {
    let mut recorder = Recorder::new();
    recorder.say(A, B, &req(1));
    recorder.say(B, A, &rep(1, 2));
    recorder.say(A, B, &rtu(1, 2));
    recorder
}

impl Recorder {
    /// A request of A, or a response to B.
    fn forth(&mut self, header: PacketHeader, payload: &[u8]) {
        self.add(A, B, &datagram(&header, payload));
    }

    /// A response to A, or a request of B.
    fn back(&mut self, header: PacketHeader, payload: &[u8]) {
        self.add(B, A, &datagram(&header, payload));
    }

    /// What follows the RTU, without times.
    fn data(&self) -> Vec<String> {
        let lines = self.exchanges.exchange(1).unwrap();
        let data = lines.iter().skip(4);
        data.map(|line| match line.split_once("  A ") {
            Some((_, rest)) => format!("A {rest}"),
            None => line.trim().to_owned(),
        })
        .collect()
    }
}

fn to_b(opcode: Opcode, psn: u32) -> PacketHeader {
    PacketHeader::new(bth(opcode, qpn(0x22), psn))
}

fn to_a(opcode: Opcode, psn: u32) -> PacketHeader {
    PacketHeader::new(bth(opcode, qpn(0x11), psn))
}

const fn reth(addr: u64, len: u32) -> Reth {
    Reth {
        addr,
        rkey: RKey(0x1234_5601),
        len,
    }
}

const ACK: Aeth = Aeth {
    syndrome: Syndrome::ACK,
    msn: 1,
};

#[test]
fn writes_reads_and_atomics_are_told_with_address_key_and_values() {
    let mut recorder = established();
    recorder.forth(
        to_b(Opcode::RC_RDMA_WRITE_FIRST, 1).with_reth(reth(0x1000, 12)),
        &[0; 8],
    );
    recorder.forth(
        to_b(Opcode::RC_RDMA_WRITE_LAST_IMM, 2).with_immdt(ImmDt(7)),
        &[0; 4],
    );
    recorder.back(to_a(Opcode::RC_ACKNOWLEDGE, 2).with_aeth(ACK), &[]);
    recorder.forth(
        to_b(Opcode::RC_RDMA_READ_REQUEST, 3).with_reth(reth(0x2000, 24)),
        &[],
    );
    recorder.back(
        to_a(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 3).with_aeth(ACK),
        &[0; 8],
    );
    // The second response is lost, and asked for again with what follows it.
    recorder.forth(
        to_b(Opcode::RC_RDMA_READ_REQUEST, 4).with_reth(reth(0x2008, 16)),
        &[],
    );
    recorder.back(
        to_a(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 4).with_aeth(ACK),
        &[0; 8],
    );
    recorder.back(
        to_a(Opcode::RC_RDMA_READ_RESPONSE_LAST, 5).with_aeth(ACK),
        &[0; 8],
    );
    let operands = AtomicEth {
        addr: 0x3000,
        rkey: RKey(0x1234_5602),
        swap_add: 0x20,
        compare: 0x10,
    };
    for (opcode, psn, original) in [
        (Opcode::RC_COMPARE_SWAP, 6, 0x10),
        (Opcode::RC_FETCH_ADD, 7, 0x20),
    ] {
        recorder.forth(to_b(opcode, psn).with_atomic_eth(operands), &[]);
        recorder.back(
            to_a(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn)
                .with_aeth(ACK)
                .with_atomic_ack_eth(AtomicAckEth { original }),
            &[],
        );
    }
    assert_eq!(
        recorder.data(),
        [
            "A = B  data  A > B: 4 messages in 5 packets, 12 bytes, 0 acknowledgements, 1 repeated packets; \
             A < B: 0 messages in 0 packets, 0 bytes, 3 acknowledgements, 3 READ responses of 24 bytes",
            "A > B    RDMA WRITE  addr=0x1000 rkey=0x12345601 len=12 imm=0x00000007",
            "A > B    RDMA READ  addr=0x2000 rkey=0x12345601 len=24",
            "A > B    compare-and-swap  addr=0x3000 rkey=0x12345602 compare=0x10 swap=0x20 original=0x10",
            "A > B    fetch-and-add  addr=0x3000 rkey=0x12345602 add=0x20 original=0x20",
        ]
    );
}

#[test]
fn what_comes_along_with_a_message_is_told_and_a_plain_message_is_not() {
    let mut recorder = established();
    recorder.forth(to_b(Opcode::RC_SEND_FIRST, 1), &[0; 8]);
    recorder.forth(
        to_b(Opcode::RC_SEND_LAST_INVALIDATE, 2).with_ieth(Ieth(RKey(0x55))),
        &[0; 8],
    );
    recorder.forth(to_b(Opcode::RC_SEND_ONLY, 3), &[0; 8]);
    // The other way has PSNs of its own.
    recorder.back(
        to_a(Opcode::RC_SEND_ONLY_IMM, 1).with_immdt(ImmDt(9)),
        &[0; 4],
    );
    assert_eq!(
        recorder.data(),
        [
            "A = B  data  A > B: 2 messages in 3 packets, 24 bytes, 0 acknowledgements; \
             A < B: 1 messages in 1 packets, 4 bytes, 0 acknowledgements",
            "A > B    SEND  len=16 invalidate=0x00000055",
            "A < B    SEND  len=4 imm=0x00000009",
        ]
    );
}

/// A side's responses bear the PSNs of the other side's requests: they are no repetition of its own.
#[test]
fn responses_are_told_apart_from_the_requests_of_the_same_side() {
    let mut recorder = established();
    recorder.back(to_a(Opcode::RC_SEND_ONLY, 900), &[0; 4]);
    recorder.forth(
        to_b(Opcode::RC_RDMA_READ_REQUEST, 5).with_reth(reth(0, 8)),
        &[],
    );
    for _ in 0..2 {
        recorder.back(
            to_a(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 5).with_aeth(ACK),
            &[0; 8],
        );
    }
    recorder.back(to_a(Opcode::RC_SEND_ONLY, 901), &[0; 4]);
    assert_eq!(
        recorder.data()[0],
        "A = B  data  A > B: 1 messages in 1 packets, 0 bytes, 0 acknowledgements; \
         A < B: 2 messages in 2 packets, 8 bytes, 0 acknowledgements, 1 READ responses of 8 bytes, 1 repeated packets"
    );
}

#[test]
fn unreliable_and_extended_connections_are_told_by_name() {
    let mut recorder = established();
    let write = Opcode::RC_RDMA_WRITE_ONLY;
    recorder.forth(
        to_b(write.of(TransportClass::Uc), 1).with_reth(reth(0x1000, 4)),
        &[0; 4],
    );
    assert_eq!(
        recorder.data(),
        [
            "A = B  data  A > B: 1 messages in 1 packets, 4 bytes",
            "A > B    UC RDMA WRITE  addr=0x1000 rkey=0x12345601 len=4",
        ]
    );

    let mut recorder = established();
    for (psn, srqn) in [(1, 7), (2, 5), (3, 7)] {
        let srqn = Srqn::truncate(srqn);
        let send = to_b(Opcode::RC_SEND_ONLY_IMM.of(TransportClass::Xrc), psn);
        let send = send.with_xrceth(XrcEth { srqn });
        recorder.forth(send.with_immdt(ImmDt(psn)), &[0; 4]);
    }
    assert_eq!(
        recorder.data(),
        [
            "A = B  data  A > B: 3 messages in 3 packets, 12 bytes, 0 acknowledgements, to shared receive queues 0x000005 0x000007",
            "A > B    XRC SEND  len=4 imm=0x00000001 srqn=0x000007",
            "A > B    XRC SEND  len=4 imm=0x00000002 srqn=0x000005",
            "A > B    XRC SEND  len=4 imm=0x00000003 srqn=0x000007",
        ]
    );
}

#[test]
fn of_many_operations_the_first_are_told_and_the_rest_counted() {
    let mut recorder = established();
    let count = operations::MAX_SHOWN as u32 + 30;
    for n in 0..count {
        recorder.forth(
            to_b(Opcode::RC_RDMA_WRITE_FIRST, 2 * n).with_reth(reth(n.into(), 12)),
            &[0; 8],
        );
        recorder.forth(
            to_b(Opcode::RC_RDMA_WRITE_LAST_IMM, 2 * n + 1).with_immdt(ImmDt(n)),
            &[0; 4],
        );
    }
    let lines = recorder.data();
    assert_eq!(lines.len(), 1 + operations::MAX_SHOWN + 1);
    assert_eq!(lines.last().unwrap(), "30 more");
    // The end of an operation that is not shown leaves the shown ones as they are.
    for (n, line) in lines[1..=operations::MAX_SHOWN].iter().enumerate() {
        assert!(line.ends_with(&format!("len=12 imm={n:#010x}")), "{line}");
    }
}
