//! What is bounded: memory, waits, topics, the close.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::options::ByteSize;
use aqueduct_connector::sink::{Flush, RecordInfo, Sink};
use aqueduct_sim::{Code, Gate, Method};
use aqueduct_testkit::SinkHost;
use aqueduct_testkit::log::capture;

use super::sink_world::{
    How, Record, World, data_of, destination, patient, quick, records, serialize, texts,
};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

#[tokio::test]
async fn at_its_bound_a_writer_waits_and_goes_on_with_the_first_answer() {
    let world = World::new().await;
    let gate = Gate::new();
    let fault = world.topic.always(Method::Publish).hold(&gate);
    let options = patient()
        .max_in_flight_messages(6)
        .batch_element_count_threshold(2);
    let mut host = world.host_with(options);
    host.write_all(records(6)).await.expect("well");
    host.settle().await.expect("well");
    assert!(host.poll_ready(0).await.is_pending());
    assert_eq!(world.metric("inFlightMessages"), 6);
    fault.remove();
    gate.open();
    host.write_all(records(6)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.topic.published(), 12);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_message_larger_than_the_bound_is_admitted_below_it() {
    let world = World::new().await;
    let options = quick().max_in_flight_bytes(ByteSize::mib(1));
    let mut host = world.host_with(options);
    let large = Record::new(vec![7; 9_900_000]);
    host.write_all([Record::new("a"), large, Record::new("b")])
        .await
        .expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.topic.published(), 3);
    assert_eq!(world.metric("inFlightBytes"), 0);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_message_of_no_bytes_is_waited_for_too() {
    let world = World::new().await;
    let gate = Gate::new();
    let fault = world.topic.always(Method::Publish).hold(&gate);
    let mut host = world.host(|builder| builder);
    host.write_all([Record::new("")]).await.expect("well");
    world.arrived(&mut host, 1).await;
    assert_eq!(
        (
            world.metric("inFlightMessages"),
            world.metric("inFlightBytes")
        ),
        (1, 0)
    );
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    fault.remove();
    gate.open();
    // The service refuses it: it has neither data nor an attribute.
    host.checkpoint().await.expect("well");
    assert_eq!(world.handled.handled(), 1);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_full_writer_sends_what_it_batches_instead_of_waiting_for_the_delay() {
    let world = World::on_manual_clock().await;
    let options = patient()
        .max_in_flight_messages(3)
        .publish_progress_timeout(Duration::from_secs(10));
    let mut host = world.host_with(options);
    // The batch delay is far beyond the budget; the clock does not move at all.
    host.write_all(records(9)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.request_sizes(), [3, 3, 3]);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_wait_without_a_completion_warns_and_then_fails_naming_the_option() {
    let log = capture();
    let world = World::on_manual_clock().await;
    let gate = Gate::new();
    let _fault = world.topic.always(Method::Publish).hold(&gate);
    let options = patient()
        .retry_total_timeout(Duration::from_secs(86_400))
        .publish_progress_timeout(Duration::from_secs(100));
    let mut host = world.host_with(options);
    host.write_all(records(2)).await.expect("well");
    // Time without a wait does not count.
    host.settle().await.expect("well");
    world.advance(Duration::from_secs(250));
    host.settle().await.expect("well");
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    world.arrived(&mut host, 1).await;
    world.advance(Duration::from_secs(10));
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    world.advance(Duration::from_secs(5));
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    let warning = log.one_warning("no publish to Pub/Sub completes");
    assert_eq!(
        warning.field("waiting_for"),
        Some("every outstanding publish")
    );
    world.advance(Duration::from_secs(85));
    let error = host.checkpoint().await.expect_err("spent");
    let words = error.to_string();
    assert!(
        words.contains("sink.publish-progress-timeout") && words.contains("2 message"),
        "{words}"
    );
    assert!(words.contains("RESOURCE_EXHAUSTED"), "{words}");
    gate.open();
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_warning_about_a_wait_names_what_failed_since_the_last_completion() {
    const STALLED: &str = "no publish to Pub/Sub completes";
    let log = capture();
    let world = World::on_manual_clock().await;
    let options = patient()
        .retry_total_timeout(Duration::from_secs(86_400))
        .publish_progress_timeout(Duration::from_secs(100));
    let mut host = world.host_with(options);
    let outage = world
        .topic
        .always(Method::Publish)
        .status(Code::Unavailable);
    host.write_all(records(1)).await.expect("well");
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    world.arrived(&mut host, 1).await;
    for _ in 0..200 {
        if world.metric("publishRetries") > 0 {
            break;
        }
        host.settle().await.expect("well");
    }
    assert_eq!(world.metric("publishRetries"), 1);
    outage.remove();
    let gate = Gate::new();
    let silence = world.topic.always(Method::Publish).hold(&gate);
    world.advance(Duration::from_secs(11));
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    let warning = log.one_warning(STALLED);
    let status = warning.field("last_status").expect("it failed once");
    assert!(status.contains("UNAVAILABLE"), "{status}");
    gate.open();
    silence.remove();
    host.checkpoint().await.expect("published at last");
    // Silence after that is not the outage of before.
    log.clear();
    let gate = Gate::new();
    let silence = world.topic.always(Method::Publish).hold(&gate);
    host.write_all(records(1)).await.expect("well");
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    world.arrived(&mut host, 3).await;
    world.advance(Duration::from_secs(11));
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    assert_eq!(log.one_warning(STALLED).field("last_status"), None);
    gate.open();
    silence.remove();
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_wait_for_the_handler_is_warned_about_and_never_ended_by_the_budget() {
    let log = capture();
    let world = World::on_manual_clock().await;
    let mut host = world.host_with(patient().publish_progress_timeout(Duration::from_secs(100)));
    host.write_all([Record::new("a")]).await.expect("well");
    host.checkpoint().await.expect("well");
    world.handled.hold();
    for (minute, waiting_for) in ["the failure handler's flush", "the failure handler"]
        .into_iter()
        .enumerate()
    {
        if minute > 0 {
            // Now a record waits for it too.
            host.write_all([Record::new("b").how(How::Refused)])
                .await
                .expect("offered");
        }
        log.clear();
        assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
        world.advance(Duration::from_secs(500));
        assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
        let warning = log.one_warning("no publish to Pub/Sub completes");
        assert_eq!(warning.field("waiting_for"), Some(waiting_for));
        if minute == 0 {
            world.handled.release();
            host.checkpoint().await.expect("well");
            world.handled.hold();
        }
    }
    world.handled.release();
    host.checkpoint().await.expect("well");
    assert_eq!(world.handled.handled(), 1);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn an_ordered_outage_ends_by_the_watch_and_an_unordered_one_by_its_retries() {
    for ordered in [true, false] {
        let world = World::on_manual_clock().await;
        world
            .topic
            .always(Method::Publish)
            .status(Code::Unavailable);
        let options = quick()
            .enable_message_ordering(ordered)
            .retry_initial_delay(Duration::from_secs(30))
            .retry_max_delay(Duration::from_secs(30))
            // On a slow machine the clock is moved on before an answer has come; that must not end an attempt.
            .retry_initial_rpc_timeout(Duration::from_secs(60))
            .publish_progress_timeout(Duration::from_secs(700));
        let mut host = world.host_with(options);
        host.write_all(records(1)).await.expect("well");
        let mut waited = 0;
        let error = loop {
            match host.poll_flush(0, Flush::Checkpoint).await {
                std::task::Poll::Ready(result) => break result.expect_err("an outage"),
                std::task::Poll::Pending => {
                    host.settle().await.ok();
                    world.advance(Duration::from_secs(10));
                    waited += 10;
                }
            }
            assert!(waited < 2_000, "no end");
        };
        let words = error.report();
        assert!(
            words.contains("Pub/Sub") && words.contains("UNAVAILABLE"),
            "{words}"
        );
        if ordered {
            assert!(words.contains("sink.publish-progress-timeout"), "{words}");
            assert!((700..800).contains(&waited), "{waited}");
        } else {
            assert!(words.contains("attempt(s)"), "{words}");
            assert!((500..=640).contains(&waited), "{waited}");
        }
        host.close().await.expect("well");
    }
}

#[tokio::test]
async fn an_outage_within_the_watch_is_outlived_when_ordered() {
    let world = World::on_manual_clock().await;
    let fault = world
        .topic
        .always(Method::Publish)
        .status(Code::Unavailable);
    let options = quick()
        .enable_message_ordering(true)
        .retry_initial_delay(Duration::from_secs(30))
        .retry_max_delay(Duration::from_secs(30))
        .publish_progress_timeout(Duration::from_secs(3_600));
    let mut host = world.host_with(options);
    host.write_all([Record::new("a").key("k")])
        .await
        .expect("well");
    for _ in 0..70 {
        assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
        host.settle().await.expect("well");
        world.advance(Duration::from_secs(10));
    }
    fault.remove();
    world.advance(Duration::from_secs(31));
    host.checkpoint().await.expect("published at last");
    assert_eq!(world.data(), ["a"]);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn at_the_limit_of_topics_the_clean_one_longest_unused_goes_and_dirty_ones_are_drained() {
    let world = World::new().await;
    for name in NAMES {
        world.sim.pubsub().create_topic("p", name);
    }
    let options = patient().max_active_publishers(3);
    let mut host = world.host_with(options);
    // All three are dirty: batched, with a delay of an hour.
    let written: Vec<_> = NAMES
        .iter()
        .flat_map(|name| (0..2).map(move |n| Record::new(format!("{name}{n}")).topic(name)))
        .collect();
    host.write_all(written).await.expect("well");
    assert!(world.metric("activePublishers") <= 3);
    assert!(world.metric("capacityEvictions") >= 4);
    host.checkpoint().await.expect("well");
    for name in NAMES {
        let held = data_of(&world.sim.pubsub().topic("p", name));
        assert_eq!(held, [format!("{name}0"), format!("{name}1")]);
    }
    // Clean now: one goes at once, without waiting for anything.
    host.ready(0).await.expect("well");
    let before = world.metric("capacityEvictions");
    host.write(0, Record::new("again").topic("a"), RecordInfo::default())
        .expect("well");
    assert!(host.poll_ready(0).await.is_ready());
    assert_eq!(world.metric("capacityEvictions"), before + 1);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_held_record_is_part_of_the_flush_at_the_barrier() {
    let world = World::new().await;
    let new = world.sim.pubsub().create_topic("p", "new");
    let mut host = world.host_with(patient().max_active_publishers(1));
    host.write_all([Record::new("a")]).await.expect("well");
    host.ready(0).await.expect("well");
    host.write(0, Record::new("b").topic("new"), RecordInfo::default())
        .expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(
        (world.data(), data_of(&new)),
        (vec!["a".into()], vec!["b".into()])
    );
    assert_eq!(world.metric("numRecordsSend"), 2);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn an_idle_topic_is_given_up_after_a_checkpoint_s_flush_only() {
    let world = World::on_manual_clock().await;
    let mut host = world.host(|builder| builder);
    host.write_all([Record::new("a")]).await.expect("well");
    host.checkpoint().await.expect("well");
    world.advance(Duration::from_secs(3_600));
    host.checkpoint().await.expect("well");
    assert_eq!(world.metric("idleEvictions"), 0, "strictly longer");
    world.advance(Duration::from_millis(1));
    host.settle().await.expect("well");
    assert_eq!(world.metric("idleEvictions"), 0, "not without a checkpoint");
    host.checkpoint().await.expect("well");
    assert_eq!(
        (
            world.metric("idleEvictions"),
            world.metric("activePublishers")
        ),
        (1, 0)
    );
    host.write_all([Record::new("b")])
        .await
        .expect("it comes back");
    host.checkpoint().await.expect("well");
    assert_eq!(world.data(), ["a", "b"]);
    world.advance(Duration::from_secs(7_200));
    host.finish().await.expect("well");
    assert_eq!(world.metric("idleEvictions"), 1, "not at the last flush");
}

#[tokio::test]
async fn a_close_waits_one_timeout_for_all_hung_topics_and_leaves_no_task() {
    let log = capture();
    let world = World::on_manual_clock().await;
    let gate = Gate::new();
    for name in &NAMES[..7] {
        let topic = world.sim.pubsub().create_topic("p", name);
        topic.always(Method::Publish).hold(&gate);
    }
    let mut host = world.host_with(patient().shutdown_timeout(Duration::from_secs(30)));
    let written = NAMES[..7].iter().map(|name| Record::new("x").topic(name));
    host.write_all(written).await.expect("well");
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    for _ in 0..200 {
        if gate.held() == 7 {
            break;
        }
        host.settle().await.expect("well");
    }
    assert_eq!(gate.held(), 7, "all hang");
    let clock = world.clock.clone().expect("manual");
    let close = host.close();
    let advance = async {
        tokio::task::yield_now().await;
        while clock.next_timer().is_none() {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(30));
    };
    let (closed, ()) = futures::join!(close, advance);
    closed.expect("a close over its budget only warns");
    let warning = log.one_warning("unanswered at the end of a close");
    assert_eq!(warning.field("topics"), Some("7"));
    assert_eq!(world.metric("publisherShutdownsAbandoned"), 7);
    world
        .kit
        .spawner()
        .assert_idle(super::sink_world::LIMIT)
        .await;
    gate.open();
}

#[tokio::test]
async fn keys_that_fail_behind_each_other_give_everything_back() {
    let world = World::new().await;
    let options = patient()
        .enable_message_ordering(true)
        .batch_element_count_threshold(10)
        .max_in_flight_messages(1_000)
        .max_consecutive_rejections(None);
    let mut host = world.host_with(options);
    for round in 0..5 {
        let written = (0..400).map(|number| {
            let record = Record::new(format!("{round}-{number}")).key(format!("k{}", number % 4));
            match number % 40 {
                0..4 => record.how(How::Invalid),
                _ => record,
            }
        });
        host.write_all(written).await.expect("well");
        host.checkpoint().await.expect("well");
        assert_eq!(world.metric("inFlightMessages"), 0, "round {round}");
        assert_eq!(world.metric("inFlightBytes"), 0, "round {round}");
        assert_eq!(world.metric("parkedMessages"), 0, "round {round}");
    }
    assert_eq!(
        (world.handled.handled(), world.topic.published()),
        (200, 1_800)
    );
    host.finish().await.expect("well");
}

#[tokio::test]
async fn many_distinct_keys_pass_through_in_bounded_memory() {
    let world = World::new().await;
    let options = quick().enable_message_ordering(true);
    let mut host = world.host_with(options);
    let written: Vec<_> = (0..5_000)
        .map(|number| Record::new(number.to_string()).key(number.to_string()))
        .collect();
    host.write_all(written.clone()).await.expect("well");
    host.checkpoint().await.expect("well");
    let mut held = world.data();
    held.sort();
    let mut expected = texts(&written);
    expected.sort();
    assert_eq!(held, expected);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_writer_that_is_never_used_closes_at_once_and_state_is_refused() {
    let world = World::new().await;
    let sink: Arc<dyn Sink<Record>> = Arc::new(
        world
            .builder()
            .topic(destination("t"))
            .serializer(serialize)
            .build()
            .expect("valid"),
    );
    let host = SinkHost::start(sink.clone(), &world.kit, 1).expect("a writer");
    host.close().await.expect("well");
    let foreign = aqueduct_connector::Versioned {
        version: 1,
        bytes: vec![1].into(),
    };
    let context = world.kit.subtask(0, 1);
    assert!(sink.create_writer(context, vec![foreign]).is_err());
}
