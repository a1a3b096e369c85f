//! Tables in the hands of the hosts: a table's source driven as any source, and rows made for a table's sink.
//!
//! ```
//! use aqueduct_connector::row::RowKind;
//! use aqueduct_testkit::table::row;
//!
//! let row = row(RowKind::Insert, 1, |row| row.i32(0, 7));
//! assert_eq!(row.view(1)?.i32(0), 7);
//! # Ok::<(), aqueduct_connector::row::RowError>(())
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, ready};

use aqueduct_connector::row::{Row, RowBatch, RowKind, RowWriter};
use aqueduct_connector::source::{
    Batch, Boundedness, ReaderOutput, Record, Source, SourceReader, Split, SplitEnumerator, SplitId,
};
use aqueduct_connector::table::{TableOutput, TableReader, TableSource};
use aqueduct_connector::{CheckpointId, Context, Result, Versioned};

/// Bytes of rows that are asked for at once.
const TARGET: usize = 64 << 10;

/// One row.
pub fn row(kind: RowKind, arity: usize, fill: impl FnOnce(&mut RowWriter<'_>)) -> Row {
    let mut batch = RowBatch::new();
    batch.push(None, kind, arity, fill);
    let bytes: Vec<u8> = batch.iter().flat_map(|row| row.bytes).copied().collect();
    Row::new(bytes.into())
}

/// Why a row is to be rejected, if it is.
type Judge = dyn Fn(&Row) -> Option<&'static str> + Send + Sync;

/// A table's source as a [`Source`] of rows, for [`SourceHost`](crate::SourceHost).
///
/// As a host with a format does, it rejects the rows that [`rejecting`](Self::rejecting) names when everything before
/// them was emitted; they are not among what the host emits. Not for tests that pause splits.
pub struct TableRows {
    inner: Box<dyn TableSource>,
    judge: Arc<Judge>,
}

impl TableRows {
    /// All rows of `source`.
    #[must_use]
    pub fn new(source: Box<dyn TableSource>) -> Self {
        Self {
            inner: source,
            judge: Arc::new(|_| None),
        }
    }

    /// Rejects a row for the reason that `judge` gives.
    #[must_use]
    pub fn rejecting(
        mut self,
        judge: impl Fn(&Row) -> Option<&'static str> + Send + Sync + 'static,
    ) -> Self {
        self.judge = Arc::new(judge);
        self
    }
}

impl fmt::Debug for TableRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableRows").finish_non_exhaustive()
    }
}

impl Source<Row> for TableRows {
    fn connector(&self) -> &'static str {
        "table"
    }

    fn boundedness(&self) -> Boundedness {
        self.inner.boundedness()
    }

    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        self.inner.create_enumerator(context, restored)
    }

    fn create_reader(&self, context: Context) -> Result<Box<dyn SourceReader<Row>>> {
        Ok(Box::new(Rows {
            inner: self.inner.create_reader(context)?,
            judge: self.judge.clone(),
            batch: RowBatch::new(),
            split: SplitId::new(""),
            waiting: VecDeque::new(),
        }))
    }
}

struct Rows {
    inner: Box<dyn TableReader>,
    judge: Arc<Judge>,
    batch: RowBatch,
    /// Of the waiting rows.
    split: SplitId,
    /// Rows of the last batch that were not passed on.
    waiting: VecDeque<Record<Row>>,
}

impl Rows {
    /// Rejects what is to be rejected now, and takes what comes before the next such row.
    fn take(&mut self) -> Result<Vec<Record<Row>>> {
        while let Some(first) = self.waiting.front() {
            let Some(reason) = (self.judge)(&first.value) else {
                break;
            };
            self.waiting.pop_front();
            self.inner.reject(reason)?;
        }
        let good = self
            .waiting
            .iter()
            .take_while(|record| (self.judge)(&record.value).is_none())
            .count();
        Ok(self.waiting.drain(..good).collect())
    }
}

impl SourceReader<Row> for Rows {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        self.inner.add_splits(splits)
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.inner.no_more_splits()
    }

    fn enumerator_event(&mut self, event: Versioned) -> Result<()> {
        self.inner.enumerator_event(event)
    }

    fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<Row>>> {
        loop {
            let records = self.take()?;
            if !records.is_empty() {
                let split = self.split.clone();
                return Poll::Ready(Ok(ReaderOutput::Batch(Batch { split, records })));
            }
            self.batch.clear(TARGET);
            return Poll::Ready(Ok(
                match ready!(self.inner.poll_next(cx, &mut self.batch, TARGET))? {
                    TableOutput::Rows(split) => {
                        self.split = split;
                        self.waiting = self
                            .batch
                            .iter()
                            .map(|row| Record {
                                value: Row::new(row.bytes.to_vec().into()),
                                timestamp: row.timestamp,
                            })
                            .collect();
                        continue;
                    }
                    TableOutput::Watermark { split, watermark } => {
                        ReaderOutput::Watermark { split, watermark }
                    }
                    TableOutput::SplitFinished(split) => ReaderOutput::SplitFinished(split),
                    TableOutput::RequestSplit => ReaderOutput::RequestSplit,
                    TableOutput::Event(event) => ReaderOutput::Event(event),
                    TableOutput::End => ReaderOutput::End,
                },
            ));
        }
    }

    fn emitted(&mut self, records: usize) {
        self.inner.emitted(records);
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Split>> {
        self.inner.snapshot(checkpoint)
    }

    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        self.inner.checkpoint_completed(checkpoint)
    }

    fn checkpoint_aborted(&mut self, checkpoint: CheckpointId) {
        self.inner.checkpoint_aborted(checkpoint);
    }

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]) {
        self.inner.pause_splits(pause, resume);
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.waiting.clear();
        self.inner.poll_close(cx)
    }
}
