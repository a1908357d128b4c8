//! Pictures of connections, as [`svg`](crate::trace::svg) draws them.

use super::super::svg::picture;
use super::tests::{A, B, Recorder, datagram, established, qpn, whole};
use oarlock_sim::assert_snapshot;
use oarlock_wire::{Aeth, Bth, NakCode, Opcode, PacketHeader, Psn, Syndrome};

fn ack(recorder: &mut Recorder, syndrome: Syndrome, psn: u32) {
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, qpn(0x11), Psn::new(psn).unwrap());
    let header = PacketHeader::new(bth).with_aeth(Aeth { syndrome, msn: 2 });
    recorder.add(B, A, &datagram(&header, &[]));
}

fn send(recorder: &mut Recorder, psn: u32) {
    let bth = Bth::new(Opcode::RC_SEND_ONLY, qpn(0x22), Psn::new(psn).unwrap());
    recorder.add(A, B, &datagram(&PacketHeader::new(bth), b"12345678"));
}

/// A message that is said again, a packet that is sent again, a negative acknowledgement, and more than is shown.
#[test]
fn a_picture_shows_what_was_lost_and_how_much_is_not_shown() {
    let mut recorder = whole(A, B);
    let other = established();
    recorder
        .exchanges
        .exchanges
        .extend(other.exchanges.exchanges);
    recorder.exchanges.by_qpn = other.exchanges.by_qpn;
    for place in recorder.exchanges.by_qpn.values_mut() {
        place.0 += 1;
    }
    for psn in 1..=20 {
        send(&mut recorder, psn);
        if psn % 4 == 0 {
            ack(&mut recorder, Syndrome::ACK, psn);
        }
    }
    ack(&mut recorder, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR), 9);
    send(&mut recorder, 9);
    send(&mut recorder, 10);
    let drawn = picture(&recorder.exchanges, None);
    assert_eq!(drawn.drawn, 2);
    assert_eq!(
        drawn.text,
        picture(&recorder.exchanges, None).text,
        "the same again"
    );
    assert_snapshot(
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/trace/snapshots/ladder.svg"
        ),
        &drawn.text,
    );
    let one = picture(&recorder.exchanges, Some(1));
    assert_eq!(one.drawn, 1);
    assert!(one.text.contains("connection 1") && !one.text.contains("connection 2"));
}

/// However many connections and packets: so many are drawn, the others counted.
#[test]
fn the_picture_of_a_large_capture_is_bounded() {
    let mut recorder = established();
    for psn in 1..=5_000u32 {
        send(&mut recorder, psn);
        // Repetitions are remarkable, but not without end.
        send(&mut recorder, psn);
    }
    let text = picture(&recorder.exchanges, None).text;
    assert_eq!(text.matches("(again)</title>").count(), 24);
    let gaps = text.split("more packets").count() - 1;
    assert!((1..=30).contains(&gaps), "{gaps} gaps");
    for round in 0..400u32 {
        let id = 100 + round;
        recorder.say(A, B, &super::tests::req(id));
        recorder.say(B, A, &super::tests::rep(id, 1_000 + id));
    }
    let drawn = picture(&recorder.exchanges, None);
    assert_eq!((drawn.drawn, recorder.exchanges.count()), (50, 401));
    assert!(drawn.text.contains("351 more are not drawn"));
    assert!(drawn.text.len() < 200_000, "{} bytes", drawn.text.len());
}
