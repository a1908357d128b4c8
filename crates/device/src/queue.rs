//! A queue of events with a descriptor that is readable exactly while events are queued.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::error::Error;
use crate::locks::lock;

/// Events and an eventfd in semaphore mode whose count is their number.
///
/// The invariant holds because both are changed under one lock: whoever holds it and finds an
/// event also finds the count at one or more, so that the read below never blocks, although the
/// descriptor is a blocking one (the program decides that with `fcntl`).
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        let fd = eventfd(0, flags).map_err(Error::system("create an event descriptor"))?;
        Ok(Self {
            fd,
            events: Mutex::default(),
        })
    }

    pub(crate) fn push(&self, event: T) {
        let mut events = lock(&self.events);
        events.push_back(event);
        self.count_up();
    }

    /// Queues an event, or moves it to the end if it is queued already.
    pub(crate) fn push_or_move(&self, event: T)
    where
        T: PartialEq,
    {
        let mut events = lock(&self.events);
        match events.iter().position(|queued| *queued == event) {
            Some(position) => {
                events.remove(position);
                events.push_back(event);
            }
            None => {
                events.push_back(event);
                self.count_up();
            }
        }
    }

    pub(crate) fn try_pop(&self) -> Option<T> {
        let mut events = lock(&self.events);
        let event = events.pop_front()?;
        self.count_down();
        Some(event)
    }

    /// Drops the events for which `keep` is false.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&T) -> bool) {
        let mut events = lock(&self.events);
        let before = events.len();
        events.retain(|event| keep(event));
        for _ in events.len()..before {
            self.count_down();
        }
    }

    /// The next event; waits for it up to `timeout` (`None`: as long as it takes).
    ///
    /// If the program has made the descriptor non-blocking, an empty queue is
    /// [`Error::WouldBlock`].
    pub(crate) fn pop_wait(&self, timeout: Option<Duration>) -> Result<Option<T>, Error> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.try_pop() {
                return Ok(Some(event));
            }
            let flags = fcntl_getfl(&self.fd).map_err(Error::system("read descriptor flags"))?;
            if flags.contains(OFlags::NONBLOCK) {
                return Err(Error::WouldBlock);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            wait_readable(&mut [PollFd::new(&self.fd, PollFlags::IN)], left)
                .map_err(Error::system("wait for an event"))?;
        }
    }

    /// The next event, for who has read the descriptor and so counted it down; `None` if what was counted has been removed
    /// or taken in between, and the descriptor is to be read again. `taken` is called with the queue locked: who removes
    /// events afterwards ([`retain`](Self::retain)) finds what it has done.
    pub(crate) fn take_counted(&self, taken: impl FnOnce(&T)) -> Option<T> {
        let mut events = lock(&self.events);
        events.pop_front().inspect(taken)
    }

    fn count_up(&self) {
        // Fails only at 2^64 - 2 queued events.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    fn count_down(&self) {
        let readable = wait_readable(
            &mut [PollFd::new(&self.fd, PollFlags::IN)],
            Some(Duration::ZERO),
        );
        // The count is short if somebody has read the descriptor (see `take_counted`); then a read would block for ever.
        if readable.is_ok_and(|ready| ready > 0) {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// poll(2) that takes a `Duration` and reports an interruption as "nothing yet".
pub(crate) fn wait_readable(
    fds: &mut [PollFd<'_>],
    timeout: Option<Duration>,
) -> Result<usize, Errno> {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match poll(fds, timeout.as_ref()) {
        Err(Errno::INTR) => Ok(0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(queue: &EventQueue<u32>) -> bool {
        let mut fds = [PollFd::new(queue, PollFlags::IN)];
        wait_readable(&mut fds, Some(Duration::ZERO)).expect("poll") == 1
    }

    #[test]
    fn readable_exactly_while_events_are_queued() {
        let queue = EventQueue::new().expect("eventfd");
        assert!(!is_readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(is_readable(&queue));
        assert_eq!(queue.try_pop(), Some(1));
        assert!(is_readable(&queue), "one more is queued");
        assert_eq!(queue.try_pop(), Some(2));
        assert!(!is_readable(&queue));
        assert_eq!(queue.try_pop(), None);
    }

    #[test]
    fn an_event_that_is_queued_already_moves_to_the_end() {
        let queue = EventQueue::new().expect("eventfd");
        for event in [1, 2, 1, 3, 1, 2] {
            queue.push_or_move(event);
        }
        assert_eq!(queue.try_pop(), Some(3));
        assert_eq!(queue.try_pop(), Some(1));
        assert_eq!(queue.try_pop(), Some(2));
        assert!(!is_readable(&queue), "the count is that of the events");
        queue.push_or_move(1);
        assert!(is_readable(&queue), "read before: queued again");
    }

    #[test]
    fn removed_events_no_longer_make_it_readable() {
        let queue = EventQueue::new().expect("eventfd");
        for event in 0..4 {
            queue.push(event);
        }
        queue.retain(|event| event % 2 == 1);
        assert_eq!((queue.try_pop(), queue.try_pop()), (Some(1), Some(3)));
        assert!(!is_readable(&queue));
    }

    #[test]
    fn waiting_ends_with_an_event_or_the_timeout() {
        let queue = EventQueue::new().expect("eventfd");
        let nothing = queue.pop_wait(Some(Duration::from_millis(1)));
        assert!(matches!(nothing, Ok(None)));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| queue.pop_wait(None));
            queue.push(7);
            assert!(matches!(waiter.join().expect("no panic"), Ok(Some(7))));
        });
    }

    #[test]
    fn nonblocking_set_by_the_program_is_honoured() {
        let queue = EventQueue::<u32>::new().expect("eventfd");
        let copy = queue.as_fd().try_clone_to_owned().expect("dup");
        rustix::fs::fcntl_setfl(&copy, OFlags::NONBLOCK).expect("fcntl");
        assert!(matches!(queue.pop_wait(None), Err(Error::WouldBlock)));
        queue.push(1);
        assert!(matches!(queue.pop_wait(None), Ok(Some(1))));
    }

    /// Reads the descriptor as a C library does.
    fn read(queue: &EventQueue<u32>) -> Result<Option<u32>, Errno> {
        rustix::io::read(queue, &mut [0; 8])?;
        Ok(queue.take_counted(|_| ()))
    }

    #[test]
    fn an_event_that_was_read_is_counted_once() {
        let queue = EventQueue::new().expect("eventfd");
        rustix::fs::fcntl_setfl(&queue, OFlags::NONBLOCK).expect("fcntl");
        for event in 1..=3 {
            queue.push(event);
        }
        assert_eq!(read(&queue), Ok(Some(1)));
        assert_eq!(queue.try_pop(), Some(2));
        queue.push(4);
        queue.retain(|event| *event != 3);
        assert_eq!(read(&queue), Ok(Some(4)));
        assert!(!is_readable(&queue));
        assert_eq!(read(&queue), Err(Errno::AGAIN));
    }

    /// What happens between the two halves is of other threads.
    #[test]
    fn an_event_that_goes_while_it_is_read_is_none() {
        let queue = EventQueue::<u32>::new().expect("eventfd");
        rustix::fs::fcntl_setfl(&queue, OFlags::NONBLOCK).expect("fcntl");
        let removals: [fn(&EventQueue<u32>); 2] = [
            |queue| queue.retain(|_| false),
            |queue| assert_eq!(queue.try_pop(), Some(1)),
        ];
        for remove in removals {
            queue.push(1);
            rustix::io::read(&queue, &mut [0; 8]).expect("counted");
            remove(&queue);
            assert_eq!(queue.take_counted(|_| ()), None);
            assert!(!is_readable(&queue));
            queue.push(2);
            assert_eq!(read(&queue), Ok(Some(2)), "the count is right again");
        }
    }

    #[test]
    fn who_removes_events_finds_what_was_taken() {
        let queue = EventQueue::new().expect("eventfd");
        queue.push(7);
        rustix::io::read(&queue, &mut [0; 8]).expect("counted");
        let mut seen = None;
        assert_eq!(queue.take_counted(|event| seen = Some(*event)), Some(7));
        assert_eq!(seen, Some(7));
    }

    #[test]
    fn a_count_that_the_program_stole_blocks_nobody() {
        let queue = EventQueue::new().expect("eventfd");
        queue.push(5);
        rustix::io::read(&queue, &mut [0; 8]).expect("read");
        assert_eq!(queue.try_pop(), Some(5));
    }
}
