//! `oarlock explain`: what a code means, where it comes from and what can be done about it.

mod calls;
mod errno;
mod event;
mod reject;
mod rules;
mod sidr;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod vendor;

use crate::failure::Failure;
use crate::report::{self, Lines};
use calls::Rule;
use clap::{Args, ValueEnum};
use serde::Serialize;
use table::{Entry, Table};

/// Options of `oarlock explain`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  oarlock explain reject 28\n  oarlock explain errno EADDRNOTAVAIL --call bind_addr\n  oarlock explain errno -110 --call connect        as in the status of an event\n  oarlock explain event RDMA_CM_EVENT_UNREACHABLE\n  oarlock explain sidr 1 --json\n  oarlock explain status IBV_WC_RETRY_EXC_ERR      of a work completion, and\n  oarlock explain vendor 0x104                     which rule it broke\n\nExit status 1 when there is no such code; then the nearest names are printed."
)]
pub(crate) struct Options {
    /// What the code is
    #[arg(value_enum)]
    kind: Kind,
    /// The code: a number (decimal, or hexadecimal with 0x) or a name, as in C or in this program's messages
    #[arg(allow_negative_numbers = true)]
    code: String,
    /// Of an errno: which rules of this call lead to it (names of the Rust library, of librdmacm, or of the kernel's command)
    #[arg(long, value_name = "NAME")]
    call: Option<String>,
    /// Prints the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// What a code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The reason of a REJ, which is the status of RDMA_CM_EVENT_REJECTED
    Reject,
    /// The status of a SIDR_REP, which is the status of RDMA_CM_EVENT_UNREACHABLE of a UD identifier
    Sidr,
    /// An error number of a call, or with a minus sign the status of an event
    Errno,
    /// A kind of event
    Event,
    /// The status of a work completion
    Status,
    /// The vendor error of a work completion: which rule was broken
    Vendor,
}

impl Kind {
    fn table(self) -> &'static Table {
        match self {
            Self::Reject => &reject::TABLE,
            Self::Sidr => &sidr::TABLE,
            Self::Errno => &errno::TABLE,
            Self::Event => &event::TABLE,
            Self::Status => &status::TABLE,
            Self::Vendor => &vendor::TABLE,
        }
    }
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Explanation {
    kind: &'static str,
    code: i64,
    name: &'static str,
    meaning: &'static str,
    remedy: &'static str,
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<When>>,
}

/// One rule that leads to an error number.
#[derive(Debug, Serialize)]
struct When {
    when: &'static str,
    source: &'static str,
}

/// The JSON form where nothing is known.
#[derive(Debug, Serialize)]
struct Unknown {
    kind: &'static str,
    asked: String,
    nearest: Vec<&'static str>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if options.call.is_some() && options.kind != Kind::Errno {
        return Err(Failure::Usage(
            "--call goes with errno: the other codes do not depend on a call".to_owned(),
        ));
    }
    let table = options.kind.table();
    let Some(entry) = table.find(&options.code) else {
        let unknown = Unknown {
            kind: table.kind,
            asked: options.code.clone(),
            nearest: table.nearest(&options.code),
        };
        return unknown.report(options.json);
    };
    let call = match options.call.as_deref() {
        None => None,
        Some(name) => match calls::find(name) {
            Some(call) => Some(call.name),
            None => {
                let unknown = Unknown {
                    kind: "call",
                    asked: name.to_owned(),
                    nearest: calls::nearest(name),
                };
                return unknown.report(options.json);
            }
        },
    };
    let rules = call.map(|call| rules_of(entry, call));
    if options.json {
        let explanation = explanation(table, entry, call, rules);
        return report::print_json("explain", true, &explanation);
    }
    let lines = Lines::new(false);
    for line in text(table, entry, call, rules.as_deref()) {
        lines.say(line);
    }
    Ok(())
}

impl Unknown {
    fn report(self, json: bool) -> Result<(), Failure> {
        if json {
            report::print_json("explain", false, &self)?;
        }
        Err(Failure::Result(format!(
            "there is no {} {}; the nearest: {}",
            self.kind,
            self.asked,
            self.nearest.join(", ")
        )))
    }
}

/// The rules of a call that lead to the number, its own first.
fn rules_of(entry: &Entry, call: &str) -> Vec<&'static Rule> {
    rules::rules()
        .filter(|rule| rule.errno == entry.code && rule.concerns(call))
        .collect()
}

fn explanation(
    table: &Table,
    entry: &Entry,
    call: Option<&'static str>,
    rules: Option<Vec<&'static Rule>>,
) -> Explanation {
    Explanation {
        kind: table.kind,
        code: entry.code,
        name: entry.name,
        meaning: entry.meaning,
        remedy: entry.remedy,
        source: entry.source,
        call,
        rules: rules.map(|rules| {
            let when = |rule: &Rule| When {
                when: rule.when,
                source: rule.source,
            };
            rules.into_iter().map(when).collect()
        }),
    }
}

fn text(
    table: &Table,
    entry: &Entry,
    call: Option<&str>,
    rules: Option<&[&'static Rule]>,
) -> Vec<String> {
    let mut lines = vec![
        format!("{} {}: {}", table.kind, entry.code, entry.name),
        format!("meaning: {}", entry.meaning),
        format!("remedy:  {}", entry.remedy),
        format!("source:  {}", entry.source),
    ];
    match (call, rules) {
        (Some(call), Some([])) => {
            lines.push(format!("no rule of {call} leads to {}", entry.name));
            let others: Vec<&str> = calls::CALLS
                .iter()
                .map(|call| call.name)
                .filter(|name| !rules_of(entry, name).is_empty())
                .collect();
            lines.push(format!("it comes from: {}", others.join(", ")));
        }
        (Some(call), Some(rules)) => {
            lines.push(format!("{call} gives {} when:", entry.name));
            for rule in rules {
                lines.push(format!("  - {} [{}]", rule.when, rule.source));
            }
        }
        _ if table.kind == "errno" => {
            lines.push(
                "see --call NAME for the rules of one call, such as --call connect".to_owned(),
            );
        }
        _ => {}
    }
    lines
}
