//! Tests on the real port: each runs again in a network namespace of its own, in a child process.

use std::process::Command;

use crate::{not_run, repeat_not_run};

/// Runs `body` in a fresh network namespace, by running the test of this name again behind `unshare` with these flags.
/// The loopback interface is down there.
///
/// Where the system allows no namespace the test is [not run](crate::not_run()) (`netns`).
///
/// # Panics
/// When the test fails in there, or did not run.
pub fn in_namespace(flags: &[&str], test: &str, body: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() {
        body();
        return;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(flags);
        command
    };
    let possible = unshare().arg("true").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        let flags = flags.join(" ");
        not_run(
            "netns",
            format_args!("no network namespace of our own (unshare {flags})"),
        );
        return;
    }
    let output = unshare()
        .arg(std::env::current_exe().expect("a test is a program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .expect("unshare has just run");
    repeat_not_run(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

const MARK: &str = "OARLOCK_TEST_IN_NAMESPACE";
