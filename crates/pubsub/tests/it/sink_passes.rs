//! Rejections found one by one, topics created, order kept through both.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::failure::fail_job;
use aqueduct_connector::sink::{Flush, Sink};
use aqueduct_pubsub::{CreateDisposition, TopicCreateOptions};
use aqueduct_sim::{Code, Gate, Method, PubSubConfig, SchemaLag, SimConfig};
use aqueduct_testkit::SinkHost;
use aqueduct_testkit::failure::Call;

use super::sink_world::{How, Record, World, data_of, patient, quick, records, sizes, texts};

fn with_invalid(count: usize, invalid: usize) -> Vec<Record> {
    let mut written = records(count);
    written[invalid] = written[invalid].clone().how(How::Invalid);
    written
}

#[tokio::test]
async fn of_a_refused_batch_only_the_message_refused_alone_is_handled() {
    let world = World::new().await;
    let mut host = world.host_with(patient());
    host.write_all(with_invalid(10, 2)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.topic.published(), 9);
    assert_eq!(world.handled.handled(), 1);
    assert_eq!(world.metric("numRecordsSendErrors"), 1);
    assert_eq!(world.metric("errorClass.INVALID_ARGUMENT.errors"), 1);
    assert_eq!(world.metric("parkedMessages"), 0);
    assert_eq!(world.request_sizes(), [vec![10], vec![1; 10]].concat());
    let payload = world
        .handled
        .calls()
        .into_iter()
        .find_map(|call| match call {
            Call::Handled { payload_bytes, .. } => payload_bytes,
            _ => None,
        });
    assert!(
        payload.is_some_and(|bytes| bytes > 257),
        "the whole message"
    );
    host.finish().await.expect("well");
}

/// PS-TEST-02, and PS-TEST-06 with `CreateNever`: the key goes on behind the dropped message, and no topic is created.
#[tokio::test]
async fn a_keyed_batch_keeps_its_order_around_the_message_that_is_dropped() {
    for disposition in [
        CreateDisposition::CreateIfNeeded,
        CreateDisposition::CreateNever,
    ] {
        let world = World::new().await;
        let options = patient()
            .enable_message_ordering(true)
            .batch_element_count_threshold(4);
        let mut host = world.host(|builder| {
            builder
                .publisher_options(options)
                .create_disposition(disposition)
        });
        let mut written = with_invalid(30, 2);
        written[17] = written[17].clone().how(How::Invalid);
        for record in &mut written {
            record.key = "k".to_owned();
        }
        host.write_all(written.clone()).await.expect("well");
        host.checkpoint().await.expect("well");
        written.retain(|record| record.how == How::Published);
        assert_eq!(world.data(), texts(&written));
        assert_eq!(world.handled.handled(), 2);
        let more = Record::new("more").key("k");
        host.write_all([more]).await.expect("the key goes on");
        host.checkpoint().await.expect("well");
        assert_eq!(world.data().len(), 29);
        assert_eq!(world.sim.pubsub().request_count(Method::CreateTopic), 0);
        host.finish().await.expect("well");
    }
}

#[tokio::test]
async fn isolation_is_strictly_serial_and_stops_at_the_first_rejection_if_that_fails_the_job() {
    let world = World::new().await;
    let mut host = world.host(|builder| {
        builder
            .publisher_options(patient())
            .failed_message_handler(fail_job)
    });
    host.write_all(with_invalid(10, 2)).await.expect("well");
    let error = host.checkpoint().await.expect_err("a rejected message");
    assert!(
        error
            .to_string()
            .contains("pubsub rejected a record for projects/p/topics/t")
    );
    assert_eq!(world.request_sizes(), [10, 1, 1, 1], "none after the third");
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_hundred_rejections_in_a_row_fail_the_job_and_one_success_starts_anew() {
    let invalid = |count| {
        records(count)
            .into_iter()
            .map(|record| record.how(How::Invalid))
    };
    let world = World::new().await;
    let mut host = world.host_with(patient());
    host.write_all(invalid(99)).await.expect("well");
    host.write_all(records(1)).await.expect("well");
    host.checkpoint().await.expect("well");
    host.write_all(invalid(99)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!((world.handled.handled(), world.topic.published()), (198, 1));
    host.finish().await.expect("well");

    let world = World::new().await;
    let mut host = world.host_with(patient());
    // A serializer's rejections do not count.
    let refused = records(20)
        .into_iter()
        .map(|record| record.how(How::Refused));
    host.write_all(refused).await.expect("well");
    host.write_all(invalid(100)).await.expect("well");
    let error = host
        .checkpoint()
        .await
        .expect_err("a stream refused wholesale");
    assert!(
        error
            .to_string()
            .contains("sink.max-consecutive-rejections"),
        "{error}"
    );
    assert!(error.to_string().contains("100 messages"), "{error}");
    assert_eq!(
        world.handled.handled(),
        120,
        "the tripping one is routed first"
    );
    host.close().await.expect("well");
}

#[tokio::test]
async fn an_outage_during_isolation_is_no_verdict() {
    let world = World::new().await;
    world
        .topic
        .nth(2, Method::Publish)
        .status(Code::Unavailable);
    let mut host = world.host_with(patient());
    host.write_all(with_invalid(4, 0)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!((world.handled.handled(), world.topic.published()), (1, 3));
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_missing_topic_is_created_once_with_its_settings_and_every_message_arrives() {
    let world = World::new().await;
    let settings = TopicCreateOptions::new().message_retention(Duration::from_secs(7 * 86_400));
    let mut host = world.host(|builder| {
        builder
            .topic_create_options(settings)
            .publisher_options(quick().batch_element_count_threshold(3))
    });
    let written: Vec<_> = records(20)
        .into_iter()
        .map(|record| record.topic("new"))
        .collect();
    host.write_all(written.clone()).await.expect("well");
    host.write_all(records(3)).await.expect("well");
    host.checkpoint().await.expect("well");
    let new = world.sim.pubsub().topic("p", "new");
    let mut held = data_of(&new);
    held.sort();
    assert_eq!(held, texts(&written));
    assert_eq!(world.topic.published(), 3);
    let retention = new
        .config()
        .expect("created")
        .message_retention_duration
        .expect("set");
    assert_eq!(retention.seconds, 604_800);
    assert_eq!(world.sim.pubsub().request_count(Method::CreateTopic), 1);
    assert_eq!(world.metric("topicsCreated"), 1);
    assert!(world.metric("errorClass.NOT_FOUND.errors") > 0);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn writers_that_race_for_a_topic_make_one_and_keep_the_order_of_each_key() {
    let config = SimConfig {
        pubsub: PubSubConfig {
            topic_lag: SchemaLag::Refusals(2),
            ..PubSubConfig::default()
        },
        ..SimConfig::default()
    };
    let world = World::with(config).await;
    let options = quick()
        .enable_message_ordering(true)
        .batch_element_count_threshold(2);
    let sink: Arc<dyn Sink<Record>> = Arc::new(
        world
            .builder()
            .publisher_options(options)
            .build()
            .expect("valid"),
    );
    let mut host = SinkHost::start(sink, &world.kit, 3).expect("writers");
    // Records are dealt out in turn, so each writer has a key of its own.
    let written: Vec<_> = (0..30)
        .map(|number| {
            Record::new(format!("{number:02}"))
                .topic("new")
                .key(format!("k{}", number % 3))
        })
        .collect();
    host.write_all(written.clone()).await.expect("well");
    host.checkpoint().await.expect("well");
    let new = world.sim.pubsub().topic("p", "new");
    for key in ["k0", "k1", "k2"] {
        let held: Vec<_> = new
            .messages()
            .into_iter()
            .filter(|message| message.ordering_key == key)
            .map(|message| String::from_utf8(message.data.to_vec()).expect("text"))
            .collect();
        let expected = texts(written.iter().filter(|record| record.key == key));
        assert_eq!(held, expected, "{key}");
    }
    assert_eq!(world.sim.pubsub().topics().len(), 2);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn create_never_fails_over_a_missing_topic_and_names_the_disposition() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder.create_disposition(CreateDisposition::CreateNever));
    host.write_all([Record::new("a").topic("new")])
        .await
        .expect("admitted");
    let error = host.checkpoint().await.expect_err("missing");
    assert!(
        error.to_string().contains("sink.create-disposition"),
        "{error}"
    );
    assert!(
        error.to_string().contains("projects/p/topics/new"),
        "{error}"
    );
    assert_eq!(world.sim.pubsub().request_count(Method::CreateTopic), 0);
    assert_eq!(world.handled.handled(), 0);
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_denied_creation_says_which_permission_it_needs() {
    let world = World::new().await;
    let new = world.sim.pubsub().topic("p", "new");
    new.deny(Method::CreateTopic);
    let mut host = world.host(|builder| builder);
    host.write_all([Record::new("a").topic("new")])
        .await
        .expect("admitted");
    let error = host.checkpoint().await.expect_err("denied");
    assert!(
        error.to_string().contains("pubsub.topics.create"),
        "{error}"
    );
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_topic_that_keeps_missing_spends_the_attempts_and_the_error_says_so() {
    let world = World::new().await;
    let new = world.sim.pubsub().topic("p", "new");
    new.always(Method::Publish).status(Code::NotFound);
    let mut host = world.host_with(quick().recovery_max_attempts(3));
    host.write_all([Record::new("a").topic("new")])
        .await
        .expect("admitted");
    let error = host.checkpoint().await.expect_err("spent");
    let report = error.report();
    assert!(report.contains("sink.recovery.max-attempts"), "{report}");
    assert!(
        report.contains("3 attempts") && report.contains("was created or found"),
        "{report}"
    );
    assert_eq!(world.sim.pubsub().request_count(Method::CreateTopic), 1);
    host.close().await.expect("well");

    let world = World::new().await;
    let new = world.sim.pubsub().topic("p", "new");
    new.always(Method::CreateTopic).status(Code::Unavailable);
    let mut host = world.host_with(quick().recovery_max_attempts(4));
    host.write_all([Record::new("a").topic("new")])
        .await
        .expect("admitted");
    let report = host.checkpoint().await.expect_err("spent").report();
    assert!(report.contains("could not be created"), "{report}");
    assert_eq!(
        world.sim.pubsub().request_count(Method::CreateTopic),
        4,
        "each attempt tries once"
    );
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_barrier_waits_for_a_repair_and_nothing_is_admitted_meanwhile() {
    let world = World::new().await;
    let gate = Gate::new();
    let new = world.sim.pubsub().topic("p", "new");
    let fault = new.always(Method::CreateTopic).hold(&gate);
    let mut host = world.host(|builder| builder);
    host.write_all([Record::new("a").topic("new")])
        .await
        .expect("admitted");
    for _ in 0..100 {
        assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
        host.settle().await.expect("well");
        if gate.held() > 0 {
            break;
        }
    }
    assert_eq!(gate.held(), 1);
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    assert_eq!(world.metric("parkedMessages"), 1);
    assert_eq!(world.metric("inFlightMessages"), 0);
    fault.remove();
    gate.open();
    host.checkpoint().await.expect("well");
    assert_eq!(data_of(&new), ["a"]);
    assert_eq!(sizes(&new), [1, 1]);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_repair_runs_with_the_writer_at_its_bound() {
    let world = World::new().await;
    let options = quick()
        .max_in_flight_messages(4)
        .batch_element_count_threshold(2);
    let mut host = world.host_with(options);
    let written: Vec<_> = records(30)
        .into_iter()
        .map(|record| record.topic("new"))
        .collect();
    host.write_all(written).await.expect("no deadlock");
    host.checkpoint().await.expect("well");
    assert_eq!(world.sim.pubsub().topic("p", "new").published(), 30);
    host.finish().await.expect("well");
}
