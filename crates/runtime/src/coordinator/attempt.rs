//! One attempt: threads, tasks, enumerators and committers from a restored state to their end.
//!
//! # Invariants
//!
//! - What a restored checkpoint left uncommitted is committed before a task starts.
//! - Of the checkpoint steps (enumerators' snapshots, barriers, writing, committing) one is under way at a
//!   time, and the next checkpoint starts only after all of them.
//! - An attempt ends only when every task has exited and every thread has ended, or it fails for good: two
//!   attempts never run at once.

mod setup;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_connector::{CheckpointId, Error, Moment, Result};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::JobContext;
use super::checkpoints::{Collected, Goal, InFlight};
use super::committer::{Committers, Pending, commit_all};
use super::enumerator::{Answer, Order};
use super::worker::Worker;
use crate::channel::Bounds;
use crate::checkpoint::Restored;
use crate::handle::{CheckpointInfo, Command, JobState};
use crate::host::{wait_until, within};
use crate::task::{AttemptPlan, Board, CONTROL_QUEUE, Control, Event, Outcome, TaskId};
use crate::watermark::AlignmentGroups;

/// Events of tasks that may wait for the coordinator.
const EVENT_QUEUE: usize = 256;
/// Messages that may wait for an enumerator.
const ENUMERATOR_QUEUE: usize = 256;
/// Savepoints that may wait for their turn.
const REQUESTS: usize = 16;
/// Time between two looks at what stalls.
const WATCH_INTERVAL: Duration = Duration::from_secs(10);
/// A wait this long is warned about, and again after as long.
const STALL_AFTER: Duration = Duration::from_secs(60);

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The input ended and everything is committed.
    Finished,
    /// Stopped as asked, with a last checkpoint.
    Stopped,
    Cancelled,
    Failed(Error),
}

type LocalFuture<T> = std::pin::Pin<Box<dyn Future<Output = T>>>;

/// The step of the checkpoint under way.
enum Step {
    /// None is; the next one may start.
    Idle,
    Collecting(Box<InFlight>),
    Writing(Box<InFlight>, LocalFuture<Result<Written>>),
    Committing(Box<InFlight>, LocalFuture<Result<()>>),
    /// The last checkpoint is done; tasks close.
    Finishing,
}

/// A checkpoint as it was written.
pub(crate) struct Written {
    /// Where the job's own checkpoint is, if it has a directory.
    checkpoint: Option<(String, u64)>,
    /// Where the savepoint is, if one was asked for.
    savepoint: Option<(String, u64)>,
}

pub(crate) struct Attempt<'a> {
    job: &'a mut JobContext,
    plan: Arc<AttemptPlan>,
    controls: BTreeMap<TaskId, mpsc::Sender<Control>>,
    boards: BTreeMap<TaskId, Arc<Board>>,
    source_tasks: BTreeSet<TaskId>,
    orders: BTreeMap<u32, mpsc::Sender<Order>>,
    enumerators: JoinSet<()>,
    stop_enumerators: CancellationToken,
    committers: Committers,
    workers: Vec<Worker>,
    cancel: CancellationToken,
    opened: BTreeSet<TaskId>,
    ended: BTreeSet<TaskId>,
    live: BTreeSet<TaskId>,
    step: Step,
    requests: VecDeque<Goal>,
    /// Handed over by writers and not yet confirmed.
    pending: Pending,
    failed_in_a_row: u32,
    last_start: Moment,
    last_end: Moment,
    final_done: bool,
    warned: BTreeMap<TaskId, Moment>,
    step_since: Moment,
    step_warned: Moment,
    chores: JoinSet<()>,
    end: Option<End>,
}

/// Runs one attempt from `restored` to its end.
pub(crate) async fn run(
    job: &mut JobContext,
    restored: Restored,
    commands: &mut mpsc::Receiver<Command>,
) -> End {
    let graph = job.graph.clone();
    let config = &job.config;
    let bounds = Bounds {
        items: config.channel_elements as usize,
        weight: config.channel_records as usize,
    };
    let exchanges = graph
        .exchanges
        .iter()
        .map(|make| make(config.parallelism, bounds))
        .collect();
    let mut uncommitted = Pending::new();
    for sink in &graph.sinks {
        let pending = restored.committables(&graph.operator(sink.operator).name);
        if !pending.is_empty() {
            uncommitted.insert(sink.operator, pending);
        }
    }
    let plan = Arc::new(AttemptPlan {
        graph,
        attempt: job.attempt,
        parallelism: config.parallelism,
        max_parallelism: job.max_parallelism,
        registry: job.registry.clone(),
        clock: config.clock.clone(),
        seed: job.seed,
        watermark_interval: config.watermark_interval,
        close_timeout: config.close_timeout,
        alignment: AlignmentGroups::default(),
        exchanges,
        restored: Mutex::new(Arc::new(restored)),
    });
    let now = plan.clock.now();
    let mut attempt = Attempt {
        plan,
        controls: BTreeMap::new(),
        boards: BTreeMap::new(),
        source_tasks: BTreeSet::new(),
        orders: BTreeMap::new(),
        enumerators: JoinSet::new(),
        stop_enumerators: CancellationToken::new(),
        committers: Committers::default(),
        workers: Vec::new(),
        cancel: CancellationToken::new(),
        opened: BTreeSet::new(),
        ended: BTreeSet::new(),
        live: BTreeSet::new(),
        step: Step::Idle,
        requests: VecDeque::new(),
        pending: Pending::new(),
        failed_in_a_row: 0,
        last_start: now,
        last_end: now,
        final_done: false,
        warned: BTreeMap::new(),
        step_since: now,
        step_warned: now,
        chores: JoinSet::new(),
        end: None,
        job,
    };
    let (events_tx, mut events) = mpsc::channel(EVENT_QUEUE);
    let (answers_tx, mut answers) = mpsc::channel(ENUMERATOR_QUEUE);
    let started = attempt.start(uncommitted, events_tx, answers_tx).await;
    if let Err(end) = started {
        attempt.end = Some(end);
    } else {
        attempt.work(&mut events, &mut answers, commands).await;
    }
    attempt.shut_down(&mut events).await
}

impl Attempt<'_> {
    /// The coordinator's loop.
    async fn work(
        &mut self,
        events: &mut mpsc::Receiver<Event>,
        answers: &mut mpsc::Receiver<Answer>,
        commands: &mut mpsc::Receiver<Command>,
    ) {
        let clock = self.plan.clock.clone();
        let cancel = self.job.cancel.clone();
        let mut next_watch = clock.now().after(WATCH_INTERVAL);
        let mut commands_open = true;
        while self.end.is_none() {
            self.start_what_is_due();
            if self.end.is_some() {
                return;
            }
            let deadline = self
                .next_deadline()
                .map_or(next_watch, |at| at.min(next_watch));
            let lease = self.job.lease.clone();
            tokio::select! {
                biased;
                () = cancel.cancelled() => self.end = Some(End::Cancelled),
                () = async { match &lease { Some(lease) => lease.lost().await, None => std::future::pending().await } } => {
                    self.fail(Error::config(
                        "the checkpoint directory was taken over by another process, because its lock could not be renewed",
                    ));
                }
                Some(event) = events.recv() => self.on_event(event),
                Some(answer) = answers.recv() => self.on_answer(answer),
                () = step_progress(&mut self.step) => self.on_step_done().await,
                command = commands.recv(), if commands_open => match command {
                    Some(command) => self.on_command(command),
                    None => {
                        commands_open = false;
                        tracing::info!("every handle of the job is gone: cancelling it");
                        cancel.cancel();
                    }
                },
                () = wait_until(&*clock, Some(deadline)) => {
                    let now = clock.now();
                    if now >= next_watch {
                        next_watch = now.after(WATCH_INTERVAL);
                        self.watch(now);
                    }
                    self.check_timeout(now);
                }
            }
        }
    }

    fn now(&self) -> Moment {
        self.plan.clock.now()
    }

    fn fail(&mut self, error: Error) {
        match &mut self.end {
            Some(End::Failed(first)) => first.suppress(error),
            end => *end = Some(End::Failed(error)),
        }
    }

    fn all_open(&self) -> bool {
        self.opened.len() == self.controls.len()
    }

    /// When the coordinator has something to do by time alone.
    fn next_deadline(&self) -> Option<Moment> {
        match &self.step {
            Step::Idle if self.all_open() => self.next_checkpoint(),
            Step::Collecting(flight) | Step::Writing(flight, _) => Some(flight.deadline),
            _ => None,
        }
    }

    fn next_checkpoint(&self) -> Option<Moment> {
        self.job.store.as_ref()?;
        let config = &self.job.config;
        let by_interval = self.last_start.after(config.checkpoint_interval);
        Some(by_interval.max(self.last_end.after(config.checkpoint_min_pause)))
    }

    fn start_what_is_due(&mut self) {
        if !matches!(self.step, Step::Idle) || !self.all_open() {
            return;
        }
        if self.ended.len() == self.controls.len() && !self.final_done {
            self.begin(Goal::Final);
        } else if let Some(goal) = self.requests.pop_front() {
            self.begin(goal);
        } else if self.next_checkpoint().is_some_and(|at| self.now() >= at) {
            self.begin(Goal::Checkpoint);
        }
    }

    /// Begins a checkpoint with the enumerators' snapshots.
    fn begin(&mut self, goal: Goal) {
        let now = self.now();
        let id = self.job.next_checkpoint_id();
        tracing::debug!(checkpoint = %id, ?goal, "starting a checkpoint");
        self.last_start = now;
        let mut flight = InFlight::new(
            id,
            goal,
            now,
            now.after(self.job.config.checkpoint_timeout),
            self.plan.graph.operators.len(),
            self.plan.parallelism,
        );
        for (operator, orders) in &self.orders {
            flight.enumerators.insert(*operator);
            if is_stuck(orders, Order::Snapshot(id)) {
                flight.broken = Some(Error::io(format!(
                    "the enumerator of source '{}' takes no messages",
                    self.plan.graph.operator(*operator).name
                )));
            }
        }
        flight.tasks = self.controls.keys().copied().collect();
        self.enter(Step::Collecting(Box::new(flight)));
        self.after_enumerators();
    }

    fn enter(&mut self, step: Step) {
        self.step = step;
        self.step_since = self.now();
        self.step_warned = self.step_since;
    }

    /// Sends the barriers once every enumerator has given its snapshot.
    fn after_enumerators(&mut self) {
        let Step::Collecting(flight) = &mut self.step else {
            return;
        };
        if let Some(error) = flight.broken.take() {
            self.abort(error);
            return;
        }
        if !flight.enumerators.is_empty() || flight.triggered {
            return;
        }
        flight.triggered = true;
        let (checkpoint, stop) = (flight.id, flight.goal.stops());
        let stuck = self
            .source_tasks
            .iter()
            .filter(|task| is_stuck(&self.controls[task], Control::Trigger { checkpoint, stop }))
            .count();
        if stuck > 0 {
            // Some sources send this barrier and some do not: no later one can be aligned.
            self.fail(stuck_thread());
        }
    }

    fn on_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Failed(error) => self.fail(error),
            Answer::Snapshot {
                operator,
                checkpoint,
                state,
            } => {
                if let Step::Collecting(flight) = &mut self.step
                    && flight.id == checkpoint
                {
                    flight.enumerators.remove(&operator);
                    flight.files[operator as usize].enumerator = Some(state);
                    self.after_enumerators();
                }
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Opened(task) => {
                self.opened.insert(task);
                if self.all_open() {
                    self.plan.forget_restored();
                    // The first checkpoint comes an interval after the start.
                    self.last_start = self.now();
                    self.job.running();
                }
            }
            Event::Ended(task) => {
                self.ended.insert(task);
            }
            Event::Exited { task, outcome } => {
                self.live.remove(&task);
                match outcome {
                    Outcome::Failed(error) => self.fail(error),
                    Outcome::Finished if matches!(self.step, Step::Finishing) => {
                        if self.live.is_empty() {
                            self.end.get_or_insert(End::Finished);
                        }
                    }
                    Outcome::Finished => self.fail(Error::bug("a task finished before the job")),
                    Outcome::Cancelled => {}
                }
            }
            Event::Ack {
                task,
                checkpoint,
                snapshot,
                alignment,
            } => self.on_ack(task, checkpoint, snapshot, alignment),
        }
    }

    fn on_ack(
        &mut self,
        task: TaskId,
        checkpoint: CheckpointId,
        snapshot: Vec<(u32, crate::checkpoint::SubtaskState)>,
        alignment: Duration,
    ) {
        let mut states = Vec::with_capacity(snapshot.len());
        for (operator, mut state) in snapshot {
            // Also of an aborted checkpoint: the writer has handed these over and will not do it again.
            let committables = std::mem::take(&mut state.committables);
            if !committables.is_empty() {
                let pending = self.pending.entry(operator).or_default();
                pending.extend(committables.into_iter().map(|committable| {
                    crate::checkpoint::PendingCommit {
                        checkpoint,
                        attempt: 0,
                        committable,
                    }
                }));
            }
            states.push((operator, state));
        }
        let Step::Collecting(flight) = &mut self.step else {
            return;
        };
        if flight.id != checkpoint {
            return;
        }
        flight.acknowledged(task, states, alignment);
        if flight.tasks.is_empty() {
            self.write();
        }
    }

    /// Every share is there: writes the checkpoint.
    fn write(&mut self) {
        let Step::Collecting(mut flight) = std::mem::replace(&mut self.step, Step::Idle) else {
            return;
        };
        for (operator, pending) in &self.pending {
            flight.files[*operator as usize]
                .committables
                .clone_from(pending);
        }
        let Collected { own, savepoint } = flight.collected(self.job);
        let store = self.job.store.clone();
        let lease = self.job.lease.clone();
        let writing = Box::pin(async move {
            if lease.as_ref().is_some_and(|lease| lease.is_lost()) {
                return Err(Error::config(
                    "the checkpoint directory was taken over by another process",
                ));
            }
            let savepoint = match savepoint {
                Some((store, new)) => Some(store.write_savepoint(new).await?),
                None => None,
            };
            let checkpoint = match (store, own) {
                (Some(store), Some(new)) => Some(store.write(new).await?),
                _ => None,
            };
            Ok(Written {
                checkpoint,
                savepoint,
            })
        });
        self.enter(Step::Writing(flight, writing));
    }

    /// The future of the step under way has resolved.
    async fn on_step_done(&mut self) {
        match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Writing(flight, writing) => {
                let written = writing.await;
                self.on_written(flight, written);
            }
            Step::Committing(flight, committing) => match committing.await {
                Ok(()) => self.on_committed(*flight),
                Err(error) => self.fail(error),
            },
            other => self.step = other,
        }
    }

    fn on_written(&mut self, mut flight: Box<InFlight>, written: Result<Written>) {
        let written = match written {
            Ok(written) => written,
            Err(error) => {
                self.step = Step::Collecting(flight);
                self.abort(error);
                return;
            }
        };
        let now = self.now();
        self.last_end = now;
        let savepoint_only = matches!(flight.goal, Goal::Savepoint { .. });
        if !savepoint_only {
            self.failed_in_a_row = 0;
        }
        let info = |at: &(String, u64)| CheckpointInfo {
            id: flight.id.0,
            location: at.0.clone(),
            bytes: at.1,
            duration: now.since(flight.started),
            alignment: flight.alignment,
            completed: self.plan.clock.wall(),
        };
        if let Some(at) = &written.checkpoint {
            let info = info(at);
            tracing::debug!(checkpoint = %flight.id, took = ?info.duration, bytes = info.bytes, "checkpoint complete");
            self.job.completed(info);
            while self.chores.try_join_next().is_some() {}
            for old in self.job.superseded() {
                if let Some(store) = self.job.store.clone() {
                    self.chores.spawn_local(async move {
                        if let Err(error) = store.delete(old).await {
                            tracing::warn!(checkpoint = old, error = %error.report(), "an old checkpoint could not be deleted");
                        }
                    });
                }
            }
        }
        if let Some(at) = &written.savepoint {
            let info = info(at);
            tracing::info!(location = %info.location, took = ?info.duration, "savepoint complete");
            flight.location = Some(info.location.clone());
            self.job.status(|status| status.last_savepoint = Some(info));
        } else {
            flight.location = written.checkpoint.map(|at| at.0);
        }
        if savepoint_only {
            // Nothing is committed or announced: the job may still be restored from an earlier checkpoint.
            flight.goal.answer(Ok(flight.location.take()));
            self.enter(Step::Idle);
            return;
        }
        let pending = std::mem::take(&mut self.pending);
        let committers = self.committers.clone();
        let committing = commit_all(committers, pending, self.plan.clock.clone());
        self.enter(Step::Committing(flight, Box::pin(committing)));
    }

    fn on_committed(&mut self, mut flight: InFlight) {
        for control in self.controls.values() {
            // May be missed: a later one tells the same.
            let _ = control.try_send(Control::Completed(flight.id));
        }
        for orders in self.orders.values() {
            let _ = orders.try_send(Order::Completed(flight.id));
        }
        let last = matches!(flight.goal, Goal::Final) || flight.goal.stops();
        let location = flight.location.take();
        if flight.goal.stops() {
            self.job.stopped(location.clone());
        }
        flight.goal.answer(Ok(location));
        if !last {
            self.enter(Step::Idle);
            return;
        }
        self.final_done = true;
        self.enter(Step::Finishing);
        for control in self.controls.values() {
            if is_stuck(control, Control::Finish) {
                self.end = Some(End::Failed(stuck_thread()));
            }
        }
    }

    /// The checkpoint under way will not complete.
    fn abort(&mut self, error: Error) {
        let Step::Collecting(mut flight) = std::mem::replace(&mut self.step, Step::Idle) else {
            return;
        };
        let now = self.now();
        self.last_end = now;
        let id = flight.id;
        tracing::warn!(checkpoint = %id, error = %error.report(), "checkpoint failed");
        self.job.failed_checkpoint();
        for control in self.controls.values() {
            if is_stuck(control, Control::Aborted(id)) {
                self.fail(stuck_thread());
                break;
            }
        }
        for orders in self.orders.values() {
            let _ = orders.try_send(Order::Aborted(id));
        }
        if let Some(store) = self.job.store.clone()
            && !matches!(flight.goal, Goal::Savepoint { .. })
        {
            self.chores.spawn_local(async move {
                if let Err(error) = store.delete(id.0).await {
                    tracing::warn!(checkpoint = %id, error = %error.report(), "what is left of an aborted checkpoint could not be deleted");
                }
            });
        }
        let error = Error::new(error.kind(), format!("checkpoint {id} failed")).with_source(error);
        match std::mem::replace(&mut flight.goal, Goal::Checkpoint) {
            Goal::Checkpoint | Goal::Final => {
                self.failed_in_a_row += 1;
                let tolerable = self.job.config.tolerable_failed_checkpoints;
                if self.failed_in_a_row > tolerable {
                    self.fail(
                        Error::new(
                            error.kind(),
                            format!(
                                "{} checkpoints in a row failed, {tolerable} are tolerated \
                             ('execution.checkpointing.tolerable-failed-checkpoints')",
                                self.failed_in_a_row
                            ),
                        )
                        .with_source(error),
                    );
                }
            }
            goal => {
                if goal.stops() {
                    self.job.set_state(JobState::Running);
                }
                goal.answer(Err(error));
            }
        }
        self.enter(Step::Idle);
    }

    fn check_timeout(&mut self, now: Moment) {
        let deadline = match &self.step {
            Step::Collecting(flight) | Step::Writing(flight, _) => flight.deadline,
            _ => return,
        };
        if now < deadline {
            return;
        }
        let waits = self.waits_of_step(now);
        self.step = match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Writing(flight, _) => Step::Collecting(flight),
            step => step,
        };
        self.abort(Error::io(format!(
            "it was not complete after {:?} ('execution.checkpointing.timeout'): {waits}",
            self.job.config.checkpoint_timeout
        )));
    }

    fn on_command(&mut self, command: Command) {
        let goal = match command {
            Command::Savepoint { location, reply } => Goal::Savepoint { location, reply },
            Command::Stop { savepoint, reply } => {
                self.job.set_state(JobState::Stopping);
                Goal::Stop { savepoint, reply }
            }
        };
        if matches!(self.step, Step::Finishing) || self.final_done {
            goal.answer(Err(Error::io("the job is ending by itself")));
        } else if self.requests.len() >= REQUESTS {
            goal.answer(Err(Error::io(format!(
                "{REQUESTS} savepoints are waiting already: try again later"
            ))));
        } else {
            self.requests.push_back(goal);
        }
    }

    /// Ends everything that was started, and says how the attempt ended.
    async fn shut_down(mut self, events: &mut mpsc::Receiver<Event>) -> End {
        let plan = self.plan.clone();
        let clock = plan.clock.clone();
        let limit = plan.close_timeout;
        self.cancel.cancel();
        let mut end = self.end.take().unwrap_or(End::Cancelled);
        // A task that is cancelled closes within the limit; its thread may be stuck in somebody's code.
        let until = clock.now().after(limit.saturating_mul(2));
        let started = !self.workers.is_empty();
        while started && !self.live.is_empty() {
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Some(Event::Exited { task, outcome }) => {
                        self.live.remove(&task);
                        if let (Outcome::Failed(error), End::Failed(first)) = (outcome, &mut end) {
                            first.suppress(error);
                        }
                    }
                    Some(_) => {}
                    None => break,
                },
                () = wait_until(&*clock, Some(until)) => break,
            }
        }
        let mut stuck = Vec::new();
        for (index, worker) in (1_u32..).zip(&mut self.workers) {
            let gone = self.live.iter().all(|task| task.subtask + 1 != index);
            let patience = if gone { limit } else { Duration::ZERO };
            if !worker.join(&*clock, patience).await {
                stuck.push(index);
            }
        }
        self.stop_enumerators.cancel();
        let enumerators = async { while self.enumerators.join_next().await.is_some() {} };
        if within(&*clock, limit.saturating_mul(2), enumerators)
            .await
            .is_none()
        {
            tracing::warn!("an enumerator did not end in time and was given up");
        }
        // A commit under way is given up; its committables are in the checkpoint that is restored.
        if let Step::Committing(_, committing) = std::mem::replace(&mut self.step, Step::Idle) {
            drop(committing);
        }
        let slots = std::mem::take(&mut *self.committers.lock().await);
        for slot in slots {
            slot.close(&*clock, limit).await;
        }
        for goal in std::mem::take(&mut self.requests) {
            goal.answer(Err(Error::io(
                "the job ended or restarts: try again when it runs",
            )));
        }
        let chores = async { while self.chores.join_next().await.is_some() {} };
        if within(&*clock, limit, chores).await.is_none() {
            tracing::warn!("deleting old checkpoints took too long and was given up");
        }
        if !stuck.is_empty() {
            let text = format!(
                "worker threads {stuck:?} are stuck in a connector's or a function's code and did not end in \
                 {limit:?} ('task.cancellation.timeout'): the process must be restarted"
            );
            let mut error = Error::new(aqueduct_connector::ErrorKind::Config, text);
            if let End::Failed(first) = end {
                error = error.with_source(first);
            }
            return End::Failed(error);
        }
        match (end, self.job.was_stopped()) {
            (End::Finished, true) => End::Stopped,
            (end, _) => end,
        }
    }
}

/// Sends a message to a task or enumerator; whether its queue is full. One that is gone is told of by its own last event.
fn is_stuck<T>(queue: &mpsc::Sender<T>, message: T) -> bool {
    matches!(queue.try_send(message), Err(TrySendError::Full(_)))
}

fn stuck_thread() -> Error {
    Error::io(format!(
        "a worker's thread has left {CONTROL_QUEUE} messages unread: it is stuck in a connector's or a function's code"
    ))
}

/// Resolves when the step's future has something; the step itself keeps the result.
async fn step_progress(step: &mut Step) {
    match step {
        Step::Writing(_, writing) => {
            let written = writing.as_mut().await;
            *writing = Box::pin(std::future::ready(written));
        }
        Step::Committing(_, committing) => {
            let committed = committing.as_mut().await;
            *committing = Box::pin(std::future::ready(committed));
        }
        Step::Idle | Step::Collecting(_) | Step::Finishing => std::future::pending().await,
    }
}
