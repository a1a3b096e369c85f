//! Tables: from a `CREATE TABLE` and its options to a source, a sink or a lookup.
//!
//! A connector offers one [`TableFactory`]. A host (the SQL of the binary, Apache Flink) parses the statement, plans the
//! query and hands over a [`TableSpec`] with a plan of what it wants ([`SinkPlan`], [`ScanPlan`], [`LookupPlan`]); the
//! factory checks all of it without I/O and gives back something to drive. Rows cross in the layout of [`crate::row`].
//!
//! # Formats
//!
//! A factory that is [`formatted`](TableFactory::formatted) carries opaque payloads: the physical columns of its tables
//! are coded by a format of the host (`json`, `csv`, `avro`). Its rows begin with the payload as one `BYTES NOT NULL`
//! field in place of all physical columns; metadata columns follow. If the host's format cannot read a payload, the host
//! says so with [`TableReader::reject`], and the table's own policy decides. Metadata of a format come before the table's;
//! the host refuses a format that has a key of the table's.
//!
//! # Which fields a row has
//!
//! The physical fields that the plan names, in its order (or the payload), then the metadata that the plan names, in its
//! order. Types are those of the table's columns and of [`MetadataColumn::ty`].

mod options;
mod read;
mod spec;
#[cfg(test)]
mod tests;

use std::task::{Context as PollContext, Poll};

use crate::clock::Timestamp;
use crate::context::{CheckpointId, Context};
use crate::error::Result;
use crate::options::ConfigError;
use crate::row::{Row, RowBatch, RowKind, RowRef};
use crate::sink::Sink;
use crate::source::{Boundedness, Split, SplitEnumerator, SplitId};
use crate::state::Versioned;

pub use options::{TableOptions, table_reference_page};
pub use read::{RowEncoder, TableReads};
pub use spec::{Column, FieldPath, TableSpec};

/// An option of a table: what a host needs to know to complete, check and document it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOption {
    /// The declaration.
    pub declaration: crate::options::Declaration,
    /// Whether the key is a prefix: `scan.auto-create.topics` may also be written `scan.auto-create.topics.<name>`.
    pub map: bool,
    /// What it is good for.
    pub used_by: UsedBy,
}

/// The side of a table that reads an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy {
    /// Reading and writing.
    Both,
    /// Scans.
    Scan,
    /// Lookups.
    Lookup,
    /// Writing.
    Sink,
}

/// A metadata column that a table can have. A key that is read by one type and written by another is there twice, once
/// readable and once writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataColumn {
    /// The key, as in `METADATA FROM 'key'`.
    pub key: &'static str,
    /// Its type, as SQL text that [`LogicalType::parse`](crate::types::LogicalType::parse) reads.
    pub ty: &'static str,
    /// Whether it can be read.
    pub readable: bool,
    /// Whether it can be written.
    pub writable: bool,
    /// What it holds.
    pub doc: &'static str,
}

/// What a query wants to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkPlan {
    /// The kinds of rows that will arrive.
    pub kinds: Vec<RowKind>,
    /// Metadata keys at the end of each row, in order.
    pub metadata: Vec<String>,
    /// Number of writers, if the host knows it already.
    pub parallelism: Option<u32>,
}

/// What a factory asks of the host for a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkPlanned {
    /// The kinds of rows that the sink takes; a query that makes others must be refused at planning.
    pub accepts: Vec<RowKind>,
    /// Number of writers set by an option.
    pub parallelism: Option<u32>,
    /// Fields of the row by which rows must be partitioned among writers, so that equal values meet one writer in
    /// order; rows whose every such field is null or empty may go anywhere. Empty for no wish.
    pub partition_by: Vec<usize>,
}

/// What a query wants to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPlan {
    /// The physical fields wanted, in order; `None` for all of them as declared.
    pub fields: Option<Vec<FieldPath>>,
    /// Metadata keys wanted behind them, in order.
    pub metadata: Vec<String>,
    /// Conditions that the host took [`TableFactory::plan_filters`]' word for.
    pub filters: Vec<Filter>,
    /// No more rows than these are wanted; a hint that a source may use in each split.
    pub limit: Option<u64>,
}

/// What a factory says of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPlanned {
    /// Whether it ends.
    pub boundedness: Boundedness,
    /// The kinds of rows it makes. For a formatted table the format says.
    pub kinds: Vec<RowKind>,
    /// Number of readers set by an option.
    pub parallelism: Option<u32>,
}

/// What a query wants to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupPlan {
    /// The key, by column names; key rows have these fields in this order.
    pub keys: Vec<FieldPath>,
    /// The physical fields wanted, in order; `None` for all of them as declared.
    pub fields: Option<Vec<FieldPath>>,
}

/// What a factory says of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupPlanned {
    /// Whether the user asked for asynchronous lookups.
    pub asynchronous: bool,
}

/// A condition on one field.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// A comparison with a value of the field's type.
    Compare {
        /// The field.
        field: FieldPath,
        /// How to compare.
        op: Compare,
        /// With what.
        value: Literal,
    },
    /// Equal to one of several.
    In {
        /// The field.
        field: FieldPath,
        /// The values.
        values: Vec<Literal>,
    },
    /// `IS NULL`
    IsNull(FieldPath),
    /// `IS NOT NULL`
    IsNotNull(FieldPath),
}

impl Eq for Filter {}

/// How to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A value in a condition, in the form its column's rows have.
#[derive(Clone, PartialEq)]
pub enum Literal {
    /// `BOOLEAN`
    Bool(bool),
    /// Integers, `DATE` (days), `TIME` (milliseconds of the day), intervals.
    Int(i64),
    /// `FLOAT` and `DOUBLE`.
    Float(f64),
    /// Decimals.
    Decimal(crate::row::Decimal),
    /// Strings.
    Text(String),
    /// `BINARY`, `VARBINARY`.
    Bytes(Vec<u8>),
    /// Timestamps with or without a zone.
    Time(crate::row::RowTime),
}

impl std::fmt::Debug for Literal {
    /// Its type only: it may be a row key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bool(_) => "Bool",
            Self::Int(_) => "Int",
            Self::Float(_) => "Float",
            Self::Decimal(_) => "Decimal",
            Self::Text(_) => "Text",
            Self::Bytes(_) => "Bytes",
            Self::Time(_) => "Time",
        })
    }
}

/// What a source does with a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterUse {
    /// Applies it exactly: the host need not.
    Exact,
    /// Reads less thanks to it; the host must still apply it.
    Partial,
    /// Nothing.
    Ignored,
}

/// Makes the tables of one connector.
pub trait TableFactory: Send + Sync {
    /// The value of the option `connector`.
    fn connector(&self) -> &'static str;

    /// One sentence on what the tables are.
    fn doc(&self) -> &'static str;

    /// Every option of its tables, `connector` excepted.
    fn options(&self) -> Vec<TableOption>;

    /// The metadata columns its tables can have.
    fn metadata(&self) -> &'static [MetadataColumn];

    /// Whether a format of the host codes the physical columns.
    fn formatted(&self) -> bool;

    /// Whether tables can be looked up.
    fn lookups(&self) -> bool {
        false
    }

    /// Checks a sink and says what the host must do for it. No I/O; so for all methods here.
    ///
    /// # Errors
    ///
    /// The first thing wrong, naming the option or the column; so for all methods here.
    fn plan_sink(&self, table: &TableSpec, plan: &SinkPlan) -> Result<SinkPlanned, ConfigError>;

    /// Makes a sink whose plan was checked.
    #[expect(clippy::missing_errors_doc, reason = "as for `plan_sink`")]
    fn sink(&self, table: &TableSpec, plan: &SinkPlan) -> Result<Box<dyn Sink<Row>>, ConfigError>;

    /// Checks a scan and says what it is like.
    #[expect(clippy::missing_errors_doc, reason = "as for `plan_sink`")]
    fn plan_scan(&self, table: &TableSpec, plan: &ScanPlan) -> Result<ScanPlanned, ConfigError>;

    /// What the scan does with each of `filters`, in order.
    #[expect(clippy::missing_errors_doc, reason = "as for `plan_sink`")]
    fn plan_filters(
        &self,
        table: &TableSpec,
        filters: &[Filter],
    ) -> Result<Vec<FilterUse>, ConfigError> {
        let _ = table;
        Ok(vec![FilterUse::Ignored; filters.len()])
    }

    /// Makes a source whose plan was checked.
    #[expect(clippy::missing_errors_doc, reason = "as for `plan_sink`")]
    fn source(
        &self,
        table: &TableSpec,
        plan: &ScanPlan,
    ) -> Result<Box<dyn TableSource>, ConfigError>;

    /// Checks a lookup and says what it is like.
    #[expect(clippy::missing_errors_doc, reason = "as for `plan_sink`")]
    fn plan_lookup(
        &self,
        table: &TableSpec,
        plan: &LookupPlan,
    ) -> Result<LookupPlanned, ConfigError> {
        let _ = plan;
        Err(ConfigError::invalid(
            "connector",
            format!(
                "tables of '{}' such as '{}' cannot be looked up",
                self.connector(),
                table.name
            ),
        ))
    }

    /// Makes a lookup whose plan was checked.
    #[expect(clippy::missing_errors_doc, reason = "as for `plan_sink`")]
    fn lookup(
        &self,
        table: &TableSpec,
        plan: &LookupPlan,
    ) -> Result<Box<dyn TableLookup>, ConfigError> {
        self.plan_lookup(table, plan)
            .map(|_| unreachable!("a factory that plans lookups makes them"))
    }
}

/// A source of rows. As [`Source`](crate::source::Source), with rows written where the host wants them.
pub trait TableSource: Send + Sync {
    /// Whether it ends by itself.
    fn boundedness(&self) -> Boundedness;

    /// Makes the enumerator; see [`Source::create_enumerator`](crate::source::Source::create_enumerator).
    #[expect(clippy::missing_errors_doc, reason = "as in `Source`")]
    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>>;

    /// Makes the reader of one subtask; see [`Source::create_reader`](crate::source::Source::create_reader).
    #[expect(clippy::missing_errors_doc, reason = "as in `Source`")]
    fn create_reader(&self, context: Context) -> Result<Box<dyn TableReader>>;
}

/// What a table's reader has for its host.
#[derive(Debug, PartialEq, Eq)]
pub enum TableOutput {
    /// Rows of one split were added to the batch.
    Rows(SplitId),
    /// As [`ReaderOutput::Watermark`](crate::source::ReaderOutput::Watermark).
    Watermark {
        /// The split it is about.
        split: SplitId,
        /// The claim.
        watermark: Timestamp,
    },
    /// `split` has given its last row.
    SplitFinished(SplitId),
    /// Asks the enumerator for one more split.
    RequestSplit,
    /// A message for the enumerator.
    Event(Versioned),
    /// The reader's last output.
    End,
}

/// Reads rows: a [`SourceReader`](crate::source::SourceReader) that writes rows where the host wants them. Methods
/// without words here are as there.
#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "as in `SourceReader`"
)]
pub trait TableReader {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()>;

    fn no_more_splits(&mut self) -> Result<()>;

    fn enumerator_event(&mut self, event: Versioned) -> Result<()>;

    /// The next output; rows are added to `batch`, which is empty, until it has about `target` bytes or no row is ready.
    /// At least one row comes whatever its size. Called only when every row of the last batch was reported by
    /// [`emitted`](Self::emitted).
    fn poll_next(
        &mut self,
        cx: &mut PollContext<'_>,
        batch: &mut RowBatch,
        target: usize,
    ) -> Poll<Result<TableOutput>>;

    /// The host passed on `rows` more of the last batch, all that it made of them.
    fn emitted(&mut self, rows: usize);

    /// The host's format made no row of `rows` of those that are reported as emitted: for the table to count.
    fn skipped(&mut self, rows: usize) {
        let _ = rows;
    }

    /// The host's format could not read the payload of the row that `emitted` will report next. The table's policy
    /// decides: an error fails the job, otherwise the row counts as handled and the host goes on behind it without
    /// reporting it. `reason` says what went wrong in words without any of the payload.
    fn reject(&mut self, reason: &str) -> Result<()>;

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Split>>;

    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()>;

    fn checkpoint_aborted(&mut self, checkpoint: CheckpointId);

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]);

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;
}

/// Looks rows up.
pub trait TableLookup: Send + Sync {
    /// Makes the lookup of one subtask.
    ///
    /// # Errors
    ///
    /// If a setting cannot be used.
    fn create(&self, context: Context) -> Result<Box<dyn RowLookup>>;
}

/// The lookups of one subtask, any number of them under way at once.
pub trait RowLookup {
    /// Starts a lookup of `key`, whose answer will bear `id`. A key with a null field matches nothing.
    ///
    /// # Errors
    ///
    /// If the key cannot be encoded.
    fn start(&mut self, id: u64, key: RowRef<'_>) -> Result<()>;

    /// The next answer: its `id`, with the rows found added to `batch`. `Pending` also when nothing is under way.
    fn poll_next(
        &mut self,
        cx: &mut PollContext<'_>,
        batch: &mut RowBatch,
    ) -> Poll<(u64, Result<()>)>;

    /// Releases everything; lookups under way are given up.
    ///
    /// # Errors
    ///
    /// The first failure to close.
    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;
}
