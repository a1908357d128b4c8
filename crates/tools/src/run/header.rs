//! The folder of the C header of our extension, for a compiler.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::failure::Failure;

/// `-I` and the folder, as `$(oarlock env --cflags)` hands it to a compiler.
pub(super) fn cflags() -> Result<String, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Result(format!("the path of this program: {error}")))?;
    cflags_of(program.parent().unwrap_or(Path::new("/"))).map_err(Failure::Result)
}

fn cflags_of(of_program: &Path) -> Result<String, String> {
    let places = PLACES.iter().map(|place| of_program.join(place));
    let found = places
        .clone()
        .find(|place| place.join(HEADER).is_file())
        .and_then(|place| fs::canonicalize(place).ok());
    let Some(folder) = found else {
        let places: Vec<String> = places
            .map(|place| tidy(&place).display().to_string())
            .collect();
        return Err(format!(
            "the header {HEADER} is in none of {}: the source has it in dist/include, and `bash dist/folder.sh DIR` makes a \
             folder with it",
            places.join(", ")
        ));
    };
    let flag = format!("-I{}", folder.display());
    // A shell would make several words of it, or other ones, and a compiler takes no quotes.
    if flag.contains(|c: char| c.is_whitespace() || "*?[\\\"'$`".contains(c)) {
        return Err(format!(
            "the folder {} cannot stand in an unquoted $(...): give the compiler -I with it yourself",
            folder.display()
        ));
    }
    Ok(flag)
}

/// Without the detours of `..`.
fn tidy(path: &Path) -> PathBuf {
    let mut tidied = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                tidied.pop();
            }
            other => tidied.push(other),
        }
    }
    tidied
}

const HEADER: &str = "oarlock/memory_events.h";
/// From the folder of the program: as one folder that was copied, as installed, a copy of the source, and as cargo builds it.
const PLACES: [&str; 4] = [
    "include",
    "../include",
    "dist/include",
    "../../dist/include",
];

#[cfg(test)]
#[path = "header/tests.rs"]
mod tests;
