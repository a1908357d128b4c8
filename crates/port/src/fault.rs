//! Faults on purpose: packets that are lost, doubled, delayed, overtaken or damaged, and devices that misbehave, by rules
//! that a user writes; recorded, so that a failing run can be repeated.
//!
//! # Rules
//! A rule is `KIND[:KEY=VALUE[,KEY=VALUE...]]`; several are separated by `;`.
//!
//! | Kind | What happens to a packet that the rule strikes |
//! |---|---|
//! | `drop` | it is lost |
//! | `duplicate` | it comes twice |
//! | `delay` | it comes `us` microseconds later; others pass it |
//! | `reorder` | the next packet to the same queue pair overtakes it; with no next one it comes after `us` microseconds (10,000 unless given) |
//! | `corrupt` | one bit of it is changed after its ICRC was computed, so that the receiver's check must find it; `field`: `bth`, `payload` (all after the BTH), `icrc`, or `any` (unless given) |
//! | `rnr` | the request that begins with it is answered as receiver-not-ready |
//! | `qp_error` | its queue pair goes to the error state (QP fatal event) |
//! | `device_removal` | the device that it came to is removed, as far as this program is concerned |
//! | `address_change` | the identifiers of this program on that device are told of a changed address |
//!
//! | Key | Which packets, and how often | Unless given |
//! |---|---|---|
//! | `opcode` | a name as `oarlock trace` prints it, in lower case (`rc_send_only`); or `send`, `write`, `read`, `atomic` (requests and answers), `ack`, `nak` (RNR included), `cm` (management datagrams), `cm_req`, `cm_mra`, `cm_rej`, `cm_rep`, `cm_rtu`, `cm_dreq`, `cm_drep`, `cm_lap`, `cm_apr`, `cm_sidr_req`, `cm_sidr_rep`; `any` | `any`: all but management datagrams |
//! | `qpn` | the destination queue pair in the BTH: a number or a range `A-B`, decimal or `0x` | all |
//! | `psn` | a number or a range `A-B`, which may wrap (`0xfffff0-0x10`) | all |
//! | `direction` | `tx` or `rx`; the last four kinds strike at received packets only | both |
//! | `p` | probability, above 0 and up to 1 | 1 |
//! | `seed` | of the dice, 64 bits | 0 |
//! | `after` | so many that match are left alone first | 0 |
//! | `count` | so many are struck at most | no bound; 1 for `qp_error`, `device_removal`, `address_change` |
//! | `us` | microseconds, 1 to 60,000,000 (`delay`, where it must be given, and `reorder`) | |
//!
//! Every rule counts the packets that match it; the first one that strikes decides.
//!
//! # Same seed, same faults
//! Whether a packet is struck depends on the seed, the rule, and the packet's place in its *stream*: the requests, or the
//! answers, to one queue pair in one direction. It does not depend on how the streams of several queue pairs are interleaved.
//! Only `after` and `count` go over all streams together.
//!
//! # Record and replay
//! Every fault that strikes is one line of the record:
//!
//! ```text
//! # oarlock fault record 1
//! # rule 1: drop:opcode=send,p=0.1
//! 12 tx rc_send_only qpn=0x020011 psn=0x0003e8 drop qp=1
//! ```
//!
//! That is the place in the stream (from 0), direction, opcode, destination queue pair, PSN, what was done, and the number of the
//! queue pair in the order of appearance (from 1), by which a later run, whose queue pairs have other numbers, finds the
//! stream again. [`Faults::replay`] strikes exactly these packets. Where the packet at a recorded place has another opcode, the runs have parted:
//! that is counted ([`Faults::diverged`]) and the packet let be.
//!
//! # Files
//! `rules.rs` the text, `pattern.rs` which packets, `judge.rs` the decision, `stream.rs` streams and dice, `record.rs` the record, `hold.rs` packets that
//! wait, `inject.rs` what an endpoint does with all of this.

mod hold;
mod inject;
mod judge;
mod pattern;
mod record;
mod rules;
mod stream;

pub use inject::PortFaults;
pub use judge::{Faults, RuleCount, Strike};
pub use pattern::OpcodePattern;
pub use record::RecordError;
pub use rules::{Rule, RuleError, RuleProblem, Rules};

pub(crate) use inject::{Fate, Held, Injector, Outlet};

use std::fmt;
use std::time::Duration;

/// Which way a packet goes.
#[expect(clippy::exhaustive_enums, reason = "there is no third way")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Sent.
    Tx,
    /// Received.
    Rx,
}

/// What a rule does to a packet that it strikes.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Lost.
    Drop,
    /// Doubled.
    Duplicate,
    /// Comes so much later.
    Delay(Duration),
    /// Overtaken by the next packet to its queue pair; comes after this time if there is none.
    Reorder(Duration),
    /// One bit of this part is changed.
    Corrupt(Field),
    /// Something that the device or the host does.
    Device(DeviceFault),
}

/// Faults that are the device's or the host's, not the network's.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceFault {
    /// The request is answered as receiver-not-ready.
    ReceiverNotReady,
    /// The queue pair goes to the error state.
    QpError,
    /// The device goes away.
    DeviceRemoval,
    /// The device's address changes.
    AddressChange,
}

/// Where a bit is changed.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Field {
    /// Anywhere but in the destination queue pair, by which the packet finds its receiver.
    #[default]
    Any,
    /// In the BTH, with the same exception.
    Bth,
    /// After the BTH; in the BTH of a packet that ends there.
    Payload,
    /// In the ICRC itself.
    Icrc,
}

/// What becomes of one packet.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is lost.
    Drop,
    /// It comes twice.
    Duplicate,
    /// It comes so much later.
    Delay(Duration),
    /// The next packet to its queue pair overtakes it, or it comes after this time.
    Reorder(Duration),
    /// This bit is changed.
    Corrupt {
        /// Which byte, counted from the BTH's first; the last four are the ICRC.
        offset: u16,
        /// Which bit of it, 0 to 7.
        bit: u8,
    },
    /// The device or the host is to do this.
    Device(DeviceFault),
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
        })
    }
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReceiverNotReady => "rnr",
            Self::QpError => "qp_error",
            Self::DeviceRemoval => "device_removal",
            Self::AddressChange => "address_change",
        })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::Bth => "bth",
            Self::Payload => "payload",
            Self::Icrc => "icrc",
        })
    }
}

impl Kind {
    /// The word that begins the rule.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Duplicate => "duplicate",
            Self::Delay(_) => "delay",
            Self::Reorder(_) => "reorder",
            Self::Corrupt(_) => "corrupt",
            Self::Device(DeviceFault::ReceiverNotReady) => "rnr",
            Self::Device(DeviceFault::QpError) => "qp_error",
            Self::Device(DeviceFault::DeviceRemoval) => "device_removal",
            Self::Device(DeviceFault::AddressChange) => "address_change",
        }
    }
}

/// Length of the BTH, with which every packet begins.
const BTH_LEN: usize = 12;
const ICRC_LEN: usize = 4;

#[cfg(test)]
mod tests;
