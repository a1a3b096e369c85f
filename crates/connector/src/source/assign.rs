//! Pull assignment (BASE-48): plan once, hand out one split a request, say "no more" once to each reader.

use std::collections::{BTreeSet, VecDeque};

use super::{EnumeratorOutput, Split};

/// The assignment shared by bounded sources: a pure core without I/O.
///
/// Requests that arrive before the plan wait, in order. A returned split goes to the back of the queue. A reader that
/// was told "no more" stays told: its request is not answered again until it registers anew; if splits come back
/// meanwhile they go to readers that ask, or to a reader that registers later.
#[derive(Debug, Default)]
pub struct PullAssigner {
    /// `None` until the plan is known.
    queue: Option<VecDeque<Split>>,
    registered: BTreeSet<u32>,
    waiting: VecDeque<u32>,
    told_no_more: BTreeSet<u32>,
}

impl PullAssigner {
    /// Without a plan.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With a plan restored from a checkpoint; it is not computed again, even if it is empty.
    #[must_use]
    pub fn restored(unassigned: Vec<Split>) -> Self {
        Self {
            queue: Some(unassigned.into()),
            ..Self::default()
        }
    }

    /// Whether the plan is known.
    #[must_use]
    pub fn is_planned(&self) -> bool {
        self.queue.is_some()
    }

    /// The plan is known: serves the requests that waited for it.
    pub fn planned(&mut self, splits: Vec<Split>, out: &mut EnumeratorOutput) {
        let queue = self.queue.get_or_insert_default();
        queue.extend(splits);
        self.serve(out);
    }

    /// A reader registered, perhaps anew.
    pub fn reader_registered(&mut self, reader: u32) {
        self.registered.insert(reader);
        self.told_no_more.remove(&reader);
    }

    /// A reader is gone; its waiting requests go with it.
    pub fn reader_lost(&mut self, reader: u32) {
        self.registered.remove(&reader);
        self.told_no_more.remove(&reader);
        self.waiting.retain(|waiting| *waiting != reader);
    }

    /// A reader asks for one split.
    pub fn requested(&mut self, reader: u32, out: &mut EnumeratorOutput) {
        self.waiting.push_back(reader);
        self.serve(out);
    }

    /// Splits come back from a lost reader. Returns how many.
    pub fn returned(&mut self, splits: Vec<Split>, out: &mut EnumeratorOutput) -> usize {
        let count = splits.len();
        self.queue.get_or_insert_default().extend(splits);
        self.serve(out);
        count
    }

    /// Splits not handed out, in order; `None` before the plan.
    #[must_use]
    pub fn unassigned(&self) -> Option<impl ExactSizeIterator<Item = &Split>> {
        self.queue.as_ref().map(VecDeque::iter)
    }

    fn serve(&mut self, out: &mut EnumeratorOutput) {
        let Some(queue) = &mut self.queue else { return };
        while let Some(reader) = self.waiting.pop_front() {
            if !self.registered.contains(&reader) {
                continue;
            }
            if self.told_no_more.contains(&reader) {
                continue;
            }
            match queue.pop_front() {
                Some(split) => out.assign(reader, vec![split]),
                None => {
                    self.told_no_more.insert(reader);
                    out.no_more_splits(reader);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EnumeratorCommand, SplitId};
    use super::*;
    use crate::state::Versioned;

    fn split(name: &str) -> Split {
        Split {
            id: SplitId::new(name),
            state: Versioned::new(1, Vec::new()),
        }
    }

    fn said(out: &mut EnumeratorOutput) -> Vec<String> {
        out.drain()
            .map(|command| match command {
                EnumeratorCommand::Assign { reader, splits } => {
                    format!("{reader}<-{}", splits[0].id)
                }
                EnumeratorCommand::NoMoreSplits { reader } => format!("{reader}<-end"),
                EnumeratorCommand::Event { reader, .. } => format!("{reader}<-event"),
            })
            .collect()
    }

    #[test]
    fn requests_before_the_plan_are_served_in_order_and_each_reader_hears_the_end_once() {
        let (mut assigner, mut out) = (PullAssigner::new(), EnumeratorOutput::new());
        assigner.reader_registered(0);
        assigner.reader_registered(1);
        assigner.requested(1, &mut out);
        assigner.requested(0, &mut out);
        assigner.requested(7, &mut out);
        assert_eq!(said(&mut out), [""; 0]);
        assigner.planned(vec![split("a"), split("b")], &mut out);
        assert_eq!(said(&mut out), ["1<-a", "0<-b"]);
        assigner.requested(0, &mut out);
        assigner.requested(0, &mut out);
        assert_eq!(said(&mut out), ["0<-end"]);
    }

    #[test]
    fn a_returned_split_is_handed_out_again_and_to_one_reader_only() {
        let (mut assigner, mut out) = (
            PullAssigner::restored(vec![split("a")]),
            EnumeratorOutput::new(),
        );
        assigner.reader_registered(0);
        assigner.requested(0, &mut out);
        assigner.reader_lost(0);
        assert_eq!(assigner.returned(vec![split("a")], &mut out), 1);
        assigner.reader_registered(0);
        assigner.reader_registered(1);
        assigner.requested(1, &mut out);
        assigner.requested(0, &mut out);
        assert_eq!(said(&mut out), ["0<-a", "1<-a", "0<-end"]);
    }

    #[test]
    fn an_empty_restored_plan_is_still_a_plan() {
        assert!(PullAssigner::restored(Vec::new()).is_planned());
        assert!(!PullAssigner::new().is_planned());
    }
}
