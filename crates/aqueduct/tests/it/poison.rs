//! PS-ACC-06: one message that nobody can decode, on a subscription with a dead-letter policy.

use std::time::Duration;

use aqueduct::pubsub::source::{DeserializationFailurePolicy, metrics};
use aqueduct::pubsub::{PubSubSource, Publisher};
use aqueduct::runtime::{Job, JobConfig, JobHandle};
use aqueduct_sim::{Subscription, Topic};
use aqueduct_testkit::{TestContext, until};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use crate::party::{LIMIT, PROJECT, Party, message, subscription, topic};
use crate::pipeline::{Order, hourly_totals};
use crate::totals::{json, publish_time, sink};

const ATTEMPTS: i32 = 5;

struct World {
    party: Party,
    orders: Topic,
    totals: Topic,
    dead: Topic,
    orders_sub: Subscription,
}

impl World {
    async fn new() -> Self {
        let party = Party::simulated();
        for name in ["incoming-orders", "customer-totals", "dead-orders"] {
            party.create_topic(name).await;
        }
        party.create_subscription("dead-sub", "dead-orders").await;
        let pubsub = party.sim().expect("simulated").pubsub();
        let orders = pubsub.topic(PROJECT, "incoming-orders");
        let policy = pb::DeadLetterPolicy {
            dead_letter_topic: topic("dead-orders").to_string(),
            max_delivery_attempts: ATTEMPTS,
        };
        let orders_sub =
            pubsub.create_subscription_with(PROJECT, "orders-sub", &orders, |config| {
                config.dead_letter_policy = Some(policy);
            });
        orders_sub.set_shuffle(None);
        Self {
            totals: pubsub.topic(PROJECT, "customer-totals"),
            dead: pubsub.topic(PROJECT, "dead-orders"),
            orders,
            orders_sub,
            party,
        }
    }

    fn start(&self, name: &str) -> JobHandle {
        let source = PubSubSource::builder()
            .subscription(subscription("orders-sub"))
            .deserializer(Order::read)
            .deserialization_failure_policy(DeserializationFailurePolicy::Nack)
            .emulator_endpoint(self.party.endpoint())
            .build()
            .expect("valid");
        let job = Job::new("hourly-totals");
        hourly_totals(&job, source, sink(&self.party.endpoint())).expect("valid windows");
        let config = JobConfig::builder()
            .checkpoint_dir(format!("memory://{name}/checkpoints"))
            .checkpoint_interval(Duration::from_millis(100))
            .build()
            .expect("valid");
        job.start(config).expect("the job starts")
    }

    fn publish(&self, hour: u64, customer: &'static str, amount: i64) -> String {
        let at = hour * 3_600_000_000_000;
        self.orders.publish_at(
            message(&json((at, customer, amount)), &[]),
            publish_time(at),
        )
    }
}

#[tokio::test]
async fn a_poison_message_goes_to_the_dead_letter_topic_and_can_be_replayed_from_there() {
    let world = World::new().await;
    let handle = world.start("poison-granted");
    world.publish(9, "c1", 5);
    let poison = world
        .orders
        .publish_message(message("no order", &[("tenant", "t")]));
    world.publish(10, "c2", 7);
    // It moves event time on, and the hours of the first two are told.
    world.publish(12, "c3", 9);
    world
        .dead
        .wait_until(LIMIT, |dead| dead.published() == 1)
        .await
        .expect("a dead letter");
    world
        .totals
        .wait_until(LIMIT, |totals| totals.published() == 2)
        .await
        .expect("its neighbours arrive");
    assert_eq!(world.orders_sub.deliveries(&poison), 5);
    let status = handle.status();
    assert_eq!(
        (status.restarts, &status.last_failure),
        (0, &None),
        "the job keeps running"
    );
    let returned = handle.metrics().total(metrics::MESSAGES_NACKED);
    assert_eq!(returned, i128::from(ATTEMPTS), "each attempt was returned");

    // Replayed from there, mended.
    let mut dead = Vec::new();
    world.party.take_until("dead-sub", &mut dead, 1).await;
    assert_eq!(&dead[0].data[..], b"no order");
    assert_eq!(dead[0].attributes["tenant"], "t");
    let mut mended = aqueduct::pubsub::Message::new();
    mended.data(r#"{"customer_id":"c4","amount":1}"#);
    let endpoint = world.party.endpoint();
    let publisher = Publisher::new(
        &TestContext::new("replay").subtask(0, 1),
        topic("incoming-orders"),
        None,
        Some(&endpoint),
    )
    .expect("valid");
    let read = |handle: &JobHandle| {
        handle
            .progress()
            .first()
            .map_or(0, |orders| orders.records_out)
    };
    let before = read(&handle);
    let ids = publisher.publish(&[mended]).await.expect("published");
    until(LIMIT, "the replayed order", || read(&handle) == before + 1).await;
    world
        .orders_sub
        .wait_until(LIMIT, |sub| sub.is_acked(&ids[0]))
        .await
        .expect("its acknowledgement");
    handle.stop(None).await.expect("a last checkpoint");
    handle.wait().await.expect("it ends well");
    assert_eq!(world.orders_sub.backlog(), 0);
}

#[tokio::test]
async fn without_the_grants_a_poison_message_keeps_coming_back_and_the_job_keeps_running() {
    let world = World::new().await;
    world.orders_sub.revoke_dead_lettering();
    let handle = world.start("poison-revoked");
    let poison = world.orders.publish_message(message("no order", &[]));
    world
        .orders_sub
        .wait_until(LIMIT, |sub| {
            sub.deliveries(&poison) > 4 * ATTEMPTS.unsigned_abs()
        })
        .await
        .expect("it comes again and again");
    world.publish(9, "c1", 5);
    world.publish(11, "c3", 9);
    world
        .totals
        .wait_until(LIMIT, |totals| totals.published() == 1)
        .await
        .expect("its neighbours arrive");
    assert_eq!(world.dead.published(), 0);
    let status = handle.status();
    assert_eq!((status.restarts, &status.last_failure), (0, &None));
    // The grants come, and it goes.
    world.orders_sub.grant_dead_lettering();
    world
        .dead
        .wait_until(LIMIT, |dead| dead.published() == 1)
        .await
        .expect("a dead letter");
    handle.stop(None).await.expect("a last checkpoint");
    handle.wait().await.expect("it ends well");
}
