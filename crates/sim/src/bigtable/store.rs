//! What one table holds: families, rows, cells, tablet boundaries.
//!
//! # Invariants
//!
//! - The cells of a row are sorted by family (in order of creation), qualifier, then newest first,
//!   and no two share all three.
//! - A mutation is applied only after [`TableState::check`] accepted it against the same state, so
//!   applying cannot fail and an entry is atomic.
//! - A row without cells stays as a tombstone, so that its effects stay counted; it is invisible to
//!   every read.
//!
//! # Not here
//!
//! Locks and names are in [`super::slot`], requests in [`super::mutate`] and [`super::read`].

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;
use tonic::Code;

use super::wire::{CLIENT_AUTO_GENERATED, Mutation};
use crate::config::{Limits, SchemaLag};

/// A definite no: the request, or nothing of it, took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
}

pub(crate) const FAMILY_NOT_FOUND: &str = "Requested column family not found";

/// How many distinct qualifiers a table shares between cells. Beyond it (unique qualifiers) each
/// cell keeps its own, which bounds the memory of the sharing itself.
const SHARED_QUALIFIERS: usize = 1_024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Raw,
    Sum,
    Min,
    Max,
    /// Declared and returned, but no cell can be written.
    Unsupported,
}

/// From when on data requests see a table or family.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Visible {
    Now,
    AfterRefusals(u32),
    From(Instant),
}

impl Visible {
    pub(crate) fn after(lag: SchemaLag) -> Self {
        match lag {
            SchemaLag::None => Self::Now,
            SchemaLag::Refusals(n) => Self::AfterRefusals(n),
            SchemaLag::Elapsed(lag) => Self::From(Instant::now() + lag),
        }
    }

    /// Whether a data request sees it; a request that does not is refused, and counted here.
    pub(crate) fn ask(&mut self) -> bool {
        match self {
            Self::Now => true,
            Self::AfterRefusals(0) => {
                *self = Self::Now;
                true
            }
            Self::AfterRefusals(left) => {
                *left -= 1;
                false
            }
            Self::From(at) => Instant::now() >= *at,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: Arc<str>,
    pub(crate) proto: admin::ColumnFamily,
    pub(crate) kind: Kind,
    pub(crate) visible: Visible,
}

fn kind_of(family: &admin::ColumnFamily) -> Kind {
    use admin::r#type::{Kind as Type, aggregate::Aggregator};
    let Some(Type::AggregateType(aggregate)) = family
        .value_type
        .as_ref()
        .and_then(|value| value.kind.as_ref())
    else {
        return Kind::Raw;
    };
    let int64 = aggregate
        .input_type
        .as_ref()
        .and_then(|input| input.kind.as_ref())
        .is_none_or(|kind| matches!(kind, Type::Int64Type(_)));
    match &aggregate.aggregator {
        Some(Aggregator::Sum(_)) if int64 => Kind::Sum,
        Some(Aggregator::Min(_)) if int64 => Kind::Min,
        Some(Aggregator::Max(_)) if int64 => Kind::Max,
        _ => Kind::Unsupported,
    }
}

pub(crate) struct Cell {
    pub(crate) family: u16,
    pub(crate) qualifier: Arc<[u8]>,
    pub(crate) timestamp: i64,
    pub(crate) value: Box<[u8]>,
}

#[derive(Default)]
pub(crate) struct Row {
    pub(crate) cells: Vec<Cell>,
    /// How many entries took effect on this row.
    pub(crate) effects: u32,
}

impl Row {
    fn position(&self, family: u16, qualifier: &[u8], timestamp: i64) -> Result<usize, usize> {
        self.cells.binary_search_by(|cell| {
            (cell.family, &*cell.qualifier, Reverse(cell.timestamp)).cmp(&(
                family,
                qualifier,
                Reverse(timestamp),
            ))
        })
    }

    pub(crate) fn newest(&self, family: u16, qualifier: &[u8]) -> Option<&Cell> {
        let at = self
            .position(family, qualifier, i64::MAX)
            .unwrap_or_else(|at| at);
        self.cells
            .get(at)
            .filter(|cell| cell.family == family && *cell.qualifier == *qualifier)
    }

    fn bytes(&self) -> usize {
        self.cells
            .iter()
            .map(|cell| cell.qualifier.len() + cell.value.len() + 16)
            .sum()
    }
}

pub(crate) struct TableState {
    families: Vec<Option<Family>>,
    by_name: HashMap<Arc<str>, u16>,
    pub(crate) rows: BTreeMap<Box<[u8]>, Row>,
    live_rows: usize,
    pub(crate) splits: BTreeSet<Box<[u8]>>,
    qualifiers: HashSet<Arc<[u8]>>,
    pub(crate) visible: Visible,
}

impl TableState {
    pub(crate) fn new(splits: impl IntoIterator<Item = Box<[u8]>>) -> Self {
        Self {
            families: Vec::new(),
            by_name: HashMap::new(),
            rows: BTreeMap::new(),
            live_rows: 0,
            splits: splits.into_iter().filter(|key| !key.is_empty()).collect(),
            qualifiers: HashSet::new(),
            visible: Visible::Now,
        }
    }

    pub(crate) fn live_rows(&self) -> usize {
        self.live_rows
    }

    // Families.

    /// Adds a family; false if it exists.
    pub(crate) fn add_family(
        &mut self,
        name: &str,
        proto: admin::ColumnFamily,
        visible: Visible,
    ) -> bool {
        if self.by_name.contains_key(name) {
            return false;
        }
        let id = u16::try_from(self.families.len()).expect("fewer than 65,536 families ever");
        let name: Arc<str> = name.into();
        self.families.push(Some(Family {
            name: name.clone(),
            kind: kind_of(&proto),
            proto,
            visible,
        }));
        self.by_name.insert(name, id);
        true
    }

    /// Drops a family and its cells; false if it does not exist.
    pub(crate) fn drop_family(&mut self, name: &str) -> bool {
        let Some(id) = self.by_name.remove(name) else {
            return false;
        };
        self.families[usize::from(id)] = None;
        self.retain_cells(|_, cell| cell.family != id);
        true
    }

    /// Replaces the definition of a family; false if it does not exist.
    pub(crate) fn update_family(&mut self, name: &str, update: &admin::ColumnFamily) -> bool {
        let Some(family) = self
            .by_name
            .get(name)
            .and_then(|id| self.families[usize::from(*id)].as_mut())
        else {
            return false;
        };
        family.proto.gc_rule = update.gc_rule.clone();
        if update.value_type.is_some() {
            family.proto.value_type = update.value_type.clone();
            family.kind = kind_of(&family.proto);
        }
        true
    }

    pub(crate) fn has_family(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn families(&self) -> impl Iterator<Item = &Family> {
        self.families.iter().flatten()
    }

    pub(crate) fn family_name(&self, id: u16) -> &Arc<str> {
        &self.families[usize::from(id)]
            .as_ref()
            .expect("cells of a dropped family are gone")
            .name
    }

    /// The family as a data request sees it.
    pub(crate) fn ask_family(&mut self, name: &str) -> Option<(u16, Kind)> {
        let id = *self.by_name.get(name)?;
        let family = self.families[usize::from(id)].as_mut()?;
        family.visible.ask().then_some((id, family.kind))
    }

    // Checking.

    /// Checks one row's mutations as the service does before it touches anything.
    pub(crate) fn check_row(
        &mut self,
        key: &[u8],
        mutations: &[Mutation],
        limits: &Limits,
    ) -> Result<(), Refusal> {
        check_key(key, limits)?;
        if mutations.is_empty() {
            return Err(Refusal::invalid("No mutations provided"));
        }
        let mut bytes = 0;
        for mutation in mutations {
            bytes += self.check(mutation, limits)?;
        }
        if bytes > limits.row_mutation_bytes {
            return Err(Refusal::invalid(format!(
                "Row mutation too large: {bytes} bytes, the limit is {}",
                limits.row_mutation_bytes
            )));
        }
        Ok(())
    }

    /// Checks one mutation and returns the bytes of its value.
    fn check(&mut self, mutation: &Mutation, limits: &Limits) -> Result<usize, Refusal> {
        use pb::mutation::Mutation as M;
        let auto = mutation.timestamp_origin == CLIENT_AUTO_GENERATED;
        match &mutation.mutation {
            None => Err(Refusal::invalid("Mutation has no operation")),
            Some(M::SetCell(set)) => {
                if self.family(&set.family_name)?.1 != Kind::Raw {
                    return Err(Refusal::invalid(
                        "SetCell is not allowed on an aggregate family",
                    ));
                }
                check_qualifier(&set.column_qualifier, limits)?;
                if set.timestamp_micros != -1 {
                    check_timestamp(set.timestamp_micros, auto)?;
                }
                if set.value.len() > limits.cell_bytes {
                    return Err(Refusal::invalid(format!(
                        "Cell value too large: {} bytes, the limit is {}",
                        set.value.len(),
                        limits.cell_bytes
                    )));
                }
                Ok(set.value.len())
            }
            Some(M::AddToCell(add)) => self.check_aggregate(
                &add.family_name,
                &add.column_qualifier,
                &add.timestamp,
                added(&add.input),
                auto,
                limits,
            ),
            Some(M::MergeToCell(merge)) => self.check_aggregate(
                &merge.family_name,
                &merge.column_qualifier,
                &merge.timestamp,
                merged(&merge.input),
                auto,
                limits,
            ),
            Some(M::DeleteFromColumn(delete)) => {
                self.family(&delete.family_name)?;
                check_qualifier(&delete.column_qualifier, limits)?;
                if let Some(range) = &delete.time_range {
                    check_timestamp(range.start_timestamp_micros, auto)?;
                    check_timestamp(range.end_timestamp_micros, auto)?;
                    if range.end_timestamp_micros != 0
                        && range.start_timestamp_micros >= range.end_timestamp_micros
                    {
                        return Err(Refusal::invalid("Timestamp range is empty or inverted"));
                    }
                }
                Ok(0)
            }
            Some(M::DeleteFromFamily(delete)) => self.family(&delete.family_name).map(|_| 0),
            Some(M::DeleteFromRow(_)) => Ok(0),
        }
    }

    fn check_aggregate(
        &mut self,
        family: &str,
        qualifier: &Option<pb::Value>,
        timestamp: &Option<pb::Value>,
        input: Option<i64>,
        auto: bool,
        limits: &Limits,
    ) -> Result<usize, Refusal> {
        match self.family(family)?.1 {
            Kind::Raw => {
                return Err(Refusal::invalid(
                    "Aggregate mutations need an aggregate family",
                ));
            }
            Kind::Unsupported => {
                return Err(Refusal::new(
                    Code::Unimplemented,
                    "the simulation aggregates int64 sums, minima and maxima only",
                ));
            }
            Kind::Sum | Kind::Min | Kind::Max => {}
        }
        let qualifier =
            raw_bytes(qualifier).ok_or_else(|| Refusal::invalid("Column qualifier must be raw"))?;
        check_qualifier(qualifier, limits)?;
        let timestamp = raw_timestamp(timestamp)
            .ok_or_else(|| Refusal::invalid("Timestamp must be raw microseconds"))?;
        check_timestamp(timestamp, auto)?;
        input.map(|_| 8).ok_or_else(|| {
            Refusal::invalid("Input must be an int64 to add, or its 8 bytes to merge")
        })
    }

    fn family(&mut self, name: &str) -> Result<(u16, Kind), Refusal> {
        self.ask_family(name)
            .ok_or_else(|| Refusal::new(Code::NotFound, FAMILY_NOT_FOUND))
    }

    // Applying.

    /// Applies one row's checked mutations and counts one effect.
    pub(crate) fn apply_row(&mut self, key: &[u8], mutations: &[Mutation], now: i64) {
        let mut row = self.take(key);
        for mutation in mutations {
            self.apply(&mut row, mutation, now);
        }
        row.effects += 1;
        self.put(key, row);
    }

    /// Takes a row out to change it; [`put`](Self::put) returns it.
    pub(crate) fn take(&mut self, key: &[u8]) -> Row {
        let row = self
            .rows
            .get_mut(key)
            .map(std::mem::take)
            .unwrap_or_default();
        self.live_rows -= usize::from(!row.cells.is_empty());
        row
    }

    pub(crate) fn put(&mut self, key: &[u8], row: Row) {
        self.live_rows += usize::from(!row.cells.is_empty());
        match self.rows.get_mut(key) {
            Some(slot) => *slot = row,
            None => {
                self.rows.insert(key.into(), row);
            }
        }
    }

    fn apply(&mut self, row: &mut Row, mutation: &Mutation, now: i64) {
        use pb::mutation::Mutation as M;
        // Checked by `check` under the same lock, so a missing part means a family that vanished
        // from view is simply not written.
        match &mutation.mutation {
            None => {}
            Some(M::SetCell(set)) => {
                let Some(&family) = self.by_name.get(&*set.family_name) else {
                    return;
                };
                let timestamp = match set.timestamp_micros {
                    -1 => now,
                    stamp => stamp - stamp % 1_000,
                };
                self.set_cell(row, family, &set.column_qualifier, timestamp, &set.value);
            }
            Some(M::AddToCell(add)) => self.aggregate(
                row,
                &add.family_name,
                &add.column_qualifier,
                &add.timestamp,
                added(&add.input),
            ),
            Some(M::MergeToCell(merge)) => self.aggregate(
                row,
                &merge.family_name,
                &merge.column_qualifier,
                &merge.timestamp,
                merged(&merge.input),
            ),
            Some(M::DeleteFromColumn(delete)) => {
                let Some(&family) = self.by_name.get(&*delete.family_name) else {
                    return;
                };
                let (start, end) = match &delete.time_range {
                    None => (0, 0),
                    Some(range) => (range.start_timestamp_micros, range.end_timestamp_micros),
                };
                row.cells.retain(|cell| {
                    cell.family != family
                        || *cell.qualifier != *delete.column_qualifier
                        || cell.timestamp < start
                        || (end != 0 && cell.timestamp >= end)
                });
            }
            Some(M::DeleteFromFamily(delete)) => {
                let Some(&family) = self.by_name.get(&*delete.family_name) else {
                    return;
                };
                row.cells.retain(|cell| cell.family != family);
            }
            Some(M::DeleteFromRow(_)) => row.cells.clear(),
        }
    }

    pub(crate) fn set_cell(
        &mut self,
        row: &mut Row,
        family: u16,
        qualifier: &[u8],
        timestamp: i64,
        value: &[u8],
    ) {
        match row.position(family, qualifier, timestamp) {
            Ok(at) => row.cells[at].value = value.into(),
            Err(at) => {
                let qualifier = self.qualifier(qualifier);
                if row.cells.is_empty() {
                    // Most rows of a test hold one cell; the default growth reserves four.
                    row.cells.reserve_exact(1);
                }
                row.cells.insert(
                    at,
                    Cell {
                        family,
                        qualifier,
                        timestamp,
                        value: value.into(),
                    },
                );
            }
        }
    }

    fn aggregate(
        &mut self,
        row: &mut Row,
        family: &str,
        qualifier: &Option<pb::Value>,
        timestamp: &Option<pb::Value>,
        input: Option<i64>,
    ) {
        let Some(&id) = self.by_name.get(family) else {
            return;
        };
        let Some(kind) = self.families[usize::from(id)]
            .as_ref()
            .map(|family| family.kind)
        else {
            return;
        };
        let (Some(qualifier), Some(timestamp), Some(input)) =
            (raw_bytes(qualifier), raw_timestamp(timestamp), input)
        else {
            return;
        };
        let timestamp = timestamp - timestamp % 1_000;
        let state = row
            .position(id, qualifier, timestamp)
            .ok()
            .and_then(|at| <[u8; 8]>::try_from(&*row.cells[at].value).ok())
            .map(i64::from_be_bytes);
        let value = match (kind, state) {
            (_, None) => input,
            (Kind::Min, Some(state)) => state.min(input),
            (Kind::Max, Some(state)) => state.max(input),
            (_, Some(state)) => state.wrapping_add(input),
        };
        self.set_cell(row, id, qualifier, timestamp, &value.to_be_bytes());
    }

    fn qualifier(&mut self, qualifier: &[u8]) -> Arc<[u8]> {
        if let Some(shared) = self.qualifiers.get(qualifier) {
            return shared.clone();
        }
        let shared: Arc<[u8]> = qualifier.into();
        if self.qualifiers.len() < SHARED_QUALIFIERS {
            self.qualifiers.insert(shared.clone());
        }
        shared
    }

    // Sweeping.

    fn retain_cells(&mut self, mut keep: impl FnMut(&[Cell], &Cell) -> bool) {
        let mut live = 0;
        for row in self.rows.values_mut() {
            let mut cells = std::mem::take(&mut row.cells);
            let mut kept = Vec::with_capacity(cells.len());
            for cell in cells.drain(..) {
                if keep(&kept, &cell) {
                    kept.push(cell);
                }
            }
            row.cells = kept;
            live += usize::from(!row.cells.is_empty());
        }
        self.live_rows = live;
    }

    /// Removes what the families' rules allow to remove. The service does this at leisure.
    pub(crate) fn collect_garbage(&mut self, now: i64) {
        let rules: Vec<Option<admin::GcRule>> = self
            .families
            .iter()
            .map(|family| {
                family
                    .as_ref()
                    .and_then(|family| family.proto.gc_rule.clone())
            })
            .collect();
        // Position of a cell in its column, newest first, counted over kept and removed ones.
        let mut column: Option<(u16, Arc<[u8]>)> = None;
        let mut version = 0;
        self.retain_cells(|kept, cell| {
            let same = column.as_ref().is_some_and(|(family, qualifier)| {
                *family == cell.family && *qualifier == cell.qualifier
            });
            if kept.is_empty() || !same {
                column = Some((cell.family, cell.qualifier.clone()));
                version = 0;
            }
            let index = version;
            version += 1;
            !rules[usize::from(cell.family)]
                .as_ref()
                .is_some_and(|rule| collectable(rule, index, now - cell.timestamp))
        });
    }

    /// Drops whole rows, effects included.
    pub(crate) fn drop_rows(&mut self, prefix: &[u8]) {
        if prefix.is_empty() {
            self.rows.clear();
        } else {
            self.rows.retain(|key, _| !key.starts_with(prefix));
        }
        self.live_rows = self
            .rows
            .values()
            .filter(|row| !row.cells.is_empty())
            .count();
    }

    // Reading.

    /// Visible rows between the bounds, in key order.
    pub(crate) fn live_between<'a>(
        &'a self,
        start: &[u8],
        end: Option<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a Row)> + use<'a> {
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        self.rows
            .range::<[u8], _>((Bound::Included(start), end))
            .filter(|(_, row)| !row.cells.is_empty())
            .map(|(key, row)| (&**key, row))
    }

    /// The end key of every tablet, with the bytes up to it; the last is the end of the table.
    pub(crate) fn samples(&self) -> Vec<(Vec<u8>, i64)> {
        let mut samples = Vec::with_capacity(self.splits.len() + 1);
        let mut bytes = 0_i64;
        let mut splits = self.splits.iter().peekable();
        for (key, row) in &self.rows {
            while let Some(split) = splits.next_if(|split| **split <= *key) {
                samples.push((split.to_vec(), bytes));
            }
            bytes += i64::try_from(key.len() + row.bytes()).unwrap_or(i64::MAX);
        }
        samples.extend(splits.map(|split| (split.to_vec(), bytes)));
        samples.push((Vec::new(), bytes));
        samples
    }
}

pub(crate) fn check_key(key: &[u8], limits: &Limits) -> Result<(), Refusal> {
    if key.is_empty() {
        return Err(Refusal::invalid("Row keys must be non-empty"));
    }
    if key.len() > limits.row_key_bytes {
        return Err(Refusal::invalid(format!(
            "Row key too long: {} bytes, the limit is {}",
            key.len(),
            limits.row_key_bytes
        )));
    }
    Ok(())
}

pub(crate) fn check_qualifier(qualifier: &[u8], limits: &Limits) -> Result<(), Refusal> {
    if qualifier.len() > limits.qualifier_bytes {
        return Err(Refusal::invalid(format!(
            "Column qualifier too long: {} bytes, the limit is {}",
            qualifier.len(),
            limits.qualifier_bytes
        )));
    }
    Ok(())
}

fn check_timestamp(timestamp: i64, auto: bool) -> Result<(), Refusal> {
    if timestamp < 0 {
        return Err(Refusal::invalid("Timestamp must not be negative"));
    }
    if timestamp % 1_000 != 0 && !auto {
        return Err(Refusal::invalid(
            "Timestamp granularity mismatch. Expected a multiple of 1000 (millisecond granularity)",
        ));
    }
    Ok(())
}

fn raw_bytes(value: &Option<pb::Value>) -> Option<&[u8]> {
    match value.as_ref()?.kind.as_ref()? {
        pb::value::Kind::RawValue(bytes) | pb::value::Kind::BytesValue(bytes) => Some(bytes),
        _ => None,
    }
}

fn raw_timestamp(value: &Option<pb::Value>) -> Option<i64> {
    match value.as_ref()?.kind.as_ref()? {
        pb::value::Kind::RawTimestampMicros(micros) => Some(*micros),
        _ => None,
    }
}

fn added(value: &Option<pb::Value>) -> Option<i64> {
    match value.as_ref()?.kind.as_ref()? {
        pb::value::Kind::IntValue(value) => Some(*value),
        _ => None,
    }
}

fn merged(value: &Option<pb::Value>) -> Option<i64> {
    raw_bytes(value)?.try_into().ok().map(i64::from_be_bytes)
}

fn collectable(rule: &admin::GcRule, version: i32, age_micros: i64) -> bool {
    use admin::gc_rule::Rule;
    match &rule.rule {
        None => false,
        Some(Rule::MaxNumVersions(kept)) => version >= *kept,
        Some(Rule::MaxAge(age)) => {
            let age = Duration::new(
                age.seconds.try_into().unwrap_or(0),
                age.nanos.try_into().unwrap_or(0),
            );
            u128::try_from(age_micros).is_ok_and(|micros| micros > age.as_micros())
        }
        Some(Rule::Union(union)) => union
            .rules
            .iter()
            .any(|rule| collectable(rule, version, age_micros)),
        Some(Rule::Intersection(all)) => {
            !all.rules.is_empty()
                && all
                    .rules
                    .iter()
                    .all(|rule| collectable(rule, version, age_micros))
        }
    }
}

#[cfg(test)]
mod tests;
