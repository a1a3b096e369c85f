//! Rows to records.

use aqueduct_connector::source::Collector;
use aqueduct_connector::{Context, Result};

use crate::client::read::RowRef;

/// Makes zero or more records of each row.
///
/// A row has a time for every cell and none of its own, so records go out without a timestamp; the job assigns its own
/// watermark strategy. Emitting nothing filters the row: `recordsSkipped` counts it and nobody else sees it.
///
/// Closures of the shape of [`deserialize`](Self::deserialize) are deserializers.
pub trait RowDeserializer<T> {
    /// Called once in each reader, before its first row.
    ///
    /// # Errors
    ///
    /// Fails the reader's start.
    fn open(&mut self, context: &Context) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// Emits the records of `row`. The row borrows the batch it came in: copy what the records keep.
    ///
    /// # Errors
    ///
    /// Fails the job. The row's outputs are dropped, and its progress is not made: it comes again after a restart.
    fn deserialize(&mut self, row: RowRef<'_>, out: &mut Collector<'_, T>) -> Result<()>;

    /// Whether the fetch under way takes one more row, as far as the records' own size goes. Asked before each row of a
    /// fetch but its first.
    fn has_room(&self) -> bool {
        true
    }
}

impl<T, F> RowDeserializer<T> for F
where
    F: FnMut(RowRef<'_>, &mut Collector<'_, T>) -> Result<()>,
{
    fn deserialize(&mut self, row: RowRef<'_>, out: &mut Collector<'_, T>) -> Result<()> {
        self(row, out)
    }
}
