//! The options of the source, each declared once.
//!
//! Builders check through these, a table's DDL reads the same, and `docs/reference/pubsub-source.md` is printed from them.

use std::time::Duration;

use aqueduct_connector::options::{ByteSize, Declaration, Default, Opt, TextOpt, reference_page};

use crate::destination::{PROJECT, SUBSCRIPTION};
use crate::sink_options::{EMULATOR_ENDPOINT, SERVICE_ACCOUNT_KEY_FILE};

/// Above it a duration is refused: 2^63 - 1 nanoseconds.
const LONGEST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());
const MILLISECOND: Duration = Duration::from_millis(1);

/// Messages outstanding in one split.
pub const FLOW_CONTROL_MESSAGES: Opt<u64> = Opt::new(
    "scan.flow-control.max-outstanding-element-count",
    "Messages of one split that may be received and not yet acknowledged, emitted ones that wait for a checkpoint \
     included. Needs at least the peak rate times the checkpoint interval.",
)
.default(Default::Ours(1_000))
.at_least(1)
.unit("messages")
.builder("flow_control_max_outstanding_element_count");

/// Bytes outstanding in one split.
pub const FLOW_CONTROL_BYTES: Opt<ByteSize> = Opt::new(
    "scan.flow-control.max-outstanding-request-bytes",
    "The same by encoded bytes; whichever is reached first.",
)
.default(Default::Ours(ByteSize::mib(100)))
.at_least(ByteSize(1))
.builder("flow_control_max_outstanding_request_bytes");

/// Messages buffered in one reader.
pub const BUFFER_MESSAGES: Opt<u64> = Opt::new(
    "scan.subscriber-buffer.max-messages",
    "Messages of one reader, over all its splits, that may be received and not yet emitted. At it paused splits are \
     parked, then reading stops.",
)
.default(Default::Ours(10_000))
.at_least(1)
.unit("messages")
.builder("subscriber_buffer_max_messages");

/// Bytes buffered in one reader.
pub const BUFFER_BYTES: Opt<ByteSize> = Opt::new(
    "scan.subscriber-buffer.max-bytes",
    "The same by encoded bytes; whichever is reached first.",
)
.default(Default::Ours(ByteSize::mib(64)))
.at_least(ByteSize(1))
.builder("subscriber_buffer_max_bytes");

/// Messages buffered in a paused split.
pub const PAUSED_BUFFER_MESSAGES: Opt<u64> = Opt::new(
    "scan.paused-split-buffer.max-messages",
    "Messages that a split paused by watermark alignment may buffer before it is parked.",
)
.default(Default::Unset("only the reader's buffer bounds it"))
.at_least(1)
.unit("messages")
.builder("paused_split_buffer_max_messages");

/// Bytes buffered in a paused split.
pub const PAUSED_BUFFER_BYTES: Opt<ByteSize> = Opt::new(
    "scan.paused-split-buffer.max-bytes",
    "The same by encoded bytes.",
)
.default(Default::Unset("only the reader's buffer bounds it"))
.at_least(ByteSize(1))
.builder("paused_split_buffer_max_bytes");

/// Streams of one split.
pub const PARALLEL_PULLS: Opt<u32> = Opt::new(
    "scan.parallel-pull-count",
    "Streams of one split, among which its flow control is divided. A stream carries about 10 MB/s. More than one goes \
     neither beyond the element count nor with per-key ordering.",
)
.default(Default::Ours(1))
.at_least(1)
.unit("streams")
.builder("parallel_pull_count");

/// How long a message is kept leased.
pub const MAX_EXTENSION_PERIOD: Opt<Duration> = Opt::new(
    "scan.ack.max-extension-period",
    "How long a message's lease is extended after its receipt. Must comfortably exceed the checkpoint interval; 0 \
     disables extension, and the subscription's own deadline holds.",
)
.default(Default::Ours(Duration::from_secs(3_600)))
.at_most(LONGEST)
.builder("max_ack_extension_period");

/// The least length of one extension.
pub const MIN_EXTENSION: Opt<Duration> = Opt::new(
    "scan.ack.min-duration-per-extension",
    "Raises the length of one extension, which is 60 s and always within 10 s to 600 s.",
)
.default(Default::Unset("60 s, or what the other bounds say"))
.at_least(Duration::from_nanos(1))
.at_most(LONGEST)
.builder("min_duration_per_ack_extension");

/// The greatest length of one extension.
pub const MAX_EXTENSION: Opt<Duration> = Opt::new(
    "scan.ack.max-duration-per-extension",
    "Lowers the length of one extension: how long messages stay invisible after a crash.",
)
.default(Default::Unset("60 s, or what the other bounds say"))
.at_least(Duration::from_nanos(1))
.at_most(LONGEST)
.builder("max_duration_per_ack_extension");

/// Whether completion waits for acknowledgements.
pub const AWAIT_CONFIRMATION: Opt<Duration> = Opt::new(
    "scan.ack.await-confirmation",
    "How long a completed checkpoint may wait for its acknowledgements. Meanwhile nothing is emitted; a refusal or the \
     end of this time fails the job.",
)
.default(Default::Unset("nothing waits; failures are counted"))
.at_least(MILLISECOND)
.at_most(LONGEST)
.builder("await_ack_confirmation");

/// The time of a close.
pub const SHUTDOWN_TIMEOUT: Opt<Duration> = Opt::new(
    "scan.shutdown-timeout",
    "How long closing a reader, or parking a split, may take to return messages.",
)
.default(Default::Ours(Duration::from_secs(5)))
.at_least(MILLISECOND)
.at_most(LONGEST)
.builder("shutdown_timeout");

/// Messages a fetch.
pub const MAX_RECORDS_PER_FETCH: Opt<u64> = Opt::new(
    "scan.max-records-per-fetch",
    "Messages handed over at once. Not a bound of memory.",
)
.default(Default::Ours(1_000))
.at_least(1)
.unit("messages")
.builder("max_records_per_fetch");

/// The wait for a first checkpoint.
pub const FIRST_CHECKPOINT_TIMEOUT: Opt<Duration> = Opt::new(
    "scan.first-checkpoint-timeout",
    "Fails the job if messages are held and no checkpoint has begun so long after the first split came: without \
     checkpoints nothing is ever acknowledged. 0 disables the check.",
)
.default(Default::Ours(Duration::from_secs(600)))
.at_most(LONGEST)
.builder("first_checkpoint_timeout");

/// Order.
pub const ORDERING_MODE: TextOpt = TextOpt::new(
    "scan.ordering-mode",
    "'none', or 'per-key': the messages of an ordering key are emitted in publish order, by one subtask a subscription.",
)
.default(Default::Ours("none"))
.builder("ordering_mode");

/// What becomes of undecodable messages.
pub const FAILURE_POLICY: TextOpt = TextOpt::new(
    "scan.deserialization-failure-policy",
    "'fail' the job; 'drop' the message and count it; 'nack' it, for the subscription's dead-letter policy.",
)
.default(Default::Ours("fail"))
.builder("deserialization_failure_policy");

/// Exactly-once subscriptions.
pub const EXACTLY_ONCE: TextOpt = TextOpt::new(
    "scan.exactly-once-subscriptions",
    "'reject' subscriptions with exactly-once delivery at the start, or 'accept' them.",
)
.default(Default::Ours("reject"))
.builder("exactly_once_subscriptions");

/// Where reading starts.
pub const STARTUP_MODE: TextOpt = TextOpt::new(
    "scan.startup.mode",
    "'continue-from-subscription', 'earliest-retained', 'latest' or 'timestamp'. All but the first seek the \
     subscription, once, on a fresh start, for all its consumers.",
)
.default(Default::Ours("continue-from-subscription"))
.builder("start_position");

/// Settings of a subscription to create. Only the builder sets them as a whole.
pub const CREATE_OPTIONS: TextOpt = TextOpt::new(
    "scan.auto-create",
    "Settings by which a missing subscription is created; their presence authorizes it. Existing subscriptions are left \
     as they are.",
)
.default(Default::Unset("missing subscriptions fail the start"))
.builder("subscription_with");

/// Every option, in the order of the reference page.
#[must_use]
pub fn declarations() -> Vec<Declaration> {
    vec![
        PROJECT.declaration(),
        SUBSCRIPTION.declaration(),
        ORDERING_MODE.declaration(),
        FAILURE_POLICY.declaration(),
        STARTUP_MODE.declaration(),
        EXACTLY_ONCE.declaration(),
        CREATE_OPTIONS.declaration(),
        FLOW_CONTROL_MESSAGES.declaration(),
        FLOW_CONTROL_BYTES.declaration(),
        BUFFER_MESSAGES.declaration(),
        BUFFER_BYTES.declaration(),
        PAUSED_BUFFER_MESSAGES.declaration(),
        PAUSED_BUFFER_BYTES.declaration(),
        PARALLEL_PULLS.declaration(),
        MAX_EXTENSION_PERIOD.declaration(),
        MIN_EXTENSION.declaration(),
        MAX_EXTENSION.declaration(),
        AWAIT_CONFIRMATION.declaration(),
        SHUTDOWN_TIMEOUT.declaration(),
        MAX_RECORDS_PER_FETCH.declaration(),
        FIRST_CHECKPOINT_TIMEOUT.declaration(),
        SERVICE_ACCOUNT_KEY_FILE.declaration(),
        EMULATOR_ENDPOINT.declaration(),
    ]
}

/// `docs/reference/pubsub-source.md`.
#[must_use]
pub fn reference() -> String {
    reference_page(
        "Pub/Sub source: options",
        "Printed from the declarations in `crates/pubsub/src/source_options.rs`; the guide is\n\
         [Pub/Sub source](../pubsub-source.md).",
        &declarations(),
    )
}
