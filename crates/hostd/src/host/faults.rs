//! Faults on purpose: rules for this program's packets, for management datagrams, for devices.

use super::{Host, done};
use crate::Error;
use oarlock_port::Port;
use oarlock_port::fault::{DeviceFault, Faults, PortFaults, Rules};
use oarlock_port::fork::PerProcess;
use oarlock_ucm::proto::{self, InjectFaults, Request};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Names the variable with fault rules for every host that a program opens.
pub const FAULT_VARIABLE: &str = "OARLOCK_FAULT";
/// Names the variable with the file to which faults that strike are written. `%p` in it is the process's number.
pub const FAULT_RECORD_VARIABLE: &str = "OARLOCK_FAULT_RECORD";
/// Names the variable with the record of faults that are to strike again, in place of rules.
pub const FAULT_REPLAY_VARIABLE: &str = "OARLOCK_FAULT_REPLAY";

/// Which faults a program wants.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Injection {
    /// None.
    #[default]
    None,
    /// Those of rules.
    Rules(Rules),
    /// Those of a record, given as its text.
    Replay(String),
}

/// What is injected through a host.
#[derive(Debug, Default)]
pub(super) struct Injected {
    faults: Option<Arc<Faults>>,
    /// The ports of the slots that were taken.
    ports: Vec<PortFaults>,
    /// Whether the service has something of ours.
    at_service: bool,
}

/// What the environment asks for: one for all hosts of the process, so that they have one record.
#[derive(Debug)]
struct Setup {
    faults: Arc<Faults>,
    at_service: InjectFaults,
    record: Option<File>,
}

impl Host {
    /// Injects faults in place of those that were injected before: [rules](oarlock_port::fault) or a replay.
    ///
    /// Rules about management datagrams (`opcode=cm` and its kin) are the host service's to carry out, and strike the datagrams of all
    /// its programs as long as this program is connected; the same rules given by several programs count once. All others are about
    /// the packets of this program's queue pairs, in slots that it has and in those that it takes later. Every fault that strikes
    /// is a line in `record`.
    ///
    /// Gives the faults of this program's packets, whose counters tell what has struck.
    ///
    /// # Errors
    /// The record to replay is none; a record that cannot be written; no thread to be had for packets that wait; an older
    /// service that knows no faults.
    ///
    /// # Blocking
    /// Until the service has answered.
    pub fn inject(
        &self,
        injection: Injection,
        record: Option<File>,
    ) -> Result<Option<Arc<Faults>>, Error> {
        let setup = Setup::of(injection, record)?;
        self.put(setup.as_ref())?;
        Ok(setup.map(|setup| setup.faults))
    }

    /// Lets a fault happen to the device that has an address, as far as this program is concerned: its identifiers on the device get
    /// DEVICE_REMOVAL or ADDR_CHANGE, and the feed of [`take_changes`](Self::take_changes) tells it. Faults of queue pairs are not the
    /// service's, and nothing happens.
    ///
    /// # Blocking
    /// Never. Errors cannot be told.
    pub fn fail_device(&self, fault: DeviceFault, address: IpAddr) {
        let fault = match fault {
            DeviceFault::DeviceRemoval => proto::DeviceFault::Removal,
            DeviceFault::AddressChange => proto::DeviceFault::AddressChange,
            _ => return,
        };
        let request = Request::FailDevice { fault, address };
        let _ = self.inner.connection.post(&request);
    }

    /// The faults that the environment asks for.
    pub(super) fn inject_from_environment(&self) -> Result<(), Error> {
        match environment()? {
            Some(setup) => self.put(Some(&setup)),
            None => Ok(()),
        }
    }

    /// A slot has been taken.
    pub(super) fn inject_into(&self, port: &Port) -> Result<(), Error> {
        let mut injected = self.injected();
        port.inject(injected.faults.clone())
            .map_err(Error::system("inject faults"))?;
        injected.ports.retain(PortFaults::is_there);
        injected.ports.push(port.faults());
        Ok(())
    }

    fn put(&self, setup: Option<&Setup>) -> Result<(), Error> {
        let mut injected = self.injected();
        let at_service = setup.map_or(&InjectFaults::None, |setup| &setup.at_service);
        let wants_service = *at_service != InjectFaults::None;
        if wants_service || injected.at_service {
            let record = setup.and_then(|setup| setup.record.as_ref());
            let fds: Vec<_> = record
                .filter(|_| wants_service)
                .map(AsFd::as_fd)
                .into_iter()
                .collect();
            let request = Request::InjectFaults(at_service.clone());
            let (reply, _) = self.inner.connection.request(&request, &fds)?;
            done(&reply)?;
            injected.at_service = wants_service;
        }
        injected.faults = setup.map(|setup| setup.faults.clone());
        let Injected { faults, ports, .. } = &mut *injected;
        let mut result = Ok(());
        ports.retain(|port| match port.inject(faults.clone()) {
            Ok(is_there) => is_there,
            Err(error) => {
                result = Err(error);
                true
            }
        });
        result.map_err(Error::system("inject faults"))
    }

    fn injected(&self) -> std::sync::MutexGuard<'_, Injected> {
        self.inner
            .injected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Setup {
    fn of(injection: Injection, record: Option<File>) -> Result<Option<Self>, Error> {
        let (faults, at_service) = match injection {
            Injection::None => return Ok(None),
            Injection::Rules(rules) => {
                let of_service = rules.of_service();
                let at_service = if of_service.is_empty() {
                    InjectFaults::None
                } else {
                    InjectFaults::Rules(of_service.to_string())
                };
                (Faults::new(rules.of_program()), at_service)
            }
            Injection::Replay(text) => {
                let faults = Faults::replay(&text, false)?;
                let at_service = match management_lines(&text) {
                    Some(lines) => InjectFaults::Replay(lines),
                    None => InjectFaults::None,
                };
                (faults, at_service)
            }
        };
        if let Some(record) = &record {
            let recorded = record.try_clone().and_then(|file| faults.record_to(file));
            recorded.map_err(Error::system("write the fault record"))?;
        }
        Ok(Some(Self {
            faults: Arc::new(faults),
            at_service,
            record,
        }))
    }
}

/// What a record says of management datagrams, as a record of its own.
fn management_lines(record: &str) -> Option<String> {
    let mut lines = record.lines();
    let head = lines.next()?;
    let is_management = |line: &&str| !line.starts_with('#') && line.contains(" qpn=0x000001 ");
    let found: Vec<&str> = lines.filter(is_management).collect();
    (!found.is_empty()).then(|| format!("{head}\n{}\n", found.join("\n")))
}

fn environment() -> Result<Option<Arc<Setup>>, Error> {
    // A forked child goes on with what its parent had, but not with a lock that a thread of the parent may hold.
    static MADE: PerProcess<Mutex<Option<Arc<Setup>>>> = PerProcess::new(|parents| {
        let known = parents.and_then(|parents| parents.try_lock().ok()?.clone());
        Mutex::new(known)
    });
    let mut made = MADE.get().lock().unwrap_or_else(PoisonError::into_inner);
    if made.is_none() {
        *made = read_environment()?.map(Arc::new);
    }
    Ok(made.clone())
}

fn read_environment() -> Result<Option<Setup>, Error> {
    let rules = variable(FAULT_VARIABLE)?;
    let replay = variable(FAULT_REPLAY_VARIABLE)?;
    let record = variable(FAULT_RECORD_VARIABLE)?;
    let injection = match (rules, replay) {
        (Some(_), Some(_)) => {
            return Err(Error::FaultVariables(
                "OARLOCK_FAULT and OARLOCK_FAULT_REPLAY are both set: rules strike by themselves, or as recorded; unset one",
            ));
        }
        (None, None) if record.is_some() => {
            return Err(Error::FaultVariables(
                "OARLOCK_FAULT_RECORD is set, but no faults are: set OARLOCK_FAULT or OARLOCK_FAULT_REPLAY too",
            ));
        }
        (None, None) => return Ok(None),
        (Some(rules), None) => Injection::Rules(rules.parse()?),
        (None, Some(path)) => {
            let path = PathBuf::from(path);
            let text = std::fs::read_to_string(&path).map_err(|source| Error::FaultFile {
                what: "read",
                path,
                source,
            })?;
            Injection::Replay(text)
        }
    };
    let record = record.map(|path| open_record(&path)).transpose()?;
    Setup::of(injection, record)
}

/// A variable's text; an empty one is as good as none.
fn variable(name: &'static str) -> Result<Option<String>, Error> {
    match std::env::var(name) {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Error::FaultVariables(
            "one of OARLOCK_FAULT, OARLOCK_FAULT_RECORD and OARLOCK_FAULT_REPLAY is no text in UTF-8",
        )),
    }
}

/// Makes a record. Two programs that write one would spoil it for both.
fn open_record(path: &str) -> Result<File, Error> {
    let path = PathBuf::from(path.replace("%p", &std::process::id().to_string()));
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let locked = file.and_then(|file| {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.set_len(0)?;
        Ok(file)
    });
    locked.map_err(|source| match source.kind() {
        std::io::ErrorKind::WouldBlock => Error::FaultVariables(
            "another program writes to the file that OARLOCK_FAULT_RECORD names: put %p into its name, which stands for the process's number",
        ),
        _ => Error::FaultFile {
            what: "write",
            path,
            source,
        },
    })
}
