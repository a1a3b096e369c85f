//! What this host lends to connectors: the machine's clocks and a spawner on the library's runtime.
//!
//! The embedded executor has the same for its own threads; the library does not link that executor.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aqueduct_connector::clock::Timer;
use aqueduct_connector::context::{TaskControl, TaskFuture};
use aqueduct_connector::{Clock, Moment, Spawn, Task, Timestamp};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::errors::panic_text;

/// The machine's clocks; timers belong to the library's runtime.
#[derive(Clone, Copy)]
pub(crate) struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose origin is now.
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
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

/// Longer waits are cut to this and armed again: the runtime refuses deadlines too far away.
const LONGEST_SLEEP: Duration = Duration::from_secs(3_600);

struct SystemTimer {
    clock: SystemClock,
    at: Option<Moment>,
    /// Made by the first poll, then used again and again.
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl SystemTimer {
    fn left(&self) -> Option<Duration> {
        let left = self.at?.since(self.clock.now());
        Some(left.min(LONGEST_SLEEP))
    }
}

impl Timer for SystemTimer {
    fn set(&mut self, at: Option<Moment>) {
        if self.at != at {
            self.at = at;
            let left = self.left().unwrap_or(LONGEST_SLEEP);
            if let Some(sleep) = &mut self.sleep {
                sleep.as_mut().reset(tokio::time::Instant::now() + left);
            }
        }
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(left) = self.left() {
            if left.is_zero() {
                return Poll::Ready(());
            }
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
            ready!(sleep.as_mut().poll(cx));
            sleep.as_mut().reset(tokio::time::Instant::now() + left);
        }
        Poll::Pending
    }
}

/// Spawns on the library's runtime.
pub(crate) struct LibrarySpawn(pub(crate) Handle);

impl Spawn for LibrarySpawn {
    fn spawn(&self, name: &'static str, future: TaskFuture) -> Task {
        tracing::trace!(task = name, "spawned");
        Task::new(Box::new(Spawned(Some(self.0.spawn(future)))))
    }
}

/// `None` once its end was seen: a join handle must not be polled again.
struct Spawned(Option<JoinHandle<()>>);

impl TaskControl for Spawned {
    fn abort(&self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        let Some(handle) = &mut self.0 else {
            return Poll::Ready(Ok(()));
        };
        let ended = ready!(Pin::new(handle).poll(cx));
        self.0 = None;
        Poll::Ready(match ended {
            Ok(()) => Ok(()),
            // Aborted is ended as asked.
            Err(error) if error.is_cancelled() => Ok(()),
            Err(error) => Err(panic_text(error.into_panic().as_ref())),
        })
    }
}
