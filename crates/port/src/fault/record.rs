//! The record: a line for every fault that struck.

use super::pattern::{Head, number, number24, opcode, write_opcode};
use super::rules::Rules;
use super::stream::Place;
use super::{DeviceFault, Direction, Verdict};
use oarlock_wire::Opcode;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

/// One line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) place: Place,
    pub(super) qpn: u32,
    pub(super) psn: u32,
    pub(super) recorded: Recorded,
}

/// What was done, and to a packet of which opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) opcode: Opcode,
    pub(super) verdict: Verdict,
}

/// Why a text is no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the fault record is `{text}`: {wanted} is wanted")]
pub struct RecordError {
    /// The line, from 1.
    pub line: usize,
    /// What stands there, at most 80 characters.
    pub text: String,
    /// What should.
    pub wanted: &'static str,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place {
            direction,
            qp,
            index,
            ..
        } = self.place;
        write!(f, "{index} {direction} ")?;
        write_opcode(self.recorded.opcode, f)?;
        write!(f, " qpn={:#08x} psn={:#08x} ", self.qpn, self.psn)?;
        match self.recorded.verdict {
            Verdict::Drop => f.write_str("drop")?,
            Verdict::Duplicate => f.write_str("duplicate")?,
            Verdict::Delay(by) => write!(f, "delay={}", by.as_micros())?,
            Verdict::Reorder(within) => write!(f, "reorder={}", within.as_micros())?,
            Verdict::Corrupt { offset, bit } => write!(f, "corrupt={offset}.{bit}")?,
            Verdict::Device(fault) => fault.fmt(f)?,
        }
        writeln!(f, " qp={qp}")
    }
}

impl Record {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let index = number(words.next()?)?;
        let direction = match words.next()? {
            "tx" => Direction::Tx,
            "rx" => Direction::Rx,
            _ => return None,
        };
        let opcode = opcode(words.next()?)?;
        let qpn = number24(words.next()?.strip_prefix("qpn=")?)?;
        let psn = number24(words.next()?.strip_prefix("psn=")?)?;
        let verdict = verdict(words.next()?)?;
        let qp = u32::try_from(number(words.next()?.strip_prefix("qp=")?)?).ok()?;
        let head = Head {
            opcode,
            dest_qpn: qpn,
            psn,
        };
        words.next().is_none().then_some(Self {
            place: Place {
                direction,
                qp,
                is_response: head.opcode.is_response(),
                index,
            },
            qpn,
            psn,
            recorded: Recorded { opcode, verdict },
        })
    }
}

fn verdict(word: &str) -> Option<Verdict> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let time = || number(value?).map(Duration::from_micros);
    Some(match (name, value) {
        ("drop", None) => Verdict::Drop,
        ("duplicate", None) => Verdict::Duplicate,
        ("delay", Some(_)) => Verdict::Delay(time()?),
        ("reorder", Some(_)) => Verdict::Reorder(time()?),
        ("corrupt", Some(place)) => {
            let (offset, bit) = place.split_once('.')?;
            Verdict::Corrupt {
                offset: u16::try_from(number(offset)?).ok()?,
                bit: u8::try_from(number(bit)?).ok().filter(|bit| *bit < 8)?,
            }
        }
        (name, None) => {
            let fault = [
                DeviceFault::ReceiverNotReady,
                DeviceFault::QpError,
                DeviceFault::DeviceRemoval,
                DeviceFault::AddressChange,
            ]
            .into_iter()
            .find(|fault| fault.to_string() == name)?;
            Verdict::Device(fault)
        }
        _ => return None,
    })
}

/// Writes what stands before the lines.
pub(super) fn begin(mut file: &File, rules: Option<&Rules>) -> io::Result<()> {
    let mut head = format!("{HEAD}\n");
    for (i, rule) in rules.into_iter().flat_map(Rules::iter).enumerate() {
        head.push_str(&format!("# rule {}: {rule}\n", i + 1));
    }
    file.write_all(head.as_bytes())
}

/// Reads a record; what begins with `#` is for people, the first line excepted.
pub(super) fn read(text: &str) -> Result<Vec<Record>, RecordError> {
    let error = |number: usize, line: &str, wanted| RecordError {
        line: number + 1,
        text: line.chars().take(80).collect(),
        wanted,
    };
    let mut lines = text.lines().enumerate();
    match lines.next() {
        Some((_, HEAD)) => {}
        other => return Err(error(0, other.map_or("", |(_, line)| line), HEAD)),
    }
    lines
        .filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty())
        .map(|(number, line)| {
            Record::parse(line).ok_or_else(|| {
                error(
                    number,
                    line,
                    "INDEX tx|rx OPCODE qpn=NUMBER psn=NUMBER ACTION qp=NUMBER",
                )
            })
        })
        .collect()
}

/// The format, with its version.
const HEAD: &str = "# oarlock fault record 1";
