//! The passive side: accepts whatever comes and sends back what it gets.

use super::{LOOK_EVERY, RECEIVE, post_receive, queue_sizes};
use crate::connections::Devices;
use crate::failure::Failure;
use crate::report::Lines;
use crate::signals::Ending;
use oarlock_hostd::Host;
use oarlock_rdmacm::{ConnParam, Event, EventChannel, Identifier, PortSpace, RetryCount};
use oarlock_verbs::{Completion, QueuePair, WcStatus};
use serde::Serialize;
use std::collections::HashMap;

/// Completions that may wait: two of each of so many connections as a client may keep.
const CAPACITY: u32 = 1 << 16;

/// What was done.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Counts {
    accepted: u64,
    not_accepted: u64,
    ended: u64,
    messages: u64,
}

struct Peer {
    id: Identifier,
    queue_pair: QueuePair,
}

struct Server<'a> {
    devices: Devices,
    peers: HashMap<u64, Peer>,
    /// The next connection's; 0 is what an identifier has that was never accepted.
    next: u64,
    counts: &'a mut Counts,
}

pub(super) fn run(
    host: &Host,
    port: u16,
    ending: &Ending,
    lines: Lines,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let channel = EventChannel::new(host)?;
    let listener = Identifier::new(&channel, PortSpace::TCP)?;
    listener.bind_addr(crate::cmatose::any_address(port))?;
    listener.listen(0)?;
    lines.say("listening");
    let mut server = Server {
        devices: Devices::with_capacity(CAPACITY),
        peers: HashMap::new(),
        next: 1,
        counts,
    };
    let mut completions = Vec::new();
    while !ending.is_asked() {
        while let Some(event) = channel.try_event()? {
            server.handle(&event)?;
        }
        server.devices.wait(&mut completions, LOOK_EVERY)?;
        for completion in completions.drain(..) {
            server.complete(completion);
        }
    }
    // What is still up is disconnected by dropping it.
    Ok(())
}

impl Server<'_> {
    fn handle(&mut self, event: &Event) -> Result<(), Failure> {
        match event {
            Event::ConnectRequest { id, .. } => match self.accept(id) {
                Ok(()) => self.counts.accepted += 1,
                Err(failure) if failure.is_device_fatal() => return Err(failure),
                // The client was killed meanwhile.
                Err(failure) => {
                    tracing::info!("not accepted: {failure}");
                    self.counts.not_accepted += 1;
                }
            },
            Event::Disconnected { id, .. }
            | Event::Rejected { id, .. }
            | Event::Unreachable { id, .. }
            | Event::ConnectError { id, .. } => {
                if let Some(peer) = self.peers.remove(&id.context()) {
                    peer.id.disconnect()?;
                    self.counts.ended += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn accept(&mut self, id: &Identifier) -> Result<(), Failure> {
        let number = self.next;
        let (queue_pair, pd) = self.devices.queue_pair(id, queue_sizes())?;
        post_receive(&queue_pair, &pd, number)?;
        id.set_context(number);
        let param = ConnParam::default().rnr_retry_count(RetryCount::MAX);
        id.accept(&param)?;
        self.next += 1;
        let id = id.clone();
        self.peers.insert(number, Peer { id, queue_pair });
        Ok(())
    }

    fn complete(&mut self, completion: Completion) {
        let number = completion.wr_id & !RECEIVE;
        // What fails, fails because the connection ends, which an event tells.
        let (WcStatus::SUCCESS, Some(peer)) = (completion.status, self.peers.get(&number)) else {
            return;
        };
        let len = completion.byte_len as usize;
        let Some(mut buffer) = completion.buffers.into_iter().next() else {
            return;
        };
        let posted = if completion.is_send {
            buffer.set_len(buffer.capacity());
            peer.queue_pair.post_recv(RECEIVE | number, buffer)
        } else {
            self.counts.messages += 1;
            buffer.set_len(len);
            let request = oarlock_verbs::SendRequest::new(number, buffer);
            peer.queue_pair.post_send(request)
        };
        if let Err(error) = posted {
            tracing::debug!("connection {number}: {error}");
        }
    }
}
