//! From a statement to a sink, and from rows to messages.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use aqueduct_connector::options::{ConfigError, Opt, OptionValue};
use aqueduct_connector::row::{Row, RowError, RowKind};
use aqueduct_connector::sink::RecordInfo;
use aqueduct_connector::table::{SinkPlan, TableOptions};
use tracing::warn;

use super::metadata::{self, PAYLOAD, TEXT, Use};
use super::{access, options as table};
use crate::destination::TOPIC;
use crate::message::Message;
use crate::sink::{BoxError, DestinationResolver, Disposition, MessageSerializer};
use crate::sink_options as keys;
use crate::{
    CreateDisposition, PubSubSink, PublisherOptions, TopicCreateOptions, TopicDestination,
};

/// Topics that a writer remembers by name. A pipeline with more of them pays for the parsing of names again.
const REMEMBERED: usize = 1_024;

const DISPOSITIONS: &[(&str, CreateDisposition)] = &[
    ("create-if-needed", CreateDisposition::CreateIfNeeded),
    ("create-never", CreateDisposition::CreateNever),
];

/// Checks everything and makes the sink: first what must be there, then what must go, then what values look like.
pub(super) fn build(
    options: &TableOptions<'_>,
    plan: &SinkPlan,
) -> Result<PubSubSink<Row>, ConfigError> {
    let project = access::project(options)?;
    let topic = options.raw(TOPIC.key()).ok_or(ConfigError::Missing {
        option: TOPIC.key(),
        what: "the topic to write to; 'subscription' only reads",
    })?;
    metadata::check(&plan.metadata, Use::Write)?;
    access::check(options)?;
    check_removals(options, plan)?;
    let topic = TopicDestination::new(project, topic)?;
    options.get(&table::SINK_PARALLELISM)?;

    let mut builder = PubSubSink::builder()
        .topic(topic.clone())
        .publisher_options(publisher(options)?)
        .serializer(RowSerializer::new(&plan.metadata));
    if let Some(resolver) = TopicResolver::new(&plan.metadata, project, topic) {
        builder = builder.destination_resolver(resolver);
    }
    if let Some(path) = options.text(&keys::SERVICE_ACCOUNT_KEY_FILE)? {
        builder = builder.service_account_key_file(path);
    }
    if let Some(address) = options.raw(keys::EMULATOR_ENDPOINT.key()) {
        builder = builder.emulator_endpoint(address);
    }
    if let Some(disposition) = options.choice(keys::CREATE_DISPOSITION.key(), DISPOSITIONS)? {
        builder = builder.create_disposition(disposition);
    }
    if let Some(create) = topic_creation(options)? {
        builder = builder.topic_create_options(create);
    }
    builder.build().map_err(|error| access::refusal(&error))
}

/// Message ordering without an ordering key orders nothing and takes away the limits of retries.
pub(super) fn warn_of_useless_ordering(options: &TableOptions<'_>, plan: &SinkPlan) {
    if orders(options) && metadata::field(&plan.metadata, metadata::ORDERING_KEY).is_none() {
        warn!(
            table = options.table(),
            option = keys::MESSAGE_ORDERING.key(),
            "message ordering is enabled and no column writes the metadata 'ordering-key': nothing is ordered, and \
             requests are retried without a limit of their own; add the column or remove the option"
        );
    }
}

fn orders(options: &TableOptions<'_>) -> bool {
    // A value that cannot be read is refused with the other values.
    matches!(options.get(&keys::MESSAGE_ORDERING), Ok(Some(true)))
}

/// What asks for the removal of an option, or for one that is missing beside another.
fn check_removals(options: &TableOptions<'_>, plan: &SinkPlan) -> Result<(), ConfigError> {
    let never = options
        .raw(keys::CREATE_DISPOSITION.key())
        .is_some_and(|given| given.trim().eq_ignore_ascii_case("create-never"));
    let settings = table::topic_create_keys();
    if let Some(given) = settings.into_iter().find(|key| never && options.has(key)) {
        return Err(ConfigError::Conflict {
            first: keys::CREATE_DISPOSITION.key(),
            second: given,
            reason: "'create-never' creates nothing; remove the creation setting or set 'create-if-needed'"
                .to_owned(),
        });
    }
    let ordered = orders(options);
    for limit in [
        keys::RETRY_TOTAL_TIMEOUT.key(),
        keys::RETRY_MAX_ATTEMPTS.key(),
    ] {
        if ordered && options.has(limit) {
            return Err(ConfigError::Conflict {
                first: keys::MESSAGE_ORDERING.key(),
                second: limit,
                reason: format!(
                    "with message ordering requests are retried until '{}', so the limit would be ignored; remove it",
                    keys::PUBLISH_PROGRESS_TIMEOUT.key()
                ),
            });
        }
    }
    if options.has(keys::ENFORCE_IN_TRANSIT.key()) && !options.has(keys::ALLOWED_REGIONS.key()) {
        return Err(ConfigError::Conflict {
            first: keys::ENFORCE_IN_TRANSIT.key(),
            second: keys::ALLOWED_REGIONS.key(),
            reason: "there are no regions to enforce; name them or remove the first".to_owned(),
        });
    }
    let writes_key = metadata::field(&plan.metadata, metadata::ORDERING_KEY).is_some();
    // A text that is no boolean is refused as such, further on.
    let readable = options.get(&keys::MESSAGE_ORDERING).is_ok();
    if writes_key && !ordered && readable {
        return Err(ConfigError::invalid(
            keys::MESSAGE_ORDERING.key(),
            "the table writes the metadata 'ordering-key', which takes 'true'; set it, or declare the column VIRTUAL",
        ));
    }
    Ok(())
}

/// An option's value handed to its setter, if it is given.
fn apply<T: OptionValue, B>(
    options: &TableOptions<'_>,
    option: &Opt<T>,
    builder: B,
    setter: impl FnOnce(B, T) -> B,
) -> Result<B, ConfigError> {
    Ok(match options.get(option)? {
        Some(value) => setter(builder, value),
        None => builder,
    })
}

fn publisher(options: &TableOptions<'_>) -> Result<PublisherOptions, ConfigError> {
    let mut publisher = PublisherOptions::new();
    macro_rules! apply_all {
        ($($option:ident => $setter:expr;)*) => {
            $(publisher = apply(options, &keys::$option, publisher, $setter)?;)*
        };
    }
    apply_all! {
        BATCH_ELEMENT_COUNT => PublisherOptions::batch_element_count_threshold;
        BATCH_REQUEST_BYTES => PublisherOptions::batch_request_byte_threshold;
        BATCH_DELAY => PublisherOptions::batch_delay_threshold;
        RETRY_TOTAL_TIMEOUT => PublisherOptions::retry_total_timeout;
        RETRY_INITIAL_DELAY => PublisherOptions::retry_initial_delay;
        RETRY_DELAY_MULTIPLIER => PublisherOptions::retry_delay_multiplier;
        RETRY_MAX_DELAY => PublisherOptions::retry_max_delay;
        RETRY_INITIAL_RPC_TIMEOUT => PublisherOptions::retry_initial_rpc_timeout;
        RETRY_RPC_TIMEOUT_MULTIPLIER => PublisherOptions::retry_rpc_timeout_multiplier;
        RETRY_MAX_RPC_TIMEOUT => PublisherOptions::retry_max_rpc_timeout;
        RETRY_MAX_ATTEMPTS => |to, attempts| to.retry_max_attempts(NonZeroU32::new(attempts));
        MESSAGE_ORDERING => PublisherOptions::enable_message_ordering;
        MAX_IN_FLIGHT_MESSAGES => PublisherOptions::max_in_flight_messages;
        MAX_IN_FLIGHT_BYTES => PublisherOptions::max_in_flight_bytes;
        PUBLISH_PROGRESS_TIMEOUT => PublisherOptions::publish_progress_timeout;
        RECOVERY_INITIAL_BACKOFF => PublisherOptions::recovery_initial_backoff;
        RECOVERY_MAX_BACKOFF => PublisherOptions::recovery_max_backoff;
        RECOVERY_MAX_ATTEMPTS => PublisherOptions::recovery_max_attempts;
        MAX_ACTIVE_PUBLISHERS => PublisherOptions::max_active_publishers;
        DESTINATION_IDLE_TIMEOUT => PublisherOptions::destination_idle_timeout;
        SHUTDOWN_TIMEOUT => PublisherOptions::shutdown_timeout;
        CHANNELS => PublisherOptions::channels;
        PER_DESTINATION_METRICS => PublisherOptions::per_destination_metrics;
    }
    Ok(match options.get(&keys::MAX_CONSECUTIVE_REJECTIONS)? {
        None => publisher,
        Some(0) => {
            return Err(ConfigError::invalid(
                keys::MAX_CONSECUTIVE_REJECTIONS.key(),
                "0 rejections would fail a job that has rejected nothing; use 1 or more, or -1 for no bound",
            ));
        }
        // A negative number is the option's -1.
        Some(bound) => publisher
            .max_consecutive_rejections(u64::try_from(bound).ok().and_then(NonZeroU64::new)),
    })
}

/// What created topics are like, if the statement says anything of it.
fn topic_creation(options: &TableOptions<'_>) -> Result<Option<TopicCreateOptions>, ConfigError> {
    if !table::topic_create_keys()
        .iter()
        .any(|key| options.has(key))
    {
        return Ok(None);
    }
    let mut create = TopicCreateOptions::new();
    create = apply(
        options,
        &keys::MESSAGE_RETENTION,
        create,
        TopicCreateOptions::message_retention,
    )?;
    if let Some(path) = options.text(&keys::KMS_KEY_NAME)? {
        create = create.kms_key_name(path);
    }
    if let Some(regions) = options.list(keys::ALLOWED_REGIONS.key())? {
        create = create.allowed_persistence_regions(regions);
    }
    create = apply(
        options,
        &keys::ENFORCE_IN_TRANSIT,
        create,
        TopicCreateOptions::enforce_in_transit,
    )?;
    Ok(Some(create))
}

/// A row that cannot be published. Says where, never what.
#[derive(Debug, thiserror::Error)]
enum BadRow {
    #[error("a row of kind {0} cannot be published: the table takes insertions only")]
    Kind(&'static str),
    #[error("its payload is NULL")]
    NoPayload,
    #[error(
        "entry {entry} of its attributes has a NULL {part}, which the service does not know; filter such entries in the query"
    )]
    NullAttribute { entry: usize, part: &'static str },
    #[error("its topic is not valid: {0}")]
    Topic(&'static str),
    #[error("it cannot be read: {0}")]
    Row(#[from] RowError),
}

/// Rows to messages.
#[derive(Clone, Debug)]
pub(super) struct RowSerializer {
    arity: usize,
    attributes: Option<usize>,
    ordering_key: Option<usize>,
}

impl RowSerializer {
    /// Of rows with this metadata.
    pub(super) fn new(planned: &[String]) -> Self {
        Self {
            arity: PAYLOAD + 1 + planned.len(),
            attributes: metadata::field(planned, metadata::ATTRIBUTES),
            ordering_key: metadata::field(planned, metadata::ORDERING_KEY),
        }
    }

    fn fill(&self, row: &Row, message: &mut Message) -> Result<(), BadRow> {
        let row = row.view(self.arity)?;
        if row.kind() != RowKind::Insert {
            return Err(BadRow::Kind(row.kind().short()));
        }
        if row.is_null(PAYLOAD) {
            return Err(BadRow::NoPayload);
        }
        message.data(row.bytes(PAYLOAD)?);
        if let Some(field) = self.attributes.filter(|field| !row.is_null(*field)) {
            let map = row.map(field, &TEXT, &TEXT)?;
            for entry in 0..map.len() {
                for (part, array) in [("key", &map.keys), ("value", &map.values)] {
                    if array.is_null(entry) {
                        return Err(BadRow::NullAttribute { entry, part });
                    }
                }
                message.attribute(map.keys.str(entry)?, map.values.str(entry)?);
            }
        }
        if let Some(field) = self.ordering_key.filter(|field| !row.is_null(*field)) {
            message.ordering_key(row.str(field)?);
        }
        Ok(())
    }
}

impl MessageSerializer<Row> for RowSerializer {
    fn serialize(
        &mut self,
        row: &Row,
        _: RecordInfo,
        message: &mut Message,
    ) -> Result<Disposition, BoxError> {
        self.fill(row, message)?;
        Ok(Disposition::Publish)
    }
}

/// The topic of each row, from its metadata.
#[derive(Clone, Debug)]
pub(super) struct TopicResolver {
    arity: usize,
    field: usize,
    project: Arc<str>,
    /// Where rows without a topic go.
    default: TopicDestination,
    known: HashMap<Box<str>, TopicDestination>,
}

impl TopicResolver {
    /// Of rows with this metadata; `None` if the topic is not among it.
    pub(super) fn new(
        planned: &[String],
        project: &str,
        default: TopicDestination,
    ) -> Option<Self> {
        Some(Self {
            arity: PAYLOAD + 1 + planned.len(),
            field: metadata::field(planned, metadata::TOPIC)?,
            project: project.into(),
            default,
            known: HashMap::new(),
        })
    }

    fn topic(&mut self, row: &Row) -> Result<TopicDestination, BadRow> {
        let row = row.view(self.arity)?;
        if row.is_null(self.field) {
            return Ok(self.default.clone());
        }
        let name = row.str(self.field)?;
        if let Some(topic) = self.known.get(name) {
            return Ok(topic.clone());
        }
        let topic = access::topic(&self.project, name).map_err(BadRow::Topic)?;
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(name.into(), topic.clone());
        Ok(topic)
    }
}

impl DestinationResolver<Row> for TopicResolver {
    fn resolve(&mut self, row: &Row, _: RecordInfo) -> Result<Option<TopicDestination>, BoxError> {
        Ok(Some(self.topic(row)?))
    }
}
