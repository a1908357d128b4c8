//! Copies that do more than one packet at a time: what each packet meets is what it would meet by itself.

use std::ops::Range;

use oarlock_wire::{Bth, Opcode, Packet, PacketHeader, Psn};
use rustix::mm::MprotectFlags;

use super::*;

const FULL: usize = PAGE;

/// The payloads of a WRITE of so many pages, each page of one letter.
fn payloads(pages: usize) -> Vec<Vec<u8>> {
    (0..pages)
        .map(|page| vec![b'a' + page as u8; FULL])
        .collect()
}

fn packets(payloads: &[Vec<u8>]) -> Vec<Packet<'_>> {
    let packet = |(psn, payload)| {
        let psn = Psn::truncate(u32::try_from(psn).expect("few"));
        let bth = Bth::new(Opcode::RC_RDMA_WRITE_MIDDLE, QPN, psn);
        PacketHeader::new(bth).packet(payload)
    };
    let payloads = payloads.iter().map(Vec::as_slice);
    payloads.enumerate().map(packet).collect()
}

fn incoming(way: &mut Incoming) -> Ways<'_> {
    Ways {
        incoming: Some(way),
        outgoing: None,
    }
}

fn outgoing(way: &mut Outgoing) -> Ways<'_> {
    Ways {
        incoming: None,
        outgoing: Some(way),
    }
}

fn content(region: &Region, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.copy_out(offset as u64, &mut bytes).expect("mapped");
    bytes
}

/// Gives the packets to `place` one after the other, each with those that follow it in hand.
fn each<'a, T>(
    memory: &mut PdMemory<'a>,
    packets: &'a [Packet<'a>],
    mut place: impl FnMut(&mut PdMemory<'a>, usize, &Packet<'a>) -> T,
) -> Vec<T> {
    let one = |(index, packet)| {
        memory.go_on(&packets[index + 1..]);
        place(memory, index, packet)
    };
    packets.iter().enumerate().map(one).collect()
}

/// Writes a packet of a WRITE to this address, where it belongs, and says how many bytes follow it.
fn write(
    memory: &mut PdMemory<'_>,
    (rkey, iova): (RKey, u64),
    packets: &[Packet<'_>],
    index: usize,
) -> Result<(), MemoryError> {
    memory.announce(((packets.len() - index - 1) * FULL) as u64);
    let addr = iova + (index * FULL) as u64;
    memory.write_remote(rkey, addr, packets[index].payload)
}

#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn the_first_packet_of_a_burst_brings_the_others_and_each_is_still_asked_for() {
    let domain = Domain::new();
    let pages = Pages::new(4);
    let region = domain.foreign(&pages, ALL);
    let start = (region.rkey(), region.iova());
    let (payloads, mut way) = (payloads(4), Incoming::default());
    let packets = packets(&payloads);
    let mut memory = domain.memory_by(incoming(&mut way));
    let placed = each(&mut memory, &packets, |memory, index, _| {
        write(memory, start, &packets, index)?;
        Ok::<_, MemoryError>(content(&region, 0, pages.len))
    });
    let whole = payloads.concat();
    for seen in placed {
        assert!(
            seen.expect("mapped") == whole,
            "all of it, from the first on"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn of_a_burst_no_more_is_placed_than_the_message_has() {
    let domain = Domain::new();
    let pages = Pages::new(4);
    let region = domain.foreign(&pages, ALL);
    let (payloads, mut way) = (payloads(4), Incoming::default());
    let packets = packets(&payloads);
    let mut memory = domain.memory_by(incoming(&mut way));
    memory.go_on(&packets[1..]);
    memory.announce(2 * FULL as u64 - 1);
    memory
        .write_remote(region.rkey(), region.iova(), packets[0].payload)
        .expect("mapped");
    assert_eq!(content(&region, 0, 2 * FULL), payloads[..2].concat());
    assert_eq!(content(&region, 2 * FULL, 2 * FULL), vec![0; 2 * FULL]);
}

/// Writing: the packets up to the hole are placed, the one that meets it fails, and what follows is what it is.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn memory_that_vanishes_within_a_burst_fails_the_packet_that_needs_it() {
    let domain = Domain::new();
    let pages = Pages::new(5);
    let region = domain.foreign(&pages, ALL);
    let start = (region.rkey(), region.iova());
    let (payloads, mut way) = (payloads(5), Incoming::default());
    let packets = packets(&payloads);
    pages.protect_one(2, MprotectFlags::READ);
    let mut memory = domain.memory_by(incoming(&mut way));
    let placed = each(&mut memory, &packets, |memory, index, _| {
        write(memory, start, &packets, index)
    });
    let gone = MemoryError::Unmapped {
        addr: region.iova() + 2 * FULL as u64,
        len: FULL as u64,
    };
    assert_eq!(placed, [Ok(()), Ok(()), Err(gone), Ok(()), Ok(())]);
    assert_eq!(domain.counters.scatter_failed.get(), 1);
    let mut whole = payloads.concat();
    whole[2 * FULL..3 * FULL].fill(0);
    assert!(content(&region, 0, pages.len) == whole);
}

/// The first packet of a burst may be the one that fails; and memory may come back before its packet does.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn each_packet_of_a_burst_meets_the_memory_of_its_own_moment() {
    let domain = Domain::new();
    let pages = Pages::new(3);
    let region = domain.foreign(&pages, ALL);
    let start = (region.rkey(), region.iova());
    let (payloads, mut way) = (payloads(3), Incoming::default());
    let packets = packets(&payloads);
    for page in 0..3 {
        pages.protect_one(page, MprotectFlags::empty());
    }
    let mut memory = domain.memory_by(incoming(&mut way));
    let placed = each(&mut memory, &packets, |memory, index, _| {
        let placed = write(memory, start, &packets, index);
        let open = MprotectFlags::READ | MprotectFlags::WRITE;
        (0..3).for_each(|page| pages.protect_one(page, open));
        placed.is_ok()
    });
    assert_eq!(placed, [false, true, true]);
}

#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn a_key_that_is_taken_away_within_a_burst_works_no_more() {
    let domain = Domain::new();
    let pages = Pages::new(3);
    let mut region = Some(domain.foreign(&pages, ALL));
    let (rkey, iova) = region.as_ref().map(|r| (r.rkey(), r.iova())).expect("some");
    let (payloads, mut way) = (payloads(3), Incoming::default());
    let packets = packets(&payloads);
    let mut memory = domain.memory_by(incoming(&mut way));
    let placed = each(&mut memory, &packets, |memory, index, _| {
        let placed = write(memory, (rkey, iova), &packets, index);
        if let Some(region) = region.take() {
            region.deregister().expect("no window");
        }
        placed
    });
    let unknown = MemoryError::InvalidRemoteKey(rkey);
    assert_eq!(placed, [Ok(()), Err(unknown), Err(unknown)]);
}

/// What was placed ahead counts for the place where it belongs only.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn a_packet_that_goes_elsewhere_is_placed_there() {
    let domain = Domain::new();
    let pages = Pages::new(4);
    let region = domain.foreign(&pages, ALL);
    let (payloads, mut way) = (payloads(2), Incoming::default());
    let packets = packets(&payloads);
    let mut memory = domain.memory_by(incoming(&mut way));
    memory.go_on(&packets[1..]);
    memory.announce(FULL as u64);
    let (rkey, iova) = (region.rkey(), region.iova());
    memory
        .write_remote(rkey, iova, packets[0].payload)
        .expect("mapped");
    memory.go_on(&[]);
    let elsewhere = iova + 3 * FULL as u64;
    memory
        .write_remote(rkey, elsewhere, packets[1].payload)
        .expect("mapped");
    assert_eq!(content(&region, 3 * FULL, FULL), payloads[1]);
}

/// A datagram places its header, and then its payload right behind it: the second is not in place with the first. Nor is
/// that of a datagram that follows at the same place.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn what_a_packet_places_in_parts_is_placed_in_parts() {
    let domain = Domain::new();
    let pages = Pages::new(2);
    let region = domain.foreign(&pages, ALL);
    let (payloads, mut way) = (payloads(3), Incoming::default());
    let packets = packets(&payloads);
    let header = [b'H'; 40];
    let sges = [region.sge(0, 2 * FULL as u32)];
    for follow in [&packets[1..], &[]] {
        let mut memory = domain.memory_by(incoming(&mut way));
        for (index, packet) in packets.iter().enumerate() {
            memory.go_on(if index == 0 { follow } else { &[] });
            memory.scatter(&sges, 0, &header).expect("mapped");
            memory.scatter(&sges, 40, packet.payload).expect("mapped");
            assert_eq!(content(&region, 0, 40), header);
            assert_eq!(content(&region, 40, FULL), payloads[index]);
        }
    }
}

/// A list over the program's memory and the library's; the burst crosses from one to the other within a packet.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn a_burst_is_scattered_over_memory_of_both_kinds() {
    let domain = Domain::new();
    let pages = Pages::new(2);
    let theirs = domain.foreign(&pages, ALL);
    let ours = domain.region(3 * FULL, LOCAL);
    let (payloads, mut way) = (payloads(3), Incoming::default());
    let packets = packets(&payloads);
    let first = FULL + 100;
    let sges = [
        theirs.sge(0, first as u32),
        theirs.sge(first as u64, 0),
        ours.sge(0, 2 * FULL as u32),
    ];
    let mut memory = domain.memory_by(incoming(&mut way));
    let placed = each(&mut memory, &packets, |memory, index, packet| {
        memory.scatter(&sges, (index * FULL) as u64, packet.payload)
    });
    assert_eq!(placed, [Ok(()); 3]);
    let whole = payloads.concat();
    assert!(content(&theirs, 0, first) == whole[..first]);
    assert!(content(&ours, 0, whole.len() - first) == whole[first..]);
}

/// An element that is wrong fails the packet that needs it, not the one before it; and a list that is too short for the
/// burst takes what it has room for.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn a_list_that_is_wrong_further_on_does_not_harm_the_packet_in_hand() {
    let domain = Domain::new();
    let pages = Pages::new(4);
    let region = domain.foreign(&pages, ALL);
    let (payloads, mut way) = (payloads(3), Incoming::default());
    let packets = packets(&payloads);
    let mut wrong = region.sge(0, 2 * FULL as u32);
    wrong.addr = region.iova() + 3 * FULL as u64;
    for second in [
        wrong,
        Sge {
            lkey: LKey(!0),
            ..wrong
        },
    ] {
        let sges = [region.sge(0, FULL as u32), second];
        let mut memory = domain.memory_by(incoming(&mut way));
        let placed = each(&mut memory, &packets, |memory, index, packet| {
            memory
                .scatter(&sges, (index * FULL) as u64, packet.payload)
                .is_ok()
        });
        assert_eq!(placed, [true, false, false]);
    }
    let short = [region.sge(0, 2 * FULL as u32)];
    let mut memory = domain.memory_by(incoming(&mut way));
    let placed = each(&mut memory, &packets, |memory, index, packet| {
        memory
            .scatter(&short, (index * FULL) as u64, packet.payload)
            .is_ok()
    });
    assert_eq!(placed, [true, true, false]);
    assert_eq!(content(&region, 2 * FULL, FULL), vec![0; FULL]);
}

/// Fetches these pages of a message of four, each into its place of `buffer`, as a burst.
fn fetch_pages(
    memory: &mut PdMemory<'_>,
    region: &Region,
    is_remote: bool,
    pages: Range<usize>,
    buffer: &mut [u8],
) -> Vec<bool> {
    let sges = [region.sge(0, 4 * FULL as u32)];
    memory.begin_burst(buffer);
    let fetched = pages.map(|page| {
        let out = &mut buffer[page * FULL..][..FULL];
        memory.announce(((3 - page) * FULL) as u64);
        let offset = (page * FULL) as u64;
        let fetched = if is_remote {
            memory.read_remote(region.rkey(), region.iova() + offset, out)
        } else {
            memory.gather(&sges, offset, out)
        };
        fetched.is_ok()
    });
    let fetched = fetched.collect();
    assert!(memory.settle(buffer));
    memory.end_burst(buffer);
    fetched
}

#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn what_is_announced_is_fetched_with_the_first_and_fails_where_it_is_missing() {
    let domain = Domain::new();
    let pages = Pages::new(4);
    let region = domain.foreign(&pages, ALL);
    let whole = payloads(4).concat();
    region.copy_in(0, &whole).expect("mapped");
    for is_remote in [false, true] {
        let mut way = Outgoing::default();
        let mut fetch = |pages, buffer: &mut Vec<u8>| {
            let mut memory = domain.memory_by(outgoing(&mut way));
            fetch_pages(&mut memory, &region, is_remote, pages, buffer)
        };
        let mut buffer = vec![0; 4 * FULL];
        assert_eq!(fetch(0..4, &mut buffer), [true; 4]);
        assert!(buffer == whole);

        // What was fetched for packets that do not come is nothing to those of another turn.
        let mut buffer = vec![0; 4 * FULL];
        assert_eq!(fetch(0..1, &mut buffer), [true]);
        assert_eq!(fetch(1..3, &mut buffer), [true; 2]);
        assert!(buffer[..3 * FULL] == whole[..3 * FULL]);
        assert!(buffer[3 * FULL..] == [0; FULL]);

        pages.protect_one(2, MprotectFlags::empty());
        let before = domain.counters.gather_failed.get();
        let mut buffer = vec![0; 4 * FULL];
        assert_eq!(fetch(0..4, &mut buffer), [true, true, false, true]);
        assert_eq!(domain.counters.gather_failed.get(), before + 1);
        pages.protect_one(2, MprotectFlags::READ | MprotectFlags::WRITE);
        buffer[2 * FULL..3 * FULL].copy_from_slice(&whole[2 * FULL..3 * FULL]);
        assert!(buffer == whole, "the others are whole");
    }
}

/// A burst has packets of several messages, and some of which less is sent than was announced; each gets its own bytes.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn packets_of_several_messages_leave_in_one_burst() {
    let domain = Domain::new();
    let pages = Pages::new(4);
    let region = domain.foreign(&pages, ALL);
    let whole = payloads(4).concat();
    region.copy_in(0, &whole).expect("mapped");
    let mut way = Outgoing::default();
    let mut memory = domain.memory_by(outgoing(&mut way));
    let mut buffer = vec![0; 4 * FULL];
    memory.begin_burst(&buffer);
    // Where in the message, how many bytes are announced to follow, and where they go.
    let packets = [
        (0, 3 * FULL, 0..FULL),
        (2 * FULL, FULL, FULL..2 * FULL),
        (3 * FULL, 0, 2 * FULL..3 * FULL),
        (7, 0, 3 * FULL..3 * FULL + 64),
        (FULL + 3, 9, 3 * FULL + 64..3 * FULL + 70),
    ];
    for (offset, more, out) in &packets {
        memory.announce(*more as u64);
        memory
            .gather(
                &[region.sge(0, pages.len as u32)],
                *offset as u64,
                &mut buffer[out.clone()],
            )
            .expect("mapped");
    }
    // The key of memory that has gone is asked for again, whatever is in the pipe.
    memory.announce(FULL as u64);
    let sge = region.sge(0, pages.len as u32);
    memory
        .gather(&[sge], 0, &mut buffer[3 * FULL + 70..3 * FULL + 80])
        .expect("mapped");
    drop(region);
    let gone = memory.gather(&[sge], 10, &mut buffer[3 * FULL + 80..3 * FULL + 90]);
    assert!(matches!(gone, Err(MemoryError::InvalidKey(_))), "{gone:?}");
    assert!(memory.settle(&mut buffer));
    memory.end_burst(&mut buffer);
    for (offset, _, out) in packets {
        assert!(
            buffer[out.clone()] == whole[offset..][..out.len()],
            "{out:?}"
        );
    }
}

/// What is on its way out is what was there while the key was: who takes the key away, or what it names, waits for that.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn bytes_stored_after_a_key_was_taken_away_do_not_leave() {
    type TakeAway = fn(Region);
    let ways: [TakeAway; 2] = [
        |region| region.deregister().expect("no windows"),
        |mut region| {
            let changes = Reregistration {
                access: Some(LOCAL),
                ..Reregistration::default()
            };
            // SAFETY: nothing refers to the pages but the device.
            unsafe { region.reregister(&changes) }.expect("no windows");
        },
    ];
    for (take_away, is_first) in ways.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let domain = Domain::new();
        let pages = Pages::new(4);
        let region = domain.foreign(&pages, ALL);
        let whole = payloads(4).concat();
        region.copy_in(0, &whole).expect("mapped");
        let (inner, rkey, iova) = (Arc::clone(&region.inner), region.rkey(), region.iova());
        let mut way = Outgoing::default();
        let mut memory = domain.memory_by(outgoing(&mut way));
        let mut buffer = vec![0; 4 * FULL];
        memory.begin_burst(&buffer);
        let read = |memory: &mut PdMemory<'_>, buffer: &mut [u8], page: usize| {
            memory.announce(((3 - page) * FULL) as u64);
            let out = &mut buffer[page * FULL..][..FULL];
            memory.read_remote(rkey, iova + (page * FULL) as u64, out)
        };
        read(&mut memory, &mut buffer, 0).expect("mapped");
        let mut end = FULL;
        if !is_first {
            // The rest stays in the pipe, and is asked for by the next burst of packets.
            assert!(memory.settle(&mut buffer));
            read(&mut memory, &mut buffer, 1).expect("mapped");
            end = 2 * FULL;
        }
        let (start, len) = (pages.addr(), pages.len);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                take_away(region);
                // SAFETY: our own mapping, without references to it.
                unsafe { (start as *mut u8).write_bytes(b'?', len) };
            });
            let is_named = || {
                let entered = inner.enter_to_fetch();
                entered.is_some_and(|registration| registration.access == ALL)
            };
            while is_named() {
                std::thread::yield_now();
            }
            for _ in 0..100 {
                std::thread::yield_now();
            }
            assert!(read(&mut memory, &mut buffer, end / FULL).is_err());
            assert!(memory.settle(&mut buffer));
            memory.end_burst(&mut buffer);
        });
        assert!(buffer[..end] == whole[..end], "{is_first}");
    }
}

/// Small pieces go by ways of their own.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn bytes_of_every_length_come_and_go_by_the_short_ways() {
    let domain = Domain::new();
    let pages = Pages::new(1);
    let region = domain.foreign(&pages, ALL);
    let (mut into, mut out_of) = (Incoming::default(), Outgoing::default());
    for len in (1..70).chain([1000, FULL - 1, FULL]) {
        for offset in [0, 1, 7, FULL - len].map(|offset| offset.min(FULL - len)) {
            region.copy_in(0, &[0xEE; FULL]).expect("mapped");
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let addr = region.iova() + offset as u64;
            let mut expected = vec![0xEE; FULL];
            expected[offset..][..len].copy_from_slice(&bytes);
            domain
                .memory_by(incoming(&mut into))
                .write_remote(region.rkey(), addr, &bytes)
                .expect("mapped");
            assert!(content(&region, 0, FULL) == expected, "{len} at {offset}");
            let mut seen = vec![0; len];
            let mut memory = domain.memory_by(outgoing(&mut out_of));
            memory.begin_burst(&seen);
            memory
                .gather(&[region.sge(offset as u64, len as u32)], 0, &mut seen)
                .expect("mapped");
            assert!(memory.settle(&mut seen));
            memory.end_burst(&mut seen);
            assert_eq!(seen, bytes);
        }
    }
}

/// Memory registered for reading only is never written, whatever the way.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn memory_that_the_device_may_not_write_is_not_written() {
    let domain = Domain::new();
    let pages = Pages::new(1);
    let region = domain.foreign(&pages, AccessFlags::REMOTE_READ);
    let mut way = Incoming::default();
    let mut memory = domain.memory_by(incoming(&mut way));
    assert!(memory.scatter(&[region.sge(0, 8)], 0, &[1; 8]).is_err());
    assert!(
        memory
            .write_remote(region.rkey(), region.iova(), &[1; 8])
            .is_err()
    );
    assert_eq!(content(&region, 0, 8), [0; 8]);
}
