//! The options of tables: the list, and their values out of a table's statement.
//!
//! Where a builder has an option, the table's is that very constant. What only a table has is declared here.

use std::time::Duration;

use aqueduct_cloud::Endpoint;
use aqueduct_connector::options::{
    ByteSize, ConfigError, Default as Initially, Opt, OptionValue, TextOpt,
};
use aqueduct_connector::table::{
    TableOption, TableOptions, TableSpec, UsedBy, table_reference_page,
};

use super::codec::Trailing;
use super::full::FullCache;
use super::keys;
use super::reload::Reload;
use super::schema::Schema;
use crate::client::admin::{GcRule, TableCreateOptions};
use crate::destination::{INSTANCE, PROJECT, TABLE, TableDestination};
use crate::lookup::LookupCache;
use crate::options::{self as sink, EMULATOR_ENDPOINT, SERVICE_ACCOUNT_KEY_FILE, WriterOptions};
use crate::range::RowRange;
use crate::scan_options as scan;
use crate::sink::RowOrdering;

/// What a string column holds for null.
pub const NULL_STRING_LITERAL: TextOpt = TextOpt::new(
    "null-string-literal",
    "What a nullable string column holds for NULL. Columns of other types hold no byte. A string that equals it is read as \
     NULL.",
)
.default(Initially::Ours("null"));

/// Bytes behind a value of fixed width.
pub const TRAILING_BYTES: TextOpt = TextOpt::new(
    "decode.trailing-bytes",
    "What becomes of a stored value that is longer than its fixed-width type: 'IGNORE' reads the first bytes, 'REJECT' \
     fails the job.",
)
.default(Initially::Ours("IGNORE"));

/// How a table is read.
pub const SCAN_MODE: TextOpt = TextOpt::new(
    "scan.mode",
    "'bounded' reads the rows that the table has, once, and ends.",
)
.default(Initially::Ours("bounded"));

/// How row keys are written in options.
pub const ROW_KEY_ENCODING: TextOpt = TextOpt::new(
    "scan.row-key-encoding",
    "How row keys are written in the options below: 'UTF8', as text, or 'BASE64', padded, for keys that are not text.",
)
.default(Initially::Ours("UTF8"));

/// First key of a range.
pub const RANGE_START: TextOpt = TextOpt::new(
    "scan.row-range.start-closed",
    "First row key of one range to read, included; without 'scan.row-range.end-open', all from there on. Adds to prefixes \
     and ranges.",
)
.default(Initially::Unset("no such range"));

/// End of a range.
pub const RANGE_END: TextOpt = TextOpt::new(
    "scan.row-range.end-open",
    "End of that range, excluded; without 'scan.row-range.start-closed', all before it.",
)
.default(Initially::Unset("no such range"));

/// Number of readers.
pub const SCAN_PARALLELISM: Opt<u32> = Opt::new("scan.parallelism", "Number of readers.")
    .default(Initially::Unset("the job's"))
    .at_least(1)
    .unit("readers");

/// Whether lookups are asynchronous.
pub const LOOKUP_ASYNC: Opt<bool> = Opt::new(
    "lookup.async",
    "Whether a lookup join has several lookups under way. Then requests overlap, and keys that wait share a request.",
)
.default(Initially::Ours(false));

/// Whether lookups are cached.
pub const LOOKUP_CACHE: TextOpt = TextOpt::new(
    "lookup.cache",
    "'NONE' asks the service for every key; 'PARTIAL' keeps answers within the bounds of 'lookup.partial-cache.*', of which \
     one is needed; 'FULL' holds every row of the statement's ranges in each subtask, read when it starts and again as \
     'lookup.full-cache.*' says.",
)
.default(Initially::Ours("NONE"));

/// What makes a full cache read the table again.
pub const FULL_CACHE_STRATEGY: TextOpt = TextOpt::new(
    "lookup.full-cache.reload-strategy",
    "When a full cache is read again: 'PERIODIC', by an interval, or 'TIMED', at a time of day.",
)
.default(Initially::Ours("PERIODIC"));

/// Time between loads.
pub const FULL_CACHE_INTERVAL: Opt<Duration> = Opt::new(
    "lookup.full-cache.periodic-reload.interval",
    "With 'PERIODIC', and required there: how long a full cache is used before the table is read again.",
)
.default(Initially::Unset("none, needed with 'PERIODIC'"))
.at_least(Duration::from_secs(1));

/// What the interval counts from.
pub const FULL_CACHE_SCHEDULE: TextOpt = TextOpt::new(
    "lookup.full-cache.periodic-reload.schedule-mode",
    "With 'PERIODIC': whether the interval counts from the end of a load, 'FIXED_DELAY', or from its start, 'FIXED_RATE'.",
)
.default(Initially::Ours("FIXED_DELAY"));

/// Time of day of a load.
pub const FULL_CACHE_ISO_TIME: TextOpt = TextOpt::new(
    "lookup.full-cache.timed-reload.iso-time",
    "With 'TIMED', and required there: the time of day, with its zone, as '04:00Z' or '04:00+02:00'.",
)
.default(Initially::Unset("none, needed with 'TIMED'"));

/// Days between loads.
pub const FULL_CACHE_DAYS: Opt<u32> = Opt::new(
    "lookup.full-cache.timed-reload.interval-in-days",
    "With 'TIMED': days from one load to the next.",
)
.default(Initially::Ours(1))
.at_least(1)
.at_most(3_650)
.unit("days");

/// Memory of a full cache.
pub const FULL_CACHE_MAX_BYTES: Opt<ByteSize> = Opt::new(
    "lookup.full-cache.max-bytes",
    "Bytes that the rows of a full cache may take in one subtask; a table that needs more fails the job. While it is read \
     again both the old and the new rows are held.",
)
.default(Initially::Ours(ByteSize(1 << 30)))
.at_least(ByteSize::kib(64));

/// How rows are written.
pub const WRITE_MODE: TextOpt = TextOpt::new(
    "sink.write-mode",
    "'upsert' sets a row's cells beside their older versions; 'keep-latest' deletes all versions of each cell it sets, in \
     the same atomic change.",
)
.default(Initially::Ours("upsert"));

/// What a checkpoint promises.
pub const DELIVERY_GUARANTEE: TextOpt = TextOpt::new(
    "sink.delivery-guarantee",
    "'at-least-once': after a failure the rows since the last checkpoint are written again.",
)
.default(Initially::Ours("at-least-once"));

/// Versions that a created family keeps.
pub const GC_MAX_VERSIONS: Opt<u32> = Opt::new(
    "sink.table-create.gc-rule.max-versions",
    "Families that 'create-if-needed' makes keep so many versions of a cell. With 'sink.table-create.gc-rule.max-age' too, \
     the service collects what either rule collects.",
)
.default(Initially::Unset("no such rule"))
.at_least(1)
.at_most(i32::MAX as u32)
.unit("versions");

/// Age that cells of a created family reach.
pub const GC_MAX_AGE: Opt<Duration> = Opt::new(
    "sink.table-create.gc-rule.max-age",
    "Families that 'create-if-needed' makes keep cells so long.",
)
.default(Initially::Unset("no such rule"))
.at_least(Duration::from_millis(1));

/// Which changelog is asked for when rows are only inserted.
pub const INSERT_ONLY_INPUT_MODE: TextOpt = TextOpt::new(
    "sink.insert-only-input-mode",
    "What the table says it takes when the query only inserts: 'upsert', which lets the engine offer its conflict \
     strategies, or 'insert-only', which keeps plain inserts portable and leaves no ON CONFLICT. Nothing else changes.",
)
.default(Initially::Ours("upsert"));

/// Whether `timestamp` is cut to milliseconds.
pub const TRUNCATE_TO_MILLIS: Opt<bool> = Opt::new(
    "sink.cell-timestamp.truncate-to-millis",
    "Cuts the metadata column 'timestamp' to whole milliseconds, the granularity of tables. Without it the service refuses \
     a finer value, and the job fails.",
)
.default(Initially::Ours(false));

/// Number of writers.
pub const SINK_PARALLELISM: Opt<u32> = Opt::new("sink.parallelism", "Number of writers.")
    .default(Initially::Unset("the job's"))
    .at_least(1)
    .unit("writers");

/// The builder's option; a table chooses by its input.
pub const ROW_ORDERING: TextOpt = sink::ROW_ORDERING.default(Initially::Unset(
    "'per-row' if the query updates or deletes, 'none' if it only inserts",
));

/// Every option of tables, in the order of the reference page.
pub(super) fn declared() -> Vec<TableOption> {
    use UsedBy::{Both, Lookup, Scan, Sink};
    let text = |option: TextOpt, used_by| TableOption {
        declaration: option.declaration(),
        map: false,
        used_by,
    };
    fn value<T: OptionValue>(option: Opt<T>, used_by: UsedBy) -> TableOption {
        TableOption {
            declaration: option.declaration(),
            map: false,
            used_by,
        }
    }
    vec![
        text(PROJECT, Both),
        text(INSTANCE, Both),
        text(TABLE, Both),
        text(SERVICE_ACCOUNT_KEY_FILE, Both),
        text(EMULATOR_ENDPOINT, Both),
        text(NULL_STRING_LITERAL, Both),
        text(TRAILING_BYTES, Both),
        text(SCAN_MODE, Scan),
        text(scan::APP_PROFILE_ID, Scan),
        text(ROW_KEY_ENCODING, Scan),
        text(scan::ROW_PREFIX, Scan),
        text(RANGE_START, Scan),
        text(RANGE_END, Scan),
        text(scan::ROW_RANGE, Scan),
        value(scan::ROW_LIMIT, Scan),
        value(scan::REVERSED, Scan),
        value(scan::MAX_ROWS_PER_FETCH, Scan),
        value(scan::MAX_BYTES_PER_FETCH, Scan),
        value(scan::READ_AHEAD, Scan),
        value(SCAN_PARALLELISM, Scan),
        value(LOOKUP_ASYNC, Lookup),
        value(scan::LOOKUP_MAX_RETRIES, Lookup),
        value(scan::LOOKUP_MAX_CONCURRENCY, Lookup),
        value(scan::LOOKUP_MAX_BATCH_KEYS, Lookup),
        value(scan::LOOKUP_READ_AHEAD, Lookup),
        text(LOOKUP_CACHE, Lookup),
        value(scan::LOOKUP_CACHE_MAX_ROWS, Lookup),
        value(scan::LOOKUP_CACHE_MAX_BYTES, Lookup),
        value(scan::LOOKUP_CACHE_EXPIRE, Lookup),
        value(scan::LOOKUP_CACHE_MISSING, Lookup),
        text(FULL_CACHE_STRATEGY, Lookup),
        value(FULL_CACHE_INTERVAL, Lookup),
        text(FULL_CACHE_SCHEDULE, Lookup),
        text(FULL_CACHE_ISO_TIME, Lookup),
        value(FULL_CACHE_DAYS, Lookup),
        value(FULL_CACHE_MAX_BYTES, Lookup),
        text(WRITE_MODE, Sink),
        text(DELIVERY_GUARANTEE, Sink),
        text(sink::APP_PROFILE_ID, Sink),
        text(ROW_ORDERING, Sink),
        text(INSERT_ONLY_INPUT_MODE, Sink),
        value(TRUNCATE_TO_MILLIS, Sink),
        text(sink::CREATE_DISPOSITION, Sink),
        value(GC_MAX_VERSIONS, Sink),
        value(GC_MAX_AGE, Sink),
        value(sink::BATCH_ELEMENT_COUNT, Sink),
        value(sink::BATCH_REQUEST_BYTES, Sink),
        value(sink::MAX_IN_FLIGHT_ENTRIES, Sink),
        value(sink::MAX_IN_FLIGHT_BYTES, Sink),
        value(sink::MAX_CONSECUTIVE_REJECTIONS, Sink),
        value(sink::RECOVERY_INITIAL_BACKOFF, Sink),
        value(sink::RECOVERY_MAX_BACKOFF, Sink),
        value(sink::RECOVERY_MAX_ATTEMPTS, Sink),
        value(sink::DESTINATION_IDLE_TIMEOUT, Sink),
        value(sink::MAX_ACTIVE_INSTANCES, Sink),
        value(sink::CHANNELS, Sink),
        value(sink::PER_DESTINATION_METRICS, Sink),
        value(SINK_PARALLELISM, Sink),
    ]
}

/// `docs/reference/bigtable-table.md`.
#[must_use]
pub fn reference() -> String {
    table_reference_page(
        "Bigtable tables: options",
        "Printed from the declarations in `crates/bigtable/src/table/options.rs`; the guide is\n\
         [Bigtable tables](../bigtable-table.md).",
        &declared(),
    )
}

/// A table's statement, read and checked: columns and every option, whatever the table is about to be used for.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) schema: Schema,
    pub(super) destination: TableDestination,
    pub(super) key_file: Option<String>,
    pub(super) emulator: Option<String>,
    pub(super) null_literal: String,
    pub(super) trailing: Trailing,
    pub(super) scan: Scan,
    pub(super) lookup: Lookup,
    pub(super) sink: Sink,
}

#[derive(Clone, Debug)]
pub(super) struct Scan {
    pub(super) app_profile: Option<String>,
    /// Joined and in order; empty for the whole table.
    pub(super) ranges: Vec<RowRange>,
    pub(super) row_limit: Option<u64>,
    pub(super) reversed: bool,
    pub(super) max_rows_per_fetch: u64,
    pub(super) max_bytes_per_fetch: ByteSize,
    pub(super) read_ahead: ByteSize,
    pub(super) parallelism: Option<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct Lookup {
    pub(super) asynchronous: bool,
    pub(super) max_retries: u32,
    pub(super) max_concurrency: u32,
    pub(super) max_batch_keys: u32,
    pub(super) read_ahead: ByteSize,
    pub(super) cache: Caching,
}

/// What lookups keep.
#[derive(Clone, Copy, Debug)]
pub(super) enum Caching {
    None,
    Partial(LookupCache),
    Full(FullCache),
}

#[derive(Clone, Debug)]
pub(super) struct Sink {
    pub(super) app_profile: Option<String>,
    pub(super) mode: WriteMode,
    /// `None` chooses by the input.
    pub(super) ordering: Option<RowOrdering>,
    pub(super) insert_only: InsertOnlyInput,
    pub(super) truncate: bool,
    pub(super) create: Option<TableCreateOptions>,
    pub(super) writer: WriterOptions,
    pub(super) parallelism: Option<u32>,
}

/// How a row is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMode {
    Upsert,
    KeepLatest,
}

/// What the table says it takes of a query that only inserts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertOnlyInput {
    Upsert,
    InsertOnly,
}

impl Settings {
    pub(super) fn of(table: &TableSpec) -> Result<Self, ConfigError> {
        let options = TableOptions::new(table, &declared())?;
        // Whatever else is wrong, a table without an address is told that first.
        let project = options.required(&PROJECT, "the Google Cloud project, by id")?;
        let instance = options.required(&INSTANCE, "the Bigtable instance, by plain name")?;
        let name = options.required(&TABLE, "the Bigtable table, by plain name")?;
        let destination = TableDestination::of(project, instance, name)?;
        let key_file = options.text(&SERVICE_ACCOUNT_KEY_FILE)?;
        let emulator = options.text(&EMULATOR_ENDPOINT)?;
        if key_file.is_some() && emulator.is_some() {
            return Err(ConfigError::Conflict {
                first: SERVICE_ACCOUNT_KEY_FILE.key(),
                second: EMULATOR_ENDPOINT.key(),
                reason: "an emulator takes no credentials; remove one of them".to_owned(),
            });
        }
        if let Some(address) = emulator {
            Endpoint::emulator(EMULATOR_ENDPOINT.key(), address)
                .map_err(|error| ConfigError::invalid(EMULATOR_ENDPOINT.key(), error.report()))?;
        }
        let schema = Schema::of(table)?;
        let trailing = options.choice(
            TRAILING_BYTES.key(),
            &[("IGNORE", Trailing::Ignore), ("REJECT", Trailing::Reject)],
        )?;
        Ok(Self {
            scan: Scan::of(&options)?,
            lookup: Lookup::of(&options)?,
            sink: Sink::of(&options, &schema)?,
            schema,
            destination,
            key_file: key_file.map(str::to_owned),
            emulator: emulator.map(str::to_owned),
            // As it is: an empty literal, or one of spaces, may be what the table holds.
            null_literal: options
                .raw(NULL_STRING_LITERAL.key())
                .unwrap_or("null")
                .to_owned(),
            trailing: trailing.unwrap_or(Trailing::Ignore),
        })
    }
}

fn or<T: OptionValue>(options: &TableOptions<'_>, option: &Opt<T>) -> Result<T, ConfigError> {
    Ok(options.get(option)?.unwrap_or_else(|| option.ours()))
}

impl Scan {
    fn of(options: &TableOptions<'_>) -> Result<Self, ConfigError> {
        options.choice(SCAN_MODE.key(), &[("bounded", ())])?;
        let app_profile = options.raw(scan::APP_PROFILE_ID.key());
        Ok(Self {
            app_profile: app_profile
                .map(|profile| scan::APP_PROFILE_ID.check_component(profile))
                .transpose()?
                .map(str::to_owned),
            ranges: keys::requested(options)?,
            row_limit: options.get(&scan::ROW_LIMIT)?,
            reversed: or(options, &scan::REVERSED)?,
            max_rows_per_fetch: or(options, &scan::MAX_ROWS_PER_FETCH)?,
            max_bytes_per_fetch: or(options, &scan::MAX_BYTES_PER_FETCH)?,
            read_ahead: or(options, &scan::READ_AHEAD)?,
            parallelism: options.get(&SCAN_PARALLELISM)?,
        })
    }
}

impl Lookup {
    fn of(options: &TableOptions<'_>) -> Result<Self, ConfigError> {
        let asynchronous = or(options, &LOOKUP_ASYNC)?;
        let cache = Caching::of(options)?;
        if asynchronous && matches!(cache, Caching::Full(_)) {
            return Err(ConfigError::Conflict {
                first: LOOKUP_ASYNC.key(),
                second: LOOKUP_CACHE.key(),
                reason: "a full cache answers at once, so there is nothing to overlap; remove 'lookup.async'".to_owned(),
            });
        }
        Ok(Self {
            asynchronous,
            max_retries: or(options, &scan::LOOKUP_MAX_RETRIES)?,
            max_concurrency: or(options, &scan::LOOKUP_MAX_CONCURRENCY)?,
            max_batch_keys: or(options, &scan::LOOKUP_MAX_BATCH_KEYS)?,
            read_ahead: or(options, &scan::LOOKUP_READ_AHEAD)?,
            cache,
        })
    }
}

impl Caching {
    /// Options of a cache that is not there are refused: they would bound nothing.
    fn of(options: &TableOptions<'_>) -> Result<Self, ConfigError> {
        const PARTIAL: [&str; 4] = [
            scan::LOOKUP_CACHE_MAX_ROWS.key(),
            scan::LOOKUP_CACHE_MAX_BYTES.key(),
            scan::LOOKUP_CACHE_EXPIRE.key(),
            scan::LOOKUP_CACHE_MISSING.key(),
        ];
        const FULL: [&str; 6] = [
            FULL_CACHE_STRATEGY.key(),
            FULL_CACHE_INTERVAL.key(),
            FULL_CACHE_SCHEDULE.key(),
            FULL_CACHE_ISO_TIME.key(),
            FULL_CACHE_DAYS.key(),
            FULL_CACHE_MAX_BYTES.key(),
        ];
        let chosen = options
            .choice(
                LOOKUP_CACHE.key(),
                &[("NONE", "NONE"), ("PARTIAL", "PARTIAL"), ("FULL", "FULL")],
            )?
            .unwrap_or("NONE");
        for (keys, cache) in [(&PARTIAL[..], "PARTIAL"), (&FULL[..], "FULL")] {
            if cache != chosen
                && let Some(key) = keys.iter().find(|key| options.has(key))
            {
                return Err(ConfigError::Conflict {
                    first: key,
                    second: LOOKUP_CACHE.key(),
                    reason: format!(
                        "it concerns a cache that is not there; set 'lookup.cache' = '{cache}', or remove it"
                    ),
                });
            }
        }
        Ok(match chosen {
            "PARTIAL" => Self::Partial(cache(options)?),
            "FULL" => Self::Full(FullCache {
                reload: Reload::of(options)?,
                max_bytes: or(options, &FULL_CACHE_MAX_BYTES)?,
            }),
            _ => Self::None,
        })
    }
}

fn cache(options: &TableOptions<'_>) -> Result<LookupCache, ConfigError> {
    let mut cache = LookupCache::new();
    if let Some(rows) = options
        .get(&scan::LOOKUP_CACHE_MAX_ROWS)?
        .and_then(|rows| rows.try_into().ok())
    {
        cache = cache.max_rows(rows);
    }
    if let Some(bytes) = options.get(&scan::LOOKUP_CACHE_MAX_BYTES)? {
        cache = cache.max_bytes(bytes);
    }
    if let Some(age) = options.get(&scan::LOOKUP_CACHE_EXPIRE)? {
        cache = cache.expire_after_write(age);
    }
    if options.get(&scan::LOOKUP_CACHE_MISSING)? == Some(false) {
        cache = cache.without_missing();
    }
    cache.check()?;
    Ok(cache)
}

impl Sink {
    fn of(options: &TableOptions<'_>, schema: &Schema) -> Result<Self, ConfigError> {
        options.choice(DELIVERY_GUARANTEE.key(), &[("at-least-once", ())])?;
        let mode = options.choice(
            WRITE_MODE.key(),
            &[
                ("upsert", WriteMode::Upsert),
                ("keep-latest", WriteMode::KeepLatest),
            ],
        )?;
        let insert_only = options.choice(
            INSERT_ONLY_INPUT_MODE.key(),
            &[
                ("upsert", InsertOnlyInput::Upsert),
                ("insert-only", InsertOnlyInput::InsertOnly),
            ],
        )?;
        Ok(Self {
            app_profile: options.text(&sink::APP_PROFILE_ID)?.map(str::to_owned),
            mode: mode.unwrap_or(WriteMode::Upsert),
            ordering: options.choice(
                ROW_ORDERING.key(),
                &[
                    ("per-row", RowOrdering::PerRow),
                    ("none", RowOrdering::None),
                ],
            )?,
            insert_only: insert_only.unwrap_or(InsertOnlyInput::Upsert),
            truncate: or(options, &TRUNCATE_TO_MILLIS)?,
            create: create(options, schema)?,
            writer: writer(options)?,
            parallelism: options.get(&SINK_PARALLELISM)?,
        })
    }
}

/// The families of the statement, all with the rule of the options.
fn create(
    options: &TableOptions<'_>,
    schema: &Schema,
) -> Result<Option<TableCreateOptions>, ConfigError> {
    let wanted = options
        .choice(
            sink::CREATE_DISPOSITION.key(),
            &[("create-never", false), ("create-if-needed", true)],
        )?
        .unwrap_or(false);
    let versions = options.get(&GC_MAX_VERSIONS)?;
    let age = options.get(&GC_MAX_AGE)?;
    let given = [
        (versions.is_some(), GC_MAX_VERSIONS.key()),
        (age.is_some(), GC_MAX_AGE.key()),
    ];
    if !wanted {
        if let Some((_, key)) = given.into_iter().find(|(given, _)| *given) {
            return Err(ConfigError::Conflict {
                first: key,
                second: sink::CREATE_DISPOSITION.key(),
                reason: "only families that the table's sink creates get a rule; set 'create-if-needed', or remove it"
                    .to_owned(),
            });
        }
        return Ok(None);
    }
    let rules: Vec<GcRule> = [
        versions
            .and_then(std::num::NonZeroU32::new)
            .map(GcRule::max_versions),
        age.map(GcRule::max_age),
    ]
    .into_iter()
    .flatten()
    .collect();
    let rule = match <[GcRule; 1]>::try_from(rules) {
        Ok([rule]) => rule,
        Err(rules) if rules.is_empty() => {
            return Err(ConfigError::Missing {
                option: GC_MAX_VERSIONS.key(),
                what: "families made by 'create-if-needed' would keep every version for ever; set this, \
                       'sink.table-create.gc-rule.max-age', or both",
            });
        }
        Err(rules) => GcRule::union(rules),
    };
    let create = schema
        .families
        .iter()
        .fold(TableCreateOptions::new(), |create, family| {
            create.column_family(&family.name, rule.clone())
        });
    Ok(Some(create))
}

fn writer(options: &TableOptions<'_>) -> Result<WriterOptions, ConfigError> {
    let writer = WriterOptions {
        batch_entries: options.get(&sink::BATCH_ELEMENT_COUNT)?,
        batch_bytes: options.get(&sink::BATCH_REQUEST_BYTES)?,
        max_in_flight_entries: or(options, &sink::MAX_IN_FLIGHT_ENTRIES)?,
        max_in_flight_bytes: or(options, &sink::MAX_IN_FLIGHT_BYTES)?,
        max_consecutive_rejections: or(options, &sink::MAX_CONSECUTIVE_REJECTIONS)?,
        recovery_initial_backoff: or(options, &sink::RECOVERY_INITIAL_BACKOFF)?,
        recovery_max_backoff: or(options, &sink::RECOVERY_MAX_BACKOFF)?,
        recovery_max_attempts: or(options, &sink::RECOVERY_MAX_ATTEMPTS)?,
        destination_idle_timeout: or(options, &sink::DESTINATION_IDLE_TIMEOUT)?,
        max_active_instances: or(options, &sink::MAX_ACTIVE_INSTANCES)?,
        channels: or(options, &sink::CHANNELS)?,
        per_destination_metrics: or(options, &sink::PER_DESTINATION_METRICS)?,
    };
    Ok(writer)
}
