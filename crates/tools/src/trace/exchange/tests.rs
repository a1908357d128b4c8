use super::*;
use oarlock_wire::{
    Aeth, Bth, Deth, Drep, Dreq, PacketHeader, QKey, Rej, RejReason, Rep, Req, Rtu, TransactionId,
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
        let lines = whole(a, b).exchanges.connection(1).unwrap();
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
    assert!(recorder.exchanges.connection(3).is_none());
    assert!(recorder.exchanges.connection(0).is_none());
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
    let lines = recorder.exchanges.connection(1).unwrap();
    assert_eq!(
        outline(&lines),
        ["A > B REQ", "A < B REJ"].map(str::to_owned)
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
        "0 connections; 1 packets of connections that began before the capture; 2 datagrams that are no packet we know"
    );
}
