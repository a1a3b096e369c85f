//! The bulk sink: one row mutation a record, at least once, in bounded memory.
//!
//! | module | holds |
//! | --- | --- |
//! | `builder` | [`BigtableSink`] and its builder |
//! | `serializer` | what users supply |
//! | `failed` | what a failure handler sees |
//! | `writer` | user code in its order |
//! | `drive` | the driver: requests, time, passes, clients |
//! | `batch` | the request that a table's entries grow into |
//! | `request` | one request's attempts and verdicts |
//! | `order` | per-row order |
//! | `isolation`, `repair` | the two parks |
//! | `tables` | open tables and instances |
//! | `metrics` | names and counters |

mod batch;
mod builder;
mod drive;
mod failed;
mod isolation;
mod metrics;
mod order;
mod repair;
mod request;
mod serializer;
mod tables;
mod writer;

pub use builder::{BigtableSink, BigtableSinkBuilder, CreateDisposition, RowOrdering};
pub use failed::FailedMutation;
pub use serializer::{BoxError, DestinationResolver, Disposition, MutationSerializer};

/// The connector's stable identifier.
pub(crate) const CONNECTOR: &str = "bigtable";

/// Name and meaning of every metric that a writer registers when it starts, for documentation. Created on first use:
/// `errorClass.CODE.errors`, `retryClass.CODE.retries` and, if counted, `destination.TABLE.recordsSend` and
/// `.sendErrors`.
#[must_use]
pub fn metric_names() -> &'static [(&'static str, &'static str)] {
    metrics::NAMES
}
