//! Lookups in a full cache: the table's rows, read whole at the start and again when they are due.
//!
//! Each subtask holds them all. Lookups are answered from the last finished load; those that come before the first one
//! wait for it.
//!
//! # Invariants
//!
//! - A load replaces the rows at once, when it is complete; until then the old ones answer.
//! - A load that fails, or that passes its bound in bytes, fails the next lookup: rows are never older than the schedule
//!   says without anybody being told.
//! - A key outside of the statement's ranges is no match.

use std::borrow::Borrow;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};

use aqueduct_connector::clock::Timer;
use aqueduct_connector::metrics::{Counter, Gauge};
use aqueduct_connector::options::{ByteSize, ConfigError};
use aqueduct_connector::row::{RowBatch, RowKind, RowRef};
use aqueduct_connector::table::{RowLookup, TableLookup};
use aqueduct_connector::{Clock, Context, Error, Moment, Result};
use bytes::Bytes;

use super::codec::{Codec, Scratch};
use super::config_error;
use super::options::{FULL_CACHE_MAX_BYTES, Settings};
use super::read::{ReadPlan, RowDecoder};
use super::reload::Reload;
use crate::client::read::{
    Fill, ReadAccess, ReadClient, ReadPolicy, Remaining, Row, RowStream, ScanOrder,
};
use crate::destination::TABLE;
use crate::lookup::metrics;
use crate::range::RowRange;

/// Rows taken from the stream before lookups have their turn.
const ROWS_A_TURN: u64 = 256;

/// What a row takes beside its own bytes, about: its place in the set, which is at most half empty.
const ENTRY_BYTES: u64 = 2 * size_of::<Held>() as u64;

/// Bounds and schedule of a full cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct FullCache {
    pub(super) reload: Reload,
    pub(super) max_bytes: ByteSize,
}

/// Lookups in a table that is held whole.
#[derive(Debug)]
pub(super) struct FullLookup {
    access: ReadAccess,
    plan: Arc<ReadPlan>,
    key: Codec,
    ranges: Vec<RowRange>,
    read_ahead: ByteSize,
    cache: FullCache,
}

impl FullLookup {
    pub(super) fn new(
        settings: &Settings,
        cache: FullCache,
        plan: ReadPlan,
    ) -> Result<Self, ConfigError> {
        let access = ReadAccess::new(
            settings.destination.clone(),
            settings.scan.app_profile.as_deref(),
            settings.key_file.as_deref(),
            settings.emulator.as_deref(),
        );
        let ranges = match &settings.scan.ranges[..] {
            [] => vec![RowRange::all()],
            ranges => ranges.to_vec(),
        };
        Ok(Self {
            access: access.map_err(|error| config_error(&error, TABLE.key()))?,
            plan: Arc::new(plan),
            key: settings.schema.key.codec,
            ranges,
            read_ahead: settings.lookup.read_ahead,
            cache,
        })
    }
}

impl TableLookup for FullLookup {
    fn create(&self, context: Context) -> Result<Box<dyn RowLookup>> {
        let client = ReadClient::new(&context, &self.access, self.read_ahead, NonZeroUsize::MIN)?;
        let group = &context.metrics;
        Ok(Box::new(Lookups {
            client,
            decoder: RowDecoder::new(self.plan.clone()),
            plan: self.plan.clone(),
            key: self.key,
            ranges: self.ranges.clone(),
            cache: self.cache,
            rows: None,
            load: None,
            loads: 0,
            due: Moment::ORIGIN,
            failure: None,
            waiting: VecDeque::new(),
            waker: None,
            timer: context.clock.timer(),
            clock: context.clock.clone(),
            random: context.random(),
            keys: group.counter(metrics::KEYS_LOOKED_UP),
            retries: group.counter(metrics::LOOKUP_RETRIES),
            finished: group.counter(metrics::CACHE_LOADS),
            cached_rows: group.gauge(metrics::CACHED_ROWS),
            cached_bytes: group.gauge(metrics::CACHED_BYTES),
        }))
    }
}

/// A row, found by its key.
struct Held(Row);

impl Borrow<[u8]> for Held {
    fn borrow(&self) -> &[u8] {
        self.0.key()
    }
}

impl Hash for Held {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for Held {}

/// A load under way.
struct Load {
    stream: RowStream,
    rows: HashSet<Held>,
    bytes: u64,
    start: Moment,
}

/// The lookups of one subtask, and its rows.
struct Lookups {
    client: ReadClient,
    decoder: RowDecoder,
    plan: Arc<ReadPlan>,
    key: Codec,
    ranges: Vec<RowRange>,
    cache: FullCache,
    /// `None` before the first load is complete.
    rows: Option<HashSet<Held>>,
    load: Option<Load>,
    /// Loads completed.
    loads: u64,
    /// When the next load starts.
    due: Moment,
    /// Why the last load failed, until a lookup takes it.
    failure: Option<Error>,
    /// Started and not answered; `None` for a null key.
    waiting: VecDeque<(u64, Option<Bytes>)>,
    waker: Option<Waker>,
    timer: Box<dyn Timer>,
    clock: Arc<dyn Clock>,
    random: fastrand::Rng,
    keys: Counter,
    retries: Counter,
    finished: Counter,
    cached_rows: Gauge,
    cached_bytes: Gauge,
}

impl Lookups {
    /// Goes on with a load that is under way or due. Returns when it waits for the service or for its time, or after
    /// a turn's rows.
    fn drive(&mut self, cx: &mut PollContext<'_>) {
        if self.load.is_none() {
            if self.failure.is_some() {
                return;
            }
            let now = self.clock.now();
            if now < self.due {
                self.timer.set(Some(self.due));
                if self.timer.poll_elapsed(cx).is_pending() {
                    return;
                }
            }
            self.load = Some(self.begin(now));
        }
        let Some(load) = &mut self.load else { return };
        match load.stream.poll_fill(cx, ROWS_A_TURN, u64::MAX) {
            Poll::Pending => {}
            Poll::Ready(Ok(Fill::Rows)) => {
                for row in load.stream.batch().iter() {
                    let row = row.to_row();
                    load.bytes += row.memory_bytes() + ENTRY_BYTES;
                    load.rows.insert(Held(row));
                }
                load.stream.clear();
                if load.bytes > self.cache.max_bytes.0 {
                    let rows = load.rows.len();
                    self.fail(too_large(&self.client, rows, self.cache.max_bytes));
                } else {
                    cx.waker().wake_by_ref();
                }
            }
            Poll::Ready(Ok(Fill::End)) => self.finish(),
            Poll::Ready(Err(error)) => self.fail(error),
        }
    }

    fn begin(&mut self, now: Moment) -> Load {
        let random = fastrand::Rng::with_seed(self.random.u64(..));
        let all = Remaining::ranges(self.ranges.clone(), ScanOrder::Forward, None);
        let stream = self
            .client
            .read(all, Some(self.plan.filter()), ReadPolicy::SCAN, random);
        Load {
            stream: stream.counting(self.retries.clone()),
            rows: HashSet::with_capacity(self.rows.as_ref().map_or(0, HashSet::len)),
            bytes: 0,
            start: now,
        }
    }

    fn finish(&mut self) {
        let Some(load) = self.load.take() else { return };
        let first = self.loads == 0;
        let (now, wall) = (self.clock.now(), self.clock.wall());
        self.due = self.cache.reload.next(load.start, now, wall, first);
        self.loads += 1;
        self.finished.increment();
        self.cached_rows.set_size(load.rows.len());
        self.cached_bytes
            .set(i64::try_from(load.bytes).unwrap_or(i64::MAX));
        tracing::info!(
            table = %self.client.table(),
            rows = load.rows.len(),
            bytes = load.bytes,
            took = ?now.since(load.start),
            "a full cache was loaded"
        );
        self.rows = Some(load.rows);
    }

    /// The load is over. The next one starts once a lookup has been told.
    fn fail(&mut self, error: Error) {
        self.load = None;
        self.due = Moment::ORIGIN;
        self.failure = Some(error);
    }
}

fn too_large(client: &ReadClient, rows: usize, most: ByteSize) -> Error {
    Error::config(format!(
        "the rows of {} do not fit into a full cache: {rows} of them take more than {most}. Raise '{}' and with it the \
         memory of the process, narrow the statement's ranges, or use 'lookup.cache' = 'PARTIAL'",
        client.table(),
        FULL_CACHE_MAX_BYTES.key(),
    ))
}

impl RowLookup for Lookups {
    fn start(&mut self, id: u64, key: RowRef<'_>) -> Result<()> {
        self.keys.increment();
        let key = if key.is_null(0) {
            None
        } else {
            let mut scratch = Scratch::default();
            let bytes = self.key.encode(&key, 0, &mut scratch).map_err(|error| {
                Error::bug("the host handed over a key that cannot be read").with_source(error)
            })?;
            Some(Bytes::copy_from_slice(bytes))
        };
        self.waiting.push_back((id, key));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    fn poll_next(
        &mut self,
        cx: &mut PollContext<'_>,
        batch: &mut RowBatch,
    ) -> Poll<(u64, Result<()>)> {
        self.drive(cx);
        if let Some((id, _)) = self.waiting.front()
            && self.failure.is_some()
        {
            let id = *id;
            self.waiting.pop_front();
            let error = self.failure.take().expect("looked at above");
            return Poll::Ready((id, Err(error)));
        }
        if let Some(rows) = &self.rows
            && let Some((id, key)) = self.waiting.pop_front()
        {
            let found = match key.as_deref().and_then(|key| rows.get(key)) {
                None => Ok(()),
                Some(Held(row)) => {
                    let decoder = &mut self.decoder;
                    batch.try_push(None, RowKind::Insert, self.plan.arity(), |fields| {
                        decoder.decode(row.get(), fields)
                    })
                }
            };
            return Poll::Ready((id, found));
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.waiting.clear();
        self.load = None;
        self.rows = None;
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Lookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookups")
            .field("waiting", &self.waiting.len())
            .field("rows", &self.rows.as_ref().map(HashSet::len))
            .finish_non_exhaustive()
    }
}
