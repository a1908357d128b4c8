//! What a connection asked of its peer's memory, and what came along with its messages: a line each.

use super::Way;
use super::data::stamp;
use oarlock_wire::base::{Operation as Kind, TransportClass};
use oarlock_wire::{Opcode, Packet, Psn};
use std::fmt;
use std::time::Duration;

/// Lines of one stretch of data packets; what is more is counted.
pub(super) const MAX_SHOWN: usize = 12;

/// The operations of one stretch of data packets, both ways, in their order.
#[derive(Debug, Default)]
pub(super) struct Operations {
    shown: Vec<Shown>,
    omitted: u64,
    /// The message in progress each way.
    progress: [Progress; 2],
}

/// A message of which more packets follow.
#[derive(Debug, Default)]
struct Progress {
    bytes: u64,
    /// Its line, if it has one.
    line: Option<usize>,
}

#[derive(Debug)]
struct Shown {
    at: Duration,
    way: Way,
    psn: Psn,
    opcode: Opcode,
    /// The fields of its headers, as text.
    fields: String,
    /// The value before an atomic operation.
    original: Option<u64>,
}

impl Operations {
    /// A request packet that was not seen before.
    pub(super) fn request(&mut self, at: Duration, way: Way, packet: &Packet<'_>) {
        let opcode = packet.bth.opcode;
        let side = usize::from(way == Way::BToA);
        if opcode.position().is_start() {
            self.progress[side] = Progress::default();
        }
        self.progress[side].bytes += packet.payload.len() as u64;
        let bytes = self.progress[side].bytes;
        let mut said = Vec::new();
        if let Some(reth) = packet.reth {
            said.push(format!(
                "addr={:#x} rkey={} len={}",
                reth.addr, reth.rkey, reth.len
            ));
        }
        if let Some(operands) = packet.atomic_eth {
            let (first, second) = (operands.compare, operands.swap_add);
            let values = if opcode.operation() == Kind::FetchAdd {
                format!("add={second:#x}")
            } else {
                format!("compare={first:#x} swap={second:#x}")
            };
            said.push(format!(
                "addr={:#x} rkey={} {values}",
                operands.addr, operands.rkey
            ));
        }
        // A SEND says its length with what it carries besides; a WRITE has said it at its beginning.
        if opcode.operation() == Kind::Send && (packet.immdt.is_some() || packet.ieth.is_some()) {
            said.push(format!("len={bytes}"));
        }
        if let Some(immdt) = packet.immdt {
            said.push(format!("imm={:#010x}", immdt.0));
        }
        if let Some(ieth) = packet.ieth {
            said.push(format!("invalidate={}", ieth.0));
        }
        if said.is_empty() {
            return;
        }
        if let Some(xrceth) = packet.xrceth {
            said.push(format!("srqn={}", xrceth.srqn));
        }
        let fields = said.join(" ");
        match self.progress[side].line {
            Some(line) => {
                let begun = &mut self.shown[line];
                begun.opcode = opcode;
                begun.fields = format!("{} {fields}", begun.fields);
            }
            // The rest of a WRITE whose beginning is not shown.
            None if opcode.operation() == Kind::RdmaWrite && !opcode.position().is_start() => {}
            None if self.shown.len() == MAX_SHOWN => self.omitted += 1,
            None => {
                self.progress[side].line = Some(self.shown.len());
                self.shown.push(Shown {
                    at,
                    way,
                    psn: packet.bth.psn,
                    opcode,
                    fields,
                    original: None,
                });
            }
        }
    }

    /// A response, which goes the other way than its request.
    pub(super) fn response(&mut self, way: Way, packet: &Packet<'_>) {
        let Some(ack) = packet.atomic_ack_eth else {
            return;
        };
        let asked = self
            .shown
            .iter_mut()
            .rev()
            .find(|shown| shown.way != way && shown.psn == packet.bth.psn);
        if let Some(asked) = asked {
            asked.original = Some(ack.original);
        }
    }

    /// A line for each, and one for the rest.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let rest = (self.omitted > 0).then(|| format!("            {} more", self.omitted));
        self.shown.iter().map(ToString::to_string).chain(rest)
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            way,
            opcode,
            fields,
            ..
        } = self;
        write!(f, "{}  {}    ", stamp(*at), way.arrow())?;
        match opcode.transport() {
            TransportClass::Rc => {}
            transport => write!(f, "{transport} ")?,
        }
        let name = match opcode.operation() {
            Kind::RdmaWrite => "RDMA WRITE",
            Kind::RdmaReadRequest => "RDMA READ",
            Kind::CompareSwap => "compare-and-swap",
            Kind::FetchAdd => "fetch-and-add",
            _ => "SEND",
        };
        write!(f, "{name}  {fields}")?;
        if let Some(original) = self.original {
            write!(f, " original={original:#x}")?;
        }
        Ok(())
    }
}
