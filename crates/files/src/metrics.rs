//! Every metric of this crate, named once.
//!
//! `numBytesIn` is the host's name (BASE-43), counted here because only a reader knows it. Records
//! are counted by the host, as it emits them (`numRecordsIn`), and not again here.

use aqueduct_connector::metrics::{Counter, Gauge, MetricGroup};

/// Bytes of the lines read, unpacked, line ends included.
pub const BYTES_IN: &str = "numBytesIn";
/// Inputs that the deserializer made no record of.
pub const RECORDS_SKIPPED: &str = "recordsSkipped";
/// Malformed lines dropped by [`MalformedPolicy::Drop`](crate::MalformedPolicy::Drop).
pub const MALFORMED_LINES: &str = "malformedLines";
/// Splits found by planning.
pub const SPLITS_PLANNED: &str = "splitsPlanned";
/// Splits handed to readers, again after a return.
pub const SPLITS_ASSIGNED: &str = "splitsAssigned";
/// Splits that came back from lost readers.
pub const SPLITS_RETURNED: &str = "splitsReturned";
/// Splits waiting for a reader.
pub const UNASSIGNED_SPLITS: &str = "unassignedSplits";

/// Every name of a reader and of an enumerator, in that order.
pub const ALL: [&str; 7] = [
    BYTES_IN,
    RECORDS_SKIPPED,
    MALFORMED_LINES,
    SPLITS_PLANNED,
    SPLITS_ASSIGNED,
    SPLITS_RETURNED,
    UNASSIGNED_SPLITS,
];

/// A reader's metrics.
#[derive(Debug)]
pub(crate) struct ReaderMetrics {
    pub(crate) bytes_in: Counter,
    pub(crate) records_skipped: Counter,
    pub(crate) malformed_lines: Counter,
}

impl ReaderMetrics {
    pub(crate) fn new(group: &MetricGroup) -> Self {
        Self {
            bytes_in: group.counter(BYTES_IN),
            records_skipped: group.counter(RECORDS_SKIPPED),
            malformed_lines: group.counter(MALFORMED_LINES),
        }
    }
}

/// An enumerator's metrics.
#[derive(Debug)]
pub(crate) struct EnumeratorMetrics {
    pub(crate) planned: Counter,
    pub(crate) assigned: Counter,
    pub(crate) returned: Counter,
    pub(crate) unassigned: Gauge,
}

impl EnumeratorMetrics {
    pub(crate) fn new(group: &MetricGroup) -> Self {
        Self {
            planned: group.counter(SPLITS_PLANNED),
            assigned: group.counter(SPLITS_ASSIGNED),
            returned: group.counter(SPLITS_RETURNED),
            unassigned: group.gauge(UNASSIGNED_SPLITS),
        }
    }
}
