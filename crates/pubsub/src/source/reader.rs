//! The owner's side of a reader: it makes records of the messages that the I/O side hands it, applies the failure policy,
//! and reports what was emitted.
//!
//! # Invariants
//!
//! - At most one batch is asked for, under way or with the host at a time, so a split paused meanwhile gives it back.
//! - A message is reported as emitted when all its records went downstream, in order; one without records with those
//!   before it. One whose record the host rejects is dropped with it, or returned at once.
//! - No call but `poll_next` and `poll_close` waits. What finds the channel full waits in `overflow`, in order; it is
//!   bounded by what one batch and the host's checkpoints give rise to.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};

use aqueduct_connector::source::{
    Batch, Collector, ReaderOutput, Record, SourceReader, Split, SplitId,
};
use aqueduct_connector::{CheckpointId, Context, Error, Result};
use futures::{FutureExt, StreamExt};
use tracing::warn;

use super::builder::{DeserializationFailurePolicy, OrderingMode, Settings};
use super::deserialize::MessageDeserializer;
use super::io::ledger::{Part, Run};
use super::io::{Command, HandedBatch, Link, start};
use super::message::ReceivedMessage;
use super::metrics::ReaderMetrics;
use super::split::SubscriptionSplit;

pub(super) struct Reader<T> {
    settings: Arc<Settings>,
    context: Context,
    deserializer: Box<dyn MessageDeserializer<T>>,
    metrics: ReaderMetrics,
    link: Option<Link>,
    overflow: VecDeque<Command>,
    splits: Vec<SubscriptionSplit>,
    ids: Vec<SplitId>,
    paused: BTreeSet<usize>,
    no_more: bool,
    /// Of a host that waits for splits.
    waker: Option<Waker>,
    /// A batch was asked for and has not come.
    wanted: bool,
    /// Acknowledgements of a completed checkpoint are waited for.
    confirming: Option<CheckpointId>,
    /// The failure was reported, or there can be none.
    failed: bool,
    current: Current,
    /// Kept back from the last batch, so that none of it is with the host when an earlier message of its key is returned.
    rest: Option<(usize, Vec<Part>)>,
    /// Keys in `rest` whose messages were returned.
    returned: BTreeSet<u64>,
    /// Messages dropped or returned so far, for the rate of warnings.
    undecodable: u64,
    closing: bool,
}

/// The batch with the host.
#[derive(Default)]
struct Current {
    split: usize,
    /// The messages that are not reported yet.
    runs: VecDeque<Run>,
    /// For each message of the batch how many records there are up to and including its own.
    ends: Vec<u64>,
    /// Messages reported.
    reported: usize,
    records: u64,
    emitted: u64,
    /// The messages, as long as the host may reject one.
    parts: Vec<Part>,
}

impl Current {
    fn begin(&mut self, split: usize) {
        self.split = split;
        self.runs.clear();
        self.ends.clear();
        self.parts.clear();
        (self.reported, self.records, self.emitted) = (0, 0, 0);
    }

    /// A message, and how many records there are with its own.
    #[inline]
    fn push(&mut self, message: Run, records: usize) {
        let joined = self.runs.back_mut().is_some_and(|last| last.join(&message));
        if !joined {
            self.runs.push_back(message);
        }
        self.ends.push(records as u64);
    }

    /// The message whose record is the next to be emitted.
    fn next(&self) -> Option<(Run, &Part)> {
        let run = self.runs.front()?;
        let at = run.range().start;
        let run = run.only(at);
        let mut parts = self.parts.iter();
        let part = parts.find(|part| part.run.range().contains(&at) && part.run.only(at) == run)?;
        Some((run, part))
    }

    /// Forgets that message and counts its record as emitted.
    fn skip(&mut self) {
        if let Some(run) = self.runs.front_mut() {
            run.split_front(1);
            if run.len() == 0 {
                self.runs.pop_front();
            }
            self.reported += 1;
            self.emitted += 1;
        }
    }

    /// The messages whose records have all gone downstream since the last call.
    fn take_emitted(&mut self) -> Vec<Run> {
        let emitted = self.emitted;
        let waiting = &self.ends[self.reported..];
        let mut done = match waiting.last() {
            Some(last) if *last <= emitted => waiting.len(),
            _ => waiting.partition_point(|records| *records <= emitted),
        };
        self.reported += done;
        let mut runs = Vec::with_capacity(self.runs.len());
        while done > 0
            && let Some(run) = self.runs.front_mut()
        {
            let messages = done.min(run.len());
            runs.push(run.split_front(messages));
            done -= messages;
            if run.len() == 0 {
                self.runs.pop_front();
            }
        }
        runs
    }
}

impl<T> Reader<T> {
    pub(super) fn new(
        settings: Arc<Settings>,
        context: Context,
        deserializer: Box<dyn MessageDeserializer<T>>,
    ) -> Self {
        Self {
            metrics: ReaderMetrics::new(&context.metrics),
            settings,
            context,
            deserializer,
            link: None,
            overflow: VecDeque::new(),
            splits: Vec::new(),
            ids: Vec::new(),
            paused: BTreeSet::new(),
            no_more: false,
            waker: None,
            wanted: false,
            confirming: None,
            failed: false,
            current: Current::default(),
            rest: None,
            returned: BTreeSet::new(),
            undecodable: 0,
            closing: false,
        }
    }

    fn open(&mut self, splits: usize) -> Result<()> {
        self.deserializer.open(&self.context)?;
        let options = &self.settings.subscriber;
        if options.max_ack_extension_period.is_zero() {
            warn!(
                "lease extension is disabled: a checkpoint must complete within the subscription's ack deadline, or messages \
                 are delivered again"
            );
        }
        let streams = splits * options.parallel_pull_count as usize;
        self.link = Some(start(&self.context, &self.settings, streams)?);
        Ok(())
    }

    fn tell(&mut self, command: Command) {
        let Some(link) = &mut self.link else { return };
        if self.overflow.is_empty() {
            if let Err(refused) = link.commands.try_send(command) {
                // Full, or the task has ended, which the next poll finds.
                self.overflow.push_back(refused.into_inner());
            }
        } else {
            self.overflow.push_back(command);
        }
    }

    fn flush(&mut self, cx: &mut PollContext<'_>) {
        let Some(link) = &mut self.link else { return };
        while !self.overflow.is_empty() {
            match link.commands.poll_ready(cx) {
                Poll::Pending => return,
                Poll::Ready(Err(_)) => {
                    self.overflow.clear();
                    return;
                }
                Poll::Ready(Ok(())) => {
                    if let Some(command) = self.overflow.pop_front() {
                        // There is room: it was just asked for.
                        let _ = link.commands.start_send(command);
                    }
                }
            }
        }
    }

    /// Makes records of a batch.
    fn read(&mut self, split: usize, mut parts: Vec<Part>) -> Result<Batch<T>> {
        let per_key = self.settings.ordering == OrderingMode::PerKey;
        let nacks = self.settings.policy == DeserializationFailurePolicy::Nack;
        if self.settings.rejects && per_key && nacks {
            let rest = cut_at_repeated_key(&mut parts);
            self.rest = (!rest.is_empty()).then_some((split, rest));
        }
        let messages = parts.iter().map(|part| part.run.len()).sum();
        let mut records: Vec<Record<T>> = Vec::with_capacity(messages);
        self.current.begin(split);
        // Keys of which a message was returned: the later ones go with it.
        let mut returned = std::mem::take(&mut self.returned);
        for (n, part) in parts.iter().enumerate() {
            let layouts = &part.contents.messages[part.run.range()];
            let mut message = ReceivedMessage::of(&part.contents);
            for (at, layout) in part.run.range().zip(layouts) {
                if !returned.is_empty() && returned.contains(&part.contents.key(at)) {
                    continue;
                }
                message.look_at(layout);
                let before = records.len();
                let mut out = Collector::new(&mut records, message.publish_time());
                let outcome = self.deserializer.deserialize(
                    &message,
                    &self.splits[split].subscription,
                    &mut out,
                );
                let gave = records.len() - before;
                if let Err(error) = outcome {
                    if self.undecodable(split, &message, gave, error)? == Undecodable::Kept {
                        self.current.push(part.run.only(at), records.len());
                        continue;
                    }
                    let key = part.contents.key(at);
                    let mut runs = vec![part.run.only(at)];
                    if self.settings.policy == DeserializationFailurePolicy::Drop {
                        let run = runs[0];
                        self.tell(Command::Drop { split, run });
                        continue;
                    }
                    if per_key && key != 0 {
                        returned.insert(key);
                        runs.extend(later_of_key(&parts[n..], Some(at), key));
                        if let Some((_, rest)) = &self.rest {
                            runs.extend(later_of_key(rest, None, key));
                        }
                    }
                    self.tell(Command::Nack { split, runs, key });
                    continue;
                }
                if gave == 0 {
                    self.metrics.skipped.increment();
                }
                self.current.push(part.run.only(at), records.len());
            }
        }
        self.current.records = records.len() as u64;
        if self.settings.rejects {
            self.current.parts = parts;
        }
        if self.rest.is_some() {
            self.returned = returned;
        }
        self.report();
        Ok(Batch {
            split: self.ids[split].clone(),
            records,
        })
    }

    /// Counts an undecodable message that gave `gave` records before its error; by the policy it stays with its records,
    /// leaves, or fails the reader.
    fn undecodable(
        &mut self,
        split: usize,
        message: &ReceivedMessage,
        gave: usize,
        error: Error,
    ) -> Result<Undecodable> {
        self.metrics.in_errors.increment();
        match self.settings.policy {
            DeserializationFailurePolicy::Fail => Err(Error::user(format!(
                "message {} of {} cannot be decoded; it stays unacknowledged and will come again; \
                 scan.deserialization-failure-policy 'drop' acknowledges such messages, 'nack' leaves them to the \
                 subscription's dead-letter policy",
                message.message_id(),
                self.splits[split].subscription,
            ))
            .with_source(error)),
            DeserializationFailurePolicy::Drop => {
                self.metrics.dropped.increment();
                self.warn_of(split, message, "dropped");
                Ok(match gave {
                    0 => Undecodable::Leaves,
                    _ => Undecodable::Kept,
                })
            }
            DeserializationFailurePolicy::Nack => {
                self.warn_of(split, message, "returned to the service");
                Ok(Undecodable::Leaves)
            }
        }
    }

    /// Warns for the first ten undecodable messages, then at powers of two.
    fn warn_of(&mut self, split: usize, message: &ReceivedMessage, what: &str) {
        self.undecodable += 1;
        if self.undecodable <= 10 || self.undecodable.is_power_of_two() {
            warn!(
                subscription = %self.splits[split].subscription,
                id = message.message_id(),
                so_far = self.undecodable,
                "undecodable message {what}"
            );
        }
    }

    /// Reports the messages whose records have all gone downstream.
    fn report(&mut self) {
        let runs = self.current.take_emitted();
        if !runs.is_empty() {
            let split = self.current.split;
            self.tell(Command::Emitted { split, runs });
        }
    }
}

/// What becomes of an undecodable message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undecodable {
    /// It goes the way of its records.
    Kept,
    Leaves,
}

/// Cuts `parts` before the first message whose key was in them before; gives what is behind.
fn cut_at_repeated_key(parts: &mut Vec<Part>) -> Vec<Part> {
    let mut seen = BTreeSet::new();
    for n in 0..parts.len() {
        let part = &mut parts[n];
        let mut keys = part.run.range().map(|at| part.contents.key(at));
        if let Some(first) = keys.position(|key| key != 0 && !seen.insert(key)) {
            let mut rest = parts.split_off(n);
            let front = Part {
                run: rest[0].run.split_front(first),
                contents: rest[0].contents.clone(),
            };
            if front.run.len() > 0 {
                parts.push(front);
            }
            return rest;
        }
    }
    Vec::new()
}

/// The messages of `key` in `parts`; in the first of them only those behind position `after`.
fn later_of_key(parts: &[Part], after: Option<usize>, key: u64) -> Vec<Run> {
    let mut later = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        for other in part.run.range() {
            let later_one = n > 0 || after.is_none_or(|after| other > after);
            if later_one && part.contents.key(other) == key {
                later.push(part.run.only(other));
            }
        }
    }
    later
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("splits", &self.ids)
            .finish_non_exhaustive()
    }
}

impl<T> SourceReader<T> for Reader<T> {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        let decoded = splits
            .iter()
            .map(|split| SubscriptionSplit::decode(&split.state))
            .collect::<Result<Vec<_>, _>>()?;
        if decoded.is_empty() {
            return Ok(());
        }
        if self.link.is_none() {
            self.open(decoded.len())?;
        }
        self.ids.extend(splits.into_iter().map(|split| split.id));
        self.splits.extend(decoded.iter().cloned());
        self.tell(Command::AddSplits(decoded));
        self.waker.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.no_more = true;
        self.waker.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<T>>> {
        if self.splits.is_empty() {
            return if self.no_more {
                Poll::Ready(Ok(ReaderOutput::End))
            } else {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            };
        }
        loop {
            if !self.wanted && self.confirming.is_none() && self.rest.is_none() {
                self.wanted = true;
                self.tell(Command::Want);
            }
            self.flush(cx);
            let Some(link) = &mut self.link else {
                return Poll::Pending;
            };
            if !self.failed
                && let Poll::Ready(failure) = link.failure.poll_unpin(cx)
            {
                self.failed = true;
                return Poll::Ready(Err(failure.unwrap_or_else(|_| ended_by_itself())));
            }
            while let Poll::Ready(Some(confirmed)) = link.confirmed.poll_next_unpin(cx) {
                self.confirming = self.confirming.filter(|waited| *waited > confirmed);
            }
            if let Some((split, batch)) = self.rest.take() {
                if !self.paused.contains(&split) && self.confirming.is_none() {
                    return Poll::Ready(self.read(split, batch).map(ReaderOutput::Batch));
                }
                self.returned.clear();
                self.tell(Command::Returned { split, batch });
                continue;
            }
            if !self.wanted && self.confirming.is_none() {
                // It was waited for until now.
                continue;
            }
            match link.batches.poll_next_unpin(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Err(ended_by_itself())),
                Poll::Ready(Some(HandedBatch { split, parts })) => {
                    self.wanted = false;
                    if !self.paused.contains(&split) && self.confirming.is_none() {
                        return Poll::Ready(self.read(split, parts).map(ReaderOutput::Batch));
                    }
                    let batch = parts;
                    self.tell(Command::Returned { split, batch });
                }
            }
        }
    }

    fn emitted(&mut self, records: usize) {
        self.current.emitted += records as u64;
        assert!(
            self.current.emitted <= self.current.records,
            "the host reported more records emitted than it was given"
        );
        self.report();
    }

    fn skipped(&mut self, records: usize) {
        self.metrics.skipped.add(records as u64);
    }

    fn reject(&mut self, reason: &str) -> Result<()> {
        let error = Error::data(reason.to_owned());
        let split = self.current.split;
        let Some((run, part)) = self.current.next() else {
            return Err(Error::bug("a row was rejected that was not handed out").with_source(error));
        };
        let at = run.range().start;
        let key = part.contents.key(at);
        let mut message = ReceivedMessage::of(&part.contents);
        message.look_at(&part.contents.messages[at]);
        // As if it had given a record, which is with the host.
        if self.undecodable(split, &message, 1, error)? == Undecodable::Kept {
            self.emitted(1);
            return Ok(());
        }
        let mut runs = vec![run];
        self.current.skip();
        if self.settings.ordering == OrderingMode::PerKey
            && key != 0
            && let Some((_, rest)) = &self.rest
        {
            runs.extend(later_of_key(rest, None, key));
            self.returned.insert(key);
        }
        self.tell(Command::Nack { split, runs, key });
        self.report();
        Ok(())
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Split>> {
        self.tell(Command::Snapshot(checkpoint));
        Ok(Vec::new())
    }

    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        if self.settings.subscriber.await_ack_confirmation.is_some() && self.link.is_some() {
            self.confirming = Some(checkpoint);
        }
        self.tell(Command::Completed(checkpoint));
        Ok(())
    }

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]) {
        for (at, id) in self.ids.iter().enumerate() {
            if pause.contains(id) {
                self.paused.insert(at);
            }
            if resume.contains(id) {
                self.paused.remove(&at);
            }
        }
        self.tell(Command::Pause {
            pause: pause.to_vec(),
            resume: resume.to_vec(),
        });
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        if !self.closing {
            self.closing = true;
            if let Some(link) = &mut self.link
                && !self.failed
                && let Ok(Some(error)) = link.failure.try_recv()
            {
                self.metrics.unreported.increment();
                warn!(error = %error.report(), "a failure was found only by the close");
            }
            self.tell(Command::Close);
        }
        self.flush(cx);
        let Some(link) = &mut self.link else {
            return Poll::Ready(Ok(()));
        };
        // Whatever it still sends is of no use, but must not keep it waiting.
        while let Poll::Ready(Some(_)) = link.batches.poll_next_unpin(cx) {}
        while let Poll::Ready(Some(_)) = link.confirmed.poll_next_unpin(cx) {}
        match link.task.poll_ended(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(ended) => {
                if let Err(panic) = ended {
                    warn!(%panic, "the I/O task of a Pub/Sub reader panicked");
                }
                self.link = None;
                Poll::Ready(Ok(()))
            }
        }
    }
}

fn ended_by_itself() -> Error {
    Error::bug("the I/O task of a Pub/Sub reader ended by itself")
}
