//! Drives one reader of a source by hand: a host of one subtask, which decides itself when a checkpoint is complete.

use std::future::poll_fn;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::task::Poll;

use aqueduct::connector::metrics::MetricRegistry;
use aqueduct::connector::source::{
    EnumeratorCommand, EnumeratorOutput, ReaderOutput, Record, Source, SourceReader,
    SplitEnumerator,
};
use aqueduct::connector::{CheckpointId, Context, Error, Result, Subtask};
use aqueduct::runtime::{RuntimeSpawn, SystemClock};
use tracing::warn;

/// What a command lends to a connector. Must be called inside a runtime.
pub(crate) fn context(operator: &str, registry: &MetricRegistry) -> Context {
    Context {
        job: "aqueduct-pubsub".into(),
        operator: operator.into(),
        subtask: Subtask {
            index: 0,
            parallelism: 1,
        },
        parallelism: 1,
        attempt: 0,
        metrics: registry.group(&[("operator", operator)]),
        clock: Arc::new(SystemClock::new()),
        spawn: RuntimeSpawn::current(),
        // Two commands at once must not draw the same.
        seed: RandomState::new().build_hasher().finish(),
    }
}

/// One reader and its enumerator.
pub(super) struct Reading<T> {
    enumerator: Box<dyn SplitEnumerator>,
    reader: Box<dyn SourceReader<T>>,
    wishes: EnumeratorOutput,
    checkpoint: u64,
}

impl<T> Reading<T> {
    /// Starts reading with the first [`next`](Self::next).
    pub(super) fn new(source: &impl Source<T>, registry: &MetricRegistry) -> Result<Self> {
        let context = context("subscription", registry);
        let mut wishes = EnumeratorOutput::new();
        let mut enumerator = source.create_enumerator(context.clone(), None)?;
        enumerator.reader_registered(0, &mut wishes)?;
        Ok(Self {
            enumerator,
            reader: source.create_reader(context)?,
            wishes,
            checkpoint: 0,
        })
    }

    /// The next records; all of the last ones must have been [`emitted`](Self::emitted). Dropping the wait loses nothing.
    pub(super) async fn next(&mut self) -> Result<Vec<Record<T>>> {
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(failed) = self.enumerator.poll_progress(cx, &mut self.wishes) {
                    failed?;
                }
                for wish in self.wishes.drain() {
                    match wish {
                        EnumeratorCommand::Assign { splits, .. } => {
                            self.reader.add_splits(splits)?
                        }
                        EnumeratorCommand::NoMoreSplits { .. } => self.reader.no_more_splits()?,
                        EnumeratorCommand::Event { event, .. } => {
                            self.reader.enumerator_event(event)?;
                        }
                    }
                }
                match self.reader.poll_next(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(ReaderOutput::Batch(batch))) if batch.records.is_empty() => {}
                    Poll::Ready(Ok(ReaderOutput::Batch(batch))) => {
                        return Poll::Ready(Ok(batch.records));
                    }
                    Poll::Ready(Ok(ReaderOutput::RequestSplit)) => {
                        self.enumerator.split_requested(0, &mut self.wishes)?;
                    }
                    Poll::Ready(Ok(ReaderOutput::Event(event))) => {
                        self.enumerator.reader_event(0, event, &mut self.wishes)?;
                    }
                    Poll::Ready(Ok(
                        ReaderOutput::Watermark { .. } | ReaderOutput::SplitFinished(_),
                    )) => {}
                    Poll::Ready(Ok(ReaderOutput::End)) => {
                        return Poll::Ready(Err(Error::bug("a subscription came to an end")));
                    }
                }
            }
        })
        .await
    }

    /// `records` more of the last ones are where they should be.
    pub(super) fn emitted(&mut self, records: usize) {
        self.reader.emitted(records);
    }

    /// Takes and completes a checkpoint of everything emitted: it need not come again.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        self.checkpoint += 1;
        let id = CheckpointId(self.checkpoint);
        self.enumerator.snapshot(id)?;
        self.reader.snapshot(id)?;
        self.reader.checkpoint_completed(id)?;
        self.enumerator.checkpoint_completed(id)
    }

    /// Gives back what no checkpoint covers and waits for everything that is under way, within the source's own limit.
    pub(super) async fn close(&mut self) {
        for closed in [
            poll_fn(|cx| self.reader.poll_close(cx)).await,
            poll_fn(|cx| self.enumerator.poll_close(cx)).await,
        ] {
            if let Err(error) = closed {
                warn!(error = %error.report(), "closing failed");
            }
        }
    }
}
