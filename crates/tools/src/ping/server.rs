//! The server: one thread waits for clients and for their end, one for each of them answers.

use super::end::{self, Answered, Wanted};
use super::{Waited, name_of, wait};
use crate::failure::{Failure, system};
use crate::report::{Lines, micros};
use crate::signals::Ending;
use oarlock_hostd::Host;
use oarlock_rdmacm::{
    ConnParam, Event, EventChannel, Identifier, PortSpace, RejReason, RetryCount,
};
use serde::Serialize;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Instant;

/// Clients that are served at once.
const MAX_CLIENTS: u32 = 128;

/// What is to be done.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) address: SocketAddr,
    pub(super) persistent: bool,
    pub(super) verbose: bool,
    pub(super) validate: bool,
    pub(super) until: Option<Instant>,
}

/// What was counted, as the JSON report carries it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Served {
    side: Side,
    /// Where it listened.
    address: Option<SocketAddr>,
    /// Clients that were connected.
    pub(super) clients: u64,
    /// Clients that were turned away, since there were too many.
    pub(super) refused: u64,
    /// Messages fetched, and written back.
    pub(super) answered: u64,
    /// With -V: messages with other content than they should have.
    pub(super) mismatches: u64,
    elapsed_us: f64,
}

/// In every report of a ping.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    #[default]
    Server,
}

impl Served {
    /// The last line; none if it did not come to listening.
    pub(super) fn lines(&self) -> Vec<String> {
        if self.address.is_none() {
            return Vec::new();
        }
        vec![format!(
            "served: clients {}, refused {}, messages {}, wrong {}",
            self.clients, self.refused, self.answered, self.mismatches
        )]
    }
}

/// A client that was accepted.
struct Client {
    id: Identifier,
    name: String,
    connected: bool,
    answering: JoinHandle<(Answered, Result<(), Failure>)>,
}

struct Server<'a> {
    plan: &'a Plan,
    lines: Lines,
    served: &'a mut Served,
    clients: HashMap<u64, Client>,
    /// The next client's; 0 is what an identifier has that was never accepted.
    next: u64,
    /// What the only client of a server that is not persistent came to.
    over: Option<Result<(), Failure>>,
}

/// Listens and serves.
pub(super) fn run(
    host: &Host,
    plan: &Plan,
    ending: &Ending,
    lines: Lines,
    served: &mut Served,
) -> Result<(), Failure> {
    let started = Instant::now();
    let channel = EventChannel::new(host)?;
    let listener = Identifier::new(&channel, PortSpace::TCP)?;
    listener.bind_addr(plan.address)?;
    listener.listen(0)?;
    let address = listener.local_addr()?.unwrap_or(plan.address);
    lines.say(format_args!("listening on {address}"));
    served.address = Some(address);
    let mut server = Server {
        plan,
        lines,
        served,
        clients: HashMap::new(),
        next: 1,
        over: None,
    };
    let result = server.serve(&channel, ending);
    // Whoever is left is disconnected.
    for at in server.clients.keys().copied().collect::<Vec<_>>() {
        server.end(at);
    }
    server.served.elapsed_us = micros(started.elapsed());
    result?;
    if served.mismatches > 0 {
        return Err(Failure::Result(format!(
            "{} of {} messages arrived wrong",
            served.mismatches, served.answered
        )));
    }
    Ok(())
}

impl Server<'_> {
    fn serve(&mut self, channel: &EventChannel, ending: &Ending) -> Result<(), Failure> {
        loop {
            if let Some(over) = self.over.take().filter(|_| !self.plan.persistent) {
                return over;
            }
            let waited = wait(channel, ending, self.plan.until)?;
            // What has happened counts, also before the end.
            while let Some(event) = channel.try_event()? {
                self.handle(&event)?;
            }
            if waited != Waited::Event {
                return Ok(());
            }
        }
    }

    fn handle(&mut self, event: &Event) -> Result<(), Failure> {
        if let Event::ConnectRequest { id, .. } = event {
            return match self.request(id) {
                Err(failure) if failure.is_device_fatal() => Err(failure),
                Err(failure) => {
                    // A peer that has given up meanwhile is its own affair.
                    self.lines
                        .say(format_args!("a client was not accepted: {failure}"));
                    Ok(())
                }
                Ok(()) => Ok(()),
            };
        }
        let at = event.id().context();
        match event {
            Event::Established { .. } => {
                if let Some(client) = self.clients.get_mut(&at) {
                    client.connected = true;
                    self.served.clients += 1;
                    self.lines.say(format_args!("{}: connected", client.name));
                }
            }
            Event::Disconnected { .. } => self.end(at),
            Event::DeviceRemoval { .. } if at == 0 => {
                return Err(Failure::Result("the device was removed".to_owned()));
            }
            Event::DeviceRemoval { .. } => self.end(at),
            other => {
                if let (Some(error), Some(client)) = (other.error(), self.clients.get(&at)) {
                    self.lines.say(format_args!("{}: {error}", client.name));
                    self.end(at);
                }
            }
        }
        Ok(())
    }

    fn request(&mut self, id: &Identifier) -> Result<(), Failure> {
        let name = name_of(id.peer_addr()?);
        let limit = match self.plan.persistent {
            true => MAX_CLIENTS,
            // One at a time, where it ends with its first client.
            false => 1,
        };
        if self.clients.len() < limit as usize {
            return self.accept(id, name);
        }
        id.reject(RejReason::CONSUMER_DEFINED, &[])?;
        self.served.refused += 1;
        self.lines.say(format_args!(
            "{name} refused: there are {limit} clients already"
        ));
        Ok(())
    }

    fn accept(&mut self, id: &Identifier, name: String) -> Result<(), Failure> {
        let mut end = end::Server::new(id)?;
        // As many READs and atomics as the client offers and the device can.
        id.accept(&ConnParam::default().rnr_retry_count(RetryCount::MAX))?;
        let at = self.next;
        self.next += 1;
        id.set_context(at);
        let wanted = Wanted {
            verbose: self.plan.verbose,
            validate: self.plan.validate,
        };
        let (lines, peer, own) = (self.lines, name.clone(), id.clone());
        let answering = std::thread::Builder::new()
            .name(format!("client {at}"))
            .spawn(move || {
                let answered = end.answer(wanted, lines, &peer);
                // Of a client that has vanished nothing else would tell the end; a second time is harmless.
                if let Err(error) = own.disconnect() {
                    tracing::debug!("{peer} not disconnected: {error}");
                }
                answered
            })
            .map_err(system("starting a thread"))?;
        let client = Client {
            id: id.clone(),
            name,
            connected: false,
            answering,
        };
        self.clients.insert(at, client);
        Ok(())
    }

    /// The end of a client: its queue pair stops, and with it the thread that answers.
    fn end(&mut self, at: u64) {
        let Some(client) = self.clients.remove(&at) else {
            return;
        };
        let disconnected = client.id.disconnect();
        let (answered, result) = match client.answering.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        self.served.answered += answered.messages;
        self.served.mismatches += answered.mismatches;
        let mut sentence = format!(
            "{}: ended, messages {}, wrong {}",
            client.name, answered.messages, answered.mismatches
        );
        if let Err(failure) = &result {
            sentence += &format!(": {failure}");
        }
        self.lines.say(sentence);
        // A client that was never connected leaves the server waiting for one.
        if client.connected {
            self.over = Some(result.and(disconnected.map_err(Failure::from)));
        }
    }
}
