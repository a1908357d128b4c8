//! Rules as text.

use super::pattern::{Head, OpcodePattern, Range24, number};
use super::{DeviceFault, Direction, Field, Kind};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Rules, in the order in which they are asked.
///
/// ```
/// use oarlock_port::fault::Rules;
///
/// let rules: Rules = "drop:opcode=ack,p=0.1,seed=7; delay:us=500,count=3".parse()?;
/// assert_eq!(rules.to_string(), "drop:opcode=ack,p=0.1,seed=7;delay:us=500,count=3");
/// let error = "drop:probability=0.1".parse::<Rules>().unwrap_err();
/// assert!(error.to_string().contains("`probability`"), "{error}");
/// # Ok::<(), oarlock_port::fault::RuleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rules {
    pub(super) list: Vec<Rule>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    pub(super) kind: Kind,
    pub(super) opcode: OpcodePattern,
    pub(super) qpn: Option<Range24>,
    pub(super) psn: Option<Range24>,
    pub(super) direction: Option<Direction>,
    pub(super) probability: f64,
    pub(super) seed: u64,
    pub(super) after: u64,
    pub(super) count: Option<u64>,
}

/// Why a text is no list of rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault rule {number} (`{rule}`): {problem}")]
pub struct RuleError {
    /// Which rule, from 1.
    pub number: usize,
    /// Its text.
    pub rule: String,
    /// What is wrong with it.
    pub problem: RuleProblem,
}

/// What is wrong with a rule.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// The kind does not exist.
    #[error(
        "there is no fault `{0}`: use drop, duplicate, delay, reorder, corrupt, rnr, qp_error, device_removal or address_change"
    )]
    UnknownKind(String),
    /// The key does not exist.
    #[error(
        "there is no key `{0}`: use opcode, qpn, psn, direction, p, seed, after, count, us (delay, reorder) or field (corrupt)"
    )]
    UnknownKey(String),
    /// The key has no meaning for the kind.
    #[error("`{key}` has no meaning for `{kind}`")]
    NotForKind {
        /// The kind.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// A key without a value.
    #[error("`{0}` has no value: write {0}=VALUE")]
    NoValue(String),
    /// A key is given more than once.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// The value cannot be.
    #[error("`{key}={value}`: {wanted} is wanted")]
    BadValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is wanted.
        wanted: &'static str,
    },
    /// A key that the kind needs is missing.
    #[error("`{kind}` needs `{key}`")]
    Missing {
        /// The kind.
        kind: &'static str,
        /// The key.
        key: &'static str,
    },
    /// More rules than there may be.
    #[error("more than {MAX_RULES} rules")]
    TooMany,
}

impl Rules {
    /// The rules.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.list.iter()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Those about packets of a program's own queue pairs.
    #[must_use]
    pub fn of_program(&self) -> Self {
        self.those(|rule| !rule.opcode.is_management())
    }

    /// Those about management datagrams, which the host service sends and receives.
    #[must_use]
    pub fn of_service(&self) -> Self {
        self.those(|rule| rule.opcode.is_management())
    }

    fn those(&self, wanted: impl Fn(&Rule) -> bool) -> Self {
        let list = self.list.iter().filter(|rule| wanted(rule));
        Self {
            list: list.cloned().collect(),
        }
    }
}

impl FromStr for Rules {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut list = Vec::new();
        for (i, rule) in text.split(';').map(str::trim).enumerate() {
            if rule.is_empty() {
                continue;
            }
            let parsed = if list.len() < MAX_RULES {
                Rule::parse(rule)
            } else {
                Err(RuleProblem::TooMany)
            };
            list.push(parsed.map_err(|problem| RuleError {
                number: i + 1,
                rule: rule.to_owned(),
                problem,
            })?);
        }
        Ok(Self { list })
    }
}

/// What the keys of a rule say.
#[derive(Default)]
struct Keys {
    opcode: Option<OpcodePattern>,
    qpn: Option<Range24>,
    psn: Option<Range24>,
    direction: Option<Direction>,
    probability: Option<f64>,
    seed: Option<u64>,
    after: Option<u64>,
    count: Option<u64>,
    time: Option<Duration>,
    field: Option<Field>,
}

impl Rule {
    /// What it does.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Which opcodes it is about.
    #[must_use]
    pub fn opcode(&self) -> OpcodePattern {
        self.opcode
    }

    fn parse(text: &str) -> Result<Self, RuleProblem> {
        let (word, rest) = match text.split_once(':') {
            Some((word, rest)) => (word.trim(), Some(rest)),
            None => (text, None),
        };
        let name = KINDS.into_iter().find(|name| *name == word);
        let name = name.ok_or_else(|| RuleProblem::UnknownKind(word.to_owned()))?;
        let mut keys = Keys::default();
        for item in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let item = item.trim();
            let (key, value) = item
                .split_once('=')
                .ok_or_else(|| RuleProblem::NoValue(item.to_owned()))?;
            keys.take(name, key.trim(), value.trim())?;
        }
        keys.into_rule(name)
    }

    /// Whether a packet is one that the rule is about.
    pub(super) fn matches(&self, packet: &[u8], head: &Head, direction: Direction) -> bool {
        self.direction.is_none_or(|wanted| wanted == direction)
            && self.opcode.takes(packet)
            && self.qpn.is_none_or(|range| range.contains(head.dest_qpn))
            && self.psn.is_none_or(|range| range.contains(head.psn))
            && (self.kind != Kind::Device(DeviceFault::ReceiverNotReady) || head.begins_request())
    }
}

impl Keys {
    fn take(&mut self, kind: &'static str, key: &str, value: &str) -> Result<(), RuleProblem> {
        match key {
            "opcode" => {
                let wanted = "the name of an opcode in lower case, or one of any send write read atomic ack nak cm cm_MESSAGE";
                set(&mut self.opcode, key, value, wanted, OpcodePattern::parse)
            }
            "qpn" => set(&mut self.qpn, key, value, RANGE, Range24::parse),
            "psn" => set(&mut self.psn, key, value, RANGE, Range24::parse),
            "direction" => set(
                &mut self.direction,
                key,
                value,
                "tx or rx",
                |text| match text {
                    "tx" => Some(Direction::Tx),
                    "rx" => Some(Direction::Rx),
                    _ => None,
                },
            ),
            "p" => {
                let wanted = "a number above 0 and not above 1";
                set(&mut self.probability, key, value, wanted, |text| {
                    let p: f64 = text.parse().ok()?;
                    (p > 0.0 && p <= 1.0).then_some(p)
                })
            }
            "seed" => set(&mut self.seed, key, value, "a number of 64 bits", number),
            "after" => set(&mut self.after, key, value, "a number of 64 bits", number),
            "count" => set(
                &mut self.count,
                key,
                value,
                "a number of 1 or more",
                |text| number(text).filter(|count| *count > 0),
            ),
            "us" | "field" if !allowed(kind, key) => Err(RuleProblem::NotForKind {
                kind,
                key: key.to_owned(),
            }),
            "us" => {
                let wanted = "a number of microseconds from 1 to 60000000";
                set(&mut self.time, key, value, wanted, |text| {
                    number(text)
                        .filter(|us| (1..=MAX_MICROS).contains(us))
                        .map(Duration::from_micros)
                })
            }
            "field" => {
                let wanted = "any, bth, payload or icrc";
                set(&mut self.field, key, value, wanted, |text| {
                    [Field::Any, Field::Bth, Field::Payload, Field::Icrc]
                        .into_iter()
                        .find(|field| field.to_string() == text)
                })
            }
            _ => Err(RuleProblem::UnknownKey(key.to_owned())),
        }
    }

    fn into_rule(self, name: &'static str) -> Result<Rule, RuleProblem> {
        let kind = match name {
            "drop" => Kind::Drop,
            "duplicate" => Kind::Duplicate,
            "delay" => Kind::Delay(self.time.ok_or(RuleProblem::Missing {
                kind: name,
                key: "us",
            })?),
            "reorder" => Kind::Reorder(self.time.unwrap_or(REORDER_TIME)),
            "corrupt" => Kind::Corrupt(self.field.unwrap_or_default()),
            "rnr" => Kind::Device(DeviceFault::ReceiverNotReady),
            "qp_error" => Kind::Device(DeviceFault::QpError),
            "device_removal" => Kind::Device(DeviceFault::DeviceRemoval),
            "address_change" => Kind::Device(DeviceFault::AddressChange),
            _ => return Err(RuleProblem::UnknownKind(name.to_owned())),
        };
        let opcode = self.opcode.unwrap_or(OpcodePattern::Any);
        let mut direction = self.direction;
        let mut count = self.count;
        if let Kind::Device(fault) = kind {
            if direction == Some(Direction::Tx) {
                return Err(RuleProblem::BadValue {
                    key: "direction".to_owned(),
                    value: "tx".to_owned(),
                    wanted: "rx, as the fault strikes at what a device receives,",
                });
            }
            let of_queue_pair =
                matches!(fault, DeviceFault::ReceiverNotReady | DeviceFault::QpError);
            if of_queue_pair && opcode.is_management() {
                return Err(RuleProblem::BadValue {
                    key: "opcode".to_owned(),
                    value: opcode.to_string(),
                    wanted: "a packet of a program's own queue pair",
                });
            }
            direction = Some(Direction::Rx);
            if fault != DeviceFault::ReceiverNotReady {
                count = count.or(Some(1));
            }
        }
        Ok(Rule {
            kind,
            opcode,
            qpn: self.qpn,
            psn: self.psn,
            direction,
            probability: self.probability.unwrap_or(1.0),
            seed: self.seed.unwrap_or(0),
            after: self.after.unwrap_or(0),
            count,
        })
    }
}

fn set<T>(
    place: &mut Option<T>,
    key: &str,
    value: &str,
    wanted: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<(), RuleProblem> {
    if place.is_some() {
        return Err(RuleProblem::Twice(key.to_owned()));
    }
    *place = Some(parse(value).ok_or_else(|| RuleProblem::BadValue {
        key: key.to_owned(),
        value: value.to_owned(),
        wanted,
    })?);
    Ok(())
}

fn allowed(kind: &str, key: &str) -> bool {
    match key {
        "us" => matches!(kind, "delay" | "reorder"),
        _ => kind == "corrupt",
    }
}

/// As it may be written; what is the default is left out.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        let mut separator = ':';
        let mut write = |key: &str, value: &dyn fmt::Display| {
            let before = std::mem::replace(&mut separator, ',');
            write!(f, "{before}{key}={value}")
        };
        if self.opcode != OpcodePattern::Any {
            write("opcode", &self.opcode)?;
        }
        if let Some(qpn) = &self.qpn {
            write("qpn", qpn)?;
        }
        if let Some(psn) = &self.psn {
            write("psn", psn)?;
        }
        let is_device = matches!(self.kind, Kind::Device(_));
        if let Some(direction) = self.direction.filter(|_| !is_device) {
            write("direction", &direction)?;
        }
        match self.kind {
            Kind::Delay(time) | Kind::Reorder(time) => write("us", &time.as_micros())?,
            Kind::Corrupt(field) if field != Field::Any => write("field", &field)?,
            _ => {}
        }
        if self.probability < 1.0 {
            write("p", &self.probability)?;
        }
        if self.seed != 0 {
            write("seed", &self.seed)?;
        }
        if self.after != 0 {
            write("after", &self.after)?;
        }
        if let Some(count) = self.count {
            write("count", &count)?;
        }
        Ok(())
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rule) in self.list.iter().enumerate() {
            if i > 0 {
                f.write_str(";")?;
            }
            rule.fmt(f)?;
        }
        Ok(())
    }
}

const KINDS: [&str; 9] = [
    "drop",
    "duplicate",
    "delay",
    "reorder",
    "corrupt",
    "rnr",
    "qp_error",
    "device_removal",
    "address_change",
];
/// More than anybody writes, and every packet is compared with each.
const MAX_RULES: usize = 256;
const MAX_MICROS: u64 = 60_000_000;
/// How long a packet waits to be overtaken.
const REORDER_TIME: Duration = Duration::from_millis(10);
const RANGE: &str = "a 24-bit number or a range A-B of them, decimal or after 0x,";
