//! The options of the scan source and the lookup client, each declared once.
//!
//! Builders check through these, a table's DDL reads the same, and `docs/reference/bigtable-scan.md` is printed from them.

use std::time::Duration;

use aqueduct_connector::options::{ByteSize, Declaration, Default, Opt, TextOpt, reference_page};

use crate::destination::{INSTANCE, PROJECT, TABLE};
pub use crate::options::{EMULATOR_ENDPOINT, SERVICE_ACCOUNT_KEY_FILE};

/// The application profile.
pub const APP_PROFILE_ID: TextOpt = TextOpt::new(
    "scan.app-profile-id",
    "Application profile of every read. A Data Boost profile is named here like any other.",
)
.default(Default::Unset("the instance's default profile"))
.builder("app_profile_id");

/// Prefixes to read.
pub const ROW_PREFIX: TextOpt = TextOpt::new(
    "scan.row-prefix",
    "Reads the rows whose keys begin so; several add up, and to the ranges. In text ';' separates them.",
)
.default(Default::Unset("no prefix"))
.builder("prefix");

/// Ranges to read.
pub const ROW_RANGE: TextOpt = TextOpt::new(
    "scan.row-ranges",
    "Reads the rows of a range; several add up, and to the prefixes. Overlapping and touching ranges are joined. In text \
     they are '[a,b);(c,d];[e,)', with a backslash before each of [ ] ( ) , ; \\ in a key.",
)
.default(Default::Unset(
    "without a range and a prefix, the whole table",
))
.builder("row_range");

/// The filter. Only the builder sets it.
pub const FILTER: TextOpt = TextOpt::new(
    "scan.filter",
    "Applied by the service to every row of every split. At most 20 deep and below 20 KiB. Builder only.",
)
.default(Default::Unset("every cell"))
.builder("filter");

/// Rows a fetch.
pub const MAX_ROWS_PER_FETCH: Opt<u64> = Opt::new(
    "scan.max-rows-per-fetch",
    "Rows handed over at once; the first of the two fetch limits ends a fetch.",
)
.default(Default::Ours(1_000))
.at_least(1)
.unit("rows")
.builder("max_rows_per_fetch");

/// Bytes a fetch.
pub const MAX_BYTES_PER_FETCH: Opt<ByteSize> = Opt::new(
    "scan.max-bytes-per-fetch",
    "Decoded input handed over at once: row key, values, and for every cell family, qualifier, labels and 8 bytes. A row \
     that would cross it waits for the next fetch; a larger row travels alone.",
)
.default(Default::Ours(ByteSize::mib(8)))
.at_least(ByteSize(1))
.builder("max_bytes_per_fetch");

/// Transport read-ahead.
pub const READ_AHEAD: Opt<ByteSize> = Opt::new(
    "scan.read-ahead",
    "Bytes that the transport may hold for one subtask before they are decoded: its HTTP/2 windows. At a distance this \
     times the round trips a second bounds the throughput of a subtask.",
)
.default(Default::Ours(ByteSize::mib(16)))
.at_least(ByteSize::kib(64))
.at_most(ByteSize(1 << 30))
.builder("read_ahead");

/// The row limit over all splits.
pub const ROW_LIMIT: Opt<u64> = Opt::new(
    "scan.row-limit",
    "Reads at most so many rows, exactly, the first in key order. Splits are then read one after the other.",
)
.default(Default::Unset("all rows"))
.at_least(1)
.unit("rows")
.builder("row_limit");

/// Descending key order.
pub const REVERSED: Opt<bool> = Opt::new(
    "scan.reversed",
    "Reads each split in descending key order. Slower on the service's side and not eligible for Data Boost.",
)
.default(Default::Ours(false))
.builder("reversed");

/// Retries of a lookup.
pub const LOOKUP_MAX_RETRIES: Opt<u32> = Opt::new(
    "lookup.max-retries",
    "Times a point read is sent again after DEADLINE_EXCEEDED, UNAVAILABLE or ABORTED.",
)
.default(Default::Ours(3))
.at_most(1_000)
.unit("retries")
.builder("max_retries");

/// Point reads at a time.
pub const LOOKUP_MAX_CONCURRENCY: Opt<u32> = Opt::new(
    "lookup.max-concurrent-requests",
    "Read requests of one lookup client that may be unanswered; further ones wait.",
)
.default(Default::Ours(32))
.at_least(1)
.at_most(10_000)
.unit("requests")
.builder("max_concurrent_requests");

/// Keys a request of a batched lookup.
pub const LOOKUP_MAX_BATCH_KEYS: Opt<u32> = Opt::new(
    "lookup.max-keys-per-request",
    "Keys that one request of a batched lookup asks for.",
)
.default(Default::Ours(100))
.at_least(1)
.at_most(10_000)
.unit("keys")
.builder("max_keys_per_request");

/// Bytes in flight.
pub const LOOKUP_READ_AHEAD: Opt<ByteSize> = Opt::new(
    "lookup.read-ahead",
    "Bytes that the transport may hold for one lookup client before they are decoded.",
)
.default(Default::Ours(ByteSize::mib(16)))
.at_least(ByteSize::kib(64))
.at_most(ByteSize(1 << 30))
.builder("read_ahead");

/// Rows in the cache.
pub const LOOKUP_CACHE_MAX_ROWS: Opt<u64> = Opt::new(
    "lookup.partial-cache.max-rows",
    "Answers kept, the least recently used going first.",
)
.default(Default::Unset("no bound in rows"))
.at_least(1)
.unit("rows")
.builder("cache(LookupCache)");

/// Bytes in the cache.
pub const LOOKUP_CACHE_MAX_BYTES: Opt<ByteSize> = Opt::new(
    "lookup.partial-cache.max-bytes",
    "Bytes of keys and rows kept, the least recently used going first.",
)
.default(Default::Unset("no bound in bytes"))
.at_least(ByteSize(1))
.builder("cache(LookupCache)");

/// Age in the cache.
pub const LOOKUP_CACHE_EXPIRE: Opt<Duration> = Opt::new(
    "lookup.partial-cache.expire-after-write",
    "Age at which a kept answer is asked for again.",
)
.default(Default::Unset("no bound in age"))
.at_least(Duration::from_millis(1))
.builder("cache(LookupCache)");

/// Whether absent rows are kept.
pub const LOOKUP_CACHE_MISSING: Opt<bool> = Opt::new(
    "lookup.partial-cache.cache-missing-key",
    "Whether the answer that a row does not exist is kept too.",
)
.default(Default::Ours(true))
.builder("cache(LookupCache)");

/// Every option, in the order of the reference page.
#[must_use]
pub fn declarations() -> Vec<Declaration> {
    vec![
        PROJECT.declaration(),
        INSTANCE.declaration(),
        TABLE.declaration(),
        APP_PROFILE_ID.declaration(),
        ROW_RANGE.declaration(),
        ROW_PREFIX.declaration(),
        FILTER.declaration(),
        MAX_ROWS_PER_FETCH.declaration(),
        MAX_BYTES_PER_FETCH.declaration(),
        READ_AHEAD.declaration(),
        ROW_LIMIT.declaration(),
        REVERSED.declaration(),
        SERVICE_ACCOUNT_KEY_FILE.declaration(),
        EMULATOR_ENDPOINT.declaration(),
        LOOKUP_MAX_RETRIES.declaration(),
        LOOKUP_MAX_CONCURRENCY.declaration(),
        LOOKUP_MAX_BATCH_KEYS.declaration(),
        LOOKUP_READ_AHEAD.declaration(),
        LOOKUP_CACHE_MAX_ROWS.declaration(),
        LOOKUP_CACHE_MAX_BYTES.declaration(),
        LOOKUP_CACHE_EXPIRE.declaration(),
        LOOKUP_CACHE_MISSING.declaration(),
    ]
}

/// `docs/reference/bigtable-scan.md`.
#[must_use]
pub fn reference() -> String {
    reference_page(
        "Bigtable scan source and lookup: options",
        "Printed from the declarations in `crates/bigtable/src/scan_options.rs`; the guide is\n\
         [Bigtable scan source](../bigtable-scan.md).",
        &declarations(),
    )
}
