//! Snapshots: text files checked in beside the tests, compared exactly.

use std::path::Path;

/// Compares `actual` with the file `path`; with `OARLOCK_UPDATE=1` writes the file instead.
///
/// Give an absolute path, `concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/NAME.txt")`.
///
/// # Panics
/// When the texts differ, naming the first line that does; or when the file cannot be read or written.
#[track_caller]
pub fn assert_snapshot(path: impl AsRef<Path>, actual: &str) {
    let path = path.as_ref();
    if std::env::var_os("OARLOCK_UPDATE").is_some() {
        std::fs::write(path, actual)
            .unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_else(|e| {
        panic!(
            "cannot read {} ({e}); OARLOCK_UPDATE=1 writes it",
            path.display()
        )
    });
    if let Some(difference) = difference(&expected, actual) {
        panic!(
            "{} differs; OARLOCK_UPDATE=1 accepts the new text\n{difference}\nwhole new text:\n{actual}",
            path.display()
        );
    }
}

/// The first line that differs, if one does.
fn difference(expected: &str, actual: &str) -> Option<String> {
    if expected == actual {
        return None;
    }
    let (mut old, mut new) = (expected.lines(), actual.lines());
    let mut number = 1;
    loop {
        match (old.next(), new.next()) {
            (None, None) => return Some("only the ends of lines differ".to_owned()),
            (a, b) if a == b => number += 1,
            (a, b) => {
                return Some(format!(
                    "line {number}\n- {}\n+ {}",
                    a.unwrap_or("(end)"),
                    b.unwrap_or("(end)")
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_differing_line_is_named() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(
            difference("a\nb\n", "a\nc\n").as_deref(),
            Some("line 2\n- b\n+ c")
        );
        assert_eq!(
            difference("a\n", "a\nb\n").as_deref(),
            Some("line 2\n- (end)\n+ b")
        );
        assert_eq!(
            difference("a\n", "a").as_deref(),
            Some("only the ends of lines differ")
        );
    }
}
