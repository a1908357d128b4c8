//! Bytes that nobody sane would send: truncated, with a bit flipped, or random. Nothing panics, and an error is an error.

use crate::opcodes::{listed, make};
use crate::support::{FIXTURES, Random, frames};
use oarlock_wire::pretty::AnyPacket;
use oarlock_wire::{
    Apr, Bth, CmMessage, IpCmHeader, MAD_LEN, MadHeader, Packet, Rej, SidrRep, TransactionId,
    WireError, WireErrorKind,
};
use std::collections::BTreeMap;

/// How often each outcome was seen: `ok`, or the label of the error.
type Outcomes = BTreeMap<&'static str, usize>;

/// Feeds `bytes` to every parser that could meet them, renders them, and emits again what was parsed.
fn devour(bytes: &[u8], outcomes: &mut Outcomes) {
    let mut count = |outcome: Result<(), WireError>| {
        *outcomes
            .entry(outcome.map_or_else(|error| error.kind.label(), |()| "ok"))
            .or_default() += 1;
    };
    assert!(!AnyPacket(bytes).to_string().is_empty());
    match Packet::parse(bytes) {
        Ok(packet) => {
            assert!(packet.payload.len() <= bytes.len());
            let mut again = [0; 4200];
            let len = packet
                .emit(&mut again)
                .expect("what was parsed can be emitted");
            let reparsed = Packet::parse(&again[..len]).expect("what was emitted can be parsed");
            let pad = reparsed.bth.pad;
            let bth = Bth { pad, ..packet.bth };
            assert_eq!(reparsed, Packet { bth, ..packet });
            count(Ok(()));
            if let Ok(mad) = packet.payload.try_into() {
                count(devour_mad(mad));
            }
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            count(Err(error));
        }
    }
}

fn devour_mad(mad: &[u8; MAD_LEN]) -> Result<(), WireError> {
    let (header, message) = CmMessage::parse(mad)?;
    let mut again = [0xA5; MAD_LEN];
    message.emit(header.transaction_id, &mut again);
    assert_eq!(
        CmMessage::parse(&again)
            .expect("what was emitted can be parsed")
            .1,
        message
    );
    let private_data: &[u8] = match &message {
        CmMessage::Req(req) => req.private_data.as_bytes(),
        CmMessage::SidrReq(sidr_req) => sidr_req.private_data.as_bytes(),
        _ => return Ok(()),
    };
    IpCmHeader::parse(private_data.first_chunk().expect("36 of 92 or 216"))?;
    Ok(())
}

/// One packet for each CM message in the captures, and one for each opcode there is.
fn samples() -> Vec<Vec<u8>> {
    let mut samples = BTreeMap::new();
    for frame in FIXTURES.into_iter().flat_map(frames) {
        if let Some(mad) = frame.mad() {
            let attribute = MadHeader::parse(mad).attribute_id.0;
            samples.insert(attribute, frame.transport);
        }
    }
    assert_eq!(samples.len(), 8, "CM messages in the captures");
    let mut random = Random::seeded();
    let made = listed()
        .into_iter()
        .map(|listed| make(&listed, &mut random, true).bytes);
    samples.into_values().chain(made).collect()
}

#[test]
fn every_truncation_of_a_packet_is_survived() {
    let samples = samples();
    let mut outcomes = Outcomes::new();
    for sample in &samples {
        for len in 0..sample.len() {
            devour(&sample[..len], &mut outcomes);
        }
    }
    assert!(
        outcomes["truncated"] >= samples.len() * Bth::LEN,
        "{outcomes:?}"
    );
    assert!(outcomes["ok"] > 0, "{outcomes:?}");
}

#[test]
fn every_flipped_bit_of_a_packet_is_survived() {
    let mut outcomes = Outcomes::new();
    for mut packet in samples() {
        for bit in 0..packet.len() * 8 {
            packet[bit / 8] ^= 0x80 >> (bit % 8);
            devour(&packet, &mut outcomes);
            packet[bit / 8] ^= 0x80 >> (bit % 8);
        }
    }
    for label in [
        "ok",
        "truncated",
        "unsupported_version",
        "unsupported_opcode",
        "unsupported_class",
        "unsupported_method",
        "not_ip",
    ] {
        assert!(
            outcomes.contains_key(label),
            "no flip led to {label}: {outcomes:?}"
        );
    }
}

/// Random bytes, and random bytes behind a header that gets them further in.
#[test]
fn random_bytes_are_survived() {
    let mut random = Random::seeded();
    let opcodes: Vec<_> = listed().iter().map(|listed| listed.code).collect();
    let mut outcomes = Outcomes::new();
    for _ in 0..20_000 {
        let mut bytes = [0; 400];
        random.fill(&mut bytes);
        let len = random.below(bytes.len() + 1);
        devour(&bytes[..len], &mut outcomes);

        bytes[0] = opcodes[random.below(opcodes.len())];
        bytes[1] &= 0xF0;
        devour(&bytes[..len], &mut outcomes);

        let mad: &mut [u8; MAD_LEN] = bytes.first_chunk_mut().expect("400 bytes");
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16] = 0;
        mad[17] = 0x0F + random.next().to_le_bytes()[0] % 13;
        *outcomes
            .entry(devour_mad(mad).map_or_else(|error| error.kind.label(), |()| "ok"))
            .or_default() += 1;
    }
    for label in [
        "ok",
        "truncated",
        "unsupported_opcode",
        "unsupported_attribute",
        "out_of_range",
    ] {
        assert!(
            outcomes.contains_key(label),
            "no random bytes led to {label}: {outcomes:?}"
        );
    }
}

#[test]
fn an_additional_information_longer_than_its_field_is_an_error_that_names_it() {
    let messages = [
        (CmMessage::from(Rej::default()), "reject info length", 9, 1),
        (
            SidrRep::default().into(),
            "additional information length",
            5,
            0,
        ),
        (Apr::default().into(), "additional information length", 8, 0),
    ];
    for (message, field, byte, shift) in messages {
        let mut mad = [0; MAD_LEN];
        message.emit(TransactionId(0), &mut mad);
        mad[24 + byte] = 72 << shift;
        assert!(CmMessage::parse(&mad).is_ok());
        mad[24 + byte] = 73 << shift;
        let error = CmMessage::parse(&mad).expect_err("73 of 72 bytes");
        assert_eq!((error.message, error.field), (message.name(), field));
        assert_eq!(error.kind, WireErrorKind::OutOfRange(73));
    }
}

#[test]
fn a_header_that_is_not_of_the_cm_is_refused_by_the_field_that_says_so() {
    let mut mad = [0; MAD_LEN];
    oarlock_wire::Rtu::default().emit(TransactionId(0), &mut mad);
    let cases = [
        (0, 2, "base version", WireErrorKind::UnsupportedVersion(2)),
        (1, 3, "management class", WireErrorKind::UnsupportedClass(3)),
        (2, 1, "class version", WireErrorKind::UnsupportedVersion(1)),
        (3, 0x81, "method", WireErrorKind::UnsupportedMethod(0x81)),
        (
            17,
            0x1B,
            "attribute ID",
            WireErrorKind::UnsupportedAttribute(0x1B),
        ),
    ];
    for (byte, value, field, kind) in cases {
        let mut wrong = mad;
        wrong[byte] = value;
        let error = CmMessage::parse(&wrong).expect_err(field);
        assert_eq!((error.field, error.kind), (field, kind));
    }
    assert_eq!(
        oarlock_wire::Drep::parse(&mad)
            .expect_err("an RTU is not a DREP")
            .kind,
        WireErrorKind::UnsupportedAttribute(0x14)
    );
}

#[test]
fn each_error_kind_has_its_own_label() {
    let labels: std::collections::BTreeSet<_> = WireErrorKind::LABELS.into();
    assert_eq!(labels.len(), WireErrorKind::LABELS.len());
    let kinds = [
        WireErrorKind::Truncated {
            given: 0,
            needed: 1,
        },
        WireErrorKind::NoRoom {
            given: 0,
            needed: 1,
        },
        WireErrorKind::OutOfRange(0),
        WireErrorKind::UnsupportedVersion(0),
        WireErrorKind::UnsupportedClass(0),
        WireErrorKind::UnsupportedMethod(0),
        WireErrorKind::UnsupportedAttribute(0),
        WireErrorKind::UnsupportedOpcode(0),
        WireErrorKind::NotIp(0),
        WireErrorKind::HeaderSet(0),
    ];
    assert_eq!(kinds.map(WireErrorKind::label), WireErrorKind::LABELS);
}
