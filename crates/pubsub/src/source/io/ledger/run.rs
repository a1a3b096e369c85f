//! Names of what is held: runs of neighbours, and claims on their newest copies.

use std::ops::Range;

use aqueduct_connector::Moment;

/// Names messages that came in one response, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source) struct Run {
    pub(super) block: u32,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) number: u64,
}

impl Run {
    pub(in crate::source) fn len(&self) -> usize {
        (self.to - self.from) as usize
    }

    /// The positions in the response.
    pub(in crate::source) fn range(&self) -> Range<usize> {
        self.from as usize..self.to as usize
    }

    /// Takes `next` in if it follows at once.
    pub(in crate::source) fn join(&mut self, next: &Self) -> bool {
        let joins = self.number == next.number && self.to == next.from;
        if joins {
            self.to = next.to;
        }
        joins
    }

    /// The message at position `at` of the response.
    pub(in crate::source) fn only(&self, at: usize) -> Self {
        self.part(at, at + 1)
    }

    /// Cuts the first `messages` off.
    pub(in crate::source) fn split_front(&mut self, messages: usize) -> Self {
        let front = self.part(self.from as usize, self.from as usize + messages);
        self.from = front.to;
        front
    }

    fn part(&self, from: usize, to: usize) -> Self {
        debug_assert!(from <= to && to <= self.to as usize);
        Self {
            from: from as u32,
            to: to as u32,
            ..*self
        }
    }
}

/// Names copies: answers about an older copy's ack id are void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source) struct Claim {
    pub(in crate::source) run: Run,
    pub(super) copy: u32,
    /// When they were to be settled, or their leases end.
    pub(in crate::source) since: Moment,
}

impl Claim {
    /// Takes `next` in if it follows at once and is like it.
    pub(in crate::source) fn join(&mut self, next: &Self) -> bool {
        self.copy == next.copy && self.since == next.since && self.run.join(&next.run)
    }

    /// Each message by itself.
    pub(in crate::source) fn singles(self) -> impl Iterator<Item = Self> {
        let run = self.run;
        run.range().map(move |at| Self {
            run: run.only(at),
            ..self
        })
    }
}

/// Adds `claim` to `claims`, as one with the last if it follows at once.
pub(in crate::source) fn add_claim(claims: &mut Vec<Claim>, claim: Claim) {
    let joined = claims.last_mut().is_some_and(|last| last.join(&claim));
    if !joined {
        claims.push(claim);
    }
}

pub(super) fn add_run(runs: &mut Vec<Run>, run: Run) {
    let joined = runs.last_mut().is_some_and(|last| last.join(&run));
    if !joined {
        runs.push(run);
    }
}
