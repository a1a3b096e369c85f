//! How a subscription can be told to behave, and what it tells of itself.

use std::time::{Duration, SystemTime};

use super::clock::Nanos;

/// What acknowledging an expired lease does on an ordinary subscription, before the message is
/// delivered again. Afterwards only the newest ack id counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateAcks {
    /// It works. The default.
    Work,
    /// It does nothing, silently, and the message returns.
    DoNothing,
}

/// Whether a stream answers the empty requests of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepaliveAnswers {
    /// With an empty response, if the client speaks protocol version 1. The default.
    Given,
    /// Never, as the official emulator does, which sends no heartbeats either.
    Withheld,
}

/// How an exactly-once subscription is scripted to fail an ack id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckFailure {
    /// `TRANSIENT_FAILURE_…`: may be tried again.
    Transient,
    /// `PERMANENT_FAILURE_INVALID_ACK_ID`: will never work.
    Permanent,
}

/// Totals of a subscription since its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SubscriptionCounts {
    /// Deliveries, redeliveries included.
    pub delivered: u64,
    /// Deliveries of a message delivered before.
    pub redelivered: u64,
    /// Acknowledgements that took effect.
    pub acked: u64,
    /// Acknowledgements that did nothing: a stale ack id, or a message acknowledged before.
    pub idle_acks: u64,
    /// Messages given back by their holder.
    pub nacked: u64,
    /// Leases that ran out.
    pub expired: u64,
    /// Lease extensions that took effect.
    pub extended: u64,
    /// Messages forwarded to the dead-letter topic.
    pub dead_lettered: u64,
    /// Unacknowledged messages lost to retention.
    pub expunged: u64,
    /// Streams opened.
    pub streams_opened: u64,
    /// Empty requests received on streams.
    pub keepalives: u64,
}

/// A lease, as a test sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Id of the message.
    pub message_id: String,
    /// When it ends, on the service's clock.
    pub expires: SystemTime,
    /// Whether the stream that received it is still open. False for unary pulls.
    pub stream_open: bool,
}

/// What can be set while the subscription serves.
pub(crate) struct Manners {
    pub(crate) shuffle: Option<fastrand::Rng>,
    pub(crate) messages_per_response: usize,
    pub(crate) late_acks: LateAcks,
    pub(crate) keepalives: KeepaliveAnswers,
    pub(crate) nack_delay: Nanos,
    pub(crate) seek_lag: Nanos,
    pub(crate) stream_lifetime: Option<Nanos>,
    pub(crate) closing_linger: Duration,
    pub(crate) dead_letter_granted: bool,
    pub(crate) dead_letter_jitter: Option<fastrand::Rng>,
    pub(crate) ack_failures: (u32, AckFailure),
}

impl Manners {
    pub(crate) fn new(shuffle: fastrand::Rng) -> Self {
        Self {
            shuffle: Some(shuffle),
            messages_per_response: 100,
            late_acks: LateAcks::Work,
            keepalives: KeepaliveAnswers::Given,
            nack_delay: 0,
            seek_lag: 0,
            stream_lifetime: None,
            closing_linger: Duration::ZERO,
            dead_letter_granted: true,
            dead_letter_jitter: None,
            ack_failures: (0, AckFailure::Transient),
        }
    }
}
