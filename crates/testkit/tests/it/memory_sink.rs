//! A sink in memory with a service in memory, eager or staged, correct unless a [`Fault`] is built in.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context as PollContext, Poll, Waker, ready};
use std::time::Duration;

use aqueduct_connector::clock::{ManualClock, Timer};
use aqueduct_connector::metrics::{Counter, MetricRegistry};
use aqueduct_connector::sink::{
    CommitOutcome, CommitRequest, Committer, Flush, RecordInfo, Sink, SinkWriter,
};
use aqueduct_connector::stall::StallWatch;
use aqueduct_connector::state::{StateReader, StateWriter};
use aqueduct_connector::{CheckpointId, Context, Error, Result, Task, Timestamp, Versioned};
use aqueduct_testkit::TestContext;
use aqueduct_testkit::conformance::sink::Hold;
use aqueduct_testkit::conformance::{Accounting, Durable, Fate, Guarantee, Power, SinkWorld};
use aqueduct_testkit::log::Marker;
use tokio::sync::{Notify, mpsc};
use tracing::warn;

/// What is wrong with the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    FlushesEarly,
    ForgetsItsFailure,
    AdmitsWithoutBound,
    LosesTheLastBatch,
    StallsSilently,
    CountsSkippedAsApplied,
    NeverWakes,
    LeaksItsTask,
    HangsInClose,
    ShowsTheRecord,
    ReadsTrailingBytes,
    CommitsTwice,
    DropsAtRestore,
    ForgetsAbortedCheckpoints,
}

pub(crate) const MARKER: &str = "marked-number";

const BATCH: usize = 4;
const MOST_IN_FLIGHT: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Eager,
    Staged,
}

pub(crate) struct World {
    pub(crate) fault: Fault,
    pub(crate) mode: Mode,
    service: Service,
    clock: ManualClock,
}

impl World {
    pub(crate) fn new(fault: Fault, mode: Mode) -> Self {
        Self {
            fault,
            mode,
            service: Service::default(),
            clock: ManualClock::new(Timestamp::from_millis(0)),
        }
    }
}

/// Numbers by effect; eager writes are upserts, commits append.
#[derive(Clone, Default)]
struct Service(Arc<ServiceInner>);

#[derive(Default)]
struct ServiceInner {
    state: Mutex<ServiceState>,
    released: Notify,
}

#[derive(Default)]
struct ServiceState {
    upserted: BTreeSet<u64>,
    appended: Vec<u64>,
    applied: BTreeSet<u64>,
    holding: bool,
    broken: bool,
    waiting: u64,
}

impl Service {
    fn with<O>(&self, act: impl FnOnce(&mut ServiceState) -> O) -> O {
        act(&mut self
            .0
            .state
            .lock()
            .expect("nothing panics while it holds the lock"))
    }

    async fn upsert(&self, numbers: &[u64]) -> Result<(), String> {
        loop {
            let released = self.0.released.notified();
            let outcome = self.with(|state| {
                if state.broken {
                    return Some(Err(format!("{MARKER} refused")));
                }
                if state.holding {
                    state.waiting += 1;
                    return None;
                }
                state.upserted.extend(numbers);
                Some(Ok(()))
            });
            match outcome {
                Some(outcome) => return outcome,
                None => released.await,
            }
        }
    }
}

impl SinkWorld for World {
    type Record = u64;

    fn sink(&self) -> Arc<dyn Sink<u64>> {
        Arc::new(MemorySink {
            fault: self.fault,
            mode: self.mode,
            service: self.service.clone(),
        })
    }

    fn record(&self, number: u64) -> u64 {
        number
    }

    fn fate(&self, number: u64) -> Fate {
        fate(number)
    }

    async fn held(&self) -> Vec<u64> {
        self.service.with(|state| {
            let upserted = state.upserted.iter().copied();
            upserted.chain(state.appended.iter().copied()).collect()
        })
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::ExactlyOnce
    }

    fn durable(&self) -> Durable {
        match self.mode {
            Mode::Eager => Durable::AtFlush,
            Mode::Staged => Durable::AtCommit,
        }
    }

    fn context(&self, seed: u64) -> TestContext {
        let limit = match self.fault {
            Fault::None => aqueduct_testkit::LIMIT,
            // Long enough that nothing but a hang lasts as long.
            _ => Duration::from_millis(700),
        };
        TestContext::new("memory")
            .with_seed(seed)
            .with_limit(limit)
            .with_clock(Arc::new(self.clock.clone()))
    }

    fn accounting(&self, metrics: &MetricRegistry) -> Option<Accounting> {
        let count = |name| u64::try_from(metrics.total(name)).expect("counters are positive");
        (self.mode == Mode::Eager).then(|| Accounting {
            applied: count("numRecordsSend"),
            skipped: count("recordsSkipped"),
            handled: count("numRecordsSendErrors"),
        })
    }

    fn hold_answers(&self, hold: Hold) -> Power {
        if self.mode == Mode::Staged {
            return Power::Missing;
        }
        self.service.with(|state| {
            state.holding = hold == Hold::Back;
            state.waiting = 0;
        });
        self.service.0.released.notify_waiters();
        Power::Done
    }

    fn waiting(&self) -> u64 {
        self.service.with(|state| state.waiting)
    }

    fn break_service(&self) -> Power {
        self.service.with(|state| state.broken = true);
        Power::Done
    }

    fn most_admitted(&self) -> Option<u64> {
        // One batch waits for room in flight; skipped and handled records take no room, two of a run at most.
        Some((BATCH * (MOST_IN_FLIGHT + 1)) as u64 + 6)
    }

    fn stall_clock(&self) -> Option<ManualClock> {
        Some(self.clock.clone())
    }

    fn marker(&self) -> Option<Marker> {
        Some(Marker::new(MARKER))
    }
}

fn fate(number: u64) -> Fate {
    match number {
        number if number % 7 == 3 => Fate::Skipped,
        number if number % 11 == 5 => Fate::Handled,
        _ => Fate::Applied,
    }
}

struct MemorySink {
    fault: Fault,
    mode: Mode,
    service: Service,
}

impl Sink<u64> for MemorySink {
    fn connector(&self) -> &'static str {
        "memory"
    }

    fn create_writer(
        &self,
        context: Context,
        restored: Vec<Versioned>,
    ) -> Result<Box<dyn SinkWriter<u64>>> {
        for state in &restored {
            let mut reader = StateReader::open("memory writer state", state, 1..=1)?;
            reader.u64()?;
            if self.fault != Fault::ReadsTrailingBytes {
                reader.finish()?;
            }
        }
        Ok(Box::new(MemoryWriter {
            fault: self.fault,
            mode: self.mode,
            service: self.service.clone(),
            ids: context.random(),
            applied: context.metrics.counter("numRecordsSend"),
            skipped: context.metrics.counter("recordsSkipped"),
            handled: context.metrics.counter("numRecordsSendErrors"),
            stall: StallWatch::new(),
            timer: context.clock.timer(),
            context,
            buffer: Vec::new(),
            in_flight: VecDeque::new(),
            io: None,
            failed: false,
        }))
    }

    fn create_committer(&self, context: Context) -> Result<Option<Box<dyn Committer>>> {
        Ok((self.mode == Mode::Staged).then(|| {
            Box::new(MemoryCommitter {
                fault: self.fault,
                service: self.service.clone(),
                restored: context.attempt > 0,
                requests: Vec::new(),
                asked_before: false,
            }) as Box<dyn Committer>
        }))
    }
}

struct MemoryWriter {
    fault: Fault,
    mode: Mode,
    service: Service,
    context: Context,
    ids: fastrand::Rng,
    applied: Counter,
    skipped: Counter,
    handled: Counter,
    stall: StallWatch,
    timer: Box<dyn Timer>,
    buffer: Vec<u64>,
    /// Sizes of the batches sent and not answered.
    in_flight: VecDeque<usize>,
    io: Option<Io>,
    failed: bool,
}

struct Io {
    batches: mpsc::Sender<Vec<u64>>,
    answers: mpsc::Receiver<Result<(), String>>,
    /// Dropping it ends the task.
    _task: Option<Task>,
}

impl MemoryWriter {
    fn io(&mut self) -> &mut Io {
        let (context, service) = (&self.context, self.service.clone());
        let leaks = self.fault == Fault::LeaksItsTask;
        self.io.get_or_insert_with(|| {
            let (batches, mut to_send) = mpsc::channel::<Vec<u64>>(MOST_IN_FLIGHT);
            let (answer, answers) = mpsc::channel(MOST_IN_FLIGHT);
            let task = context.spawn.spawn(
                "memory writer",
                Box::pin(async move {
                    while let Some(batch) = to_send.recv().await {
                        tokio::task::yield_now().await;
                        if answer.send(service.upsert(&batch).await).await.is_err() {
                            break;
                        }
                    }
                    if leaks {
                        std::future::pending::<()>().await;
                    }
                }),
            );
            let task = if leaks {
                std::mem::forget(task);
                None
            } else {
                Some(task)
            };
            Io {
                batches,
                answers,
                _task: task,
            }
        })
    }

    fn send(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.buffer);
        if self.fault == Fault::LosesTheLastBatch && batch.len() < BATCH {
            return Ok(());
        }
        self.in_flight.push_back(batch.len());
        let sent = self.io().batches.try_send(batch);
        sent.map_err(|_| Error::bug("more batches than may be in flight"))
    }

    /// Takes one answer, if one is due; warns of a stall.
    fn poll_answer(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let answered = self.poll_channel(cx);
        let now = self.context.clock.now();
        if answered.is_ready() {
            self.stall.answered(now);
            self.stall.done();
            return answered;
        }
        self.stall.waiting(now);
        if let Some(waited) = self.stall.due(now)
            && self.fault != Fault::StallsSilently
        {
            warn!(?waited, "no answer");
        }
        self.timer.set(self.stall.deadline());
        // Just set to a later moment; asked so that it wakes the host.
        let _ = self.timer.poll_elapsed(cx);
        answered
    }

    fn poll_channel(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let answer = match self.fault {
            Fault::NeverWakes => {
                let mut noop = PollContext::from_waker(Waker::noop());
                ready!(self.io().answers.poll_recv(&mut noop))
            }
            _ => ready!(self.io().answers.poll_recv(cx)),
        };
        let records = self.in_flight.pop_front().expect("one answer a batch");
        match answer {
            Some(Ok(())) => {
                self.applied.add(records as u64);
                Poll::Ready(Ok(()))
            }
            Some(Err(reason)) => {
                self.failed = true;
                let shown = match self.fault {
                    Fault::ShowsTheRecord => reason,
                    _ => "the service refused a batch".to_owned(),
                };
                Poll::Ready(Err(Error::io(shown)))
            }
            None => Poll::Ready(Err(Error::io("the writer's task is gone"))),
        }
    }

    fn check(&self) -> Result<()> {
        if self.failed && self.fault != Fault::ForgetsItsFailure {
            return Err(Error::io("the writer failed before"));
        }
        Ok(())
    }
}

impl SinkWriter<u64> for MemoryWriter {
    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.check()?;
        while self.mode == Mode::Eager && self.buffer.len() >= BATCH {
            if self.in_flight.len() < MOST_IN_FLIGHT {
                self.send()?;
            } else if self.fault == Fault::AdmitsWithoutBound {
                break;
            } else {
                ready!(self.poll_answer(cx))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn write(&mut self, record: u64, _: RecordInfo) -> Result<()> {
        match fate(record) {
            Fate::Applied => self.buffer.push(record),
            Fate::Skipped if self.fault == Fault::CountsSkippedAsApplied => {
                self.applied.increment()
            }
            Fate::Skipped => self.skipped.increment(),
            Fate::Handled => self.handled.increment(),
        }
        Ok(())
    }

    fn poll_progress(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.check()?;
        while !self.in_flight.is_empty() {
            ready!(self.poll_answer(cx))?;
        }
        Poll::Pending
    }

    fn poll_flush(&mut self, cx: &mut PollContext<'_>, _: Flush) -> Poll<Result<()>> {
        self.check()?;
        if self.mode == Mode::Staged {
            return Poll::Ready(Ok(()));
        }
        while !self.buffer.is_empty() || !self.in_flight.is_empty() {
            if !self.buffer.is_empty() && self.in_flight.len() < MOST_IN_FLIGHT {
                self.send()?;
                if self.fault == Fault::FlushesEarly {
                    return Poll::Ready(Ok(()));
                }
            } else {
                ready!(self.poll_answer(cx))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn prepare_commit(&mut self, _: CheckpointId) -> Result<Vec<Versioned>> {
        if self.buffer.is_empty() {
            return Ok(Vec::new());
        }
        let mut writer = StateWriter::new();
        writer.u64(self.ids.u64(..)).count(self.buffer.len());
        self.buffer
            .drain(..)
            .for_each(|number| _ = writer.u64(number));
        Ok(vec![writer.finish(1)])
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Versioned>> {
        Ok(vec![StateWriter::new().u64(checkpoint.0).finish(1)])
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        if self.fault == Fault::HangsInClose && !self.in_flight.is_empty() {
            return Poll::Pending;
        }
        self.io = None;
        Poll::Ready(Ok(()))
    }
}

struct MemoryCommitter {
    fault: Fault,
    service: Service,
    restored: bool,
    requests: Vec<CommitRequest>,
    asked_before: bool,
}

impl MemoryCommitter {
    fn commit(&self, request: &CommitRequest) -> Result<CommitOutcome> {
        let mut reader = StateReader::open("memory committable", &request.committable, 1..=1)?;
        let id = reader.u64()?;
        let numbers = (0..reader.count(8)?)
            .map(|_| reader.u64())
            .collect::<Result<Vec<_>, _>>()?;
        if self.fault != Fault::ReadsTrailingBytes {
            reader.finish()?;
        }
        self.service.with(|state| {
            if state.broken {
                return Ok(CommitOutcome::Refused(Error::io(
                    "the service refused a commit",
                )));
            }
            if !state.applied.insert(id) && self.fault != Fault::CommitsTwice {
                return Ok(CommitOutcome::AlreadyDone);
            }
            state.appended.extend(numbers);
            Ok(CommitOutcome::Done)
        })
    }
}

impl Committer for MemoryCommitter {
    fn start_commit(&mut self, requests: Vec<CommitRequest>) -> Result<()> {
        self.requests = requests;
        Ok(())
    }

    /// Every committable is done at its second attempt, so that attempts are counted and passed on.
    fn poll_commit(&mut self, _: &mut PollContext<'_>) -> Poll<Result<Vec<CommitOutcome>>> {
        let requests = std::mem::take(&mut self.requests);
        let newest = requests.iter().map(|request| request.checkpoint).max();
        let lost = |request: &CommitRequest| match self.fault {
            Fault::DropsAtRestore => self.restored && !self.asked_before,
            Fault::ForgetsAbortedCheckpoints => Some(request.checkpoint) < newest,
            _ => false,
        };
        let outcomes = requests.iter().map(|request| {
            if lost(request) {
                return Ok(CommitOutcome::Done);
            }
            match request.attempt {
                0 => Ok(CommitOutcome::TryAgain),
                _ => self.commit(request),
            }
        });
        let outcomes = outcomes.collect();
        self.asked_before = true;
        Poll::Ready(outcomes)
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}
