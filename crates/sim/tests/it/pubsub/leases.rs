//! Leases, nacks, redelivery, retry policies and limits of acknowledging.

use std::time::{Duration, UNIX_EPOCH};

use aqueduct_sim::{Code, LateAcks, Sim, Subscription, Topic};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::support::*;

/// A pair under a stopped clock.
async fn stopped(settings: impl FnOnce(&mut pb::Subscription)) -> (Sim, Topic, Subscription) {
    let sim = start().await;
    sim.pubsub().stop_clock(UNIX_EPOCH + MINUTE);
    let (topic, subscription) = pair_with(&sim, settings);
    (sim, topic, subscription)
}

#[tokio::test]
async fn an_expired_lease_redelivers_with_a_new_ack_id_and_frees_the_permit() {
    let (sim, topic, subscription) = stopped(|_| ()).await;
    let id = topic.publish("a");
    let mut puller = Puller::open(&sim, limited(&subscription, 1))
        .await
        .expect("open");
    let mut ids = Vec::new();
    for wave in 1..=3 {
        let received = puller.take(1).await;
        ids.extend(ack_ids(&received));
        assert_eq!(subscription.deliveries(&id), wave);
        puller.nothing().await;
        sim.pubsub().advance(MINUTE);
    }
    ids.extend(ack_ids(&puller.take(1).await));
    let distinct: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), 4, "each delivery has an id of its own");
    let counts = subscription.counts();
    assert_eq!(
        (counts.delivered, counts.redelivered, counts.expired),
        (4, 3, 3)
    );

    // An old id does nothing once the message was delivered again; the newest works.
    let mut client = subscriber(&sim);
    acknowledge(&mut client, subscription.name(), ids[..3].to_vec())
        .await
        .expect("no error");
    assert_eq!(subscription.backlog(), 1);
    acknowledge(&mut client, subscription.name(), ids[3..].to_vec())
        .await
        .expect("acked");
    acknowledge(&mut client, subscription.name(), ids[3..].to_vec())
        .await
        .expect("acking twice is no error");
    assert_eq!(subscription.backlog(), 0);
    assert!(subscription.is_acked(&id));
    assert_eq!(subscription.counts().idle_acks, 4);
}

#[tokio::test]
async fn a_late_ack_works_until_redelivery_unless_it_is_told_not_to() {
    for (late, left) in [(LateAcks::Work, 0), (LateAcks::DoNothing, 1)] {
        let (sim, topic, subscription) = stopped(|_| ()).await;
        subscription.set_late_acks(late);
        topic.publish("a");
        let mut client = subscriber(&sim);
        let received = pull(&mut client, subscription.name(), 1)
            .await
            .expect("pulled");
        sim.pubsub().advance(Duration::from_secs(10));
        assert_eq!(subscription.outstanding(), 0, "the lease is over");
        acknowledge(&mut client, subscription.name(), ack_ids(&received))
            .await
            .expect("no error");
        assert_eq!(subscription.backlog(), left, "{late:?}");
    }
}

#[tokio::test]
async fn an_extension_keeps_the_lease_and_a_nack_ends_it() {
    let (sim, topic, subscription) = stopped(|_| ()).await;
    topic.publish("a");
    let mut client = subscriber(&sim);
    let name = subscription.name();
    let ids = ack_ids(&pull(&mut client, name, 1).await.expect("pulled"));
    modify(&mut client, name, ids.clone(), 600)
        .await
        .expect("extended");
    sim.pubsub().advance(Duration::from_secs(599));
    assert_eq!(subscription.outstanding(), 1);
    assert!(pull(&mut client, name, 1).await.expect("pulled").is_empty());
    for seconds in [-1, 601] {
        let refused = modify(&mut client, name, ids.clone(), seconds).await;
        assert_eq!(code(refused), Code::InvalidArgument);
    }
    modify(&mut client, name, ids.clone(), 0)
        .await
        .expect("nacked");
    let again = pull(&mut client, name, 1).await.expect("pulled");
    assert_eq!(data(&again), ["a"]);
    // A stale id extends nothing.
    modify(&mut client, name, ids, 600).await.expect("no error");
    sim.pubsub().advance(Duration::from_secs(10));
    assert_eq!(subscription.outstanding(), 0);
}

#[tokio::test]
async fn a_nack_is_redelivered_within_a_second_of_real_time() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    subscription.set_nack_delay(Duration::from_millis(50));
    topic.publish("a");
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    let ids = ack_ids(&puller.take(1).await);
    let began = std::time::Instant::now();
    modify(&mut subscriber(&sim), subscription.name(), ids, 0)
        .await
        .expect("nacked");
    puller.take(1).await;
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(50) && waited < Duration::from_secs(1));
}

#[tokio::test]
async fn an_expired_lease_wakes_a_waiting_stream_in_real_time() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    topic.publish("a");
    let mut client = subscriber(&sim);
    let ids = ack_ids(
        &pull(&mut client, subscription.name(), 1)
            .await
            .expect("pulled"),
    );
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    // The pull's lease is cut to a second; the stream, idle meanwhile, gets the message.
    let began = std::time::Instant::now();
    modify(&mut client, subscription.name(), ids, 1)
        .await
        .expect("set");
    assert_eq!(data(&puller.take(1).await), ["a"]);
    assert_eq!(subscription.counts().expired, 1);
    let waited = began.elapsed();
    assert!(
        waited < Duration::from_secs(8),
        "not at the old end: {waited:?}"
    );
}

#[tokio::test]
async fn a_retry_policy_spaces_redeliveries() {
    let (sim, topic, subscription) = stopped(|config| {
        config.retry_policy = Some(pb::RetryPolicy {
            minimum_backoff: Some(prost_types::Duration {
                seconds: 10,
                nanos: 0,
            }),
            maximum_backoff: Some(prost_types::Duration {
                seconds: 30,
                nanos: 0,
            }),
        });
    })
    .await;
    topic.publish("a");
    let mut client = subscriber(&sim);
    let name = subscription.name();
    for backoff in [10, 20, 30, 30] {
        let ids = ack_ids(&pull(&mut client, name, 1).await.expect("pulled"));
        modify(&mut client, name, ids, 0).await.expect("nacked");
        sim.pubsub().advance(Duration::from_secs(backoff - 1));
        let early = pull(&mut client, name, 1).await.expect("pulled");
        assert!(early.is_empty(), "before {backoff} s");
        sim.pubsub().advance(Duration::from_secs(1));
    }
    assert_eq!(pull(&mut client, name, 1).await.expect("pulled").len(), 1);
}

#[tokio::test]
async fn requests_above_524288_bytes_and_strange_ids_are_refused_whole() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    topic.publish("a");
    let mut client = subscriber(&sim);
    let name = subscription.name();
    let mut ids = ack_ids(&pull(&mut client, name, 1).await.expect("pulled"));
    assert_eq!(ids[0].len(), 176);

    ids.push("no ack id".to_owned());
    let refused = acknowledge(&mut client, name, ids.clone()).await;
    assert_eq!(code(refused), Code::InvalidArgument);
    assert_eq!(subscription.backlog(), 1, "nothing of it took effect");
    assert_eq!(
        code(acknowledge(&mut client, name, Vec::new()).await),
        Code::InvalidArgument
    );

    ids.truncate(1);
    let many = vec![ids[0].clone(); 524_288 / 178];
    let refused = acknowledge(&mut client, name, many.clone()).await;
    assert_eq!(code(refused), Code::InvalidArgument);
    let refused = modify(&mut client, name, many.clone(), 60).await;
    assert_eq!(code(refused), Code::InvalidArgument);
    acknowledge(&mut client, name, many[..2_900].to_vec())
        .await
        .expect("acked");
    assert_eq!(subscription.backlog(), 0);
}

#[tokio::test]
async fn unacked_messages_are_lost_to_retention() {
    let (sim, topic, subscription) = stopped(|config| {
        config.message_retention_duration = Some(prost_types::Duration {
            seconds: 600,
            nanos: 0,
        });
    })
    .await;
    topic.publish("a");
    sim.pubsub().advance(5 * MINUTE);
    topic.publish("b");
    sim.pubsub().advance(5 * MINUTE);
    assert_eq!(subscription.backlog(), 1);
    assert_eq!(subscription.counts().expunged, 1);
}

#[tokio::test]
async fn a_unary_pull_waits_for_a_message_and_answers_empty_in_the_end() {
    let sim = start_with(aqueduct_sim::SimConfig {
        pubsub: aqueduct_sim::PubSubConfig {
            pull_wait: Duration::from_secs(1),
            ..Default::default()
        },
        ..Default::default()
    })
    .await;
    let (topic, subscription) = pair(&sim);
    let request = pb::PullRequest {
        subscription: subscription.name().to_owned(),
        max_messages: 10,
        ..Default::default()
    };
    let mut client = subscriber(&sim);
    let empty = soon(client.pull(request.clone())).await.expect("pulled");
    assert!(empty.into_inner().received_messages.is_empty());
    let waiting = tokio::spawn(async move { client.pull(request).await });
    sim.pubsub()
        .wait_until(LIMIT, |pubsub| {
            pubsub.request_count(aqueduct_sim::Method::Pull) == 2
        })
        .await
        .expect("it waits");
    topic.publish("a");
    let received = soon(waiting).await.expect("no panic").expect("pulled");
    assert_eq!(data(&received.into_inner().received_messages), ["a"]);
}
