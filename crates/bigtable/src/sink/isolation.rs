//! Isolation: finds which record of a refused request the service refuses.
//!
//! The service may fail a whole `MutateRows` for one bad entry (measured, see the spec), and the protocol lets one
//! entry's error be reported for its neighbours. So a refusal of a request that held several records is no verdict on any
//! of them: they are parked and sent again in ever smaller groups. What a group applies is applied; what it refuses is
//! halved, until a record is refused alone. One bad record in a hundred costs some fifteen requests, not a hundred.
//!
//! # Invariants
//!
//! - Verdicts are taken in the order of the park, whatever the order of the answers.
//! - A refusal counts only of a record that was alone in its request.
//! - Records of one row are never away at once, so per-row order survives the pass.
//! - A record leaves the park once: applied, refused alone, or handed to the repair.
//!
//! # Not here
//!
//! Missing tables belong to [`repair`](super::repair), transient statuses to [`request`](super::request).

use std::collections::VecDeque;

use aqueduct_connector::StatusChain;

use super::batch::Unit;
use crate::entry::MAX_MUTATIONS;
use crate::error::{Verdict, classify};

/// Groups under way at most: enough to hide a round trip, far below any stream limit.
const MAX_OPEN: usize = 16;
/// Records of a first group. A quarter of a default batch: most quarters of a refused batch are clean.
const FIRST_GROUP: usize = 25;

/// The park and the requests of the pass.
#[derive(Debug, Default)]
pub(super) struct Isolation {
    parked: VecDeque<Unit>,
    /// In the order of the park.
    open: VecDeque<Turn>,
    next_turn: u64,
}

/// A group of records that are sent in one request, and what became of each.
#[derive(Debug)]
struct Turn {
    /// The request's number; `None` until it is sent.
    number: Option<u64>,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    unit: Unit,
    /// The answer, once it is there: `None` inside is applied.
    verdict: Option<Option<StatusChain>>,
}

impl Turn {
    fn waiting(units: impl IntoIterator<Item = Unit>) -> Self {
        let members = units
            .into_iter()
            .map(|unit| Member {
                unit,
                verdict: None,
            })
            .collect();
        Self {
            number: None,
            members,
        }
    }

    fn is_answered(&self) -> bool {
        self.members.iter().all(|member| member.verdict.is_some())
    }

    fn bytes(&self) -> usize {
        self.members
            .iter()
            .map(|member| member.unit.load.size)
            .sum()
    }

    /// What the answers to a group of several settle: each record with a final verdict is a turn of its own, neighbours
    /// that were refused for their data are halves to send again. In order.
    fn broken_up(self) -> Vec<Self> {
        let mut turns = Vec::new();
        let mut refused: Vec<Unit> = Vec::new();
        let halve = |refused: &mut Vec<Unit>, turns: &mut Vec<Self>| {
            let second = refused.split_off(refused.len().div_ceil(2));
            for half in [std::mem::take(refused), second] {
                if !half.is_empty() {
                    turns.push(Self::waiting(half));
                }
            }
        };
        for member in self.members {
            let again = matches!(&member.verdict, Some(Some(chain)) if matches!(classify(chain), Verdict::RowLevel));
            if again {
                refused.push(member.unit);
            } else {
                halve(&mut refused, &mut turns);
                turns.push(Self {
                    number: self.number,
                    members: vec![member],
                });
            }
        }
        halve(&mut refused, &mut turns);
        turns
    }
}

impl Isolation {
    /// Parks an entry, one unit a record.
    pub(super) fn park(&mut self, unit: Unit) {
        self.parked.extend(unit.split());
    }

    /// The next group to send in one request, with its turn, while no more than `entries` and `bytes` are away.
    pub(super) fn next(&mut self, entries: usize, bytes: usize) -> Option<(u64, Vec<&Unit>)> {
        let away = self
            .open
            .iter()
            .filter(|turn| turn.number.is_some() && !turn.is_answered());
        let (turns, records, size) = away.fold((0, 0, 0), |(turns, records, size), turn| {
            (turns + 1, records + turn.members.len(), size + turn.bytes())
        });
        if turns >= MAX_OPEN {
            return None;
        }
        let left = (entries.saturating_sub(records), bytes.saturating_sub(size));
        let at = match self.open.iter().position(|turn| turn.number.is_none()) {
            // Halves go before anything that is parked behind them.
            Some(at) => {
                let turn = &self.open[at];
                if turns > 0 && (turn.members.len() > left.0 || turn.bytes() > left.1) {
                    return None;
                }
                at
            }
            None => {
                let group = self.take_group(left, turns == 0)?;
                self.open.push_back(Turn::waiting(group));
                self.open.len() - 1
            }
        };
        self.next_turn += 1;
        let turn = &mut self.open[at];
        turn.number = Some(self.next_turn);
        Some((
            self.next_turn,
            turn.members.iter().map(|member| &member.unit).collect(),
        ))
    }

    /// Takes a group off the park: one table, each row once and in no open group, within what is left of the caps. The
    /// first record goes whatever its size if nothing is away.
    fn take_group(&mut self, left: (usize, usize), idle: bool) -> Option<Vec<Unit>> {
        let mut group: Vec<Unit> = Vec::new();
        // Sending the very records of a refused request together again would tell nothing.
        let half = if self.open.is_empty() {
            self.parked.len().div_ceil(2)
        } else {
            FIRST_GROUP
        };
        let (mut bytes, mut mutations) = (0, 0);
        while let Some(unit) = self.parked.front() {
            let (row, load) = (unit.load.row, &unit.load);
            let fits = group.len() < left.0.min(FIRST_GROUP).min(half)
                && bytes + load.size <= left.1
                && mutations + load.mutations <= MAX_MUTATIONS;
            let first = group.is_empty() && idle;
            let other_table = group.first().is_some_and(|first| first.table != unit.table);
            let away = |unit: &Unit| row != 0 && unit.load.row == row;
            let conflict = group.iter().any(away)
                || self
                    .open
                    .iter()
                    .flat_map(|turn| &turn.members)
                    .any(|member| away(&member.unit));
            if !(fits || first) || other_table || conflict {
                break;
            }
            bytes += load.size;
            mutations += load.mutations;
            group.extend(self.parked.pop_front());
        }
        (!group.is_empty()).then_some(group)
    }

    /// Takes in the answer for the record at `position` of a request.
    pub(super) fn answer(&mut self, number: u64, position: usize, verdict: Option<StatusChain>) {
        let turn = self
            .open
            .iter_mut()
            .find(|turn| turn.number == Some(number));
        if let Some(member) = turn.and_then(|turn| turn.members.get_mut(position)) {
            member.verdict = Some(verdict);
        }
    }

    /// The next verdict in the order of the park.
    pub(super) fn take_verdict(&mut self) -> Option<(Unit, Option<StatusChain>)> {
        loop {
            let front = self.open.front()?;
            if !front.is_answered() {
                return None;
            }
            let mut turn = self.open.pop_front()?;
            if turn.members.len() == 1 {
                let member = turn.members.pop()?;
                return Some((member.unit, member.verdict?));
            }
            for part in turn.broken_up().into_iter().rev() {
                self.open.push_front(part);
            }
        }
    }

    /// Whether more records of `row` follow the verdict just taken. They stand together, and no group is formed past
    /// them while one is away, so the next is the first of the park.
    pub(super) fn more_of(&self, row: u64) -> bool {
        row != 0 && self.parked.front().is_some_and(|unit| unit.load.row == row)
    }

    /// Takes the parked records of `row` out, joined to `first`: the repair must not let them overtake it.
    pub(super) fn join_rest_of(&mut self, mut first: Unit) -> Unit {
        while first.load.row != 0
            && let Some(next) = self
                .parked
                .pop_front_if(|unit| unit.load.row == first.load.row)
        {
            first = first.join(&next);
        }
        first
    }

    /// Records parked or away.
    pub(super) fn records(&self) -> usize {
        self.parked.len()
            + self
                .open
                .iter()
                .map(|turn| turn.members.len())
                .sum::<usize>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records() == 0
    }

    pub(super) fn clear(&mut self) {
        self.parked.clear();
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::{Code, Status};
    use bytes::Bytes;

    use super::super::batch::Load;
    use super::super::tables::TableId;
    use super::*;

    fn unit(name: u8, row: u64) -> Unit {
        Unit {
            table: TableId(0),
            entry: Bytes::copy_from_slice(&[name]),
            load: Load::of(1, 10, row),
            chain: refused(),
        }
    }

    fn refused() -> StatusChain {
        StatusChain::new(Status::new(Code::InvalidArgument, ""))
    }

    fn names(group: &[&Unit]) -> Vec<u8> {
        group.iter().map(|unit| unit.entry[0]).collect()
    }

    /// Plays a service that refuses whole requests with a bad record in them; returns the verdicts and the requests.
    fn play(isolation: &mut Isolation, bad: &[u8]) -> (Vec<(u8, bool)>, usize) {
        let (mut verdicts, mut requests) = (Vec::new(), 0);
        while !isolation.is_empty() {
            let mut sent = Vec::new();
            while let Some((turn, group)) = isolation.next(1_000, 100_000) {
                sent.push((turn, names(&group)));
            }
            requests += sent.len();
            // The last answers come first.
            for (turn, group) in sent.into_iter().rev() {
                let whole = group.iter().any(|name| bad.contains(name));
                for position in 0..group.len() {
                    isolation.answer(turn, position, whole.then(refused));
                }
            }
            while let Some((unit, verdict)) = isolation.take_verdict() {
                verdicts.push((unit.entry[0], verdict.is_some()));
            }
        }
        (verdicts, requests)
    }

    #[test]
    fn one_bad_record_in_a_hundred_is_found_in_few_requests_and_all_verdicts_come_in_order() {
        for bad in 0..100 {
            let mut isolation = Isolation::default();
            (0..100).for_each(|name| isolation.park(unit(name, 0)));
            let (verdicts, requests) = play(&mut isolation, &[bad]);
            let expected: Vec<_> = (0..100).map(|name| (name, name == bad)).collect();
            assert_eq!(verdicts, expected);
            assert!(
                requests <= 16,
                "{requests} requests for the bad record {bad}"
            );
        }
    }

    #[test]
    fn every_bad_record_of_several_is_refused_alone_and_no_good_one() {
        let mut isolation = Isolation::default();
        (0..90).for_each(|name| isolation.park(unit(name, 0)));
        let bad = [0, 1, 24, 25, 60, 89];
        let (verdicts, _) = play(&mut isolation, &bad);
        let expected: Vec<_> = (0..90).map(|name| (name, bad.contains(&name))).collect();
        assert_eq!(verdicts, expected);
    }

    #[test]
    fn what_a_group_applied_is_not_sent_again() {
        let mut isolation = Isolation::default();
        (0..4).for_each(|name| isolation.park(unit(name, 0)));
        (4..8).for_each(|name| isolation.park(unit(name, 0)));
        let (turn, group) = isolation.next(100, 1_000).expect("a group");
        assert_eq!(names(&group), [0, 1, 2, 3]);
        let (rest, group) = isolation.next(100, 1_000).expect("the others");
        assert_eq!(names(&group), [4, 5, 6, 7]);
        (0..4).for_each(|position| isolation.answer(rest, position, None));
        for (position, verdict) in [None, Some(refused()), None, Some(refused())]
            .into_iter()
            .enumerate()
        {
            isolation.answer(turn, position, verdict);
        }
        assert!(
            isolation
                .take_verdict()
                .is_some_and(|(unit, verdict)| unit.entry[0] == 0 && verdict.is_none())
        );
        assert!(isolation.take_verdict().is_none(), "record 1 was not alone");
        let again: Vec<_> =
            std::iter::from_fn(|| isolation.next(100, 1_000).map(|(_, group)| names(&group)))
                .collect();
        assert_eq!(again, [vec![1], vec![3]]);
    }

    #[test]
    fn records_of_one_row_are_never_away_at_once() {
        let mut isolation = Isolation::default();
        isolation.park(unit(0, 7));
        isolation.park(unit(1, 7));
        isolation.park(unit(2, 8));
        let (turn, group) = isolation.next(100, 1_000).expect("the first");
        assert_eq!(names(&group), [0]);
        assert!(isolation.next(100, 1_000).is_none());
        isolation.answer(turn, 0, None);
        let (first, _) = isolation.take_verdict().expect("answered");
        assert!(isolation.more_of(first.load.row));
        assert!(isolation.next(100, 1_000).is_some());
    }

    #[test]
    fn the_caps_hold_and_a_larger_record_still_goes() {
        let mut isolation = Isolation::default();
        (0..3).for_each(|name| isolation.park(unit(name, 0)));
        let (_, group) = isolation
            .next(100, 5)
            .expect("alone it goes whatever its size");
        assert_eq!(names(&group), [0]);
        assert!(isolation.next(100, 5).is_none());
        assert!(isolation.next(1, 20).is_none(), "the other cap");
        let (_, group) = isolation.next(100, 20).expect("one more fits");
        assert_eq!(names(&group), [1]);
        assert!(isolation.next(100, 20).is_none());
    }
}
