//! What happened in an exchange, one by one, for a picture. Bounded: of a long stretch of data its beginning, and what is remarkable.

use super::Way;
use super::data::Seen;
use oarlock_wire::base::Operation;
use oarlock_wire::{Packet, Syndrome};
use std::time::Duration;

/// One thing in a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Step {
    /// A packet.
    Arrow(Arrow),
    /// So many packets that are not shown.
    Gap(u64),
}

/// A packet in a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Arrow {
    pub(in super::super) at: Duration,
    /// From A to B; else from B to A.
    pub(in super::super) to_b: bool,
    pub(in super::super) label: String,
    pub(in super::super) style: Style,
}

/// How a packet is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Style {
    /// A management datagram.
    Message,
    /// One that says again what was said.
    MessageAgain,
    /// A request or response of a queue pair.
    Data,
    /// One that was seen before.
    DataAgain,
    /// A positive acknowledgement.
    Ack,
    /// A negative acknowledgement.
    Nak,
}

/// The things of one exchange.
#[derive(Debug, Default)]
pub(super) struct Steps {
    list: Vec<Step>,
    /// Of the present stretch of data: ordinary packets, and remarkable ones.
    ordinary: usize,
    remarkable: usize,
}

impl Steps {
    pub(super) fn list(&self) -> &[Step] {
        &self.list
    }

    pub(super) fn message(&mut self, at: Duration, way: Way, label: String, again: bool) {
        (self.ordinary, self.remarkable) = (0, 0);
        let style = if again {
            Style::MessageAgain
        } else {
            Style::Message
        };
        self.push(at, way, style, || label);
    }

    pub(super) fn data(&mut self, at: Duration, way: Way, seen: Seen, packet: &Packet<'_>) {
        let style = style(seen, packet);
        let (count, max) = match style {
            Style::DataAgain | Style::Nak => (&mut self.remarkable, MAX_REMARKABLE),
            _ => (&mut self.ordinary, MAX_ORDINARY),
        };
        *count += 1;
        if *count > max {
            return self.omit();
        }
        self.push(at, way, style, || label(packet));
    }

    fn push(&mut self, at: Duration, way: Way, style: Style, label: impl FnOnce() -> String) {
        if self.list.len() >= MAX_STEPS {
            return self.omit();
        }
        self.list.push(Step::Arrow(Arrow {
            at,
            to_b: way == Way::AToB,
            label: label(),
            style,
        }));
    }

    fn omit(&mut self) {
        match self.list.last_mut() {
            Some(Step::Gap(packets)) => *packets += 1,
            _ => self.list.push(Step::Gap(1)),
        }
    }
}

fn style(seen: Seen, packet: &Packet<'_>) -> Style {
    if seen == Seen::Again {
        return Style::DataAgain;
    }
    match (packet.bth.opcode.operation(), packet.aeth) {
        (Operation::Acknowledge | Operation::AtomicAcknowledge, Some(aeth)) => {
            match aeth.syndrome {
                Syndrome::Ack { .. } => Style::Ack,
                _ => Style::Nak,
            }
        }
        _ => Style::Data,
    }
}

fn label(packet: &Packet<'_>) -> String {
    let psn = packet.bth.psn;
    match (packet.bth.opcode.operation(), packet.aeth) {
        (Operation::Acknowledge, Some(aeth)) => {
            format!("{}  psn={psn} msn={}", aeth.syndrome, aeth.msn)
        }
        _ => {
            let mut label = format!("{}  psn={psn}", packet.bth.opcode);
            if !packet.payload.is_empty() {
                label += &format!(" {} bytes", packet.payload.len());
            }
            if let Some(reth) = packet.reth {
                label += &format!(" len={}", reth.len);
            }
            label
        }
    }
}

/// Packets of one stretch of data.
const MAX_ORDINARY: usize = 12;
const MAX_REMARKABLE: usize = 24;
/// Things of one exchange; a gap may follow the last.
const MAX_STEPS: usize = 240;
