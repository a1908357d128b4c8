//! `oarlock bench` and `oarlock devices` as programs.

use super::support::{assert_status, inside, oarlock, stderr, stdout};

/// One measurement's object, with nothing wrong in it.
fn result_of(text: &str) -> serde_json::Value {
    let line = text.lines().find(|line| line.starts_with('{'));
    let mut object: serde_json::Value =
        serde_json::from_str(line.unwrap_or_else(|| panic!("no object in {text}"))).unwrap();
    assert_eq!(object["schema"], "oarlock.bench/1");
    assert_eq!(object["ok"], true, "{object}");
    let result = object["results"][0].take();
    assert_eq!(result["mismatches"], 0, "{result}");
    assert!(result["messages"].as_u64().unwrap() > 0, "{result}");
    assert!(result["bytes_per_s"].as_f64().unwrap() > 0.0, "{result}");
    assert!(
        result["cpu_ns_per_msg"]["tx"].as_f64().unwrap() > 0.0,
        "{result}"
    );
    result
}

/// Every operation that a transport service has, by both ways of waiting, between two processes, contents compared.
#[test]
fn every_operation_is_measured_and_its_contents_compared() {
    for arguments in [
        "send --size 5000 --qps 2",
        "send --mode event --lat",
        "send --transport uc --size 3000 --window 8",
        "send --transport ud --size 512 --window 8",
        "write --size 5000 --mode event",
        "write --lat",
        "write --lat --mode event",
        "write --transport uc --size 64 --window 8",
        "read --size 5000 --qps 2 --mode event",
        "read --lat --mode event",
        "atomic --mode event",
        "atomic --atomic cswap --qps 2 --mode event",
        "send --path tcp --qps 2",
        "send --path tcp --lat --mode event",
        "write --path tcp --mode event",
        "read --path tcp --mode event",
    ] {
        let Some(output) = inside(&format!(
            "$OARLOCK bench {arguments} --local --seconds 0.2 --json"
        )) else {
            return;
        };
        assert_status(&output, 0);
        let result = result_of(&stdout(&output));
        let op = arguments.split(' ').next().unwrap();
        assert_eq!(result["op"], op);
        assert_eq!(result["checked"], true);
        let is_reliable = !arguments.contains("uc") && !arguments.contains("ud ");
        if is_reliable {
            assert_eq!(result["lost"], 0, "{arguments}: {result}");
        }
        if arguments.contains("--lat") {
            let times = &result["lat_us"];
            assert!(times["min"].as_f64() <= times["p50"].as_f64(), "{result}");
            assert!(times["p999"].as_f64() <= times["max"].as_f64(), "{result}");
        }
    }
}

/// A server for a client elsewhere: it serves one, says what it has served, and ends.
#[test]
fn a_server_serves_one_client_over_either_family() {
    for address in ["127.0.0.1", "::1"] {
        let Some(output) = inside(&format!(
            "d=$(mktemp -d); $OARLOCK bench --server >$d/server & s=$!; until grep -q listening $d/server; do sleep 0.01; done; \
             $OARLOCK bench read {address} --size 100 --seconds 0.2 --json; c=$?; wait $s; e=$?; cat $d/server; rm -r $d; exit $((c + e))"
        )) else {
            return;
        };
        assert_status(&output, 0);
        let text = stdout(&output);
        assert_eq!(result_of(&text)["op"], "read");
        assert!(text.contains("served: read, "), "{text}");
    }
}

/// What a server does not serve is told on both sides, and so is a client that is none.
#[test]
fn a_refusal_is_told_by_both_sides() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK bench send --server >$d/server & s=$!; until grep -q listening $d/server; do sleep 0.01; done; \
         $OARLOCK bench read 127.0.0.1; echo client $?; wait $s; echo server $?; \
         $OARLOCK bench --server >$d/server & s=$!; until grep -q listening $d/server; do sleep 0.01; done; \
         printf 'GET / HTTP/1.1\\r\\n\\r\\n' | timeout 300 bash -c 'cat >/dev/tcp/127.0.0.1/18515'; wait $s; echo foreign $?; rm -r $d",
    ) else {
        return;
    };
    let text = stdout(&output);
    for line in ["client 1", "server 1", "foreign 1"] {
        super::support::assert_line(&text, line);
    }
    let said = stderr(&output);
    assert!(
        said.contains("the other side refuses: read is asked for, and send is served"),
        "{said}"
    );
    assert!(
        said.contains("the other side is no `oarlock bench`"),
        "{said}"
    );
}

/// What cannot be measured is refused by name, before anything is begun.
#[test]
fn what_cannot_be_measured_is_wrong_usage() {
    for (arguments, sentence) in [
        (
            &["bench", "read", "--local", "--transport", "uc"][..],
            "read on uc",
        ),
        (
            &["bench", "write", "--local", "--transport", "ud"],
            "write on ud",
        ),
        (
            &["bench", "send", "--local", "--path", "local"],
            "--path local",
        ),
        (
            &["bench", "atomic", "--local", "--path", "tcp"],
            "atomic operation",
        ),
        (&["bench", "atomic", "--local", "--size", "16"], "8 bytes"),
        (
            &["bench", "send", "--local", "--atomic", "fadd"],
            "--atomic",
        ),
        (
            &["bench", "send", "--local", "--lat", "--qps", "2"],
            "--lat with --qps 2",
        ),
        (&["bench", "--server", "--size", "8"], "--size"),
        (&["bench", "send"], "--local"),
        (&["bench", "send", "--local", "--size", "0"], "0"),
    ] {
        let output = oarlock(arguments);
        assert_status(&output, 2);
        let said = stderr(&output);
        assert!(said.contains(sentence), "{arguments:?}: {said}");
    }
    let Some(output) = inside("$OARLOCK bench send --local --transport ud --size 5000") else {
        return;
    };
    assert_status(&output, 2);
    let said = stderr(&output);
    assert!(
        said.contains("a datagram is one packet, and the path MTU is 4096 bytes"),
        "{said}"
    );
}

/// The devices of a machine with nothing but loopback, with what was counted on them.
#[test]
fn devices_are_shown_with_their_statistics() {
    let Some(output) = inside(
        "$OARLOCK host >/dev/null & h=$!; until $OARLOCK ps >/dev/null 2>&1; do sleep 0.05; done; \
         $OARLOCK bench send --local --size 100 --seconds 0.2 >/dev/null || exit 3; \
         $OARLOCK devices -v; $OARLOCK devices --json; $OARLOCK devices -d nothing; echo unknown $?; kill $h; wait $h",
    ) else {
        return;
    };
    let text = stdout(&output);
    super::support::assert_line(&text, "unknown 1");
    assert!(stderr(&output).contains("there is no device nothing"));
    for part in [
        "max_qp_wr: ",
        "link_layer: ",
        "GID[  0]: ",
        "RoCE v2, 127.0.0.1",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let object = text.lines().find(|line| line.starts_with('{')).unwrap();
    let object: serde_json::Value = serde_json::from_str(object).unwrap();
    let device = &object["devices"][0];
    assert_eq!(device["is_loopback"], true);
    assert_eq!(
        (&device["port"]["state"], &device["port"]["active_mtu"]),
        (&"active".into(), &4096.into())
    );
    assert_eq!(device["gids"][0]["type"], "RoCE v2");
    assert!(
        device["limits"]["max_qp_rd_atom"].as_u64() > Some(0),
        "{device}"
    );
    let sent = device["statistics"]["sent_pkts"].as_u64().unwrap();
    assert!(sent > 0, "{device}");
}
