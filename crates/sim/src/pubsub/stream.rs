//! One streaming pull: the body of its response, which also reads the requests.
//!
//! Both directions live in the task of the connection, so cutting that ends them together, and a
//! client that reads nothing is sent nothing: messages it has no window for stay ready for others.
//! The price is that its requests are not read meanwhile either.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use http_body::Body;
use hyper::body::Incoming;
use pb::streaming_pull_response::{
    AcknowledgeConfirmation, ModifyAckDeadlineConfirmation, SubscriptionProperties,
};
use prost::Message;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Code, Status};

use super::{
    clock::{Nanos, nanos},
    flood::Firehose,
    manners::KeepaliveAnswers,
    message::frame_deliveries,
    permits::{End, Mode, Stream, StreamId},
    subscription::{AckId, SubState, Verdict},
};
use crate::{
    bigtable::{chunks::frame, store::Refusal},
    core::Core,
    log::{Arrival, Headers},
    method::Method,
    server::connection::Connection,
};

/// Cuts the messages of a request stream out of its data.
#[derive(Default)]
pub(crate) struct Framer(BytesMut);

impl Framer {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
    }

    pub(crate) fn next(&mut self, limit: usize) -> Result<Option<Bytes>, Status> {
        let Some((prefix, rest)) = self.0.split_first_chunk::<5>() else {
            return Ok(None);
        };
        if prefix[0] != 0 {
            return Err(Status::unimplemented(
                "the simulation reads no compressed messages",
            ));
        }
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if length > limit {
            return Err(Status::resource_exhausted(format!(
                "Received message larger than max ({length} vs. {limit})"
            )));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let mut message = self.0.split_to(5 + length);
        Ok(Some(message.split_off(5).freeze()))
    }
}

/// How a script spoils a stream.
#[derive(Default)]
pub(crate) struct Spoiled {
    /// After so many responses, this end.
    pub(crate) breaks: Option<(usize, End)>,
    /// The first messages are leased, never sent, and followed by this.
    pub(crate) loses_first: Option<End>,
    /// Everything is leased and nothing sent.
    pub(crate) swallows: bool,
}

/// What a poll yields.
pub(crate) enum Pulled {
    Frame(Bytes),
    End(End),
}

/// The body of a streaming pull.
pub(crate) struct PullBody {
    core: Arc<Core>,
    pub(crate) connection: Arc<Connection>,
    subscription: String,
    id: StreamId,
    requests: Option<Incoming>,
    framer: Framer,
    outbox: VecDeque<Bytes>,
    /// Whether the client reads empty responses.
    reads_heartbeats: bool,
    heartbeat_at: Nanos,
    spoiled: Spoiled,
    sent: usize,
    /// It took messages and lets other streams take some before it looks again.
    yields: bool,
    /// When a stream whose client has finished ends.
    closes_at: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
    firehose: Option<(Arc<Firehose>, u64)>,
}

fn properties(subscription: &SubState) -> Option<SubscriptionProperties> {
    Some(SubscriptionProperties {
        exactly_once_delivery_enabled: subscription.config.enable_exactly_once_delivery,
        message_ordering_enabled: subscription.config.enable_message_ordering,
    })
}

fn deadline(seconds: i32) -> Result<Nanos, Refusal> {
    match seconds {
        10..=600 => Ok(seconds.unsigned_abs() as Nanos * 1_000_000_000),
        _ => Err(Refusal::invalid(format!(
            "stream_ack_deadline_seconds must be between 10 and 600, was {seconds}"
        ))),
    }
}

impl PullBody {
    /// Opens a stream by its first request.
    pub(crate) fn open(
        core: &Arc<Core>,
        connection: &Arc<Connection>,
        first: &pb::StreamingPullRequest,
        requests: Incoming,
        framer: Framer,
        spoiled: Spoiled,
    ) -> Result<Self, Refusal> {
        let firehose = core.pubsub.floods.subscription(&first.subscription);
        let (id, now) = core.pubsub.enter(|world, _| {
            if first.subscription.is_empty() {
                return Err(Refusal::invalid(
                    "The first request of a stream must name a subscription",
                ));
            }
            let (now, id) = (world.now(), world.new_stream());
            let subscription = world.attached(&first.subscription)?;
            let deadline = deadline(first.stream_ack_deadline_seconds)?;
            let (messages, bytes) = (first.max_outstanding_messages, first.max_outstanding_bytes);
            let mut stream = Stream::new(messages, bytes, deadline, now);
            if spoiled.swallows {
                stream.mode = Mode::Swallowing;
            }
            subscription.streams.insert(id, stream);
            subscription.counts.streams_opened += 1;
            Ok((id, now))
        })?;
        let heartbeat = nanos(core.pubsub.config.heartbeat_interval);
        let mut body = Self {
            core: core.clone(),
            connection: connection.clone(),
            subscription: first.subscription.clone(),
            id,
            requests: Some(requests),
            framer,
            outbox: VecDeque::new(),
            reads_heartbeats: first.protocol_version >= 1,
            heartbeat_at: now.saturating_add(heartbeat),
            spoiled,
            sent: 0,
            yields: false,
            closes_at: None,
            sleep: None,
            firehose: firehose.map(|firehose| {
                let share =
                    firehose.open(first.max_outstanding_messages, first.max_outstanding_bytes);
                (firehose, share)
            }),
        };
        body.settle(first)?;
        Ok(body)
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Pulled> {
        loop {
            if let Err(refusal) = self.read(cx) {
                return Poll::Ready(Pulled::End(End::Status(refusal.code, refusal.message)));
            }
            if let Some((after, end)) = &self.spoiled.breaks
                && self.sent >= *after
            {
                return Poll::Ready(Pulled::End(end.clone()));
            }
            if let Some(response) = self.outbox.pop_front() {
                return Poll::Ready(self.send(response));
            }
            if std::mem::take(&mut self.yields) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.look(cx) {
                Look::End(end) => return Poll::Ready(Pulled::End(end)),
                Look::Send(response) => {
                    self.core.notify();
                    return Poll::Ready(self.send(response));
                }
                Look::Again => {}
                Look::Wait(until) => {
                    self.core.notify();
                    let Some(until) = until.into_iter().chain(self.closes_at).min() else {
                        return Poll::Pending;
                    };
                    let mut sleep = Box::pin(sleep_until(until));
                    let over = sleep.as_mut().poll(cx).is_ready();
                    self.sleep = Some(sleep);
                    if !over {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn send(&mut self, response: Bytes) -> Pulled {
        self.sent += 1;
        Pulled::Frame(response)
    }

    /// Decides what to do next, with the world at hand.
    fn look(&mut self, cx: &Context<'_>) -> Look {
        let closing = self.closes_at.is_some_and(|at| at <= Instant::now());
        let Self {
            core,
            id,
            heartbeat_at,
            spoiled,
            firehose,
            reads_heartbeats,
            yields,
            subscription: name,
            ..
        } = self;
        core.pubsub.enter(|world, settings| {
            let now = world.now();
            let due = world.next_due();
            let manual = world.clock.is_manual();
            let subscription = match world.attached(name) {
                Ok(subscription) => subscription,
                Err(refusal) => return Look::End(End::Status(refusal.code, refusal.message)),
            };
            let lifetime = subscription.manners.stream_lifetime;
            let (heartbeats, most) = (
                *reads_heartbeats && subscription.manners.keepalives == KeepaliveAnswers::Given,
                subscription.manners.messages_per_response,
            );
            let Some(stream) = subscription.streams.get_mut(id) else {
                // Of a subscription that was deleted and created anew.
                return Look::End(End::Status(Code::NotFound, "Resource not found".to_owned()));
            };
            if let Some(end) = stream.end.take() {
                return Look::End(end);
            }
            let ends = lifetime.map(|lifetime| stream.opened.saturating_add(lifetime));
            if ends.is_some_and(|ends| ends <= now) {
                return Look::End(End::Status(
                    Code::Unavailable,
                    "The service was unable to fulfill your request. Please try again.".to_owned(),
                ));
            }
            if closing {
                return Look::End(End::Status(Code::Ok, String::new()));
            }
            stream.wait(cx.waker());
            let mode = stream.mode;
            if let (Some((firehose, _)), Mode::Live) = (firehose.as_ref(), mode)
                && let Some(response) = firehose.frame(cx.waker())
            {
                return Look::Send(response);
            }
            let taken = subscription.take(Some(*id), most, now, settings.ack_id_bytes);
            if !taken.is_empty() {
                if let Some(end) = spoiled.loses_first.take() {
                    return Look::End(end);
                }
                if mode == Mode::Swallowing {
                    return Look::Again;
                }
                *yields = subscription.streams.len() > 1;
                *heartbeat_at = now.saturating_add(nanos(settings.heartbeat_interval));
                let rest = pb::StreamingPullResponse {
                    subscription_properties: properties(subscription),
                    ..Default::default()
                };
                return Look::Send(frame_deliveries(&taken, &rest.encode_to_vec()));
            }
            let heartbeats = heartbeats && mode == Mode::Live;
            if heartbeats && *heartbeat_at <= now {
                *heartbeat_at = now.saturating_add(nanos(settings.heartbeat_interval));
                return Look::Send(empty(subscription));
            }
            if manual {
                return Look::Wait(None);
            }
            let next = [due, ends, heartbeats.then_some(*heartbeat_at)]
                .into_iter()
                .flatten()
                .min();
            Look::Wait(next.map(|next| {
                Instant::now() + Duration::from_nanos(next.saturating_sub(now).max(1_000_000))
            }))
        })
    }

    /// Reads what the client has sent since.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), Refusal> {
        let limit = self.core.config.limits.message_bytes;
        loop {
            while let Some(message) = self
                .framer
                .next(limit)
                .map_err(|status| Refusal::new(status.code(), status.message()))?
            {
                self.request(message)?;
            }
            let Some(requests) = &mut self.requests else {
                return Ok(());
            };
            match Pin::new(requests).poll_frame(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.framer.push(&data);
                    }
                }
                Poll::Ready(Some(Err(_))) => {
                    // The client is gone; the transport drops this body soon.
                    self.requests = None;
                }
                Poll::Ready(None) => {
                    self.requests = None;
                    let linger = self.core.pubsub.enter(|world, _| {
                        world
                            .subscriptions
                            .get(&self.subscription)
                            .map(|subscription| subscription.manners.closing_linger)
                            .unwrap_or_default()
                    });
                    self.closes_at = Some(Instant::now() + linger);
                }
            }
        }
    }

    /// One request after the first.
    fn request(&mut self, message: Bytes) -> Result<(), Refusal> {
        let request = pb::StreamingPullRequest::decode(message.clone())
            .map_err(|_| Refusal::new(Code::Internal, "the request message cannot be decoded"))?;
        let mode = self.core.pubsub.enter(|world, _| {
            let subscription = world.subscriptions.get(&self.subscription);
            subscription
                .and_then(|subscription| subscription.streams.get(&self.id))
                .map(|stream| stream.mode)
        });
        if mode != Some(Mode::Live) {
            // It never arrived, as far as the service is concerned.
            return Ok(());
        }
        if !request.subscription.is_empty()
            || !request.client_id.is_empty()
            || request.max_outstanding_messages != 0
            || request.max_outstanding_bytes != 0
            || request.protocol_version != 0
        {
            return Err(Refusal::invalid(
                "subscription, client_id, max_outstanding_messages, max_outstanding_bytes and \
                 protocol_version may only be set in the first request of a stream",
            ));
        }
        let settles = request.ack_ids.len() + request.modify_deadline_ack_ids.len();
        if settles > 0 {
            self.core.log.record(Arrival {
                method: Method::StreamingPull,
                resource: self.subscription.clone(),
                app_profile: String::new(),
                entries: settles,
                message,
                headers: Headers::of(&http::HeaderMap::new()),
                connection: self.connection.id,
            });
        }
        if request.stream_ack_deadline_seconds != 0 {
            let deadline = deadline(request.stream_ack_deadline_seconds)?;
            self.core.pubsub.enter(|world, _| {
                if let Some(subscription) = world.subscriptions.get_mut(&self.subscription)
                    && let Some(stream) = subscription.streams.get_mut(&self.id)
                {
                    stream.deadline = deadline;
                }
            });
        } else if settles == 0 {
            let answer = self.core.pubsub.enter(|world, _| {
                let subscription = world.subscriptions.get_mut(&self.subscription)?;
                subscription.counts.keepalives += 1;
                let given = subscription.manners.keepalives == KeepaliveAnswers::Given;
                (given && self.reads_heartbeats).then(|| empty(subscription))
            });
            self.outbox.extend(answer);
        }
        self.settle(&request)
    }

    /// Acknowledges and modifies what a request names.
    fn settle(&mut self, request: &pb::StreamingPullRequest) -> Result<(), Refusal> {
        if request.modify_deadline_seconds.len() != request.modify_deadline_ack_ids.len() {
            return Err(Refusal::invalid(
                "modify_deadline_seconds and modify_deadline_ack_ids must have the same length",
            ));
        }
        if request.ack_ids.is_empty() && request.modify_deadline_ack_ids.is_empty() {
            return Ok(());
        }
        if let Some((firehose, _)) = &self.firehose {
            firehose.acknowledge(request.ack_ids.len());
            for seconds in &request.modify_deadline_seconds {
                firehose.modify(1, *seconds);
            }
            return Ok(());
        }
        let confirmation = self.core.pubsub.enter(|world, _| {
            let now = world.now();
            let subscription = world.attached(&self.subscription)?;
            let mut acks = AcknowledgeConfirmation::default();
            for text in &request.ack_ids {
                let verdict = match known(subscription, text)? {
                    Some(id) => subscription.ack(id),
                    None => Verdict::Invalid,
                };
                match verdict {
                    Verdict::Done => acks.ack_ids.push(text.clone()),
                    Verdict::Invalid => acks.invalid_ack_ids.push(text.clone()),
                    Verdict::Unordered => acks.unordered_ack_ids.push(text.clone()),
                    Verdict::Transient => acks.temporary_failed_ack_ids.push(text.clone()),
                }
            }
            let mut modified = ModifyAckDeadlineConfirmation::default();
            let seconds = request.modify_deadline_seconds.iter();
            for (text, seconds) in request.modify_deadline_ack_ids.iter().zip(seconds) {
                let seconds = lease_seconds(*seconds)?;
                let verdict = match known(subscription, text)? {
                    Some(id) => subscription.modify(id, seconds, now),
                    None => Verdict::Invalid,
                };
                match verdict {
                    Verdict::Done => modified.ack_ids.push(text.clone()),
                    Verdict::Invalid | Verdict::Unordered => {
                        modified.invalid_ack_ids.push(text.clone());
                    }
                    Verdict::Transient => modified.temporary_failed_ack_ids.push(text.clone()),
                }
            }
            let response = pb::StreamingPullResponse {
                received_messages: Vec::new(),
                acknowledge_confirmation: (!request.ack_ids.is_empty()).then_some(acks),
                modify_ack_deadline_confirmation: (!request.modify_deadline_ack_ids.is_empty())
                    .then_some(modified),
                subscription_properties: properties(subscription),
            };
            Ok(subscription.exactly_once().then(|| frame(&response)))
        })?;
        self.outbox.extend(confirmation);
        self.core.notify();
        Ok(())
    }
}

/// An ack id that can be judged; one that is none is refused, unless exactly-once delivery judges
/// each id alone.
pub(crate) fn known(subscription: &SubState, text: &str) -> Result<Option<AckId>, Refusal> {
    match subscription.parse(text) {
        None if !subscription.exactly_once() => Err(Refusal::invalid(
            "You have passed an invalid ack ID to the service.",
        )),
        parsed => Ok(parsed),
    }
}

/// Seconds of a lease, 0 being its end.
pub(crate) fn lease_seconds(seconds: i32) -> Result<u32, Refusal> {
    u32::try_from(seconds)
        .ok()
        .filter(|seconds| *seconds <= 600)
        .ok_or_else(|| {
            Refusal::invalid(format!(
                "ack_deadline_seconds must be between 0 and 600, was {seconds}"
            ))
        })
}

fn empty(subscription: &SubState) -> Bytes {
    frame(&pb::StreamingPullResponse {
        subscription_properties: properties(subscription),
        ..Default::default()
    })
}

enum Look {
    End(End),
    Send(Bytes),
    Again,
    Wait(Option<Instant>),
}

impl Drop for PullBody {
    fn drop(&mut self) {
        if let Some((firehose, share)) = &self.firehose {
            firehose.close(*share);
        }
        self.core.pubsub.enter(|world, _| {
            if let Some(subscription) = world.subscriptions.get_mut(&self.subscription) {
                subscription.streams.remove(&self.id);
            }
            // Others take over what this one left ready, and watch over its leases.
            world.wake_all();
        });
        self.core.notify();
    }
}
