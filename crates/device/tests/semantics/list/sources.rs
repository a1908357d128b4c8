//! Which tests there are, by the sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The tests of a source tree.
pub(super) struct Tests {
    tree: PathBuf,
    /// Cases of this suite.
    cases: BTreeSet<&'static str>,
}

impl Tests {
    pub(super) fn of(tree: &Path) -> Self {
        Self {
            tree: tree.to_owned(),
            cases: crate::all_cases().map(|case| case.name).collect(),
        }
    }

    /// Whether `CRATE::TARGET::TEST` is there: a case of this suite, a function marked as a test, or a body that
    /// `both_ways!` makes tests of. Target `lib` is the crate's own sources.
    pub(super) fn contains(&self, test: &str) -> bool {
        let [name, target, test] = test.split("::").collect::<Vec<_>>()[..] else {
            return false;
        };
        if (name, target) == ("oarlock-device", "semantics") && self.cases.contains(test) {
            return true;
        }
        let Some(directory) = name.strip_prefix("oarlock-") else {
            return false;
        };
        let directory = self.tree.join("crates").join(directory);
        let files = if target == "lib" {
            rust_files(&directory.join("src"))
        } else {
            let target = directory.join("tests").join(target);
            let mut files = rust_files(&target);
            files.extend(Some(target.with_extension("rs")).filter(|file| file.exists()));
            files
        };
        files.iter().any(|file| {
            let text = std::fs::read_to_string(file).expect("a file of the tree");
            has_test(&text, test)
        })
    }
}

fn has_test(text: &str, test: &str) -> bool {
    let (function, body) = (format!("fn {test}("), format!("{test}:"));
    let both_ways = text.contains("both_ways! {");
    let mut is_marked = false;
    text.lines().map(str::trim).any(|line| {
        if line == "#[test]" {
            is_marked = true;
        } else if line.starts_with(&function) {
            return is_marked;
        } else if !line.starts_with("#[") {
            is_marked = false;
        }
        both_ways && line.starts_with(&body)
    })
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.expect("an entry of the tree").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
