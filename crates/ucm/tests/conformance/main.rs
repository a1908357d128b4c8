//! The rows of `conformance/`, executed: what Linux answers to each command, call and message, and where we differ.
//!
//! The rows know nothing of our service. They are read here, and carried out on a [`Subject`](subject::Subject), of which
//! ours is one and a Linux kernel the other: `OARLOCK_ROWS_SUBJECT=kernel`.

mod here;
mod kernel;
mod layout;
mod run;
mod script;
mod subject;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use oarlock_ucm::DEVIATIONS;

use here::Here;
use kernel::Kernel;
use layout::Layouts;
use run::Run;
use script::Script;
use subject::Subject;

fn folder() -> std::path::PathBuf {
    match std::env::var_os("OARLOCK_ROWS") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance"),
    }
}

/// Who answers the rows.
fn subject() -> Box<dyn Subject> {
    match std::env::var("OARLOCK_ROWS_SUBJECT").as_deref() {
        Ok("kernel") => Box::new(Kernel::new()),
        Ok(other) => panic!("there is no subject {other}"),
        Err(_) => Box::new(Here::new()),
    }
}

fn read() -> (Layouts, Script) {
    let folder = folder();
    let text = |path: &Path| {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let layouts = Layouts::parse(&text(&folder.join("layout.txt")));
    let entries = fs::read_dir(&folder).expect("the folder of the rows can be read");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "txt"));
    files.sort();
    let mut script = Script::default();
    for path in &files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name != "layout.txt" {
            script.read(&name, &text(path));
        }
    }
    (layouts, script)
}

/// Every row gets the kernel's answer, or the one that a listed deviation says, and every deviation that rows can show is
/// shown by one.
#[test]
fn every_row_is_answered_as_it_says() {
    let (layouts, script) = read();
    let subjects: BTreeSet<&str> = DEVIATIONS.iter().map(|row| row.subject).collect();
    let (mut passed, mut deviating, mut newer, mut unjudged) = (0, 0, 0, 0);
    let (mut failures, mut used) = (Vec::new(), BTreeSet::new());
    let only = std::env::var("OARLOCK_ROW").ok();
    let rows = script.rows.iter().filter(|row| {
        only.as_ref()
            .is_none_or(|only| row.name.contains(only.as_str()))
    });
    for row in rows.clone() {
        let place = format!("{}: {}", row.place, row.name);
        if let Some(deviation) = &row.deviates {
            used.insert(deviation.as_str());
            if !subjects.contains(deviation.as_str()) {
                failures.push(format!(
                    "{place}: no deviation has the subject \"{deviation}\""
                ));
            }
        }
        if let Some(unjudged) = &row.unjudged {
            assert!(
                unjudged.reason.split_whitespace().count() > 2,
                "{place}: a reason, please"
            );
        }
        let mut subject = subject();
        let is_kernel = subject.is_kernel();
        let is_unjudged = match &row.unjudged {
            Some(unjudged) => !is_kernel || !unjudged.is_only_here,
            None => false,
        };
        let is_older = match &row.since {
            Some(since) => !subject.is_since(since),
            None => false,
        };
        if is_unjudged {
            unjudged += 1;
            continue;
        }
        if is_older {
            newer += 1;
            continue;
        }
        let outcome = Run::new(&layouts, &script, &mut *subject).row(row);
        if is_kernel {
            // It takes minutes: say at once what is known.
            println!(
                "{place}: {}",
                outcome.as_ref().err().map_or("ok", |error| error)
            );
        }
        match outcome {
            Ok(()) if row.differs() => deviating += 1,
            Ok(()) => passed += 1,
            Err(error) => failures.push(format!("{place}\n    {error}")),
        }
    }
    println!(
        "conformance: rows={} passed={passed} deviating={deviating} newer={newer} unjudged={unjudged} failed={}",
        rows.count(),
        failures.len()
    );
    if only.is_none() {
        for row in DEVIATIONS {
            let shown = used.contains(row.subject);
            match script.invisible.get(row.subject) {
                None if !shown => failures.push(format!("no row shows \"{}\"", row.subject)),
                Some(_) if shown => failures.push(format!("\"{}\" is visible", row.subject)),
                _ => {}
            }
        }
        let strange = script
            .invisible
            .keys()
            .filter(|key| !subjects.contains(key.as_str()));
        failures.extend(strange.map(|key| format!("no deviation has the subject \"{key}\"")));
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// No command, and no message of the IB CM, is without rows.
#[test]
fn every_command_and_every_message_has_rows() {
    let (layouts, script) = read();
    let steps = script.rows.iter().flat_map(|row| &row.steps);
    let words: Vec<Vec<String>> = steps.map(|step| script::words(&step.text)).collect();
    for row in &script.rows {
        let mut words = row.steps.iter().flat_map(|step| script::words(&step.text));
        let is_new = words.any(|word| ["RESOLVE_IB_SERVICE", "WRITE_CM_EVENT"].contains(&&*word));
        assert!(!is_new || row.since.is_some(), "{}: since 6.17", row.place);
    }
    for command in layouts.commands.keys() {
        assert!(
            words.iter().any(|words| words.contains(command)),
            "{command}"
        );
    }
    for message in layouts.messages.keys() {
        let is_sent = |words: &Vec<String>| {
            words
                .windows(2)
                .any(|pair| pair[0] == "sends" && pair[1] == *message)
        };
        assert!(words.iter().any(is_sent), "{message}");
    }
}

fn judged(text: &str) -> Result<(), String> {
    let (layouts, mut script) = read();
    let known = script.rows.len();
    script.read("test", text);
    let mut here = Here::new();
    Run::new(&layouts, &script, &mut here).row(&script.rows[known])
}

/// A test of the judge: what is not as the row says is seen, whatever part of it differs.
#[test]
fn the_judge_sees_what_differs() {
    let row = |from: &str, steps: &str| {
        let steps = steps.replace(';', "\n  ");
        judged(&format!(
            "row a\n  source: none\n  from: {from}\n  {steps}\n"
        ))
    };
    assert_eq!(row("IDLE", "BIND x addr=$LOCAL:0 => ok"), Ok(()));
    let wrong = [
        (
            "IDLE",
            "BIND x addr=$LOCAL:0 => EINVAL",
            "EINVAL was expected, got ok",
        ),
        (
            "IDLE",
            "BIND x addr=$OTHER:0",
            "ok was expected, got EADDRNOTAVAIL",
        ),
        (
            "IDLE",
            "QUERY x option=0 => ok src_size=16",
            "src_size is 0",
        ),
        ("IDLE", "event USER of x", "there is no event"),
        (
            "ADDR_RESOLVED",
            "RESOLVE_ROUTE x;event ROUTE_ERROR of x",
            "another event",
        ),
        (
            "ADDR_RESOLVED",
            "RESOLVE_ROUTE x;event ROUTE_RESOLVED of x status=1",
            "status is 0",
        ),
        (
            "ADDR_RESOLVED",
            "RESOLVE_ROUTE x;no event",
            "there is one: ROUTE_RESOLVED",
        ),
        (
            "ROUTE_RESOLVED",
            "CONNECT x;peer gets nothing",
            "it gets REQ",
        ),
        ("ROUTE_RESOLVED", "CONNECT x;peer gets REP", "it gets REQ"),
        (
            "ROUTE_RESOLVED",
            "CONNECT x qp_num=1;peer gets REQ qpn=2",
            "qpn is 1",
        ),
        ("REQ_SENT", "peer gets REJ within=1s", "it gets nothing"),
        ("IDLE", "FLY x", "there is no command FLY"),
        ("IDLE", "BIND x color=3", "there is no field color"),
        ("NOWHERE", "BIND x", "there is no set-up NOWHERE"),
    ];
    for (from, steps, says) in wrong {
        let error = row(from, steps).expect_err(steps);
        assert!(error.contains(says), "{steps}: {error}");
    }
}
