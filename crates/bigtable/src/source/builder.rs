//! [`BigtableSource`] and its builder.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use aqueduct_connector::options::{ByteSize, ConfigError};
use aqueduct_connector::source::{Boundedness, Source, SourceReader, SplitEnumerator};
use aqueduct_connector::{Context, Result, Versioned};
use bytes::Bytes;

use super::deserialize::RowDeserializer;
use super::enumerator::Enumerator;
use super::reader::Reader;
use super::split::EnumeratorState;
use crate::client::read::{ReadAccess, ScanOrder};
use crate::destination::{TABLE, TableDestination};
use crate::filter::Filter;
use crate::range::{RowRange, check_not_empty};
use crate::scan_options::{
    MAX_BYTES_PER_FETCH, MAX_ROWS_PER_FETCH, READ_AHEAD, REVERSED, ROW_LIMIT,
};

type MakeDeserializer<T> = Arc<dyn Fn() -> Box<dyn RowDeserializer<T>> + Send + Sync>;

/// Reads the rows of a table: bounded, at least once, in as many splits as the table has sections in the ranges asked for.
///
/// ```no_run
/// use aqueduct_bigtable::source::BigtableSource;
/// use aqueduct_bigtable::TableDestination;
/// use aqueduct_bigtable::client::read::RowRef;
/// use aqueduct_connector::source::Collector;
///
/// # fn main() -> aqueduct_connector::Result<()> {
/// let source = BigtableSource::<Vec<u8>>::builder()
///     .table(TableDestination::of("my-project", "my-instance", "orders")?)
///     .deserializer(|row: RowRef<'_>, out: &mut Collector<'_, Vec<u8>>| {
///         if let Some(cell) = row.latest("cf", b"total") {
///             out.emit(cell.value().to_vec());
///         }
///         Ok(())
///     })
///     .prefix("2026-08-")
///     .build()?;
/// # let _ = source;
/// # Ok(())
/// # }
/// ```
pub struct BigtableSource<T> {
    settings: Arc<Settings>,
    deserializer: MakeDeserializer<T>,
}

/// What coordinator and readers share, checked.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) access: ReadAccess,
    pub(super) ranges: Vec<RowRange>,
    /// No row can match: there is no split and no request.
    pub(super) nothing: bool,
    pub(super) filter: Option<Filter>,
    pub(super) max_rows_per_fetch: u64,
    pub(super) max_bytes_per_fetch: u64,
    pub(super) read_ahead: ByteSize,
    pub(super) row_limit: Option<u64>,
    pub(super) order: ScanOrder,
}

impl<T> BigtableSource<T> {
    /// A builder; `table` and `deserializer` are required.
    #[must_use]
    pub fn builder() -> BigtableSourceBuilder<T> {
        BigtableSourceBuilder::default()
    }

    /// The table it reads.
    #[must_use]
    pub fn table(&self) -> &TableDestination {
        self.settings.access.table()
    }
}

impl<T> Clone for BigtableSource<T> {
    fn clone(&self) -> Self {
        Self {
            settings: self.settings.clone(),
            deserializer: self.deserializer.clone(),
        }
    }
}

impl<T> fmt::Debug for BigtableSource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BigtableSource")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A scan whose readers get their deserializers when they are made.
#[derive(Clone, Debug)]
pub(crate) struct Scan(Arc<Settings>);

impl Scan {
    pub(crate) fn create_enumerator(
        &self,
        context: Context,
        restored: Option<&Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        let restored = restored.map(EnumeratorState::decode).transpose()?;
        Ok(Box::new(Enumerator::new(self.0.clone(), context, restored)))
    }

    pub(crate) fn create_reader<T: 'static>(
        &self,
        context: Context,
        deserializer: Box<dyn RowDeserializer<T>>,
    ) -> Box<dyn SourceReader<T>> {
        Box::new(Reader::new(self.0.clone(), context, deserializer))
    }
}

impl<T: 'static> Source<T> for BigtableSource<T> {
    fn connector(&self) -> &'static str {
        "bigtable"
    }

    fn boundedness(&self) -> Boundedness {
        Boundedness::Bounded
    }

    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        Scan(self.settings.clone()).create_enumerator(context, restored.as_ref())
    }

    fn create_reader(&self, context: Context) -> Result<Box<dyn SourceReader<T>>> {
        Ok(Scan(self.settings.clone()).create_reader(context, (self.deserializer)()))
    }
}

/// Settings of a [`BigtableSource`]. Setters never fail; [`build`](Self::build) checks everything before any I/O.
pub struct BigtableSourceBuilder<T> {
    table: Option<TableDestination>,
    deserializer: Option<MakeDeserializer<T>>,
    ranges: Vec<RowRange>,
    nothing: bool,
    filter: Option<Filter>,
    app_profile_id: Option<String>,
    service_account_key_file: Option<String>,
    emulator_endpoint: Option<String>,
    max_rows_per_fetch: u64,
    max_bytes_per_fetch: ByteSize,
    read_ahead: ByteSize,
    row_limit: Option<u64>,
    reversed: bool,
}

impl<T> Default for BigtableSourceBuilder<T> {
    fn default() -> Self {
        Self {
            table: None,
            deserializer: None,
            ranges: Vec::new(),
            nothing: false,
            filter: None,
            app_profile_id: None,
            service_account_key_file: None,
            emulator_endpoint: None,
            max_rows_per_fetch: MAX_ROWS_PER_FETCH.ours(),
            max_bytes_per_fetch: MAX_BYTES_PER_FETCH.ours(),
            read_ahead: READ_AHEAD.ours(),
            row_limit: None,
            reversed: REVERSED.ours(),
        }
    }
}

impl<T> BigtableSourceBuilder<T> {
    /// The table to read. Required.
    #[must_use]
    pub fn table(mut self, table: TableDestination) -> Self {
        self.table = Some(table);
        self
    }

    /// Makes records of rows. Required. Each reader works with a clone of it.
    #[must_use]
    pub fn deserializer<D>(mut self, deserializer: D) -> Self
    where
        D: RowDeserializer<T> + Clone + Send + Sync + 'static,
    {
        self.deserializer = Some(Arc::new(move || Box::new(deserializer.clone())));
        self
    }

    /// Adds a range to read; repeatable, together with prefixes. Default: the whole table.
    ///
    /// - SQL: `scan.row-ranges`.
    ///
    /// Overlapping and touching ranges are joined, so no row comes twice.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses an empty range: a job that reads nothing looks like one with nothing to read.
    #[must_use]
    pub fn row_range(mut self, range: RowRange) -> Self {
        self.ranges.push(range);
        self
    }

    /// Adds the rows whose keys begin with `prefix`; repeatable. The empty prefix is the whole table.
    ///
    /// - SQL: `scan.row-prefix`.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<Bytes>) -> Self {
        self.row_range(RowRange::prefix(prefix))
    }

    /// Lets the service return only some cells. The last call wins. Default: every cell.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses a filter of 20 KiB or more, or deeper than 20. One that names a family that the
    /// table lacks fails the read with `NOT_FOUND`.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Reads through this application profile. Default: the instance's own.
    ///
    /// - SQL: `scan.app-profile-id`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses a blank one.
    #[must_use]
    pub fn app_profile_id(mut self, app_profile_id: impl Into<String>) -> Self {
        self.app_profile_id = Some(app_profile_id.into());
        self
    }

    /// Caps a fetch by rows.
    ///
    /// - Default: 1,000. SQL: `scan.max-rows-per-fetch`.
    ///
    /// Lower caps let checkpoints and cancellation be noticed sooner for more hand-overs.
    #[must_use]
    pub fn max_rows_per_fetch(mut self, rows: NonZeroU64) -> Self {
        self.max_rows_per_fetch = rows.get();
        self
    }

    /// Caps a fetch by content.
    ///
    /// - Unit: bytes of keys and values, and for each cell family, qualifier, labels and 8 for the timestamp.
    /// - Default: 8 MiB. SQL: `scan.max-bytes-per-fetch`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses 0.
    #[must_use]
    pub fn max_bytes_per_fetch(mut self, bytes: ByteSize) -> Self {
        self.max_bytes_per_fetch = bytes;
        self
    }

    /// Bounds what the transport of one subtask holds before it is decoded.
    ///
    /// - Default: 16 MiB. SQL: `scan.read-ahead`.
    /// - Source: with 10 ms of round trip, 16 MiB read three times as fast as the 2 MiB that transports come with
    ///   (measured).
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses less than 64 KiB or more than 1 GiB.
    #[must_use]
    pub fn read_ahead(mut self, bytes: ByteSize) -> Self {
        self.read_ahead = bytes;
        self
    }

    /// Reads exactly the first `rows` rows in key order, or all if there are fewer, whatever the parallelism and however
    /// often the job restarts.
    ///
    /// - Default: all rows. SQL: `scan.row-limit`.
    ///
    /// Splits are then read one after the other. Rows that a filter leaves empty are no rows.
    #[must_use]
    pub fn row_limit(mut self, rows: NonZeroU64) -> Self {
        self.row_limit = Some(rows.get());
        self
    }

    /// Reads each split in descending key order.
    ///
    /// - Default: ascending. SQL: `scan.reversed`.
    ///
    /// Slower on the service's side, and not eligible for Data Boost. Splits are still read in parallel, unless there is
    /// a [`row_limit`](Self::row_limit): the limit then takes the last rows of the table.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.reversed = true;
        self
    }

    /// Replaces application-default credentials by a key file. Coordinator and readers read it when they start, so the
    /// path must hold on every machine of the job.
    ///
    /// - SQL: `service-account-key-file`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses it beside an emulator endpoint.
    #[must_use]
    pub fn service_account_key_file(mut self, path: impl Into<String>) -> Self {
        self.service_account_key_file = Some(path.into());
        self
    }

    /// Reads an emulator at `host:port`, in plaintext and without credentials. Never for production.
    ///
    /// - SQL: `emulator-endpoint`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses what is no host and port.
    #[must_use]
    pub fn emulator_endpoint(mut self, address: impl Into<String>) -> Self {
        self.emulator_endpoint = Some(address.into());
        self
    }

    /// Checks every setting and makes the source. Does no I/O.
    ///
    /// # Errors
    ///
    /// The first setting that can never work, by the name of its option.
    pub fn build(mut self) -> Result<BigtableSource<T>> {
        let deserializer = self.deserializer.take();
        let scan = self.build_scan()?;
        Ok(BigtableSource {
            settings: scan.0,
            deserializer: deserializer.ok_or(ConfigError::Missing {
                option: "deserializer",
                what: "it makes records of rows",
            })?,
        })
    }

    /// Reads nothing, whatever the ranges: it is known that no row can match.
    pub(crate) fn nothing(mut self) -> Self {
        self.nothing = true;
        self
    }

    /// As [`build`](Self::build), for readers whose deserializers are made one by one.
    pub(crate) fn build_scan(self) -> Result<Scan> {
        let table = self.table.ok_or(ConfigError::Missing {
            option: TABLE.key(),
            what: "the table to read",
        })?;
        self.ranges.iter().try_for_each(check_not_empty)?;
        if let Some(filter) = &self.filter {
            filter.check()?;
        }
        let row_limit = self
            .row_limit
            .map(|rows| ROW_LIMIT.check(rows))
            .transpose()?;
        let settings = Settings {
            access: ReadAccess::new(
                table,
                self.app_profile_id.as_deref(),
                self.service_account_key_file.as_deref(),
                self.emulator_endpoint.as_deref(),
            )?,
            ranges: self.ranges,
            nothing: self.nothing,
            filter: self.filter,
            max_rows_per_fetch: MAX_ROWS_PER_FETCH.check(self.max_rows_per_fetch)?,
            max_bytes_per_fetch: MAX_BYTES_PER_FETCH.check(self.max_bytes_per_fetch)?.0,
            read_ahead: READ_AHEAD.check(self.read_ahead)?,
            row_limit,
            order: if self.reversed {
                ScanOrder::Reverse
            } else {
                ScanOrder::Forward
            },
        };
        Ok(Scan(Arc::new(settings)))
    }
}

impl<T> fmt::Debug for BigtableSourceBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BigtableSourceBuilder")
            .field("table", &self.table)
            .field("ranges", &self.ranges)
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::source::Collector;

    use super::*;
    use crate::client::read::RowRef;

    fn builder() -> BigtableSourceBuilder<()> {
        BigtableSource::builder()
            .table(TableDestination::of("p", "i", "t").expect("valid"))
            .deserializer(|_: RowRef<'_>, _: &mut Collector<'_, ()>| Ok(()))
    }

    #[test]
    fn what_can_never_work_is_refused_by_its_option_before_any_io() {
        let empty = RowRange::parse(r"(a, a\x00)").expect("parses");
        for (wrong, named) in [
            (BigtableSource::<()>::builder(), "'table'"),
            (builder().row_range(empty), "'scan.row-ranges'"),
            (builder().filter(Filter::cells_per_row(0)), "'scan.filter'"),
            (builder().app_profile_id(" "), "'scan.app-profile-id'"),
            (
                builder().max_bytes_per_fetch(ByteSize(0)),
                "'scan.max-bytes-per-fetch'",
            ),
            (builder().read_ahead(ByteSize(1)), "'scan.read-ahead'"),
            (builder().emulator_endpoint("nowhere"), "emulator-endpoint"),
            (
                builder()
                    .emulator_endpoint("h:1")
                    .service_account_key_file("/key"),
                "'service-account-key-file'",
            ),
        ] {
            let error = wrong.build().expect_err(named).to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(builder().prefix("").build().is_ok(), "the whole table");
        // The file is read where the job runs, not where it is built.
        assert!(
            builder()
                .service_account_key_file("/nowhere")
                .build()
                .is_ok()
        );
    }
}
