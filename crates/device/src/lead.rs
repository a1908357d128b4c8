//! A thread that waits for completions sleeps on the port itself, in the engine's place.
//!
//! Otherwise every message would wake two threads one after the other: the engine by the packet,
//! and the waiter by the engine. One waiter at a time leads; the engine keeps to deadlines then. It
//! does not take the port back when the leader stops waiting, because programs usually wait again
//! at once, but only when the timer runs out that the leader sets as it leaves.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use oarlock_port::Port;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::endpoint::Core;
use crate::engine::STAND_BACK;
use crate::error::Error;
use crate::locks::{lock, try_lock};
use crate::queue::wait_readable;

/// Who sleeps on the port.
pub(crate) struct Lead {
    /// Held by the leader.
    leader: Mutex<()>,
    /// The engine leaves the port alone.
    led: AtomicBool,
    /// Wakes the leader for completions that do not come from the port.
    wake: OwnedFd,
    /// Wakes the engine when a leader has left and none has come since.
    lapse: OwnedFd,
}

/// The lead, held by the calling thread.
pub(crate) struct Leading<'a> {
    core: &'a Core,
    port: Arc<Port>,
    /// Taken out when the lead ends.
    leader: Option<MutexGuard<'a, ()>>,
}

impl Lead {
    pub(crate) fn new() -> Result<Self, Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("create an event descriptor"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let lapse = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(Error::system("create a timer descriptor"))?;
        Ok(Self {
            leader: Mutex::new(()),
            led: AtomicBool::new(false),
            wake,
            lapse,
        })
    }

    pub(crate) fn try_begin<'a>(&'a self, core: &'a Core, port: Arc<Port>) -> Option<Leading<'a>> {
        let leader = try_lock(&self.leader)?;
        // Looked at with the lead in hand: who makes the service gone later waits for us.
        if core.is_gone() {
            return None;
        }
        if self.led.swap(true, Ordering::SeqCst) {
            self.set_lapse(Duration::ZERO);
        } else {
            core.wake_engine();
        }
        Some(Leading {
            core,
            port,
            leader: Some(leader),
        })
    }

    /// Whether the engine is to leave the port alone.
    pub(crate) fn is_led(&self) -> bool {
        self.led.load(Ordering::SeqCst)
    }

    /// Becomes readable when the lead may have lapsed.
    pub(crate) fn lapse_fd(&self) -> &OwnedFd {
        &self.lapse
    }

    /// The timer has run out: the engine takes the port back, unless somebody leads again.
    pub(crate) fn lapsed(&self) {
        // Non-blocking; disarmed since is as good.
        let _ = rustix::io::read(&self.lapse, &mut [0; 8]);
        self.end_if_idle();
    }

    /// Gives the port to the engine if it is left alone but nobody leads; the caller then wakes it.
    pub(crate) fn end_if_idle(&self) -> bool {
        if !self.is_led() {
            return false;
        }
        let idle = try_lock(&self.leader);
        // The lock is held meanwhile, so that nobody begins to lead.
        idle.is_some() && self.led.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn wake(&self) {
        // A full counter means that the leader is being woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Ends the lead and waits until the leader has let go of the port.
    pub(crate) fn dismiss(&self) {
        self.wake();
        drop(lock(&self.leader));
        self.led.store(false, Ordering::SeqCst);
    }

    /// The leader stops, and nobody may be counting on the engine: it takes the port back in a moment.
    fn leave(&self, leader: MutexGuard<'_, ()>) {
        // Before the timer: were it to run out while the lock is held, the engine would find somebody leading, and nobody would
        // set the timer again. Whoever begins in between finds it set, and has one idle wake-up of the engine for it.
        drop(leader);
        self.set_lapse(STAND_BACK);
    }

    /// Runs out after `delay`; zero stops it.
    fn set_lapse(&self, delay: Duration) {
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: 0,
                tv_nsec: delay.subsec_nanos().into(),
            },
        };
        // Fails only for values out of range.
        let set = timerfd_settime(&self.lapse, TimerfdTimerFlags::empty(), &once);
        debug_assert!(set.is_ok());
    }
}

impl Leading<'_> {
    /// Sleeps until something has arrived at the port (`true`), somebody calls
    /// [`Lead::wake`], or `timeout` has passed.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let wake = self.core.lead().wake.as_fd();
        let mut fds = [
            PollFd::from_borrowed_fd(self.port.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(wake, PollFlags::IN),
        ];
        wait_readable(&mut fds, timeout).map_err(Error::system("wait for packets"))?;
        let [port, woken] = fds.each_ref().map(|fd| !fd.revents().is_empty());
        if woken {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        Ok(port)
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let lead = self.core.lead();
        if self.core.has_armed() {
            // With the lead in hand, so that nobody begins to lead meanwhile.
            lead.led.store(false, Ordering::SeqCst);
            self.core.wake_engine();
        } else if let Some(leader) = self.leader.take() {
            lead.leave(leader);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The engine's part: sleeps until the timer runs out, and takes the port back.
    fn wait_for_lapse(lead: &Lead) {
        let mut fds = [PollFd::from_borrowed_fd(
            lead.lapse_fd().as_fd(),
            PollFlags::IN,
        )];
        wait_readable(&mut fds, Some(Duration::from_secs(300))).expect("poll");
        lead.lapsed();
    }

    /// The lock was held while the timer ran: preempted there, the leader left the port to nobody.
    #[test]
    fn a_leader_that_leaves_lets_go_before_the_timer_can_run_out() {
        let lead = Lead::new().expect("descriptors");
        for _ in 0..20 {
            let leader = lock(&lead.leader);
            lead.led.store(true, Ordering::SeqCst);
            lead.leave(leader);
            // Nothing is held from here on, however long this thread sleeps.
            assert!(try_lock(&lead.leader).is_some());
            wait_for_lapse(&lead);
            assert!(!lead.is_led(), "nobody reads the port");
        }
    }

    #[test]
    fn a_timer_that_runs_out_beside_a_leader_leaves_the_lead_to_it() {
        let lead = Lead::new().expect("descriptors");
        lead.leave(lock(&lead.leader));
        let leader = lock(&lead.leader);
        lead.led.store(true, Ordering::SeqCst);
        wait_for_lapse(&lead);
        assert!(lead.is_led());
        lead.leave(leader);
        wait_for_lapse(&lead);
        assert!(!lead.is_led());
    }
}
