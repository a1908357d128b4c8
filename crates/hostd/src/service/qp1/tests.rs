use super::*;
use oarlock_cm::Seed;
use oarlock_cma::Config;
use oarlock_port::MemWire;
use oarlock_wire::Gid;
use std::net::IpAddr;

struct Ends {
    qp1: Qp1,
    ucm: Ucm,
    ours: Port,
    peer: Port,
    av: AddressVector,
}

fn ends() -> Ends {
    let wire = MemWire::new();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let host = |text: &str| Port::Mem(wire.add_host(&[ip(text)]).unwrap().open(0).unwrap());
    let (a, b) = ("192.0.2.1", "192.0.2.2");
    Ends {
        qp1: Qp1::new(Psn::truncate(7)),
        ucm: Ucm::new(Config::default(), Seed([1; 32])),
        ours: host(a),
        peer: host(b),
        av: AddressVector::new(Gid::from_ip(ip(a)), Gid::from_ip(ip(b))),
    }
}

impl Ends {
    /// What the peer has received.
    fn arrived(&self) -> Vec<Vec<u8>> {
        let mut batch = Batch::default();
        let mut found = Vec::new();
        while self.peer.recv(&mut batch).unwrap() > 0 {
            found.extend(batch.iter().map(|(_, packet)| packet.to_vec()));
        }
        found
    }

    fn counter(&self, name: &str) -> u64 {
        self.qp1
            .counters
            .iter()
            .find(|(n, _)| *n == name)
            .unwrap_or_else(|| panic!("no counter {name}"))
            .1
    }
}

fn mad(attribute: u16) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad
}

const REQ: u16 = 0x10;
const RTU: u16 = 0x14;

/// Bytes of a UD SEND ONLY to QP1 assembled by hand: IBA Vol. 1, ch. 9 (BTH, DETH).
#[test]
fn a_datagram_is_packed_as_on_the_wire() {
    let mut ends = ends();
    let datagram = (ends.av, mad(RTU));
    ends.qp1.send(Time::ZERO, &ends.ours, datagram, false);
    let arrived = ends.arrived();
    assert_eq!(arrived.len(), 1);
    let header = [
        0x64, 0x00, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 7, // BTH
        0x80, 0x01, 0x00, 0x00, 0, 0, 0, 1, // DETH
    ];
    assert_eq!(arrived[0][..20], header);
    assert_eq!(arrived[0][20..], mad(RTU));
    assert_eq!(ends.counter("qp1_sent"), 1);
}

#[test]
fn what_is_not_a_datagram_for_qp1_is_dropped_by_name() {
    let mut ends = ends();
    let good = ends.qp1.packet(&mad(RTU));
    let changed = |at: usize, to: u8| {
        let mut packet = good.to_vec();
        packet[at] = to;
        packet
    };
    let cases: [(&str, Vec<u8>); 8] = [
        ("qp1_malformed", good[..15].to_vec()),
        ("qp1_wrong_qkey", changed(12, 0)),
        ("qp1_wrong_source", changed(19, 2)),
        ("qp1_wrong_class", changed(21, 3)),
        ("qp1_wrong_length", good[..good.len() - 4].to_vec()),
        // RC SEND ONLY to QP1 has no DETH.
        ("qp1_wrong_opcode", changed(0, 0x04)),
        ("data_packets", changed(7, 5)),
        ("data_packets", changed(7, 0)),
    ];
    for (name, packet) in cases {
        let before = ends.counter(name);
        let back = ends.av.reversed();
        ends.peer.send(&back, &packet).unwrap();
        ends.qp1.receive(Time::ZERO, &ends.ours, &mut ends.ucm);
        assert_eq!(ends.counter(name), before + 1, "{name}");
        assert_eq!(ends.counter("qp1_received"), 0, "{name}");
    }
    ends.peer.send(&ends.av.reversed(), &good).unwrap();
    ends.qp1.receive(Time::ZERO, &ends.ours, &mut ends.ucm);
    assert_eq!(ends.counter("qp1_received"), 1);
}

#[test]
fn requests_to_other_hosts_are_paced_and_everything_else_is_not() {
    let mut ends = ends();
    for _ in 0..1000 {
        let datagram = (ends.av, mad(REQ));
        ends.qp1.send(Time::ZERO, &ends.ours, datagram, false);
    }
    assert_eq!(ends.arrived().len(), BURST as usize);
    let datagram = (ends.av, mad(RTU));
    ends.qp1.send(Time::ZERO, &ends.ours, datagram, false);
    assert_eq!(ends.arrived().len(), 1);
    let mut sent = BURST as usize;
    let mut turns = 0;
    while let Some(turn) = ends.qp1.next_turn() {
        // Early calls change nothing.
        ends.qp1
            .send_waiting(Time::from_nanos(turn.as_nanos() - 1), &ends.ours);
        assert!(ends.arrived().is_empty());
        ends.qp1.send_waiting(turn, &ends.ours);
        sent += ends.arrived().len();
        turns += 1;
        assert!(turns < 100);
    }
    assert_eq!((sent, turns), (1000, 15));
}

#[test]
fn datagrams_within_the_host_do_not_reach_the_network() {
    let mut ends = ends();
    for _ in 0..3 {
        let datagram = (ends.av.reversed(), mad(REQ));
        ends.qp1.send(Time::ZERO, &ends.ours, datagram, true);
    }
    assert!(ends.qp1.deliver_within(Time::ZERO, &mut ends.ucm));
    assert!(!ends.qp1.deliver_within(Time::ZERO, &mut ends.ucm));
    assert_eq!(ends.counter("qp1_sent_within_host"), 3);
    assert_eq!(ends.ours.counters().tx_packets(), 0);
}
