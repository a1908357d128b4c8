//! The engine thread: does what no thread of the program has done.
//!
//! It sleeps in poll(2) on the port, its own event descriptor and the sign of the service's death,
//! until the next deadline. An idle endpoint has no deadline, and the thread never wakes. It is
//! woken on purpose only when a deadline appears that is earlier than the one it sleeps for, to
//! run a hook, to take the port back, and to end.
//!
//! While the program polls busily, and nobody sleeps on a completion channel, the engine leaves
//! the port alone for [`STAND_BACK`] at a time: otherwise every packet would wake it only to find
//! the work done. A program that polls now and then, but waits for its packets otherwise (it looks at
//! memory that its peer writes, or has no processor), is found out at the end of such a time, and the
//! engine receives for a while. Such programs are helped besides (`linger.rs`). While a thread waits for completions
//! (`lead.rs`), the engine leaves the port to that one. Where packets come in streams it looks again before it sleeps
//! (`attention.rs`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use oarlock_port::Port;
use oarlock_port::thread::{spawn_without_signals, take_short_turns};
use oarlock_wire::{Time, earliest};
use rustix::event::{PollFd, PollFlags};

use crate::attention::Attention;
use crate::endpoint::Core;
use crate::queue::wait_readable;
use crate::trust::Trust;

/// Descriptors of the port's source that become readable when something has happened to it.
pub(crate) struct Signs {
    /// The host service is gone.
    pub(crate) gone: Option<OwnedFd>,
    /// Devices have changed.
    pub(crate) changes: Option<OwnedFd>,
}

/// Starts the thread. `port` is only slept on here; packets go through the core's.
pub(crate) fn start(core: Arc<Core>, port: Arc<Port>, signs: Signs) -> io::Result<()> {
    // Detached: it ends by itself when the endpoint is dropped or the service gone.
    spawn_without_signals("oarlock-engine", move || {
        take_short_turns();
        let ended = run(&core, &port, &signs);
        drop(port);
        if ended == Ended::ServiceGone {
            core.device_fatal();
        }
    })
    .map(drop)
}

/// Why the loop has ended.
#[derive(PartialEq, Eq)]
enum Ended {
    Stopped,
    ServiceGone,
}

fn run(core: &Arc<Core>, port: &Port, signs: &Signs) -> Ended {
    let mut trust = Trust::default();
    let mut attention = Attention::default();
    loop {
        if core.is_stopped() {
            core.publish_statistics();
            return Ended::Stopped;
        }
        for call in core.take_engine_calls() {
            call();
        }
        core.fire_timers();
        core.take_turns();
        if core.take_call_back() {
            trust.end(core.now(), core.polls());
        }
        let is_winning = core.lingering().is_winning();
        let is_trusted = trust.is_given(core.now(), core.polls(), is_winning);
        let part = if core.lead().is_led() {
            Part::Led
        } else if core.may_stand_back(is_trusted) {
            Part::StandBack
        } else {
            Part::Receive
        };
        if part == Part::Receive && attention.look_again(core) {
            attention.received(core.now());
            continue;
        }
        let deadline = core.timers().fall_asleep();
        let woken = sleep(core, port, signs, deadline, part);
        core.timers().wake_up();
        attention.slept(core.now());
        core.resume();
        core.counters().engine_wakeups.add(1);
        match woken {
            Ok(woken) => {
                if woken.service_gone {
                    return Ended::ServiceGone;
                }
                if woken.devices_changed {
                    core.devices_changed();
                }
                if woken.lead_lapsed {
                    core.lead().lapsed();
                }
                if woken.port_readable && core.progress_on_engine() {
                    attention.received(core.now());
                }
                if part == Part::StandBack {
                    judge(&mut trust, core, port);
                }
            }
            Err(error) => {
                // Only a shortage of kernel memory: the next round may do better, but not at once.
                tracing::warn!(%error, "the engine cannot wait for packets");
                std::thread::sleep(STAND_BACK);
            }
        }
    }
}

/// At the end of a time in which the port was left to the program: withdraws trust if packets wait and nobody polls.
fn judge(trust: &mut Trust, core: &Arc<Core>, port: &Port) {
    if !is_readable(port) {
        return trust.confirm();
    }
    let before = core.polls();
    std::thread::sleep(GLANCE);
    // A thread that is in the middle of receiving needs no help.
    if core.polls() != before || core.is_receiving() || !is_readable(port) {
        return;
    }
    core.lingering().doubt();
    trust.withdraw(core.now());
    core.progress_on_engine();
}

fn is_readable(port: &Port) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN)];
    wait_readable(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
}

/// What the engine does about the port while it sleeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// It receives.
    Receive,
    /// The program polls: nothing, for a moment.
    StandBack,
    /// A waiting thread sleeps on the port: nothing, until it stops doing so.
    Led,
}

struct Woken {
    port_readable: bool,
    service_gone: bool,
    lead_lapsed: bool,
    devices_changed: bool,
}

fn sleep(
    core: &Core,
    port: &Port,
    signs: &Signs,
    deadline: Option<Time>,
    part: Part,
) -> io::Result<Woken> {
    let now = core.now();
    let deadline = match part {
        Part::StandBack => earliest(deadline, Some(now + STAND_BACK)),
        Part::Receive | Part::Led => deadline,
    };
    let deadline = if core.backlog().is_empty() {
        deadline
    } else {
        Some(now)
    };
    let wake = core.wake_fd().as_fd();
    let on = |wanted| {
        if wanted {
            PollFlags::IN
        } else {
            PollFlags::empty()
        }
    };
    // An entry that asks for nothing stands in for a missing descriptor.
    let gone = signs.gone.as_ref().map_or(wake, AsFd::as_fd);
    let changes = signs.changes.as_ref().map_or(wake, AsFd::as_fd);
    let mut fds = [
        PollFd::from_borrowed_fd(wake, PollFlags::IN),
        PollFd::from_borrowed_fd(port.as_fd(), on(part == Part::Receive)),
        PollFd::from_borrowed_fd(gone, on(signs.gone.is_some())),
        PollFd::from_borrowed_fd(core.lead().lapse_fd().as_fd(), on(part == Part::Led)),
        PollFd::from_borrowed_fd(changes, on(signs.changes.is_some())),
    ];
    wait_readable(&mut fds, deadline.map(|deadline| deadline - now))?;
    let ready = fds.each_ref().map(|fd| !fd.revents().is_empty());
    if ready[0] {
        // Non-blocking; an empty counter means that another wake-up was folded into this one.
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }
    Ok(Woken {
        port_readable: ready[1],
        service_gone: ready[2],
        lead_lapsed: ready[3],
        devices_changed: ready[4],
    })
}

/// A program that polls does so several times within this time.
const GLANCE: Duration = Duration::from_micros(100);
/// How long the engine leaves the port to a program that polls.
pub(crate) const STAND_BACK: Duration = Duration::from_millis(1);
