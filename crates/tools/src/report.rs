//! Where a command's results go: text for people on standard output, or one JSON object there and all else on standard
//! error.

use crate::failure::{Failure, system};
use serde::Serialize;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a line found nobody to read it.
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Where lines for people go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    json: bool,
}

impl Lines {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints one line at once. A reader that has gone away ends nothing: the exit status tells the result.
    pub(crate) fn say(self, line: impl std::fmt::Display) {
        let said = if self.json {
            writeln!(io::stderr(), "{line}")
        } else {
            let mut out = io::stdout().lock();
            writeln!(out, "{line}").and_then(|()| out.flush())
        };
        if said.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            IN_VAIN.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the reader of what is said has gone away, as far as a line has shown: for what would go on without end.
    pub(crate) fn are_in_vain(self) -> bool {
        IN_VAIN.load(Ordering::Relaxed)
    }
}

/// The frame of every JSON result.
#[derive(Debug, Serialize)]
struct Framed<'a, T> {
    schema: &'a str,
    ok: bool,
    #[serde(flatten)]
    body: &'a T,
}

/// Prints the command's one JSON object.
pub(crate) fn print_json<T: Serialize>(command: &str, ok: bool, body: &T) -> Result<(), Failure> {
    let text = to_json(command, ok, body)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(system("standard output"))
}

/// One JSON object of the command, without an end of line.
pub(crate) fn to_json<T: Serialize>(command: &str, ok: bool, body: &T) -> Result<String, Failure> {
    let framed = Framed {
        schema: &format!("oarlock.{command}/1"),
        ok,
        body,
    };
    serde_json::to_string(&framed).map_err(|error| Failure::System {
        what: "the report",
        source: error.into(),
    })
}

/// Microseconds, as every time in a report.
pub(crate) fn micros(duration: std::time::Duration) -> f64 {
    (duration.as_secs_f64() * 1e9).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_object_with_schema_and_ok() {
        #[derive(Serialize)]
        struct Body {
            asked: u32,
        }
        assert_eq!(
            to_json("cmtime", true, &Body { asked: 3 }).unwrap(),
            r#"{"schema":"oarlock.cmtime/1","ok":true,"asked":3}"#
        );
    }

    #[test]
    fn times_are_microseconds_with_nanosecond_digits() {
        assert_eq!(micros(std::time::Duration::from_nanos(1_234_567)), 1234.567);
    }
}
