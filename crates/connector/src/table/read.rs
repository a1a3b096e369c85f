//! A table's source made of any source and an encoder of its records.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, ready};
use std::vec;

use crate::context::{CheckpointId, Context};
use crate::error::Result;
use crate::row::{RowBatch, RowKind, RowWriter};
use crate::source::{
    Boundedness, ReaderOutput, Record, Source, SourceReader, Split, SplitEnumerator, SplitId,
};
use crate::state::Versioned;

use super::{TableOutput, TableReader, TableSource};

/// Makes a row of a record.
pub trait RowEncoder<T> {
    /// Number of fields.
    fn arity(&self) -> usize;

    /// What the row does.
    fn kind(&self, record: &T) -> RowKind {
        let _ = record;
        RowKind::Insert
    }

    /// Sets the fields; what is not set is null.
    ///
    /// # Errors
    ///
    /// If the record does not fit the columns; fails the job.
    fn encode(&mut self, record: &T, row: &mut RowWriter<'_>) -> Result<()>;
}

/// A [`TableSource`] of `source`'s records, each encoded as one row by an encoder that `E` makes for each reader.
pub struct TableReads<T, E> {
    source: Box<dyn Source<T>>,
    encoder: Arc<dyn Fn() -> E + Send + Sync>,
}

impl<T, E> TableReads<T, E> {
    /// Reads `source` and encodes by what `encoder` makes.
    pub fn new(
        source: impl Source<T> + 'static,
        encoder: impl Fn() -> E + Send + Sync + 'static,
    ) -> Self {
        Self {
            source: Box::new(source),
            encoder: Arc::new(encoder),
        }
    }
}

impl<T, E> fmt::Debug for TableReads<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableReads({})", self.source.connector())
    }
}

impl<T: 'static, E: RowEncoder<T> + 'static> TableSource for TableReads<T, E> {
    fn boundedness(&self) -> Boundedness {
        self.source.boundedness()
    }

    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        self.source.create_enumerator(context, restored)
    }

    fn create_reader(&self, context: Context) -> Result<Box<dyn TableReader>> {
        Ok(Box::new(Reader {
            inner: self.source.create_reader(context)?,
            encoder: (self.encoder)(),
            waiting: None,
        }))
    }
}

struct Reader<T, E> {
    inner: Box<dyn SourceReader<T>>,
    encoder: E,
    /// The rest of a batch that was larger than the host wanted.
    waiting: Option<(SplitId, vec::IntoIter<Record<T>>)>,
}

impl<T, E: RowEncoder<T>> Reader<T, E> {
    /// Encodes what waits until `batch` has about `target` bytes. `None` if nothing waited.
    fn encode(&mut self, batch: &mut RowBatch, target: usize) -> Result<Option<SplitId>> {
        let Some((split, records)) = &mut self.waiting else {
            return Ok(None);
        };
        let split = split.clone();
        let arity = self.encoder.arity();
        for record in records.by_ref() {
            let kind = self.encoder.kind(&record.value);
            batch.try_push(record.timestamp, kind, arity, |row| {
                self.encoder.encode(&record.value, row)
            })?;
            if batch.as_bytes().len() >= target {
                break;
            }
        }
        if records.as_slice().is_empty() {
            self.waiting = None;
        }
        Ok((!batch.is_empty()).then_some(split))
    }
}

impl<T, E: RowEncoder<T>> TableReader for Reader<T, E> {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        self.inner.add_splits(splits)
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.inner.no_more_splits()
    }

    fn enumerator_event(&mut self, event: Versioned) -> Result<()> {
        self.inner.enumerator_event(event)
    }

    fn poll_next(
        &mut self,
        cx: &mut PollContext<'_>,
        batch: &mut RowBatch,
        target: usize,
    ) -> Poll<Result<TableOutput>> {
        loop {
            if let Some(split) = self.encode(batch, target)? {
                return Poll::Ready(Ok(TableOutput::Rows(split)));
            }
            return Poll::Ready(Ok(match ready!(self.inner.poll_next(cx))? {
                ReaderOutput::Batch(batch) => {
                    self.waiting = Some((batch.split, batch.records.into_iter()));
                    continue;
                }
                ReaderOutput::Watermark { split, watermark } => {
                    TableOutput::Watermark { split, watermark }
                }
                ReaderOutput::SplitFinished(split) => TableOutput::SplitFinished(split),
                ReaderOutput::RequestSplit => TableOutput::RequestSplit,
                ReaderOutput::Event(event) => TableOutput::Event(event),
                ReaderOutput::End => TableOutput::End,
            }));
        }
    }

    fn emitted(&mut self, rows: usize) {
        self.inner.emitted(rows);
    }

    fn skipped(&mut self, rows: usize) {
        self.inner.skipped(rows);
    }

    fn reject(&mut self, reason: &str) -> Result<()> {
        self.inner.reject(reason)
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
        self.waiting = None;
        self.inner.poll_close(cx)
    }
}

/// A reader without a source around it.
#[cfg(test)]
pub(super) fn reader_for_tests<T: 'static, E: RowEncoder<T> + 'static>(
    inner: Box<dyn SourceReader<T>>,
    encoder: E,
) -> Box<dyn TableReader> {
    Box::new(Reader {
        inner,
        encoder,
        waiting: None,
    })
}
