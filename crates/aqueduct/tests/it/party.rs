//! A Pub/Sub service to run a pipeline against: simulated, or the official emulator. Tests speak to both over the wire.

use std::collections::HashMap;
use std::time::Duration;

use aqueduct::connector::Code;
use aqueduct::pubsub::{SubscriptionDestination, TopicDestination};
use aqueduct_cloud::{
    CallError, CallSpec, ChannelPool, Endpoint, PoolOptions, RoutingHeader, TokenProvider,
};
use aqueduct_sim::{Sim, SimConfig};
use aqueduct_testkit::TestContext;
use aqueduct_testkit::emulator::{PubSubEmulator, require_pubsub};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

/// How long one wait of a test may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const PROJECT: &str = "my-project";

pub(crate) fn topic(name: &str) -> TopicDestination {
    TopicDestination::new(PROJECT, name).expect("valid")
}

pub(crate) fn subscription(name: &str) -> SubscriptionDestination {
    SubscriptionDestination::new(PROJECT, name).expect("valid")
}

/// Whose service it is.
enum Kind {
    Simulated(Sim),
    Emulator(PubSubEmulator),
}

pub(crate) struct Party {
    kind: Kind,
    pool: ChannelPool,
}

impl Party {
    pub(crate) fn simulated() -> Self {
        let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
        let endpoint = sim.endpoint();
        Self::of(Kind::Simulated(sim), &endpoint)
    }

    /// `None`: not installed, and reported as not run.
    pub(crate) fn emulator() -> Option<Self> {
        let emulator = require_pubsub()?;
        let endpoint = emulator.endpoint();
        Some(Self::of(Kind::Emulator(emulator), &endpoint))
    }

    fn of(kind: Kind, endpoint: &str) -> Self {
        let endpoint = Endpoint::emulator("test", endpoint).expect("an address");
        let pool = ChannelPool::new(
            &TestContext::new("party").subtask(0, 1),
            endpoint,
            TokenProvider::none(),
            PoolOptions::default(),
        )
        .expect("valid options");
        Self { kind, pool }
    }

    /// `HOST:PORT`.
    pub(crate) fn endpoint(&self) -> String {
        match &self.kind {
            Kind::Simulated(sim) => sim.endpoint(),
            Kind::Emulator(emulator) => emulator.endpoint(),
        }
    }

    /// What only the simulation lets a test look at or disturb.
    pub(crate) fn sim(&self) -> Option<&Sim> {
        match &self.kind {
            Kind::Simulated(sim) => Some(sim),
            Kind::Emulator(_) => None,
        }
    }

    async fn try_call<Req: prost::Message, Resp: prost::Message + Default>(
        &self,
        path: &'static str,
        limit: Duration,
        request: Req,
    ) -> Result<Resp, CallError> {
        let spec = CallSpec::new(path, limit).routing(&RoutingHeader::new());
        self.pool.unary(&spec, &request).await
    }

    async fn call<Req: prost::Message, Resp: prost::Message + Default>(
        &self,
        path: &'static str,
        request: Req,
    ) -> Resp {
        let called = self.try_call(path, LIMIT, request).await;
        called.unwrap_or_else(|error| panic!("{path}: {error:?}"))
    }

    pub(crate) async fn create_topic(&self, name: &str) {
        let request = pb::Topic {
            name: topic(name).to_string(),
            ..pb::Topic::default()
        };
        let _: pb::Topic = self
            .call("/google.pubsub.v1.Publisher/CreateTopic", request)
            .await;
    }

    /// Waits until somebody has created a topic.
    pub(crate) async fn topic_exists(&self, name: &str) {
        let begun = std::time::Instant::now();
        loop {
            let request = pb::GetTopicRequest {
                topic: topic(name).to_string(),
            };
            let path = "/google.pubsub.v1.Publisher/GetTopic";
            match self.try_call::<_, pb::Topic>(path, LIMIT, request).await {
                Ok(_) => return,
                Err(error) if error.code() == Code::NotFound => {}
                Err(error) => panic!("{path}: {error:?}"),
            }
            assert!(begun.elapsed() < LIMIT, "no topic {name}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Creates a subscription to `to`, which exists; delivers in publish order where a test can choose.
    pub(crate) async fn create_subscription(&self, name: &str, to: &str) {
        let request = pb::Subscription {
            name: subscription(name).to_string(),
            topic: topic(to).to_string(),
            ack_deadline_seconds: 10,
            ..pb::Subscription::default()
        };
        let _: pb::Subscription = self
            .call("/google.pubsub.v1.Subscriber/CreateSubscription", request)
            .await;
        if let Some(sim) = self.sim() {
            sim.pubsub().subscription(PROJECT, name).set_shuffle(None);
        }
    }

    /// Publishes one message over the wire; gives its id.
    pub(crate) async fn publish(
        &self,
        to: &str,
        data: &str,
        attributes: &[(&str, &str)],
    ) -> String {
        let request = pb::PublishRequest {
            topic: topic(to).to_string(),
            messages: vec![message(data, attributes)],
        };
        let published: pb::PublishResponse = self
            .call("/google.pubsub.v1.Publisher/Publish", request)
            .await;
        published.message_ids.into_iter().next().expect("one id")
    }

    /// Takes what is there within a second, and acknowledges it.
    pub(crate) async fn take(&self, from: &str) -> Vec<pb::PubsubMessage> {
        let name = subscription(from).to_string();
        let request = pb::PullRequest {
            subscription: name.clone(),
            max_messages: 100,
            ..pb::PullRequest::default()
        };
        let pulled = self
            .try_call::<_, pb::PullResponse>(
                "/google.pubsub.v1.Subscriber/Pull",
                Duration::from_secs(1),
                request,
            )
            .await;
        let received = match pulled {
            Ok(pulled) => pulled.received_messages,
            Err(error) if error.code() == Code::DeadlineExceeded => Vec::new(),
            Err(error) => panic!("Pull: {error:?}"),
        };
        if received.is_empty() {
            return Vec::new();
        }
        let request = pb::AcknowledgeRequest {
            subscription: name,
            ack_ids: received.iter().map(|one| one.ack_id.clone()).collect(),
        };
        self.call::<_, ()>("/google.pubsub.v1.Subscriber/Acknowledge", request)
            .await;
        received.into_iter().filter_map(|one| one.message).collect()
    }

    /// Adds what comes to `taken` until it holds `count`.
    pub(crate) async fn take_until(
        &self,
        from: &str,
        taken: &mut Vec<pb::PubsubMessage>,
        count: usize,
    ) {
        let begun = std::time::Instant::now();
        while taken.len() < count {
            assert!(
                begun.elapsed() < LIMIT,
                "{} of {count} messages came on {from}",
                taken.len()
            );
            taken.extend(self.take(from).await);
        }
    }
}

pub(crate) fn message(data: &str, attributes: &[(&str, &str)]) -> pb::PubsubMessage {
    pb::PubsubMessage {
        data: data.as_bytes().to_vec().into(),
        attributes: attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<HashMap<_, _>>(),
        ..pb::PubsubMessage::default()
    }
}
