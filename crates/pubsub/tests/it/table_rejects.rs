//! Rows whose payload the host's format cannot read, under each policy. Payloads that begin with `bad` are such.

use std::time::Duration;

use aqueduct_connector::ErrorKind;
use aqueduct_connector::source::SplitId;
use aqueduct_pubsub::source::metrics;
use aqueduct_testkit::log::{Marker, capture};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::source_support::World;
use super::table_world::*;

const POLICY: &str = "scan.deserialization-failure-policy";

fn dead_lettering(settings: &mut pb::Subscription) {
    settings.dead_letter_policy = Some(pb::DeadLetterPolicy {
        dead_letter_topic: "projects/p/topics/dead".to_owned(),
        max_delivery_attempts: 5,
    });
}

#[tokio::test]
async fn fail_names_message_and_subscription_and_leaves_the_message_unacknowledged() {
    let secret = Marker::new("bad payload-nobody-may-see");
    let log = capture();
    let world = World::new().await;
    world.topic.publish("good");
    let id = world.topic.publish(secret.text());
    let table = statement(&world.sim.endpoint(), "p", &[("subscription", "s")]);
    let mut host = read(&table, &world.kit, 1);
    let error = failure(&mut host).await;
    assert_eq!(payloads(&host), ["good"], "what came before is emitted");
    let report = error.report();
    for part in [
        &*id,
        "projects/p/subscriptions/s",
        "'drop'",
        "'nack'",
        "this is no JSON",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert_eq!(error.kind(), ErrorKind::User);
    secret.assert_absent_from_error("the failure", &error);
    secret.assert_absent_from_log(&log);
    host.close().await.expect("closes");
    assert!(!world.sub.is_acked(&id));
    assert_eq!(world.metric(metrics::RECORDS_IN_ERRORS), 1);
    world.assert_accounting();
}

#[tokio::test]
async fn drop_goes_on_and_acknowledges_with_the_checkpoint_and_not_before() {
    let world = World::new().await;
    let texts = ["bad0", "a", "bad1", "bad2", "b", "bad3"];
    let ids = texts.map(|text| world.topic.publish(text));
    let table = statement(
        &world.sim.endpoint(),
        "p",
        &[("subscription", "s"), (POLICY, "drop")],
    );
    let mut host = read(&table, &world.kit, 1);
    step_until(
        &mut host,
        "everything to be handled",
        |host| host.emitted_count() == 2 && world.metric(metrics::MESSAGES_DROPPED) == 4,
        || (),
    )
    .await;
    assert_eq!(payloads(&host), ["a", "b"]);
    assert_eq!(world.metric(metrics::RECORDS_IN_ERRORS), 4);
    // Long enough for whatever would have been sent at once.
    for _ in 0..20 {
        world.advance(Duration::from_millis(50));
        host.try_step().await.expect("well");
    }
    assert_eq!(
        world.sub.counts().acked,
        0,
        "a dropped message waits for its checkpoint"
    );
    host.checkpoint().await.expect("checkpoints");
    world.until("all acks", |sub| sub.backlog() == 0).await;
    assert!(ids.iter().all(|id| world.sub.is_acked(id)));
    host.close().await.expect("closes");
    world.assert_accounting();
}

#[tokio::test]
async fn nack_gives_a_message_back_at_once_until_the_service_forwards_it() {
    let world = World::with(dead_lettering).await;
    let dead = world.sim.pubsub().create_topic("p", "dead");
    world.sub.grant_dead_lettering();
    world.sub.set_dead_letter_jitter(None);
    let table = statement(
        &world.sim.endpoint(),
        "p",
        &[("subscription", "s"), (POLICY, "nack")],
    );
    for text in ["a", "bad", "b"] {
        world.topic.publish(text);
    }
    let mut host = read(&table, &world.kit, 1);
    step_until(
        &mut host,
        "the neighbours, and the message in the dead-letter topic",
        |host| host.emitted_count() == 2 && dead.published() == 1,
        || world.advance(Duration::from_millis(20)),
    )
    .await;
    assert_eq!(payloads(&host), ["a", "b"]);
    assert_eq!(dead.messages()[0].data, &b"bad"[..]);
    assert_eq!(
        world.metric(metrics::MESSAGES_NACKED),
        5,
        "each attempt was returned"
    );
    assert_eq!(world.sub.counts().acked, 0, "no checkpoint was needed");
    host.checkpoint().await.expect("checkpoints");
    world
        .until("the neighbours' acks", |sub| sub.backlog() == 0)
        .await;
    host.close().await.expect("closes");
    world.assert_accounting();
}

/// PS-SRC-31: a returned message takes the later ones of its key along, wherever they are.
#[tokio::test]
async fn nack_keeps_the_order_of_a_key_and_other_keys_go_on() {
    let world = World::with(|settings| {
        dead_lettering(settings);
        settings.enable_message_ordering = true;
    })
    .await;
    let dead = world.sim.pubsub().create_topic("p", "dead");
    world.sub.grant_dead_lettering();
    world.sub.set_dead_letter_jitter(None);
    let mut later = Vec::new();
    for (key, text) in [
        ("k", "k0"),
        ("k", "bad"),
        ("o", "o0"),
        ("k", "k1"),
        ("k", "k2"),
        ("o", "o1"),
    ] {
        let id = world.topic.publish_keyed(key, text);
        if ["k1", "k2"].contains(&text) {
            later.push(id);
        }
    }
    let table = statement(
        &world.sim.endpoint(),
        "p",
        &[
            ("subscription", "s"),
            (POLICY, "nack"),
            ("scan.ordering-mode", "per-key"),
        ],
    );
    let mut host = read(&table, &world.kit, 1);
    let mut steps = 0;
    while host.emitted_count() < 5 {
        steps += 1;
        assert!(steps < 50_000, "no progress: {:?}", payloads(&host));
        if host.try_step().await.expect("well").is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            world.advance(Duration::from_millis(20));
        }
        if steps % 50 == 0 {
            // The service gives out no more of a key before what it gave is acknowledged.
            host.checkpoint().await.expect("checkpoints");
        }
        let overtaken = payloads(&host).iter().any(|text| text == "k1");
        assert!(!overtaken || dead.published() == 1, "a later one overtook");
    }
    let all = payloads(&host);
    let of = |key: &str| -> Vec<&str> {
        let texts = all.iter().map(String::as_str);
        texts.filter(|text| text.starts_with(key)).collect()
    };
    assert_eq!(of("k"), ["k0", "k1", "k2"]);
    assert_eq!(of("o"), ["o0", "o1"]);
    assert_eq!(dead.messages()[0].data, &b"bad"[..]);
    assert!(
        later.iter().all(|id| world.sub.deliveries(id) > 1),
        "later ones of the key went back with it"
    );
    host.checkpoint().await.expect("checkpoints");
    world.until("the rest", |sub| sub.backlog() == 0).await;
    host.close().await.expect("closes");
    world.assert_accounting();
}

/// What a batch kept back, because a key came again, goes back while its split is paused and comes in order after it.
#[tokio::test]
async fn a_pause_between_two_messages_of_a_key_neither_loses_nor_reorders() {
    let world = World::with(|settings| {
        dead_lettering(settings);
        settings.enable_message_ordering = true;
    })
    .await;
    for text in ["k0", "k1", "k2", "k3"] {
        world.topic.publish_keyed("k", text);
    }
    let table = statement(
        &world.sim.endpoint(),
        "p",
        &[
            ("subscription", "s"),
            (POLICY, "nack"),
            ("scan.ordering-mode", "per-key"),
        ],
    );
    let mut host = read(&table, &world.kit, 1);
    host.run_to(1).await.expect("reads");
    let split = [SplitId::new("0")];
    host.pause_splits(0, &split, &[]);
    for _ in 0..200 {
        host.try_step().await.expect("well");
    }
    assert_eq!(payloads(&host), ["k0"], "paused");
    host.pause_splits(0, &[], &split);
    let mut steps = 0;
    while host.emitted_count() < 4 {
        steps += 1;
        assert!(steps < 50_000, "no progress: {:?}", payloads(&host));
        if host.try_step().await.expect("well").is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            world.advance(Duration::from_millis(20));
        }
        if steps % 50 == 0 {
            host.checkpoint().await.expect("checkpoints");
        }
    }
    assert_eq!(payloads(&host), ["k0", "k1", "k2", "k3"]);
    host.checkpoint().await.expect("checkpoints");
    world.until("all acks", |sub| sub.backlog() == 0).await;
    assert_eq!(world.sub.counts().redelivered, 0);
    host.close().await.expect("closes");
    world.assert_accounting();
}

/// PS-SRC-06: without a dead-letter policy it would come back for ever.
#[tokio::test]
async fn nack_without_a_dead_letter_policy_is_refused_at_the_start() {
    let world = World::new().await;
    let table = statement(
        &world.sim.endpoint(),
        "p",
        &[("subscription", "s"), (POLICY, "nack")],
    );
    let mut host = read(&table, &world.kit, 1);
    let report = failure(&mut host).await.report();
    for part in ["projects/p/subscriptions/s", POLICY, "dead-letter"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    host.close().await.expect("closes");
}
