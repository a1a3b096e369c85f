//! The options of a table: those of the two builders, and what only a statement has.
//!
//! Everything that a builder's setter sets is declared in [`sink_options`] or [`source_options`] and only listed here;
//! below are the options that take a setter apart, because a statement has no objects: the start position's time and the
//! creation settings of subscriptions.

use std::time::Duration;

use aqueduct_connector::options::{Declaration, Default as Initially, Opt, TextOpt};
use aqueduct_connector::table::{TableOption, UsedBy, table_reference_page};

use crate::destination::{PROJECT, SUBSCRIPTION, TOPIC};
use crate::{sink_options, source_options};

const LONGEST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());
const SHORTEST: Duration = Duration::from_nanos(1);

/// Subtasks of a scan.
pub const SCAN_PARALLELISM: Opt<u32> = Opt::new(
    "scan.parallelism",
    "Subtasks that read. Each subscription is read by at least one of them, without order by all.",
)
.default(Initially::Unset("the job's parallelism"))
.at_least(1)
.unit("subtasks");

/// Subtasks of a sink.
pub const SINK_PARALLELISM: Opt<u32> = Opt::new("sink.parallelism", "Subtasks that write.")
    .default(Initially::Unset("that of the rows' source"))
    .at_least(1)
    .unit("subtasks");

/// The time of the start mode `timestamp`.
pub const STARTUP_TIMESTAMP: Opt<i64> = Opt::new(
    "scan.startup.timestamp-millis",
    "With 'scan.startup.mode' = 'timestamp', and only then: reads what was published after this time, in milliseconds \
     since 1970-01-01T00:00Z.",
)
.default(Initially::Unset("only with the mode 'timestamp'"))
.at_least(0)
.at_most(253_402_300_799_999);

/// The topics of subscriptions to create.
pub const CREATE_TOPICS: TextOpt = TextOpt::new(
    "scan.auto-create.topics",
    "The topic of each subscription, by which missing ones are created: 'scan.auto-create.topics.<subscription>' = \
     '<topic>' for every entry of 'subscription', or all in one value, '<subscription>:<topic>,...'. Topics must exist; a \
     plain name is one of 'project', 'projects/<project>/topics/<topic>' any.",
)
.default(Initially::Unset("missing subscriptions fail the start"))
.builder("subscription_with");

/// Ack deadline of created subscriptions.
pub const CREATE_ACK_DEADLINE: Opt<Duration> = Opt::new(
    "scan.auto-create.ack-deadline",
    "Ack deadline of created subscriptions, in whole seconds; the service takes 10 s to 600 s.",
)
.default(Initially::Unset("the service's, 10 s"))
.at_least(SHORTEST)
.at_most(LONGEST)
.builder("SubscriptionCreateOptions::ack_deadline");

/// Message ordering of created subscriptions.
pub const CREATE_ORDERING: Opt<bool> = Opt::new(
    "scan.auto-create.message-ordering.enabled",
    "Creates subscriptions with message ordering, which cannot be changed later; the ordering mode 'per-key' needs it.",
)
.default(Initially::Ours(false))
.builder("SubscriptionCreateOptions::enable_message_ordering");

/// Retention of created subscriptions.
pub const CREATE_RETENTION: Opt<Duration> = Opt::new(
    "scan.auto-create.message-retention",
    "How long created subscriptions keep messages; the service takes 10 min to 31 d.",
)
.default(Initially::Unset("the service's, 7 d"))
.at_least(SHORTEST)
.at_most(LONGEST)
.builder("SubscriptionCreateOptions::message_retention");

/// Whether created subscriptions keep acknowledged messages.
pub const CREATE_RETAIN_ACKED: Opt<bool> = Opt::new(
    "scan.auto-create.retain-acked-messages",
    "Created subscriptions keep acknowledged messages too, so that a start position can bring them back.",
)
.default(Initially::Ours(false))
.builder("SubscriptionCreateOptions::retain_acked_messages");

/// When unused created subscriptions are deleted.
pub const CREATE_EXPIRATION: Opt<Duration> = Opt::new(
    "scan.auto-create.expiration-ttl",
    "Created subscriptions are deleted after so long without use; the service takes 1 d and more.",
)
.default(Initially::Unset("the service's, 31 d"))
.at_least(SHORTEST)
.at_most(LONGEST)
.builder("SubscriptionCreateOptions::expiration_ttl");

/// Whether unused created subscriptions stay.
pub const CREATE_NEVER_EXPIRE: Opt<bool> = Opt::new(
    "scan.auto-create.never-expire",
    "Created subscriptions stay however long they are unused. Excludes the time to live.",
)
.default(Initially::Ours(false))
.builder("SubscriptionCreateOptions::never_expire");

/// The dead-letter topic of created subscriptions.
pub const CREATE_DEAD_LETTER_TOPIC: TextOpt = TextOpt::new(
    "scan.auto-create.dead-letter.topic",
    "Topic that takes what created subscriptions could not deliver, named as in 'scan.auto-create.topics'. It must exist, \
     and the service's own account needs to publish there and to subscribe here. The policy 'nack' needs it.",
)
.default(Initially::Unset("none"))
.builder("SubscriptionCreateOptions::dead_letter_policy");

/// Attempts before the dead-letter topic.
pub const CREATE_DEAD_LETTER_ATTEMPTS: Opt<u32> = Opt::new(
    "scan.auto-create.dead-letter.max-delivery-attempts",
    "Attempts to deliver a message before it goes there, restarts of the job included; the service takes 5 to 100.",
)
.default(Initially::Unset("none"))
.at_least(1)
.unit("attempts")
.builder("SubscriptionCreateOptions::dead_letter_policy");

/// The filter of created subscriptions.
pub const CREATE_FILTER: TextOpt = TextOpt::new(
    "scan.auto-create.filter",
    "Created subscriptions deliver only messages that pass this filter, in the service's own syntax. It cannot be changed \
     later.",
)
.default(Initially::Unset("all messages"))
.builder("SubscriptionCreateOptions::filter");

/// The creation settings beside the map of topics.
pub(super) fn shared_create_keys() -> [&'static str; 9] {
    [
        CREATE_ACK_DEADLINE.key(),
        CREATE_ORDERING.key(),
        CREATE_RETENTION.key(),
        CREATE_RETAIN_ACKED.key(),
        CREATE_EXPIRATION.key(),
        CREATE_NEVER_EXPIRE.key(),
        CREATE_DEAD_LETTER_TOPIC.key(),
        CREATE_DEAD_LETTER_ATTEMPTS.key(),
        CREATE_FILTER.key(),
    ]
}

/// The creation settings of topics.
pub(super) fn topic_create_keys() -> [&'static str; 4] {
    [
        sink_options::MESSAGE_RETENTION.key(),
        sink_options::KMS_KEY_NAME.key(),
        sink_options::ALLOWED_REGIONS.key(),
        sink_options::ENFORCE_IN_TRANSIT.key(),
    ]
}

/// Every option of a table, in the order of the reference page: what both sides read, then reading, then writing.
#[must_use]
pub fn table_options() -> Vec<TableOption> {
    let option = |declaration, used_by| TableOption {
        declaration,
        map: false,
        used_by,
    };
    let both = [
        PROJECT.declaration(),
        sink_options::SERVICE_ACCOUNT_KEY_FILE.declaration(),
        sink_options::EMULATOR_ENDPOINT.declaration(),
    ];
    let shared: Vec<&str> = both.iter().map(|declaration| declaration.key).collect();
    let mut all: Vec<TableOption> = both.into_iter().map(|d| option(d, UsedBy::Both)).collect();
    all.push(option(
        Declaration {
            doc: "The subscriptions to read, by plain name, several separated by ';'.",
            ..SUBSCRIPTION.declaration()
        },
        UsedBy::Scan,
    ));
    for declaration in source_options::declarations() {
        if declaration.key == source_options::CREATE_OPTIONS.key() {
            all.push(TableOption {
                map: true,
                ..option(CREATE_TOPICS.declaration(), UsedBy::Scan)
            });
            let settings = [
                CREATE_ACK_DEADLINE.declaration(),
                CREATE_ORDERING.declaration(),
                CREATE_RETENTION.declaration(),
                CREATE_RETAIN_ACKED.declaration(),
                CREATE_EXPIRATION.declaration(),
                CREATE_NEVER_EXPIRE.declaration(),
                CREATE_DEAD_LETTER_TOPIC.declaration(),
                CREATE_DEAD_LETTER_ATTEMPTS.declaration(),
                CREATE_FILTER.declaration(),
            ];
            all.extend(settings.into_iter().map(|d| option(d, UsedBy::Scan)));
        } else if declaration.key != SUBSCRIPTION.key() && !shared.contains(&declaration.key) {
            let mode = declaration.key == source_options::STARTUP_MODE.key();
            all.push(option(declaration, UsedBy::Scan));
            if mode {
                all.push(option(STARTUP_TIMESTAMP.declaration(), UsedBy::Scan));
            }
        }
    }
    all.push(option(SCAN_PARALLELISM.declaration(), UsedBy::Scan));
    all.push(option(
        Declaration {
            doc: "The topic to write to, by plain name; with the metadata column 'topic' that of rows in which it is NULL.",
            ..TOPIC.declaration()
        },
        UsedBy::Sink,
    ));
    for declaration in sink_options::declarations() {
        if declaration.key == sink_options::ALLOWED_REGIONS.key() {
            let doc = "Regions in which a created topic may keep messages, separated by ';'.";
            all.push(option(Declaration { doc, ..declaration }, UsedBy::Sink));
        } else if declaration.key != TOPIC.key() && !shared.contains(&declaration.key) {
            all.push(option(declaration, UsedBy::Sink));
        }
    }
    all.push(option(SINK_PARALLELISM.declaration(), UsedBy::Sink));
    all
}

/// `docs/reference/pubsub-table.md`.
#[must_use]
pub fn table_reference() -> String {
    table_reference_page(
        "Pub/Sub table: options",
        "Generated from the declarations; edit those. The guide is [Pub/Sub tables](../pubsub-table.md). The format and its \
         options are the host's.",
        &table_options(),
    )
}
