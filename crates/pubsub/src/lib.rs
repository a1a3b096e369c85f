//! Pub/Sub: the source with its lease keeper, the sink, the dead-letter queue, on our own data plane.
//!
//! | module | holds |
//! | --- | --- |
//! | [`source`] | the source, its builder, what users supply |
//! | [`source_options`] | the source's options, declared once |
//! | [`sink`] | the sink, its builder, what users supply |
//! | [`sink_options`] | the sink's options, declared once |
//! | [`deadletter`] | the dead-letter queue, for the sinks of every connector |
//! | [`message`] | messages to publish, field by field |
//! | [`publisher`] | publishing by hand, for tools and tests |
//! | [`destination`] | topic and subscription addresses |
//! | [`table`](mod@table) | tables of SQL |

#![forbid(unsafe_code)]

mod client;
pub mod deadletter;
pub mod destination;
pub mod message;
pub mod publisher;
pub mod sink;
pub mod sink_options;
pub mod source;
pub mod source_options;
pub mod table;

pub use deadletter::{
    DeadLetterBound, DeadLetterPublisher, PubSubDeadLetterQueue, PubSubDeadLetterQueueBuilder,
};
pub use destination::{SubscriptionDestination, TopicDestination};
pub use message::Message;
pub use publisher::Publisher;
pub use sink::{CreateDisposition, FailedMessage, PubSubSerializer, PubSubSink, PubSubSinkBuilder};
pub use sink_options::{PublisherOptions, TopicCreateOptions};
pub use source::{
    MessageDeserializer, PubSubSource, PubSubSourceBuilder, ReceivedMessage, SubscriberOptions,
    SubscriptionCreateOptions,
};
