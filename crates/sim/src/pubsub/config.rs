//! How simulated Pub/Sub is started: limits, bounds of what is kept, timing.
//!
//! What can change while it serves is set on [`Subscription`](crate::Subscription) and
//! [`Topic`](crate::Topic).

use std::time::Duration;

use crate::config::SchemaLag;

/// How simulated Pub/Sub behaves from the start.
///
/// All fields are public and independent; start from [`PubSubConfig::default`].
#[derive(Debug, Clone)]
pub struct PubSubConfig {
    /// The service's limits. Default: the documented ones.
    pub limits: PubSubLimits,
    /// Characters of an ack id. Default: 176, what the service was seen to use; up to 210 have been.
    pub ack_id_bytes: usize,
    /// How long a stream of protocol version 1 stays silent before an empty response. Default: 30 s.
    pub heartbeat_interval: Duration,
    /// How long a unary `Pull` waits for a first message, in real time. Default: 5 s.
    pub pull_wait: Duration,
    /// When a topic created over RPC accepts messages. Default: at once.
    pub topic_lag: SchemaLag,
    /// Messages that a topic keeps for inspection. Default: 100,000. Older ones are forgotten first.
    pub kept_messages: usize,
    /// Bytes of messages that a topic keeps for inspection. Default: 64 MiB.
    pub kept_bytes: usize,
    /// Messages whose deliveries a subscription remembers. Default: 1,000,000.
    pub tracked_messages: usize,
    /// Seeds the order of delivery and the jitter of dead-lettering. Default: 0.
    pub seed: u64,
}

impl Default for PubSubConfig {
    fn default() -> Self {
        Self {
            limits: PubSubLimits::default(),
            ack_id_bytes: 176,
            heartbeat_interval: Duration::from_secs(30),
            pull_wait: Duration::from_secs(5),
            topic_lag: SchemaLag::None,
            kept_messages: 100_000,
            kept_bytes: 64 << 20,
            tracked_messages: 1_000_000,
            seed: 0,
        }
    }
}

/// Limits of Pub/Sub. Lower them to meet one with little data.
#[derive(Debug, Clone)]
pub struct PubSubLimits {
    /// Messages of one `Publish`. Documented: 1,000.
    pub messages_per_publish: usize,
    /// Bytes of one `Publish`. Documented: 10 MB; the default is 10 MiB and a little for the rest
    /// of the request, so that a message of the largest size can be sent.
    pub publish_bytes: usize,
    /// Bytes of the data of a message. Documented: 10 MB; default 10 MiB.
    pub message_bytes: usize,
    /// Attributes of a message. Documented: 100.
    pub attributes: usize,
    /// Bytes of an attribute key. Documented: 256.
    pub attribute_key_bytes: usize,
    /// Bytes of an attribute value. Documented: 1,024.
    pub attribute_value_bytes: usize,
    /// Bytes of an ordering key. Documented: 1 KB; default 1,024.
    pub ordering_key_bytes: usize,
    /// Bytes of an `Acknowledge` or `ModifyAckDeadline`. Documented: 524,288.
    pub acknowledge_bytes: usize,
    /// Bytes of a filter. Documented: 256.
    pub filter_bytes: usize,
}

impl Default for PubSubLimits {
    fn default() -> Self {
        Self {
            messages_per_publish: 1_000,
            publish_bytes: (10 << 20) + (64 << 10),
            message_bytes: 10 << 20,
            attributes: 100,
            attribute_key_bytes: 256,
            attribute_value_bytes: 1_024,
            ordering_key_bytes: 1_024,
            acknowledge_bytes: 524_288,
            filter_bytes: 256,
        }
    }
}
