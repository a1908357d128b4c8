// One end of a connection, for tests.

use std::time::{Duration, Instant};

use oarlock_verbs::{
    AsyncEvent, Buffer, Completion, CompletionQueue, Context, ProtectionDomain, QpInitAttr,
    QueuePair, WcStatus,
};

use crate::pair::{connect, contexts};

/// One end.
pub struct End {
    pub context: Context,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
    pub qp: QueuePair,
}

impl End {
    pub fn new(context: Context, attr: QpInitAttr) -> Self {
        let pd = context.default_pd();
        let cq = CompletionQueue::new(&context, 256).expect("cq");
        let qp = QueuePair::create(&pd, &cq, &cq, attr).expect("qp");
        Self {
            context,
            pd,
            cq,
            qp,
        }
    }

    pub fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(&self.pd, bytes.len()).expect("buffer");
        buffer.copy_from_slice(bytes);
        buffer
    }

    pub fn empty(&self, len: usize) -> Buffer {
        Buffer::new(&self.pd, len).expect("buffer")
    }

    pub fn collect(&self, count: usize) -> Vec<Completion> {
        collect(&self.cq, count)
    }

    /// The next completion.
    pub fn one(&self) -> Completion {
        one(&self.cq)
    }

    /// The next completion, which is a success.
    pub fn ok(&self) -> Completion {
        let completion = self.one();
        assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
        completion
    }
}

/// Two ends that are connected.
pub fn ends(attr: QpInitAttr) -> (End, End) {
    let (a, b) = contexts();
    let (a, b) = (End::new(a, attr), End::new(b, attr));
    connect(&a.qp, &b.qp);
    (a, b)
}

/// Waits for `count` completions.
pub fn collect(cq: &CompletionQueue, count: usize) -> Vec<Completion> {
    (0..count).map(|_| one(cq)).collect()
}

/// Waits for the next completion.
pub fn one(cq: &CompletionQueue) -> Completion {
    let completion = cq.wait_one(Some(PATIENCE)).expect("wait");
    completion.expect("a completion before patience ends")
}

/// Runs `done` until it is true.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The next event that is not about establishing a connection, which comes after the completion of the first message.
pub fn next_event(context: &Context) -> AsyncEvent {
    let events = context.async_events();
    loop {
        match events.next(Some(PATIENCE)).expect("wait") {
            Some(AsyncEvent::CommEst(_)) => {}
            other => return other.expect("an event"),
        }
    }
}

/// The same, if one waits.
pub fn waiting_event(context: &Context) -> Option<AsyncEvent> {
    let events = context.async_events();
    std::iter::from_fn(|| events.try_next()).find(|event| !matches!(event, AsyncEvent::CommEst(_)))
}

pub const PATIENCE: Duration = Duration::from_secs(300);
