//! What is heard of devices and the host service before there is a queue pair: a thread that sleeps on the signs of the
//! port's source until the engine does so.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oarlock_port::thread::spawn_without_signals;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::endpoint::{Core, Endpoint};
use crate::engine::Signs;
use crate::error::Error;
use crate::queue::wait_readable;

/// The watching thread of an endpoint, if it has one.
pub(crate) struct Watch {
    is_started: AtomicBool,
    /// Readable from when the thread shall end.
    end: OwnedFd,
}

impl Watch {
    pub(crate) fn new() -> Result<Self, Error> {
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("create the watch's event descriptor"))?;
        Ok(Self {
            is_started: AtomicBool::new(false),
            end,
        })
    }

    /// Somebody else watches from now on, or nobody needs to. Not for a forked child, whose descriptor is the parent's, too.
    pub(crate) fn end(&self) {
        // It is written twice at most.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
    }
}

impl Endpoint {
    /// Has the contexts hear of their devices, and of the end of the host service, from now on: without this they do so
    /// from the first queue pair on. Takes no slot of the port. Once is enough.
    ///
    /// # Errors
    /// `System`: no descriptor or thread left. `DeviceFatal`: the host service is gone. `Forked`.
    pub fn watch(&self) -> Result<(), Error> {
        let core = self.core();
        core.check_not_forked()?;
        if core.is_gone() {
            return Err(Error::DeviceFatal);
        }
        // The engine watches from the first queue pair on, and ends what has not begun.
        if core.watch().is_started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let started = core.signs().and_then(|signs| {
            let core = Arc::clone(core);
            spawn_without_signals("oarlock-watch", move || run(&core, &signs))
                .map_err(Error::system("start the watching thread"))
        });
        if started.is_err() {
            core.watch().is_started.store(false, Ordering::Release);
        }
        started.map(drop)
    }
}

fn run(core: &Arc<Core>, signs: &Signs) {
    let end = core.watch().end.as_fd();
    // An entry that asks for nothing stands in for a missing descriptor.
    let sign = |fd: &Option<OwnedFd>| match fd {
        Some(_) => PollFlags::IN,
        None => PollFlags::empty(),
    };
    loop {
        let gone = signs.gone.as_ref().map_or(end, AsFd::as_fd);
        let changes = signs.changes.as_ref().map_or(end, AsFd::as_fd);
        let mut fds = [
            PollFd::from_borrowed_fd(end, PollFlags::IN),
            PollFd::from_borrowed_fd(gone, sign(&signs.gone)),
            PollFd::from_borrowed_fd(changes, sign(&signs.changes)),
        ];
        if let Err(error) = wait_readable(&mut fds, None) {
            tracing::warn!(%error, "devices are not watched before the first queue pair");
            return;
        }
        let [is_over, is_gone, is_changed] = fds.each_ref().map(|fd| !fd.revents().is_empty());
        if is_over {
            return;
        }
        if is_gone {
            core.device_fatal();
            return;
        }
        if is_changed {
            core.devices_changed();
        }
    }
}
