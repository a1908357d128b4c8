//! `oarlock ping` as a program.

use super::support::{assert_line, assert_status, inside, oarlock, stderr, stdout};

/// What the options do, over both families: number, size, printing, comparing, JSON on both sides.
#[test]
fn a_client_and_a_server_exchange_and_sum_up() {
    for address in ["127.0.0.1", "::1"] {
        let Some(output) = inside(&format!(
            "d=$(mktemp -d); $OARLOCK ping -s -a {address} -p 7000 -V -v --json >$d/server 2>$d/said & s=$!; \
             until grep -q listening $d/said; do sleep 0.01; done; \
             $OARLOCK ping -c -a {address} -p 7000 -C 3 -S 20 -V -v >$d/client; c=$?; wait $s; e=$?; \
             cat $d/client; echo server; cat $d/server; echo said; cat $d/said; rm -r $d; exit $((c + e))"
        )) else {
            return;
        };
        assert_status(&output, 0);
        let text = stdout(&output);
        let (client, rest) = text.split_once("\nserver\n").unwrap();
        let (server, said) = rest.split_once("\nsaid\n").unwrap();
        for number in 0..3 {
            assert!(
                client
                    .lines()
                    .any(|line| line.starts_with(&format!("ping {number}: "))
                        && line.contains(&format!("data: rdma-ping-{number}: "))),
                "{client}"
            );
            assert!(
                said.contains(&format!("ping {number}, data: rdma-ping-{number}: ")),
                "{said}"
            );
        }
        assert!(
            client.contains("3 messages of 20 bytes sent, 3 received, 0 lost, 0 wrong"),
            "{client}"
        );
        assert!(
            client
                .lines()
                .last()
                .unwrap()
                .starts_with("rtt min/avg/max/mdev = "),
            "{client}"
        );
        let server: serde_json::Value = serde_json::from_str(server).unwrap();
        assert_eq!(server["schema"], "oarlock.ping/1");
        assert_eq!(
            (&server["ok"], &server["side"], &server["clients"]),
            (&true.into(), &"server".into(), &1.into())
        );
        assert_eq!(
            (&server["answered"], &server["mismatches"]),
            (&3.into(), &0.into())
        );
    }
}

/// Ended by Ctrl-C a client sums up, disconnects and has done what it was asked; -w ends it by itself.
#[test]
fn a_client_without_a_number_goes_on_until_it_is_ended() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK ping -s -P >$d/server & s=$!; until grep -q listening $d/server; do sleep 0.01; done; \
         $OARLOCK ping -c -a 127.0.0.1 -v >$d/client & c=$!; until grep -q '^ping 3: ' $d/client; do sleep 0.01; done; \
         kill -INT $c; wait $c; echo int $?; \
         $OARLOCK ping -c -a 127.0.0.1 -i 0.05 -w 0.3 --json; echo deadline $?; \
         kill -TERM $s; wait $s; echo server $?; cat $d/client $d/server; rm -r $d",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    for line in ["int 0", "deadline 0", "server 0"] {
        assert_line(&text, line);
    }
    assert!(text.contains(" 0 lost, 0 wrong"), "{text}");
    let object = text.lines().find(|line| line.starts_with('{')).unwrap();
    let object: serde_json::Value = serde_json::from_str(object).unwrap();
    assert_eq!(object["side"], "client");
    assert!(object["rtt_us"]["avg"].as_f64().unwrap() > 0.0, "{object}");
    assert!(object["sent"].as_u64().unwrap() > 0, "{object}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("served: clients 2, refused 0, messages ")),
        "{text}"
    );
}

/// What goes on without end ends when nobody reads any more, as `ps --watch` does; what has an end is brought to it.
#[test]
fn a_client_without_a_number_ends_when_nobody_reads() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK ping -s -P >$d/server & s=$!; until grep -q listening $d/server; do sleep 0.01; done; \
         ($OARLOCK ping -c -a 127.0.0.1 -v; echo endless $? >&2) | head -n 1; \
         ($OARLOCK ping -c -a 127.0.0.1 -C 50 -v; echo counted $? >&2) | head -n 1; \
         kill -TERM $s; wait $s; cat $d/server; rm -r $d",
    ) else {
        return;
    };
    let said = stderr(&output);
    for line in ["endless 0", "counted 0"] {
        assert_line(&said, line);
    }
    assert!(
        stdout(&output).contains(": ended, messages 50, "),
        "{}",
        stdout(&output)
    );
}

/// A server that cannot listen says why, and sums up nothing.
#[test]
fn a_server_that_cannot_listen_has_served_nobody() {
    let Some(output) = inside("$OARLOCK ping -s -a 192.0.2.1") else {
        return;
    };
    assert_status(&output, 1);
    assert_eq!(stdout(&output), "");
    assert!(
        stderr(&output).contains("192.0.2.1 is not an address of this host"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn options_of_the_other_side_are_wrong_usage() {
    for arguments in [
        &["ping", "-s", "-C", "3"][..],
        &["ping", "-s", "-S", "3"],
        &["ping", "-c"],
        &["ping", "-c", "-a", "::1", "-P"],
        &["ping", "-c", "-s", "-a", "::1"],
        &["ping", "-a", "::1"],
        &["ping", "-c", "-a", "::1", "-S", "2000000"],
        &["ping", "-c", "-a", "::1", "-S", "0"],
        &["ping", "-c", "-a", "::1", "-C", "0"],
        &["ping", "-c", "-a", "::1", "--timeout", "0"],
    ] {
        assert_status(&oarlock(arguments), 2);
    }
}
