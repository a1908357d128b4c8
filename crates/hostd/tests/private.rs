//! Hosts in this process, on an in-memory wire.

mod support;

use oarlock_hostd::{Call, Error, Host, MemWire, Wake, WriteBatch};
use oarlock_port::{Batch, Port};
use oarlock_ucm::client::{self, IdNumber};
use oarlock_wire::{AddressVector, CmMessage, Gid};
use support::*;

#[test]
fn two_programs_of_one_host_connect_and_disconnect() {
    let host = Host::private().unwrap();
    let (active, passive) = (Channel::new(&host), Channel::new(&host));
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (listener, to) = passive.listen(1, address);
        let (a, p) = establish(&active, &passive, to, 0x20_0011);
        active.call(client::disconnect(a));
        assert_eq!(passive.expect(DISCONNECTED).id, p);
        passive.call(client::disconnect(p));
        assert_eq!(active.expect(DISCONNECTED).id, a);
        active.expect(TIMEWAIT_EXIT);
        passive.expect(TIMEWAIT_EXIT);
        active.call(client::destroy_id(a));
        passive.call(client::destroy_id(p));
        passive.call(client::destroy_id(listener));
    }
    let state = host.ps().unwrap();
    assert_eq!(
        (state.ids.len(), state.host.ports.len()),
        (0, 0),
        "{state:?}"
    );
    assert_eq!(counter(&host, "data_packets"), 0);
    // REQ, REP, RTU, DREQ, DREP, twice, none of which left the service.
    assert_eq!(counter(&host, "qp1_sent_within_host"), 10);
    assert_eq!(counter(&host, "port_tx_packets"), 0);
}

/// R-ADDR-1: the source is found when only the destination is given.
#[test]
fn two_hosts_on_one_wire_connect_and_a_closed_channel_disconnects_the_peer() {
    let wire = MemWire::new();
    let one = Host::private_on(
        &wire,
        &["192.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap()],
    )
    .unwrap();
    let two = Host::private_on(
        &wire,
        &["192.0.2.2".parse().unwrap(), "fd00::2".parse().unwrap()],
    )
    .unwrap();
    for address in ["192.0.2.2:0", "[fd00::2]:0"] {
        let (active, passive) = (Channel::new(&one), Channel::new(&two));
        let (_, to) = passive.listen(1, address);
        let (a, _) = establish(&active, &passive, to, 0x30_0005);
        let addresses = active.call(client::query_addr(a));
        assert_eq!(addresses.local.unwrap().ip().is_ipv4(), to.is_ipv4());
        assert_eq!(addresses.remote, Some(to));
        drop(passive);
        assert_eq!(active.expect(DISCONNECTED).id, a);
    }
    assert!(counter(&one, "qp1_sent") >= 4);
    assert_eq!(counter(&one, "qp1_sent_within_host"), 0);
}

#[test]
fn a_rejection_brings_reason_and_private_data() {
    let host = Host::private().unwrap();
    let (active, passive) = (Channel::new(&host), Channel::new(&host));
    let (_, to) = passive.listen(1, "127.0.0.1:0");
    let id = active.resolve(2, to);
    active.connect(id, 0x20_0001, b"");
    let request = passive.expect(CONNECT_REQUEST);
    passive.call(client::reject(request.id, 28, b"no").unwrap());
    let event = active.event();
    assert_eq!((event.kind, event.status), (REJECTED, 28));
    assert_eq!(
        event.param.private_data.as_deref().map(|data| &data[..2]),
        Some(&b"no"[..])
    );
    // Nobody listens there: invalid service id.
    let id = active.resolve(3, "127.0.0.1:9".parse().unwrap());
    active.connect(id, 0x20_0001, b"");
    let event = active.event();
    assert_eq!((event.kind, event.status, event.uid), (REJECTED, 8, 3));
}

/// A channel's socket pair holds some hundred bytes; the queue is longer.
#[test]
fn a_channel_is_readable_exactly_while_events_wait_however_many() {
    const N: usize = 1500;
    let host = Host::private().unwrap();
    let channel = Channel::new(&host);
    let ids: Vec<IdNumber> = (0..N).map(|i| channel.create(i as u64)).collect();
    for id in &ids {
        channel.call(client::resolve_addr(
            *id,
            None,
            "127.0.0.1:7".parse().unwrap(),
            2000,
        ));
    }
    for i in 0..N {
        assert!(is_readable_within(&channel.channel, 0), "{i} taken");
        assert_eq!(channel.expect(ADDR_RESOLVED).uid, i as u64);
    }
    assert!(!is_readable_within(&channel.channel, 0));
    assert_eq!(
        channel.try_call(client::get_event()).unwrap_err().errno,
        EAGAIN
    );

    // Whoever takes many bytes at once and then the events finds the channel readable in between as well.
    for id in &ids {
        channel.call(client::resolve_route(*id, 2000));
    }
    let get = client::get_event();
    let mut taken = 0;
    while taken < N {
        assert!(is_readable_within(&channel.channel, 0), "{taken} taken");
        let Wake::Events(bytes) = channel.channel.take_wake(64).unwrap() else {
            panic!("readable, but nothing")
        };
        let item = Call {
            channel: channel.channel.token(),
            request: get.request().to_vec(),
            ..Call::default()
        };
        let replies = host.call(&vec![item; bytes]).unwrap();
        taken += replies.iter().filter(|reply| reply.errno == 0).count();
    }
    assert!(!is_readable_within(&channel.channel, 0));
}

/// A channel that was full and has room again leaves nothing behind that keeps the service awake.
#[test]
fn a_channel_that_was_full_does_not_keep_the_service_busy() {
    let host = Host::private().unwrap();
    let channel = Channel::new(&host);
    let (_, to) = channel.listen(1, "127.0.0.1:0");
    let peer = Channel::new(&host);
    let id = peer.resolve(2, to);
    for uid in 0..600 {
        let id = channel.create(uid);
        channel.call(client::resolve_addr(id, None, to, 2000));
    }
    // Room for a few, and then, without a request of this channel, one more event; then all the room there is.
    assert!(matches!(channel.channel.take_wake(64), Ok(Wake::Events(_))));
    peer.connect(id, 2, b"");
    while matches!(channel.channel.take_wake(64), Ok(Wake::Events(_))) {}
    let turns = || counter(&host, "service_turns");
    let before = turns();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(turns() - before < 20);
}

#[test]
fn an_event_whose_identifier_was_destroyed_leaves_a_byte_that_means_nothing() {
    let host = Host::private().unwrap();
    let channel = Channel::new(&host);
    let id = channel.create(1);
    channel.call(client::resolve_addr(
        id,
        None,
        "127.0.0.1:7".parse().unwrap(),
        2000,
    ));
    channel.call(client::destroy_id(id));
    assert_eq!(channel.channel.take_wake(64).unwrap(), Wake::Events(1));
    assert_eq!(
        channel.try_call(client::get_event()).unwrap_err().errno,
        EAGAIN
    );
    let other = channel.resolve(2, "127.0.0.1:7".parse().unwrap());
    channel.call(client::destroy_id(other));
}

/// R-MIG-9: waiters of the new channel are woken.
#[test]
fn migration_wakes_the_new_channel() {
    let host = Host::private().unwrap();
    let (old, new) = (Channel::new(&host), Channel::new(&host));
    let id = old.create(1);
    old.call(client::resolve_addr(
        id,
        None,
        "127.0.0.1:7".parse().unwrap(),
        2000,
    ));
    assert!(!is_readable_within(&new.channel, 0));
    new.call(client::migrate_id(id, old.channel.token()));
    assert_eq!(new.expect(ADDR_RESOLVED).uid, 1);
    drop(old);
    new.call(client::resolve_route(id, 2000));
    assert_eq!(new.expect(ROUTE_RESOLVED).uid, 1);
}

#[test]
fn a_channel_of_another_program_cannot_be_used() {
    let host = Host::private().unwrap();
    let channel = Channel::new(&host);
    let item = Call {
        channel: channel.channel.token() + 100,
        request: client::get_event().request().to_vec(),
        ..Call::default()
    };
    let reply = host.call(&[item]).unwrap().remove(0);
    assert_ne!(reply.errno, 0);
    assert_ne!(reply.errno, EAGAIN);
}

#[test]
fn requests_that_want_no_answer_are_carried_out_before_later_ones() {
    let host = Host::private().unwrap();
    let channel = Channel::new(&host);
    for round in 0..2000 {
        let id = channel.create(round);
        assert_eq!(
            id,
            IdNumber(0),
            "the lowest free number: the last one was destroyed"
        );
        let request = client::destroy_id(id).request().to_vec();
        host.post(Call {
            channel: channel.channel.token(),
            request,
            ..Call::default()
        });
    }
    host.post_batch(WriteBatch::default());
    assert!(host.ps().unwrap().ids.is_empty());
}

/// The service answers what is too long, wanted or not; an answer that nobody waits for would be taken for that of the next
/// request, and end the connection.
#[test]
fn a_post_that_is_too_long_is_not_sent_and_harms_no_later_request() {
    let host = Host::private().unwrap();
    host.post(Call {
        inline: vec![0; oarlock_ucm::proto::MAX_MESSAGE],
        ..Call::default()
    });
    for _ in 0..10 {
        host.devices().unwrap();
    }
    assert_eq!(counter(&host, "service_requests_refused"), 0);
}

#[test]
fn more_requests_than_fit_one_message_go_in_several() {
    let host = Host::private().unwrap();
    let channel = Channel::new(&host);
    let create = client::create_id(1, TCP, RC);
    let item = Call {
        channel: channel.channel.token(),
        request: create.request().to_vec(),
        ..Call::default()
    };
    let replies = host.call(&vec![item.clone(); 1000]).unwrap();
    assert!(replies.iter().all(|reply| reply.errno == 0) && replies.len() == 1000);
    let state = host.ps().unwrap();
    assert_eq!(state.ids.len(), 1000);
    assert!(
        state
            .ids
            .iter()
            .all(|id| id.pid == std::process::id() && id.channel == channel.channel.token())
    );
    let linked = vec![
        Call {
            id_from: Some(0),
            ..item
        };
        65
    ];
    assert!(matches!(
        host.call(&linked),
        Err(Error::BatchTooLong { given: 65, .. })
    ));
}

#[test]
fn calls_from_many_threads_do_not_mix() {
    let host = Host::private().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let host = host.clone();
            scope.spawn(move || {
                let channel = Channel::new(&host);
                for i in 0..100 {
                    let uid = thread << 32 | i;
                    let id = channel.resolve(uid, "127.0.0.1:7".parse().unwrap());
                    channel.call(client::destroy_id(id));
                }
            });
        }
    });
    assert!(host.ps().unwrap().ids.is_empty());
}

#[test]
fn slots_are_endpoints_of_their_own_and_can_be_given_back() {
    let wire = MemWire::new();
    let host = Host::private_on(&wire, &["192.0.2.1".parse().unwrap()]).unwrap();
    let (one, two) = (host.take_slot().unwrap(), host.take_slot().unwrap());
    assert_ne!(one.slot(), two.slot());
    let gid = Gid::from_ip("192.0.2.1".parse().unwrap());
    let packet = [
        4,
        0,
        0xFF,
        0xFF,
        0,
        two.slot(),
        0,
        1,
        0,
        0,
        0,
        0,
        1,
        2,
        3,
        4,
    ];
    one.send(&AddressVector::new(gid, gid), &packet).unwrap();
    let mut batch = Batch::default();
    assert_eq!(two.recv(&mut batch).unwrap(), 1);
    assert_eq!(batch.iter().next().unwrap().1, packet);
    let taken = host.ps().unwrap().host.slots;
    assert_eq!(taken.len(), 2);
    for port in [one, two] {
        let slot = port.slot();
        drop(port);
        host.return_slot(slot);
    }
    assert!(host.ps().unwrap().host.slots.is_empty());
    // All of them can be had, each once; the 255th program is told so.
    let all: Vec<Port> = (0..254).map(|_| host.take_slot().unwrap()).collect();
    let mut numbers: Vec<u8> = all.iter().map(Port::slot).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=254).collect::<Vec<u8>>());
    let error = host.take_slot().unwrap_err().to_string();
    assert!(error.contains("all 254 slots"), "{error}");
}

#[test]
fn a_trace_shows_the_whole_connection_as_on_the_wire() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let host = Host::private().unwrap();
    host.trace(file.as_file()).unwrap();
    // The same file again, as another side of a test names it: no packet is written twice.
    host.trace(file.reopen().unwrap()).unwrap();
    let (active, passive) = (Channel::new(&host), Channel::new(&host));
    let (_, to) = passive.listen(1, "127.0.0.1:0");
    let (a, p) = establish(&active, &passive, to, 0x20_0011);
    active.call(client::disconnect(a));
    passive.expect(DISCONNECTED);
    passive.call(client::disconnect(p));
    active.expect(DISCONNECTED);
    let mut reader =
        oarlock_port::pcap::Reader::new(std::fs::File::open(file.path()).unwrap()).unwrap();
    let mut seen = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        let datagram = record.datagram().unwrap();
        assert_eq!(datagram.destination.port(), 4791);
        let (packet, icrc) = datagram.payload.split_last_chunk::<4>().unwrap();
        let addresses =
            oarlock_wire::icrc::UdpAddresses::new(datagram.source, datagram.destination).unwrap();
        assert_eq!(addresses.icrc(0, &[packet]), u32::from_le_bytes(*icrc));
        let packet = oarlock_wire::Packet::parse(packet).unwrap();
        let (_, message) = CmMessage::parse(packet.payload.try_into().unwrap()).unwrap();
        let name = format!("{message}");
        seen.push(name.split_whitespace().next().unwrap().to_owned());
    }
    assert_eq!(seen, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    // Only regular files: whatever might block or go elsewhere is refused, and nothing else happens.
    let (_, pipe) = rustix::pipe::pipe().unwrap();
    let error = host.trace(&pipe).unwrap_err();
    assert!(
        matches!(&error, Error::Refused(_)) && error.to_string().contains("regular file"),
        "{error}"
    );
}

#[test]
fn when_the_service_goes_every_call_says_so() {
    let host = Host::private().unwrap();
    let other = host.clone();
    let channel = Channel::new(&host);
    let gone = host.gone_fd().unwrap();
    assert!(!host.is_gone() && !is_readable_within(&gone, 0));
    host.close();
    assert!(is_readable_within(&gone, PATIENCE) && other.is_gone());
    assert!(matches!(other.devices(), Err(Error::ServiceGone)));
    assert!(is_readable_within(&channel.channel, PATIENCE));
    assert_eq!(channel.channel.take_wake(1).unwrap(), Wake::Gone);
    let error = other.open_channel().unwrap_err();
    assert!(
        error.is_gone() && error.to_string().contains("open the host again"),
        "{error}"
    );
}

#[test]
fn the_device_of_a_private_host_has_its_addresses() {
    let wire = MemWire::new();
    let addresses = ["192.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    let host = Host::private_on(&wire, &addresses).unwrap();
    let devices = host.devices().unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!(
        (devices[0].name.as_str(), devices[0].path_mtu),
        ("soft_mem0", 5)
    );
    assert_eq!(devices[0].addresses, addresses);
    assert!(
        matches!(Host::private_on(&wire, &addresses[..1]), Err(Error::Mem(_))),
        "an address is one host's"
    );
    drop(host);
    // The service ends by itself, and with it the host leaves the wire.
    until("the address is free", || !wire.has_address(addresses[0]));
}
