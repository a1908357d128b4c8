//! Any bytes through every parser; what parses is emitted again and must read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use oarlock_wire::cm::CmMessage;
use oarlock_wire::mad::MAD_LEN;
use oarlock_wire::{IpCmHeader, Packet};

fuzz_target!(|data: &[u8]| {
    let _ = Packet::parse(data);
    if let Some(header) = data.first_chunk::<{ IpCmHeader::LEN }>()
        && let Ok(parsed) = IpCmHeader::parse(header)
    {
        let mut again = [0; IpCmHeader::LEN];
        parsed.emit(&mut again);
        assert_eq!(IpCmHeader::parse(&again).expect("emitted"), parsed);
    }
    if let Some(mad) = data.first_chunk::<MAD_LEN>()
        && let Ok((header, message)) = CmMessage::parse(mad)
    {
        let mut again = [0; MAD_LEN];
        message.emit(header.transaction_id, &mut again);
        let (_, read_back) = CmMessage::parse(&again).expect("emitted");
        assert_eq!(read_back, message);
        assert!(!message.to_string().is_empty());
    }
});
