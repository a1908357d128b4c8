//! The example `pingpong` runs, both sides in one process.

#[path = "support/loopback.rs"]
mod loopback;
#[path = "../examples/pingpong.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "an example has a main of its own"
)]
mod pingpong;

use loopback::{arguments, with_loopback};

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
