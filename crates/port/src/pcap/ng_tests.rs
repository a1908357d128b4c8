use super::*;
use crate::frame::{Flow, IpFields};
use crate::{Counters, MemWire, Port};
use oarlock_wire::{AddressVector, Bth, Gid, Opcode, PacketHeader, Psn, Qpn};
use std::fs::File;
use std::io::{Cursor, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

fn pcapng() -> tempfile::NamedTempFile {
    tempfile::NamedTempFile::new().unwrap()
}

fn begin(file: &tempfile::NamedTempFile) -> std::io::Result<Section> {
    Section::begin(file.reopen().unwrap().into())
}

fn open(file: &tempfile::NamedTempFile) -> Reader<File> {
    Reader::new(File::open(file.path()).unwrap()).unwrap()
}

/// Interface, direction and bytes of every packet.
fn packets(file: &tempfile::NamedTempFile) -> Vec<(String, Direction, Vec<u8>)> {
    let mut reader = open(file);
    let mut all = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        let (interface, direction, data) =
            (record.interface, record.direction, record.data.to_vec());
        all.push((reader.interfaces()[interface].name.clone(), direction, data));
    }
    all
}

#[test]
fn each_writer_has_an_interface_and_each_packet_its_nanoseconds() {
    let file = pcapng();
    let mut section = begin(&file).unwrap();
    let time = Duration::new(1_700_000_000, 123_456_789);
    for (number, name) in ["service (1)", "ping (22)"].into_iter().enumerate() {
        assert_eq!(section.add(name, "what it is").unwrap(), number as u32);
        let capture = Capture::of_interface(section.descriptor().unwrap(), number as u32).unwrap();
        let at = SystemTime::UNIX_EPOCH + time;
        capture.write_packet(at, &[b"ab", b"cde"]).unwrap();
    }
    let mut reader = open(&file);
    for number in 0..2 {
        let record = reader.next_record().unwrap().unwrap();
        assert_eq!((record.time, record.data), (time, &b"abcde"[..]));
        assert_eq!((record.interface, record.original_len), (number, 5));
        assert_eq!(record.direction, Direction::Sent);
        assert_eq!(record.linktype, linktype::RAW);
    }
    assert!(reader.next_record().unwrap().is_none());
    let interfaces = reader.interfaces();
    assert_eq!(interfaces.len(), 2);
    assert_eq!(interfaces[1].name, "ping (22)");
    assert_eq!(interfaces[1].description, "what it is");
    assert!(interfaces[1].is_raw());
}

#[test]
fn a_section_after_another_counts_its_interfaces_anew() {
    let file = pcapng();
    for name in ["first", "second"] {
        let mut section = begin(&file).unwrap();
        let number = section.add(name, "").unwrap();
        assert_eq!(number, 0);
        let capture = Capture::of_interface(section.descriptor().unwrap(), number).unwrap();
        capture
            .write_packet(SystemTime::now(), &[name.as_bytes()])
            .unwrap();
    }
    let names: Vec<_> = packets(&file)
        .into_iter()
        .map(|(interface, _, data)| (interface, String::from_utf8(data).unwrap()))
        .collect();
    let same = |name: &str| (name.to_owned(), name.to_owned());
    assert_eq!(names, [same("first"), same("second")]);
}

#[test]
fn two_makers_of_sections_never_share_a_file() {
    let file = pcapng();
    let mut section = begin(&file).unwrap();
    if !section.is_locked() {
        return oarlock_sim::not_run("proc", "files cannot be opened through /proc");
    }
    let error = begin(&file).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    // What is handed on does not keep the lock.
    let number = section.add("a", "").unwrap();
    let handed_on = Capture::of_interface(section.descriptor().unwrap(), number).unwrap();
    drop(section);
    begin(&file).unwrap();
    drop(handed_on);
}

#[test]
fn a_section_is_begun_in_regular_empty_or_pcapng_files_only() {
    let kind = |fd: std::os::fd::OwnedFd| Section::begin(fd).unwrap_err().kind();
    let (read, write) = rustix::pipe::pipe().unwrap();
    assert_eq!(kind(write), std::io::ErrorKind::InvalidInput);
    drop(read);
    let file = pcapng();
    let read_only = File::open(file.path()).unwrap();
    assert_eq!(kind(read_only.into()), std::io::ErrorKind::InvalidInput);
    for text in ["abc", "a text of more than four bytes"] {
        std::fs::write(file.path(), text).unwrap();
        let fd = file.reopen().unwrap().into();
        assert_eq!(kind(fd), std::io::ErrorKind::InvalidInput);
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), text);
    }
}

/// Builds a file by hand, in either byte order, with blocks and options of others.
fn by_hand(swap: bool) -> Vec<u8> {
    let word = |n: u32| if swap { n.swap_bytes() } else { n }.to_ne_bytes();
    let half = |n: u16| if swap { n.swap_bytes() } else { n }.to_ne_bytes();
    let block = |kind: u32, body: &[u8]| {
        let len = word(body.len() as u32 + 12);
        [&word(kind), &len[..], body, &len].concat()
    };
    let option = |code: u16, value: &[u8]| {
        let mut bytes = [&half(code), &half(value.len() as u16)[..], value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let halves = |a: u16, b: u16| [half(a), half(b)].concat();
    let section = [
        &word(block::BYTE_ORDER)[..],
        &halves(1, 0),
        &[0xFF; 8],
        &option(1, b"a comment"),
    ]
    .concat();
    let interface = |resolution: &[u8]| {
        let head = [&halves(1, 0)[..], &word(65_535)].concat();
        let options = [option(3, b"of others\0"), option(9, resolution)].concat();
        [head, options, option(0, &[])].concat()
    };
    let packet = |interface: u32, low: u32, data: &[u8], flags: u32| {
        let words = [interface, 0, low, data.len() as u32, 99];
        let mut body: Vec<u8> = words.into_iter().flat_map(word).collect();
        body.extend(data);
        body.resize(body.len().next_multiple_of(4), 0);
        [body, option(2, &word(flags))].concat()
    };
    [
        block(block::SECTION, &section),
        block(block::INTERFACE, &interface(&[3])),
        block(0x0BAD, &[1; 8]),
        block(block::INTERFACE, &interface(&[0x80 | 10])),
        block(block::PACKET, &packet(0, 5_250, b"abcde", 1)),
        block(block::PACKET, &packet(1, 1_536, b"fgh", 0)),
    ]
    .concat()
}

#[test]
fn files_of_others_are_read_in_both_byte_orders_and_any_unit_of_time() {
    for swap in [false, true] {
        let mut reader = Reader::new(Cursor::new(by_hand(swap))).unwrap();
        let record = reader.next_record().unwrap().unwrap();
        assert_eq!(record.time, Duration::from_millis(5_250));
        assert_eq!((record.data, record.original_len), (&b"abcde"[..], 99));
        assert_eq!(record.direction, Direction::Received);
        assert_eq!(record.linktype, linktype::ETHERNET);
        let record = reader.next_record().unwrap().unwrap();
        assert_eq!(record.time, Duration::from_millis(1_500));
        assert_eq!((record.data, record.interface), (&b"fgh"[..], 1));
        assert_eq!(record.direction, Direction::Unknown);
        assert!(reader.next_record().unwrap().is_none());
        assert_eq!(reader.interfaces()[0].description, "of others");
    }
}

/// Every way to cut it, every flipped bit: an error or other packets, never a panic, never much memory.
#[test]
fn damage_is_an_error_and_never_a_panic() {
    let whole = by_hand(false);
    let read = |bytes: &[u8]| {
        let mut reader = Reader::new(Cursor::new(bytes))?;
        let mut packets = 0;
        while reader.next_record()?.is_some() {
            packets += 1;
        }
        Ok::<_, PcapError>(packets)
    };
    assert_eq!(read(&whole).unwrap(), 2);
    let ends: Vec<usize> = {
        let mut ends = vec![0];
        let mut at = 0;
        while at < whole.len() {
            at += u32::from_ne_bytes(whole[at + 4..at + 8].try_into().unwrap()) as usize;
            ends.push(at);
        }
        ends
    };
    for len in 0..whole.len() {
        let result = read(&whole[..len]);
        if len > 0 && ends.contains(&len) {
            assert!(result.is_ok(), "cut at {len}: {result:?}");
        } else {
            assert!(
                matches!(result, Err(PcapError::Truncated)),
                "cut at {len}: {result:?}"
            );
        }
    }
    let mut refused = 0;
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        refused += u32::from(read(&bytes).is_err());
    }
    assert!(refused > 100, "only {refused} flipped bits were noticed");
    let mut absurd = whole;
    let at = ends[1] + 4;
    absurd[at..at + 4].copy_from_slice(&0xFFFF_FFF0u32.to_ne_bytes());
    assert!(matches!(
        read(&absurd),
        Err(PcapError::RecordLength(0xFFFF_FFF0))
    ));
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn port(wire: &MemWire, last: u8, slot: u8) -> (crate::MemHost, Port) {
    let host = wire.add_host(&[address(last)]).unwrap();
    let port = Port::Mem(host.open(slot).unwrap());
    (host, port)
}

fn send(port: &Port, from: u8, to: u8, slot: u8) {
    let qpn = Qpn::new(u32::from(slot) << 16 | 7).unwrap();
    let bth = Bth::new(Opcode::RC_SEND_ONLY, qpn, Psn::new(1).unwrap());
    let mut packet = [0; 64];
    let len = PacketHeader::new(bth)
        .emit_packet(b"12345678", &mut packet)
        .unwrap();
    let av = AddressVector::new(Gid::from_ip(address(from)), Gid::from_ip(address(to)));
    port.send(&av, &packet[..len]).unwrap();
}

#[test]
fn a_tap_beside_the_ports_own_captures_writes_until_it_is_taken_away() {
    let wire = MemWire::new();
    let (_host, port) = port(&wire, 1, 1);
    let (own, beside) = (pcapng(), pcapng());
    port.tap(Some(Capture::create(own.path()).unwrap()));
    let taps = port.taps();
    let mut section = begin(&beside).unwrap();
    let number = section.add("beside", "").unwrap();
    let (told, lease) = rustix::pipe::pipe().unwrap();
    let capture = Capture::of_interface(section.descriptor().unwrap(), number)
        .unwrap()
        .with_lease(lease);
    assert!(taps.set(vec![capture]));
    send(&port, 1, 1, 1);
    assert!(taps.set(Vec::new()));
    // Nobody holds the other end any more.
    assert_eq!(rustix::io::read(&told, &mut [0; 1]), Ok(0));
    send(&port, 1, 1, 1);
    assert_eq!(packets(&beside).len(), 1);
    assert_eq!(packets(&own).len(), 2);
    drop(port);
    assert!(!taps.is_there());
    assert!(!taps.set(Vec::new()));
}

#[test]
fn what_this_host_sends_is_recorded_by_its_sender_unless_all_is_wanted() {
    for (all, expected) in [
        (false, vec![Direction::Sent]),
        (true, vec![Direction::Sent, Direction::Received]),
    ] {
        let wire = MemWire::new();
        let (_host, port) = port(&wire, 1, 1);
        let file = pcapng();
        let mut section = begin(&file).unwrap();
        let number = section.add("one", "").unwrap();
        let mut capture = Capture::of_interface(section.descriptor().unwrap(), number).unwrap();
        if all {
            capture = capture.with_all_received();
        }
        assert!(port.taps().set(vec![capture]));
        send(&port, 1, 1, 1);
        let mut batch = crate::Batch::default();
        assert_eq!(port.recv(&mut batch).unwrap(), 1);
        let directions: Vec<_> = packets(&file).into_iter().map(|(_, way, _)| way).collect();
        assert_eq!(directions, expected);
    }
}

/// The limit of file sizes ends the capture, never the program: no signal, and no second attempt.
#[test]
fn a_capture_that_cannot_grow_ends_and_is_counted_once() {
    // The limit is the whole process's, and other tests write files at the same time: a process of its own has it.
    const CHILD: &str = "OARLOCK_TEST_FILE_LIMIT";
    if std::env::var_os(CHILD).is_none() {
        let name = "pcap::ng_tests::a_capture_that_cannot_grow_ends_and_is_counted_once";
        for room in ["none", "a part"] {
            let out = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture", "--test-threads=1"])
                .env(CHILD, room)
                .output()
                .unwrap();
            assert!(out.status.success(), "{out:?}");
            assert!(String::from_utf8_lossy(&out.stdout).contains("1 passed"));
        }
        return;
    }
    let file = pcapng();
    let mut section = begin(&file).unwrap();
    let number = section.add("limited", "").unwrap();
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = failures.clone();
    let size = std::fs::metadata(file.path()).unwrap().len();
    // Before the next record, or within it.
    let room = if std::env::var(CHILD).unwrap() == "none" {
        0
    } else {
        50
    };
    let capture = Capture::of_interface(section.descriptor().unwrap(), number)
        .unwrap()
        .on_failure(move |error| {
            assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
            counted.fetch_add(1, Ordering::Relaxed);
        });
    let limit = rustix::process::Rlimit {
        current: Some(size + room),
        maximum: rustix::process::getrlimit(rustix::process::Resource::Fsize).maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let wire = MemWire::new();
    let (_host, port) = port(&wire, 1, 1);
    assert!(port.taps().set(vec![capture]));
    for _ in 0..3 {
        send(&port, 1, 1, 1);
    }
    assert_eq!(failures.load(Ordering::Relaxed), 1);
    assert_eq!(port.counters().capture_failed(), 1);
    assert_eq!(port.counters().tx_packets(), 3);
    let grown = std::fs::metadata(file.path()).unwrap().len() - size;
    assert_eq!(grown, room, "no second attempt");
}

#[test]
fn a_run_is_one_write_of_whole_packets_with_their_identifications() {
    let file = pcapng();
    let mut section = begin(&file).unwrap();
    let number = section.add("run", "").unwrap();
    let tap = Tap::default();
    tap.set(
        vec![Capture::of_interface(section.descriptor().unwrap(), number).unwrap()],
        Vec::new,
    );
    let counters = Counters::default();
    let flow = Flow {
        source: address(1),
        source_port: 49_152,
        destination: address(2),
        destination_port: 4791,
    };
    let ip = IpFields {
        identification: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    tap.sent_run(&counters, tap.moment(), &flow, ip, (&[7; 50], 20));
    let lens: Vec<_> = packets(&file)
        .iter()
        .map(|(_, _, data)| (data[5], data.len() - 28))
        .collect();
    assert_eq!(lens, [(0, 20), (1, 20), (2, 10)]);
    assert_eq!(counters.capture_failed(), 0);
}

#[test]
fn half_a_block_at_the_end_is_told_after_the_whole_ones() {
    let file = pcapng();
    let mut section = begin(&file).unwrap();
    let number = section.add("cut", "").unwrap();
    let capture = Capture::of_interface(section.descriptor().unwrap(), number).unwrap();
    capture
        .write_packet(SystemTime::now(), &[b"whole"])
        .unwrap();
    let mut at_end = File::options().append(true).open(file.path()).unwrap();
    at_end.write_all(&block::PACKET.to_ne_bytes()).unwrap();
    let mut reader = open(&file);
    assert!(reader.next_record().unwrap().is_some());
    assert!(matches!(reader.next_record(), Err(PcapError::Truncated)));
}
