//! A sink's writer, fed with batches of rows.
//!
//! Java hands over a batch (one copy, into memory that the rows then share); the writer takes its rows while it is ready,
//! and what it does not take waits here, at most one batch. So at its bounds nothing blocks: Java goes back to its
//! mailbox and polls again when the waker fires.

use std::task::{Context as PollContext, Poll, ready};

use aqueduct_connector::row::Row;
use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_connector::{Context, Error, Result, Timestamp, Versioned};
use bytes::{Buf, Bytes};

/// Bytes before each row of a batch: its event time, its size, four of padding.
const PREFIX: usize = 16;

/// What Java polls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Background work only; never ready.
    Progress,
    /// Every row handed over was taken.
    Taken,
    /// As `SinkWriter::poll_flush`.
    Flushed(Flush),
    /// As `SinkWriter::poll_close`.
    Closed,
}

impl Goal {
    /// From Java's number.
    pub(crate) fn from_number(number: i32) -> Result<Self> {
        Ok(match number {
            0 => Self::Progress,
            1 => Self::Taken,
            2 => Self::Flushed(Flush::Checkpoint),
            3 => Self::Flushed(Flush::EndOfInput),
            4 => Self::Closed,
            _ => return Err(Error::bug("no such goal of a poll")),
        })
    }
}

/// One subtask's writer.
pub(crate) struct Writer {
    inner: Box<dyn SinkWriter<Row>>,
    /// Rows not taken yet.
    rest: Bytes,
    watermark: Option<Timestamp>,
}

impl Writer {
    pub(crate) fn new(
        sink: &dyn Sink<Row>,
        context: Context,
        restored: Vec<Versioned>,
    ) -> Result<Self> {
        Ok(Self {
            inner: sink.create_writer(context, restored)?,
            rest: Bytes::new(),
            watermark: None,
        })
    }

    /// Takes a batch over: rows one behind the other, each after its prefix. A prefix with size 0 announces a watermark
    /// instead.
    pub(crate) fn push(&mut self, batch: Bytes) -> Result<()> {
        if !self.rest.is_empty() {
            return Err(Error::bug(
                "a batch was handed over before the last was taken",
            ));
        }
        self.rest = batch;
        Ok(())
    }

    pub(crate) fn poll(&mut self, cx: &mut PollContext<'_>, goal: Goal) -> Poll<Result<()>> {
        match goal {
            Goal::Closed => {
                self.rest = Bytes::new();
                self.inner.poll_close(cx)
            }
            Goal::Taken => {
                ready!(self.poll_rest(cx))?;
                // Whoever polls for this polls for nothing else, so the background is polled here.
                match self.inner.poll_progress(cx) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    _ => Poll::Ready(Ok(())),
                }
            }
            Goal::Progress => {
                ready!(self.poll_rest(cx))?;
                match ready!(self.inner.poll_progress(cx)) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
            Goal::Flushed(flush) => {
                ready!(self.poll_rest(cx))?;
                self.inner.poll_flush(cx, flush)
            }
        }
    }

    fn poll_rest(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        while !self.rest.is_empty() {
            let Some((time, size)) = prefix(&self.rest) else {
                return Poll::Ready(Err(Error::bug("a batch of rows is damaged")));
            };
            if size == 0 {
                self.watermark = Some(Timestamp::from_millis(time));
                self.rest.advance(PREFIX);
                continue;
            }
            ready!(self.inner.poll_ready(cx))?;
            self.rest.advance(PREFIX);
            let row = self.rest.split_to(size);
            let info = RecordInfo {
                timestamp: (time != i64::MIN).then(|| Timestamp::from_millis(time)),
                watermark: self.watermark,
            };
            self.inner.write(Row::new(row), info)?;
        }
        // The batch's memory belongs to the rows now.
        self.rest = Bytes::new();
        Poll::Ready(Ok(()))
    }
}

/// Time and size before a row, if the row is there.
fn prefix(rest: &[u8]) -> Option<(i64, usize)> {
    let (prefix, behind) = rest.split_at_checked(PREFIX)?;
    let time = i64::from_ne_bytes(prefix[..8].try_into().ok()?);
    let size = u32::from_ne_bytes(prefix[8..12].try_into().ok()?) as usize;
    (size <= behind.len()).then_some((time, size))
}
