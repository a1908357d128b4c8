//! Faults in management datagrams, which programs have asked for.
//!
//! A datagram belongs to the host, not to a program: rules strike the datagrams of all. The same rules, given by several programs
//! (those that one script starts, with one environment), are one set that counts once, and is there until the last of them goes.

use super::event_loop::Service;
use super::qp1::Strike;
use oarlock_cma::Device;
use oarlock_port::Port;
use oarlock_port::fault::{self, Faults, Rules};
use oarlock_ucm::proto::{DeviceFault, InjectFaults, Refusal, RefusalCode};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The sets of rules, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct ManagementFaults {
    sets: Vec<Set>,
}

#[derive(Debug)]
struct Set {
    source: InjectFaults,
    faults: Arc<Faults>,
    clients: Vec<u32>,
}

impl ManagementFaults {
    /// Takes a client's faults, in place of what it gave before. The sentence says what is wrong with them.
    pub(super) fn set(
        &mut self,
        port: &Port,
        client: u32,
        source: InjectFaults,
        record: Option<OwnedFd>,
    ) -> Result<(), String> {
        let made = match &source {
            InjectFaults::Rules(text) => {
                let rules: Rules = text.parse().map_err(|error| format!("{error}"))?;
                let rules = rules.of_service();
                (!rules.is_empty()).then(|| Faults::new(rules))
            }
            InjectFaults::Replay(text) => {
                Some(Faults::replay(text, true).map_err(|error| format!("{error}"))?)
            }
            _ => None,
        };
        self.leave(client);
        if let Some(made) = made {
            let known = self.sets.iter().position(|set| set.source == source);
            let place = known.unwrap_or_else(|| {
                self.sets.push(Set {
                    source,
                    faults: Arc::new(made),
                    clients: Vec::new(),
                });
                self.sets.len() - 1
            });
            self.sets[place].clients.push(client);
            if let Some(record) = record {
                let recorded = self.sets[place].faults.record_to(File::from(record));
                recorded.map_err(|error| format!("cannot write to the fault record: {error}"))?;
            }
        }
        self.put_in_place(port)
            .map_err(|error| format!("the host service cannot inject faults: {error}"))
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, port: &Port, client: u32) {
        if self.leave(client) {
            // Fewer faults need no thread that there is not already.
            let _ = self.put_in_place(port);
        }
    }

    /// Whose the rules of a set are.
    pub(super) fn clients(&self, set: usize) -> Vec<u32> {
        self.sets
            .get(set)
            .map_or_else(Vec::new, |set| set.clients.clone())
    }

    /// Faults that have struck, with their rules.
    pub(super) fn struck(&self) -> u64 {
        self.sets
            .iter()
            .flat_map(|set| set.faults.counts())
            .map(|count| count.struck)
            .sum()
    }

    fn leave(&mut self, client: u32) -> bool {
        let before = self.sets.len();
        for set in &mut self.sets {
            set.clients.retain(|of| *of != client);
        }
        self.sets.retain(|set| !set.clients.is_empty());
        self.sets.len() != before
    }

    fn put_in_place(&self, port: &Port) -> io::Result<()> {
        port.set_faults(self.sets.iter().map(|set| set.faults.clone()).collect())
    }
}

impl Service {
    /// Injects a client's faults, whose record goes to `record`.
    pub(super) fn inject(
        &mut self,
        id: u32,
        source: InjectFaults,
        record: Option<OwnedFd>,
    ) -> Result<(), Refusal> {
        if let Some(record) = &record {
            check_record(record)?;
        }
        let text = match &source {
            InjectFaults::Rules(text) => Some(text.as_str()),
            InjectFaults::Replay(_) => Some("a record"),
            _ => None,
        };
        tracing::info!(client = id, faults = text, "faults on purpose");
        self.faults
            .set(&self.network.port, id, source, record)
            .map_err(|sentence| Refusal {
                code: RefusalCode::MALFORMED,
                sentence,
            })
    }

    /// A client wants something to happen to the device of an address.
    pub(super) fn fail_device_of(
        &mut self,
        id: u32,
        fault: DeviceFault,
        address: IpAddr,
    ) -> Result<(), Refusal> {
        let device = self.device_of(address).ok_or_else(|| Refusal {
            code: RefusalCode::MALFORMED,
            sentence: format!("no device of this host has the address {address}"),
        })?;
        self.fail_device(id, fault, &device);
        Ok(())
    }

    /// Rules have struck datagrams with faults of devices.
    pub(super) fn strike(&mut self, struck: &[Strike]) {
        for strike in struck {
            let fault = match strike.fault {
                fault::DeviceFault::DeviceRemoval => DeviceFault::Removal,
                fault::DeviceFault::AddressChange => DeviceFault::AddressChange,
                // Rules about management datagrams can have no other.
                _ => continue,
            };
            let Some(device) = self.device_of(strike.local) else {
                continue;
            };
            for client in self.faults.clients(strike.set) {
                self.fail_device(client, fault, &device);
            }
        }
    }

    fn device_of(&self, address: IpAddr) -> Option<Device> {
        let has = |device: &&Device| device.addresses.contains(&address);
        self.network.devices.list.iter().find(has).cloned()
    }
}

/// Writing to anything but a regular file could keep the service waiting.
fn check_record(record: &OwnedFd) -> Result<(), Refusal> {
    let is_file = rustix::fs::fstat(record)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file());
    if is_file {
        return Ok(());
    }
    Err(Refusal {
        code: RefusalCode::DESCRIPTOR,
        sentence: "a fault record is written to a regular file only".to_owned(),
    })
}
