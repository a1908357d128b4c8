//! The examples run, both sides in one process.

#[path = "../examples/one_sided.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "an example has a main of its own"
)]
mod one_sided;
#[path = "../examples/pingpong.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "an example has a main of its own"
)]
mod pingpong;

use oarlock_sim::in_namespace;

fn arguments(line: &str) -> impl Iterator<Item = String> {
    line.split(' ')
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter()
}

/// In a namespace of its own, as the sides meet at a TCP port.
fn with_loopback(test: &str, body: impl FnOnce()) {
    in_namespace(&["-Urn"], test, || {
        let up = std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.expect("ip").success());
        body();
    });
}

#[test]
fn pingpong_plays_every_transport() {
    with_loopback("pingpong_plays_every_transport", || {
        for line in [
            "pingpong --private -c -n 50",
            "pingpong --private -c -n 50 --transport uc",
            "pingpong --private -c -n 50 --transport ud",
            "pingpong --private -c -e -n 20 -r 1 -m 256 -s 1",
            "pingpong --private -c -e -n 20 --transport ud -r 2 -s 0",
            "pingpong --private -n 5 -s 1000000 -m 4096 -p 4711 -g 0",
        ] {
            let options = pingpong::Options::parse(arguments(line)).expect(line);
            pingpong::run_private(&options).expect(line);
        }
    });
    for line in [
        "pingpong -x",
        "pingpong -m 1000",
        "pingpong -p",
        "pingpong --transport rd",
        "pingpong one two",
        "pingpong -n 0",
    ] {
        pingpong::Options::parse(arguments(line)).expect_err(line);
    }
}

#[test]
fn one_sided_operations_leave_no_mismatch() {
    with_loopback("one_sided_operations_leave_no_mismatch", || {
        for line in [
            "one_sided --private",
            "one_sided --private -w",
            "one_sided --private -w -n 256 -p 4712",
        ] {
            let options = one_sided::Options::parse(arguments(line)).expect(line);
            assert_eq!(one_sided::run_private(&options).expect(line), 0, "{line}");
        }
    });
    for line in [
        "one_sided",
        "one_sided -s somewhere",
        "one_sided -s -n 7",
        "one_sided -x",
    ] {
        one_sided::Options::parse(arguments(line)).expect_err(line);
    }
}
