//! The account of what was emitted: maps "n records went downstream" to a position in the split.

use std::collections::VecDeque;

/// Positions waiting for their records to be emitted.
///
/// A reader pushes one entry an input while it builds a batch: how many records the input gave and the position behind
/// it. The position is reached when all records up to and including that input's have been emitted; an input without
/// records is reached together with the one before it.
#[derive(Clone, Debug)]
pub struct Emission<P> {
    /// `(records pushed up to and including this input, position behind it)`.
    waiting: VecDeque<(u64, P)>,
    pushed: u64,
    emitted: u64,
}

impl<P> Default for Emission<P> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            pushed: 0,
            emitted: 0,
        }
    }
}

impl<P> Emission<P> {
    /// Nothing pushed, nothing emitted.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more input, which gave `records`; `position` is where reading goes on behind it.
    pub fn push(&mut self, records: usize, position: P) {
        self.pushed += records as u64;
        match self.waiting.back_mut() {
            // Only the last position behind a given record count can be reached.
            Some((count, last)) if *count == self.pushed => *last = position,
            _ => self.waiting.push_back((self.pushed, position)),
        }
    }

    /// `records` more were emitted; returns the furthest position reached, if a new one was.
    ///
    /// # Panics
    ///
    /// If more is emitted than was pushed: the host broke the contract.
    pub fn emitted(&mut self, records: usize) -> Option<P> {
        self.emitted += records as u64;
        assert!(
            self.emitted <= self.pushed,
            "host reported more records emitted than it was given"
        );
        let mut reached = None;
        while self
            .waiting
            .front()
            .is_some_and(|(count, _)| *count <= self.emitted)
        {
            reached = self.waiting.pop_front().map(|(_, position)| position);
        }
        reached
    }

    /// Whether everything pushed was emitted and its position returned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_reached_with_its_last_record_and_not_before() {
        let mut emission = Emission::new();
        emission.push(2, "a");
        emission.push(0, "b");
        emission.push(1, "c");
        emission.push(0, "d");
        assert_eq!(emission.emitted(1), None);
        assert_eq!(emission.emitted(1), Some("b"));
        assert_eq!(emission.emitted(0), None);
        assert_eq!(emission.emitted(1), Some("d"));
        assert!(emission.is_empty());
    }

    #[test]
    fn an_input_without_records_moves_on_when_nothing_is_before_it() {
        let mut emission = Emission::new();
        emission.push(0, 1);
        emission.push(0, 2);
        assert_eq!(emission.emitted(0), Some(2));
    }

    #[test]
    #[should_panic(expected = "more records emitted")]
    fn emitting_more_than_was_given_is_noticed() {
        let mut emission = Emission::new();
        emission.push(1, ());
        emission.emitted(2);
    }
}
