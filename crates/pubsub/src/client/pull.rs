//! One streaming pull: its first request, its keepalives and the watchdog over its silence.
//!
//! # Invariants
//!
//! - No acknowledgement travels on a stream, so no end of a stream loses one (PS-SRC-11).
//! - A stream that is read and gives no response within [`ANSWER`] of a keepalive has failed. While it is not read the
//!   watchdog rests: silence then says nothing.
//!
//! Reopening belongs to `source::io::stream`.

pub(crate) mod decode;

use std::task::{Context, Poll};
use std::time::Duration;

use aqueduct_cloud::{CallError, CallSpec, ChannelPool, DuplexCall, RoutingHeader, frame};
use aqueduct_connector::Moment;
use bytes::Bytes;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use crate::destination::SubscriptionDestination;

const PATH: &str = "/google.pubsub.v1.Subscriber/StreamingPull";
/// Between keepalives.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long the answer to a keepalive may take.
const ANSWER: Duration = Duration::from_secs(15);
/// One legal message is 10 MB; a response holds several.
const MAX_RESPONSE: usize = 64 << 20;

/// What opens a stream.
#[derive(Clone, Debug)]
pub(crate) struct FirstRequest {
    spec: CallSpec,
    body: Bytes,
}

impl FirstRequest {
    /// `messages` and `bytes` are announced in full each time: 0 would mean no limit (PS-SRC-15).
    pub(crate) fn new(
        subscription: &SubscriptionDestination,
        ack_deadline: Duration,
        messages: u64,
        bytes: u64,
        client_id: String,
    ) -> Self {
        let name = subscription.to_string();
        let limit = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let spec = CallSpec::new(PATH, Duration::MAX)
            .routing(&RoutingHeader::new().param("subscription", &name))
            .max_message(MAX_RESPONSE);
        let body = frame(&pb::StreamingPullRequest {
            subscription: name,
            stream_ack_deadline_seconds: i32::try_from(ack_deadline.as_secs()).unwrap_or(600),
            client_id,
            max_outstanding_messages: limit(messages),
            max_outstanding_bytes: limit(bytes),
            protocol_version: 1,
            ..Default::default()
        });
        Self { spec, body }
    }
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct PullStream {
    call: DuplexCall,
    keepalive_at: Moment,
    /// Armed by a keepalive of a stream that is read.
    answer_by: Option<Moment>,
    /// What the connection had received when it was armed.
    mark: u64,
    /// Since when it is read without a response.
    quiet_since: Option<Moment>,
}

/// What became of a stream.
#[derive(Debug)]
pub(crate) enum Pulled {
    Response(Bytes),
    /// The service ended it, with an error or without.
    Ended(Option<CallError>),
}

impl PullStream {
    pub(crate) fn open(pool: &ChannelPool, first: &FirstRequest, now: Moment) -> Self {
        Self {
            call: pool.duplex(&first.spec, first.body.clone()),
            keepalive_at: now.after(KEEPALIVE),
            answer_by: None,
            mark: 0,
            quiet_since: Some(now),
        }
    }

    /// Reads. Responses that are empty are heartbeats.
    pub(crate) fn poll(&mut self, now: Moment, cx: &mut Context<'_>) -> Poll<Pulled> {
        self.quiet_since.get_or_insert(now);
        let polled = self.call.poll_message(cx);
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(response))) => {
                self.answer_by = None;
                self.quiet_since = Some(now);
                Poll::Ready(Pulled::Response(response))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Pulled::Ended(Some(error))),
            Poll::Ready(None) => Poll::Ready(Pulled::Ended(None)),
        }
    }

    /// Leaves it unread: only requests go out.
    pub(crate) fn rest(&mut self, cx: &mut Context<'_>) {
        self.answer_by = None;
        self.quiet_since = None;
        self.call.poll_send(cx);
    }

    /// Sends a keepalive when one is due. `false` when the stream has been silent for too long.
    pub(crate) fn tick(&mut self, now: Moment) -> bool {
        if self.answer_by.is_some_and(|by| now >= by) {
            return false;
        }
        if now >= self.keepalive_at {
            self.keepalive_at = now.after(KEEPALIVE);
            let empty = frame(&pb::StreamingPullRequest::default());
            // Without room an earlier keepalive is still queued, which serves as well.
            let _ = self.call.send(empty);
            if self.quiet_since.is_some() && self.answer_by.is_none() {
                self.answer_by = Some(now.after(ANSWER));
                self.mark = self.call.received().unwrap_or_default();
            }
        }
        true
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(crate) fn deadline(&self) -> Moment {
        self.keepalive_at
            .min(self.answer_by.unwrap_or(Moment::NEVER))
    }

    /// Whether the service has taken the call, be it without a message so far.
    pub(crate) fn is_answered(&self) -> bool {
        self.call.is_answered()
    }

    /// For how long it is read without a response.
    pub(crate) fn silence(&self, now: Moment) -> Duration {
        self.quiet_since
            .map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Ends the request side.
    pub(crate) fn close(&mut self) {
        self.call.close();
    }

    /// Cancels a silent stream, and its connection with it if that is silent too.
    pub(crate) fn abandon(self) {
        let mark = self.mark;
        self.call.abandon(mark);
    }
}
