//! `oarlock ps --watch`: again and again, until somebody ends it or nobody reads any more.

use super::counters::{Rates, Values, changed, grouped};
use super::listing::{Listing, listing};
use super::{state, table};
use crate::failure::{Failure, system};
use crate::report::{self, micros};
use crate::signals::Ending;
use oarlock_hostd::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// One round, as a line of JSON: what `ps --json` prints, and this.
#[derive(Debug, Serialize)]
struct Round<'a> {
    /// Since the first round.
    elapsed_us: f64,
    /// What the counters gained per second since the last round; those that gained nothing are left out.
    counters_per_s: &'a BTreeMap<String, f64>,
    #[serde(flatten)]
    listing: Listing,
}

/// Prints a round every `interval`.
pub(super) fn run(
    host: &Host,
    interval: Duration,
    all_counters: bool,
    json: bool,
) -> Result<(), Failure> {
    let ending = Ending::register().map_err(system("signals"))?;
    let terminal = !json && io::stdout().is_terminal();
    let started = Instant::now();
    let mut before: Option<(Instant, Values)> = None;
    loop {
        let now = Instant::now();
        let state = state(host)?;
        let values = Values::of(&state);
        let rates = before.as_ref().map(|(then, before)| {
            Rates::between(before, &values, now.saturating_duration_since(*then))
        });
        let elapsed = now.saturating_duration_since(started);
        let text = if json {
            let none = BTreeMap::new();
            let round = Round {
                elapsed_us: micros(elapsed),
                counters_per_s: rates.as_ref().map_or(&none, Rates::as_map),
                listing: listing(state),
            };
            report::to_json("ps", true, &round)? + "\n"
        } else {
            let mut lines = vec![format!("after {:.1} s", elapsed.as_secs_f64())];
            lines.extend(table::table(&state));
            match (&rates, all_counters) {
                (rates, true) => lines.extend(grouped(&values, rates.as_ref())),
                (Some(rates), false) => lines.extend(changed(&values, rates)),
                (None, false) => {}
            }
            if terminal {
                screen(&lines)
            } else {
                block(&lines)
            }
        };
        before = Some((now, values));
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(system("standard output")(error)),
        }
        drop(out);
        if wait(&ending, now + interval).map_err(system("waiting"))? {
            return Ok(());
        }
    }
}

/// Home, each line to its end, then the rest of the screen empty: nothing flickers.
fn screen(lines: &[String]) -> String {
    format!("\x1b[H{}\x1b[J", lines.join("\x1b[K\n") + "\x1b[K\n")
}

/// Blocks are told apart by an empty line.
fn block(lines: &[String]) -> String {
    lines.join("\n") + "\n\n"
}

/// Waits until `until`. True: somebody ended it, or nobody reads any more.
fn wait(ending: &Ending, until: Instant) -> io::Result<bool> {
    let stdout = io::stdout();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        // Nothing is asked of standard output but its end, which is always told.
        let mut fds = [
            PollFd::new(ending, PollFlags::IN),
            PollFd::new(&stdout, PollFlags::empty()),
        ];
        let limit = Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        match poll(&mut fds, Some(&limit)) {
            Ok(0) => {}
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
