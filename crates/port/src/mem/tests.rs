use super::*;
use crate::{Port, pcap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn packet(slot: u8, mark: u32) -> Vec<u8> {
    let mut packet = vec![0x04, 0, 0xFF, 0xFF, 0, slot, 0, 7, 0, 0, 0, 0];
    packet.extend(mark.to_be_bytes());
    packet
}

fn path(local: &str, remote: &str) -> AddressVector {
    let gid = |text: &str| Gid::from_ip(text.parse().unwrap());
    AddressVector::new(gid(local), gid(remote))
}

fn host(wire: &MemWire, address: &str) -> MemHost {
    wire.add_host(&[address.parse().unwrap()]).unwrap()
}

fn is_readable(port: &Port) -> bool {
    let mut fds = [PollFd::new(port, PollFlags::IN)];
    poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .unwrap()
        > 0
}

fn marks(port: &Port) -> Vec<u32> {
    let mut batch = Batch::default();
    let mut found = Vec::new();
    while port.recv(&mut batch).unwrap() > 0 {
        found.extend(
            batch
                .iter()
                .map(|(_, bytes)| u32::from_be_bytes(bytes[12..16].try_into().unwrap())),
        );
    }
    found
}

#[test]
fn packets_reach_the_slot_of_their_queue_pair_and_the_descriptor_says_so() {
    let wire = MemWire::new();
    let (a, b) = (host(&wire, "192.0.2.1"), host(&wire, "192.0.2.2"));
    let sender = Port::Mem(a.open(3).unwrap());
    let (four, five) = (Port::Mem(b.open(4).unwrap()), Port::Mem(b.open(5).unwrap()));
    let av = path("192.0.2.1", "192.0.2.2");
    for mark in 0..10 {
        sender
            .send(&av, &packet(4 + (mark % 2) as u8, mark))
            .unwrap();
    }
    assert!(is_readable(&four) && is_readable(&five) && !is_readable(&sender));
    let mut batch = Batch::new(2);
    assert_eq!(four.recv(&mut batch).unwrap(), 2);
    assert_eq!(batch.iter().next().unwrap().0, av.reversed());
    assert!(is_readable(&four), "three packets are left");
    assert_eq!(marks(&four), [4, 6, 8]);
    assert!(!is_readable(&four));
    assert_eq!(marks(&five), [1, 3, 5, 7, 9]);
    assert_eq!(five.counters().icrc_bad(), 0);
}

#[test]
fn a_host_that_has_gone_leaves_its_addresses() {
    let wire = MemWire::new();
    let a = host(&wire, "192.0.2.1");
    let slot = a.open(1).unwrap();
    let address = "192.0.2.1".parse().unwrap();
    assert_eq!(
        wire.add_host(&[address]).unwrap_err(),
        MemError::AddressTaken(address)
    );
    assert_eq!(a.open(1).unwrap_err(), MemError::SlotTaken(1));
    drop(a);
    assert!(wire.has_address(address));
    drop(slot);
    assert!(!wire.has_address(address));
    host(&wire, "192.0.2.1").open(1).unwrap();
}

#[test]
fn nobody_there_and_a_full_queue_are_counted() {
    let wire = MemWire::new();
    let (a, b) = (host(&wire, "fd00::1"), host(&wire, "fd00::2"));
    let sender = Port::Mem(a.open(1).unwrap());
    sender
        .send(&path("fd00::1", "fd00::3"), &packet(1, 0))
        .unwrap();
    sender
        .send(&path("fd00::1", "fd00::2"), &packet(9, 0))
        .unwrap();
    assert_eq!(sender.counters().no_receiver(), 2);
    let receiver = Port::Mem(b.open(9).unwrap());
    for mark in 0..QUEUE_MAX as u32 + 5 {
        sender
            .send(&path("fd00::1", "fd00::2"), &packet(9, mark))
            .unwrap();
    }
    assert_eq!(marks(&receiver).len(), QUEUE_MAX);
    assert_eq!(receiver.counters().rxq_overflow(), 5);
    let error = sender
        .send(&path("fd00::7", "fd00::2"), &packet(9, 0))
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
}

#[test]
fn faults_follow_from_the_seed_and_are_counted() {
    let run = |seed| {
        let wire = MemWire::with_faults(Faults {
            seed,
            loss: 0.1,
            duplicate: 0.1,
            reorder: 0.1,
        });
        let (a, b) = (host(&wire, "192.0.2.1"), host(&wire, "192.0.2.2"));
        let (sender, receiver) = (Port::Mem(a.open(1).unwrap()), Port::Mem(b.open(2).unwrap()));
        for mark in 0..1000 {
            sender
                .send(&path("192.0.2.1", "192.0.2.2"), &packet(2, mark))
                .unwrap();
        }
        let found = marks(&receiver);
        let counters = sender.counters();
        let expected = 1000 - counters.fault_lost() + counters.fault_duplicated();
        // One may still be held back.
        assert!(found.len() as u64 == expected || found.len() as u64 + 1 == expected);
        assert!(
            counters.fault_lost() > 0
                && counters.fault_duplicated() > 0
                && counters.fault_reordered() > 0
        );
        assert!(!found.is_sorted());
        found
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_run_and_a_capture_are_as_on_the_wire() {
    let wire = MemWire::new();
    let (a, b) = (host(&wire, "192.0.2.1"), host(&wire, "192.0.2.2"));
    let (sender, receiver) = (Port::Mem(a.open(1).unwrap()), Port::Mem(b.open(2).unwrap()));
    let file = tempfile::NamedTempFile::new().unwrap();
    sender.tap(Some(Capture::create(file.path()).unwrap()));
    let mut run = Vec::new();
    for i in 0..3 {
        run.extend(packet(2, i));
        run.extend([0; 4]);
    }
    sender
        .send_run(&path("192.0.2.1", "192.0.2.2"), &mut run, 20)
        .unwrap();
    assert_eq!(marks(&receiver), [0, 1, 2]);
    let mut reader = pcap::Reader::new(std::fs::File::open(file.path()).unwrap()).unwrap();
    for identification in 0..3 {
        let record = reader.next_record().unwrap().unwrap();
        assert_eq!(record.datagram().unwrap().identification, identification);
    }
    assert!(reader.next_record().unwrap().is_none());
}
