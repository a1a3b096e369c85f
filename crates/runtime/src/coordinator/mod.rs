//! The coordinator: one thread a job, which restores, starts attempts, takes checkpoints and decides about
//! restarts.
//!
//! | module | does |
//! | --- | --- |
//! | `attempt` | one run of all tasks, from a restored state to its end |
//! | `checkpoints` | the checkpoint under way |
//! | `enumerator`, `committer` | the parts of sources and sinks that live here |
//! | `restart` | when to start again |
//! | `worker` | the threads that run tasks |

mod attempt;
mod checkpoints;
mod committer;
mod enumerator;
mod restart;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::metrics::{Counter, Gauge, MetricRegistry};
use aqueduct_connector::{CheckpointId, Clock, Error, Result};
use aqueduct_store::Lease;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use self::attempt::End;
pub(crate) use self::checkpoints::Reply;
use self::restart::Restarts;
use crate::checkpoint::{CheckpointStore, Loaded, Restored};
use crate::config::{DEFAULT_MAX_PARALLELISM, JobConfig, MAX_PARALLELISM, PARALLELISM};
use crate::graph::Graph;
use crate::handle::{CheckpointInfo, Command, JobEnd, JobHandle, JobState, JobStatus, Shared};
use crate::host::wait_until;
use crate::http;

/// Requests of handles that may wait for the coordinator.
const COMMAND_QUEUE: usize = 16;
/// Complete checkpoints shown by the status.
const SHOWN_CHECKPOINTS: usize = 10;

/// Starts the job's coordinator thread.
pub(crate) fn start(graph: Arc<Graph>, config: JobConfig) -> Result<JobHandle> {
    let registry = MetricRegistry::new();
    let status = JobStatus {
        state: JobState::Starting,
        started: config.clock.wall(),
        restarts: 0,
        parallelism: config.parallelism,
        completed_checkpoints: 0,
        failed_checkpoints: 0,
        checkpoints: Vec::new(),
        last_savepoint: None,
        restored_from: None,
        last_failure: None,
        stalled: Vec::new(),
        metrics_address: None,
    };
    let shared = Arc::new(Shared::new(graph, registry, status));
    let (commands_tx, commands) = mpsc::channel(COMMAND_QUEUE);
    let handle = JobHandle::new(shared.clone(), commands_tx);
    let for_thread = shared.clone();
    let thread = std::thread::Builder::new()
        .name("aqueduct-job".to_owned())
        .spawn(move || coordinate(&for_thread, config, commands))
        .map_err(|error| {
            Error::io("the coordinator's thread cannot be started").with_source(error)
        })?;
    shared.set_thread(thread);
    Ok(handle)
}

fn coordinate(shared: &Arc<Shared>, config: JobConfig, mut commands: mpsc::Receiver<Command>) {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let text = "the coordinator's runtime cannot be made";
            shared.ended(Err(Error::io(text).with_source(error)));
            return;
        }
    };
    let local = LocalSet::new();
    let running = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        local.block_on(&runtime, run_job(shared, config, &mut commands))
    }));
    drop(local);
    runtime.shutdown_background();
    shared.ended(running.unwrap_or_else(|payload| {
        Err(Error::bug(format!(
            "the coordinator panicked: {}",
            crate::host::panic_text(payload.as_ref())
        )))
    }));
}

/// What lives as long as the job, over all attempts.
pub(crate) struct JobContext {
    pub(crate) graph: Arc<Graph>,
    pub(crate) config: JobConfig,
    pub(crate) max_parallelism: u32,
    pub(crate) registry: MetricRegistry,
    pub(crate) seed: u64,
    pub(crate) attempt: u32,
    pub(crate) store: Option<CheckpointStore>,
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) cancel: CancellationToken,
    shared: Arc<Shared>,
    restarts: Restarts,
    last_id: u64,
    /// Complete checkpoints in the directory, ascending.
    complete: Vec<u64>,
    origin: Origin,
    stopped: Option<Option<String>>,
    metrics: Metrics,
}

/// Where the next attempt starts from.
#[derive(Clone, Debug)]
enum Origin {
    /// The newest checkpoint of the directory, if there is one.
    Latest,
    /// A checkpoint or savepoint named by the owner.
    Named(String),
    /// A checkpoint of this run.
    Own(u64),
}

struct Metrics {
    completed: Counter,
    failed: Counter,
    restarts: Gauge,
    last_duration: Gauge,
    last_size: Gauge,
    last_id: Gauge,
}

impl Metrics {
    fn new(registry: &MetricRegistry) -> Self {
        let group = registry.group(&[]);
        Self {
            completed: group.counter("numberOfCompletedCheckpoints"),
            failed: group.counter("numberOfFailedCheckpoints"),
            restarts: group.gauge("numRestarts"),
            last_duration: group.gauge("lastCheckpointDuration"),
            last_size: group.gauge("lastCheckpointSize"),
            last_id: group.gauge("lastCompletedCheckpointId"),
        }
    }
}

impl JobContext {
    pub(crate) fn next_checkpoint_id(&mut self) -> CheckpointId {
        self.last_id += 1;
        CheckpointId(self.last_id)
    }

    pub(crate) fn status(&self, change: impl FnOnce(&mut JobStatus)) {
        self.shared.status.send_modify(change);
    }

    pub(crate) fn set_state(&self, state: JobState) {
        self.status(|status| status.state = state);
    }

    /// Shows what stalls, if that has changed.
    pub(crate) fn show_stalled(&self, stalled: Vec<String>) {
        self.shared.status.send_if_modified(|status| {
            let changed = status.stalled != stalled;
            status.stalled = stalled;
            changed
        });
    }

    /// All tasks run.
    pub(crate) fn running(&mut self) {
        self.restarts.running(self.config.clock.now());
        self.set_state(JobState::Running);
    }

    /// A checkpoint of the job's own is complete.
    pub(crate) fn completed(&mut self, info: CheckpointInfo) {
        self.complete.push(info.id);
        self.origin = Origin::Own(info.id);
        self.metrics.completed.increment();
        let millis = i64::try_from(info.duration.as_millis()).unwrap_or(i64::MAX);
        self.metrics.last_duration.set(millis);
        self.metrics.last_size.set(info.bytes.cast_signed());
        self.metrics.last_id.set(info.id.cast_signed());
        self.status(|status| {
            status.completed_checkpoints += 1;
            status.checkpoints.push(info);
            if status.checkpoints.len() > SHOWN_CHECKPOINTS {
                status.checkpoints.remove(0);
            }
        });
    }

    pub(crate) fn failed_checkpoint(&self) {
        self.metrics.failed.increment();
        self.status(|status| status.failed_checkpoints += 1);
    }

    /// Takes the checkpoints of this directory that are beyond what is retained, one that a start once named included: its
    /// protection is a copy, or a savepoint.
    pub(crate) fn superseded(&mut self) -> Vec<u64> {
        let retained = self.config.retained_checkpoints as usize;
        let surplus = self.complete.len().saturating_sub(retained);
        self.complete.drain(..surplus).collect()
    }

    /// The job was stopped as asked.
    pub(crate) fn stopped(&mut self, location: Option<String>) {
        self.stopped = Some(location);
    }

    pub(crate) fn was_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// A start that names the same origin as the run that wrote the newest checkpoint is that run started again (by a
    /// supervisor, after a crash): it continues. Going back would repeat what has been committed since.
    async fn continue_named(&mut self) -> Result<()> {
        if let (Origin::Named(location), Some(store)) = (&self.origin, &self.store)
            && let Some(newest) = store.newest_manifest().await?
            && *newest.job == *self.graph.name
            && newest.named_origin.as_ref() == Some(location)
        {
            tracing::warn!(
                named = %location, checkpoint = newest.checkpoint,
                "this start was already made and has newer checkpoints: continuing from the newest; to go back to the \
                 named one once more, use another checkpoint directory"
            );
            self.origin = Origin::Latest;
        }
        Ok(())
    }

    /// Reads what the next attempt starts from.
    async fn restore(&mut self) -> Result<Restored> {
        self.continue_named().await?;
        let loaded = match (&self.origin, &self.store) {
            (Origin::Named(location), _) => Some(CheckpointStore::open(location)?.read("").await?),
            (Origin::Own(id), Some(store)) => Some(store.read(&format!("chk-{id}")).await?),
            (Origin::Latest, Some(store)) => store.latest().await?,
            (Origin::Own(_) | Origin::Latest, None) => None,
        };
        let Some(mut loaded) = loaded else {
            self.max_parallelism = self
                .config
                .max_parallelism
                .unwrap_or(DEFAULT_MAX_PARALLELISM);
            self.check_parallelism()?;
            return Ok(Restored::default());
        };
        self.graph
            .check_restored(&mut loaded, self.config.allow_dropped_state)?;
        self.take_max_parallelism(&loaded)?;
        self.check_parallelism()?;
        self.last_id = self.last_id.max(loaded.manifest.checkpoint);
        tracing::info!(
            job = %self.graph.name, from = %loaded.at, checkpoint = loaded.manifest.checkpoint,
            parallelism = loaded.manifest.parallelism, "restoring"
        );
        let at = loaded.at;
        self.status(|status| status.restored_from = Some(at));
        Ok(loaded.restored)
    }

    fn take_max_parallelism(&mut self, loaded: &Loaded) -> Result<()> {
        let recorded = loaded.manifest.max_parallelism;
        if let Some(wanted) = self.config.max_parallelism
            && wanted != recorded
        {
            return Err(Error::config(format!(
                "option '{}' is {wanted} and {} was written with {recorded}, which cannot change: remove the option",
                MAX_PARALLELISM.key(),
                loaded.at
            )));
        }
        self.max_parallelism = recorded;
        Ok(())
    }

    fn check_parallelism(&self) -> Result<()> {
        if self.config.parallelism > self.max_parallelism {
            return Err(Error::config(format!(
                "option '{}' is {}, above the job's {} key groups ('{}')",
                PARALLELISM.key(),
                self.config.parallelism,
                self.max_parallelism,
                MAX_PARALLELISM.key()
            )));
        }
        Ok(())
    }
}

async fn run_job(
    shared: &Arc<Shared>,
    config: JobConfig,
    commands: &mut mpsc::Receiver<Command>,
) -> Result<JobEnd> {
    let server = match config.metrics_address {
        Some(address) => {
            let (address, server) =
                http::bind(address, shared.clone(), config.clock.clone()).await?;
            shared
                .status
                .send_modify(|status| status.metrics_address = Some(address));
            Some(tokio::task::spawn_local(server))
        }
        None => None,
    };
    let result = run_with_store(shared, config, commands).await;
    match &result {
        Ok(end) => tracing::info!(job = %shared.graph.name, ?end, "ended"),
        Err(error) => {
            // A target of its own, for hosts that tell their user the error that they are given.
            tracing::error!(
                target: "aqueduct_runtime::outcome",
                job = %shared.graph.name, error = %error.report(), "failed for good"
            );
        }
    }
    if let Some(server) = server {
        server.abort();
        // Cancelled as just asked.
        let _ = server.await;
    }
    result
}

async fn run_with_store(
    shared: &Arc<Shared>,
    config: JobConfig,
    commands: &mut mpsc::Receiver<Command>,
) -> Result<JobEnd> {
    let graph = shared.graph.clone();
    let store = config
        .checkpoint_dir
        .as_deref()
        .map(CheckpointStore::open)
        .transpose()?;
    let (mut lease, mut complete, mut last_id) = (None, Vec::new(), 0);
    if let Some(store) = &store {
        let locked = tokio::select! {
            biased;
            () = shared.cancel.cancelled() => return Ok(JobEnd::Cancelled),
            locked = store.lock(&graph.name) => locked?,
        };
        lease = Some(Arc::new(locked));
        (complete, last_id) = store.tidy().await?;
    }
    let seed = config.seed.unwrap_or_else(|| fastrand::u64(..));
    let origin = match &config.restore_from {
        Some(location) => Origin::Named(location.clone()),
        None => Origin::Latest,
    };
    let mut job = JobContext {
        restarts: Restarts::new(config.restart, seed),
        max_parallelism: DEFAULT_MAX_PARALLELISM,
        registry: shared.registry.clone(),
        metrics: Metrics::new(&shared.registry),
        cancel: shared.cancel.clone(),
        shared: shared.clone(),
        attempt: 0,
        stopped: None,
        graph,
        config,
        seed,
        store,
        lease,
        last_id,
        complete,
        origin,
    };
    let result = attempts(&mut job, commands).await;
    let lease = job.lease.take();
    drop(job);
    if let Some(lease) = lease.and_then(Arc::into_inner)
        && let Err(error) = lease.release().await
    {
        tracing::warn!(%error, "the checkpoint directory's lock could not be given up and ends by itself");
    }
    result
}

/// Runs attempts until one ends the job.
async fn attempts(job: &mut JobContext, commands: &mut mpsc::Receiver<Command>) -> Result<JobEnd> {
    loop {
        job.set_state(JobState::Starting);
        let cancel = job.cancel.clone();
        let restored = tokio::select! {
            biased;
            () = cancel.cancelled() => return Ok(JobEnd::Cancelled),
            restored = job.restore() => restored,
        };
        tracing::info!(job = %job.graph.name, attempt = job.attempt, parallelism = job.config.parallelism, "starting");
        let end = match restored {
            Ok(restored) => attempt::run(job, restored, commands).await,
            Err(error) => End::Failed(error),
        };
        let error = match end {
            End::Finished => return Ok(JobEnd::Finished),
            End::Stopped => {
                let location = job.stopped.take().flatten();
                return Ok(JobEnd::Stopped { location });
            }
            End::Cancelled => return Ok(JobEnd::Cancelled),
            End::Failed(error) => error,
        };
        if job.cancel.is_cancelled() && error.kind().restartable() {
            tracing::warn!(job = %job.graph.name, error = %error.report(), "failed while it was being cancelled");
            return Ok(JobEnd::Cancelled);
        }
        if !error.kind().restartable() {
            return Err(error);
        }
        let Some(wait) = job.restarts.failed(job.config.clock.now()) else {
            return Err(match job.restarts.limit() {
                Some(0) | None => error,
                Some(limit) => Error::new(
                    error.kind(),
                    format!("the job failed after {limit} restarts"),
                )
                .with_source(error),
            });
        };
        job.attempt += 1;
        job.metrics.restarts.set(i64::from(job.attempt));
        let report = error.report();
        tracing::warn!(job = %job.graph.name, attempt = job.attempt, ?wait, error = %report, "restarting after a failure");
        job.status(|status| {
            status.state = JobState::Restarting;
            status.stalled.clear();
            status.restarts += 1;
            status.last_failure = Some(report);
        });
        if pause(job, commands, wait).await {
            return Ok(JobEnd::Cancelled);
        }
    }
}

/// Waits before a restart; `true` if the job is cancelled meanwhile. Requests are refused: there is nothing to take a
/// savepoint of.
async fn pause(job: &JobContext, commands: &mut mpsc::Receiver<Command>, wait: Duration) -> bool {
    let clock: &dyn Clock = &*job.config.clock;
    let until = clock.now().after(wait);
    let mut open = true;
    loop {
        tokio::select! {
            biased;
            () = job.cancel.cancelled() => return true,
            () = wait_until(clock, Some(until)) => return false,
            command = commands.recv(), if open => match command {
                Some(Command::Savepoint { reply, .. } | Command::Stop { reply, .. }) => {
                    let _ = reply.send(Err(Error::io(
                        "the job is waiting to restart: try again when it runs, or cancel it",
                    )));
                }
                None => {
                    open = false;
                    job.cancel.cancel();
                }
            },
        }
    }
}
