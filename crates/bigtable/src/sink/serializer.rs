//! What users supply: how a record becomes an entry, and which table it goes to.

use std::error::Error as StdError;

use aqueduct_connector::sink::RecordInfo;
use aqueduct_connector::{Context, Result};

use crate::destination::TableDestination;
use crate::entry::RowMutationEntry;

/// An error of user code, as it is.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Whether a serialized record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The entry is written.
    Write,
    /// The record is written nowhere. No failure: counted by `recordsSkipped` and by nothing else.
    Skip,
}

/// Turns records into row changes. Cloned for each writer, called on the writer's task, once a record.
///
/// A closure `FnMut(&T, RecordInfo, &mut RowMutationEntry) -> Result<Disposition, E>` is one.
pub trait MutationSerializer<T> {
    /// Called once before the first record.
    ///
    /// # Errors
    ///
    /// Fails the start of the writer.
    fn open(&mut self, context: &Context) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// Fills `entry`, which is empty, with the changes of one row.
    ///
    /// # Errors
    ///
    /// A record that cannot be written; it goes to the failed-mutation handler.
    fn serialize(
        &mut self,
        record: &T,
        info: RecordInfo,
        entry: &mut RowMutationEntry,
    ) -> Result<Disposition, BoxError>;
}

impl<T, F, E> MutationSerializer<T> for F
where
    F: FnMut(&T, RecordInfo, &mut RowMutationEntry) -> Result<Disposition, E>,
    E: Into<BoxError>,
{
    fn serialize(
        &mut self,
        record: &T,
        info: RecordInfo,
        entry: &mut RowMutationEntry,
    ) -> Result<Disposition, BoxError> {
        self(record, info, entry).map_err(Into::into)
    }
}

/// Names the table of each record, before the serializer sees it. Cheap and deterministic: keep the destinations and
/// clone them.
///
/// A closure `FnMut(&T, RecordInfo) -> Result<Option<TableDestination>, E>` is one.
pub trait DestinationResolver<T> {
    /// The table of `record`.
    ///
    /// # Errors
    ///
    /// Fails the job, as does `None`: a resolver that cannot name a table is no bad record.
    fn resolve(
        &mut self,
        record: &T,
        info: RecordInfo,
    ) -> Result<Option<TableDestination>, BoxError>;
}

impl<T, F, E> DestinationResolver<T> for F
where
    F: FnMut(&T, RecordInfo) -> Result<Option<TableDestination>, E>,
    E: Into<BoxError>,
{
    fn resolve(
        &mut self,
        record: &T,
        info: RecordInfo,
    ) -> Result<Option<TableDestination>, BoxError> {
        self(record, info).map_err(Into::into)
    }
}

/// A serializer that a sink can clone for its writers.
pub(super) trait CloneSerializer<T>: Send + Sync {
    fn fresh(&self) -> Box<dyn MutationSerializer<T>>;
}

impl<T, S: MutationSerializer<T> + Clone + Send + Sync + 'static> CloneSerializer<T> for S {
    fn fresh(&self) -> Box<dyn MutationSerializer<T>> {
        Box::new(self.clone())
    }
}

/// A resolver that a sink can clone for its writers.
pub(super) trait CloneResolver<T>: Send + Sync {
    fn fresh(&self) -> Box<dyn DestinationResolver<T>>;
}

impl<T, R: DestinationResolver<T> + Clone + Send + Sync + 'static> CloneResolver<T> for R {
    fn fresh(&self) -> Box<dyn DestinationResolver<T>> {
        Box::new(self.clone())
    }
}
