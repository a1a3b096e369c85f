//! The head of a chain that begins with a source: drives the reader, makes watermarks, sends barriers.
//!
//! # Invariants
//!
//! - A batch counts as emitted when the chain has taken it, and a snapshot is taken only when everything
//!   emitted before is through: a barrier stands exactly behind the records that the snapshot covers.
//! - After its end, or a stop, the reader is not polled any more; snapshots and barriers go on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context as PollContext, Poll, ready};
use std::time::Duration;

use aqueduct_connector::clock::Timer;
use aqueduct_connector::metrics::{Counter, Gauge};
use aqueduct_connector::source::{ReaderOutput, Source, SourceReader};
use aqueduct_connector::{CheckpointId, Error, Moment, Result, Subtask, Timestamp};

use super::{Control, EnumeratorMessage, Event, Head, TURNS, TaskBuild, TaskLink};
use crate::checkpoint::SubtaskState;
use crate::operator::named;
use crate::stage::{Element, Notice, Stage, Wait, attach};
use crate::watermark::{Alignment, Combined, SplitWatermarks, WatermarkStrategy};

/// Time between two looks at the other members of an alignment group while nothing is ahead of what the last one
/// allowed.
const ALIGNMENT_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) struct SourceHead<T> {
    source: Arc<dyn Source<T>>,
    index: u32,
    strategy: WatermarkStrategy<T>,
    chain: Box<dyn Stage<T>>,
    opened: Option<Opened<T>>,
    /// Barriers to send, in order.
    triggers: VecDeque<(CheckpointId, bool)>,
    /// The barrier that is on its way through the chain.
    passing: Option<CheckpointId>,
    /// The checkpoint after which nothing more is read.
    stopped_by: Option<CheckpointId>,
    no_more_splits: bool,
    end: End,
    watermark: Timestamp,
    idle: bool,
    /// When the next watermark may go out.
    next_watermark: Moment,
    blocked_since: Option<Moment>,
    failure: Option<Error>,
    closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    No,
    /// The last watermark is on its way.
    Watermark,
    /// The end is on its way.
    Pushed,
    Told,
}

struct Opened<T> {
    reader: Box<dyn SourceReader<T>>,
    name: Arc<str>,
    subtask: Subtask,
    marks: SplitWatermarks,
    timer: Box<dyn Timer>,
    interval: Duration,
    aligned: Option<Aligned>,
    records_in: Counter,
    records_out: Counter,
    watermark_gauge: Gauge,
    lag_gauge: Gauge,
}

struct Aligned {
    alignment: Alignment,
    own: Arc<AtomicI64>,
    plan: Arc<super::AttemptPlan>,
    next: Moment,
    /// No split is to be above it, as of the last look.
    limit: Timestamp,
}

impl<T> Opened<T> {
    fn failed(&self, error: Error, what: &str) -> Error {
        named(error, what, &self.name, self.subtask)
    }
}

impl<T> SourceHead<T> {
    pub(crate) fn new(
        index: u32,
        source: Arc<dyn Source<T>>,
        strategy: WatermarkStrategy<T>,
        chain: Box<dyn Stage<T>>,
    ) -> Self {
        Self {
            source,
            index,
            strategy,
            chain,
            opened: None,
            triggers: VecDeque::new(),
            passing: None,
            stopped_by: None,
            no_more_splits: false,
            end: End::No,
            watermark: Timestamp::MIN,
            idle: false,
            next_watermark: Moment::ORIGIN,
            blocked_since: None,
            failure: None,
            closed: false,
        }
    }

    /// Takes every message; `true` means finish.
    fn take_control(&mut self, cx: &mut PollContext<'_>, link: &mut TaskLink) -> Result<bool> {
        while let Poll::Ready(control) = link.poll_control(cx) {
            let Some(opened) = &mut self.opened else {
                return Err(Error::bug("a source was used before it was opened"));
            };
            link.scope.enter(self.index);
            let taken = match control {
                Control::Trigger { checkpoint, stop } => {
                    self.triggers.push_back((checkpoint, stop));
                    Ok(())
                }
                Control::Completed(id) => opened
                    .reader
                    .checkpoint_completed(id)
                    .and_then(|()| self.chain.notify(Notice::Completed(id))),
                Control::Aborted(id) => {
                    if self.stopped_by == Some(id) {
                        self.stopped_by = None;
                    }
                    opened.reader.checkpoint_aborted(id);
                    self.chain.notify(Notice::Aborted(id))
                }
                Control::Splits(splits) => {
                    let now = link.clock.now();
                    for split in &splits {
                        opened.marks.added(split.id.clone(), now);
                    }
                    opened.reader.add_splits(splits)
                }
                Control::NoMoreSplits => {
                    self.no_more_splits = true;
                    opened.reader.no_more_splits()
                }
                Control::EnumeratorEvent(event) => opened.reader.enumerator_event(event),
                Control::Finish => return Ok(true),
            };
            taken.map_err(|error| opened.failed(error, "to take a message"))?;
        }
        Ok(false)
    }

    /// Snapshots the reader and sends the barrier behind what it emitted.
    fn trigger(&mut self, checkpoint: CheckpointId, stop: bool, link: &mut TaskLink) -> Result<()> {
        let Some(opened) = &mut self.opened else {
            return Err(Error::bug("a source was used before it was opened"));
        };
        link.scope.enter(self.index);
        let splits = match opened.reader.snapshot(checkpoint) {
            Ok(splits) => splits,
            Err(error) => return Err(opened.failed(error, "to snapshot")),
        };
        link.scope.add_snapshot(
            self.index,
            SubtaskState {
                splits,
                ..SubtaskState::default()
            },
        );
        if stop {
            self.stopped_by = Some(checkpoint);
        }
        link.tell_enumerator(EnumeratorMessage::Snapshotted(link.id.subtask, checkpoint));
        self.passing = Some(checkpoint);
        self.chain.push(Element::Barrier(checkpoint))
    }

    /// Sends a watermark or an idle mark if one is due.
    fn signal(&mut self, now: Moment) -> Result<bool> {
        let Some(opened) = &mut self.opened else {
            return Ok(false);
        };
        if !opened.marks.enabled() {
            return Ok(false);
        }
        if let Some(aligned) = &mut opened.aligned {
            let own = match opened.marks.combined(now) {
                Combined::Watermark(watermark) => watermark,
                Combined::Idle(_) => Timestamp::MAX,
            };
            aligned.own.store(own.millis(), Ordering::Relaxed);
            if now >= aligned.next || opened.marks.is_ahead(aligned.limit) {
                aligned.next = now.after(ALIGNMENT_INTERVAL);
                let least = aligned.plan.alignment.least(&aligned.alignment.group);
                aligned.limit = least.after(aligned.alignment.max_drift);
            }
            let limit = aligned.limit;
            let (pause, resume) = opened.marks.align(limit, now);
            if !pause.is_empty() || !resume.is_empty() {
                opened.reader.pause_splits(&pause, &resume);
            }
        }
        match opened.marks.combined(now) {
            // What the idle splits held back from each other goes first; the idle mark follows.
            Combined::Idle(greatest) if greatest > self.watermark => {
                self.watermark = greatest;
                opened.watermark_gauge.set(greatest.millis());
                self.chain.push(Element::Watermark(greatest))?;
                Ok(true)
            }
            Combined::Idle(_) if !self.idle => {
                self.idle = true;
                self.chain.push(Element::Idle)?;
                Ok(true)
            }
            Combined::Idle(_) => Ok(false),
            Combined::Watermark(watermark) => {
                let grown = watermark > self.watermark && now >= self.next_watermark;
                if !grown && !self.idle {
                    return Ok(false);
                }
                self.idle = false;
                self.watermark = self.watermark.max(watermark);
                self.next_watermark = now.after(opened.interval);
                opened.watermark_gauge.set(self.watermark.millis());
                self.chain.push(Element::Watermark(self.watermark))?;
                Ok(true)
            }
        }
    }

    /// When [`signal`](Self::signal) may have something by time alone.
    fn next_signal(&self, now: Moment) -> Option<Moment> {
        let opened = self.opened.as_ref()?;
        if !opened.marks.enabled() {
            return None;
        }
        let held = match opened.marks.combined(now) {
            Combined::Watermark(watermark) if watermark > self.watermark => {
                Some(self.next_watermark)
            }
            _ => None,
        };
        let aligned = opened.aligned.as_ref().map(|aligned| aligned.next);
        [held, aligned, opened.marks.next_change(now)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Polls the reader once; `Pending` if it has nothing.
    fn poll_reader(&mut self, cx: &mut PollContext<'_>, link: &mut TaskLink) -> Poll<Result<()>> {
        let Some(opened) = &mut self.opened else {
            return Poll::Ready(Err(Error::bug("a source was used before it was opened")));
        };
        link.scope.enter(self.index);
        let output = match ready!(opened.reader.poll_next(cx)) {
            Ok(output) => output,
            Err(error) => return Poll::Ready(Err(opened.failed(error, "to read"))),
        };
        link.moved();
        let now = link.clock.now();
        Poll::Ready(match output {
            ReaderOutput::Batch(mut batch) => {
                let count = batch.records.len();
                if count == 0 {
                    return Poll::Ready(Ok(()));
                }
                if let Some(assign) = &self.strategy.assigner {
                    assign(&mut batch.records);
                }
                if opened.marks.enabled() {
                    opened.marks.records(&batch.split, &batch.records, now);
                    if self.watermark > Timestamp::MIN {
                        let lag = link
                            .clock
                            .wall()
                            .millis()
                            .saturating_sub(self.watermark.millis());
                        opened.lag_gauge.set(lag);
                    }
                }
                opened.records_in.add(count as u64);
                opened.records_out.add(count as u64);
                let pushed = self.chain.push(Element::Batch(batch.records));
                link.scope.enter(self.index);
                opened.reader.emitted(count);
                pushed
            }
            ReaderOutput::Watermark { split, watermark } => {
                opened.marks.claimed(&split, watermark, now);
                Ok(())
            }
            ReaderOutput::SplitFinished(split) => {
                opened.marks.finished(&split, now);
                Ok(())
            }
            ReaderOutput::RequestSplit => {
                if !self.no_more_splits {
                    link.tell_enumerator(EnumeratorMessage::RequestSplit(link.id.subtask));
                }
                Ok(())
            }
            ReaderOutput::Event(event) => {
                link.tell_enumerator(EnumeratorMessage::Event(link.id.subtask, event));
                Ok(())
            }
            ReaderOutput::End => {
                if let Some(aligned) = &opened.aligned {
                    aligned.own.store(i64::MAX, Ordering::Relaxed);
                }
                opened.watermark_gauge.set(Timestamp::MAX.millis());
                self.end = End::Watermark;
                self.chain.push(Element::Watermark(Timestamp::MAX))
            }
        })
    }
}

impl<T: Send + 'static> Head for SourceHead<T> {
    fn open(&mut self, build: &TaskBuild, link: &mut TaskLink) -> Result<()> {
        self.chain.open(build)?;
        build.scope.enter(self.index);
        let context = build.context(self.index);
        let (name, subtask) = (context.operator.clone(), context.subtask);
        let (metrics, clock) = (context.metrics.clone(), context.clock.clone());
        let reader = self
            .source
            .create_reader(context)
            .map_err(|error| named(error, "to create its reader", &name, subtask))?;
        let now = clock.now();
        let aligned = self.strategy.alignment.clone().map(|alignment| Aligned {
            own: build.plan.alignment.join(&alignment.group),
            alignment,
            plan: build.plan.clone(),
            next: now,
            limit: Timestamp::MIN,
        });
        let opened = self.opened.insert(Opened {
            reader,
            name,
            subtask,
            marks: SplitWatermarks::new(self.strategy.kind, self.strategy.idleness, now),
            timer: clock.timer(),
            interval: build.plan.watermark_interval,
            aligned,
            records_in: metrics.counter("numRecordsIn"),
            records_out: metrics.counter("numRecordsOut"),
            watermark_gauge: build.watermark_gauge(self.index),
            lag_gauge: metrics.gauge("watermarkLag"),
        });
        let splits = build.restored(self.index).splits;
        if !splits.is_empty() {
            for split in &splits {
                opened.marks.added(split.id.clone(), now);
            }
            opened
                .reader
                .add_splits(splits)
                .map_err(|error| opened.failed(error, "to take restored splits"))?;
        }
        link.tell_enumerator(EnumeratorMessage::Registered(link.id.subtask));
        Ok(())
    }

    fn poll_run(&mut self, cx: &mut PollContext<'_>, link: &mut TaskLink) -> Poll<Result<()>> {
        for _ in 0..TURNS {
            if self.take_control(cx, link)? {
                return Poll::Ready(Ok(()));
            }
            if self.chain.poll_ready(cx)?.is_pending() {
                link.waits(Wait::Downstream);
                self.blocked_since.get_or_insert(link.clock.now());
                return Poll::Pending;
            }
            if let Some(since) = self.blocked_since.take()
                && let Some(opened) = &mut self.opened
            {
                opened.marks.excuse(link.clock.now().since(since));
            }
            if link.poll_outgoing(cx).is_pending() {
                link.waits(Wait::Coordinator);
                return Poll::Pending;
            }
            if let Some(checkpoint) = self.passing.take() {
                let snapshot = link.scope.take_snapshot();
                link.tell(Event::Ack {
                    task: link.id,
                    checkpoint,
                    snapshot,
                    alignment: Duration::ZERO,
                });
                continue;
            }
            match self.end {
                End::Watermark => {
                    self.end = End::Pushed;
                    self.chain.push(Element::End)?;
                    continue;
                }
                End::Pushed => {
                    self.end = End::Told;
                    link.tell(Event::Ended(link.id));
                    continue;
                }
                End::No | End::Told => {}
            }
            if let Some((checkpoint, stop)) = self.triggers.pop_front() {
                self.trigger(checkpoint, stop, link)?;
                continue;
            }
            if self.end == End::Told || self.stopped_by.is_some() {
                link.waits(Wait::Ended);
                return Poll::Pending;
            }
            let now = link.clock.now();
            if self.signal(now)? {
                continue;
            }
            match self.poll_reader(cx, link) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    let at = self.next_signal(now);
                    if let Some(opened) = &mut self.opened {
                        opened.timer.set(at);
                        if opened.timer.poll_elapsed(cx).is_ready() {
                            continue;
                        }
                    }
                    link.waits(Wait::Input);
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        if let Some(opened) = &mut self.opened {
            if let Some(aligned) = &opened.aligned {
                aligned.own.store(i64::MAX, Ordering::Relaxed);
            }
            if !self.closed {
                let closed = ready!(opened.reader.poll_close(cx));
                self.closed = true;
                self.failure = closed
                    .map_err(|error| opened.failed(error, "to close"))
                    .err();
            }
        }
        if let Err(error) = ready!(self.chain.poll_close(cx)) {
            attach(&mut self.failure, error);
        }
        Poll::Ready(self.failure.take().map_or(Ok(()), Err))
    }
}
