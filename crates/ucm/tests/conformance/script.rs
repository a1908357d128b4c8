//! Reading the rows: set-ups, rows, and tables whose cells are rows.

use std::collections::{BTreeMap, BTreeSet};

/// Where a step counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Both,
    Kernel,
    Here,
}

/// One line of a row.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) side: Side,
    pub(crate) text: String,
    /// `calls.txt:12`.
    pub(crate) place: String,
}

/// Why nobody can say whether a row is answered as it says.
#[derive(Clone, Debug)]
pub(crate) struct Unjudged {
    pub(crate) reason: String,
    /// A kernel can be judged.
    pub(crate) is_only_here: bool,
}

/// One row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) place: String,
    pub(crate) source: String,
    pub(crate) setup: Option<String>,
    pub(crate) deviates: Option<String>,
    pub(crate) unjudged: Option<Unjudged>,
    /// The first Linux that answers so, where an older one does not.
    pub(crate) since: Option<String>,
    pub(crate) steps: Vec<Step>,
}

impl Row {
    /// Whether something else is answered here than by a kernel.
    pub(crate) fn differs(&self) -> bool {
        self.steps.iter().any(|step| step.side != Side::Both)
    }
}

/// All files together.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) rows: Vec<Row>,
    /// Set-ups by name: what they begin with, and their steps.
    pub(crate) setups: BTreeMap<String, (Option<String>, Vec<Step>)>,
    /// Deviations that no row can show, with the reason.
    pub(crate) invisible: BTreeMap<String, String>,
    names: BTreeSet<String>,
}

#[derive(Default)]
struct Table {
    name: String,
    states: Vec<String>,
    source: String,
    deviates: Option<String>,
    unjudged: Option<Unjudged>,
    since: Option<String>,
}

enum Open {
    Nothing,
    Setup(String),
    Row(Row),
    Table(Table),
}

impl Script {
    /// Reads one more file.
    pub(crate) fn read(&mut self, file: &str, text: &str) {
        let mut open = Open::Nothing;
        for (number, line) in text.lines().enumerate() {
            let place = format!("{file}:{}", number + 1);
            let line = without_comment(line).trim_end();
            if line.is_empty() {
                continue;
            }
            if !line.starts_with(' ') {
                let next = self.begin(line, &place);
                self.close(std::mem::replace(&mut open, next));
                continue;
            }
            let line = line.trim_start();
            match &mut open {
                Open::Nothing => panic!("{place}: belongs to nothing: {line}"),
                Open::Setup(name) => {
                    let (_, steps) = self.setups.get_mut(name).expect("it was begun");
                    steps.push(step(line, &place));
                }
                Open::Row(row) => match header(line) {
                    Some(("source", text)) => row.source = text,
                    Some(("from", text)) => row.setup = Some(text),
                    Some(("deviates", text)) => row.deviates = Some(text),
                    Some((which @ ("unjudged" | "unjudged here"), reason)) => {
                        let is_only_here = which != "unjudged";
                        row.unjudged = Some(Unjudged {
                            reason,
                            is_only_here,
                        });
                    }
                    Some(("since", text)) => row.since = Some(text),
                    _ => row.steps.push(step(line, &place)),
                },
                Open::Table(table) => match header(line) {
                    Some(("source", text)) => table.source = text,
                    Some(("states", text)) => {
                        table.states = text.split_whitespace().map(Into::into).collect();
                    }
                    Some(("deviates", text)) => table.deviates = some(text),
                    Some((which @ ("unjudged" | "unjudged here"), reason)) => {
                        let is_only_here = which != "unjudged";
                        table.unjudged = some(reason).map(|reason| Unjudged {
                            reason,
                            is_only_here,
                        });
                    }
                    Some(("since", text)) => table.since = some(text),
                    _ => self.cells(table, line, &place),
                },
            }
        }
        self.close(open);
    }

    fn begin(&mut self, line: &str, place: &str) -> Open {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "setup" => {
                let (name, from) = match rest.split_once(" from ") {
                    Some((name, from)) => (name, Some(from.to_string())),
                    None => (rest, None),
                };
                let known = self.setups.insert(name.into(), (from, Vec::new()));
                assert!(known.is_none(), "{place}: set-up {name} stands twice");
                Open::Setup(name.into())
            }
            "row" => Open::Row(Row {
                name: rest.into(),
                place: place.into(),
                ..Row::default()
            }),
            "table" => Open::Table(Table {
                name: rest.into(),
                ..Table::default()
            }),
            "invisible:" => {
                let (subject, reason) = rest
                    .split_once(" -- ")
                    .unwrap_or_else(|| panic!("{place}: a reason follows the subject after --"));
                self.invisible.insert(subject.into(), reason.into());
                Open::Nothing
            }
            _ => panic!("{place}: neither setup, row, table nor invisible: {line}"),
        }
    }

    fn close(&mut self, open: Open) {
        if let Open::Row(row) = open {
            self.add(row);
        }
    }

    fn add(&mut self, row: Row) {
        let at = format!("{}: {}", row.place, row.name);
        assert!(self.names.insert(row.name.clone()), "{at}: stands twice");
        assert!(!row.source.is_empty(), "{at}: a source is missing");
        assert!(!row.steps.is_empty(), "{at}: does nothing");
        assert_eq!(
            row.differs(),
            row.deviates.is_some(),
            "{at}: `deviates:` goes with steps of one side, and only with them"
        );
        self.rows.push(row);
    }

    /// One line of a table: `step | cell cell ...`, a cell for each state.
    fn cells(&mut self, table: &Table, line: &str, place: &str) {
        let (call, cells) = line
            .split_once(" | ")
            .unwrap_or_else(|| panic!("{place}: no cells: {line}"));
        let (call, cells) = (call.trim(), cells.split_whitespace());
        let cells: Vec<&str> = cells.collect();
        assert_eq!(
            cells.len(),
            table.states.len(),
            "{place}: a cell for each state"
        );
        for (state, cell) in table.states.iter().zip(cells) {
            let mut row = Row {
                name: format!("{}: {call} @ {state}", table.name),
                place: place.into(),
                source: table.source.clone(),
                setup: Some(state.clone()),
                since: table.since.clone(),
                ..Row::default()
            };
            match cell.split_once('/') {
                _ if cell == "?" => {
                    row.unjudged.clone_from(&table.unjudged);
                    row.steps.push(step(call, place));
                    assert!(row.unjudged.is_some(), "{place}: `unjudged:` says why");
                }
                None => row.steps = cell_steps(call, cell, Side::Both, place),
                Some((kernel, here)) => {
                    row.deviates.clone_from(&table.deviates);
                    row.steps = cell_steps(call, kernel, Side::Kernel, place);
                    row.steps.extend(cell_steps(call, here, Side::Here, place));
                }
            }
            self.add(row);
        }
    }
}

/// `RESULT,EVENT=status,>MESSAGE=reason`: what the step answers, and everything that follows, in order.
fn cell_steps(call: &str, cell: &str, side: Side, place: &str) -> Vec<Step> {
    let mut parts = cell.split(',');
    let mut texts = vec![match parts.next() {
        None | Some("-") => call.to_string(),
        Some(result) => format!("{call} => {result}"),
    }];
    for part in parts {
        texts.push(match part.strip_prefix('>') {
            None => match part.split_once('=') {
                Some((kind, status)) => format!("event {kind} status={status}"),
                None => format!("event {part} status=0"),
            },
            Some(message) => match message.split_once('=') {
                Some(("SIDR_REP", status)) => format!("peer gets SIDR_REP status={status}"),
                Some((message, reason)) => format!("peer gets {message} reason={reason}"),
                None => format!("peer gets {message}"),
            },
        });
    }
    texts.push("no event".into());
    texts.push("peer gets nothing".into());
    texts
        .into_iter()
        .map(|text| Step {
            side,
            text,
            place: place.into(),
        })
        .collect()
}

fn step(line: &str, place: &str) -> Step {
    let (side, text) = match line.split_once(": ") {
        Some(("kernel", text)) => (Side::Kernel, text),
        Some(("here", text)) => (Side::Here, text),
        _ => (Side::Both, line),
    };
    Step {
        side,
        text: text.trim().into(),
        place: place.into(),
    }
}

fn header(line: &str) -> Option<(&str, String)> {
    let (word, text) = line.split_once(':')?;
    let known = [
        "source",
        "from",
        "states",
        "deviates",
        "unjudged",
        "unjudged here",
        "since",
    ];
    known
        .contains(&word)
        .then(|| (word, text.trim().to_string()))
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    for (at, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted => return &line[..at],
            _ => {}
        }
    }
    line
}

/// The words of a step; a quoted text stays in one word.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        if c == '"' {
            quoted = !quoted;
        }
        if c.is_whitespace() && !quoted {
            words.push(String::new());
        } else {
            words.last_mut().expect("there is one").push(c);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
