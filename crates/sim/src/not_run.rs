//! A test that a machine cannot run says so, and fails where it was demanded.

use std::fmt::Display;
use std::io::Write;

/// Says on standard error, past the test harness (which swallows what a passing test prints), that a test could not run.
///
/// `need` names what is missing: `netns`, `tshark`, `programs`, `opensm`, `qemu`; other words name what cannot be demanded.
///
/// # Panics
/// When the environment variable `OARLOCK_REQUIRE`, a list with commas, names `need`.
pub fn not_run(need: &str, reason: impl Display) {
    let line = format!("not run: {reason}\n");
    // A closed standard error leaves nobody to tell.
    let _ = std::io::stderr().write_all(line.as_bytes());
    assert!(
        !is_required(need, &std::env::var("OARLOCK_REQUIRE").unwrap_or_default()),
        "OARLOCK_REQUIRE demands {need}, but this could not run: {reason}"
    );
}

/// Passes on what a test said in a process of its own, whose standard error was caught.
pub(crate) fn repeat_not_run(stderr: &[u8]) {
    let text = String::from_utf8_lossy(stderr);
    for line in text.lines().filter(|line| line.starts_with("not run: ")) {
        let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
    }
}

fn is_required(need: &str, list: &str) -> bool {
    list.split(',').any(|name| name == need)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_list_names_is_demanded() {
        assert!(is_required("tshark", "netns,tshark"));
        assert!(!is_required("tshark", "netns"));
        assert!(!is_required("tshark", ""));
        assert!(!is_required("net", "netns"));
    }
}
