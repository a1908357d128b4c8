//! Carrying out one row.

mod values;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::layout::{Layout, Layouts, Value};
use crate::script::{Row, Script, Side, Step, words};
use crate::subject::{File, HostEvent, Mode, OldFile, Peer, Refused, Subject, Write};

/// How long an event or a message that is expected may take, unless the step says otherwise.
const SOON: Duration = Duration::from_secs(10);

/// An answer, an event or a message that a row gave a name.
#[derive(Clone, Debug)]
struct Record {
    kind: Kind,
    layout: String,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Answer,
    Message,
}

pub(crate) struct Run<'a> {
    layouts: &'a Layouts,
    script: &'a Script,
    subject: &'a mut dyn Subject,
    files: BTreeMap<String, File>,
    records: BTreeMap<String, Record>,
    transaction: u64,
}

type Outcome = Result<(), String>;

impl<'a> Run<'a> {
    pub(crate) fn new(
        layouts: &'a Layouts,
        script: &'a Script,
        subject: &'a mut dyn Subject,
    ) -> Self {
        let files = BTreeMap::from([("f".to_string(), subject.open(Mode::default()))]);
        Self {
            layouts,
            script,
            subject,
            files,
            records: BTreeMap::new(),
            transaction: 0x7000,
        }
    }

    /// Carries out a row; `Err` says which step went otherwise.
    pub(crate) fn row(&mut self, row: &Row) -> Outcome {
        if let Some(setup) = &row.setup {
            self.setup(setup)?;
        }
        self.steps(&row.steps)
    }

    fn setup(&mut self, name: &str) -> Outcome {
        let (from, steps) = self
            .script
            .setups
            .get(name)
            .ok_or_else(|| format!("there is no set-up {name}"))?;
        if let Some(from) = from {
            self.setup(from)?;
        }
        self.steps(steps)
    }

    fn steps(&mut self, steps: &[Step]) -> Outcome {
        for step in steps {
            let counts = match step.side {
                Side::Both => true,
                Side::Kernel => self.subject.is_kernel(),
                Side::Here => !self.subject.is_kernel(),
            };
            if counts {
                self.step(&step.text)
                    .map_err(|error| format!("{}: {}: {error}", step.place, step.text))?;
            }
        }
        Ok(())
    }

    fn step(&mut self, text: &str) -> Outcome {
        let words = words(text);
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let times = words[0]
            .strip_suffix('x')
            .and_then(|n| n.parse::<u32>().ok());
        if let Some(times) = times {
            words.remove(0);
            for n in 1..=times {
                self.once(&words)
                    .map_err(|error| format!("time {n}: {error}"))?;
            }
            return Ok(());
        }
        self.once(&words)
    }

    fn once(&mut self, words: &[&str]) -> Outcome {
        let (name, words) = match words {
            [name, "=", rest @ ..] => (Some(*name), rest),
            _ => (None, words),
        };
        let record = match words {
            ["open", file, how @ ..] => {
                let mode = Mode {
                    blocking: how.contains(&"blocking"),
                    privileged: how.contains(&"privileged"),
                };
                let handle = self.subject.open(mode);
                self.files.insert(file_name(file)?, handle);
                None
            }
            ["close", file] => {
                let file = self.file(file)?;
                self.subject.close(file);
                None
            }
            ["poll", rest @ ..] => {
                let (given, wanted) = split(rest)?;
                let file = self.file_of(&given)?;
                let got = match self.subject.poll(file, Duration::ZERO) {
                    true => "readable",
                    false => "empty",
                };
                same(got, wanted.first().copied().unwrap_or_default())?;
                None
            }
            ["wait", time] => {
                self.subject.wait(duration(time)?);
                None
            }
            ["host", what @ ..] => {
                self.subject.host(match what {
                    ["device", "leaves"] => HostEvent::DeviceLeaves,
                    ["device", "returns"] => HostEvent::DeviceReturns,
                    ["address", "leaves"] => HostEvent::AddressLeaves,
                    ["address", "returns"] => HostEvent::AddressReturns,
                    ["neighbour", "moves"] => HostEvent::NeighbourMoves,
                    _ => return Err("no such event of the machine".into()),
                });
                None
            }
            ["make", layout, fields @ ..] => Some(self.make(layout, fields)?),
            ["no", "event", rest @ ..] => self.no_event(rest).map(|()| None)?,
            ["event", kind, rest @ ..] => Some(self.event(kind, rest)?),
            [who @ ("peer" | "stranger"), "sends", message, rest @ ..] => {
                Some(self.send(peer(who), message, rest)?)
            }
            [who @ ("peer" | "stranger"), "repeats", name] => {
                let sent = self.records.get(*name).ok_or("it sent no such message")?;
                let mad: [u8; 256] = sent.bytes[..].try_into().map_err(|_| "no message")?;
                let to = self.address("LOCAL")?.ip;
                self.subject.send(peer(who), to, &mad);
                None
            }
            [who @ ("peer" | "stranger"), "gets", "nothing", rest @ ..] => {
                let within = within(rest)?.unwrap_or_default();
                match self.subject.receive(peer(who), within) {
                    None => None,
                    Some(mad) => return Err(format!("it gets {}", self.show(&message_of(&mad)))),
                }
            }
            [who @ ("peer" | "stranger"), "gets", message, rest @ ..] => {
                Some(self.receive(peer(who), message, rest)?)
            }
            ["raw", rest @ ..] => self.command("raw", rest)?,
            [command, rest @ ..] => self.command(command, rest)?,
            [] => return Err("nothing to do".into()),
        };
        if let Some(name) = name {
            let record = record.ok_or("there is nothing to give a name to")?;
            self.records.insert(name.into(), record);
        }
        Ok(())
    }

    // ---- commands ----

    fn command(&mut self, name: &str, rest: &[&str]) -> Result<Option<Record>, String> {
        let raw = Layout::default();
        let layouts = self.layouts;
        let layout = match name {
            "raw" => &raw,
            _ => layouts
                .commands
                .get(name)
                .ok_or_else(|| format!("there is no command {name}"))?,
        };
        let (given, wanted) = split(rest)?;
        let file = self.file_of(&given)?;
        let mut body = vec![0; layout.size];
        self.defaults(layout, &mut body)?;
        let answer = layouts.answers.get(name);
        let mut cmd = i128::from(layout.number);
        let mut in_len = layout.size as i128;
        let mut out_len = answer.map_or(0, |answer| answer.size as i128);
        let (mut len, mut value, mut old_file) = (None, None, None);
        let (mut bad_response, mut by_another) = (false, false);
        for word in &given {
            match word.split_once('=') {
                None if word.starts_with('@') => {}
                None => self.put(layout, &mut body, "id", word)?,
                Some(("cmd", v)) => cmd = self.int(v)?,
                Some(("in", v)) => in_len = self.int(v)?,
                Some(("out", v)) => out_len = self.int(v)?,
                Some(("len", v)) => len = Some(self.int(v)? as usize),
                Some(("by", "another")) => by_another = true,
                Some(("response", "bad")) => bad_response = true,
                Some(("from", v)) => {
                    let at = layout.offset("fd").ok_or("no field fd")?;
                    let old = match v.trim_start_matches('@') {
                        "stdin" => OldFile::NoChannel,
                        name => match self.files.get(name) {
                            Some(file) => OldFile::Open(*file),
                            None => OldFile::Closed,
                        },
                    };
                    old_file = Some((at + 8, old));
                }
                Some(("value", v)) => {
                    let bytes = self.bytes(v)?;
                    self.put(layout, &mut body, "optlen", &bytes.len().to_string())?;
                    value = Some(bytes);
                }
                Some((field, v)) => self.put(layout, &mut body, field, v)?,
            }
        }
        let mut bytes = Vec::with_capacity(8 + body.len());
        bytes.extend_from_slice(&(cmd as u32).to_ne_bytes());
        bytes.extend_from_slice(&(in_len as u16).to_ne_bytes());
        bytes.extend_from_slice(&(out_len as u16).to_ne_bytes());
        bytes.extend_from_slice(&body);
        if let Some(len) = len {
            bytes.resize(len, 0);
        }
        let write = Write {
            bytes: &bytes,
            response_at: layout.offset("response").map(|at| at + 8),
            bad_response,
            value: value.as_deref(),
            old_file,
            by_another,
        };
        let result = self.subject.write(file, &write);
        let got = match result {
            Ok(_) => "ok".to_string(),
            Err(Refused::Blocks) => "blocks".to_string(),
            Err(Refused::Errno(errno)) => self.layouts.name("errno", errno.into()),
        };
        // A step of a set-up that says nothing is to succeed.
        same(&got, wanted.first().copied().unwrap_or("ok"))?;
        let Ok(bytes) = result else { return Ok(None) };
        let Some(answer) = answer else {
            return Ok(None);
        };
        if let Some(wanted) = wanted.get(1).and_then(|word| word.strip_prefix("bytes=")) {
            same(&bytes.len().to_string(), wanted)?;
        }
        let mut record = self.record(Kind::Answer, name, bytes);
        let fields = wanted
            .iter()
            .skip(1)
            .filter(|word| !word.starts_with("bytes="));
        for field in fields {
            self.check(&record, field)?;
        }
        record.bytes.resize(answer.size, 0);
        Ok(Some(record))
    }

    fn defaults(&self, layout: &Layout, body: &mut [u8]) -> Outcome {
        for (name, field) in &layout.fields {
            if let Some(default) = &field.default {
                let value = self.value(default)?;
                field
                    .put(body, &value)
                    .map_err(|error| format!("{name}: {error}"))?;
            }
        }
        Ok(())
    }

    fn put(&self, layout: &Layout, body: &mut [u8], name: &str, value: &str) -> Outcome {
        let field = layout
            .field(name)
            .ok_or_else(|| format!("there is no field {name}"))?;
        let value = self.value(value)?;
        field
            .put(body, &value)
            .map_err(|error| format!("{name}: {error}"))
    }

    fn make(&mut self, layout: &str, fields: &[&str]) -> Result<Record, String> {
        let layouts = self.layouts;
        let shape = layouts
            .answers
            .get(layout)
            .ok_or_else(|| format!("there is no structure {layout}"))?;
        let mut bytes = vec![0; shape.size];
        self.defaults(shape, &mut bytes)?;
        for word in fields {
            let (field, value) = word.split_once('=').ok_or("field=value is expected")?;
            self.put(shape, &mut bytes, field, value)?;
        }
        Ok(self.record(Kind::Answer, layout, bytes))
    }

    // ---- events ----

    fn next_event(&mut self, file: File) -> Result<Record, String> {
        let layout = &self.layouts.commands["GET_EVENT"];
        let mut bytes = layout.number.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&8_u16.to_ne_bytes());
        bytes.extend_from_slice(&336_u16.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        let write = Write {
            bytes: &bytes,
            response_at: Some(8),
            ..Write::default()
        };
        match self.subject.write(file, &write) {
            Ok(bytes) => Ok(self.record(Kind::Answer, "GET_EVENT", bytes)),
            Err(Refused::Blocks) => Err("GET_EVENT blocks".into()),
            Err(Refused::Errno(errno)) => Err(self.layouts.name("errno", errno.into())),
        }
    }

    fn no_event(&mut self, rest: &[&str]) -> Outcome {
        let file = self.file_of(rest)?;
        let within = within(rest)?.unwrap_or_default();
        if self.subject.poll(file, within) {
            let event = self.next_event(file)?;
            return Err(format!("there is one: {}", self.show_event(&event)));
        }
        match self.next_event(file) {
            Ok(event) => Err(format!("there is one: {}", self.show_event(&event))),
            Err(errno) => same(&errno, "EAGAIN"),
        }
    }

    fn event(&mut self, kind: &str, rest: &[&str]) -> Result<Record, String> {
        let file = self.file_of(rest)?;
        let within = within(rest)?.unwrap_or(SOON);
        if !self.subject.poll(file, within) {
            return Err("there is no event".into());
        }
        let event = self.next_event(file)?;
        let wanted = self
            .layouts
            .number("event", kind)
            .ok_or_else(|| format!("there is no event {kind}"))?;
        let matches = self.read(&event, "event")? == Value::Int(wanted);
        let mut rest = rest.iter();
        let mut outcome = match matches {
            true => Ok(()),
            false => Err("another event".to_string()),
        };
        while let Some(word) = rest.next() {
            if *word == "of" {
                let id = rest.next().ok_or("of what?")?;
                outcome = outcome.and_then(|()| self.check(&event, &format!("id={id}")));
            } else if !word.starts_with('@') && !word.starts_with("within=") {
                outcome = outcome.and_then(|()| self.check(&event, word));
            }
        }
        outcome.map_err(|error| format!("{error}; {}", self.show_event(&event)))?;
        Ok(event)
    }

    fn show_event(&self, event: &Record) -> String {
        let get = |field| self.read(event, field);
        match (get("event"), get("id"), get("status")) {
            (Ok(Value::Int(kind)), Ok(id), Ok(status)) => format!(
                "{} of {id} status={status}",
                self.layouts.name("event", kind)
            ),
            _ => "an event that cannot be read".into(),
        }
    }

    // ---- messages ----

    fn send(&mut self, from: Peer, message: &str, rest: &[&str]) -> Result<Record, String> {
        let layouts = self.layouts;
        let layout = layouts
            .messages
            .get(message)
            .ok_or_else(|| format!("there is no message {message}"))?;
        let mut mad = [0_u8; 256];
        self.transaction += 1;
        // Base version, class, class version, method SEND; IBA Vol. 1 ch. 13.
        mad[..4].copy_from_slice(&[1, 0x07, 2, 0x03]);
        mad[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        mad[16..18].copy_from_slice(&(layout.number as u16).to_be_bytes());
        let mut body = mad[24..].to_vec();
        self.defaults(layout, &mut body)?;
        let mut to = self.address("LOCAL")?.ip;
        for word in rest {
            let (field, value) = word.split_once('=').ok_or("field=value is expected")?;
            match field {
                // An answer: the numbers of both sides the other way round.
                "to" => {
                    self.put(
                        layout,
                        &mut body,
                        "remote_comm_id",
                        &format!("{value}.local_comm_id"),
                    )?;
                    if let Ok(Value::Int(local @ 1..)) =
                        self.value(&format!("{value}.remote_comm_id"))
                    {
                        self.put(layout, &mut body, "local_comm_id", &local.to_string())?;
                    }
                }
                // Once more from the sender of an earlier message, with its numbers.
                "after" => {
                    for field in ["local_comm_id", "remote_comm_id"] {
                        self.put(layout, &mut body, field, &format!("{value}.{field}"))?;
                    }
                }
                "dest" => match self.value(value)? {
                    Value::Addr(addr) => to = addr.ip,
                    _ => return Err("dest is an address".into()),
                },
                "attr_mod" => {
                    let value = self.int(value)? as u32;
                    mad[20..24].copy_from_slice(&value.to_be_bytes());
                }
                _ => self.put(layout, &mut body, field, value)?,
            }
        }
        mad[24..].copy_from_slice(&body);
        self.subject.send(from, to, &mad);
        Ok(self.record(Kind::Message, message, mad.to_vec()))
    }

    fn receive(&mut self, peer: Peer, message: &str, rest: &[&str]) -> Result<Record, String> {
        let within = within(rest)?.unwrap_or(SOON);
        let mad = self
            .subject
            .receive(peer, within)
            .ok_or("it gets nothing")?;
        let record = message_of(&mad);
        let wanted = self
            .layouts
            .messages
            .get(message)
            .ok_or_else(|| format!("there is no message {message}"))?;
        let attribute = u16::from_be_bytes([mad[16], mad[17]]);
        if u32::from(attribute) != wanted.number {
            return Err(format!("it gets {}", self.show(&record)));
        }
        let record = Record {
            layout: message.into(),
            ..record
        };
        for word in rest.iter().filter(|word| !word.starts_with("within=")) {
            match word.split_once('=') {
                Some(("to", earlier)) => {
                    self.check(&record, &format!("remote_comm_id={earlier}.local_comm_id"))?;
                }
                _ => self.check(&record, word)?,
            }
        }
        Ok(record)
    }

    fn show(&self, record: &Record) -> String {
        let attribute = u16::from_be_bytes([record.bytes[16], record.bytes[17]]);
        let known = self
            .layouts
            .messages
            .iter()
            .find(|(_, layout)| layout.number == u32::from(attribute));
        match known {
            Some((name, layout)) => {
                let reason = layout
                    .field("reason")
                    .map(|field| field.get(&record.bytes[24..]));
                let reason = reason.map_or(String::new(), |reason| format!(" reason={reason}"));
                format!("{name}{reason}")
            }
            None => format!("attribute {attribute:#x}"),
        }
    }

    // ---- files ----

    fn file(&self, word: &str) -> Result<File, String> {
        let name = file_name(word)?;
        self.files
            .get(&name)
            .copied()
            .ok_or_else(|| format!("file @{name} was not opened"))
    }

    /// The file that a step names with `@`, or the first one.
    fn file_of(&self, words: &[&str]) -> Result<File, String> {
        let named = words.iter().find(|word| word.starts_with('@'));
        self.file(named.copied().unwrap_or("@f"))
    }
}

fn message_of(mad: &[u8; 256]) -> Record {
    Record {
        kind: Kind::Message,
        layout: String::new(),
        bytes: mad.to_vec(),
    }
}

fn peer(word: &str) -> Peer {
    match word {
        "stranger" => Peer::Stranger,
        _ => Peer::Other,
    }
}

fn file_name(word: &str) -> Result<String, String> {
    word.strip_prefix('@')
        .map(Into::into)
        .ok_or_else(|| format!("{word} is no file; files are written @f"))
}

/// What stands before `=>` and after it.
fn split<'w>(words: &[&'w str]) -> Result<(Vec<&'w str>, Vec<&'w str>), String> {
    let mut parts = words.split(|word| *word == "=>");
    let given = parts.next().unwrap_or_default().to_vec();
    let wanted = parts.next().unwrap_or_default().to_vec();
    match parts.next() {
        None => Ok((given, wanted)),
        Some(_) => Err("=> stands twice".into()),
    }
}

fn same(got: &str, wanted: &str) -> Outcome {
    match got == wanted {
        true => Ok(()),
        false => Err(format!("{wanted} was expected, got {got}")),
    }
}

fn within(words: &[&str]) -> Result<Option<Duration>, String> {
    let word = words.iter().find_map(|word| word.strip_prefix("within="));
    word.map(duration).transpose()
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = match text.strip_suffix("ms") {
        Some(millis) => millis.parse().map(Duration::from_millis),
        None => text.trim_end_matches('s').parse().map(Duration::from_secs),
    };
    parsed.map_err(|_| format!("{text} is no time"))
}
