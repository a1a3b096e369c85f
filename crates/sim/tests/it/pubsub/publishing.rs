//! Publishing: ids, limits, atomic refusals, fan-out and filters.

use std::{collections::HashMap, time::Duration};

use aqueduct_sim::{Code, Method, PubSubConfig, SchemaLag, SimConfig};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::support::*;

#[tokio::test]
async fn a_publish_answers_unique_ids_in_order_and_reaches_every_subscription() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    let other = sim.pubsub().create_subscription("p", "other", &topic);
    let mut client = publisher(&sim);
    let first = publish(&mut client, topic.name(), vec![message("a"), message("b")])
        .await
        .expect("published");
    let second = publish(&mut client, topic.name(), vec![message("c")])
        .await
        .expect("published");
    let late = sim.pubsub().create_subscription("p", "late", &topic);

    let ids: Vec<String> = first.into_iter().chain(second).collect();
    let stored = topic.messages();
    let stored_ids: Vec<_> = stored.iter().map(|m| m.message_id.clone()).collect();
    assert_eq!(ids, stored_ids);
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(stored.iter().all(|message| message.publish_time.is_some()));
    assert_eq!(subscription.unacked(), ids);
    assert_eq!(other.unacked(), ids);
    assert_eq!(late.backlog(), 0, "it did not exist at that time");
}

#[tokio::test]
async fn one_bad_message_refuses_the_whole_publish() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    let mut client = publisher(&sim);
    let long_key = "k".repeat(257);
    let many = (0..101).map(|n| (n.to_string(), "v".to_owned())).collect();
    let bad = [
        message(""),
        with_attribute("x", "googclient", "v"),
        with_attribute("x", &long_key, "v"),
        with_attribute("x", "k", &"v".repeat(1_025)),
        pb::PubsubMessage {
            attributes: many,
            ..message("x")
        },
        keyed(&"k".repeat(1_025), "x"),
        keyed("another key", "x"),
        pb::PubsubMessage {
            message_id: "1".to_owned(),
            ..message("x")
        },
        message(&"x".repeat((10 << 20) + 1)),
    ];
    for bad in bad {
        let messages = vec![message("good"), bad, message("good")];
        let refused = publish(&mut client, topic.name(), messages).await;
        assert_eq!(code(refused), Code::InvalidArgument);
    }
    let too_many = (0..1_001).map(|_| message("x")).collect();
    let refused = publish(&mut client, topic.name(), too_many).await;
    assert_eq!(code(refused), Code::InvalidArgument);
    let none = publish(&mut client, topic.name(), Vec::new()).await;
    assert_eq!(code(none), Code::InvalidArgument);
    assert_eq!((topic.published(), subscription.backlog()), (0, 0));

    // At the limits all is well.
    let attributes: HashMap<_, _> = (0..100)
        .map(|n| (format!("{n:256}"), "v".repeat(1_024)))
        .collect();
    let largest = pb::PubsubMessage {
        attributes,
        ordering_key: "k".repeat(1_024),
        ..message("")
    };
    let published = publish(&mut client, topic.name(), vec![largest]).await;
    assert_eq!(code(published), Code::Ok);
    let large = message(&"x".repeat(10 << 20));
    let published = publish(&mut client, topic.name(), vec![large]).await;
    assert_eq!(code(published), Code::Ok);
}

#[tokio::test]
async fn a_poisoned_message_refuses_its_neighbours_and_is_not_named() {
    let sim = start().await;
    let (topic, _) = pair(&sim);
    topic.poison(|message| message.data.starts_with(b"bad"));
    let mut client = publisher(&sim);
    let messages = vec![message("a"), message("bad"), message("b")];
    let status = publish(&mut client, topic.name(), messages)
        .await
        .expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(!status.message().contains("bad"));
    assert_eq!(topic.published(), 0);
    topic.clear_poison();
    let published = publish(&mut client, topic.name(), vec![message("bad")]).await;
    assert_eq!(code(published), Code::Ok);
}

#[tokio::test]
async fn a_missing_topic_is_not_found_and_a_new_one_may_lag() {
    let sim = start_with(SimConfig {
        pubsub: PubSubConfig {
            topic_lag: SchemaLag::Refusals(2),
            ..PubSubConfig::default()
        },
        ..SimConfig::default()
    })
    .await;
    let mut client = publisher(&sim);
    let name = "projects/p/topics/orders";
    let refused = publish(&mut client, name, vec![message("a")]).await;
    assert_eq!(code(refused), Code::NotFound);
    let topic = pb::Topic {
        name: name.to_owned(),
        ..Default::default()
    };
    soon(client.create_topic(topic)).await.expect("created");
    let mut codes = Vec::new();
    for _ in 0..3 {
        codes.push(code(publish(&mut client, name, vec![message("a")]).await));
    }
    assert_eq!(codes, [Code::NotFound, Code::NotFound, Code::Ok]);
}

#[tokio::test]
async fn filters_select_what_a_subscription_receives() {
    let sim = start().await;
    let (topic, subscription) = pair_with(&sim, |config| {
        config.filter = "attributes.type = \"order\" AND NOT attributes:test".to_owned();
    });
    let mut client = publisher(&sim);
    let test = pb::PubsubMessage {
        attributes: HashMap::from([
            ("type".to_owned(), "order".to_owned()),
            ("test".to_owned(), String::new()),
        ]),
        ..message("b")
    };
    let messages = vec![with_attribute("a", "type", "order"), test, message("c")];
    publish(&mut client, topic.name(), messages)
        .await
        .expect("published");
    let received = pull(&mut subscriber(&sim), subscription.name(), 10)
        .await
        .expect("pulled");
    assert_eq!(data(&received), ["a"]);
}

#[tokio::test]
async fn a_denied_publish_is_permission_denied_until_allowed() {
    let sim = start().await;
    let (topic, _) = pair(&sim);
    let mut client = publisher(&sim);
    topic.deny(Method::Publish);
    let refused = publish(&mut client, topic.name(), vec![message("a")]).await;
    assert_eq!(code(refused), Code::PermissionDenied);
    topic.allow(Method::Publish);
    let published = publish(&mut client, topic.name(), vec![message("a")]).await;
    assert_eq!(code(published), Code::Ok);
    assert_eq!(topic.published(), 1);
}

#[tokio::test]
async fn the_log_tells_the_composition_of_requests() {
    let sim = start().await;
    let (topic, _) = pair(&sim);
    let mut client = publisher(&sim);
    publish(&mut client, topic.name(), vec![message("a"), message("b")])
        .await
        .expect("published");
    publish(&mut client, topic.name(), vec![message("c")])
        .await
        .expect("published");
    let requests = topic.requests_of(Method::Publish);
    let entries: Vec<usize> = requests.iter().map(|request| request.entries).collect();
    assert_eq!(entries, [2, 1]);
    let kept: pb::PublishRequest = requests[0].message().expect("kept").expect("a publish");
    assert_eq!(kept.messages.len(), 2);
    assert_eq!(sim.pubsub().request_count(Method::Publish), 2);
}

#[tokio::test]
async fn publish_times_are_the_service_clocks_to_the_nanosecond() {
    let sim = start().await;
    let (topic, _) = pair(&sim);
    let noon = std::time::UNIX_EPOCH + Duration::new(1_790_000_000, 123_456_789);
    sim.pubsub().stop_clock(noon);
    publish(&mut publisher(&sim), topic.name(), vec![message("a")])
        .await
        .expect("published");
    let earlier = noon - Duration::from_nanos(1);
    topic.publish_at(message("b"), earlier);
    let times: Vec<_> = topic
        .messages()
        .iter()
        .map(|message| message.publish_time.expect("set"))
        .map(|time| (time.seconds, time.nanos))
        .collect();
    assert_eq!(
        times,
        [(1_790_000_000, 123_456_789), (1_790_000_000, 123_456_788)]
    );
}
