//! Memory for tests to take away, and watchers that may not be there.
#![allow(dead_code, reason = "each test program uses its part")]

use std::ops::Range;
use std::os::fd::AsFd;

use libc::c_void;
use oarlock_memwatch::{Error, Event, Invalidation, Mode, Options, Watcher};
use oarlock_sim::not_run;

pub(crate) const PAGE: usize = 4096;

/// A Watcher in full mode; `None` was said on standard error.
pub(crate) fn watcher() -> Option<Watcher> {
    watcher_with(Options::default())
}

pub(crate) fn watcher_with(options: Options) -> Option<Watcher> {
    match Watcher::with(options) {
        Ok(watcher) if watcher.capabilities().mode() == Mode::Full => Some(watcher),
        Ok(_) => {
            not_run("userfaultfd", "this kernel is older than 6.7");
            None
        }
        Err(error @ Error::Unavailable { .. }) => {
            not_run("userfaultfd", error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Everything that is unread, without the last event.
pub(crate) fn drain(watcher: &Watcher) -> Vec<Invalidation> {
    let mut events = Vec::new();
    watcher
        .read_events(&mut events, usize::MAX)
        .expect("a working watcher");
    events
        .into_iter()
        .filter_map(|event| match event {
            Event::Invalidated(event) => Some(event),
            _ => None,
        })
        .collect()
}

pub(crate) fn cookies(watcher: &Watcher) -> Vec<u64> {
    drain(watcher).iter().map(|event| event.cookie).collect()
}

/// Whether the descriptor is readable.
pub(crate) fn is_readable(of: &impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(of, PollFlags::IN)];
    let at_once = Timespec::default();
    poll(&mut fds, Some(&at_once)).expect("poll") == 1
}

/// Anonymous pages, written to.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Pages {
    pub(crate) fn new(count: usize) -> Self {
        let this = Self {
            start: map(None, count * PAGE),
            len: count * PAGE,
        };
        for page in 0..count {
            this.write(page * PAGE);
        }
        this
    }

    /// Pages that are not there until they are touched.
    pub(crate) fn untouched(count: usize) -> Self {
        Self {
            start: map(None, count * PAGE),
            len: count * PAGE,
        }
    }

    pub(crate) fn write(&self, offset: usize) {
        assert!(offset < self.len);
        // SAFETY: inside a mapping of ours.
        unsafe { std::ptr::write_volatile((self.start + offset) as *mut u8, 1) };
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// The bytes of pages, by number.
    pub(crate) fn part(&self, pages: Range<usize>) -> Range<usize> {
        self.start + pages.start * PAGE..self.start + pages.end * PAGE
    }

    pub(crate) fn unmap(self) {
        unmap(self.range());
    }

    pub(crate) fn unmap_part(&self, pages: Range<usize>) {
        unmap(self.part(pages));
    }

    pub(crate) fn discard(&self, pages: Range<usize>) {
        discard(self.part(pages));
    }
}

/// Maps private memory, at `at` if nothing is there; panics if that fails.
pub(crate) fn map(at: Option<usize>, len: usize) -> usize {
    try_map(at, len).expect("memory")
}

pub(crate) fn try_map(at: Option<usize>, len: usize) -> Option<usize> {
    let fixed = at.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: replaces nothing.
    let start = unsafe { libc::mmap(at.unwrap_or(0) as *mut c_void, len, prot, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start as usize)
}

pub(crate) fn unmap(range: Range<usize>) {
    // SAFETY: memory of a test's own, that it does not use any more.
    let result = unsafe { libc::munmap(range.start as *mut c_void, range.len()) };
    assert_eq!(result, 0);
}

pub(crate) fn discard(range: Range<usize>) {
    // SAFETY: memory of a test's own, whose contents it does not use.
    let result =
        unsafe { libc::madvise(range.start as *mut c_void, range.len(), libc::MADV_DONTNEED) };
    assert_eq!(result, 0);
}

/// Runs something in a forked child, which must say true.
pub(crate) fn in_child(what: impl FnOnce() -> bool) {
    assert_eq!(status_of_child(what), 0, "the child says no");
}

/// What wait(2) says of a forked child that runs something: 0 if that says true.
pub(crate) fn status_of_child(what: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs only what the test gives it, and ends without running what the parent registered.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).unwrap_or(false);
        // SAFETY: see above.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    assert!(child > 0);
    wait_for(child)
}

pub(crate) fn wait_for(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: our own child, and a status of ours.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(ended, child);
    status
}

/// Makes a system call fail in this thread.
pub(crate) fn refuse_system_call(number: libc::c_long, errno: libc::c_int) -> std::io::Result<()> {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let filter = [
        // The number of the call is the first word of struct seccomp_data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            number as u32,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the program lives through the call; it concerns this thread, which is the test's own.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Ends the process if a test hangs, instead of whatever runs it.
pub(crate) fn watchdog(seconds: u32) {
    // SAFETY: passes no memory.
    unsafe { libc::alarm(seconds) };
}
