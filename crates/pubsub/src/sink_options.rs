//! The sink's options, each declared once, and the values a writer runs with.
//!
//! Defaults of batching are the official Rust client's (PS-SINK-01); those of retries and bounds come with the
//! declarations below. What can never work is refused by `build`, what merely costs is warned about.

use std::num::NonZeroU64;
use std::time::Duration;

use aqueduct_connector::options::{
    ByteSize, ConfigError, Declaration, Default as Initially, Opt, OptionValue, TextOpt,
    reference_page,
};
use tracing::warn;

use crate::destination;

/// What the service takes in one request (PS-WIRE-01).
pub(crate) const MAX_REQUEST_MESSAGES: u64 = 1_000;
pub(crate) const MAX_REQUEST_BYTES: u64 = 10_000_000;

/// Waits are handled in nanoseconds of a signed 64-bit number: about 292 years.
const MAX_DURATION: Duration = Duration::from_nanos(i64::MAX as u64);
const MILLI: Duration = Duration::from_millis(1);

/// Messages that make a batch leave.
pub const BATCH_ELEMENT_COUNT: Opt<u64> = Opt::new(
    "sink.batching.element-count-threshold",
    "Messages of one topic, or of one ordering key of it, that make a batch leave. A batch leaves on the first of: this \
     count, the byte threshold, the delay, a flush, a writer at its bounds. Above 1,000 it acts as 1,000, the service's \
     limit.",
)
.default(Initially::Ours(100))
.at_least(1)
.unit("messages")
.builder("PublisherOptions::batch_element_count_threshold");

/// Bytes that make a batch leave.
pub const BATCH_REQUEST_BYTES: Opt<ByteSize> = Opt::new(
    "sink.batching.request-byte-threshold",
    "Encoded bytes of a request that make it leave. A message that would carry it past them sends it first, and one that \
     large alone travels alone. Above 10,000,000 bytes it acts as that, the service's limit.",
)
.default(Initially::Ours(ByteSize(1_000_000)))
.at_least(ByteSize(1))
.builder("PublisherOptions::batch_request_byte_threshold");

/// How long a batch waits for company.
pub const BATCH_DELAY: Opt<Duration> = Opt::new(
    "sink.batching.delay-threshold",
    "How long after its first message a batch leaves at the latest.",
)
.default(Initially::Ours(Duration::from_millis(10)))
.at_least(Duration::from_nanos(1))
.at_most(MAX_DURATION)
.builder("PublisherOptions::batch_delay_threshold");

/// How long a request is retried.
pub const RETRY_TOTAL_TIMEOUT: Opt<Duration> = Opt::new(
    "sink.retry.total-timeout",
    "How long a request is tried, from its first attempt; 0 leaves the bound to the attempts. With message ordering \
     retries have no limit of their own, and setting this is refused.",
)
.default(Initially::Ours(Duration::from_secs(600)))
.at_most(MAX_DURATION)
.builder("PublisherOptions::retry_total_timeout");

/// Bound of the first delay between attempts.
pub const RETRY_INITIAL_DELAY: Opt<Duration> = Opt::new(
    "sink.retry.initial-delay",
    "Bound of the wait after the first attempt; the wait is drawn evenly from zero to the bound.",
)
.default(Initially::Ours(Duration::from_millis(100)))
.at_most(MAX_DURATION)
.builder("PublisherOptions::retry_initial_delay");

/// Growth of that bound.
pub const RETRY_DELAY_MULTIPLIER: Opt<f64> = Opt::new(
    "sink.retry.delay-multiplier",
    "How much the bound of the wait grows with each attempt.",
)
.default(Initially::Ours(4.0))
.at_least(1.0)
.builder("PublisherOptions::retry_delay_multiplier");

/// Largest bound of a delay.
pub const RETRY_MAX_DELAY: Opt<Duration> = Opt::new(
    "sink.retry.max-delay",
    "Largest bound of the wait between attempts; 0 is no wait.",
)
.default(Initially::Ours(Duration::from_secs(60)))
.at_most(MAX_DURATION)
.builder("PublisherOptions::retry_max_delay");

/// Deadline of the first attempt.
pub const RETRY_INITIAL_RPC_TIMEOUT: Opt<Duration> = Opt::new(
    "sink.retry.initial-rpc-timeout",
    "How long the first attempt may take; 0 is no limit. An attempt never lasts past the total timeout.",
)
.default(Initially::Ours(Duration::from_secs(5)))
.at_most(MAX_DURATION)
.builder("PublisherOptions::retry_initial_rpc_timeout");

/// Growth of that deadline.
pub const RETRY_RPC_TIMEOUT_MULTIPLIER: Opt<f64> = Opt::new(
    "sink.retry.rpc-timeout-multiplier",
    "How much longer each further attempt may take.",
)
.default(Initially::Ours(4.0))
.at_least(1.0)
.builder("PublisherOptions::retry_rpc_timeout_multiplier");

/// Longest deadline of an attempt.
pub const RETRY_MAX_RPC_TIMEOUT: Opt<Duration> = Opt::new(
    "sink.retry.max-rpc-timeout",
    "The longest that an attempt may take; 0 lets it grow without this bound.",
)
.default(Initially::Ours(Duration::from_secs(60)))
.at_most(MAX_DURATION)
.builder("PublisherOptions::retry_max_rpc_timeout");

/// Attempts of a request.
pub const RETRY_MAX_ATTEMPTS: Opt<u32> = Opt::new(
    "sink.retry.max-attempts",
    "Attempts of a request, the first included; 0 is no bound. With 0 here and a total timeout of 0 there is one attempt. \
     With message ordering setting this is refused.",
)
.default(Initially::Ours(0))
.unit("attempts")
.builder("PublisherOptions::retry_max_attempts");

/// Whether ordering keys are taken.
pub const MESSAGE_ORDERING: Opt<bool> = Opt::new(
    "sink.message-ordering.enabled",
    "Takes ordering keys: the messages of a key leave in order, one request at a time, and requests are retried until \
     'sink.publish-progress-timeout'. Without it a message with a key fails the job.",
)
.default(Initially::Ours(false))
.builder("PublisherOptions::enable_message_ordering");

/// Unacknowledged messages a writer holds.
pub const MAX_IN_FLIGHT_MESSAGES: Opt<u64> = Opt::new(
    "sink.in-flight.max-messages",
    "Messages of a writer that are neither published nor given up, over all its topics: batched, in flight, between \
     attempts, held or waiting for a repair. At the bound the stream is held back.",
)
.default(Initially::Ours(1_000))
.at_least(1)
.unit("messages")
.builder("PublisherOptions::max_in_flight_messages");

/// Unacknowledged bytes a writer holds.
pub const MAX_IN_FLIGHT_BYTES: Opt<ByteSize> = Opt::new(
    "sink.in-flight.max-bytes",
    "Encoded bytes of those messages. A larger single message is admitted while the writer is below the bound.",
)
.default(Initially::Ours(ByteSize::mib(64)))
.at_least(ByteSize(1))
.builder("PublisherOptions::max_in_flight_bytes");

/// How long nothing may complete.
pub const PUBLISH_PROGRESS_TIMEOUT: Opt<Duration> = Opt::new(
    "sink.publish-progress-timeout",
    "How long a wait for publishes may go without a single completion before the job fails. Bounds the absence of \
     progress, not the wait. A tenth of it, at most a minute, without a completion is warned about.",
)
.default(Initially::Ours(Duration::from_secs(600)))
.at_least(Duration::from_nanos(1))
.at_most(MAX_DURATION)
.builder("PublisherOptions::publish_progress_timeout");

/// First wait of a repair.
pub const RECOVERY_INITIAL_BACKOFF: Opt<Duration> = Opt::new(
    "sink.recovery.initial-backoff",
    "Wait after the first attempt to repair a missing topic; doubles with each, give or take a quarter.",
)
.default(Initially::Ours(Duration::from_millis(500)))
.at_least(MILLI)
.at_most(MAX_DURATION)
.builder("PublisherOptions::recovery_initial_backoff");

/// Longest wait of a repair.
pub const RECOVERY_MAX_BACKOFF: Opt<Duration> = Opt::new(
    "sink.recovery.max-backoff",
    "Longest wait between two attempts of a repair; not below the initial one.",
)
.default(Initially::Ours(Duration::from_secs(10)))
.at_least(MILLI)
.at_most(MAX_DURATION)
.builder("PublisherOptions::recovery_max_backoff");

/// Attempts of a repair.
pub const RECOVERY_MAX_ATTEMPTS: Opt<u32> = Opt::new(
    "sink.recovery.max-attempts",
    "Attempts to repair a topic, the first included.",
)
.default(Initially::Ours(10))
.at_least(1)
.unit("attempts")
.builder("PublisherOptions::recovery_max_attempts");

/// Rejections in a row that fail the job.
pub const MAX_CONSECUTIVE_REJECTIONS: Opt<i64> = Opt::new(
    "sink.max-consecutive-rejections",
    "Messages that the service refused in a row, each sent alone, with none published between them, that fail the job \
     under a dropping policy; -1 removes the bound.",
)
.default(Initially::Ours(100))
.at_least(-1)
.unit("rejections")
.builder("PublisherOptions::max_consecutive_rejections");

/// Topics a writer keeps open.
pub const MAX_ACTIVE_PUBLISHERS: Opt<u64> = Opt::new(
    "sink.max-active-publishers",
    "Topics that a writer keeps open. Beyond it the topic longest without a record and with nothing pending is given up; \
     if each has something pending, all are drained first.",
)
.default(Initially::Ours(100))
.at_least(1)
.unit("topics")
.builder("PublisherOptions::max_active_publishers");

/// How long an unused topic stays open.
pub const DESTINATION_IDLE_TIMEOUT: Opt<Duration> = Opt::new(
    "sink.destination-idle-timeout",
    "A topic without a record for longer than this is given up after a checkpoint's flush; the next record opens it again.",
)
.default(Initially::Ours(Duration::from_secs(3_600)))
.at_least(Duration::from_nanos(1))
.at_most(MAX_DURATION)
.builder("PublisherOptions::destination_idle_timeout");

/// How long a close waits.
pub const SHUTDOWN_TIMEOUT: Opt<Duration> = Opt::new(
    "sink.shutdown-timeout",
    "How long a close waits for the answers to requests in flight, all together; then they are abandoned, with a warning.",
)
.default(Initially::Ours(Duration::from_secs(30)))
.at_least(Duration::from_nanos(1))
.at_most(MAX_DURATION)
.builder("PublisherOptions::shutdown_timeout");

/// Connections of a writer.
pub const CHANNELS: Opt<u32> = Opt::new(
    "sink.channels",
    "HTTP/2 connections of a writer, shared by all its topics, 100 requests each. A distant service limits what one \
     connection carries by its own windows; more connections are the remedy.",
)
.default(Initially::Ours(2))
.at_least(1)
.at_most(64)
.unit("connections")
.builder("PublisherOptions::channels");

/// Counters a topic.
pub const PER_DESTINATION_METRICS: Opt<bool> = Opt::new(
    "sink.metrics.per-destination",
    "Counts sent and rejected messages of each topic too. Metrics are never unregistered: only for few, known topics.",
)
.default(Initially::Ours(false))
.builder("PublisherOptions::per_destination_metrics");

/// Whether missing topics are created.
pub const CREATE_DISPOSITION: TextOpt = TextOpt::new(
    "sink.create-disposition",
    "'create-if-needed' creates a topic that a publish finds missing; 'create-never' fails the job over it.",
)
.default(Initially::Ours("create-if-needed"))
.builder("create_disposition");

/// Retention of created topics.
pub const MESSAGE_RETENTION: Opt<Duration> = Opt::new(
    "sink.auto-create.message-retention",
    "How long a created topic keeps published messages, which lets a later subscription read from before its creation.",
)
.default(Initially::Unset("none"))
.at_least(Duration::from_nanos(1))
.at_most(MAX_DURATION)
.builder("TopicCreateOptions::message_retention");

/// Key of created topics.
pub const KMS_KEY_NAME: TextOpt = TextOpt::new(
    "sink.auto-create.kms-key-name",
    "Full resource path of the Cloud KMS key that protects a created topic.",
)
.default(Initially::Unset("the service's own encryption"))
.builder("TopicCreateOptions::kms_key_name");

/// Where created topics keep messages.
pub const ALLOWED_REGIONS: TextOpt = TextOpt::new(
    "sink.auto-create.storage-policy.allowed-regions",
    "Regions in which a created topic may keep messages.",
)
.default(Initially::Unset("the project's policy"))
.builder("TopicCreateOptions::allowed_persistence_regions");

/// Whether the regions bind in transit too.
pub const ENFORCE_IN_TRANSIT: Opt<bool> = Opt::new(
    "sink.auto-create.storage-policy.enforce-in-transit",
    "Binds publishing and delivery to the allowed regions too; needs the regions.",
)
.default(Initially::Unset("off"))
.builder("TopicCreateOptions::enforce_in_transit");

/// The key file.
pub const SERVICE_ACCOUNT_KEY_FILE: TextOpt = TextOpt::new(
    "service-account-key-file",
    "Path of a service account's JSON key on every worker, read once when a writer starts. Excludes 'emulator-endpoint'.",
)
.default(Initially::Unset("application-default credentials"))
.builder("service_account_key_file");

/// The emulator.
pub const EMULATOR_ENDPOINT: TextOpt = TextOpt::new(
    "emulator-endpoint",
    "`host:port` of a Pub/Sub emulator, spoken to in plain text without credentials. Never for production; \
     PUBSUB_EMULATOR_HOST is not read.",
)
.default(Initially::Unset("the production service"))
.builder("emulator_endpoint");

/// All options of the sink, in the order of the reference page.
#[must_use]
pub fn declarations() -> Vec<Declaration> {
    vec![
        destination::PROJECT.declaration(),
        destination::TOPIC.declaration(),
        SERVICE_ACCOUNT_KEY_FILE.declaration(),
        EMULATOR_ENDPOINT.declaration(),
        CREATE_DISPOSITION.declaration(),
        MESSAGE_RETENTION.declaration(),
        KMS_KEY_NAME.declaration(),
        ALLOWED_REGIONS.declaration(),
        ENFORCE_IN_TRANSIT.declaration(),
        BATCH_ELEMENT_COUNT.declaration(),
        BATCH_REQUEST_BYTES.declaration(),
        BATCH_DELAY.declaration(),
        RETRY_TOTAL_TIMEOUT.declaration(),
        RETRY_INITIAL_DELAY.declaration(),
        RETRY_DELAY_MULTIPLIER.declaration(),
        RETRY_MAX_DELAY.declaration(),
        RETRY_INITIAL_RPC_TIMEOUT.declaration(),
        RETRY_RPC_TIMEOUT_MULTIPLIER.declaration(),
        RETRY_MAX_RPC_TIMEOUT.declaration(),
        RETRY_MAX_ATTEMPTS.declaration(),
        MESSAGE_ORDERING.declaration(),
        MAX_IN_FLIGHT_MESSAGES.declaration(),
        MAX_IN_FLIGHT_BYTES.declaration(),
        PUBLISH_PROGRESS_TIMEOUT.declaration(),
        RECOVERY_INITIAL_BACKOFF.declaration(),
        RECOVERY_MAX_BACKOFF.declaration(),
        RECOVERY_MAX_ATTEMPTS.declaration(),
        MAX_CONSECUTIVE_REJECTIONS.declaration(),
        MAX_ACTIVE_PUBLISHERS.declaration(),
        DESTINATION_IDLE_TIMEOUT.declaration(),
        SHUTDOWN_TIMEOUT.declaration(),
        CHANNELS.declaration(),
        PER_DESTINATION_METRICS.declaration(),
    ]
}

/// The generated reference page of the sink's options.
#[must_use]
pub fn sink_reference() -> String {
    reference_page(
        "Pub/Sub sink: options",
        "Generated from the declarations; edit those. *Builder* names the setter of the Rust API, on \
         `PubSubSinkBuilder` where no type is given.",
        &declarations(),
    )
}

/// How requests are tried again (PS-SINK-18, -19).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RetryOptions {
    /// Zero leaves the bound to the attempts.
    pub(crate) total_timeout: Duration,
    pub(crate) initial_delay: Duration,
    pub(crate) delay_multiplier: f64,
    pub(crate) max_delay: Duration,
    /// Zero is no limit.
    pub(crate) initial_rpc_timeout: Duration,
    pub(crate) rpc_timeout_multiplier: f64,
    /// Zero is no bound.
    pub(crate) max_rpc_timeout: Duration,
    /// Zero is no bound.
    pub(crate) max_attempts: u32,
    /// Message ordering is on: retried without a limit of its own.
    pub(crate) unlimited: bool,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            total_timeout: RETRY_TOTAL_TIMEOUT.ours(),
            initial_delay: RETRY_INITIAL_DELAY.ours(),
            delay_multiplier: RETRY_DELAY_MULTIPLIER.ours(),
            max_delay: RETRY_MAX_DELAY.ours(),
            initial_rpc_timeout: RETRY_INITIAL_RPC_TIMEOUT.ours(),
            rpc_timeout_multiplier: RETRY_RPC_TIMEOUT_MULTIPLIER.ours(),
            max_rpc_timeout: RETRY_MAX_RPC_TIMEOUT.ours(),
            max_attempts: RETRY_MAX_ATTEMPTS.ours(),
            unlimited: false,
        }
    }
}

/// How a writer batches, bounds, retries and recovers. Every value is checked when the sink is built.
#[derive(Clone, Debug, PartialEq)]
pub struct PublisherOptions {
    pub(crate) batch_messages: u64,
    pub(crate) batch_bytes: ByteSize,
    pub(crate) batch_delay: Duration,
    retry: RetryOptions,
    retry_total_timeout: Option<Duration>,
    retry_max_attempts: Option<u32>,
    pub(crate) ordering: bool,
    pub(crate) max_in_flight_messages: u64,
    pub(crate) max_in_flight_bytes: ByteSize,
    pub(crate) publish_progress_timeout: Duration,
    pub(crate) recovery_initial_backoff: Duration,
    pub(crate) recovery_max_backoff: Duration,
    pub(crate) recovery_max_attempts: u32,
    pub(crate) max_consecutive_rejections: i64,
    pub(crate) max_active_publishers: u64,
    pub(crate) destination_idle_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) channels: u32,
    pub(crate) per_destination_metrics: bool,
}

impl Default for PublisherOptions {
    fn default() -> Self {
        Self {
            batch_messages: BATCH_ELEMENT_COUNT.ours(),
            batch_bytes: BATCH_REQUEST_BYTES.ours(),
            batch_delay: BATCH_DELAY.ours(),
            retry: RetryOptions::default(),
            retry_total_timeout: None,
            retry_max_attempts: None,
            ordering: MESSAGE_ORDERING.ours(),
            max_in_flight_messages: MAX_IN_FLIGHT_MESSAGES.ours(),
            max_in_flight_bytes: MAX_IN_FLIGHT_BYTES.ours(),
            publish_progress_timeout: PUBLISH_PROGRESS_TIMEOUT.ours(),
            recovery_initial_backoff: RECOVERY_INITIAL_BACKOFF.ours(),
            recovery_max_backoff: RECOVERY_MAX_BACKOFF.ours(),
            recovery_max_attempts: RECOVERY_MAX_ATTEMPTS.ours(),
            max_consecutive_rejections: MAX_CONSECUTIVE_REJECTIONS.ours(),
            max_active_publishers: MAX_ACTIVE_PUBLISHERS.ours(),
            destination_idle_timeout: DESTINATION_IDLE_TIMEOUT.ours(),
            shutdown_timeout: SHUTDOWN_TIMEOUT.ours(),
            channels: CHANNELS.ours(),
            per_destination_metrics: PER_DESTINATION_METRICS.ours(),
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($value:ident: $kind:ty) => $($field:ident).+;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $name(mut self, $value: $kind) -> Self {
                self.$($field).+ = $value;
                self
            }
        )*
    };
}

impl PublisherOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Messages that make a batch leave: at least 1, by default 100; above 1,000 it acts as 1,000
        /// (`sink.batching.element-count-threshold`).
        batch_element_count_threshold(messages: u64) => batch_messages;
        /// Bytes of a request that make it leave: at least 1, by default 1,000,000; above 10,000,000 it acts as that
        /// (`sink.batching.request-byte-threshold`).
        batch_request_byte_threshold(bytes: ByteSize) => batch_bytes;
        /// How long after its first message a batch leaves at the latest: above 0, by default 10 ms
        /// (`sink.batching.delay-threshold`).
        batch_delay_threshold(delay: Duration) => batch_delay;
        /// Bound of the wait after the first attempt: 0 or at least 1 ms, by default 100 ms (`sink.retry.initial-delay`).
        retry_initial_delay(delay: Duration) => retry.initial_delay;
        /// Growth of that bound: at least 1, by default 4 (`sink.retry.delay-multiplier`).
        retry_delay_multiplier(factor: f64) => retry.delay_multiplier;
        /// Largest bound of the wait: 0 (no wait) or at least 1 ms, by default 60 s (`sink.retry.max-delay`).
        retry_max_delay(delay: Duration) => retry.max_delay;
        /// How long the first attempt may take: 0 (no limit) or at least 1 ms, by default 5 s
        /// (`sink.retry.initial-rpc-timeout`).
        retry_initial_rpc_timeout(limit: Duration) => retry.initial_rpc_timeout;
        /// Growth of that limit: at least 1, by default 4 (`sink.retry.rpc-timeout-multiplier`).
        retry_rpc_timeout_multiplier(factor: f64) => retry.rpc_timeout_multiplier;
        /// The longest that an attempt may take: 0 (no bound) or at least 1 ms, by default 60 s
        /// (`sink.retry.max-rpc-timeout`).
        retry_max_rpc_timeout(limit: Duration) => retry.max_rpc_timeout;
        /// Takes ordering keys and keeps their order; by default off (`sink.message-ordering.enabled`). Excludes the two
        /// retry limits, which it lifts.
        enable_message_ordering(enabled: bool) => ordering;
        /// Unacknowledged messages of the writer: at least 1, by default 1,000 (`sink.in-flight.max-messages`).
        max_in_flight_messages(messages: u64) => max_in_flight_messages;
        /// Unacknowledged bytes of the writer: at least 1, by default 64 MiB (`sink.in-flight.max-bytes`).
        max_in_flight_bytes(bytes: ByteSize) => max_in_flight_bytes;
        /// How long a wait may go without a completion: above 0, by default 600 s (`sink.publish-progress-timeout`).
        publish_progress_timeout(limit: Duration) => publish_progress_timeout;
        /// Wait after a repair's first attempt: at least 1 ms, by default 500 ms (`sink.recovery.initial-backoff`).
        recovery_initial_backoff(wait: Duration) => recovery_initial_backoff;
        /// Longest wait between a repair's attempts: not below the initial one, by default 10 s
        /// (`sink.recovery.max-backoff`).
        recovery_max_backoff(wait: Duration) => recovery_max_backoff;
        /// A repair's attempts: at least 1, by default 10 (`sink.recovery.max-attempts`).
        recovery_max_attempts(attempts: u32) => recovery_max_attempts;
        /// Topics kept open: at least 1, by default 100 (`sink.max-active-publishers`).
        max_active_publishers(topics: u64) => max_active_publishers;
        /// How long an unused topic stays open: above 0, by default 1 h (`sink.destination-idle-timeout`).
        destination_idle_timeout(idle: Duration) => destination_idle_timeout;
        /// How long a close waits for answers: above 0, by default 30 s (`sink.shutdown-timeout`).
        shutdown_timeout(limit: Duration) => shutdown_timeout;
        /// HTTP/2 connections of the writer: 1 to 64, by default 2 (`sink.channels`).
        channels(connections: u32) => channels;
        /// Counts each topic's messages too; by default off (`sink.metrics.per-destination`).
        per_destination_metrics(counted: bool) => per_destination_metrics;
    }

    /// How long a request is tried: 0 (the attempts bound it) or at least 1 ms, by default 600 s
    /// (`sink.retry.total-timeout`). Refused with message ordering.
    #[must_use]
    pub fn retry_total_timeout(mut self, limit: Duration) -> Self {
        self.retry_total_timeout = Some(limit);
        self
    }

    /// Attempts of a request; `None`, the default, is no bound (`sink.retry.max-attempts`). Refused with message
    /// ordering.
    #[must_use]
    pub fn retry_max_attempts(mut self, attempts: Option<std::num::NonZeroU32>) -> Self {
        self.retry_max_attempts = Some(attempts.map_or(0, std::num::NonZeroU32::get));
        self
    }

    /// Rejections in a row that fail the job; `None` is no bound. By default 100 (`sink.max-consecutive-rejections`).
    #[must_use]
    pub fn max_consecutive_rejections(mut self, rejections: Option<NonZeroU64>) -> Self {
        self.max_consecutive_rejections =
            rejections.map_or(-1, |bound| i64::try_from(bound.get()).unwrap_or(i64::MAX));
        self
    }

    /// The retry policy, explicit limits filled in.
    pub(crate) fn retry(&self) -> RetryOptions {
        RetryOptions {
            total_timeout: self.retry_total_timeout.unwrap_or(self.retry.total_timeout),
            max_attempts: self.retry_max_attempts.unwrap_or(self.retry.max_attempts),
            unlimited: self.ordering,
            ..self.retry
        }
    }

    /// Messages that make a batch leave: what fills the writer's bound leaves anyhow.
    pub(crate) fn batch_messages(&self) -> usize {
        let most = MAX_REQUEST_MESSAGES.min(self.max_in_flight_messages);
        to_usize(self.batch_messages.min(most))
    }

    /// Bytes that make a batch leave.
    pub(crate) fn batch_bytes(&self) -> usize {
        to_usize(self.batch_bytes.0.min(MAX_REQUEST_BYTES))
    }

    /// Refuses what can never work and warns of what merely costs (PS-GEN-02).
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        BATCH_ELEMENT_COUNT.check(self.batch_messages)?;
        BATCH_REQUEST_BYTES.check(self.batch_bytes)?;
        BATCH_DELAY.check(self.batch_delay)?;
        let retry = self.retry();
        for (option, value) in [
            (&RETRY_TOTAL_TIMEOUT, retry.total_timeout),
            (&RETRY_INITIAL_DELAY, retry.initial_delay),
            (&RETRY_MAX_DELAY, retry.max_delay),
            (&RETRY_INITIAL_RPC_TIMEOUT, retry.initial_rpc_timeout),
            (&RETRY_MAX_RPC_TIMEOUT, retry.max_rpc_timeout),
        ] {
            zero_or_a_millisecond(option, value)?;
        }
        for (option, value) in [
            (&RETRY_DELAY_MULTIPLIER, retry.delay_multiplier),
            (&RETRY_RPC_TIMEOUT_MULTIPLIER, retry.rpc_timeout_multiplier),
        ] {
            if !value.is_finite() {
                return Err(ConfigError::invalid(
                    option.key(),
                    format!("{value} is no finite number"),
                ));
            }
            option.check(value)?;
        }
        RETRY_MAX_ATTEMPTS.check(retry.max_attempts)?;
        for (set, key) in [
            (
                self.retry_total_timeout.is_some(),
                RETRY_TOTAL_TIMEOUT.key(),
            ),
            (self.retry_max_attempts.is_some(), RETRY_MAX_ATTEMPTS.key()),
        ] {
            if self.ordering && set {
                return Err(ConfigError::Conflict {
                    first: MESSAGE_ORDERING.key(),
                    second: key,
                    reason: format!(
                        "with message ordering requests are retried until '{}', so the limit would be ignored; remove it",
                        PUBLISH_PROGRESS_TIMEOUT.key()
                    ),
                });
            }
        }
        MAX_IN_FLIGHT_MESSAGES.check(self.max_in_flight_messages)?;
        MAX_IN_FLIGHT_BYTES.check(self.max_in_flight_bytes)?;
        PUBLISH_PROGRESS_TIMEOUT.check(self.publish_progress_timeout)?;
        RECOVERY_INITIAL_BACKOFF.check(self.recovery_initial_backoff)?;
        RECOVERY_MAX_BACKOFF.check(self.recovery_max_backoff)?;
        self.check_backoffs()?;
        RECOVERY_MAX_ATTEMPTS.check(self.recovery_max_attempts)?;
        if MAX_CONSECUTIVE_REJECTIONS.check(self.max_consecutive_rejections)? == 0 {
            return Err(ConfigError::invalid(
                MAX_CONSECUTIVE_REJECTIONS.key(),
                "0 rejections would fail a job that has rejected nothing; use 1 or more, or -1 for no bound",
            ));
        }
        MAX_ACTIVE_PUBLISHERS.check(self.max_active_publishers)?;
        DESTINATION_IDLE_TIMEOUT.check(self.destination_idle_timeout)?;
        SHUTDOWN_TIMEOUT.check(self.shutdown_timeout)?;
        CHANNELS.check(self.channels)?;
        if self.batch_bytes > self.max_in_flight_bytes {
            warn!(
                option = BATCH_REQUEST_BYTES.key(),
                value = %self.batch_bytes,
                bound = MAX_IN_FLIGHT_BYTES.key(),
                "the byte threshold is above the bound of what may be in flight, so batches leave at that bound",
            );
        }
        Ok(())
    }

    /// Names only what was set (PS-GEN-02).
    fn check_backoffs(&self) -> Result<(), ConfigError> {
        let (initial, max) = (self.recovery_initial_backoff, self.recovery_max_backoff);
        if max >= initial {
            return Ok(());
        }
        if initial == RECOVERY_INITIAL_BACKOFF.ours() {
            return Err(ConfigError::invalid(
                RECOVERY_MAX_BACKOFF.key(),
                format!("{max:?} is below the wait after the first attempt, {initial:?}"),
            ));
        }
        if max == RECOVERY_MAX_BACKOFF.ours() {
            return Err(ConfigError::invalid(
                RECOVERY_INITIAL_BACKOFF.key(),
                format!("{initial:?} is above the longest wait, {max:?}"),
            ));
        }
        Err(ConfigError::Conflict {
            first: RECOVERY_INITIAL_BACKOFF.key(),
            second: RECOVERY_MAX_BACKOFF.key(),
            reason: format!(
                "the longest wait, {max:?}, is below the first, {initial:?}; raise the one or lower the other"
            ),
        })
    }
}

/// What a created topic is like; one object for every topic that a sink creates. Unset is the service's default.
///
/// Settings authorize nothing: the [disposition](crate::sink::CreateDisposition) does, and alone suffices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicCreateOptions {
    pub(crate) message_retention: Option<Duration>,
    pub(crate) kms_key_name: Option<String>,
    pub(crate) allowed_persistence_regions: Option<Vec<String>>,
    pub(crate) enforce_in_transit: Option<bool>,
}

impl TopicCreateOptions {
    /// The service's defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the topic keeps published messages: above 0 (`sink.auto-create.message-retention`).
    #[must_use]
    pub fn message_retention(mut self, span: Duration) -> Self {
        self.message_retention = Some(span);
        self
    }

    /// The Cloud KMS key by its full resource path (`sink.auto-create.kms-key-name`).
    #[must_use]
    pub fn kms_key_name(mut self, path: impl Into<String>) -> Self {
        self.kms_key_name = Some(path.into());
        self
    }

    /// Regions in which messages may be kept: at least one (`sink.auto-create.storage-policy.allowed-regions`).
    #[must_use]
    pub fn allowed_persistence_regions(
        mut self,
        regions: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.allowed_persistence_regions = Some(regions.into_iter().map(Into::into).collect());
        self
    }

    /// Whether the regions bind in transit too (`sink.auto-create.storage-policy.enforce-in-transit`); needs the regions.
    #[must_use]
    pub fn enforce_in_transit(mut self, enforced: bool) -> Self {
        self.enforce_in_transit = Some(enforced);
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if let Some(span) = self.message_retention {
            MESSAGE_RETENTION.check(span)?;
        }
        if let Some(path) = &self.kms_key_name {
            KMS_KEY_NAME.check(path)?;
        }
        match &self.allowed_persistence_regions {
            Some(regions) if regions.is_empty() => {
                return Err(ConfigError::invalid(
                    ALLOWED_REGIONS.key(),
                    "no region is named; name at least one or leave it unset",
                ));
            }
            Some(regions) => {
                for region in regions {
                    ALLOWED_REGIONS.check(region)?;
                }
            }
            None if self.enforce_in_transit.is_some() => {
                return Err(ConfigError::invalid(
                    ENFORCE_IN_TRANSIT.key(),
                    format!("it needs '{}'", ALLOWED_REGIONS.key()),
                ));
            }
            None => {}
        }
        Ok(())
    }
}

fn zero_or_a_millisecond(option: &Opt<Duration>, value: Duration) -> Result<(), ConfigError> {
    if !value.is_zero() && value < MILLI {
        return Err(ConfigError::invalid(
            option.key(),
            format!("{} is neither 0 nor at least 1 ms", value.show()),
        ));
    }
    option.check(value).map(drop)
}

pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
