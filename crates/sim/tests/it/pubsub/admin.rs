//! Administration over RPC.

use aqueduct_sim::{Code, Method};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::support::*;

fn topic(name: &str) -> pb::Topic {
    pb::Topic {
        name: name.to_owned(),
        ..Default::default()
    }
}

fn subscription(name: &str, topic: &str) -> pb::Subscription {
    pb::Subscription {
        name: name.to_owned(),
        topic: topic.to_owned(),
        ..Default::default()
    }
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

const TOPIC: &str = "projects/p/topics/orders";
const SUBSCRIPTION: &str = "projects/p/subscriptions/orders-sub";

#[tokio::test]
async fn topics_are_created_described_changed_listed_and_deleted() {
    let sim = start().await;
    let mut client = publisher(&sim);
    let wanted = pb::Topic {
        message_retention_duration: seconds(7 * 24 * 3_600),
        kms_key_name: "projects/p/locations/l/keyRings/r/cryptoKeys/k".to_owned(),
        message_storage_policy: Some(pb::MessageStoragePolicy {
            allowed_persistence_regions: vec!["europe-west1".to_owned()],
            enforce_in_transit: true,
        }),
        ..topic(TOPIC)
    };
    soon(client.create_topic(wanted.clone()))
        .await
        .expect("created");
    let again = soon(client.create_topic(wanted.clone())).await;
    assert_eq!(code(again), Code::AlreadyExists);
    let get = pb::GetTopicRequest {
        topic: TOPIC.to_owned(),
    };
    let found = soon(client.get_topic(get.clone())).await.expect("found");
    let found = found.into_inner();
    assert_eq!(found.message_storage_policy, wanted.message_storage_policy);
    assert_eq!(found.kms_key_name, wanted.kms_key_name);

    let update = pb::UpdateTopicRequest {
        topic: Some(pb::Topic {
            message_retention_duration: seconds(600),
            ..topic(TOPIC)
        }),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["message_retention_duration".to_owned()],
        }),
    };
    let updated = soon(client.update_topic(update)).await.expect("updated");
    let updated = updated.into_inner();
    assert_eq!(updated.message_retention_duration, seconds(600));
    assert_eq!(updated.kms_key_name, wanted.kms_key_name);

    for n in 0..4 {
        let name = format!("projects/p/topics/more-{n}");
        soon(client.create_topic(topic(&name)))
            .await
            .expect("created");
    }
    soon(client.create_topic(topic("projects/q/topics/other")))
        .await
        .expect("created");
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let request = pb::ListTopicsRequest {
            project: "projects/p".to_owned(),
            page_size: 2,
            page_token: token,
        };
        let page = soon(client.list_topics(request)).await.expect("listed");
        let page = page.into_inner();
        assert!(page.topics.len() <= 2);
        names.extend(page.topics.into_iter().map(|topic| topic.name));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(names.len(), 5);
    let delete = pb::DeleteTopicRequest {
        topic: TOPIC.to_owned(),
    };
    soon(client.delete_topic(delete.clone()))
        .await
        .expect("deleted");
    assert_eq!(
        code(soon(client.delete_topic(delete)).await),
        Code::NotFound
    );
    assert_eq!(code(soon(client.get_topic(get)).await), Code::NotFound);
}

#[tokio::test]
async fn settings_the_service_refuses_are_refused() {
    let sim = start().await;
    let mut topics = publisher(&sim);
    for wrong in [
        topic("orders"),
        topic("projects/p/topics/ab"),
        topic("projects/p/topics/1orders"),
        topic("projects/p/topics/google-orders"),
        topic("projects/p/subscriptions/orders"),
        pb::Topic {
            message_retention_duration: seconds(599),
            ..topic(TOPIC)
        },
        pb::Topic {
            message_retention_duration: seconds(31 * 24 * 3_600 + 1),
            ..topic(TOPIC)
        },
    ] {
        let refused = soon(topics.create_topic(wrong)).await;
        assert_eq!(code(refused), Code::InvalidArgument);
    }
    soon(topics.create_topic(topic(TOPIC)))
        .await
        .expect("created");
    let mut client = subscriber(&sim);
    let good = subscription(SUBSCRIPTION, TOPIC);
    for wrong in [
        pb::Subscription {
            ack_deadline_seconds: 9,
            ..good.clone()
        },
        pb::Subscription {
            ack_deadline_seconds: 601,
            ..good.clone()
        },
        pb::Subscription {
            message_retention_duration: seconds(599),
            ..good.clone()
        },
        pb::Subscription {
            filter: "attributes.".to_owned(),
            ..good.clone()
        },
        pb::Subscription {
            filter: format!("attributes:{}", "a".repeat(250)),
            ..good.clone()
        },
        pb::Subscription {
            expiration_policy: Some(pb::ExpirationPolicy {
                ttl: seconds(24 * 3_600 - 1),
            }),
            ..good.clone()
        },
        pb::Subscription {
            retry_policy: Some(pb::RetryPolicy {
                minimum_backoff: seconds(601),
                maximum_backoff: None,
            }),
            ..good.clone()
        },
        pb::Subscription {
            dead_letter_policy: Some(pb::DeadLetterPolicy {
                dead_letter_topic: TOPIC.to_owned(),
                max_delivery_attempts: 4,
            }),
            ..good.clone()
        },
    ] {
        let refused = soon(client.create_subscription(wrong)).await;
        assert_eq!(code(refused), Code::InvalidArgument);
    }
    let orphan = subscription(SUBSCRIPTION, "projects/p/topics/none");
    let refused = soon(client.create_subscription(orphan)).await;
    assert_eq!(code(refused), Code::NotFound);
    assert!(sim.pubsub().subscriptions().is_empty());
}

#[tokio::test]
async fn subscriptions_are_created_described_changed_listed_detached_and_deleted() {
    let sim = start().await;
    let mut topics = publisher(&sim);
    soon(topics.create_topic(topic(TOPIC)))
        .await
        .expect("created");
    let mut client = subscriber(&sim);
    let good = subscription(SUBSCRIPTION, TOPIC);
    let created = soon(client.create_subscription(good.clone())).await;
    let created = created.expect("created").into_inner();
    assert_eq!(created.ack_deadline_seconds, 10);
    assert_eq!(created.message_retention_duration, seconds(7 * 24 * 3_600));
    let again = soon(client.create_subscription(good)).await;
    assert_eq!(code(again), Code::AlreadyExists);

    let update = |path: &str| pb::UpdateSubscriptionRequest {
        subscription: Some(pb::Subscription {
            ack_deadline_seconds: 60,
            filter: "attributes:a".to_owned(),
            ..subscription(SUBSCRIPTION, TOPIC)
        }),
        update_mask: Some(prost_types::FieldMask {
            paths: vec![path.to_owned()],
        }),
    };
    let updated = soon(client.update_subscription(update("ack_deadline_seconds"))).await;
    assert_eq!(
        updated.expect("updated").into_inner().ack_deadline_seconds,
        60
    );
    let refused = soon(client.update_subscription(update("filter"))).await;
    assert_eq!(code(refused), Code::InvalidArgument);

    let list = pb::ListSubscriptionsRequest {
        project: "projects/p".to_owned(),
        ..Default::default()
    };
    let listed = soon(client.list_subscriptions(list)).await.expect("listed");
    assert_eq!(listed.into_inner().subscriptions.len(), 1);
    let of_topic = pb::ListTopicSubscriptionsRequest {
        topic: TOPIC.to_owned(),
        ..Default::default()
    };
    let listed = soon(topics.list_topic_subscriptions(of_topic)).await;
    assert_eq!(
        listed.expect("listed").into_inner().subscriptions,
        [SUBSCRIPTION]
    );

    let detach = pb::DetachSubscriptionRequest {
        subscription: SUBSCRIPTION.to_owned(),
    };
    soon(topics.detach_subscription(detach))
        .await
        .expect("detached");
    let get = pb::GetSubscriptionRequest {
        subscription: SUBSCRIPTION.to_owned(),
    };
    let found = soon(client.get_subscription(get.clone()))
        .await
        .expect("found");
    assert!(found.into_inner().detached);
    let refused = pull(&mut client, SUBSCRIPTION, 1).await;
    assert_eq!(code(refused), Code::FailedPrecondition);

    let delete = pb::DeleteSubscriptionRequest {
        subscription: SUBSCRIPTION.to_owned(),
    };
    soon(client.delete_subscription(delete))
        .await
        .expect("deleted");
    assert_eq!(
        code(soon(client.get_subscription(get)).await),
        Code::NotFound
    );
}

#[tokio::test]
async fn a_deleted_topic_leaves_its_subscriptions_with_their_backlog() {
    let sim = start().await;
    let (topic, subscription) = pair(&sim);
    topic.publish("a");
    assert!(topic.delete());
    let config = subscription.config().expect("it exists");
    assert_eq!(config.topic, "_deleted-topic_");
    let received = pull(&mut subscriber(&sim), subscription.name(), 1).await;
    assert_eq!(data(&received.expect("pulled")), ["a"]);
}

#[tokio::test]
async fn another_creator_can_win_the_race() {
    let sim = start().await;
    let pubsub = sim.pubsub();
    let rival = pubsub.clone();
    pubsub.nth(1, Method::CreateTopic).run(move || {
        rival.create_topic("p", "orders");
    });
    let created = soon(publisher(&sim).create_topic(topic(TOPIC))).await;
    assert_eq!(code(created), Code::AlreadyExists);
}
