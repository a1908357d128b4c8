use oarlock_rdmacm::{ConnParam, Event, EventChannel, Host, Identifier, PortSpace};
use oarlock_verbs::{Buffer, CompletionQueue, QpInitAttr, SendRequest};
use std::{error::Error, net::SocketAddr, thread, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::private()?;

    // Passive side: listen on any free port ...
    let channel = EventChannel::new(&host)?;
    let listener = Identifier::new(&channel, PortSpace::TCP)?;
    listener.bind_addr("127.0.0.1:0".parse()?)?;
    listener.listen(0)?;
    let address = listener.local_addr()?.expect("a listener is bound");

    let active = thread::spawn(move || active_side(&host, address).expect("the active side"));

    // ... give the new connection a queue pair with a posted receive, and accept.
    let Event::ConnectRequest { id, private_data, .. } = channel.get_event()? else {
        panic!("a listener reports connection requests");
    };
    assert!(private_data.is_some_and(|data| data.is_padded_from(b"may I?")));
    let device = id.device()?;
    let cq = CompletionQueue::new(&device, 16)?;
    let queue_pair = id.create_qp(&device.default_pd(), &cq, &cq, QpInitAttr::default())?;
    queue_pair.post_recv(1, Buffer::new(&device.default_pd(), 4096)?)?;
    id.accept(&ConnParam::default().private_data(b"welcome"))?;
    assert!(matches!(channel.get_event()?, Event::Established { .. }));

    // The message.
    let mut completions = Vec::new();
    while completions.is_empty() {
        cq.wait(&mut completions, Some(Duration::from_secs(1)))?;
    }
    let message = completions.remove(0).ok()?;
    assert_eq!(&message.buffers[0][..message.byte_len as usize], b"hello");

    // The peer ends the connection.
    let event = channel.get_event()?;
    assert!(matches!(event, Event::Disconnected { .. }));
    event.ack();
    id.disconnect()?;
    active.join().expect("the active side does not panic");
    println!("connected, received, disconnected");
    Ok(())
}

fn active_side(host: &Host, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let channel = EventChannel::new(host)?;
    let id = Identifier::new(&channel, PortSpace::TCP)?;
    id.resolve_addr(None, address, Duration::from_secs(2))?;
    assert!(matches!(channel.get_event()?, Event::AddressResolved { .. }));
    id.resolve_route(Duration::from_secs(2))?;
    assert!(matches!(channel.get_event()?, Event::RouteResolved { .. }));

    let device = id.device()?;
    let cq = CompletionQueue::new(&device, 16)?;
    let queue_pair = id.create_qp(&device.default_pd(), &cq, &cq, QpInitAttr::default())?;
    id.connect(&ConnParam::default().private_data(b"may I?"))?;
    match channel.get_event()? {
        Event::Established { private_data, .. } => {
            assert!(private_data.is_some_and(|data| data.is_padded_from(b"welcome")));
        }
        other => panic!("not connected: {other}"),
    }

    let mut message = Buffer::new(&device.default_pd(), 5)?;
    message.copy_from_slice(b"hello");
    queue_pair.post_send(SendRequest::new(1, message))?;
    let mut completions = Vec::new();
    while completions.is_empty() {
        cq.wait(&mut completions, Some(Duration::from_secs(1)))?;
    }
    completions.remove(0).ok()?;

    id.disconnect()?;
    assert!(matches!(channel.get_event()?, Event::Disconnected { .. }));
    Ok(())
}
