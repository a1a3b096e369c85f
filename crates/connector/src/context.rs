//! What a host lends to each reader, writer, enumerator and committer it creates.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use crate::clock::Clock;
use crate::metrics::MetricGroup;

/// Identifies a checkpoint; grows with every checkpoint of a job, over restarts too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId(pub u64);

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One of the parallel instances of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subtask {
    /// Position among the instances, from 0.
    pub index: u32,
    /// How many instances there are.
    pub parallelism: u32,
}

impl fmt::Display for Subtask {
    /// One-based, as people count: `2/4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", u64::from(self.index) + 1, self.parallelism)
    }
}

/// A future that the host runs as a task of its own.
pub type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns I/O tasks on the runtime that the host keeps for them: a Tokio runtime, entered also while the host polls.
pub trait Spawn: Send + Sync {
    /// Starts `future`. `name` is for people: thread dumps, spans, stall reports.
    fn spawn(&self, name: &'static str, future: TaskFuture) -> Task;
}

/// Control over a spawned task; dropping it aborts the task.
pub struct Task(Box<dyn TaskControl>);

/// The host's side of a [`Task`].
pub trait TaskControl: Send {
    /// Stops the task at its next await point.
    fn abort(&self);

    /// `Ready` once the task has ended, however it ended; `Err` carries the text of a panic.
    fn poll_ended(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), String>>;
}

impl Task {
    /// Wraps the host's control.
    #[must_use]
    pub fn new(control: Box<dyn TaskControl>) -> Self {
        Self(control)
    }

    /// Asks the task to stop.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Waits for the task to end.
    pub fn poll_ended(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), String>> {
        self.0.poll_ended(cx)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

/// The means a host lends to one component. Cloning is cheap.
#[derive(Clone)]
pub struct Context {
    /// Name of the job.
    pub job: Arc<str>,
    /// Name of the operator, unique in its job.
    pub operator: Arc<str>,
    /// Which instance this is; 0 of 1 for enumerators and committers.
    pub subtask: Subtask,
    /// Parallelism of the operator's readers or writers, also where `subtask` is 0 of 1.
    pub parallelism: u32,
    /// How often the job was restarted before, starting at 0.
    pub attempt: u32,
    /// Where this component's metrics go.
    pub metrics: MetricGroup,
    /// The host's clock.
    pub clock: Arc<dyn Clock>,
    /// Spawns I/O tasks.
    pub spawn: Arc<dyn Spawn>,
    /// Seed of all randomness in this component; differs between subtasks and attempts.
    pub seed: u64,
}

impl Context {
    /// A generator seeded by the host, so that a simulation replays.
    #[must_use]
    pub fn random(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("job", &self.job)
            .field("operator", &self.operator)
            .field("subtask", &self.subtask)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
