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
    _leader: MutexGuard<'a, ()>,
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
            _leader: leader,
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
        // Still with the lead in hand, so that a successor disarms the timer after us.
        let lead = self.core.lead();
        if self.core.has_armed() {
            lead.led.store(false, Ordering::SeqCst);
            self.core.wake_engine();
        } else {
            lead.set_lapse(STAND_BACK);
        }
    }
}
