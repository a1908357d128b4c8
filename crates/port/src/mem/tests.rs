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
    assert_eq!(four.recv_one(&mut batch).unwrap(), 1);
    assert!(is_readable(&four), "two packets are left");
    assert_eq!(marks(&four), [6, 8]);
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

/// A packet to a group: queue pair 0xFFFFFF.
fn to_group(mark: u32) -> Vec<u8> {
    let mut packet = packet(0xFF, mark);
    packet[5..8].copy_from_slice(&[0xFF; 3]);
    packet
}

#[test]
fn every_member_of_a_group_gets_one_copy_and_nobody_else_any() {
    let wire = MemWire::new();
    let (a, b) = (host(&wire, "192.0.2.1"), host(&wire, "192.0.2.2"));
    let open = |host: &MemHost, slot| Port::Mem(host.open(slot).unwrap());
    let (sender, one, two, other) = (open(&a, 1), open(&b, 1), open(&b, 2), open(&b, 3));
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    for member in [&sender, &one, &two] {
        member.join_group(group, MEM_IFINDEX).unwrap();
    }
    other
        .join_group("239.1.2.4".parse().unwrap(), MEM_IFINDEX)
        .unwrap();
    let av = path("192.0.2.1", "239.1.2.3");
    sender.send(&av, &to_group(1)).unwrap();
    let mut burst = [to_group(2), vec![0; 4], to_group(3), vec![0; 4]].concat();
    sender.send_run(&av, &mut burst, 20).unwrap();
    sender.send(&av, &packet(1, 4)).unwrap();
    let mut batch = Batch::default();
    assert_eq!(one.recv(&mut batch).unwrap(), 3);
    let seen = batch.iter().next().unwrap().0;
    let expected = AddressVector {
        scope_id: MEM_IFINDEX,
        ..av.reversed()
    };
    assert_eq!(seen, expected);
    assert_eq!(
        (marks(&two), marks(&sender)),
        (vec![1, 2, 3], vec![1, 2, 3])
    );
    assert!(marks(&one).is_empty() && marks(&other).is_empty());
    assert_eq!(
        two.counters().group_qp_bad(),
        1,
        "it named another queue pair"
    );
    // What is in the queue when a membership ends is not delivered, and nothing more comes.
    sender.send(&av, &to_group(5)).unwrap();
    one.leave_group(group, MEM_IFINDEX).unwrap();
    sender.send(&av, &to_group(6)).unwrap();
    assert_eq!((marks(&one), marks(&two)), (vec![], vec![5, 6]));
    assert_eq!(one.counters().group_not_joined(), 1);
    drop(two);
    sender.leave_group(group, MEM_IFINDEX).unwrap();
    sender.send(&av, &to_group(7)).unwrap();
    assert_eq!(sender.counters().no_receiver(), 1);
    assert!(marks(&sender).is_empty());
}

#[test]
fn memberships_in_memory_are_refused_as_on_the_real_port() {
    let wire = MemWire::new();
    let port = Port::Mem(host(&wire, "192.0.2.1").open(1).unwrap());
    let errno = |result: io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    let group: IpAddr = "ff05::1".parse().unwrap();
    assert_eq!(errno(port.join_group(group, 0)), libc::EINVAL);
    assert_eq!(
        errno(port.join_group("192.0.2.1".parse().unwrap(), MEM_IFINDEX)),
        libc::EINVAL
    );
    assert_eq!(errno(port.join_group(group, MEM_IFINDEX + 1)), libc::ENODEV);
    assert_eq!(
        errno(port.leave_group(group, MEM_IFINDEX)),
        libc::EADDRNOTAVAIL
    );
    port.join_group(group, MEM_IFINDEX).unwrap();
    assert_eq!(errno(port.join_group(group, MEM_IFINDEX)), libc::EADDRINUSE);
}

/// Faults fall on each member's copy by itself.
#[test]
fn a_copy_to_one_member_may_be_lost_alone() {
    let wire = MemWire::with_faults(Faults {
        seed: 1,
        loss: 0.5,
        ..Faults::default()
    });
    let a = host(&wire, "192.0.2.1");
    let ports = [1, 2].map(|slot| Port::Mem(a.open(slot).unwrap()));
    for port in &ports {
        port.join_group("239.1.2.3".parse().unwrap(), MEM_IFINDEX)
            .unwrap();
    }
    for mark in 0..100 {
        ports[0]
            .send(&path("192.0.2.1", "239.1.2.3"), &to_group(mark))
            .unwrap();
    }
    let [one, two] = ports.each_ref().map(marks);
    assert_ne!(one, two);
    let lost = ports[0].counters().fault_lost();
    assert_eq!((one.len() + two.len()) as u64 + lost, 200);
}

#[test]
fn addresses_and_the_interface_come_and_go_and_watchers_are_told() {
    let wire = MemWire::new();
    let (a, b) = (host(&wire, "192.0.2.1"), host(&wire, "192.0.2.2"));
    let changes = a.changes().unwrap();
    let (sender, receiver) = (Port::Mem(b.open(1).unwrap()), Port::Mem(a.open(2).unwrap()));
    let passes = |to: &str, mark| {
        sender
            .send(&path("192.0.2.2", to), &packet(2, mark))
            .unwrap();
        marks(&receiver) == [mark]
    };
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    receiver.join_group(group, MEM_IFINDEX).unwrap();
    assert!(!changes.take());
    let more: IpAddr = "192.0.2.11".parse().unwrap();
    assert!(!passes("192.0.2.11", 1));
    a.add_address(more).unwrap();
    a.add_address(more).unwrap();
    assert!(changes.take() && !changes.take());
    assert!(passes("192.0.2.11", 2) && passes("192.0.2.1", 3));
    assert_eq!(b.add_address(more), Err(MemError::AddressTaken(more)));
    assert!(!b.remove_address(more) && a.remove_address("192.0.2.1".parse().unwrap()));
    assert!(changes.take());
    assert_eq!(a.addresses(), [more]);
    assert!(!passes("192.0.2.1", 4) && passes("192.0.2.11", 5));
    let error = receiver
        .send(&path("192.0.2.1", "192.0.2.2"), &packet(1, 0))
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    a.remove_device();
    a.remove_device();
    assert!(changes.take() && !a.has_device());
    assert!(!wire.has_address(more) && !passes("192.0.2.11", 6));
    sender
        .send(&path("192.0.2.2", "239.1.2.3"), &to_group(7))
        .unwrap();
    assert!(marks(&receiver).is_empty());
    let error = receiver
        .send(&path("192.0.2.11", "192.0.2.2"), &packet(1, 0))
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    assert_eq!(b.add_address(more), Err(MemError::AddressTaken(more)));
    a.restore_device();
    assert!(changes.take() && passes("192.0.2.11", 8));
    sender
        .send(&path("192.0.2.2", "239.1.2.3"), &to_group(9))
        .unwrap();
    assert_eq!(marks(&receiver), [9], "the membership has stayed");
    drop(changes);
    a.remove_device();
}

/// A link that is down keeps addresses and slots, and loses what is sent over it in either direction.
#[test]
fn nothing_passes_a_link_that_is_down() {
    let wire = MemWire::new();
    let (a, b) = (host(&wire, "192.0.2.1"), host(&wire, "192.0.2.2"));
    let (one, two) = (Port::Mem(a.open(1).unwrap()), Port::Mem(b.open(2).unwrap()));
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    two.join_group(group, MEM_IFINDEX).unwrap();
    let changes = b.changes().unwrap();
    b.set_link_up(false);
    b.set_link_up(false);
    assert!(changes.take() && !changes.take());
    assert!(!b.is_link_up() && b.has_device() && wire.has_address("192.0.2.2".parse().unwrap()));
    let there = path("192.0.2.1", "192.0.2.2");
    one.send(&there, &packet(2, 1)).unwrap();
    one.send(&path("192.0.2.1", "239.1.2.3"), &packet(0xFF, 2))
        .unwrap();
    two.send(&there.reversed(), &packet(1, 3)).unwrap();
    assert_eq!((marks(&one), marks(&two)), (vec![], vec![]));
    assert_eq!(one.counters().no_receiver(), 2);
    assert_eq!(two.counters().no_receiver(), 1);
    b.set_link_up(true);
    assert!(changes.take());
    one.send(&there, &packet(2, 4)).unwrap();
    two.send(&there.reversed(), &packet(1, 5)).unwrap();
    assert_eq!((marks(&one), marks(&two)), (vec![5], vec![4]));
}
