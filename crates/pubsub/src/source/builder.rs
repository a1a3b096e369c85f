//! [`PubSubSource`], its builder and its settings.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::options::{ByteSize, ConfigError};
use aqueduct_connector::source::{Boundedness, Source, SourceReader, SplitEnumerator};
use aqueduct_connector::{Context, Result, Timestamp, Versioned};

use super::create::SubscriptionCreateOptions;
use super::deserialize::MessageDeserializer;
use super::enumerator::Enumerator;
use super::reader::Reader;
use super::split::EnumeratorState;
use crate::client::Access;
use crate::destination::{SUBSCRIPTION, SubscriptionDestination};
use crate::source_options as options;

/// Whether messages of an ordering key keep their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderingMode {
    /// No order is promised.
    #[default]
    None,
    /// Publish order within a key, at the source's output: one split, one stream and one subtask a subscription.
    PerKey,
}

/// What becomes of a message that cannot be decoded. Records that it gave before stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeserializationFailurePolicy {
    /// Fails the job; the message stays unacknowledged, so a lasting fault fails each restart.
    #[default]
    Fail,
    /// Acknowledges and counts it.
    Drop,
    /// Returns it, so that the subscription's dead-letter policy ends it. A subscription without one is refused.
    Nack,
}

/// Whether subscriptions with exactly-once delivery are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExactlyOnceSubscriptions {
    /// Refuses them at the start.
    #[default]
    Reject,
    /// Reads them, confirming each lease before a message is emitted and each acknowledgement by id.
    Accept,
}

/// Where reading starts, on a fresh start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartPosition {
    /// Where the subscription is. The only one that does not seek.
    #[default]
    ContinueFromSubscription,
    /// At the oldest retained message.
    EarliestRetained,
    /// At what is published after the start; the backlog is dropped.
    Latest,
    /// At what was published after this time.
    Timestamp(Timestamp),
}

/// How messages are pulled, leased and bounded. Unset is the default of each option.
#[derive(Clone, Debug)]
pub struct SubscriberOptions {
    pub(super) flow_control_max_outstanding_element_count: u64,
    pub(super) flow_control_max_outstanding_request_bytes: ByteSize,
    pub(super) subscriber_buffer_max_messages: u64,
    pub(super) subscriber_buffer_max_bytes: ByteSize,
    pub(super) paused_split_buffer_max_messages: Option<u64>,
    pub(super) paused_split_buffer_max_bytes: Option<ByteSize>,
    pub(super) parallel_pull_count: u32,
    pub(super) max_ack_extension_period: Duration,
    pub(super) min_duration_per_ack_extension: Option<Duration>,
    pub(super) max_duration_per_ack_extension: Option<Duration>,
    pub(super) await_ack_confirmation: Option<Duration>,
    pub(super) shutdown_timeout: Duration,
    pub(super) max_records_per_fetch: usize,
    pub(super) first_checkpoint_timeout: Duration,
}

impl Default for SubscriberOptions {
    fn default() -> Self {
        Self {
            flow_control_max_outstanding_element_count: options::FLOW_CONTROL_MESSAGES.ours(),
            flow_control_max_outstanding_request_bytes: options::FLOW_CONTROL_BYTES.ours(),
            subscriber_buffer_max_messages: options::BUFFER_MESSAGES.ours(),
            subscriber_buffer_max_bytes: options::BUFFER_BYTES.ours(),
            paused_split_buffer_max_messages: None,
            paused_split_buffer_max_bytes: None,
            parallel_pull_count: options::PARALLEL_PULLS.ours(),
            max_ack_extension_period: options::MAX_EXTENSION_PERIOD.ours(),
            min_duration_per_ack_extension: None,
            max_duration_per_ack_extension: None,
            await_ack_confirmation: None,
            shutdown_timeout: options::SHUTDOWN_TIMEOUT.ours(),
            max_records_per_fetch: usize::try_from(options::MAX_RECORDS_PER_FETCH.ours())
                .unwrap_or(usize::MAX),
            first_checkpoint_timeout: options::FIRST_CHECKPOINT_TIMEOUT.ours(),
        }
    }
}

impl SubscriberOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Caps the messages of one split that are received and not yet acknowledged.
    ///
    /// - Default: 1,000. SQL: `scan.flow-control.max-outstanding-element-count`.
    ///
    /// It needs the peak rate times the checkpoint interval: the default saturates at 100 messages a second with an
    /// interval of 10 s.
    #[must_use]
    pub fn flow_control_max_outstanding_element_count(mut self, messages: NonZeroU64) -> Self {
        self.flow_control_max_outstanding_element_count = messages.get();
        self
    }

    /// Caps the same by encoded bytes.
    ///
    /// - Default: 100 MiB. SQL: `scan.flow-control.max-outstanding-request-bytes`.
    ///
    /// # Errors
    ///
    /// [`build`](PubSubSourceBuilder::build) refuses 0.
    #[must_use]
    pub fn flow_control_max_outstanding_request_bytes(mut self, bytes: ByteSize) -> Self {
        self.flow_control_max_outstanding_request_bytes = bytes;
        self
    }

    /// Caps the messages of one reader that are received and not yet emitted.
    ///
    /// - Default: 10,000. SQL: `scan.subscriber-buffer.max-messages`.
    #[must_use]
    pub fn subscriber_buffer_max_messages(mut self, messages: NonZeroU64) -> Self {
        self.subscriber_buffer_max_messages = messages.get();
        self
    }

    /// Caps the same by encoded bytes.
    ///
    /// - Default: 64 MiB. SQL: `scan.subscriber-buffer.max-bytes`.
    ///
    /// # Errors
    ///
    /// [`build`](PubSubSourceBuilder::build) refuses 0.
    #[must_use]
    pub fn subscriber_buffer_max_bytes(mut self, bytes: ByteSize) -> Self {
        self.subscriber_buffer_max_bytes = bytes;
        self
    }

    /// Caps what a paused split buffers before it is parked alone.
    ///
    /// - Default: only the reader's buffer. SQL: `scan.paused-split-buffer.max-messages`.
    #[must_use]
    pub fn paused_split_buffer_max_messages(mut self, messages: NonZeroU64) -> Self {
        self.paused_split_buffer_max_messages = Some(messages.get());
        self
    }

    /// Caps the same by encoded bytes.
    ///
    /// - Default: only the reader's buffer. SQL: `scan.paused-split-buffer.max-bytes`.
    ///
    /// # Errors
    ///
    /// [`build`](PubSubSourceBuilder::build) refuses 0.
    #[must_use]
    pub fn paused_split_buffer_max_bytes(mut self, bytes: ByteSize) -> Self {
        self.paused_split_buffer_max_bytes = Some(bytes);
        self
    }

    /// How many streams a split opens.
    ///
    /// - Default: 1. SQL: `scan.parallel-pull-count`.
    ///
    /// # Errors
    ///
    /// [`build`](PubSubSourceBuilder::build) refuses more than the element count, and more than 1 with
    /// [`OrderingMode::PerKey`].
    #[must_use]
    pub fn parallel_pull_count(mut self, streams: NonZeroU32) -> Self {
        self.parallel_pull_count = streams.get();
        self
    }

    /// How long a message's lease is extended after its receipt; zero disables extension.
    ///
    /// - Default: 1 h. SQL: `scan.ack.max-extension-period`.
    #[must_use]
    pub fn max_ack_extension_period(mut self, period: Duration) -> Self {
        self.max_ack_extension_period = period;
        self
    }

    /// Raises the length of one extension.
    ///
    /// - Default: 60 s. SQL: `scan.ack.min-duration-per-extension`.
    ///
    /// # Errors
    ///
    /// [`build`](PubSubSourceBuilder::build) refuses zero, and more than the maximum.
    #[must_use]
    pub fn min_duration_per_ack_extension(mut self, length: Duration) -> Self {
        self.min_duration_per_ack_extension = Some(length);
        self
    }

    /// Lowers the length of one extension.
    ///
    /// - Default: 60 s. SQL: `scan.ack.max-duration-per-extension`.
    ///
    /// # Errors
    ///
    /// [`build`](PubSubSourceBuilder::build) refuses zero.
    #[must_use]
    pub fn max_duration_per_ack_extension(mut self, length: Duration) -> Self {
        self.max_duration_per_ack_extension = Some(length);
        self
    }

    /// Fails the job if the acknowledgements of a completed checkpoint are refused or not answered within `limit`.
    /// Meanwhile the reader emits nothing.
    ///
    /// - Default: off. SQL: `scan.ack.await-confirmation`.
    ///
    /// # Errors
    ///
    /// [`build`](PubSubSourceBuilder::build) refuses less than 1 ms.
    #[must_use]
    pub fn await_ack_confirmation(mut self, limit: Duration) -> Self {
        self.await_ack_confirmation = Some(limit);
        self
    }

    /// How long a close, or the parking of a split, may take.
    ///
    /// - Default: 5 s. SQL: `scan.shutdown-timeout`.
    ///
    /// # Errors
    ///
    /// [`build`](PubSubSourceBuilder::build) refuses less than 1 ms.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    /// Caps the messages handed over at once.
    ///
    /// - Default: 1,000. SQL: `scan.max-records-per-fetch`.
    #[must_use]
    pub fn max_records_per_fetch(mut self, messages: NonZeroU64) -> Self {
        self.max_records_per_fetch = usize::try_from(messages.get()).unwrap_or(usize::MAX);
        self
    }

    /// Fails the job if messages are held and no checkpoint began so long after the first split came; zero disables it.
    ///
    /// - Default: 10 min. SQL: `scan.first-checkpoint-timeout`.
    #[must_use]
    pub fn first_checkpoint_timeout(mut self, timeout: Duration) -> Self {
        self.first_checkpoint_timeout = timeout;
        self
    }

    fn check(&self, mode: OrderingMode) -> Result<(), ConfigError> {
        options::FLOW_CONTROL_BYTES.check(self.flow_control_max_outstanding_request_bytes)?;
        options::BUFFER_BYTES.check(self.subscriber_buffer_max_bytes)?;
        if let Some(bytes) = self.paused_split_buffer_max_bytes {
            options::PAUSED_BUFFER_BYTES.check(bytes)?;
        }
        if u64::from(self.parallel_pull_count) > self.flow_control_max_outstanding_element_count {
            return Err(ConfigError::Conflict {
                first: options::PARALLEL_PULLS.key(),
                second: options::FLOW_CONTROL_MESSAGES.key(),
                reason: format!(
                    "{} streams cannot share {} messages; open fewer or allow more",
                    self.parallel_pull_count, self.flow_control_max_outstanding_element_count
                ),
            });
        }
        if self.parallel_pull_count > 1 && mode == OrderingMode::PerKey {
            return Err(ConfigError::Conflict {
                first: options::PARALLEL_PULLS.key(),
                second: options::ORDERING_MODE.key(),
                reason: format!(
                    "{} streams of one subscription would mix the order of a key; use 1",
                    self.parallel_pull_count
                ),
            });
        }
        options::MAX_EXTENSION_PERIOD.check(self.max_ack_extension_period)?;
        if let Some(least) = self.min_duration_per_ack_extension {
            options::MIN_EXTENSION.check(least)?;
        }
        if let Some(most) = self.max_duration_per_ack_extension {
            options::MAX_EXTENSION.check(most)?;
        }
        if let (Some(least), Some(most)) = (
            self.min_duration_per_ack_extension,
            self.max_duration_per_ack_extension,
        ) && least > most
        {
            return Err(ConfigError::Conflict {
                first: options::MIN_EXTENSION.key(),
                second: options::MAX_EXTENSION.key(),
                reason: format!("the least, {least:?}, is above the most, {most:?}"),
            });
        }
        if let Some(limit) = self.await_ack_confirmation {
            options::AWAIT_CONFIRMATION.check(limit)?;
        }
        options::SHUTDOWN_TIMEOUT.check(self.shutdown_timeout)?;
        let guard = options::FIRST_CHECKPOINT_TIMEOUT.check(self.first_checkpoint_timeout)?;
        if !guard.is_zero() && guard < Duration::from_millis(1) {
            return Err(ConfigError::invalid(
                options::FIRST_CHECKPOINT_TIMEOUT.key(),
                format!("{guard:?} is neither 0 nor at least 1 ms"),
            ));
        }
        Ok(())
    }
}

/// One subscription and how to create it.
#[derive(Clone, Debug)]
pub(super) struct Subscribed {
    pub(super) subscription: SubscriptionDestination,
    pub(super) create: Option<SubscriptionCreateOptions>,
}

/// What coordinator and readers share, checked.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) access: Access,
    pub(super) subscriptions: Vec<Subscribed>,
    pub(super) ordering: OrderingMode,
    pub(super) policy: DeserializationFailurePolicy,
    pub(super) start: StartPosition,
    pub(super) exactly_once: ExactlyOnceSubscriptions,
    pub(super) subscriber: SubscriberOptions,
    /// Whether the host decodes payloads itself and may reject records; each message then gives one.
    pub(super) rejects: bool,
}

type MakeDeserializer<T> = Arc<dyn Fn() -> Box<dyn MessageDeserializer<T>> + Send + Sync>;

/// Reads subscriptions: unbounded, at least once, acknowledging by checkpoints.
///
/// ```no_run
/// use aqueduct_connector::source::Collector;
/// use aqueduct_pubsub::SubscriptionDestination;
/// use aqueduct_pubsub::source::{PubSubSource, ReceivedMessage};
///
/// # fn main() -> aqueduct_connector::Result<()> {
/// let source = PubSubSource::<String>::builder()
///     .subscription(SubscriptionDestination::new("my-project", "orders-sub")?)
///     .deserializer(
///         |message: &ReceivedMessage, _: &SubscriptionDestination, out: &mut Collector<'_, String>| {
///             out.emit(String::from_utf8_lossy(message.data()).into_owned());
///             Ok(())
///         },
///     )
///     .build()?;
/// # let _ = source;
/// # Ok(())
/// # }
/// ```
pub struct PubSubSource<T> {
    settings: Arc<Settings>,
    deserializer: MakeDeserializer<T>,
}

impl<T> PubSubSource<T> {
    /// A builder; at least one subscription and `deserializer` are required.
    #[must_use]
    pub fn builder() -> PubSubSourceBuilder<T> {
        PubSubSourceBuilder::default()
    }
}

impl<T> Clone for PubSubSource<T> {
    fn clone(&self) -> Self {
        Self {
            settings: self.settings.clone(),
            deserializer: self.deserializer.clone(),
        }
    }
}

impl<T> fmt::Debug for PubSubSource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSubSource")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<T: 'static> Source<T> for PubSubSource<T> {
    fn connector(&self) -> &'static str {
        "pubsub"
    }

    fn boundedness(&self) -> Boundedness {
        Boundedness::Unbounded
    }

    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        let restored = restored.as_ref().map(EnumeratorState::decode).transpose()?;
        Ok(Box::new(Enumerator::new(
            self.settings.clone(),
            context,
            restored,
        )))
    }

    fn create_reader(&self, context: Context) -> Result<Box<dyn SourceReader<T>>> {
        let deserializer = (self.deserializer)();
        Ok(Box::new(Reader::new(
            self.settings.clone(),
            context,
            deserializer,
        )))
    }
}

/// Settings of a [`PubSubSource`]. Setters never fail; [`build`](Self::build) checks everything before any I/O.
pub struct PubSubSourceBuilder<T> {
    subscriptions: Vec<Subscribed>,
    deserializer: Option<MakeDeserializer<T>>,
    ordering: OrderingMode,
    policy: DeserializationFailurePolicy,
    start: StartPosition,
    exactly_once: ExactlyOnceSubscriptions,
    subscriber: SubscriberOptions,
    service_account_key_file: Option<String>,
    emulator_endpoint: Option<String>,
    rejects: bool,
}

impl<T> Default for PubSubSourceBuilder<T> {
    fn default() -> Self {
        Self {
            subscriptions: Vec::new(),
            deserializer: None,
            ordering: OrderingMode::default(),
            policy: DeserializationFailurePolicy::default(),
            start: StartPosition::default(),
            exactly_once: ExactlyOnceSubscriptions::default(),
            subscriber: SubscriberOptions::default(),
            service_account_key_file: None,
            emulator_endpoint: None,
            rejects: false,
        }
    }
}

impl<T> PubSubSourceBuilder<T> {
    /// Adds a subscription to read, which must exist.
    #[must_use]
    pub fn subscription(mut self, subscription: SubscriptionDestination) -> Self {
        self.subscriptions.push(Subscribed {
            subscription,
            create: None,
        });
        self
    }

    /// Adds a subscription to read, and creates it if it is missing.
    #[must_use]
    pub fn subscription_with(
        mut self,
        subscription: SubscriptionDestination,
        create: SubscriptionCreateOptions,
    ) -> Self {
        self.subscriptions.push(Subscribed {
            subscription,
            create: Some(create),
        });
        self
    }

    /// Adds subscriptions to read, which must exist.
    #[must_use]
    pub fn subscriptions(
        self,
        subscriptions: impl IntoIterator<Item = SubscriptionDestination>,
    ) -> Self {
        subscriptions.into_iter().fold(self, Self::subscription)
    }

    /// Makes records of messages. Required. Each reader works with a clone of it.
    #[must_use]
    pub fn deserializer<D>(mut self, deserializer: D) -> Self
    where
        D: MessageDeserializer<T> + Clone + Send + Sync + 'static,
    {
        self.deserializer = Some(Arc::new(move || Box::new(deserializer.clone())));
        self
    }

    /// Whether the messages of an ordering key keep their order. Default: they do not. SQL: `scan.ordering-mode`.
    #[must_use]
    pub fn ordering_mode(mut self, mode: OrderingMode) -> Self {
        self.ordering = mode;
        self
    }

    /// What becomes of undecodable messages. Default: the job fails. SQL: `scan.deserialization-failure-policy`.
    #[must_use]
    pub fn deserialization_failure_policy(mut self, policy: DeserializationFailurePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Where reading starts on a fresh start. Default: where the subscription is. SQL: `scan.startup.mode`.
    ///
    /// Every other position seeks the subscription, for all its consumers.
    #[must_use]
    pub fn start_position(mut self, start: StartPosition) -> Self {
        self.start = start;
        self
    }

    /// Whether subscriptions with exactly-once delivery are read. Default: they are refused at the start. SQL:
    /// `scan.exactly-once-subscriptions`.
    #[must_use]
    pub fn exactly_once_subscriptions(mut self, choice: ExactlyOnceSubscriptions) -> Self {
        self.exactly_once = choice;
        self
    }

    /// How messages are pulled, leased and bounded.
    #[must_use]
    pub fn subscriber_options(mut self, options: SubscriberOptions) -> Self {
        self.subscriber = options;
        self
    }

    /// Replaces application-default credentials by a key file. Coordinator and readers read it when they start, so the
    /// path must hold on every machine of the job.
    ///
    /// - SQL: `service-account-key-file`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses it beside an emulator endpoint.
    #[must_use]
    pub fn service_account_key_file(mut self, path: impl Into<String>) -> Self {
        self.service_account_key_file = Some(path.into());
        self
    }

    /// Reads an emulator at `host:port`, in plaintext and without credentials. Never for production.
    ///
    /// - SQL: `emulator-endpoint`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses what is no host and port.
    #[must_use]
    pub fn emulator_endpoint(mut self, address: impl Into<String>) -> Self {
        self.emulator_endpoint = Some(address.into());
        self
    }

    /// Lets the host reject records; see [`SourceReader::reject`].
    pub(crate) fn rejectable(mut self) -> Self {
        self.rejects = true;
        self
    }

    /// Checks every setting and makes the source. Does no I/O.
    ///
    /// # Errors
    ///
    /// The first setting that can never work, by the name of its option.
    pub fn build(self) -> Result<PubSubSource<T>> {
        let deserializer = self.deserializer.ok_or(ConfigError::Missing {
            option: "deserializer",
            what: "it makes records of messages",
        })?;
        if self.subscriptions.is_empty() {
            return Err(ConfigError::Missing {
                option: SUBSCRIPTION.key(),
                what: "at least one subscription to read",
            }
            .into());
        }
        for (at, one) in self.subscriptions.iter().enumerate() {
            let name = &one.subscription;
            let before = &self.subscriptions[..at];
            if before.iter().any(|other| other.subscription == *name) {
                let reason = format!("{name} is named twice");
                return Err(ConfigError::invalid(SUBSCRIPTION.key(), reason).into());
            }
            let Some(create) = &one.create else { continue };
            create.check()?;
            if self.ordering == OrderingMode::PerKey && !create.is_ordered() {
                return Err(ConfigError::Conflict {
                    first: options::ORDERING_MODE.key(),
                    second: options::CREATE_OPTIONS.key(),
                    reason: format!(
                        "{name} would be created without message ordering, which cannot be changed later; enable it"
                    ),
                }
                .into());
            }
            if self.policy == DeserializationFailurePolicy::Nack && !create.has_dead_letter_policy()
            {
                return Err(ConfigError::Conflict {
                    first: options::FAILURE_POLICY.key(),
                    second: options::CREATE_OPTIONS.key(),
                    reason: format!(
                        "{name} would be created without a dead-letter policy, so an undecodable message would come back \
                         for ever; set one"
                    ),
                }
                .into());
            }
        }
        self.subscriber.check(self.ordering)?;
        let access = Access::new(
            self.service_account_key_file.as_deref(),
            self.emulator_endpoint.as_deref(),
        )?;
        Ok(PubSubSource {
            settings: Arc::new(Settings {
                access,
                subscriptions: self.subscriptions,
                ordering: self.ordering,
                policy: self.policy,
                start: self.start,
                exactly_once: self.exactly_once,
                subscriber: self.subscriber,
                rejects: self.rejects,
            }),
            deserializer,
        })
    }
}

impl<T> fmt::Debug for PubSubSourceBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSubSourceBuilder")
            .field("subscriptions", &self.subscriptions)
            .field("subscriber", &self.subscriber)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
