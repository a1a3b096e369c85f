//! The sink: one message a record, at least once, in bounded memory.
//!
//! | module | holds |
//! | --- | --- |
//! | `builder` | [`PubSubSink`] and its builder |
//! | `serializer` | what users supply |
//! | `failed` | what a failure handler sees |
//! | `writer` | user code in its order |
//! | `drive` | the driver: requests, time, passes, close |
//! | `batch` | the request that messages grow into |
//! | `request` | one request's attempts |
//! | `topics` | open topics, their queues, who is given up |
//! | `progress` | the watch on waits |
//! | `error` | what a status means |
//! | `metrics` | names and counters |

pub(crate) mod batch;
mod builder;
mod drive;
pub(crate) mod error;
mod failed;
mod metrics;
mod progress;
pub(crate) mod request;
mod serializer;
mod topics;
mod writer;

pub use builder::{CreateDisposition, PubSubSink, PubSubSinkBuilder};
pub use failed::FailedMessage;
pub use serializer::{
    Attributes, BoxError, DestinationResolver, Disposition, MessageSerializer, PayloadSchema,
    PubSubSerializer,
};

/// The connector's stable identifier.
pub(crate) const CONNECTOR: &str = "pubsub";

/// Name and meaning of every metric that a writer registers when it starts, for documentation. Created on first use:
/// `errorClass.CODE.errors` and, if counted, `destination.TOPIC.recordsSend` and `.sendErrors`.
#[must_use]
pub fn metric_names() -> &'static [(&'static str, &'static str)] {
    metrics::NAMES
}
