use super::*;
use oarlock_wire::{
    Aeth, Apr, Bth, Deth, Drep, Dreq, Lap, Mra, Opcode, PacketHeader, Psn, QKey, Rej, RejReason,
    Rep, Req, Rtu, SidrRep, SidrReq, Syndrome, TransactionId,
};

const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

fn qpn(number: u32) -> Qpn {
    Qpn::new(number).unwrap()
}

fn bth(opcode: Opcode, dest_qpn: Qpn, psn: u32) -> Bth {
    Bth::new(opcode, dest_qpn, Psn::new(psn).unwrap())
}

/// One datagram: packet and a place for the ICRC, which the ladder does not judge.
fn datagram(header: &PacketHeader, payload: &[u8]) -> Vec<u8> {
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

struct Recorder {
    exchanges: Exchanges,
    micros: u64,
}

impl Recorder {
    fn new() -> Self {
        Self {
            exchanges: Exchanges::default(),
            micros: 1_000_000,
        }
    }

    fn add(&mut self, source: IpAddr, destination: IpAddr, payload: &[u8]) {
        self.micros += 10;
        self.exchanges.add(&Datagram {
            time: Duration::from_micros(self.micros),
            source,
            destination,
            payload,
        });
    }

    fn say(&mut self, source: IpAddr, destination: IpAddr, message: &CmMessage) {
        self.add(source, destination, &management(message));
    }
}

fn req(id: u32) -> CmMessage {
    CmMessage::Req(Req {
        local_comm_id: CommId(id),
        local_qpn: qpn(0x11),
        ..Req::default()
    })
}

fn rep(active: u32, passive: u32) -> CmMessage {
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
fn whole(a: IpAddr, b: IpAddr) -> Recorder {
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
