//! The bounded scan of a table (BT-SQL-10): the scan source, decoding straight into rows.
//!
//! The source's deserializer writes each row into a batch that it shares with the table's reader, and emits a mark for it.
//! So a row is decoded once into where it leaves from, and the source's own account of what was emitted stays whole.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, ready};

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::row::{RowBatch, RowKind};
use aqueduct_connector::source::{
    Batch, Boundedness, Collector, ReaderOutput, SourceReader, Split, SplitEnumerator, SplitId,
};
use aqueduct_connector::table::{ScanPlan, TableOutput, TableReader, TableSource, TableSpec};
use aqueduct_connector::{CheckpointId, Context, Result, Versioned};

use super::options::Settings;
use super::read::{ReadPlan, RowDecoder};
use super::{config_error, keys, metadata};
use crate::client::read::RowRef;
use crate::destination::TABLE;
use crate::source::{BigtableSource, RowDeserializer, Scan};

/// Up to so many rows a query's limit makes the scan read its sections one after the other, which reads no row too many.
/// A larger one would cost more by that than it saves.
const MAX_LIMIT: u64 = 100_000;

/// Rows of a table.
pub(super) struct TableScan {
    scan: Scan,
    plan: Arc<ReadPlan>,
}

impl TableScan {
    pub(super) fn new(
        table: &TableSpec,
        settings: &Settings,
        plan: &ScanPlan,
    ) -> Result<Self, ConfigError> {
        metadata::check_none_read(&plan.metadata)?;
        let read = ReadPlan::new(table, settings, plan.fields.as_deref())?;
        let scan = &settings.scan;
        let ranges = keys::narrowed(&settings.schema, &scan.ranges, &plan.filters);
        let hint = plan.limit.filter(|limit| *limit <= MAX_LIMIT);
        let limit = match (scan.row_limit, hint) {
            (Some(limit), Some(hint)) => Some(limit.min(hint)),
            (limit, hint) => limit.or(hint),
        };
        // The mark of a row is all that the source carries.
        let mut builder = BigtableSource::<()>::builder()
            .table(settings.destination.clone())
            .filter(read.filter().clone())
            .max_bytes_per_fetch(scan.max_bytes_per_fetch)
            .read_ahead(scan.read_ahead);
        if let Some(rows) = NonZeroU64::new(scan.max_rows_per_fetch) {
            builder = builder.max_rows_per_fetch(rows);
        }
        if ranges.is_empty() || limit == Some(0) {
            builder = builder.nothing();
        }
        if let Some(rows) = limit.and_then(NonZeroU64::new) {
            builder = builder.row_limit(rows);
        }
        builder = ranges
            .into_iter()
            .fold(builder, |builder, range| builder.row_range(range));
        if scan.reversed {
            builder = builder.reversed();
        }
        if let Some(profile) = &scan.app_profile {
            builder = builder.app_profile_id(profile);
        }
        if let Some(path) = &settings.key_file {
            builder = builder.service_account_key_file(path);
        }
        if let Some(address) = &settings.emulator {
            builder = builder.emulator_endpoint(address);
        }
        Ok(Self {
            scan: builder
                .build_scan()
                .map_err(|error| config_error(&error, TABLE.key()))?,
            plan: Arc::new(read),
        })
    }
}

impl fmt::Debug for TableScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableScan")
            .field("scan", &self.scan)
            .finish_non_exhaustive()
    }
}

impl TableSource for TableScan {
    fn boundedness(&self) -> Boundedness {
        Boundedness::Bounded
    }

    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        self.scan.create_enumerator(context, restored.as_ref())
    }

    fn create_reader(&self, context: Context) -> Result<Box<dyn TableReader>> {
        let fetch = Rc::new(Fetch::default());
        let deserializer = IntoFetch {
            decoder: RowDecoder::new(self.plan.clone()),
            arity: self.plan.arity(),
            fetch: fetch.clone(),
        };
        Ok(Box::new(Reader {
            inner: self.scan.create_reader(context, Box::new(deserializer)),
            fetch,
        }))
    }
}

/// What a reader and its deserializer share: the rows of the fetch under way, and how many bytes the host wants.
#[derive(Default)]
struct Fetch {
    rows: RefCell<RowBatch>,
    target: Cell<usize>,
}

/// Decodes each row into the fetch.
struct IntoFetch {
    decoder: RowDecoder,
    arity: usize,
    fetch: Rc<Fetch>,
}

impl RowDeserializer<()> for IntoFetch {
    fn deserialize(&mut self, row: RowRef<'_>, out: &mut Collector<'_, ()>) -> Result<()> {
        let mut rows = self.fetch.rows.borrow_mut();
        rows.try_push(None, RowKind::Insert, self.arity, |fields| {
            self.decoder.decode(row, fields)
        })?;
        out.emit(());
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.fetch.rows.borrow().as_bytes().len() < self.fetch.target.get()
    }
}

struct Reader {
    inner: Box<dyn SourceReader<()>>,
    fetch: Rc<Fetch>,
}

impl TableReader for Reader {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        self.inner.add_splits(splits)
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.inner.no_more_splits()
    }

    fn enumerator_event(&mut self, event: Versioned) -> Result<()> {
        self.inner.enumerator_event(event)
    }

    fn poll_next(
        &mut self,
        cx: &mut PollContext<'_>,
        batch: &mut RowBatch,
        target: usize,
    ) -> Poll<Result<TableOutput>> {
        self.fetch.target.set(target);
        Poll::Ready(Ok(match ready!(self.inner.poll_next(cx))? {
            ReaderOutput::Batch(Batch { split, .. }) => {
                // The host's batch is empty, and its memory serves the next fetch.
                std::mem::swap(&mut *self.fetch.rows.borrow_mut(), batch);
                TableOutput::Rows(split)
            }
            ReaderOutput::Watermark { split, watermark } => {
                TableOutput::Watermark { split, watermark }
            }
            ReaderOutput::SplitFinished(split) => TableOutput::SplitFinished(split),
            ReaderOutput::RequestSplit => TableOutput::RequestSplit,
            ReaderOutput::Event(event) => TableOutput::Event(event),
            ReaderOutput::End => TableOutput::End,
        }))
    }

    fn emitted(&mut self, rows: usize) {
        self.inner.emitted(rows);
    }

    fn reject(&mut self, reason: &str) -> Result<()> {
        self.inner.reject(reason)
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Split>> {
        self.inner.snapshot(checkpoint)
    }

    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        self.inner.checkpoint_completed(checkpoint)
    }

    fn checkpoint_aborted(&mut self, checkpoint: CheckpointId) {
        self.inner.checkpoint_aborted(checkpoint);
    }

    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]) {
        self.inner.pause_splits(pause, resume);
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.inner.poll_close(cx)
    }
}
