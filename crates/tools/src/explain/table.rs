//! Tables of codes, and finding one in them by number or name.

/// One code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) code: i64,
    pub(super) name: &'static str,
    /// Other names, without the table's prefix.
    pub(super) aliases: &'static [&'static str],
    pub(super) meaning: &'static str,
    pub(super) remedy: &'static str,
    pub(super) source: &'static str,
}

/// All codes of one kind, by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) kind: &'static str,
    /// What C programs write before the names.
    pub(super) prefix: &'static str,
    pub(super) entries: &'static [Entry],
}

/// How many names are offered in place of an unknown one.
const NEAREST: usize = 3;
/// Names less alike than this are not offered, unless nothing else is.
const ALIKE: f64 = 0.7;

impl Table {
    /// Finds a code by its number, decimal or hexadecimal, or by one of its names. Error numbers may have a minus sign,
    /// as in the status of events.
    pub(super) fn find(&self, text: &str) -> Option<&'static Entry> {
        match number(text) {
            Some(code) => {
                let code = if self.kind == "errno" {
                    code.abs()
                } else {
                    code
                };
                self.entries.iter().find(|entry| entry.code == code)
            }
            None => {
                let wanted = self.plain(text);
                self.entries
                    .iter()
                    .find(|entry| self.names_of(entry).any(|name| name == wanted))
            }
        }
    }

    /// Names most like `text`; for a number those of the nearest numbers.
    pub(super) fn nearest(&self, text: &str) -> Vec<&'static str> {
        let mut ranked: Vec<(f64, &Entry)> = match number(text) {
            Some(code) => self
                .entries
                .iter()
                .map(|entry| (-(entry.code.abs_diff(code) as f64), entry))
                .collect(),
            None => {
                let wanted = self.plain(text);
                self.entries
                    .iter()
                    .map(|entry| {
                        let likeness = self
                            .names_of(entry)
                            .map(|name| likeness(&wanted, &name))
                            .fold(0.0, f64::max);
                        (likeness, entry)
                    })
                    .collect()
            }
        };
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let alike = ranked
            .iter()
            .take_while(|(likeness, _)| *likeness < 0.0 || *likeness >= ALIKE)
            .count();
        ranked
            .iter()
            .take(alike.clamp(1, NEAREST))
            .map(|(_, entry)| entry.name)
            .collect()
    }

    fn names_of(&self, entry: &Entry) -> impl Iterator<Item = String> {
        std::iter::once(entry.name)
            .chain(entry.aliases.iter().copied())
            .map(|name| self.plain(name))
    }

    /// A name without prefix, case and kind of separator.
    fn plain(&self, name: &str) -> String {
        let name = plain(name);
        match name.strip_prefix(&plain(self.prefix)) {
            Some(rest) if !rest.is_empty() => rest.to_owned(),
            _ => name,
        }
    }
}

/// A name without case and kind of separator.
pub(super) fn plain(name: &str) -> String {
    name.trim()
        .chars()
        .map(|c| match c {
            '_' | ' ' => '-',
            c => c.to_ascii_lowercase(),
        })
        .collect()
}

/// 0 (nothing in common) to 1 (the same); a part of a name is rather like it.
pub(super) fn likeness(wanted: &str, name: &str) -> f64 {
    let similar = strsim::normalized_damerau_levenshtein(wanted, name);
    if wanted.len() >= 3 && name.contains(wanted) {
        similar.max(0.9)
    } else {
        similar.max(strsim::jaro_winkler(wanted, name) - 0.1)
    }
}

fn number(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hexadecimal) => i64::from(u32::from_str_radix(hexadecimal, 16).ok()?),
        None => i64::from(digits.parse::<u32>().ok()?),
    };
    Some(if negative { -value } else { value })
}
