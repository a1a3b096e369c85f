//! The source itself: what its enumerator and readers share, and how it is described.

use std::fmt;
use std::sync::Arc;

use aqueduct_connector::source::{Boundedness, Collector, Source, SourceReader, SplitEnumerator};
use aqueduct_connector::{Context, Result, Versioned};
use serde::de::DeserializeOwned;

use super::builder::FileSourceBuilder;
use super::cursor::{MalformedPolicy, TimestampOf};
use super::enumerator::FileEnumerator;
use super::format::{Csv, CsvRow, CsvRows, FileFormat, JsonLines, Lines, Malformed};
use super::plan::Planner;
use super::reader::FileReader;

/// What readers share.
pub(super) struct Settings<F: FileFormat> {
    pub(super) format: F,
    pub(super) malformed: MalformedPolicy,
    pub(super) timestamp_of: Option<Arc<TimestampOf<F::Output>>>,
    pub(super) max_line_bytes: usize,
    pub(super) batch_records: usize,
    pub(super) batch_bytes: u64,
    pub(super) read_ahead_bytes: usize,
}

/// Reads files once, from beginning to end; made by a [`FileSourceBuilder`].
///
/// Bounded, at-least-once into a sink by replay from exact positions. Clones share the settings.
pub struct FileSource<F: FileFormat> {
    pub(super) planner: Planner,
    pub(super) settings: Arc<Settings<F>>,
}

impl FileSource<JsonLines<()>> {
    /// JSON lines, read as `T`.
    #[must_use]
    pub fn json<T: DeserializeOwned + 'static>() -> FileSourceBuilder<JsonLines<T>> {
        FileSourceBuilder::new(JsonLines::new())
    }

    /// CSV with a header row, read as `T`.
    #[must_use]
    pub fn csv<T: DeserializeOwned + 'static>() -> FileSourceBuilder<Csv<T>> {
        FileSourceBuilder::new(Csv::new())
    }

    /// CSV with a header row, each row given to `function`, which emits zero or more values.
    #[must_use]
    pub fn csv_rows<T, F>(function: F) -> FileSourceBuilder<CsvRows<T, F>>
    where
        T: 'static,
        F: FnMut(CsvRow<'_>, &mut Collector<'_, T>) -> Result<(), Malformed>,
        F: Clone + Send + Sync + 'static,
    {
        FileSourceBuilder::new(CsvRows::new(function))
    }

    /// Lines, each given to `function`, which emits zero or more values.
    #[must_use]
    pub fn lines<T, F>(function: F) -> FileSourceBuilder<Lines<T, F>>
    where
        T: 'static,
        F: FnMut(&[u8], &mut Collector<'_, T>) -> Result<(), Malformed>,
        F: Clone + Send + Sync + 'static,
    {
        FileSourceBuilder::new(Lines::new(function))
    }
}

impl<F: FileFormat> Clone for FileSource<F> {
    fn clone(&self) -> Self {
        Self {
            planner: self.planner.clone(),
            settings: Arc::clone(&self.settings),
        }
    }
}

impl<F: FileFormat> fmt::Debug for FileSource<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource")
            .field("paths", &self.planner.paths)
            .finish_non_exhaustive()
    }
}

impl<F: FileFormat> Source<F::Output> for FileSource<F> {
    fn connector(&self) -> &'static str {
        "files"
    }

    fn boundedness(&self) -> Boundedness {
        Boundedness::Bounded
    }

    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        let planner = self.planner.clone();
        Ok(Box::new(FileEnumerator::new(context, planner, restored)?))
    }

    fn create_reader(&self, context: Context) -> Result<Box<dyn SourceReader<F::Output>>> {
        Ok(Box::new(FileReader::new(
            context,
            Arc::clone(&self.settings),
        )))
    }
}
