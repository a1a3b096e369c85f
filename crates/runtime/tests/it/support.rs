//! A source of numbers, a staged and an eager sink, and faults that strike once.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as PollContext, Poll, Waker};
use std::time::{Duration, Instant};

use aqueduct_connector::clock::Timestamp;
use aqueduct_connector::sink::{
    CommitOutcome, CommitRequest, Committer, Flush, RecordInfo, Sink, SinkWriter,
};
use aqueduct_connector::source::{
    Batch, Boundedness, EnumeratorOutput, PullAssigner, ReaderOutput, Record, Source, SourceReader,
    Split, SplitEnumerator, SplitId,
};
use aqueduct_connector::state::{StateReader, StateWriter};
use aqueduct_connector::{CheckpointId, Context, Error, Result, Versioned};
use aqueduct_runtime::{
    JobConfig, JobConfigBuilder, JobHandle, JobReport, JobStatus, RestartStrategy,
};

/// Longest wait of a test for an event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A configuration with checkpoints every few milliseconds and quick restarts.
pub(crate) fn config(dir: &tempfile::TempDir) -> JobConfigBuilder {
    config_at(dir.path())
}

/// The same, for a directory by its path.
pub(crate) fn config_at(dir: &Path) -> JobConfigBuilder {
    JobConfig::builder()
        .checkpoint_dir(dir.join("checkpoints").to_string_lossy())
        .checkpoint_interval(Duration::from_millis(5))
        .restart(RestartStrategy::FixedDelay {
            attempts: 5,
            delay: Duration::from_millis(1),
        })
        .close_timeout(Duration::from_secs(10))
        .watermark_interval(Duration::ZERO)
        .seed(1)
}

/// Waits for a job's end within the time limit of tests.
pub(crate) fn finish(handle: &JobHandle) -> Result<JobReport> {
    let status = when(handle, |_| false);
    assert!(
        status.state.is_final(),
        "still {} after {PATIENCE:?}",
        status.state
    );
    handle.wait_blocking()
}

/// Waits until the status is as wanted or the job has ended.
pub(crate) fn when(handle: &JobHandle, until: impl FnMut(&JobStatus) -> bool) -> JobStatus {
    run(async {
        match tokio::time::timeout(PATIENCE, handle.status_when(until)).await {
            Ok(status) => status,
            Err(_) => handle.status(),
        }
    })
}

/// Runs a future of the handle with the time limit of tests.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE * 2, future)
            .await
            .expect("within the time limit")
    })
}

/// Blocks until `ready`, looking every millisecond; for state that lives outside the job and wakes nobody.
pub(crate) fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// A fault at one point, which strikes once, after so many passes.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    point: Option<Point>,
    passes: Arc<AtomicU64>,
    after: u64,
    panic: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    ReaderPoll,
    ReaderSnapshot,
    ReaderCompleted,
    EnumeratorRequest,
    EnumeratorSnapshot,
    EnumeratorProgress,
    Function,
    OperatorSnapshot,
    WriterProgress,
    WriterReady,
    WriterWrite,
    WriterFlush,
    WriterPrepare,
    WriterSnapshot,
    WriterCompleted,
    CommitStart,
    CommitBefore,
    CommitAfter,
}

impl Point {
    pub(crate) const ALL: [Self; 18] = [
        Self::ReaderPoll,
        Self::ReaderSnapshot,
        Self::ReaderCompleted,
        Self::EnumeratorRequest,
        Self::EnumeratorSnapshot,
        Self::EnumeratorProgress,
        Self::Function,
        Self::OperatorSnapshot,
        Self::WriterProgress,
        Self::WriterReady,
        Self::WriterWrite,
        Self::WriterFlush,
        Self::WriterPrepare,
        Self::WriterSnapshot,
        Self::WriterCompleted,
        Self::CommitStart,
        Self::CommitBefore,
        Self::CommitAfter,
    ];
}

impl Fault {
    pub(crate) fn none() -> Self {
        Self {
            point: None,
            passes: Arc::default(),
            after: 0,
            panic: false,
        }
    }

    pub(crate) fn at(point: Point, after: u64) -> Self {
        Self {
            point: Some(point),
            after,
            ..Self::none()
        }
    }

    pub(crate) fn panicking(mut self) -> Self {
        self.panic = true;
        self
    }

    pub(crate) fn struck(&self) -> bool {
        self.passes.load(Ordering::SeqCst) > self.after
    }

    pub(crate) fn pass(&self, point: Point) -> Result<()> {
        if self.point == Some(point) && self.passes.fetch_add(1, Ordering::SeqCst) == self.after {
            assert!(!self.panic, "a fault at {point:?}");
            return Err(Error::io(format!("a fault at {point:?}")));
        }
        Ok(())
    }
}

/// Tells waiting readers that they may go on.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Gate {
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        let wakers =
            std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll_open(&self, cx: &PollContext<'_>) -> bool {
        self.wakers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(cx.waker().clone());
        self.open.load(Ordering::SeqCst)
    }
}

/// Splits of numbers: split `s` holds `s * per_split .. (s + 1) * per_split`; a number is its event time in
/// milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) splits: u64,
    pub(crate) per_split: u64,
    pub(crate) batch: u64,
    /// After so many records of a split, wait until a checkpoint covers them.
    pub(crate) pace: u64,
    /// Whether the source stays open after its numbers.
    pub(crate) unbounded: bool,
    /// After this many of each split, wait for the gate.
    pub(crate) gate: Option<(u64, Arc<Gate>)>,
    pub(crate) fault: Fault,
    pub(crate) closed: Arc<AtomicU64>,
    /// How often a split was paused.
    pub(crate) paused: Arc<AtomicU64>,
}

impl Numbers {
    pub(crate) fn new(splits: u64, per_split: u64) -> Self {
        Self {
            splits,
            per_split,
            batch: 7,
            pace: 50,
            unbounded: false,
            gate: None,
            fault: Fault::none(),
            closed: Arc::default(),
            paused: Arc::default(),
        }
    }

    pub(crate) fn all(&self) -> Vec<u64> {
        (0..self.splits * self.per_split).collect()
    }
}

fn encode(from: u64, to: u64) -> Versioned {
    StateWriter::new().u64(from).u64(to).finish(1)
}

fn decode(state: &Versioned) -> Result<(u64, u64)> {
    let mut reader = StateReader::open("numbers", state, 1..=1)?;
    let range = (reader.u64()?, reader.u64()?);
    reader.finish()?;
    Ok(range)
}

impl Source<u64> for Numbers {
    fn connector(&self) -> &'static str {
        "numbers"
    }

    fn boundedness(&self) -> Boundedness {
        if self.unbounded {
            Boundedness::Unbounded
        } else {
            Boundedness::Bounded
        }
    }

    fn create_enumerator(
        &self,
        _context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        let assigner = match restored {
            None => None,
            Some(state) => {
                let mut reader = StateReader::open("numbers plan", &state, 1..=1)?;
                let count = reader.count(8)?;
                let mut left = Vec::with_capacity(count);
                for _ in 0..count {
                    left.push(Split {
                        id: SplitId::new(reader.text()?),
                        state: reader.versioned()?,
                    });
                }
                Some(PullAssigner::restored(left))
            }
        };
        Ok(Box::new(Planner {
            source: self.clone(),
            planned: assigner.is_some(),
            assigner: assigner.unwrap_or_default(),
        }))
    }

    fn create_reader(&self, _context: Context) -> Result<Box<dyn SourceReader<u64>>> {
        Ok(Box::new(Reader {
            source: self.clone(),
            splits: BTreeMap::new(),
            asked: false,
            no_more: false,
            since_checkpoint: 0,
            covered_by: None,
            waker: None,
            out: None,
            paused: BTreeSet::new(),
        }))
    }
}

struct Planner {
    source: Numbers,
    planned: bool,
    assigner: PullAssigner,
}

impl SplitEnumerator for Planner {
    fn poll_progress(
        &mut self,
        _cx: &mut PollContext<'_>,
        out: &mut EnumeratorOutput,
    ) -> Poll<Result<()>> {
        if let Err(error) = self.source.fault.pass(Point::EnumeratorProgress) {
            return Poll::Ready(Err(error));
        }
        if !self.planned {
            self.planned = true;
            let per = self.source.per_split;
            let splits = (0..self.source.splits)
                .map(|split| Split {
                    id: SplitId::new(format!("split-{split}")),
                    state: encode(split * per, (split + 1) * per),
                })
                .collect();
            self.assigner.planned(splits, out);
        }
        Poll::Pending
    }

    fn reader_registered(&mut self, reader: u32, _out: &mut EnumeratorOutput) -> Result<()> {
        self.assigner.reader_registered(reader);
        Ok(())
    }

    fn reader_lost(&mut self, reader: u32) -> Result<()> {
        self.assigner.reader_lost(reader);
        Ok(())
    }

    fn split_requested(&mut self, reader: u32, out: &mut EnumeratorOutput) -> Result<()> {
        self.source.fault.pass(Point::EnumeratorRequest)?;
        self.assigner.requested(reader, out);
        Ok(())
    }

    fn splits_returned(&mut self, splits: Vec<Split>, out: &mut EnumeratorOutput) -> Result<()> {
        self.assigner.returned(splits, out);
        Ok(())
    }

    fn snapshot(&mut self, _checkpoint: CheckpointId) -> Result<Versioned> {
        self.source.fault.pass(Point::EnumeratorSnapshot)?;
        let mut writer = StateWriter::new();
        let left: Vec<_> = match self.assigner.unassigned() {
            Some(left) => left.collect(),
            None => return Err(Error::bug("a snapshot before the plan")),
        };
        writer.count(left.len());
        for split in left {
            writer.text(split.id.as_str()).versioned(&split.state);
        }
        Ok(writer.finish(1))
    }

    fn poll_close(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.source.closed.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Ok(()))
    }
}

struct Reader {
    source: Numbers,
    splits: BTreeMap<SplitId, (u64, u64)>,
    asked: bool,
    no_more: bool,
    since_checkpoint: u64,
    /// The first checkpoint that covers everything emitted so far.
    covered_by: Option<CheckpointId>,
    waker: Option<Waker>,
    /// The batch that is out: its split and how many records of it were not yet reported.
    out: Option<(SplitId, u64)>,
    paused: BTreeSet<SplitId>,
}

impl SourceReader<u64> for Reader {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        for split in splits {
            let known = self.splits.insert(split.id, decode(&split.state)?);
            assert!(known.is_none(), "a split was given twice");
        }
        self.asked = false;
        self.waker.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        assert!(!self.no_more, "the end was said twice");
        self.no_more = true;
        self.waker.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<u64>>> {
        self.source.fault.pass(Point::ReaderPoll)?;
        assert!(
            self.out.is_none(),
            "polled before the last batch was reported"
        );
        self.waker = Some(cx.waker().clone());
        if self.since_checkpoint >= self.source.pace {
            return Poll::Pending;
        }
        let finished = self.splits.iter().find(|(_, (at, to))| at == to);
        if let Some(id) = finished.map(|(id, _)| id.clone()) {
            self.splits.remove(&id);
            return Poll::Ready(Ok(ReaderOutput::SplitFinished(id)));
        }
        if !self.paused.is_empty() && self.splits.keys().all(|id| self.paused.contains(id)) {
            return Poll::Pending;
        }
        let next = self
            .splits
            .iter()
            .find(|(id, _)| !self.paused.contains(*id));
        let Some((id, (at, to))) = next else {
            if self.no_more && !self.source.unbounded {
                return Poll::Ready(Ok(ReaderOutput::End));
            }
            if self.asked || self.no_more {
                return Poll::Pending;
            }
            self.asked = true;
            return Poll::Ready(Ok(ReaderOutput::RequestSplit));
        };
        let (at, mut to) = (*at, *to);
        if let Some((after, gate)) = &self.source.gate
            && !gate.poll_open(cx)
        {
            let begin = to - self.source.per_split;
            to = to.min(begin + after);
            if at >= to {
                return Poll::Pending;
            }
        }
        let end = to.min(at + self.source.batch);
        self.out = Some((id.clone(), end - at));
        let records = (at..end)
            .map(|number| Record {
                value: number,
                timestamp: Some(Timestamp::from_millis(number.cast_signed())),
            })
            .collect();
        Poll::Ready(Ok(ReaderOutput::Batch(Batch {
            split: id.clone(),
            records,
        })))
    }

    fn emitted(&mut self, records: usize) {
        let (id, left) = self.out.take().expect("a batch is out");
        let records = records as u64;
        assert!(records <= left);
        if let Some((at, _)) = self.splits.get_mut(&id) {
            *at += records;
        }
        self.since_checkpoint += records;
        self.covered_by = None;
        if left > records {
            self.out = Some((id, left - records));
        }
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Split>> {
        self.source.fault.pass(Point::ReaderSnapshot)?;
        self.covered_by.get_or_insert(checkpoint);
        Ok(self
            .splits
            .iter()
            .filter(|(_, (at, to))| at < to)
            .map(|(id, (at, to))| Split {
                id: id.clone(),
                state: encode(*at, *to),
            })
            .collect())
    }

    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        self.source.fault.pass(Point::ReaderCompleted)?;
        if self.covered_by.is_some_and(|covered| checkpoint >= covered) {
            self.since_checkpoint = 0;
            self.waker.take().into_iter().for_each(Waker::wake);
        }
        Ok(())
    }

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]) {
        self.source
            .paused
            .fetch_add(pause.len() as u64, Ordering::SeqCst);
        self.paused.extend(pause.iter().cloned());
        for id in resume {
            assert!(self.paused.remove(id), "resumed what was not paused");
        }
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn poll_close(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.source.closed.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Ok(()))
    }
}

/// What a service holds after commits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Service {
    state: Arc<Mutex<ServiceState>>,
    /// Where effects outlive the process, one file a committable.
    dir: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct ServiceState {
    values: Vec<u64>,
    applied: HashSet<(u64, u32)>,
    calls: u64,
    progress: u64,
    closed: u64,
    opened: u64,
    flushes: BTreeSet<&'static str>,
}

impl Service {
    /// A service that keeps what it applied in files.
    pub(crate) fn in_files(dir: &Path) -> Self {
        Self {
            dir: Some(dir.to_owned()),
            ..Self::default()
        }
    }

    /// Applies a committable once, however often and from whichever process it comes.
    fn apply(&self, id: (u64, u32), values: &[u64]) -> bool {
        if let Some(dir) = &self.dir {
            let file = dir.join(format!("{}-{}", id.0, id.1));
            let text: Vec<String> = values.iter().map(u64::to_string).collect();
            let part = dir.join(format!("part-{}-{}-{}", std::process::id(), id.0, id.1));
            std::fs::write(&part, text.join("\n")).expect("written");
            // A name that is there already stays as it is.
            let linked = std::fs::hard_link(&part, file).is_ok();
            std::fs::remove_file(part).expect("removed");
            return linked;
        }
        self.with(|state| {
            let fresh = state.applied.insert(id);
            if fresh {
                state.values.extend(values);
            }
            fresh
        })
    }

    fn with<R>(&self, run: impl FnOnce(&mut ServiceState) -> R) -> R {
        run(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything applied, in order of value.
    pub(crate) fn values(&self) -> Vec<u64> {
        let mut values = self.with(|state| state.values.clone());
        values.sort_unstable();
        values
    }

    pub(crate) fn count(&self) -> usize {
        self.with(|state| state.values.len())
    }

    /// Writers and committers that were made and not closed.
    pub(crate) fn left_open(&self) -> u64 {
        self.with(|state| state.opened - state.closed)
    }

    pub(crate) fn commit_calls(&self) -> u64 {
        self.with(|state| state.calls)
    }

    /// How often writers were polled for their background work.
    pub(crate) fn progress_polls(&self) -> u64 {
        self.with(|state| state.progress)
    }

    pub(crate) fn flushes(&self) -> Vec<&'static str> {
        self.with(|state| state.flushes.iter().copied().collect())
    }
}

/// A sink whose effects happen at commit, once each (`staged`), or at flush (`eager`).
#[derive(Clone, Debug)]
pub(crate) struct MemorySink {
    pub(crate) service: Service,
    pub(crate) staged: bool,
    pub(crate) fault: Fault,
    /// Answers `TryAgain` to each committable this often first.
    pub(crate) try_again: u32,
    /// A closed gate keeps every flush pending.
    pub(crate) flush_gate: Option<Arc<Gate>>,
}

impl MemorySink {
    pub(crate) fn staged(service: &Service) -> Self {
        Self {
            service: service.clone(),
            staged: true,
            fault: Fault::none(),
            try_again: 0,
            flush_gate: None,
        }
    }

    pub(crate) fn eager(service: &Service) -> Self {
        Self {
            staged: false,
            ..Self::staged(service)
        }
    }
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
            StateReader::open("writer", state, 1..=1)?.finish()?;
        }
        self.service.with(|state| state.opened += 1);
        Ok(Box::new(Writer {
            sink: self.clone(),
            subtask: context.subtask.index,
            values: Vec::new(),
            ready: false,
            flushed: true,
        }))
    }

    fn create_committer(&self, _context: Context) -> Result<Option<Box<dyn Committer>>> {
        if !self.staged {
            return Ok(None);
        }
        self.service.with(|state| state.opened += 1);
        Ok(Some(Box::new(Commits {
            sink: self.clone(),
            requests: Vec::new(),
        })))
    }
}

struct Writer {
    sink: MemorySink,
    subtask: u32,
    values: Vec<u64>,
    ready: bool,
    flushed: bool,
}

impl SinkWriter<u64> for Writer {
    fn poll_ready(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.sink.fault.pass(Point::WriterReady)?;
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn write(&mut self, record: u64, info: RecordInfo) -> Result<()> {
        assert!(std::mem::take(&mut self.ready), "written without asking");
        assert!(info.timestamp.is_some());
        self.sink.fault.pass(Point::WriterWrite)?;
        self.values.push(record);
        self.flushed = false;
        Ok(())
    }

    fn poll_progress(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.sink.service.with(|state| state.progress += 1);
        self.sink.fault.pass(Point::WriterProgress)?;
        Poll::Pending
    }

    fn poll_flush(&mut self, cx: &mut PollContext<'_>, flush: Flush) -> Poll<Result<()>> {
        if let Some(gate) = &self.sink.flush_gate
            && !gate.poll_open(cx)
        {
            return Poll::Pending;
        }
        self.sink.fault.pass(Point::WriterFlush)?;
        self.sink.service.with(|state| {
            state.flushes.insert(match flush {
                Flush::Checkpoint => "checkpoint",
                Flush::EndOfInput => "end",
            });
            if !self.sink.staged {
                state.values.append(&mut self.values);
            }
        });
        self.flushed = true;
        Poll::Ready(Ok(()))
    }

    fn prepare_commit(&mut self, checkpoint: CheckpointId) -> Result<Vec<Versioned>> {
        assert!(self.flushed, "prepared without a flush");
        self.sink.fault.pass(Point::WriterPrepare)?;
        if self.values.is_empty() {
            return Ok(Vec::new());
        }
        let mut writer = StateWriter::new();
        writer
            .u64(checkpoint.0)
            .u32(self.subtask)
            .count(self.values.len());
        for value in self.values.drain(..) {
            writer.u64(value);
        }
        Ok(vec![writer.finish(1)])
    }

    fn snapshot(&mut self, _checkpoint: CheckpointId) -> Result<Vec<Versioned>> {
        assert!(
            self.values.is_empty(),
            "a snapshot before the commit was prepared"
        );
        self.sink.fault.pass(Point::WriterSnapshot)?;
        Ok(vec![Versioned::new(1, "")])
    }

    fn checkpoint_completed(&mut self, _checkpoint: CheckpointId) -> Result<()> {
        self.sink.fault.pass(Point::WriterCompleted)
    }

    fn poll_close(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.sink.service.with(|state| state.closed += 1);
        Poll::Ready(Ok(()))
    }
}

struct Commits {
    sink: MemorySink,
    requests: Vec<CommitRequest>,
}

impl Committer for Commits {
    fn start_commit(&mut self, requests: Vec<CommitRequest>) -> Result<()> {
        assert!(
            self.requests.is_empty(),
            "started before the last set was answered"
        );
        self.sink.fault.pass(Point::CommitStart)?;
        self.requests = requests;
        Ok(())
    }

    fn poll_commit(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<Vec<CommitOutcome>>> {
        self.sink.fault.pass(Point::CommitBefore)?;
        let mut outcomes = Vec::new();
        for request in self.requests.drain(..) {
            self.sink.service.with(|state| state.calls += 1);
            if request.attempt < self.sink.try_again {
                outcomes.push(CommitOutcome::TryAgain);
                continue;
            }
            let mut reader = StateReader::open("committable", &request.committable, 1..=1)?;
            let id = (reader.u64()?, reader.u32()?);
            assert_eq!(id.0, request.checkpoint.0);
            let count = reader.count(8)?;
            let values = (0..count)
                .map(|_| Ok(reader.u64()?))
                .collect::<Result<Vec<_>>>()?;
            let fresh = self.sink.service.apply(id, &values);
            outcomes.push(if fresh {
                CommitOutcome::Done
            } else {
                CommitOutcome::AlreadyDone
            });
        }
        self.sink.fault.pass(Point::CommitAfter)?;
        Poll::Ready(Ok(outcomes))
    }

    fn poll_close(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.sink.service.with(|state| state.closed += 1);
        Poll::Ready(Ok(()))
    }
}
