//! One request to Pub/Sub: read, logged, met by faults, served, answered.

use std::{
    collections::HashMap,
    future::pending,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::rpc;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use http::{HeaderMap, HeaderValue, Response};
use hyper::body::Incoming;
use prost::Message;
use tonic::{Code, Status};

use super::{
    message::frame_deliveries,
    permits::End,
    stream::{Framer, PullBody, Spoiled, known, lease_seconds},
    subscription::Verdict,
};
use crate::{
    bigtable::{chunks::frame, details::status_with, store::Refusal},
    config::RoutingHeader,
    core::Core,
    faults::{Loss, Plan},
    log::{Arrival, Headers},
    method::Method,
    server::{
        body::{SimBody, Step},
        connection::Connection,
        grpc::{EntryCounter, next_data, read_message, table_name},
        serve::{finish, refused, response},
    },
};

/// How often a waiting unary pull looks at the time.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Messages of one unary pull, at most.
const MOST_PULLED: i32 = 1_000;

macro_rules! calls {
    ($($name:ident($request:ty) => |$r:ident| ($resource:expr, $entries:expr);)*) => {
        /// A decoded unary request.
        enum Call {
            $($name(Box<$request>),)*
        }

        impl Call {
            fn decode(method: Method, message: &Bytes) -> Result<Self, Status> {
                let garbled = |_| Status::internal("the request message cannot be decoded");
                Ok(match method {
                    $(Method::$name => {
                        Self::$name(Box::new(<$request>::decode(message.clone()).map_err(garbled)?))
                    })*
                    _ => return Err(Status::unimplemented(
                        "the simulation does not serve this method",
                    )),
                })
            }

            /// The resource spoken of, and the number of entries.
            fn subject(&self) -> (String, usize) {
                match self {
                    $(Self::$name($r) => ($resource, $entries),)*
                }
            }
        }
    };
}

calls! {
    Publish(pb::PublishRequest) => |r| (r.topic.clone(), r.messages.len());
    CreateTopic(pb::Topic) => |r| (r.name.clone(), 1);
    GetTopic(pb::GetTopicRequest) => |r| (r.topic.clone(), 1);
    UpdateTopic(pb::UpdateTopicRequest) => |r| (
        r.topic.as_ref().map(|topic| topic.name.clone()).unwrap_or_default(),
        1
    );
    ListTopics(pb::ListTopicsRequest) => |r| (r.project.clone(), 1);
    ListTopicSubscriptions(pb::ListTopicSubscriptionsRequest) => |r| (r.topic.clone(), 1);
    DeleteTopic(pb::DeleteTopicRequest) => |r| (r.topic.clone(), 1);
    DetachSubscription(pb::DetachSubscriptionRequest) => |r| (r.subscription.clone(), 1);
    CreateSubscription(pb::Subscription) => |r| (r.name.clone(), 1);
    GetSubscription(pb::GetSubscriptionRequest) => |r| (r.subscription.clone(), 1);
    UpdateSubscription(pb::UpdateSubscriptionRequest) => |r| (
        r.subscription.as_ref().map(|it| it.name.clone()).unwrap_or_default(),
        1
    );
    ListSubscriptions(pb::ListSubscriptionsRequest) => |r| (r.project.clone(), 1);
    DeleteSubscription(pb::DeleteSubscriptionRequest) => |r| (r.subscription.clone(), 1);
    Acknowledge(pb::AcknowledgeRequest) => |r| (r.subscription.clone(), r.ack_ids.len());
    ModifyAckDeadline(pb::ModifyAckDeadlineRequest) => |r| (r.subscription.clone(), r.ack_ids.len());
    Pull(pb::PullRequest) => |r| (r.subscription.clone(), 1);
    Seek(pb::SeekRequest) => |r| (r.subscription.clone(), 1);
    CreateSnapshot(pb::CreateSnapshotRequest) => |r| (r.name.clone(), 1);
    GetSnapshot(pb::GetSnapshotRequest) => |r| (r.snapshot.clone(), 1);
    ListSnapshots(pb::ListSnapshotsRequest) => |r| (r.project.clone(), 1);
    DeleteSnapshot(pb::DeleteSnapshotRequest) => |r| (r.snapshot.clone(), 1);
}

fn refuse(refusal: Refusal) -> Status {
    Status::new(refusal.code, refusal.message)
}

/// Serves one request. An error resets its stream.
pub(crate) async fn serve(
    core: Arc<Core>,
    connection: Arc<Connection>,
    method: Method,
    headers: HeaderMap,
    first: Option<Bytes>,
    mut body: Incoming,
) -> Result<Response<SimBody>, h2::Error> {
    if method == Method::StreamingPull {
        return streaming_pull(&core, &connection, &headers, first, body).await;
    }
    let limit = core.config.limits.message_bytes;
    let flooded = core.pubsub.floods.any()
        && core.script.is_empty()
        && first
            .as_deref()
            .is_some_and(|first| floods(&core, method, first));
    if flooded {
        return Ok(flood(&core, method, first, &mut body).await);
    }
    let message = match read_message(&mut body, first, limit).await {
        Ok(message) => message,
        Err(status) => return Ok(refused(&status)),
    };
    let answer = unary(&core, &connection, method, &headers, message).await;
    core.notify();
    answer
}

async fn unary(
    core: &Arc<Core>,
    connection: &Arc<Connection>,
    method: Method,
    headers: &HeaderMap,
    message: Bytes,
) -> Result<Response<SimBody>, h2::Error> {
    let bytes = message.len();
    let call = match Call::decode(method, &message) {
        Ok(call) => call,
        Err(status) => return Ok(refused(&status)),
    };
    let (resource, entries) = call.subject();
    let request = Request {
        core,
        connection,
        method,
        resource,
    };
    let plan = match request.meet(headers, entries, message).await {
        Met::Served(plan) => plan,
        Met::Answered(answer) => return answer,
    };
    let answered = call.serve(core, bytes).await;
    core.notify();
    if let Some(gate) = &plan.hold_answer {
        gate.pass().await;
    }
    let lost = plan.cut == Some(Loss::After);
    if lost || plan.silent == Some(Loss::After) {
        core.pubsub.lost_answers.fetch_add(1, Ordering::SeqCst);
        core.notify();
        if lost {
            connection.cut();
        }
        return pending().await;
    }
    let status = plan.refusal_after().map_or(answered, Err);
    Ok(match status {
        Ok(message) => finish(
            connection,
            &plan,
            vec![Step::Message(message)],
            Some(&Status::new(Code::Ok, "")),
        ),
        Err(status) => finish(connection, &plan, Vec::new(), Some(&status)),
    })
}

struct Request<'a> {
    core: &'a Arc<Core>,
    connection: &'a Arc<Connection>,
    method: Method,
    resource: String,
}

/// What the script makes of a request before it takes effect.
enum Met {
    Served(Plan),
    Answered(Result<Response<SimBody>, h2::Error>),
}

impl Request<'_> {
    async fn meet(&self, headers: &HeaderMap, entries: usize, message: Bytes) -> Met {
        let (core, connection) = (self.core, self.connection);
        let headers = Headers::of(headers);
        let unrouted = headers.routing.is_none();
        core.log.record(Arrival {
            method: self.method,
            resource: self.resource.clone(),
            app_profile: String::new(),
            entries,
            message,
            headers,
            connection: connection.id,
        });
        core.notify();
        let plan = core.script.meet(Some(&self.resource), self.method);
        if plan.goaway {
            connection.recycle();
        }
        if let Some(delay) = plan.delay {
            tokio::time::sleep(delay).await;
        }
        for action in &plan.actions {
            action();
        }
        if let Some(gate) = &plan.hold {
            gate.pass().await;
        }
        if plan.silent == Some(Loss::Before) {
            return pending().await;
        }
        // With a scripted break these are how it ends, after some of the answer.
        if plan.break_after.is_none() {
            if plan.cut == Some(Loss::Before) {
                connection.cut();
                return pending().await;
            }
            if let Some(reason) = plan.reset {
                return Met::Answered(Err(reason.into()));
            }
            if let Some(status) = plan.refusal() {
                let response = finish(connection, &plan, Vec::new(), Some(&status));
                return Met::Answered(Ok(response));
            }
        }
        if unrouted
            && self.method.is_data()
            && core.config.routing_header == RoutingHeader::Required
        {
            let status = Status::invalid_argument("x-goog-request-params is missing");
            return Met::Answered(Ok(refused(&status)));
        }
        if core.pubsub.denies(&self.resource, self.method) {
            return Met::Answered(Ok(refused(&denied())));
        }
        Met::Served(plan)
    }
}

pub(crate) fn denied() -> Status {
    Status::permission_denied("User not authorized to perform this action.")
}

async fn streaming_pull(
    core: &Arc<Core>,
    connection: &Arc<Connection>,
    headers: &HeaderMap,
    first: Option<Bytes>,
    mut body: Incoming,
) -> Result<Response<SimBody>, h2::Error> {
    let limit = core.config.limits.message_bytes;
    let mut framer = Framer::default();
    let mut next = first;
    let message = loop {
        match next {
            Some(data) => framer.push(&data),
            None => {
                let status = Status::invalid_argument("The stream ended before its first request");
                return Ok(refused(&status));
            }
        }
        match framer.next(limit) {
            Ok(Some(message)) => break message,
            Ok(None) => {}
            Err(status) => return Ok(refused(&status)),
        }
        next = match next_data(&mut body).await {
            Ok(next) => next,
            Err(status) => return Ok(refused(&status)),
        };
    };
    let Ok(first) = pb::StreamingPullRequest::decode(message.clone()) else {
        let status = Status::internal("the request message cannot be decoded");
        return Ok(refused(&status));
    };
    let request = Request {
        core,
        connection,
        method: Method::StreamingPull,
        resource: first.subscription.clone(),
    };
    let plan = match request.meet(headers, 1, message).await {
        Met::Served(plan) => plan,
        Met::Answered(answer) => return answer,
    };
    let spoiled = spoil(&plan);
    let opened = PullBody::open(core, connection, &first, body, framer, spoiled);
    core.notify();
    if let Some(gate) = &plan.hold_answer {
        gate.pass().await;
    }
    match opened {
        Ok(pull) => {
            let mut response = response(SimBody::Pull(Box::new(pull)));
            response.headers_mut().extend(plan.headers.iter().cloned());
            Ok(response)
        }
        Err(refusal) => Ok(refused(&refuse(refusal))),
    }
}

/// What a plan means for a stream.
fn spoil(plan: &Plan) -> Spoiled {
    let end = |status: Option<Status>| match (plan.cut, plan.reset) {
        (Some(_), _) => End::Cut,
        (_, Some(_)) => End::Reset,
        _ => {
            let status = status.unwrap_or_else(|| Status::unavailable("scripted break"));
            End::Status(status.code(), status.message().to_owned())
        }
    };
    let loses_first = if plan.cut == Some(Loss::After) {
        Some(End::Cut)
    } else {
        plan.refusal_after()
            .map(|status| End::Status(status.code(), status.message().to_owned()))
    };
    Spoiled {
        breaks: plan
            .break_after
            .map(|responses| (responses, end(plan.refusal()))),
        loses_first: loses_first.filter(|_| plan.break_after.is_none()),
        swallows: plan.silent == Some(Loss::After),
    }
}

impl Call {
    /// Serves the request. What takes effect does so at once; only a pull waits before.
    async fn serve(self, core: &Core, bytes: usize) -> Result<Bytes, Status> {
        let state = &core.pubsub;
        /// Frames what a function of the world answers.
        macro_rules! ask {
            (|$world:ident, $settings:ident| $answer:expr) => {
                state
                    .enter(|$world, $settings| $answer)
                    .map(|answer| frame(&answer))
                    .map_err(refuse)
            };
        }
        match self {
            Self::Publish(request) => match state.floods.topic(&request.topic) {
                Some(topic) => Ok(topic.accept(request.messages.len(), 0)),
                None => ask!(|world, settings| world
                    .publish(*request, settings)
                    .map(|message_ids| pb::PublishResponse { message_ids })),
            },
            Self::CreateTopic(topic) => {
                ask!(|world, settings| world.create_topic(*topic, settings))
            }
            Self::GetTopic(request) => ask!(|world, _settings| world.get_topic(&request.topic)),
            Self::UpdateTopic(request) => ask!(|world, _settings| world.update_topic(*request)),
            Self::ListTopics(request) => ask!(|world, _settings| world.list_topics(&request)),
            Self::ListTopicSubscriptions(request) => {
                ask!(|world, _settings| world.list_topic_subscriptions(&request))
            }
            Self::DeleteTopic(request) => {
                ask!(|world, _settings| world.delete_topic(&request.topic))
            }
            Self::DetachSubscription(request) => ask!(|world, _settings| world
                .detach_subscription(&request.subscription)
                .map(|()| pb::DetachSubscriptionResponse {})),
            Self::CreateSubscription(subscription) => {
                ask!(|world, settings| world.create_subscription(*subscription, settings))
            }
            Self::GetSubscription(request) => {
                ask!(|world, _settings| world.get_subscription(&request.subscription))
            }
            Self::UpdateSubscription(request) => {
                ask!(|world, settings| world.update_subscription(*request, settings))
            }
            Self::ListSubscriptions(request) => {
                ask!(|world, _settings| world.list_subscriptions(&request))
            }
            Self::DeleteSubscription(request) => {
                ask!(|world, _settings| world.delete_subscription(&request.subscription))
            }
            Self::Acknowledge(request) => acknowledge(core, &request, bytes),
            Self::ModifyAckDeadline(request) => modify_ack_deadline(core, &request, bytes),
            Self::Pull(request) => pull(core, &request).await,
            Self::Seek(request) => {
                ask!(|world, _settings| world.seek_request(&request).map(|()| pb::SeekResponse {}))
            }
            Self::CreateSnapshot(request) => {
                ask!(|world, _settings| world.create_snapshot(*request))
            }
            Self::GetSnapshot(request) => {
                ask!(|world, _settings| world.get_snapshot(&request.snapshot))
            }
            Self::ListSnapshots(request) => ask!(|world, _settings| world.list_snapshots(&request)),
            Self::DeleteSnapshot(request) => {
                ask!(|world, _settings| world.delete_snapshot(&request.snapshot))
            }
        }
    }
}

async fn pull(core: &Core, request: &pb::PullRequest) -> Result<Bytes, Status> {
    let most = request.max_messages.min(MOST_PULLED);
    let Ok(most @ 1..) = usize::try_from(most) else {
        return Err(Status::invalid_argument("max_messages must be positive"));
    };
    #[expect(deprecated, reason = "clients still send it")]
    let at_once = request.return_immediately;
    let state = &core.pubsub;
    let look = async {
        loop {
            let told = state.pulls.notified();
            let taken = state.look(|world, settings| {
                let now = world.now();
                let subscription = world.attached(&request.subscription)?;
                let taken = subscription.take(None, most, now, settings.ack_id_bytes);
                if !taken.is_empty() {
                    // Streams watch over the leases of pulls too.
                    world.wake_all();
                }
                Ok(taken)
            });
            match taken {
                Ok(taken) if taken.is_empty() && !at_once => {
                    // Either way it looks again.
                    let _ = tokio::time::timeout(LOOK_AGAIN, told).await;
                }
                taken => return taken,
            }
        }
    };
    // Nothing in time is an empty answer.
    let taken = tokio::time::timeout(state.config.pull_wait, look)
        .await
        .unwrap_or_else(|_| Ok(Vec::new()))
        .map_err(refuse)?;
    Ok(frame_deliveries(&taken, &[]))
}

fn check_acks(core: &Core, ids: usize, bytes: usize) -> Result<(), Status> {
    let limit = core.pubsub.config.limits.acknowledge_bytes;
    if bytes > limit {
        return Err(Status::invalid_argument(format!(
            "Request payload size exceeds the limit: {limit} bytes."
        )));
    }
    if ids == 0 {
        return Err(Status::invalid_argument("No ack ids specified."));
    }
    Ok(())
}

fn acknowledge(
    core: &Core,
    request: &pb::AcknowledgeRequest,
    bytes: usize,
) -> Result<Bytes, Status> {
    check_acks(core, request.ack_ids.len(), bytes)?;
    if let Some(firehose) = core.pubsub.floods.subscription(&request.subscription) {
        firehose.acknowledge(request.ack_ids.len());
        return Ok(frame(&()));
    }
    let failures = core
        .pubsub
        .enter(|world, _| {
            let subscription = world.attached(&request.subscription)?;
            // Judged first: a malformed id refuses the whole request.
            let ids = request
                .ack_ids
                .iter()
                .map(|text| known(subscription, text))
                .collect::<Result<Vec<_>, Refusal>>()?;
            let mut failures = Vec::new();
            for (text, id) in request.ack_ids.iter().zip(ids) {
                let verdict = id.map_or(Verdict::Invalid, |id| subscription.ack(id));
                failures.extend(failure(text, verdict));
            }
            Ok(failures)
        })
        .map_err(refuse)?;
    told(failures)
}

fn modify_ack_deadline(
    core: &Core,
    request: &pb::ModifyAckDeadlineRequest,
    bytes: usize,
) -> Result<Bytes, Status> {
    check_acks(core, request.ack_ids.len(), bytes)?;
    let seconds = lease_seconds(request.ack_deadline_seconds).map_err(refuse)?;
    if let Some(firehose) = core.pubsub.floods.subscription(&request.subscription) {
        firehose.modify(request.ack_ids.len(), request.ack_deadline_seconds);
        return Ok(frame(&()));
    }
    let failures = core
        .pubsub
        .enter(|world, _| {
            let now = world.now();
            let subscription = world.attached(&request.subscription)?;
            let ids = request
                .ack_ids
                .iter()
                .map(|text| known(subscription, text))
                .collect::<Result<Vec<_>, Refusal>>()?;
            let mut failures = Vec::new();
            for (text, id) in request.ack_ids.iter().zip(ids) {
                let verdict =
                    id.map_or(Verdict::Invalid, |id| subscription.modify(id, seconds, now));
                failures.extend(failure(text, verdict));
            }
            Ok(failures)
        })
        .map_err(refuse)?;
    told(failures)
}

fn failure(ack_id: &str, verdict: Verdict) -> Option<(String, String)> {
    let reason = match verdict {
        Verdict::Done => return None,
        Verdict::Invalid => "PERMANENT_FAILURE_INVALID_ACK_ID",
        Verdict::Unordered => "TRANSIENT_FAILURE_UNORDERED_ACK_ID",
        Verdict::Transient => "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE",
    };
    Some((ack_id.to_owned(), reason.to_owned()))
}

/// Success, or a status that names each failed id in its `ErrorInfo`.
fn told(failures: Vec<(String, String)>) -> Result<Bytes, Status> {
    if failures.is_empty() {
        return Ok(frame(&()));
    }
    let permanent = failures
        .iter()
        .any(|(_, reason)| reason.starts_with("PERMANENT"));
    let info = rpc::ErrorInfo {
        reason: "EXACTLY_ONCE_ACKID_FAILURE".to_owned(),
        domain: "pubsub.googleapis.com".to_owned(),
        metadata: failures.into_iter().collect::<HashMap<_, _>>(),
    };
    let details = vec![prost_types::Any {
        type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(),
        value: info.encode_to_vec(),
    }];
    Err(if permanent {
        status_with(
            Code::InvalidArgument,
            "Some acknowledgement ids in the request were invalid. This could be because the \
             acknowledgement ids have expired or the acknowledgement ids were malformed.",
            details,
        )
    } else {
        status_with(
            Code::Unavailable,
            "Some acknowledgement ids could not be settled. Please try again.",
            details,
        )
    })
}

/// Whether the request goes to a flood that counts without decoding.
fn floods(core: &Core, method: Method, first: &[u8]) -> bool {
    let Some(name) = table_name(first) else {
        return false;
    };
    let floods = &core.pubsub.floods;
    match method {
        Method::Publish => floods.topic(name).is_some(),
        Method::Acknowledge => floods.subscription(name).is_some(),
        _ => false,
    }
}

/// Counts messages or ack ids, both being field 2, as they pass by.
async fn flood(
    core: &Core,
    method: Method,
    first: Option<Bytes>,
    body: &mut Incoming,
) -> Response<SimBody> {
    let garbled = || refused(&Status::internal("the request message cannot be decoded"));
    let name = first.as_deref().and_then(table_name).map(str::to_owned);
    let mut counter = EntryCounter::new();
    let mut next = first;
    while let Some(data) = next {
        if counter.feed(&data).is_err() {
            return garbled();
        }
        next = match next_data(body).await {
            Ok(next) => next,
            Err(status) => return refused(&status),
        };
    }
    let (Ok((entries, bytes)), Some(name)) = (counter.finish(), name) else {
        return garbled();
    };
    core.log.count(method);
    let floods = &core.pubsub.floods;
    let message = if method == Method::Publish {
        // It may have been switched off since; the ids then mean nothing, as they always do here.
        floods
            .topic(&name)
            .map(|topic| topic.accept(entries, bytes))
    } else {
        floods.subscription(&name).map(|firehose| {
            firehose.acknowledge(entries);
            frame(&())
        })
    };
    core.notify();
    let Some(message) = message else {
        return refused(&Status::unavailable("the flood was switched off meanwhile"));
    };
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    response(SimBody::Once(Some(message), Some(trailers)))
}
