use super::*;
use crate::frame::{Flow, IpFields};
use std::io::Cursor;
use std::time::{Duration, SystemTime};

fn flow() -> Flow {
    Flow {
        source: "fd00::1".parse().unwrap(),
        source_port: 0xC123,
        destination: "fd00::2".parse().unwrap(),
        destination_port: 4791,
    }
}

const IP: IpFields = IpFields {
    identification: 0,
    traffic_class: 0x28,
    hop_limit: 63,
};

#[test]
fn records_of_many_writers_on_one_file_stand_whole() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let path = file.path();
            scope.spawn(move || {
                let capture = Capture::append(path).unwrap();
                for i in 0..200u16 {
                    let payload = vec![writer; 20 + usize::from(i)];
                    capture
                        .write_datagrams(
                            SystemTime::now(),
                            &flow(),
                            IP,
                            false,
                            std::iter::once(&payload[..]),
                        )
                        .unwrap();
                }
            });
        }
    });
    let mut reader = Reader::new(std::fs::File::open(file.path()).unwrap()).unwrap();
    let mut next = [0usize; 4];
    while let Some(record) = reader.next_record().unwrap() {
        let datagram = record.datagram().unwrap();
        let writer = datagram.payload[0];
        assert!(datagram.payload.iter().all(|byte| *byte == writer));
        assert_eq!(datagram.payload.len(), 20 + next[usize::from(writer)]);
        assert_eq!((datagram.traffic_class, datagram.hop_limit), (0x28, 63));
        next[usize::from(writer)] += 1;
    }
    assert_eq!(next, [200; 4]);
}

/// A file that came from elsewhere may be locked by whoever sent it, for ever.
#[test]
fn a_locked_file_is_not_waited_for() {
    use rustix::fs::{FlockOperation, flock};
    let file = tempfile::NamedTempFile::new().unwrap();
    let holder = file.reopen().unwrap();
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    let error = Capture::append_to(file.reopen().unwrap().into()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(std::fs::metadata(file.path()).unwrap().len(), 0);
    flock(&holder, FlockOperation::Unlock).unwrap();
    Capture::append(file.path()).unwrap();
    // The header is there: no lock is needed any more.
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    let capture = Capture::append_to(file.reopen().unwrap().into()).unwrap();
    capture
        .write_datagrams(
            SystemTime::now(),
            &flow(),
            IP,
            false,
            std::iter::once(&[1; 20][..]),
        )
        .unwrap();
    let mut reader = Reader::new(std::fs::File::open(file.path()).unwrap()).unwrap();
    assert!(reader.next_record().unwrap().is_some());
    assert!(reader.next_record().unwrap().is_none());
}

#[test]
fn a_capture_goes_to_regular_files_only() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    assert_eq!(
        Capture::append_to(write).unwrap_err().kind(),
        std::io::ErrorKind::InvalidInput
    );
    drop(read);
    let null = std::fs::File::options()
        .write(true)
        .open("/dev/null")
        .unwrap();
    assert!(Capture::append_to(null.into()).is_err());
    let file = tempfile::NamedTempFile::new().unwrap();
    Capture::append_to(file.reopen().unwrap().into()).unwrap();
    let read_only = std::fs::File::open(file.path()).unwrap();
    let error = Capture::append_to(read_only.into()).unwrap_err();
    assert!(error.to_string().contains("open for writing"), "{error}");
}

#[test]
fn datagrams_are_found_behind_every_link_header_we_know() {
    let mut packet = Vec::new();
    flow().emit(IP, b"0123456789abcdef", &mut packet).unwrap();
    let headers: [(u32, &[u8]); 8] = [
        (linktype::RAW, &[]),
        (linktype::IPV6, &[]),
        (linktype::NULL, &[10, 0, 0, 0]),
        (
            linktype::ETHERNET,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x86, 0xDD],
        ),
        (
            linktype::ETHERNET,
            &[
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0, 0, 5, 0x86, 0xDD,
            ],
        ),
        (
            linktype::LINUX_SLL,
            &[0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0x86, 0xDD],
        ),
        (
            linktype::LINUX_SLL2,
            &[
                0x86, 0xDD, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
        ),
        (linktype::LOOP, &[0, 0, 0, 30]),
    ];
    for (linktype, header) in headers {
        let data = [header, &packet].concat();
        let record = Record {
            time: Duration::ZERO,
            linktype,
            original_len: data.len() as u32,
            interface: 0,
            direction: Direction::Unknown,
            data: &data,
        };
        let datagram = record
            .datagram()
            .unwrap_or_else(|| panic!("link type {linktype}"));
        assert_eq!(datagram.payload, b"0123456789abcdef");
        for len in 0..data.len() {
            assert_eq!(
                Record {
                    data: &data[..len],
                    ..record
                }
                .datagram(),
                None,
                "link type {linktype} cut at {len}"
            );
        }
    }
    let record = Record {
        time: Duration::ZERO,
        linktype: 147,
        original_len: 0,
        interface: 0,
        direction: Direction::Unknown,
        data: &packet,
    };
    assert_eq!(record.datagram(), None);
}

#[test]
fn both_byte_orders_and_both_resolutions_are_read() {
    for (magic, expected) in [
        (MAGIC_MICROS, Duration::from_micros(5)),
        (MAGIC_NANOS, Duration::from_nanos(5)),
    ] {
        for swap in [false, true] {
            let word = |n: u32| {
                if swap {
                    n.swap_bytes().to_ne_bytes()
                } else {
                    n.to_ne_bytes()
                }
            };
            let mut bytes = Vec::new();
            for n in [magic, 0x0004_0002, 0, 0, 65_535, linktype::RAW, 9, 5, 3, 7] {
                bytes.extend(word(n));
            }
            bytes.extend(b"abc");
            let mut reader = Reader::new(Cursor::new(&bytes)).unwrap();
            let record = reader.next_record().unwrap().unwrap();
            assert_eq!(record.time, Duration::from_secs(9) + expected);
            assert_eq!(
                (record.data, record.original_len, record.linktype),
                (&b"abc"[..], 7, linktype::RAW)
            );
            assert!(reader.next_record().unwrap().is_none());
            let mut cut = Reader::new(Cursor::new(&bytes[..bytes.len() - 1])).unwrap();
            assert!(matches!(cut.next_record(), Err(PcapError::Truncated)));
        }
    }
    assert!(matches!(
        Reader::new(Cursor::new([0x0A, 0x0D, 0x0D, 0x0A].repeat(6))),
        Err(PcapError::Magic(0x0A0D_0D0A))
    ));
    assert!(matches!(
        Reader::new(Cursor::new([1; 24])),
        Err(PcapError::Magic(0x0101_0101))
    ));
    for short in [&[1; 3][..], &MAGIC_MICROS.to_ne_bytes().repeat(5)] {
        assert!(matches!(
            Reader::new(Cursor::new(short)),
            Err(PcapError::Truncated)
        ));
    }
}

#[test]
fn an_absurd_record_length_is_refused_before_memory_is_taken() {
    let mut bytes = Vec::new();
    for n in [
        MAGIC_MICROS,
        0x0004_0002,
        0,
        0,
        65_535,
        linktype::RAW,
        0,
        0,
        u32::MAX,
        u32::MAX,
    ] {
        bytes.extend(n.to_ne_bytes());
    }
    let mut reader = Reader::new(Cursor::new(bytes)).unwrap();
    assert!(matches!(
        reader.next_record(),
        Err(PcapError::RecordLength(u32::MAX))
    ));
}

#[test]
fn the_time_of_a_record_is_kept_to_the_microsecond() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let time = Duration::new(1_700_000_000, 123_456_000);
    Capture::create(file.path())
        .unwrap()
        .write_packet(SystemTime::UNIX_EPOCH + time, &[b"ab", b"c"])
        .unwrap();
    let mut reader = Reader::new(std::fs::File::open(file.path()).unwrap()).unwrap();
    let record = reader.next_record().unwrap().unwrap();
    assert_eq!((record.time, record.data), (time, &b"abc"[..]));
}
