//! Two hosts on a wire that loses, repeats and reorders.

use crate::support::*;
use oarlock_hostd::MemWire;
use oarlock_hostd::service::ServiceConfig;
use oarlock_port::Faults;
use oarlock_rdmacm::{
    ConnParam, Connection, ConnectionOptions, Connector, Event, Host, IbTimeout, Listener,
    QueueSizes,
};
use oarlock_verbs::{Buffer, ProtectionDomain, QueuePair, SendRequest};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Barrier;

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const MESSAGES: u64 = 10;

fn hosts(wire: &MemWire, response_timeout: u8, packet_life_time: u8) -> (Host, Host) {
    let mut config = ServiceConfig::default();
    config.cma.cm_response_timeout = IbTimeout::truncate(response_timeout);
    config.cma.packet_life_time = IbTimeout::truncate(packet_life_time);
    let host = |address| Host::private_with(wire, &[address], config.clone()).expect("a host");
    (host(A), host(B))
}

/// The active side's RTU is lost; its first data proves the connection established (IBA Vol. 1 ch. 12). The passive side
/// hears of it at once, not when the RTU is asked for again, which would take more than a minute here.
#[test]
fn first_data_establishes_what_the_lost_rtu_would_have() {
    let wire = MemWire::new();
    let (passive_host, active_host) = hosts(&wire, 24, 16);
    let (passive_channel, active_channel) = (channel(&passive_host), channel(&active_host));
    let listener =
        oarlock_rdmacm::Identifier::new(&passive_channel, oarlock_rdmacm::PortSpace::TCP).unwrap();
    listener.bind_addr(SocketAddr::new(A, 0)).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().unwrap();
    let active = resolved(&active_channel, address);
    let active_queue_pair = idle_queue_pair(&active);
    active.connect(&ConnParam::default()).unwrap();
    let passive = request(&passive_channel).id;
    let passive_queue_pair = idle_queue_pair(&passive);
    let pd = passive_queue_pair.pd().clone();
    passive_queue_pair
        .post_recv(1, Buffer::new(&pd, 16).unwrap())
        .unwrap();
    passive.accept(&ConnParam::default()).unwrap();
    wait_queued(&active_host, 1);
    wire.set_faults(Faults {
        loss: 1.0,
        ..Faults::default()
    });
    expect(&active_channel, "ESTABLISHED");
    // The RTU was sent before the event was fetched, and is gone.
    wire.set_faults(Faults::default());
    let message = Buffer::new(active_queue_pair.pd(), 16).unwrap();
    active_queue_pair
        .post_send(SendRequest::new(1, message))
        .unwrap();
    assert_eq!(expect(&passive_channel, "ESTABLISHED").id(), &passive);
}

fn fill(buffer: &mut [u8], connection: u64, message: u64) {
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = (connection * 31 + message * 7 + at as u64) as u8;
    }
}

fn post_receives(
    queue_pair: &QueuePair,
    pd: &ProtectionDomain,
) -> Result<(), oarlock_verbs::Error> {
    for number in 0..MESSAGES {
        queue_pair.post_recv(number, Buffer::new(pd, 3000)?)?;
    }
    Ok(())
}

/// Sends and receives every message, and compares.
fn exchange(connection: &Connection, number: u64) {
    for message in 0..MESSAGES {
        let mut buffer = Buffer::new(&connection.pd, 3000).unwrap();
        fill(&mut buffer, number, message);
        connection
            .queue_pair
            .post_send(SendRequest::new(message, buffer))
            .unwrap();
    }
    for cq in [&connection.send_cq, &connection.recv_cq] {
        let mut completions = Vec::new();
        while completions.len() < MESSAGES as usize {
            cq.wait(&mut completions, Some(LONG)).unwrap();
        }
        for (expected, completion) in completions.into_iter().enumerate() {
            let completion = completion.ok().unwrap();
            assert_eq!(completion.wr_id, expected as u64);
            if !completion.is_send {
                let mut right = vec![0; 3000];
                fill(&mut right, number, expected as u64);
                assert!(
                    completion.buffers[0][..] == right[..],
                    "connection {number}, message {expected}"
                );
            }
        }
    }
}

/// Connections with ten messages and one migration at each end, at 5 % loss with duplication and reordering: everything
/// arrives, every end is reported, nothing is left.
#[test]
fn connections_survive_loss_duplication_and_reordering() {
    let wire = MemWire::with_faults(Faults {
        seed: 11,
        loss: 0.05,
        duplicate: 0.05,
        reorder: 0.05,
    });
    let (passive_host, active_host) = hosts(&wire, 15, 13);
    let connections: u64 = 8;
    let sizes = QueueSizes::new(MESSAGES as u32, MESSAGES as u32);
    let options = ConnectionOptions::new()
        .deadline(LONG)
        .queue_sizes(sizes)
        .prepare(post_receives);
    let listener = Listener::bind(&passive_host, SocketAddr::new(A, 0))
        .unwrap()
        .options(options.clone());
    let address = listener.local_addr().unwrap();
    // A side that has everything may be waited for by one whose last acknowledgement is lost: neither leaves before.
    let both_done: Vec<Barrier> = (0..connections).map(|_| Barrier::new(2)).collect();
    std::thread::scope(|scope| {
        for number in 0..connections {
            let host = &active_host;
            let both_done = &both_done;
            let options = &options;
            scope.spawn(move || {
                let param = ConnParam::default().private_data(number.to_le_bytes());
                let connector = Connector::new(host).options(options.clone().param(param));
                let connection = connector.connect(address).unwrap();
                exchange(&connection, number);
                both_done[number as usize].wait();
                let events = channel(host);
                connection.id.migrate(&events).unwrap();
                // The passive side ends it once it has everything.
                expect(&events, "DISCONNECTED").ack();
                connection.id.disconnect().unwrap();
            });
        }
        for _ in 0..connections {
            let connection = listener.accept().unwrap();
            let host = &passive_host;
            let both_done = &both_done;
            scope.spawn(move || {
                let data = connection.id.peer_private_data().unwrap().as_padded();
                let number = u64::from_le_bytes(data[..8].try_into().unwrap());
                exchange(&connection, number);
                both_done[number as usize].wait();
                let events = channel(host);
                connection.id.migrate(&events).unwrap();
                connection.id.disconnect().unwrap();
                loop {
                    let event = events
                        .get_event_timeout(LONG)
                        .unwrap()
                        .expect("the end is reported");
                    if matches!(event, Event::Disconnected { .. }) {
                        break;
                    }
                }
            });
        }
    });
    drop(listener);
    for host in [&passive_host, &active_host] {
        while !host.ps().unwrap().ids.is_empty() {
            std::thread::yield_now();
        }
        assert!(host.ps().unwrap().host.ports.is_empty());
    }
}
