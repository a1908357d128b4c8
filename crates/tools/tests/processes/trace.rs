//! `oarlock trace -w`: what becomes of a file that is there already.

use super::support::{OARLOCK, assert_line, assert_status, inside, stderr, stdout};
use std::process::Command;

#[test]
fn a_trace_without_a_host_leaves_the_file_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("old.pcapng");
    std::fs::write(&file, "of before").unwrap();
    for path in [&file, &folder.path().join("new.pcapng")] {
        // A service may run on this host: there is none in a network of one's own, and nothing that could be one.
        let output = Command::new("unshare")
            .args(["-Urn", OARLOCK, "trace", "--seconds", "0.1", "-w"])
            .arg(path)
            .env("OARLOCK_HOSTD", "/none/at/all")
            .output()
            .expect("unshare runs");
        assert!(!output.status.success(), "{}", stdout(&output));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "of before");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_trace_that_is_refused_leaves_the_file_and_one_that_begins_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = inside(&format!(
        "cd {folder}; echo of before >old; \
         $OARLOCK trace -w first >out & tracer=$!; until grep -q '^tracing this host' out 2>/dev/null; do sleep 0.05; done; \
         $OARLOCK trace --seconds 0.1 -w old; echo second ended with $?; cat old; \
         $OARLOCK trace --seconds 0.1 -w new; echo third ended with $?; ls new 2>/dev/null; \
         kill -INT $tracer; wait $tracer; echo first ended with $?; \
         $OARLOCK trace --seconds 0.1 -w old >/dev/null; echo fourth ended with $?; \
         grep -c 'of before' old; od -A n -t x1 -N 4 old; $OARLOCK trace ladder old",
        folder = folder.path().display(),
    )) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    for line in [
        "second ended with 1",
        "of before",
        "third ended with 1",
        "first ended with 0",
        "fourth ended with 0",
        "0",
        " 0a 0d 0d 0a",
    ] {
        assert_line(&text, line);
    }
    assert!(!text.lines().any(|line| line == "new"), "{text}");
    assert!(
        stderr(&output).contains("traces this host already"),
        "{}",
        stderr(&output)
    );
}
