//! The sink and the dead-letter queue against Google's own emulator: an independent party for what the simulation also
//! shows. It validates no publish, so rejections are not shown here; what is published is read back by unary pulls.

use std::sync::Arc;

use aqueduct_cloud::{CallSpec, ChannelPool, Endpoint, PoolOptions, RoutingHeader, TokenProvider};
use aqueduct_connector::sink::Sink;
use aqueduct_pubsub::{PubSubDeadLetterQueue, PubSubSink, PublisherOptions};
use aqueduct_testkit::emulator::{PubSubEmulator, require_pubsub};
use aqueduct_testkit::{SinkHost, TestContext};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1;

use super::sink_world::{How, LIMIT, Record, destination, quick, records, serialize, texts};

/// The emulator and a client of its own.
struct Party {
    emulator: PubSubEmulator,
    kit: TestContext,
    pool: ChannelPool,
}

impl Party {
    fn start() -> Option<Self> {
        let emulator = require_pubsub()?;
        let kit = TestContext::new("sink").with_limit(2 * LIMIT);
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
            kit,
            pool,
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

    async fn create_topic(&self, name: &str) {
        let topic = v1::Topic {
            name: destination(name).to_string(),
            ..v1::Topic::default()
        };
        let _: v1::Topic = self
            .call("/google.pubsub.v1.Publisher/CreateTopic", topic)
            .await;
    }

    async fn subscribe(&self, topic: &str) {
        let subscription = v1::Subscription {
            name: format!("projects/p/subscriptions/{topic}-sub"),
            topic: destination(topic).to_string(),
            ack_deadline_seconds: 60,
            ..v1::Subscription::default()
        };
        let _: v1::Subscription = self
            .call(
                "/google.pubsub.v1.Subscriber/CreateSubscription",
                subscription,
            )
            .await;
    }

    /// Pulls `count` messages of the topic's subscription.
    async fn pull(&self, topic: &str, count: usize) -> Vec<v1::PubsubMessage> {
        let mut messages = Vec::new();
        while messages.len() < count {
            let request = v1::PullRequest {
                subscription: format!("projects/p/subscriptions/{topic}-sub"),
                max_messages: 1_000,
                ..v1::PullRequest::default()
            };
            let pulled: v1::PullResponse = self
                .call("/google.pubsub.v1.Subscriber/Pull", request)
                .await;
            messages.extend(
                pulled
                    .received_messages
                    .into_iter()
                    .filter_map(|received| received.message),
            );
        }
        messages
    }

    async fn exists(&self, topic: &str) -> bool {
        let request = v1::GetTopicRequest {
            topic: destination(topic).to_string(),
        };
        let spec = CallSpec::new("/google.pubsub.v1.Publisher/GetTopic", LIMIT)
            .routing(&RoutingHeader::new());
        self.pool
            .unary::<_, v1::Topic>(&spec, &request)
            .await
            .is_ok()
    }

    fn host(&self, options: PublisherOptions, writers: u32) -> SinkHost<Record> {
        let queue = PubSubDeadLetterQueue::builder()
            .topic(destination("rejected"))
            .emulator_endpoint(self.emulator.endpoint())
            .build()
            .expect("valid");
        let sink: Arc<dyn Sink<Record>> = Arc::new(
            PubSubSink::builder()
                .destination_resolver(|record: &Record, _| {
                    Ok::<_, aqueduct_connector::Error>(Some(destination(record.topic)))
                })
                .serializer(serialize)
                .emulator_endpoint(self.emulator.endpoint())
                .publisher_options(options)
                .failed_message_handler(queue.handler())
                .build()
                .expect("valid"),
        );
        SinkHost::start(sink, &self.kit, writers).expect("writers")
    }
}

fn sorted(messages: &[v1::PubsubMessage]) -> Vec<String> {
    let mut data: Vec<_> = messages
        .iter()
        .map(|message| String::from_utf8(message.data.to_vec()).expect("text"))
        .collect();
    data.sort();
    data
}

/// Topics that exist, one that three writers find missing at once, keys, and dead letters, through one emulator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_emulator_holds_what_was_published() {
    let Some(party) = Party::start() else {
        return;
    };
    for topic in ["orders", "rejected"] {
        party.create_topic(topic).await;
        party.subscribe(topic).await;
    }
    let mut host = party.host(quick().enable_message_ordering(true), 3);
    let mut written: Vec<_> = records(300)
        .into_iter()
        .enumerate()
        .map(|(at, record)| record.topic("orders").key(["", "k1", "k2"][at % 3]))
        .collect();
    written[7].how = How::Refused;
    host.write_all(written.clone()).await.expect("well");
    host.checkpoint().await.expect("well");
    written.remove(7);
    let held = party.pull("orders", 299).await;
    assert_eq!(sorted(&held), texts(&written));
    for key in ["k1", "k2"] {
        let keyed = held.iter().filter(|message| message.ordering_key == key);
        assert_eq!(
            keyed.count(),
            texts(written.iter().filter(|record| record.key == key)).len()
        );
    }
    let letters = party.pull("rejected", 1).await;
    assert_eq!(letters[0].attributes["dlq-connector"], "pubsub");
    assert_eq!(
        letters[0].attributes["dlq-destination"],
        "projects/p/topics/orders"
    );

    assert!(!party.exists("created").await);
    let new: Vec<_> = records(30)
        .into_iter()
        .map(|record| record.topic("created"))
        .collect();
    host.write_all(new).await.expect("well");
    host.checkpoint()
        .await
        .expect("created by whoever came first");
    assert!(party.exists("created").await);
    party.subscribe("created").await;
    host.write_all([Record::new("later").topic("created")])
        .await
        .expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(sorted(&party.pull("created", 1).await), ["later"]);
    host.finish().await.expect("well");
}
