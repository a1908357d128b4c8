//! A progress bar, where a person watches and it takes longer than a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

const SHOW_AFTER: Duration = Duration::from_secs(1);

/// Counts work; becomes visible after a second, on a terminal only.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: bool,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}")
            .expect("the template is a constant and well-formed");
        bar.set_style(style);
        bar.set_message(what);
        Self {
            bar,
            started: Instant::now(),
            shown: false,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// `done` of the total are done.
    pub(crate) fn set(&mut self, done: u64) {
        if !self.terminal {
            return;
        }
        if !self.shown && self.started.elapsed() > SHOW_AFTER {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.shown = true;
        }
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
