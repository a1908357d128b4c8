//! As much of C as `infiniband/verbs.h` needs: enumerations with their values, and calls in structures.

use std::collections::BTreeMap;

/// What a header declares.
pub(super) struct Header {
    enums: BTreeMap<String, Vec<(String, i64)>>,
    calls: BTreeMap<String, Vec<String>>,
    members: BTreeMap<String, Vec<String>>,
}

impl Header {
    /// Reads the enumerations that have a name, and the structures.
    pub(super) fn parse(text: &str) -> Self {
        let text = without_comments(text);
        let mut known = BTreeMap::new();
        // From ib_user_ioctl_verbs.h, which this one includes: the first access flag that old kernels may ignore.
        known.insert("IBV_ACCESS_OPTIONAL_FIRST".to_owned(), 1 << 20);
        let mut header = Self {
            enums: BTreeMap::new(),
            calls: BTreeMap::new(),
            members: BTreeMap::new(),
        };
        for (word, name, body) in blocks(&text) {
            match word {
                "enum" => {
                    let constants = constants(body, &mut known);
                    if !name.is_empty() {
                        header.enums.insert(name.to_owned(), constants);
                    }
                }
                _ => {
                    header.calls.insert(name.to_owned(), calls(body));
                    header.members.insert(name.to_owned(), members(body));
                }
            }
        }
        header
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.enums.keys().map(String::as_str)
    }

    pub(super) fn constants(&self, name: &str) -> impl Iterator<Item = (&str, i64)> {
        let found = self.enums.get(name);
        let found = found.unwrap_or_else(|| panic!("the header has no enum {name}"));
        found.iter().map(|(name, value)| (name.as_str(), *value))
    }

    pub(super) fn calls(&self, name: &str) -> impl Iterator<Item = &str> {
        let found = self.calls.get(name);
        let found = found.unwrap_or_else(|| panic!("the header has no struct {name}"));
        found.iter().map(String::as_str)
    }

    pub(super) fn members(&self, name: &str) -> impl Iterator<Item = &str> {
        let found = self.members.get(name);
        let found = found.unwrap_or_else(|| panic!("the header has no struct {name}"));
        found.iter().map(String::as_str)
    }

    pub(super) fn value(&self, constant: &str) -> Option<i64> {
        let all = self.enums.values().flatten();
        all.into_iter()
            .find(|(name, _)| name == constant)
            .map(|(_, value)| *value)
    }
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        out.push_str(&rest[..at]);
        let end = rest[at..].find("*/").expect("comments end");
        rest = &rest[at + end + 2..];
    }
    out.push_str(rest);
    out
}

/// `enum NAME { ... }`, `enum { ... }` and `struct NAME { ... }` at the start of a line, in their order.
fn blocks(text: &str) -> Vec<(&str, &str, &str)> {
    let mut found = Vec::new();
    for word in ["enum", "struct"] {
        for (at, _) in text.match_indices(&format!("\n{word} ")) {
            let rest = &text[at + 1 + word.len() + 1..];
            let name = &rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())];
            let Some(body) = rest[name.len()..].trim_start().strip_prefix('{') else {
                continue;
            };
            let end = body.find("\n}").expect("blocks end");
            found.push((at, (word, name, &body[..end])));
        }
    }
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, block)| block).collect()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn constants(body: &str, known: &mut BTreeMap<String, i64>) -> Vec<(String, i64)> {
    let mut next = 0;
    let mut found = Vec::new();
    let body: String = body
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect();
    for item in body.split(',') {
        let (name, expression) = match item.split_once('=') {
            Some((name, expression)) => (name.trim(), Some(expression)),
            None => (item.trim(), None),
        };
        if name.is_empty() {
            continue;
        }
        let value = expression.map_or(next, |expression| evaluate(expression, known));
        known.insert(name.to_owned(), value);
        found.push((name.to_owned(), value));
        next = value.wrapping_add(1);
    }
    found
}

/// Numbers, names, brackets, `-`, `|` and `<<`: each constant of the header is made of these.
fn evaluate(expression: &str, known: &BTreeMap<String, i64>) -> i64 {
    let text = expression.trim();
    let text = match text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
        Some(inner) if !inner.contains(['(', ')']) || balanced(inner) => inner.trim(),
        _ => text,
    };
    for (operator, apply) in [
        ("|", (|a, b| a | b) as fn(i64, i64) -> i64),
        ("-", |a, b| a - b),
        ("<<", |a, b| a << b),
    ] {
        if let Some(at) = outside_brackets(text, operator) {
            let (left, right) = (&text[..at], &text[at + operator.len()..]);
            let left = if left.trim().is_empty() {
                0
            } else {
                evaluate(left, known)
            };
            return apply(left, evaluate(right, known));
        }
    }
    let digits = text.trim_end_matches(['U', 'L']);
    let number = match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    };
    number
        .or_else(|| known.get(text).copied())
        .unwrap_or_else(|| panic!("what is `{text}`?"))
}

fn balanced(text: &str) -> bool {
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return false;
        }
    }
    depth == 0
}

/// Where the last such operator outside of brackets is.
fn outside_brackets(text: &str, operator: &str) -> Option<usize> {
    let found = text.match_indices(operator).map(|(at, _)| at);
    found.filter(|at| balanced(&text[..*at])).last()
}

/// Names of the members that are pointers to functions.
fn calls(body: &str) -> Vec<String> {
    let starts = body.match_indices("(*");
    starts
        .filter_map(|(at, _)| body[at + 2..].split_once(')'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Names of the members that are data, those of nested structures too.
fn members(body: &str) -> Vec<String> {
    let lines = body.lines().map(str::trim);
    let data = lines.filter(|line| line.ends_with(';') && !line.contains(['(', ')', '}']));
    data.filter_map(|line| {
        let name = line.trim_end_matches(';').rsplit([' ', '\t', '*']).next()?;
        let name = name.split('[').next()?;
        (!name.is_empty()).then(|| name.to_owned())
    })
    .collect()
}

#[test]
fn constants_of_every_form_are_read() {
    let text = "
enum {
	IBV_SHIFT = 2
};
enum ibv_a {
	IBV_A,
	IBV_B = 1 << 3, /* a comment, with
	commas */
	IBV_C,
	IBV_D = (1<<4),
	IBV_E = IBV_D << 1,
	IBV_F = ((IBV_E << 1) - 1),
	IBV_G = -2,
	IBV_H = 0x20,
	IBV_I = IBV_B | IBV_D,
	IBV_J = (1UL << 31),
	IBV_K = 1 << IBV_SHIFT,
};
struct ibv_b {
	int x;
	union {
		struct ibv_c	*y;
		__be32		 z[4];
	} u;
	void (*one)(struct ibv_b *b,
		    int y);
	int (*two)(void);
};
enum ibv_a ibv_call(void);
";
    let header = Header::parse(text);
    let values: Vec<_> = header.constants("ibv_a").map(|(_, value)| value).collect();
    assert_eq!(values, [0, 8, 9, 16, 32, 63, -2, 32, 24, 1 << 31, 4]);
    assert_eq!(header.calls("ibv_b").collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(header.members("ibv_b").collect::<Vec<_>>(), ["x", "y", "z"]);
    assert_eq!(header.names().count(), 1);
    assert_eq!(header.value("IBV_E"), Some(32));
}
