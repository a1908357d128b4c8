//! Tests on the real port: each runs again in a network namespace of its own, in a child process.

use oarlock_port::netlink;
use oarlock_sim::not_run;
use std::process::Command;

/// Runs `body` in a network namespace of its own with the loopback interface up, by running the test of this name again.
pub(crate) fn in_own_namespace(test: &str, body: impl FnOnce()) {
    run_in(test, &["-Urn"], body);
}

/// As [`in_own_namespace`], but with all users there are; needs root.
pub(crate) fn in_namespace_with_users(test: &str, body: impl FnOnce()) {
    run_in(test, &["-n"], body);
}

fn run_in(test: &str, flags: &[&str], body: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() {
        let interfaces = netlink::interfaces().unwrap();
        let lo = interfaces
            .iter()
            .find(|interface| interface.loopback)
            .expect("every namespace has one");
        netlink::bring_up(lo.index).unwrap();
        body();
        return;
    }
    let possible = Command::new("unshare")
        .args(flags)
        .arg("true")
        .output()
        .is_ok_and(|o| o.status.success());
    if !possible {
        not_run(
            "netns",
            format_args!(
                "no network namespace of our own (unshare {})",
                flags.join(" ")
            ),
        );
        return;
    }
    let output = Command::new("unshare")
        .args(flags)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .unwrap();
    oarlock_sim::repeat_not_run(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

const MARK: &str = "OARLOCK_TEST_IN_NAMESPACE";
