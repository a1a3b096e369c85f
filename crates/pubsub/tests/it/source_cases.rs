//! Cases that tell right from wrong and need more than one thing to happen: redeliveries in every state, a kill after
//! `drop`, a close while messages come back, exactly-once under lost answers, and that nothing of a message is shown.

use std::num::NonZeroU64;
use std::time::Duration;

use aqueduct_pubsub::SubscriberOptions;
use aqueduct_pubsub::source::{
    DeserializationFailurePolicy, ExactlyOnceSubscriptions, OrderingMode, metrics,
};
use aqueduct_sim::{AckFailure, Code, Gate, LateAcks, Method};
use aqueduct_testkit::log::{Marker, capture};
use aqueduct_testkit::until;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::source_support::*;

fn messages(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).expect("not zero")
}

fn dead_lettering(settings: &mut pb::Subscription) {
    settings.dead_letter_policy = Some(pb::DeadLetterPolicy {
        dead_letter_topic: "projects/p/topics/dead".to_owned(),
        max_delivery_attempts: 5,
    });
}

/// PS-TEST-32.
#[tokio::test]
async fn records_given_before_a_failure_stay_although_the_message_is_returned_until_dead_lettered()
{
    let world = World::with(dead_lettering).await;
    let dead = world.sim.pubsub().create_topic("p", "dead");
    world.publish("half", 1);
    world.publish("m", 2);
    let nack = DeserializationFailurePolicy::Nack;
    let mut host = world.start(world.builder().deserialization_failure_policy(nack));
    let mut steps = 0;
    while dead.published() == 0 {
        steps += 1;
        assert!(steps < 50_000, "{} returned", world.sub.counts().nacked);
        if host.try_step().await.expect("the job goes on").is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            world.advance(Duration::from_millis(20));
        }
    }
    let all = emitted(&host);
    for part in ["half0/1", "half0/2"] {
        let times = all.iter().filter(|text| *text == part).count();
        assert_eq!(times, 5, "{part} of each delivery: {all:?}");
    }
    assert_eq!(world.metric(metrics::RECORDS_IN_ERRORS), 5);
    assert_eq!(
        world.sub.counts().acked,
        0,
        "no return is an acknowledgement"
    );
    host.checkpoint().await.expect("checkpoints");
    world.until("the rest", |sub| sub.backlog() == 0).await;
    assert_eq!(world.sub.counts().acked, 2);
    world.close(host).await;
}

/// PS-TEST-45.
#[tokio::test]
async fn a_dropped_message_that_gave_records_comes_again_after_a_kill_before_the_barrier() {
    let world = World::new().await;
    let id = world.topic.publish("half");
    let drop = DeserializationFailurePolicy::Drop;
    let builder = || world.builder().deserialization_failure_policy(drop);
    let mut host = world.start(builder());
    host.run_to(2).await.expect("reads");
    assert_eq!(emitted(&host), ["half/1", "half/2"]);
    // Long enough for whatever would have been sent at once.
    for _ in 0..20 {
        world.advance(Duration::from_millis(50));
        host.try_step().await.expect("well");
    }
    assert_eq!(world.sub.counts().acked, 0);
    host.kill();
    world
        .until("its stream to end", |sub| sub.open_streams() == 0)
        .await;
    world.advance(Duration::from_secs(61));
    let mut host = world.start(builder());
    host.run_to(2).await.expect("reads it again");
    assert_eq!(emitted(&host), ["half/1", "half/2"]);
    host.checkpoint().await.expect("checkpoints");
    world.until("its ack", |sub| sub.is_acked(&id)).await;
    host.close().await.expect("closes");
}

/// PS-TEST-46: the service believes every lease to be over, and delivers each message again.
#[tokio::test]
async fn a_redelivery_in_any_state_is_emitted_once_and_acknowledged_by_its_newest_id() {
    let world = World::new().await;
    world.sub.set_late_acks(LateAcks::DoNothing);
    let ids = world.publish("m", 4);
    let gate = Gate::new();
    world.sub.next(1, Method::Acknowledge).hold(&gate);
    let one = SubscriberOptions::new().max_records_per_fetch(messages(1));
    let mut host = world.start(world.builder().subscriber_options(one));
    // The first is completed, and its acknowledgement does not arrive; the second bound; the third staged; the fourth
    // buffered.
    host.run_to(1).await.expect("reads");
    let first = barrier_now(&mut host);
    host.complete(&first).expect("completes");
    until(LIMIT, "the acknowledgement", || gate.held() == 1).await;
    host.run_to(2).await.expect("reads");
    let second = barrier_now(&mut host);
    host.run_to(3).await.expect("reads");
    until(LIMIT, "all to be received", || {
        world.metric(metrics::MESSAGES_RECEIVED) == 4
    })
    .await;
    world.sim.pubsub().advance(Duration::from_secs(61));
    until(LIMIT, "the redeliveries", || {
        world.metric(metrics::MESSAGES_RECEIVED) == 8
    })
    .await;
    assert_eq!(world.metric(metrics::LEASES_LOST), 4);
    world.assert_accounting();
    // Its checkpoint is complete, so the new id is acknowledged at once.
    world
        .tick_until("the first by its new id", || world.sub.is_acked(&ids[0]))
        .await;
    assert!(!world.sub.is_acked(&ids[1]));
    gate.open();
    host.run_to(4).await.expect("reads");
    host.complete(&second).expect("completes");
    world.until("the second", |sub| sub.is_acked(&ids[1])).await;
    host.checkpoint().await.expect("checkpoints");
    world.until("the rest", |sub| sub.backlog() == 0).await;
    assert_eq!(emitted(&host), names("m", 4), "once each");
    assert_eq!(world.sub.counts().idle_acks, 1, "the old id of the first");
    world.close(host).await;
}

/// PS-TEST-48: the streams go on after their request side is closed, and returned messages are available at once.
#[tokio::test]
async fn while_it_closes_nothing_returned_is_fetched_again() {
    let world = World::new().await;
    world.sub.set_messages_per_response(5);
    world.sub.set_closing_linger(Duration::from_secs(20));
    let ids = world.publish("m", 100);
    let few = SubscriberOptions::new().flow_control_max_outstanding_element_count(messages(40));
    let mut host = world.start(world.builder().subscriber_options(few));
    host.run_to(20).await.expect("reads");
    let mut closing = std::pin::pin!(host.close());
    loop {
        tokio::select! {
            biased;
            closed = &mut closing => break closed.expect("closes"),
            () = tokio::time::sleep(Duration::from_millis(1)) => world.advance(Duration::from_millis(20)),
        }
    }
    let most = ids.iter().map(|id| world.sub.deliveries(id)).max();
    assert_eq!(most, Some(1), "fetched again while closing");
    assert_eq!((world.sub.outstanding(), world.sub.backlog()), (0, 100));
    assert_eq!(
        world.sub.counts().nacked,
        world.sub.counts().delivered,
        "each delivery was returned"
    );
    assert_eq!(world.metric(metrics::SHUTDOWNS_ABANDONED), 0);
    world.assert_accounting();
}

/// PS-TEST-55.
#[tokio::test]
async fn a_lost_answer_of_an_exactly_once_acknowledgement_leads_to_no_second_emission() {
    let world = World::with(|settings| settings.enable_exactly_once_delivery = true).await;
    world.publish("m", 10);
    world
        .sub
        .next(1, Method::Acknowledge)
        .apply_then_lose_answer();
    let accept = ExactlyOnceSubscriptions::Accept;
    let mut host = world.start(world.builder().exactly_once_subscriptions(accept));
    host.run_to(10).await.expect("reads");
    host.checkpoint().await.expect("checkpoints");
    world
        .tick_until("the repeated request", || {
            world.metric(metrics::MESSAGES_ACKED) == 10
        })
        .await;
    assert_eq!((world.sub.backlog(), host.emitted_count()), (0, 10));
    assert_eq!(world.metric(metrics::ACKS_FAILED), 0);
    world.close(host).await;
    assert_eq!(world.sub.counts().redelivered, 0);
}

/// PS-SRC-35: no message is emitted twice within a run, however late it comes again.
#[tokio::test]
async fn an_exactly_once_message_whose_id_was_given_up_is_acknowledged_unemitted_when_it_comes_again()
 {
    for failure in [AckFailure::Permanent, AckFailure::Transient] {
        let world = World::with(|settings| settings.enable_exactly_once_delivery = true).await;
        world.publish("m", 2);
        let accept = ExactlyOnceSubscriptions::Accept;
        let mut host = world.start(world.builder().exactly_once_subscriptions(accept));
        host.run_to(2).await.expect("reads");
        world.sub.fail_ack_ids(100_000, failure);
        host.checkpoint().await.expect("checkpoints");
        // Ten minutes, by the reader's clock only: at the service no time passes and the leases last.
        let mut waited = 0;
        while world.metric(metrics::ACKS_FAILED) < 2 {
            waited += 1;
            assert!(waited < 2_000, "{failure:?}: never given up");
            world.clock.advance(Duration::from_secs(1));
            for _ in 0..5 {
                host.try_step().await.expect("well");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(waited > 590, "{failure:?}: given up after {waited} s");
        assert_eq!(
            world.metric(metrics::PENDING_ACKS),
            0,
            "flow control is free again"
        );
        world.sub.fail_ack_ids(0, failure);
        world.sim.pubsub().advance(Duration::from_secs(700));
        world
            .tick_until("the redeliveries' acks", || world.sub.backlog() == 0)
            .await;
        for _ in 0..100 {
            host.try_step().await.expect("well");
        }
        assert_eq!(host.emitted_count(), 2, "{failure:?}: emitted again");
        world.publish("n", 1);
        host.run_to(3).await.expect("reads on");
        host.checkpoint().await.expect("checkpoints");
        world.until("the rest", |sub| sub.backlog() == 0).await;
        world.close(host).await;
    }
}

/// PS-SRC-31: a message that lapsed on its way to a host that paused meanwhile takes the later ones of its key along.
#[tokio::test]
async fn under_per_key_a_paused_batch_that_lapsed_comes_again_in_order() {
    let world = World::with(|settings| settings.enable_message_ordering = true).await;
    for at in 0..6 {
        world.topic.publish_keyed("k", format!("k{at}"));
    }
    let short = SubscriberOptions::new()
        .max_ack_extension_period(Duration::from_secs(60))
        .max_records_per_fetch(messages(2))
        .first_checkpoint_timeout(Duration::ZERO);
    let builder = world
        .builder()
        .ordering_mode(OrderingMode::PerKey)
        .subscriber_options(short);
    let mut host = world.start(builder);
    host.run_to(2).await.expect("reads");
    // A batch is asked for and comes, but the host looks for it only after the pause and the end of the leases.
    assert!(!host.poll_reader(0).await.expect("well"), "it comes later");
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    let split = [aqueduct_connector::source::SplitId::new("0")];
    host.pause_splits(0, &split, &[]);
    for _ in 0..70 {
        world.advance(Duration::from_secs(1));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    let mut steps = 0;
    while host.emitted_count() < 6 {
        steps += 1;
        assert!(steps < 50_000, "no progress: {:?}", emitted(&host));
        if steps == 50 {
            host.pause_splits(0, &[], &split);
        }
        if host.try_step().await.expect("reads on").is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            world.advance(Duration::from_millis(50));
        }
        if steps % 50 == 0 {
            host.checkpoint().await.expect("checkpoints");
        }
    }
    let all = emitted(&host);
    let mut firsts: Vec<&String> = Vec::new();
    for text in &all {
        if !firsts.contains(&text) {
            firsts.push(text);
        }
    }
    assert!(firsts.is_sorted(), "{all:?}");
    world.close(host).await;
}

/// PS-SRC-26: a batch that was under way when its split was parked goes back to the service with the rest.
#[tokio::test]
async fn a_batch_that_comes_back_to_a_parked_split_is_returned_at_once() {
    let world = World::new().await;
    world.publish("m", 100);
    world.sub.set_messages_per_response(10);
    let options = SubscriberOptions::new()
        .paused_split_buffer_max_messages(messages(50))
        .max_records_per_fetch(messages(10));
    let mut host = world.start(world.builder().subscriber_options(options));
    host.run_to(10).await.expect("reads");
    host.checkpoint().await.expect("checkpoints");
    until(LIMIT, "the rest in the buffer", || {
        world.metric(metrics::BUFFERED_MESSAGES) == 90
    })
    .await;
    // The next batch is asked for and comes, but the host looks for it only when the split is parked.
    assert!(!host.poll_reader(0).await.expect("well"), "it comes later");
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    let split = [aqueduct_connector::source::SplitId::new("0")];
    host.pause_splits(0, &split, &[]);
    world
        .until("the parking", |sub| {
            sub.counts().acked == 10 && sub.outstanding() == 10 && sub.open_streams() == 0
        })
        .await;
    until(LIMIT, "the account", || {
        world.metric(metrics::SPLITS_PARKED) == 1 && world.metric(metrics::PENDING_ACKS) == 10
    })
    .await;
    assert!(!host.poll_reader(0).await.expect("well"), "it is paused");
    world
        .until("the return of the batch", |sub| sub.outstanding() == 0)
        .await;
    until(LIMIT, "the account", || {
        world.metric(metrics::PENDING_ACKS) == 0
    })
    .await;
    assert_eq!(world.metric(metrics::BUFFERED_MESSAGES), 0);
    host.pause_splits(0, &[], &split);
    host.run_to(100).await.expect("resumes");
    host.checkpoint().await.expect("checkpoints");
    world.until("the rest", |sub| sub.backlog() == 0).await;
    let (mut all, mut published) = (emitted(&host), names("m", 100));
    all.sort();
    published.sort();
    assert_eq!(all, published, "nothing again, nothing lost");
    world.close(host).await;
}

/// PS-TEST-37.
#[tokio::test]
async fn payload_attributes_and_key_are_in_no_log_error_or_debug() {
    let payload = Marker::new("bad payload-nobody-may-see");
    let key = Marker::new("key-nobody-may-see");
    let attribute = Marker::new("attribute-nobody-may-see");
    let markers = [payload, key, attribute];
    for policy in [
        DeserializationFailurePolicy::Fail,
        DeserializationFailurePolicy::Drop,
        DeserializationFailurePolicy::Nack,
    ] {
        let log = capture();
        let world = World::with(|settings| {
            settings.enable_message_ordering = true;
            dead_lettering(settings);
        })
        .await;
        let dead = world.sim.pubsub().create_topic("p", "dead");
        world.topic.publish_message(pb::PubsubMessage {
            data: payload.text().as_bytes().to_vec().into(),
            ordering_key: key.text().to_owned(),
            attributes: [(attribute.text().to_owned(), attribute.text().to_owned())].into(),
            ..Default::default()
        });
        let seen = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let shown = seen.clone();
        let builder = world
            .bare()
            .subscription(destination("s"))
            .deserializer(
                move |message: &aqueduct_pubsub::source::ReceivedMessage,
                      subscription: &aqueduct_pubsub::SubscriptionDestination,
                      out: &mut aqueduct_connector::source::Collector<'_, String>| {
                    *shown.lock().expect("not poisoned") = format!("{message:?}");
                    deserialize(message, subscription, out)
                },
            )
            .ordering_mode(OrderingMode::PerKey)
            .deserialization_failure_policy(policy);
        let mut host = world.start(builder);
        if policy == DeserializationFailurePolicy::Fail {
            let error = failure(&mut host).await;
            for marker in markers {
                marker.assert_absent_from_error("the failure", &error);
            }
        } else {
            let mut steps = 0;
            while world.sub.backlog() > 0 {
                steps += 1;
                assert!(steps < 50_000, "{policy:?}: {} forwarded", dead.published());
                if host.try_step().await.expect("goes on").is_none() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    world.advance(Duration::from_millis(20));
                }
            }
        }
        let shown = seen.lock().expect("not poisoned").clone();
        assert!(!shown.is_empty(), "the deserializer saw it");
        assert!(!log.lines().is_empty(), "something is logged");
        for marker in markers {
            marker.assert_absent("the message's debug text", &shown);
            marker.assert_absent_from_debug("the host", &host);
            marker.assert_absent_from_log(&log);
        }
        world.close(host).await;
    }
}

/// PS-SRC-12: the token is replaced after a first refusal; a second one is final.
#[tokio::test]
async fn a_refused_token_is_survived_once() {
    let world = World::new().await;
    let mut host = world.start(world.builder());
    for round in 0..2 {
        step_until(&mut host, "a stream", |_| world.sub.open_streams() == 1).await;
        world.publish("m", 3);
        host.run_until_emitted(3).await.expect("reads");
        world.sub.close_streams(Code::Unauthenticated);
        world
            .tick_until("the next stream", || {
                world.sub.counts().streams_opened == round + 2
            })
            .await;
    }
    host.checkpoint().await.expect("checkpoints");
    world.until("every ack", |sub| sub.backlog() == 0).await;
    world
        .sub
        .always(Method::StreamingPull)
        .status(Code::Unauthenticated);
    world.sub.reset_streams();
    let mut steps = 0;
    let error = loop {
        steps += 1;
        assert!(steps < 20_000, "no failure");
        match host.try_step().await {
            Err(error) => break error,
            Ok(Some(_)) => {}
            Ok(None) => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                world.advance(Duration::from_millis(100));
            }
        }
    };
    let report = error.report();
    assert!(
        report.contains("UNAUTHENTICATED") && report.contains("projects/p/subscriptions/s"),
        "{report}"
    );
    host.close().await.expect("closes");
}
