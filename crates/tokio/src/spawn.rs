//! I/O tasks on a Tokio runtime.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use aqueduct_connector::context::{TaskControl, TaskFuture};
use aqueduct_connector::{Spawn, Task};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Spawns on one Tokio runtime; also for a program that drives a reader or writer itself.
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
        Self::on(Handle::current())
    }

    /// For the runtime of `handle`.
    #[must_use]
    pub fn on(handle: Handle) -> Arc<Self> {
        Arc::new(Self { handle })
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
        let ended = ready!(Pin::new(handle).poll(cx));
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
#[must_use]
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    const LIMIT_CHARS: usize = 300;
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    text.chars().take(LIMIT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn the_text_of_a_panic_and_an_abort_reach_the_owner() {
        let spawn = RuntimeSpawn::current();
        let mut broken = spawn.spawn("broken", Box::pin(async { panic!("number {}", 7) }));
        for ended in [Err("number 7".to_owned()), Ok(())] {
            assert_eq!(poll_fn(|cx| broken.poll_ended(cx)).await, ended);
        }
        let mut endless = spawn.spawn("endless", Box::pin(std::future::pending()));
        endless.abort();
        assert_eq!(poll_fn(|cx| endless.poll_ended(cx)).await, Ok(()));
    }
}
