//! `oarlock ps` as a program.

use super::support::{assert_status, inside, stdout};

/// Blocks on a pipe, objects with --json; the counters' gain per second; the end by a signal, by a reader that goes, and
/// by the service.
#[test]
fn a_watch_prints_rounds_until_it_is_ended() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK host --grace 60 >/dev/null & h=$!; until $OARLOCK ps >/dev/null 2>&1; do sleep 0.01; done; \
         $OARLOCK ps --watch 0.1 >$d/text & t=$!; $OARLOCK ps --watch 0.1 --json >$d/json & j=$!; \
         until [ $(grep -c '^after ' $d/text) -ge 3 ] && [ $(grep -c . $d/json) -ge 3 ]; do sleep 0.05; done; \
         kill -INT $t; wait $t; echo int $?; kill -TERM $j; wait $j; echo term $?; \
         $OARLOCK ps --watch 3600 | head -n 1 >/dev/null; echo reader gone; \
         $OARLOCK ps --watch 0.1 >/dev/null 2>$d/err & w=$!; sleep 0.3; kill $h; wait $h; wait $w; echo service $?; \
         echo text; cat $d/text; echo json; cat $d/json; echo err; cat $d/err; rm -r $d",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    for line in ["int 0", "term 0", "reader gone", "service 1"] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    let (_, rest) = text.split_once("\ntext\n").unwrap();
    let (rounds, rest) = rest.split_once("\njson\n").unwrap();
    let (objects, said) = rest.split_once("\nerr\n").unwrap();
    let blocks: Vec<&str> = rounds.split("\n\n").filter(|b| !b.is_empty()).collect();
    assert!(blocks.len() >= 3, "{rounds}");
    for block in &blocks[..3] {
        assert!(
            block.starts_with("after ") && block.contains("no identifiers"),
            "{block}"
        );
    }
    // What a watch asks is counted, too.
    assert!(
        blocks[1].contains("service_requests") && blocks[1].contains("per second"),
        "{}",
        blocks[1]
    );
    let objects: Vec<serde_json::Value> = objects
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(objects.len() >= 3);
    for object in &objects {
        assert_eq!(object["schema"], "oarlock.ps/1");
        assert_eq!(object["ids"], serde_json::json!([]));
    }
    assert!(
        objects[1]["counters_per_s"]["service_requests"]
            .as_f64()
            .is_some_and(|rate| rate > 0.0)
    );
    assert!(said.starts_with("error: "), "{said}");
}

/// A full backlog shows in the listener's line, in the text and in the JSON form.
#[test]
fn a_listener_shows_its_backlog() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK cmtime server -c 1 >$d/server & s=$!; \
         until grep -q listening $d/server; do sleep 0.01; done; $OARLOCK ps; $OARLOCK ps --json; kill $s; wait $s; rm -r $d",
    ) else {
        return;
    };
    let text = stdout(&output);
    let line = text
        .lines()
        .find(|line| line.contains("LISTEN"))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("backlog 0/1024, overflows 0"), "{line}");
    let object: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(
        object["ids"][0]["backlog"],
        serde_json::json!({"used": 0, "limit": 1024, "overflows": 0})
    );
}

/// Public faults 53 and 54: a program that takes no requests: its backlog fills, and the next one is refused for want of resources where the host is
/// told so. The listener's line counts it.
#[test]
fn a_full_backlog_is_counted_in_the_line_of_its_listener() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK host --grace 60 --max-backlog 1 --backlog-overflow reject --mra-service-timeout 17 >/dev/null & h=$!; \
         until $OARLOCK ps >/dev/null 2>&1; do sleep 0.01; done; \
         $OARLOCK cmtime server -c 1 >$d/server & s=$!; until grep -q listening $d/server; do sleep 0.01; done; \
         kill -STOP $s; $OARLOCK cmatose -s 127.0.0.1 -C 0 >$d/first 2>&1 & f=$!; \
         until $OARLOCK ps | grep -q 'backlog 1/1'; do sleep 0.01; done; \
         $OARLOCK cmatose -s 127.0.0.1 -C 0 >/dev/null; echo second $?; $OARLOCK ps; \
         kill $f; kill -CONT $s; kill $s; kill $h; wait $f $s $h; rm -r $d",
    ) else {
        return;
    };
    let text = stdout(&output);
    assert!(text.lines().any(|line| line == "second 1"), "{text}");
    assert!(text.contains("backlog 1/1, overflows 1"), "{text}");
    let said = super::support::stderr(&output);
    assert!(said.contains("no resources (3)"), "{said}");
}
