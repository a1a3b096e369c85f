//! A running job as its owner sees it: status, savepoints, stop, cancel, the end.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aqueduct_connector::metrics::{MetricRegistry, SampleValue};
use aqueduct_connector::{Error, ErrorKind, Result, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::checkpoint::CheckpointStore;
use crate::coordinator::Reply;
use crate::graph::Graph;
use crate::host::block_on;

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobState {
    /// Restoring, committing what was left over, opening tasks.
    Starting,
    /// All tasks run.
    Running,
    /// Failed, waiting to start again.
    Restarting,
    /// Taking its last checkpoint.
    Stopping,
    /// The input ended, or it was stopped; everything is committed.
    Finished,
    /// Cancelled by its owner.
    Cancelled,
    /// Failed for good.
    Failed,
}

impl JobState {
    /// Whether nothing will happen any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::Cancelled | Self::Failed)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Restarting => "restarting",
            Self::Stopping => "stopping",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        })
    }
}

/// A complete checkpoint or savepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// Its id.
    pub id: u64,
    /// Where it is; can be given to
    /// [`restore_from`](crate::JobConfigBuilder::restore_from).
    pub location: String,
    /// Its size.
    pub bytes: u64,
    /// From its start until it was complete.
    pub duration: Duration,
    /// The longest that a task waited for its inputs' barriers.
    pub alignment: Duration,
    /// When it was complete.
    pub completed: Timestamp,
}

/// A job at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// What it is doing.
    pub state: JobState,
    /// When it was started.
    pub started: Timestamp,
    /// Restarts after failures.
    pub restarts: u32,
    /// Subtasks of every operator.
    pub parallelism: u32,
    /// Complete checkpoints of this run.
    pub completed_checkpoints: u64,
    /// Failed checkpoints of this run.
    pub failed_checkpoints: u64,
    /// The last complete checkpoints, the newest last; at most ten.
    pub checkpoints: Vec<CheckpointInfo>,
    /// The last savepoint.
    pub last_savepoint: Option<CheckpointInfo>,
    /// The checkpoint or savepoint that the current attempt started from.
    pub restored_from: Option<String>,
    /// Why it failed last, in one line.
    pub last_failure: Option<String>,
    /// What has made no progress for a minute or more, and what it waits for; each was also warned about.
    pub stalled: Vec<String>,
    /// Where metrics and the status page are served.
    pub metrics_address: Option<SocketAddr>,
}

impl JobStatus {
    /// The newest complete checkpoint of this run.
    #[must_use]
    pub fn last_checkpoint(&self) -> Option<&CheckpointInfo> {
        self.checkpoints.last()
    }
}

/// How far one operator has come, over all its subtasks and attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorProgress {
    /// Its name.
    pub name: String,
    /// Records it took, or read.
    pub records_in: u64,
    /// Records it gave; 0 for sinks.
    pub records_out: u64,
    /// Its least watermark, if it has one.
    pub watermark: Option<Timestamp>,
}

/// How a job ended that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobEnd {
    /// The input ended and everything was applied and committed.
    Finished,
    /// It was stopped with a last checkpoint; everything before it was applied and committed.
    Stopped {
        /// The savepoint if one was asked for, else the checkpoint; `None` without a checkpoint directory.
        location: Option<String>,
    },
    /// It was cancelled; what no checkpoint covers is read again by the next start.
    Cancelled,
}

/// What is told of a job that has ended and did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// How it ended.
    pub end: JobEnd,
    /// Its last status.
    pub status: JobStatus,
    /// What each operator did.
    pub operators: Vec<OperatorProgress>,
}

/// A request to a running job.
#[derive(Debug)]
pub(crate) enum Command {
    Savepoint {
        location: CheckpointStore,
        reply: Reply,
    },
    Stop {
        savepoint: Option<CheckpointStore>,
        reply: Reply,
    },
}

/// What the handle and the job share.
pub(crate) struct Shared {
    pub(crate) graph: Arc<Graph>,
    pub(crate) registry: MetricRegistry,
    pub(crate) status: watch::Sender<JobStatus>,
    pub(crate) cancel: CancellationToken,
    result: Mutex<Option<Result<JobEnd>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Shared {
    pub(crate) fn new(graph: Arc<Graph>, registry: MetricRegistry, status: JobStatus) -> Self {
        Self {
            graph,
            registry,
            status: watch::Sender::new(status),
            cancel: CancellationToken::new(),
            result: Mutex::new(None),
            thread: Mutex::new(None),
        }
    }

    /// The job has ended.
    pub(crate) fn ended(&self, result: Result<JobEnd>) {
        let (state, failure) = match &result {
            Ok(JobEnd::Cancelled) => (JobState::Cancelled, None),
            Ok(_) => (JobState::Finished, None),
            Err(error) => (JobState::Failed, Some(error.report())),
        };
        *lock(&self.result) = Some(result);
        self.status.send_modify(|status| {
            status.state = state;
            if failure.is_some() {
                status.last_failure = failure;
            }
        });
    }

    pub(crate) fn set_thread(&self, thread: std::thread::JoinHandle<()>) {
        *lock(&self.thread) = Some(thread);
    }

    /// What each operator did so far.
    pub(crate) fn progress(&self) -> Vec<OperatorProgress> {
        let mut all: Vec<OperatorProgress> = self
            .graph
            .operators
            .iter()
            .map(|operator| OperatorProgress {
                name: operator.name.to_string(),
                records_in: 0,
                records_out: 0,
                watermark: None,
            })
            .collect();
        for sample in self.registry.samples() {
            let operator = sample.labels.iter().find(|(key, _)| key == "operator");
            let Some(progress) = operator
                .and_then(|(_, name)| all.iter_mut().find(|progress| progress.name == *name))
            else {
                continue;
            };
            match (sample.name.as_str(), sample.value) {
                ("numRecordsIn", SampleValue::Counter(count)) => progress.records_in += count,
                ("numRecordsOut", SampleValue::Counter(count)) => progress.records_out += count,
                ("currentOutputWatermark", SampleValue::Gauge(millis)) => {
                    let own = Timestamp::from_millis(millis);
                    let least = progress.watermark.map_or(own, |least| least.min(own));
                    progress.watermark = Some(least);
                }
                _ => {}
            }
        }
        for progress in &mut all {
            progress.watermark = progress.watermark.filter(|at| *at > Timestamp::MIN);
        }
        all
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Control over a started job. Clones control the same job; when the last is dropped the job is cancelled.
#[derive(Clone)]
pub struct JobHandle {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

impl fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobHandle")
            .field("job", &self.shared.graph.name)
            .field("state", &self.shared.status.borrow().state)
            .finish_non_exhaustive()
    }
}

impl JobHandle {
    pub(crate) fn new(shared: Arc<Shared>, commands: mpsc::Sender<Command>) -> Self {
        Self { shared, commands }
    }

    /// The job's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.graph.name
    }

    /// The job as it is now.
    #[must_use]
    pub fn status(&self) -> JobStatus {
        self.shared.status.borrow().clone()
    }

    /// Waits until the status satisfies `until`, or the job has ended; gives the status then.
    ///
    /// Cancel safety: safe.
    pub async fn status_when(&self, mut until: impl FnMut(&JobStatus) -> bool) -> JobStatus {
        let mut watch = self.shared.status.subscribe();
        match watch
            .wait_for(|status| until(status) || status.state.is_final())
            .await
        {
            Ok(status) => status.clone(),
            // The sender lives in `shared`, which this handle keeps.
            Err(_) => self.status(),
        }
    }

    /// What each operator did so far.
    #[must_use]
    pub fn progress(&self) -> Vec<OperatorProgress> {
        self.shared.progress()
    }

    /// All metrics.
    #[must_use]
    pub fn metrics(&self) -> MetricRegistry {
        self.shared.registry.clone()
    }

    /// Ends the job without a checkpoint. Returns at once; [`wait`](Self::wait) tells when it is over.
    pub fn cancel(&self) {
        self.shared.cancel.cancel();
    }

    /// Writes a savepoint to a path or URL of its own and goes on. Gives its location.
    ///
    /// Savepoints are kept until somebody deletes them; nothing is committed or acknowledged because of one.
    ///
    /// # Errors
    ///
    /// If the location cannot be used or holds one already, the job is not running, or taking it fails; the job goes
    /// on.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still write the savepoint.
    pub async fn savepoint(&self, location: &str) -> Result<String> {
        let location = CheckpointStore::open(location)?;
        let shown = location.url().to_owned();
        let written = self
            .ask(|reply| Command::Savepoint { location, reply })
            .await?;
        Ok(written.unwrap_or(shown))
    }

    /// Stops reading, takes a last checkpoint and with a path or URL a savepoint too, commits, and ends the job.
    /// Gives the savepoint's or the checkpoint's location.
    ///
    /// # Errors
    ///
    /// If the location cannot be used, the job is not running, or the checkpoint fails; then the job goes on, or
    /// restarts if its failures are not tolerated.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still stop the job.
    pub async fn stop(&self, savepoint: Option<&str>) -> Result<Option<String>> {
        let savepoint = savepoint.map(CheckpointStore::open).transpose()?;
        self.ask(|reply| Command::Stop { savepoint, reply }).await
    }

    async fn ask(&self, command: impl FnOnce(Reply) -> Command) -> Result<Option<String>> {
        let (reply, answer) = oneshot::channel();
        let gone = || {
            let status = self.status();
            let mut text = format!("the job is {} and cannot do that", status.state);
            if let Some(failure) = &status.last_failure {
                text.push_str("; it failed: ");
                text.push_str(failure);
            }
            Error::io(text)
        };
        if self.status().state.is_final() {
            return Err(gone());
        }
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Waits for the job's end.
    ///
    /// # Errors
    ///
    /// Why the job failed. The first call gets the error with its causes, later ones its text.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn wait(&self) -> Result<JobReport> {
        let status = self.status_when(|_| false).await;
        let thread = lock(&self.shared.thread).take();
        if let Some(thread) = thread {
            // It has said its last word and ends; its panic would have been told as a failure.
            let _ = thread.join();
        }
        let mut result = lock(&self.shared.result);
        match &mut *result {
            Some(Ok(end)) => Ok(JobReport {
                end: end.clone(),
                status,
                operators: self.progress(),
            }),
            Some(failed) => {
                let kind = failed.as_ref().err().map_or(ErrorKind::Bug, Error::kind);
                let text = status.last_failure.unwrap_or_default();
                let told = std::mem::replace(failed, Err(Error::new(kind, text)));
                told.and(Err(Error::bug("a failure became a success")))
            }
            None => Err(Error::bug("the job ended without saying how")),
        }
    }

    /// As [`wait`](Self::wait), blocking this thread. Not for use inside an async task.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_blocking(&self) -> Result<JobReport> {
        block_on(self.wait())
    }
}
