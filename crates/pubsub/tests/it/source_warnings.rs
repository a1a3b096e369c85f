//! What a reader says when something is wrong: each warning once, naming what it is about and what to do.

use std::num::NonZeroU64;
use std::time::Duration;

use aqueduct_connector::source::SplitId;
use aqueduct_pubsub::SubscriberOptions;
use aqueduct_pubsub::source::{DeserializationFailurePolicy, OrderingMode, metrics};
use aqueduct_sim::{Code, Method};
use aqueduct_testkit::log::capture;
use aqueduct_testkit::{SourceHost, until};
use tokio::net::TcpListener;
use tracing::Level;

use super::source_support::*;

const SUBSCRIPTION: &str = "projects/p/subscriptions/s";

fn messages(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).expect("not zero")
}

/// Lets a second pass and what is due in it happen.
async fn second(world: &World, host: &mut SourceHost<String>) {
    world.advance(Duration::from_secs(1));
    for _ in 0..20 {
        host.try_step().await.expect("well");
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test]
async fn acknowledgements_that_are_given_up_are_warned_about_once_a_minute_with_their_number() {
    let log = capture();
    let world = World::new().await;
    world.sub.deny(Method::Acknowledge);
    let mut host = world.start(world.builder());
    for round in 0..3 {
        world.publish("m", 4);
        host.run_until_emitted(4).await.expect("reads");
        host.checkpoint().await.expect("checkpoints");
        until(LIMIT, "the refusal", || {
            world.metric(metrics::ACKS_FAILED) == 4 * (round + 1)
        })
        .await;
    }
    let warning = log.one_warning("acknowledgements were given up");
    assert_eq!(warning.field("ids"), Some("4"));
    assert_eq!(warning.field("status"), Some("PERMISSION_DENIED"));
    assert_eq!(warning.field("subscription"), Some(SUBSCRIPTION));
    let given_up = || -> Vec<i128> {
        log.matching(Level::WARN, "acknowledgements were given up")
            .iter()
            .filter_map(|warning| warning.field("ids")?.parse().ok())
            .collect()
    };
    let mut waited = 0;
    while given_up().len() < 2 {
        waited += 1;
        assert!(waited < 100, "silent after {waited} s");
        second(&world, &mut host).await;
        host.checkpoint().await.expect("checkpoints");
    }
    assert!(waited >= 60, "again after {waited} s");
    assert_eq!(
        given_up().iter().sum::<i128>(),
        world.metric(metrics::ACKS_FAILED),
        "with those in between"
    );
    world.close(host).await;
}

#[tokio::test]
async fn lost_leases_are_warned_about_once_a_minute_naming_the_option() {
    let log = capture();
    let world = World::new().await;
    world.publish("m", 10);
    let short = SubscriberOptions::new()
        .max_ack_extension_period(Duration::from_secs(60))
        .first_checkpoint_timeout(Duration::ZERO);
    let mut host = world.start(world.builder().subscriber_options(short));
    host.run_to(10).await.expect("reads");
    for _ in 0..65 {
        second(&world, &mut host).await;
    }
    let warning = log.one_warning("leases ended before their messages were acknowledged");
    assert!(
        warning.message.contains("scan.ack.max-extension-period"),
        "{warning}"
    );
    assert_eq!(warning.field("messages"), Some("10"));
    host.checkpoint().await.expect("checkpoints");
    world
        .tick_until("the acks", || world.sub.backlog() == 0)
        .await;
    world.close(host).await;
}

#[tokio::test]
async fn a_parked_split_is_named_and_so_is_a_return_that_is_not_answered_in_time() {
    let log = capture();
    let world = World::new().await;
    world.publish("m", 60);
    world.sub.set_messages_per_response(10);
    let options = SubscriberOptions::new()
        .paused_split_buffer_max_messages(messages(30))
        .max_records_per_fetch(messages(10));
    let mut host = world.start(world.builder().subscriber_options(options));
    host.run_to(10).await.expect("reads");
    world.sub.always(Method::ModifyAckDeadline).silent();
    let split = [SplitId::new("0")];
    host.pause_splits(0, &split, &[]);
    until(LIMIT, "the parking", || {
        world.metric(metrics::SPLITS_PARKED) == 1
    })
    .await;
    let warning = log.one_warning("split parked");
    assert_eq!(warning.field("subscription"), Some(SUBSCRIPTION));
    assert_eq!(warning.field("split"), Some("0"));
    assert!(
        warning.message.contains("idle") && warning.message.contains("delivery attempt"),
        "{warning}"
    );
    for _ in 0..8 {
        second(&world, &mut host).await;
    }
    let warning = log.one_warning("of a parked split were not returned in time");
    assert_eq!(warning.field("subscription"), Some(SUBSCRIPTION));
    world.sim.pubsub().clear_faults();
    host.pause_splits(0, &[], &split);
    until(LIMIT, "the new stream", || {
        !log.matching(Level::INFO, "parked split reopened")
            .is_empty()
    })
    .await;
    let mut steps = 0;
    while world.sub.backlog() > 0 {
        steps += 1;
        assert!(steps < 1_000, "stuck with {}", world.sub.backlog());
        second(&world, &mut host).await;
        host.checkpoint().await.expect("checkpoints");
    }
    world.close(host).await;
}

#[tokio::test]
async fn a_minute_without_a_stream_is_warned_about_whether_opening_fails_or_hangs() {
    for hangs in [false, true] {
        let log = capture();
        let world = World::new().await;
        world.publish("m", 1);
        let mut host = world.start(world.builder());
        host.run_to(1).await.expect("reads");
        let fault = world.sub.always(Method::StreamingPull);
        if hangs {
            fault.silent();
        } else {
            fault.status(Code::Unavailable);
        }
        world.sub.reset_streams();
        let mut waited = 0;
        while log.matching(Level::WARN, "no stream").is_empty() {
            waited += 1;
            assert!(waited < 200, "hangs {hangs}: no warning");
            second(&world, &mut host).await;
        }
        assert!((60..130).contains(&waited), "hangs {hangs}: {waited} s");
        let warning = log.one_warning("no stream");
        assert_eq!(warning.field("subscription"), Some(SUBSCRIPTION));
        world.sim.pubsub().clear_faults();
        world.publish("n", 1);
        let mut steps = 0;
        while host.emitted_count() < 2 {
            steps += 1;
            assert!(steps < 200, "hangs {hangs}: does not read on");
            second(&world, &mut host).await;
        }
        host.checkpoint().await.expect("checkpoints");
        world
            .tick_until("the acks", || world.sub.backlog() == 0)
            .await;
        host.close().await.expect("closes");
    }
}

#[tokio::test]
async fn a_service_that_accepts_connections_and_says_nothing_is_warned_about() {
    let log = capture();
    let world = World::new().await;
    // Verified by the service, read from a hole: the proxy works until the stream is to be opened.
    let proxy = Proxy::start(&world.sim).await;
    let mut host = world.start(world.builder().emulator_endpoint(&*proxy.address));
    step_until(&mut host, "a stream", |_| world.sub.open_streams() == 1).await;
    proxy.swallow_from_now_on();
    world.sim.cut_connections();
    let mut waited = 0;
    while log.matching(Level::WARN, "no stream").is_empty() {
        waited += 1;
        assert!(waited < 240, "no warning");
        second(&world, &mut host).await;
    }
    assert!(waited >= 60, "{waited} s");
    host.kill();
}

#[tokio::test]
async fn a_response_that_cannot_be_decoded_is_warned_about_and_comes_again() {
    let log = capture();
    let world = World::new().await;
    let proxy = Proxy::start(&world.sim).await;
    let mut host = world.start(world.builder().emulator_endpoint(&*proxy.address));
    step_until(&mut host, "a stream", |_| world.sub.open_streams() == 1).await;
    // An ordering key is text; this one is none any more when it arrives.
    proxy.spoil_next(b"a-key-that-is-spoilt");
    world.topic.publish_keyed("a-key-that-is-spoilt", "m0");
    until(LIMIT, "the warning", || {
        !log.matching(Level::WARN, "could not be decoded").is_empty()
    })
    .await;
    let warning = log.one_warning("could not be decoded");
    assert_eq!(warning.field("subscription"), Some(SUBSCRIPTION));
    assert_eq!(world.metric("errorClass.INTERNAL.errors"), 1);
    let mut waited = 0;
    while host.emitted_count() < 1 {
        waited += 1;
        assert!(waited < 100, "it does not come again");
        second(&world, &mut host).await;
    }
    assert_eq!(emitted(&host), ["m0"]);
    host.checkpoint().await.expect("checkpoints");
    world
        .tick_until("its ack", || world.sub.backlog() == 0)
        .await;
    host.close().await.expect("closes");
}

#[tokio::test]
async fn a_close_that_runs_out_of_time_says_how_many_messages_it_leaves() {
    let log = capture();
    let world = World::new().await;
    world.publish("m", 7);
    let mut host = world.start(world.builder());
    host.run_to(7).await.expect("reads");
    world.sub.always(Method::ModifyAckDeadline).silent();
    world.sub.always(Method::Acknowledge).silent();
    let checkpoint = barrier_now(&mut host);
    host.complete(&checkpoint).expect("completes");
    let mut closing = std::pin::pin!(host.close());
    loop {
        tokio::select! {
            biased;
            closed = &mut closing => break closed.expect("a teardown fails no job"),
            () = tokio::time::sleep(Duration::from_millis(1)) => world.advance(Duration::from_millis(50)),
        }
    }
    let warning = log.one_warning("were not returned or acknowledged in time");
    assert_eq!(warning.field("messages"), Some("7"));
    assert_eq!(world.metric(metrics::SHUTDOWNS_ABANDONED), 1);
    world.assert_accounting();
}

#[tokio::test]
async fn a_failure_that_only_the_close_finds_is_logged() {
    let log = capture();
    let world = World::new().await;
    world.publish("m", 3);
    let mut host = world.start(world.builder());
    host.run_to(3).await.expect("reads");
    world.sub.delete();
    until(LIMIT, "the end of the stream", || {
        world.metric("errorClass.NOT_FOUND.errors") >= 1
    })
    .await;
    host.close().await.expect("closes");
    let warning = log.one_warning("a failure was found only by the close");
    assert!(warning.to_string().contains(SUBSCRIPTION), "{warning}");
}

#[tokio::test]
async fn undecodable_messages_are_logged_ten_times_and_then_at_powers_of_two() {
    let log = capture();
    let world = World::new().await;
    world.publish("bad", 40);
    let drop = DeserializationFailurePolicy::Drop;
    let mut host = world.start(world.builder().deserialization_failure_policy(drop));
    host.run_until(|_| world.metric(metrics::MESSAGES_DROPPED) == 40)
        .await
        .expect("reads");
    let warnings = log.matching(Level::WARN, "undecodable message dropped");
    let counts: Vec<_> = warnings
        .iter()
        .filter_map(|warning| warning.field("so_far"))
        .collect();
    assert_eq!(
        counts,
        [
            "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "16", "32"
        ]
    );
    assert!(warnings.iter().all(|warning| warning.field("id").is_some()
        && warning.field("subscription") == Some(SUBSCRIPTION)));
    world
        .tick_until("the acks", || world.sub.backlog() == 0)
        .await;
    world.close(host).await;
}

#[tokio::test]
async fn a_start_without_extension_with_idle_subtasks_or_another_list_is_told() {
    let log = capture();
    let world = World::with(|settings| settings.enable_message_ordering = true).await;
    let off = SubscriberOptions::new().max_ack_extension_period(Duration::ZERO);
    let builder = || {
        world
            .builder()
            .ordering_mode(OrderingMode::PerKey)
            .subscriber_options(off.clone())
    };
    let mut host = world.start_at(builder(), 3);
    world.publish("m", 1);
    host.run_to(1).await.expect("reads");
    let checkpoint = host.checkpoint().await.expect("checkpoints");
    drop(log.one_warning("lease extension is disabled"));
    let idle = log.one_warning("the others finish at once");
    assert_eq!(idle.field("idle"), Some("2"));
    host.close().await.expect("closes");
    world
        .sim
        .pubsub()
        .create_subscription_with("p", "s2", &world.topic, |settings| {
            settings.enable_message_ordering = true;
        });
    let two = builder().subscription(destination("s2"));
    let kit = world.kit.next_attempt();
    let host = SourceHost::restore(arc(two), &kit, &checkpoint, 1).expect("restores");
    let differs = log.one_warning("names other subscriptions");
    assert!(differs.to_string().contains(SUBSCRIPTION), "{differs}");
    host.close().await.expect("closes");
}

/// Nothing listens where it should: the start itself fails, by name and in time.
#[tokio::test]
async fn a_start_without_a_service_fails_naming_the_subscription() {
    let world = World::new().await;
    let hole = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = hole.local_addr().expect("bound").to_string();
    drop(hole);
    let mut host = world.start(world.builder().emulator_endpoint(address));
    let mut steps = 0;
    let error = loop {
        steps += 1;
        assert!(steps < 20_000, "no failure");
        match host.try_step().await {
            Err(error) => break error,
            Ok(Some(_)) => {}
            Ok(None) => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                world.advance(Duration::from_millis(500));
            }
        }
    };
    assert!(error.report().contains(SUBSCRIPTION), "{}", error.report());
    host.close().await.expect("closes");
}
