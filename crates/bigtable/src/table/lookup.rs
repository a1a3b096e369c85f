//! Lookups by row key that ask the service: many under way at once, and keys that wait share a request.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::row::{RowBatch, RowKind, RowRef};
use aqueduct_connector::table::{LookupPlan, RowLookup, TableLookup, TableSpec};
use aqueduct_connector::{Context, Error, Result};
use bytes::Bytes;
use futures::stream::{FuturesUnordered, Stream};

use super::codec::{Codec, Scratch};
use super::config_error;
use super::full::FullLookup;
use super::options::{Caching, Settings};
use super::read::{ReadPlan, RowDecoder};
use crate::client::read::Row;
use crate::destination::TABLE;
use crate::lookup::{BigtableLookup, LookupCache, LookupClient};

/// The lookups of a plan, in whatever the statement caches.
pub(super) fn lookup(
    table: &TableSpec,
    settings: &Settings,
    plan: &LookupPlan,
) -> Result<Box<dyn TableLookup>, ConfigError> {
    let key = &settings.schema.key;
    if plan.keys.len() != 1 || plan.keys[0].0 != [key.column] {
        return Err(ConfigError::column(
            &key.name,
            format!(
                "a lookup in '{}' goes by the row key and nothing else: join on '{}' = ..., and put other conditions \
                 behind the join",
                table.name, key.name
            ),
        ));
    }
    let read = ReadPlan::new(table, settings, plan.fields.as_deref())?;
    Ok(match settings.lookup.cache {
        Caching::None => Box::new(KeyLookup::new(settings, None, read)?),
        Caching::Partial(cache) => Box::new(KeyLookup::new(settings, Some(cache), read)?),
        Caching::Full(cache) => Box::new(FullLookup::new(settings, cache, read)?),
    })
}

/// Lookups that ask the service.
#[derive(Debug)]
struct KeyLookup {
    lookup: BigtableLookup,
    plan: Arc<ReadPlan>,
    key: Codec,
    max_requests: usize,
    max_keys: usize,
}

impl KeyLookup {
    fn new(
        settings: &Settings,
        cache: Option<LookupCache>,
        read: ReadPlan,
    ) -> Result<Self, ConfigError> {
        let options = &settings.lookup;
        let mut builder = BigtableLookup::builder()
            .table(settings.destination.clone())
            .filter(read.filter().clone())
            .max_retries(options.max_retries)
            .read_ahead(options.read_ahead);
        if let Some(requests) = NonZeroU32::new(options.max_concurrency) {
            builder = builder.max_concurrent_requests(requests);
        }
        if let Some(keys) = NonZeroU32::new(options.max_batch_keys) {
            builder = builder.max_keys_per_request(keys);
        }
        for range in &settings.scan.ranges {
            builder = builder.row_range(range.clone());
        }
        if let Some(cache) = cache {
            builder = builder.cache(cache);
        }
        if let Some(profile) = &settings.scan.app_profile {
            builder = builder.app_profile_id(profile);
        }
        if let Some(path) = &settings.key_file {
            builder = builder.service_account_key_file(path);
        }
        if let Some(address) = &settings.emulator {
            builder = builder.emulator_endpoint(address);
        }
        Ok(Self {
            lookup: builder
                .build()
                .map_err(|error| config_error(&error, TABLE.key()))?,
            plan: Arc::new(read),
            key: settings.schema.key.codec,
            max_requests: options.max_concurrency as usize,
            max_keys: options.max_batch_keys as usize,
        })
    }
}

impl TableLookup for KeyLookup {
    fn create(&self, context: Context) -> Result<Box<dyn RowLookup>> {
        Ok(Box::new(Lookups {
            client: self.lookup.open(&context)?,
            decoder: RowDecoder::new(self.plan.clone()),
            arity: self.plan.arity(),
            key: self.key,
            max_requests: self.max_requests,
            max_keys: self.max_keys,
            waiting: VecDeque::new(),
            requests: FuturesUnordered::new(),
            answers: VecDeque::new(),
            waker: None,
        }))
    }
}

type Answers = Vec<(u64, Result<Option<Arc<Row>>>)>;
type Request = Pin<Box<dyn Future<Output = Answers>>>;

/// The lookups of one subtask.
struct Lookups {
    client: LookupClient,
    decoder: RowDecoder,
    arity: usize,
    key: Codec,
    max_requests: usize,
    max_keys: usize,
    /// Started and not asked for.
    waiting: VecDeque<(u64, Bytes)>,
    requests: FuturesUnordered<Request>,
    /// Answered and not handed over.
    answers: VecDeque<(u64, Result<Option<Arc<Row>>>)>,
    waker: Option<Waker>,
}

impl Lookups {
    /// Asks for what waits, as far as the bound on requests allows. What waits longer shares a request.
    fn ask(&mut self) {
        while !self.waiting.is_empty() && self.requests.len() < self.max_requests {
            let many = self.waiting.len().min(self.max_keys);
            let (ids, keys): (Vec<u64>, Vec<Bytes>) = self.waiting.drain(..many).unzip();
            let client = self.client.clone();
            self.requests.push(Box::pin(async move {
                match client.get_many(&keys).await {
                    Ok(rows) => ids.into_iter().zip(rows.into_iter().map(Ok)).collect(),
                    Err(error) => failed(&ids, error),
                }
            }));
        }
    }
}

/// The failure of a request is that of every key in it.
fn failed(ids: &[u64], error: Error) -> Answers {
    let kind = error.kind();
    let mut first = Some(error);
    ids.iter()
        .map(|id| {
            let error = first.take().unwrap_or_else(|| {
                Error::new(
                    kind,
                    "the request that this lookup shared with others failed",
                )
            });
            (*id, Err(error))
        })
        .collect()
}

impl RowLookup for Lookups {
    fn start(&mut self, id: u64, key: RowRef<'_>) -> Result<()> {
        if key.is_null(0) {
            self.answers.push_back((id, Ok(None)));
        } else {
            let mut scratch = Scratch::default();
            let bytes = self.key.encode(&key, 0, &mut scratch).map_err(|error| {
                Error::bug("the host handed over a key that cannot be read").with_source(error)
            })?;
            self.waiting.push_back((id, Bytes::copy_from_slice(bytes)));
        }
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
        loop {
            if let Some((id, answer)) = self.answers.pop_front() {
                let rows = answer.and_then(|row| match row {
                    None => Ok(()),
                    Some(row) => batch.try_push(None, RowKind::Insert, self.arity, |fields| {
                        self.decoder.decode(row.get(), fields)
                    }),
                });
                return Poll::Ready((id, rows));
            }
            self.ask();
            match Pin::new(&mut self.requests).poll_next(cx) {
                Poll::Ready(Some(answers)) => self.answers.extend(answers),
                Poll::Ready(None) | Poll::Pending => {
                    self.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.waiting.clear();
        self.answers.clear();
        self.requests.clear();
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Lookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookups")
            .field("waiting", &self.waiting.len())
            .field("requests", &self.requests.len())
            .finish_non_exhaustive()
    }
}
