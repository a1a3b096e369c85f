//! Pub/Sub as tables: what `CREATE TABLE ... WITH ('connector' = 'pubsub')` stands for.
//!
//! | file | holds |
//! | --- | --- |
//! | `options` | the options of a table |
//! | `metadata` | the metadata columns |
//! | `access` | what both sides read of a statement |
//! | `sink` | from a statement to a sink; rows to messages |
//! | `source` | from a statement to a source; messages to rows |
//!
//! A table is *formatted*: a row is the payload, coded by the host's format, then the metadata that a plan names. Every
//! option is that of a builder's setter, so a table can do what the builders can, user code excepted.

mod access;
mod metadata;
mod options;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::row::{Row, RowKind};
use aqueduct_connector::sink::Sink;
use aqueduct_connector::source::Boundedness;
use aqueduct_connector::table::{
    MetadataColumn, ScanPlan, ScanPlanned, SinkPlan, SinkPlanned, TableFactory, TableOption,
    TableOptions, TableSource, TableSpec,
};

pub use options::{
    CREATE_ACK_DEADLINE, CREATE_DEAD_LETTER_ATTEMPTS, CREATE_DEAD_LETTER_TOPIC, CREATE_EXPIRATION,
    CREATE_FILTER, CREATE_NEVER_EXPIRE, CREATE_ORDERING, CREATE_RETAIN_ACKED, CREATE_RETENTION,
    CREATE_TOPICS, SCAN_PARALLELISM, SINK_PARALLELISM, STARTUP_TIMESTAMP, table_options,
    table_reference,
};

/// Makes Pub/Sub tables.
#[must_use]
pub fn factory() -> &'static dyn TableFactory {
    &PubSubTables
}

struct PubSubTables;

impl TableFactory for PubSubTables {
    fn connector(&self) -> &'static str {
        "pubsub"
    }

    fn doc(&self) -> &'static str {
        "Reads Pub/Sub subscriptions and writes to topics; a format codes the payload."
    }

    fn options(&self) -> Vec<TableOption> {
        table_options()
    }

    fn metadata(&self) -> &'static [MetadataColumn] {
        metadata::COLUMNS
    }

    fn formatted(&self) -> bool {
        true
    }

    fn plan_sink(&self, table: &TableSpec, plan: &SinkPlan) -> Result<SinkPlanned, ConfigError> {
        let declared = table_options();
        let options = TableOptions::new(table, &declared)?;
        sink::build(&options, plan)?;
        sink::warn_of_useless_ordering(&options, plan);
        let parallelism = options.get(&SINK_PARALLELISM)?;
        let alone = parallelism.or(plan.parallelism) == Some(1);
        Ok(SinkPlanned {
            accepts: vec![RowKind::Insert],
            parallelism,
            partition_by: metadata::field(&plan.metadata, metadata::ORDERING_KEY)
                .filter(|_| !alone)
                .into_iter()
                .collect(),
        })
    }

    fn sink(&self, table: &TableSpec, plan: &SinkPlan) -> Result<Box<dyn Sink<Row>>, ConfigError> {
        let declared = table_options();
        let options = TableOptions::new(table, &declared)?;
        Ok(Box::new(sink::build(&options, plan)?))
    }

    fn plan_scan(&self, table: &TableSpec, plan: &ScanPlan) -> Result<ScanPlanned, ConfigError> {
        let declared = table_options();
        let options = TableOptions::new(table, &declared)?;
        source::build(&options, plan)?;
        Ok(ScanPlanned {
            boundedness: Boundedness::Unbounded,
            kinds: vec![RowKind::Insert],
            parallelism: options.get(&SCAN_PARALLELISM)?,
        })
    }

    fn source(
        &self,
        table: &TableSpec,
        plan: &ScanPlan,
    ) -> Result<Box<dyn TableSource>, ConfigError> {
        let declared = table_options();
        let options = TableOptions::new(table, &declared)?;
        Ok(Box::new(source::build(&options, plan)?))
    }
}
