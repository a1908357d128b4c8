//! The ladder recorder: an exchange as text, so that a changed behaviour is a readable diff.

use std::fmt;

use oarlock_wire::Time;

/// Records who sent what to whom; its [`Display`](fmt::Display) is the ladder.
///
/// ```text
/// t=0.000000  A > B  REQ  local_comm_id=0x0001
/// t=0.268510  A < B  REP  local_comm_id=0x8001
/// t=0.268530  A      established
/// ```
///
/// The host with the lower number stands left.
#[derive(Clone, Debug)]
pub struct Ladder {
    names: Vec<String>,
    lines: Vec<String>,
}

impl Ladder {
    /// A ladder for hosts 0, 1, 2, ... with these names. A host beyond the names prints as its number.
    #[must_use]
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Self {
            names: names.into_iter().map(Into::into).collect(),
            lines: Vec::new(),
        }
    }

    /// One message on the wire.
    pub fn record(&mut self, now: Time, from: usize, to: usize, what: impl fmt::Display) {
        let (left, arrow, right) = if from <= to {
            (from, '>', to)
        } else {
            (to, '<', from)
        };
        let line = format!(
            "t={}  {} {arrow} {}  {what}",
            now,
            self.name(left),
            self.name(right)
        );
        self.lines.push(line);
    }

    /// Something that happened at one host.
    pub fn note(&mut self, now: Time, at: usize, what: impl fmt::Display) {
        let line = format!("t={}  {}      {what}", now, self.name(at));
        self.lines.push(line);
    }

    /// The lines so far.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    fn name(&self, host: usize) -> String {
        self.names
            .get(host)
            .cloned()
            .unwrap_or_else(|| host.to_string())
    }
}

impl fmt::Display for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_reads_as_the_field_guide_draws_it() {
        let mut ladder = Ladder::new(["A", "B"]);
        ladder.record(Time::ZERO, 0, 1, "REQ  qpn=0x000011");
        ladder.record(Time::from_nanos(268_510_999), 1, 0, "REP");
        ladder.note(Time::from_nanos(1_268_530_000), 1, "established");
        ladder.record(Time::from_nanos(2_000_000_000), 2, 1, "REQ");
        assert_eq!(
            ladder.to_string(),
            "t=0.000000  A > B  REQ  qpn=0x000011\n\
             t=0.268510  A < B  REP\n\
             t=1.268530  B      established\n\
             t=2.000000  B < 2  REQ\n"
        );
    }
}
