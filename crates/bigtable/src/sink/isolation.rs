//! Isolation: finds which record of a refused request the service refuses.
//!
//! The service may fail a whole `MutateRows` for one bad entry (measured, see the spec), and the protocol lets one
//! entry's error be reported for its neighbours. So a refusal of a request that held several records is no verdict on any
//! of them: they are parked and sent again, each alone.
//!
//! # Invariants
//!
//! - Verdicts are taken in the order of the park, whatever the order of the answers.
//! - Records of one row are never away at once, so per-row order survives the pass.
//! - A record leaves the park once: applied, refused alone, or handed to the repair.
//!
//! # Not here
//!
//! Missing tables belong to [`repair`](super::repair), transient statuses to [`request`](super::request).

use std::collections::VecDeque;

use aqueduct_connector::StatusChain;

use super::batch::Unit;

/// Solo requests under way at most: enough to hide a round trip, far below any stream limit.
const MAX_OPEN: usize = 16;

/// The park and the solo requests of the pass.
#[derive(Debug, Default)]
pub(super) struct Isolation {
    parked: VecDeque<Unit>,
    open: VecDeque<Turn>,
    next_turn: u64,
}

#[derive(Debug)]
struct Turn {
    number: u64,
    unit: Unit,
    /// The answer, once it is there: `None` inside is applied.
    verdict: Option<Option<StatusChain>>,
}

impl Isolation {
    /// Parks an entry, one unit a record.
    pub(super) fn park(&mut self, unit: Unit) {
        self.parked.extend(unit.split());
    }

    /// The next record to send alone, with its turn, while no more than `entries` and `bytes` are away.
    pub(super) fn next(&mut self, entries: usize, bytes: usize) -> Option<(u64, &Unit)> {
        let unit = self.parked.front()?;
        let open_bytes: usize = self.open.iter().map(|turn| turn.unit.load.size).sum();
        let conflict = unit.load.row != 0
            && self
                .open
                .iter()
                .any(|turn| turn.unit.load.row == unit.load.row);
        if self.open.len() >= MAX_OPEN.min(entries)
            || conflict
            || (open_bytes > 0 && open_bytes + unit.load.size > bytes)
        {
            return None;
        }
        let unit = self.parked.pop_front()?;
        self.next_turn += 1;
        self.open.push_back(Turn {
            number: self.next_turn,
            unit,
            verdict: None,
        });
        self.open.back().map(|turn| (turn.number, &turn.unit))
    }

    /// Takes in the answer to a solo request.
    pub(super) fn answer(&mut self, number: u64, verdict: Option<StatusChain>) {
        if let Some(turn) = self.open.iter_mut().find(|turn| turn.number == number) {
            turn.verdict = Some(verdict);
        }
    }

    /// The next verdict in the order of the park.
    pub(super) fn take_verdict(&mut self) -> Option<(Unit, Option<StatusChain>)> {
        self.open.front()?.verdict.as_ref()?;
        let turn = self.open.pop_front()?;
        Some((turn.unit, turn.verdict?))
    }

    /// Whether more records of `row` follow the verdict just taken.
    pub(super) fn more_of(&self, row: u64) -> bool {
        let next = self
            .open
            .front()
            .map(|turn| &turn.unit)
            .or(self.parked.front());
        row != 0 && next.is_some_and(|unit| unit.load.row == row)
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

    /// Records parked or away alone.
    pub(super) fn records(&self) -> usize {
        self.parked.len() + self.open.len()
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

    #[test]
    fn verdicts_come_in_the_order_of_the_park_whatever_the_order_of_the_answers() {
        let mut isolation = Isolation::default();
        (0..3).for_each(|name| isolation.park(unit(name, 0)));
        let turns: Vec<_> =
            std::iter::from_fn(|| isolation.next(100, 1_000).map(|(turn, _)| turn)).collect();
        assert_eq!(turns.len(), 3);
        isolation.answer(turns[2], None);
        isolation.answer(turns[1], Some(refused()));
        assert!(isolation.take_verdict().is_none());
        isolation.answer(turns[0], None);
        let names: Vec<_> = std::iter::from_fn(|| isolation.take_verdict())
            .map(|(unit, _)| unit.entry[0])
            .collect();
        assert_eq!(names, [0, 1, 2]);
        assert!(isolation.is_empty());
    }

    #[test]
    fn records_of_one_row_are_never_away_at_once() {
        let mut isolation = Isolation::default();
        isolation.park(unit(0, 7));
        isolation.park(unit(1, 7));
        isolation.park(unit(2, 8));
        let (turn, _) = isolation.next(100, 1_000).expect("the first");
        assert!(isolation.next(100, 1_000).is_none());
        isolation.answer(turn, None);
        let (first, _) = isolation.take_verdict().expect("answered");
        assert!(isolation.more_of(first.load.row));
        assert!(isolation.next(100, 1_000).is_some());
    }

    #[test]
    fn the_byte_cap_holds_and_a_larger_record_still_goes() {
        let mut isolation = Isolation::default();
        (0..3).for_each(|name| isolation.park(unit(name, 0)));
        assert!(
            isolation.next(100, 5).is_some(),
            "alone it goes whatever its size"
        );
        assert!(isolation.next(100, 5).is_none());
        assert!(isolation.next(1, 20).is_none(), "the other cap");
        assert!(isolation.next(100, 20).is_some());
        assert!(isolation.next(100, 20).is_none());
    }
}
