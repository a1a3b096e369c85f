//! Ordering, dead-lettering, exactly-once delivery, seeks and snapshots.

use std::time::{Duration, UNIX_EPOCH};

use aqueduct_sim::{AckFailure, Code, Sim, Subscription, Topic};
use googleapis_tonic_google_bigtable_v2::google::rpc;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use pb::seek_request::Target;
use prost::Message;
use tonic::Status;

use super::support::*;

async fn ordered() -> (Sim, Topic, Subscription) {
    let sim = start().await;
    sim.pubsub().stop_clock(UNIX_EPOCH + MINUTE);
    let (topic, subscription) = pair_with(&sim, |config| config.enable_message_ordering = true);
    // What is not keyed may come in any order.
    subscription.set_shuffle(Some(7));
    (sim, topic, subscription)
}

#[tokio::test]
async fn a_key_has_one_outstanding_batch_and_comes_in_order() {
    let (sim, topic, subscription) = ordered().await;
    for n in 0..3 {
        topic.publish_keyed("k", n.to_string());
    }
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    let batch = puller.take(3).await;
    assert_eq!(data(&batch), ["0", "1", "2"]);
    topic.publish_keyed("k", "3");
    topic.publish_keyed("other", "x");
    assert_eq!(
        data(&puller.take(1).await),
        ["x"],
        "keys do not wait for keys"
    );
    puller.nothing().await;
    let mut client = subscriber(&sim);
    let ids = ack_ids(&batch);
    acknowledge(&mut client, subscription.name(), ids[..2].to_vec())
        .await
        .expect("acked");
    puller.nothing().await;
    acknowledge(&mut client, subscription.name(), ids[2..].to_vec())
        .await
        .expect("acked");
    assert_eq!(data(&puller.take(1).await), ["3"]);
}

#[tokio::test]
async fn a_key_stays_with_its_stream_until_that_closes() {
    let (sim, topic, subscription) = ordered().await;
    let mut client = subscriber(&sim);
    let mut one = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    topic.publish_keyed("k", "0");
    let mut held = one.take(1).await;
    let mut two = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    for n in 1..10 {
        topic.publish_keyed("k", n.to_string());
        acknowledge(&mut client, subscription.name(), ack_ids(&held))
            .await
            .expect("acked");
        held = one.take(1).await;
        assert_eq!(data(&held), [n.to_string()]);
    }
    two.nothing().await;
    acknowledge(&mut client, subscription.name(), ack_ids(&held))
        .await
        .expect("acked");
    drop(one);
    subscription
        .wait_until(LIMIT, |subscription| subscription.open_streams() == 1)
        .await
        .expect("the other stream is gone");
    topic.publish_keyed("k", "10");
    assert_eq!(data(&two.take(1).await), ["10"]);
}

#[tokio::test]
async fn redelivery_of_one_message_redelivers_all_later_ones_of_its_key() {
    let (sim, topic, subscription) = ordered().await;
    for n in 0..4 {
        topic.publish_keyed("k", n.to_string());
    }
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    let ids = ack_ids(&puller.take(4).await);
    let mut client = subscriber(&sim);
    let name = subscription.name();
    // 2 is acked, 1 given back, 0 and 3 still held: 1, 2 and 3 come again, after 0 is settled.
    acknowledge(&mut client, name, vec![ids[2].clone()])
        .await
        .expect("acked");
    modify(&mut client, name, vec![ids[1].clone()], 0)
        .await
        .expect("nacked");
    puller.nothing().await;
    acknowledge(&mut client, name, vec![ids[0].clone()])
        .await
        .expect("acked");
    let again = puller.take(3).await;
    assert_eq!(data(&again), ["1", "2", "3"]);
    // Expiry does the same.
    sim.pubsub().advance(MINUTE);
    let again = puller.take(3).await;
    assert_eq!(data(&again), ["1", "2", "3"]);
    acknowledge(&mut client, name, ack_ids(&again))
        .await
        .expect("acked");
    assert_eq!(subscription.backlog(), 0);
}

fn dead_lettering(sim: &Sim, attempts: i32) -> (Topic, Subscription, Topic, Subscription) {
    let pubsub = sim.pubsub();
    let dead = pubsub.create_topic("p", "dead");
    let dead_sub = pubsub.create_subscription("p", "dead-sub", &dead);
    let (topic, subscription) = pair_with(sim, |config| {
        config.dead_letter_policy = Some(pb::DeadLetterPolicy {
            dead_letter_topic: dead.name().to_owned(),
            max_delivery_attempts: attempts,
        });
    });
    (topic, subscription, dead, dead_sub)
}

/// Pulls and nacks until nothing comes; answers the delivery attempts told.
async fn nack_all(sim: &Sim, subscription: &Subscription, most: usize) -> Vec<i32> {
    let mut client = subscriber(sim);
    let mut attempts = Vec::new();
    while attempts.len() < most {
        let received = pull(&mut client, subscription.name(), 1)
            .await
            .expect("pulled");
        let Some(one) = received.first() else {
            break;
        };
        attempts.push(one.delivery_attempt);
        modify(&mut client, subscription.name(), ack_ids(&received), 0)
            .await
            .expect("nacked");
    }
    attempts
}

#[tokio::test]
async fn a_message_is_dead_lettered_after_its_attempts_with_its_source() {
    let sim = start().await;
    let (topic, subscription, dead, dead_sub) = dead_lettering(&sim, 5);
    let original = with_attribute("poison", "tenant", "t");
    let published = UNIX_EPOCH + Duration::from_millis(1_790_000_000_500);
    topic.publish_at(original, published);
    let attempts = nack_all(&sim, &subscription, 100).await;
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    assert_eq!(subscription.backlog(), 0);
    assert_eq!(subscription.counts().dead_lettered, 1);
    let copies = dead.messages();
    assert_eq!(copies.len(), 1);
    assert_eq!(&copies[0].data[..], b"poison");
    let attribute = |key: &str| copies[0].attributes[key].as_str();
    assert_eq!(attribute("tenant"), "t");
    assert_eq!(
        attribute("CloudPubSubDeadLetterSourceSubscription"),
        "orders-sub"
    );
    assert_eq!(
        attribute("CloudPubSubDeadLetterSourceSubscriptionProject"),
        "p"
    );
    assert_eq!(attribute("CloudPubSubDeadLetterSourceDeliveryCount"), "5");
    let time = attribute("CloudPubSubDeadLetterSourceTopicPublishTime");
    assert!(time.starts_with("2026-09-21T"), "{time}");
    assert_eq!(dead_sub.backlog(), 1);
}

#[tokio::test]
async fn without_grants_or_topic_a_poison_message_keeps_coming() {
    let sim = start().await;
    let (topic, subscription, dead, _) = dead_lettering(&sim, 5);
    subscription.revoke_dead_lettering();
    topic.publish("poison");
    let attempts = nack_all(&sim, &subscription, 20).await;
    assert_eq!(attempts, (1..=20).collect::<Vec<_>>());
    assert_eq!(dead.published(), 0);
    subscription.grant_dead_lettering();
    dead.delete();
    assert_eq!(nack_all(&sim, &subscription, 5).await.len(), 5);
    sim.pubsub().create_topic("p", "dead");
    assert_eq!(nack_all(&sim, &subscription, 5).await, [26]);
    assert_eq!(dead.published(), 1);
}

#[tokio::test]
async fn jitter_forwards_late_but_forwards() {
    let sim = start().await;
    let (topic, subscription, dead, _) = dead_lettering(&sim, 5);
    subscription.set_dead_letter_jitter(Some(3));
    for n in 0..20 {
        topic.publish(n.to_string());
    }
    let attempts = nack_all(&sim, &subscription, 10_000).await;
    assert!(attempts.iter().any(|attempt| *attempt > 5));
    assert_eq!(dead.published(), 20);
}

/// What a status says of each ack id.
fn failures(status: &Status) -> std::collections::HashMap<String, String> {
    let status = rpc::Status::decode(status.details()).expect("a status");
    let info = status
        .details
        .iter()
        .find(|any| any.type_url.ends_with("google.rpc.ErrorInfo"))
        .expect("an ErrorInfo");
    let info = rpc::ErrorInfo::decode(&info.value[..]).expect("an ErrorInfo");
    assert_eq!(info.domain, "pubsub.googleapis.com");
    info.metadata
}

async fn exactly_once(ordered: bool) -> (Sim, Topic, Subscription) {
    let sim = start().await;
    sim.pubsub().stop_clock(UNIX_EPOCH + MINUTE);
    let (topic, subscription) = pair_with(&sim, |config| {
        config.enable_exactly_once_delivery = true;
        config.enable_message_ordering = ordered;
    });
    (sim, topic, subscription)
}

#[tokio::test]
async fn exactly_once_judges_each_ack_id() {
    let (sim, topic, subscription) = exactly_once(false).await;
    topic.publish("a");
    topic.publish("b");
    let mut client = subscriber(&sim);
    let name = subscription.name();
    let old = ack_ids(&pull(&mut client, name, 1).await.expect("pulled"));
    sim.pubsub().advance(Duration::from_secs(10));
    let status = modify(&mut client, name, old.clone(), 60)
        .await
        .expect_err("the lease is over");
    assert_eq!(status.code(), Code::InvalidArgument);
    let fresh = ack_ids(&pull(&mut client, name, 2).await.expect("pulled"));
    assert_eq!(fresh.len(), 2);
    let mixed: Vec<String> = old.iter().chain(&fresh).cloned().collect();
    let status = acknowledge(&mut client, name, mixed)
        .await
        .expect_err("one is stale");
    let failed = failures(&status);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[&old[0]], "PERMANENT_FAILURE_INVALID_ACK_ID");
    assert_eq!(subscription.backlog(), 0, "the others took effect");
    acknowledge(&mut client, name, fresh)
        .await
        .expect("the answer may have been lost");
}

#[tokio::test]
async fn exactly_once_can_fail_ids_for_a_while_or_for_good() {
    let (sim, topic, subscription) = exactly_once(false).await;
    topic.publish("a");
    topic.publish("b");
    let mut client = subscriber(&sim);
    let name = subscription.name();
    let ids = ack_ids(&pull(&mut client, name, 2).await.expect("pulled"));
    for (failure, prefix) in [
        (AckFailure::Transient, "TRANSIENT_FAILURE_"),
        (AckFailure::Permanent, "PERMANENT_FAILURE_"),
    ] {
        subscription.fail_ack_ids(1, failure);
        let status = acknowledge(&mut client, name, ids[..1].to_vec())
            .await
            .expect_err("scripted");
        assert!(failures(&status)[&ids[0]].starts_with(prefix));
    }
    assert_eq!(subscription.backlog(), 2);
    acknowledge(&mut client, name, ids).await.expect("acked");
}

#[tokio::test]
async fn exactly_once_wants_the_acks_of_a_key_in_order_and_confirms_on_the_stream() {
    let (sim, topic, subscription) = exactly_once(true).await;
    topic.publish_keyed("k", "0");
    topic.publish_keyed("k", "1");
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    let ids = ack_ids(&puller.take(2).await);
    let mut client = subscriber(&sim);
    let status = acknowledge(&mut client, subscription.name(), ids[1..].to_vec())
        .await
        .expect_err("out of order");
    assert!(failures(&status)[&ids[1]].starts_with("TRANSIENT_FAILURE_"));
    puller
        .send(pb::StreamingPullRequest {
            ack_ids: ids.clone(),
            ..Default::default()
        })
        .await;
    let response = puller.response().await.expect("open").expect("open");
    let confirmed = response.acknowledge_confirmation.expect("confirmed");
    assert_eq!(confirmed.ack_ids, ids);
    let properties = response.subscription_properties.expect("told");
    assert!(properties.exactly_once_delivery_enabled);
    assert_eq!(subscription.backlog(), 0);
}

async fn seek(sim: &Sim, subscription: &Subscription, target: Target) -> Result<(), Status> {
    let request = pb::SeekRequest {
        subscription: subscription.name().to_owned(),
        target: Some(target),
    };
    soon(subscriber(sim).seek(request)).await.map(|_| ())
}

fn at(seconds: u64) -> (std::time::SystemTime, Target) {
    let time = UNIX_EPOCH + MINUTE + Duration::from_secs(seconds);
    let target = Target::Time(prost_types::Timestamp {
        seconds: 60 + i64::try_from(seconds).expect("small"),
        nanos: 0,
    });
    (time, target)
}

#[tokio::test]
async fn a_seek_acks_what_was_before_and_brings_back_what_is_retained() {
    for retain in [true, false] {
        let sim = start().await;
        sim.pubsub().stop_clock(UNIX_EPOCH + MINUTE);
        let (topic, subscription) = pair_with(&sim, |config| config.retain_acked_messages = retain);
        for n in 0..4 {
            topic.publish_at(message(&n.to_string()), at(n * 10).0);
        }
        let mut client = subscriber(&sim);
        let received = pull(&mut client, subscription.name(), 3)
            .await
            .expect("pulled");
        acknowledge(&mut client, subscription.name(), ack_ids(&received))
            .await
            .expect("acked");
        seek(&sim, &subscription, at(10).1).await.expect("sought");
        let received = pull(&mut client, subscription.name(), 10)
            .await
            .expect("pulled");
        let expected: &[&str] = if retain { &["3", "1", "2"] } else { &["3"] };
        assert_eq!(data(&received), expected, "retain {retain}");
        seek(&sim, &subscription, at(1_000).1)
            .await
            .expect("sought");
        assert_eq!(subscription.backlog(), 0, "a seek ahead acks all");
    }
}

#[tokio::test]
async fn topic_retention_gives_a_new_subscription_a_past() {
    let sim = start().await;
    let pubsub = sim.pubsub();
    pubsub.stop_clock(UNIX_EPOCH + MINUTE);
    let topic = pubsub.create_topic_with("p", "orders", |topic| {
        topic.message_retention_duration = Some(prost_types::Duration {
            seconds: 600,
            nanos: 0,
        });
    });
    topic.publish("expunged");
    pubsub.advance(9 * MINUTE);
    topic.publish("kept");
    pubsub.advance(MINUTE);
    let subscription = pubsub.create_subscription("p", "orders-sub", &topic);
    assert_eq!(subscription.backlog(), 0);
    let config = subscription.config().expect("it exists");
    assert!(config.topic_message_retention_duration.is_some());
    seek(&sim, &subscription, at(0).1).await.expect("sought");
    let received = pull(&mut subscriber(&sim), subscription.name(), 10)
        .await
        .expect("pulled");
    assert_eq!(data(&received), ["kept"]);
}

#[tokio::test]
async fn a_seek_may_take_its_time() {
    let sim = start().await;
    sim.pubsub().stop_clock(UNIX_EPOCH + MINUTE);
    let (topic, subscription) = pair(&sim);
    topic.publish("a");
    subscription.set_seek_lag(Duration::from_secs(30));
    seek(&sim, &subscription, at(1).1).await.expect("sought");
    assert_eq!(subscription.backlog(), 1);
    sim.pubsub().advance(Duration::from_secs(30));
    assert_eq!(subscription.backlog(), 0);
}

#[tokio::test]
async fn a_snapshot_brings_back_what_was_unacked() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    for n in 0..3 {
        topic.publish(n.to_string());
    }
    let mut client = subscriber(&sim);
    let name = subscription.name();
    let received = pull(&mut client, name, 1).await.expect("pulled");
    acknowledge(&mut client, name, ack_ids(&received))
        .await
        .expect("acked");
    let request = pb::CreateSnapshotRequest {
        name: "projects/p/snapshots/before".to_owned(),
        subscription: name.to_owned(),
        ..Default::default()
    };
    let created = soon(client.create_snapshot(request.clone())).await;
    assert_eq!(created.expect("created").into_inner().topic, topic.name());
    let again = soon(client.create_snapshot(request)).await;
    assert_eq!(code(again), Code::AlreadyExists);
    topic.publish("3");
    let received = pull(&mut client, name, 10).await.expect("pulled");
    acknowledge(&mut client, name, ack_ids(&received))
        .await
        .expect("acked");
    assert_eq!(subscription.backlog(), 0);
    let target = |name: &str| Target::Snapshot(format!("projects/p/snapshots/{name}"));
    let missing = seek(&sim, &subscription, target("none")).await;
    assert_eq!(code(missing), Code::NotFound);
    seek(&sim, &subscription, target("before"))
        .await
        .expect("sought");
    let mut received = data(&pull(&mut client, name, 10).await.expect("pulled"));
    received.sort();
    // 3 came after the snapshot, is acked, and nothing retains it.
    assert_eq!(received, ["1", "2"]);
}
