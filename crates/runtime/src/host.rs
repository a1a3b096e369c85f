//! Waiting in this host. What it lends to connectors, clocks and a spawner on the runtime of the thread that polls them, is that
//! of every host on Tokio (`aqueduct-tokio`).
//!
//! Every worker thread owns one current-thread runtime (measured to be the fastest place for the
//! transport). A component's I/O tasks run on the runtime of the thread that polls the component, and
//! end with it: a restart builds new threads, so nothing of an earlier attempt survives.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use aqueduct_connector::{Clock, Moment};
pub(crate) use aqueduct_tokio::panic_text;
pub use aqueduct_tokio::{RuntimeSpawn, SystemClock};

/// Waits until `at` on `clock`.
///
/// Cancel safety: safe; the wait can be started again.
pub(crate) async fn wait_until(clock: &dyn Clock, at: Option<Moment>) {
    let mut timer = clock.timer();
    timer.set(at);
    std::future::poll_fn(|cx| timer.poll_elapsed(cx)).await;
}

/// Runs `future` for at most `limit`; `None` if it did not end in time.
pub(crate) async fn within<F: Future>(
    clock: &dyn Clock,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    let until = clock.now().after(limit);
    tokio::select! {
        biased;
        output = future => Some(output),
        () = wait_until(clock, Some(until)) => None,
    }
}

/// Waits for `future` on this thread, without a runtime.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::thread::park();
    }
}
