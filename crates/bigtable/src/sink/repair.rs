//! Repair: creates what is missing, then applies the parked entries again (BT-SINK-12, 13).
//!
//! A pure core: the driver ensures tables and sends; this says what is owed, how many attempts are left and what the
//! end of the budget means.
//!
//! # Invariants
//!
//! - Nothing is ever dropped here: a parked entry is applied, moved to the isolation, or the job fails.
//! - One budget covers all tables of an incident; an incident ends when the park is empty.

use std::collections::{HashMap, HashSet};

use aqueduct_connector::{Error, StatusChain};

use super::batch::Unit;
use super::tables::TableId;
use crate::destination::TableDestination;
use crate::entry::RowMutationEntry;
use crate::error;

/// The park and the state of the incident.
#[derive(Debug, Default)]
pub(super) struct Repair {
    parked: Vec<Unit>,
    /// Records parked, or away in a reapplication.
    records: usize,
    /// Families each table had after it was ensured in this incident.
    ensured: HashMap<TableId, HashSet<String>>,
    attempts: u32,
    /// What started the incident.
    cause: Option<(TableDestination, StatusChain)>,
    /// Why the last ensure failed, if the last attempt failed so.
    ensure_error: Option<(TableDestination, Error)>,
}

impl Repair {
    /// Parks an entry whose table or family is missing.
    pub(super) fn park(&mut self, table: &TableDestination, unit: Unit) {
        self.cause
            .get_or_insert_with(|| (table.clone(), unit.chain.clone()));
        self.records += unit.load.records;
        self.parked.push(unit);
    }

    /// Begins the next attempt.
    pub(super) fn begin_attempt(&mut self) {
        self.attempts += 1;
    }

    /// The next table to ensure in this attempt.
    pub(super) fn next_owed(&self) -> Option<TableId> {
        self.parked
            .iter()
            .map(|unit| unit.table)
            .find(|table| !self.ensured.contains_key(table))
    }

    /// A table was ensured and has `families` now.
    pub(super) fn on_ensured(&mut self, table: TableId, families: HashSet<String>) {
        self.ensured.insert(table, families);
        self.ensure_error = None;
    }

    /// Ensuring a table failed, which costs the attempt.
    pub(super) fn on_ensure_failed(&mut self, table: TableDestination, error: Error) {
        self.ensure_error = Some((table, error));
    }

    /// Families that `unit` names and its ensured table lacks, if its status speaks of a missing family.
    pub(super) fn undeclared(&self, unit: &Unit) -> Option<Vec<String>> {
        let families = self.ensured.get(&unit.table)?;
        if !error::names_a_missing_family(&unit.chain) {
            return None;
        }
        let entry = RowMutationEntry::decode(&unit.entry).ok()?;
        let mut absent: Vec<String> = entry
            .mutations
            .iter()
            .map(crate::entry::Mutation::family)
            .filter(|family| !family.is_empty() && !families.contains(*family))
            .map(str::to_owned)
            .collect();
        absent.sort();
        absent.dedup();
        (!absent.is_empty()).then_some(absent)
    }

    /// The entries still parked.
    pub(super) fn parked(&self) -> &[Unit] {
        &self.parked
    }

    /// Takes the park out to be applied again; its records stay counted until [`settle`](Self::settle).
    pub(super) fn take_parked(&mut self) -> Vec<Unit> {
        self.ensure_error = None;
        std::mem::take(&mut self.parked)
    }

    /// `records` of a reapplication are applied, or parked elsewhere or again.
    pub(super) fn settle(&mut self, records: usize) {
        self.records -= records;
    }

    /// Attempts so far.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The error of a spent budget: the ensure's if that failed last, else the incident's first cause.
    pub(super) fn exhausted(&mut self) -> Error {
        let attempts = self.attempts;
        if let Some((table, error)) = self.ensure_error.take() {
            return error::repair_exhausted(&table, attempts, error);
        }
        match self.cause.take() {
            Some((table, chain)) => error::repair_exhausted(
                &table,
                attempts,
                Error::io("the entries were refused again").with_source(chain),
            ),
            None => Error::bug("a repair without a cause"),
        }
    }

    /// Records parked or being applied again.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Ends the incident, or the writer.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::{Code, Status, Timestamp};

    use super::super::batch::Load;
    use super::*;

    fn unit(table: u32, family: &str, message: &str) -> Unit {
        let mut entry = RowMutationEntry::stamped(Timestamp::from_millis(0));
        entry.row_key("k").set_cell(family, "q", 0, "v");
        Unit {
            table: TableId(table),
            load: Load::of(1, entry.encoded_len(), 0),
            entry: entry.encode(),
            chain: StatusChain::new(Status::new(Code::NotFound, message)),
        }
    }

    fn table() -> TableDestination {
        TableDestination::of("p", "i", "t").expect("valid")
    }

    const FAMILY: &str = "Error while mutating the row: Requested column family not found.";

    #[test]
    fn a_family_that_the_ensured_table_lacks_is_named_and_other_missing_things_are_not() {
        let mut repair = Repair::default();
        repair.park(&table(), unit(0, "other", FAMILY));
        assert_eq!(
            repair.undeclared(&repair.parked()[0]),
            None,
            "not ensured yet"
        );
        repair.on_ensured(TableId(0), HashSet::from(["cf".to_owned()]));
        assert_eq!(
            repair.undeclared(&repair.parked()[0]),
            Some(vec!["other".to_owned()])
        );
        assert_eq!(
            repair.undeclared(&unit(0, "cf", FAMILY)),
            None,
            "a neighbour of the culprit"
        );
        assert_eq!(
            repair.undeclared(&unit(0, "other", "Table not found")),
            None,
            "late metadata"
        );
    }

    #[test]
    fn each_table_is_owed_until_it_is_ensured() {
        let mut repair = Repair::default();
        repair.park(&table(), unit(0, "cf", ""));
        repair.park(&table(), unit(1, "cf", ""));
        assert_eq!(repair.next_owed(), Some(TableId(0)));
        repair.on_ensured(TableId(0), HashSet::new());
        assert_eq!(repair.next_owed(), Some(TableId(1)));
        repair.on_ensured(TableId(1), HashSet::new());
        assert_eq!(repair.next_owed(), None);
    }

    #[test]
    fn a_spent_budget_fails_with_what_failed_last_or_the_first_cause() {
        let mut repair = Repair::default();
        repair.park(&table(), unit(0, "cf", "first"));
        repair.begin_attempt();
        repair.on_ensure_failed(table(), Error::io("no permission"));
        assert!(repair.exhausted().report().contains("no permission"));
        let units = repair.take_parked();
        repair.settle(1);
        for unit in units {
            repair.park(&table(), unit);
        }
        assert!(repair.exhausted().report().contains("NOT_FOUND (first)"));
    }
}
