//! The example `one_sided` runs, both sides in one process.

#[path = "support/loopback.rs"]
mod loopback;
#[path = "../examples/one_sided.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "an example has a main of its own"
)]
mod one_sided;

use loopback::{arguments, with_loopback};

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
