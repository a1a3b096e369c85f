//! Reading: what is acknowledged when, redeliveries, failure policies, bounds, parking, closing.

use std::num::NonZeroU64;
use std::time::Duration;

use aqueduct_connector::ErrorKind;
use aqueduct_connector::source::SplitId;
use aqueduct_pubsub::SubscriberOptions;
use aqueduct_pubsub::source::{
    DeserializationFailurePolicy, ExactlyOnceSubscriptions, OrderingMode, metrics,
};
use aqueduct_sim::{Code, Method};
use aqueduct_testkit::{TestContext, until};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::source_support::*;

fn messages(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).expect("not zero")
}

fn options() -> SubscriberOptions {
    SubscriberOptions::new()
}

#[tokio::test]
async fn messages_are_acknowledged_when_their_checkpoint_completes_and_not_before() {
    let world = World::new().await;
    world.publish("m", 25);
    let mut host = world.start(world.builder());
    host.run_until_emitted(25).await.expect("reads");
    assert_eq!(emitted(&host), names("m", 25));
    let aborted = host.barrier().await.expect("snapshots");
    host.abort(aborted.id);
    world.publish("n", 5);
    host.run_until_emitted(5).await.expect("reads");
    let checkpoint = host.barrier().await.expect("snapshots");
    assert_eq!(world.sub.counts().acked, 0);
    assert_eq!(world.metric(metrics::PENDING_ACKS), 30);
    // It covers the aborted one's too.
    host.complete(&checkpoint).expect("completes");
    world.until("30 acks", |sub| sub.counts().acked == 30).await;
    until(LIMIT, "their answers", || {
        world.metric(metrics::MESSAGES_ACKED) == 30
    })
    .await;
    assert_eq!(world.sub.counts().redelivered, 0);
    world.close(host).await;
}

#[tokio::test]
async fn a_message_emitted_behind_the_barrier_waits_for_the_next_one() {
    let world = World::new().await;
    let ids = world.publish("m", 25);
    let mut host = world.start(world.builder());
    host.run_to(10).await.expect("reads");
    let first = barrier_now(&mut host);
    host.run_to(25).await.expect("reads");
    host.complete(&first).expect("completes");
    world.until("10 acks", |sub| sub.counts().acked == 10).await;
    assert!(world.sub.is_acked(&ids[9]) && !world.sub.is_acked(&ids[10]));
    host.checkpoint().await.expect("checkpoints");
    world.until("the rest", |sub| sub.backlog() == 0).await;
    world.close(host).await;
}

#[tokio::test]
async fn leases_are_kept_over_many_checkpoint_intervals_also_when_nobody_polls() {
    let world = World::new().await;
    world.publish("m", 20);
    let mut host = world.start(world.builder());
    host.run_to(10).await.expect("reads");
    // Ten minutes with a subscription deadline of 10 s.
    world.advance_with_leases(600).await;
    host.run_to(20).await.expect("reads on");
    host.checkpoint().await.expect("checkpoints");
    world.until("20 acks", |sub| sub.counts().acked == 20).await;
    assert_eq!(world.sub.counts().redelivered, 0);
    assert_eq!(world.metric(metrics::LEASES_LOST), 0);
    world.close(host).await;
}

#[tokio::test]
async fn a_redelivered_copy_is_not_emitted_again_and_brings_the_id_to_ack_by() {
    let world = World::new().await;
    world.sub.set_late_acks(aqueduct_sim::LateAcks::DoNothing);
    world.publish("m", 10);
    let off = options().max_ack_extension_period(Duration::ZERO);
    let mut host = world.start(world.builder().subscriber_options(off));
    host.run_to(10).await.expect("reads");
    let covered = host.barrier().await.expect("snapshots");
    for round in 1..=3 {
        world.advance(Duration::from_secs(11));
        until(LIMIT, "the redelivery", || {
            world.metric(metrics::MESSAGES_RECEIVED) == 10 * (round + 1)
        })
        .await;
    }
    assert_eq!(world.metric(metrics::PENDING_ACKS), 10);
    host.complete(&covered).expect("completes");
    world.until("10 acks", |sub| sub.backlog() == 0).await;
    assert_eq!((world.sub.counts().acked, host.emitted_count()), (10, 10));
    world.close(host).await;
    assert_eq!(world.metric(metrics::LEASES_LOST), 30);
}

#[tokio::test]
async fn a_close_returns_everything_that_no_checkpoint_covers() {
    let world = World::new().await;
    let ids = world.publish("m", 30);
    let mut host = world.start(world.builder());
    host.run_to(10).await.expect("reads");
    let first = barrier_now(&mut host);
    host.complete(&first).expect("completes");
    world.until("10 acks", |sub| sub.counts().acked == 10).await;
    host.run_to(15).await.expect("reads");
    barrier_now(&mut host);
    host.run_to(20).await.expect("reads");
    world.close(host).await;
    let counts = world.sub.counts();
    assert_eq!(
        (counts.nacked, world.sub.outstanding(), world.sub.backlog()),
        (20, 0, 20)
    );
    assert!(
        ids.iter().all(|id| world.sub.deliveries(id) == 1),
        "a returned message came back to the closing stream"
    );
    assert_eq!(world.metric(metrics::MESSAGES_NACKED), 20);
    assert_eq!(world.metric(metrics::SHUTDOWNS_ABANDONED), 0);
}

#[tokio::test]
async fn a_close_of_six_splits_sends_all_returns_at_once_and_ends_in_one_timeout() {
    let world = World::new().await;
    let pubsub = world.sim.pubsub();
    let quick = options().shutdown_timeout(Duration::from_millis(600));
    let mut builder = world.builder().subscriber_options(quick);
    for at in 2..=6 {
        pubsub.create_subscription("p", &format!("s{at}"), &world.topic);
        builder = builder.subscription(destination(&format!("s{at}")));
    }
    world.publish("m", 10);
    let kit = TestContext::new("source");
    let mut host = aqueduct_testkit::SourceHost::start(arc(builder), &kit, 1).expect("starts");
    host.run_to(60).await.expect("reads");
    pubsub.always(Method::ModifyAckDeadline).silent();
    let began = std::time::Instant::now();
    host.close().await.expect("a teardown fails no job");
    let took = began.elapsed();
    assert!(
        took < Duration::from_secs(3),
        "one after the other: {took:?}"
    );
    let total = |name| kit.registry().total(name);
    assert_eq!(total(metrics::SHUTDOWNS_ABANDONED), 1);
    assert_eq!(total(metrics::PENDING_ACKS), 0);
    assert_eq!(
        total(metrics::MESSAGES_NACKED),
        60,
        "all were sent before anything was waited for"
    );
}

#[tokio::test]
async fn a_lapse_in_the_buffer_keeps_the_order_of_its_key() {
    let world = World::with(|settings| settings.enable_message_ordering = true).await;
    for at in 0..6 {
        world.topic.publish_keyed("k", format!("k{at}"));
    }
    let short = options()
        .max_ack_extension_period(Duration::from_secs(60))
        .max_records_per_fetch(messages(1))
        .first_checkpoint_timeout(Duration::ZERO);
    let builder = world
        .builder()
        .ordering_mode(OrderingMode::PerKey)
        .subscriber_options(short);
    let mut host = world.start(builder);
    host.run_to(1).await.expect("reads");
    // The period of everything buffered ends while nobody takes it.
    for _ in 0..90 {
        world.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    until(LIMIT, "the buffer to empty", || {
        world.metric(metrics::BUFFERED_MESSAGES) <= 1
    })
    .await;
    let mut steps = 0;
    while host.emitted_count() < 6 {
        steps += 1;
        assert!(steps < 50_000, "no progress: {:?}", emitted(&host));
        if steps % 20 == 0 {
            world.advance(Duration::from_millis(50));
            host.checkpoint().await.expect("checkpoints");
        }
        host.try_step().await.expect("reads on");
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

#[tokio::test]
async fn a_message_without_records_is_counted_and_acknowledged_by_its_checkpoint() {
    let world = World::new().await;
    world.publish("skip", 3);
    world.publish("m", 2);
    world.publish("skip", 2);
    let mut host = world.start(world.builder());
    host.run_to(2).await.expect("reads");
    until(LIMIT, "all to arrive", || {
        world.metric(metrics::MESSAGES_RECEIVED) == 7
    })
    .await;
    host.run_until(|_| world.metric(metrics::RECORDS_SKIPPED) == 5)
        .await
        .expect("reads");
    assert_eq!(world.sub.counts().acked, 0);
    host.checkpoint().await.expect("checkpoints");
    world.until("7 acks", |sub| sub.backlog() == 0).await;
    world.close(host).await;
}

#[tokio::test]
async fn an_undecodable_message_fails_the_job_by_its_id_and_stays() {
    let world = World::new().await;
    let id = world.topic.publish("bad-secret");
    let mut host = world.start(world.builder());
    let error = failure(&mut host).await;
    assert_eq!(error.kind(), ErrorKind::User);
    let text = error.report();
    for part in [
        &*id,
        "projects/p/subscriptions/s",
        "'drop'",
        "'nack'",
        "no such format",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("secret"), "{text}");
    world.close(host).await;
    assert_eq!(world.sub.backlog(), 1);
}

#[tokio::test]
async fn dropping_acknowledges_at_once_what_gave_nothing_and_by_checkpoint_what_gave_something() {
    let world = World::new().await;
    world.publish("bad", 2);
    let half = world.topic.publish("half");
    world.publish("m", 1);
    let policy = DeserializationFailurePolicy::Drop;
    let mut host = world.start(world.builder().deserialization_failure_policy(policy));
    host.run_to(3).await.expect("reads on");
    assert_eq!(emitted(&host), ["half/1", "half/2", "m0"]);
    world
        .tick_until("2 acks", || world.sub.counts().acked == 2)
        .await;
    assert!(!world.sub.is_acked(&half));
    assert_eq!(world.metric(metrics::MESSAGES_DROPPED), 3);
    assert_eq!(world.metric(metrics::RECORDS_IN_ERRORS), 3);
    host.checkpoint().await.expect("checkpoints");
    world.until("the rest", |sub| sub.backlog() == 0).await;
    world.close(host).await;
}

#[tokio::test]
async fn returned_messages_reach_the_dead_letter_topic_while_neighbours_arrive() {
    let world = World::with(|settings| {
        settings.dead_letter_policy = Some(pb::DeadLetterPolicy {
            dead_letter_topic: "projects/p/topics/dead".to_owned(),
            max_delivery_attempts: 5,
        });
    })
    .await;
    let dead = world.sim.pubsub().create_topic("p", "dead");
    world.publish("bad", 1);
    world.publish("m", 3);
    let policy = DeserializationFailurePolicy::Nack;
    let mut host = world.start(world.builder().deserialization_failure_policy(policy));
    host.run_to(3).await.expect("neighbours arrive");
    let mut nacked = 0;
    while dead.published() == 0 {
        nacked += 1;
        host.run_until(|_| world.metric(metrics::RECORDS_IN_ERRORS) >= nacked)
            .await
            .expect("the job keeps running");
        world
            .tick_until("the return", || {
                world.metric(metrics::MESSAGES_NACKED) >= nacked
            })
            .await;
        until(LIMIT, "the next delivery, or the dead letter", || {
            dead.published() > 0 || world.metric(metrics::MESSAGES_RECEIVED) > 3 + nacked
        })
        .await;
    }
    assert_eq!(nacked, 5);
    assert_eq!(emitted(&host), names("m", 3));
    host.checkpoint().await.expect("checkpoints");
    world.until("the rest", |sub| sub.backlog() == 0).await;
    world.close(host).await;
}

#[tokio::test]
async fn without_checkpoints_a_held_message_fails_the_job_and_nothing_else_does() {
    let day = Duration::from_secs(86_400);
    for (published, barrier, fails) in [(1, false, true), (0, false, false), (1, true, false)] {
        let world = World::new().await;
        world.publish("m", published);
        let mut host = world.start(world.builder());
        if published > 0 {
            host.run_to(1).await.expect("reads");
        } else {
            step_until(&mut host, "a stream", |_| world.sub.open_streams() == 1).await;
        }
        if barrier {
            drop(host.barrier().await.expect("snapshots"));
        }
        for _ in 0..22 {
            world.clock.advance(Duration::from_secs(30));
            tokio::task::yield_now().await;
        }
        if fails {
            let error = failure(&mut host).await.to_string();
            assert!(
                error.contains("execution.checkpointing.interval")
                    && error.contains("scan.first-checkpoint-timeout"),
                "{error}"
            );
        } else {
            for _ in 0..50 {
                host.try_step().await.expect("never fires");
            }
        }
        world.clock.advance(day);
        drop(host);
    }
}

#[tokio::test]
async fn flow_control_holds_over_reopened_streams_until_a_checkpoint_frees_it() {
    let world = World::new().await;
    world.sub.set_messages_per_response(5);
    world.publish("m", 100);
    let ten = options().flow_control_max_outstanding_element_count(messages(10));
    let mut host = world.start(world.builder().subscriber_options(ten));
    host.run_to(10).await.expect("reads");
    for _ in 0..5 {
        world.sub.close_streams(Code::Unavailable);
        for _ in 0..20 {
            world.advance(Duration::from_millis(100));
            host.try_step().await.expect("well");
        }
    }
    let received = world.metric(metrics::MESSAGES_RECEIVED);
    assert!((10..=15).contains(&received), "{received}");
    host.checkpoint().await.expect("checkpoints");
    world.until("acks", |sub| sub.counts().acked >= 10).await;
    for step in 2..=10 {
        let mut stepped = 0;
        while host.emitted_count() < step * 10 {
            stepped += 1;
            assert!(stepped < 10_000, "no progress");
            world.advance(Duration::from_millis(1));
            host.try_step().await.expect("reads on");
        }
        host.checkpoint().await.expect("checkpoints");
    }
    world.until("all acked", |sub| sub.backlog() == 0).await;
    world.close(host).await;
}

#[tokio::test]
async fn a_paused_split_over_its_bound_is_parked_and_resumes_without_loss() {
    let world = World::new().await;
    let ids = world.publish("m", 100);
    world.sub.set_messages_per_response(10);
    let own = options()
        .paused_split_buffer_max_messages(messages(50))
        .max_records_per_fetch(messages(10));
    let mut host = world.start(world.builder().subscriber_options(own));
    host.run_to(10).await.expect("reads");
    let split = [SplitId::new("0")];
    host.pause_splits(0, &split, &[]);
    until(LIMIT, "the parking", || {
        world.metric(metrics::SPLITS_PARKED) == 1
    })
    .await;
    world
        .until("the returns", |sub| sub.outstanding() == 10)
        .await;
    until(LIMIT, "the account", || {
        world.metric(metrics::PENDING_ACKS) == 10
    })
    .await;
    assert_eq!(world.metric(metrics::BUFFERED_MESSAGES), 0);
    // What was emitted is still acknowledged by its checkpoint.
    host.checkpoint().await.expect("checkpoints");
    world.until("10 acks", |sub| sub.counts().acked == 10).await;
    host.pause_splits(0, &[], &split);
    host.run_to(100).await.expect("resumes");
    host.checkpoint().await.expect("checkpoints");
    world.until("the rest", |sub| sub.backlog() == 0).await;
    assert_eq!(
        emitted(&host),
        names("m", 100),
        "nothing again, nothing lost"
    );
    assert!(ids.iter().all(|id| world.sub.deliveries(id) <= 2));
    assert_eq!(world.metric(metrics::SPLITS_PARKED), 1);
    world.close(host).await;
}

#[tokio::test]
async fn a_split_paused_beyond_its_leases_is_parked_once_and_spends_one_attempt_a_message() {
    let world = World::new().await;
    let ids = world.publish("m", 20);
    let short = options()
        .max_ack_extension_period(Duration::from_secs(60))
        .max_records_per_fetch(messages(5));
    let mut host = world.start(world.builder().subscriber_options(short));
    host.run_to(5).await.expect("reads");
    host.checkpoint().await.expect("checkpoints");
    world.until("5 acks", |sub| sub.counts().acked == 5).await;
    let split = [SplitId::new("0")];
    host.pause_splits(0, &split, &[]);
    for _ in 0..200 {
        host.try_step().await.expect("well");
        world.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    until(LIMIT, "the parking", || {
        world.metric(metrics::PARKED_SPLITS) == 1 && world.metric(metrics::BUFFERED_MESSAGES) == 0
    })
    .await;
    assert_eq!(world.metric(metrics::SPLITS_PARKED), 1);
    assert!(ids.iter().all(|id| world.sub.deliveries(id) <= 2));
    host.pause_splits(0, &[], &split);
    host.run_to(20).await.expect("resumes");
    host.checkpoint().await.expect("checkpoints");
    world.until("the rest", |sub| sub.backlog() == 0).await;
    world.close(host).await;
}

#[tokio::test]
async fn per_key_order_holds_while_messages_are_returned() {
    let world = World::with(|settings| {
        settings.enable_message_ordering = true;
        settings.dead_letter_policy = Some(pb::DeadLetterPolicy {
            dead_letter_topic: "projects/p/topics/dead".to_owned(),
            max_delivery_attempts: 5,
        });
    })
    .await;
    world.sim.pubsub().create_topic("p", "dead");
    for at in 0..12 {
        world.topic.publish_keyed("a", format!("a{at:02}"));
        let text = if at == 3 {
            "bad".to_owned()
        } else {
            format!("b{at:02}")
        };
        world.topic.publish_keyed("b", text);
    }
    let builder = world
        .builder()
        .ordering_mode(OrderingMode::PerKey)
        .deserialization_failure_policy(DeserializationFailurePolicy::Nack);
    let mut host = world.start_at(builder, 2);
    let mut steps = 0;
    while host.emitted_count() < 23 {
        steps += 1;
        assert!(steps < 20_000, "no progress: {:?}", emitted(&host));
        host.try_step().await.expect("reads on");
        if steps % 20 == 0 {
            world.advance(Duration::from_millis(50));
            // One batch a key is out until it is acknowledged.
            host.checkpoint().await.expect("checkpoints");
        }
    }
    let all = emitted(&host);
    for key in ["a", "b"] {
        let of_key: Vec<&String> = all.iter().filter(|text| text.starts_with(key)).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
    world.close(host).await;
}

#[tokio::test]
async fn refused_acknowledgements_are_counted_and_with_confirmation_fail_the_job() {
    for confirmed in [false, true] {
        let world = World::new().await;
        world.publish("m", 4);
        world.sub.deny(Method::Acknowledge);
        let mut own = options();
        if confirmed {
            own = own.await_ack_confirmation(Duration::from_secs(30));
        }
        let mut host = world.start(world.builder().subscriber_options(own));
        host.run_to(4).await.expect("reads");
        host.checkpoint().await.expect("checkpoints");
        until(LIMIT, "the refusal", || {
            world.metric(metrics::ACKS_FAILED) == 4
        })
        .await;
        if confirmed {
            let error = failure(&mut host).await.to_string();
            assert!(
                error.contains("checkpoint 1 ") && error.contains("4 of"),
                "{error}"
            );
        }
        world.assert_accounting();
        world.close(host).await;
    }
}

#[tokio::test]
async fn with_confirmation_nothing_is_emitted_until_the_acknowledgements_are_answered() {
    let world = World::new().await;
    world.publish("m", 4);
    let gate = aqueduct_sim::Gate::new();
    world.sub.next(1, Method::Acknowledge).hold_answer(&gate);
    let own = options().await_ack_confirmation(Duration::from_secs(30));
    let mut host = world.start(world.builder().subscriber_options(own));
    host.run_to(4).await.expect("reads");
    host.checkpoint().await.expect("checkpoints");
    world.until("the acks", |sub| sub.counts().acked == 4).await;
    world.publish("n", 4);
    for _ in 0..100 {
        host.try_step().await.expect("waits");
    }
    assert_eq!(host.emitted_count(), 4);
    gate.open();
    host.run_to(8).await.expect("goes on");
    world.close(host).await;
}

#[tokio::test]
async fn many_long_ack_ids_leave_in_several_requests() {
    let world = World::new().await;
    world.publish("m", 2_600);
    let much = options().flow_control_max_outstanding_element_count(messages(10_000));
    let mut host = world.start(world.builder().subscriber_options(much));
    host.run_to(2_600).await.expect("reads");
    host.checkpoint().await.expect("checkpoints");
    world
        .until("all acks", |sub| sub.counts().acked == 2_600)
        .await;
    assert_eq!(world.sub.requests_of(Method::Acknowledge).len(), 4);
    world.close(host).await;
}

#[tokio::test]
async fn a_lost_answer_to_an_acknowledgement_is_asked_for_again() {
    let world = World::new().await;
    world.publish("m", 10);
    world
        .sub
        .next(1, Method::Acknowledge)
        .apply_then_status(Code::Unavailable);
    let mut host = world.start(world.builder());
    host.run_to(10).await.expect("reads");
    host.checkpoint().await.expect("checkpoints");
    world.until("10 acks", |sub| sub.counts().acked == 10).await;
    until(LIMIT, "the failed attempt", || {
        world.metric("errorClass.UNAVAILABLE.errors") == 1
    })
    .await;
    world
        .tick_until("the answer", || world.metric(metrics::MESSAGES_ACKED) == 10)
        .await;
    assert_eq!(world.sub.requests_of(Method::Acknowledge).len(), 2);
    world.close(host).await;
}

#[tokio::test]
async fn an_exactly_once_subscription_is_read_once_when_accepted() {
    let world = World::with(|settings| settings.enable_exactly_once_delivery = true).await;
    world.publish("m", 10);
    let accept = ExactlyOnceSubscriptions::Accept;
    let mut host = world.start(world.builder().exactly_once_subscriptions(accept));
    host.run_to(10).await.expect("reads");
    assert!(
        world.sub.counts().extended >= 10,
        "leases are confirmed before anything is emitted"
    );
    // Two ids are refused for now, and the answer to the rest is lost.
    world
        .sub
        .fail_ack_ids(2, aqueduct_sim::AckFailure::Transient);
    host.checkpoint().await.expect("checkpoints");
    world.until("8 acks", |sub| sub.counts().acked == 8).await;
    until(LIMIT, "their answers", || {
        world.metric(metrics::MESSAGES_ACKED) == 8
    })
    .await;
    world
        .tick_until("the others", || world.sub.backlog() == 0)
        .await;
    assert_eq!(host.emitted_count(), 10);
    world.close(host).await;
    assert_eq!(world.sub.counts().redelivered, 0);
}

#[tokio::test]
async fn an_id_that_can_never_be_acked_waits_for_its_redelivery_unemitted() {
    let world = World::with(|settings| settings.enable_exactly_once_delivery = true).await;
    world.publish("m", 1);
    let accept = ExactlyOnceSubscriptions::Accept;
    let mut host = world.start(world.builder().exactly_once_subscriptions(accept));
    host.run_to(1).await.expect("reads");
    world
        .sub
        .fail_ack_ids(1, aqueduct_sim::AckFailure::Permanent);
    host.checkpoint().await.expect("checkpoints");
    until(LIMIT, "the refusal", || {
        !world.sub.requests_of(Method::Acknowledge).is_empty()
    })
    .await;
    assert_eq!(world.sub.backlog(), 1);
    // The service believes the lease to be over.
    world.sim.pubsub().advance(Duration::from_secs(700));
    until(LIMIT, "the redelivery", || {
        world.metric(metrics::MESSAGES_RECEIVED) == 2
    })
    .await;
    world
        .tick_until("its ack", || world.sub.backlog() == 0)
        .await;
    assert_eq!(host.emitted_count(), 1);
    world.close(host).await;
}

#[tokio::test]
async fn a_host_that_takes_nothing_bounds_what_is_buffered_and_leases_go_on() {
    let world = World::new().await;
    world.sub.set_messages_per_response(7);
    world.publish("m", 300);
    let fifty = options()
        .subscriber_buffer_max_messages(messages(50))
        .first_checkpoint_timeout(Duration::ZERO);
    let mut host = world.start(world.builder().subscriber_options(fifty));
    step_until(&mut host, "a batch", |host| host.outstanding(0) > 0).await;
    until(LIMIT, "the buffer to fill", || {
        world.metric(metrics::BUFFERED_MESSAGES) >= 50
    })
    .await;
    for _ in 0..5 {
        world.sub.close_streams(Code::Unavailable);
        world.advance_with_leases(4).await;
    }
    world.advance_with_leases(600).await;
    let buffered = world.metric(metrics::BUFFERED_MESSAGES);
    assert!((50..=57).contains(&buffered), "{buffered}");
    assert_eq!(world.metric(metrics::LEASES_LOST), 0);
    let mut steps = 0;
    while host.emitted_count() < 300 {
        steps += 1;
        assert!(steps < 50_000, "no progress");
        if steps % 20 == 0 {
            world.advance(Duration::from_millis(100));
        }
        host.try_step().await.expect("reads on");
    }
    host.checkpoint().await.expect("checkpoints");
    world.until("every ack", |sub| sub.backlog() == 0).await;
    world.close(host).await;
}

#[tokio::test]
async fn two_subscriptions_of_one_topic_are_both_acknowledged_although_their_ids_are_equal() {
    let world = World::new().await;
    let other = world
        .sim
        .pubsub()
        .create_subscription("p", "s2", &world.topic);
    world.publish("m", 10);
    let mut host = world.start(world.builder().subscription(destination("s2")));
    host.run_to(20).await.expect("both copies");
    host.checkpoint().await.expect("checkpoints");
    until(LIMIT, "the acks of both", || {
        world.sub.backlog() == 0 && other.backlog() == 0
    })
    .await;
    world.close(host).await;
}

#[tokio::test]
async fn a_key_file_that_cannot_be_used_shows_neither_path_nor_content() {
    let source = aqueduct_pubsub::PubSubSource::<String>::builder()
        .subscription(destination("s"))
        .deserializer(deserialize)
        .service_account_key_file("/nowhere/secret-name.json")
        .build()
        .expect("the file is read where the job runs");
    let kit = TestContext::new("source");
    let source: std::sync::Arc<dyn aqueduct_connector::source::Source<String>> =
        std::sync::Arc::new(source);
    let mut host = aqueduct_testkit::SourceHost::start(source, &kit, 1).expect("starts");
    let error = failure(&mut host).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        !error.report().contains("secret-name"),
        "{}",
        error.report()
    );
    host.close().await.expect("closes");
}
