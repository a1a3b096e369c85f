//! The start: what is checked, created and sought before a split is given out, and what a restore repeats.

use std::time::Duration;

use aqueduct_connector::Timestamp;
use aqueduct_pubsub::SubscriptionCreateOptions;
use aqueduct_pubsub::source::{
    DeserializationFailurePolicy, EnumeratorState, OrderingMode, StartPosition, metrics,
};
use aqueduct_sim::{Code, Method};
use aqueduct_testkit::{SourceHost, log, until};

use super::source_support::*;

fn create() -> SubscriptionCreateOptions {
    SubscriptionCreateOptions::new(topic_destination("t"))
}

#[tokio::test]
async fn nothing_is_created_or_sought_when_one_subscription_is_refused() {
    let world = World::new().await;
    let builder = world
        .builder()
        .subscription_with(destination("new"), create())
        .subscription(destination("missing"))
        .start_position(StartPosition::EarliestRetained);
    let mut host = world.start(builder);
    let error = failure(&mut host).await.to_string();
    assert!(
        error.contains("projects/p/subscriptions/missing") && error.contains("does not exist"),
        "{error}"
    );
    assert!(!error.contains("subscriptions/s:"), "{error}");
    assert_eq!(world.sim.pubsub().request_count(Method::Seek), 0);
    assert!(!world.sim.pubsub().subscription("p", "new").exists());
    host.close().await.expect("closes");
}

#[tokio::test]
async fn what_would_break_a_promise_later_is_refused_at_the_start() {
    for (settings, told) in [
        ("per-key", "message ordering"),
        ("exactly-once", "scan.exactly-once-subscriptions"),
        ("nack", "dead-letter policy"),
    ] {
        let world = World::with(|subscription| {
            subscription.enable_exactly_once_delivery = settings == "exactly-once";
        })
        .await;
        let builder = match settings {
            "per-key" => world.builder().ordering_mode(OrderingMode::PerKey),
            "nack" => world
                .builder()
                .deserialization_failure_policy(DeserializationFailurePolicy::Nack),
            _ => world.builder(),
        };
        let mut host = world.start(builder);
        let error = failure(&mut host).await.to_string();
        assert!(error.contains(told), "{error}");
        host.close().await.expect("closes");
    }
}

#[tokio::test]
async fn a_missing_subscription_is_created_then_sought_and_history_arrives() {
    let world = World::new().await;
    let topic = world.sim.pubsub().create_topic_with("p", "kept", |topic| {
        topic.message_retention_duration = Some(prost_types::Duration {
            seconds: 86_400,
            nanos: 0,
        });
    });
    for at in 0..5 {
        topic.publish(format!("h{at}"));
    }
    world.advance(Duration::from_secs(60));
    let settings = SubscriptionCreateOptions::new(topic_destination("kept"))
        .ack_deadline(Duration::from_secs(20))
        .retain_acked_messages()
        .never_expire();
    let builder = world
        .bare()
        .subscription_with(destination("new"), settings)
        .start_position(StartPosition::EarliestRetained);
    let mut host = world.start(builder);
    host.run_to(5).await.expect("history arrives");
    let made = world.sim.pubsub().subscription("p", "new");
    let config = made.config().expect("created");
    assert_eq!(config.ack_deadline_seconds, 20);
    assert!(config.retain_acked_messages);
    assert_eq!(world.sim.pubsub().request_count(Method::Seek), 1);
    world.close(host).await;
}

#[tokio::test]
async fn a_creation_that_lost_the_race_reads_the_winners_settings() {
    let world = World::new().await;
    let pubsub = world.sim.pubsub();
    let topic = world.topic.clone();
    let winner = pubsub.clone();
    pubsub
        .subscription("p", "raced")
        .nth(1, Method::CreateSubscription)
        .run(move || {
            winner.create_subscription_with("p", "raced", &topic, |settings| {
                settings.enable_exactly_once_delivery = true;
            });
        });
    let builder = world
        .bare()
        .subscription_with(destination("raced"), create());
    let mut host = world.start(builder);
    let error = failure(&mut host).await.to_string();
    assert!(error.contains("exactly-once"), "{error}");
    host.close().await.expect("closes");
}

#[tokio::test]
async fn denied_calls_name_the_permission() {
    for (method, permission) in [
        (Method::GetSubscription, "pubsub.subscriptions.get"),
        (Method::Seek, "pubsub.subscriptions.consume"),
    ] {
        let world = World::new().await;
        world.sub.deny(method);
        let builder = world.builder().start_position(StartPosition::Latest);
        let mut host = world.start(builder);
        let error = failure(&mut host).await.to_string();
        assert!(error.contains(permission), "{error}");
        host.close().await.expect("closes");
    }
}

#[tokio::test]
async fn a_start_position_is_applied_once_and_never_on_a_restore() {
    let world = World::new().await;
    world.publish("old", 3);
    world.advance(Duration::from_secs(10));
    let builder = || world.builder().start_position(StartPosition::Latest);
    let mut host = world.start(builder());
    until_assigned(&world, &mut host).await;
    world.advance(Duration::from_secs(1));
    world.publish("new", 3);
    host.run_to(3).await.expect("reads");
    assert_eq!(emitted(&host), names("new", 3), "the backlog was dropped");
    let checkpoint = host.checkpoint().await.expect("checkpoints");
    world.until("the acks", |sub| sub.backlog() == 0).await;
    host.close().await.expect("closes");
    let kit = world.kit.next_attempt();
    let mut host = SourceHost::restore(arc(builder()), &kit, &checkpoint, 3).expect("restores");
    world.publish("later", 1);
    host.run_to(1).await.expect("reads on");
    assert_eq!(world.sim.pubsub().request_count(Method::Seek), 1);
    host.close().await.expect("closes");
}

async fn until_assigned(world: &World, host: &mut SourceHost<String>) {
    step_until(host, "a stream", |_| world.sub.open_streams() > 0).await;
}

#[tokio::test]
async fn a_failed_seek_leaves_the_position_unapplied_and_the_next_start_says_so() {
    let world = World::new().await;
    world
        .sim
        .pubsub()
        .create_subscription("p", "s2", &world.topic);
    let builder = || {
        world
            .builder()
            .subscription(destination("s2"))
            .start_position(StartPosition::Timestamp(Timestamp::from_millis(0)))
    };
    let second = world.sim.pubsub().subscription("p", "s2");
    second.next(1, Method::Seek).status(Code::Unavailable);
    let mut host = world.start(builder());
    // Before anything happened: what a crash right at the start leaves.
    let early = host.barrier().await;
    let early = match early {
        Ok(early) => early,
        Err(error) => panic!("{}", error.report()),
    };
    let state = EnumeratorState::decode(&early.enumerator).expect("reads");
    assert!(!state.start_position_applied);
    let error = failure(&mut host).await.to_string();
    assert!(
        error.contains("could not seek") && error.contains("s2"),
        "{error}"
    );
    host.close().await.expect("closes");
    let captured = log::capture();
    let kit = world.kit.next_attempt();
    let mut host = SourceHost::restore(arc(builder()), &kit, &early, 1).expect("restores");
    drop(captured.one_warning("before the start position was applied"));
    until_assigned(&world, &mut host).await;
    assert_eq!(
        world.sim.pubsub().request_count(Method::Seek),
        4,
        "both again"
    );
    assert_eq!(
        captured
            .matching(tracing::Level::WARN, "seeking back")
            .len(),
        2
    );
    host.close().await.expect("closes");
}

#[tokio::test]
async fn a_rescale_covers_every_subscription_and_subtasks_without_one_finish() {
    let world = World::with(|settings| settings.enable_message_ordering = true).await;
    world
        .sim
        .pubsub()
        .create_subscription_with("p", "s2", &world.topic, |settings| {
            settings.enable_message_ordering = true;
        });
    let builder = || {
        world
            .builder()
            .subscription(destination("s2"))
            .ordering_mode(OrderingMode::PerKey)
    };
    let mut host = world.start(builder());
    let mut kit = world.kit.clone();
    for parallelism in [4, 2, 1] {
        let ids = world.publish("m", 4);
        let due = host.emitted_count() + 8;
        host.run_to(due).await.expect("both copies of each");
        let checkpoint = host.checkpoint().await.expect("checkpoints");
        let other = world.sim.pubsub().subscription("p", "s2");
        until(LIMIT, "the acks of both", || {
            ids.iter()
                .all(|id| world.sub.is_acked(id) && other.is_acked(id))
        })
        .await;
        host.close().await.expect("closes");
        kit = kit.next_attempt();
        host =
            SourceHost::restore(arc(builder()), &kit, &checkpoint, parallelism).expect("restores");
        if parallelism == 4 {
            host.run_until(|host| host.told_no_more(2) && host.told_no_more(3))
                .await
                .expect("idle subtasks are told");
        }
    }
    assert_eq!(kit.registry().total(metrics::UNASSIGNED_READERS), 0);
    host.close().await.expect("closes");
}
