// For examples whose two sides meet at a TCP port.

use oarlock_sim::in_namespace;

pub(crate) fn arguments(line: &str) -> impl Iterator<Item = String> {
    line.split(' ')
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter()
}

/// In a namespace of its own, as the sides meet at a TCP port.
pub(crate) fn with_loopback(test: &str, body: impl FnOnce()) {
    in_namespace(&["-Urn"], test, || {
        let up = std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.expect("ip").success());
        body();
    });
}
