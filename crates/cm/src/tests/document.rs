//! `docs/connection-states.md` is drawn from the transition table. `OARLOCK_UPDATE=1` writes it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use oarlock_sim::assert_snapshot;

use crate::table::{Answer, Input, Next, Place, Transition, transition, transitions};
use crate::{LapState, MessageName};

const INTRODUCTION: &str = "\
# Connection states

What `crates/cm` does with each message, timer and call in each state. **This file is generated** from the transition table in
`crates/cm/src/table/rules.rs` by the test `tests::document`; a test executes each line of the table against the code. After a
change of the table run `OARLOCK_UPDATE=1 cargo test -p oarlock-cm document` and review the difference. The table with one line
for each pair is `crates/cm/src/tests/snapshots/transition_table.txt`.

States are named after the message last sent or received (IBA Vol. 1 ch. 12). An arrow says what happened, and after the slash
what is sent; one that leads back to its state says what is answered again or sent again. `destroy()` is possible everywhere and
ends in nothing; it is left out of the drawings.
";

/// A drawing: its title, what to say about it, and the places in it. Only transitions between these are drawn.
const DRAWINGS: &[(&str, &str, &[Place])] = &[
    (
        "The active side",
        "It sends the REQ.",
        &[
            Place::ReqSent,
            Place::MraReqRcvd,
            Place::RepRcvd,
            Place::MraRepSent,
            Place::Established,
            Place::Timewait,
            Place::Idle,
        ],
    ),
    (
        "The passive side",
        "It sends the REP.",
        &[
            Place::ReqRcvd,
            Place::MraReqSent,
            Place::RepSent,
            Place::MraRepRcvd,
            Place::Established,
            Place::Timewait,
            Place::Idle,
        ],
    ),
    (
        "The end of a connection",
        "The same on both sides. A stale connection is one whose peer has connected its queue pair anew.",
        &[
            Place::Established,
            Place::DreqSent,
            Place::DreqRcvd,
            Place::Timewait,
            Place::Idle,
        ],
    ),
    (
        "An alternate path",
        "These states lie beside ESTABLISHED, which is how the connection appears to everyone else.",
        &[
            Place::Established,
            Place::LapSent,
            Place::MraLapRcvd,
            Place::LapRcvd,
            Place::MraLapSent,
        ],
    ),
    (
        "A resolution (SIDR)",
        "A service ID becomes a queue pair for datagrams.",
        &[
            Place::SidrReqSent,
            Place::SidrRepRcvd,
            Place::SidrReqRcvd,
            Place::SidrRepSent,
            Place::Idle,
        ],
    ),
];

const ANSWERS: &str = "\
## The table

| Answer | Means |
|---|---|
| advance | the connection moves on |
| again | it stays, and answers again |
| dropped_... | the message is dropped and counted under this name |
| not ours | the message is none of this connection's: it is treated as one that no connection takes, see the next table |
| misuse | the caller is told that the state does not allow the call |
| no timer | there is no such timer in this state |

LAP_SENT, MRA_LAP_RCVD, LAP_RCVD and MRA_LAP_SENT are ESTABLISHED with an exchange about an alternate path.
";

fn document() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (title, about, places) in DRAWINGS {
        write!(text, "\n## {title}\n\n{about}\n\n").expect("a string");
        text += &drawing(places);
    }
    text += "\n";
    text += ANSWERS;
    text += "\n### Without a connection\n\n```text\n";
    let without: Vec<_> = transitions().filter(|row| row.place.is_none()).collect();
    text += &line("input", "answer", "next", "sends", "reports");
    for row in &without {
        text += &row_line(row.input.as_str(), row);
    }
    text += "```\n\n### With one\n\n```text\n";
    text += &line("input", "answer", "next", "sends", "reports");
    for input in Input::ALL.iter().filter(|input| !input.makes_one()) {
        text += &input_block(*input);
    }
    text += "```\n";
    text
}

/// What an arrow of a drawing says.
fn label(row: &Transition) -> String {
    if row.sends.is_empty() {
        return row.input.to_string();
    }
    format!("{} / {}", row.input, names(row.sends, " and "))
}

/// From where to where.
type Arrow = (Option<Place>, Place);

/// A Mermaid state diagram of the transitions between `places`, the creation of the first ones included.
fn drawing(places: &[Place]) -> String {
    // In the order of the table, and each pair of places once.
    let mut arrows: Vec<(Arrow, Vec<String>)> = Vec::new();
    for row in transitions() {
        let to = match (row.next, row.answer, row.place) {
            (Next::To(place), ..) | (Next::Same, Answer::Again, Some(place)) => place,
            _ => continue,
        };
        let inside = |place: Place| places.contains(&place);
        if !inside(to) || !row.place.is_none_or(inside) {
            continue;
        }
        let key = (row.place, to);
        match arrows.iter_mut().find(|(known, _)| *known == key) {
            Some((_, labels)) => labels.push(label(&row)),
            None => arrows.push((key, vec![label(&row)])),
        }
    }
    let mut text = "```mermaid\nstateDiagram-v2\n".to_owned();
    for ((from, to), labels) in arrows {
        let from = from.map_or("[*]", Place::as_str);
        writeln!(text, "    {from} --> {to}: {}", labels.join("<br/>")).expect("a string");
    }
    text + "```\n"
}

/// The lines for one input: places that answer alike stand together, and the most usual answer comes last.
fn input_block(input: Input) -> String {
    let mut alike: Vec<(Transition, Vec<Place>)> = Vec::new();
    for place in Place::ALL {
        let row = transition(*place, input);
        match alike.iter_mut().find(|(known, _)| same(known, &row)) {
            Some((_, places)) => places.push(*place),
            None => alike.push((row, vec![*place])),
        }
    }
    alike.sort_by_key(|(_, places)| places.len());
    let mut text = format!("{input}\n");
    let last = alike.len() - 1;
    for (i, (row, places)) in alike.iter().enumerate() {
        let places: Vec<_> = if i == last && i > 0 {
            vec!["elsewhere"]
        } else if i == last {
            vec!["everywhere"]
        } else {
            places.iter().map(|place| place.as_str()).collect()
        };
        // Two to a line; the last line of them has the answer.
        let mut lines = places.chunks(2).map(|two| format!("  {}", two.join(" ")));
        let answered = lines.next_back().expect("a place answers so");
        for line in lines {
            text += &line;
            text += "\n";
        }
        text += &row_line(&answered, row);
    }
    text
}

fn same(a: &Transition, b: &Transition) -> bool {
    (a.answer, a.next, a.sends, a.events) == (b.answer, b.next, b.sends, b.events)
}

fn row_line(first: &str, row: &Transition) -> String {
    let next = match row.next {
        Next::Same => "same",
        Next::To(place) => place.as_str(),
        Next::Gone => "(none)",
    };
    let events = if row.events.is_empty() {
        "-".to_owned()
    } else {
        row.events.join(" ")
    };
    line(
        first,
        &row.answer.to_string(),
        next,
        &names(row.sends, " "),
        &events,
    )
}

fn line(first: &str, answer: &str, next: &str, sends: &str, events: &str) -> String {
    let line = format!("{first:<30}  {answer:<27}  {next:<13}  {sends:<8}  {events}");
    format!("{}\n", line.trim_end())
}

fn names(messages: &[MessageName], between: &str) -> String {
    if messages.is_empty() {
        return "-".to_owned();
    }
    let names: Vec<_> = messages.iter().map(|message| message.as_str()).collect();
    names.join(between)
}

#[test]
fn the_document_is_drawn_from_the_table() {
    assert_snapshot(
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/connection-states.md"
        ),
        &document(),
    );
}

#[test]
fn every_transition_is_in_a_drawing() {
    for row in transitions() {
        let Next::To(to) = row.next else { continue };
        let drawn = DRAWINGS.iter().any(|(_, _, places)| {
            places.contains(&to) && row.place.is_none_or(|from| places.contains(&from))
        });
        // The ends of a connection are the same while there is an exchange about an alternate path.
        let beside = row.place.is_some_and(|from| from.lap() != LapState::Idle);
        // The RTU was lost and the peer leaves; this arrow would tie two drawings together.
        let from_rep_sent = row.input == Input::Dreq
            && matches!(row.place, Some(Place::RepSent | Place::MraRepRcvd));
        assert!(drawn || beside || from_rep_sent, "{row} is in no drawing");
    }
}

/// A table that names the same pair twice would hide the second rule.
#[test]
fn no_pair_has_two_rules() {
    let mut rows: BTreeMap<(String, String), u32> = BTreeMap::new();
    for (place, input) in crate::table::ruled_pairs() {
        *rows
            .entry((place.to_string(), input.to_string()))
            .or_default() += 1;
    }
    let twice: Vec<_> = rows.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert!(rows.len() > 250, "{} pairs are ruled", rows.len());
}

#[test]
fn only_timers_can_be_missing() {
    for row in transitions() {
        let timer = matches!(
            row.input,
            Input::ReplyTimeout | Input::LastReplyTimeout | Input::Deadline | Input::TimewaitOver
        );
        assert!(timer || row.answer != Answer::NoTimer, "{row}");
    }
}
