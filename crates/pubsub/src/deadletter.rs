//! The dead-letter queue: a Pub/Sub topic that takes what any sink's failure handler hands over.
//!
//! Each rejected record becomes one message: its serialized request as data, and what is known of it as attributes. The
//! queue owns a publisher of its own, with its own credentials, so a job that dead-letters is not thereby a Pub/Sub sink
//! job.
//!
//! # Invariants
//!
//! - A flush resolves when everything offered is confirmed, and not before (PS-DLQ-03).
//! - One deadline for a whole wait, however many publishes it waits for (PS-DLQ-04). A result that is there counts even
//!   when the deadline has passed.
//! - The topic is never created: one made on the fly has no reader (PS-DLQ-05). What cannot be published fails the job.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::error::Error as StdError;
use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};
use std::time::Duration;

use aqueduct_connector::clock::Timer;
use aqueduct_connector::failure::{
    DeadLetterQueue, FailedElement, SendToDeadLetterQueue, send_to_dead_letter_queue,
};
use aqueduct_connector::metrics::{Counter, Gauge, MetricGroup};
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::stall::StallWatch;
use aqueduct_connector::{Clock, Code, Context, Error, Moment, Result, StatusChain, Timestamp};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tracing::{debug, warn};

use crate::TopicDestination;
use crate::client::Access;
use crate::client::publish::{Dial, Network, PublishCall, PublishClient, Target};
use crate::message::Message;
use crate::sink::batch::{self, Buffers, Limits, OpenBatch};
use crate::sink::error::redacted;
use crate::sink::request::{Next, Request};
use crate::sink_options::{BATCH_DELAY, PublisherOptions, RetryOptions};

#[cfg(test)]
mod tests;

/// The most that an attribute's value may hold (PS-WIRE-01).
const MAX_ATTRIBUTE: usize = 1_024;

/// How many dead letters may be unconfirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterBound {
    /// So many; at the bound the sink waits, for the flush timeout at most.
    AtMost(NonZeroU32),
    /// One: each is sent at once and confirmed before the next.
    OneByOne,
    /// Any number until the next flush, in memory.
    UntilFlush,
}

impl DeadLetterBound {
    /// How many may be unconfirmed when one more is offered.
    fn most_before_offer(self) -> usize {
        match self {
            Self::AtMost(most) => most.get() as usize - 1,
            Self::OneByOne => 0,
            Self::UntilFlush => usize::MAX,
        }
    }
}

struct Config {
    topic: TopicDestination,
    bound: DeadLetterBound,
    flush_timeout: Duration,
    shutdown_timeout: Duration,
    access: Access,
}

/// A dead-letter queue, described: every writer gets a [publisher](Self::publisher) of its own. Cheap to clone.
///
/// ```
/// use aqueduct_pubsub::{PubSubDeadLetterQueue, TopicDestination};
///
/// let queue = PubSubDeadLetterQueue::builder()
///     .topic(TopicDestination::new("my-project", "rejected")?)
///     .build()?;
/// let handler = queue.handler(); // for the failure-handler setter of any sink's builder
/// # drop(handler);
/// # Ok::<(), aqueduct_connector::Error>(())
/// ```
///
/// # Attributes of a dead letter
///
/// | attribute | value |
/// | --- | --- |
/// | `dlq-connector` | the sink's connector |
/// | `dlq-destination` | where the record was headed |
/// | `dlq-error` | why it was rejected, cut to 1,024 bytes |
/// | `dlq-timestamp` | when it was offered, ISO-8601 in UTC |
/// | `dlq-subtask` | index of the writer |
#[derive(Clone)]
pub struct PubSubDeadLetterQueue(Arc<Config>);

impl PubSubDeadLetterQueue {
    /// A builder; the topic is required.
    pub fn builder() -> PubSubDeadLetterQueueBuilder {
        PubSubDeadLetterQueueBuilder {
            topic: None,
            bound: DeadLetterBound::AtMost(NonZeroU32::new(1_000).expect("not zero")),
            flush_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(30),
            key_file: None,
            emulator: None,
        }
    }

    /// The queue of one writer, not yet opened.
    #[must_use]
    pub fn publisher(&self) -> DeadLetterPublisher {
        DeadLetterPublisher {
            config: self.0.clone(),
            live: None,
        }
    }

    /// Makes the failure handler of each writer of any sink.
    pub fn handler(
        &self,
    ) -> impl Fn() -> SendToDeadLetterQueue<DeadLetterPublisher> + Clone + Send + Sync + use<> {
        let queue = self.clone();
        move || send_to_dead_letter_queue(queue.publisher())
    }
}

impl fmt::Debug for PubSubDeadLetterQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSubDeadLetterQueue")
            .field("topic", &self.0.topic)
            .field("bound", &self.0.bound)
            .finish_non_exhaustive()
    }
}

/// Builds a [`PubSubDeadLetterQueue`]. Setters never fail; [`build`](Self::build) checks everything.
#[derive(Debug)]
#[must_use]
pub struct PubSubDeadLetterQueueBuilder {
    topic: Option<TopicDestination>,
    bound: DeadLetterBound,
    flush_timeout: Duration,
    shutdown_timeout: Duration,
    key_file: Option<String>,
    emulator: Option<String>,
}

impl PubSubDeadLetterQueueBuilder {
    /// The topic, which must exist; required.
    pub fn topic(mut self, topic: TopicDestination) -> Self {
        self.topic = Some(topic);
        self
    }

    /// How many dead letters may be unconfirmed; by default 1,000.
    pub fn max_in_flight_messages(mut self, bound: DeadLetterBound) -> Self {
        self.bound = bound;
        self
    }

    /// How long a flush, or a wait at the bound, may take over all its dead letters: above 0, by default 60 s.
    pub fn flush_timeout(mut self, limit: Duration) -> Self {
        self.flush_timeout = limit;
        self
    }

    /// How long a close waits for answers: above 0, by default 30 s. It comes on top of the sink's own; keep the sum
    /// below the host's limit for cancelling a task (Flink: 180 s).
    pub fn shutdown_timeout(mut self, limit: Duration) -> Self {
        self.shutdown_timeout = limit;
        self
    }

    /// Path of a service account's JSON key on every worker, independent of the sink's; by default application-default
    /// credentials.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses a blank one, and one beside [`emulator_endpoint`](Self::emulator_endpoint).
    pub fn service_account_key_file(mut self, path: impl Into<String>) -> Self {
        self.key_file = Some(path.into());
        self
    }

    /// `host:port` of a Pub/Sub emulator, in plain text without credentials, independent of the sink's.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses what is not `host:port`.
    pub fn emulator_endpoint(mut self, address: impl Into<String>) -> Self {
        self.emulator = Some(address.into());
        self
    }

    /// Checks everything and makes the queue. Does no I/O.
    ///
    /// # Errors
    ///
    /// The first setting that cannot work, by its name.
    pub fn build(self) -> Result<PubSubDeadLetterQueue> {
        let topic = self.topic.ok_or(ConfigError::Missing {
            option: "topic",
            what: "the topic that takes the dead letters",
        })?;
        for (name, limit) in [
            ("flush_timeout", self.flush_timeout),
            ("shutdown_timeout", self.shutdown_timeout),
        ] {
            if limit.is_zero() || limit.as_nanos() > i64::MAX as u128 {
                let reason = format!("{limit:?} is not above 0 and at most 292 years");
                return Err(ConfigError::invalid(name, reason).into());
            }
        }
        Ok(PubSubDeadLetterQueue(Arc::new(Config {
            topic,
            bound: self.bound,
            flush_timeout: self.flush_timeout,
            shutdown_timeout: self.shutdown_timeout,
            access: Access::new(self.key_file.as_deref(), self.emulator.as_deref())?,
        })))
    }
}

/// The dead-letter queue of one writer.
pub struct DeadLetterPublisher {
    config: Arc<Config>,
    live: Option<Box<Live>>,
}

impl DeadLetterPublisher {
    fn live(&mut self) -> Result<&mut Live> {
        self.live
            .as_deref_mut()
            .ok_or_else(|| Error::bug("a dead-letter queue was used before open or after close"))
    }
}

impl fmt::Debug for DeadLetterPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterPublisher")
            .field("topic", &self.config.topic)
            .field("open", &self.live.is_some())
            .finish_non_exhaustive()
    }
}

impl DeadLetterQueue for DeadLetterPublisher {
    fn open(&mut self, context: &Context) -> Result<()> {
        let network = Network::new(context.clone(), &self.config.access, 1)?;
        let live = Live::new(self.config.clone(), context, &network)?;
        self.live = Some(Box::new(live));
        Ok(())
    }

    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.live()?.poll_bound(cx)
    }

    fn offer(&mut self, element: &dyn FailedElement) -> Result<()> {
        self.live()?.offer(element)
    }

    fn poll_flush(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.live()?.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        if let Some(live) = &mut self.live {
            std::task::ready!(live.poll_close(cx));
            self.live = None;
        }
        Poll::Ready(Ok(()))
    }
}

struct Metrics {
    published: Counter,
    in_flight: Gauge,
    flush_millis: Gauge,
    longest_flush_millis: Gauge,
    abandoned: Counter,
}

/// Name and meaning of every metric that an open queue registers in the group of its sink's writer.
#[must_use]
pub fn metric_names() -> &'static [(&'static str, &'static str)] {
    &[
        ("deadLettersPublished", "dead letters confirmed"),
        ("inFlightDeadLetters", "dead letters offered, unconfirmed"),
        (
            "deadLetterFlushMillis",
            "the last flush that had to wait, also if it failed",
        ),
        (
            "longestDeadLetterFlushMillis",
            "the longest such flush since the start",
        ),
        (
            "deadLetterPublisherShutdownsAbandoned",
            "closes with unanswered dead letters",
        ),
    ]
}

impl Metrics {
    fn new(group: &MetricGroup) -> Self {
        let metrics = Self {
            published: group.counter("deadLettersPublished"),
            in_flight: group.gauge("inFlightDeadLetters"),
            flush_millis: group.gauge("deadLetterFlushMillis"),
            longest_flush_millis: group.gauge("longestDeadLetterFlushMillis"),
            abandoned: group.counter("deadLetterPublisherShutdownsAbandoned"),
        };
        // Of this attempt: an earlier one of the same registry does not count.
        metrics.longest_flush_millis.set(0);
        metrics
    }
}

/// A wait for confirmations.
#[derive(Clone, Copy)]
struct Wait {
    since: Moment,
    /// Unconfirmed when it began.
    of: usize,
}

type Call = LocalBoxFuture<'static, (usize, Result<(), StatusChain>)>;

struct Live {
    config: Arc<Config>,
    clock: Arc<dyn Clock>,
    subtask: u32,
    client: Option<Rc<dyn PublishClient>>,
    target: Target,
    head: Bytes,
    limits: Limits,
    retry: RetryOptions,
    random: fastrand::Rng,
    metrics: Metrics,
    message: Message,
    open: Option<(OpenBatch, Moment)>,
    open_messages: usize,
    batches: u64,
    requests: Vec<Option<Request<usize>>>,
    free: Vec<usize>,
    calls: FuturesUnordered<Call>,
    retries: BinaryHeap<Reverse<(Moment, usize)>>,
    /// Offered, unconfirmed.
    unconfirmed: usize,
    wait: Option<Wait>,
    stall: StallWatch,
    /// What the last attempt that is made again failed with, if nothing was confirmed since.
    last_status: Option<StatusChain>,
    failure: Option<Error>,
    timer: Box<dyn Timer>,
    closing: Option<Moment>,
}

impl Live {
    fn new(config: Arc<Config>, context: &Context, dial: &dyn Dial) -> Result<Self> {
        let options = PublisherOptions::default();
        let retry = options.retry();
        Ok(Self {
            client: Some(dial.client()?),
            target: Target::new(&config.topic, Some(retry.initial_rpc_timeout)),
            head: batch::head(&config.topic.to_string()),
            limits: Limits {
                messages: options.batch_messages(),
                bytes: options.batch_bytes(),
            },
            retry,
            random: context.random(),
            metrics: Metrics::new(&context.metrics),
            message: Message::new(),
            open: None,
            open_messages: 0,
            batches: 0,
            requests: Vec::new(),
            free: Vec::new(),
            calls: FuturesUnordered::new(),
            retries: BinaryHeap::new(),
            unconfirmed: 0,
            wait: None,
            stall: StallWatch::new(),
            last_status: None,
            failure: None,
            timer: context.clock.timer(),
            closing: None,
            clock: context.clock.clone(),
            subtask: context.subtask.index,
            config,
        })
    }

    // --- What the handler asks ---

    fn poll_bound(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let most = self.config.bound.most_before_offer();
        let push = if self.unconfirmed > most {
            Push::All
        } else {
            Push::Due
        };
        let now = self.turn(cx, push);
        self.poll_wait(cx, now, most, "room for another dead letter")
    }

    fn offer(&mut self, element: &dyn FailedElement) -> Result<()> {
        debug!(
            connector = element.connector(),
            destination = %element.destination(),
            error = %element.message(),
            causes = %Causes(element.cause()),
            "offered a dead letter",
        );
        let now = self.clock.now();
        self.message.clear();
        if let Some(payload) = element.payload() {
            self.message.data(payload);
        }
        self.message
            .attribute("dlq-connector", element.connector())
            .attribute("dlq-destination", element.destination())
            .attribute("dlq-error", cut(&element.message(), MAX_ATTRIBUTE))
            .attribute("dlq-timestamp", iso_8601(self.clock.wall()))
            .attribute("dlq-subtask", self.subtask.to_string());
        let size = self.message.encoded_len();
        let overflows = |(open, _): &(OpenBatch, Moment)| open.would_overflow(self.limits, size);
        if self.open.as_ref().is_some_and(overflows) {
            self.send_batch(now);
        }
        self.batches += 1;
        let (number, head) = (self.batches, &self.head);
        let (open, _) = self.open.get_or_insert_with(|| {
            (
                OpenBatch::new(number, head, Buffers::default()),
                now.after(BATCH_DELAY.ours()),
            )
        });
        open.push(&self.message, size, number);
        self.open_messages += 1;
        self.unconfirmed += 1;
        self.metrics.in_flight.set_size(self.unconfirmed);
        if open.is_full(self.limits) || self.config.bound == DeadLetterBound::OneByOne {
            self.send_batch(now);
        }
        Ok(())
    }

    fn poll_flush(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let began = self.clock.now();
        let waits = self.unconfirmed > 0;
        let since = self.wait.map_or(began, |wait| wait.since);
        let now = self.turn(cx, Push::All);
        let flushed = self.poll_wait(cx, now, 0, "dead letters to be confirmed");
        if waits && flushed.is_ready() {
            let millis = i64::try_from(now.since(since).as_millis()).unwrap_or(i64::MAX);
            self.metrics.flush_millis.set(millis);
            let longest = self.metrics.longest_flush_millis.value().max(millis);
            self.metrics.longest_flush_millis.set(longest);
        }
        flushed
    }

    /// Ready once at most `most` are unconfirmed; an error when one cannot be published or the wait took too long.
    fn poll_wait(
        &mut self,
        cx: &mut PollContext<'_>,
        now: Moment,
        most: usize,
        what: &'static str,
    ) -> Poll<Result<()>> {
        if let Some(error) = self.failure.take() {
            self.wait = None;
            return Poll::Ready(Err(error));
        }
        if self.unconfirmed <= most {
            self.wait = None;
            self.stall.done();
            return Poll::Ready(Ok(()));
        }
        let unconfirmed = self.unconfirmed;
        let wait = *self.wait.get_or_insert(Wait {
            since: now,
            of: unconfirmed,
        });
        let deadline = wait.since.after(self.config.flush_timeout);
        if now >= deadline {
            self.wait = None;
            let error = Error::io(format!(
                "{unconfirmed} of {} dead letters for Pub/Sub topic {} were unconfirmed after {:?}, the flush timeout; \
                 nothing was dropped: they are offered again after a restart",
                wait.of.max(unconfirmed),
                self.config.topic,
                now.since(wait.since),
            ));
            return Poll::Ready(Err(match self.last_status.clone() {
                Some(chain) => error.with_source(chain),
                None => error,
            }));
        }
        self.stall.waiting(now);
        if let Some(idle) = self.stall.due(now) {
            warn!(
                topic = %self.config.topic,
                subtask = self.subtask,
                waiting_for = what,
                no_answer_for = ?idle,
                unconfirmed,
                last_status = self.last_status.as_ref().map(tracing::field::display),
                "no dead letter is confirmed; the wait fails the job at the flush timeout",
            );
        }
        let next = deadline.min(self.stall.deadline().unwrap_or(Moment::NEVER));
        if self.arm(cx, Some(next)) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    // --- Requests ---

    fn send_batch(&mut self, now: Moment) {
        let Some((open, _)) = self.open.take() else {
            return;
        };
        let messages = std::mem::take(&mut self.open_messages);
        let request = Request::new(messages, open.seal());
        let id = match self.free.pop() {
            Some(id) => {
                self.requests[id] = Some(request);
                id
            }
            None => {
                self.requests.push(Some(request));
                self.requests.len() - 1
            }
        };
        self.start(id, now);
    }

    fn start(&mut self, id: usize, now: Moment) {
        let (Some(request), Some(client)) = (&mut self.requests[id], &self.client) else {
            return;
        };
        let timeout = request.begin(&self.retry, now);
        let attempt = client.publish(PublishCall {
            target: self.target.clone(),
            body: request.sealed.body.clone(),
            messages: request.tag,
            timeout,
        });
        self.calls
            .push(Box::pin(async move { (id, attempt.await) }));
    }

    fn on_attempt(&mut self, id: usize, result: Result<(), StatusChain>, now: Moment) {
        let Some(request) = self.requests[id].take() else {
            return;
        };
        let Err(chain) = result else {
            self.free.push(id);
            self.last_status = None;
            self.unconfirmed -= request.tag;
            self.metrics.published.add(request.tag as u64);
            self.metrics.in_flight.set_size(self.unconfirmed);
            self.stall.answered(now);
            return;
        };
        let chain = redacted(&chain);
        if let Next::At(at) = request.after(&self.retry, &chain, now, &mut self.random) {
            self.last_status = Some(chain);
            self.retries.push(Reverse((at, id)));
            self.requests[id] = Some(request);
            return;
        }
        self.free.push(id);
        let hint = match chain.code() {
            Code::NotFound => "; the topic must exist, it is never created",
            Code::PermissionDenied => {
                "; grant the job's account pubsub.topics.publish on the topic"
            }
            Code::InvalidArgument => {
                "; a record may be too large for a message once its attributes are added"
            }
            _ => "",
        };
        let error = Error::io(format!(
            "{} dead letter(s) could not be published to Pub/Sub topic {}{hint}",
            request.tag, self.config.topic
        ));
        self.failure.get_or_insert(error.with_source(chain));
    }

    // --- Time ---

    fn turn(&mut self, cx: &mut PollContext<'_>, push: Push) -> Moment {
        loop {
            let now = self.clock.now();
            while let Poll::Ready(Some((id, result))) = self.calls.poll_next_unpin(cx) {
                self.on_attempt(id, result, now);
            }
            let before = self.calls.len();
            while let Some(Reverse((_, id))) = self
                .retries
                .peek()
                .copied()
                .filter(|Reverse((at, _))| *at <= now)
            {
                self.retries.pop();
                self.start(id, now);
            }
            let due = self.open.as_ref().is_some_and(|(_, at)| *at <= now);
            if due || push == Push::All {
                self.send_batch(now);
            }
            let started = self.calls.len() > before;
            if !started && !self.arm(cx, None) {
                return now;
            }
        }
    }

    /// Arms the timer for the next thing due; true if that is already past.
    fn arm(&mut self, cx: &mut PollContext<'_>, also: Option<Moment>) -> bool {
        let next = [
            self.retries.peek().map(|Reverse((at, _))| *at),
            self.open.as_ref().map(|(_, at)| *at),
            also,
        ];
        let Some(next) = next.into_iter().flatten().min() else {
            return false;
        };
        self.timer.set(Some(next));
        self.timer.poll_elapsed(cx).is_ready()
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<()> {
        let now = self.clock.now();
        let until = *self.closing.get_or_insert_with(|| {
            // Nothing new is sent: what no flush has covered comes again.
            self.open = None;
            self.retries.clear();
            now.after(self.config.shutdown_timeout)
        });
        while let Poll::Ready(Some(_)) = self.calls.poll_next_unpin(cx) {}
        if !self.calls.is_empty() {
            self.timer.set(Some(until));
            if self.timer.poll_elapsed(cx).is_pending() {
                return Poll::Pending;
            }
            self.metrics.abandoned.increment();
            warn!(
                topic = %self.config.topic,
                subtask = self.subtask,
                requests = self.calls.len(),
                waited = ?(self.config.shutdown_timeout + now.since(until)),
                "dead letters were unanswered at the end of a close and are abandoned; they may still be published",
            );
            self.calls.clear();
        }
        self.metrics.in_flight.set(0);
        self.client = None;
        Poll::Ready(())
    }
}

/// Which batches leave in a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Push {
    Due,
    All,
}

/// A cause and what is behind it, in one line.
struct Causes<'a>(Option<&'a (dyn StdError + 'static)>);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut next = self.0;
        let mut separator = "";
        while let Some(cause) = next {
            write!(f, "{separator}{cause}")?;
            separator = ": ";
            next = cause.source();
        }
        Ok(())
    }
}

/// `text` in at most `most` bytes, cut between characters and marked (PS-DLQ-02).
fn cut(text: &str, most: usize) -> String {
    const MARK: &str = "...";
    if text.len() <= most {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(most - MARK.len());
    format!("{}{MARK}", &text[..end])
}

/// A wall-clock time as `2026-08-21T09:59:59.999Z`.
fn iso_8601(time: Timestamp) -> String {
    let millis = time.millis();
    let (days, of_day) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
    // Days since 0000-03-01, in eras of 400 years, as years begin in March a leap day ends one.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        of_day / 3_600_000,
        of_day / 60_000 % 60,
        of_day / 1_000 % 60,
        of_day % 1_000
    )
}
