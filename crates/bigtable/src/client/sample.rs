//! `SampleRowKeys`: where the table's sections begin, roughly one a tablet.
//!
//! The answer is collected whole; a retry begins it anew, since a broken list says nothing about what follows (BT-WIRE-10).

use std::fmt;
use std::future::Future;
use std::ops::Bound;
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};
use std::time::Duration;

use aqueduct_cloud::{Backoff, Call, CallError, Cookies, ResponseStream, frame};
use aqueduct_connector::clock::Timer;
use aqueduct_connector::stall::StallWatch;
use aqueduct_connector::{Code, Error, Moment, Result, StatusChain};
use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as wire;
use prost::Message as _;
use tracing::warn;

use super::read::ReadClient;
use crate::range::RowRange;

/// Time of one attempt.
const ATTEMPT: Duration = Duration::from_secs(5 * 60);
/// Time of all attempts.
const TOTAL: Duration = Duration::from_secs(10 * 60);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(60));
/// More sections than any table has; a list beyond it is no list of tablets.
const MAX_SAMPLES: usize = 1 << 20;

/// The boundaries of a table's sections, once they are known.
pub struct SampleRowKeys {
    client: ReadClient,
    started: Moment,
    attempts: u32,
    state: State,
    keys: Vec<Bytes>,
    /// Ends of the sections and bytes up to there, as sampled; the last end may be the empty key.
    sections: Vec<(Bytes, u64)>,
    cookies: Cookies,
    random: fastrand::Rng,
    timer: Box<dyn Timer>,
    stall: StallWatch,
}

enum State {
    Ready,
    Backoff(Moment),
    Opening(Box<Call>),
    Open(Box<ResponseStream>),
    Done,
}

impl SampleRowKeys {
    pub(crate) fn new(client: ReadClient, random: fastrand::Rng) -> Self {
        Self {
            started: client.clock().now(),
            timer: client.clock().timer(),
            client,
            attempts: 0,
            state: State::Ready,
            keys: Vec::new(),
            sections: Vec::new(),
            cookies: Cookies::default(),
            random,
            stall: StallWatch::new(),
        }
    }

    /// The boundaries, ascending and without repeats; empty if the table has one section.
    ///
    /// # Errors
    ///
    /// When the service gave no list in ten minutes or refused to.
    ///
    /// # Panics
    ///
    /// When polled after its answer.
    pub fn poll_keys(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<Vec<Bytes>>> {
        loop {
            match &mut self.state {
                State::Ready => {
                    self.attempts += 1;
                    self.keys.clear();
                    self.sections.clear();
                    let request = wire::SampleRowKeysRequest {
                        table_name: self.client.table().path(),
                        app_profile_id: self.client.app_profile_id().to_owned(),
                        ..wire::SampleRowKeysRequest::default()
                    };
                    let spec = self
                        .client
                        .sample_spec()
                        .clone()
                        .timeout(ATTEMPT)
                        .deadline(self.started.after(TOTAL))
                        .cookies(&self.cookies);
                    let call = self.client.pool().call(&spec, frame(&request));
                    self.state = State::Opening(Box::new(call));
                }
                State::Backoff(until) => {
                    let until = *until;
                    if self.client.clock().now() >= until {
                        self.state = State::Ready;
                    } else if self.wait(cx, Some(until)) {
                        return Poll::Pending;
                    }
                }
                State::Opening(call) => match Pin::new(&mut **call).poll(cx) {
                    Poll::Ready(Ok(stream)) => self.state = State::Open(Box::new(stream)),
                    Poll::Ready(Err(error)) => self.retry(error)?,
                    Poll::Pending => {
                        if self.wait(cx, None) {
                            return Poll::Pending;
                        }
                    }
                },
                State::Open(stream) => match stream.poll_message(cx) {
                    Poll::Ready(Some(Ok(message))) => self.take(message)?,
                    Poll::Ready(Some(Err(error))) => self.retry(error)?,
                    Poll::Ready(None) => {
                        self.state = State::Done;
                        self.stall.done();
                        let mut keys = std::mem::take(&mut self.keys);
                        // The end of the table is the empty key.
                        keys.retain(|key| !key.is_empty());
                        keys.sort_unstable();
                        keys.dedup();
                        return Poll::Ready(Ok(keys));
                    }
                    Poll::Pending => {
                        if self.wait(cx, None) {
                            return Poll::Pending;
                        }
                    }
                },
                State::Done => panic!("samples were polled after their end"),
            }
        }
    }

    /// After the boundaries: the service's estimate of the bytes in the sections that `ranges` touch (no range: the whole
    /// table). Rough, since a section counts in whole, and zero where the service gives no estimate.
    #[must_use]
    pub fn estimate_bytes(&self, ranges: &[RowRange]) -> u64 {
        let (mut start, mut before, mut total) = (Bytes::new(), 0, 0_u64);
        for (end, offset) in &self.sections {
            let lower = if start.is_empty() {
                Bound::Unbounded
            } else {
                Bound::Included(start)
            };
            let upper = if end.is_empty() {
                Bound::Unbounded
            } else {
                Bound::Excluded(end.clone())
            };
            let touched = ranges.is_empty()
                || RowRange::new(lower, upper).is_ok_and(|section| {
                    ranges
                        .iter()
                        .any(|range| !range.intersection(&section).is_empty())
                });
            if touched {
                total += offset.saturating_sub(before);
            }
            (start, before) = (end.clone(), *offset);
        }
        total
    }

    fn take(&mut self, message: Bytes) -> Result<()> {
        let now = self.client.clock().now();
        self.stall.answered(now);
        self.stall.done();
        let sample = wire::SampleRowKeysResponse::decode(message).map_err(|_| {
            // The decoder's words could quote the message.
            Error::io(format!(
                "sampling the row keys of Bigtable table {} failed: the answer cannot be read",
                self.client.table()
            ))
        })?;
        if self.keys.len() == MAX_SAMPLES {
            return Err(Error::io(format!(
                "sampling the row keys of Bigtable table {} gave more than {MAX_SAMPLES} sections",
                self.client.table()
            )));
        }
        // Kept for the life of the plan, so not as a slice of its message.
        let key = Bytes::copy_from_slice(&sample.row_key);
        let offset = u64::try_from(sample.offset_bytes).unwrap_or(0);
        self.sections.push((key.clone(), offset));
        self.keys.push(key);
        Ok(())
    }

    fn wait(&mut self, cx: &mut PollContext<'_>, until: Option<Moment>) -> bool {
        let now = self.client.clock().now();
        self.stall.waiting(now);
        if let Some(waited) = self.stall.due(now) {
            warn!(
                table = %self.client.table(),
                ?waited,
                attempt = self.attempts,
                "no answer to sampling row keys; it is given up after {TOTAL:?} in all"
            );
        }
        let stall = self.stall.deadline().unwrap_or(Moment::NEVER);
        self.timer
            .set(Some(until.unwrap_or(Moment::NEVER).min(stall)));
        self.timer.poll_elapsed(cx).is_pending()
    }

    fn retry(&mut self, error: CallError) -> Result<()> {
        self.cookies.update(error.cookies());
        let asked = error.retry_delay();
        let retryable =
            asked.is_some() || matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded);
        let delay = asked.unwrap_or_else(|| BACKOFF.delay_after(self.attempts, &mut self.random));
        let until = self.client.clock().now().after(delay);
        if retryable && until < self.started.after(TOTAL) {
            self.state = State::Backoff(until);
            return Ok(());
        }
        self.state = State::Done;
        Err(self.given_up(error.into_statuses()))
    }

    fn given_up(&self, statuses: StatusChain) -> Error {
        let hint = match statuses.code() {
            Code::NotFound => "; the table or the application profile does not exist",
            Code::PermissionDenied => {
                "; grant the job's account bigtable.tables.sampleRowKeys (roles/bigtable.reader) on the table"
            }
            Code::Unauthenticated => "; check the credentials that the coordinator runs with",
            _ => "",
        };
        Error::io(format!(
            "sampling the row keys of Bigtable table {} failed after {} attempt(s), so the scan cannot be planned{hint}",
            self.client.table(),
            self.attempts,
        ))
        .with_source(statuses)
    }
}

impl fmt::Debug for SampleRowKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SampleRowKeys")
            .field("table", self.client.table())
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
