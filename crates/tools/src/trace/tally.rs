//! What a capture holds, counted in the file itself.

use crate::failure::Failure;
use oarlock_port::pcap::{PcapError, Reader};
use oarlock_wire::base::{Operation, TransportClass};
use oarlock_wire::{CmMessage, MAD_LEN, Packet, Qpn, ROCE_PORT};
use serde::Serialize;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};
use std::path::Path;
use std::rc::Rc;

/// Packets of a capture by kind and by program.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    pub(super) packets: u64,
    /// Of the file.
    pub(super) bytes: u64,
    /// By message.
    management: BTreeMap<String, u64>,
    /// By transport and operation.
    data: BTreeMap<String, u64>,
    /// Packets that are none that we know.
    other: u64,
    /// By interface.
    programs: Vec<Program>,
    /// Bytes of half a packet at the end, which were cut off.
    cut_bytes: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Program {
    name: String,
    packets: u64,
}

impl Tally {
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (kind, counts) in [("management", &self.management), ("data", &self.data)] {
            let sum: u64 = counts.values().sum();
            let parts: Vec<String> = counts
                .iter()
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            lines.push(match parts.is_empty() {
                true => format!("  {kind}: none"),
                false => format!("  {kind}: {sum} ({})", parts.join(", ")),
            });
        }
        if self.other > 0 {
            lines.push(format!("  other: {}", self.other));
        }
        for Program { name, packets } in &self.programs {
            lines.push(format!("  by {name}: {packets}"));
        }
        if self.cut_bytes > 0 {
            lines.push(format!(
                "  {} bytes of half a packet at the end were cut off",
                self.cut_bytes
            ));
        }
        lines
    }

    fn add(&mut self, payload: &[u8]) {
        // The last four bytes are the ICRC.
        let packet = payload
            .split_last_chunk::<4>()
            .and_then(|(packet, _)| Packet::parse(packet).ok());
        let Some(packet) = packet else {
            self.other += 1;
            return;
        };
        let (counts, name) = if packet.bth.dest_qpn == Qpn::QP1 {
            let mad = <&[u8; MAD_LEN]>::try_from(packet.payload).ok();
            let message = mad.and_then(|mad| CmMessage::parse(mad).ok());
            let name = message.map_or_else(|| "unknown".to_owned(), |(_, message)| name(&message));
            (&mut self.management, name)
        } else {
            (&mut self.data, kind(&packet))
        };
        *counts.entry(name).or_default() += 1;
    }
}

/// A message's name, which its text begins with.
fn name(message: &CmMessage) -> String {
    let text = message.to_string();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}

fn kind(packet: &Packet<'_>) -> String {
    let opcode = packet.bth.opcode;
    let operation = match opcode.operation() {
        Operation::Send => "SEND",
        Operation::RdmaWrite => "WRITE",
        Operation::RdmaReadRequest => "READ",
        Operation::RdmaReadResponse => "READ response",
        Operation::Acknowledge => "acknowledgement",
        Operation::AtomicAcknowledge => "atomic acknowledgement",
        Operation::CompareSwap | Operation::FetchAdd => "atomic",
        _ => "other",
    };
    match opcode.transport() {
        TransportClass::Cnp => "congestion notification".to_owned(),
        transport => format!("{transport} {operation}"),
    }
}

/// Counts the packets of a file that nobody writes to any more. What stands behind the last whole one, because a writer had no
/// room for more, is cut off, so that others can read the file.
pub(super) fn tally(path: &Path, file: &File) -> Result<Tally, Failure> {
    let io = |source: io::Error| Failure::File {
        path: path.to_owned(),
        source,
    };
    let mut tally = Tally::default();
    let read = Rc::new(Cell::new(0));
    let mut handle = file;
    handle.rewind().map_err(io)?;
    let counting = Counting {
        source: BufReader::new(handle),
        read: Rc::clone(&read),
    };
    let mut whole = 0;
    let mut reader = match Reader::new(counting) {
        Ok(reader) => reader,
        Err(error) => {
            return Err(Failure::Capture {
                path: path.to_owned(),
                problem: error.to_string(),
            });
        }
    };
    let mut of_interface: Vec<u64> = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(record)) => {
                tally.packets += 1;
                of_interface.resize(of_interface.len().max(record.interface + 1), 0);
                of_interface[record.interface] += 1;
                match record.datagram() {
                    Some(datagram) if datagram.destination.port() == ROCE_PORT => {
                        tally.add(datagram.payload);
                    }
                    _ => tally.other += 1,
                }
                whole = read.get();
            }
            Ok(None) => {
                whole = read.get();
                break;
            }
            Err(PcapError::Io(error)) => return Err(io(error)),
            // Half a packet, or what another wrote behind it.
            Err(_) => break,
        }
    }
    of_interface.resize(reader.interfaces().len(), 0);
    tally.programs = reader
        .interfaces()
        .iter()
        .zip(of_interface)
        .map(|(interface, packets)| Program {
            name: interface.name.clone(),
            packets,
        })
        .collect();
    let len = file.metadata().map_err(io)?.len();
    tally.cut_bytes = len.saturating_sub(whole);
    if tally.cut_bytes > 0 && whole > 0 {
        file.set_len(whole).map_err(io)?;
    }
    tally.bytes = whole;
    Ok(tally)
}

/// Counts what is read.
struct Counting<R> {
    source: R,
    read: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(buffer)?;
        self.read.set(self.read.get() + n as u64);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oarlock_port::pcap::{Capture, Section};
    use std::io::Write as _;
    use std::time::SystemTime;

    #[test]
    fn half_a_packet_at_the_end_is_cut_off_and_said() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut section = Section::begin(file.reopen().unwrap().into()).unwrap();
        let number = section.add("writer (1)", "").unwrap();
        let capture = Capture::of_interface(section.descriptor().unwrap(), number).unwrap();
        capture
            .write_packet(SystemTime::now(), &[b"no IP packet"])
            .unwrap();
        let whole = std::fs::metadata(file.path()).unwrap().len();
        let mut end = File::options().append(true).open(file.path()).unwrap();
        end.write_all(&[6, 0, 0, 0, 99]).unwrap();
        let counted = tally(file.path(), &file.reopen().unwrap()).unwrap();
        assert_eq!((counted.packets, counted.other), (1, 1));
        assert_eq!((counted.cut_bytes, counted.bytes), (5, whole));
        assert_eq!(std::fs::metadata(file.path()).unwrap().len(), whole);
        assert_eq!(
            counted.lines(),
            [
                "  management: none",
                "  data: none",
                "  other: 1",
                "  by writer (1): 1",
                "  5 bytes of half a packet at the end were cut off",
            ]
        );
    }

    /// An interface of a program that came and sent nothing is part of the file.
    #[test]
    fn what_stands_behind_the_last_packet_is_kept() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut section = Section::begin(file.reopen().unwrap().into()).unwrap();
        section.add("idle (1)", "").unwrap();
        let whole = std::fs::metadata(file.path()).unwrap().len();
        let counted = tally(file.path(), &file.reopen().unwrap()).unwrap();
        assert_eq!((counted.packets, counted.cut_bytes), (0, 0));
        assert_eq!(counted.bytes, whole);
        assert_eq!(counted.lines().last().unwrap(), "  by idle (1): 0");
    }
}
