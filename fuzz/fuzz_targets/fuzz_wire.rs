//! Any bytes through every parser; what parses is emitted again and must read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use oarlock_wire::cm::CmMessage;
use oarlock_wire::mad::{AttributeId, MAD_LEN, MadHeader};
use oarlock_wire::pretty::AnyPacket;
use oarlock_wire::{Grh, IpCmHeader, Packet, TransactionId};

fuzz_target!(|data: &[u8]| {
    assert!(!AnyPacket(data).to_string().is_empty());
    if let Ok(packet) = Packet::parse(data) {
        // A payload that its sender has not padded is padded.
        let mut again = vec![0; data.len() + 3];
        let len = packet.emit(&mut again).expect("room for the padding");
        let read_back = Packet::parse(&again[..len]).expect("emitted");
        assert_eq!(read_back.payload, packet.payload);
    }
    if let Some(header) = data.first_chunk::<{ IpCmHeader::LEN }>()
        && let Ok(parsed) = IpCmHeader::parse(header)
    {
        let mut again = [0; IpCmHeader::LEN];
        parsed.emit(&mut again);
        assert_eq!(IpCmHeader::parse(&again).expect("emitted"), parsed);
    }
    if let Some(header) = data.first_chunk::<{ Grh::LEN }>()
        && let Ok(parsed) = Grh::parse(header)
    {
        let again = parsed.to_bytes();
        assert_eq!(Grh::parse(&again).expect("emitted"), parsed);
    }
    if let Some(mad) = data.first_chunk::<MAD_LEN>() {
        there_and_back(mad);
        // The same bytes as the body of each message, since a header that is right is seldom met by chance.
        for attribute in 0x10..=0x1A {
            let mut mad = *mad;
            MadHeader::cm(AttributeId(attribute), TransactionId(1)).emit(&mut mad);
            there_and_back(&mad);
        }
    }
});

fn there_and_back(mad: &[u8; MAD_LEN]) {
    let Ok((header, message)) = CmMessage::parse(mad) else {
        return;
    };
    let mut again = [0; MAD_LEN];
    message.emit(header.transaction_id, &mut again);
    let (_, read_back) = CmMessage::parse(&again).expect("emitted");
    assert_eq!(read_back, message);
    assert!(!message.to_string().is_empty());
}
