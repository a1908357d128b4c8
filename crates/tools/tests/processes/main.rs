//! The commands as programs, on the real port, in a network namespace of their own.

mod bench;
mod documents;
mod explain;
mod faults;
mod ping;
mod ps;
mod run;
mod support;
mod trace;

use std::process::Command;
use support::{OARLOCK, assert_line, assert_status, inside, stdout};

/// R-MIG-10: the whole of -m over two real processes; nothing is lost, and nothing of it passes through the service.
#[test]
fn demo_connects_exchanges_migrates_and_disconnects() {
    for address in ["127.0.0.1", "::1"] {
        let Some(output) = inside(&format!(
            "$OARLOCK demo -c 20 -C 5 -S 3000 --address {address}"
        )) else {
            return;
        };
        assert_status(&output, 0);
        let text = stdout(&output);
        assert_line(&text, "data packets through the service: 0");
        assert_eq!(
            text.lines().last(),
            Some(
                "summary: connections=20/20 messages=200/200 migrations=40 events_lost=0 mismatches=0"
            ),
            "{text}"
        );
    }
}

/// A service that a program started has nobody to read its log after that program has seen it answer.
#[test]
fn a_service_that_logs_to_nobody_lives_on() {
    let Some(output) = inside(
        "export OARLOCK_LOG=trace; for i in 1 2; do $OARLOCK demo -c 5 -C 2 2>/dev/null || exit 1; done; \
         $OARLOCK ps 2>/dev/null",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    let services: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("host service: process "))
        .map(|line| line.split([';', ',']).next().unwrap_or(line))
        .collect();
    assert_eq!(services.len(), 3, "{text}");
    assert!(
        services.iter().all(|service| *service == services[0]),
        "one service answers throughout: {text}"
    );
}

/// R-MIG-10: each side says that it migrates, goes on to disconnect on the new channel, and ends as ucmatose does.
#[test]
fn cmatose_migrates_before_it_disconnects() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK cmatose -c 5 -C 3 -S 500 -m >$d/server & s=$!; \
         until grep -q listening $d/server; do sleep 0.01; done; \
         $OARLOCK cmatose -s 127.0.0.1 -c 5 -C 3 -S 500 -m; c=$?; wait $s; e=$?; cat $d/server; rm -r $d; exit $((c + e))",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    for line in [
        "migrating to new event channel",
        "messages checked: 15 of 15, mismatches: 0",
        "disconnected",
        "test complete",
        "return status 0",
    ] {
        let times = text.lines().filter(|found| *found == line).count();
        assert_eq!(times, 2, "`{line}` in\n{text}");
    }
}

/// -P ib: the other port space has ports of its own, beside those of tcp.
#[test]
fn cmatose_connects_in_the_port_space_of_infiniband() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK cmatose -P ib -c 3 -C 2 -m >$d/ib & i=$!; $OARLOCK cmatose -c 1 -C 2 >$d/tcp & t=$!; \
         until grep -q listening $d/ib && grep -q listening $d/tcp; do sleep 0.01; done; $OARLOCK ps; \
         $OARLOCK cmatose -s 127.0.0.1 -P ib -c 3 -C 2 -m; c=$?; wait $i; e=$?; \
         $OARLOCK cmatose -s ::1 -c 1 -C 2 >/dev/null; wait $t; rm -r $d; exit $((c + e))",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    for space in ["tcp", "ib"] {
        let listens = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.contains(&space) && words.contains(&"LISTEN") && line.contains(":7471")
        };
        assert!(text.lines().any(listens), "{space} in\n{text}");
    }
    assert_line(&text, "messages checked: 6 of 6, mismatches: 0");
}

/// The options of ucmatose that are not in the other tests: bind address, format, port space, type of service, port,
/// timeout, and no migration without -m.
#[test]
fn cmatose_takes_the_options_of_ucmatose() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK cmatose -b ::1 -f ipv6 -P tcp -p 7000 -t 32 -a 16 -C 2 -S 0 >$d/server & s=$!; \
         until grep -q 'listening on \\[::1\\]:7000' $d/server; do sleep 0.01; done; \
         $OARLOCK cmatose -s ::1 -b ::1 -f ipv6 -P tcp -p 7000 -t 32 -a 16 -C 2 -S 0; c=$?; \
         [ $c = 0 ] || kill $s; wait $s; e=$?; rm -r $d; exit $e",
    ) else {
        return;
    };
    assert_status(&output, 0);
    assert_line(&stdout(&output), "return status 0");
    assert!(
        !stdout(&output).contains("migrating"),
        "{}",
        stdout(&output)
    );
}

/// A client that dies in the middle: the server counts the disconnections and ends with a status; nothing is left.
#[test]
fn a_killed_client_is_a_counted_disconnection() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK host --grace 30 >/dev/null & h=$!; until $OARLOCK ps >/dev/null 2>&1; do sleep 0.01; done; \
         $OARLOCK cmatose -c 7 -C 100000000 -S 1000 >$d/server 2>$d/err & s=$!; \
         until grep -q listening $d/server; do sleep 0.01; done; \
         $OARLOCK cmatose -s 127.0.0.1 -c 7 -C 100000000 -S 1000 >$d/client & c=$!; \
         until grep -q initiating $d/client; do sleep 0.01; done; sleep 0.1; \
         kill -9 $c; wait $s; e=$?; cat $d/server $d/err; $OARLOCK ps; kill $h; wait $h; rm -r $d; exit $e",
    ) else {
        return;
    };
    assert_status(&output, 1);
    let text = stdout(&output);
    assert_line(&text, "disconnected: 7");
    assert_line(&text, "return status 1");
    assert!(
        text.contains("error: 7 of 7 connections were disconnected"),
        "{text}"
    );
    assert_line(&text, "no identifiers");
}

/// Every failure is one line with the reason, and the exit status tells failure from wrong usage.
#[test]
fn failures_are_one_sentence_and_a_status() {
    let Some(output) =
        inside("$OARLOCK ps; echo status $?; $OARLOCK cmatose -s 127.0.0.1; echo status $?")
    else {
        return;
    };
    let text = stdout(&output);
    let statuses: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("status"))
        .collect();
    assert_eq!(statuses, ["status 1", "status 1"], "{text}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let errors: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 2, "{said}");
    assert!(errors[0].contains("no host service"), "{said}");
    assert!(errors[1].contains("invalid service ID"), "{said}");
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    for (arguments, name) in [
        (&["cmatose", "-f", "gid", "-s", "::1"][..], "-f gid"),
        (&["trace", "-w", "x.pcapng", "ladder"], "ladder"),
        (&["trace", "-w", "x.pcapng", "--seconds", "0"], "--seconds"),
        (&["cmatose", "--no-such-flag"], "--no-such-flag"),
        (&["cmtime", "-c", "1"], "--local"),
        (&["demo", "-c", "0"], "0"),
        (&["cmatose", "-f", "ip", "-s", "::1"], "-f ip wants"),
        (
            &["cmatose", "-f", "ipv6", "-s", "127.0.0.1"],
            "-f ipv6 wants",
        ),
    ] {
        let output = Command::new(OARLOCK).args(arguments).output().unwrap();
        assert_status(&output, 2);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(name), "{arguments:?}: {said}");
    }
}

#[test]
fn a_log_filter_that_is_none_is_refused() {
    let output = Command::new(OARLOCK)
        .args(["trace", "ladder", "no.pcap"])
        .env("OARLOCK_LOG", "foo=bar=baz")
        .output()
        .unwrap();
    assert_status(&output, 2);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.starts_with("error: OARLOCK_LOG=foo=bar=baz: "),
        "{said}"
    );
}

#[test]
fn json_is_exactly_one_object_on_standard_output() {
    let Some(output) = inside(
        "$OARLOCK demo -c 2 -C 2 -S 10 --json; $OARLOCK cmtime --local -c 3 --concurrency 2 --live 2 --json; $OARLOCK ps --json",
    ) else {
        return;
    };
    let text = stdout(&output);
    let objects: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
        .collect();
    let schemas: Vec<&str> = objects
        .iter()
        .map(|object| object["schema"].as_str().unwrap())
        .collect();
    assert_eq!(
        schemas,
        ["oarlock.demo/1", "oarlock.cmtime/1", "oarlock.ps/1"],
        "{text}"
    );
    assert!(objects.iter().all(|object| object["ok"] == true), "{text}");
    let cmtime = &objects[1];
    assert_eq!(
        (&cmtime["asked"], &cmtime["completed"], &cmtime["failed"]),
        (&3.into(), &3.into(), &0.into())
    );
    let names: Vec<&str> = cmtime["phases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|phase| phase["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "create_id",
            "bind_addr",
            "resolve_addr",
            "resolve_route",
            "create_qp",
            "connect",
            "disconnect",
            "destroy"
        ]
    );
    assert!(cmtime["program_bytes_per_connection"].is_number(), "{text}");
}

/// The capture of both processes and the service tells the whole exchange.
#[test]
fn a_capture_becomes_a_ladder() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK demo -c 2 -C 3 -S 5000 --pcap $d/x.pcap --ladder && $OARLOCK trace ladder $d/x.pcap; \
         e=$?; rm -r $d; exit $e",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    for message in [
        "A > B  REQ",
        "A < B  REP",
        "A > B  RTU",
        "A > B  DREQ",
        "A < B  DREP",
    ] {
        // Once by --ladder, twice by the command.
        let times = text.lines().filter(|line| line.contains(message)).count();
        assert_eq!(times, 3, "{message} in\n{text}");
    }
    let data = text.lines().filter(|line| {
        line.contains("A > B: 3 messages in")
            && line.contains("A < B: 3 messages in")
            && line.contains("15000 bytes")
    });
    assert_eq!(data.count(), 3, "{text}");
}

#[test]
fn every_command_explains_itself_with_examples() {
    for command in [
        "demo",
        "cmatose",
        "cmtime",
        "ping",
        "explain",
        "ps",
        "host",
        "trace",
        "man",
        "completions",
    ] {
        let output = Command::new(OARLOCK)
            .args([command, "--help"])
            .output()
            .unwrap();
        assert_status(&output, 0);
        let text = stdout(&output);
        assert!(
            text.contains("Examples:") && text.contains(&format!("oarlock {command}")),
            "{text}"
        );
    }
}

/// A capture that may not grow any more ends in a sentence with the limit, in each process that writes to it, and kills none.
#[test]
fn a_capture_at_the_limit_of_file_size_is_one_sentence() {
    for size in [10, 3000] {
        let Some(output) = inside(&format!(
            "d=$(mktemp -d); ulimit -f 8; $OARLOCK demo -c 5 -C 5 -S {size} --pcap $d/x.pcap; e=$?; \
             $OARLOCK ps >/dev/null && echo the service lives; rm -r $d; exit $e"
        )) else {
            return;
        };
        assert_status(&output, 1);
        let said = support::stderr(&output);
        let errors: Vec<&str> = said.lines().filter(|l| l.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{said}");
        assert!(
            errors[0].contains("packets could not be written") && errors[0].contains("ulimit -f"),
            "{said}"
        );
        assert_line(&stdout(&output), "the service lives");
    }
}

/// A copy of the program finds its service in itself, whatever its name, in a folder where nothing else is.
#[test]
fn a_copy_under_another_name_starts_itself_as_the_service() {
    let Some(output) = inside(
        "d=$(mktemp -d); cp $OARLOCK $d/rdma-tool; export PATH=/usr/bin:/bin; \
         $d/rdma-tool demo -c 2 -C 2 -S 10; e=$?; $d/rdma-tool ps | head -n 1; rm -r $d; exit $e",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("summary: connections=2/2"), "{text}");
    assert!(
        text.lines()
            .last()
            .unwrap()
            .starts_with("host service: process "),
        "{text}"
    );
}

/// The service that a program started writes its log to a file, with times; what the program logs is not in it.
#[test]
fn a_started_service_has_a_log_file() {
    let Some(output) = inside(
        "d=$(mktemp -d); OARLOCK_LOG=debug OARLOCK_LOG_FILE=$d/log $OARLOCK demo -c 2 -C 2 -S 10 >/dev/null 2>&1; e=$?; \
         cat $d/log; rm -r $d; exit $e",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    let line = text
        .lines()
        .find(|line| line.contains("connected"))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(line.starts_with("20") && line.contains('T'), "{line}");
    assert!(!text.contains('\x1b'), "{text}");
}
