//! The scan source: reads the rows of a table once, in splits, and ends.
//!
//! | file | holds |
//! | --- | --- |
//! | `builder` | [`BigtableSource`] and its builder |
//! | `deserialize` | [`RowDeserializer`]: rows to records |
//! | `plan` | ranges and samples to splits, pure |
//! | `assign` | handing splits out one after the other under a row limit, pure |
//! | `split` | splits, the coordinator's state and the messages between them, as stored bytes |
//! | `enumerator` | the coordinator |
//! | `reader` | the reader of one subtask |
//!
//! # Invariants
//!
//! - A split is the range still to read. Its start moves behind a row only when the row's records went downstream, or when
//!   it had none and those before it did (BT-SCAN-05).
//! - A restored plan is never computed again: tablets move, and the names of the splits would mean other ranges.
//! - A split with nothing left ends without a request; the service would refuse one (BT-SCAN-06).
//! - No fetch thread and no queue: a reader decodes when it is polled, and the HTTP/2 windows bound what waits before it.

mod assign;
mod builder;
mod deserialize;
mod enumerator;
mod plan;
mod reader;
mod split;

pub(crate) use builder::Scan;
pub use builder::{BigtableSource, BigtableSourceBuilder};
pub use deserialize::RowDeserializer;
pub use split::{EnumeratorState, Limited, ScanSplit};

/// Names of the source's metrics, all in one place. What the host counts, such as `numRecordsIn`, is not counted again.
pub mod metrics {
    /// Reader: rows deserialized, with or without output.
    pub const ROWS_READ: &str = "rowsRead";
    /// Reader: rows of which the deserializer made no record.
    pub const RECORDS_SKIPPED: &str = "recordsSkipped";
    /// Reader: read requests sent again after a failure, or to go on behind a break.
    pub const READ_RETRIES: &str = "readRetries";
    /// Coordinator: splits handed to readers.
    pub const SPLITS_ASSIGNED: &str = "splitsAssigned";
    /// Coordinator: splits that came back from lost readers.
    pub const SPLITS_RETURNED: &str = "splitsReturned";
    /// Coordinator: samplings of the table's row keys: 1 on a fresh start, 0 on a restore.
    pub const ROW_KEY_SAMPLES_TAKEN: &str = "rowKeySamplesTaken";
    /// Coordinator, a gauge: splits not handed out.
    pub const UNASSIGNED_SPLITS: &str = "unassignedSplits";
    /// Coordinator, a gauge: the service's estimate of the bytes that the plan covers; 0 on a restore, which plans nothing.
    pub const PLANNED_BYTES: &str = "plannedBytes";

    /// All counters and gauges.
    pub const ALL: &[&str] = &[
        ROWS_READ,
        RECORDS_SKIPPED,
        READ_RETRIES,
        SPLITS_ASSIGNED,
        SPLITS_RETURNED,
        ROW_KEY_SAMPLES_TAKEN,
        UNASSIGNED_SPLITS,
        PLANNED_BYTES,
    ];
}
