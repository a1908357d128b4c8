//! Async calls, on both flavours of the runtime.

mod cancellation;
mod crowd;
mod ends;
mod ways;

use crate::support::{LONG, private};
use oarlock_rdmacm::{AsyncHost, ConnectionOptions, Host, QueueSizes};
use std::pin::pin;
use std::task::Poll;
use tokio::runtime::{Builder, Runtime};

fn on_one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn on_several_threads() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .unwrap()
}

/// Runs a test on each flavour, with a private host each.
fn on_both<F: Future<Output = ()> + Send + 'static>(test: impl Fn(Host) -> F) {
    for runtime in [on_one_thread(), on_several_threads()] {
        on(&runtime, test(private()));
    }
}

/// Runs a test as a task of the runtime, and not only within it.
fn on(runtime: &Runtime, test: impl Future<Output = ()> + Send + 'static) {
    let running = runtime.spawn(test);
    runtime
        .block_on(async { tokio::time::timeout(LONG, running).await })
        .expect("no call hangs")
        .expect("the test does not panic");
}

fn async_host(host: &Host) -> AsyncHost {
    AsyncHost::new(host).expect("a host on a runtime")
}

fn small() -> ConnectionOptions {
    ConnectionOptions::new().queue_sizes(QueueSizes::new(2, 2))
}

/// Polls a future so often and then drops it; its result if it has one by then.
async fn cancelled_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
