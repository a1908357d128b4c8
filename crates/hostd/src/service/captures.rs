//! Captures: where management datagrams are recorded, and which programs are told to record theirs.
//!
//! - A *trace* in classic pcap holds the service's datagrams; a program may add its own packets ([`Request::Trace`]).
//! - A capture of a *client* in pcapng holds the service's datagrams and that program's packets. Programs may share a file.
//! - The capture of the *host* in pcapng holds the packets of all programs. There is one at a time. Programs hear of it by their
//!   feed, or ask when they take a slot, and get the file's descriptor; each is an interface of the file, which this
//!   service adds, so that nobody else needs to know how many there are. It ends with the program that asked for it, when that says so, and
//!   with the first packet that anybody cannot write.
//!
//! [`Request::Trace`]: oarlock_ucm::proto::Request::Trace

use super::event_loop::Service;
use super::requests::Answer;
use oarlock_port::pcap::{Capture, Section};
use oarlock_ucm::proto::{
    CaptureFailure, CaptureNews, CaptureScope, CaptureState, MAX_NAME, Refusal, RefusalCode, Reply,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// The captures in pcapng.
#[derive(Debug, Default)]
pub(super) struct Captures {
    /// Of the host's; grows with each beginning and end.
    generation: u64,
    host: Option<HostCapture>,
    /// One that has ended before its client asked how it stands.
    ended: Option<(u32, CaptureState)>,
    of_clients: Vec<ClientCapture>,
}

#[derive(Debug)]
struct HostCapture {
    client: u32,
    section: Section,
    /// Kept open by everybody who writes.
    lease: Option<OwnedFd>,
    of_service: Capture,
    /// The interfaces of programs that have been told.
    interfaces: BTreeMap<u32, u32>,
    /// The service itself could not write; what the system said.
    trouble: Arc<OnceLock<i32>>,
}

#[derive(Debug)]
struct ClientCapture {
    section: Section,
    of_service: Capture,
    clients: BTreeSet<u32>,
}

impl HostCapture {
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let mut fds = vec![self.section.descriptor()?];
        if let Some(lease) = &self.lease {
            fds.push(lease.try_clone()?);
        }
        Ok(fds)
    }
}

impl Service {
    /// A client asks for a capture in pcapng.
    pub(super) fn capture(
        &mut self,
        id: u32,
        scope: CaptureScope,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let lease = (fds.len() > 1).then(|| fds.pop()).flatten();
        let file = fds.pop().expect("one descriptor, as was checked");
        match scope {
            CaptureScope::Host => self.capture_host(id, file, lease),
            CaptureScope::Client => self.capture_client(id, file),
            _ => Err(Refusal {
                code: RefusalCode::UNKNOWN_REQUEST,
                sentence: "this service does not know the scope of the capture".to_owned(),
            }),
        }
    }

    fn capture_host(
        &mut self,
        id: u32,
        file: OwnedFd,
        lease: Option<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        // One that has just failed is not in the way.
        self.note_capture_trouble();
        if let Some(other) = &self.captures.host {
            let (pid, name) = self.program(other.client);
            return Err(limit(format!(
                "process {pid} ({name}) traces this host already: end it first (`kill -INT {pid}`), or use its file"
            )));
        }
        if self.captures.of_client(&file).is_some() {
            return Err(limit(
                "a program is traced to this file already: choose another".to_owned(),
            ));
        }
        let (section, of_service) = begin(file)?;
        let of_service = match &lease {
            Some(lease) => of_service.with_lease(lease.try_clone().map_err(|e| cannot_trace(&e))?),
            None => of_service,
        };
        let trouble = Arc::<OnceLock<i32>>::default();
        let troubled = trouble.clone();
        let of_service = of_service.on_failure(move |error| {
            // The first says why.
            let _ = troubled.set(errno(error));
        });
        self.captures.generation += 1;
        self.captures.ended = None;
        self.captures.host = Some(HostCapture {
            client: id,
            section,
            lease,
            of_service,
            interfaces: BTreeMap::new(),
            trouble,
        });
        self.set_captures();
        let programs: Vec<u32> = self.feeds.keys().copied().collect();
        for program in programs {
            self.tell_capture(program);
        }
        Ok((Reply::CaptureState(self.capture_state()), Vec::new()))
    }

    fn capture_client(&mut self, id: u32, file: OwnedFd) -> Result<Answer, Refusal> {
        let (pid, name) = self.program(id);
        let of_client = |of: &&ClientCapture| of.clients.contains(&id);
        if self.captures.of_clients.iter().filter(of_client).count() >= CAPTURES_PER_CLIENT {
            return Err(limit(format!(
                "a program may have {CAPTURES_PER_CLIENT} traces at a time"
            )));
        }
        if self.captures.is_host_capture(&file) {
            return Err(limit(
                "this host is traced to this file already: choose another".to_owned(),
            ));
        }
        let place = match self.captures.of_client(&file) {
            Some(place) => place,
            None => {
                let (section, of_service) = begin(file)?;
                self.captures.of_clients.push(ClientCapture {
                    section,
                    of_service,
                    clients: BTreeSet::new(),
                });
                self.captures.of_clients.len() - 1
            }
        };
        let capture = &mut self.captures.of_clients[place];
        let added = add_program(&mut capture.section, pid, &name);
        if added.is_ok() {
            capture.clients.insert(id);
        }
        self.captures.forget_unused();
        self.set_captures();
        let news = CaptureNews {
            generation: self.captures.generation,
            interface: Some(added.map_err(|error| cannot_trace(&error))?),
        };
        Ok((Reply::Capture(news), Vec::new()))
    }

    /// A client asks where its packets are to go.
    pub(super) fn join_capture(&mut self, id: u32) -> Answer {
        let (news, fds) = self.news_of_capture(id);
        (Reply::Capture(news), fds)
    }

    /// A client ends the capture of the host.
    pub(super) fn end_capture(&mut self, id: u32) -> Result<Answer, Refusal> {
        self.note_capture_trouble();
        self.stop_capture_of(id);
        match self.captures.ended.take_if(|(client, _)| *client == id) {
            Some((_, state)) => Ok((Reply::CaptureState(state), Vec::new())),
            None => Err(limit("this program does not trace the host".to_owned())),
        }
    }

    /// Ends the capture of the host if it is this client's.
    fn stop_capture_of(&mut self, id: u32) {
        let host = self.captures.host.as_ref();
        if host.is_some_and(|of| of.client == id) {
            self.stop_host_capture(None);
        }
    }

    /// A client could not write a packet.
    pub(super) fn capture_failed(&mut self, id: u32, scope: CaptureScope, errno: i32) {
        let (pid, name) = self.program(id);
        tracing::warn!(pid, name, errno, "a packet could not be traced");
        match scope {
            CaptureScope::Host => {
                let told = |of: &HostCapture| of.interfaces.contains_key(&id);
                if self.captures.host.as_ref().is_some_and(told) {
                    self.stop_host_capture(Some(CaptureFailure { pid, name, errno }));
                }
            }
            _ => {
                if self.captures.forget_client(id) {
                    self.set_captures();
                }
            }
        }
    }

    /// A client has gone, and with it its captures.
    pub(super) fn forget_captures(&mut self, id: u32, had_traces: bool) {
        self.stop_capture_of(id);
        self.captures.ended.take_if(|(client, _)| *client == id);
        if self.captures.forget_client(id) || had_traces {
            self.set_captures();
        }
    }

    /// Whether this service itself could not write a packet of the host's capture, which ends it.
    pub(super) fn note_capture_trouble(&mut self) {
        let trouble = self.captures.host.as_ref().and_then(|of| of.trouble.get());
        if let Some(errno) = trouble.copied() {
            self.stop_host_capture(Some(own_failure(errno)));
        }
    }

    fn stop_host_capture(&mut self, failure: Option<CaptureFailure>) {
        let mut state = self.capture_state();
        state.failure = failure;
        let Some(capture) = self.captures.host.take() else {
            return;
        };
        self.captures.ended = Some((capture.client, state));
        self.captures.generation += 1;
        self.set_captures();
        let programs: Vec<u32> = self.feeds.keys().copied().collect();
        for program in programs {
            self.tell_capture(program);
        }
    }

    fn capture_state(&self) -> CaptureState {
        let generation = self.captures.generation;
        let missed = self.feeds.values();
        let missed = missed.filter(|feed| feed.has_missed_capture(generation));
        CaptureState {
            programs: self
                .captures
                .host
                .as_ref()
                .map_or(0, |of| of.interfaces.len() as u32),
            missed: missed.count() as u32,
            failure: None,
        }
    }

    /// Tells a program by its feed where its packets are to go.
    fn tell_capture(&mut self, id: u32) {
        let (news, fds) = self.news_of_capture(id);
        if let Some(feed) = self.feeds.get_mut(&id) {
            feed.tell_capture(news, fds);
            self.watch_feed(id);
        }
    }

    /// What a program is to know of the host's capture; it becomes an interface of the file.
    fn news_of_capture(&mut self, id: u32) -> (CaptureNews, Vec<OwnedFd>) {
        let (pid, name) = self.program(id);
        let found = self.captures.host.as_mut().map(|of| {
            let interface = match of.interfaces.get(&id) {
                Some(known) => *known,
                None => add_program(&mut of.section, pid, &name)?,
            };
            let fds = of.descriptors()?;
            of.interfaces.insert(id, interface);
            Ok((interface, fds))
        });
        let (interface, fds) = match found {
            Some(Ok((interface, fds))) => (Some(interface), fds),
            Some(Err(error)) => {
                if let Some(of) = &self.captures.host {
                    // Noticed before this turn is over.
                    let _ = of.trouble.set(errno(&error));
                }
                (None, Vec::new())
            }
            None => (None, Vec::new()),
        };
        let news = CaptureNews {
            generation: self.captures.generation,
            interface,
        };
        (news, fds)
    }

    /// A client's process and name.
    fn program(&self, id: u32) -> (u32, String) {
        self.clients.get(&id).map_or((0, String::new()), |client| {
            let pid = match client.peer.pid {
                0 => client.own_pid,
                pid => pid,
            };
            (pid, client.name.clone())
        })
    }

    /// Puts the captures of all clients in place; a file that several name is written to once.
    pub(super) fn set_captures(&self) {
        let mut files = HashSet::new();
        let traces = self
            .clients
            .values()
            .flat_map(|client| &client.captures)
            // A file of which nothing can be learned is taken for one of its own.
            .filter(|capture| {
                rustix::fs::fstat(capture)
                    .map_or(true, |file| files.insert((file.st_dev, file.st_ino)))
            })
            .cloned();
        let of_clients = self.captures.of_clients.iter().map(|of| &of.of_service);
        let of_host = self.captures.host.iter().map(|of| &of.of_service);
        let captures = traces.chain(of_clients.chain(of_host).cloned());
        self.network.port.set_captures(captures.collect());
    }
}

impl Captures {
    fn is_host_capture(&self, file: &OwnedFd) -> bool {
        let of_host = self.host.as_ref();
        of_host.is_some_and(|of| identity(file) == Some(of.section.identity()))
    }

    /// The capture of clients that goes to this file.
    fn of_client(&self, file: &OwnedFd) -> Option<usize> {
        let identity = identity(file)?;
        self.of_clients
            .iter()
            .position(|of| of.section.identity() == identity)
    }

    /// Whether there was anything.
    fn forget_client(&mut self, id: u32) -> bool {
        let mut found = false;
        for of in &mut self.of_clients {
            found |= of.clients.remove(&id);
        }
        self.forget_unused();
        found
    }

    fn forget_unused(&mut self) {
        self.of_clients.retain(|of| !of.clients.is_empty());
    }
}

/// Device and inode.
fn identity(file: impl AsFd) -> Option<(u64, u64)> {
    let status = rustix::fs::fstat(file).ok()?;
    Some((status.st_dev, status.st_ino))
}

/// Begins a section with the service's interface.
fn begin(file: OwnedFd) -> Result<(Section, Capture), Refusal> {
    let begun = Section::begin(file).and_then(|mut section| {
        let pid = std::process::id();
        let description = "the host service: management datagrams";
        let number = section.add(&format!("host service ({pid})"), description)?;
        let capture = Capture::of_interface(section.descriptor()?, number)?;
        Ok((section, capture))
    });
    begun.map_err(|error| cannot_trace(&error))
}

fn add_program(section: &mut Section, pid: u32, name: &str) -> io::Result<u32> {
    let name = &name[..name.floor_char_boundary(MAX_NAME)];
    let description = format!("process {pid}: packets of its queue pairs");
    section.add(&format!("{name} ({pid})"), &description)
}

fn own_failure(errno: i32) -> CaptureFailure {
    CaptureFailure {
        pid: std::process::id(),
        name: "host service".to_owned(),
        errno,
    }
}

/// 0: a packet was written in part.
fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn limit(sentence: String) -> Refusal {
    Refusal {
        code: RefusalCode::LIMIT,
        sentence,
    }
}

fn cannot_trace(error: &io::Error) -> Refusal {
    Refusal {
        code: RefusalCode::DESCRIPTOR,
        sentence: format!("cannot trace to this file: {error}"),
    }
}

const CAPTURES_PER_CLIENT: usize = 8;
