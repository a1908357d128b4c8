//! Running the program, alone or in a network namespace.

use std::process::{Command, Output};

pub(crate) const OARLOCK: &str = env!("CARGO_BIN_EXE_oarlock");

/// Runs a shell script in a fresh network namespace with loopback up; `None`, and a word about it, where the system allows
/// none.
pub(crate) fn inside(script: &str) -> Option<Output> {
    let namespaces = Command::new("unshare").args(["-Urn", "true"]).output();
    if !namespaces.is_ok_and(|output| output.status.success()) {
        oarlock_sim::not_run("netns", "no unprivileged network namespaces here");
        return None;
    }
    let script = format!("set -u; ip link set lo up || exit 99; {script}");
    // Whatever hangs in there ends as a failure.
    let output = Command::new("timeout")
        .args(["300", "unshare", "-Urn", "sh", "-c", &script])
        .env("OARLOCK", OARLOCK)
        .env_remove("OARLOCK_HOSTD")
        // A service that is started here leaves no file.
        .env("OARLOCK_LOG_FILE", "")
        .output()
        .expect("unshare runs");
    Some(output)
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
pub(crate) fn assert_status(output: &Output, status: i32) {
    assert_eq!(
        output.status.code(),
        Some(status),
        "--- out\n{}--- err\n{}",
        stdout(output),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[track_caller]
pub(crate) fn assert_line(text: &str, line: &str) {
    assert!(
        text.lines().any(|found| found == line),
        "no line `{line}` in\n{text}"
    );
}

/// Runs the program with arguments, in no namespace of its own.
pub(crate) fn oarlock(arguments: &[&str]) -> Output {
    Command::new(OARLOCK)
        .args(arguments)
        .output()
        .expect("the program runs")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
