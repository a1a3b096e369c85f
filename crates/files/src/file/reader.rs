//! The reader: owns its splits and reads one after the other.
//!
//! One split is read at a time; a paused one keeps its place and its bounded read-ahead while
//! another is read. A new split is asked for when none is left.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};
use std::time::Duration;

use aqueduct_connector::clock::Timer;
use aqueduct_connector::source::{Batch, Emission, ReaderOutput, SourceReader, Split, SplitId};
use aqueduct_connector::stall::StallWatch;
use aqueduct_connector::{CheckpointId, Context, Error, Result, Task};
use tokio::sync::mpsc;
use tracing::warn;

use super::cursor::{BadRecord, Cursor, Filled, Limits, Tally};
use super::fetch::{self, Fetched, Request};
use super::format::FileFormat;
use super::gunzip::PIECE_BYTES;
use super::source::Settings;
use super::split::{FileSplit, Position};
use crate::metrics::ReaderMetrics;

pub(crate) struct FileReader<F: FileFormat> {
    context: Context,
    settings: Arc<Settings<F>>,
    metrics: ReaderMetrics,
    splits: VecDeque<Active<F>>,
    /// Split of the last batch.
    emitting: Option<SplitId>,
    asked: bool,
    no_more: bool,
    ended: bool,
    closing: Vec<Task>,
    waker: Option<Waker>,
    stall: StallWatch,
    stall_timer: Box<dyn Timer>,
}

struct Active<F> {
    id: SplitId,
    /// Its position is what was emitted.
    split: FileSplit,
    reading: Option<Box<Under<F>>>,
    emission: Emission<Position>,
    paused: bool,
    /// Every record was handed out.
    done: bool,
}

/// A split under way.
struct Under<F> {
    cursor: Cursor<F>,
    fetched: mpsc::Receiver<Fetched>,
    task: Task,
}

impl<F: FileFormat> FileReader<F> {
    pub(crate) fn new(context: Context, settings: Arc<Settings<F>>) -> Self {
        Self {
            metrics: ReaderMetrics::new(&context.metrics),
            settings,
            splits: VecDeque::new(),
            emitting: None,
            asked: false,
            no_more: false,
            ended: false,
            closing: Vec::new(),
            waker: None,
            stall: StallWatch::new(),
            stall_timer: context.clock.timer(),
            context,
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn start(&self, split: &FileSplit) -> Box<Under<F>> {
        let settings = &self.settings;
        let format = settings.format.clone();
        let framing = format.framing();
        let cursor = Cursor::new(format, split, settings.max_line_bytes, settings.malformed);
        let request = Request {
            file: split.file.clone(),
            from: cursor.feed_from(),
            header: cursor
                .wants_header()
                .then_some((framing, settings.max_line_bytes)),
        };
        let pieces = (settings.read_ahead_bytes / PIECE_BYTES).max(1);
        let (to, fetched) = mpsc::channel(pieces);
        let task = self
            .context
            .spawn
            .spawn("read file", Box::pin(fetch::run(request, to)));
        Box::new(Under {
            cursor,
            fetched,
            task,
        })
    }

    /// Reads split number `at` of ours until a batch is ready.
    fn poll_batch(
        &mut self,
        at: usize,
        cx: &mut PollContext<'_>,
    ) -> Poll<Result<Option<Batch<F::Output>>>> {
        let settings = Arc::clone(&self.settings);
        let limits = Limits {
            records: settings.batch_records,
            bytes: settings.batch_bytes,
        };
        if self.splits[at].reading.is_none() {
            let under = self.start(&self.splits[at].split);
            self.splits[at].reading = Some(under);
        }
        let active = &mut self.splits[at];
        let Some(under) = active.reading.as_deref_mut() else {
            return Poll::Ready(Err(Error::bug("a split was started and is not under way")));
        };
        let mut records = Vec::new();
        let mut tally = Tally::default();
        let outcome = loop {
            let filled = under.cursor.fill(
                limits,
                &mut tally,
                settings.timestamp_of.as_deref(),
                &mut records,
                &mut active.emission,
            );
            match filled {
                Ok(Filled::Full) => break Ok(Filled::Full),
                Ok(Filled::Done) => break Ok(Filled::Done),
                Ok(Filled::NeedMore) => {}
                Err(bad) => break Err(malformed(&active.split, &bad)),
            }
            match under.fetched.poll_recv(cx) {
                Poll::Ready(Some(Fetched::Piece(piece))) => under.cursor.push(&piece),
                Poll::Ready(Some(Fetched::Header(row))) => {
                    if let Err(bad) = under.cursor.header(&row) {
                        break Err(malformed(&active.split, &bad));
                    }
                }
                Poll::Ready(Some(Fetched::End)) => under.cursor.end_of_input(),
                Poll::Ready(Some(Fetched::Failed(error))) => break Err(error),
                Poll::Ready(None) => {
                    // It says `End` or `Failed` unless it panicked.
                    let file = active.split.file.shown();
                    break Err(Error::bug(format!("reading {file} ended unanswered")));
                }
                Poll::Pending if tally.bytes == 0 => break Ok(Filled::NeedMore),
                Poll::Pending => break Ok(Filled::Full),
            }
        };
        self.metrics.bytes_in.add(tally.bytes);
        self.metrics.records_skipped.add(tally.skipped);
        self.metrics.malformed_lines.add(tally.malformed);
        if let Some(bad) = under.cursor.take_first_dropped() {
            let (file, reason) = (active.split.file.shown(), bad.reason.to_string());
            let (line, offset) = (bad.line, bad.offset_bytes);
            warn!(
                file,
                line, offset, reason, "dropped a malformed line; further ones are counted"
            );
        }
        match outcome? {
            Filled::NeedMore => return Poll::Pending,
            Filled::Done => {
                active.done = true;
                self.closing
                    .extend(active.reading.take().map(|under| under.task));
            }
            Filled::Full => {}
        }
        // Inputs without records at the front are behind us already.
        if let Some(position) = active.emission.emitted(0) {
            active.split.position = Some(position);
        }
        if records.is_empty() && active.done {
            return Poll::Ready(Ok(None));
        }
        let split = active.id.clone();
        self.emitting = Some(split.clone());
        Poll::Ready(Ok(Some(Batch { split, records })))
    }

    /// Warns, and sees to it that the next warning comes in time.
    fn watch(&mut self, at: usize, cx: &mut PollContext<'_>) {
        let now = self.context.clock.now();
        self.stall.waiting(now);
        if let Some(waited) = self.stall.due(now) {
            let file = self.splits[at].split.file.shown();
            warn_stalled(&file, waited);
        }
        self.stall_timer.set(self.stall.deadline());
        if self.stall_timer.poll_elapsed(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

fn warn_stalled(file: &str, waited: Duration) {
    warn!(
        file,
        ?waited,
        "no bytes of the file arrived; its store gives up by itself in minutes"
    );
}

fn malformed(split: &FileSplit, bad: &BadRecord) -> Error {
    let file = split.file.shown();
    let BadRecord {
        line,
        offset_bytes,
        reason,
    } = bad;
    let place = if split.start == 0 {
        format!("line {line} of {file} (byte {offset_bytes})")
    } else {
        let start = split.start;
        format!("line {line} after byte {start} of {file} (byte {offset_bytes})")
    };
    Error::data(format!(
        "{place} is malformed: {reason}; correct the file, or drop such lines with \
         MalformedPolicy::Drop"
    ))
}

impl<F: FileFormat> fmt::Debug for FileReader<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader")
            .field("context", &self.context)
            .field("splits", &self.splits.len())
            .finish_non_exhaustive()
    }
}

impl<F: FileFormat> SourceReader<F::Output> for FileReader<F> {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        self.asked = false;
        for split in splits {
            self.splits.push_back(Active {
                split: FileSplit::decode(&split.state)?,
                id: split.id,
                reading: None,
                emission: Emission::new(),
                paused: false,
                done: false,
            });
        }
        self.wake();
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.no_more = true;
        self.wake();
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<F::Output>>> {
        loop {
            let Some(at) = self.splits.iter().position(|active| !active.paused) else {
                if self.splits.is_empty() && self.no_more && !self.ended {
                    self.ended = true;
                    return Poll::Ready(Ok(ReaderOutput::End));
                }
                if self.splits.is_empty() && !self.no_more && !self.asked {
                    self.asked = true;
                    return Poll::Ready(Ok(ReaderOutput::RequestSplit));
                }
                self.waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            if self.splits[at].done {
                let finished = self.splits.remove(at).map(|active| active.id);
                let finished = finished.ok_or_else(|| Error::bug("a found split is gone"))?;
                return Poll::Ready(Ok(ReaderOutput::SplitFinished(finished)));
            }
            match self.poll_batch(at, cx) {
                Poll::Ready(batch) => {
                    self.stall.answered(self.context.clock.now());
                    self.stall.done();
                    if let Some(batch) = batch? {
                        return Poll::Ready(Ok(ReaderOutput::Batch(batch)));
                    }
                }
                Poll::Pending => {
                    self.waker = Some(cx.waker().clone());
                    self.watch(at, cx);
                    return Poll::Pending;
                }
            }
        }
    }

    fn emitted(&mut self, records: usize) {
        let Some(id) = &self.emitting else { return };
        if let Some(active) = self.splits.iter_mut().find(|active| active.id == *id)
            && let Some(position) = active.emission.emitted(records)
        {
            active.split.position = Some(position);
        }
    }

    fn snapshot(&mut self, _checkpoint: CheckpointId) -> Result<Vec<Split>> {
        let left = self
            .splits
            .iter()
            .filter(|active| !(active.done && active.emission.is_empty()));
        Ok(left
            .map(|active| active.split.with_id(active.id.clone()))
            .collect())
    }

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]) {
        for active in &mut self.splits {
            if pause.contains(&active.id) {
                active.paused = true;
            }
            if resume.contains(&active.id) {
                active.paused = false;
            }
        }
        self.wake();
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        for active in &mut self.splits {
            self.closing
                .extend(active.reading.take().map(|under| under.task));
        }
        self.splits.clear();
        while let Some(task) = self.closing.last_mut() {
            task.abort();
            // Aborted or ended; a panic was reported by the missing answer.
            let _ = std::task::ready!(task.poll_ended(cx));
            self.closing.pop();
        }
        Poll::Ready(Ok(()))
    }
}
