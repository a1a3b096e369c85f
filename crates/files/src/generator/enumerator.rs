//! The enumerator: deals the stripes to the readers, each its share, as they register.

use std::collections::{BTreeMap, BTreeSet};
use std::task::{Context as PollContext, Poll};

use aqueduct_connector::source::{Boundedness, EnumeratorOutput, Split, SplitEnumerator};
use aqueduct_connector::{CheckpointId, Context, Result, Versioned};

use super::stripe::{EnumeratorState, Stripe};
use crate::metrics::EnumeratorMetrics;

#[derive(Debug)]
pub(super) struct GeneratorEnumerator {
    parallelism: u32,
    bounded: bool,
    /// By number.
    unassigned: BTreeMap<u32, Stripe>,
    readers: BTreeSet<u32>,
    metrics: EnumeratorMetrics,
}

impl GeneratorEnumerator {
    pub(super) fn new(
        context: &Context,
        stripes: u32,
        boundedness: Boundedness,
        restored: Option<Versioned>,
    ) -> Result<Self> {
        let metrics = EnumeratorMetrics::new(&context.metrics);
        let unassigned = match restored {
            Some(state) => EnumeratorState::decode(&state)?.unassigned,
            None => {
                metrics.planned.add(u64::from(stripes));
                (0..stripes)
                    .map(|number| Stripe::new(number, stripes))
                    .collect()
            }
        };
        let enumerator = Self {
            parallelism: context.parallelism.max(1),
            bounded: boundedness == Boundedness::Bounded,
            unassigned: unassigned
                .into_iter()
                .map(|stripe| (stripe.number, stripe))
                .collect(),
            readers: BTreeSet::new(),
            metrics,
        };
        enumerator
            .metrics
            .unassigned
            .set_size(enumerator.unassigned.len());
        Ok(enumerator)
    }

    /// Gives a reader that registers the stripes that are its, and those that would be another's
    /// who had its share already: they came back from the reader's predecessor.
    fn deal(&mut self, reader: u32, out: &mut EnumeratorOutput) {
        let mine: Vec<Split> = self
            .unassigned
            .extract_if(.., |number, _| {
                let owner = *number % self.parallelism;
                owner == reader || self.readers.contains(&owner)
            })
            .map(|(_, stripe)| stripe.to_split())
            .collect();
        self.readers.insert(reader);
        if !mine.is_empty() {
            self.metrics.assigned.add(mine.len() as u64);
            out.assign(reader, mine);
        }
        self.metrics.unassigned.set_size(self.unassigned.len());
    }
}

impl SplitEnumerator for GeneratorEnumerator {
    fn poll_progress(
        &mut self,
        _cx: &mut PollContext<'_>,
        _out: &mut EnumeratorOutput,
    ) -> Poll<Result<()>> {
        Poll::Pending
    }

    fn reader_registered(&mut self, reader: u32, out: &mut EnumeratorOutput) -> Result<()> {
        self.deal(reader, out);
        if self.bounded {
            out.no_more_splits(reader);
        }
        Ok(())
    }

    fn reader_lost(&mut self, reader: u32) -> Result<()> {
        self.readers.remove(&reader);
        Ok(())
    }

    fn split_requested(&mut self, _reader: u32, _out: &mut EnumeratorOutput) -> Result<()> {
        // Readers of this source never ask.
        Ok(())
    }

    fn splits_returned(&mut self, splits: Vec<Split>, _out: &mut EnumeratorOutput) -> Result<()> {
        self.metrics.returned.add(splits.len() as u64);
        for split in splits {
            let stripe = Stripe::decode(&split.state)?;
            self.unassigned.insert(stripe.number, stripe);
        }
        // They wait for the reader that registers next: one that was told that no more will come
        // may have ended.
        self.metrics.unassigned.set_size(self.unassigned.len());
        Ok(())
    }

    fn snapshot(&mut self, _checkpoint: CheckpointId) -> Result<Versioned> {
        Ok(EnumeratorState::encode(self.unassigned.values()))
    }

    fn poll_close(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aqueduct_connector::source::EnumeratorCommand;

    fn given(out: &mut EnumeratorOutput) -> Vec<(u32, Vec<Split>)> {
        out.drain()
            .filter_map(|command| match command {
                EnumeratorCommand::Assign { reader, splits } => Some((reader, splits)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn stripes_of_a_lost_reader_reach_its_successor_whoever_they_were_dealt_to_at_first() {
        let mut enumerator = GeneratorEnumerator {
            parallelism: 2,
            bounded: true,
            unassigned: BTreeMap::new(),
            readers: BTreeSet::new(),
            metrics: EnumeratorMetrics::new(
                &aqueduct_connector::metrics::MetricRegistry::new().group(&[]),
            ),
        };
        let mut out = EnumeratorOutput::new();
        enumerator.reader_registered(0, &mut out).expect("works");
        enumerator.reader_registered(1, &mut out).expect("works");
        assert_eq!(given(&mut out), []);
        // After a rescale, reader 1 held stripes 0 and 3.
        let stripes: Vec<Split> = [0, 3]
            .map(|number| Stripe::new(number, 8).to_split())
            .into();
        enumerator.reader_lost(1).expect("works");
        enumerator
            .splits_returned(stripes.clone(), &mut out)
            .expect("works");
        assert_eq!(given(&mut out), [], "reader 0 may have ended");
        enumerator.reader_registered(1, &mut out).expect("works");
        assert_eq!(given(&mut out), [(1, stripes)]);
    }
}
