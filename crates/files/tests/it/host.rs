//! A host of one thread: an enumerator and some readers, polled by hand and in a fixed order.
//!
//! The conformance suite uses testkit's host, which shuffles. These tests count on the order of
//! records, on stops after each single one, and on steps that do not wait.
//!
//! It keeps the contract's order (the enumerator's snapshot first, readers after; what was
//! assigned since waits) and reports every batch as emitted in parts, so that snapshots fall in
//! the middle of batches as well.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::metrics::MetricRegistry;
use aqueduct_connector::source::{
    EnumeratorCommand, EnumeratorOutput, ReaderOutput, Record, Source, SourceReader, Split,
    SplitEnumerator, SplitId,
};
use aqueduct_connector::{CheckpointId, Result, Timestamp, Versioned};
use aqueduct_testkit::TestContext;

/// What a checkpoint holds.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoint {
    pub(crate) enumerator: Versioned,
    /// Splits of all readers, to be redistributed.
    pub(crate) splits: Vec<Split>,
    /// Records emitted before it, by anyone.
    pub(crate) emitted: usize,
}

pub(crate) struct Host<T> {
    enumerator: Box<dyn SplitEnumerator>,
    readers: Vec<Reader<T>>,
    pub(crate) metrics: MetricRegistry,
    pub(crate) clock: ManualClock,
    /// Records in the order of their emission, with the reader that emitted them.
    pub(crate) emitted: Vec<(usize, Record<T>)>,
    next_checkpoint: u64,
}

struct Reader<T> {
    reader: Box<dyn SourceReader<T>>,
    /// Records handed out and not yet emitted.
    waiting: Vec<Record<T>>,
    ended: bool,
}

impl<T> Host<T> {
    pub(crate) fn start(source: &dyn Source<T>, readers: u32) -> Result<Self> {
        Self::restore(source, readers, None)
    }

    pub(crate) fn restore(
        source: &dyn Source<T>,
        readers: u32,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Self> {
        let clock = ManualClock::new(Timestamp::from_millis(1_700_000_000_000));
        let kit = TestContext::new("source").with_clock(Arc::new(clock.clone()));
        let restored = checkpoint.map(|checkpoint| checkpoint.enumerator.clone());
        let mut host = Self {
            enumerator: source.create_enumerator(kit.coordinator(readers), restored)?,
            readers: Vec::new(),
            emitted: Vec::new(),
            next_checkpoint: 1,
            metrics: kit.registry().clone(),
            clock,
        };
        for index in 0..readers {
            let reader = source.create_reader(kit.subtask(index, readers))?;
            host.readers.push(Reader {
                reader,
                waiting: Vec::new(),
                ended: false,
            });
        }
        for (nth, split) in checkpoint.iter().flat_map(|c| &c.splits).enumerate() {
            let at = nth % host.readers.len();
            host.readers[at].reader.add_splits(vec![split.clone()])?;
        }
        let mut out = EnumeratorOutput::new();
        for reader in 0..readers {
            host.enumerator.reader_registered(reader, &mut out)?;
        }
        host.carry_out(&mut out)?;
        Ok(host)
    }

    fn carry_out(&mut self, out: &mut EnumeratorOutput) -> Result<()> {
        for command in out.drain() {
            match command {
                EnumeratorCommand::Assign { reader, splits } => {
                    self.readers[reader as usize].reader.add_splits(splits)?;
                }
                EnumeratorCommand::NoMoreSplits { reader } => {
                    self.readers[reader as usize].reader.no_more_splits()?;
                }
                EnumeratorCommand::Event { .. } => panic!("these sources send no events"),
            }
        }
        Ok(())
    }

    /// Polls everyone once; whether anything happened. A reader emits at most `records` at a time.
    fn poll_step(&mut self, cx: &mut task::Context<'_>, records: usize) -> Result<bool> {
        let mut out = EnumeratorOutput::new();
        if let Poll::Ready(result) = self.enumerator.poll_progress(cx, &mut out) {
            result?;
        }
        self.carry_out(&mut out)?;
        let mut happened = false;
        for at in 0..self.readers.len() {
            let reader = &mut self.readers[at];
            if !reader.waiting.is_empty() {
                let count = records.min(reader.waiting.len());
                self.emitted
                    .extend(reader.waiting.drain(..count).map(|record| (at, record)));
                reader.reader.emitted(count);
                happened = true;
                continue;
            }
            if reader.ended {
                continue;
            }
            match reader.reader.poll_next(cx) {
                Poll::Pending => continue,
                Poll::Ready(output) => match output? {
                    ReaderOutput::Batch(batch) => reader.waiting = batch.records,
                    ReaderOutput::RequestSplit => {
                        let index = u32::try_from(at).expect("few readers");
                        self.enumerator.split_requested(index, &mut out)?;
                    }
                    ReaderOutput::SplitFinished(_) => {}
                    ReaderOutput::End => reader.ended = true,
                    ReaderOutput::Watermark { .. } | ReaderOutput::Event(_) => {
                        panic!("these sources send none")
                    }
                },
            }
            happened = true;
            self.carry_out(&mut out)?;
        }
        Ok(happened)
    }

    /// One step, waited for; `false` once every reader has ended.
    pub(crate) async fn step(&mut self, records: usize) -> Result<bool> {
        let step = poll_fn(|cx| {
            if self
                .readers
                .iter()
                .all(|reader| reader.ended && reader.waiting.is_empty())
            {
                return Poll::Ready(Ok(false));
            }
            match self.poll_step(cx, records) {
                Ok(true) => Poll::Ready(Ok(true)),
                Ok(false) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        });
        tokio::time::timeout(Duration::from_secs(30), step)
            .await
            .expect("the source hangs")
    }

    /// One step without waiting; whether anything happened.
    pub(crate) fn step_now(&mut self, records: usize) -> Result<bool> {
        self.poll_step(&mut task::Context::from_waker(task::Waker::noop()), records)
    }

    /// To the end.
    pub(crate) async fn run(&mut self) -> Result<()> {
        while self.step(usize::MAX).await? {}
        Ok(())
    }

    pub(crate) fn checkpoint(&mut self) -> Result<Checkpoint> {
        let id = CheckpointId(self.next_checkpoint);
        self.next_checkpoint += 1;
        let enumerator = self.enumerator.snapshot(id)?;
        let mut splits = Vec::new();
        for reader in &mut self.readers {
            splits.extend(reader.reader.snapshot(id)?);
        }
        Ok(Checkpoint {
            enumerator,
            splits,
            emitted: self.emitted.len(),
        })
    }

    pub(crate) fn pause(&mut self, split: &SplitId) {
        self.readers
            .iter_mut()
            .for_each(|r| r.reader.pause_splits(std::slice::from_ref(split), &[]));
    }

    pub(crate) fn resume(&mut self, split: &SplitId) {
        self.readers
            .iter_mut()
            .for_each(|r| r.reader.pause_splits(&[], std::slice::from_ref(split)));
    }

    pub(crate) async fn close(mut self) -> Result<()> {
        let close = poll_fn(|cx| {
            for reader in &mut self.readers {
                task::ready!(reader.reader.poll_close(cx))?;
            }
            self.enumerator.poll_close(cx)
        });
        tokio::time::timeout(Duration::from_secs(30), close)
            .await
            .expect("close hangs")
    }

    pub(crate) fn values(self) -> Vec<T> {
        self.emitted
            .into_iter()
            .map(|(_, record)| record.value)
            .collect()
    }
}
