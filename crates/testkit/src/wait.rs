//! Waits with a real-time limit: a hang is a failure that says who waited for what.
//!
//! The limit is real time on purpose, whatever clock the component under test sees. A limit is generous, because the
//! machine may be compiling; a test that runs into it has hung, it was not slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;

/// How long a test waits for one event before it calls that a hang. Real time.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Between two looks at a condition that nothing signals.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Waits for `future`, at most `limit` of real time.
///
/// # Panics
///
/// When the limit has passed, naming `what` was waited for.
#[track_caller]
pub fn within<F: Future>(
    limit: Duration,
    what: &str,
    future: F,
) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(limit, future).await {
            Ok(output) => output,
            Err(_) => panic!("hang: waited {limit:?} for {what} (at {caller})"),
        }
    }
}

/// Waits until `condition` holds, looking again and again, at most `limit` of real time. For conditions that nothing
/// signals, such as what a service in another thread holds.
///
/// # Panics
///
/// When the limit has passed, naming `what` was waited for.
pub async fn until(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "hang: waited {limit:?} for {what}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The waker of one component: remembers that it was woken, so that a host polls only what asked for it. A component
/// that forgets to wake its host is never polled again, which is the hang that it deserves.
#[derive(Debug)]
pub(crate) struct Signal {
    woken: AtomicBool,
    host: Arc<AtomicWaker>,
}

impl Signal {
    /// Already set: everything is polled once to begin with.
    pub(crate) fn new(host: &Arc<AtomicWaker>) -> Arc<Self> {
        Arc::new(Self {
            woken: AtomicBool::new(true),
            host: Arc::clone(host),
        })
    }

    pub(crate) fn set(&self) {
        self.woken.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set();
        self.host.wake();
    }
}
