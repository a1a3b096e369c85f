//! The sink's options, each declared once, and the tuning values a writer runs with.
//!
//! Ranges mirror the vendor client's where a configuration must stay portable; what only costs memory here is warned
//! about instead of refused (BT-SINK-02). A retry schedule and a rate limit are deliberately no options.

use std::num::NonZeroU64;
use std::time::Duration;

use aqueduct_connector::options::{
    ByteSize, ConfigError, Declaration, Default as Initially, Opt, TextOpt, reference_page,
};
use tracing::warn;

use crate::destination;

/// Entries that make a batch leave.
pub const BATCH_ELEMENT_COUNT: Opt<u64> = Opt::new(
    "sink.batching.element-count-threshold",
    "Entries (rows, not cells) of one table that make a batch leave. A batch leaves on the first of: this count, the byte \
     threshold, one second after its first entry, 100,000 mutations, or a writer at its in-flight bounds.",
)
.default(Initially::Unset("100 entries"))
.at_least(1)
.at_most(19_999)
.unit("entries")
.builder("WriterOptions::batch_element_count_threshold")
.deprecated(&["sink.batching.element-count"]);

/// Bytes that make a batch leave.
pub const BATCH_REQUEST_BYTES: Opt<ByteSize> = Opt::new(
    "sink.batching.request-byte-threshold",
    "Encoded bytes of entries of one table that make a batch leave. An entry that would carry the batch past it sends the \
     batch first, so only a single entry makes a larger request.",
)
.default(Initially::Unset("20 MiB"))
.at_least(ByteSize(1))
.at_most(ByteSize(104_857_599))
.builder("WriterOptions::batch_request_byte_threshold")
.deprecated(&["sink.batching.byte-size"]);

/// Unanswered entries a writer holds.
pub const MAX_IN_FLIGHT_ENTRIES: Opt<u64> = Opt::new(
    "sink.in-flight.max-entries",
    "Entries of a writer that are handed over and unanswered, batches still filling included, over all its tables. At the \
     bound the stream is held back.",
)
.default(Initially::Ours(1_000))
.at_least(1)
.unit("entries")
.builder("WriterOptions::max_in_flight_entries");

/// Unanswered bytes a writer holds.
pub const MAX_IN_FLIGHT_BYTES: Opt<ByteSize> = Opt::new(
    "sink.in-flight.max-bytes",
    "Encoded bytes of a writer's unanswered entries, counted as the entries are. A larger single entry is admitted while \
     the writer is below the bound.",
)
.default(Initially::Ours(ByteSize::mib(64)))
.at_least(ByteSize(1))
.builder("WriterOptions::max_in_flight_bytes");

/// Rejections in a row that fail the job.
pub const MAX_CONSECUTIVE_REJECTIONS: Opt<i64> = Opt::new(
    "sink.max-consecutive-rejections",
    "Confirmed rejections in a row, with no applied mutation between them, that fail the job under a dropping policy; -1 \
     removes the bound.",
)
.default(Initially::Ours(100))
.at_least(-1)
.unit("rejections")
.builder("WriterOptions::max_consecutive_rejections");

/// First wait of a repair.
pub const RECOVERY_INITIAL_BACKOFF: Opt<Duration> = Opt::new(
    "sink.recovery.initial-backoff",
    "Wait after the first attempt to repair a missing table or family; doubles with each, give or take a quarter.",
)
.default(Initially::Ours(Duration::from_millis(500)))
.at_least(Duration::from_millis(1))
.at_most(MAX_DURATION)
.builder("WriterOptions::recovery_initial_backoff");

/// Longest wait of a repair.
pub const RECOVERY_MAX_BACKOFF: Opt<Duration> = Opt::new(
    "sink.recovery.max-backoff",
    "Longest wait between two attempts of a repair; not below the initial one.",
)
.default(Initially::Ours(Duration::from_secs(10)))
.at_least(Duration::from_millis(1))
.at_most(MAX_DURATION)
.builder("WriterOptions::recovery_max_backoff");

/// Attempts of a repair.
pub const RECOVERY_MAX_ATTEMPTS: Opt<u32> = Opt::new(
    "sink.recovery.max-attempts",
    "Attempts to repair what one incident found missing, the first included, over all its tables.",
)
.default(Initially::Ours(10))
.at_least(1)
.unit("attempts")
.builder("WriterOptions::recovery_max_attempts");

/// How long an unused table keeps its batcher.
pub const DESTINATION_IDLE_TIMEOUT: Opt<Duration> = Opt::new(
    "sink.destination-idle-timeout",
    "A table without a record for this long gives its batcher up at the end of a flush, and the instance's last table its \
     client; both come back with the next record.",
)
.default(Initially::Ours(Duration::from_secs(3_600)))
.at_least(Duration::from_nanos(1))
.at_most(MAX_DURATION)
.builder("WriterOptions::destination_idle_timeout");

/// Clients a writer keeps.
pub const MAX_ACTIVE_INSTANCES: Opt<u64> = Opt::new(
    "sink.max-active-instances",
    "Clients of a writer, one an instance, open and closing ones together. Beyond it the writer drains and gives up the \
     instance whose tables were longest without a record.",
)
.default(Initially::Ours(16))
.at_least(1)
.unit("instances")
.builder("WriterOptions::max_active_instances");

/// Connections of a client.
pub const CHANNELS: Opt<u32> = Opt::new(
    "sink.channels",
    "HTTP/2 connections of each client. A distant service limits what one connection carries by its own windows; more \
     connections are the remedy.",
)
.default(Initially::Ours(2))
.at_least(1)
.at_most(64)
.unit("connections")
.builder("WriterOptions::channels");

/// Counters a table.
pub const PER_DESTINATION_METRICS: Opt<bool> = Opt::new(
    "sink.metrics.per-destination",
    "Counts sent and rejected records of each table too. Metrics are never unregistered: only for few, known tables.",
)
.default(Initially::Ours(false))
.builder("WriterOptions::per_destination_metrics");

/// The application profile.
pub const APP_PROFILE_ID: TextOpt = TextOpt::new(
    "sink.app-profile-id",
    "The application profile that routes the writes. One for Data Boost only reads: every write through it fails.",
)
.default(Initially::Unset("the instance's default profile"))
.builder("app_profile_id");

/// The key file.
pub const SERVICE_ACCOUNT_KEY_FILE: TextOpt = TextOpt::new(
    "service-account-key-file",
    "Path of a service account's JSON key, the same in every process of the job; read once when a writer, a reader, a \
     coordinator or a lookup starts. Excludes 'emulator-endpoint'.",
)
.default(Initially::Unset("application-default credentials"))
.builder("service_account_key_file");

/// The emulator.
pub const EMULATOR_ENDPOINT: TextOpt = TextOpt::new(
    "emulator-endpoint",
    "`host:port` of a Bigtable emulator, spoken to in plain text without credentials. Never for production.",
)
.default(Initially::Unset("the production service"))
.builder("emulator_endpoint");

/// Whether missing tables and families are created.
pub const CREATE_DISPOSITION: TextOpt = TextOpt::new(
    "sink.create-disposition",
    "'create-if-needed' creates missing tables and families as declared; 'create-never' fails the job over them.",
)
.default(Initially::Ours("create-never"))
.builder("create_disposition");

/// The schema that may be created.
pub const TABLE_CREATE_OPTIONS: TextOpt = TextOpt::new(
    "sink.table-create",
    "The families, with their garbage-collection rules, that 'create-if-needed' may create, for every table alike.",
)
.default(Initially::Unset("nothing may be created"))
.builder("table_create_options");

/// Whether writes to one row keep their order.
pub const ROW_ORDERING: TextOpt = TextOpt::new(
    "sink.row-ordering",
    "'per-row' applies a writer's entries for one row in the order written, through retries; 'none' leaves order to the \
     service, which promises none.",
)
.default(Initially::Ours("none"))
.builder("row_ordering");

/// Waits are handled in nanoseconds of a signed 64-bit number: about 292 years.
const MAX_DURATION: Duration = Duration::from_nanos(i64::MAX as u64);

/// Above these the writer warns what its bounds may cost (BT-MSG-01).
const WARN_ENTRIES: u64 = 20_000;
const WARN_BYTES: ByteSize = ByteSize::mib(100);

/// All options of the sink, in the order of the reference page.
#[must_use]
pub fn declarations() -> Vec<Declaration> {
    vec![
        destination::PROJECT.declaration(),
        destination::INSTANCE.declaration(),
        destination::TABLE.declaration(),
        APP_PROFILE_ID.declaration(),
        SERVICE_ACCOUNT_KEY_FILE.declaration(),
        EMULATOR_ENDPOINT.declaration(),
        CREATE_DISPOSITION.declaration(),
        TABLE_CREATE_OPTIONS.declaration(),
        ROW_ORDERING.declaration(),
        BATCH_ELEMENT_COUNT.declaration(),
        BATCH_REQUEST_BYTES.declaration(),
        MAX_IN_FLIGHT_ENTRIES.declaration(),
        MAX_IN_FLIGHT_BYTES.declaration(),
        MAX_CONSECUTIVE_REJECTIONS.declaration(),
        RECOVERY_INITIAL_BACKOFF.declaration(),
        RECOVERY_MAX_BACKOFF.declaration(),
        RECOVERY_MAX_ATTEMPTS.declaration(),
        DESTINATION_IDLE_TIMEOUT.declaration(),
        MAX_ACTIVE_INSTANCES.declaration(),
        CHANNELS.declaration(),
        PER_DESTINATION_METRICS.declaration(),
    ]
}

/// The generated reference page of the sink's options.
#[must_use]
pub fn sink_reference() -> String {
    reference_page(
        "Bigtable sink: options",
        "Generated from the declarations; edit those. *Builder* names the setter of the Rust API, on \
         `BigtableSinkBuilder` where no type is given.",
        &declarations(),
    )
}

/// How a writer batches, bounds and recovers. Every value is checked when the sink is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    pub(crate) batch_entries: Option<u64>,
    pub(crate) batch_bytes: Option<ByteSize>,
    pub(crate) max_in_flight_entries: u64,
    pub(crate) max_in_flight_bytes: ByteSize,
    pub(crate) max_consecutive_rejections: i64,
    pub(crate) recovery_initial_backoff: Duration,
    pub(crate) recovery_max_backoff: Duration,
    pub(crate) recovery_max_attempts: u32,
    pub(crate) destination_idle_timeout: Duration,
    pub(crate) max_active_instances: u64,
    pub(crate) channels: u32,
    pub(crate) per_destination_metrics: bool,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            batch_entries: None,
            batch_bytes: None,
            max_in_flight_entries: MAX_IN_FLIGHT_ENTRIES.ours(),
            max_in_flight_bytes: MAX_IN_FLIGHT_BYTES.ours(),
            max_consecutive_rejections: MAX_CONSECUTIVE_REJECTIONS.ours(),
            recovery_initial_backoff: RECOVERY_INITIAL_BACKOFF.ours(),
            recovery_max_backoff: RECOVERY_MAX_BACKOFF.ours(),
            recovery_max_attempts: RECOVERY_MAX_ATTEMPTS.ours(),
            destination_idle_timeout: DESTINATION_IDLE_TIMEOUT.ours(),
            max_active_instances: MAX_ACTIVE_INSTANCES.ours(),
            channels: CHANNELS.ours(),
            per_destination_metrics: PER_DESTINATION_METRICS.ours(),
        }
    }
}

impl WriterOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Entries of one table that make a batch leave: 1 to 19,999, by default 100 (`sink.batching.element-count-threshold`).
    ///
    /// No batch holds more than the in-flight bound, because a filling batch counts in it.
    #[must_use]
    pub fn batch_element_count_threshold(mut self, entries: u64) -> Self {
        self.batch_entries = Some(entries);
        self
    }

    /// Encoded bytes of one table that make a batch leave: 1 to 104,857,599, by default 20 MiB
    /// (`sink.batching.request-byte-threshold`).
    #[must_use]
    pub fn batch_request_byte_threshold(mut self, bytes: ByteSize) -> Self {
        self.batch_bytes = Some(bytes);
        self
    }

    /// Unanswered entries of the writer over all tables: above 0, by default 1,000 (`sink.in-flight.max-entries`). Above
    /// 20,000 the build warns what it may cost.
    #[must_use]
    pub fn max_in_flight_entries(mut self, entries: u64) -> Self {
        self.max_in_flight_entries = entries;
        self
    }

    /// Unanswered bytes of the writer over all tables: above 0, by default 64 MiB (`sink.in-flight.max-bytes`). Above 100
    /// MiB the build warns what it may cost.
    #[must_use]
    pub fn max_in_flight_bytes(mut self, bytes: ByteSize) -> Self {
        self.max_in_flight_bytes = bytes;
        self
    }

    /// Confirmed rejections in a row that fail the job; `None` for no bound. By default 100
    /// (`sink.max-consecutive-rejections`).
    #[must_use]
    pub fn max_consecutive_rejections(mut self, rejections: Option<NonZeroU64>) -> Self {
        self.max_consecutive_rejections =
            rejections.map_or(-1, |bound| i64::try_from(bound.get()).unwrap_or(i64::MAX));
        self
    }

    /// Wait after a repair's first attempt: at least 1 ms, by default 500 ms (`sink.recovery.initial-backoff`).
    #[must_use]
    pub fn recovery_initial_backoff(mut self, wait: Duration) -> Self {
        self.recovery_initial_backoff = wait;
        self
    }

    /// Longest wait between a repair's attempts: not below the initial one, by default 10 s
    /// (`sink.recovery.max-backoff`).
    #[must_use]
    pub fn recovery_max_backoff(mut self, wait: Duration) -> Self {
        self.recovery_max_backoff = wait;
        self
    }

    /// A repair's attempts: above 0, by default 10 (`sink.recovery.max-attempts`).
    #[must_use]
    pub fn recovery_max_attempts(mut self, attempts: u32) -> Self {
        self.recovery_max_attempts = attempts;
        self
    }

    /// How long an unused table keeps its batcher: above 0, by default 1 h (`sink.destination-idle-timeout`).
    #[must_use]
    pub fn destination_idle_timeout(mut self, idle: Duration) -> Self {
        self.destination_idle_timeout = idle;
        self
    }

    /// Clients of the writer, open and closing: above 0, by default 16 (`sink.max-active-instances`).
    #[must_use]
    pub fn max_active_instances(mut self, instances: u64) -> Self {
        self.max_active_instances = instances;
        self
    }

    /// HTTP/2 connections of each client: 1 to 64, by default 2 (`sink.channels`).
    #[must_use]
    pub fn channels(mut self, connections: u32) -> Self {
        self.channels = connections;
        self
    }

    /// Counts each table's records too; by default off (`sink.metrics.per-destination`).
    #[must_use]
    pub fn per_destination_metrics(mut self, counted: bool) -> Self {
        self.per_destination_metrics = counted;
        self
    }

    /// Entries that make a batch leave, the default filled in.
    pub(crate) fn batch_entries(&self) -> usize {
        to_usize(
            self.batch_entries
                .unwrap_or(100)
                .min(self.max_in_flight_entries),
        )
    }

    /// Bytes that make a batch leave, the default filled in.
    pub(crate) fn batch_bytes(&self) -> usize {
        to_usize(self.batch_bytes.unwrap_or(ByteSize::mib(20)).0)
    }

    /// Refuses what can never work and warns of what merely costs (BASE-22).
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.batch_entries
            .map(|entries| BATCH_ELEMENT_COUNT.check(entries))
            .transpose()?;
        self.batch_bytes
            .map(|bytes| BATCH_REQUEST_BYTES.check(bytes))
            .transpose()?;
        MAX_IN_FLIGHT_ENTRIES.check(self.max_in_flight_entries)?;
        MAX_IN_FLIGHT_BYTES.check(self.max_in_flight_bytes)?;
        if MAX_CONSECUTIVE_REJECTIONS.check(self.max_consecutive_rejections)? == 0 {
            return Err(ConfigError::invalid(
                MAX_CONSECUTIVE_REJECTIONS.key(),
                "0 rejections would fail a job that has rejected nothing; use 1 or more, or -1 for no bound",
            ));
        }
        RECOVERY_INITIAL_BACKOFF.check(self.recovery_initial_backoff)?;
        RECOVERY_MAX_BACKOFF.check(self.recovery_max_backoff)?;
        if self.recovery_max_backoff < self.recovery_initial_backoff {
            return Err(ConfigError::Conflict {
                first: RECOVERY_INITIAL_BACKOFF.key(),
                second: RECOVERY_MAX_BACKOFF.key(),
                reason: format!(
                    "the longest wait, {:?}, is below the first, {:?}; raise the one or lower the other",
                    self.recovery_max_backoff, self.recovery_initial_backoff
                ),
            });
        }
        RECOVERY_MAX_ATTEMPTS.check(self.recovery_max_attempts)?;
        DESTINATION_IDLE_TIMEOUT.check(self.destination_idle_timeout)?;
        MAX_ACTIVE_INSTANCES.check(self.max_active_instances)?;
        CHANNELS.check(self.channels)?;
        if self.max_in_flight_entries > WARN_ENTRIES {
            warn!(
                option = MAX_IN_FLIGHT_ENTRIES.key(),
                value = self.max_in_flight_entries,
                "every subtask may hold that many entries in memory, with their parked copies during a pass; \
                 throughput rarely grows beyond 20,000",
            );
        }
        if self.max_in_flight_bytes > WARN_BYTES {
            warn!(
                option = MAX_IN_FLIGHT_BYTES.key(),
                value = %self.max_in_flight_bytes,
                "every subtask may hold twice that in memory, during a pass; throughput rarely grows beyond 100 MiB",
            );
        }
        Ok(())
    }
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: WriterOptions) -> String {
        options.check().expect_err("out of range").to_string()
    }

    #[test]
    fn each_bound_is_inclusive_and_a_value_beyond_names_its_option() {
        let ok = WriterOptions::new();
        assert_eq!(ok.check(), Ok(()));
        for good in [
            ok.clone().batch_element_count_threshold(1),
            ok.clone().batch_element_count_threshold(19_999),
            ok.clone()
                .batch_request_byte_threshold(ByteSize(104_857_599)),
            ok.clone().max_consecutive_rejections(None),
            ok.clone()
                .recovery_initial_backoff(Duration::from_millis(1)),
            ok.clone().recovery_max_backoff(Duration::from_millis(500)),
            ok.clone().destination_idle_timeout(MAX_DURATION),
        ] {
            assert_eq!(good.check(), Ok(()));
        }
        for (bad, option) in [
            (ok.clone().batch_element_count_threshold(0), "element-count"),
            (
                ok.clone().batch_element_count_threshold(20_000),
                "element-count",
            ),
            (
                ok.clone()
                    .batch_request_byte_threshold(ByteSize(104_857_600)),
                "request-byte",
            ),
            (
                ok.clone().max_in_flight_entries(0),
                "sink.in-flight.max-entries",
            ),
            (
                ok.clone().max_in_flight_bytes(ByteSize(0)),
                "sink.in-flight.max-bytes",
            ),
            (
                ok.clone()
                    .recovery_initial_backoff(Duration::from_micros(500)),
                "initial-backoff",
            ),
            (
                ok.clone().recovery_initial_backoff(Duration::ZERO),
                "initial-backoff",
            ),
            (ok.clone().recovery_max_attempts(0), "max-attempts"),
            (
                ok.clone().destination_idle_timeout(Duration::ZERO),
                "destination-idle-timeout",
            ),
            (
                ok.clone()
                    .destination_idle_timeout(Duration::from_secs(293 * 365 * 86_400)),
                "destination-idle-timeout",
            ),
            (ok.clone().max_active_instances(0), "max-active-instances"),
            (ok.clone().channels(0), "sink.channels"),
        ] {
            let error = refused(bad);
            assert!(error.contains(option), "{error}");
        }
    }

    #[test]
    fn a_backoff_pair_out_of_order_names_both_options() {
        let error = refused(WriterOptions::new().recovery_max_backoff(Duration::from_millis(499)));
        assert!(
            error.contains("initial-backoff") && error.contains("max-backoff"),
            "{error}"
        );
    }

    #[test]
    fn a_batch_never_exceeds_what_may_be_in_flight() {
        assert_eq!(
            WriterOptions::new()
                .max_in_flight_entries(7)
                .batch_entries(),
            7
        );
        assert_eq!(WriterOptions::new().batch_entries(), 100);
    }
}
