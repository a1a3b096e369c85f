//! Short ways to say what a test sends, and a streaming pull held by hand.

use std::{collections::HashMap, time::Duration};

use aqueduct_sim::{Sim, Subscription, Topic};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use pb::{publisher_client::PublisherClient, subscriber_client::SubscriberClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Channel};

pub(crate) use crate::support::{LIMIT, channel, soon, start, start_with};

pub(crate) fn publisher(sim: &Sim) -> PublisherClient<Channel> {
    PublisherClient::new(channel(sim))
}

pub(crate) fn subscriber(sim: &Sim) -> SubscriberClient<Channel> {
    SubscriberClient::new(channel(sim)).max_decoding_message_size(32 << 20)
}

/// A topic and a subscription to it, delivering in publish order.
pub(crate) fn pair(sim: &Sim) -> (Topic, Subscription) {
    pair_with(sim, |_| ())
}

pub(crate) fn pair_with(
    sim: &Sim,
    settings: impl FnOnce(&mut pb::Subscription),
) -> (Topic, Subscription) {
    let pubsub = sim.pubsub();
    let topic = pubsub.create_topic("p", "orders");
    let subscription = pubsub.create_subscription_with("p", "orders-sub", &topic, settings);
    subscription.set_shuffle(None);
    (topic, subscription)
}

pub(crate) fn message(data: &str) -> pb::PubsubMessage {
    pb::PubsubMessage {
        data: data.to_owned().into(),
        ..Default::default()
    }
}

pub(crate) fn with_attribute(data: &str, key: &str, value: &str) -> pb::PubsubMessage {
    pb::PubsubMessage {
        attributes: HashMap::from([(key.to_owned(), value.to_owned())]),
        ..message(data)
    }
}

pub(crate) fn keyed(key: &str, data: &str) -> pb::PubsubMessage {
    pb::PubsubMessage {
        ordering_key: key.to_owned(),
        ..message(data)
    }
}

pub(crate) async fn publish(
    client: &mut PublisherClient<Channel>,
    topic: &str,
    messages: Vec<pb::PubsubMessage>,
) -> Result<Vec<String>, Status> {
    let request = pb::PublishRequest {
        topic: topic.to_owned(),
        messages,
    };
    let response = soon(client.publish(request)).await?;
    Ok(response.into_inner().message_ids)
}

pub(crate) async fn acknowledge(
    client: &mut SubscriberClient<Channel>,
    subscription: &str,
    ack_ids: Vec<String>,
) -> Result<(), Status> {
    let request = pb::AcknowledgeRequest {
        subscription: subscription.to_owned(),
        ack_ids,
    };
    soon(client.acknowledge(request)).await.map(|_| ())
}

pub(crate) async fn modify(
    client: &mut SubscriberClient<Channel>,
    subscription: &str,
    ack_ids: Vec<String>,
    seconds: i32,
) -> Result<(), Status> {
    let request = pb::ModifyAckDeadlineRequest {
        subscription: subscription.to_owned(),
        ack_ids,
        ack_deadline_seconds: seconds,
    };
    soon(client.modify_ack_deadline(request)).await.map(|_| ())
}

pub(crate) async fn pull(
    client: &mut SubscriberClient<Channel>,
    subscription: &str,
    most: i32,
) -> Result<Vec<pb::ReceivedMessage>, Status> {
    #[expect(deprecated, reason = "a test does not wait for what should not come")]
    let request = pb::PullRequest {
        subscription: subscription.to_owned(),
        return_immediately: true,
        max_messages: most,
    };
    let response = soon(client.pull(request)).await?;
    Ok(response.into_inner().received_messages)
}

/// A first request of protocol version 1, without limits and with 60 s of lease.
pub(crate) fn first(subscription: &Subscription) -> pb::StreamingPullRequest {
    pb::StreamingPullRequest {
        subscription: subscription.name().to_owned(),
        stream_ack_deadline_seconds: 60,
        client_id: "client".to_owned(),
        protocol_version: 1,
        ..Default::default()
    }
}

pub(crate) fn limited(subscription: &Subscription, messages: i64) -> pb::StreamingPullRequest {
    pb::StreamingPullRequest {
        max_outstanding_messages: messages,
        ..first(subscription)
    }
}

/// A streaming pull.
pub(crate) struct Puller {
    pub(crate) requests: mpsc::Sender<pb::StreamingPullRequest>,
    responses: Streaming<pb::StreamingPullResponse>,
    received: Vec<pb::ReceivedMessage>,
}

impl Puller {
    pub(crate) async fn open(sim: &Sim, first: pb::StreamingPullRequest) -> Result<Self, Status> {
        Self::open_with(subscriber(sim), first).await
    }

    pub(crate) async fn open_with(
        mut client: SubscriberClient<Channel>,
        first: pb::StreamingPullRequest,
    ) -> Result<Self, Status> {
        let (requests, rest) = mpsc::channel(16);
        requests.send(first).await.expect("the receiver is here");
        let responses = soon(client.streaming_pull(ReceiverStream::new(rest)))
            .await?
            .into_inner();
        Ok(Self {
            requests,
            responses,
            received: Vec::new(),
        })
    }

    pub(crate) async fn send(&self, request: pb::StreamingPullRequest) {
        soon(self.requests.send(request))
            .await
            .expect("the stream is open");
    }

    /// The next response, or how the stream ended.
    pub(crate) async fn response(&mut self) -> Result<Option<pb::StreamingPullResponse>, Status> {
        soon(self.responses.message()).await
    }

    /// The next so many messages.
    pub(crate) async fn take(&mut self, messages: usize) -> Vec<pb::ReceivedMessage> {
        while self.received.len() < messages {
            let response = self.response().await.expect("the stream goes on");
            let response = response.expect("the stream goes on");
            self.received.extend(response.received_messages);
        }
        self.received.drain(..messages).collect()
    }

    /// Asserts that nothing comes for a while.
    pub(crate) async fn nothing(&mut self) {
        assert!(self.received.is_empty(), "{} left", self.received.len());
        let quiet = Duration::from_millis(200);
        let response = tokio::time::timeout(quiet, self.responses.message()).await;
        assert!(response.is_err(), "nothing was to come");
    }

    /// The code the stream ends with, messages before it being dropped.
    pub(crate) async fn end(&mut self) -> Code {
        loop {
            match self.response().await {
                Ok(Some(_)) => {}
                Ok(None) => return Code::Ok,
                Err(status) => return status.code(),
            }
        }
    }
}

/// The data of messages.
pub(crate) fn data(received: &[pb::ReceivedMessage]) -> Vec<String> {
    received
        .iter()
        .map(|received| {
            let message = received.message.as_ref().expect("a message");
            String::from_utf8_lossy(&message.data).into_owned()
        })
        .collect()
}

pub(crate) fn ack_ids(received: &[pb::ReceivedMessage]) -> Vec<String> {
    received
        .iter()
        .map(|received| received.ack_id.clone())
        .collect()
}

pub(crate) fn code<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
