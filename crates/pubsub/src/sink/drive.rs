//! The driver: owns the cores of a writer and carries out what they decide.
//!
//! Everything here runs on the writer's owner, inside its polls: requests are futures of this struct, not tasks, and wake
//! the host's waker. A record that finds room costs no poll; progress is made when a batch leaves, every thousand
//! records, and whenever the host polls without a record.
//!
//! | file | holds |
//! | --- | --- |
//! | `drive` | admission, batches, requests, time |
//! | `verdicts` | what an answer means, the failure handler |
//! | `passes` | repairs and isolation, one topic at a time |
//! | `close` | opening, eviction, idle sweep, close |
//!
//! # Invariants
//!
//! - A message counts in both bounds from its admission until it is published, routed or given up: batched, in flight,
//!   between attempts, held and parked alike (PS-SINK-07). Every way out gives back once.
//! - No record is admitted while a message is parked, so what follows in a queue never overtakes (PS-SINK-23).
//! - The first failure ends the writer: nothing more is sent, and every later call returns it.

mod close;
mod passes;
mod verdicts;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use aqueduct_cloud::RetrySchedule;
use aqueduct_connector::clock::Timer;
use aqueduct_connector::failure::FailureHandler;
use aqueduct_connector::sink::Flush;
use aqueduct_connector::{Clock, Context, Error, Moment, Result, StatusChain};
use futures::stream::{FuturesUnordered, StreamExt};
use tracing::warn;

use self::passes::{Pass, Repair};
use super::batch::{Limits, OpenBatch, Sealed, Spare};
use super::error::{self, Failure};
use super::failed::FailedMessage;
use super::metrics::{Levels, Metrics};
use super::progress::{Progress, Stall};
use super::request::Request;
use super::topics::{Parked, QueueId, TopicId, Topics};
use crate::TopicDestination;
use crate::client::publish::{Attempt, Dial, PublishCall, PublishClient};
use crate::client::topic_admin::TopicAdmin;
use crate::message::Message;
use crate::sink_options::{PublisherOptions, RetryOptions, TopicCreateOptions, to_usize};

/// Records after which progress is made even if no batch has left.
const PROGRESS_EVERY: u32 = 1_024;
/// Buffers of answered requests are kept for new batches up to this share of the bytes in flight.
const SPARE_SHARE: usize = 4;
/// Requests in flight on a connection (PS-SINK-06).
const REQUESTS_A_CHANNEL: usize = 100;
/// A writer at its bounds that has seen no completion for this long sends what is still being batched (PS-SINK-08).
const NUDGE_AFTER: Duration = Duration::from_millis(100);
/// Batches begun, after which the list of when they are due is first rid of those that have left.
const DUE_COMPACTION: usize = 4_096;

/// What a driver is made of.
pub(super) struct Parts {
    pub(super) context: Context,
    pub(super) options: PublisherOptions,
    /// What missing topics are created with; `None` creates nothing.
    pub(super) create: Option<Arc<TopicCreateOptions>>,
    pub(super) dial: Box<dyn Dial>,
    pub(super) handler: Box<dyn FailureHandler<FailedMessage>>,
}

/// A message of a topic that no slot is free for.
struct Held {
    destination: TopicDestination,
    message: Message,
}

/// Whose request it is.
struct Tag {
    topic: TopicId,
    kind: Kind,
}

enum Kind {
    Queue(QueueId),
    /// A message of a refused request, sent alone.
    Alone(Parked),
}

/// A request and whether an attempt is on the wire.
struct Active {
    request: Request<Tag>,
    calling: bool,
}

/// A rejected record on its way to the handler.
struct Routed {
    failed: FailedMessage,
    /// The topic and the bytes it still counts for.
    owed: Option<(TopicId, usize)>,
}

/// A message to be put into a batch.
enum Item<'a> {
    New(&'a Message),
    Encoded(&'a [u8]),
}

/// An attempt on the wire and the request that it is of.
struct Call {
    id: usize,
    attempt: Attempt,
}

impl Future for Call {
    type Output = (usize, Result<(), StatusChain>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let result = task::ready!(self.attempt.as_mut().poll(cx));
        Poll::Ready((self.id, result))
    }
}

/// The driver.
pub(super) struct Drive {
    context: Context,
    clock: Arc<dyn Clock>,
    options: PublisherOptions,
    retry: RetryOptions,
    limits: Limits,
    max_messages: usize,
    max_bytes: usize,
    max_calls: usize,
    create: Option<Arc<TopicCreateOptions>>,
    dial: Box<dyn Dial>,
    client: Option<Rc<dyn PublishClient>>,
    admin: Option<Rc<dyn TopicAdmin>>,
    handler: Box<dyn FailureHandler<FailedMessage>>,
    metrics: Metrics,
    random: fastrand::Rng,

    topics: Topics,
    held: Option<Box<Held>>,
    /// Order of admission.
    sequence: u64,
    /// Messages and bytes without an end.
    messages: usize,
    bytes: usize,
    /// Of these, parked.
    parked: usize,
    parked_bytes: usize,

    batches: u64,
    /// Batches in the order they were begun, with the moment each must leave.
    due: VecDeque<(Moment, QueueId, u64)>,
    due_compaction: usize,
    spare: Spare,

    requests: Vec<Option<Active>>,
    free: Vec<usize>,
    calls: FuturesUnordered<Call>,
    /// Requests that wait for a place on a connection.
    waiting: VecDeque<usize>,
    retries: BinaryHeap<Reverse<(Moment, usize)>>,
    /// What the last attempt that is made again failed with, if nothing has completed since.
    last_status: Option<StatusChain>,

    pass: Pass,
    repair: Repair,
    schedule: RetrySchedule,
    rejections: u64,
    /// The bound of rejections was met; told once the tripping message is routed.
    guardrail: Option<Error>,
    routed: VecDeque<Routed>,

    failure: Option<Failure>,
    /// Something was started that no poll has seen yet.
    unpolled: bool,
    since_progress: u32,
    progress: Progress,
    /// The wait under way is one for room, not a flush.
    waits_for_room: bool,
    timer: Box<dyn Timer>,
    timer_at: Option<Moment>,
    /// When a close gives up on answers, once it has begun.
    closing: Option<Moment>,
}

impl Drive {
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let Parts {
            context,
            options,
            create,
            dial,
            mut handler,
        } = parts;
        let clock = context.clock.clone();
        let schedule = RetrySchedule::new(
            "sink.recovery",
            options.recovery_initial_backoff,
            options.recovery_max_backoff,
            options
                .recovery_max_attempts
                .try_into()
                .unwrap_or(std::num::NonZeroU32::MIN),
        )?;
        handler.open(&context)?;
        Ok(Self {
            metrics: Metrics::new(context.metrics.clone()),
            random: context.random(),
            retry: options.retry(),
            limits: Limits {
                messages: options.batch_messages(),
                bytes: options.batch_bytes(),
            },
            max_messages: to_usize(options.max_in_flight_messages),
            max_bytes: to_usize(options.max_in_flight_bytes.0),
            max_calls: options.channels as usize * REQUESTS_A_CHANNEL,
            progress: Progress::new(options.publish_progress_timeout),
            waits_for_room: false,
            timer: clock.timer(),
            timer_at: None,
            client: None,
            admin: None,
            topics: Topics::new(),
            held: None,
            sequence: 0,
            messages: 0,
            bytes: 0,
            parked: 0,
            parked_bytes: 0,
            batches: 0,
            due: VecDeque::new(),
            due_compaction: DUE_COMPACTION,
            spare: Spare::new(to_usize(options.max_in_flight_bytes.0) / SPARE_SHARE),
            requests: Vec::new(),
            free: Vec::new(),
            calls: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            retries: BinaryHeap::new(),
            last_status: None,
            pass: Pass::None,
            repair: Repair::default(),
            schedule,
            rejections: 0,
            guardrail: None,
            routed: VecDeque::new(),
            failure: None,
            unpolled: false,
            since_progress: 0,
            closing: None,
            context,
            clock,
            options,
            create,
            dial,
            handler,
        })
    }

    // --- What the writer asks ---

    /// Whether a record may be handed over without a poll.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.is_at_cap()
            && !self.unpolled
            && self.since_progress < PROGRESS_EVERY
            && self.failure.is_none()
            && self.is_settled()
    }

    /// Waits for room: below both bounds, with no repair owed, no verdict unrouted and no message held.
    pub(super) fn poll_room(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<()>> {
        let now = self.turn(cx, Push::AtCap);
        self.check()?;
        if self.has_room() {
            self.progress.done();
            return Poll::Ready(Ok(()));
        }
        self.waits_for_room = true;
        self.wait("room for the next record", now, cx)
    }

    /// Makes progress.
    pub(super) fn poll_progress(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<()>> {
        self.turn(cx, Push::Due);
        self.check()?;
        if self.waits_for_room && self.has_room() {
            // Whoever waited for room has it; time from here on is no wait.
            self.waits_for_room = false;
            self.progress.done();
        }
        Poll::Pending
    }

    /// Waits until everything admitted has its end and the handler has made its share durable (PS-SINK-11).
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut task::Context<'_>,
        flush: Flush,
    ) -> Poll<Result<()>> {
        let now = self.turn(cx, Push::All);
        self.check()?;
        // By count: a message can encode to no bytes.
        if self.messages > 0 || !self.is_settled() {
            self.waits_for_room = false;
            return self.wait("every outstanding publish", now, cx);
        }
        match self.handler.poll_flush(cx) {
            // The handler has limits of its own; a wait for it is warned about all the same.
            Poll::Pending => return self.wait("the failure handler's flush", now, cx),
            Poll::Ready(Err(error)) => {
                self.fail(error);
                self.check()?;
            }
            Poll::Ready(Ok(())) => {}
        }
        self.progress.done();
        if flush == Flush::Checkpoint {
            self.sweep_idle(now);
        }
        self.publish_metrics();
        Poll::Ready(Ok(()))
    }

    /// Hands a message over. Only when there [is room](Self::has_room).
    pub(super) fn admit(
        &mut self,
        destination: &TopicDestination,
        message: &Message,
    ) -> Result<()> {
        if !self.options.ordering && !message.key().is_empty() {
            return Err(error::key_without_ordering(destination));
        }
        let topic = self.find_or_open(destination)?;
        let size = message.encoded_len();
        self.messages += 1;
        self.bytes += size;
        self.since_progress += 1;
        match topic {
            Some(topic) => self.hand_over(topic, message, size),
            None => {
                self.held = Some(Box::new(Held {
                    destination: destination.clone(),
                    message: message.clone(),
                }));
                self.unpolled = true;
            }
        }
        Ok(())
    }

    /// Offers a rejected record to the handler, now if it is ready and before the next record otherwise.
    pub(super) fn route(&mut self, failed: FailedMessage) -> Result<()> {
        self.since_progress += 1;
        self.routed.push_back(Routed { failed, owed: None });
        self.poll_route(&mut task::Context::from_waker(task::Waker::noop()));
        self.unpolled |= !self.routed.is_empty();
        self.check()
    }

    pub(super) fn on_skipped(&mut self) {
        self.metrics.skipped.increment();
        self.since_progress += 1;
    }

    /// Ends the writer with `error`, unless it has ended before.
    pub(super) fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            self.failure = Some(Failure::new(error));
        }
    }

    /// The stored failure, if there is one.
    #[inline]
    pub(super) fn check(&mut self) -> Result<()> {
        match &mut self.failure {
            Some(failure) => Err(failure.tell()),
            None => Ok(()),
        }
    }

    fn is_at_cap(&self) -> bool {
        self.messages >= self.max_messages || self.bytes >= self.max_bytes
    }

    // --- Batches ---

    /// Puts a counted message of `size` encoded bytes into its queue's batch.
    #[inline]
    fn hand_over(&mut self, topic: TopicId, message: &Message, size: usize) {
        self.metrics.new_records += 1;
        self.metrics.new_bytes += size as u64;
        let entry = self.topics.get_mut(topic);
        entry.pending += 1;
        if let Some((records, _)) = &entry.counters {
            records.increment();
        }
        self.sequence += 1;
        let queue = self.topics.queue_for(topic, message.key());
        self.put(queue, &Item::New(message), size, self.sequence);
    }

    /// Puts a message into the queue's batch, which leaves if it is full.
    #[inline]
    fn put(&mut self, id: QueueId, item: &Item<'_>, size: usize, sequence: u64) {
        let limits = self.limits;
        let fits = |open: &OpenBatch| !open.would_overflow(limits, size);
        if !self.topics.queue(id).open.as_ref().is_some_and(fits) {
            self.seal(id);
            self.begin_batch(id);
        }
        let open = self.topics.queue(id).open.as_mut().expect("begun above");
        match item {
            Item::New(message) => open.push(message, size, sequence),
            Item::Encoded(message) => open.push_encoded(message, sequence),
        }
        if open.is_full(limits) {
            self.seal(id);
        }
    }

    fn begin_batch(&mut self, id: QueueId) {
        self.batches += 1;
        let buffers = self.spare.take();
        let now = self.clock.now();
        let topic = self.topics.queue(id).topic;
        let topic = self.topics.get_mut(topic);
        topic.used = now;
        let open = OpenBatch::new(self.batches, &topic.head, buffers);
        self.topics.queue(id).open = Some(open);
        let leaves = now.after(self.options.batch_delay);
        self.due.push_back((leaves, id, self.batches));
        // Usually an earlier batch has armed the timer, which then fires early enough for this one.
        self.unpolled |= self.timer_at.is_none_or(|armed| armed > leaves);
    }

    /// The queue's batch takes no more; it leaves now, or after those of its key before it.
    fn seal(&mut self, id: QueueId) {
        let queue = self.topics.queue(id);
        let Some(open) = queue.open.take() else {
            return;
        };
        let (topic, sealed) = (queue.topic, open.seal());
        if queue.key.is_some() && (queue.in_flight > 0 || !queue.sealed.is_empty()) {
            queue.sealed.push_back(sealed);
        } else {
            queue.in_flight += 1;
            self.submit(topic, Kind::Queue(id), sealed);
        }
    }

    /// Sends the queue's batch as soon as its key allows.
    fn hurry(&mut self, id: QueueId) {
        let queue = self.topics.queue(id);
        let waits = queue.key.is_some() && (queue.in_flight > 0 || !queue.sealed.is_empty());
        match &mut queue.open {
            Some(open) if waits => open.overdue = true,
            Some(_) => self.seal(id),
            None => {}
        }
    }

    fn hurry_all(&mut self) {
        let topics: Vec<_> = self.topics.iter().map(|(id, _)| id).collect();
        for topic in topics {
            self.hurry_topic(topic);
        }
    }

    fn hurry_topic(&mut self, topic: TopicId) {
        for queue in self.topics.unsent(topic) {
            self.hurry(queue);
        }
    }

    /// A request of the queue has ended: what follows in it.
    fn advance_queue(&mut self, id: QueueId) {
        let queue = self.topics.queue(id);
        if queue.key.is_some() && queue.in_flight == 0 {
            if let Some(sealed) = queue.sealed.pop_front() {
                queue.in_flight += 1;
                let topic = queue.topic;
                self.submit(topic, Kind::Queue(id), sealed);
            } else if queue.open.as_ref().is_some_and(|open| open.overdue) {
                self.seal(id);
            } else {
                self.topics.drop_if_empty(id);
            }
        }
    }

    // --- Requests ---

    fn submit(&mut self, topic: TopicId, kind: Kind, sealed: Sealed) {
        let now = self.clock.now();
        let entry = self.topics.get_mut(topic);
        entry.requests += 1;
        entry.used = now;
        let active = Active {
            request: Request::new(Tag { topic, kind }, sealed),
            calling: false,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.requests[id] = Some(active);
                id
            }
            None => {
                self.requests.push(Some(active));
                self.requests.len() - 1
            }
        };
        self.dispatch(id, now);
    }

    /// Starts an attempt, or lines it up for a place on a connection.
    fn dispatch(&mut self, id: usize, now: Moment) {
        self.unpolled = true;
        if self.waiting.is_empty() && self.calls.len() < self.max_calls {
            self.start(id, now);
        } else {
            self.waiting.push_back(id);
        }
    }

    fn start_waiting(&mut self, now: Moment) {
        while self.calls.len() < self.max_calls
            && let Some(id) = self.waiting.pop_front()
        {
            self.unpolled = true;
            self.start(id, now);
        }
    }

    fn start(&mut self, id: usize, now: Moment) {
        let (Some(active), Some(client)) = (&mut self.requests[id], &self.client) else {
            return;
        };
        active.calling = true;
        let timeout = active.request.begin(&self.retry, now);
        let attempt = client.publish(PublishCall {
            target: self.topics.get(active.request.tag.topic).target.clone(),
            body: active.request.sealed.body.clone(),
            messages: active.request.sealed.slots.len(),
            timeout,
        });
        self.calls.push(Call { id, attempt });
    }

    /// Requests without a final answer.
    fn outstanding(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    // --- Time ---

    /// Takes in what has happened and does what is due; returns the time it was done at.
    fn turn(&mut self, cx: &mut task::Context<'_>, push: Push) -> Moment {
        let mut now = self.clock.now();
        loop {
            if self.failure.is_some() {
                // What was rejected before the failure still has its place to go to (PS-SINK-24).
                self.poll_route(cx);
                break;
            }
            self.unpolled = false;
            self.since_progress = 0;
            // Answers first: they free room, and a failure must win over further records.
            while self.failure.is_none()
                && let Poll::Ready(Some((id, result))) = self.calls.poll_next_unpin(cx)
            {
                self.on_attempt(id, result, now);
            }
            self.start_waiting(now);
            self.poll_route(cx);
            self.do_due(now);
            self.advance_pass(cx, now);
            self.place_held();
            let nudge = self.push(push, now);
            if self.failure.is_some() || self.unpolled {
                continue;
            }
            if !self.arm(cx, now, nudge) {
                break;
            }
            now = self.clock.now();
        }
        self.publish_metrics();
        now
    }

    /// Sends what is still being batched if the wait asks for it; otherwise says when it will.
    fn push(&mut self, push: Push, now: Moment) -> Option<Moment> {
        if push == Push::All || self.held.is_some() {
            self.hurry_all();
        } else if push == Push::AtCap && self.is_at_cap() {
            // Not while completions arrive: they free room, and batches would shrink to what one of them frees.
            let at = self.progress.idle_from().map(|at| at.after(NUDGE_AFTER));
            if self.calls.is_empty() || at.is_some_and(|at| at <= now) {
                self.hurry_all();
            } else {
                return at.or(Some(now.after(NUDGE_AFTER)));
            }
        }
        None
    }

    /// Does what its time has come for.
    fn do_due(&mut self, now: Moment) {
        while let Some((at, queue, batch)) = self.due.front().copied() {
            let open = self.topics.open_number(queue) == Some(batch);
            if open && at > now {
                break;
            }
            self.due.pop_front();
            if open {
                self.hurry(queue);
            }
        }
        if self.due.len() > self.due_compaction {
            let topics = &self.topics;
            self.due
                .retain(|(_, queue, batch)| topics.open_number(*queue) == Some(*batch));
            self.due_compaction = DUE_COMPACTION.max(2 * self.due.len());
        }
        while self
            .retries
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= now)
        {
            if let Some(Reverse((_, id))) = self.retries.pop() {
                self.dispatch(id, now);
            }
        }
    }

    /// Arms the timer for the next thing due; true if that is already past.
    fn arm(&mut self, cx: &mut task::Context<'_>, now: Moment, also: Option<Moment>) -> bool {
        let next = [
            self.due.front().map(|(at, _, _)| *at),
            self.retries.peek().map(|Reverse((at, _))| *at),
            self.pass.until(),
            also,
        ];
        let Some(next) = next.into_iter().flatten().min() else {
            return false;
        };
        // A timer that fires early costs a turn; arming it again for every batch would cost more.
        if !self
            .timer_at
            .is_some_and(|armed| now < armed && armed <= next)
        {
            self.timer.set(Some(next));
            self.timer_at = Some(next);
        }
        let fired = self.timer.poll_elapsed(cx).is_ready();
        if fired {
            self.timer_at = None;
        }
        fired
    }

    /// Ends a poll without success: warns of a wait without completions, or ends it, and wakes when that will be.
    fn wait(
        &mut self,
        what: &'static str,
        now: Moment,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<()>> {
        self.progress.waiting(now);
        // The budget is for publishes; creations, back-offs and the handler have limits of their own.
        let bounded = self.outstanding() > 0;
        let what = match self.pass.waits_for() {
            _ if !self.routed.is_empty() => "the failure handler",
            Some(step) => step,
            None => what,
        };
        match self.progress.check(now, bounded) {
            Stall::No => {}
            Stall::Warn(idle) => warn!(
                connector = super::CONNECTOR,
                subtask = %self.context.subtask,
                waiting_for = what,
                no_completion_for = ?idle,
                in_flight_messages = self.messages - self.parked,
                parked_messages = self.parked,
                requests = self.outstanding(),
                last_status = self.last_status.as_ref().map(tracing::field::display),
                budget = ?self.options.publish_progress_timeout,
                "no publish to Pub/Sub completes; a wait for publishes fails the job when its budget is spent",
            ),
            Stall::Expired(idle) => {
                let messages = self.messages - self.parked;
                let last = self.last_status.take();
                self.fail(error::no_progress(what, idle, messages, last));
                self.check()?;
            }
        }
        let deadline = self.progress.deadline(bounded);
        if self.arm(cx, now, deadline) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Nothing is owed before the next record or the end of a flush but answers.
    fn is_settled(&self) -> bool {
        matches!(self.pass, Pass::None)
            && self.parked == 0
            && self.routed.is_empty()
            && self.held.is_none()
    }

    fn publish_metrics(&mut self) {
        if self.closing.is_none() {
            self.metrics.publish(Levels {
                messages: self.messages - self.parked,
                bytes: self.bytes - self.parked_bytes,
                parked: self.parked,
                topics: self.topics.len(),
            });
        }
    }
}

/// Which batches leave in a turn besides those that are due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Push {
    Due,
    /// All, if the writer is full and nothing completes: it waits for what is still being batched.
    AtCap,
    All,
}
