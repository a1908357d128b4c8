//! The smallest host service: `host host [--grace SECONDS]`, as `Host::open` starts one. The tests use it.

use oarlock_hostd::service::{LogFile, ServiceConfig, run};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let mut config = ServiceConfig::default();
    if let Some(place) = arguments.iter().position(|argument| argument == "--grace") {
        let seconds = arguments
            .get(place + 1)
            .and_then(|seconds| seconds.parse().ok());
        config.grace = seconds.map(Duration::from_secs);
    }
    if let Ok(Some(log)) = LogFile::from_env() {
        tracing_subscriber::fmt()
            .with_writer(Mutex::new(log))
            .with_ansi(false)
            .init();
    }
    let ready = || {
        let _ = writeln!(std::io::stdout(), "ready");
    };
    match run(config, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
