//! Bigtable tables of SQL: from a `CREATE TABLE` to an upsert sink, a bounded scan or lookups by row key.
//!
//! | file | holds |
//! | --- | --- |
//! | `schema` | columns: one row key, and families as columns of type ROW |
//! | `options` | every option, and their values out of a statement |
//! | `metadata` | the metadata columns |
//! | `codec` | how values lie in cells and keys |
//! | `write` | rows to mutation entries, and to which table |
//! | `read` | Bigtable rows to rows of a query, and the filter that asks for them |
//! | `keys` | ranges of row keys, from options and from conditions |
//! | `scan`, `lookup` | the scan source and the lookup client as a table's |
//! | `full`, `reload` | lookups in a cache of the whole table, and when it is read again |
//!
//! # Invariants
//!
//! - Everything that is wrong with a statement is found at planning, without I/O, and named by its option or column.
//! - A plan is checked by making what it asks for, so planning and making cannot disagree.
//! - What depends on columns only is worked out once; nothing is looked up by name and nothing allocated for a row.

mod codec;
mod full;
mod keys;
mod lookup;
mod metadata;
pub mod options;
mod read;
mod reload;
mod scan;
mod schema;
#[cfg(test)]
mod tests;
mod write;

use std::error::Error as _;

use aqueduct_connector::Error;
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::row::{Row, RowKind};
use aqueduct_connector::sink::Sink;
use aqueduct_connector::source::Boundedness;
use aqueduct_connector::table::{
    Filter, FilterUse, LookupPlan, LookupPlanned, MetadataColumn, ScanPlan, ScanPlanned, SinkPlan,
    SinkPlanned, TableFactory, TableLookup, TableOption, TableSource, TableSpec,
};

use crate::sink::RowOrdering;
use options::Settings;

/// The factory of Bigtable tables.
#[must_use]
pub fn factory() -> &'static dyn TableFactory {
    &BigtableTables
}

#[derive(Debug)]
struct BigtableTables;

/// A builder's refusal as what it is; its errors carry it.
fn config_error(error: &Error, option: &'static str) -> ConfigError {
    error
        .source()
        .and_then(|source| source.downcast_ref::<ConfigError>())
        .cloned()
        .unwrap_or_else(|| ConfigError::invalid(option, error.report()))
}

impl TableFactory for BigtableTables {
    fn connector(&self) -> &'static str {
        crate::sink::CONNECTOR
    }

    fn doc(&self) -> &'static str {
        "A table in Cloud Bigtable: one column is the row key, each column of type ROW is a column family."
    }

    fn options(&self) -> Vec<TableOption> {
        options::declared()
    }

    fn metadata(&self) -> &'static [MetadataColumn] {
        metadata::COLUMNS
    }

    fn formatted(&self) -> bool {
        false
    }

    fn lookups(&self) -> bool {
        true
    }

    fn plan_sink(&self, table: &TableSpec, plan: &SinkPlan) -> Result<SinkPlanned, ConfigError> {
        let settings = Settings::of(table)?;
        write::sink(&settings, plan)?;
        let ordered = write::ordering(&settings, plan) == RowOrdering::PerRow;
        Ok(SinkPlanned {
            accepts: write::accepts(&settings, plan),
            parallelism: settings.sink.parallelism,
            partition_by: if ordered {
                vec![settings.schema.key.column]
            } else {
                Vec::new()
            },
        })
    }

    fn sink(&self, table: &TableSpec, plan: &SinkPlan) -> Result<Box<dyn Sink<Row>>, ConfigError> {
        Ok(Box::new(write::sink(&Settings::of(table)?, plan)?))
    }

    fn plan_scan(&self, table: &TableSpec, plan: &ScanPlan) -> Result<ScanPlanned, ConfigError> {
        let settings = Settings::of(table)?;
        scan::TableScan::new(table, &settings, plan)?;
        Ok(ScanPlanned {
            boundedness: Boundedness::Bounded,
            kinds: vec![RowKind::Insert],
            parallelism: settings.scan.parallelism,
        })
    }

    fn plan_filters(
        &self,
        table: &TableSpec,
        filters: &[Filter],
    ) -> Result<Vec<FilterUse>, ConfigError> {
        let settings = Settings::of(table)?;
        // The first rows of the table, of which the condition then takes some: not the first rows that meet it.
        if settings.scan.row_limit.is_some() {
            return Ok(vec![FilterUse::Ignored; filters.len()]);
        }
        Ok(filters
            .iter()
            .map(|filter| keys::filter_use(&settings.schema, filter))
            .collect())
    }

    fn source(
        &self,
        table: &TableSpec,
        plan: &ScanPlan,
    ) -> Result<Box<dyn TableSource>, ConfigError> {
        let settings = Settings::of(table)?;
        Ok(Box::new(scan::TableScan::new(table, &settings, plan)?))
    }

    fn plan_lookup(
        &self,
        table: &TableSpec,
        plan: &LookupPlan,
    ) -> Result<LookupPlanned, ConfigError> {
        let settings = Settings::of(table)?;
        lookup::lookup(table, &settings, plan)?;
        Ok(LookupPlanned {
            asynchronous: settings.lookup.asynchronous,
        })
    }

    fn lookup(
        &self,
        table: &TableSpec,
        plan: &LookupPlan,
    ) -> Result<Box<dyn TableLookup>, ConfigError> {
        lookup::lookup(table, &Settings::of(table)?, plan)
    }
}
