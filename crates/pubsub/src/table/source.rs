//! From a statement to a source, and from messages to rows.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use aqueduct_connector::options::{ConfigError, Opt};
use aqueduct_connector::row::{RowTime, RowWriter};
use aqueduct_connector::source::Collector;
use aqueduct_connector::table::{RowEncoder, ScanPlan, TableOptions, TableReads};
use aqueduct_connector::{Error, Result, Timestamp};

use super::metadata::{self, PAYLOAD, TEXT, Use};
use super::{access, options as table};
use crate::SubscriptionDestination;
use crate::destination::SUBSCRIPTION;
use crate::sink_options::{EMULATOR_ENDPOINT, SERVICE_ACCOUNT_KEY_FILE};
use crate::source::{
    DeserializationFailurePolicy, ExactlyOnceSubscriptions, MessageDeserializer, OrderingMode,
    PubSubSource, ReceivedMessage, StartPosition, SubscriberOptions, SubscriptionCreateOptions,
};
use crate::source_options as keys;

const ORDERING_MODES: &[(&str, OrderingMode)] = &[
    ("none", OrderingMode::None),
    ("per-key", OrderingMode::PerKey),
];

const FAILURE_POLICIES: &[(&str, DeserializationFailurePolicy)] = &[
    ("fail", DeserializationFailurePolicy::Fail),
    ("drop", DeserializationFailurePolicy::Drop),
    ("nack", DeserializationFailurePolicy::Nack),
];

const EXACTLY_ONCE: &[(&str, ExactlyOnceSubscriptions)] = &[
    ("reject", ExactlyOnceSubscriptions::Reject),
    ("accept", ExactlyOnceSubscriptions::Accept),
];

/// The time of `timestamp` is another option.
const STARTUP_MODES: &[(&str, StartPosition)] = &[
    (
        "continue-from-subscription",
        StartPosition::ContinueFromSubscription,
    ),
    ("earliest-retained", StartPosition::EarliestRetained),
    ("latest", StartPosition::Latest),
    (
        "timestamp",
        StartPosition::Timestamp(Timestamp::from_millis(0)),
    ),
];

/// A table's source.
pub(super) type MessageReads = TableReads<Received, Encoder>;

/// Checks everything and makes the source: first what must be there, then what must go, then what values look like.
pub(super) fn build(
    options: &TableOptions<'_>,
    plan: &ScanPlan,
) -> Result<MessageReads, ConfigError> {
    let project = access::project(options)?;
    if !options.has(SUBSCRIPTION.key()) {
        return Err(ConfigError::Missing {
            option: SUBSCRIPTION.key(),
            what: "the subscriptions to read, separated by ';'; 'topic' only writes",
        });
    }
    metadata::check(&plan.metadata, Use::Read)?;
    access::check(options)?;
    check_removals(options)?;
    let topics = options.map(table::CREATE_TOPICS.key())?;

    let subscriptions = subscriptions(options, project)?;
    options.get(&table::SCAN_PARALLELISM)?;
    let mut builder = PubSubSource::builder()
        .rejectable()
        .subscriber_options(subscriber(options)?)
        .deserializer(Keep {
            subscription: metadata::field(&plan.metadata, metadata::SUBSCRIPTION).is_some(),
        });
    let ordering = options.choice(keys::ORDERING_MODE.key(), ORDERING_MODES)?;
    let ordering = ordering.unwrap_or_default();
    let policy = options.choice(keys::FAILURE_POLICY.key(), FAILURE_POLICIES)?;
    let policy = policy.unwrap_or_default();
    builder = builder
        .ordering_mode(ordering)
        .deserialization_failure_policy(policy);
    if let Some(choice) = options.choice(keys::EXACTLY_ONCE.key(), EXACTLY_ONCE)? {
        builder = builder.exactly_once_subscriptions(choice);
    }
    if let Some(start) = start_position(options)? {
        builder = builder.start_position(start);
    }
    builder = match topics {
        None => builder.subscriptions(subscriptions),
        Some(topics) => {
            check_creation(options, ordering, policy)?;
            let topics = by_subscription(&subscriptions, &topics)?;
            let mut builder = builder;
            for (subscription, topic) in subscriptions.into_iter().zip(topics) {
                let create = creation(options, project, topic)?;
                builder = builder.subscription_with(subscription, create);
            }
            builder
        }
    };
    if let Some(path) = options.text(&SERVICE_ACCOUNT_KEY_FILE)? {
        builder = builder.service_account_key_file(path);
    }
    if let Some(address) = options.raw(EMULATOR_ENDPOINT.key()) {
        builder = builder.emulator_endpoint(address);
    }
    let source = builder.build().map_err(|error| access::refusal(&error))?;
    let encoder = Encoder::new(&plan.metadata);
    Ok(TableReads::new(source, move || encoder.clone()))
}

/// What asks for the removal of an option, or for one that is missing beside another.
fn check_removals(options: &TableOptions<'_>) -> Result<(), ConfigError> {
    let (mode, time) = (keys::STARTUP_MODE.key(), table::STARTUP_TIMESTAMP.key());
    let by_time = options
        .raw(mode)
        .map(|given| given.trim().eq_ignore_ascii_case("timestamp"));
    match (by_time, options.has(time)) {
        (None, true) => {
            return Err(ConfigError::invalid(
                time,
                format!("it is good only with '{mode}' = 'timestamp'; set that or remove it"),
            ));
        }
        (Some(false), true) => {
            return Err(ConfigError::Conflict {
                first: mode,
                second: time,
                reason: "only the mode 'timestamp' has a time; remove the time or change the mode"
                    .to_owned(),
            });
        }
        (Some(true), false) => {
            return Err(ConfigError::invalid(
                mode,
                format!("the mode 'timestamp' needs '{time}'"),
            ));
        }
        (None | Some(false), false) | (Some(true), true) => {}
    }
    let topics = table::CREATE_TOPICS.key();
    let shared = table::shared_create_keys();
    if let Some(given) = shared
        .into_iter()
        .find(|key| options.has(key) && !options.has(topics))
    {
        return Err(ConfigError::invalid(
            given,
            format!("nothing is created without '{topics}'; name the topics or remove it"),
        ));
    }
    let ttl = table::CREATE_EXPIRATION.key();
    if matches!(options.get(&table::CREATE_NEVER_EXPIRE), Ok(Some(true))) && options.has(ttl) {
        return Err(ConfigError::Conflict {
            first: ttl,
            second: table::CREATE_NEVER_EXPIRE.key(),
            reason: "what never expires has no time to live; remove one of them".to_owned(),
        });
    }
    let (dead, attempts) = (
        table::CREATE_DEAD_LETTER_TOPIC.key(),
        table::CREATE_DEAD_LETTER_ATTEMPTS.key(),
    );
    for (given, other) in [(dead, attempts), (attempts, dead)] {
        if options.has(given) && !options.has(other) {
            return Err(ConfigError::invalid(
                given,
                format!("it is half a dead-letter policy; set '{other}' too or remove it"),
            ));
        }
    }
    Ok(())
}

/// What the builder would refuse too, but in the names of a statement.
fn check_creation(
    options: &TableOptions<'_>,
    ordering: OrderingMode,
    policy: DeserializationFailurePolicy,
) -> Result<(), ConfigError> {
    let ordered = options.get(&table::CREATE_ORDERING)?.unwrap_or_default();
    if ordering == OrderingMode::PerKey && !ordered {
        return Err(ConfigError::Conflict {
            first: keys::ORDERING_MODE.key(),
            second: table::CREATE_TOPICS.key(),
            reason: format!(
                "subscriptions would be created without message ordering, which cannot be changed later; set '{}' = 'true'",
                table::CREATE_ORDERING.key()
            ),
        });
    }
    let dead = table::CREATE_DEAD_LETTER_TOPIC.key();
    if policy == DeserializationFailurePolicy::Nack && !options.has(dead) {
        return Err(ConfigError::Conflict {
            first: keys::FAILURE_POLICY.key(),
            second: table::CREATE_TOPICS.key(),
            reason: format!(
                "subscriptions would be created without a dead-letter policy, so an undecodable message would come back \
                 for ever; set '{dead}'"
            ),
        });
    }
    Ok(())
}

fn subscriptions(
    options: &TableOptions<'_>,
    project: &str,
) -> Result<Vec<SubscriptionDestination>, ConfigError> {
    let names = options.list(SUBSCRIPTION.key())?.unwrap_or_default();
    names
        .into_iter()
        .map(|name| SubscriptionDestination::new(project, name))
        .collect()
}

fn start_position(options: &TableOptions<'_>) -> Result<Option<StartPosition>, ConfigError> {
    let mode = options.choice(keys::STARTUP_MODE.key(), STARTUP_MODES)?;
    Ok(match options.get(&table::STARTUP_TIMESTAMP)? {
        // Only with the mode that has a time: checked before.
        Some(millis) => Some(StartPosition::Timestamp(Timestamp::from_millis(millis))),
        None => mode,
    })
}

/// The topic of each subscription, in the subscriptions' order.
fn by_subscription<'a>(
    subscriptions: &[SubscriptionDestination],
    topics: &BTreeMap<&str, &'a str>,
) -> Result<Vec<&'a str>, ConfigError> {
    let wanted: BTreeSet<&str> = subscriptions.iter().map(|one| one.subscription()).collect();
    let given: BTreeSet<&str> = topics.keys().copied().collect();
    let listed = |names: Vec<&&str>| {
        let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        names.join(", ")
    };
    let missing = listed(wanted.difference(&given).collect());
    let unexpected = listed(given.difference(&wanted).collect());
    let mut reasons = Vec::new();
    if !missing.is_empty() {
        reasons.push(format!("no topic is given for {missing}"));
    }
    if !unexpected.is_empty() {
        reasons.push(format!("{unexpected} is not in '{}'", SUBSCRIPTION.key()));
    }
    if !reasons.is_empty() {
        return Err(ConfigError::invalid(
            table::CREATE_TOPICS.key(),
            reasons.join("; "),
        ));
    }
    Ok(subscriptions
        .iter()
        .filter_map(|one| topics.get(one.subscription()).copied())
        .collect())
}

fn creation(
    options: &TableOptions<'_>,
    project: &str,
    topic: &str,
) -> Result<SubscriptionCreateOptions, ConfigError> {
    let topic = access::topic_option(table::CREATE_TOPICS.key(), project, topic)?;
    let mut create = SubscriptionCreateOptions::new(topic);
    if let Some(deadline) = options.get(&table::CREATE_ACK_DEADLINE)? {
        if deadline.subsec_nanos() > 0 {
            return Err(ConfigError::invalid(
                table::CREATE_ACK_DEADLINE.key(),
                format!("{deadline:?} is not a positive number of whole seconds"),
            ));
        }
        create = create.ack_deadline(deadline);
    }
    if options.get(&table::CREATE_ORDERING)? == Some(true) {
        create = create.enable_message_ordering();
    }
    if let Some(retention) = options.get(&table::CREATE_RETENTION)? {
        create = create.message_retention(retention);
    }
    if options.get(&table::CREATE_RETAIN_ACKED)? == Some(true) {
        create = create.retain_acked_messages();
    }
    if let Some(ttl) = options.get(&table::CREATE_EXPIRATION)? {
        create = create.expiration_ttl(ttl);
    }
    if options.get(&table::CREATE_NEVER_EXPIRE)? == Some(true) {
        create = create.never_expire();
    }
    let attempts = options.get(&table::CREATE_DEAD_LETTER_ATTEMPTS)?;
    if let Some(dead) = options.text(&table::CREATE_DEAD_LETTER_TOPIC)?
        && let Some(attempts) = attempts.and_then(NonZeroU32::new)
    {
        let dead = access::topic_option(table::CREATE_DEAD_LETTER_TOPIC.key(), project, dead)?;
        create = create.dead_letter_policy(dead, attempts);
    }
    if let Some(filter) = options.text(&table::CREATE_FILTER)? {
        create = create.filter(filter);
    }
    Ok(create)
}

fn subscriber(options: &TableOptions<'_>) -> Result<SubscriberOptions, ConfigError> {
    type Setter<T> = fn(SubscriberOptions, T) -> SubscriberOptions;
    let mut subscriber = SubscriberOptions::new();
    let counts: [(&Opt<u64>, Setter<NonZeroU64>); 4] = [
        (
            &keys::FLOW_CONTROL_MESSAGES,
            SubscriberOptions::flow_control_max_outstanding_element_count,
        ),
        (
            &keys::BUFFER_MESSAGES,
            SubscriberOptions::subscriber_buffer_max_messages,
        ),
        (
            &keys::PAUSED_BUFFER_MESSAGES,
            SubscriberOptions::paused_split_buffer_max_messages,
        ),
        (
            &keys::MAX_RECORDS_PER_FETCH,
            SubscriberOptions::max_records_per_fetch,
        ),
    ];
    for (option, setter) in counts {
        // Each is at least 1 by its declaration.
        if let Some(count) = options.get(option)?.and_then(NonZeroU64::new) {
            subscriber = setter(subscriber, count);
        }
    }
    let sizes: [(&Opt<_>, Setter<_>); 3] = [
        (
            &keys::FLOW_CONTROL_BYTES,
            SubscriberOptions::flow_control_max_outstanding_request_bytes,
        ),
        (
            &keys::BUFFER_BYTES,
            SubscriberOptions::subscriber_buffer_max_bytes,
        ),
        (
            &keys::PAUSED_BUFFER_BYTES,
            SubscriberOptions::paused_split_buffer_max_bytes,
        ),
    ];
    for (option, setter) in sizes {
        if let Some(size) = options.get(option)? {
            subscriber = setter(subscriber, size);
        }
    }
    let spans: [(&Opt<Duration>, Setter<Duration>); 6] = [
        (
            &keys::MAX_EXTENSION_PERIOD,
            SubscriberOptions::max_ack_extension_period,
        ),
        (
            &keys::MIN_EXTENSION,
            SubscriberOptions::min_duration_per_ack_extension,
        ),
        (
            &keys::MAX_EXTENSION,
            SubscriberOptions::max_duration_per_ack_extension,
        ),
        (
            &keys::AWAIT_CONFIRMATION,
            SubscriberOptions::await_ack_confirmation,
        ),
        (&keys::SHUTDOWN_TIMEOUT, SubscriberOptions::shutdown_timeout),
        (
            &keys::FIRST_CHECKPOINT_TIMEOUT,
            SubscriberOptions::first_checkpoint_timeout,
        ),
    ];
    for (option, setter) in spans {
        if let Some(span) = options.get(option)? {
            subscriber = setter(subscriber, span);
        }
    }
    if let Some(streams) = options
        .get(&keys::PARALLEL_PULLS)?
        .and_then(NonZeroU32::new)
    {
        subscriber = subscriber.parallel_pull_count(streams);
    }
    Ok(subscriber)
}

/// A message on its way to its row: it shares the bytes of its response.
#[derive(Debug)]
pub(super) struct Received {
    message: ReceivedMessage,
    /// Only if the row has it.
    subscription: Option<SubscriptionDestination>,
}

/// Keeps messages as they are; the encoder reads them.
#[derive(Clone, Debug)]
struct Keep {
    subscription: bool,
}

impl MessageDeserializer<Received> for Keep {
    fn deserialize(
        &mut self,
        message: &ReceivedMessage,
        subscription: &SubscriptionDestination,
        out: &mut Collector<'_, Received>,
    ) -> Result<()> {
        out.emit(Received {
            message: message.clone(),
            subscription: self.subscription.then(|| subscription.clone()),
        });
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Metadata {
    MessageId,
    PublishTime,
    Attributes,
    OrderingKey,
    Subscription,
    DeliveryAttempt,
}

/// Messages to rows, straight from the bytes that came.
#[derive(Clone, Debug)]
pub(super) struct Encoder {
    metadata: Vec<Metadata>,
    /// The last subscription and its full name: the next message is mostly one of it too.
    subscription: Option<(SubscriptionDestination, String)>,
}

impl Encoder {
    /// Of checked metadata.
    fn new(planned: &[String]) -> Self {
        let metadata = planned.iter().filter_map(|key| {
            Some(match key.as_str() {
                metadata::MESSAGE_ID => Metadata::MessageId,
                metadata::PUBLISH_TIME => Metadata::PublishTime,
                metadata::ATTRIBUTES => Metadata::Attributes,
                metadata::ORDERING_KEY => Metadata::OrderingKey,
                metadata::SUBSCRIPTION => Metadata::Subscription,
                metadata::DELIVERY_ATTEMPT => Metadata::DeliveryAttempt,
                _ => return None,
            })
        });
        Self {
            metadata: metadata.collect(),
            subscription: None,
        }
    }

    fn name(&mut self, subscription: &SubscriptionDestination) -> &str {
        if self
            .subscription
            .as_ref()
            .is_none_or(|(last, _)| last != subscription)
        {
            self.subscription = Some((subscription.clone(), subscription.to_string()));
        }
        self.subscription
            .as_ref()
            .map_or("", |(_, name)| name.as_str())
    }
}

impl RowEncoder<Received> for Encoder {
    fn arity(&self) -> usize {
        PAYLOAD + 1 + self.metadata.len()
    }

    fn encode(&mut self, record: &Received, row: &mut RowWriter<'_>) -> Result<()> {
        let message = &record.message;
        row.bytes(PAYLOAD, message.data());
        for at in 0..self.metadata.len() {
            let field = PAYLOAD + 1 + at;
            match self.metadata[at] {
                Metadata::MessageId => row.str(field, message.message_id()),
                Metadata::PublishTime => {
                    let Some(time) = message.publish_time() else {
                        return Err(Error::data(format!(
                            "message {} came without a publish time, which the service gives to each",
                            message.message_id()
                        )));
                    };
                    row.time(field, RowTime::from_millis(time.millis()), 3);
                }
                Metadata::Attributes => row.map(
                    field,
                    (&TEXT, &TEXT),
                    message.attributes().count(),
                    |keys| {
                        for (entry, (key, _)) in message.attributes().enumerate() {
                            keys.str(entry, key);
                        }
                    },
                    |values| {
                        for (entry, (_, value)) in message.attributes().enumerate() {
                            values.str(entry, value);
                        }
                    },
                ),
                Metadata::OrderingKey => {
                    if let Some(key) = message.ordering_key() {
                        row.str(field, key);
                    }
                }
                Metadata::Subscription => {
                    if let Some(subscription) = &record.subscription {
                        row.str(field, self.name(subscription));
                    }
                }
                Metadata::DeliveryAttempt => {
                    if let Some(attempt) = message.delivery_attempt() {
                        row.i32(field, i32::try_from(attempt).unwrap_or(i32::MAX));
                    }
                }
            }
        }
        Ok(())
    }
}
