//! Streams: whatever ends one, reading goes on and acknowledgements land; what cannot be repaired fails the job.

use std::time::Duration;

use aqueduct_connector::source::SplitId;
use aqueduct_pubsub::source::metrics;
use aqueduct_sim::{Code, Method};
use aqueduct_testkit::{SourceHost, TestContext, until};

use super::source_support::*;

/// Ends that a stream survives.
const SURVIVED: [Code; 10] = [
    Code::Cancelled,
    Code::Ok,
    Code::Unknown,
    Code::DeadlineExceeded,
    Code::ResourceExhausted,
    Code::Aborted,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::OutOfRange,
];

#[tokio::test]
async fn a_stream_is_opened_again_after_every_passing_end_and_acknowledgements_land() {
    let world = World::new().await;
    // Delays are at most 100 ms, as each stream gives a response.
    let kit = TestContext::new("source");
    let source = arc(world.builder());
    let mut host = SourceHost::start(source, &kit, 1).expect("starts");
    world.publish("first", 5);
    host.run_to(5).await.expect("reads");
    let mut total = 5;
    let mut ends: Vec<Box<dyn Fn()>> = Vec::new();
    for code in SURVIVED {
        let sub = world.sub.clone();
        ends.push(Box::new(move || sub.close_streams(code)));
    }
    ends.push(Box::new(|| world.sub.reset_streams()));
    ends.push(Box::new(|| world.sub.cut_streams()));
    ends.push(Box::new(|| world.sim.recycle_connections()));
    ends.push(Box::new(|| world.sim.cut_connections()));
    for (round, end) in ends.iter().enumerate() {
        let covered = host.barrier().await.expect("snapshots");
        end();
        host.complete(&covered).expect("completes");
        world.publish(&format!("r{round}-"), 3);
        total += 3;
        host.run_to(total).await.expect("reads on");
    }
    host.checkpoint().await.expect("checkpoints");
    world.until("every ack", |sub| sub.backlog() == 0).await;
    assert_eq!(host.emitted_count(), total);
    assert!(kit.registry().total(metrics::STREAMS_REOPENED) >= 13);
    host.close().await.expect("closes");
}

#[tokio::test]
async fn a_silent_or_half_open_stream_is_replaced_and_its_messages_come_again() {
    for swallows in [false, true] {
        let world = World::new().await;
        world.publish("m", 5);
        let mut host = world.start(world.builder());
        host.run_to(5).await.expect("reads");
        if swallows {
            world.sub.swallow_streams();
        } else {
            world.sub.silence_streams();
        }
        world.publish("n", 5);
        // A keepalive after 30 s, no answer for 15 s, then a new stream after a short delay.
        let mut waited = 0;
        while world.metric(metrics::STREAMS_REOPENED) == 0 {
            waited += 1;
            assert!(waited < 60, "the watchdog sleeps");
            world.advance(Duration::from_secs(1));
            for _ in 0..50 {
                host.try_step().await.expect("well");
            }
        }
        assert!((44..=48).contains(&waited), "{waited} s");
        let mut steps = 0;
        while host.emitted_count() < 10 {
            steps += 1;
            assert!(steps < 20_000, "no reading: {:?}", emitted(&host));
            if steps % 10 == 0 {
                world.advance(Duration::from_millis(50));
            }
            host.try_step().await.expect("reads on");
        }
        let mut all = emitted(&host);
        all.sort();
        let mut due = names("m", 5);
        due.extend(names("n", 5));
        assert_eq!(all, due);
        world.close(host).await;
    }
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_not_taken_for_silent() {
    let world = World::new().await;
    world.publish("m", 20);
    let four = aqueduct_pubsub::SubscriberOptions::new()
        .flow_control_max_outstanding_element_count(std::num::NonZeroU64::new(4).expect("four"));
    let mut host = world.start(world.builder().subscriber_options(four));
    host.run_to(4).await.expect("reads");
    world.advance_with_leases(600).await;
    assert_eq!(world.metric(metrics::STREAMS_REOPENED), 0);
    assert!(world.sub.counts().keepalives >= 10);
    assert_eq!(world.sub.counts().streams_opened, 1);
    world.close(host).await;
}

#[tokio::test]
async fn what_cannot_be_repaired_fails_the_job_by_subscription_and_status() {
    type End = fn(&World);
    let ends: [(End, &str); 4] = [
        (|world| assert!(world.sub.delete()), "NOT_FOUND"),
        (|world| assert!(world.sub.detach()), "FAILED_PRECONDITION"),
        (
            |world| world.sub.deny(Method::StreamingPull),
            "pubsub.subscriptions.consume",
        ),
        (
            |world| world.sub.close_streams(Code::InvalidArgument),
            "INVALID_ARGUMENT",
        ),
    ];
    for (end, told) in ends {
        for paused in [false, true] {
            let world = World::new().await;
            world.publish("m", 3);
            let mut host = world.start(world.builder());
            host.run_to(3).await.expect("reads");
            if paused {
                host.pause_splits(0, &[SplitId::new("0")], &[]);
            }
            end(&world);
            let error = failure(&mut host).await;
            let text = error.report();
            assert!(
                text.contains(told) && text.contains("projects/p/subscriptions/s"),
                "{text}"
            );
            host.close().await.expect("closes");
        }
    }
}

#[tokio::test]
async fn the_subscription_is_missed_by_extensions_while_its_stream_is_not_read() {
    let world = World::new().await;
    world.publish("m", 10);
    let four = aqueduct_pubsub::SubscriberOptions::new()
        .flow_control_max_outstanding_element_count(std::num::NonZeroU64::new(4).expect("four"));
    let mut host = world.start(world.builder().subscriber_options(four));
    host.run_to(4).await.expect("reads");
    world.sub.delete();
    world.advance(Duration::from_secs(3));
    let error = failure(&mut host).await;
    assert!(error.report().contains("NOT_FOUND"), "{}", error.report());
    host.close().await.expect("closes");
}

#[tokio::test]
async fn a_failure_that_nobody_saw_is_counted_by_the_close() {
    let world = World::new().await;
    world.publish("m", 3);
    let mut host = world.start(world.builder());
    host.run_to(3).await.expect("reads");
    world.sub.delete();
    until(LIMIT, "the end of the stream", || {
        world.metric("errorClass.NOT_FOUND.errors") >= 1
    })
    .await;
    host.close().await.expect("a teardown fails no job");
    assert_eq!(world.metric(metrics::FAILURES_UNREPORTED), 1);
}

#[tokio::test]
async fn behind_half_open_connections_reading_goes_on_and_queued_acknowledgements_land() {
    let world = World::new().await;
    let proxy = Proxy::start(&world.sim).await;
    let mut host = world.start(world.builder().emulator_endpoint(&*proxy.address));
    world.publish("m", 5);
    host.run_to(5).await.expect("reads");
    let first = barrier_now(&mut host);
    host.complete(&first).expect("completes");
    world.until("5 acks", |sub| sub.counts().acked == 5).await;
    world.publish("n", 5);
    host.run_to(10).await.expect("reads");
    let second = barrier_now(&mut host);
    let before = proxy.accepted();
    proxy.swallow();
    host.complete(&second).expect("completes");
    world.publish("o", 5);
    let mut steps = 0;
    while host.emitted_count() < 15 || world.sub.counts().acked < 10 {
        steps += 1;
        assert!(
            steps < 200_000,
            "stuck: {} emitted, {} acked",
            host.emitted_count(),
            world.sub.counts().acked
        );
        if steps % 50 == 0 {
            world.advance(Duration::from_millis(100));
        }
        host.try_step().await.expect("reads on");
    }
    let mut all = emitted(&host);
    all.sort();
    let mut due = names("m", 5);
    due.extend(names("n", 5));
    due.extend(names("o", 5));
    assert_eq!(all, due, "once each");
    assert!(
        proxy.accepted() >= before + 2,
        "streams and acknowledgements have connections of their own"
    );
    host.checkpoint().await.expect("checkpoints");
    world
        .tick_until("the rest", || world.sub.backlog() == 0)
        .await;
    host.close().await.expect("closes");
}
