//! `oarlock man`: the manual pages. Those of section 1 are made of the commands' definitions and of what [`pages`] says beside them, those of
//! section 3, about the C libraries, are written ([`calls`]).

mod calls;
mod pages;

use crate::failure::{Failure, system};
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use pages::Page;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

/// Options of `oarlock man`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  oarlock man ping | man -l -        reads a page\n  oarlock man trace ladder           prints the source of one\n  oarlock man rdma_migrate_id | man -l -   reads that of a call of the C libraries\n  oarlock man --write docs/man       writes them all"
)]
pub(crate) struct Options {
    /// The command whose page it is, or a call of the C libraries; without it that of oarlock itself
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Writes every page to this folder, as oarlock.1, oarlock-ping.1, rdma_connect.3 and so on
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    write: Option<PathBuf>,
}

/// Runs the command; `cli` is the definition of the whole program.
pub(crate) fn run(options: &Options, cli: Command) -> Result<(), Failure> {
    let pages = all(cli);
    if let Some(dir) = &options.write {
        for (name, text) in &pages {
            write(&dir.join(format!("{name}.1")), text)?;
        }
        for page in calls::PAGES {
            write(
                &dir.join(format!("{}.3", page.name)),
                page.source.as_bytes(),
            )?;
        }
        return Ok(());
    }
    if let [call] = options.command.as_slice()
        && let Some(page) = calls::find(call)
    {
        return print(page.source.as_bytes());
    }
    let wanted = std::iter::once("oarlock")
        .chain(options.command.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join("-");
    let Some((_, text)) = pages.iter().find(|(name, _)| *name == wanted) else {
        let of_commands = pages.iter().map(|(name, _)| format!("{name}(1)"));
        let of_calls = calls::PAGES.iter().map(|page| format!("{}(3)", page.name));
        return Err(Failure::Usage(format!(
            "there is no page of {}; there are {}",
            options.command.join(" "),
            of_commands.chain(of_calls).collect::<Vec<_>>().join(", ")
        )));
    };
    print(text)
}

fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        // A pager that was left early has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        written => written.map_err(system("standard output"))?,
    }
    if out.is_terminal() {
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(
            io::stderr(),
            "note: that was the source of the page; `| man -l -` shows it"
        );
    }
    Ok(())
}

/// Puts the page in the place of whatever has its name: what a link leads to stays as it is. So does what is the page already.
fn write(path: &Path, text: &[u8]) -> Result<(), Failure> {
    if fs::read(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default();
    let new = path.with_file_name(format!(".{}.{}", name.display(), std::process::id()));
    let written = File::create_new(&new)
        .and_then(|mut file| file.write_all(text))
        .and_then(|()| fs::rename(&new, path));
    written.map_err(|source| {
        // It may not have been made.
        let _ = fs::remove_file(&new);
        Failure::File {
            path: path.to_owned(),
            source,
        }
    })
}

/// Every page: its name, and its source.
fn all(cli: Command) -> Vec<(String, Vec<u8>)> {
    let mut cli = cli.disable_help_subcommand(true);
    cli.build();
    let mut commands = Vec::new();
    collect(&cli, &mut commands);
    let names: Vec<String> = commands.iter().map(page_name).collect();
    commands
        .into_iter()
        .map(|command| {
            let name = page_name(&command);
            let text = page(command, &name, &names);
            (name, text)
        })
        .collect()
}

fn collect(command: &Command, into: &mut Vec<Command>) {
    into.push(command.clone());
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        collect(sub, into);
    }
}

/// `oarlock-trace-ladder`.
fn page_name(command: &Command) -> String {
    command
        .get_bin_name()
        .unwrap_or_else(|| command.get_name())
        .replace(' ', "-")
}

fn page(command: Command, name: &str, names: &[String]) -> Vec<u8> {
    let own = pages::find(name);
    let examples = examples(&command);
    let usage = usage(&command);
    let has_subcommands = command.has_subcommands();
    let man = Man::new(command.display_name(name))
        .title(name.to_uppercase())
        .date(DATE)
        .source(concat!("oarlock ", env!("CARGO_PKG_VERSION")))
        .manual("oarlock");
    let mut text = Vec::new();
    let written = (|| {
        man.render_title(&mut text)?;
        man.render_name_section(&mut text)?;
        let mut roff = Roff::new();
        roff.control("SH", ["SYNOPSIS"]);
        roff.text([roman(usage)]);
        roff.control("SH", ["DESCRIPTION"]);
        for (at, paragraph) in own.description.iter().enumerate() {
            if at > 0 {
                roff.control("PP", []);
            }
            roff.text([roman(*paragraph)]);
        }
        roff.to_writer(&mut text)?;
        man.render_options_section(&mut text)?;
        if has_subcommands {
            man.render_subcommands_section(&mut text)?;
        }
        let mut roff = Roff::new();
        table(&mut roff, "EXIT STATUS", own.exit_status);
        table(&mut roff, "ENVIRONMENT", own.environment);
        roff.control("SH", ["EXAMPLES"]);
        roff.control("nf", []);
        for line in &examples {
            roff.text([roman(line.as_str())]);
        }
        roff.control("fi", []);
        roff.control("SH", ["SEE ALSO"]);
        roff.text(see_also(name, names, own));
        roff.to_writer(&mut text)
    })();
    written.expect("writing to memory does not fail");
    tidy(&String::from_utf8(text).expect("the definitions are text")).into_bytes()
}

/// Leaves out what the parts repeat (each defines the apostrophe anew) or what has no effect (a break beside an empty line),
/// and breaks long lines where lines are filled.
fn tidy(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let is_preamble = |line: &str| line.ends_with(r".ds Aq \(aq") || line.ends_with(".ds Aq '");
    let mut tidy = String::new();
    let mut fills = true;
    for (at, line) in lines.iter().enumerate() {
        let beside = |other: usize| lines.get(other).is_some_and(|line| line.is_empty());
        if at >= 2 && is_preamble(line)
            || *line == ".br" && (beside(at + 1) || beside(at.wrapping_sub(1)))
        {
            continue;
        }
        match *line {
            ".nf" => fills = false,
            ".fi" => fills = true,
            _ => {}
        }
        if fills && line.is_empty() {
            tidy += ".sp";
        } else if fills && !line.starts_with(['.', '\'']) {
            fill(line.trim_end(), &mut tidy);
        } else {
            tidy += line;
        }
        tidy.push('\n');
    }
    tidy
}

/// Breaks a line of text at spaces.
fn fill(line: &str, into: &mut String) {
    let mut width = 0;
    for (at, word) in line.split(' ').enumerate() {
        // A line must not begin like a request.
        let breaks = width + 1 + word.len() > WIDTH && !word.starts_with(['.', '\'']);
        if at > 0 {
            into.push(if breaks { '\n' } else { ' ' });
            width = if breaks { 0 } else { width + 1 };
        }
        *into += word;
        width += word.len();
    }
}

const WIDTH: usize = 79;
/// When the texts changed last.
const DATE: &str = "2026-11-30";

fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines: Vec<&str> = usage
        .strip_prefix("Usage:")
        .unwrap_or(&usage)
        .lines()
        .map(str::trim)
        .collect();
    lines.join(" ")
}

/// The lines of the examples that the command's help ends with.
fn examples(command: &Command) -> Vec<String> {
    let text = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    text.split("\n\n")
        .filter_map(|paragraph| {
            let (heading, lines) = paragraph.split_once('\n')?;
            matches!(heading, "Examples:" | "Start here:").then_some(lines)
        })
        .flat_map(str::lines)
        .map(|line| line.trim_start().to_owned())
        .collect()
}

fn table(roff: &mut Roff, title: &str, rows: &[(&str, &str)]) {
    roff.control("SH", [title]);
    for (term, text) in rows {
        roff.control("TP", []);
        roff.text([bold(*term)]);
        roff.text([roman(*text)]);
    }
}

fn see_also(name: &str, names: &[String], own: &Page) -> Vec<Inline> {
    let pages = names
        .iter()
        .map(String::as_str)
        .filter(|other| *other != name);
    // The others are reached from the first page.
    let ours = pages
        .filter(|other| name == "oarlock" || *other == "oarlock" || own.related.contains(other));
    let theirs = own.see_also.iter().copied();
    let mut line = Vec::new();
    for (page, section) in ours.map(|page| (page, "1")).chain(theirs) {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.push(bold(page));
        line.push(roman(format!("({section})")));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn a_tidy_page_says_the_same_in_shorter_lines() {
        let long = "word ".repeat(30) + ".TH is no request";
        let text = format!(
            ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n{long}\n.ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n.br\n\n.br\n.nf\n{long}\n.fi\n.br\n"
        );
        let tidied = tidy(&text);
        assert_eq!(tidied.matches(".ds Aq").count(), 2, "{tidied}");
        assert_eq!(tidied.matches(".br").count(), 1, "{tidied}");
        let words = |text: &str| text.split_whitespace().filter(|w| *w == "word").count();
        assert_eq!(words(&tidied), words(&text));
        let (filled, rest) = tidied.split_once(".sp").unwrap();
        assert!(
            filled
                .lines()
                .all(|line| line.len() <= 90 && !line.starts_with(".TH")),
            "{filled}"
        );
        assert!(rest.contains(&long), "{rest}");
    }

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man")
    }

    /// The checked-in pages say what the program does.
    #[test]
    fn the_pages_in_the_repository_are_current() {
        let pages = all(crate::Cli::command());
        let mut stale = Vec::new();
        for (name, text) in &pages {
            let found = fs::read(folder().join(format!("{name}.1")));
            if found.ok().as_deref() != Some(text) {
                stale.push(name.as_str());
            }
        }
        for entry in fs::read_dir(folder()).expect("docs/man") {
            let file = entry.expect("an entry").file_name();
            let file = file.to_string_lossy();
            let is_known = match file.rsplit_once('.') {
                Some((name, "1")) => pages.iter().any(|(known, _)| known == name),
                Some((name, "3")) => calls::PAGES.iter().any(|page| page.name == name),
                _ => false,
            };
            if !is_known {
                stale.push("a page of nothing");
            }
        }
        for page in calls::PAGES {
            let found = fs::read_to_string(folder().join(format!("{}.3", page.name)));
            if found.ok().as_deref() != Some(page.source) {
                stale.push(page.name);
            }
        }
        assert!(
            stale.is_empty(),
            "{stale:?}: run `cargo run -p oarlock -- man --write docs/man`"
        );
    }

    #[test]
    fn every_page_has_all_its_sections_and_every_text_a_page() {
        let pages = all(crate::Cli::command());
        for (name, text) in &pages {
            let text = String::from_utf8(text.clone()).expect("text");
            for section in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "\"EXIT STATUS\"",
                "EXAMPLES",
                "\"SEE ALSO\"",
            ] {
                assert!(
                    text.lines().any(|line| line == format!(".SH {section}")),
                    "{name}: {section} in\n{text}"
                );
            }
            let (_, rest) = text.split_once(".SH EXAMPLES").expect("checked above");
            assert!(rest.contains("oarlock"), "{name} has examples");
        }
        for page in pages::PAGES {
            assert!(
                pages.iter().any(|(name, _)| name == page.name),
                "{} is the page of no command",
                page.name
            );
            for related in page.related {
                assert!(pages.iter().any(|(name, _)| name == related), "{related}");
            }
        }
    }

    #[test]
    fn every_page_of_section_3_is_found_by_each_of_its_calls() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("man3");
        let written = fs::read_dir(sources).expect("man3").count();
        assert_eq!(written, calls::PAGES.len(), "a page is left out");
        for page in calls::PAGES {
            assert!(page.calls().any(|call| call == page.name), "{}", page.name);
            for call in page.calls() {
                let found = calls::find(call).expect("a page");
                assert_eq!(found.name, page.name, "{call}");
                let synopsis = page.source.split(".SH DESCRIPTION").next();
                assert!(synopsis.is_some_and(|of| of.contains(call)), "{call}");
            }
        }
        assert!(calls::find("rdma_nothing").is_none());
        assert!(calls::find("").is_none());
    }
}
