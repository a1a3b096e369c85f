//! Scripted faults of publishes, acknowledgements and streams.

use std::time::{Duration, Instant};

use aqueduct_sim::{Code, Gate, Method};

use super::support::*;

#[tokio::test]
async fn the_nth_publish_meets_its_fault() {
    let sim = start().await;
    let (topic, _) = pair(&sim);
    topic.nth(2, Method::Publish).status(Code::Unavailable);
    let delayed = Duration::from_millis(30);
    topic.nth(3, Method::Publish).delay(delayed);
    let mut client = publisher(&sim);
    let mut codes = Vec::new();
    let began = Instant::now();
    for n in 0..3 {
        let messages = vec![message(&n.to_string())];
        codes.push(code(publish(&mut client, topic.name(), messages).await));
    }
    assert_eq!(codes, [Code::Ok, Code::Unavailable, Code::Ok]);
    assert!(began.elapsed() >= delayed);
    assert_eq!(topic.published(), 2);
}

#[tokio::test]
async fn an_answer_can_be_lost_after_the_effect() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    topic.next(1, Method::Publish).apply_then_lose_answer();
    let mut client = publisher(&sim);
    let lost = publish(&mut client, topic.name(), vec![message("a")]).await;
    assert_ne!(code(lost), Code::Ok);
    assert_eq!((topic.published(), sim.pubsub().lost_answers()), (1, 1));

    let mut client = subscriber(&sim);
    let received = pull(&mut client, subscription.name(), 1)
        .await
        .expect("pulled");
    subscription
        .next(1, Method::Acknowledge)
        .apply_then_status(Code::DeadlineExceeded);
    let refused = acknowledge(&mut client, subscription.name(), ack_ids(&received)).await;
    assert_eq!(code(refused), Code::DeadlineExceeded);
    assert_eq!(subscription.backlog(), 0);
}

#[tokio::test]
async fn a_cut_connection_takes_nothing_into_effect() {
    let sim = start().await;
    let (topic, _) = pair(&sim);
    topic.next(1, Method::Publish).cut_connection();
    let mut client = publisher(&sim);
    let cut = publish(&mut client, topic.name(), vec![message("a")]).await;
    assert_ne!(code(cut), Code::Ok);
    assert_eq!(topic.published(), 0);
    let again = publish(&mut client, topic.name(), vec![message("a")]).await;
    assert_eq!(code(again), Code::Ok);
}

#[tokio::test]
async fn an_answer_can_be_held_back() {
    let sim = start().await;
    let (topic, _) = pair(&sim);
    let gate = Gate::new();
    topic.next(1, Method::Publish).hold_answer(&gate);
    let mut client = publisher(&sim);
    let name = topic.name().to_owned();
    let publishing =
        tokio::spawn(async move { publish(&mut client, &name, vec![message("a")]).await });
    topic
        .wait_until(LIMIT, |topic| topic.published() == 1)
        .await
        .expect("applied");
    assert!(!publishing.is_finished());
    gate.open();
    assert_eq!(code(soon(publishing).await.expect("no panic")), Code::Ok);
}

#[tokio::test]
async fn the_nth_stream_can_be_refused_broken_or_lose_what_it_took() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    subscription.set_messages_per_response(1);
    subscription
        .nth(1, Method::StreamingPull)
        .status(Code::ResourceExhausted);
    subscription
        .nth(2, Method::StreamingPull)
        .break_after(2)
        .status(Code::Internal);
    subscription
        .nth(3, Method::StreamingPull)
        .apply_then_lose_answer();
    for n in 0..4 {
        topic.publish(n.to_string());
    }
    let refused = Puller::open(&sim, first(&subscription)).await.map(|_| ());
    assert_eq!(code(refused), Code::ResourceExhausted);

    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    assert_eq!(data(&puller.take(2).await), ["0", "1"]);
    assert_eq!(puller.end().await, Code::Internal);

    // What the third takes is leased and lost.
    if let Ok(mut puller) = Puller::open(&sim, first(&subscription)).await {
        assert_ne!(puller.end().await, Code::Ok);
    }
    subscription
        .wait_until(LIMIT, |subscription| subscription.outstanding() == 3)
        .await
        .expect("leased");
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    assert_eq!(data(&puller.take(1).await), ["3"]);
}

#[tokio::test]
async fn a_stream_can_open_into_a_half_open_connection() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    subscription
        .next(1, Method::StreamingPull)
        .apply_then_stay_silent();
    topic.publish("a");
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    puller.nothing().await;
    assert_eq!(subscription.outstanding(), 1);
}

#[tokio::test]
async fn goaway_lets_the_stream_go_on_and_new_requests_go_elsewhere() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    subscription.next(1, Method::StreamingPull).goaway();
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    topic.publish("a");
    assert_eq!(data(&puller.take(1).await), ["a"]);
    assert_eq!(sim.connections(), 1);
}

#[tokio::test]
async fn a_stream_whose_client_leaves_is_gone_and_leaves_its_leases() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    topic.publish("a");
    let mut puller = Puller::open(&sim, first(&subscription))
        .await
        .expect("open");
    puller.take(1).await;
    drop(puller);
    subscription
        .wait_until(LIMIT, |subscription| subscription.open_streams() == 0)
        .await
        .expect("gone");
    let leases = subscription.leases();
    assert_eq!(leases.len(), 1);
    assert!(!leases[0].stream_open);
}
