//! Tasks: one subtask of one chain, driven on its worker's thread.
//!
//! A task polls three things: messages of the coordinator, its own messages to take their way out, and its
//! head, which moves elements through the chain. Messages are always taken in, also while the chain waits,
//! so nobody who talks to a task can be held up by backpressure.
//!
//! # Invariants
//!
//! - One task owns a reader or input, the operators behind it and a writer; nobody else touches them.
//! - Whatever ends a task (finish, cancel, error, panic), its head is closed, in bounded time.
//! - A panic in user code ends the task with an error that names the operator.

mod exchange;
mod input;
mod sink;
mod source;

use std::any::Any;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as PollContext, Poll, ready};
use std::time::Duration;

use aqueduct_connector::metrics::{Counter, Gauge, MetricRegistry};
use aqueduct_connector::source::Split;
use aqueduct_connector::{
    CheckpointId, Clock, Context, Error, Moment, Result, Spawn, Subtask, Timestamp, Versioned,
};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, PollSender};

pub(crate) use exchange::{Exchange, ExchangeStage, Route, TeeStage};
pub(crate) use input::InputHead;
pub(crate) use sink::SinkStage;
pub(crate) use source::SourceHead;

use crate::checkpoint::{Restored, SubtaskState};
use crate::graph::Graph;
use crate::host::{RuntimeSpawn, panic_text, within};
use crate::operator::panicked;
use crate::stage::{Scope, Wait};
use crate::watermark::AlignmentGroups;

/// Messages that may wait for a task; it takes them whenever its thread runs, so a full queue means a
/// thread that is stuck in somebody's code.
pub(crate) const CONTROL_QUEUE: usize = 1_024;

/// Turns of the loop before other tasks of the thread get theirs.
const TURNS: u32 = 32;

/// A subtask of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskId {
    pub(crate) chain: u32,
    pub(crate) subtask: u32,
}

/// What the coordinator tells a task.
#[derive(Debug)]
pub(crate) enum Control {
    /// Sources: snapshot and send a barrier; with `stop`, read nothing more.
    Trigger {
        checkpoint: CheckpointId,
        stop: bool,
    },
    /// A checkpoint is complete.
    Completed(CheckpointId),
    /// A checkpoint will not complete.
    Aborted(CheckpointId),
    /// Sources: splits to read.
    Splits(Vec<Split>),
    /// Sources: no further split will come.
    NoMoreSplits,
    /// Sources: a message of the enumerator.
    EnumeratorEvent(Versioned),
    /// Everything is done and committed: close.
    Finish,
}

/// What a task tells the coordinator.
#[derive(Debug)]
pub(crate) enum Event {
    /// It has restored its state and runs.
    Opened(TaskId),
    /// Its share of a checkpoint.
    Ack {
        task: TaskId,
        checkpoint: CheckpointId,
        snapshot: Vec<(u32, SubtaskState)>,
        /// From its first input's barrier to its last.
        alignment: Duration,
    },
    /// Its input has ended and everything was flushed.
    Ended(TaskId),
    /// It is closed and gone.
    Exited { task: TaskId, outcome: Outcome },
}

/// How a task ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Finished,
    Cancelled,
    Failed(Error),
}

/// What a reader's task tells the enumerator's.
#[derive(Debug)]
pub(crate) enum EnumeratorMessage {
    Registered(u32),
    RequestSplit(u32),
    Event(u32, Versioned),
    /// The reader's snapshot for this checkpoint is taken: what was held back may go.
    Snapshotted(u32, CheckpointId),
}

/// Everything that the tasks of one attempt share.
pub(crate) struct AttemptPlan {
    pub(crate) graph: Arc<Graph>,
    pub(crate) attempt: u32,
    pub(crate) parallelism: u32,
    pub(crate) max_parallelism: u32,
    pub(crate) registry: MetricRegistry,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seed: u64,
    pub(crate) watermark_interval: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) alignment: AlignmentGroups,
    /// The channels of each exchange, by the exchange's number.
    pub(crate) exchanges: Vec<Box<dyn Any + Send + Sync>>,
    /// Emptied once every task has opened.
    pub(crate) restored: Mutex<Arc<Restored>>,
}

impl AttemptPlan {
    pub(crate) fn restored(&self) -> Arc<Restored> {
        self.restored
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Frees the restored state.
    pub(crate) fn forget_restored(&self) {
        *self.restored.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }

    /// The context of `operator`'s enumerator or committer (subtask `None`) or of one of its subtasks.
    pub(crate) fn context(
        &self,
        operator: u32,
        subtask: Option<u32>,
        spawn: Arc<dyn Spawn>,
    ) -> Context {
        let info = self.graph.operator(operator);
        let number;
        let labels: &[(&str, &str)] = match subtask {
            Some(index) => {
                number = index.to_string();
                &[("operator", &info.name), ("subtask", &number)]
            }
            None => &[("operator", &info.name)],
        };
        let mut bytes = self.seed.to_le_bytes().to_vec();
        bytes.extend_from_slice(info.name.as_bytes());
        bytes.extend_from_slice(&subtask.map_or(u32::MAX, |index| index).to_le_bytes());
        bytes.extend_from_slice(&self.attempt.to_le_bytes());
        Context {
            job: self.graph.name.clone(),
            operator: info.name.clone(),
            subtask: match subtask {
                Some(index) => Subtask {
                    index,
                    parallelism: self.parallelism,
                },
                None => Subtask {
                    index: 0,
                    parallelism: 1,
                },
            },
            parallelism: self.parallelism,
            attempt: self.attempt,
            metrics: self.registry.group(labels),
            clock: self.clock.clone(),
            spawn,
            seed: crate::keyed::key_hash(&bytes),
        }
    }

    /// The channels of exchange `number`.
    pub(crate) fn exchange<T: Send + 'static>(&self, number: u32) -> &Exchange<T> {
        self.exchanges[number as usize]
            .downcast_ref()
            .expect("the graph made the exchange for the type it uses it with")
    }
}

/// What a chain is built from, for one subtask.
pub(crate) struct TaskBuild {
    pub(crate) plan: Arc<AttemptPlan>,
    pub(crate) scope: Rc<Scope>,
    pub(crate) subtask: u32,
    pub(crate) parallelism: u32,
    pub(crate) max_parallelism: u32,
    pub(crate) spawn: Arc<RuntimeSpawn>,
}

impl TaskBuild {
    pub(crate) fn context(&self, operator: u32) -> Context {
        self.plan
            .context(operator, Some(self.subtask), self.spawn.clone())
    }

    pub(crate) fn restored(&self, operator: u32) -> SubtaskState {
        let name = &self.plan.graph.operator(operator).name;
        self.plan
            .restored()
            .subtask(name, self.subtask, self.parallelism, self.max_parallelism)
    }

    pub(crate) fn watermark_gauge(&self, operator: u32) -> Gauge {
        let gauge = self
            .context(operator)
            .metrics
            .gauge("currentOutputWatermark");
        gauge.set(Timestamp::MIN.millis());
        gauge
    }
}

/// The first stage of a chain, which drives the others.
pub(crate) trait Head {
    /// Creates and restores the whole chain.
    fn open(&mut self, build: &TaskBuild, link: &mut TaskLink) -> Result<()>;

    /// Works until it is told to finish.
    fn poll_run(&mut self, cx: &mut PollContext<'_>, link: &mut TaskLink) -> Poll<Result<()>>;

    /// Closes the whole chain.
    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;
}

/// What a task shows of itself to the coordinator's stall watch and to the status page.
#[derive(Debug, Default)]
pub(crate) struct Board {
    wait: AtomicU8,
    operator: AtomicU32,
    since_millis: AtomicU64,
    /// Whose code ran last.
    running: AtomicU32,
    /// When the turn began that has not returned yet, in milliseconds plus one; 0 between turns.
    turn_began: AtomicU64,
}

fn millis_of(now: Moment) -> u64 {
    u64::try_from(now.since_origin().as_millis()).unwrap_or(u64::MAX)
}

impl Board {
    fn show(&self, wait: Wait, operator: u32, now: Moment) {
        let before = (
            self.wait.swap(wait as u8, Ordering::Relaxed),
            self.operator.swap(operator, Ordering::Relaxed),
        );
        if before != (wait as u8, operator) {
            self.moved(now);
        }
    }

    fn moved(&self, now: Moment) {
        self.since_millis.store(millis_of(now), Ordering::Relaxed);
    }

    /// `operator`'s code runs from here on.
    pub(crate) fn enter(&self, operator: u32) {
        self.running.store(operator, Ordering::Relaxed);
    }

    /// Whose code ran last.
    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    fn turn_begins(&self, now: Moment) {
        let began = millis_of(now).saturating_add(1);
        self.turn_began.store(began, Ordering::Relaxed);
    }

    fn turn_ends(&self) {
        self.turn_began.store(0, Ordering::Relaxed);
    }

    /// For how long the turn under way has not returned to its thread, and whose code it runs.
    pub(crate) fn turn(&self, now: Moment) -> Option<(u32, Duration)> {
        let began = self.turn_began.load(Ordering::Relaxed).checked_sub(1)?;
        let began = Moment::from_origin(Duration::from_millis(began));
        Some((self.running(), now.since(began)))
    }

    /// What the task waits for, which operator makes it, and for how long nothing has moved.
    pub(crate) fn read(&self, now: Moment) -> (Wait, u32, Duration) {
        let since = Duration::from_millis(self.since_millis.load(Ordering::Relaxed));
        (
            Wait::from_number(self.wait.load(Ordering::Relaxed)),
            self.operator.load(Ordering::Relaxed),
            now.since(Moment::from_origin(since)),
        )
    }
}

/// A task's connection to the rest.
pub(crate) struct TaskLink {
    pub(crate) id: TaskId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) scope: Rc<Scope>,
    control: mpsc::Receiver<Control>,
    events: PollSender<Event>,
    enumerator: Option<PollSender<EnumeratorMessage>>,
    outgoing: VecDeque<Outgoing>,
    board: Arc<Board>,
    head_operator: u32,
}

enum Outgoing {
    Event(Event),
    Enumerator(EnumeratorMessage),
}

impl TaskLink {
    /// The next message of the coordinator, if there is one.
    fn poll_control(&mut self, cx: &mut PollContext<'_>) -> Poll<Control> {
        match self.control.poll_recv(cx) {
            Poll::Ready(Some(control)) => Poll::Ready(control),
            // The coordinator is gone; the cancel signal follows.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.outgoing.push_back(Outgoing::Event(event));
    }

    pub(crate) fn tell_enumerator(&mut self, message: EnumeratorMessage) {
        self.outgoing.push_back(Outgoing::Enumerator(message));
    }

    /// Ready when every message is out. A head asks before it makes more of them.
    fn poll_outgoing(&mut self, cx: &mut PollContext<'_>) -> Poll<()> {
        while let Some(next) = self.outgoing.front() {
            // A receiver that is gone means the attempt is ending: the message no longer matters.
            let gone = match next {
                Outgoing::Event(_) => ready!(self.events.poll_reserve(cx)).is_err(),
                Outgoing::Enumerator(_) => match &mut self.enumerator {
                    Some(sender) => ready!(sender.poll_reserve(cx)).is_err(),
                    None => true,
                },
            };
            match (self.outgoing.pop_front(), gone) {
                (Some(Outgoing::Event(event)), false) => {
                    let _ = self.events.send_item(event);
                }
                (Some(Outgoing::Enumerator(message)), false) => {
                    if let Some(sender) = &mut self.enumerator {
                        let _ = sender.send_item(message);
                    }
                }
                _ => {}
            }
        }
        Poll::Ready(())
    }

    /// Shows what the task waits for, preferring what the chain said.
    fn waits(&self, otherwise: Wait) {
        let (operator, wait) = self
            .scope
            .take_wait()
            .unwrap_or((self.head_operator, otherwise));
        let now = self.clock.now();
        if self.scope.take_progress() {
            self.board.moved(now);
        }
        self.board.show(wait, operator, now);
    }

    /// Something moved.
    fn moved(&self) {
        self.board.moved(self.clock.now());
    }
}

/// Milliseconds a task spent, by what it did.
struct Times {
    busy: Counter,
    idle: Counter,
    backpressured: Counter,
    /// Nanoseconds not yet counted.
    rest: [u64; 3],
}

impl Times {
    fn add(&mut self, which: usize, time: Duration) {
        let nanos = self.rest[which] + u64::try_from(time.as_nanos()).unwrap_or(0);
        self.rest[which] = nanos % 1_000_000;
        let counter = match which {
            0 => &self.busy,
            1 => &self.idle,
            _ => &self.backpressured,
        };
        if nanos >= 1_000_000 {
            counter.add(nanos / 1_000_000);
        }
    }
}

/// What a worker needs to run one task.
pub(crate) struct TaskSpec {
    pub(crate) id: TaskId,
    pub(crate) control: mpsc::Receiver<Control>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) enumerator: Option<mpsc::Sender<EnumeratorMessage>>,
    pub(crate) board: Arc<Board>,
    pub(crate) cancel: CancellationToken,
}

/// Runs one task to its end and says how it ended.
pub(crate) async fn run(spec: TaskSpec, plan: Arc<AttemptPlan>) {
    let events = spec.events.clone();
    let id = spec.id;
    let outcome = drive(spec, plan).await;
    // Nobody to tell: the coordinator is gone, and with it the job.
    let _ = events.send(Event::Exited { task: id, outcome }).await;
}

async fn drive(spec: TaskSpec, plan: Arc<AttemptPlan>) -> Outcome {
    let scope = Scope::new(spec.board.clone());
    let chain = plan.graph.chain(spec.id.chain).clone();
    let head_operator = chain.operator;
    scope.enter(head_operator);
    let build = TaskBuild {
        scope: scope.clone(),
        subtask: spec.id.subtask,
        parallelism: plan.parallelism,
        max_parallelism: plan.max_parallelism,
        spawn: RuntimeSpawn::current(),
        plan: plan.clone(),
    };
    let mut link = TaskLink {
        id: spec.id,
        clock: plan.clock.clone(),
        scope: scope.clone(),
        control: spec.control,
        events: PollSender::new(spec.events),
        enumerator: spec.enumerator.map(PollSender::new),
        outgoing: VecDeque::new(),
        board: spec.board,
        head_operator,
    };
    let subtask = Subtask {
        index: spec.id.subtask,
        parallelism: plan.parallelism,
    };
    let name_panic = |payload: Box<dyn Any + Send>| {
        let operator = &plan.graph.operator(scope.running()).name;
        panicked(operator, subtask, &panic_text(payload.as_ref()))
    };
    link.waits(Wait::Opening);
    let built = catch_unwind(AssertUnwindSafe(|| (chain.head)(&build))).map_err(name_panic);
    let mut head = match built {
        Ok(head) => head,
        Err(error) => return Outcome::Failed(error),
    };
    let opened = catch_unwind(AssertUnwindSafe(|| head.open(&build, &mut link)))
        .map_err(name_panic)
        .and_then(|opened| opened);
    drop(build);
    let mut outcome = match opened {
        Err(error) => Outcome::Failed(error),
        Ok(()) => {
            link.tell(Event::Opened(spec.id));
            let mut cancelled = std::pin::pin!(spec.cancel.cancelled());
            let mut times = times(&plan, &chain.name, spec.id.subtask);
            let mut left: Option<(Moment, bool)> = None;
            poll_fn(|cx| {
                if cancelled.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Outcome::Cancelled);
                }
                let start = link.clock.now();
                if let Some((at, backpressured)) = left {
                    times.add(if backpressured { 2 } else { 1 }, start.since(at));
                }
                link.board.turn_begins(start);
                let polled = catch_unwind(AssertUnwindSafe(|| head.poll_run(cx, &mut link)));
                link.board.turn_ends();
                let end = link.clock.now();
                times.add(0, end.since(start));
                let wait = Wait::from_number(link.board.wait.load(Ordering::Relaxed));
                left = Some((end, wait.is_backpressure()));
                match polled {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(Ok(()))) => Poll::Ready(Outcome::Finished),
                    Ok(Poll::Ready(Err(error))) => Poll::Ready(Outcome::Failed(error)),
                    Err(payload) => Poll::Ready(Outcome::Failed(name_panic(payload))),
                }
            })
            .await
        }
    };
    link.waits(Wait::Closing);
    let closing = poll_fn(
        |cx| match catch_unwind(AssertUnwindSafe(|| head.poll_close(cx))) {
            Ok(polled) => polled,
            Err(payload) => Poll::Ready(Err(name_panic(payload))),
        },
    );
    match within(&*plan.clock, plan.close_timeout, closing).await {
        Some(Ok(())) => {}
        Some(Err(error)) => match &mut outcome {
            Outcome::Failed(first) => first.suppress(error),
            Outcome::Finished => outcome = Outcome::Failed(error),
            Outcome::Cancelled => {
                tracing::warn!(chain = %chain.name, %subtask, error = %error.report(), "closing failed after a cancel");
            }
        },
        None => {
            tracing::warn!(
                chain = %chain.name, %subtask, waited = ?plan.close_timeout,
                "did not close in time and was given up; see 'task.cancellation.timeout'"
            );
        }
    }
    outcome
}

fn times(plan: &AttemptPlan, chain: &str, subtask: u32) -> Times {
    let group = plan
        .registry
        .group(&[("task", chain), ("subtask", &subtask.to_string())]);
    Times {
        busy: group.counter("busyTimeMillis"),
        idle: group.counter("idleTimeMillis"),
        backpressured: group.counter("backPressuredTimeMillis"),
        rest: [0; 3],
    }
}
