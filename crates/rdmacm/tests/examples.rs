//! The examples run, on private hosts.

#[path = "../examples/mckey.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "an example has a main of its own"
)]
mod mckey;
#[path = "../examples/udaddy.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "an example has a main of its own"
)]
mod udaddy;

fn arguments(line: &str) -> impl Iterator<Item = String> {
    line.split(' ')
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter()
}

#[test]
fn udaddy_sets_up_paths_and_is_answered() {
    for line in [
        "udaddy --private",
        "udaddy --private -c 5 -C 20 -S 1024",
        "udaddy --private -C 0",
        "udaddy --private -p ipoib -t 32",
    ] {
        let options = udaddy::Options::parse(arguments(line)).expect(line);
        udaddy::run(&options).expect(line);
    }
    for line in [
        "udaddy -x 1",
        "udaddy -c",
        "udaddy -p tcp",
        "udaddy -c many",
        "udaddy -t 256",
    ] {
        udaddy::Options::parse(arguments(line)).expect_err(line);
    }
    let long = udaddy::Options::parse(arguments("udaddy --private -S 100000")).unwrap();
    udaddy::run(&long).expect_err("more than a packet");
}

#[test]
fn mckey_joins_and_receives() {
    for line in [
        "mckey --private",
        "mckey --private -c 3 -C 4 -S 1000",
        "mckey --private -m 239.9.9.9 -p ipoib",
    ] {
        let options = mckey::Options::parse(arguments(line)).expect(line);
        mckey::run(&options).expect(line);
    }
    for line in [
        "mckey",
        "mckey -m",
        "mckey -m somewhere",
        "mckey -m 239.1.1.1 -x",
    ] {
        mckey::Options::parse(arguments(line)).expect_err(line);
    }
}
