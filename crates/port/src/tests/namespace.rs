//! Tests on the real port: each runs again in a network namespace of its own, in a child process.

use crate::netlink;
use std::process::Command;

/// Runs `body` in a namespace of its own with the loopback interface up, by running the test of this name again.
pub(crate) fn in_own_namespace(test: &str, body: impl FnOnce()) {
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
        .args(["-Urn", "true"])
        .output()
        .is_ok_and(|o| o.status.success());
    if !possible {
        oarlock_sim::not_run("netns", "no network namespace of our own (unshare -Urn)");
        return;
    }
    let output = Command::new("unshare")
        .arg("-Urn")
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
