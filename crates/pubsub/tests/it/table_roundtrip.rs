//! Tables against the simulated service: what is written is read back with all its metadata, rows find their topics, and
//! the options of a statement reach the service.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aqueduct_pubsub::source::metrics;
use aqueduct_sim::{Method, Sim, SimConfig};
use aqueduct_testkit::log::{Marker, capture};
use aqueduct_testkit::{TestContext, until};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::source_support::{LIMIT, World};
use super::table_world::*;

fn attributes<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// 2026-08-21 at this second of the day.
fn on_the_day(second: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_787_270_400 + second)
}

#[tokio::test]
async fn what_a_table_writes_a_table_reads_with_all_metadata() {
    let world = World::new().await;
    let endpoint = world.sim.endpoint();
    let sink = statement(
        &endpoint,
        "p",
        &[("topic", "t"), ("sink.message-ordering.enabled", "true")],
    );
    let mut writer = write(&sink, &TestContext::new("sink").with_limit(LIMIT), 1);
    let long = "an attribute that does not fit a slot, \u{e9}\u{1f600}";
    writer
        .write_all(rows(&[
            Write::new("{}"),
            Write::new("{\"order_id\":\"o-1\",\"amount\":20}")
                .attribute("channel", "mobile")
                .attribute("note", long)
                .key("c1"),
            Write::new("").attribute("empty", "").key(""),
        ]))
        .await
        .expect("well");
    writer.checkpoint().await.expect("published");
    writer.finish().await.expect("well");

    let source = statement(&endpoint, "p", &[("subscription", "s")]);
    let mut host = read(&source, &world.kit, 1);
    host.run_to(3).await.expect("reads");
    let mut read = emitted(&host);
    read.sort_by(|a, b| a.payload.cmp(&b.payload));
    let published = world.topic.messages();
    let expected = [
        ("", attributes([("empty", "")]), None),
        (
            "{\"order_id\":\"o-1\",\"amount\":20}",
            attributes([("channel", "mobile"), ("note", long)]),
            Some("c1".to_owned()),
        ),
        ("{}", attributes([]), None),
    ];
    for (read, (payload, attributes, key)) in read.iter().zip(expected) {
        let message = published
            .iter()
            .find(|message| message.data == payload.as_bytes())
            .expect("published");
        let expected = Read {
            payload: payload.to_owned(),
            id: message.message_id.clone(),
            published_millis: 1_790_000_000_000,
            attributes,
            key,
            subscription: "projects/p/subscriptions/s".to_owned(),
            attempt: None,
        };
        assert_eq!(*read, expected);
    }
    assert_eq!(world.sub.counts().acked, 0, "no checkpoint yet");
    host.checkpoint().await.expect("checkpoints");
    world.until("all acks", |sub| sub.backlog() == 0).await;
    host.close().await.expect("closes");
    world.assert_accounting();
}

/// PS-ACC-02: the least of messages, one nanosecond before the hour.
#[tokio::test]
async fn a_message_without_anything_reads_as_empty_map_null_key_and_a_time_not_rounded_up() {
    let world = World::new().await;
    let last = on_the_day(10 * 3_600) - Duration::from_nanos(1);
    let message = |channel: Option<&str>| pb::PubsubMessage {
        data: b"{}".to_vec().into(),
        attributes: channel
            .map(|channel| ("channel".to_owned(), channel.to_owned()))
            .into_iter()
            .collect(),
        ..Default::default()
    };
    world.topic.publish_at(message(None), last);
    world
        .topic
        .publish_at(message(Some("mobile")), on_the_day(10 * 3_600));
    let table = statement(&world.sim.endpoint(), "p", &[("subscription", "s")]);
    let mut host = read(&table, &world.kit, 1);
    host.run_to(2).await.expect("reads");
    let read = emitted(&host);
    let first = &read[0];
    let day = 1_787_270_400_000;
    assert_eq!(first.published_millis, day + 10 * 3_600_000 - 1);
    assert_eq!((&first.attributes, &first.key), (&attributes([]), &None));
    assert_eq!(first.subscription, "projects/p/subscriptions/s");
    assert_eq!(read[1].published_millis, day + 10 * 3_600_000);
    let mobile = |read: &&Read| {
        read.attributes
            .get("channel")
            .is_some_and(|c| c == "mobile")
    };
    assert_eq!(read.iter().filter(mobile).count(), 1);
    assert!(read.iter().all(|read| read.subscription != "s"));
    host.close().await.expect("closes");
}

/// PS-ACC-05, from SQL: the topic of each row is a column.
#[tokio::test]
async fn rows_fan_out_to_topics_and_a_new_one_is_created_on_its_first_row() {
    let sim = Sim::start(SimConfig::default()).await.expect("a port");
    let pubsub = sim.pubsub();
    let known = ["totals", "orders-eu", "orders-us"].map(|name| pubsub.create_topic("p", name));
    let elsewhere = pubsub.create_topic("q", "orders-us");
    let table = statement(
        &sim.endpoint(),
        "p",
        &[
            ("topic", "totals"),
            ("sink.message-ordering.enabled", "true"),
            ("sink.auto-create.message-retention", "7 d"),
            ("sink.recovery.initial-backoff", "1 ms"),
        ],
    );
    let kit = TestContext::new("sink").with_limit(LIMIT);
    let mut host = write(&table, &kit, 1);
    let tenant = |payload, topic| Write::new(payload).attribute("tenant", "a").topic(topic);
    let mut written: Vec<Write> = (0..50)
        .flat_map(|_| [tenant("eu", "orders-eu"), tenant("us", "orders-us")])
        .collect();
    written.push(Write::new("none"));
    written.push(tenant("full", "projects/q/topics/orders-us"));
    host.write_all(rows(&written)).await.expect("well");
    host.checkpoint().await.expect("published");
    let before = pubsub.requests().len();
    assert!(!pubsub.topic("p", "orders-ap").exists());

    host.write_all(rows(&[tenant("ap", "orders-ap")]))
        .await
        .expect("well");
    host.checkpoint().await.expect("created and published");
    host.finish().await.expect("well");
    let created = pubsub.topic("p", "orders-ap");
    let retention = created
        .config()
        .expect("created")
        .message_retention_duration;
    assert_eq!(retention.map(|span| span.seconds), Some(7 * 86_400));
    let data = |topic: &aqueduct_sim::Topic| -> Vec<String> {
        let messages = topic.messages();
        messages
            .iter()
            .map(|message| {
                assert!(message.data == b"none"[..] || message.attributes["tenant"] == "a");
                String::from_utf8_lossy(&message.data).into_owned()
            })
            .collect()
    };
    assert_eq!(data(&created), ["ap"]);
    assert_eq!(data(&known[0]), ["none"]);
    assert_eq!(data(&known[1]), vec!["eu"; 50]);
    assert_eq!(data(&known[2]), vec!["us"; 50]);
    assert_eq!(data(&elsewhere), ["full"]);
    assert_eq!(
        pubsub.request_count(Method::CreateTopic),
        1,
        "no admin call for the others"
    );
    assert!(pubsub.requests().len() > before);
}

/// PS-ACC-04: nothing is dropped unseen, and what fails says where and nothing more.
#[tokio::test]
async fn a_null_attribute_a_bad_topic_and_a_retraction_fail_the_write() {
    let secret = Marker::new("payload-nobody-may-see");
    let sim = Sim::start(SimConfig::default()).await.expect("a port");
    let topic = sim.pubsub().create_topic("p", "t");
    let table = statement(
        &sim.endpoint(),
        "p",
        &[("topic", "t"), ("sink.message-ordering.enabled", "true")],
    );
    let null = |attribute| Write {
        attributes: Some(vec![(Some("good"), Some("good")), attribute]),
        ..Write::new(secret.text())
    };
    for (bad, part) in [
        (null((None, Some(secret.text()))), "NULL key"),
        (null((Some(secret.text()), None)), "NULL value"),
        (
            Write::new(secret.text()).topic("no/topic"),
            "topic is not valid",
        ),
    ] {
        let log = capture();
        let kit = TestContext::new("sink").with_limit(LIMIT);
        let mut host = write(&table, &kit, 1);
        let error = match host.write_all(rows(&[bad])).await {
            Err(error) => error,
            Ok(()) => host.checkpoint().await.expect_err("refused"),
        };
        let report = error.report();
        assert!(report.contains(part), "{report}");
        secret.assert_absent_from_error("the failure", &error);
        secret.assert_absent_from_log(&log);
        drop(host.close().await);
    }
    assert_eq!(topic.published(), 0);
}

#[tokio::test]
async fn a_statement_creates_what_is_missing_and_starts_where_it_says() {
    let world = World::new().await;
    let old = world.publish("old", 3);
    world.advance(Duration::from_secs(10));
    let table = statement(
        &world.sim.endpoint(),
        "p",
        &[
            ("subscription", "s; new-sub"),
            ("scan.startup.mode", "latest"),
            ("scan.auto-create.topics.s", "t"),
            ("scan.auto-create.topics.new-sub", "projects/p/topics/t"),
            ("scan.auto-create.ack-deadline", "20 s"),
            ("scan.auto-create.message-ordering.enabled", "true"),
            ("scan.auto-create.message-retention", "1 d"),
            ("scan.auto-create.retain-acked-messages", "true"),
            ("scan.auto-create.never-expire", "true"),
            ("scan.auto-create.filter", "attributes:channel"),
            ("scan.auto-create.dead-letter.topic", "dead"),
            ("scan.auto-create.dead-letter.max-delivery-attempts", "7"),
        ],
    );
    world.sim.pubsub().create_topic("p", "dead");
    let mut host = read(&table, &world.kit, 2);
    step_until(
        &mut host,
        "both streams",
        |_| world.metric(metrics::OPEN_STREAMS) == 2,
        || (),
    )
    .await;
    let created = world.sim.pubsub().subscription("p", "new-sub").config();
    let created = created.expect("created");
    assert_eq!(created.topic, "projects/p/topics/t");
    assert_eq!(created.ack_deadline_seconds, 20);
    assert!(created.enable_message_ordering && created.retain_acked_messages);
    let seconds = |span: Option<prost_types::Duration>| span.map(|span| span.seconds);
    assert_eq!(seconds(created.message_retention_duration), Some(86_400));
    assert_eq!(
        created.expiration_policy.map(|policy| policy.ttl),
        Some(None)
    );
    assert_eq!(created.filter, "attributes:channel");
    let policy = created.dead_letter_policy.expect("a policy");
    assert_eq!(policy.dead_letter_topic, "projects/p/topics/dead");
    assert_eq!(policy.max_delivery_attempts, 7);

    world.topic.publish_message(pb::PubsubMessage {
        data: b"new".to_vec().into(),
        attributes: [("channel".to_owned(), "web".to_owned())].into(),
        ..Default::default()
    });
    host.run_to(2).await.expect("reads");
    let mut read = emitted(&host);
    read.sort_by(|a, b| a.subscription.cmp(&b.subscription));
    assert_eq!(payloads(&host), ["new", "new"], "the backlog was dropped");
    let names: Vec<&str> = read.iter().map(|read| read.subscription.as_str()).collect();
    let expected = [
        "projects/p/subscriptions/new-sub",
        "projects/p/subscriptions/s",
    ];
    assert_eq!(names, expected);
    assert_eq!(
        read[0].attempt,
        Some(1),
        "counted with a dead-letter policy"
    );
    assert_eq!(read[0].attributes["googclient_deliveryattempt"], "1");
    assert_eq!(read[1].attempt, None);
    assert!(old.iter().all(|id| world.sub.deliveries(id) == 0));
    host.close().await.expect("closes");
}

#[tokio::test]
async fn a_subscription_with_exactly_once_delivery_is_refused_unless_accepted() {
    let world = World::with(|settings| settings.enable_exactly_once_delivery = true).await;
    world.publish("m", 2);
    let endpoint = world.sim.endpoint();
    let refused = statement(&endpoint, "p", &[("subscription", "s")]);
    let mut host = read(&refused, &world.kit, 1);
    let text = failure(&mut host).await.report();
    assert!(text.contains("projects/p/subscriptions/s"), "{text}");
    assert!(text.contains("scan.exactly-once-subscriptions"), "{text}");
    host.close().await.expect("closes");

    let accepted = refused.option("scan.exactly-once-subscriptions", "accept");
    let kit = world.kit.next_attempt();
    let mut host = read(&accepted, &kit, 1);
    host.run_to(2).await.expect("reads");
    host.checkpoint().await.expect("checkpoints");
    until(LIMIT, "both acks", || world.sub.backlog() == 0).await;
    host.close().await.expect("closes");
}
