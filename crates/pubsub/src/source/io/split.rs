//! The I/O side of one split: its streams, its account, its queue, and whether it is open, parked or closing.

use std::task::{Context, Poll};
use std::time::Duration;

use aqueduct_cloud::{CallError, ChannelPool};
use aqueduct_connector::source::SplitId;
use aqueduct_connector::stall::StallWatch;
use aqueduct_connector::{Code, Error, Moment};
use tracing::{debug, info, warn};

use super::flow::Caps;
use super::lease::Terms;
use super::ledger::{Ledger, Part, Run, Tally};
use super::settle::Queue;
use super::stream::{Event, Stream};
use crate::client::ack::AckClient;
use crate::client::pull::FirstRequest;
use crate::client::pull::decode::{Response, decode};
use crate::destination::SubscriptionDestination;
use crate::source::OrderingMode;
use crate::source::builder::Settings;
use crate::source::metrics::ReaderMetrics;
use crate::source::split::SubscriptionSplit;

/// Responses read of one stream before anything else gets a turn.
const RESPONSES: usize = 16;

/// Why a split's streams are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Park,
    Close,
}

/// Where a split is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// The request sides are closed; what still comes is taken in and not emitted.
    Draining {
        cancel_at: Moment,
        deadline: Moment,
        why: Why,
    },
    /// Everything to return was sent; answers are out.
    Returning {
        deadline: Moment,
        why: Why,
    },
    Parked,
    Closed,
}

/// What the reader's task learns from a split.
pub(super) enum Told {
    /// Something happened; look again.
    Progress,
    /// The job fails.
    Failed(Error),
}

/// The I/O side of one split.
pub(super) struct SplitIo {
    pub(super) id: SplitId,
    pub(super) subscription: SubscriptionDestination,
    pub(super) ledger: Ledger,
    pub(super) queue: Queue,
    pub(super) ack: AckClient,
    pub(super) terms: Terms,
    pub(super) paused: bool,
    pub(super) phase: Phase,
    /// Wants to be open again once it is parked.
    pub(super) reopen: bool,
    /// When the host last took something.
    pub(super) last_taken: Moment,
    /// Failed extensions in a row.
    pub(super) extensions_failed: u32,
    pub(super) failed: bool,
    streams: Vec<Stream>,
    streams_made: u32,
    client_prefix: String,
    caps: Caps,
    per_key: bool,
    no_stream: StallWatch,
    told: Tally,
}

impl SplitIo {
    pub(super) fn new(
        split: &SubscriptionSplit,
        settings: &Settings,
        ack: AckClient,
        now: Moment,
        client_prefix: String,
    ) -> Self {
        let options = &settings.subscriber;
        let per_key = settings.ordering == OrderingMode::PerKey;
        let mut this = Self {
            id: SplitId::new(split.uid.to_string()),
            subscription: split.subscription.clone(),
            ledger: Ledger::new(per_key),
            queue: Queue::new(per_key),
            ack,
            terms: Terms::new(
                options.max_ack_extension_period,
                options.min_duration_per_ack_extension,
                options.max_duration_per_ack_extension,
                Duration::from_secs(u64::from(split.ack_deadline_seconds)),
            ),
            paused: false,
            phase: Phase::Open,
            reopen: false,
            last_taken: now,
            extensions_failed: 0,
            failed: false,
            streams: Vec::new(),
            streams_made: options.parallel_pull_count,
            client_prefix,
            caps: options.flow_control(),
            per_key,
            no_stream: StallWatch::new(),
            told: Tally::default(),
        };
        this.open(now);
        this
    }

    fn open(&mut self, now: Moment) {
        self.phase = Phase::Open;
        self.reopen = false;
        let share = self.caps.share(u64::from(self.streams_made));
        self.streams = (0..self.streams_made)
            .map(|stream| {
                let first = FirstRequest::new(
                    &self.subscription,
                    self.terms.stream_deadline(),
                    share.messages,
                    share.bytes,
                    format!("{}-{}-{stream}", self.client_prefix, self.id),
                );
                Stream::new(first, now)
            })
            .collect();
    }

    /// Opens a parked split again.
    pub(super) fn unpark(&mut self, now: Moment) {
        match self.phase {
            Phase::Parked => {
                info!(subscription = %self.subscription, split = %self.id, "parked split reopened");
                self.open(now);
                self.last_taken = now;
            }
            Phase::Draining { why: Why::Park, .. } | Phase::Returning { why: Why::Park, .. } => {
                self.reopen = true;
            }
            _ => {}
        }
    }

    /// Whether flow control lets it read.
    pub(super) fn has_room(&self) -> bool {
        self.caps.admit(self.ledger.held())
    }

    pub(super) fn is_parkable(&self) -> bool {
        self.paused && self.phase == Phase::Open && !self.failed
    }

    pub(super) fn open_streams(&self) -> usize {
        self.streams
            .iter()
            .filter(|stream| stream.is_open())
            .count()
    }

    pub(super) fn silence(&self, now: Moment) -> Duration {
        self.streams
            .iter()
            .map(|stream| stream.silence(now))
            .max()
            .unwrap_or_default()
    }

    /// Closes the request sides; what is left of the way is [`progress`](Self::progress)'s.
    pub(super) fn stop(&mut self, now: Moment, timeout: Duration, deadline: Moment, why: Why) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.streams.iter_mut().for_each(Stream::close);
        if why == Why::Close {
            self.queue.close();
        }
        let drain = Duration::from_millis(500).min(timeout / 2);
        self.phase = Phase::Draining {
            cancel_at: now.after(drain).min(deadline),
            deadline,
            why,
        };
    }

    /// Reads the streams as far as allowed; `others` is what the reader's other splits take of its `budget`.
    #[expect(
        clippy::too_many_arguments,
        reason = "the task's parts, lent for a moment"
    )]
    pub(super) fn poll_streams(
        &mut self,
        pool: &ChannelPool,
        now: Moment,
        budget: Caps,
        others: (u64, u64),
        metrics: &ReaderMetrics,
        random: &mut fastrand::Rng,
        cx: &mut Context<'_>,
    ) -> Option<Told> {
        let mut progress = false;
        for at in 0..self.streams.len() {
            for _ in 0..RESPONSES {
                let own = self.ledger.buffered();
                let within = budget.admit((others.0 + own.0, others.1 + own.1));
                let may_read = within && self.has_room();
                let event = match self.streams[at].poll(pool, now, may_read, random, cx) {
                    Poll::Pending => break,
                    Poll::Ready(event) => event,
                };
                progress = true;
                match event {
                    Event::Response(response) => {
                        if let Ok(response) = decode(response, self.ledger.room()) {
                            self.receive(response, now);
                        } else {
                            metrics.error(Some(Code::Internal));
                            metrics.reopened.increment();
                            warn!(subscription = %self.subscription, "a response could not be decoded; the stream is opened anew");
                            self.streams[at].spoiled(now, random);
                            break;
                        }
                    }
                    Event::Ended(code) => {
                        metrics.error(code.or(Some(Code::Ok)));
                        metrics.reopened.increment();
                        debug!(subscription = %self.subscription, status = ?code, "stream ended, opening it again");
                        break;
                    }
                    Event::Permanent(error) => {
                        metrics.error(Some(error.code()));
                        return Some(Told::Failed(self.failure("the stream", error)));
                    }
                    Event::Closed => break,
                }
            }
        }
        progress.then_some(Told::Progress)
    }

    fn receive(&mut self, response: Response, now: Moment) {
        let exactly_once = response.properties.is_some_and(|p| p.exactly_once);
        if exactly_once && !self.ledger.is_exactly_once() {
            self.ledger.set_exactly_once();
            self.queue.set_exactly_once();
            self.terms = self.terms.exactly_once();
        }
        let mut again = Vec::new();
        self.ledger.receive(response, &self.terms, now, &mut again);
        self.queue.ack(again);
    }

    /// The error of a permanent failure.
    pub(super) fn failure(&mut self, what: &str, error: CallError) -> Error {
        self.failed = true;
        self.streams.iter_mut().for_each(Stream::cancel);
        let code = error.code();
        let advice = match code {
            Code::NotFound => "the subscription does not exist any more",
            Code::PermissionDenied => {
                "the job's account needs the permission pubsub.subscriptions.consume"
            }
            Code::FailedPrecondition => "the subscription may be detached from its topic",
            Code::Unauthenticated => "the credentials were refused, also after a refresh",
            _ => "this cannot be repaired by trying again",
        };
        Error::io(format!(
            "{what} of {} failed with {code}: {advice}",
            self.subscription
        ))
        .with_source(error)
    }

    /// Carries parking and closing on. Whether anything changed.
    pub(super) fn progress(&mut self, now: Moment) -> bool {
        match self.phase {
            Phase::Draining {
                cancel_at,
                deadline,
                why,
            } => {
                if now < cancel_at && !self.streams.iter().all(Stream::is_closed) {
                    return false;
                }
                // Before any return, or a returned message could come back to a closing stream.
                self.streams.iter_mut().for_each(Stream::cancel);
                let mut returns = Vec::new();
                match why {
                    Why::Close => self.ledger.nack_uncovered(&mut returns),
                    Why::Park => _ = self.ledger.nack_buffered(&mut returns),
                }
                self.queue.nack_now(returns);
                self.phase = Phase::Returning { deadline, why };
                if self.reopen && !self.per_key {
                    self.open(now);
                }
                true
            }
            Phase::Returning { deadline, why } => {
                let done = match why {
                    Why::Park => self.queue.has_no_returns(),
                    Why::Close => self.queue.is_empty() && self.ledger.is_empty(),
                };
                if !done && now < deadline {
                    return false;
                }
                if !done && why == Why::Park {
                    warn!(subscription = %self.subscription, split = %self.id, "messages of a parked split were not returned in time; they come back when their leases end");
                }
                match why {
                    Why::Park if self.reopen => self.open(now),
                    Why::Park => self.phase = Phase::Parked,
                    Why::Close => self.phase = Phase::Closed,
                }
                true
            }
            Phase::Open | Phase::Parked | Phase::Closed => false,
        }
    }

    /// When something is to be done without an event.
    pub(super) fn deadline(&self, may_read: bool) -> Moment {
        let mut at = self.queue.deadline();
        match self.phase {
            Phase::Draining { cancel_at, .. } => at = at.min(cancel_at),
            Phase::Returning { deadline, .. } => at = at.min(deadline),
            Phase::Open | Phase::Parked | Phase::Closed => {}
        }
        let may_read = may_read && self.has_room();
        for stream in &self.streams {
            at = at.min(stream.deadline(may_read));
        }
        at
    }

    /// Warns when there has been no stream for a minute.
    pub(super) fn watch(&mut self, now: Moment, may_read: bool) {
        let missing = self.phase == Phase::Open
            && !self.failed
            && may_read
            && self.has_room()
            && self.open_streams() == 0;
        if missing {
            self.no_stream.waiting(now);
        } else {
            self.no_stream.done();
        }
        if let Some(waited) = self.no_stream.due(now) {
            warn!(subscription = %self.subscription, split = %self.id, ?waited, "no stream could be opened; trying on");
        }
    }

    /// Returns a failed message, and under `PerKey` the later buffered ones of its key.
    pub(super) fn nack(&mut self, runs: impl IntoIterator<Item = Run>, key: u64, now: Moment) {
        let mut returns = Vec::new();
        for run in runs {
            self.ledger.nack(run, &mut returns);
        }
        if self.per_key && key != 0 {
            self.ledger.nack_key(key, None, &mut returns);
        }
        self.queue.nack(returns, now);
    }

    /// Takes back a batch that the owner did not hand on. Where the split was parked meanwhile, it goes the way of what was
    /// in the buffer then: back to the service (PS-SRC-26).
    pub(super) fn take_back(&mut self, batch: Vec<Part>, now: Moment) {
        let mut returns = Vec::new();
        self.ledger.untake(batch, &mut returns);
        self.queue.nack(returns.drain(..), now);
        // One that is draining still has its returns to come.
        let parked = matches!(
            self.phase,
            Phase::Returning { why: Why::Park, .. } | Phase::Parked
        );
        if parked {
            self.ledger.nack_buffered(&mut returns);
            self.queue.nack_now(returns);
        }
    }

    /// Brings the counters up to the account.
    pub(super) fn count(&mut self, metrics: &ReaderMetrics) {
        let tally = self.ledger.tally();
        metrics.received.add(tally.received - self.told.received);
        metrics.acked.add(tally.acked - self.told.acked);
        metrics.nacked.add(tally.nacked - self.told.nacked);
        metrics.leases_lost.add(tally.lost - self.told.lost);
        metrics.acks_failed.add(tally.failed - self.told.failed);
        self.told = tally;
    }
}
