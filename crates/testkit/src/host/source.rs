//! The hand-driven host of one source: an enumerator, some readers, and every message between them under control.
//!
//! Messages in one direction between the enumerator and one reader stay in order; everything else is free, and
//! [`SourceHost::step`] chooses by the seed what happens next: which component is polled, which message is delivered,
//! how many records of a batch go downstream. What an enumerator sends after its snapshot waits until the reader has
//! made its own. What a reader sent before its snapshot and the enumerator hears only after its own is in neither, so a
//! restore loses it, as it does in Flink.
//!
//! # What counts as emitted
//!
//! [`SourceHost::emitted`] shows what a downstream that restarts with the source would hold: when a reader is lost, what
//! it emitted since the last completed checkpoint is taken back, because it will come again.
//!
//! # Breaches that panic
//!
//! Splits for a reader that is not registered or was told that no more will come; telling it twice; records of a paused
//! or finished split; a finished split in a snapshot, or one twice; the end before it was told, or with splits left.

mod checkpoint;
mod slot;

use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};
use std::time::Instant;

use aqueduct_connector::source::{
    EnumeratorCommand, EnumeratorOutput, Record, Source, Split, SplitEnumerator, SplitId,
};
use aqueduct_connector::{CheckpointId, Result, Timestamp};
use futures::task::AtomicWaker;

pub use checkpoint::SourceCheckpoint;
use checkpoint::{Taking, deal};
use slot::{Slot, ToEnumerator, ToReader};

use super::{first_error, wait_for, wait_for_any};
use crate::context::TestContext;
use crate::wait::Signal;

/// A record that went downstream.
#[derive(Debug)]
pub struct Emitted<T> {
    /// The split it came from.
    pub split: SplitId,
    /// The record.
    pub record: Record<T>,
}

/// What [`SourceHost::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Polled the enumerator.
    Enumerator,
    /// Polled a reader.
    Reader(u32),
    /// Delivered the enumerator's next message to a reader.
    ToReader(u32),
    /// Delivered a reader's next message to the enumerator.
    ToEnumerator(u32),
    /// Passed some records of a reader's batch downstream.
    Emitted {
        /// The reader.
        reader: u32,
        /// How many.
        records: usize,
    },
    /// Nothing: every reader has ended.
    Ended,
}

/// Drives one source by hand.
pub struct SourceHost<T> {
    source: Arc<dyn Source<T>>,
    kit: TestContext,
    random: fastrand::Rng,
    waker: Arc<AtomicWaker>,
    enumerator: Box<dyn SplitEnumerator>,
    enumerator_signal: Arc<Signal>,
    readers: Vec<Slot<T>>,
    last_begun: u64,
    taking: Option<Taking>,
    /// Taken, neither completed nor aborted.
    taken: BTreeSet<CheckpointId>,
    completed: Option<CheckpointId>,
    /// Bumped whenever something happens that brings the job on.
    progress: u64,
    emit_up_to: Option<usize>,
}

#[derive(Clone, Copy)]
enum Choice {
    Enumerator,
    Reader(usize),
    ToReader(usize),
    ToEnumerator(usize),
    Emit(usize),
}

impl<T> SourceHost<T> {
    /// Starts the source afresh with `parallelism` readers. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// If the source refuses to make a component.
    pub fn start(source: Arc<dyn Source<T>>, kit: &TestContext, parallelism: u32) -> Result<Self> {
        Self::create(source, kit, None, parallelism)
    }

    /// Starts the source from `checkpoint`. At the same parallelism each reader gets its own splits back, at another
    /// one they are dealt out anew.
    ///
    /// # Errors
    ///
    /// If the source refuses the state or to make a component.
    pub fn restore(
        source: Arc<dyn Source<T>>,
        kit: &TestContext,
        checkpoint: &SourceCheckpoint,
        parallelism: u32,
    ) -> Result<Self> {
        Self::create(source, kit, Some(checkpoint), parallelism)
    }

    fn create(
        source: Arc<dyn Source<T>>,
        kit: &TestContext,
        checkpoint: Option<&SourceCheckpoint>,
        parallelism: u32,
    ) -> Result<Self> {
        let waker = Arc::new(AtomicWaker::new());
        let restored = checkpoint.map(|checkpoint| checkpoint.enumerator.clone());
        let enumerator = source.create_enumerator(kit.coordinator(parallelism), restored)?;
        let mut host = Self {
            kit: kit.clone(),
            random: kit.random(),
            enumerator,
            enumerator_signal: Signal::new(&waker),
            readers: Vec::new(),
            // Identifiers grow over restarts too; those behind the restored one may have been used.
            last_begun: checkpoint.map_or(0, |checkpoint| checkpoint.id.0 + 10),
            taking: None,
            taken: BTreeSet::new(),
            completed: None,
            progress: 0,
            emit_up_to: None,
            waker,
            source,
        };
        let shares = checkpoint.map_or_else(Vec::new, |checkpoint| deal(checkpoint, parallelism));
        let mut shares = shares.into_iter();
        for index in 0..parallelism {
            let mut slot = Slot::new(index, &host.waker);
            slot.restart_from = (shares.next().unwrap_or_default(), 0);
            host.readers.push(slot);
            host.start_reader(index)?;
        }
        Ok(host)
    }

    /// How many readers there are, lost ones included.
    #[must_use]
    pub fn parallelism(&self) -> u32 {
        u32::try_from(self.readers.len()).expect("made from a u32")
    }

    /// What counts as emitted, reader by reader, in each reader's order.
    pub fn emitted(&self) -> impl Iterator<Item = &Emitted<T>> {
        self.readers.iter().flat_map(|slot| &slot.emitted)
    }

    /// How many records count as emitted.
    #[must_use]
    pub fn emitted_count(&self) -> usize {
        self.readers.iter().map(|slot| slot.emitted.len()).sum()
    }

    /// The source's own watermark of a split that `reader` reads.
    #[must_use]
    pub fn watermark(&self, reader: u32, split: &SplitId) -> Option<Timestamp> {
        self.readers[reader as usize].watermarks.get(split).copied()
    }

    /// The splits of which `reader` has handed out records and which it has not finished.
    #[must_use]
    pub fn splits_seen(&self, reader: u32) -> Vec<SplitId> {
        let slot = &self.readers[reader as usize];
        slot.seen.difference(&slot.finished).cloned().collect()
    }

    /// Records of `reader`'s batch that wait to be emitted.
    #[must_use]
    pub fn outstanding(&self, reader: u32) -> usize {
        self.readers[reader as usize].outstanding()
    }

    /// Whether every reader has given its end.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.readers.iter().all(|slot| slot.ended)
    }

    /// Whether `reader` was told by the enumerator that no more splits come.
    #[must_use]
    pub fn told_no_more(&self, reader: u32) -> bool {
        self.readers[reader as usize].told_no_more
    }

    /// One thing happens, chosen by the seed among all that can. If nothing can, waits until something does.
    ///
    /// # Errors
    ///
    /// What the component failed with. Go on with [`close`](Self::close) or [`kill`](Self::kill).
    ///
    /// # Panics
    ///
    /// When nothing happens for the context's limit, and on a breach of the contract.
    pub async fn step(&mut self) -> Result<Step> {
        loop {
            if let Some(step) = self.try_step().await? {
                return Ok(step);
            }
            if self.ended() {
                return Ok(Step::Ended);
            }
            let signals: Vec<&Arc<Signal>> = self
                .readers
                .iter()
                .filter(|slot| slot.can_wake())
                .map(|slot| &slot.signal)
                .chain([&self.enumerator_signal])
                .collect();
            wait_for_any(&self.kit, &self.waker, &signals, || self.describe()).await;
        }
    }

    /// As [`step`](Self::step), but returns `None` instead of waiting.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub async fn try_step(&mut self) -> Result<Option<Step>> {
        // I/O tasks run now, on the same thread.
        tokio::task::yield_now().await;
        let choices = self.choices();
        let Some(choice) = self.random.choice(choices) else {
            return Ok(None);
        };
        let step = match choice {
            Choice::Enumerator => {
                self.poll_enumerator().await?;
                Step::Enumerator
            }
            Choice::Reader(at) => {
                self.poll_reader_at(at).await?;
                Step::Reader(self.readers[at].index)
            }
            Choice::ToReader(at) => {
                self.deliver(at)?;
                Step::ToReader(self.readers[at].index)
            }
            Choice::ToEnumerator(at) => {
                self.answer(at)?;
                Step::ToEnumerator(self.readers[at].index)
            }
            Choice::Emit(at) => {
                let most = self.readers[at].outstanding().min(self.may_emit());
                let records = self.random.usize(1..=most);
                let reader = self.readers[at].index;
                self.emit(reader, records);
                Step::Emitted { reader, records }
            }
        };
        Ok(Some(step))
    }

    /// Steps until `done` says so or every reader has ended.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step), and when everything is busy for the context's limit without getting anywhere.
    pub async fn run_until(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<()> {
        let (mut progress, mut since) = (self.progress, Instant::now());
        while !done(self) {
            if self.step().await? == Step::Ended {
                break;
            }
            if self.progress != progress {
                (progress, since) = (self.progress, Instant::now());
            }
            assert!(
                since.elapsed() < self.kit.limit(),
                "hang: busy without progress; {}",
                self.describe()
            );
        }
        Ok(())
    }

    /// Steps until every reader has ended.
    ///
    /// # Errors
    ///
    /// As [`run_until`](Self::run_until).
    ///
    /// # Panics
    ///
    /// As [`run_until`](Self::run_until).
    pub async fn run_to_end(&mut self) -> Result<()> {
        self.run_until(|_| false).await
    }

    /// Steps until at least `records` more count as emitted, or every reader has ended.
    ///
    /// # Errors
    ///
    /// As [`run_until`](Self::run_until).
    ///
    /// # Panics
    ///
    /// As [`run_until`](Self::run_until).
    pub async fn run_until_emitted(&mut self, records: usize) -> Result<()> {
        let target = self.emitted_count() + records;
        self.run_until(|host| host.emitted_count() >= target).await
    }

    /// Steps until exactly `records` count as emitted, whatever the batches, or every reader has ended.
    ///
    /// # Errors
    ///
    /// As [`run_until`](Self::run_until).
    ///
    /// # Panics
    ///
    /// As [`run_until`](Self::run_until).
    pub async fn run_to(&mut self, records: usize) -> Result<()> {
        self.emit_up_to = Some(records);
        let ran = self.run_until(|host| host.emitted_count() >= records).await;
        self.emit_up_to = None;
        ran
    }

    /// Polls `reader` once, woken or not, if its last batch is fully emitted and it has not ended. Whether it had an
    /// output.
    ///
    /// # Errors
    ///
    /// What the reader failed with.
    pub async fn poll_reader(&mut self, reader: u32) -> Result<bool> {
        let slot = &self.readers[reader as usize];
        if slot.reader.is_none() || slot.ended || slot.batch.is_some() {
            return Ok(false);
        }
        self.poll_reader_at(reader as usize).await
    }

    /// Passes `records` of `reader`'s batch downstream.
    ///
    /// # Panics
    ///
    /// If so many are not outstanding.
    pub fn emit(&mut self, reader: u32, records: usize) {
        let slot = &mut self.readers[reader as usize];
        let (split, mut batch) = slot.batch.take().expect("a batch to emit from");
        assert!(
            records <= batch.len(),
            "test emits more than the batch holds"
        );
        slot.emitted
            .extend(batch.drain(..records).map(|record| Emitted {
                split: split.clone(),
                record,
            }));
        if !batch.is_empty() {
            slot.batch = Some((split, batch));
        }
        let owner = slot.reader.as_mut().expect("a batch has a reader");
        owner.emitted(records);
        slot.signal.set();
        self.progress += 1;
    }

    /// Pauses and resumes splits of `reader`. A batch handed out before may still be emitted.
    pub fn pause_splits(&mut self, reader: u32, pause: &[SplitId], resume: &[SplitId]) {
        let slot = &mut self.readers[reader as usize];
        slot.paused.extend(pause.iter().cloned());
        resume
            .iter()
            .for_each(|split| _ = slot.paused.remove(split));
        if let Some(owner) = &mut slot.reader {
            owner.pause_splits(pause, resume);
            slot.signal.set();
        }
    }

    /// Loses `reader` without a close and starts it again from the last completed checkpoint, which it had a share in:
    /// its output since then is taken back, and the splits it was given since then return to the enumerator.
    ///
    /// # Errors
    ///
    /// What a component failed with.
    pub fn fail_reader(&mut self, reader: u32) -> Result<()> {
        self.lose_reader(reader)?;
        self.recover_reader(reader)
    }

    /// The first half of [`fail_reader`](Self::fail_reader): the reader is gone.
    ///
    /// # Errors
    ///
    /// What the enumerator failed with.
    ///
    /// # Panics
    ///
    /// If it was lost before.
    pub fn lose_reader(&mut self, reader: u32) -> Result<()> {
        let slot = &mut self.readers[reader as usize];
        assert!(slot.reader.take().is_some(), "test loses a reader twice");
        let open: Vec<CheckpointId> = self
            .taking
            .iter()
            .map(|taking| taking.id)
            .chain(self.taken.iter().copied())
            .collect();
        open.into_iter().for_each(|id| self.abort(id));
        let slot = &mut self.readers[reader as usize];
        slot.emitted.truncate(slot.restart_from.1);
        let returned: Vec<Split> = slot.assigned.drain(..).map(|(_, split)| split).collect();
        let (was_registered, attempts) = (slot.registered, slot.attempts);
        let lost = std::mem::replace(slot, Slot::new(reader, &self.waker));
        slot.emitted = lost.emitted;
        slot.restart_from = lost.restart_from;
        slot.attempts = attempts;
        let mut out = EnumeratorOutput::new();
        if was_registered {
            self.enumerator.reader_lost(reader)?;
        }
        if !returned.is_empty() {
            self.enumerator.splits_returned(returned, &mut out)?;
        }
        self.enumerator_signal.set();
        self.carry_out(out);
        Ok(())
    }

    /// The second half of [`fail_reader`](Self::fail_reader): a new reader takes the place.
    ///
    /// # Errors
    ///
    /// If the reader cannot be made or refuses its splits.
    pub fn recover_reader(&mut self, reader: u32) -> Result<()> {
        self.start_reader(reader)
    }

    /// Closes everything, whatever fails, and waits until no I/O task is left.
    ///
    /// # Errors
    ///
    /// The first failure to close, the others attached.
    ///
    /// # Panics
    ///
    /// If a component does not close, or leaves a task, within the context's limit.
    pub async fn close(mut self) -> Result<()> {
        let mut errors = Vec::new();
        for slot in &mut self.readers {
            if let Some(mut owner) = slot.reader.take() {
                let what = format!("reader {} to close", slot.index);
                let closed = poll_fn(|cx| owner.poll_close(cx));
                errors.extend(wait_for(&self.kit, &what, closed).await.err());
            }
        }
        let closed = poll_fn(|cx| self.enumerator.poll_close(cx));
        errors.extend(
            wait_for(&self.kit, "the enumerator to close", closed)
                .await
                .err(),
        );
        let kit = self.kit.clone();
        drop(self);
        kit.spawner().assert_idle(kit.limit()).await;
        first_error(errors)
    }

    /// Drops everything where it stands, as a killed process would.
    pub fn kill(self) {
        drop(self);
    }

    fn start_reader(&mut self, reader: u32) -> Result<()> {
        let parallelism = self.parallelism().max(reader + 1);
        let slot = &mut self.readers[reader as usize];
        let mut context = self.kit.subtask(reader, parallelism);
        context.attempt += slot.attempts;
        context.seed ^= u64::from(slot.attempts);
        slot.attempts += 1;
        let mut owner = self.source.create_reader(context)?;
        if !slot.restart_from.0.is_empty() {
            owner.add_splits(slot.restart_from.0.clone())?;
        }
        slot.reader = Some(owner);
        slot.outbox.push_back(ToEnumerator::Registered);
        Ok(())
    }

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        if self.enumerator_signal.is_set() {
            choices.push(Choice::Enumerator);
        }
        for (at, slot) in self.readers.iter().enumerate() {
            if slot.can_wake() && slot.signal.is_set() {
                choices.push(Choice::Reader(at));
            }
            if slot.batch.is_some() && self.may_emit() > 0 {
                choices.push(Choice::Emit(at));
            }
            if self.deliverable(at) {
                choices.push(Choice::ToReader(at));
            }
            if !slot.outbox.is_empty() {
                choices.push(Choice::ToEnumerator(at));
            }
        }
        choices
    }

    fn may_emit(&self) -> usize {
        self.emit_up_to
            .map_or(usize::MAX, |most| most.saturating_sub(self.emitted_count()))
    }

    /// Whether the next message to the reader may be delivered now: one sent after the enumerator's snapshot waits for
    /// the reader's.
    fn deliverable(&self, at: usize) -> bool {
        let slot = &self.readers[at];
        let Some((begun, _)) = slot.inbox.front() else {
            return false;
        };
        slot.reader.is_some()
            && !self
                .taking
                .as_ref()
                .is_some_and(|taking| *begun >= taking.id.0 && taking.readers[at].is_none())
    }

    async fn poll_enumerator(&mut self) -> Result<()> {
        self.enumerator_signal.take();
        let waker = self.enumerator_signal.waker();
        let mut out = EnumeratorOutput::new();
        let enumerator = &mut self.enumerator;
        let polled = poll_fn(|_| {
            Poll::Ready(enumerator.poll_progress(&mut PollContext::from_waker(&waker), &mut out))
        })
        .await;
        self.carry_out(out);
        match polled {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) => {
                panic!("breach: the enumerator's progress ended, it stays pending while well")
            }
            Poll::Pending => Ok(()),
        }
    }

    async fn poll_reader_at(&mut self, at: usize) -> Result<bool> {
        let slot = &mut self.readers[at];
        slot.signal.take();
        let waker = slot.signal.waker();
        let owner = slot.reader.as_mut().expect("chosen because it is there");
        let polled =
            poll_fn(|_| Poll::Ready(owner.poll_next(&mut PollContext::from_waker(&waker)))).await;
        let output = match polled {
            Poll::Pending => return Ok(false),
            Poll::Ready(output) => output?,
        };
        slot.signal.set();
        if slot.take_output(output) {
            self.progress += 1;
        }
        Ok(true)
    }

    fn deliver(&mut self, at: usize) -> Result<()> {
        let slot = &mut self.readers[at];
        let (_, message) = slot.inbox.pop_front().expect("chosen because it is there");
        let owner = slot.reader.as_mut().expect("chosen because it is there");
        slot.signal.set();
        self.progress += 1;
        match message {
            ToReader::Splits(splits) => {
                splits
                    .iter()
                    .for_each(|split| _ = slot.finished.remove(&split.id));
                owner.add_splits(splits)
            }
            ToReader::NoMoreSplits => {
                slot.heard_no_more = true;
                owner.no_more_splits()
            }
            ToReader::Event(event) => owner.enumerator_event(event),
        }
    }

    fn answer(&mut self, at: usize) -> Result<()> {
        let slot = &mut self.readers[at];
        let message = slot.outbox.pop_front().expect("chosen because it is there");
        let reader = slot.index;
        let mut out = EnumeratorOutput::new();
        self.enumerator_signal.set();
        match message {
            ToEnumerator::Registered => {
                slot.registered = true;
                self.progress += 1;
                self.enumerator.reader_registered(reader, &mut out)?;
            }
            // As Flink does: a reader that was told needs no answer.
            ToEnumerator::Request if slot.told_no_more => {}
            ToEnumerator::Request => self.enumerator.split_requested(reader, &mut out)?,
            ToEnumerator::Event(event) => {
                self.enumerator.reader_event(reader, event, &mut out)?;
            }
        }
        self.carry_out(out);
        Ok(())
    }

    fn carry_out(&mut self, mut out: EnumeratorOutput) {
        let begun = self.last_begun;
        for command in out.drain() {
            let (reader, message) = match command {
                EnumeratorCommand::Assign { reader, splits } => (reader, ToReader::Splits(splits)),
                EnumeratorCommand::NoMoreSplits { reader } => (reader, ToReader::NoMoreSplits),
                EnumeratorCommand::Event { reader, event } => (reader, ToReader::Event(event)),
            };
            let slot = self.readers.get_mut(reader as usize);
            let slot = slot.unwrap_or_else(|| {
                panic!("breach: the enumerator speaks to reader {reader} of none")
            });
            assert!(
                slot.registered,
                "breach: the enumerator speaks to reader {reader}, not registered"
            );
            match &message {
                ToReader::Splits(splits) => {
                    assert!(
                        !slot.told_no_more,
                        "breach: splits for reader {reader} after `no more splits`"
                    );
                    slot.assigned
                        .extend(splits.iter().map(|split| (begun, split.clone())));
                }
                ToReader::NoMoreSplits => {
                    assert!(
                        !slot.told_no_more,
                        "breach: reader {reader} told `no more splits` twice"
                    );
                    slot.told_no_more = true;
                }
                ToReader::Event(_) => {}
            }
            slot.inbox.push_back((begun, message));
        }
    }

    fn describe(&self) -> String {
        use std::fmt::Write;
        let connector = self.source.connector();
        let mut text = format!(
            "a wake-up in source `{connector}` ({} emitted)",
            self.emitted_count()
        );
        for slot in &self.readers {
            // Writing to a string cannot fail.
            let _ = write!(text, "; {slot:?}");
        }
        text
    }
}

impl<T> fmt::Debug for SourceHost<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceHost({})", self.describe())
    }
}
