//! Bigtable rows to rows of a query: which cells are asked for, and what becomes of them.
//!
//! # Invariants
//!
//! - A row is there if one of the families it is read for has a cell; with no family, if it has any cell. Which columns
//!   of a family the query wants changes nothing about that.
//! - Of a column the newest cell counts.
//! - Nothing is allocated for a row once the scratch has its size.

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::row::RowWriter;
use aqueduct_connector::table::{FieldPath, TableSpec};
use aqueduct_connector::{Error, Result};

use super::codec::{Codec, Fault, Trailing};
use super::options::Settings;
use super::schema::{Family, Qualifier};
use crate::client::read::RowRef;
use crate::filter::{Filter, MAX_FILTER_BYTES};

/// What a query reads of each row, worked out once.
#[derive(Clone, Debug)]
pub(super) struct ReadPlan {
    outputs: Vec<Output>,
    /// Families with columns wanted, in no order.
    families: Vec<Wanted>,
    key_name: String,
    key_codec: Codec,
    trailing: Trailing,
    null_literal: Box<[u8]>,
    slots: usize,
    filter: Filter,
}

/// One field of the query's row.
#[derive(Clone, Debug)]
enum Output {
    Key,
    Cell(Cell),
    Family { nullable: bool, cells: Vec<Cell> },
}

#[derive(Clone, Debug)]
struct Cell {
    slot: usize,
    codec: Codec,
    nullable: bool,
    /// For messages.
    path: String,
}

/// A qualifier and its slot.
type Slot = (Box<[u8]>, usize);

/// Columns of a family, sorted by qualifier.
#[derive(Clone, Debug)]
struct Wanted {
    name: Box<[u8]>,
    columns: Vec<Slot>,
}

impl ReadPlan {
    /// The plan for `fields` of the table, or for all of them.
    pub(super) fn new(
        table: &TableSpec,
        settings: &Settings,
        fields: Option<&[FieldPath]>,
    ) -> Result<Self, ConfigError> {
        let all: Vec<FieldPath>;
        let fields = match fields {
            Some(fields) => fields,
            None => {
                all = (0..table.columns.len())
                    .map(|at| FieldPath(vec![at]))
                    .collect();
                &all
            }
        };
        let schema = &settings.schema;
        let mut columns = Columns::default();
        let mut outputs = Vec::with_capacity(fields.len());
        for path in fields {
            table.field(path)?;
            if path.0 == [schema.key.column] {
                outputs.push(Output::Key);
                continue;
            }
            let family = schema
                .families
                .iter()
                .find(|family| family.column == path.0[0])
                .expect("a column is the row key or a family");
            outputs.push(match path.0.get(1) {
                Some(at) => {
                    let qualifier = &family.qualifiers[*at];
                    // Of a family that may be absent, every column may.
                    let nullable = qualifier.nullable || family.nullable;
                    Output::Cell(columns.cell(family, qualifier, nullable))
                }
                None => Output::Family {
                    nullable: family.nullable,
                    cells: family
                        .qualifiers
                        .iter()
                        .map(|qualifier| columns.cell(family, qualifier, qualifier.nullable))
                        .collect(),
                },
            });
        }
        let filter = columns.filter();
        filter.check()?;
        let families = columns.families.into_iter().map(|(family, mut wanted)| {
            wanted.sort();
            Wanted {
                name: family.name.as_bytes().into(),
                columns: wanted,
            }
        });
        Ok(Self {
            outputs,
            families: families.collect(),
            key_name: schema.key.name.clone(),
            key_codec: schema.key.codec,
            trailing: settings.trailing,
            null_literal: settings.null_literal.as_bytes().into(),
            slots: columns.slots,
            filter,
        })
    }

    /// Lets the service send what the query reads, and no more.
    pub(super) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Fields of a row.
    pub(super) fn arity(&self) -> usize {
        self.outputs.len()
    }
}

/// Columns as they are found to be wanted.
#[derive(Default)]
struct Columns<'a> {
    families: Vec<(&'a Family, Vec<Slot>)>,
    slots: usize,
}

impl<'a> Columns<'a> {
    fn cell(&mut self, family: &'a Family, qualifier: &'a Qualifier, nullable: bool) -> Cell {
        let known = self
            .families
            .iter()
            .position(|(known, _)| known.name == family.name);
        let at = known.unwrap_or_else(|| {
            self.families.push((family, Vec::new()));
            self.families.len() - 1
        });
        let wanted = &mut self.families[at].1;
        let name = qualifier.name.as_bytes();
        let slot = match wanted.iter().find(|(known, _)| **known == *name) {
            Some((_, slot)) => *slot,
            None => {
                wanted.push((name.into(), self.slots));
                self.slots += 1;
                self.slots - 1
            }
        };
        Cell {
            slot,
            codec: qualifier.codec,
            nullable,
            path: family.path(qualifier),
        }
    }

    /// The newest cells of each family read. Of a family of which only some columns are wanted, those, and one labelled
    /// cell without a value that shows that the row exists.
    fn filter(&self) -> Filter {
        if self.families.is_empty() {
            return Filter::chain([Filter::cells_per_row(1), Filter::strip_value()]);
        }
        let narrow = self.build(true);
        // A filter of many long names may be too large; that of the families alone reads more and gives the same.
        if narrow.encoded_len() < MAX_FILTER_BYTES {
            narrow
        } else {
            self.build(false)
        }
    }

    fn build(&self, narrow: bool) -> Filter {
        Filter::interleave(self.families.iter().map(|(family, wanted)| {
            let newest = [
                Filter::family_exact(&family.name),
                Filter::cells_per_column(1),
            ];
            if !narrow || wanted.len() == family.qualifiers.len() {
                return Filter::chain(newest);
            }
            let columns = wanted.iter().map(|(name, _)| Filter::qualifier_exact(name));
            let exists = Filter::chain([
                Filter::cells_per_row(1),
                Filter::strip_value(),
                Filter::label(EXISTS),
            ]);
            let columns = Filter::interleave(columns.chain([exists]));
            Filter::chain(newest.into_iter().chain([columns]))
        }))
    }
}

/// The label of a cell that stands for its family only.
const EXISTS: &str = "exists";

/// No cell of the row is in a slot.
const ABSENT: u32 = u32::MAX;

/// Decodes rows by a plan.
#[derive(Debug)]
pub(super) struct RowDecoder {
    plan: std::sync::Arc<ReadPlan>,
    /// For each slot the number of its cell.
    found: Vec<u32>,
}

impl RowDecoder {
    pub(super) fn new(plan: std::sync::Arc<ReadPlan>) -> Self {
        let found = vec![ABSENT; plan.slots];
        Self { plan, found }
    }

    /// Sets the fields of `out` from `row`.
    ///
    /// # Errors
    ///
    /// A value that its column cannot hold, by the column's name.
    pub(super) fn decode(&mut self, row: RowRef<'_>, out: &mut RowWriter<'_>) -> Result<()> {
        self.find(row);
        let plan = &*self.plan;
        for (field, output) in plan.outputs.iter().enumerate() {
            match output {
                Output::Key => plan
                    .key_codec
                    .decode(row.key(), plan.trailing, out, field)
                    .map_err(|fault| failed(&plan.key_name, fault))?,
                Output::Cell(cell) => self.set(row, cell, out, field)?,
                Output::Family { nullable, cells } => {
                    if *nullable && self.is_absent(cells) {
                        continue;
                    }
                    let mut result = Ok(());
                    out.row(field, cells.len(), |inner| {
                        result = cells
                            .iter()
                            .enumerate()
                            .try_for_each(|(at, cell)| self.set(row, cell, inner, at));
                    });
                    result?;
                }
            }
        }
        Ok(())
    }

    /// Whether the family has none of its cells although a column of it must have one: then the family is null, which it
    /// may be. A family whose columns may all be null is a row of nulls.
    fn is_absent(&self, cells: &[Cell]) -> bool {
        cells.iter().all(|cell| self.found[cell.slot] == ABSENT)
            && cells.iter().any(|cell| !cell.nullable)
    }

    fn set(
        &self,
        row: RowRef<'_>,
        cell: &Cell,
        out: &mut RowWriter<'_>,
        field: usize,
    ) -> Result<()> {
        let plan = &*self.plan;
        let Some(found) = row.cell(self.found[cell.slot] as usize) else {
            return if cell.nullable {
                Ok(())
            } else {
                Err(failed(&cell.path, Fault::Missing))
            };
        };
        if cell.nullable && cell.codec.is_null(found.value(), &plan.null_literal) {
            return Ok(());
        }
        cell.codec
            .decode(found.value(), plan.trailing, out, field)
            .map_err(|fault| failed(&cell.path, fault))
    }

    /// Finds the newest cell of each column.
    fn find(&mut self, row: RowRef<'_>) {
        self.found.fill(ABSENT);
        let mut family: Option<(&[u8], Option<&Wanted>)> = None;
        for (at, cell) in (0_u32..).zip(row.cells()) {
            let name = cell.family_bytes();
            let wanted = match family {
                Some((last, wanted)) if last == name => wanted,
                _ => self
                    .plan
                    .families
                    .iter()
                    .find(|wanted| *wanted.name == *name),
            };
            family = Some((name, wanted));
            let Some(wanted) = wanted else { continue };
            if cell.labels().len() > 0 {
                continue;
            }
            let qualifier = cell.qualifier();
            if let Ok(column) = wanted
                .columns
                .binary_search_by(|(name, _)| (**name).cmp(qualifier))
            {
                let found = &mut self.found[wanted.columns[column].1];
                // Newer versions come first.
                if *found == ABSENT {
                    *found = at;
                }
            }
        }
    }
}

fn failed(column: &str, fault: Fault) -> Error {
    Error::data(format!("the column '{column}' cannot be read: {fault}"))
}
