//! What this host lends to connectors: the machine's clocks and a spawner on the runtime of the
//! thread that polls them.
//!
//! Every worker thread owns one current-thread runtime (measured to be the fastest place for the
//! transport). A component's I/O tasks run on the runtime of the thread that polls the component, and
//! end with it: a restart builds new threads, so nothing of an earlier attempt survives.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aqueduct_connector::clock::Timer;
use aqueduct_connector::context::{TaskControl, TaskFuture};
use aqueduct_connector::{Clock, Moment, Spawn, Task, Timestamp};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The machine's clocks; timers need a tokio runtime with its time driver on.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose origin is now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::from_origin(self.origin.elapsed())
    }

    fn wall(&self) -> Timestamp {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn timer(&self) -> Box<dyn Timer> {
        Box::new(SystemTimer {
            clock: *self,
            at: None,
            sleep: None,
        })
    }
}

/// Longer waits than this are cut and re-armed: tokio refuses deadlines beyond its wheel.
const LONGEST_SLEEP: Duration = Duration::from_secs(3_600);

struct SystemTimer {
    clock: SystemClock,
    at: Option<Moment>,
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl SystemTimer {
    fn left(&self) -> Option<Duration> {
        Some(self.at?.since(self.clock.now()))
    }
}

impl Timer for SystemTimer {
    fn set(&mut self, at: Option<Moment>) {
        if self.at == at {
            return;
        }
        self.at = at;
        let left = self.left().unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(tokio::time::Instant::now() + left);
        }
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(left) = self.left() else {
                return Poll::Pending;
            };
            if left.is_zero() {
                return Poll::Ready(());
            }
            let left = left.min(LONGEST_SLEEP);
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            sleep.as_mut().reset(tokio::time::Instant::now() + left);
        }
    }
}

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

/// Spawns on the Tokio runtime of the thread it was made on; also for a program that drives one reader or writer itself.
pub struct RuntimeSpawn {
    handle: Handle,
}

impl RuntimeSpawn {
    /// For the runtime that this thread is inside of.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    #[must_use]
    pub fn current() -> Arc<Self> {
        Arc::new(Self {
            handle: Handle::current(),
        })
    }
}

impl std::fmt::Debug for RuntimeSpawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RuntimeSpawn")
    }
}

impl Spawn for RuntimeSpawn {
    fn spawn(&self, name: &'static str, future: TaskFuture) -> Task {
        tracing::trace!(task = name, "spawned");
        Task::new(Box::new(Spawned(Some(self.handle.spawn(future)))))
    }
}

/// `None` once its end was seen.
struct Spawned(Option<JoinHandle<()>>);

impl TaskControl for Spawned {
    fn abort(&self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        // A join handle must not be polled again after it was ready.
        let Some(handle) = &mut self.0 else {
            return Poll::Ready(Ok(()));
        };
        let ended = std::task::ready!(Pin::new(handle).poll(cx));
        self.0 = None;
        Poll::Ready(
            match ended.map_err(tokio::task::JoinError::try_into_panic) {
                Ok(()) => Ok(()),
                Err(Ok(payload)) => Err(panic_text(payload.as_ref())),
                // Aborted: ended as asked.
                Err(Err(_)) => Ok(()),
            },
        )
    }
}

/// The text of a panic, cut to a line's length; it is the panicking code's own wording.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    const LIMIT_CHARS: usize = 300;
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    text.chars().take(LIMIT_CHARS).collect()
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
