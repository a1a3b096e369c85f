//! Holds any source to a rate: for replays of recorded input and for trials.
//!
//! The rate is the job's, not a reader's: the readers of one process reserve time on one shared line, so a file that only
//! one reader reads goes as fast as a file that four share. A batch goes out when its time has come and reserves the
//! time of its records behind it, so batches should be small beside the rate.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as PollContext, Poll, ready};
use std::time::Duration;

use aqueduct_connector::clock::Timer;
use aqueduct_connector::source::{
    Boundedness, ReaderOutput, Source, SourceReader, Split, SplitEnumerator, SplitId,
};
use aqueduct_connector::{CheckpointId, Clock, Context, Moment, Result, Versioned};

/// A source that hands out at most so many records a second, over all its readers.
#[derive(Debug)]
pub struct Paced<S> {
    source: S,
    records_per_second: NonZeroU64,
    /// Nanoseconds since the clock's origin up to which time is reserved.
    reserved: Arc<AtomicU64>,
}

impl<S> Paced<S> {
    /// `source` at no more than `records_per_second`.
    pub fn new(source: S, records_per_second: NonZeroU64) -> Self {
        Self {
            source,
            records_per_second,
            reserved: Arc::new(AtomicU64::new(0)),
        }
    }
}

impl<T: 'static, S: Source<T>> Source<T> for Paced<S> {
    fn connector(&self) -> &'static str {
        self.source.connector()
    }

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

    fn create_reader(&self, context: Context) -> Result<Box<dyn SourceReader<T>>> {
        let (clock, timer) = (context.clock.clone(), context.clock.timer());
        Ok(Box::new(PacedReader {
            reader: self.source.create_reader(context)?,
            nanos_per_record: (1_000_000_000 / self.records_per_second).max(1),
            reserved: self.reserved.clone(),
            clock,
            timer,
            held: None,
        }))
    }
}

struct PacedReader<T> {
    reader: Box<dyn SourceReader<T>>,
    nanos_per_record: u64,
    reserved: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    timer: Box<dyn Timer>,
    /// A batch whose time has not come; the reader behind it waits.
    held: Option<ReaderOutput<T>>,
}

impl<T> PacedReader<T> {
    /// Reserves the time of `records` behind what is reserved already; says when it begins.
    fn reserve(&self, records: usize) -> Moment {
        let now = nanos(self.clock.now());
        let span = self.nanos_per_record.saturating_mul(records as u64);
        // Idle time is not saved up: a reservation never begins in the past.
        let begin = |reserved: u64| reserved.max(now);
        let before = self
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
                Some(begin(reserved).saturating_add(span))
            })
            .unwrap_or_else(|unchanged| unchanged);
        Moment::from_origin(Duration::from_nanos(begin(before)))
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

impl<T> SourceReader<T> for PacedReader<T> {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        self.reader.add_splits(splits)
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.reader.no_more_splits()
    }

    fn enumerator_event(&mut self, event: Versioned) -> Result<()> {
        self.reader.enumerator_event(event)
    }

    fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<T>>> {
        if self.held.is_none() {
            let output = ready!(self.reader.poll_next(cx))?;
            let records = match &output {
                ReaderOutput::Batch(batch) => batch.records.len(),
                _ => 0,
            };
            if records == 0 {
                return Poll::Ready(Ok(output));
            }
            let begin = self.reserve(records);
            if begin <= self.clock.now() {
                return Poll::Ready(Ok(output));
            }
            self.timer.set(Some(begin));
            self.held = Some(output);
        }
        ready!(self.timer.poll_elapsed(cx));
        Poll::Ready(Ok(self
            .held
            .take()
            .expect("held above, or before this call")))
    }

    fn emitted(&mut self, records: usize) {
        self.reader.emitted(records);
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Split>> {
        self.reader.snapshot(checkpoint)
    }

    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        self.reader.checkpoint_completed(checkpoint)
    }

    fn checkpoint_aborted(&mut self, checkpoint: CheckpointId) {
        self.reader.checkpoint_aborted(checkpoint);
    }

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]) {
        self.reader.pause_splits(pause, resume);
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.held = None;
        self.reader.poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::Timestamp;
    use aqueduct_connector::clock::ManualClock;
    use aqueduct_testkit::context::TestContext;
    use aqueduct_testkit::host::SourceHost;

    use super::*;
    use crate::GeneratorSource;

    /// 1,000 numbers in batches of 128, at 1,000 a second.
    fn paced() -> Arc<dyn Source<u64>> {
        let source = GeneratorSource::builder(|n| n)
            .limit(1_000)
            .build()
            .expect("valid options");
        Arc::new(Paced::new(
            source,
            NonZeroU64::new(1_000).expect("not zero"),
        ))
    }

    #[tokio::test]
    async fn a_thousand_records_at_a_thousand_a_second_take_a_second_and_none_is_lost() {
        let clock = ManualClock::new(Timestamp::from_millis(0));
        let kit = TestContext::new("paced").with_driven_clock(clock.clone());
        let mut host = SourceHost::start(paced(), &kit, 2).expect("the source starts");
        host.run_to_end().await.expect("nothing fails");
        let mut all: Vec<u64> = host.emitted().map(|record| record.record.value).collect();
        all.sort_unstable();
        assert_eq!(all, (0..1_000).collect::<Vec<_>>());
        // The last batch begins behind the time of all before it.
        let took = clock.now().since_origin();
        assert!(
            took >= Duration::from_millis(1_000 - 128),
            "took only {took:?}"
        );
        assert!(took < Duration::from_millis(1_100), "took {took:?}");
    }
}
