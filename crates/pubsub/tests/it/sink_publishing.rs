//! A record's path: user code in its order, batches, keys, retries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aqueduct_connector::ErrorKind;
use aqueduct_connector::options::ByteSize;
use aqueduct_pubsub::{PubSubSerializer, PublisherOptions};
use aqueduct_sim::{Code, Gate, Method};
use aqueduct_testkit::failure::Call;

use super::sink_world::{
    How, Record, World, data_of, destination, patient, quick, records, serialize, sizes, texts,
};

#[tokio::test]
async fn every_record_arrives_with_data_attributes_and_key_and_is_counted_once() {
    let world = World::new().await;
    let serializer = PubSubSerializer::payload(|record: &Record, data: &mut Vec<u8>| {
        data.extend_from_slice(&record.data);
        Ok::<_, std::io::Error>(())
    })
    .with_attributes(|record, attributes| {
        attributes.put("size", record.data.len().to_string());
        Ok::<_, std::io::Error>(())
    })
    .with_ordering_key(|record, key| {
        key.push_str(&record.key);
        Ok::<_, std::io::Error>(())
    });
    let mut host = world.host(|builder| {
        builder
            .serializer(serializer)
            .publisher_options(quick().enable_message_ordering(true))
    });
    let written = [
        Record::new("a").key("k"),
        Record::new("bb"),
        Record::new("ccc").key("k"),
    ];
    host.write_all(written).await.expect("well");
    host.checkpoint().await.expect("well");
    let mut held = world.topic.messages();
    held.sort_by(|a, b| a.data.cmp(&b.data));
    let seen: Vec<_> = held
        .iter()
        .map(|message| {
            (
                message.data.as_ref(),
                message.attributes["size"].as_str(),
                message.ordering_key.as_str(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [(&b"a"[..], "1", "k"), (b"bb", "2", ""), (b"ccc", "3", "k")]
    );
    assert_eq!(world.metric("numRecordsSend"), 3);
    assert_eq!(world.metric("inFlightMessages"), 0);
    assert_eq!(world.metric("inFlightBytes"), 0);
    assert!(world.metric("numBytesSend") > 6);
    let requests = world.topic.requests_of(Method::Publish);
    assert!(requests.iter().all(|request| {
        request
            .routing
            .as_deref()
            .is_some_and(|routing| routing.starts_with("topic=projects%2Fp%2Ftopics%2Ft"))
    }));
    host.finish().await.expect("well");
}

#[tokio::test]
async fn the_resolver_names_each_record_s_topic_and_one_that_cannot_fails_the_job() {
    let world = World::new().await;
    let other = world.sim.pubsub().create_topic("p", "u");
    let mut host = world.host(|builder| builder);
    host.write_all([Record::new("a"), Record::new("b").topic("u")])
        .await
        .expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(
        (world.data(), data_of(&other)),
        (vec!["a".into()], vec!["b".into()])
    );
    assert_eq!(world.metric("activePublishers"), 2);
    host.finish().await.expect("well");

    let resolvers: [fn() -> Result<Option<_>, std::io::Error>; 2] =
        [|| Ok(None), || Err(std::io::Error::other("no"))];
    for resolve in resolvers {
        let mut host =
            world.host(|builder| builder.destination_resolver(move |_: &Record, _| resolve()));
        let error = host.write_all(records(1)).await.expect_err("no topic");
        assert_eq!(error.kind(), ErrorKind::User);
        assert!(error.to_string().contains("resolver"), "{error}");
        host.close().await.expect("well");
    }
    assert_eq!(world.handled.handled(), 0, "no handler sees it");
}

#[tokio::test]
async fn a_skipped_record_meets_no_extractor_opens_no_topic_and_is_counted() {
    let world = World::new().await;
    let extracted = Arc::new(AtomicUsize::new(0));
    let count = extracted.clone();
    let serializer = PubSubSerializer::message(serialize).with_attributes(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok::<_, std::io::Error>(())
    });
    let mut host = world.host(|builder| builder.serializer(serializer));
    let skipped = records(5)
        .into_iter()
        .map(|record| record.how(How::Skipped));
    host.write_all(skipped).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.metric("recordsSkipped"), 5);
    assert_eq!(world.metric("activePublishers"), 0);
    assert_eq!(extracted.load(Ordering::SeqCst), 0);
    assert_eq!(world.handled.handled(), 0);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_serialization_failure_goes_to_the_handler_without_a_payload() {
    let world = World::new().await;
    let failing = PubSubSerializer::message(serialize).with_ordering_key(|record, _| {
        if record.data == b"bad" {
            return Err(std::io::Error::other("no key"));
        }
        Ok(())
    });
    let mut host = world.host(|builder| builder.serializer(failing));
    let written = [
        Record::new("good"),
        Record::new("bad"),
        Record::new("x").how(How::Refused),
    ];
    host.write_all(written).await.expect("well");
    host.checkpoint().await.expect("well");
    let handled: Vec<_> = world
        .handled
        .calls()
        .into_iter()
        .filter_map(|call| match call {
            Call::Handled {
                connector,
                destination,
                payload_bytes,
                ..
            } => Some((connector, destination, payload_bytes)),
            _ => None,
        })
        .collect();
    let expected = ("pubsub", "projects/p/topics/t".to_owned(), None);
    assert_eq!(handled, [expected.clone(), expected]);
    assert_eq!(world.data(), ["good"]);
    assert_eq!(world.metric("numRecordsSendErrors"), 2);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_key_without_ordering_fails_the_job_and_names_the_setting() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    let error = host
        .write_all([Record::new("a").key("SECRET")])
        .await
        .expect_err("refused");
    assert!(error.to_string().contains("sink.message-ordering.enabled"));
    assert!(!error.report().contains("SECRET"));
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_batch_leaves_at_its_count_at_its_bytes_and_at_its_delay() {
    let world = World::on_manual_clock().await;
    let options = patient()
        .batch_element_count_threshold(3)
        .batch_request_byte_threshold(ByteSize(200))
        .batch_delay_threshold(Duration::from_secs(5));
    let mut host = world.host_with(options);
    host.write_all(records(7)).await.expect("well");
    world.arrived(&mut host, 2).await;
    assert_eq!(world.request_sizes(), [3, 3]);
    // A message that would carry it past the bytes sends it first; one over them travels alone.
    host.write_all([Record::new(vec![b'x'; 170]), Record::new(vec![b'y'; 300])])
        .await
        .expect("well");
    world.arrived(&mut host, 5).await;
    assert_eq!(world.request_sizes(), [3, 3, 1, 1, 1]);
    host.write_all([Record::new("late")]).await.expect("well");
    host.settle().await.expect("well");
    assert_eq!(world.request_sizes().len(), 5, "its time has not come");
    world.advance(Duration::from_secs(5));
    world.arrived(&mut host, 6).await;
    host.checkpoint().await.expect("well");
    assert_eq!(world.topic.published(), 10);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_key_has_one_request_in_flight_and_messages_without_one_have_many() {
    let world = World::new().await;
    let gate = Gate::new();
    let fault = world.topic.always(Method::Publish).hold(&gate);
    let options = patient()
        .enable_message_ordering(true)
        .batch_element_count_threshold(2);
    let mut host = world.host_with(options);
    let keyed: Vec<_> = (0..6)
        .map(|number| Record::new(format!("k{number}")).key("k"))
        .collect();
    let other: Vec<_> = (0..2)
        .map(|number| Record::new(format!("o{number}")).key("o"))
        .collect();
    host.write_all(keyed.iter().chain(&other).cloned())
        .await
        .expect("well");
    host.write_all(records(6)).await.expect("well");
    // One of each key, three without.
    world.arrived(&mut host, 5).await;
    host.settle().await.expect("well");
    assert_eq!(world.request_sizes(), [2; 5]);
    fault.remove();
    gate.open();
    host.checkpoint().await.expect("well");
    for request in world.topic.requests_of(Method::Publish) {
        let request: googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PublishRequest =
            request.message().expect("kept").expect("ours");
        let key = &request.messages[0].ordering_key;
        assert!(
            request
                .messages
                .iter()
                .all(|message| message.ordering_key == *key),
            "keys are never mixed"
        );
    }
    let in_order: Vec<_> = world
        .data()
        .into_iter()
        .filter(|data| data.starts_with('k'))
        .collect();
    assert_eq!(in_order, texts(&keyed));
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_retried_request_keeps_its_composition_and_its_key_s_order() {
    let world = World::new().await;
    world
        .topic
        .next(3, Method::Publish)
        .status(Code::Unavailable);
    let options = quick()
        .enable_message_ordering(true)
        .batch_element_count_threshold(2)
        .batch_delay_threshold(Duration::from_secs(3_600));
    let mut host = world.host_with(options);
    let written: Vec<_> = (0..10)
        .map(|number| Record::new(format!("{number}")).key("k"))
        .collect();
    host.write_all(written.clone()).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.data(), texts(&written));
    assert_eq!(world.request_sizes(), [2; 8]);
    assert_eq!(world.metric("publishRetries"), 3);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn an_answer_that_is_lost_counts_as_not_published() {
    let world = World::new().await;
    world.topic.nth(1, Method::Publish).apply_then_lose_answer();
    let mut host = world.host_with(quick().batch_element_count_threshold(4));
    host.write_all(records(8)).await.expect("well");
    host.checkpoint().await.expect("well");
    let mut counts = BTreeMap::new();
    for data in world.data() {
        *counts.entry(data).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 8, "none is missing");
    // What else was in flight on the connection is repeated too.
    assert!(
        counts.values().sum::<i32>() >= 12,
        "the repeat is a new message"
    );
    host.finish().await.expect("well");
}

#[tokio::test]
async fn retries_end_by_attempts_and_the_error_names_the_topic_and_the_status() {
    let world = World::new().await;
    world
        .topic
        .always(Method::Publish)
        .status_with_message(Code::Unavailable, "said of 'SECRET'");
    let options = quick().retry_max_attempts(std::num::NonZeroU32::new(3));
    let mut host = world.host_with(options);
    host.write_all(records(1)).await.expect("admitted");
    let error = host.checkpoint().await.expect_err("an outage");
    assert!(error.report().contains("projects/p/topics/t"), "{error:?}");
    assert!(error.report().contains("3 attempt"), "{error:?}");
    assert!(!error.report().contains("SECRET"), "{error:?}");
    assert_eq!(
        error.statuses().map(|chain| chain.code()),
        Some(aqueduct_connector::Code::Unavailable)
    );
    assert_eq!(world.request_sizes().len(), 3);
    assert_eq!(world.handled.handled(), 0, "an outage reaches no handler");
    let again = host.checkpoint().await.expect_err("it stays ended");
    assert!(again.to_string().contains("3 attempt"));
    host.close().await.expect("well");
}

#[tokio::test]
async fn what_no_retry_helps_fails_at_once() {
    for code in [
        Code::PermissionDenied,
        Code::FailedPrecondition,
        Code::Cancelled,
    ] {
        let world = World::new().await;
        world.topic.always(Method::Publish).status(code);
        let mut host = world.host(|builder| builder);
        host.write_all(records(3)).await.expect("admitted");
        host.checkpoint().await.expect_err("refused");
        assert_eq!(world.request_sizes().len(), 1, "{code:?}");
        assert_eq!(world.handled.handled(), 0);
        host.close().await.expect("well");
    }
}

#[tokio::test]
async fn topics_have_batches_of_their_own_and_counters_if_asked() {
    let world = World::new().await;
    let other = world.sim.pubsub().create_topic("p", "u");
    let options = PublisherOptions::new()
        .batch_delay_threshold(Duration::from_secs(3_600))
        .per_destination_metrics(true);
    let mut host = world.host_with(options);
    let written = (0..20).map(|number| {
        Record::new(number.to_string()).topic(if number % 2 == 0 { "t" } else { "u" })
    });
    host.write_all(written).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!((sizes(&world.topic), sizes(&other)), (vec![10], vec![10]));
    assert_eq!(world.metric("destination.t.recordsSend"), 10);
    assert_eq!(world.metric("destination.u.sendErrors"), 0);
    host.finish().await.expect("well");
}

#[test]
fn settings_that_contradict_each_other_are_refused_before_any_io() {
    use aqueduct_pubsub::{CreateDisposition, PubSubSink, TopicCreateOptions};
    let builder = || {
        PubSubSink::builder()
            .topic(destination("t"))
            .serializer(serialize)
    };
    for (bad, named) in [
        (PubSubSink::builder().serializer(serialize), "'topic'"),
        (
            PubSubSink::builder().topic(destination("t")),
            "'serializer'",
        ),
        (
            builder()
                .create_disposition(CreateDisposition::CreateNever)
                .topic_create_options(TopicCreateOptions::new()),
            "sink.create-disposition",
        ),
        (
            builder()
                .emulator_endpoint("localhost:1")
                .service_account_key_file("/key"),
            "service-account-key-file",
        ),
        (
            builder().emulator_endpoint("localhost:0"),
            "emulator-endpoint",
        ),
        (
            builder().service_account_key_file(" "),
            "service-account-key-file",
        ),
    ] {
        let error = bad.build().expect_err(named);
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(named), "{error}");
    }
    assert!(
        builder()
            .create_disposition(CreateDisposition::CreateNever)
            .build()
            .is_ok()
    );
}
