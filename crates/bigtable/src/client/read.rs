//! `ReadRows`: one stream of rows out of as many requests as it takes.
//!
//! A [`RowStream`] asks for what is left, decodes the answer into a [`RowBatch`] and, when the answer breaks, asks again
//! for what is left behind the last row or scanned key (BT-WIRE-08). Nothing left means done, without a request.
//!
//! | file | holds |
//! | --- | --- |
//! | `access` | [`ReadAccess`] and [`ReadClient`]: endpoint, credentials, windows, routing, feature flags |
//! | `batch` | [`RowBatch`], [`RowRef`], [`CellRef`]: rows as offsets into messages |
//! | `chunks` | [`RowDecoder`]: messages to rows |
//! | `parse` | protobuf by hand: chunks as positions in their message |
//! | `request` | [`Remaining`]: what is left to ask for |
//! | `row` | [`Row`]: one row that owns its bytes |
//!
//! # Invariants
//!
//! - Every row is handed out once: an unfinished one is dropped when its stream breaks and comes again whole.
//! - The stream is polled by its owner and reads ahead only as far as the HTTP/2 windows allow. Time in which the owner
//!   does not ask is no idle time of the service.
//! - Every wait ends: at the idle limit, at the attempt's, at the whole read's, and it warns after a minute.
//! - Attempts and the whole read's time are counted from the last progress, so a long scan does not die of its age.

mod access;
pub(crate) mod batch;
pub(crate) mod chunks;
mod parse;
pub(crate) mod request;
mod row;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};
use std::time::Duration;

use aqueduct_cloud::{Backoff, Call, CallError, Cookies, Origin, ResponseStream, frame};
use aqueduct_connector::clock::Timer;
use aqueduct_connector::metrics::Counter;
use aqueduct_connector::stall::StallWatch;
use aqueduct_connector::{Code, Error, Moment, Result, Status, StatusChain};
use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as wire;
use tracing::{debug, warn};

use crate::filter::Filter;

pub use access::{ReadAccess, ReadClient};
pub use batch::{CellRef, Cells, RowBatch, RowRef};
pub use chunks::{ProtocolError, RowDecoder, ScanOrder};
pub use request::Remaining;
pub use row::Row;

/// Messages without a finished row that one poll takes before it lets others run.
const QUIET_MESSAGES: usize = 64;

/// How long to try.
#[derive(Clone, Copy, Debug)]
pub struct ReadPolicy {
    /// Statuses after which an attempt is made again.
    pub retryable: &'static [Code],
    /// The bound on attempts.
    pub attempts: Attempts,
    /// Waits between attempts.
    pub backoff: Backoff,
    /// Time of one attempt.
    pub attempt: Duration,
    /// Time without a message.
    pub idle: Duration,
    /// Time without progress, over all attempts.
    pub total: Duration,
}

/// How attempts are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempts {
    /// So many since the last row or scanned key.
    WithoutProgress(u32),
    /// So many in all.
    InAll(u32),
}

/// Statuses of a read that may be tried again (BT-WIRE-08, BT-SCAN-14).
const RETRYABLE: &[Code] = &[Code::DeadlineExceeded, Code::Unavailable, Code::Aborted];

impl ReadPolicy {
    /// Scans: BT-WIRE-08.
    pub const SCAN: Self = Self {
        retryable: RETRYABLE,
        attempts: Attempts::WithoutProgress(10),
        backoff: Backoff::new(Duration::from_millis(10), Duration::from_secs(60)),
        attempt: Duration::from_secs(30 * 60),
        idle: Duration::from_secs(5 * 60),
        total: Duration::from_secs(12 * 60 * 60),
    };

    /// Point reads: BT-SCAN-14.
    #[must_use]
    pub const fn lookup(max_retries: u32) -> Self {
        Self {
            retryable: RETRYABLE,
            attempts: Attempts::InAll(max_retries.saturating_add(1)),
            backoff: Backoff::new(Duration::from_millis(10), Duration::from_secs(1)),
            attempt: Duration::from_secs(20),
            idle: Duration::from_secs(20),
            total: Duration::MAX,
        }
    }
}

/// What [`RowStream::poll_fill`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Rows are in the batch.
    Rows,
    /// Everything was read.
    End,
}

/// Rows of one table, in key order, across broken connections.
pub struct RowStream {
    client: ReadClient,
    policy: ReadPolicy,
    filter: Option<wire::RowFilter>,
    remaining: Remaining,
    /// Rows decoded since `remaining` was brought up to date.
    uncounted: u64,
    decoder: RowDecoder,
    batch: RowBatch,
    state: State,
    cookies: Cookies,
    attempts: u32,
    opened: u64,
    last_progress: Moment,
    waiting_since: Option<Moment>,
    stall: StallWatch,
    timer: Box<dyn Timer>,
    random: fastrand::Rng,
    retries: Option<Counter>,
}

enum State {
    /// The next thing to do is to ask for what is left.
    Ready,
    Backoff(Moment),
    Opening(Box<Call>),
    Open(Box<ResponseStream>),
    Failed(Error),
    Ended,
}

impl RowStream {
    pub(crate) fn new(
        client: ReadClient,
        policy: ReadPolicy,
        filter: Option<&Filter>,
        remaining: Remaining,
        random: fastrand::Rng,
    ) -> Self {
        let timer = client.clock().timer();
        let last_progress = client.clock().now();
        Self {
            decoder: RowDecoder::new(remaining.order()),
            filter: filter.map(Filter::to_wire),
            client,
            policy,
            remaining,
            uncounted: 0,
            batch: RowBatch::new(),
            state: State::Ready,
            cookies: Cookies::default(),
            attempts: 0,
            opened: 0,
            last_progress,
            waiting_since: None,
            stall: StallWatch::new(),
            timer,
            random,
            retries: None,
        }
    }

    /// Counts attempts after the first in `retries`.
    #[must_use]
    pub(crate) fn counting(mut self, retries: Counter) -> Self {
        self.retries = Some(retries);
        self
    }

    /// The rows read and not yet [cleared](Self::clear).
    #[must_use]
    pub fn batch(&self) -> &RowBatch {
        &self.batch
    }

    /// Forgets the rows read; the messages they came in are let go.
    pub fn clear(&mut self) {
        self.batch.clear_rows();
    }

    /// Requests sent so far.
    #[must_use]
    pub const fn opened(&self) -> u64 {
        self.opened
    }

    /// Reads until the batch holds `max_rows` rows or `max_bytes` of content, or until what has arrived is used up and
    /// there is at least one row. The last message may carry the batch past both.
    ///
    /// `Fill::End` comes alone, with an empty batch, and again for ever after.
    ///
    /// # Errors
    ///
    /// When the read cannot go on: rows read before are handed out first. After an error: `Fill::End`.
    pub fn poll_fill(
        &mut self,
        cx: &mut PollContext<'_>,
        max_rows: u64,
        max_bytes: u64,
    ) -> Poll<Result<Fill>> {
        let mut quiet = 0;
        loop {
            let full =
                self.batch.len() as u64 >= max_rows || self.batch.content_bytes() >= max_bytes;
            if full && !self.batch.is_empty() {
                self.stall.done();
                return Poll::Ready(Ok(Fill::Rows));
            }
            match &mut self.state {
                State::Ready => self.open(),
                State::Backoff(until) => {
                    let until = *until;
                    if self.client.clock().now() >= until {
                        self.state = State::Ready;
                    } else if self.wait(cx, Some(until)) {
                        return self.nothing_now();
                    }
                }
                State::Opening(call) => match Pin::new(&mut **call).poll(cx) {
                    Poll::Ready(Ok(stream)) => {
                        self.answered();
                        self.state = State::Open(Box::new(stream));
                    }
                    Poll::Ready(Err(error)) => self.broken(error),
                    Poll::Pending => {
                        if self.wait(cx, None) {
                            return self.nothing_now();
                        }
                    }
                },
                State::Open(stream) => match stream.poll_message(cx) {
                    Poll::Ready(Some(Ok(message))) => {
                        if !self.decode(message) {
                            quiet += 1;
                        }
                        if quiet == QUIET_MESSAGES {
                            cx.waker().wake_by_ref();
                            return self.nothing_now();
                        }
                    }
                    Poll::Ready(Some(Err(error))) => self.broken(error),
                    Poll::Ready(None) => {
                        self.stall.done();
                        self.state = match self.decoder.finish() {
                            Ok(()) => State::Ended,
                            Err(error) => State::Failed(self.protocol(error)),
                        };
                    }
                    Poll::Pending => {
                        if self.wait(cx, None) {
                            return self.nothing_now();
                        }
                    }
                },
                State::Failed(_) | State::Ended => {
                    self.stall.done();
                    if !self.batch.is_empty() {
                        return Poll::Ready(Ok(Fill::Rows));
                    }
                    return Poll::Ready(match std::mem::replace(&mut self.state, State::Ended) {
                        State::Failed(error) => Err(error),
                        _ => Ok(Fill::End),
                    });
                }
            }
        }
    }

    fn nothing_now(&mut self) -> Poll<Result<Fill>> {
        if self.batch.is_empty() {
            return Poll::Pending;
        }
        // The owner has something to do meanwhile, so it does not wait.
        self.waiting_since = None;
        self.stall.done();
        Poll::Ready(Ok(Fill::Rows))
    }

    /// Brings what is left up to date with what was decoded.
    fn advance(&mut self) {
        self.remaining
            .advance(self.decoder.last_key(), std::mem::take(&mut self.uncounted));
    }

    fn open(&mut self) {
        self.advance();
        if self.remaining.is_done() {
            self.state = State::Ended;
            return;
        }
        let (rows, rows_limit) = self.remaining.to_wire();
        let request = wire::ReadRowsRequest {
            table_name: self.client.table().path(),
            app_profile_id: self.client.app_profile_id().to_owned(),
            rows: Some(rows),
            filter: self.filter.clone(),
            rows_limit,
            reversed: self.remaining.order() == ScanOrder::Reverse,
            ..wire::ReadRowsRequest::default()
        };
        let spec = self
            .client
            .read_spec()
            .clone()
            .timeout(self.policy.attempt)
            .deadline(self.last_progress.after(self.policy.total))
            .cookies(&self.cookies);
        self.attempts += 1;
        self.opened += 1;
        if self.opened > 1
            && let Some(retries) = &self.retries
        {
            retries.increment();
        }
        self.state = State::Opening(Box::new(self.client.pool().call(&spec, frame(&request))));
    }

    /// Takes one message. Whether it finished a row.
    fn decode(&mut self, message: Bytes) -> bool {
        self.answered();
        let before = self.batch.len();
        let moves = self.decoder.moves();
        let result = self.decoder.decode(message, &mut self.batch);
        let rows = self.batch.len() - before;
        self.uncounted += rows as u64;
        if rows > 0 || moves != self.decoder.moves() {
            self.last_progress = self.client.clock().now();
            if let Attempts::WithoutProgress(_) = self.policy.attempts {
                self.attempts = 0;
            }
        }
        if let Err(error) = result {
            self.state = State::Failed(self.protocol(error));
        }
        rows > 0
    }

    fn answered(&mut self) {
        if self.waiting_since.take().is_some() {
            self.stall.answered(self.client.clock().now());
        }
    }

    /// Nothing has come: arms the timer for whatever is due first. Whether to go on waiting.
    fn wait(&mut self, cx: &mut PollContext<'_>, until: Option<Moment>) -> bool {
        let now = self.client.clock().now();
        let since = *self.waiting_since.get_or_insert(now);
        // A backoff ends by itself.
        let idle = until.unwrap_or_else(|| since.after(self.policy.idle));
        if until.is_none() && now >= idle {
            let waited = now.since(since);
            self.retry_or_fail(
                StatusChain::new(Status::new(
                    Code::DeadlineExceeded,
                    format!("no message for {waited:?} on an open read"),
                )),
                None,
                true,
            );
            return false;
        }
        self.stall.waiting(now);
        if let Some(waited) = self.stall.due(now) {
            warn!(
                table = %self.client.table(),
                rows = %self.remaining.describe(),
                ?waited,
                attempt = self.attempts,
                "no answer to a read; it is tried again after {:?} without a message", self.policy.idle
            );
        }
        let stall = self.stall.deadline().unwrap_or(Moment::NEVER);
        self.timer.set(Some(idle.min(stall)));
        self.timer.poll_elapsed(cx).is_pending()
    }

    fn broken(&mut self, error: CallError) {
        self.answered();
        self.cookies.update(error.cookies());
        if let Some(info) = error.error_info()
            && info.reason == "LargeRowReadError"
        {
            let row = info.metadata.get("rowKeyBase64Encoded").map(String::as_str);
            self.state = State::Failed(self.large_row(row, error.into_statuses()));
            return;
        }
        let delay = error.retry_delay();
        let retryable = error.origin() != Origin::Protocol
            && (delay.is_some() || self.policy.retryable.contains(&error.code()));
        self.retry_or_fail(error.into_statuses(), delay, retryable);
    }

    fn retry_or_fail(&mut self, statuses: StatusChain, delay: Option<Duration>, retryable: bool) {
        self.decoder.restart(&mut self.batch);
        self.waiting_since = None;
        self.advance();
        if self.remaining.is_done() {
            // The break came behind the last row.
            self.state = State::Ended;
            return;
        }
        let (Attempts::WithoutProgress(most) | Attempts::InAll(most)) = self.policy.attempts;
        let now = self.client.clock().now();
        // A failure is an answer too: what is warned about is silence.
        self.stall.answered(now);
        // Attempts are counted anew after progress, but the first wait is the shortest one then too.
        let delay = delay.unwrap_or_else(|| {
            self.policy
                .backoff
                .delay_after(self.attempts.max(1), &mut self.random)
        });
        let until = now.after(delay);
        if !retryable
            || self.attempts >= most
            || until >= self.last_progress.after(self.policy.total)
        {
            self.state = State::Failed(self.given_up(statuses));
            return;
        }
        debug!(
            table = %self.client.table(),
            code = %statuses.code(),
            attempt = self.attempts,
            ?delay,
            "a read broke and goes on behind its last row"
        );
        self.state = State::Backoff(until);
    }

    fn given_up(&self, statuses: StatusChain) -> Error {
        let hint = match statuses.code() {
            Code::NotFound => {
                "; the table, the application profile or a column family that the filter names does not exist"
            }
            Code::PermissionDenied => {
                "; grant the job's account bigtable.tables.readRows (roles/bigtable.reader) on the table"
            }
            Code::Unauthenticated => "; check the credentials the job runs with",
            Code::InvalidArgument => {
                "; the service refuses the filter, the range or the application profile"
            }
            Code::Unavailable | Code::DeadlineExceeded | Code::Aborted => {
                "; the service could not be reached or did not answer in time, a restart reads on from the checkpoint"
            }
            Code::ResourceExhausted => {
                "; the instance is overloaded: add nodes or read less at a time"
            }
            _ => "",
        };
        Error::io(format!(
            "reading Bigtable table {} failed after {} attempt(s) without progress, {} left{hint}",
            self.client.table(),
            self.attempts.max(1),
            self.remaining.describe(),
        ))
        .with_source(statuses)
    }

    fn protocol(&self, error: ProtocolError) -> Error {
        Error::io(format!(
            "reading Bigtable table {} failed, {} left: the answer cannot be trusted",
            self.client.table(),
            self.remaining.describe(),
        ))
        .with_source(error)
    }

    fn large_row(&self, key: Option<&str>, statuses: StatusChain) -> Error {
        Error::io(format!(
            "Bigtable table {} holds a row larger than the service reads at once ({}); shrink it, or leave cells out with \
             a filter such as cells-per-column",
            self.client.table(),
            key.and_then(access::fingerprint)
                .unwrap_or_else(|| "its key was not given".to_owned()),
        ))
        .with_source(without_words(statuses))
    }
}

/// The same codes: the words of this failure may quote the row's key.
fn without_words(statuses: StatusChain) -> StatusChain {
    let mut codes = statuses.iter().map(|status| Status::new(status.code, ""));
    let first = codes.next().expect("a chain has at least one status");
    codes.fold(StatusChain::new(first), StatusChain::caused_by)
}

impl fmt::Debug for RowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStream")
            .field("table", self.client.table())
            .field("remaining", &self.remaining)
            .field("batch", &self.batch)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
