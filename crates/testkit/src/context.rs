//! What a test lends to the component it drives: clock, seed, metrics, a spawner that knows what still runs.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll};
use std::time::Duration;

use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::context::{TaskControl, TaskFuture};
use aqueduct_connector::metrics::MetricRegistry;
use aqueduct_connector::{Clock, Context, Spawn, Subtask, Task};
pub use aqueduct_tokio::SystemClock;
use aqueduct_tokio::panic_text;
use futures::FutureExt;
use tokio::sync::watch;

use crate::wait::{LIMIT, within};

/// A context for one component that is created by hand: subtask 0 of 1, real clock, tasks on the current runtime.
#[must_use]
pub fn test_context(seed: u64) -> Context {
    TestContext::new("test").with_seed(seed).subtask(0, 1)
}

/// Makes the contexts of one job's attempt. Clones share metrics, clock and spawner.
#[derive(Clone)]
pub struct TestContext {
    operator: Arc<str>,
    registry: MetricRegistry,
    clock: Arc<dyn Clock>,
    manual: Option<ManualClock>,
    spawner: TokioSpawn,
    seed: u64,
    attempt: u32,
    limit: Duration,
}

impl TestContext {
    /// On the system's clock, with seed 0, attempt 0 and waits of at most [`LIMIT`].
    #[must_use]
    pub fn new(operator: &str) -> Self {
        Self {
            operator: operator.into(),
            registry: MetricRegistry::new(),
            clock: Arc::new(SystemClock::new()),
            manual: None,
            spawner: TokioSpawn::new(),
            seed: 0,
            attempt: 0,
            limit: LIMIT,
        }
    }

    /// Sets the seed of all randomness, the host's own included.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self.manual = None;
        self
    }

    /// Sets a clock that the host moves on by itself, to the next timer, whenever nothing else can happen. For
    /// components without sockets: an answer under way is not something a host can see.
    #[must_use]
    pub fn with_driven_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Arc::new(clock.clone());
        self.manual = Some(clock);
        self
    }

    /// Sets how long one wait may take, in real time. Default: [`LIMIT`].
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets how often the job was restarted before. Each attempt of a job must have its own: it goes into the seeds.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// The next attempt of the same job: same metrics, other seeds.
    #[must_use]
    pub fn next_attempt(&self) -> Self {
        self.clone().with_attempt(self.attempt + 1)
    }

    /// The metrics of all components.
    #[must_use]
    pub fn registry(&self) -> &MetricRegistry {
        &self.registry
    }

    /// The spawner of all components.
    #[must_use]
    pub fn spawner(&self) -> &TokioSpawn {
        &self.spawner
    }

    /// The clock of all components.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// How long one wait may take.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The context of a reader or writer.
    #[must_use]
    pub fn subtask(&self, index: u32, parallelism: u32) -> Context {
        self.context(
            Subtask { index, parallelism },
            parallelism,
            1 + u64::from(index),
        )
    }

    /// The context of an enumerator or committer.
    #[must_use]
    pub fn coordinator(&self, parallelism: u32) -> Context {
        let subtask = Subtask {
            index: 0,
            parallelism: 1,
        };
        self.context(subtask, parallelism, 0)
    }

    /// A generator for the host's own choices.
    pub(crate) fn random(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(mix(self.seed, u64::MAX ^ u64::from(self.attempt)))
    }

    /// Moves a driven clock on to its next timer. `false` if there is none.
    pub(crate) fn skip_to_next_timer(&self) -> bool {
        let Some(clock) = &self.manual else {
            return false;
        };
        let Some(next) = clock.next_timer() else {
            return false;
        };
        clock.advance(next.since(clock.now()));
        true
    }

    fn context(&self, subtask: Subtask, parallelism: u32, role: u64) -> Context {
        let index = subtask.index.to_string();
        Context {
            job: "test".into(),
            operator: Arc::clone(&self.operator),
            subtask,
            parallelism,
            attempt: self.attempt,
            metrics: self
                .registry
                .group(&[("operator", &self.operator), ("subtask", &index)]),
            clock: Arc::clone(&self.clock),
            spawn: Arc::new(self.spawner.clone()),
            seed: mix(mix(self.seed, role), u64::from(self.attempt)),
        }
    }
}

impl fmt::Debug for TestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestContext")
            .field("operator", &self.operator)
            .field("seed", &self.seed)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Two numbers into one that looks unlike both.
fn mix(a: u64, b: u64) -> u64 {
    fastrand::Rng::with_seed(a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64(..)
}

/// Spawns on the current Tokio runtime, and knows how many tasks still run and whether one panicked.
#[derive(Clone, Debug)]
pub struct TokioSpawn {
    running: Arc<watch::Sender<u64>>,
    panicked: Arc<AtomicU64>,
    names: Arc<Mutex<Vec<&'static str>>>,
}

impl TokioSpawn {
    /// Without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self {
            running: Arc::new(watch::Sender::new(0)),
            panicked: Arc::new(AtomicU64::new(0)),
            names: Arc::default(),
        }
    }

    /// How many tasks have not ended.
    #[must_use]
    pub fn running(&self) -> u64 {
        *self.running.borrow()
    }

    /// How many tasks ended by a panic.
    #[must_use]
    pub fn panicked(&self) -> u64 {
        self.panicked.load(Ordering::Relaxed)
    }

    /// Waits until no task runs: after a close or a drop, none may be left.
    ///
    /// # Panics
    ///
    /// If one still runs after `limit`, naming the tasks.
    pub async fn assert_idle(&self, limit: Duration) {
        let mut running = self.running.subscribe();
        let what = format!(
            "the I/O tasks to end after their owner; left: {:?}",
            self.names()
        );
        within(limit, &what, running.wait_for(|count| *count == 0))
            .await
            .expect("`self` keeps the sender");
    }

    fn names(&self) -> Vec<&'static str> {
        self.names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Default for TokioSpawn {
    fn default() -> Self {
        Self::new()
    }
}

/// Counts a task as running until it is dropped, however that happens.
struct Running {
    spawner: TokioSpawn,
    name: &'static str,
}

impl Running {
    fn start(spawner: &TokioSpawn, name: &'static str) -> Self {
        let mut names = spawner.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.push(name);
        drop(names);
        spawner.running.send_modify(|count| *count += 1);
        Self {
            spawner: spawner.clone(),
            name,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut names = self
            .spawner
            .names
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = names.iter().position(|name| *name == self.name) {
            names.swap_remove(at);
        }
        drop(names);
        self.spawner.running.send_modify(|count| *count -= 1);
    }
}

impl Spawn for TokioSpawn {
    fn spawn(&self, name: &'static str, future: TaskFuture) -> Task {
        let running = Running::start(self, name);
        let panicked = Arc::clone(&self.panicked);
        let handle = tokio::spawn(async move {
            let outcome = AssertUnwindSafe(future).catch_unwind().await;
            drop(running);
            outcome.map_err(|panic| {
                panicked.fetch_add(1, Ordering::Relaxed);
                panic_text(&*panic)
            })
        });
        Task::new(Box::new(TokioTask {
            handle,
            ended: None,
        }))
    }
}

struct TokioTask {
    handle: tokio::task::JoinHandle<Result<(), String>>,
    /// A join handle must not be polled after its end; owners may be.
    ended: Option<Result<(), String>>,
}

impl TaskControl for TokioTask {
    fn abort(&self) {
        self.handle.abort();
    }

    fn poll_ended(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), String>> {
        if let Some(ended) = &self.ended {
            return Poll::Ready(ended.clone());
        }
        self.handle.poll_unpin(cx).map(|joined| {
            let ended = match joined {
                Ok(outcome) => outcome,
                Err(error) if error.is_cancelled() => Ok(()),
                Err(error) => Err(error.to_string()),
            };
            self.ended = Some(ended.clone());
            ended
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_dropped_task_ends_and_the_spawner_knows() {
        let spawner = TokioSpawn::new();
        let task = spawner.spawn("endless", Box::pin(std::future::pending()));
        assert_eq!(spawner.running(), 1);
        drop(task);
        spawner.assert_idle(LIMIT).await;
    }

    #[tokio::test]
    async fn a_panic_in_a_task_reaches_its_owner_again_and_again() {
        let spawner = TokioSpawn::new();
        let mut task = spawner.spawn("broken", Box::pin(async { panic!("number {}", 7) }));
        for _ in 0..2 {
            let ended = within(LIMIT, "the end", poll_fn(|cx| task.poll_ended(cx))).await;
            assert_eq!(ended, Err("number 7".to_owned()));
        }
        assert_eq!(spawner.panicked(), 1);
    }

    #[test]
    fn subtasks_roles_and_attempts_have_seeds_of_their_own() {
        let kit = TestContext::new("op").with_seed(5);
        let next = kit.next_attempt();
        let seeds = [
            kit.subtask(0, 2).seed,
            kit.subtask(1, 2).seed,
            kit.coordinator(2).seed,
            next.subtask(0, 2).seed,
            kit.clone().with_seed(6).subtask(0, 2).seed,
        ];
        for (at, seed) in seeds.iter().enumerate() {
            assert!(!seeds[..at].contains(seed), "{seeds:?}");
        }
        assert_eq!(kit.subtask(1, 2).seed, seeds[1]);
    }
}
