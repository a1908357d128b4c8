//! The service's counters: in groups, messages of the IB CM as a table of message and kind, zeros on one line.

use super::table::columns;
use oarlock_hostd::HostState;
use std::collections::BTreeMap;
use std::time::Duration;

/// Counters at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Values(Vec<(String, u64)>);

impl Values {
    pub(super) fn of(state: &HostState) -> Self {
        Self(state.host.counters.clone())
    }

    fn get(&self, name: &str) -> Option<u64> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value)
    }
}

/// What the counters gained since an earlier time, per second. Counters that did not change are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates(BTreeMap<String, f64>);

impl Rates {
    pub(super) fn between(before: &Values, now: &Values, passed: Duration) -> Self {
        let seconds = passed.as_secs_f64();
        let rate = |(name, value): &(String, u64)| {
            // A service of another life begins at zero again.
            let gained = value.checked_sub(before.get(name).unwrap_or(0))?;
            (gained > 0 && seconds > 0.0).then(|| {
                let rounded = (gained as f64 / seconds * 1000.0).round() / 1000.0;
                (name.clone(), rounded)
            })
        };
        Self(now.0.iter().filter_map(rate).collect())
    }

    pub(super) fn as_map(&self) -> &BTreeMap<String, f64> {
        &self.0
    }

    fn of(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

/// Groups by the start of the name, with what people call them. The first that fits counts, the last fits always.
const GROUPS: [(&str, &str); 7] = [
    ("service_", "host service"),
    ("qp1_", "management datagrams (queue pair 1)"),
    ("port_", "UDP port 4791"),
    ("ucm_", "requests of programs"),
    ("cma_", "RDMA CM"),
    ("cm_", "IB CM"),
    ("", "others"),
];

/// Kinds of counting a message, in the order of the table's columns.
const KINDS: [&str; 5] = ["sent", "received", "retried", "duplicate", "dropped"];

/// A message's counters, one for each of [`KINDS`] that the service has, with its rate where one is known.
type Row = [Option<(u64, Option<f64>)>; KINDS.len()];

/// Every counter, with its rate where one is known.
pub(super) fn grouped(values: &Values, rates: Option<&Rates>) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, (prefix, title)) in GROUPS.iter().enumerate() {
        let members: Vec<(&str, u64)> = values
            .0
            .iter()
            .filter(|(name, _)| group_of(name) == at)
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        if !members.is_empty() {
            lines.push(format!("{title}:"));
            lines.extend(group(prefix, &members, rates).map(|line| format!("  {line}")));
        }
    }
    lines
}

/// The counters that changed.
pub(super) fn changed(values: &Values, rates: &Rates) -> Vec<String> {
    let mut rows: Vec<[String; 3]> = vec![["counter", "value", "per second"].map(str::to_owned)];
    for (name, value) in &values.0 {
        if let Some(rate) = rates.of(name) {
            rows.push([name.clone(), value.to_string(), per_second(rate)]);
        }
    }
    if rows.len() == 1 {
        return vec!["no counter changed".to_owned()];
    }
    columns(&rows, &[0])
}

fn group_of(name: &str) -> usize {
    GROUPS
        .iter()
        .position(|(prefix, _)| name.starts_with(prefix))
        .unwrap_or(GROUPS.len() - 1)
}

fn group(
    prefix: &str,
    members: &[(&str, u64)],
    rates: Option<&Rates>,
) -> impl Iterator<Item = String> {
    let mut messages: Vec<(String, Row)> = Vec::new();
    let mut rows: Vec<[String; 3]> = Vec::new();
    let mut zeros = Vec::new();
    for &(name, value) in members {
        let short = name.strip_prefix(prefix).unwrap_or(name);
        let rate = rates.and_then(|rates| rates.of(name));
        if let Some((message, kind)) = message_and_kind(short) {
            let at = messages.iter().position(|(known, _)| *known == message);
            let at = at.unwrap_or_else(|| {
                messages.push((message, [None; KINDS.len()]));
                messages.len() - 1
            });
            messages[at].1[kind] = Some((value, rate));
        } else if value == 0 {
            zeros.push(short);
        } else {
            let rate = rate.map_or_else(String::new, |rate| format!("{}/s", per_second(rate)));
            rows.push([short.to_owned(), value.to_string(), rate]);
        }
    }
    let mut lines = message_table(&messages);
    lines.extend(columns(&rows, &[0]));
    if !zeros.is_empty() {
        lines.push(format!("zero: {}", zeros.join(", ")));
    }
    lines.into_iter()
}

/// `sent_req` and `req_sent` are the REQs sent.
fn message_and_kind(name: &str) -> Option<(String, usize)> {
    KINDS.iter().enumerate().find_map(|(kind, word)| {
        let message = name
            .strip_prefix(word)
            .and_then(|rest| rest.strip_prefix('_'))
            .or_else(|| {
                name.strip_suffix(word)
                    .and_then(|rest| rest.strip_suffix('_'))
            })?;
        MESSAGES
            .contains(&message)
            .then(|| (message.to_uppercase(), kind))
    })
}

const MESSAGES: [&str; 11] = [
    "req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req", "sidr_rep", "lap", "apr",
];

fn message_table(messages: &[(String, Row)]) -> Vec<String> {
    if messages.is_empty() {
        return Vec::new();
    }
    let mut rows: Vec<[String; 1 + KINDS.len()]> = vec![row("message", |at| KINDS[at])];
    for (message, kinds) in messages {
        rows.push(row(message, |at| match kinds[at] {
            None => "-".to_owned(),
            Some((value, None)) => value.to_string(),
            Some((value, Some(rate))) => format!("{value} ({}/s)", per_second(rate)),
        }));
    }
    columns(&rows, &[0])
}

/// A row that begins with a name and has a cell for each kind.
fn row<S: Into<String>>(first: &str, cell: impl Fn(usize) -> S) -> [String; 1 + KINDS.len()] {
    std::array::from_fn(|at| match at.checked_sub(1) {
        None => first.to_owned(),
        Some(kind) => cell(kind).into(),
    })
}

fn per_second(rate: f64) -> String {
    if rate >= 100.0 {
        format!("+{rate:.0}")
    } else {
        format!("+{rate:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(list: &[(&str, u64)]) -> Values {
        Values(
            list.iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
        )
    }

    #[test]
    fn counters_stand_in_groups_messages_in_a_table_and_zeros_on_one_line() {
        let now = values(&[
            ("service_clients", 3),
            ("service_sleeps", 0),
            ("qp1_sent", 7),
            ("data_packets", 0),
            ("cma_requests_queued", 2),
            ("cm_sent_req", 4),
            ("cm_received_req", 0),
            ("cm_sidr_rep_sent", 1),
            ("cm_req_dropped", 7),
            ("cm_dropped_duplicate", 5),
            ("cm_dropped_unsupported", 0),
        ]);
        let before = values(&[("qp1_sent", 5), ("cm_sent_req", 2), ("cm_req_dropped", 7)]);
        let rates = Rates::between(&before, &now, Duration::from_secs(2));
        assert_eq!(
            grouped(&now, Some(&rates)).join("\n"),
            "\
host service:
  clients  3  +1.5/s
  zero: sleeps
management datagrams (queue pair 1):
  sent  7  +1.0/s
RDMA CM:
  requests_queued  2  +1.0/s
IB CM:
  message         sent  received  retried  duplicate  dropped
  REQ       4 (+1.0/s)         0        -          -        7
  SIDR_REP  1 (+0.5/s)         -        -          -        -
  dropped_duplicate  5  +2.5/s
  zero: dropped_unsupported
others:
  zero: data_packets"
        );
    }

    #[test]
    fn no_counter_is_lost_in_the_grouping() {
        let names = [
            "service_x",
            "qp1_x",
            "port_x",
            "ucm_x",
            "cma_x",
            "cm_x",
            "cm_sent_x",
            "x",
            "",
        ];
        let list: Vec<(&str, u64)> = names.iter().map(|name| (*name, 9)).collect();
        let text = grouped(&values(&list), None);
        assert_eq!(
            text.iter().filter(|line| line.ends_with('9')).count(),
            names.len(),
            "{text:?}"
        );
    }

    #[test]
    fn rates_are_per_second_and_only_of_what_grew() {
        let before = values(&[("a", 10), ("b", 5), ("c", 100)]);
        let now = values(&[("a", 40), ("b", 5), ("c", 1), ("d", 3)]);
        let rates = Rates::between(&before, &now, Duration::from_millis(1500));
        assert_eq!(
            rates.as_map().iter().collect::<Vec<_>>(),
            [(&"a".to_owned(), &20.0), (&"d".to_owned(), &2.0)]
        );
        let lines = changed(&now, &rates);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(
            changed(&now, &Rates::default()),
            ["no counter changed".to_owned()]
        );
        assert_eq!(
            Rates::between(&before, &now, Duration::ZERO),
            Rates::default()
        );
    }
}
