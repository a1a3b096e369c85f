//! The reader: makes the records of its stripes, lowest index first, at its share of the rate.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};

use aqueduct_connector::clock::{Clock, Timer};
use aqueduct_connector::source::{Batch, ReaderOutput, Record, SourceReader, Split, SplitId};
use aqueduct_connector::{CheckpointId, Context, Result};

use super::pace::Pace;
use super::source::Settings;
use super::stripe::Stripe;

pub(super) struct GeneratorReader<T, G> {
    settings: Arc<Settings<T, G>>,
    clock: Arc<dyn Clock>,
    timer: Box<dyn Timer>,
    stripes: Vec<Active>,
    /// Part of all stripes that this reader was given, finished ones included.
    share: f64,
    /// `None`: as fast as records are taken.
    pace: Option<Pace>,
    /// The last batch: its stripe and how many of it are yet to be emitted.
    emitting: Option<(SplitId, u64)>,
    no_more: bool,
    ended: bool,
    waker: Option<Waker>,
}

struct Active {
    id: SplitId,
    /// Stands behind what was emitted.
    stripe: Stripe,
    paused: bool,
}

impl<T, G> GeneratorReader<T, G> {
    pub(super) fn new(context: &Context, settings: Arc<Settings<T, G>>) -> Self {
        Self {
            clock: Arc::clone(&context.clock),
            timer: context.clock.timer(),
            stripes: Vec::new(),
            share: 0.0,
            pace: settings.records_per_second.map(|_| Pace::new(0.0)),
            emitting: None,
            no_more: false,
            ended: false,
            waker: None,
            settings,
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// This reader's part of the rate is the part of the stripes it was given. What a finished stripe leaves goes to the
    /// reader's others, or the last records would come ever slower.
    fn share_rate(&mut self) {
        if let (Some(pace), Some(rate)) = (&mut self.pace, self.settings.records_per_second) {
            pace.set_rate(rate as f64 * self.share.min(1.0), self.clock.now());
        }
    }
}

impl<T, G> fmt::Debug for GeneratorReader<T, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratorReader")
            .field("stripes", &self.stripes.len())
            .finish_non_exhaustive()
    }
}

impl<T, G> SourceReader<T> for GeneratorReader<T, G>
where
    G: Fn(u64) -> T,
{
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        for split in splits {
            let stripe = Stripe::decode(&split.state)?;
            self.share += 1.0 / f64::from(stripe.of);
            self.stripes.push(Active {
                id: split.id,
                stripe,
                paused: false,
            });
        }
        self.share_rate();
        self.wake();
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.no_more = true;
        self.wake();
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<T>>> {
        let limit = self.settings.limit;
        let used_up = self
            .stripes
            .iter()
            .position(|active| active.stripe.run(limit).is_empty());
        if let Some(at) = used_up {
            let finished = self.stripes.swap_remove(at).id;
            return Poll::Ready(Ok(ReaderOutput::SplitFinished(finished)));
        }
        let lowest = self
            .stripes
            .iter()
            .filter(|active| !active.paused)
            .min_by_key(|active| active.stripe.next);
        let Some(active) = lowest else {
            if self.stripes.is_empty() && self.no_more && !self.ended {
                self.ended = true;
                return Poll::Ready(Ok(ReaderOutput::End));
            }
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let mut run = active.stripe.run(limit);
        if let Some(pace) = &mut self.pace {
            let now = self.clock.now();
            let granted = pace.take(run.end - run.start, now);
            if granted == 0 {
                self.waker = Some(cx.waker().clone());
                self.timer.set(Some(pace.next(now)));
                if self.timer.poll_elapsed(cx).is_ready() {
                    // The clock moved between the two looks at it.
                    cx.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
            run.end = run.start + granted;
        }
        let Settings {
            make, timestamp_of, ..
        } = &*self.settings;
        let records: Vec<Record<T>> = run
            .map(|index| {
                let value = make(index);
                let timestamp = timestamp_of.as_ref().and_then(|of| of(index, &value));
                Record { value, timestamp }
            })
            .collect();
        let count = records.len() as u64;
        let split = active.id.clone();
        self.emitting = Some((split.clone(), count));
        Poll::Ready(Ok(ReaderOutput::Batch(Batch { split, records })))
    }

    fn emitted(&mut self, records: usize) {
        let Some((id, left)) = &mut self.emitting else {
            return;
        };
        let records = records as u64;
        assert!(
            records <= *left,
            "host reported more records emitted than it was given"
        );
        *left -= records;
        if let Some(active) = self.stripes.iter_mut().find(|active| active.id == *id) {
            active.stripe = active.stripe.after(records);
        }
    }

    fn snapshot(&mut self, _checkpoint: CheckpointId) -> Result<Vec<Split>> {
        let limit = self.settings.limit;
        let left = self
            .stripes
            .iter()
            .filter(|active| !active.stripe.run(limit).is_empty());
        Ok(left.map(|active| active.stripe.to_split()).collect())
    }

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]) {
        for active in &mut self.stripes {
            if pause.contains(&active.id) {
                active.paused = true;
            }
            if resume.contains(&active.id) {
                active.paused = false;
            }
        }
        self.wake();
    }

    fn poll_close(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.stripes.clear();
        Poll::Ready(Ok(()))
    }
}
