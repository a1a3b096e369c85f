//! Assignment under a row limit: one split at a time, in key order, with what is left of the limit.
//!
//! The limit is exact because at any moment one split holds all of it. A reader that finishes a split gives the rest back
//! and keeps the finished split in its snapshots until the coordinator says that it has it. What the coordinator sends
//! after its snapshot reaches a reader only after the reader's own, so in every checkpoint the rest is counted once: with
//! the reader, or with the coordinator.
//!
//! A split that comes back from a lost reader is read again with what it was given then. If it had finished before, its
//! second end changes nothing: what followed was given out on account of the first.

use std::collections::{BTreeSet, VecDeque};

use aqueduct_connector::source::EnumeratorOutput;

use super::split::{EnumeratorState, Finished, Limited, ScanSplit, Settled};

/// A pure core without I/O.
#[derive(Debug)]
pub(super) struct LimitedAssigner {
    /// `None` until the plan is known.
    queue: Option<VecDeque<ScanSplit>>,
    account: Limited,
    registered: BTreeSet<u32>,
    waiting: VecDeque<u32>,
    told_no_more: BTreeSet<u32>,
}

impl LimitedAssigner {
    pub(super) fn new(limit: u64) -> Self {
        Self::with(
            None,
            Limited {
                left: limit,
                active: None,
            },
        )
    }

    pub(super) fn restored(unassigned: Vec<ScanSplit>, account: Limited) -> Self {
        Self::with(Some(unassigned.into()), account)
    }

    fn with(queue: Option<VecDeque<ScanSplit>>, account: Limited) -> Self {
        Self {
            queue,
            account,
            registered: BTreeSet::new(),
            waiting: VecDeque::new(),
            told_no_more: BTreeSet::new(),
        }
    }

    pub(super) fn planned(&mut self, splits: Vec<ScanSplit>, out: &mut EnumeratorOutput) {
        self.queue.get_or_insert_default().extend(splits);
        self.serve(out);
    }

    pub(super) fn reader_registered(&mut self, reader: u32) {
        self.registered.insert(reader);
        self.told_no_more.remove(&reader);
    }

    pub(super) fn reader_lost(&mut self, reader: u32) {
        self.registered.remove(&reader);
        self.told_no_more.remove(&reader);
        self.waiting.retain(|waiting| *waiting != reader);
    }

    pub(super) fn requested(&mut self, reader: u32, out: &mut EnumeratorOutput) {
        self.waiting.push_back(reader);
        self.serve(out);
    }

    /// Returned splits go to the front: they come before what is left in the queue.
    pub(super) fn returned(&mut self, mut splits: Vec<ScanSplit>, out: &mut EnumeratorOutput) {
        splits.sort_by_key(|split| std::cmp::Reverse(split.ordinal));
        let queue = self.queue.get_or_insert_default();
        for split in splits {
            queue.push_front(split);
        }
        self.serve(out);
    }

    pub(super) fn finished(&mut self, reader: u32, end: Finished, out: &mut EnumeratorOutput) {
        if self.account.active == Some(end.ordinal) {
            self.account = Limited {
                left: end.unused,
                active: None,
            };
        }
        let settled = Settled {
            ordinal: end.ordinal,
        };
        out.event(reader, settled.encode());
        self.serve(out);
    }

    pub(super) fn unassigned(&self) -> usize {
        self.queue.as_ref().map_or(0, VecDeque::len)
    }

    pub(super) fn is_planned(&self) -> bool {
        self.queue.is_some()
    }

    pub(super) fn state(&self) -> EnumeratorState {
        EnumeratorState {
            planned: self.is_planned(),
            unassigned: self.queue.iter().flatten().cloned().collect(),
            limited: Some(self.account),
        }
    }

    fn serve(&mut self, out: &mut EnumeratorOutput) {
        let Some(queue) = &mut self.queue else { return };
        if self.account.left == 0 && self.account.active.is_none() {
            // The limit is reached: only what was given out before is still owed.
            queue.retain(|split| split.rows_left.is_some());
        }
        while let Some(reader) = self.waiting.front().copied() {
            if !self.registered.contains(&reader) || self.told_no_more.contains(&reader) {
                self.waiting.pop_front();
                continue;
            }
            match queue.front() {
                None => {
                    self.told_no_more.insert(reader);
                    out.no_more_splits(reader);
                }
                // The rest of the limit is with the split being read.
                Some(split) if split.rows_left.is_none() && self.account.active.is_some() => return,
                Some(_) => {
                    let mut split = queue.pop_front().expect("looked at above");
                    if split.rows_left.is_none() {
                        split.rows_left = Some(self.account.left);
                        self.account.active = Some(split.ordinal);
                    }
                    out.assign(reader, vec![split.to_split()]);
                }
            }
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::source::EnumeratorCommand;

    use super::*;
    use crate::range::RowRange;

    fn plan(splits: u64) -> Vec<ScanSplit> {
        (0..splits)
            .map(|ordinal| ScanSplit::new(ordinal, RowRange::all()))
            .collect()
    }

    fn said(out: &mut EnumeratorOutput) -> Vec<String> {
        out.drain()
            .map(|command| match command {
                EnumeratorCommand::Assign { reader, splits } => {
                    let split = ScanSplit::decode(&splits[0].state).expect("ours");
                    format!(
                        "{reader} reads {} for {:?}",
                        split.ordinal,
                        split.rows_left.expect("limited")
                    )
                }
                EnumeratorCommand::NoMoreSplits { reader } => format!("{reader} has no more"),
                EnumeratorCommand::Event { reader, event } => {
                    format!(
                        "{reader} forgets {}",
                        Settled::decode(&event).expect("ours").ordinal
                    )
                }
            })
            .collect()
    }

    fn end(ordinal: u64, unused: u64) -> Finished {
        Finished { ordinal, unused }
    }

    fn two_readers(limit: u64, splits: u64, out: &mut EnumeratorOutput) -> LimitedAssigner {
        let mut assigner = LimitedAssigner::new(limit);
        for reader in [0, 1] {
            assigner.reader_registered(reader);
            assigner.requested(reader, out);
        }
        assigner.planned(plan(splits), out);
        assigner
    }

    #[test]
    fn one_split_is_read_at_a_time_and_the_rest_of_the_limit_goes_on() {
        let mut out = EnumeratorOutput::new();
        let mut assigner = two_readers(10, 3, &mut out);
        assert_eq!(said(&mut out), ["0 reads 0 for 10"]);
        assigner.finished(0, end(0, 7), &mut out);
        assert_eq!(said(&mut out), ["0 forgets 0", "1 reads 1 for 7"]);
        assigner.requested(0, &mut out);
        assigner.finished(1, end(1, 0), &mut out);
        assert_eq!(said(&mut out), ["1 forgets 1", "0 has no more"]);
        assigner.requested(1, &mut out);
        assert_eq!(said(&mut out), ["1 has no more"]);
        assert_eq!(assigner.unassigned(), 0);
    }

    #[test]
    fn the_split_being_read_comes_back_first_with_what_it_was_given() {
        let mut out = EnumeratorOutput::new();
        let mut assigner = two_readers(10, 2, &mut out);
        said(&mut out);
        assigner.reader_lost(0);
        let given = ScanSplit {
            rows_left: Some(10),
            ..plan(1).remove(0)
        };
        assigner.returned(vec![given], &mut out);
        assert_eq!(said(&mut out), ["1 reads 0 for 10"]);
        assigner.finished(1, end(0, 4), &mut out);
        assigner.requested(1, &mut out);
        assert_eq!(said(&mut out), ["1 forgets 0", "1 reads 1 for 4"]);
    }

    #[test]
    fn a_finished_split_that_is_read_again_changes_no_account() {
        let mut out = EnumeratorOutput::new();
        let mut assigner = two_readers(10, 2, &mut out);
        assigner.finished(0, end(0, 6), &mut out);
        said(&mut out);
        assigner.reader_lost(0);
        let given = ScanSplit {
            rows_left: Some(10),
            ..plan(1).remove(0)
        };
        assigner.returned(vec![given], &mut out);
        assigner.reader_registered(0);
        assigner.requested(0, &mut out);
        assert_eq!(said(&mut out), ["0 reads 0 for 10"]);
        assigner.finished(0, end(0, 6), &mut out);
        assert_eq!(
            assigner.state().limited,
            Some(Limited {
                left: 6,
                active: Some(1)
            })
        );
    }

    #[test]
    fn a_restored_end_that_was_not_settled_is_settled_again() {
        let mut out = EnumeratorOutput::new();
        let account = Limited {
            left: 10,
            active: Some(0),
        };
        let mut assigner = LimitedAssigner::restored(plan(2).split_off(1), account);
        assigner.reader_registered(0);
        assigner.requested(0, &mut out);
        assert!(said(&mut out).is_empty(), "waits for the split being read");
        assigner.finished(0, end(0, 2), &mut out);
        assert_eq!(said(&mut out), ["0 forgets 0", "0 reads 1 for 2"]);
    }
}
