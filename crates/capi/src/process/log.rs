//! The log of the C libraries: to standard error, what `$OARLOCK_LOG` asks for.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "OARLOCK_LOG";
/// A library is silent unless something is broken: that a call is refused is told by its answer.
const DEFAULT: &str = "error";

/// Starts the log, once. Before, nothing is logged: a thread that comes while another is at it goes on without, since a child
/// that is forked meanwhile would wait for ever.
pub(crate) fn start() {
    static IS_BEGUN: AtomicBool = AtomicBool::new(false);
    if IS_BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    let asked = std::env::var_os(VARIABLE).filter(|text| !text.is_empty());
    let (filter, problem) = match asked {
        None => (EnvFilter::new(DEFAULT), None),
        Some(text) => {
            let text = text.to_string_lossy().into_owned();
            match EnvFilter::try_new(&text) {
                Ok(filter) => (filter, None),
                Err(error) => (
                    EnvFilter::new(DEFAULT),
                    Some(format!("{VARIABLE}={text}: {error}")),
                ),
            }
        }
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(false)
        .without_time()
        .log_internal_errors(false)
        .with_writer(|| StandardError)
        .finish();
    // This copy of the library has its own global log, whatever the program uses.
    if tracing::subscriber::set_global_default(log).is_ok()
        && let Some(problem) = problem
    {
        tracing::error!("{problem}");
    }
}

/// Descriptor 2, without the lock of the standard library: a fork may happen while another thread holds that.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(io::stderr(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
