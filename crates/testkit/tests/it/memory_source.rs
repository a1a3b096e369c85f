//! A bounded or endless source in memory that plans and reads in I/O tasks, correct unless a [`Fault`] is built in.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, ready};
use std::time::Duration;

use aqueduct_connector::source::{
    Batch, Boundedness, EnumeratorOutput, PullAssigner, ReaderOutput, Record, Source, SourceReader,
    Split, SplitEnumerator, SplitId,
};
use aqueduct_connector::state::{StateReader, StateWriter};
use aqueduct_connector::{CheckpointId, Context, Error, Result, Task, Versioned};
use aqueduct_testkit::TestContext;
use aqueduct_testkit::conformance::SourceWorld;
use aqueduct_testkit::log::Marker;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

/// What is wrong with the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    SnapshotsFetched,
    LosesASplitOnRescale,
    SaysNoMoreTwice,
    ForgetsReturnedSplits,
    ReassignsOnLoss,
    ForgetsUnassignedSplits,
    PlansAgainAtRestore,
    NeverWakes,
    SpinsForever,
    ReadsPausedSplits,
    LeaksItsTask,
    HangsInClose,
    ReadsTrailingBytes,
    KeepsFinishedSplits,
    EndsBeforeItWasTold,
    LogsRecords,
}

pub(crate) const MARKER: &str = "marked-record";

/// Splits of five, four, ... records.
const SPLITS: [u64; 5] = [5, 4, 1, 3, 6];
const FETCH: u64 = 3;

pub(crate) struct World {
    pub(crate) fault: Fault,
    pub(crate) boundedness: Boundedness,
}

impl SourceWorld for World {
    type Record = String;

    fn source(&self) -> Arc<dyn Source<String>> {
        Arc::new(MemorySource {
            fault: self.fault,
            boundedness: self.boundedness,
        })
    }

    fn key(&self, record: &String) -> String {
        record.clone()
    }

    fn expected(&self) -> Vec<String> {
        let splits = (0..).zip(SPLITS);
        splits
            .flat_map(|(split, len)| (0..len).map(move |at| record(split, at)))
            .collect()
    }

    fn context(&self, seed: u64) -> TestContext {
        let limit = match self.fault {
            Fault::None => aqueduct_testkit::LIMIT,
            // Long enough that nothing but a hang lasts as long.
            _ => Duration::from_millis(700),
        };
        TestContext::new("memory").with_seed(seed).with_limit(limit)
    }

    fn marker(&self) -> Option<Marker> {
        Some(Marker::new(MARKER))
    }
}

fn record(split: u64, at: u64) -> String {
    format!("{MARKER}-{split}-{at}")
}

struct MemorySource {
    fault: Fault,
    boundedness: Boundedness,
}

impl Source<String> for MemorySource {
    fn connector(&self) -> &'static str {
        "memory"
    }

    fn boundedness(&self) -> Boundedness {
        self.boundedness
    }

    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        let mut assigner = PullAssigner::new();
        if let Some(state) = restored {
            let mut reader = StateReader::open("memory enumerator state", &state, 1..=1)?;
            let planned = reader.u8()? == 1;
            let parallelism = reader.u32()?;
            let mut splits = Vec::new();
            for _ in 0..reader.count(8)? {
                splits.push(split(reader.u64()?, 0));
            }
            if self.fault != Fault::ReadsTrailingBytes {
                reader.finish()?;
            }
            if self.fault == Fault::LosesASplitOnRescale && parallelism != context.parallelism {
                splits.pop();
            }
            if planned && self.fault != Fault::PlansAgainAtRestore {
                assigner = PullAssigner::restored(splits);
            }
        }
        Ok(Box::new(MemoryEnumerator {
            fault: self.fault,
            bounded: self.boundedness == Boundedness::Bounded,
            assigner,
            planning: None,
            task: None,
            given: Vec::new(),
            told: BTreeSet::new(),
            context,
        }))
    }

    fn create_reader(&self, context: Context) -> Result<Box<dyn SourceReader<String>>> {
        Ok(Box::new(MemoryReader {
            fault: self.fault,
            context,
            io: None,
            splits: Vec::new(),
            done: Vec::new(),
            fetching: false,
            batch_of: None,
            paused: BTreeSet::new(),
            requested: false,
            no_more: false,
        }))
    }
}

fn split(index: u64, position: u64) -> Split {
    Split {
        id: SplitId::new(format!("split-{index}")),
        state: StateWriter::new().u64(index).u64(position).finish(1),
    }
}

struct MemoryEnumerator {
    fault: Fault,
    bounded: bool,
    context: Context,
    assigner: PullAssigner,
    planning: Option<oneshot::Receiver<Vec<Split>>>,
    task: Option<Task>,
    given: Vec<(u32, Split)>,
    told: BTreeSet<u32>,
}

impl MemoryEnumerator {
    /// Passes on what the assigner says, with the faults.
    fn pass_on(&mut self, mut said: EnumeratorOutput, out: &mut EnumeratorOutput) {
        use aqueduct_connector::source::EnumeratorCommand as Command;
        for command in said.drain() {
            match command {
                Command::Assign { reader, splits } => {
                    self.given
                        .extend(splits.iter().map(|split| (reader, split.clone())));
                    out.assign(reader, splits);
                }
                Command::NoMoreSplits { reader } if self.bounded => {
                    self.told.insert(reader);
                    out.no_more_splits(reader);
                    if self.fault == Fault::SaysNoMoreTwice && self.told.len() > 1 {
                        out.no_more_splits(reader);
                    }
                }
                Command::NoMoreSplits { .. } => {}
                Command::Event { reader, event } => out.event(reader, event),
            }
        }
    }
}

impl SplitEnumerator for MemoryEnumerator {
    fn poll_progress(
        &mut self,
        cx: &mut PollContext<'_>,
        out: &mut EnumeratorOutput,
    ) -> Poll<Result<()>> {
        if self.assigner.is_planned() {
            return Poll::Pending;
        }
        let planning = self.planning.get_or_insert_with(|| {
            let (plan, planned) = oneshot::channel();
            let planner = Box::pin(async move {
                tokio::task::yield_now().await;
                let splits = (0..SPLITS.len() as u64)
                    .map(|index| split(index, 0))
                    .collect();
                // The enumerator may be gone.
                let _ = plan.send(splits);
            });
            self.task = Some(self.context.spawn.spawn("memory planner", planner));
            planned
        });
        let splits = ready!(std::pin::Pin::new(planning).poll(cx)).expect("the planner answers");
        let mut said = EnumeratorOutput::new();
        self.assigner.planned(splits, &mut said);
        self.pass_on(said, out);
        Poll::Pending
    }

    fn reader_registered(&mut self, reader: u32, _: &mut EnumeratorOutput) -> Result<()> {
        self.assigner.reader_registered(reader);
        Ok(())
    }

    fn reader_lost(&mut self, reader: u32) -> Result<()> {
        self.assigner.reader_lost(reader);
        if self.fault == Fault::ReassignsOnLoss {
            let lost = self.given.iter().filter(|(owner, _)| *owner == reader);
            let lost = lost.map(|(_, split)| split.clone()).collect();
            self.assigner.returned(lost, &mut EnumeratorOutput::new());
        }
        Ok(())
    }

    fn split_requested(&mut self, reader: u32, out: &mut EnumeratorOutput) -> Result<()> {
        let mut said = EnumeratorOutput::new();
        self.assigner.requested(reader, &mut said);
        self.pass_on(said, out);
        Ok(())
    }

    fn splits_returned(&mut self, splits: Vec<Split>, out: &mut EnumeratorOutput) -> Result<()> {
        if self.fault != Fault::ForgetsReturnedSplits {
            let mut said = EnumeratorOutput::new();
            self.assigner.returned(splits, &mut said);
            self.pass_on(said, out);
        }
        Ok(())
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Versioned> {
        let mut writer = StateWriter::new();
        writer
            .u8(u8::from(self.assigner.is_planned()))
            .u32(self.context.parallelism);
        let mut left = Vec::new();
        for split in self.assigner.unassigned().into_iter().flatten() {
            left.push(StateReader::open("memory split", &split.state, 1..=1)?.u64()?);
        }
        if self.fault == Fault::ForgetsUnassignedSplits {
            left.clear();
        }
        writer.count(left.len());
        left.into_iter().for_each(|index| _ = writer.u64(index));
        Ok(writer.finish(1))
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.task = None;
        Poll::Ready(Ok(()))
    }
}

struct MemoryReader {
    fault: Fault,
    context: Context,
    io: Option<Io>,
    splits: Vec<Reading>,
    /// What a faulty snapshot adds.
    done: Vec<Split>,
    fetching: bool,
    batch_of: Option<u64>,
    paused: BTreeSet<SplitId>,
    requested: bool,
    no_more: bool,
}

struct Io {
    ask: mpsc::Sender<(u64, u64)>,
    answers: mpsc::Receiver<(u64, Vec<String>)>,
    /// Dropping it ends the task.
    _task: Option<Task>,
}

struct Reading {
    id: SplitId,
    index: u64,
    emitted: u64,
    fetched: u64,
    buffer: VecDeque<String>,
}

impl Reading {
    fn len(&self) -> u64 {
        SPLITS[usize::try_from(self.index).expect("small")]
    }
}

impl MemoryReader {
    fn io(&mut self) -> &mut Io {
        let (context, leaks) = (&self.context, self.fault == Fault::LeaksItsTask);
        self.io.get_or_insert_with(|| {
            let (ask, mut asked) = mpsc::channel::<(u64, u64)>(1);
            let (answer, answers) = mpsc::channel(1);
            let kept = leaks.then(|| answer.clone());
            let task = context.spawn.spawn(
                "memory reader",
                Box::pin(async move {
                    while let Some((split, from)) = asked.recv().await {
                        tokio::task::yield_now().await;
                        let to = (from + FETCH).min(SPLITS[usize::try_from(split).expect("small")]);
                        let records = (from..to).map(|at| record(split, at)).collect();
                        if answer.send((split, records)).await.is_err() {
                            return;
                        }
                    }
                    if kept.is_some() {
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
                ask,
                answers,
                _task: task,
            }
        })
    }

    fn readable(&self, reading: &Reading) -> bool {
        self.fault == Fault::ReadsPausedSplits || !self.paused.contains(&reading.id)
    }

    fn position(&self, reading: &Reading) -> u64 {
        match self.fault {
            Fault::SnapshotsFetched => reading.fetched,
            _ => reading.emitted,
        }
    }
}

impl SourceReader<String> for MemoryReader {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        self.requested = false;
        for split in splits {
            let mut reader = StateReader::open("memory split", &split.state, 1..=1)?;
            let (index, emitted) = (reader.u64()?, reader.u64()?);
            if self.fault != Fault::ReadsTrailingBytes {
                reader.finish()?;
            }
            self.splits.push(Reading {
                id: split.id,
                index,
                emitted,
                fetched: emitted,
                buffer: VecDeque::new(),
            });
        }
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.no_more = true;
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<String>>> {
        if self.fault == Fault::SpinsForever && self.splits.iter().any(|split| split.emitted > 2) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Some(at) = self
                .splits
                .iter()
                .position(|split| split.emitted == split.len())
            {
                let done = self.splits.remove(at);
                if self.fault == Fault::KeepsFinishedSplits {
                    self.done.push(split(done.index, done.emitted));
                }
                return Poll::Ready(Ok(ReaderOutput::SplitFinished(done.id)));
            }
            let full = |split: &&Reading| !split.buffer.is_empty() && self.readable(split);
            if let Some(index) = self.splits.iter().find(full).map(|split| split.index) {
                self.batch_of = Some(index);
                let split = self.splits.iter_mut().find(|split| split.index == index);
                let split = split.expect("just found");
                if self.fault == Fault::LogsRecords {
                    warn!(record = %split.buffer[0], "next");
                }
                let records = split.buffer.drain(..).map(|value| Record {
                    value,
                    timestamp: None,
                });
                return Poll::Ready(Ok(ReaderOutput::Batch(Batch {
                    split: split.id.clone(),
                    records: records.collect(),
                })));
            }
            if self.fetching {
                let mut noop = PollContext::from_waker(std::task::Waker::noop());
                let cx = match self.fault {
                    Fault::NeverWakes => &mut noop,
                    _ => &mut *cx,
                };
                let (index, records) = match ready!(self.io().answers.poll_recv(cx)) {
                    Some(answer) => answer,
                    None => return Poll::Ready(Err(Error::io("the reader's task is gone"))),
                };
                self.fetching = false;
                let split = self.splits.iter_mut().find(|split| split.index == index);
                let split = split.expect("a split stays until it is read");
                split.fetched += records.len() as u64;
                split.buffer = records.into();
                continue;
            }
            let open = |split: &&Reading| {
                split.fetched < split.len() && split.buffer.is_empty() && self.readable(split)
            };
            if let Some(split) = self.splits.iter().find(open) {
                let ask = (split.index, split.fetched);
                if self.io().ask.try_send(ask).is_err() {
                    return Poll::Ready(Err(Error::bug("one question at a time")));
                }
                self.fetching = true;
                continue;
            }
            let idle = self.splits.is_empty();
            if idle
                && (self.no_more || (self.fault == Fault::EndsBeforeItWasTold && self.requested))
            {
                return Poll::Ready(Ok(ReaderOutput::End));
            }
            if idle && !self.requested {
                self.requested = true;
                return Poll::Ready(Ok(ReaderOutput::RequestSplit));
            }
            return Poll::Pending;
        }
    }

    fn emitted(&mut self, records: usize) {
        let index = self.batch_of.expect("a batch was handed out");
        let split = self.splits.iter_mut().find(|split| split.index == index);
        split.expect("a split stays until it is emitted").emitted += records as u64;
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Vec<Split>> {
        let left = self
            .splits
            .iter()
            .filter(|split| split.emitted < split.len());
        let left = left.map(|reading| split(reading.index, self.position(reading)));
        Ok(left.chain(self.done.iter().cloned()).collect())
    }

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]) {
        self.paused.extend(pause.iter().cloned());
        resume
            .iter()
            .for_each(|split| _ = self.paused.remove(split));
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        if self.fault == Fault::HangsInClose && self.fetching {
            return Poll::Pending;
        }
        self.io = None;
        Poll::Ready(Ok(()))
    }
}
