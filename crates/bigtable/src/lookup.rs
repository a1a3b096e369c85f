//! Point reads: rows by key, one at a time or many, with a bound on requests and an optional cache.
//!
//! [`BigtableLookup`] is configuration; [`LookupClient`], made from it by the operator that looks up, is live. Reads are
//! retried by the rules of BT-SCAN-14 and by nothing else: `DEADLINE_EXCEEDED`, `UNAVAILABLE` and `ABORTED`, 20 s an
//! attempt, waits of 10 ms doubling to 1 s with full jitter, then the last error.
//!
//! # Invariants
//!
//! - At most so many requests are unanswered as the option says; further ones wait in order.
//! - A key that no row can have, or that the configured ranges exclude, is no match and no request.
//! - The cache never holds more rows or bytes than its bounds, and hands out no answer older than its age bound.
//!
//! # Not here
//!
//! A full cache: that is a scan, and tables of SQL have one. A Data Boost profile serves it, and no point read.

mod cache;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::num::{NonZeroU32, NonZeroUsize};
use std::rc::Rc;
use std::sync::Arc;

use aqueduct_connector::metrics::{Counter, Gauge};
use aqueduct_connector::options::{ByteSize, ConfigError};
use aqueduct_connector::{Context, Error, Result};
use bytes::Bytes;
use futures::future::try_join_all;
use tokio::sync::Semaphore;

use crate::client::read::{Fill, ReadAccess, ReadClient, ReadPolicy, Remaining, Row};
use crate::destination::{TABLE, TableDestination};
use crate::filter::Filter;
use crate::range::{MAX_ROW_KEY_BYTES, RowRange, check_not_empty};
use crate::scan_options::{
    LOOKUP_MAX_BATCH_KEYS, LOOKUP_MAX_CONCURRENCY, LOOKUP_MAX_RETRIES, LOOKUP_READ_AHEAD,
};

pub use cache::LookupCache;
use cache::{Cached, RowCache};

/// Names of the lookup client's metrics.
pub mod metrics {
    /// Keys asked for, cached or not.
    pub const KEYS_LOOKED_UP: &str = "keysLookedUp";
    /// Keys answered by the cache.
    pub const CACHE_HITS: &str = "lookupCacheHits";
    /// Read requests sent again after a failure.
    pub const LOOKUP_RETRIES: &str = "lookupRetries";
    /// Times a full cache was loaded.
    pub const CACHE_LOADS: &str = "lookupCacheLoads";
    /// A gauge: rows of a full cache.
    pub const CACHED_ROWS: &str = "lookupCachedRows";
    /// A gauge: bytes that they take.
    pub const CACHED_BYTES: &str = "lookupCachedBytes";
    /// A gauge: requests unanswered.
    pub const IN_FLIGHT_REQUESTS: &str = "inFlightRequests";

    /// All of them.
    pub const ALL: &[&str] = &[
        KEYS_LOOKED_UP,
        CACHE_HITS,
        LOOKUP_RETRIES,
        CACHE_LOADS,
        CACHED_ROWS,
        CACHED_BYTES,
        IN_FLIGHT_REQUESTS,
    ];
}

/// Looks rows up by key: settings, checked.
#[derive(Clone, Debug)]
pub struct BigtableLookup {
    access: ReadAccess,
    filter: Option<Filter>,
    ranges: Vec<RowRange>,
    max_retries: u32,
    max_concurrent_requests: u32,
    max_keys_per_request: u32,
    read_ahead: ByteSize,
    cache: Option<LookupCache>,
}

impl BigtableLookup {
    /// A builder; `table` is required.
    #[must_use]
    pub fn builder() -> BigtableLookupBuilder {
        BigtableLookupBuilder::default()
    }

    /// Makes the client of one operator. Reads the key file if there is one, and connects when it is first used.
    ///
    /// # Errors
    ///
    /// If the key file cannot be used.
    pub fn open(&self, context: &Context) -> Result<LookupClient> {
        let streams = NonZeroUsize::new(self.max_concurrent_requests as usize)
            .expect("the builder refused 0");
        let group = &context.metrics;
        Ok(LookupClient(Rc::new(Inner {
            client: ReadClient::new(context, &self.access, self.read_ahead, streams)?,
            permits: Semaphore::new(self.max_concurrent_requests as usize),
            state: RefCell::new(State {
                random: context.random(),
                cache: self.cache.map(RowCache::new),
                in_flight: 0,
            }),
            keys: group.counter(metrics::KEYS_LOOKED_UP),
            hits: group.counter(metrics::CACHE_HITS),
            retries: group.counter(metrics::LOOKUP_RETRIES),
            in_flight: group.gauge(metrics::IN_FLIGHT_REQUESTS),
            settings: self.clone(),
        })))
    }
}

/// Looks rows up. Clones share connections, bounds and cache.
///
/// Owned and polled by one task, as everything that a host drives; its futures are not `Send`.
#[derive(Clone)]
pub struct LookupClient(Rc<Inner>);

struct Inner {
    settings: BigtableLookup,
    client: ReadClient,
    permits: Semaphore,
    state: RefCell<State>,
    keys: Counter,
    hits: Counter,
    retries: Counter,
    in_flight: Gauge,
}

struct State {
    random: fastrand::Rng,
    cache: Option<RowCache>,
    in_flight: i64,
}

impl LookupClient {
    /// The row at `key`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// When the read failed and was tried as often as it may be.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the request.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Arc<Row>>> {
        let mut rows = self.get_many(&[Bytes::copy_from_slice(key)]).await?;
        Ok(rows.pop().flatten())
    }

    /// The rows at `keys`, in their order, `None` where there is none. A key given twice is asked for once.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get), when any of the requests failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the requests; what was answered stays in the cache.
    pub async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Arc<Row>>>> {
        let inner = &self.0;
        inner.keys.add(keys.len() as u64);
        let mut found: HashMap<Bytes, Option<Arc<Row>>> = HashMap::with_capacity(keys.len());
        let mut missing = Vec::new();
        {
            let mut state = inner.state.borrow_mut();
            let now = inner.client.clock().now();
            for key in keys {
                if found.contains_key(key) {
                    continue;
                }
                let cached = match &mut state.cache {
                    Some(cache) => cache.get(key, now),
                    None => Cached::Unknown,
                };
                let answer = match cached {
                    _ if !inner.settings.may_match(key) => None,
                    Cached::Row(row) => {
                        inner.hits.increment();
                        Some(row)
                    }
                    Cached::Missing => {
                        inner.hits.increment();
                        None
                    }
                    Cached::Unknown => {
                        missing.push(key.clone());
                        None
                    }
                };
                found.insert(key.clone(), answer);
            }
        }
        let chunks = missing.chunks(inner.settings.max_keys_per_request as usize);
        for rows in try_join_all(chunks.map(|chunk| self.read(chunk))).await? {
            for row in rows {
                found.insert(Bytes::copy_from_slice(row.key()), Some(row));
            }
        }
        Ok(keys
            .iter()
            .map(|key| found.get(key).cloned().flatten())
            .collect())
    }

    /// Reads the rows at `keys` by one request, and keeps the answers.
    async fn read(&self, keys: &[Bytes]) -> Result<Vec<Arc<Row>>> {
        let inner = &self.0;
        let _permit = inner
            .permits
            .acquire()
            .await
            .map_err(|_| Error::bug("the bound on lookups was closed, which nothing does"))?;
        let _in_flight = InFlight::start(inner);
        let random = fastrand::Rng::with_seed(inner.state.borrow_mut().random.u64(..));
        let settings = &inner.settings;
        let mut stream = inner
            .client
            .read(
                Remaining::keys(keys.to_vec()),
                settings.filter.as_ref(),
                ReadPolicy::lookup(settings.max_retries),
                random,
            )
            .counting(inner.retries.clone());
        let mut rows = Vec::new();
        while poll_fn(|cx| stream.poll_fill(cx, keys.len() as u64, u64::MAX)).await? == Fill::Rows {
            rows.extend(stream.batch().iter().map(|row| Arc::new(row.to_row())));
            stream.clear();
        }
        if let Some(cache) = &mut inner.state.borrow_mut().cache {
            let now = inner.client.clock().now();
            for row in &rows {
                cache.insert(Bytes::copy_from_slice(row.key()), Some(row.clone()), now);
            }
            for key in keys {
                // Rows come in key order, as the service and the decoder hold them to it.
                if rows.binary_search_by(|row| row.key().cmp(key)).is_err() {
                    cache.insert(Bytes::copy_from_slice(key), None, now);
                }
            }
        }
        Ok(rows)
    }

    /// Requests unanswered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        usize::try_from(self.0.state.borrow().in_flight).unwrap_or(0)
    }
}

impl fmt::Debug for LookupClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookupClient")
            .field("table", self.0.client.table())
            .finish_non_exhaustive()
    }
}

/// Shows a request as unanswered until it is dropped, however that happens.
struct InFlight<'a>(&'a Inner);

impl<'a> InFlight<'a> {
    fn start(inner: &'a Inner) -> Self {
        Self::change(inner, 1);
        Self(inner)
    }

    fn change(inner: &Inner, by: i64) {
        let mut state = inner.state.borrow_mut();
        state.in_flight += by;
        inner.in_flight.set(state.in_flight);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        Self::change(self.0, -1);
    }
}

impl BigtableLookup {
    fn may_match(&self, key: &[u8]) -> bool {
        (1..=MAX_ROW_KEY_BYTES).contains(&key.len())
            && (self.ranges.is_empty() || self.ranges.iter().any(|range| range.contains(key)))
    }
}

/// Settings of a [`BigtableLookup`]. Setters never fail; [`build`](Self::build) checks everything before any I/O.
#[derive(Debug)]
pub struct BigtableLookupBuilder {
    table: Option<TableDestination>,
    app_profile_id: Option<String>,
    filter: Option<Filter>,
    ranges: Vec<RowRange>,
    max_retries: u32,
    max_concurrent_requests: u32,
    max_keys_per_request: u32,
    read_ahead: ByteSize,
    cache: Option<LookupCache>,
    service_account_key_file: Option<String>,
    emulator_endpoint: Option<String>,
}

impl Default for BigtableLookupBuilder {
    fn default() -> Self {
        Self {
            table: None,
            app_profile_id: None,
            filter: None,
            ranges: Vec::new(),
            max_retries: LOOKUP_MAX_RETRIES.ours(),
            max_concurrent_requests: LOOKUP_MAX_CONCURRENCY.ours(),
            max_keys_per_request: LOOKUP_MAX_BATCH_KEYS.ours(),
            read_ahead: LOOKUP_READ_AHEAD.ours(),
            cache: None,
            service_account_key_file: None,
            emulator_endpoint: None,
        }
    }
}

impl BigtableLookupBuilder {
    /// The table to look up in. Required.
    #[must_use]
    pub fn table(mut self, table: TableDestination) -> Self {
        self.table = Some(table);
        self
    }

    /// Reads through this application profile. Default: the instance's own. SQL: `scan.app-profile-id`.
    #[must_use]
    pub fn app_profile_id(mut self, app_profile_id: impl Into<String>) -> Self {
        self.app_profile_id = Some(app_profile_id.into());
        self
    }

    /// Lets the service return only some cells. A row without any is no match.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Looks up only keys of this range; repeatable. Default: any key. Other keys are no match, without a request.
    #[must_use]
    pub fn row_range(mut self, range: RowRange) -> Self {
        self.ranges.push(range);
        self
    }

    /// Times a read is sent again after a transient failure. Default: 3. SQL: `lookup.max-retries`.
    #[must_use]
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// Requests that may be unanswered; further ones wait. Default: 32. SQL: `lookup.max-concurrent-requests`.
    #[must_use]
    pub fn max_concurrent_requests(mut self, requests: NonZeroU32) -> Self {
        self.max_concurrent_requests = requests.get();
        self
    }

    /// Keys that one request of [`LookupClient::get_many`] asks for. Default: 100. SQL: `lookup.max-keys-per-request`.
    #[must_use]
    pub fn max_keys_per_request(mut self, keys: NonZeroU32) -> Self {
        self.max_keys_per_request = keys.get();
        self
    }

    /// Bytes that the transport may hold before they are decoded. Default: 16 MiB. SQL: `lookup.read-ahead`.
    #[must_use]
    pub fn read_ahead(mut self, bytes: ByteSize) -> Self {
        self.read_ahead = bytes;
        self
    }

    /// Keeps answers. Default: none are kept. SQL: `lookup.partial-cache.*`.
    #[must_use]
    pub fn cache(mut self, cache: LookupCache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Replaces application-default credentials by a key file, read where the client is opened.
    #[must_use]
    pub fn service_account_key_file(mut self, path: impl Into<String>) -> Self {
        self.service_account_key_file = Some(path.into());
        self
    }

    /// Reads an emulator at `host:port`, in plaintext and without credentials. Never for production.
    #[must_use]
    pub fn emulator_endpoint(mut self, address: impl Into<String>) -> Self {
        self.emulator_endpoint = Some(address.into());
        self
    }

    /// Checks every setting. Does no I/O.
    ///
    /// # Errors
    ///
    /// The first setting that can never work, by the name of its option.
    pub fn build(self) -> Result<BigtableLookup> {
        let table = self.table.ok_or(ConfigError::Missing {
            option: TABLE.key(),
            what: "the table to look up in",
        })?;
        self.ranges.iter().try_for_each(check_not_empty)?;
        if let Some(filter) = &self.filter {
            filter.check()?;
        }
        if let Some(cache) = &self.cache {
            cache.check()?;
        }
        Ok(BigtableLookup {
            access: ReadAccess::new(
                table,
                self.app_profile_id.as_deref(),
                self.service_account_key_file.as_deref(),
                self.emulator_endpoint.as_deref(),
            )?,
            filter: self.filter,
            ranges: self.ranges,
            max_retries: LOOKUP_MAX_RETRIES.check(self.max_retries)?,
            max_concurrent_requests: LOOKUP_MAX_CONCURRENCY.check(self.max_concurrent_requests)?,
            max_keys_per_request: LOOKUP_MAX_BATCH_KEYS.check(self.max_keys_per_request)?,
            read_ahead: LOOKUP_READ_AHEAD.check(self.read_ahead)?,
            cache: self.cache,
        })
    }
}
