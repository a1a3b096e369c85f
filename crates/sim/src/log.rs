//! What the simulation was asked: a bounded log and unbounded counters.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http::HeaderMap;
use prost::Message;

use crate::{faults::COOKIE_PREFIX, method::Method};

/// One request, as it arrived.
#[derive(Clone)]
pub struct RequestRecord {
    /// Position among all requests, from 0.
    pub sequence: u64,
    /// What was called.
    pub method: Method,
    /// Full name of the table (or instance, for `PingAndWarm` and `ListTables`) it speaks of.
    pub resource: String,
    /// Application profile of the message; empty if it names none.
    pub app_profile: String,
    /// Entries of `MutateRows`; 1 otherwise.
    pub entries: usize,
    /// Bytes of the message.
    pub bytes: usize,
    /// `x-goog-request-params`.
    pub routing: Option<String>,
    /// `user-agent`.
    pub user_agent: Option<String>,
    /// `bigtable-features`, as sent.
    pub features: Option<String>,
    /// `grpc-timeout`, as sent.
    pub grpc_timeout: Option<String>,
    /// Routing cookies, without their common prefix, sorted.
    pub cookies: Vec<(String, String)>,
    /// Which connection brought it, from 0 in order of acceptance.
    pub connection: u64,
    message: Option<Bytes>,
}

impl RequestRecord {
    /// The message, while the log's byte bound still holds it.
    ///
    /// # Errors
    ///
    /// If the bytes are not a message of that type.
    pub fn message<M: Message + Default>(&self) -> Option<Result<M, prost::DecodeError>> {
        self.message.as_ref().map(|bytes| M::decode(bytes.clone()))
    }
}

impl fmt::Debug for RequestRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestRecord")
            .field("sequence", &self.sequence)
            .field("method", &self.method)
            .field("resource", &self.resource)
            .field("app_profile", &self.app_profile)
            .field("entries", &self.entries)
            .field("bytes", &self.bytes)
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

/// The headers worth keeping. `authorization` is not among them.
pub(crate) struct Headers {
    pub(crate) routing: Option<String>,
    pub(crate) user_agent: Option<String>,
    pub(crate) features: Option<String>,
    pub(crate) grpc_timeout: Option<String>,
    pub(crate) cookies: Vec<(String, String)>,
}

impl Headers {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let owned = |name: &str| text(name).map(str::to_owned);
        let mut cookies: Vec<(String, String)> = headers
            .iter()
            .filter_map(|(name, value)| {
                let name = name.as_str().strip_prefix(COOKIE_PREFIX)?;
                Some((name.to_owned(), value.to_str().ok()?.to_owned()))
            })
            .collect();
        cookies.sort();
        Self {
            routing: owned("x-goog-request-params"),
            user_agent: owned("user-agent"),
            features: owned("bigtable-features"),
            grpc_timeout: owned("grpc-timeout"),
            cookies,
        }
    }
}

/// What is known of a request before it is logged.
pub(crate) struct Arrival {
    pub(crate) method: Method,
    pub(crate) resource: String,
    pub(crate) app_profile: String,
    pub(crate) entries: usize,
    pub(crate) message: Bytes,
    pub(crate) headers: Headers,
    pub(crate) connection: u64,
}

struct Kept {
    records: VecDeque<RequestRecord>,
    bytes: usize,
    next: u64,
    by_method: HashMap<Method, u64>,
}

/// The log.
pub(crate) struct Log {
    kept: Mutex<Kept>,
    most_records: usize,
    most_bytes: usize,
}

impl Log {
    pub(crate) fn new(most_records: usize, most_bytes: usize) -> Self {
        let kept = Kept {
            records: VecDeque::new(),
            bytes: 0,
            next: 0,
            by_method: HashMap::new(),
        };
        Self {
            kept: Mutex::new(kept),
            most_records,
            most_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts without keeping: what the discarding path does.
    pub(crate) fn count(&self, method: Method) {
        let mut kept = self.lock();
        kept.next += 1;
        *kept.by_method.entry(method).or_default() += 1;
    }

    pub(crate) fn record(&self, arrival: Arrival) {
        let mut kept = self.lock();
        let sequence = kept.next;
        kept.next += 1;
        *kept.by_method.entry(arrival.method).or_default() += 1;
        if self.most_records == 0 {
            return;
        }
        let bytes = arrival.message.len();
        let fits = bytes <= self.most_bytes;
        kept.records.push_back(RequestRecord {
            sequence,
            method: arrival.method,
            resource: arrival.resource,
            app_profile: arrival.app_profile,
            entries: arrival.entries,
            bytes,
            routing: arrival.headers.routing,
            user_agent: arrival.headers.user_agent,
            features: arrival.headers.features,
            grpc_timeout: arrival.headers.grpc_timeout,
            cookies: arrival.headers.cookies,
            connection: arrival.connection,
            // Copied, since what arrived is a slice of the connection's larger read buffer.
            message: fits.then(|| Bytes::copy_from_slice(&arrival.message)),
        });
        if fits {
            kept.bytes += bytes;
        }
        while kept.records.len() > self.most_records {
            if let Some(Some(message)) = kept.records.pop_front().map(|record| record.message) {
                kept.bytes -= message.len();
            }
        }
        if kept.bytes > self.most_bytes {
            // Half at once, so that the walk over summaries is not paid a request.
            let target = self.most_bytes / 2;
            let Kept { records, bytes, .. } = &mut *kept;
            for record in records.iter_mut() {
                if *bytes <= target {
                    break;
                }
                if let Some(message) = record.message.take() {
                    *bytes -= message.len();
                }
            }
        }
    }

    pub(crate) fn records(&self, keep: impl Fn(&RequestRecord) -> bool) -> Vec<RequestRecord> {
        self.lock()
            .records
            .iter()
            .filter(|record| keep(record))
            .cloned()
            .collect()
    }

    pub(crate) fn requests(&self, method: Method) -> u64 {
        self.lock()
            .by_method
            .get(&method)
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn clear(&self) {
        let mut kept = self.lock();
        kept.records.clear();
        kept.bytes = 0;
    }
}
