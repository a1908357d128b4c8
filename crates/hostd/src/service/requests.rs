//! What the service does with a message of a program. Whatever is wrong with one, the answer is a refusal with a
//! sentence, and the connection stays.

use super::clients::{self, is_out_of_descriptors};
use super::event_loop::Service;
use super::pipe::Pipe;
use crate::Error;
use oarlock_port::fdpass::{self, MAX_FDS};
use oarlock_port::pcap::Capture;
use oarlock_ucm::proto::{
    CaptureScope, ClientInfo, DevicePage, Header, Hello, HostInfo, IdPage, MAX_COUNTERS,
    MAX_MESSAGE, MAX_NAME, MAX_PORTS, Malformed, NO_ANSWER, Refusal, RefusalCode, Reply, Request,
    StatisticsPage,
};
use oarlock_ucm::{FileId, Owner};
use std::os::fd::OwnedFd;

/// A reply and the descriptors that go with it.
pub(super) type Answer = (Reply, Vec<OwnedFd>);

impl Service {
    /// Reads and answers what a client has sent, up to a bound: others want their turn. False: the client has gone.
    pub(super) fn serve_client(&mut self, id: u32) -> bool {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(client) = self.clients.get_mut(&id) else {
                return true;
            };
            if client.is_backed_up() {
                return true;
            }
            let mut message = match client.receive(&mut self.buffer) {
                Ok(message) => message,
                Err(error) if clients::is_shortage(&error) => return true,
                Err(error) => {
                    self.note_failure(id, &error);
                    return false;
                }
            };
            if message.len == 0 {
                return false;
            }
            self.counters.requests += 1;
            let buffer = std::mem::take(&mut self.buffer);
            let (sequence, answer) = if message.truncated {
                (Some(NO_ANSWER), Err(truncated(message.len)))
            } else {
                self.answer(id, &buffer[..message.len], std::mem::take(&mut message.fds))
            };
            self.buffer = buffer;
            let (reply, fds) = match answer {
                Ok(answer) => answer,
                Err(refusal) => {
                    self.counters.refusals += 1;
                    (Reply::Refused(refusal), Vec::new())
                }
            };
            // What this request has led to leaves before the next is read: that keeps replies and wake-ups in order.
            self.drain();
            let Some(client) = self.clients.get_mut(&id) else {
                return true;
            };
            // Whoever waits for an answer has sent nothing else yet, as a rule; epoll tells if it has. More comes behind what
            // wants no answer.
            if let Some(sequence) = sequence {
                let sent = client.send(sequence, &reply, fds);
                return self.after_sending(id, sent);
            }
        }
        true
    }

    /// Carries out a message. The sequence number of the answer is none where none is wanted; a message that is not one is
    /// refused with number 0.
    fn answer(
        &mut self,
        id: u32,
        message: &[u8],
        fds: Vec<OwnedFd>,
    ) -> (Option<u32>, Result<Answer, Refusal>) {
        let (header, body) = match Header::read(message) {
            Ok(read) => read,
            Err(error) => return (Some(NO_ANSWER), Err(malformed(&error))),
        };
        let answer = header
            .check()
            .and_then(|()| Request::decode(&header, body))
            .and_then(|request| self.carry_out(id, request, fds));
        (
            (header.sequence != NO_ANSWER).then_some(header.sequence),
            answer,
        )
    }

    fn carry_out(
        &mut self,
        id: u32,
        request: Request,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let greeted = self.clients.get(&id).is_some_and(|client| client.greeted);
        if !greeted && !matches!(request, Request::Hello { .. }) {
            return Err(refusal(
                RefusalCode::HELLO_FIRST,
                "a program says hello before anything else",
            ));
        }
        let allowed = match request {
            Request::Trace | Request::Capture(CaptureScope::Client) => 1..=1,
            Request::Capture(_) => 1..=2,
            Request::InjectFaults(_) => 0..=1,
            _ => 0..=0,
        };
        if !allowed.contains(&fds.len()) {
            let sentence = format!(
                "{} descriptors came with a request that takes {}",
                fds.len(),
                if allowed.start() == allowed.end() {
                    allowed.end().to_string()
                } else {
                    format!("at most {}", allowed.end())
                }
            );
            return Err(Refusal {
                code: RefusalCode::DESCRIPTOR,
                sentence,
            });
        }
        let done = || Ok((Reply::Done, Vec::new()));
        match request {
            Request::Hello { pid, name } => self.greet(id, pid, name),
            Request::OpenChannel => self.open_channel(id),
            Request::CloseChannel { token } => {
                self.own_file(id, token)?;
                self.close_file(token);
                done()
            }
            Request::Write(batch) => {
                let now = self.now();
                let tokens: Vec<u64> = batch.items.iter().map(|item| item.channel).collect();
                let replies = self.ucm.write_batch(now, Owner(id), batch);
                // Events may have been taken: there is room for the bytes of others.
                self.pay_pipes(&tokens);
                Ok((Reply::Written(replies), Vec::new()))
            }
            Request::TakeSlot => self.take_slot(id),
            Request::ReturnSlot { slot } => {
                if !self.clients[&id].slots.contains(&slot) {
                    let sentence = format!("slot {slot} is not one of this program's");
                    return Err(Refusal {
                        code: RefusalCode::LIMIT,
                        sentence,
                    });
                }
                self.take_slot_back(id, slot);
                done()
            }
            Request::Devices { first } => {
                self.refresh_devices();
                let page = DevicePage::fill(&self.network.devices.infos(), first);
                Ok((Reply::Devices(page), Vec::new()))
            }
            Request::Ps { after } => Ok((Reply::Ps(self.ps(after)), Vec::new())),
            Request::Trace => {
                let fd = fds.pop().expect("one descriptor, as was checked");
                self.trace(id, fd)?;
                done()
            }
            Request::Stop => {
                self.stopping = true;
                done()
            }
            Request::WatchDevices => {
                // What happened before is not news.
                self.refresh_devices();
                let feed = self.open_feed(id).map_err(|error| system(&error))?;
                Ok((Reply::Done, vec![feed]))
            }
            Request::InjectFaults(source) => {
                self.inject(id, source, fds.pop())?;
                done()
            }
            Request::FailDevice { fault, address } => {
                self.fail_device_of(id, fault, address)?;
                done()
            }
            Request::ShareStatistics => {
                let file = self.statistics.share(id).map_err(|error| system(&error))?;
                Ok((Reply::Done, vec![file]))
            }
            Request::Capture(scope) => self.capture(id, scope, fds),
            Request::JoinCapture => Ok(self.join_capture(id)),
            Request::EndCapture => self.end_capture(id),
            Request::CaptureFailed { scope, errno } => {
                self.capture_failed(id, scope, errno);
                done()
            }
            Request::Statistics { after } => {
                let page = StatisticsPage::fill(self.statistics.list(after));
                Ok((Reply::Statistics(page), Vec::new()))
            }
            _ => Err(refusal(
                RefusalCode::UNKNOWN_REQUEST,
                "this service does not know the request",
            )),
        }
    }

    fn greet(&mut self, id: u32, own_pid: u32, name: String) -> Result<Answer, Refusal> {
        let uid = rustix::process::geteuid().as_raw();
        let client = self
            .clients
            .get_mut(&id)
            .expect("the client whose request this is");
        let lifeline = client.make_lifeline().map_err(|error| system(&error))?;
        client.greeted = true;
        client.name = name;
        client.own_pid = own_pid;
        let hello = Hello {
            pid: std::process::id(),
            uid,
            client: id,
        };
        Ok((Reply::Hello(hello), vec![lifeline]))
    }

    /// What needs packets between programs of this host is refused while none can pass.
    fn check_passage(&mut self) -> Result<(), Refusal> {
        self.notice_changes();
        if self.network.devices.passes_within {
            return Ok(());
        }
        Err(Refusal {
            code: RefusalCode::SYSTEM,
            sentence: Error::LoopbackDown.to_string(),
        })
    }

    fn open_channel(&mut self, id: u32) -> Result<Answer, Refusal> {
        self.check_passage()?;
        let (pipe, theirs) = Pipe::new(id).map_err(|error| system(&error))?;
        let file = self.ucm.open(Owner(id)).map_err(|failure| Refusal {
            code: RefusalCode::LIMIT,
            sentence: failure.to_string(),
        })?;
        let privileged = self
            .clients
            .get(&id)
            .is_some_and(|client| client.peer.uid == ROOT);
        let allowed = self
            .ucm
            .allow_privileged_ports(file, privileged || self.ports_are_free);
        debug_assert!(allowed.is_ok(), "the file was just opened");
        if let Err(error) = self.add_pipe(file.0, pipe) {
            let now = self.now();
            self.ucm.close(now, file);
            return Err(system(&error));
        }
        Ok((Reply::Opened { token: file.0 }, vec![theirs]))
    }

    /// Checks that a channel belongs to a client.
    fn own_file(&self, id: u32, token: u64) -> Result<(), Refusal> {
        if self.ucm.owner(FileId(token)) == Some(Owner(id)) {
            return Ok(());
        }
        let sentence = format!("this program has no event channel {token}");
        Err(Refusal {
            code: RefusalCode::UNKNOWN_CHANNEL,
            sentence,
        })
    }

    fn take_slot(&mut self, id: u32) -> Result<Answer, Refusal> {
        self.check_passage()?;
        let taken = self.network.take_slot().map_err(|error| system(&error))?;
        let Some((slot, socket, forward)) = taken else {
            let held = self.network.held_slots();
            let sentence = format!(
                "all 254 slots of this host are taken by programs ({held} by ended ones whose children still hold their sockets): end some of them, or use a network namespace of your own (`unshare -rn`)"
            );
            return Err(Refusal {
                code: RefusalCode::LIMIT,
                sentence,
            });
        };
        let client = self
            .clients
            .get_mut(&id)
            .expect("the client whose request this is");
        client.slots.push(slot);
        Ok((Reply::Slot { slot, forward }, socket.into_iter().collect()))
    }

    /// A slot is no longer the client's.
    pub(super) fn take_slot_back(&mut self, id: u32, slot: u8) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.slots.retain(|taken| *taken != slot);
        }
        self.network.release_slot(slot);
    }

    fn trace(&mut self, id: u32, fd: OwnedFd) -> Result<(), Refusal> {
        let client = self
            .clients
            .get_mut(&id)
            .expect("the client whose request this is");
        if client.captures.len() >= CAPTURES_PER_CLIENT {
            let sentence = format!("a program may have {CAPTURES_PER_CLIENT} traces at a time");
            return Err(Refusal {
                code: RefusalCode::LIMIT,
                sentence,
            });
        }
        let capture = Capture::append_to(fd).map_err(|error| Refusal {
            code: RefusalCode::DESCRIPTOR,
            sentence: format!("cannot trace to this descriptor: {error}"),
        })?;
        client.captures.push(capture);
        self.set_captures();
        Ok(())
    }

    fn ps(&self, after: Option<u32>) -> IdPage {
        let host = after.is_none().then(|| self.host_info());
        let pid = |owner: Owner| {
            self.clients
                .get(&owner.0)
                .map_or(0, |client| client.peer.pid)
        };
        IdPage::fill(host, self.ucm.id_infos(after, pid))
    }

    fn host_info(&self) -> HostInfo {
        let client = |client: &clients::Client| ClientInfo {
            pid: client.peer.pid,
            own_pid: client.own_pid,
            name: client.name[..client.name.floor_char_boundary(MAX_NAME)].to_owned(),
            slot: client.slots.first().copied(),
        };
        let mut slots: Vec<u8> = self
            .clients
            .values()
            .flat_map(|client| client.slots.iter().copied())
            .collect();
        slots.sort_unstable();
        let mut ports = self.ucm.ports();
        let port_count = ports.len() as u32;
        ports.truncate(MAX_PORTS);
        let mut counters = self.all_counters();
        counters.truncate(MAX_COUNTERS);
        HostInfo {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            clients: self
                .clients
                .values()
                .filter(|client| client.greeted)
                .map(client)
                .collect(),
            slots,
            ports,
            port_count,
            counters,
        }
    }
}

/// Only programs of this user, and root's, are served: whoever holds a slot could divert the others' packets.
pub(super) fn check_user(socket: &OwnedFd) -> Result<(), Refusal> {
    let service = rustix::process::geteuid().as_raw();
    let program = match fdpass::peer(socket) {
        Ok(peer) => peer.uid,
        Err(error) => {
            return Err(system(&Error::system("learn who has connected")(error)));
        }
    };
    if program == service || program == ROOT {
        return Ok(());
    }
    let error = Error::OtherUser { service, program };
    Err(Refusal {
        code: RefusalCode::OTHER_USER,
        sentence: error.to_string(),
    })
}

pub(super) fn no_room(max: usize) -> Refusal {
    Refusal {
        code: RefusalCode::LIMIT,
        sentence: format!(
            "{max} programs are connected to this host service, which is its limit: end some of them, or use a network namespace of your own (`unshare -rn`)"
        ),
    }
}

pub(super) fn no_descriptor() -> Refusal {
    Refusal {
        code: RefusalCode::SYSTEM,
        sentence: "the host service has no descriptor left for another program: end some programs, or start it with higher limits (`ulimit -n`)".to_owned(),
    }
}

/// A message that did not fit the buffer, or had descriptors that did not.
fn truncated(len: usize) -> Refusal {
    if len < MAX_MESSAGE {
        return Refusal {
            code: RefusalCode::DESCRIPTOR,
            sentence: format!("more than {MAX_FDS} descriptors came with one message"),
        };
    }
    Refusal {
        code: RefusalCode::MALFORMED,
        sentence: format!("the message has more than the {MAX_MESSAGE} bytes that are allowed"),
    }
}

fn refusal(code: RefusalCode, sentence: &str) -> Refusal {
    Refusal {
        code,
        sentence: sentence.to_owned(),
    }
}

fn malformed(error: &Malformed) -> Refusal {
    Refusal {
        code: RefusalCode::MALFORMED,
        sentence: format!("the message is malformed: {error}"),
    }
}

pub(super) fn system(error: &Error) -> Refusal {
    let sentence = match error {
        Error::System { source, .. } if is_out_of_descriptors(source) => format!(
            "the host service has no descriptor left and {error}: end some programs, or start it with higher limits (`ulimit -n`)"
        ),
        _ => format!("the host service {error}"),
    };
    Refusal {
        code: RefusalCode::SYSTEM,
        sentence,
    }
}

const MESSAGES_PER_TURN: usize = 32;
const CAPTURES_PER_CLIENT: usize = 8;
const ROOT: u32 = 0;
