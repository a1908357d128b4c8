//! Which packets are struck, and by what.

use super::pattern::Head;
use super::record::{Record, RecordError, Recorded};
use super::rules::{Rule, Rules};
use super::stream::{Place, Streams};
use super::{BTH_LEN, Direction, Field, ICRC_LEN, Kind, Verdict};
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Rules at work, or a record that is replayed.
///
/// Judges packets wherever it is put: [`Port::inject`](crate::Port::inject), or in a test's own network. One may serve several
/// ports; their packets are then of the same streams.
///
/// ```
/// use oarlock_port::fault::{Direction, Faults, Verdict};
///
/// let faults = Faults::new("drop:after=1,count=1".parse()?);
/// let packet = [0x04, 0, 0xFF, 0xFF, 0, 0, 0, 7, 0, 0, 0, 1];
/// assert_eq!(faults.judge(&packet, Direction::Tx), None);
/// let strike = faults.judge(&packet, Direction::Tx).expect("the second");
/// assert_eq!(strike.verdict, Verdict::Drop);
/// assert_eq!(faults.judge(&packet, Direction::Tx), None);
/// # Ok::<(), oarlock_port::fault::RuleError>(())
/// ```
#[derive(Debug)]
pub struct Faults {
    plan: Plan,
    state: Mutex<State>,
}

#[derive(Debug)]
enum Plan {
    Rules(Rules),
    Replay(HashMap<Place, Recorded>),
}

#[derive(Debug, Default)]
struct State {
    streams: Streams,
    /// Of each rule.
    counts: Vec<Counts>,
    records: Vec<File>,
    record_failed: u64,
    replayed: u64,
    diverged: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    matched: u64,
    struck: u64,
}

/// A fault that strikes a packet.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// What becomes of the packet.
    pub verdict: Verdict,
    /// By which rule, from 0; of a replay, 0.
    pub rule: usize,
}

/// What a rule has done.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleCount {
    /// The rule's text; `replay` where a record is replayed.
    pub rule: String,
    /// Packets that it is about. Of a replay, those that the record names.
    pub matched: u64,
    /// Packets that it has struck.
    pub struck: u64,
}

impl Faults {
    /// Faults by rules.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        let counts = vec![Counts::default(); rules.list.len()];
        Self {
            plan: Plan::Rules(rules),
            state: Mutex::new(State {
                counts,
                ..State::default()
            }),
        }
    }

    /// The faults of a record ([`record_to`](Self::record_to)) again: of a program's queue pairs or, with `management`, of the
    /// management datagrams of the host service.
    ///
    /// # Errors
    /// The text is no record, or a line of it is none.
    pub fn replay(record: &str, management: bool) -> Result<Self, RecordError> {
        let mut places = HashMap::new();
        for line in super::record::read(record)? {
            if (line.qpn == 1) == management {
                places.insert(line.place, line.recorded);
            }
        }
        Ok(Self {
            plan: Plan::Replay(places),
            state: Mutex::default(),
        })
    }

    /// From now on writes what strikes to `file` as well, a line each, unbuffered. May be called for several files.
    ///
    /// # Errors
    /// The record's head cannot be written.
    pub fn record_to(&self, file: File) -> std::io::Result<()> {
        super::record::begin(&file, self.rules())?;
        self.lock().records.push(file);
        Ok(())
    }

    /// The rules; none of a replay.
    #[must_use]
    pub fn rules(&self) -> Option<&Rules> {
        match &self.plan {
            Plan::Rules(rules) => Some(rules),
            Plan::Replay(_) => None,
        }
    }

    /// Whether packets may have to wait.
    #[must_use]
    pub fn may_hold(&self) -> bool {
        match &self.plan {
            Plan::Rules(rules) => rules
                .iter()
                .any(|rule| matches!(rule.kind, Kind::Delay(_) | Kind::Reorder(_))),
            Plan::Replay(places) => places.values().any(|recorded| {
                matches!(recorded.verdict, Verdict::Delay(_) | Verdict::Reorder(_))
            }),
        }
    }

    /// What the rules say of a packet, given from its BTH to the end of the padded payload. To be called once for every packet,
    /// in the order in which they come.
    #[must_use]
    pub fn judge(&self, packet: &[u8], direction: Direction) -> Option<Strike> {
        let head = Head::of(packet)?;
        let mut state = self.lock();
        let place = state.streams.place(direction, &head);
        let strike = match &self.plan {
            Plan::Rules(rules) => state.ask(rules, packet, &head, &place),
            Plan::Replay(places) => {
                let recorded = places.get(&place)?;
                if recorded.opcode == head.opcode {
                    state.replayed += 1;
                    Some(Strike {
                        verdict: recorded.verdict,
                        rule: 0,
                    })
                } else {
                    state.diverged += 1;
                    None
                }
            }
        }?;
        state.record(&place, &head, strike.verdict);
        Some(strike)
    }

    /// What each rule has done.
    #[must_use]
    pub fn counts(&self) -> Vec<RuleCount> {
        let state = self.lock();
        match &self.plan {
            Plan::Rules(rules) => rules
                .iter()
                .zip(&state.counts)
                .map(|(rule, counts)| RuleCount {
                    rule: rule.to_string(),
                    matched: counts.matched,
                    struck: counts.struck,
                })
                .collect(),
            Plan::Replay(places) => vec![RuleCount {
                rule: "replay".to_owned(),
                matched: places.len() as u64,
                struck: state.replayed,
            }],
        }
    }

    /// Packets of a replay that were of another opcode than the recorded ones, and so were let be.
    #[must_use]
    pub fn diverged(&self) -> u64 {
        self.lock().diverged
    }

    /// Lines that could not be written to a record.
    #[must_use]
    pub fn record_failed(&self) -> u64 {
        self.lock().record_failed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Every rule counts the packet; the first that strikes decides.
    fn ask(&mut self, rules: &Rules, packet: &[u8], head: &Head, place: &Place) -> Option<Strike> {
        let mut strike = None;
        for (number, (rule, counts)) in rules.iter().zip(&mut self.counts).enumerate() {
            if !rule.matches(packet, head, place.direction) {
                continue;
            }
            counts.matched += 1;
            if strike.is_none() && strikes(rule, *counts, number, place) {
                counts.struck += 1;
                strike = Some(Strike {
                    verdict: verdict(rule, number, packet.len(), place),
                    rule: number,
                });
            }
        }
        strike
    }

    fn record(&mut self, place: &Place, head: &Head, verdict: Verdict) {
        if self.records.is_empty() {
            return;
        }
        let line = Record {
            place: *place,
            qpn: head.dest_qpn,
            psn: head.psn,
            recorded: Recorded {
                opcode: head.opcode,
                verdict,
            },
        }
        .to_string();
        for file in &self.records {
            let written = std::io::Write::write_all(&mut &*file, line.as_bytes());
            self.record_failed += u64::from(written.is_err());
        }
    }
}

fn strikes(rule: &Rule, counts: Counts, number: usize, place: &Place) -> bool {
    counts.matched > rule.after
        && rule.count.is_none_or(|count| counts.struck < count)
        && (rule.probability >= 1.0 || place.unit(rule.seed, number) < rule.probability)
}

fn verdict(rule: &Rule, number: usize, packet_len: usize, place: &Place) -> Verdict {
    match rule.kind {
        Kind::Drop => Verdict::Drop,
        Kind::Duplicate => Verdict::Duplicate,
        Kind::Delay(by) => Verdict::Delay(by),
        Kind::Reorder(within) => Verdict::Reorder(within),
        Kind::Device(fault) => Verdict::Device(fault),
        Kind::Corrupt(field) => {
            let bits = place.bits(rule.seed, number, 1);
            let (start, len) = span(field, packet_len);
            let offset = start + (bits >> 3) as usize % len;
            Verdict::Corrupt {
                offset: past_destination(offset) as u16,
                bit: (bits & 7) as u8,
            }
        }
    }
}

/// The bytes of a field: the first and how many, the destination queue pair taken out.
fn span(field: Field, packet_len: usize) -> (usize, usize) {
    let payload = packet_len.saturating_sub(BTH_LEN);
    let hidden = DESTINATION.len();
    match field {
        Field::Any => (0, packet_len + ICRC_LEN - hidden),
        Field::Payload if payload > 0 => (BTH_LEN - hidden, payload),
        Field::Bth | Field::Payload => (0, BTH_LEN - hidden),
        Field::Icrc => (packet_len - hidden, ICRC_LEN),
    }
}

/// An offset that counts the bytes of the destination queue pair, from one that does not.
pub(super) fn past_destination(offset: usize) -> usize {
    if offset < DESTINATION.start {
        offset
    } else {
        offset + DESTINATION.len()
    }
}

/// The byte before the destination queue pair is not covered by the ICRC.
pub(super) const DESTINATION: std::ops::Range<usize> = 4..8;
