//! The source against Google's own emulator: an independent party for round trips, acknowledgements, returns, unordered
//! seeks and a subscription deleted under a live stream. It shows neither order nor lease expiry, and it answers no
//! keepalives. It does forward dead letters.

use std::time::Duration;

use aqueduct_cloud::{CallSpec, ChannelPool, Endpoint, PoolOptions, RoutingHeader, TokenProvider};
use aqueduct_connector::Timestamp;
use aqueduct_pubsub::source::{
    DeserializationFailurePolicy, PubSubSource, PubSubSourceBuilder, StartPosition, metrics,
};
use aqueduct_pubsub::{SubscriptionCreateOptions, SubscriptionDestination, TopicDestination};
use aqueduct_testkit::emulator::{PubSubEmulator, require_pubsub};
use aqueduct_testkit::{SourceHost, TestContext, until};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::source_support::{LIMIT, arc, deserialize, emitted, failure, names, step_until};

/// The emulator wants names of three letters and more.
fn orders() -> TopicDestination {
    TopicDestination::new("my-project", "orders").expect("valid")
}

fn orders_sub() -> SubscriptionDestination {
    SubscriptionDestination::new("my-project", "orders-sub").expect("valid")
}

struct Party {
    emulator: PubSubEmulator,
    pool: ChannelPool,
    kit: TestContext,
}

impl Party {
    fn start() -> Option<Self> {
        let emulator = require_pubsub()?;
        let kit = TestContext::new("source").with_limit(2 * LIMIT);
        let endpoint = Endpoint::emulator("test", &emulator.endpoint()).expect("an address");
        let pool = ChannelPool::new(
            &TestContext::new("party").subtask(0, 1),
            endpoint,
            TokenProvider::none(),
            PoolOptions::default(),
        )
        .expect("valid options");
        Some(Self {
            emulator,
            pool,
            kit,
        })
    }

    async fn call<Req: prost::Message, Resp: prost::Message + Default>(
        &self,
        path: &'static str,
        request: Req,
    ) -> Resp {
        let spec = CallSpec::new(path, LIMIT).routing(&RoutingHeader::new());
        self.pool
            .unary(&spec, &request)
            .await
            .unwrap_or_else(|error| panic!("{path}: {error:?}; {}", self.emulator.output()))
    }

    async fn create_topic(&self) {
        let topic = pb::Topic {
            name: orders().to_string(),
            ..Default::default()
        };
        let _: pb::Topic = self
            .call("/google.pubsub.v1.Publisher/CreateTopic", topic)
            .await;
    }

    async fn publish(&self, prefix: &str, count: usize) {
        let messages = names(prefix, count)
            .into_iter()
            .map(|text| pb::PubsubMessage {
                data: text.into_bytes().into(),
                ..Default::default()
            });
        let request = pb::PublishRequest {
            topic: orders().to_string(),
            messages: messages.collect(),
        };
        let _: pb::PublishResponse = self
            .call("/google.pubsub.v1.Publisher/Publish", request)
            .await;
    }

    fn builder(&self) -> PubSubSourceBuilder<String> {
        let create = SubscriptionCreateOptions::new(orders())
            .ack_deadline(Duration::from_secs(10))
            .retain_acked_messages();
        PubSubSource::builder()
            .subscription_with(orders_sub(), create)
            .deserializer(deserialize)
            .emulator_endpoint(self.emulator.endpoint())
    }

    fn metric(&self, name: &str) -> i128 {
        self.kit.registry().total(name)
    }
}

fn sorted(host: &SourceHost<String>) -> Vec<String> {
    let mut all = emitted(host);
    all.sort();
    all
}

#[tokio::test]
async fn what_a_checkpoint_covers_stays_away_and_what_is_returned_comes_again() {
    let Some(party) = Party::start() else {
        return;
    };
    party.create_topic().await;
    let mut host = SourceHost::start(arc(party.builder()), &party.kit, 1).expect("starts");
    // The subscription exists by then; a stream counts as open only with the emulator's first message.
    step_until(&mut host, "the split", |_| {
        party.metric(metrics::ASSIGNED_SPLITS) == 1
    })
    .await;
    party.publish("m", 5).await;
    host.run_to(5).await.expect("reads");
    host.checkpoint().await.expect("checkpoints");
    until(LIMIT, "5 acks", || {
        party.metric(metrics::MESSAGES_ACKED) == 5
    })
    .await;
    party.publish("n", 5).await;
    host.run_to(10).await.expect("reads");
    assert_eq!(sorted(&host).len(), 10);
    host.close().await.expect("closes");
    assert_eq!(party.metric(metrics::MESSAGES_NACKED), 5);
    let kit = party.kit.next_attempt();
    let mut host = SourceHost::start(arc(party.builder()), &kit, 1).expect("starts");
    host.run_to(5).await.expect("comes again");
    assert_eq!(sorted(&host), names("n", 5), "only what was returned");
    let checkpoint = host.checkpoint().await.expect("checkpoints");
    until(LIMIT, "10 acks", || {
        party.metric(metrics::MESSAGES_ACKED) == 10
    })
    .await;
    host.close().await.expect("closes");
    drop(checkpoint);
    // A seek to a time before everything brings all of it back.
    let back = party
        .builder()
        .start_position(StartPosition::Timestamp(Timestamp::from_millis(1_000)));
    let kit = kit.next_attempt();
    let mut host = SourceHost::start(arc(back), &kit, 1).expect("starts");
    host.run_to(10).await.expect("history");
    let mut all = names("m", 5);
    all.extend(names("n", 5));
    assert_eq!(sorted(&host), all);
    host.close().await.expect("closes");
}

#[tokio::test]
async fn a_subscription_deleted_under_a_live_stream_fails_the_job() {
    let Some(party) = Party::start() else {
        return;
    };
    party.create_topic().await;
    let mut host = SourceHost::start(arc(party.builder()), &party.kit, 1).expect("starts");
    // The subscription exists by then; a stream counts as open only with the emulator's first message.
    step_until(&mut host, "the split", |_| {
        party.metric(metrics::ASSIGNED_SPLITS) == 1
    })
    .await;
    party.publish("m", 1).await;
    host.run_to(1).await.expect("reads");
    let request = pb::DeleteSubscriptionRequest {
        subscription: orders_sub().to_string(),
    };
    party
        .call::<_, ()>("/google.pubsub.v1.Subscriber/DeleteSubscription", request)
        .await;
    let error = failure(&mut host).await;
    assert!(error.report().contains("NOT_FOUND"), "{}", error.report());
    host.close().await.expect("closes");
}

#[tokio::test]
async fn what_cannot_be_decoded_is_returned_until_the_dead_letter_policy_takes_it_away() {
    let Some(party) = Party::start() else {
        return;
    };
    party.create_topic().await;
    let dead = "projects/my-project/topics/dead-letters".to_owned();
    let topic = pb::Topic {
        name: dead.clone(),
        ..Default::default()
    };
    let _: pb::Topic = party
        .call("/google.pubsub.v1.Publisher/CreateTopic", topic)
        .await;
    let dead_sub = "projects/my-project/subscriptions/dead-letters-sub".to_owned();
    let policy = pb::DeadLetterPolicy {
        dead_letter_topic: dead.clone(),
        max_delivery_attempts: 5,
    };
    for (name, topic, dead_letter_policy) in [
        (orders_sub().to_string(), orders().to_string(), Some(policy)),
        (dead_sub.clone(), dead, None),
    ] {
        let subscription = pb::Subscription {
            name,
            topic,
            ack_deadline_seconds: 10,
            dead_letter_policy,
            ..Default::default()
        };
        let _: pb::Subscription = party
            .call(
                "/google.pubsub.v1.Subscriber/CreateSubscription",
                subscription,
            )
            .await;
    }
    party.publish("bad", 1).await;
    let builder = PubSubSource::builder()
        .subscription(orders_sub())
        .deserializer(deserialize)
        .deserialization_failure_policy(DeserializationFailurePolicy::Nack)
        .emulator_endpoint(party.emulator.endpoint());
    let mut host = SourceHost::start(arc(builder), &party.kit, 1).expect("starts");
    step_until(&mut host, "five returns", |_| {
        party.metric(metrics::MESSAGES_NACKED) >= 5
    })
    .await;
    let request = pb::PullRequest {
        subscription: dead_sub,
        max_messages: 1,
        ..Default::default()
    };
    // It waits for a message.
    let pulled: pb::PullResponse = party
        .call("/google.pubsub.v1.Subscriber/Pull", request)
        .await;
    let forwarded = pulled.received_messages.first().expect("one message");
    let data = forwarded.message.as_ref().map(|message| &message.data[..]);
    assert_eq!(data, Some(names("bad", 1)[0].as_bytes()));
    assert_eq!(emitted(&host), [""; 0], "never emitted");
    host.close().await.expect("closes");
    assert_eq!(party.metric(metrics::PENDING_ACKS), 0);
}
