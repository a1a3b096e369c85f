//! Discarding topics and firehoses, which benchmarks run against.

use std::collections::HashSet;

use aqueduct_sim::{Code, FirehoseConfig, Method};

use super::support::*;

#[tokio::test]
async fn a_discarding_topic_answers_every_publish_and_keeps_nothing() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    topic.start_discarding();
    let mut client = publisher(&sim);
    let mut ids = HashSet::new();
    for size in [1, 100, 1_000] {
        let messages = (0..size).map(|n| keyed("k", &n.to_string())).collect();
        let answered = publish(&mut client, topic.name(), messages).await;
        let answered = answered.expect("published");
        assert_eq!(answered.len(), size);
        assert!(answered.into_iter().all(|id| ids.insert(id)));
    }
    let discarded = topic.discarded();
    assert_eq!((discarded.requests, discarded.messages), (3, 1_101));
    assert!(discarded.bytes > 0);
    assert_eq!((topic.published(), subscription.backlog()), (0, 0));
    assert_eq!(sim.pubsub().request_count(Method::Publish), 3);
    assert!(topic.requests().is_empty());

    // A fault still meets it.
    topic.next(1, Method::Publish).status(Code::Unavailable);
    let refused = publish(&mut client, topic.name(), vec![message("a")]).await;
    assert_eq!(code(refused), Code::Unavailable);
    topic.stop_discarding();
    publish(&mut client, topic.name(), vec![message("a")])
        .await
        .expect("published");
    assert_eq!(topic.published(), 1);
}

#[tokio::test]
async fn a_firehose_delivers_as_long_as_it_is_acknowledged() {
    let sim = start().await;
    let (_, subscription) = pair(&sim);
    subscription.start_firehose(&FirehoseConfig {
        payload: vec![7; 100].into(),
        ..FirehoseConfig::default()
    });
    let mut puller = Puller::open(&sim, limited(&subscription, 1_000))
        .await
        .expect("open");
    let mut client = subscriber(&sim);
    let mut ids = HashSet::new();
    for _ in 0..5 {
        let received = puller.take(1_000).await;
        for received in &received {
            let message = received.message.as_ref().expect("a message");
            assert_eq!(message.data.len(), 100);
            assert!(ids.insert(message.message_id.clone()));
        }
        puller.nothing().await;
        acknowledge(&mut client, subscription.name(), ack_ids(&received))
            .await
            .expect("acked");
    }
    let received = puller.take(1_000).await;
    modify(&mut client, subscription.name(), ack_ids(&received), 60)
        .await
        .expect("extended");
    puller.nothing().await;
    let total = subscription.firehosed();
    assert_eq!((total.delivered, total.acked), (6_000, 5_000));
    assert_eq!((total.extended, total.acknowledge_requests), (1_000, 5));
    assert_eq!(subscription.backlog(), 0);
    subscription.stop_firehose();
    assert_eq!(puller.end().await, Code::Unavailable);
}
