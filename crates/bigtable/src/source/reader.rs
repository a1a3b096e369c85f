//! The reader of one subtask: reads its splits one after the other, as it is polled.
//!
//! Two positions: a [`RowStream`] knows what was delivered and reopens behind it; the split knows what was emitted, and
//! only that reaches a checkpoint (BT-SCAN-05).
//!
//! # Invariants
//!
//! - A split's range and row count move with [`emitted`](SourceReader::emitted) and with nothing else.
//! - At most one split has an open stream. A paused split loses its stream at the next poll and is read again from its
//!   position, so it holds no memory while it waits.
//! - A deserializer that fails leaves the records of the rows before it: they are handed out, then the failure.
//!
//! # Bounds
//!
//! A fetch is what one poll hands out. Beside it the reader holds what the last message carried beyond the fetch, the
//! row that is still arriving, and in the transport no more than the windows.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};

use aqueduct_connector::metrics::Counter;
use aqueduct_connector::source::{
    Batch, Collector, Emission, ReaderOutput, SourceReader, Split, SplitId,
};
use aqueduct_connector::{CheckpointId, Context, Error, Result, Versioned};
use bytes::Bytes;

use super::builder::Settings;
use super::deserialize::RowDeserializer;
use super::metrics;
use super::split::{Finished, ScanSplit, Settled};
use crate::client::read::{Fill, ReadClient, ReadPolicy, Remaining, RowStream, ScanOrder};

pub(super) struct Reader<T> {
    settings: Arc<Settings>,
    context: Context,
    deserializer: Box<dyn RowDeserializer<T>>,
    /// Made at the first poll, so that creating the reader does no I/O.
    client: Option<ReadClient>,
    random: fastrand::Rng,
    splits: VecDeque<Reading>,
    paused: BTreeSet<SplitId>,
    /// The split that the last batch came from.
    serving: Option<usize>,
    /// Records of the last batch to the rows read with them.
    emission: Emission<usize>,
    request: Request,
    failed: Option<Error>,
    waker: Option<Waker>,
    rows_read: Counter,
    skipped: Counter,
    retries: Counter,
}

/// Whether the coordinator is to be asked for a split.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Free,
    Sent,
    /// No further split will come.
    NoMore,
}

/// A split being read.
struct Reading {
    id: SplitId,
    /// What is left behind the emitted rows, as of the last [`settle`](Reading::settle).
    split: ScanSplit,
    stream: Option<RowStream>,
    /// Rows of the stream's batch that were deserialized.
    delivered: usize,
    /// Rows of the stream's batch that were emitted.
    emitted: usize,
    /// Rows of the stream's batch that the split has moved behind.
    settled: usize,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    No,
    /// The coordinator was told and has not answered.
    Told,
}

impl Reading {
    fn new(split: ScanSplit) -> Self {
        Self {
            id: split.id(),
            split,
            stream: None,
            delivered: 0,
            emitted: 0,
            settled: 0,
            end: End::No,
        }
    }

    /// Moves the split behind what was emitted.
    fn settle(&mut self, order: ScanOrder) {
        let Some(stream) = &self.stream else { return };
        let rows = self.emitted - self.settled;
        if rows == 0 {
            return;
        }
        let last = stream
            .batch()
            .get(self.emitted - 1)
            .expect("emitted rows are in the batch");
        let key = Bytes::copy_from_slice(last.key());
        self.split.range = match order {
            ScanOrder::Forward => self.split.range.after(&key),
            ScanOrder::Reverse => self.split.range.before(&key),
        };
        if let Some(left) = &mut self.split.rows_left {
            *left -= rows as u64;
        }
        self.settled = self.emitted;
    }

    /// Rows that may still be delivered under a row limit.
    fn rows_left(&self) -> u64 {
        let undelivered = (self.delivered - self.settled) as u64;
        self.split
            .rows_left
            .map_or(u64::MAX, |left| left - undelivered)
    }

    /// Lets go of the rows of the last fetch, all emitted.
    fn clear(&mut self, order: ScanOrder) {
        self.settle(order);
        if let Some(stream) = &mut self.stream {
            stream.clear();
        }
        (self.delivered, self.emitted, self.settled) = (0, 0, 0);
    }

    /// Lets go of the stream; reading goes on from the position.
    fn close(&mut self, order: ScanOrder) {
        self.clear(order);
        self.stream = None;
    }
}

impl<T> Reader<T> {
    pub(super) fn new(
        settings: Arc<Settings>,
        context: Context,
        deserializer: Box<dyn RowDeserializer<T>>,
    ) -> Self {
        let group = &context.metrics;
        Self {
            rows_read: group.counter(metrics::ROWS_READ),
            skipped: group.counter(metrics::RECORDS_SKIPPED),
            retries: group.counter(metrics::READ_RETRIES),
            random: context.random(),
            settings,
            context,
            deserializer,
            client: None,
            splits: VecDeque::new(),
            paused: BTreeSet::new(),
            serving: None,
            emission: Emission::new(),
            request: Request::Free,
            failed: None,
            waker: None,
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn start(&mut self) -> Result<()> {
        if self.client.is_none() {
            self.client = Some(ReadClient::new(
                &self.context,
                &self.settings.access,
                self.settings.read_ahead,
                NonZeroUsize::MIN,
            )?);
            self.deserializer.open(&self.context)?;
        }
        Ok(())
    }

    fn open(&mut self, at: usize) {
        let client = self.client.as_ref().expect("made by start");
        let reading = &mut self.splits[at];
        let remaining = Remaining::ranges(
            vec![reading.split.range.clone()],
            self.settings.order,
            reading.split.rows_left,
        );
        let random = fastrand::Rng::with_seed(self.random.u64(..));
        reading.stream = Some(
            client
                .read(
                    remaining,
                    self.settings.filter.as_ref(),
                    ReadPolicy::SCAN,
                    random,
                )
                .counting(self.retries.clone()),
        );
    }

    /// Deserializes rows of the split's batch up to the fetch's bounds.
    fn serve(&mut self, at: usize) -> Batch<T> {
        let reading = &mut self.splits[at];
        let most = self.settings.max_rows_per_fetch.min(reading.rows_left());
        let stream = reading.stream.as_ref().expect("rows are in its batch");
        let ready = (stream.batch().len() - reading.delivered) as u64;
        let mut records = Vec::with_capacity(usize::try_from(most.min(ready)).unwrap_or(0));
        let (mut rows, mut bytes, mut skipped) = (0, 0, 0);
        while rows < most
            && let Some(row) = stream.batch().get(reading.delivered)
        {
            // The row that would cross the target waits for the next fetch; a larger one travels alone.
            bytes += row.content_bytes();
            let full = bytes > self.settings.max_bytes_per_fetch || !self.deserializer.has_room();
            if rows > 0 && full {
                break;
            }
            let before = records.len();
            let mut out = Collector::new(&mut records, None);
            if let Err(error) = self.deserializer.deserialize(row, &mut out) {
                records.truncate(before);
                let message = format!(
                    "the deserializer failed on a row of Bigtable table {} in split {}, {}",
                    self.settings.access.table(),
                    reading.id,
                    reading.split.range,
                );
                self.failed = Some(Error::new(error.kind(), message).with_source(error));
                break;
            }
            reading.delivered += 1;
            rows += 1;
            let made = records.len() - before;
            skipped += u64::from(made == 0);
            self.emission.push(made, reading.delivered);
        }
        self.rows_read.add(rows);
        self.skipped.add(skipped);
        if let Some(emitted) = self.emission.emitted(0) {
            reading.emitted = emitted;
        }
        self.serving = Some(at);
        Batch {
            split: reading.id.clone(),
            records,
        }
    }

    /// The split at `at` has nothing left, and all of it was emitted.
    fn finish(&mut self, at: usize) -> Option<ReaderOutput<T>> {
        let order = self.settings.order;
        let reading = &mut self.splits[at];
        reading.close(order);
        match reading.split.rows_left {
            // What is left of the limit goes back first.
            Some(unused) => {
                reading.split.finished = true;
                if reading.end == End::Told {
                    return None;
                }
                reading.end = End::Told;
                let end = Finished {
                    ordinal: reading.split.ordinal,
                    unused,
                };
                Some(ReaderOutput::Event(end.encode()))
            }
            None => self.forget(at),
        }
    }

    fn forget(&mut self, at: usize) -> Option<ReaderOutput<T>> {
        let reading = self.splits.remove(at)?;
        self.paused.remove(&reading.id);
        Some(ReaderOutput::SplitFinished(reading.id))
    }

    /// The next split to read: the first that is neither paused nor waits for the coordinator.
    fn next_split(&self) -> Option<usize> {
        self.splits
            .iter()
            .position(|reading| reading.end == End::No && !self.paused.contains(&reading.id))
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("table", self.settings.access.table())
            .field("splits", &self.splits.len())
            .finish_non_exhaustive()
    }
}

impl<T> SourceReader<T> for Reader<T> {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        for split in splits {
            self.splits
                .push_back(Reading::new(ScanSplit::decode(&split.state)?));
        }
        if self.request == Request::Sent {
            self.request = Request::Free;
        }
        self.wake();
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.request = Request::NoMore;
        self.wake();
        Ok(())
    }

    fn enumerator_event(&mut self, event: Versioned) -> Result<()> {
        let Settled { ordinal } = Settled::decode(&event)?;
        for reading in &mut self.splits {
            if reading.split.ordinal == ordinal && reading.end == End::Told {
                // Forgotten at the next poll, which can say so.
                reading.split.rows_left = None;
                reading.end = End::No;
            }
        }
        self.wake();
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<T>>> {
        self.start()?;
        self.serving = None;
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        let order = self.settings.order;
        for reading in &mut self.splits {
            if reading.stream.is_some() && self.paused.contains(&reading.id) {
                reading.close(order);
            }
        }
        while let Some(at) = self.next_split() {
            let reading = &mut self.splits[at];
            let waiting = reading
                .stream
                .as_ref()
                .map_or(0, |stream| stream.batch().len() - reading.delivered);
            if waiting > 0 && reading.rows_left() > 0 {
                let batch = self.serve(at);
                if batch.records.is_empty()
                    && let Some(error) = self.failed.take()
                {
                    return Poll::Ready(Err(error));
                }
                return Poll::Ready(Ok(ReaderOutput::Batch(batch)));
            }
            reading.clear(order);
            let filled = if reading.split.is_done() {
                Fill::End
            } else {
                if reading.stream.is_none() {
                    self.open(at);
                }
                let reading = &mut self.splits[at];
                let stream = reading.stream.as_mut().expect("opened above");
                match stream.poll_fill(
                    cx,
                    self.settings.max_rows_per_fetch,
                    self.settings.max_bytes_per_fetch,
                ) {
                    Poll::Pending => {
                        self.waker = Some(cx.waker().clone());
                        return Poll::Pending;
                    }
                    Poll::Ready(filled) => filled?,
                }
            };
            if filled == Fill::End
                && let Some(output) = self.finish(at)
            {
                return Poll::Ready(Ok(output));
            }
        }
        match self.request {
            Request::Free if self.splits.is_empty() => {
                self.request = Request::Sent;
                return Poll::Ready(Ok(ReaderOutput::RequestSplit));
            }
            Request::NoMore if self.splits.is_empty() => {
                return Poll::Ready(Ok(ReaderOutput::End));
            }
            _ => {}
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn emitted(&mut self, records: usize) {
        if let Some(rows) = self.emission.emitted(records)
            && let Some(at) = self.serving
        {
            self.splits[at].emitted = rows;
        }
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Vec<Split>> {
        let order = self.settings.order;
        Ok(self
            .splits
            .iter_mut()
            .map(|reading| {
                reading.settle(order);
                reading.split.to_split()
            })
            .collect())
    }

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]) {
        self.paused.extend(pause.iter().cloned());
        for split in resume {
            self.paused.remove(split);
        }
        self.wake();
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        for reading in &mut self.splits {
            reading.stream = None;
        }
        self.client = None;
        Poll::Ready(Ok(()))
    }
}
