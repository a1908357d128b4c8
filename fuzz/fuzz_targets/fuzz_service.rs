//! Messages of a program to the host service: any bytes are answered or refused, never a panic; what decodes reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use oarlock_ucm::proto::{Header, Reply, Request};

fuzz_target!(|data: &[u8]| {
    let _ = Reply::decode(data);
    if let Ok((header, body)) = Header::read(data)
        && header.check().is_ok()
        && let Ok(request) = Request::decode(&header, body)
    {
        let again = request.encode(header.sequence);
        let (header, body) = Header::read(&again).expect("encoded");
        assert_eq!(Request::decode(&header, body).expect("encoded"), request);
    }
});
