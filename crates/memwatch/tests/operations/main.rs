//! The table of what is promised: every operation on every kind of mapping, done and compared.

mod memory;
mod perform;

use std::fmt::Write;
use std::ops::Range;
use std::sync::Mutex;

use memory::Memory;
use oarlock_memwatch::{
    Capabilities, Error, Event, Invalidation, Mapping, Mode, Operation, Options, Policy, Promise,
    Region, Validation, Watcher,
};
use oarlock_sim::{assert_snapshot, not_run};
use perform::perform;

/// One table at a time: operations on the heap concern the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// R-MEM-5: what is promised for full mode holds, cell by cell, and the table in the documentation says the same.
#[test]
fn every_cell_is_as_promised() {
    table_holds(Mode::Full);
}

/// On a kernel before 6.7: files and System V segments cannot be watched, and say so; the rest is the same.
#[test]
fn every_cell_is_as_promised_without_the_asynchronous_mode() {
    table_holds(Mode::Shared);
}

#[test]
fn the_documentation_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/memory-events.md");
    let text = std::fs::read_to_string(path).expect("the documentation is there");
    let (before, _) = text
        .split_once(HEADING)
        .expect("the documentation has a place for the table");
    let table = table(|operation, mapping| promised(operation, mapping).to_string());
    assert_snapshot(path, &format!("{before}{HEADING}\n{table}"));
}

const HEADING: &str = "## The table: what becomes of a region (full mode)\n";

/// The promises of full mode, whatever this machine can do.
fn promised(operation: Operation, mapping: Mapping) -> Promise {
    Capabilities::of(Mode::Full).promise(operation, mapping)
}

fn table(mut cell: impl FnMut(Operation, Mapping) -> String) -> String {
    let mut text = String::from("| operation |");
    for mapping in Mapping::ALL {
        write!(text, " {mapping} |").expect("strings take all");
    }
    text += "\n|---|";
    text += &"---|".repeat(Mapping::ALL.len());
    for operation in Operation::ALL {
        write!(text, "\n| {operation} |").expect("strings take all");
        for mapping in Mapping::ALL {
            write!(text, " {} |", cell(operation, mapping)).expect("strings take all");
        }
    }
    text + "\n"
}

fn table_holds(mode: Mode) {
    let _alone = ALONE.lock();
    match Capabilities::probe() {
        Err(error) => return not_run("userfaultfd", error),
        Ok(capabilities) if capabilities.mode() < mode => {
            return not_run("userfaultfd", format!("this kernel has no mode {mode:?}"));
        }
        Ok(_) => {}
    }
    let mut wrong = Vec::new();
    let mut reasons: Vec<String> = Vec::new();
    let mut done = 0;
    let text = table(|operation, mapping| {
        let promise = Capabilities::of(mode).promise(operation, mapping);
        match measure(mode, operation, mapping, promise) {
            Ok(measured) if measured == promise => {
                done += usize::from(promise != Promise::NotApplicable);
                measured.to_string()
            }
            Ok(measured) => {
                wrong.push(format!(
                    "{operation} of {mapping}: {measured:?}, promised {promise:?}"
                ));
                format!("{measured} (promised {promise})")
            }
            Err(Failure::NotHere(reason)) => {
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
                "not run".into()
            }
            Err(Failure::Wrong(what)) => {
                wrong.push(format!("{operation} of {mapping}: {what}"));
                "wrong".into()
            }
        }
    });
    println!("{mode:?}, {done} cells done\n{text}");
    for reason in reasons {
        not_run("memory", reason);
    }
    assert!(wrong.is_empty(), "{text}\n{}", wrong.join("\n"));
    assert!(done > 150, "only {done} cells could be done");
}

enum Failure {
    /// This machine cannot do it.
    NotHere(String),
    Wrong(String),
}

/// Does an operation to a region, and says what became of it.
fn measure(
    mode: Mode,
    operation: Operation,
    mapping: Mapping,
    promise: Promise,
) -> Result<Promise, Failure> {
    if promise == Promise::NotApplicable {
        return Ok(promise);
    }
    let memory = Memory::new(mapping)
        .map_err(|error| Failure::NotHere(format!("no memory of kind {mapping}: {error}")))?;
    let options = Options {
        best_mode: mode,
        ..Options::default()
    };
    let watcher = Watcher::with(options).map_err(|error| Failure::Wrong(error.to_string()))?;
    let region = match watcher.register(memory.base, memory.len(), COOKIE, Policy::Report) {
        Ok(region) => region,
        Err(Error::NotWatchable { .. }) => return Ok(Promise::NotWatchable),
        Err(error) => return Err(Failure::Wrong(error.to_string())),
    };
    if !memory.is_unchanged() {
        return Err(Failure::Wrong("the memory is not as it was made".into()));
    }
    let validate = || match watcher.validate(region.range()) {
        Ok(found) => Ok(Some(found)),
        Err(Error::CannotValidate { .. }) => Ok(None),
        Err(error) => Err(Failure::Wrong(error.to_string())),
    };
    let before = validate()?;
    if before.is_some() != (mode == Mode::Full)
        || before.is_some_and(|found| !found.is_intact() || found.absent > 0)
    {
        return Err(Failure::Wrong(format!("before: {before:?}")));
    }
    let performed = perform(operation, &memory).map_err(Failure::NotHere)?;
    // Before anybody reads the memory: a hole that is read is filled again.
    let after = validate()?;
    let mut events = Vec::new();
    watcher
        .read_events(&mut events, 64)
        .map_err(|error| Failure::Wrong(error.to_string()))?;
    let event = match &events[..] {
        [Event::Last { generation: 0 }] => None,
        [Event::Invalidated(event), Event::Last { generation: 1 }] => Some(event),
        other => return Err(Failure::Wrong(format!("events {other:?}"))),
    };
    if region.is_valid() != event.is_none() {
        return Err(Failure::Wrong(format!(
            "valid {}, {event:?}",
            region.is_valid()
        )));
    }
    match (event, performed.result) {
        (
            Some(Invalidation {
                cookie, kind, hint, ..
            }),
            result,
        ) => {
            let exact = memory.at(performed.pages.start)..memory.at(performed.pages.end);
            if *cookie != COOKIE || *hint != Some(exact.clone()) {
                return Err(Failure::Wrong(format!("{event:x?} for {exact:x?}")));
            }
            Ok(match result {
                Ok(()) => Promise::Reported(*kind),
                Err(_) => Promise::Spurious(*kind),
            })
        }
        (None, Err(_)) if memory.is_unchanged() => Ok(Promise::Refused),
        (None, Err(error)) => Err(Failure::Wrong(format!("refused ({error}), and changed"))),
        (None, Ok(())) if memory.is_unchanged() => match after {
            Some(found) if !found.is_intact() => {
                Err(Failure::Wrong(format!("unchanged, and found: {found:?}")))
            }
            _ => Ok(Promise::Unchanged),
        },
        (None, Ok(())) => match after {
            Some(found) => is_found(operation, found, &region, &memory, &performed.pages),
            None => Ok(Promise::Silent),
        },
    }
}

/// What has no event is found by asking.
fn is_found(
    operation: Operation,
    found: Validation,
    region: &Region,
    memory: &Memory,
    pages: &Range<usize>,
) -> Result<Promise, Failure> {
    let changed = pages.len() * memory.page;
    let (count, invalidates) = match operation {
        Operation::GuardInstall if !found.sees_guards => {
            return Err(Failure::NotHere(
                "this kernel does not tell guard pages apart".into(),
            ));
        }
        Operation::GuardInstall => (found.guarded, true),
        Operation::ShmDetach | Operation::ShmRemap | Operation::RemapFilePages => {
            (found.unwatched, true)
        }
        _ => (found.absent, false),
    };
    if count != changed {
        return Err(Failure::Wrong(format!(
            "{found:?}, where {changed} bytes changed"
        )));
    }
    let validated = region.validate();
    match validated {
        Ok(_) if region.is_valid() != invalidates => Ok(Promise::Silent),
        other => Err(Failure::Wrong(format!(
            "valid {} after {other:?}",
            region.is_valid()
        ))),
    }
}

const COOKIE: u64 = 0xC00C1E;
