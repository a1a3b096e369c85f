//! A source's reader, which fills batches of rows for Java.

use std::task::{Context as PollContext, Poll, ready};

use aqueduct_connector::row::RowBatch;
use aqueduct_connector::state::StateWriter;
use aqueduct_connector::table::{TableOutput, TableReader, TableSource};
use aqueduct_connector::{CheckpointId, Context, Error, Result};
use bytes::Bytes;

use crate::wire;

/// Bytes of a batch, about: large enough to make the crossing cheap, small enough that a barrier behind it waits little.
const TARGET_BYTES: usize = 32 << 10;

/// One subtask's reader.
pub(crate) struct Reader {
    inner: Box<dyn TableReader>,
    batch: RowBatch,
    header: StateWriter,
}

/// What Java asks for besides the next output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    AddSplits,
    NoMoreSplits,
    Event,
    Reject,
    Skipped,
    Snapshot,
    Completed,
    Aborted,
    Pause,
}

impl Reader {
    pub(crate) fn new(source: &dyn TableSource, context: Context) -> Result<Self> {
        Ok(Self {
            inner: source.create_reader(context)?,
            batch: RowBatch::new(),
            header: StateWriter::new(),
        })
    }

    /// The next output: a header (what it is, the split, a number or bytes) and, for rows, the batch as it is.
    pub(crate) fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<(Bytes, &[u8])>> {
        self.batch.clear(TARGET_BYTES);
        let output = ready!(self.inner.poll_next(cx, &mut self.batch, TARGET_BYTES))?;
        let header = &mut self.header;
        match output {
            TableOutput::Rows(split) => header.u8(1).text(split.as_str()),
            TableOutput::Watermark { split, watermark } => {
                header.u8(2).text(split.as_str()).i64(watermark.millis())
            }
            TableOutput::SplitFinished(split) => header.u8(3).text(split.as_str()),
            TableOutput::RequestSplit => header.u8(4),
            TableOutput::Event(event) => header.u8(5).versioned(&event),
            TableOutput::End => header.u8(6),
        };
        Poll::Ready(Ok((header.finish(0).bytes, self.batch.as_bytes())))
    }

    /// Java passed on `rows` more of the last batch.
    pub(crate) fn emitted(&mut self, rows: usize) {
        self.inner.emitted(rows);
    }

    pub(crate) fn call(&mut self, request: Request, argument: Bytes) -> Result<Bytes> {
        let value = wire::unversioned(argument);
        let mut argument = wire::message(&value)?;
        let mut answer = StateWriter::new();
        match request {
            Request::AddSplits => self.inner.add_splits(wire::splits(&mut argument)?)?,
            Request::NoMoreSplits => self.inner.no_more_splits()?,
            Request::Event => self.inner.enumerator_event(argument.versioned()?)?,
            Request::Reject => self.inner.reject(argument.text()?)?,
            Request::Skipped => self.inner.skipped(argument.u32()? as usize),
            Request::Snapshot => {
                let splits = self.inner.snapshot(CheckpointId(argument.u64()?))?;
                wire::put_splits(&mut answer, &splits);
            }
            Request::Completed => {
                self.inner
                    .checkpoint_completed(CheckpointId(argument.u64()?))?;
            }
            Request::Aborted => self.inner.checkpoint_aborted(CheckpointId(argument.u64()?)),
            Request::Pause => {
                let pause = wire::split_ids(&mut argument)?;
                let resume = wire::split_ids(&mut argument)?;
                self.inner.pause_splits(&pause, &resume);
            }
        }
        argument.finish()?;
        Ok(answer.finish(0).bytes)
    }

    pub(crate) fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.inner.poll_close(cx)
    }
}

impl Request {
    /// From Java's number of a call.
    pub(crate) fn from_number(number: i32) -> Result<Self> {
        Ok(match number {
            10 => Self::AddSplits,
            11 => Self::NoMoreSplits,
            12 => Self::Event,
            13 => Self::Reject,
            14 => Self::Snapshot,
            15 => Self::Completed,
            16 => Self::Aborted,
            17 => Self::Pause,
            18 => Self::Skipped,
            _ => return Err(Error::bug("no such call of a reader")),
        })
    }
}
