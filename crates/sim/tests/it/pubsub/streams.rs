//! Streaming pull: its first request, flow control, heartbeats and ends.

use std::time::{Duration, UNIX_EPOCH};

use aqueduct_sim::{Code, KeepaliveAnswers, Method};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::support::*;

fn keepalive() -> pb::StreamingPullRequest {
    pb::StreamingPullRequest::default()
}

async fn opened(sim: &aqueduct_sim::Sim, first: pb::StreamingPullRequest) -> Code {
    match Puller::open(sim, first).await {
        Ok(mut puller) => puller.end().await,
        Err(status) => status.code(),
    }
}

#[tokio::test]
async fn a_first_request_must_name_a_subscription_and_a_deadline() {
    let sim = start().await;
    let (_, subscription) = pair(&sim);
    let good = first(&subscription);
    for (request, expected) in [
        (
            pb::StreamingPullRequest {
                subscription: String::new(),
                ..good.clone()
            },
            Code::InvalidArgument,
        ),
        (
            pb::StreamingPullRequest {
                subscription: "projects/p/subscriptions/none".to_owned(),
                ..good.clone()
            },
            Code::NotFound,
        ),
        (
            pb::StreamingPullRequest {
                stream_ack_deadline_seconds: 9,
                ..good.clone()
            },
            Code::InvalidArgument,
        ),
        (
            pb::StreamingPullRequest {
                stream_ack_deadline_seconds: 601,
                ..good.clone()
            },
            Code::InvalidArgument,
        ),
    ] {
        assert_eq!(opened(&sim, request).await, expected);
    }
    assert_eq!(subscription.open_streams(), 0);
}

#[tokio::test]
async fn what_belongs_in_the_first_request_ends_the_stream_in_a_later_one() {
    let sim = start().await;
    let (_, subscription) = pair(&sim);
    for later in [
        pb::StreamingPullRequest {
            subscription: subscription.name().to_owned(),
            ..keepalive()
        },
        pb::StreamingPullRequest {
            client_id: "client".to_owned(),
            ..keepalive()
        },
        pb::StreamingPullRequest {
            max_outstanding_messages: 10,
            ..keepalive()
        },
        pb::StreamingPullRequest {
            max_outstanding_bytes: 10,
            ..keepalive()
        },
        pb::StreamingPullRequest {
            stream_ack_deadline_seconds: 5,
            ..keepalive()
        },
    ] {
        let mut puller = Puller::open(&sim, first(&subscription))
            .await
            .expect("open");
        puller.send(later).await;
        assert_eq!(puller.end().await, Code::InvalidArgument);
    }
    // The deadline may change, and holds for what is delivered from then on.
    sim.pubsub().stop_clock(UNIX_EPOCH + MINUTE);
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    puller
        .send(pb::StreamingPullRequest {
            stream_ack_deadline_seconds: 100,
            ..keepalive()
        })
        .await;
    puller.send(keepalive()).await;
    puller.response().await.expect("the keepalive is answered");
    sim.pubsub().topic("p", "orders").publish("a");
    puller.take(1).await;
    let expires = subscription.leases()[0].expires;
    assert_eq!(expires, UNIX_EPOCH + MINUTE + Duration::from_secs(100));
}

#[tokio::test]
async fn keepalives_are_answered_for_protocol_version_1_only() {
    let sim = start().await;
    let (topic, subscription) = pair_with(&sim, |config| config.enable_message_ordering = true);
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    puller.nothing().await;
    puller.send(keepalive()).await;
    let answer = puller.response().await.expect("open").expect("open");
    assert!(answer.received_messages.is_empty());
    let properties = answer.subscription_properties.expect("told");
    assert!(properties.message_ordering_enabled);
    assert!(!properties.exactly_once_delivery_enabled);
    assert_eq!(subscription.counts().keepalives, 1);

    let old = pb::StreamingPullRequest {
        protocol_version: 0,
        ..first(&subscription)
    };
    let mut old = Puller::open(&sim, old).await.expect("open");
    old.send(keepalive()).await;
    old.nothing().await;

    subscription.set_keepalives(KeepaliveAnswers::Withheld);
    puller.send(keepalive()).await;
    puller.nothing().await;
    drop(old);
    subscription
        .wait_until(LIMIT, |subscription| subscription.open_streams() == 1)
        .await
        .expect("the other stream is gone");
    topic.publish("a");
    assert_eq!(data(&puller.take(1).await), ["a"]);
}

#[tokio::test]
async fn a_silent_stream_of_version_1_sends_heartbeats() {
    let sim = start().await;
    let (_, subscription) = pair(&sim);
    sim.pubsub().stop_clock(UNIX_EPOCH + MINUTE);
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    sim.pubsub().advance(Duration::from_secs(29));
    puller.nothing().await;
    sim.pubsub().advance(Duration::from_secs(1));
    let heartbeat = puller.response().await.expect("open").expect("open");
    assert!(heartbeat.received_messages.is_empty());
}

#[tokio::test]
async fn flow_control_is_per_stream_and_an_ack_makes_room() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    for n in 0..5 {
        topic.publish(n.to_string());
    }
    let mut puller = Puller::open(&sim, limited(&subscription, 2))
        .await
        .expect("open");
    let received = puller.take(2).await;
    puller.nothing().await;
    acknowledge(
        &mut subscriber(&sim),
        subscription.name(),
        ack_ids(&received[..1]),
    )
    .await
    .expect("acked");
    puller.take(1).await;
    puller.nothing().await;
    // Another stream has room of its own.
    let mut other = Puller::open(&sim, limited(&subscription, 2))
        .await
        .expect("open");
    other.take(2).await;
    assert_eq!(subscription.outstanding(), 4);
}

#[tokio::test]
async fn flow_control_by_bytes_lets_one_message_above_it_pass() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    for _ in 0..3 {
        topic.publish(vec![0; 1_000]);
    }
    let request = |bytes| pb::StreamingPullRequest {
        max_outstanding_bytes: bytes,
        ..first(&subscription)
    };
    let mut puller = Puller::open(&sim, request(500)).await.expect("open");
    puller.take(1).await;
    puller.nothing().await;
    let mut other = Puller::open(&sim, request(2_500)).await.expect("open");
    other.take(2).await;
}

#[tokio::test]
async fn a_reopened_stream_starts_with_empty_flow_control_while_leases_go_on() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    for n in 0..4 {
        topic.publish(n.to_string());
    }
    let mut puller = Puller::open(&sim, limited(&subscription, 2))
        .await
        .expect("open");
    let held = puller.take(2).await;
    subscription.close_streams(Code::Unavailable);
    assert_eq!(puller.end().await, Code::Unavailable);
    assert_eq!(subscription.outstanding(), 2, "leases outlive their stream");
    let mut puller = Puller::open(&sim, limited(&subscription, 2))
        .await
        .expect("open");
    let more = puller.take(2).await;
    assert_eq!(data(&more), ["2", "3"]);
    acknowledge(&mut subscriber(&sim), subscription.name(), ack_ids(&held))
        .await
        .expect("acked");
    assert_eq!(subscription.counts().acked, 2);
}

#[tokio::test]
async fn a_response_holds_several_messages_and_streams_share_the_work() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    let mut one = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    let mut two = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    subscription
        .wait_until(LIMIT, |subscription| subscription.open_streams() == 2)
        .await
        .expect("both are open");
    let messages = (0..100).map(|n| message(&n.to_string())).collect();
    publish(&mut publisher(&sim), topic.name(), messages)
        .await
        .expect("published");
    let of_one = one.response().await.expect("open").expect("open");
    let of_two = two.response().await.expect("open").expect("open");
    assert!(of_one.received_messages.len() > 1);
    assert!(of_two.received_messages.len() > 1);
}

#[tokio::test]
async fn an_unordered_subscription_shuffles_and_repeats_for_a_seed() {
    let mut orders = Vec::new();
    for seed in [1, 1, 2] {
        let sim = start().await;
        let (topic, subscription) = pair(&sim);
        subscription.set_shuffle(Some(seed));
        for n in 0..50 {
            topic.publish(n.to_string());
        }
        let mut puller = Puller::open(&sim, first(&subscription))
            .await
            .expect("open");
        orders.push(data(&puller.take(50).await));
    }
    let published: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    assert_ne!(orders[0], published);
    assert_eq!(orders[0], orders[1]);
    assert_ne!(orders[0], orders[2]);
    orders[2].sort_by_key(|n| n.parse::<u32>().expect("a number"));
    assert_eq!(orders[2], published, "all arrive once");
}

#[tokio::test]
async fn streams_end_with_any_code_a_clean_end_a_reset_or_a_cut() {
    let sim = start().await;
    let (_, subscription) = pair(&sim);
    for code in (0..=16).map(Code::from_i32) {
        let mut puller = Puller::open(&sim, first(&subscription))
            .await
            .expect("open");
        subscription.close_streams(code);
        assert_eq!(puller.end().await, code);
    }
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    subscription.reset_streams();
    assert_eq!(puller.end().await, Code::Internal);
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    subscription.cut_streams();
    assert_ne!(puller.end().await, Code::Ok);
}

#[tokio::test]
async fn a_stream_of_a_deleted_detached_or_denied_subscription_ends() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    subscription.deny(Method::StreamingPull);
    assert_eq!(puller.end().await, Code::PermissionDenied);
    let denied = Puller::open(&sim, first(&subscription)).await.map(|_| ());
    assert_eq!(code(denied), Code::PermissionDenied);
    subscription.allow(Method::StreamingPull);

    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    assert!(subscription.delete());
    assert_eq!(puller.end().await, Code::NotFound);

    let subscription = sim.pubsub().create_subscription("p", "orders-sub", &topic);
    topic.publish("a");
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    assert!(subscription.detach());
    assert_eq!(puller.end().await, Code::FailedPrecondition);
    assert_eq!(subscription.backlog(), 0);
    assert_eq!(
        opened(&sim, first(&subscription)).await,
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn a_stream_grows_as_old_as_it_is_let() {
    let sim = start().await;
    let (_, subscription) = pair(&sim);
    sim.pubsub().stop_clock(UNIX_EPOCH + MINUTE);
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    subscription.set_stream_lifetime(Some(30 * MINUTE));
    sim.pubsub().advance(30 * MINUTE);
    assert_eq!(puller.end().await, Code::Unavailable);
}

#[tokio::test]
async fn silence_and_swallowing_are_told_apart_by_the_leases() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    subscription.silence_streams();
    topic.publish("a");
    puller.send(keepalive()).await;
    puller.nothing().await;
    assert_eq!(subscription.outstanding(), 0);
    subscription.swallow_streams();
    subscription
        .wait_until(LIMIT, |subscription| subscription.outstanding() == 1)
        .await
        .expect("leased");
    puller.nothing().await;
    subscription.revive_streams();
    topic.publish("b");
    assert_eq!(data(&puller.take(1).await), ["b"]);
}

#[tokio::test]
async fn a_client_that_finishes_is_finished_cleanly_at_once_or_after_a_linger() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    let (other, _) = tokio::sync::mpsc::channel(1);
    drop(std::mem::replace(&mut puller.requests, other));
    assert_eq!(puller.end().await, Code::Ok);

    // Redelivery to a stream that is still closing.
    subscription.set_closing_linger(Duration::from_secs(600));
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    topic.publish("a");
    let received = puller.take(1).await;
    let (other, _) = tokio::sync::mpsc::channel(1);
    drop(std::mem::replace(&mut puller.requests, other));
    modify(
        &mut subscriber(&sim),
        subscription.name(),
        ack_ids(&received),
        0,
    )
    .await
    .expect("nacked");
    assert_eq!(data(&puller.take(1).await), ["a"]);
}

#[tokio::test]
async fn acks_and_extensions_ride_on_the_stream_too() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    for n in 0..3 {
        topic.publish(n.to_string());
    }
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    let ids = ack_ids(&puller.take(3).await);
    puller
        .send(pb::StreamingPullRequest {
            ack_ids: vec![ids[0].clone()],
            modify_deadline_ack_ids: vec![ids[1].clone(), ids[2].clone()],
            modify_deadline_seconds: vec![600, 0],
            ..keepalive()
        })
        .await;
    assert_eq!(data(&puller.take(1).await), ["2"], "the nacked one");
    let counts = subscription.counts();
    assert_eq!((counts.acked, counts.extended, counts.nacked), (1, 1, 1));
    let logged = subscription.requests_of(Method::StreamingPull);
    let entries: Vec<usize> = logged.iter().map(|request| request.entries).collect();
    assert_eq!(entries, [1, 3]);
}
